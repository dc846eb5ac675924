//! What became of those dead letters that were meant: counted, and said with its reason.

use crate::exit::Exit;
use crate::output::table;
use handstamp_stores::redrive::{Action, Operation};
use handstamp_stores::rows::DeadLetterKey;
use serde_json::{Value, json};

/// Reasons that are shown; the rest is counted.
const SHOWN_MAX: usize = 100;

/// Counts and reasons.
#[derive(Debug)]
pub(super) struct Verdicts {
    action: Action,
    dry_run: bool,
    /// How many were meant.
    meant: u64,
    /// How many were sent back or given up.
    pub(super) done: u64,
    /// How many were before, by the audit.
    already: u64,
    /// How many stayed as they were.
    stayed: u64,
    why: Vec<(DeadLetterKey, String)>,
    /// Somebody asked to stop.
    pub(super) stopped: bool,
}

impl Verdicts {
    /// Nothing yet.
    pub(super) fn new(action: Action, dry_run: bool, meant: u64) -> Self {
        let (done, already, stayed) = (0, 0, 0);
        Self { action, dry_run, meant, done, already, stayed, why: Vec::new(), stopped: false }
    }

    /// One stayed.
    pub(super) fn stays(&mut self, key: DeadLetterKey, why: impl Into<String>) {
        self.stayed += 1;
        if self.why.len() < SHOWN_MAX {
            self.why.push((key, why.into()));
        }
    }

    /// One was done before.
    pub(super) fn was_done(&mut self) {
        self.already += 1;
    }

    /// How far it is.
    pub(super) fn progress(&self) -> String {
        let looked_at = self.done + self.already + self.stayed;
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

    /// For a person.
    pub(super) fn text(&self) -> String {
        let mut out =
            format!("{} of {} {}\n", table::grouped(self.done), table::grouped(self.meant), self.word());
        if self.already > 0 {
            out.push_str(&format!("{} before\n", table::grouped(self.already)));
        }
        if self.stayed > 0 {
            out.push_str(&format!("{} stayed\n\n", table::grouped(self.stayed)));
            let rows = self.why.iter().map(|(key, why)| vec![key.to_string(), why.clone()]).collect();
            out.push_str(&table::plain(&["key", "why it stayed"], rows));
        }
        out
    }

    /// For a program.
    pub(super) fn object(&self, consumer: &str, operation: &Operation) -> Value {
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
            "done_before": self.already,
            "stayed": self.stayed,
            "reasons": stayed,
            "stopped": self.stopped,
            "error": null,
            "details": [],
            "hints": [],
            "exit_code": self.exit().code(),
        })
    }
}

/// What `--json` prints of a command that has done nothing.
pub(super) fn nothing() -> Value {
    json!({ "meant": 0, "done": 0, "done_before": 0, "stayed": 0, "reasons": [], "stopped": false })
}
