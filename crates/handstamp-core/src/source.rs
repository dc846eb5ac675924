//! The seam to a broker: synchronous, object-safe, capabilities as data.
//!
//! Authoritative: the broker, for what is delivered and to whom. A source runs on its own thread or
//! task and speaks through a [`SourcePort`]; it must go on polling whatever the engine does.
//!
//! ```text
//!  source                                   engine
//!    │  control: Assigned(lanes)               │
//!    │  deliveries: one lane a batch ────────► │ claims, handles, commits
//!    │ ◄──────── commands: Settle              │
//!    │  control: Revoking{lanes, within} ────► │ finishes or cancels what runs
//!    │ ◄──────── commands: Drained(lanes)      │
//!    │ ◄──────── commands: Close{within}       │ at the end
//!    └─ closes `deliveries`: only this is the end
//! ```

use crate::delivery::{Delivery, DeliveryTag, Disposition, Lane, Settled};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How a source settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleKind {
    /// One position per lane: everything before it is done.
    Cumulative,
    /// Each delivery by itself.
    Individual,
}

/// What a source's delivery count is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryCount {
    /// There is none.
    None,
    /// There is one, but it also grows for messages nobody saw.
    Approximate,
    /// Each handing over adds one.
    Exact,
}

/// What a source can do. Differences between brokers are data: the same data drives the engine, the
/// conformance suite and the capability table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Cumulative or individual.
    pub settle: SettleKind,
    /// Deliveries of one lane come in order.
    pub ordered: bool,
    /// A delivery not settled or extended for this long comes again while its holder lives.
    pub lease: Option<Duration>,
    /// The longest delay that `Release` honours; `None` where a delay is ignored.
    pub release_delay_max: Option<Duration>,
    /// Quality of the delivery count.
    pub delivery_count: DeliveryCount,
    /// The longest time after which a record may come again; `None` is unknown or unbounded.
    pub redelivery_window: Option<Duration>,
    /// The source comes to an end by itself (a file).
    pub ends: bool,
}

/// A source of deliveries.
pub trait Source: Send + 'static {
    /// What this source can do.
    fn capabilities(&self) -> Capabilities;

    /// What this source is, for the consumer's fingerprint: type and topics, or the type alone.
    fn fingerprint(&self) -> crate::store::Fingerprint;

    /// Starts a thread or task that serves the port until `Close` or the source's end.
    ///
    /// # Errors
    /// [`SourceError`] when the source cannot even be tried: bad configuration, unreadable file.
    /// A broker that is away is no error here; the source waits for it.
    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError>;
}

/// A lane and the name people know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLane {
    /// The lane.
    pub lane: Lane,
    /// `topic[partition]` or the file's path.
    pub name: Arc<str>,
}

/// The source's ends of the channels between it and the engine.
#[derive(Debug)]
pub struct SourcePort {
    /// Bounded; one lane a batch, never empty. Closing it is the end of the source.
    pub deliveries: mpsc::Sender<Vec<Delivery>>,
    /// Never behind deliveries.
    pub control: mpsc::UnboundedSender<Control>,
    /// Bounded by the deliveries in flight. When it closes the engine is gone: end without settling.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// How much the source may hand over and keep.
    pub limits: PortLimits,
}

/// Bounds a source keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortLimits {
    /// Most deliveries in one batch through the port.
    pub batch_max: usize,
    /// Most bytes in one batch through the port (a single larger record goes alone).
    pub batch_max_bytes: usize,
    /// Most bytes that the source itself may keep queued, its client library included.
    pub queue_max_bytes: usize,
    /// Largest record that is handed over whole.
    pub message_max_bytes: usize,
}

/// What a source says beside deliveries.
#[derive(Debug)]
#[non_exhaustive]
pub enum Control {
    /// These lanes are ours now. Sent before their first delivery.
    Assigned(Vec<NamedLane>),
    /// These lanes will be taken away: finish or cancel within the time, then answer `Drained`.
    Revoking {
        /// The lanes that go.
        lanes: Vec<Lane>,
        /// How long the source waits for `Drained`.
        within: Duration,
    },
    /// These lanes are already gone: settle nothing of them.
    Lost(Vec<Lane>),
    /// By position, everything that was there when asked has been handed over on these lanes.
    CaughtUp(Vec<Lane>),
    /// How many records lie behind the last settled position of a lane. A source that tells it says it a last
    /// time after its last commit, before it closes the deliveries.
    Lag(Vec<(Lane, u64)>),
    /// What became of settles.
    Settled(Vec<(Lane, DeliveryTag, Settled)>),
    /// Something to count; the source has already logged it once.
    Noticed(Notice),
    /// The source cannot go on by itself and will close `deliveries`.
    Failed(SourceError),
}

/// Things that happen to a source and are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Notice {
    /// A settle failed and was left to the inbox.
    SettleFailed,
    /// A settle had no answer within its limit.
    SettleUnknown,
    /// A result of an old assignment was dropped.
    SettleStale,
    /// Lanes were taken away.
    Revoked,
    /// Lanes were lost without notice.
    Lost,
    /// The process was put out of its group.
    Evicted,
    /// The broker was away.
    BrokerAway,
    /// It answers again.
    BrokerBack,
    /// The topic or file is missing.
    Missing,
    /// The log was cut behind our position, or the file was truncated or replaced.
    Truncated,
    /// The client library was built anew after a fatal error.
    ClientRebuilt,
    /// New lanes appeared.
    Grown,
}

impl Notice {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::SettleFailed,
        Self::SettleUnknown,
        Self::SettleStale,
        Self::Revoked,
        Self::Lost,
        Self::Evicted,
        Self::BrokerAway,
        Self::BrokerBack,
        Self::Missing,
        Self::Truncated,
        Self::ClientRebuilt,
        Self::Grown,
    ];

    /// The name in reports and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SettleFailed => "settle_failed",
            Self::SettleUnknown => "settle_unknown",
            Self::SettleStale => "settle_stale",
            Self::Revoked => "revoked",
            Self::Lost => "lost",
            Self::Evicted => "evicted",
            Self::BrokerAway => "broker_away",
            Self::BrokerBack => "broker_back",
            Self::Missing => "missing",
            Self::Truncated => "truncated",
            Self::ClientRebuilt => "client_rebuilt",
            Self::Grown => "grown",
        }
    }
}

/// What the engine asks of a source.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command {
    /// End these deliveries. Those of an old epoch are dropped.
    Settle(Vec<(Lane, DeliveryTag, Disposition)>),
    /// Still at work: prolong the leases.
    Extend(Vec<(Lane, DeliveryTag)>),
    /// Hand over nothing more of this lane for now; go on polling.
    Hold(Lane),
    /// Hand over again.
    Release(Lane),
    /// Nothing of these lanes is running any more; all their settles came before this.
    Drained(Vec<Lane>),
    /// Settle what was asked, leave the group, close `deliveries`.
    Close {
        /// How long this may take.
        within: Duration,
    },
}

/// The kind decides what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The broker cannot be reached (exit code 3).
    Disconnected,
    /// The topic, queue or file is not there (exit code 3).
    Missing,
    /// The configuration is wrong (exit code 2).
    Config,
    /// Another process holds what this one needs (exit code 3).
    Locked,
    /// Anything else (exit code 1).
    Other,
}

/// A source's error: the kind carries the decision, the source the driver's error.
#[derive(Debug)]
#[non_exhaustive]
pub struct SourceError {
    /// Decides what happens next.
    pub kind: SourceErrorKind,
    /// What happened and what to do, one line, no secret.
    pub message: String,
    /// The driver's error.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SourceError {
    /// An error with a line for a person.
    pub fn new(kind: SourceErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with the driver's error behind it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e.as_ref() as _)
    }
}
