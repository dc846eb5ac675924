//! The seam to a place that messages are published to: one result per record.

use crate::message::Record;
use std::fmt;

/// Somewhere to publish. `origin.topic` of a record names the destination.
pub trait Sink: Send + Sync + 'static {
    /// Publishes all records and answers each one: the n-th result belongs to the n-th record.
    fn publish(&self, records: &[Record]) -> impl Future<Output = Vec<Result<(), SinkError>>> + Send;
}

/// Why one record was not published: a line without secrets and the driver's error.
#[derive(Debug)]
#[non_exhaustive]
pub struct SinkError {
    /// True when the same call may succeed later.
    pub transient: bool,
    /// What happened and what to do.
    pub message: String,
}

impl SinkError {
    /// An error with a line for a person.
    pub fn new(transient: bool, message: impl Into<String>) -> Self {
        Self { transient, message: message.into() }
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SinkError {}
