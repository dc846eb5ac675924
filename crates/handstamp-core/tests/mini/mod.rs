//! The smallest store and source that the engine's rules can be tested with.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test binaries; a panic is the failure report"
)]

use bytes::Bytes;
use handstamp_core::source::{NamedLane, SettleKind};
use handstamp_core::*;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// What the next call of `begin` or `commit` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Ok,
    Fail(StoreErrorKind),
    /// Waits for ever, as behind another process's lock.
    Hang,
    /// Commits, then says that there was no answer.
    CommitThenNoAnswer,
}

#[derive(Default)]
pub struct Durable {
    pub inbox: BTreeMap<Vec<u8>, (i64, InboxState)>,
    pub effects: Vec<String>,
    pub dead: BTreeMap<[u8; 16], DeadLetter>,
    pub begins: VecDeque<Next>,
    pub commits: VecDeque<Next>,
    pub transactions: usize,
    /// Of them, opened together with a commit.
    pub chained: usize,
    pub open: usize,
}

#[derive(Clone, Default)]
pub struct MiniStore(pub Arc<Mutex<Durable>>);

pub struct Tx {
    inbox: BTreeMap<Vec<u8>, (i64, InboxState)>,
    effects: Vec<String>,
    dead: BTreeMap<[u8; 16], DeadLetter>,
    durable: Arc<Mutex<Durable>>,
}

impl Tx {
    pub fn apply(&mut self, effect: &str) {
        self.effects.push(effect.to_owned());
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.durable.lock().unwrap().open -= 1;
    }
}

/// An error that the store recognises as its own.
#[derive(Debug, thiserror::Error)]
#[error("store fault {0:?}")]
pub struct StoreFault(pub StoreErrorKind);

impl Store for MiniStore {
    type Tx = Tx;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { writers_max: None }
    }

    async fn register(
        &self,
        name: &ConsumerName,
        _: &Fingerprint,
        _: bool,
    ) -> Result<ConsumerKey, StoreError> {
        Ok(ConsumerKey { id: 1, name: name.clone() })
    }

    async fn begin(&self, _: &ConsumerKey, ids: &[ClaimRequest]) -> Result<(Tx, Vec<Claim>), StoreError> {
        let next = self.0.lock().unwrap().begins.pop_front();
        if next == Some(Next::Hang) {
            std::future::pending::<()>().await;
        }
        let mut durable = self.0.lock().unwrap();
        durable.transactions += 1;
        if let Some(Next::Fail(kind)) = next {
            return Err(StoreError::new(kind, "begin failed"));
        }
        let mut inbox = durable.inbox.clone();
        let first_seen = Timestamp(0);
        let claims = ids
            .iter()
            .map(|request| {
                let digest = request.digest.unwrap();
                match inbox.get(request.id.as_bytes()) {
                    Some((known, state)) if *known == digest => {
                        Claim::Duplicate { state: *state, first_seen }
                    }
                    Some((_, state)) => Claim::IdReused { state: *state, first_seen },
                    None => {
                        inbox.insert(request.id.as_bytes().to_vec(), (digest, InboxState::Applied));
                        Claim::First
                    }
                }
            })
            .collect();
        durable.open += 1;
        let dead = durable.dead.clone();
        Ok((Tx { inbox, effects: durable.effects.clone(), dead, durable: Arc::clone(&self.0) }, claims))
    }

    async fn record(
        &self,
        tx: &mut Tx,
        _: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        Ok(rows
            .iter()
            .map(|row| {
                if row.marks_inbox()
                    && let Some(entry) = tx.inbox.get_mut(row.id.as_ref().unwrap().as_bytes())
                {
                    entry.1 = InboxState::Dead;
                }
                match tx.dead.insert(row.dedup(), row.clone()) {
                    None => Recorded::New,
                    Some(_) => Recorded::Known,
                }
            })
            .collect())
    }

    async fn commit(&self, mut tx: Tx) -> Result<(), StoreError> {
        let mut durable = self.0.lock().unwrap();
        let next = durable.commits.pop_front().unwrap_or(Next::Ok);
        if let Next::Fail(kind) = next {
            drop(durable);
            return Err(StoreError::new(kind, "commit failed"));
        }
        durable.inbox = std::mem::take(&mut tx.inbox);
        durable.effects = std::mem::take(&mut tx.effects);
        durable.dead = std::mem::take(&mut tx.dead);
        drop(durable);
        match next {
            Next::CommitThenNoAnswer => Err(StoreError::new(StoreErrorKind::Unavailable, "no answer")),
            _ => Ok(()),
        }
    }

    async fn commit_and_begin(
        &self,
        tx: Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        durable: oneshot::Sender<()>,
    ) -> Result<Option<(Tx, Vec<Claim>)>, StoreError> {
        self.commit(tx).await?;
        let _ = durable.send(());
        tokio::task::yield_now().await;
        let begun = self.begin(consumer, ids).await.ok();
        self.0.lock().unwrap().chained += usize::from(begun.is_some());
        Ok(begun)
    }

    async fn rollback(&self, _: Tx) -> Result<(), StoreError> {
        Ok(())
    }

    async fn abandon(&self, _: Tx) {}

    fn classify(&self, _: &Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        error.downcast_ref::<StoreFault>().map(|fault| Fault { kind: fault.0, code: Some("TEST".into()) })
    }
}

/// What a log with cumulative offsets can do.
pub fn log_capabilities(ends: bool) -> Capabilities {
    Capabilities {
        settle: SettleKind::Cumulative,
        ordered: true,
        lease: None,
        release_delay_max: None,
        delivery_count: source::DeliveryCount::None,
        redelivery_window: None,
        ends,
    }
}

/// Hands over fixed records on one lane, then ends once all of them are settled or released.
pub struct MiniSource {
    pub batches: Vec<Vec<Record>>,
    pub log: Arc<Mutex<Vec<String>>>,
    pub ends: bool,
}

impl Source for MiniSource {
    fn capabilities(&self) -> Capabilities {
        log_capabilities(self.ends)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint("mini".into())
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        tokio::task::spawn(serve(*self, port));
        Ok(())
    }
}

pub const LANE: Lane = Lane { id: 0, epoch: 1 };

async fn serve(source: MiniSource, mut port: SourcePort) {
    port.control.send(Control::Assigned(vec![NamedLane { lane: LANE, name: "mini".into() }])).unwrap();
    let mut tag = 0;
    for records in source.batches {
        let deliveries = records
            .into_iter()
            .map(|record| {
                tag += 1;
                Delivery {
                    lane: LANE,
                    tag: DeliveryTag(tag),
                    record,
                    fault: None,
                    ahead: ReadAhead::default(),
                }
            })
            .collect();
        if port.deliveries.send(deliveries).await.is_err() {
            return;
        }
    }
    drop(port.control.send(Control::CaughtUp(vec![LANE])));
    while let Some(command) = port.commands.recv().await {
        let mut log = source.log.lock().unwrap();
        match command {
            Command::Settle(settles) => {
                for (_, tag, disposition) in settles {
                    let word = if disposition == Disposition::Ack { "ack" } else { "release" };
                    log.push(format!("{word} {}", tag.0));
                }
            }
            Command::Close { .. } => {
                log.push("close".into());
                return;
            }
            Command::Drained(_) => log.push("drained".into()),
            Command::Hold(_) => log.push("hold".into()),
            _ => {}
        }
    }
}

pub fn record(offset: i64, id: &str, body: &str) -> Record {
    Record {
        key: (!id.is_empty()).then(|| Bytes::copy_from_slice(id.as_bytes())),
        value: Some(Bytes::copy_from_slice(body.as_bytes())),
        headers: Headers::default(),
        origin: Origin { topic: "mini".into(), partition: 0, offset, line: None },
        timestamp: None,
    }
}

/// Records with ids `m0`, `m1` …, each with its id as body.
pub fn numbered(count: i64) -> Vec<Record> {
    (0..count).map(|n| record(n, &format!("m{n}"), &format!("m{n}"))).collect()
}

pub struct Outcome {
    pub report: Result<Report, RunError>,
    pub store: MiniStore,
    pub log: Vec<String>,
}

impl Outcome {
    pub fn counts(&self) -> Counts {
        match &self.report {
            Ok(report) => report.counts,
            Err(error) => error.report.as_ref().unwrap().counts,
        }
    }

    pub fn effects(&self) -> Vec<String> {
        self.store.0.lock().unwrap().effects.clone()
    }

    pub fn acks(&self) -> usize {
        self.log.iter().filter(|line| line.starts_with("ack")).count()
    }
}

pub async fn run_with<H>(
    store: MiniStore,
    records: Vec<Record>,
    options: ConsumerOptions,
    handler: H,
) -> Outcome
where
    H: AsyncFn(&mut Tx, &Message) -> Result<(), HandlerError> + Send + Sync + 'static,
{
    let log = Arc::new(Mutex::new(vec![]));
    let dead_before = store.0.lock().unwrap().dead.len();
    let source = MiniSource { batches: vec![records], log: Arc::clone(&log), ends: true };
    let consumer = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(store.clone())
        .handler_fn(handler)
        .options(options);
    let never_stop = tokio::time::sleep(Duration::from_secs(3600));
    let report = consumer.run_local(never_stop).await;
    if let Ok(report) = &report {
        invariants::counts_reconcile(&report.counts).unwrap();
        let dead = store.0.lock().unwrap().dead.len() - dead_before;
        assert_eq!(report.counts.dead_letter_rows, dead as u64);
    }
    assert_eq!(store.0.lock().unwrap().open, 0, "every transaction ended");
    let log = log.lock().unwrap().clone();
    Outcome { report, store, log }
}
