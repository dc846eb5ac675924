//! One log, one store, and a handler that fails as it is told to: what the tests of retries share.

#![allow(unreachable_pub, dead_code, reason = "shared by test binaries, none of which needs all of it")]

use handstamp_core::consumer::BuilderWithStore;
use handstamp_core::decide::Policy;
use handstamp_core::invariants::counts_reconcile;
use handstamp_core::parked::{Dedup, FailedAttempt, ParkedMessage};
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::{
    BatchHandler, BreakerPolicy, Consumer, ConsumerName, ConsumerOptions, Counts, DeadLetter, Handler,
    HandlerError, Identity, InboxState, LiveCounts, Message, MessageId, Report, RunError, Sink,
};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::{LogBroker, MemoryStore, MemoryTx};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How often a message fails before it is applied, and how long its handler takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    pub failures: u32,
    pub after: Option<Duration>,
    pub takes: Duration,
}

#[derive(Debug, Default)]
struct Seen {
    fates: HashMap<String, Fate>,
    runs: HashMap<String, u32>,
    order: i64,
}

/// A log of two partitions and everything around it.
#[derive(Clone)]
pub struct World {
    pub broker: LogBroker,
    pub store: MemoryStore,
    pub name: ConsumerName,
    seen: Arc<Mutex<Seen>>,
}

struct Applier(Arc<Mutex<Seen>>);

impl Handler<MemoryTx> for Applier {
    async fn handle(&self, tx: &mut MemoryTx, message: &Message) -> Result<(), HandlerError> {
        let id = message.id().to_string();
        let fate = {
            let mut seen = self.0.lock().unwrap();
            *seen.runs.entry(id.clone()).or_default() += 1;
            seen.fates.get(&id).copied().unwrap_or_default()
        };
        tokio::time::sleep(fate.takes).await;
        let mut seen = self.0.lock().unwrap();
        seen.order += 1;
        tx.add(&format!("effect:{id}"), 1)?;
        tx.add(&format!("order:{id}"), seen.order)?;
        if let Some(known) = seen.fates.get_mut(&id)
            && known.failures > 0
        {
            known.failures -= 1;
            return Err(match fate.after {
                Some(after) => HandlerError::retry_after(after, "not yet"),
                None => "not yet".into(),
            });
        }
        Ok(())
    }
}

pub struct Running {
    stop: oneshot::Sender<()>,
    run: JoinHandle<Result<Report, RunError>>,
    pub live: Arc<LiveCounts>,
}

impl Running {
    /// Asks it to stop and waits for its end.
    pub async fn stop(self) -> Result<Report, RunError> {
        // One that has ended already does not hear it.
        let _ = self.stop.send(());
        self.run.await.unwrap()
    }

    /// Ends it in the middle, as a kill would.
    pub async fn kill(self) {
        self.run.abort();
        assert!(self.run.await.is_err(), "it had ended");
    }

    /// What it counted until it was stopped.
    pub async fn counts(self) -> Counts {
        let report = self.stop().await.unwrap();
        counts_reconcile(&report.counts).unwrap();
        report.counts
    }

    /// What it counted until it ended by itself.
    pub async fn ended(self) -> Counts {
        let report = self.run.await.unwrap().unwrap();
        drop(self.stop);
        counts_reconcile(&report.counts).unwrap();
        report.counts
    }

    /// Waits until the counts are as wanted.
    pub async fn until(&self, wanted: impl Fn(&Counts) -> bool) {
        for _ in 0..1_000_000 {
            if wanted(&self.live.snapshot()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not come to that: {:?}", self.live.snapshot());
    }
}

/// Retries whose waits are known: all between nothing and a second.
pub fn policy(max_attempts: u32) -> Policy {
    let second = Duration::from_secs(1);
    let backoff = Backoff { base: second, cap: second };
    let retry = RetryPolicy { max_attempts, backoff, ..RetryPolicy::default() };
    Policy { retry, ..Policy::default() }
}

/// With a breaker that never opens: many messages of these tests fail alike, and nothing is down.
pub fn options(max_attempts: u32) -> ConsumerOptions {
    let breaker = BreakerPolicy { in_a_row: 0, percent: 0, ..BreakerPolicy::default() };
    let (policy, node) = (policy(max_attempts), "host/1".into());
    ConsumerOptions { policy, breaker, node, ..ConsumerOptions::default() }
}

impl World {
    pub fn new() -> Self {
        let store = MemoryStore::new();
        store.set_latency(Duration::from_millis(1));
        let (broker, name) = (LogBroker::new("credits", 2), ConsumerName::new("wallet").unwrap());
        Self { broker, store, name, seen: Arc::default() }
    }

    /// Publishes messages of ids into a partition, under a key.
    pub fn publish(&self, partition: usize, key: Option<&str>, ids: &[&str]) {
        for id in ids {
            let payload = Payload::value((*id).to_owned()).with_header("id", Some(id.to_string().into()));
            let payload = match key {
                Some(key) => payload.with_key(key.to_owned()),
                None => payload,
            };
            self.broker.publish(partition, payload).unwrap();
        }
    }

    pub fn fate(&self, id: &str, fate: Fate) {
        self.seen.lock().unwrap().fates.insert(id.to_owned(), fate);
    }

    pub fn fails(&self, id: &str, failures: u32) {
        self.fate(id, Fate { failures, ..Fate::default() });
    }

    pub fn start(&self, options: ConsumerOptions) -> Running {
        self.start_with(options, Applier(Arc::clone(&self.seen)))
    }

    pub fn start_with(&self, options: ConsumerOptions, handler: impl Handler<MemoryTx>) -> Running {
        run(self.building().handler(handler).options(options))
    }

    pub fn start_batches(&self, options: ConsumerOptions, handler: impl BatchHandler<MemoryTx>) -> Running {
        run(self.building().batch_handler(handler).options(options))
    }

    /// With copies of its dead letters.
    pub fn start_copying(&self, options: ConsumerOptions, sink: impl Sink, topic: &str) -> Running {
        let applier = Applier(Arc::clone(&self.seen));
        run(self.building().handler(applier).options(options).dead_letters_to(sink, topic))
    }

    fn building(&self) -> BuilderWithStore<MemoryStore> {
        Consumer::builder(self.name.clone())
            .source(self.broker.source("group"), Identity::Header("id".into()))
            .store(self.store.clone())
    }

    pub fn runs(&self, id: &str) -> u32 {
        self.seen.lock().unwrap().runs.get(id).copied().unwrap_or(0)
    }

    /// Whose effect is durable, in the order of their runs.
    pub fn applied(&self) -> Vec<String> {
        let counters = self.store.counters();
        let order = |(name, at): (&String, &i64)| Some((*at, name.strip_prefix("order:")?.to_owned()));
        let mut all: Vec<(i64, String)> = counters.iter().filter_map(order).collect();
        all.sort();
        all.into_iter().map(|(_, id)| id).collect()
    }

    pub fn effects(&self, id: &str) -> i64 {
        self.store.counter(&format!("effect:{id}"))
    }

    pub fn state(&self, id: &str) -> Option<InboxState> {
        self.store.inbox_state(&self.name, &message_id(id))
    }

    pub fn parked(&self) -> Vec<ParkedMessage> {
        self.store.parked(&self.name)
    }

    pub fn parked_ids(&self) -> Vec<String> {
        self.parked().iter().map(|row| row.letter.id.as_ref().unwrap().to_string()).collect()
    }

    pub fn dead(&self) -> Vec<DeadLetter> {
        self.store.dead_letters(&self.name)
    }

    pub fn history(&self, id: &str) -> Vec<FailedAttempt> {
        self.store.attempts(&self.name, &dedup(id))
    }
}

fn run(consumer: Consumer<MemoryStore>) -> Running {
    let live = consumer.live_counts();
    let (stop, stopped) = oneshot::channel::<()>();
    let run =
        tokio::task::spawn_local(async move { consumer.run_local(async { drop(stopped.await) }).await });
    Running { stop, run, live }
}

pub fn message_id(id: &str) -> MessageId {
    MessageId::try_from(id).unwrap()
}

pub fn dedup(id: &str) -> Dedup {
    DeadLetter::dedup_of_id(&message_id(id))
}
