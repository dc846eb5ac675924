//! The engine (being written).

pub use crate::decide::OnIdReuse;

/// Whether a failing message may be overtaken by its neighbours of the same lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Messages of a lane are decided in the order delivered.
    #[default]
    Partition,
    /// A failing message is decided after the others of its batch.
    None,
}

/// Why a run ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The stop signal.
    Asked,
    /// The source came to its end.
    SourceEnded,
    /// Nothing more came for the time given.
    Idle,
    /// The number of messages asked for was reached.
    MessagesMax,
}

/// The kind decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// Source unreachable or failed.
    Source(crate::source::SourceErrorKind),
    /// Store unreachable, not migrated, fingerprint …
    Store(crate::store::StoreErrorKind),
    /// What ran did not end within `shutdown_timeout`: rolled back, nothing settled (exit code 7).
    ShutdownTimeout,
}

/// Why a run failed; the report so far is kept.
#[derive(Debug)]
#[non_exhaustive]
pub struct RunError {
    /// Decides the exit code.
    pub kind: RunErrorKind,
    /// What happened and what to do.
    pub message: String,
    /// The error behind it.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// What was done until then.
    pub report: Option<Box<crate::telemetry::Report>>,
}

/// Options.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {}

/// A consumer.
#[derive(Debug)]
pub struct Consumer {}
