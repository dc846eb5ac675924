//! One dead letter, for a person and for a program.

use crate::output::{json, width};
use handstamp_core::Timestamp;
use handstamp_core::message_id::shown_text;
use handstamp_core::parked::FailedAttempt;
use handstamp_stores::redrive::AuditRow;
use handstamp_stores::rows::{DeadLetterRow, DeadLetterSummary};
use serde_json::{Value, json};

/// Stands where a message has no id, or none that can be used.
const NO_ID: &str = "(none)";
/// Columns of an id in a list: a UUID fits.
const ID_COLUMNS: usize = 40;
/// The second line of a list's header.
pub(super) const ID_AND_REASON: &str = "    id  reason\n";

/// The second line of a message in a list, as much of it as fits.
pub(super) fn id_and_reason(letter: &DeadLetterSummary, columns: usize) -> String {
    let id = letter.id.as_ref().map_or_else(|| NO_ID.to_owned(), ToString::to_string);
    let line = format!("    {}  {}", width::cut(&id, ID_COLUMNS), one_line(letter));
    format!("{}\n", width::cut(&line, columns))
}

/// A time without parts of a second: the second that it lies in.
pub(super) fn to_the_second(time: Timestamp) -> String {
    let text = time.to_string();
    text.split_once('.').map_or_else(|| text.clone(), |(seconds, _)| format!("{seconds}Z"))
}

/// The reason in one line.
pub(super) fn one_line(letter: &DeadLetterSummary) -> String {
    letter.reason.as_str().replace('\n', " ")
}

/// Why a message was given up, where and when, for a person.
pub(in crate::commands) fn fields(letter: &DeadLetterSummary) -> Vec<(&'static str, String)> {
    let origin = &letter.origin;
    let mut fields = vec![
        ("dead letter", letter.key.to_string()),
        ("failed at", letter.failed_at.to_string()),
        ("class", letter.class.as_str().to_owned()),
        ("reason", one_line(letter)),
        ("attempts", letter.attempts.to_string()),
        ("topic", origin.topic.to_string()),
        ("partition", origin.partition.to_string()),
        ("offset", origin.offset.to_string()),
    ];
    if let Some(code) = &letter.code {
        fields.insert(3, ("code", code.clone()));
    }
    if let Some(line) = origin.line {
        fields.push(("line", line.to_string()));
    }
    fields
}

/// The same for a program.
pub(in crate::commands) fn summary(letter: &DeadLetterSummary) -> Value {
    json!({
        "key": letter.key.to_string(),
        "id": json::bytes(letter.id.as_ref().map(|id| id.as_bytes())),
        "class": letter.class.as_str(),
        "code": letter.code,
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "failed_at": letter.failed_at.to_string(),
        "value_bytes": letter.value_bytes,
        "topic": letter.origin.topic.as_ref(),
        "partition": letter.origin.partition,
        "offset": letter.origin.offset,
        "line": letter.origin.line,
    })
}

/// Everything that was kept.
pub(super) fn whole(row: &DeadLetterRow) -> Value {
    let letter = &row.letter;
    let record = &letter.record;
    let headers: Vec<Value> = record
        .headers
        .as_slice()
        .iter()
        .map(|header| json!([json::bytes(Some(&header.name)), json::bytes(header.value.as_deref())]))
        .collect();
    let truncated = letter.truncation.as_ref().map(|truncation| {
        let hash = truncation.blake3.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        json!({ "full_bytes": truncation.full_bytes, "blake3": hash })
    });
    json!({
        "key": row.key.to_string(),
        "consumer": row.consumer.as_str(),
        "id": json::bytes(letter.id.as_ref().map(|id| id.as_bytes())),
        "class": letter.class.as_str(),
        "code": letter.code,
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "received_at": letter.received_at.to_string(),
        "failed_at": letter.failed_at.to_string(),
        "topic": record.origin.topic.as_ref(),
        "partition": record.origin.partition,
        "offset": record.origin.offset,
        "line": record.origin.line,
        "timestamp_ms": record.timestamp.map(|timestamp| timestamp.0),
        "record_key": json::bytes(record.key.as_deref()),
        "record_value": json::bytes(record.value.as_deref()),
        "record_headers": headers,
        "truncated": truncated,
    })
}

/// Failed attempts, oldest first.
pub(super) fn attempts(attempts: &[FailedAttempt]) -> Vec<Value> {
    let of = |attempt: &FailedAttempt| {
        json!({
            "at": attempt.at.to_string(),
            "node": attempt.node,
            "class": attempt.class.as_str(),
            "code": attempt.code,
            "reason": attempt.reason.as_str(),
        })
    };
    attempts.iter().map(of).collect()
}

/// What operators did, newest first.
pub(super) fn audit(rows: &[AuditRow]) -> Vec<Value> {
    let of = |row: &AuditRow| {
        json!({
            "at": row.at.to_string(),
            "by": row.operation.done_by,
            "action": row.action.as_str(),
            "why": row.operation.why,
            "operation": uuid::Uuid::from_bytes(row.operation.number).to_string(),
            "key": row.dead_letter.to_string(),
            "id": json::bytes(row.id.as_ref().map(|id| id.as_bytes())),
        })
    };
    rows.iter().map(of).collect()
}

/// One field a line; control characters escaped. Lists are left out: they have tables of their own.
pub(super) fn person(object: &Value) -> String {
    let mut out = String::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let shown = match value {
            Value::Null => continue,
            Value::Array(_) if matches!(key.as_str(), "failures" | "audit") => continue,
            Value::String(text) => shown_text(text.as_bytes()),
            other => other.to_string(),
        };
        out.push_str(&format!("{:<15} {shown}\n", key.replace('_', " ")));
    }
    out
}
