//! Messages to publish: made up, or read from JSON lines; each with its id in a header.

pub(crate) mod lines;
pub(crate) mod sample;

use bytes::Bytes;
use handstamp_core::{Header, Headers, Origin, Record};
use std::sync::Arc;

/// A record that is not at any broker yet.
pub(crate) fn record(
    topic: &Arc<str>,
    headers: Vec<Header>,
    key: Option<Bytes>,
    value: impl Into<Bytes>,
) -> Record {
    Record {
        key,
        value: Some(value.into()),
        headers: Headers::new(headers),
        origin: Origin { topic: Arc::clone(topic), partition: 0, offset: 0, line: None },
        timestamp: None,
    }
}

/// A header from texts.
pub(crate) fn header(name: &str, value: &[u8]) -> Header {
    Header::new(Bytes::copy_from_slice(name.as_bytes()), Some(Bytes::copy_from_slice(value)))
}
