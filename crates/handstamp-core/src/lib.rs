//! Types, seams and engine of Handstamp.
//!
//! This crate knows no broker, no database, no terminal and no environment. It owns
//!
//! * the words: [`Message`], [`Delivery`], [`Claim`], [`DeadLetter`], [`Report`];
//! * the seams: [`Source`], [`Store`], [`Sink`], [`Handler`] and [`BatchHandler`];
//! * the pure rules: [`identity`], [`digest`], [`decide`], [`retry`], [`breaker`], [`offsets`], [`retention`], [`version`], [`json`], [`invariants`];
//! * the named places where the crash lab ends the process: [`CrashPoint`];
//! * the engine: [`Consumer`], which polls a source, claims in batches, runs handlers inside the
//!   store's transaction, commits, and only then settles.
//!
//! What is authoritative: the store's unique key decides whether a message is first or a duplicate;
//! the broker decides what is delivered again; the local clock decides nothing but waiting times.

pub mod breaker;
pub mod chain;
pub mod clock;
mod cloud_events;
pub mod consumer;
pub mod crash_point;
pub mod decide;
pub mod delivery;
pub mod digest;
mod failure_class;
pub mod handler;
pub mod identity;
pub mod invariants;
pub mod json;
pub mod letter_store;
pub mod message;
pub mod message_id;
pub mod offsets;
pub mod parked;
pub mod prune_store;
pub mod pruner;
pub mod retention;
pub mod retry;
pub mod secret;
pub mod sink;
pub mod source;
pub mod start;
pub mod store;
pub mod telemetry;
pub mod version;
pub mod version_store;

pub use breaker::{BreakerPolicy, BreakerState};
pub use consumer::{
    Consumer, ConsumerOptions, OnFailure, OnIdReuse, Order, RunError, RunErrorKind, StopReason,
};
pub use crash_point::CrashPoint;
pub use delivery::{Delivery, DeliveryTag, Disposition, Lane, ReadAhead, RecordFault, Settled};
pub use digest::DigestFields;
pub use handler::{BatchError, BatchHandler, BoxError, Decision, Handler, HandlerError, Route};
pub use identity::{Identity, IdentityRule, LongIds};
pub use letter_store::LetterStore;
pub use message::{Header, Headers, Message, Origin, Record, Timestamp, Truncation};
pub use message_id::{MessageId, MessageIdError};
pub use parked::{
    Dedup, FailedAttempt, OrderKey, Park, ParkedMessage, ParkedStatus, ParkingStore, Resumed, Taken,
};
pub use prune_store::{PruneCursor, PruneStep, PruneStore};
pub use retention::Retention;
pub use sink::{Sink, SinkError};
pub use source::{Capabilities, Command, Control, Notice, Source, SourceError, SourceErrorKind, SourcePort};
pub use start::{Company, Crash, Lost, Orphan, Owner, PATIENCE, Start, StartStore, Starter, TakenOver};
pub use store::{
    Begun, Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, Fault, Fingerprint,
    InboxState, NameError, Reason, Recorded, Store, StoreCapabilities, StoreError, StoreErrorKind,
};
pub use telemetry::{Counts, LaneLag, LiveCounts, Report};
pub use version::{Version, VersionFault, VersionGuard, VersionKey, VersionKind, Versioned};
pub use version_store::VersionStore;
