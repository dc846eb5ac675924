//! What a test publishes: key, value and headers, without a place.

use bytes::Bytes;
use handstamp_core::{Header, Headers, Origin, Record};

/// Key, value and headers of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload {
    /// The key; `None` is null.
    pub key: Option<Bytes>,
    /// The value; `None` is null.
    pub value: Option<Bytes>,
    /// All headers in order.
    pub headers: Vec<Header>,
}

impl Payload {
    /// A value without key and headers.
    #[must_use]
    pub fn value(value: impl Into<Bytes>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    /// The same with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<Bytes>, value: Option<Bytes>) -> Self {
        self.headers.push(Header::new(name, value));
        self
    }

    /// What a record carries.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Self {
            key: record.key.clone(),
            value: record.value.clone(),
            headers: record.headers.as_slice().to_vec(),
        }
    }

    /// A record of this payload at a place.
    #[must_use]
    pub fn at(&self, origin: Origin) -> Record {
        Record {
            key: self.key.clone(),
            value: self.value.clone(),
            headers: Headers::new(self.headers.clone()),
            origin,
            timestamp: None,
        }
    }
}
