//! What a source hands over: a record, and the message it becomes once its id is known.
//!
//! Everything here is bytes as the broker gave them. Cloning is cheap: bodies are shared.

use crate::json::{Document, JsonFault, Shape};
use crate::message_id::{MessageId, shown_text};
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Milliseconds since the Unix epoch, as the broker or the producer stamped them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// RFC 3339 in UTC, with milliseconds: `2026-01-01T00:00:00.000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.div_euclid(1000), self.0.rem_euclid(1000));
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Civil date from days since 1970-01-01, counted in eras of 400 years that start on 1 March.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_index = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_index + 2) / 5 + 1;
        let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{millis:03}Z", second % 60)
    }
}

/// One header: a name of any bytes and a value that may be null.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Header {
    /// The name's bytes; not always UTF-8.
    pub name: Bytes,
    /// The value's bytes; `None` is a null value, which is not an empty one.
    pub value: Option<Bytes>,
}

impl Header {
    /// A header from a name and a value.
    pub fn new(name: impl Into<Bytes>, value: Option<Bytes>) -> Self {
        Self { name: name.into(), value }
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may hold credentials: only their length is shown.
        let length = self.value.as_ref().map(Bytes::len);
        write!(f, "{}={length:?} bytes", shown_text(&self.name))
    }
}

/// All headers of a record, in order, repeated names kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Option<Arc<[Header]>>);

impl Headers {
    /// Headers in the order given.
    #[must_use]
    pub fn new(headers: Vec<Header>) -> Self {
        if headers.is_empty() { Self(None) } else { Self(Some(headers.into())) }
    }

    /// The headers, first to last.
    #[must_use]
    pub fn as_slice(&self) -> &[Header] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// All values under a name, first to last.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = Option<&'a Bytes>> {
        self.as_slice().iter().filter(move |h| h.name == name).map(|h| h.value.as_ref())
    }
}

/// Where a record lies at its broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Topic, queue or file path.
    pub topic: Arc<str>,
    /// Partition; 0 where the source has none.
    pub partition: i32,
    /// Position inside the partition: an offset, or the byte position of a line.
    pub offset: i64,
    /// Line number from 1, where the source has lines.
    pub line: Option<u64>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} line {line}", self.topic),
            None => write!(f, "{}[{}]@{}", self.topic, self.partition, self.offset),
        }
    }
}

/// A record as it came from a source, before its id is known.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// The key; `None` is null.
    pub key: Option<Bytes>,
    /// The value; `None` is null (a tombstone), which is not an empty value.
    pub value: Option<Bytes>,
    /// All headers.
    pub headers: Headers,
    /// Where the record lies.
    pub origin: Origin,
    /// The broker's or producer's time.
    pub timestamp: Option<Timestamp>,
}

impl Record {
    /// Bytes of key, value and headers together: what bounds count.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let headers: usize = self
            .headers
            .as_slice()
            .iter()
            .map(|h| h.name.len() + h.value.as_ref().map_or(0, Bytes::len))
            .sum();
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + headers
    }

    /// The first 64 bits of BLAKE3 over the value; null and empty differ, headers do not count.
    #[must_use]
    pub fn digest(&self) -> i64 {
        let hash = match &self.value {
            Some(value) => blake3::hash(value),
            None => blake3::Hasher::new_derive_key("handstamp null value").finalize(),
        };
        first_i64(hash.as_bytes())
    }
}

/// The first eight bytes of a hash as a big-endian signed number.
pub(crate) fn first_i64(hash: &[u8; 32]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("origin", &format_args!("{}", self.origin))
            .field("key_bytes", &self.key.as_ref().map(Bytes::len))
            .field("value_bytes", &self.value.as_ref().map(Bytes::len))
            .field("headers", &self.headers)
            .finish()
    }
}

/// A record cut to a prefix because it was larger than the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncation {
    /// Bytes the value had.
    pub full_bytes: u64,
    /// BLAKE3 of the whole value.
    pub blake3: [u8; 32],
}

/// A message: a record whose stable id is known. Cloning shares everything.
#[derive(Clone)]
pub struct Message(Arc<Inner>);

struct Inner {
    id: MessageId,
    digest: i64,
    record: Record,
    /// The body's shape, once somebody asked for the document.
    shape: OnceLock<Result<Shape, JsonFault>>,
}

impl Message {
    /// A message from its id and its record; the digest is taken from the value.
    #[must_use]
    pub fn new(id: MessageId, record: Record) -> Self {
        Self::with_shape(id, record, None, None)
    }

    /// The same with digest and shape of the record's value, where they are known.
    pub(crate) fn with_shape(
        id: MessageId,
        record: Record,
        digest: Option<i64>,
        shape: Option<Shape>,
    ) -> Self {
        let digest = digest.unwrap_or_else(|| record.digest());
        let shape = shape.map_or_else(OnceLock::new, |shape| OnceLock::from(Ok(shape)));
        Self(Arc::new(Inner { id, digest, record, shape }))
    }

    /// The producer's stable id.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        &self.0.id
    }

    /// The digest that tells a reused id from a redelivery.
    #[must_use]
    pub fn digest(&self) -> i64 {
        self.0.digest
    }

    /// The body as JSON; a null value is the document `null`. The body is read once, whoever asks and
    /// however often.
    ///
    /// # Errors
    /// [`JsonFault`] when the body is not JSON.
    pub fn document(&self) -> Result<Document<'_>, JsonFault> {
        let body = self.value().unwrap_or(b"null");
        let shape = self.0.shape.get_or_init(|| Document::parse(body).map(Document::into_shape));
        Document::of_shape(body, Cow::Borrowed(shape.as_ref().map_err(Clone::clone)?))
    }

    /// Key bytes; `None` is null.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.record.key.as_deref()
    }

    /// Value bytes; `None` is null.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.0.record.value.as_deref()
    }

    /// All headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.0.record.headers
    }

    /// Where the message lies at its broker.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.0.record.origin
    }

    /// The broker's or producer's time.
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.0.record.timestamp
    }

    /// The record as it was delivered.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.0.record
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        (self.id(), self.digest(), self.record()) == (other.id(), other.digest(), other.record())
    }
}

impl Eq for Message {}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", self.id())
            .field("record", self.record())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: Option<&'static [u8]>) -> Record {
        Record {
            key: None,
            value: value.map(Bytes::from_static),
            headers: Headers::default(),
            origin: Origin { topic: "t".into(), partition: 0, offset: 0, line: None },
            timestamp: None,
        }
    }

    #[test]
    fn null_empty_and_other_values_have_different_digests() {
        let digests = [record(None).digest(), record(Some(b"")).digest(), record(Some(b"x")).digest()];
        assert_ne!(digests[0], digests[1]);
        assert_ne!(digests[1], digests[2]);
        assert_ne!(digests[0], digests[2]);
    }

    #[test]
    fn headers_do_not_change_the_digest() {
        let mut with = record(Some(b"x"));
        with.headers = Headers::new(vec![Header::new("a", None)]);
        assert_eq!(with.digest(), record(Some(b"x")).digest());
    }

    #[test]
    fn debug_never_shows_header_values() {
        let mut with = record(Some(b"x"));
        with.headers = Headers::new(vec![Header::new("auth", Some(Bytes::from_static(b"canary")))]);
        assert!(!format!("{with:?}").contains("canary"));
    }

    #[test]
    fn the_document_is_that_of_the_value_and_equality_knows_nothing_of_it() {
        let id = || MessageId::try_from("id").unwrap();
        let body = br#" {"a":1} "#;
        let message = Message::new(id(), record(Some(body)));
        let fresh = Message::new(id(), record(Some(body)));
        for _ in 0..2 {
            assert_eq!(message.document().unwrap().root().raw(), r#"{"a":1}"#);
        }
        assert_eq!(message, fresh);
        assert_eq!(Message::new(id(), record(None)).document().unwrap().root().raw(), "null");
        let bad = Message::new(id(), record(Some(b"{")));
        assert!(matches!(bad.document(), Err(JsonFault::NotJson(_))));
        assert_eq!(bad.document().unwrap_err(), bad.document().unwrap_err());
    }
}
