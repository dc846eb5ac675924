//! Objects for programs: every counter, always present.

use crate::redact;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use handstamp_core::{Report, StopReason};
use serde_json::{Map, Value, json};

/// The object at the end of a run; `consumer` is not known before the file was read.
pub(crate) fn report(consumer: Option<&str>, report: &Report) -> Value {
    let counts = &report.counts;
    let notices: Map<String, Value> =
        report.notices.iter().map(|(notice, count)| (notice.as_str().to_owned(), json!(count))).collect();
    let lag: Map<String, Value> =
        report.lag.iter().map(|lane| (lane.name.to_string(), json!(lane.lag))).collect();
    json!({
        "consumer": consumer,
        "received": counts.received,
        "applied": counts.applied,
        "duplicate": counts.duplicate,
        "id_reused": counts.id_reused,
        "stale": counts.stale,
        "unmatched": counts.unmatched,
        "dead_lettered": counts.dead_lettered,
        "parked": counts.parked,
        "released": counts.released,
        "pending": counts.pending(),
        "attempts_failed": counts.attempts_failed,
        "commits": counts.commits,
        "reruns": counts.reruns,
        "dead_letter_rows": counts.dead_letter_rows,
        "dead_letter_copies": counts.dead_letter_copies,
        "dead_letter_copies_failed": counts.dead_letter_copies_failed,
        "resumed": counts.resumed,
        "resumed_applied": counts.resumed_applied,
        "resumed_stale": counts.resumed_stale,
        "resumed_parked_again": counts.resumed_parked_again,
        "resumed_dead": counts.resumed_dead,
        "resumed_released": counts.resumed_released,
        "breaker": report.breaker.as_str(),
        "breaker_opened": counts.breaker_opened,
        "crashes_found": counts.crashes_found,
        "notices": notices,
        "lag": lag,
        // Asked of the store by whoever can.
        "left": null,
        "took_seconds": report.took.as_secs_f64(),
        "busy_seconds": report.busy.as_secs_f64(),
        "messages_per_second": super::rate(report),
        "stopped": stopped(report.stopped),
        "error": null,
        "details": [],
        "hints": [],
        "exit_code": 0,
    })
}

/// The same object with what each says that ended well.
pub(crate) fn done(mut object: Value) -> Value {
    object["error"] = Value::Null;
    object["details"] = json!([]);
    object["hints"] = json!([]);
    object["exit_code"] = json!(0);
    object
}

fn stopped(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Asked => "asked",
        StopReason::SourceEnded => "source_ended",
        StopReason::Idle => "idle",
        StopReason::MessagesMax => "messages_max",
        StopReason::Failed => "failed",
        _ => "other",
    }
}

/// Bytes without loss: text where they are UTF-8, otherwise an object that says base64; null is null.
pub(crate) fn bytes(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => json!(text),
        Some((bytes, Err(_))) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// The same value with every registered secret masked in its texts. Numbers and names of fields stay: a
/// password that looks like a number must not turn a count into something that is no JSON.
pub(crate) fn redacted(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(redact::redact(text).into_owned()),
        Value::Array(items) => Value::Array(items.iter().map(redacted).collect()),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), redacted(value))).collect())
        }
        other => other.clone(),
    }
}

/// One object on one line.
pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_is_a_number_leaves_the_counts_alone() {
        redact::register("987654");
        let object = json!({ "applied": 987_654, "error": "no 987654", "list": ["987654"] });
        assert_eq!(redacted(&object), json!({ "applied": 987_654, "error": "no ***", "list": ["***"] }));
    }

    #[test]
    fn bytes_keep_null_text_and_binary_apart() {
        assert_eq!(bytes(None), Value::Null);
        assert_eq!(bytes(Some(b"")), json!(""));
        assert_eq!(bytes(Some("é\0".as_bytes())), json!("é\0"));
        assert_eq!(bytes(Some(b"\xff")), json!({ "base64": "/w==" }));
    }
}
