//! How a consumer behaves; the defaults are the documented ones.

use crate::breaker::BreakerPolicy;
use crate::decide::{Order, Policy};
use crate::version::VersionGuard;
use std::time::Duration;

/// Every setting of the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerOptions {
    /// Most messages in one transaction.
    pub batch_max: usize,
    /// Most bytes in one transaction (a single larger message goes alone).
    pub batch_max_bytes: usize,
    /// How long a batch that is not full waits for more.
    pub batch_wait: Duration,
    /// Most lane transactions at a time in this process.
    pub concurrency: usize,
    /// Most bytes queued in this process, the client library's included.
    pub queue_max_bytes: usize,
    /// Largest message handled; a larger one becomes a dead letter with a prefix of its value.
    pub message_max_bytes: usize,
    /// Longest time for one message's handler, or for a batch handler's batch.
    pub handler_timeout: Duration,
    /// How long a stop waits for what runs; after it the transaction is rolled back.
    pub shutdown_timeout: Duration,
    /// Order inside a lane.
    pub order: Order,
    /// Of each key only what is newer than all that is applied of it is applied. `None`: everything is.
    pub version: Option<VersionGuard>,
    /// Ids are remembered, so that what is delivered again is skipped. False only with `version` or
    /// `naturally_idempotent`.
    pub inbox: bool,
    /// The effects of a message may run more than once, also behind those of newer messages.
    pub naturally_idempotent: bool,
    /// Attempts, waits, parking and reused ids.
    pub policy: Policy,
    /// When what the handler needs is taken to be down, and nothing is begun but one message at a time.
    pub breaker: BreakerPolicy,
    /// With so many parked messages nothing new is begun until some of them have come to their end; at most
    /// [`COUNTED_MAX`](crate::parked::COUNTED_MAX).
    pub parked_max: u64,
    /// What this process is called in the history of a message; host and process id.
    pub node: String,
    /// Stop when, by position, nothing more came for this long.
    pub until_idle: Option<Duration>,
    /// Stop after this many messages.
    pub messages_max: Option<u64>,
    /// Take over a consumer name that is registered with another fingerprint.
    pub adopt: bool,
    /// End with an error instead of waiting when the store is away.
    pub fail_fast: bool,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            batch_max: 500,
            batch_max_bytes: 4 << 20,
            batch_wait: Duration::from_millis(5),
            concurrency: 1,
            queue_max_bytes: 16 << 20,
            message_max_bytes: 1 << 20,
            handler_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(25),
            order: Order::Partition,
            version: None,
            inbox: true,
            naturally_idempotent: false,
            policy: Policy::default(),
            breaker: BreakerPolicy::default(),
            parked_max: 100_000,
            node: format!("process {}", std::process::id()),
            until_idle: None,
            messages_max: None,
            adopt: false,
            fail_fast: false,
        }
    }
}
