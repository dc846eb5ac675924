//! Brokers, a store and a sink in memory. They pass the same suites as the real ones.
//!
//! | fake | settles | takes a lane away | comes again |
//! |---|---|---|---|
//! | [`LogBroker`] | one position a partition, per group | rebalance, eviction | from the committed position |
//! | [`QueueBroker::with_lease`] | each by itself | no | when its lease is over |
//! | [`QueueBroker::without_lease`] | each by itself | lost connection | when its connection is gone |
//! | [`MemoryStore`] | | | |
//! | [`MemorySink`] | | | |
//!
//! A source of theirs is a plain task: it needs a running tokio runtime, and a paused clock is enough.
//! `*Break` values are faults built in on purpose, one a fake, for the honesty suite.

mod breaks;
mod harness;
mod log_broker;
mod log_source;
mod memory_operator;
mod memory_parked;
mod memory_prune;
mod memory_sink;
mod memory_start_rows;
mod memory_starts;
mod memory_store;
mod memory_tx;
mod memory_versions;
mod prune_breaks;
mod queue_source;

pub use breaks::{ParkingBreak, SinkBreak, SourceBreak, StartBreak, StoreBreak, VersionBreak};
pub use harness::{LogHarness, MemoryHarness, QueueHarness, SinkInMemory};
pub use log_broker::LogBroker;
pub use log_source::LogSource;
pub use memory_sink::MemorySink;
pub use memory_store::{MemoryStore, StorePoint};
pub use memory_tx::{Held, MemoryError, MemoryTx};
pub use prune_breaks::PruneBreak;
pub use queue_source::{QueueBroker, QueueSource};
