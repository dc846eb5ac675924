//! Parked messages of the store in memory, with the semantics of a database: a row counts for others only
//! after its commit, who takes it holds its lock until the transaction ends, others pass over it.
//!
//! Authoritative: [`Parking`] on the disk. What an open transaction did lies in its [`ParkingWork`]; which
//! transaction holds which lock is the state's `locked`. Due times follow the tokio clock, so that a paused
//! clock works.
//!
//! ```text
//!  park ─► ParkingWork ─ commit ─► row ─► take (lock) ─► resume ─► ParkingWork ─ commit ─► gone, or due later
//!             └ rollback, drop, restart: nothing            └ rollback, drop, restart: lock freed, row as before
//! ```

use super::breaks::{ParkingBreak, StartBreak};
use super::memory_store::{Disk, InboxId, LOCK_TIMEOUT, MemoryStore, State, StorePoint};
use super::memory_tx::MemoryTx;
use bytes::Bytes;
use handstamp_core::parked::{
    Dedup, FailedAttempt, HISTORY_MAX, OrderKey, Park, ParkedMessage, ParkedStatus, ParkingStore, Resumed,
    Taken,
};
use handstamp_core::{
    ConsumerKey, ConsumerName, DeadLetter, FailureClass, Header, Headers, InboxState, Recorded, StoreError,
    StoreErrorKind, Timestamp, clock,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// A consumer's number and the key of a message.
pub(super) type ParkedKey = (i16, Dedup);

/// Further away than any wait of a test.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// What survives a restart.
#[derive(Debug, Default)]
pub(super) struct Parking {
    pub(super) rows: BTreeMap<ParkedKey, ParkedRow>,
    pub(super) attempts: BTreeMap<ParkedKey, Vec<FailedAttempt>>,
    seq_made: u64,
}

#[derive(Debug, Clone)]
pub(super) struct ParkedRow {
    /// The order in which messages were parked.
    pub(super) seq: u64,
    pub(super) letter: DeadLetter,
    pub(super) parked_at: Timestamp,
    pub(super) since: Instant,
    pub(super) due: Instant,
    pub(super) order_key: Option<OrderKey>,
}

impl ParkedRow {
    fn shown(&self, dedup: Dedup) -> ParkedMessage {
        ParkedMessage {
            dedup,
            letter: self.letter.clone(),
            parked_at: self.parked_at,
            parked_for: self.since.elapsed(),
            order_key: self.order_key,
            crashes: Vec::new(),
            suspected: false,
        }
    }
}

impl Parking {
    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq_made += 1;
        self.seq_made
    }

    fn of(&self, consumer: i16) -> impl Iterator<Item = (&ParkedKey, &ParkedRow)> {
        self.rows.iter().filter(move |((number, _), _)| *number == consumer)
    }

    /// The row of each order key that was parked first.
    fn heads<'a>(rows: impl Iterator<Item = &'a ParkedRow>) -> HashMap<OrderKey, u64> {
        let mut heads = HashMap::new();
        for row in rows {
            if let Some(key) = row.order_key {
                heads.entry(key).and_modify(|seq: &mut u64| *seq = row.seq.min(*seq)).or_insert(row.seq);
            }
        }
        heads
    }

    /// The order keys that have a parked message.
    fn order_keys(&self, broken: Option<ParkingBreak>) -> BTreeSet<(i16, OrderKey)> {
        let forgets = broken == Some(ParkingBreak::ParkedKeysForgetFollowers);
        let counts = |row: &ParkedRow| !forgets || row.letter.class != FailureClass::Waiting;
        let rows = self.rows.iter().filter(|(_, row)| counts(row));
        rows.filter_map(|((consumer, _), row)| Some((*consumer, row.order_key?))).collect()
    }
}

/// What an open transaction did to parked messages, unseen by others.
#[derive(Debug, Default)]
pub(super) struct ParkingWork {
    pub(super) locked: BTreeSet<ParkedKey>,
    rows: BTreeMap<ParkedKey, Change>,
    states: Vec<(InboxId, InboxState)>,
    dead: Vec<(ParkedKey, DeadLetter)>,
    attempts: Vec<(ParkedKey, FailedAttempt)>,
    /// The order keys at its begin; only a broken store looks at it.
    snapshot: Option<BTreeSet<(i16, OrderKey)>>,
}

#[derive(Debug)]
enum Change {
    Parked(ParkedRow),
    Again(ParkedRow),
    Gone,
}

impl ParkingWork {
    pub(super) fn parked(&self) -> usize {
        self.rows.values().filter(|change| matches!(change, Change::Parked(_))).count()
    }

    /// Remembers what a broken store looks at later.
    pub(super) fn remember(&mut self, disk: &Disk) {
        self.snapshot = Some(disk.parking.order_keys(None));
    }

    /// Makes everything durable; the locks stay.
    pub(super) fn commit(&mut self, disk: &mut Disk) {
        for (key, change) in std::mem::take(&mut self.rows) {
            match change {
                Change::Parked(row) => {
                    disk.parking.rows.entry(key).or_insert(row);
                }
                Change::Again(row) => {
                    disk.parking.rows.insert(key, row);
                }
                Change::Gone => {
                    disk.parking.rows.remove(&key);
                }
            }
        }
        for (id, to) in self.states.drain(..) {
            if let Some(row) = disk.inbox.get_mut(&id) {
                row.state = to;
            }
        }
        for ((consumer, dedup), letter) in self.dead.drain(..) {
            disk.dead.insert((consumer, dedup.to_vec()), letter);
        }
        for (key, attempt) in self.attempts.drain(..) {
            let history = disk.parking.attempts.entry(key).or_default();
            if history.len() < HISTORY_MAX {
                history.push(attempt);
            }
        }
    }

    fn note(&mut self, key: ParkedKey, attempt: FailedAttempt) {
        self.attempts.push((key, attempt));
    }
}

impl State {
    /// Rows that are due, the longest due first.
    fn due(&self, consumer: i16, max: usize, broken: Option<ParkingBreak>) -> Vec<ParkedKey> {
        let is = |other| broken == Some(other);
        let now = Instant::now();
        let all = is(ParkingBreak::TakesForAllConsumers);
        let mine =
            || self.disk.parking.rows.iter().filter(move |((number, _), _)| all || *number == consumer);
        let free = |key: &ParkedKey| !self.locked.contains_key(key) || is(ParkingBreak::LocksNothing);
        let heads = Parking::heads(mine().map(|(_, row)| row).filter(|row| {
            let late = is(ParkingBreak::OrderAmongDueOnly) && row.due > now;
            let (number, dedup) = (consumer, row.letter.dedup());
            let taken = is(ParkingBreak::OrderPassesOverLocks) && !free(&(number, dedup));
            !late && !taken
        }));
        let first = |row: &ParkedRow| {
            let head = row.order_key.and_then(|key| heads.get(&key));
            head.is_none_or(|seq| *seq == row.seq) || is(ParkingBreak::OrderKeyIgnored)
        };
        let in_time = |row: &ParkedRow| row.due <= now || is(ParkingBreak::TakesNotDue);
        let mut due: Vec<_> = mine().filter(|(key, row)| free(key) && first(row) && in_time(row)).collect();
        due.sort_by_key(|(_, row)| (row.due, row.seq));
        if is(ParkingBreak::TakesInParkedOrder) {
            due.sort_by_key(|(_, row)| row.seq);
        }
        due.truncate(if is(ParkingBreak::IgnoresMax) { usize::MAX } else { max });
        due.into_iter().map(|(key, _)| *key).collect()
    }

    /// Locks rows for a transaction and shows them in the order given.
    fn hold(&mut self, tx: &mut MemoryTx, keys: &[ParkedKey]) -> Vec<ParkedMessage> {
        let mut shown = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(row) = self.disk.parking.rows.get(key)
                && tx.parking.locked.insert(*key)
            {
                self.locked.insert(*key, tx.number());
                shown.push(row.shown(key.1));
            }
        }
        shown
    }
}

impl MemoryStore {
    /// The committed parked messages of a consumer, in the order in which they were parked.
    #[must_use]
    pub fn parked(&self, consumer: &ConsumerName) -> Vec<ParkedMessage> {
        let state = self.shared.lock();
        let Some(number) = state.number_of(consumer) else { return vec![] };
        let mut rows: Vec<_> = state.disk.parking.of(number).collect();
        rows.sort_by_key(|(_, row)| row.seq);
        rows.into_iter().map(|((_, dedup), row)| row.shown(*dedup)).collect()
    }

    /// The committed history of a message, oldest first.
    #[must_use]
    pub fn attempts(&self, consumer: &ConsumerName, dedup: &Dedup) -> Vec<FailedAttempt> {
        let state = self.shared.lock();
        let number = state.number_of(consumer);
        let found = number.and_then(|number| state.disk.parking.attempts.get(&(number, *dedup)));
        found.cloned().unwrap_or_default()
    }

    pub(super) fn parking_is(&self, broken: ParkingBreak) -> bool {
        self.shared.parking_broken == Some(broken)
    }

    /// A statement of `park`, `resume` or `note_attempts` may run, or a broken store lets it.
    fn check_statement(&self, tx: &MemoryTx, unless: ParkingBreak) -> Result<(), StoreError> {
        match tx.check_statement() {
            Err(error) if error.kind == StoreErrorKind::TransactionEnded && self.parking_is(unless) => Ok(()),
            other => other,
        }
    }

    /// Makes durable at once what a broken store does not keep for the commit, or writes behind the end.
    fn autocommit(&self, tx: &mut MemoryTx, always: ParkingBreak, behind_the_end: ParkingBreak) {
        let ended = tx.check_open().is_err();
        if self.parking_is(always) || (ended && self.parking_is(behind_the_end)) {
            tx.parking.commit(&mut self.shared.lock().disk);
        }
    }

    fn park_one(&self, tx: &mut MemoryTx, consumer: i16, row: &Park, seq: u64) -> Recorded {
        let dedup = row.letter.dedup();
        let key = (consumer, dedup);
        let known = self.shared.lock().disk.parking.rows.contains_key(&key);
        let overwrites = self.parking_is(ParkingBreak::ParkOverwrites);
        if (known || tx.parking.rows.contains_key(&key)) && !overwrites {
            return Recorded::Known;
        }
        if let Some(id) = row.letter.id.as_ref().filter(|_| !self.parking_is(ParkingBreak::ParkForgetsInbox))
        {
            tx.mark_parked(&self.shared.inbox_id(consumer, id));
        }
        let since = Instant::now();
        let never = self.parking_is(ParkingBreak::WaitsForEver) && !row.wait.is_zero();
        let due = since.checked_add(row.wait).filter(|_| !never).unwrap_or(since + FAR);
        let letter = damage(&row.letter, self.shared.parking_broken);
        let new = ParkedRow { seq, letter, parked_at: clock::now(), since, due, order_key: row.order_key };
        tx.parking.rows.insert(key, if overwrites { Change::Again(new) } else { Change::Parked(new) });
        Recorded::New
    }

    /// What this transaction sees of a row that it has locked.
    fn locked_row(&self, tx: &MemoryTx, key: ParkedKey) -> Result<ParkedRow, StoreError> {
        let seen = match tx.parking.rows.get(&key) {
            Some(Change::Again(row)) => Some(row.clone()),
            Some(Change::Parked(_) | Change::Gone) => None,
            None => self.shared.lock().disk.parking.rows.get(&key).cloned(),
        };
        let ours = tx.parking.locked.contains(&key) || self.parking_is(ParkingBreak::ResumesEnded);
        seen.filter(|_| ours).ok_or_else(|| {
            let message = "a parked message is resumed that this transaction has not locked";
            StoreError::new(StoreErrorKind::Config, message)
        })
    }

    fn resume_one(&self, tx: &mut MemoryTx, key: ParkedKey, outcome: &Resumed) -> Result<(), StoreError> {
        let is = |broken| self.parking_is(broken);
        let mut row = self.locked_row(tx, key)?;
        let id = row.letter.id.as_ref().map(|id| self.shared.inbox_id(key.0, id));
        let (state, keeps_row) = match outcome {
            Resumed::Applied => {
                let forgets = is(ParkingBreak::AppliedForgetsInbox);
                (
                    Some(InboxState::Applied).filter(|_| !forgets),
                    is(ParkingBreak::AppliedKeepsRow) && tx.has_effects(),
                )
            }
            Resumed::Again { wait, failed } => {
                self.fail_again(&mut row, *wait, failed);
                if !is(ParkingBreak::AgainForgetsHistory) {
                    tx.parking.note(key, failed.clone());
                }
                tx.parking.rows.insert(key, Change::Again(row));
                return Ok(());
            }
            Resumed::Dead { failed, charged } => {
                let charged = *charged || is(ParkingBreak::DeadAlwaysCharges);
                row.letter.attempts += u32::from(charged && !is(ParkingBreak::DeadNeverCharges));
                fail(&mut row.letter, failed);
                if is(ParkingBreak::DeadLosesBytes) {
                    row.letter.record.value =
                        row.letter.record.value.map(|value| value.slice(..value.len() / 2));
                }
                if charged {
                    tx.parking.note(key, failed.clone());
                }
                tx.parking.dead.push((key, row.letter));
                let forgets = is(ParkingBreak::DeadForgetsInbox);
                (Some(InboxState::Dead).filter(|_| !forgets), is(ParkingBreak::DeadKeepsRow))
            }
        };
        tx.parking.states.extend(id.zip(state));
        if !keeps_row {
            tx.parking.rows.insert(key, Change::Gone);
        }
        Ok(())
    }

    fn fail_again(&self, row: &mut ParkedRow, wait: Duration, failed: &FailedAttempt) {
        let is = |broken| self.parking_is(broken);
        let now = Instant::now();
        if !is(ParkingBreak::AgainForgetsAttempt) {
            row.letter.attempts += 1;
        }
        if !is(ParkingBreak::AgainKeepsOldFailure) {
            fail(&mut row.letter, failed);
        }
        row.due =
            if is(ParkingBreak::AgainIsDueAtOnce) { now } else { now.checked_add(wait).unwrap_or(now + FAR) };
        if is(ParkingBreak::AgainDropsHeaders) {
            row.letter.record.headers = Headers::default();
        }
        if is(ParkingBreak::AgainParksAnew) {
            (row.parked_at, row.since) = (clock::now(), now);
        }
        if is(ParkingBreak::AgainGoesToTheBack) {
            row.seq = self.shared.lock().disk.parking.next_seq();
        }
    }
}

fn fail(letter: &mut DeadLetter, failed: &FailedAttempt) {
    letter.class = failed.class;
    letter.code.clone_from(&failed.code);
    letter.reason.clone_from(&failed.reason);
    letter.failed_at = failed.at;
}

impl ParkingStore for MemoryStore {
    async fn park(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        rows: &[Park],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.reach(StorePoint::Park).await?;
        self.check_statement(tx, ParkingBreak::ParksEnded)?;
        let mut seqs: Vec<u64> = {
            let mut state = self.shared.lock();
            rows.iter().map(|_| state.disk.parking.next_seq()).collect()
        };
        if self.parking_is(ParkingBreak::ParksInReverse) {
            seqs.reverse();
        }
        let parked = rows.iter().zip(seqs);
        let answers = parked.map(|(row, seq)| self.park_one(tx, consumer.id, row, seq)).collect();
        self.autocommit(tx, ParkingBreak::ParkAutocommits, ParkingBreak::ParksEnded);
        Ok(answers)
    }

    async fn note_attempts(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        attempts: &[(Dedup, FailedAttempt)],
    ) -> Result<(), StoreError> {
        self.reach(StorePoint::NoteAttempts).await?;
        tx.check_statement()?;
        for (dedup, attempt) in attempts {
            let mut attempt = attempt.clone();
            if self.parking_is(ParkingBreak::NoteForgetsCode) {
                attempt.code = None;
            }
            tx.parking.note((consumer.id, *dedup), attempt);
        }
        self.autocommit(tx, ParkingBreak::NoteAutocommits, ParkingBreak::ParksEnded);
        Ok(())
    }

    async fn parked_keys(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        keys: &[OrderKey],
    ) -> Result<Vec<bool>, StoreError> {
        self.reach(StorePoint::ParkedKeys).await?;
        tx.check_statement()?;
        let state = self.shared.lock();
        let mut parked = tx
            .parking
            .snapshot
            .clone()
            .unwrap_or_else(|| state.disk.parking.order_keys(self.shared.parking_broken));
        let forgets_own = self.parking_is(ParkingBreak::ParkedKeysForgetOwn);
        for (key, change) in &tx.parking.rows {
            match change {
                Change::Parked(row) if !forgets_own => {
                    parked.extend(row.order_key.map(|order| (key.0, order)))
                }
                Change::Parked(_) | Change::Again(_) => {}
                Change::Gone => {
                    let gone = state.disk.parking.rows.get(key).and_then(|row| row.order_key);
                    let left = |order| {
                        let of_key =
                            state.disk.parking.of(key.0).filter(|(_, row)| row.order_key == Some(order));
                        of_key
                            .filter(|(key, _)| !matches!(tx.parking.rows.get(key), Some(Change::Gone)))
                            .count()
                    };
                    if let Some(order) = gone.filter(|order| left(*order) == 0) {
                        parked.remove(&(key.0, order));
                    }
                }
            }
        }
        let everybody = self.parking_is(ParkingBreak::ParkedKeysOfEverybody);
        let is_parked = |key: &OrderKey| {
            parked.contains(&(consumer.id, *key))
                || (everybody && parked.iter().any(|(_, order)| order == key))
        };
        let mut answers: Vec<bool> = keys.iter().map(is_parked).collect();
        if self.parking_is(ParkingBreak::ParkedKeysInReverse) {
            answers.reverse();
        }
        Ok(answers)
    }

    async fn take_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
    ) -> Result<Option<Taken<MemoryTx>>, StoreError> {
        self.reach(StorePoint::TakeDue).await?;
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let mut ended = self.shared.ended.subscribe();
            {
                let mut state = self.shared.lock();
                let waits = self.parking_is(ParkingBreak::WaitsForLocks) && !state.locked.is_empty();
                let keys = state.due(consumer.id, max, self.shared.parking_broken);
                if keys.is_empty() && !waits {
                    return Ok(None);
                }
                if !waits {
                    let mut tx = state.open(&self.shared, consumer)?;
                    let rows = state.hold(&mut tx, &keys);
                    return Ok(Some((tx, rows)));
                }
            }
            if tokio::time::timeout_at(until, ended.changed()).await.is_err() {
                return Err(StoreError::new(StoreErrorKind::Conflict, "waited too long for another taker"));
            }
        }
    }

    async fn take_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<Taken<MemoryTx>, StoreError> {
        self.reach(StorePoint::TakeAgain).await?;
        let is = |broken| self.parking_is(broken);
        let mut state = self.shared.lock();
        let mut tx = state.open(&self.shared, consumer)?;
        let mut keys: Vec<ParkedKey> = keys.iter().map(|dedup| (consumer.id, *dedup)).collect();
        keys.retain(|key| !state.locked.contains_key(key) || is(ParkingBreak::TakesAgainWhatIsHeld));
        if is(ParkingBreak::TakesAgainWhatIsDue) {
            let due = state.due(consumer.id, usize::MAX, None);
            keys.retain(|key| due.contains(key));
        }
        if is(ParkingBreak::TakesAgainSorted) {
            keys.sort_unstable();
        }
        let rows = state.hold(&mut tx, &keys);
        Ok((tx, rows))
    }

    async fn savepoint(&self, tx: &mut MemoryTx) -> Result<(), StoreError> {
        self.reach(StorePoint::Savepoint).await?;
        tx.save()
    }

    async fn take_back(&self, tx: &mut MemoryTx) -> Result<(), StoreError> {
        self.reach(StorePoint::TakeBack).await?;
        tx.take_back()
    }

    async fn resume(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        outcomes: &[(Dedup, Resumed)],
    ) -> Result<(), StoreError> {
        self.reach(StorePoint::Resume).await?;
        self.check_statement(tx, ParkingBreak::ResumesEnded)?;
        let mut keys: Vec<Dedup> = outcomes.iter().map(|(dedup, _)| *dedup).collect();
        if self.parking_is(ParkingBreak::ResumesSorted) {
            keys.sort_unstable();
        }
        for (dedup, (_, outcome)) in keys.into_iter().zip(outcomes) {
            self.resume_one(tx, (consumer.id, dedup), outcome)?;
        }
        tx.starts.resumed(consumer.id, outcomes);
        if self.shared.start_broken == Some(StartBreak::ResumeEndsStartsAtOnce) {
            tx.starts.commit(&mut self.shared.lock().disk, self.shared.start_broken);
        }
        self.autocommit(tx, ParkingBreak::ResumeAutocommits, ParkingBreak::ResumesEnded);
        Ok(())
    }

    async fn parked_status(&self, consumer: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
        self.reach(StorePoint::ParkedStatus).await?;
        let state = self.shared.lock();
        let forgets_taken = self.parking_is(ParkingBreak::StatusForgetsTaken);
        let taken = |key| forgets_taken && state.locked.contains_key(key);
        let rows = || state.disk.parking.of(consumer.id).filter(|(key, _)| !taken(key)).map(|(_, row)| row);
        let mut heads = Parking::heads(rows());
        if self.parking_is(ParkingBreak::StatusCountsFollowers) {
            heads.clear();
        }
        let first = |row: &&ParkedRow| {
            row.order_key.and_then(|key| heads.get(&key)).is_none_or(|seq| *seq == row.seq)
        };
        let due = rows().filter(first).map(|row| row.due.saturating_duration_since(Instant::now())).min();
        let oldest = rows().map(|row| row.since.elapsed());
        let youngest = self.parking_is(ParkingBreak::StatusSaysTheYoungest);
        let oldest = if youngest { oldest.min() } else { oldest.max() };
        Ok(ParkedStatus { count: rows().count() as u64, due_in: due, oldest })
    }
}

/// What a broken store makes of a parked message.
fn damage(letter: &DeadLetter, broken: Option<ParkingBreak>) -> DeadLetter {
    let mut letter = letter.clone();
    let record = &mut letter.record;
    match broken {
        Some(ParkingBreak::ParkDropsHeaders) => record.headers = Headers::default(),
        Some(ParkingBreak::ParkEmptiesNulls) => {
            record.key.get_or_insert_with(Bytes::new);
            record.value.get_or_insert_with(Bytes::new);
            let full = |header: &Header| {
                Header::new(header.name.clone(), header.value.clone().or(Some(Bytes::new())))
            };
            record.headers = Headers::new(record.headers.as_slice().iter().map(full).collect());
        }
        Some(ParkingBreak::ParkCutsLarge) => {
            record.value = record.value.take().map(|value| value.slice(..value.len().min(1_000_000)));
        }
        Some(ParkingBreak::ParkForgetsTruncation) => letter.truncation = None,
        _ => {}
    }
    letter
}
