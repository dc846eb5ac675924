//! Copies what the client library holds into records of ours.
//!
//! Bytes of many small records share one slab, so that a record costs no allocation of its own; a slab is
//! small, so that a record kept for long keeps little else alive.

use super::ffi::Raw;
use bytes::{Bytes, BytesMut};
use handstamp_core::{Header, Headers, Origin, Record, RecordFault, Timestamp, Truncation};
use std::sync::Arc;

const SLAB_BYTES: usize = 64 * 1024;

/// Copies records.
#[derive(Debug)]
pub(super) struct Copier {
    slab: BytesMut,
    message_max_bytes: usize,
}

impl Copier {
    pub(super) fn new(message_max_bytes: usize) -> Self {
        Self { slab: BytesMut::new(), message_max_bytes }
    }

    /// The record, cut to a prefix of its value and marked when it is larger than the limit.
    pub(super) fn copy(
        &mut self,
        raw: &Raw<'_>,
        topic: &Arc<str>,
        partition: i32,
    ) -> (Record, Option<RecordFault>) {
        let (key, value) = (raw.key(), raw.value());
        let mut fixed = key.map_or(0, <[u8]>::len);
        raw.headers(|name, value| fixed += name.len() + value.map_or(0, <[u8]>::len));
        let full = value.map_or(0, <[u8]>::len);
        let kept = full.min(self.message_max_bytes.saturating_sub(fixed));
        let fault =
            (kept < full).then(|| too_large(fixed + full, self.message_max_bytes, value.unwrap_or_default()));
        self.make_room(fixed + kept);
        let record = Record {
            key: key.map(|key| self.take(key)),
            value: value.map(|value| self.take(&value[..kept])),
            headers: self.headers(raw),
            origin: Origin { topic: Arc::clone(topic), partition, offset: raw.offset(), line: None },
            timestamp: raw.timestamp().map(Timestamp),
        };
        (record, fault)
    }

    fn headers(&mut self, raw: &Raw<'_>) -> Headers {
        let mut headers = vec![];
        raw.headers(|name, value| {
            let name = self.take(name);
            headers.push(Header { name, value: value.map(|value| self.take(value)) });
        });
        Headers::new(headers)
    }

    fn make_room(&mut self, bytes: usize) {
        if self.slab.capacity() < bytes {
            self.slab = BytesMut::with_capacity(bytes.max(SLAB_BYTES));
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        self.slab.extend_from_slice(bytes);
        self.slab.split().freeze()
    }
}

fn too_large(record_bytes: usize, limit: usize, value: &[u8]) -> RecordFault {
    RecordFault {
        reason: format!("the record has {record_bytes} bytes, more than max_message_bytes = {limit}"),
        truncation: Some(Truncation {
            full_bytes: u64::try_from(value.len()).unwrap_or(u64::MAX),
            blake3: *blake3::hash(value).as_bytes(),
        }),
    }
}
