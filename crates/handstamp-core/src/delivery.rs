//! One handing over of a record, and how it ends.
//!
//! ```text
//! delivered ──► outcome durable in the store ──► Ack ──► settled
//!     └────────► not finished (stop, revoke) ───► Release, or nothing: it comes again
//! ```
//!
//! Nothing settles by `Drop`. What is not settled comes again.

use crate::json::{Document, Shape};
use crate::message::{Record, Truncation};
use std::time::Duration;

/// A partition, queue or file that is handed over in order, in one assignment of it.
///
/// The epoch grows whenever the lane is assigned or taken away. A result with an old epoch is dropped
/// by the source and never settled: brokers do not check ownership after a rejoin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The lane's number within the source; stable for the life of the process.
    pub id: u32,
    /// Which assignment of the lane this is.
    pub epoch: u32,
}

/// Names one delivery to the source that made it; unique within its lane and epoch, and growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryTag(pub u64);

/// Why a record cannot be a message whatever its id: the engine dead-letters it with this reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFault {
    /// One line for a person.
    pub reason: String,
    /// Set when the record's value is only a prefix.
    pub truncation: Option<Truncation>,
}

/// One handing over of a record.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Lane and epoch it belongs to.
    pub lane: Lane,
    /// How the source knows it again.
    pub tag: DeliveryTag,
    /// The bytes.
    pub record: Record,
    /// Set when the source could not read a whole record.
    pub fault: Option<RecordFault>,
    /// What the source has read of the value in advance.
    pub ahead: ReadAhead,
}

/// What every message needs of its value, read before the engine asks for it: by a source whose thread would
/// be idle, while a batch keeps the engine's. Nothing read in advance is the default and changes no outcome.
#[derive(Debug, Clone, Default)]
pub struct ReadAhead {
    pub(crate) digest: Option<i64>,
    pub(crate) shape: Option<Shape>,
}

impl ReadAhead {
    /// The digest, and where the members of a JSON value lie. What is not JSON is left to the engine, which
    /// says why where it matters.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let document = record.value.as_deref().and_then(|value| Document::parse(value).ok());
        Self { digest: Some(record.digest()), shape: document.map(Document::into_shape) }
    }
}

/// How a delivery ends at its broker. Dead letters always live in the store, so they are acked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The outcome is durable: never again.
    Ack,
    /// Not finished: hand it over again, not before `delay`.
    Release {
        /// Shortest time before the next handing over; sources without that ability ignore it.
        delay: Duration,
    },
}

/// What became of a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The broker took it.
    Done,
    /// The lane was no longer ours; whoever owns it now meets the inbox row.
    Stale,
    /// No answer within the limit: left to the inbox.
    Unknown,
    /// The broker refused it.
    Failed,
}
