//! What both databases' rehearsals write and take back.

use handstamp_core::{
    DeadLetter, FailureClass, Headers, MessageId, Origin, Reason, Record, Timestamp, Version, VersionKey,
};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// An id that nobody has, and its dead letter.
pub(crate) fn rehearsed_letter() -> DeadLetter {
    let id = format!("handstamp-rehearsal-{:016x}", RandomState::new().hash_one(std::process::id()));
    let record = Record {
        key: None,
        value: None,
        headers: Headers::default(),
        origin: Origin { topic: "rehearsal".into(), partition: 0, offset: 0, line: None },
        timestamp: None,
    };
    DeadLetter {
        id: MessageId::try_from(id.as_str()).ok(),
        digest: record.digest(),
        record,
        truncation: None,
        class: FailureClass::Failed,
        code: None,
        reason: Reason::new("a rehearsal: it is never committed"),
        attempts: 0,
        received_at: Timestamp(0),
        failed_at: Timestamp(0),
    }
}

/// A mark of a key that nobody has.
pub(crate) fn rehearsed_marks(letter: &DeadLetter) -> BTreeMap<VersionKey, Version> {
    Version::parse("1").into_iter().map(|version| (VersionKey(letter.dedup()), version)).collect()
}
