//! Messages to publish: made up, or read from JSON lines; each with its id in a header.

pub(crate) mod lines;
pub(crate) mod sample;

use bytes::Bytes;
use handstamp_core::{Header, Headers, Origin, Record};
use std::sync::Arc;

/// A record that is not at any broker yet.
pub(crate) fn record(
    topic: &Arc<str>,
    id_header: Option<(&str, Bytes)>,
    key: Option<Bytes>,
    value: impl Into<Bytes>,
) -> Record {
    let headers =
        id_header.map(|(name, id)| vec![Header::new(Bytes::copy_from_slice(name.as_bytes()), Some(id))]);
    Record {
        key,
        value: Some(value.into()),
        headers: Headers::new(headers.unwrap_or_default()),
        origin: Origin { topic: Arc::clone(topic), partition: 0, offset: 0, line: None },
        timestamp: None,
    }
}
