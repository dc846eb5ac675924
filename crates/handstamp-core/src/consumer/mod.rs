//! The engine: polls a source, claims in batches, runs handlers inside the store's transaction,
//! commits, and only then settles.
//!
//! Authoritative: the store for what is done, the broker for what is delivered. The engine keeps
//! nothing that it could not lose: after a crash the broker delivers again and the claim answers.
//!
//! ```text
//! one message:
//!   queued ─► claimed First ─► handled ─► committed ─► settled          applied
//!     │           │               ├ fails ─► again alone ─► parked, committed, settled     parked
//!     │           │               └ fails for good ───────► dead letter, committed, settled
//!     │           ├ as old as the mark of its key, or older ► settled      stale
//!     │           ├ Duplicate ──────────────► settled                   duplicate
//!     │           └ IdReused ───────────────► dead letter, settled      id_reused
//!     ├ no usable id, or it killed max_crashes processes ► dead letter, settled  dead_lettered
//!     └ stop, revoke ──────────────────────► given back                released
//!   parked, due ─► taken ─► handled ─► committed                      resumed
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `engine` | the loop: control, deliveries, running batches, stop |
//! | `register` | its first step: the consumer's name in the store |
//! | `finish` | the end of a run, and its report |
//! | `intake` | the lanes' queues and their bounds |
//! | `batch` | one batch of a lane until every message of it is decided |
//! | `attempt` | one transaction |
//! | `keep` | what a transaction makes of each message: dead letters, parked ones, counts |
//! | `dispatch` | running the user's handler: limits, panics |
//! | `gate` | the breaker: who may begin, and who waits aside |
//! | `retries` | when the retry worker has its turns, and how much may be parked |
//! | `resume` | its turn: parked messages that are due |
//! | `row` | one of them |
//! | `apart` | one after the other in one transaction, where something failed |
//! | `routing` | what the handler wants at all, asked before anything is begun |
//! | `versions` | what is newer than all that is applied of its key, and a consumer without an inbox |
//! | `starts` | start records: what killed a process runs alone, then not at all |
//! | `start_turns` | what turns do about them: look back, end, take back what was lost |
//! | `slot` | the right to have a transaction open |
//! | `in_flight` | ids held by running batches, where several run at a time |
//! | `item` | a delivery on its way |
//! | `copies` | copies of dead letters at a sink, before the settle |
//! | `options` | how a consumer behaves |
//! | `preview` | a delivery judged without an engine, for dry runs |
//! | `outage` | a store that cannot go on: how long it is waited for, how often that is said |
//! | `no_store` | what stands where no store is chosen yet |

mod apart;
mod attempt;
mod batch;
mod copies;
mod dispatch;
mod engine;
mod finish;
mod gate;
mod in_flight;
mod intake;
mod item;
mod keep;
mod no_store;
mod options;
mod outage;
pub mod preview;
mod register;
mod resume;
mod retries;
mod routing;
mod row;
mod slot;
mod start_turns;
mod starts;
mod versions;

pub use crate::decide::{OnFailure, OnIdReuse, Order};
pub use no_store::NoStore;
pub use options::ConsumerOptions;
pub(crate) use slot::Slots;

use crate::handler::{BatchHandler, Handler, HandlerError};
use crate::identity::IdentityRule;
use crate::message::Message;
use crate::sink::Sink;
use crate::source::{Source, SourceErrorKind};
use crate::start::StartStore;
use crate::store::{ConsumerName, StoreErrorKind};
use crate::telemetry::{LiveCounts, Report};
use copies::CopyTo;
use dispatch::{Batched, DynHandler, OneByOne};
use std::fmt;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The stop future completed.
    Asked,
    /// The source came to its end.
    SourceEnded,
    /// Nothing more came for the time given.
    Idle,
    /// The number of messages asked for was reached.
    MessagesMax,
    /// An error, which holds this report.
    Failed,
}

/// The kind decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// The source cannot go on.
    Source(SourceErrorKind),
    /// The store cannot go on.
    Store(StoreErrorKind),
    /// What ran did not end within `shutdown_timeout`: rolled back, nothing of it settled.
    ShutdownTimeout,
    /// The engine's thread could not be started or ended without an answer.
    Thread,
}

/// Why a run failed; what it did until then is kept.
#[derive(Debug)]
#[non_exhaustive]
pub struct RunError {
    /// Decides the exit code.
    pub kind: RunErrorKind,
    /// What happened and what to do; one line, no secret.
    pub message: String,
    /// The error behind it.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// What was done until then; `None` before the first delivery could come.
    pub report: Option<Box<Report>>,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e.as_ref() as _)
    }
}

impl RunError {
    pub(crate) fn new(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, report: None }
    }
}

impl From<crate::store::StoreError> for RunError {
    fn from(error: crate::store::StoreError) -> Self {
        Self {
            kind: RunErrorKind::Store(error.kind),
            message: error.message,
            source: error.source,
            report: None,
        }
    }
}

impl From<crate::source::SourceError> for RunError {
    fn from(error: crate::source::SourceError) -> Self {
        Self {
            kind: RunErrorKind::Source(error.kind),
            message: error.message,
            source: error.source,
            report: None,
        }
    }
}

/// A consumer: a source, a store and a handler under one name.
///
/// The name is the namespace of the inbox: the same id under two names is two messages.
pub struct Consumer<S: StartStore> {
    pub(crate) name: ConsumerName,
    pub(crate) source: Box<dyn Source>,
    pub(crate) store: Arc<S>,
    pub(crate) identity: IdentityRule,
    pub(crate) handler: Arc<dyn DynHandler<S::Tx>>,
    pub(crate) options: ConsumerOptions,
    pub(crate) copy_to: Option<CopyTo>,
    pub(crate) live: Arc<LiveCounts>,
}

impl Consumer<NoStore> {
    /// Starts to build a consumer: `source`, `store`, then `handler`, `handler_fn` or `batch_handler`.
    #[must_use]
    pub fn builder(name: ConsumerName) -> Builder {
        Builder { name }
    }
}

/// A consumer that has a name.
#[derive(Debug)]
pub struct Builder {
    name: ConsumerName,
}

impl Builder {
    /// Where messages come from, and where the producer put their ids: an [`Identity`](crate::Identity), or an
    /// [`IdentityRule`] that says more.
    #[must_use]
    pub fn source(self, source: impl Source, identity: impl Into<IdentityRule>) -> BuilderWithSource {
        self.boxed_source(Box::new(source), identity)
    }

    /// The same for a source chosen at run time.
    #[must_use]
    pub fn boxed_source(
        self,
        source: Box<dyn Source>,
        identity: impl Into<IdentityRule>,
    ) -> BuilderWithSource {
        BuilderWithSource { name: self.name, source, identity: identity.into() }
    }
}

/// A consumer that has a name and a source.
pub struct BuilderWithSource {
    name: ConsumerName,
    source: Box<dyn Source>,
    identity: IdentityRule,
}

impl fmt::Debug for BuilderWithSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuilderWithSource").field("name", &self.name).finish_non_exhaustive()
    }
}

impl BuilderWithSource {
    /// Where the inbox, the dead letters and the effects live.
    #[must_use]
    pub fn store<S: StartStore>(self, store: S) -> BuilderWithStore<S> {
        self.shared_store(Arc::new(store))
    }

    /// The same for a store that others use too.
    #[must_use]
    pub fn shared_store<S: StartStore>(self, store: Arc<S>) -> BuilderWithStore<S> {
        BuilderWithStore { before: self, store }
    }
}

/// A consumer that lacks only its handler.
pub struct BuilderWithStore<S: StartStore> {
    before: BuilderWithSource,
    store: Arc<S>,
}

impl<S: StartStore> fmt::Debug for BuilderWithStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.before, f)
    }
}

impl<S: StartStore> BuilderWithStore<S> {
    /// Handles one message at a time.
    #[must_use]
    pub fn handler(self, handler: impl Handler<S::Tx>) -> Consumer<S> {
        self.with(Arc::new(OneByOne(handler)))
    }

    /// Handles one message at a time by an async closure: `async |tx, message| …`.
    #[must_use]
    pub fn handler_fn(
        self,
        handler: impl AsyncFn(&mut S::Tx, &Message) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Consumer<S> {
        self.handler(handler)
    }

    /// Handles a whole batch at a time.
    #[must_use]
    pub fn batch_handler(self, handler: impl BatchHandler<S::Tx>) -> Consumer<S> {
        self.with(Arc::new(Batched(handler)))
    }

    fn with(self, handler: Arc<dyn DynHandler<S::Tx>>) -> Consumer<S> {
        Consumer {
            name: self.before.name,
            source: self.before.source,
            identity: self.before.identity,
            store: self.store,
            handler,
            options: ConsumerOptions::default(),
            copy_to: None,
            live: Arc::default(),
        }
    }
}

impl<S: StartStore> fmt::Debug for Consumer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S: StartStore> Consumer<S> {
    /// Replaces the settings.
    #[must_use]
    pub fn options(mut self, options: ConsumerOptions) -> Self {
        self.options = options;
        self
    }

    /// Publishes a copy of each dead letter to this topic, queue or file of a sink, answered before its delivery is
    /// settled. The dead letter itself is in the store whatever becomes of the copy; at least one is made. The consumer
    /// must not read where its copies go.
    #[must_use]
    pub fn dead_letters_to(mut self, sink: impl Sink, topic: &str) -> Self {
        self.copy_to = Some(CopyTo { sink: Arc::new(sink), topic: topic.into() });
        self
    }

    /// The counts of the run, readable from any thread while it goes on.
    #[must_use]
    pub fn live_counts(&self) -> Arc<LiveCounts> {
        Arc::clone(&self.live)
    }

    /// Counts into these, which somebody may watch before the run begins. They are of one run.
    #[must_use]
    pub fn counting_into(mut self, live: Arc<LiveCounts>) -> Self {
        self.live = live;
        self
    }

    /// Runs on the caller's current-thread runtime until `stop` completes, the source ends, or
    /// something cannot go on. Completing `stop` lets what runs finish within `shutdown_timeout`.
    ///
    /// # Errors
    /// [`RunError`], with what was done until then.
    pub async fn run_local(self, stop: impl Future<Output = ()>) -> Result<Report, RunError> {
        versions::check(&self.options)?;
        engine::run(self, stop).await
    }

    /// Runs on a thread of its own with its own runtime. Dropping the future stops the consumer as
    /// `stop` does.
    ///
    /// # Errors
    /// [`RunError`], with what was done until then.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<Report, RunError> {
        let (mut answer, result) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| RunError::new(RunErrorKind::Thread, format!("no runtime for the engine: {e}")))?;
        std::thread::Builder::new()
            .name(format!("handstamp {}", self.name))
            .spawn(move || {
                runtime.block_on(async move {
                    let report = {
                        let stop = async {
                            tokio::select! { () = stop => {}, () = answer.closed() => {} }
                        };
                        self.run_local(stop).await
                    };
                    // The caller may be gone: then nobody waits for the answer.
                    drop(answer.send(report));
                });
            })
            .map_err(|e| RunError::new(RunErrorKind::Thread, format!("no thread for the engine: {e}")))?;
        result.await.unwrap_or_else(|_| {
            Err(RunError::new(RunErrorKind::Thread, "the engine's thread ended without an answer"))
        })
    }
}
