//! Messages with bytes that a careless store does not keep.

use super::id;
use crate::CaseFailure;
use bytes::Bytes;
use handstamp_core::{DeadLetter, FailureClass, Header, Headers, Origin, Reason, Record, Timestamp};

/// A message after three failed attempts.
pub(crate) fn dead_letter(
    letter_id: Option<&str>,
    class: FailureClass,
    offset: i64,
) -> Result<DeadLetter, CaseFailure> {
    let bytes = |b: &'static [u8]| Some(Bytes::from_static(b));
    let headers = vec![
        Header::new("trace", bytes(b"1")),
        Header::new("trace", bytes(b"2")),
        Header::new("null", None),
        Header::new("empty", bytes(b"")),
        Header::new(&b"\xff\x00name"[..], bytes(b"\x00\xff")),
    ];
    let own = letter_id.unwrap_or_default().as_bytes();
    let record = Record {
        key: bytes(b"\x00k\xff"),
        value: Some(Bytes::from([b"{\"a\":\"\\u0000\"}\x00\xfe", own].concat())),
        headers: Headers::new(headers),
        origin: Origin { topic: "credits".into(), partition: 3, offset, line: Some(12) },
        timestamp: Some(Timestamp(1_700_000_000_123)),
    };
    Ok(DeadLetter {
        id: letter_id.map(id).transpose()?,
        digest: record.digest(),
        record,
        truncation: None,
        class,
        code: Some("23514".into()),
        reason: Reason::new("amount\0 must be \u{1F4B6}\nsecond line '\\"),
        attempts: 3,
        received_at: Timestamp(1_700_000_001_000),
        failed_at: Timestamp(1_700_000_002_000),
    })
}

/// Key, value and headers null or absent.
pub(crate) fn bare_letter(letter_id: &str) -> Result<DeadLetter, CaseFailure> {
    let mut bare = dead_letter(Some(letter_id), FailureClass::TimedOut, 2)?;
    bare.record.key = None;
    bare.record.value = None;
    bare.record.headers = Headers::default();
    bare.record.timestamp = None;
    bare.record.origin.line = None;
    bare.digest = bare.record.digest();
    bare.code = None;
    Ok(bare)
}

/// Key and value empty, which is not null.
pub(crate) fn empty_letter(letter_id: &str) -> Result<DeadLetter, CaseFailure> {
    let mut empty = bare_letter(letter_id)?;
    empty.record.key = Some(Bytes::new());
    empty.record.value = Some(Bytes::new());
    empty.digest = empty.record.digest();
    Ok(empty)
}
