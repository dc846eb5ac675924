//! A store in memory with the semantics of a database: claims count for others only after the commit,
//! a second claimer waits for the first, a rollback frees, a restart keeps what was committed.
//!
//! Authoritative: `Disk`. Everything an open transaction wrote lies in its [`MemoryTx`].

use super::breaks::{LATE, ParkingBreak, StartBreak, StoreBreak, VersionBreak};
use super::memory_parked::{ParkedKey, Parking};
use super::memory_start_rows::Starts;
use super::memory_tx::{Ended, MemoryError, MemoryTx};
use super::memory_versions::MarkKey;
use super::prune_breaks::PruneBreak;
use handstamp_core::message::Timestamp;
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Dedup, Fault, Fingerprint, InboxState,
    LetterStore, MessageId, Recorded, Store, StoreCapabilities, StoreError, StoreErrorKind, Version,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long a claim waits for another transaction.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A database and its connections; clones are the same database.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    pub(super) shared: Arc<Shared>,
}

/// Where a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorePoint {
    /// In `register`.
    Register,
    /// In `begin`: nothing is open.
    Begin,
    /// In `record`.
    Record,
    /// In `commit`: rolled back.
    Commit,
    /// In `commit`: durable, but the answer is lost.
    CommitThenLost,
    /// In `park`.
    Park,
    /// In `note_attempts`.
    NoteAttempts,
    /// In `parked_keys`.
    ParkedKeys,
    /// In `take_due`: nothing is open.
    TakeDue,
    /// In `take_again`: nothing is open.
    TakeAgain,
    /// In `resume`.
    Resume,
    /// In `parked_status`.
    ParkedStatus,
    /// In a start record's own transaction: nothing is open behind it.
    Start,
    /// In `take_over`.
    TakeOver,
    /// In `end_starts`.
    EndStarts,
    /// In `withdraw`.
    Withdraw,
    /// In `forget`.
    Forget,
    /// In `absolve`.
    Absolve,
    /// In `raise_marks`.
    RaiseMarks,
    /// In `savepoint`.
    Savepoint,
    /// In `take_back`.
    TakeBack,
    /// In `kept_letters`.
    KeptLetters,
    /// In whatever a store does when it forgets.
    Prune,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) broken: Option<StoreBreak>,
    pub(super) parking_broken: Option<ParkingBreak>,
    pub(super) start_broken: Option<StartBreak>,
    pub(super) version_broken: Option<VersionBreak>,
    pub(super) prune_broken: Option<PruneBreak>,
    state: Mutex<State>,
    /// Counts ended transactions; those who wait for one watch it.
    pub(super) ended: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) disk: Disk,
    /// Claims of open transactions.
    pub(super) claimed: HashMap<InboxId, u64>,
    /// Row locks of open transactions on parked messages.
    pub(super) locked: HashMap<ParkedKey, u64>,
    /// Row locks of open transactions on marks of versions.
    pub(super) marks_locked: HashMap<MarkKey, u64>,
    tx_made: u64,
    /// Grows when all connections are lost.
    pub(super) generation: u64,
    away: bool,
    faults: VecDeque<(StorePoint, StoreErrorKind)>,
    latency: Duration,
    begun: u64,
    pub(super) committed: u64,
}

/// A consumer's number and the bytes an id is stored as.
pub(super) type InboxId = (i16, Vec<u8>);

/// What survives a restart.
#[derive(Debug, Default)]
pub(super) struct Disk {
    consumers: BTreeMap<ConsumerName, (i16, Fingerprint)>,
    pub(super) inbox: BTreeMap<InboxId, InboxRow>,
    pub(super) dead: BTreeMap<(i16, Vec<u8>), DeadLetter>,
    pub(super) counters: BTreeMap<String, i64>,
    pub(super) parking: Parking,
    pub(super) starts: Starts,
    pub(super) marks: BTreeMap<MarkKey, Version>,
    /// Up to when ids are forgotten, by consumer.
    pub(super) pruned: BTreeMap<i16, Timestamp>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InboxRow {
    pub(super) state: InboxState,
    pub(super) digest: Option<i64>,
    pub(super) first_seen: Timestamp,
}

impl InboxRow {
    fn answer(&self, digest: Option<i64>, broken: Option<StoreBreak>) -> Claim {
        let (state, first_seen) = (self.state, self.first_seen);
        let differs = matches!((self.digest, digest), (Some(known), Some(given)) if known != given);
        if differs && broken != Some(StoreBreak::IgnoresDigest) {
            Claim::IdReused { state, first_seen }
        } else {
            Claim::Duplicate { state, first_seen }
        }
    }
}

impl State {
    pub(super) fn number_of(&self, consumer: &ConsumerName) -> Option<i16> {
        self.disk.consumers.get(consumer).map(|(number, _)| *number)
    }

    /// Opens a transaction for a consumer that is registered.
    pub(super) fn open(
        &mut self,
        shared: &Arc<Shared>,
        consumer: &ConsumerKey,
    ) -> Result<MemoryTx, StoreError> {
        let known = self.number_of(&consumer.name) == Some(consumer.id);
        if !known && !shared.is(StoreBreak::AnswersDuplicateForUnregistered) {
            let message = format!("{} is not registered under number {}", consumer.name, consumer.id);
            return Err(StoreError::new(StoreErrorKind::UnknownConsumer, message));
        }
        self.tx_made += 1;
        self.begun += 1;
        let mut tx = MemoryTx::new(Arc::clone(shared), self.tx_made, self.generation);
        if shared.parking_broken == Some(ParkingBreak::ParkedKeysOldSnapshot) {
            tx.parking.remember(&self.disk);
        }
        Ok(tx)
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is(&self, broken: StoreBreak) -> bool {
        self.broken == Some(broken)
    }

    pub(super) fn inbox_id(&self, consumer: i16, id: &MessageId) -> InboxId {
        let consumer = if self.is(StoreBreak::ForgetsScope) { 0 } else { consumer };
        let mut stored = id.to_stored();
        match self.broken {
            Some(StoreBreak::FoldsIds) => stored.make_ascii_lowercase(),
            Some(StoreBreak::TrimsIds) => stored.truncate(stored.trim_ascii_end().len()),
            Some(StoreBreak::CutsIds) => {
                let end = stored.iter().position(|byte| *byte == 0).unwrap_or(stored.len());
                stored.truncate(end);
            }
            _ => {}
        }
        (consumer, stored)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::broken(None)
    }
}

impl MemoryStore {
    /// An empty database.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a fault built in.
    #[must_use]
    pub fn broken(broken: Option<StoreBreak>) -> Self {
        Self::with(broken, None, None, None, None)
    }

    /// The same with a fault in what it does with parked messages.
    #[must_use]
    pub fn broken_parking(broken: Option<ParkingBreak>) -> Self {
        Self::with(None, broken, None, None, None)
    }

    /// The same with a fault in what it does with start records.
    #[must_use]
    pub fn broken_starts(broken: Option<StartBreak>) -> Self {
        Self::with(None, None, broken, None, None)
    }

    /// The same with a fault in what it does with marks of versions.
    #[must_use]
    pub fn broken_versions(broken: Option<VersionBreak>) -> Self {
        Self::with(None, None, None, broken, None)
    }

    pub(super) fn with(
        broken: Option<StoreBreak>,
        parking_broken: Option<ParkingBreak>,
        start_broken: Option<StartBreak>,
        version_broken: Option<VersionBreak>,
        prune_broken: Option<PruneBreak>,
    ) -> Self {
        let (state, ended) = (Mutex::default(), watch::channel(0).0);
        let shared =
            Shared { broken, parking_broken, start_broken, version_broken, prune_broken, state, ended };
        Self { shared: Arc::new(shared) }
    }

    /// Loses every connection, as a crash of the database or of all its clients does.
    pub fn restart(&self) {
        {
            let mut state = self.shared.lock();
            state.generation += 1;
            state.claimed.clear();
            state.marks_locked.clear();
            if self.shared.version_broken == Some(VersionBreak::ForgetsAtRestart) {
                state.disk.marks.clear();
            }
            if self.shared.parking_broken != Some(ParkingBreak::RestartKeepsLocks) {
                state.locked.clear();
            }
            if self.shared.parking_broken == Some(ParkingBreak::ForgetsAtRestart) {
                state.disk.parking = Parking::default();
            }
            if self.shared.start_broken == Some(StartBreak::ForgetsAtRestart) {
                state.disk.starts = Starts::default();
            }
            if self.shared.is(StoreBreak::ForgetsAtRestart) {
                state.disk.inbox.clear();
            }
        }
        self.shared.ended.send_modify(|ended| *ended += 1);
    }

    /// Takes the database away, or brings it back.
    pub fn set_away(&self, away: bool) {
        self.shared.lock().away = away;
    }

    /// The next call that reaches the point fails so. Several are used up in their order.
    pub fn fail_next(&self, point: StorePoint, kind: StoreErrorKind) {
        self.shared.lock().faults.push_back((point, kind));
    }

    /// Forgets the faults that have not struck yet.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Faults that have not struck yet.
    #[must_use]
    pub fn faults_left(&self) -> usize {
        self.shared.lock().faults.len()
    }

    /// Every call takes this long.
    pub fn set_latency(&self, latency: Duration) {
        self.shared.lock().latency = latency;
    }

    /// A committed counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> i64 {
        self.shared.lock().disk.counters.get(name).copied().unwrap_or(0)
    }

    /// All committed counters.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, i64> {
        self.shared.lock().disk.counters.clone()
    }

    /// The committed dead letters of a consumer.
    #[must_use]
    pub fn dead_letters(&self, consumer: &ConsumerName) -> Vec<DeadLetter> {
        let state = self.shared.lock();
        let Some(number) = state.number_of(consumer) else { return vec![] };
        state.disk.dead.iter().filter(|((c, _), _)| *c == number).map(|(_, dead)| dead.clone()).collect()
    }

    /// What the committed inbox says of an id.
    #[must_use]
    pub fn inbox_state(&self, consumer: &ConsumerName, id: &MessageId) -> Option<InboxState> {
        let state = self.shared.lock();
        let number = state.number_of(consumer)?;
        state.disk.inbox.get(&self.shared.inbox_id(number, id)).map(|row| row.state)
    }

    /// Transactions begun and committed so far.
    #[must_use]
    pub fn transactions(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.begun, state.committed)
    }

    /// Waits as a server would, then strikes with the next fault of the point.
    pub(super) async fn reach(&self, point: StorePoint) -> Result<(), StoreError> {
        let latency = self.shared.lock().latency;
        if latency.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(latency).await;
        }
        let mut state = self.shared.lock();
        if state.away {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store in memory is away"));
        }
        match state.faults.front() {
            Some(&(at, kind)) if at == point => {
                state.faults.pop_front();
                Err(StoreError::new(kind, format!("a fault was asked for: {kind:?} at {point:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Claims one id, waiting while another open transaction has it.
    async fn claim(&self, tx: &mut MemoryTx, id: &InboxId, digest: Option<i64>) -> Result<Claim, StoreError> {
        let broken = self.shared.broken;
        let until = tokio::time::Instant::now() + LOCK_TIMEOUT;
        loop {
            let mut ended = self.shared.ended.subscribe();
            {
                let mut state = self.shared.lock();
                if state.generation != tx.generation() {
                    return Err(connection_lost());
                }
                let frees = self.shared.parking_broken == Some(ParkingBreak::TakeFreesTheClaim);
                let freed = frees && !state.locked.is_empty();
                if let Some(row) = state.disk.inbox.get(id).filter(|_| !freed) {
                    return Ok(row.answer(digest, broken));
                }
                let early = self.shared.is(StoreBreak::ClaimsVisibleEarly);
                if let Some(row) = tx.claimed(id) {
                    let twice = self.shared.is(StoreBreak::TwinIsFirstTwice);
                    return Ok(if twice { Claim::First } else { row.answer(digest, broken) });
                }
                let taken = state.claimed.contains_key(id);
                if taken && early {
                    let (state, first_seen) = (InboxState::Applied, handstamp_core::clock::now());
                    return Ok(Claim::Duplicate { state, first_seen });
                }
                let alone = !self.shared.is(StoreBreak::OneAtATime)
                    || state.claimed.values().all(|owner| *owner == tx.number());
                if (!taken && alone) || self.shared.is(StoreBreak::BothRacersAreFirst) {
                    state.claimed.insert(id.clone(), tx.number());
                    tx.note_claim(id.clone(), digest);
                    return Ok(Claim::First);
                }
            }
            let waited = tokio::time::timeout_at(until, ended.changed()).await;
            if waited.is_err() {
                return Err(StoreError::new(StoreErrorKind::Conflict, "waited too long for another claim"));
            }
        }
    }
}

pub(super) fn connection_lost() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the connection to the store in memory is lost")
}

impl LetterStore for MemoryStore {
    async fn kept_letters(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.reach(StorePoint::KeptLetters).await?;
        let state = self.shared.lock();
        let of_others = self.parking_is(ParkingBreak::ReadsLettersOfOthers);
        let find = |dedup: &Dedup| {
            if of_others {
                let mut all = state.disk.dead.iter();
                return all.find(|((_, key), _)| key == dedup).map(|(_, letter)| letter.clone());
            }
            state.disk.dead.get(&(consumer.id, dedup.to_vec())).cloned()
        };
        let mut kept: Vec<Option<DeadLetter>> = keys.iter().map(find).collect();
        if self.parking_is(ParkingBreak::ReadsLettersInReverse) {
            kept.reverse();
        }
        Ok(kept)
    }
}

impl Store for MemoryStore {
    type Tx = MemoryTx;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { writers_max: None }
    }

    async fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> Result<ConsumerKey, StoreError> {
        self.reach(StorePoint::Register).await?;
        let mut state = self.shared.lock();
        let next = i16::try_from(state.disk.consumers.len()).unwrap_or(i16::MAX).saturating_add(1);
        let entry = state.disk.consumers.entry(name.clone());
        let (id, known) = entry.or_insert_with(|| (next, fingerprint.clone()));
        if self.shared.is(StoreBreak::RegistersAnew) {
            *id = id.saturating_add(100);
        }
        if known != fingerprint {
            let adopt = adopt && !self.shared.is(StoreBreak::NeverAdopts);
            if !adopt && !self.shared.is(StoreBreak::AdoptsSilently) {
                let message = format!("{name} is registered for {known}, not for {fingerprint}");
                return Err(StoreError::new(StoreErrorKind::FingerprintMismatch, message));
            }
            *known = fingerprint.clone();
        }
        Ok(ConsumerKey { id: *id, name: name.clone() })
    }

    async fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(MemoryTx, Vec<Claim>), StoreError> {
        self.reach(StorePoint::Begin).await?;
        let mut tx = self.shared.lock().open(&self.shared, consumer)?;
        if self.shared.is(StoreBreak::AnswersDuplicateForUnregistered)
            && self.shared.lock().number_of(&consumer.name) != Some(consumer.id)
        {
            let claim = Claim::Duplicate { state: InboxState::Applied, first_seen: Timestamp(0) };
            return Ok((tx, vec![claim; ids.len()]));
        }
        if ids.is_empty() && self.shared.is(StoreBreak::RefusesEmptyBatches) {
            return Err(StoreError::new(StoreErrorKind::Config, "a batch without ids"));
        }
        let mut order: Vec<(InboxId, usize)> = ids
            .iter()
            .enumerate()
            .map(|(at, request)| (self.shared.inbox_id(consumer.id, &request.id), at))
            .collect();
        order.sort();
        let mut claims = vec![Claim::First; ids.len()];
        for (turn, (id, at)) in order.iter().enumerate() {
            let claim = self.claim(&mut tx, id, ids[*at].digest).await?;
            if turn >= 1_000 && self.shared.is(StoreBreak::CountsToAThousand) {
                continue;
            }
            let place = if self.shared.is(StoreBreak::AnswersInOtherOrder) { turn } else { *at };
            claims[place] = claim;
        }
        Ok((tx, claims))
    }

    async fn record(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.reach(StorePoint::Record).await?;
        tx.check_open()?;
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let always = self.shared.is(StoreBreak::RecordMarksReused);
            let marks = row.id.as_ref().filter(|_| row.marks_inbox() || always);
            if let Some(id) = marks.filter(|_| !self.shared.is(StoreBreak::RecordLeavesApplied)) {
                tx.mark_dead(&self.shared.inbox_id(consumer.id, id));
            }
            answers.push(tx.note_dead(consumer.id, row));
        }
        Ok(answers)
    }

    async fn commit(&self, mut tx: MemoryTx) -> Result<(), StoreError> {
        self.reach(StorePoint::Commit).await?;
        tx.check_open()?;
        if tx.aborted() && !self.shared.is(StoreBreak::CommitsSwallowed) {
            tx.end(Ended::RolledBack);
            let message = "an SQL error was swallowed: the store had rolled back";
            return Err(StoreError::new(StoreErrorKind::Swallowed, message));
        }
        tx.end(Ended::Committed);
        drop(tx);
        self.reach(StorePoint::CommitThenLost).await
    }

    async fn commit_and_begin(
        &self,
        tx: MemoryTx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        durable: oneshot::Sender<()>,
    ) -> Result<Option<(MemoryTx, Vec<Claim>)>, StoreError> {
        let broken = self.shared.broken;
        let durable = match broken {
            Some(StoreBreak::SaysDurableEarly) => {
                let _ = durable.send(());
                tokio::time::sleep(LATE).await;
                None
            }
            _ => Some(durable),
        };
        let committed = self.commit(tx).await;
        if broken == Some(StoreBreak::BeginsBehindAFailedCommit) && committed.is_err() {
            return Ok(self.begin(consumer, ids).await.ok());
        }
        committed?;
        if let Some(durable) = durable.filter(|_| broken != Some(StoreBreak::SaysDurableLate)) {
            let _ = durable.send(());
        }
        // What is in the way is found again by a `begin` of its own.
        let Ok((tx, claims)) = self.begin(consumer, ids).await else { return Ok(None) };
        Ok(Some(match broken {
            Some(StoreBreak::NextClaimsAreFirst) => (tx, vec![Claim::First; ids.len()]),
            _ => (tx, claims),
        }))
    }

    async fn rollback(&self, mut tx: MemoryTx) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        tx.roll_back();
        Ok(())
    }

    async fn abandon(&self, mut tx: MemoryTx) {
        tokio::task::yield_now().await;
        if self.shared.is(StoreBreak::AbandonKeepsClaims) {
            tx.leak();
        }
        tx.keep_locks_if(ParkingBreak::AbandonKeepsLocks);
        tx.end(Ended::RolledBack);
    }

    fn classify(&self, _tx: &MemoryTx, error: &(dyn Error + 'static)) -> Option<Fault> {
        if self.shared.is(StoreBreak::ClassifiesNothing) {
            return None;
        }
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(memory) = error.downcast_ref::<MemoryError>() {
                return Some(Fault { kind: memory.kind, code: Some(memory.code.to_owned()) });
            }
            next = error.source();
        }
        None
    }
}
