//! The fakes as subjects of the suites.

use super::{
    LogBroker, MemoryError, MemorySink, MemoryStore, MemoryTx, ParkingBreak, PruneBreak, QueueBroker,
    SinkBreak, SourceBreak, StartBreak, StoreBreak, VersionBreak,
};
use crate::Payload;
use crate::parking_suite::ParkingHarness;
use crate::prune_suite::PruneHarness;
use crate::sink_suite::SinkHarness;
use crate::source_suite::{SourceFeatures, SourceHarness};
use crate::start_suite::StartHarness;
use crate::store_suite::{EndInside, StoreFeatures, StoreHarness};
use handstamp_core::parked::{Dedup, FailedAttempt};
use handstamp_core::{BoxError, ConsumerName, DeadLetter, InboxState, MessageId, Source, StoreErrorKind};
use std::time::Duration;

const GROUP: &str = "group";
const LANES: u32 = 2;

/// A new log broker.
#[derive(Debug)]
pub struct LogHarness {
    broker: LogBroker,
}

impl LogHarness {
    /// With or without a fault.
    #[must_use]
    pub fn new(broken: Option<SourceBreak>) -> Self {
        let broker = LogBroker::broken("topic", 2, broken);
        broker.skip_offsets(0, 3);
        Self { broker }
    }
}

impl SourceHarness for LogHarness {
    fn features(&self) -> SourceFeatures {
        SourceFeatures { lanes: LANES, rebalances: true, ..SourceFeatures::PAUSED }
    }

    async fn publish(&self, lane: u32, payloads: Vec<Payload>) {
        let partition = usize::try_from(lane).unwrap_or(0);
        for payload in payloads {
            self.broker.publish(partition, payload);
            // A gap after each record: nobody may count on the next offset.
            self.broker.skip_offsets(partition, 1);
        }
    }

    async fn source(&self) -> Box<dyn Source> {
        Box::new(self.broker.source(GROUP))
    }

    async fn settled(&self) -> usize {
        (0..2).map(|partition| self.broker.settled_count(GROUP, partition)).sum()
    }
}

/// A new queue broker.
#[derive(Debug)]
pub struct QueueHarness {
    broker: QueueBroker,
}

impl QueueHarness {
    /// With or without a lease, with or without a fault.
    #[must_use]
    pub fn new(lease: bool, broken: Option<SourceBreak>) -> Self {
        let lease = lease.then_some(Duration::from_secs(30));
        Self { broker: QueueBroker::broken("queue", lease, broken) }
    }
}

impl SourceHarness for QueueHarness {
    fn features(&self) -> SourceFeatures {
        SourceFeatures::PAUSED
    }

    async fn publish(&self, _lane: u32, payloads: Vec<Payload>) {
        payloads.into_iter().for_each(|payload| self.broker.publish(payload));
    }

    async fn source(&self) -> Box<dyn Source> {
        Box::new(self.broker.source())
    }

    async fn settled(&self) -> usize {
        self.broker.settled_count()
    }
}

/// A new store in memory.
#[derive(Debug)]
pub struct MemoryHarness {
    store: MemoryStore,
}

impl MemoryHarness {
    /// With or without a fault.
    #[must_use]
    pub fn new(broken: Option<StoreBreak>) -> Self {
        Self { store: MemoryStore::broken(broken) }
    }

    /// With or without a fault in what it does with parked messages.
    #[must_use]
    pub fn new_parking(broken: Option<ParkingBreak>) -> Self {
        Self { store: MemoryStore::broken_parking(broken) }
    }

    /// With or without a fault in what it does with start records.
    #[must_use]
    pub fn new_starts(broken: Option<StartBreak>) -> Self {
        Self { store: MemoryStore::broken_starts(broken) }
    }

    /// With or without a fault in what it does with marks of versions.
    #[must_use]
    pub fn new_versions(broken: Option<VersionBreak>) -> Self {
        Self { store: MemoryStore::broken_versions(broken) }
    }

    /// With or without a fault in how it forgets.
    #[must_use]
    pub fn new_prune(broken: Option<PruneBreak>) -> Self {
        Self { store: MemoryStore::broken_prune(broken) }
    }
}

impl StoreHarness for MemoryHarness {
    type Store = MemoryStore;

    fn features(&self) -> StoreFeatures {
        StoreFeatures { errors_abort: true, ..StoreFeatures::PAUSED }
    }

    async fn open(&self) -> MemoryStore {
        self.store.clone()
    }

    async fn restart(&self) {
        self.store.restart();
    }

    async fn add(&self, tx: &mut MemoryTx, counter: &str, amount: i64) -> Result<(), BoxError> {
        Ok(tx.add(counter, amount)?)
    }

    async fn counter(&self, counter: &str) -> i64 {
        self.store.counter(counter)
    }

    async fn fail(&self, tx: &mut MemoryTx) -> BoxError {
        match tx.fail(StoreErrorKind::Statement, "23514") {
            Err(error) => error.into(),
            Ok(()) => MemoryError { kind: StoreErrorKind::Config, code: "none" }.into(),
        }
    }

    async fn end_inside(&self, tx: &mut MemoryTx, how: EndInside) {
        match how {
            EndInside::Commit => tx.commit_inside(),
            EndInside::Rollback => tx.rollback_inside(),
        }
    }

    async fn dead_letters(&self, consumer: &ConsumerName) -> Vec<DeadLetter> {
        self.store.dead_letters(consumer)
    }

    async fn inbox_state(&self, consumer: &ConsumerName, id: &MessageId) -> Option<InboxState> {
        self.store.inbox_state(consumer, id)
    }
}

impl ParkingHarness for MemoryHarness {
    async fn attempts(&self, consumer: &ConsumerName, dedup: &Dedup) -> Vec<FailedAttempt> {
        self.store.attempts(consumer, dedup)
    }
}

impl StartHarness for MemoryHarness {
    async fn crashes(&self, consumer: &ConsumerName, dedup: &Dedup) -> usize {
        self.store.crashes(consumer).iter().filter(|crash| crash.dedup == *dedup).count()
    }

    async fn redrive(&self, consumer: &ConsumerName, dedup: &Dedup) {
        self.store.redrive(consumer, dedup, None);
    }

    async fn discard(&self, consumer: &ConsumerName, dedup: &Dedup) {
        self.store.discard(consumer, dedup);
    }
}

impl PruneHarness for MemoryHarness {
    async fn age(&self, by: Duration) {
        self.store.age(by);
    }
}

/// A new sink in memory.
#[derive(Debug)]
pub struct SinkInMemory {
    sink: MemorySink,
}

impl SinkInMemory {
    /// With or without a fault.
    #[must_use]
    pub fn new(broken: Option<SinkBreak>) -> Self {
        Self { sink: MemorySink::broken(broken) }
    }
}

impl SinkHarness for SinkInMemory {
    type Sink = MemorySink;

    async fn sink(&self) -> MemorySink {
        self.sink.clone()
    }

    async fn sink_out_of_reach(&self) -> MemorySink {
        self.sink.away()
    }

    fn whole_records(&self) -> bool {
        true
    }

    fn unfit(&self) -> Payload {
        Payload::value(vec![1_u8; 2_000_000])
    }

    fn destination(&self) -> String {
        "topic".into()
    }

    async fn other_destination(&self) -> Option<String> {
        Some("other".into())
    }

    async fn read_back(&self, destination: &str) -> Vec<Payload> {
        self.sink.read(destination)
    }
}
