//! What a dry run found, as a table and as an object.

use super::{Fate, Findings, Looked};
use crate::config::Config;
use crate::output::{json, table};
use handstamp_core::InboxState;
use handstamp_core::consumer::preview::PreviewFailure;
use handstamp_core::message_id::shown_text;
use serde_json::{Map, Value, json};

/// Longest reason in a table; the object has all of it.
const REASON_MAX: usize = 120;

/// The words of the counters, in their order.
const OUTCOMES: [&str; 9] = [
    "applied",
    "duplicate",
    "id_reused",
    "stale",
    "unmatched",
    "dead_lettered",
    "parked",
    "blocks",
    "not_tried",
];

impl Fate {
    fn word(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate(_) | Self::KnownLetter => "duplicate",
            Self::IdReused { .. } => "id_reused",
            Self::Stale => "stale",
            Self::Unmatched => "unmatched",
            Self::DeadLettered(_) => "dead_lettered",
            Self::Parked(_) | Self::Behind => "parked",
            Self::Blocks(_) => "blocks",
            Self::NotTried => "not_tried",
        }
    }

    fn failure(&self) -> Option<&PreviewFailure> {
        match self {
            Self::DeadLettered(failure) | Self::Parked(failure) | Self::Blocks(failure) => Some(failure),
            _ => None,
        }
    }

    /// What a person wants to know beside the word.
    fn why(&self) -> String {
        match self {
            Self::Applied => String::new(),
            Self::Duplicate(InboxState::Applied) => "seen before".to_owned(),
            Self::Duplicate(state) => format!("seen before: {}", state.as_str()),
            Self::KnownLetter => "its dead letter is there".to_owned(),
            Self::IdReused { kept: true } => "known id with another body: dead letter".to_owned(),
            Self::IdReused { kept: false } => "known id with another body: counted".to_owned(),
            Self::Unmatched => "no effect wants it".to_owned(),
            Self::Stale => "not newer than what is applied of its key".to_owned(),
            Self::Behind => "behind a parked one of its key".to_owned(),
            Self::NotTried => "the one that took too long was in front of it".to_owned(),
            Self::DeadLettered(failure) | Self::Parked(failure) | Self::Blocks(failure) => failed(failure),
        }
    }
}

fn failed(failure: &PreviewFailure) -> String {
    let reason = shown_text(failure.reason.as_str().as_bytes()).to_string();
    let mut cut: String = reason.chars().take(REASON_MAX).collect();
    if cut.len() < reason.len() {
        cut.push('…');
    }
    format!("{}: {cut}", failure.class.as_str())
}

/// A table with a row for each message, and what holds for all of them.
pub(super) fn text(findings: &Findings) -> String {
    if findings.looked.is_empty() {
        return "nothing is there that was not read before\n".to_owned();
    }
    let rows = findings.looked.iter().map(|Looked { preview, fate }| {
        let id = preview.id().map_or_else(|| "–".to_owned(), ToString::to_string);
        vec![preview.record().origin.to_string(), id, fate.word().replace('_', " "), fate.why()]
    });
    let mut text = table::plain(&["message", "id", "would be", "why"], rows.collect());
    let counts = counts(findings);
    let told: Vec<String> = OUTCOMES
        .iter()
        .filter_map(|word| Some((counts.get(*word)?.as_u64()?, word.replace('_', " "))))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    text.push_str(&format!("\n{}; nothing was committed, nothing was settled\n", told.join(", ")));
    if findings.is_new {
        text.push_str("the store does not exist yet: it was tried on one that is gone again\n");
    }
    if !findings.ended {
        text.push_str("more lies behind them: --max-messages N looks at N\n");
    }
    text
}

fn counts(findings: &Findings) -> Map<String, Value> {
    let count = |word: &str| findings.looked.iter().filter(|looked| looked.fate.word() == word).count();
    OUTCOMES.iter().map(|word| ((*word).to_owned(), json!(count(word)))).collect()
}

/// The object for programs.
pub(super) fn object(config: &Config, findings: &Findings) -> Value {
    let messages: Vec<Value> = findings.looked.iter().map(message).collect();
    json::done(json!({
        "consumer": config.name.as_str(),
        "dry_run": true,
        "messages": messages,
        "counts": counts(findings),
        "store_is_new": findings.is_new,
        "ended": findings.ended,
    }))
}

/// The same when nothing was looked at.
pub(super) fn nothing() -> Value {
    json!({
        "consumer": null,
        "dry_run": true,
        "messages": [],
        "counts": OUTCOMES.iter().map(|word| ((*word).to_owned(), json!(0))).collect::<Map<_, _>>(),
        "store_is_new": null,
        "ended": null,
    })
}

fn message(Looked { preview, fate }: &Looked) -> Value {
    let origin = &preview.record().origin;
    let failure = fate.failure();
    json!({
        "topic": &*origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "line": origin.line,
        "id": preview.id().map(ToString::to_string),
        "outcome": fate.word(),
        "state": matches!(fate, Fate::Duplicate(_)).then(|| fate.state().as_str()),
        "class": failure.map(|failure| failure.class.as_str()),
        "code": failure.and_then(|failure| failure.code.as_deref()),
        "reason": failure.map(|failure| failure.reason.as_str()),
        "why": fate.why(),
    })
}
