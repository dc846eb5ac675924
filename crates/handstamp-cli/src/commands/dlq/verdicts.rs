//! What became of those messages that were meant: counted, and said with its reason.

use super::before::Since;
use super::next::Next;
use crate::exit::Exit;
use crate::output::{table, width};
use handstamp_stores::redrive::{Action, Operation};
use handstamp_stores::rows::DeadLetterKey;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Reasons that are shown; the rest is counted.
const SHOWN_MAX: usize = 100;

/// Counts and reasons: meant = done + done before + due already + stayed, once nothing is left.
#[derive(Debug)]
pub(super) struct Verdicts {
    action: Action,
    dry_run: bool,
    /// How many were meant.
    meant: u64,
    /// How many were sent back or given up.
    pub(super) done: u64,
    /// How many were before, by the audit, and what became of them since.
    before: BTreeMap<Since, u64>,
    /// There may be more that were before.
    pub(super) may_be_more: bool,
    /// How many are due by themselves: nothing is to be done.
    due: u64,
    /// How many stayed as they were.
    stayed: u64,
    why: Vec<(DeadLetterKey, String)>,
    /// Somebody asked to stop.
    pub(super) stopped: bool,
}

impl Verdicts {
    /// Nothing yet.
    pub(super) fn new(action: Action, dry_run: bool, meant: u64) -> Self {
        Self {
            action,
            dry_run,
            meant,
            done: 0,
            before: BTreeMap::new(),
            may_be_more: false,
            due: 0,
            stayed: 0,
            why: Vec::new(),
            stopped: false,
        }
    }

    /// One more is meant than was counted.
    pub(super) fn mean_one_more(&mut self) {
        self.meant += 1;
    }

    /// Whether none is meant.
    pub(super) fn is_empty(&self) -> bool {
        self.meant == 0
    }

    /// One stayed.
    pub(super) fn stays(&mut self, key: DeadLetterKey, why: impl Into<String>) {
        self.stayed += 1;
        if self.why.len() < SHOWN_MAX {
            self.why.push((key, why.into()));
        }
    }

    /// One was done before.
    pub(super) fn was_done(&mut self, since: Since) {
        *self.before.entry(since).or_default() += 1;
    }

    /// One is due without having been sent.
    pub(super) fn is_due(&mut self) {
        self.due += 1;
    }

    fn done_before(&self) -> u64 {
        self.before.values().sum()
    }

    /// How far it is.
    pub(super) fn progress(&self) -> String {
        let looked_at = self.done + self.done_before() + self.due + self.stayed;
        let (done, meant) = (table::grouped(looked_at), table::grouped(self.meant));
        format!("{done} of {meant}; {} {}, stayed {}", self.word(), table::grouped(self.done), self.stayed)
    }

    /// The exit code.
    pub(super) fn exit(&self) -> Exit {
        match (self.stopped, self.stayed) {
            (true, _) => Exit::Unfinished,
            (false, 0) => Exit::Ok,
            (false, _) => Exit::CheckFailed,
        }
    }

    fn word(&self) -> &'static str {
        match (self.action, self.dry_run) {
            (Action::Redrive, false) => "sent back",
            (Action::Redrive, true) => "would be sent back",
            (Action::Discard, false) => "discarded",
            (Action::Discard, true) => "would be discarded",
        }
    }

    /// Whether a consumer has something to do now, or would have.
    fn needs_a_consumer(&self) -> bool {
        let waits = self.before.keys().any(|since| since.is_on_its_way());
        self.action == Action::Redrive && (self.done > 0 || self.due > 0 || waits)
    }

    fn text_on_before(&self) -> String {
        let count = self.done_before();
        let was = match self.action {
            Action::Redrive => "sent back before",
            Action::Discard => "discarded before",
        };
        let since: Vec<String> = self
            .before
            .iter()
            .map(|(since, count)| format!("{} {}", table::grouped(*count), since.words()))
            .collect();
        let more = if self.may_be_more { " or more" } else { "" };
        format!("{}{more} {was}: {}\n", table::grouped(count), since.join(", "))
    }

    /// For a person.
    pub(super) fn text(&self, next: &Next) -> String {
        let columns = width::columns();
        if self.is_empty() {
            return format!("nothing fits: 0 {}\n", self.word());
        }
        let mut out =
            format!("{} of {} {}\n", table::grouped(self.done), table::grouped(self.meant), self.word());
        if !self.before.is_empty() {
            out.push_str(&self.text_on_before());
        }
        if self.due > 0 {
            out.push_str(&format!("{} due already: nothing to send\n", table::grouped(self.due)));
        }
        if self.stayed > 0 {
            out.push_str(&format!("{} stayed\n\n", table::grouped(self.stayed)));
            let rows = self.why.iter().map(|(key, why)| vec![key.to_string(), why.clone()]).collect();
            out.push_str(&table::fitted(&["key", "why it stayed"], rows, columns));
        }
        if self.needs_a_consumer() {
            out.push_str(&format!("\n{}", next.text(columns)));
        }
        out
    }

    /// For a program.
    pub(super) fn object(&self, consumer: &str, operation: &Operation, next: &Next) -> Value {
        let stayed: Vec<Value> =
            self.why.iter().map(|(key, why)| json!({ "key": key.to_string(), "reason": why })).collect();
        json!({
            "consumer": consumer,
            "action": self.action.as_str(),
            "dry_run": self.dry_run,
            "operation": (!self.dry_run).then(|| uuid::Uuid::from_bytes(operation.number).to_string()),
            "by": operation.done_by,
            "why": operation.why,
            "meant": self.meant,
            "done": self.done,
            "done_before": self.done_before(),
            "now": now(|since| self.before.get(&since).copied().unwrap_or_default()),
            "more": self.may_be_more,
            "due_already": self.due,
            "stayed": self.stayed,
            "reasons": stayed,
            "next": self.needs_a_consumer().then(|| next.object()),
            "stopped": self.stopped,
            "error": null,
            "details": [],
            "hints": [],
            "exit_code": self.exit().code(),
        })
    }
}

/// What became of those that were sent back or given up before, each with its count.
fn now(count: impl Fn(Since) -> u64) -> Value {
    let counts: Map<String, Value> =
        Since::ALL.into_iter().map(|since| (since.word().to_owned(), json!(count(since)))).collect();
    Value::Object(counts)
}

/// What `--json` prints of a command that has done nothing.
pub(super) fn nothing() -> Value {
    json!({
        "meant": 0, "done": 0, "done_before": 0, "now": now(|_| 0), "more": false, "due_already": 0, "stayed": 0,
        "reasons": [], "next": null, "stopped": false,
    })
}
