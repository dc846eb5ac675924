//! The hand-written loop: one thread polls a `BaseConsumer`, each lane is a thread with a connection and
//! one transaction at a time. Database first, offset second.
//!
//! ```text
//!  poll thread ── queue of the lane, bounded in bytes ──► lane thread: claim, effects, COMMIT
//!      │                                                       │
//!      └── every `commit_every`: commit ◄── positions ─────────┘   (0: the lane commits after each)
//! ```

use crate::bare_postgres::{Lane, Taken};
use crate::harness::Res;
use crate::kafka;
use crate::postgres;
use crate::wrap::Marks;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a loop runs.
#[derive(Debug, Clone)]
pub(crate) struct Loop {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) url: String,
    pub(crate) lanes: usize,
    pub(crate) batch_max: usize,
    pub(crate) commit_every: Duration,
    /// False: no claim, as a consumer without an inbox.
    pub(crate) inbox: bool,
    /// False: no start records; the loop has none.
    pub(crate) starts: bool,
    /// Effects run once a batch.
    pub(crate) set: bool,
    /// End after so many messages; `None`: when told to.
    pub(crate) count: Option<u64>,
}

const BATCH_WAIT: Duration = Duration::from_millis(5);
/// Half of the queue is the loop's, half librdkafka's, as in Handstamp.
const QUEUE_BYTES: usize = 8 << 20;
/// What a queued message costs beside its bytes, as Handstamp counts it.
const OVERHEAD_BYTES: usize = 256;

#[derive(Default)]
struct Queue {
    taken: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    messages: VecDeque<Taken>,
    bytes: usize,
    closed: bool,
}

struct Shared {
    options: Loop,
    queues: Vec<Queue>,
    consumer: BaseConsumer,
    positions: Mutex<BTreeMap<i32, i64>>,
    applied: AtomicU64,
    stop: AtomicBool,
    marks: Arc<Marks>,
}

/// Runs the loop until `count` messages are applied, or `stop` says so.
pub(crate) fn run(options: &Loop, marks: &Arc<Marks>, stop: impl Fn() -> bool) -> Res<u64> {
    let consumer: BaseConsumer = consumer_config(options)?.create()?;
    consumer.subscribe(&[&options.topic])?;
    let shared = Shared {
        queues: (0..options.lanes).map(|_| Queue::default()).collect(),
        consumer,
        positions: Mutex::default(),
        applied: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        options: options.clone(),
        marks: Arc::clone(marks),
    };
    let ended: Res<()> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..options.lanes)
            .map(|at| {
                scope.spawn({
                    let shared = &shared;
                    move || {
                        let ended = shared.lane(at);
                        shared.stop.store(true, Ordering::SeqCst);
                        ended
                    }
                })
            })
            .collect();
        let polled = shared.poll(stop);
        shared.stop.store(true, Ordering::SeqCst);
        for queue in &shared.queues {
            lock(&queue.taken).closed = true;
            queue.changed.notify_all();
        }
        for lane in lanes {
            lane.join().map_err(|_| "a lane panicked")??;
        }
        polled
    });
    ended?;
    shared.commit()?;
    Ok(shared.applied.load(Ordering::SeqCst))
}

fn consumer_config(options: &Loop) -> Res<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka::brokers()?).set("group.id", &options.group);
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
    config.set("auto.offset.reset", "earliest").set("isolation.level", "read_committed");
    config.set("fetch.queue.backoff.ms", "10");
    // The numbers that Handstamp derives from a queue of 16 MiB and six partitions.
    config.set("queued.max.messages.kbytes", "682").set("queued.min.messages", "3495");
    config.set("fetch.message.max.bytes", "699050").set("fetch.max.bytes", "4194304");
    Ok(config)
}

impl Shared {
    /// The poll thread.
    fn poll(&self, stop: impl Fn() -> bool) -> Res<()> {
        let mut committed = Instant::now();
        loop {
            let all = self.options.count.is_some_and(|count| self.applied.load(Ordering::SeqCst) >= count);
            if all || self.stop.load(Ordering::SeqCst) || stop() {
                return Ok(());
            }
            self.commit_if_due(&mut committed)?;
            let Some(message) = self.consumer.poll(Duration::from_millis(10)) else { continue };
            // Errors of a consumer are informational; a fatal one shows as no progress.
            let Ok(message) = message else { continue };
            let taken = take(&message)?;
            let lane = usize::try_from(taken.partition)? % self.queues.len();
            self.push(&self.queues[lane], taken, &mut committed)?;
        }
    }

    fn push(&self, queue: &Queue, taken: Taken, committed: &mut Instant) -> Res<()> {
        let limit = QUEUE_BYTES / self.queues.len();
        let mut inner = lock(&queue.taken);
        while inner.bytes >= limit && !self.stop.load(Ordering::SeqCst) {
            inner = queue
                .changed
                .wait_timeout(inner, Duration::from_millis(10))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            drop(inner);
            self.commit_if_due(committed)?;
            inner = lock(&queue.taken);
        }
        inner.bytes += taken.body.len() + taken.id.len() + OVERHEAD_BYTES;
        inner.messages.push_back(taken);
        if inner.messages.len() == 1 || inner.messages.len() >= self.options.batch_max {
            queue.changed.notify_all();
        }
        Ok(())
    }

    fn commit_if_due(&self, committed: &mut Instant) -> Res<()> {
        let every = self.options.commit_every;
        if !every.is_zero() && committed.elapsed() >= every {
            self.commit()?;
            *committed = Instant::now();
        }
        Ok(())
    }

    /// Commits the positions that lanes have finished; a failure is left to the inbox.
    fn commit(&self) -> Res<()> {
        let positions = std::mem::take(&mut *lock(&self.positions));
        if positions.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        for (partition, position) in positions {
            list.add_partition_offset(&self.options.topic, partition, Offset::Offset(position))?;
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Sync) {
            crate::harness::say(&format!("the loop's commit failed: {error}"));
        }
        Ok(())
    }

    /// A lane's thread.
    fn lane(&self, at: usize) -> Res<()> {
        postgres::runtime()?.block_on(async {
            let lane = Lane::open(&self.options.url, self.options.inbox, self.options.set).await?;
            while let Some(batch) = self.next_batch(&self.queues[at]) {
                self.marks.begun();
                lane.apply(&batch, &self.marks).await?;
                self.marks.committed();
                {
                    let mut positions = lock(&self.positions);
                    for taken in &batch {
                        positions.insert(taken.partition, taken.offset + 1);
                    }
                }
                if self.options.commit_every.is_zero() {
                    self.commit()?;
                }
                self.applied.fetch_add(u64::try_from(batch.len())?, Ordering::SeqCst);
            }
            Ok(())
        })
    }

    /// A full batch, or what came within the wait; `None` at the end.
    fn next_batch(&self, queue: &Queue) -> Option<Vec<Taken>> {
        let mut inner = lock(&queue.taken);
        let mut since = None;
        loop {
            if inner.closed {
                return None;
            }
            let waited = since.is_some_and(|since: Instant| since.elapsed() >= BATCH_WAIT);
            if inner.messages.len() >= self.options.batch_max || (waited && !inner.messages.is_empty()) {
                let count = inner.messages.len().min(self.options.batch_max);
                let batch: Vec<Taken> = inner.messages.drain(..count).collect();
                let bytes: usize = batch.iter().map(|t| t.body.len() + t.id.len() + OVERHEAD_BYTES).sum();
                inner.bytes -= bytes;
                queue.changed.notify_all();
                return Some(batch);
            }
            if !inner.messages.is_empty() && since.is_none() {
                since = Some(Instant::now());
            }
            let wait = if since.is_some() { BATCH_WAIT } else { Duration::from_millis(100) };
            inner = queue.changed.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(message: &BorrowedMessage<'_>) -> Res<Taken> {
    let headers = message.headers().ok_or("a message without headers")?;
    let id = headers.iter().find(|header| header.key == "event_id").and_then(|header| header.value);
    Ok(Taken {
        partition: message.partition(),
        offset: message.offset(),
        id: String::from_utf8(id.ok_or("a message without an id")?.to_vec())?,
        body: message.payload().unwrap_or_default().to_vec(),
    })
}
