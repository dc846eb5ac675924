//! The smallest store and source that the engine's rules can be tested with.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test binaries; a panic is the failure report"
)]

mod starts;

use bytes::Bytes;
use handstamp_core::source::{NamedLane, SettleKind};
use handstamp_core::*;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use starts::Starts;

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
    pub parked: Vec<Parked>,
    pub starts: Starts,
    pub begins: VecDeque<Next>,
    /// Somebody else holds what is claimed for so long.
    pub claims_wait: Duration,
    pub commits: VecDeque<Next>,
    pub transactions: usize,
    /// Of them, opened together with a commit.
    pub chained: usize,
    pub open: usize,
}

/// A parked row.
#[derive(Clone)]
pub struct Parked {
    pub park: Park,
    since: Instant,
    due: Instant,
}

#[derive(Clone, Default)]
pub struct MiniStore(pub Arc<Mutex<Durable>>);

pub struct Tx {
    inbox: BTreeMap<Vec<u8>, (i64, InboxState)>,
    effects: Vec<String>,
    dead: BTreeMap<[u8; 16], DeadLetter>,
    parked: Vec<Parked>,
    /// What was resumed, and whether it came to its end.
    resumed: Vec<(Dedup, bool)>,
    /// How many effects there were at the last savepoint.
    saved: usize,
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
        let waits = self.0.lock().unwrap().claims_wait;
        if !waits.is_zero() {
            tokio::time::sleep(waits).await;
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
        let (dead, parked) = (durable.dead.clone(), durable.parked.clone());
        let effects = durable.effects.clone();
        let resumed = vec![];
        let saved = 0;
        Ok((Tx { inbox, effects, dead, parked, resumed, saved, durable: Arc::clone(&self.0) }, claims))
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
        durable.parked = std::mem::take(&mut tx.parked);
        durable.starts.resumed(&tx.resumed);
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

impl Parked {
    fn message(&self) -> ParkedMessage {
        ParkedMessage {
            dedup: self.park.letter.dedup(),
            letter: self.park.letter.clone(),
            parked_at: Timestamp(0),
            parked_for: self.since.elapsed(),
            order_key: self.park.order_key,
            crashes: Vec::new(),
            suspected: false,
        }
    }
}

/// Rows are locked by nobody: one transaction at a time is all it can do.
impl ParkingStore for MiniStore {
    async fn park(&self, tx: &mut Tx, _: &ConsumerKey, rows: &[Park]) -> Result<Vec<Recorded>, StoreError> {
        for park in rows {
            let id = park.letter.id.as_ref().unwrap().as_bytes();
            tx.inbox.get_mut(id).unwrap().1 = InboxState::Parked;
            let since = Instant::now();
            tx.parked.push(Parked { park: park.clone(), since, due: since + park.wait });
        }
        Ok(vec![Recorded::New; rows.len()])
    }

    async fn note_attempts(
        &self,
        _: &mut Tx,
        _: &ConsumerKey,
        _: &[(Dedup, FailedAttempt)],
    ) -> Result<(), StoreError> {
        Ok(())
    }

    async fn parked_keys(
        &self,
        tx: &mut Tx,
        _: &ConsumerKey,
        keys: &[OrderKey],
    ) -> Result<Vec<bool>, StoreError> {
        let parked = |key: &OrderKey| tx.parked.iter().any(|row| row.park.order_key.as_ref() == Some(key));
        Ok(keys.iter().map(parked).collect())
    }

    async fn take_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
    ) -> Result<Option<parked::Taken<Tx>>, StoreError> {
        let now = Instant::now();
        let due = |row: &&Parked| row.due <= now;
        let rows: Vec<_> = self.0.lock().unwrap().parked.iter().filter(due).map(Parked::message).collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let (tx, _) = self.begin(consumer, &[]).await?;
        Ok(Some((tx, rows.into_iter().take(max).collect())))
    }

    async fn take_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<parked::Taken<Tx>, StoreError> {
        let (tx, _) = self.begin(consumer, &[]).await?;
        let rows = tx.parked.iter().map(Parked::message).filter(|row| keys.contains(&row.dedup)).collect();
        Ok((tx, rows))
    }

    async fn savepoint(&self, tx: &mut Tx) -> Result<(), StoreError> {
        tx.saved = tx.effects.len();
        Ok(())
    }

    async fn take_back(&self, tx: &mut Tx) -> Result<(), StoreError> {
        tx.effects.truncate(tx.saved);
        Ok(())
    }

    async fn resume(
        &self,
        tx: &mut Tx,
        _: &ConsumerKey,
        outcomes: &[(Dedup, Resumed)],
    ) -> Result<(), StoreError> {
        for (dedup, resumed) in outcomes {
            tx.resumed.push((*dedup, !matches!(resumed, Resumed::Again { .. })));
            let at = tx.parked.iter().position(|row| row.park.letter.dedup() == *dedup).unwrap();
            let state = match resumed {
                Resumed::Again { wait, .. } => {
                    let row = &mut tx.parked[at];
                    row.park.letter.attempts += 1;
                    row.due = Instant::now() + *wait;
                    continue;
                }
                Resumed::Applied => InboxState::Applied,
                Resumed::Dead { .. } => InboxState::Dead,
            };
            let letter = tx.parked.remove(at).park.letter;
            tx.inbox.get_mut(letter.id.as_ref().unwrap().as_bytes()).unwrap().1 = state;
            if state == InboxState::Dead {
                tx.dead.insert(*dedup, letter);
            }
        }
        Ok(())
    }

    async fn parked_status(&self, _: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
        let durable = self.0.lock().unwrap();
        let due_in = durable.parked.iter().map(|row| row.due.saturating_duration_since(Instant::now())).min();
        Ok(ParkedStatus { count: durable.parked.len() as u64, due_in, oldest: None })
    }
}

impl LetterStore for MiniStore {
    async fn kept_letters(
        &self,
        _: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let durable = self.0.lock().unwrap();
        Ok(keys.iter().map(|dedup| durable.dead.get(dedup).cloned()).collect())
    }
}

/// It keeps no marks: what is done with them is tried on the store in memory.
impl VersionStore for MiniStore {
    async fn raise_marks(
        &self,
        _: &mut Tx,
        _: &ConsumerKey,
        _: &BTreeMap<VersionKey, Version>,
    ) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
        Err(StoreError::new(StoreErrorKind::Config, "the smallest store keeps no marks"))
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
