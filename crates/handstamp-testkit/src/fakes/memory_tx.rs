//! An open transaction of the store in memory: what it claimed and wrote, unseen by others.

use super::breaks::{ParkingBreak, StoreBreak};
use super::memory_parked::ParkingWork;
use super::memory_start_rows::StartWork;
use super::memory_store::{InboxId, InboxRow, Shared, connection_lost};
use super::memory_versions::{MarkKey, VersionWork};
use bytes::Bytes;
use handstamp_core::{DeadLetter, Header, Headers, InboxState, Recorded, StoreError, StoreErrorKind};
use handstamp_core::{Timestamp, Version, clock};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An error of a statement of the store in memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("statement failed with {code}")]
pub struct MemoryError {
    /// What kind of failure.
    pub kind: StoreErrorKind,
    /// Its code.
    pub code: &'static str,
}

/// How much a transaction holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Ids claimed First.
    pub claims: usize,
    /// Dead letters noted new.
    pub dead_letters: usize,
    /// Messages parked new.
    pub parked: usize,
    /// Parked messages taken.
    pub taken: usize,
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Committed,
    RolledBack,
}

/// What is taken back to.
#[derive(Debug, Clone, Default)]
struct Saved {
    added: BTreeMap<String, i64>,
    marks: BTreeMap<MarkKey, Version>,
}

/// An open transaction. Dropped, it is rolled back.
#[derive(Debug)]
pub struct MemoryTx {
    shared: Arc<Shared>,
    number: u64,
    generation: u64,
    claims: BTreeMap<InboxId, InboxRow>,
    dead: BTreeMap<(i16, Vec<u8>), DeadLetter>,
    added: BTreeMap<String, i64>,
    /// Its counters and marks at the last savepoint.
    saved: Option<Saved>,
    pub(super) parking: ParkingWork,
    pub(super) starts: StartWork,
    pub(super) versions: VersionWork,
    aborted: bool,
    ended: Option<Ended>,
    /// Ended by `rollback` itself; only broken stores look at it.
    asked: bool,
    /// Committed rows that only a broken store marks dead.
    overwritten: Vec<InboxId>,
}

impl MemoryTx {
    pub(super) fn new(shared: Arc<Shared>, number: u64, generation: u64) -> Self {
        Self {
            shared,
            number,
            generation,
            claims: BTreeMap::new(),
            dead: BTreeMap::new(),
            added: BTreeMap::new(),
            saved: None,
            parking: ParkingWork::default(),
            starts: StartWork::default(),
            versions: VersionWork::default(),
            aborted: false,
            ended: None,
            asked: false,
            overwritten: vec![],
        }
    }

    /// Adds to a counter; durable with the commit.
    ///
    /// # Errors
    /// When an earlier statement failed, the transaction is over or the connection is lost.
    pub fn add(&mut self, counter: &str, amount: i64) -> Result<(), MemoryError> {
        self.statement()?;
        *self.added.entry(counter.to_owned()).or_default() += amount;
        Ok(())
    }

    /// The counter as this transaction sees it.
    ///
    /// # Errors
    /// As [`MemoryTx::add`].
    pub fn read(&mut self, counter: &str) -> Result<i64, MemoryError> {
        self.statement()?;
        let committed = self.shared.lock().disk.counters.get(counter).copied().unwrap_or(0);
        Ok(committed + self.added.get(counter).copied().unwrap_or(0))
    }

    /// A statement that fails; until the end nothing works any more, as in Postgres.
    ///
    /// # Errors
    /// Always.
    pub fn fail(&mut self, kind: StoreErrorKind, code: &'static str) -> Result<(), MemoryError> {
        self.aborted = true;
        Err(MemoryError { kind, code })
    }

    /// Commits as a handler must not do.
    pub fn commit_inside(&mut self) {
        self.end(Ended::Committed);
    }

    /// Rolls back as a handler must not do.
    pub fn rollback_inside(&mut self) {
        self.end(Ended::RolledBack);
    }

    /// What it holds.
    #[must_use]
    pub fn held(&self) -> Held {
        Held {
            claims: self.claims.len(),
            dead_letters: self.dead.len(),
            parked: self.parking.parked(),
            taken: self.parking.locked.len(),
        }
    }

    fn statement(&self) -> Result<(), MemoryError> {
        if self.aborted {
            return Err(MemoryError { kind: StoreErrorKind::Statement, code: "25P02" });
        }
        if self.lost() {
            return Err(MemoryError { kind: StoreErrorKind::Unavailable, code: "08006" });
        }
        Ok(())
    }

    fn lost(&self) -> bool {
        self.shared.lock().generation != self.generation
    }

    fn breaks(&self, broken: ParkingBreak) -> bool {
        self.shared.parking_broken == Some(broken)
    }

    /// From here on what is written can be taken back alone.
    pub(super) fn save(&mut self) -> Result<(), StoreError> {
        match self.check_open() {
            Err(error) if error.kind == StoreErrorKind::TransactionEnded => {
                return if self.breaks(ParkingBreak::SavepointsEnded) { Ok(()) } else { Err(error) };
            }
            open => open?,
        }
        if self.aborted {
            if self.breaks(ParkingBreak::SavepointSwallows) {
                self.aborted = false;
                return Ok(());
            }
            let message = "an SQL error was swallowed: nothing of it is kept";
            return Err(StoreError::new(StoreErrorKind::Swallowed, message));
        }
        self.saved = Some(Saved { added: self.added.clone(), marks: self.versions.marks() });
        Ok(())
    }

    /// Takes back what was written since.
    pub(super) fn take_back(&mut self) -> Result<(), StoreError> {
        self.check_open()?;
        let saved = match self.saved.clone() {
            None => {
                let message = "there is no savepoint to take anything back to";
                return Err(StoreError::new(StoreErrorKind::Config, message));
            }
            Some(_) if self.breaks(ParkingBreak::TakesEverythingBack) => Saved::default(),
            Some(saved) => saved,
        };
        self.aborted = false;
        if self.breaks(ParkingBreak::TakeBackFreesRows) {
            let mut state = self.shared.lock();
            state.locked.retain(|key, _| !self.parking.locked.contains(key));
        }
        if !self.breaks(ParkingBreak::TakesNothingBack) {
            self.added = saved.added;
            self.versions.back_to(saved.marks);
        }
        if self.breaks(ParkingBreak::TakesBackOnce) {
            self.saved = None;
        }
        Ok(())
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn aborted(&self) -> bool {
        self.aborted
    }

    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if self.lost() {
            return Err(connection_lost());
        }
        if self.ended.is_some() && !self.shared.is(StoreBreak::CommitsEnded) {
            let message = "the handler ended the transaction itself: what is durable is not known";
            return Err(StoreError::new(StoreErrorKind::TransactionEnded, message));
        }
        Ok(())
    }

    /// Open, and no statement has failed.
    pub(super) fn check_statement(&self) -> Result<(), StoreError> {
        self.check_open()?;
        self.statement().map_err(|error| StoreError::new(error.kind, error.to_string()).with_source(error))
    }

    pub(super) fn has_effects(&self) -> bool {
        !self.added.is_empty()
    }

    pub(super) fn claimed(&self, id: &InboxId) -> Option<InboxRow> {
        self.claims.get(id).copied()
    }

    pub(super) fn note_claim(&mut self, id: InboxId, digest: Option<i64>) {
        let forgets = self.shared.is(StoreBreak::ForgetsFirstSeen);
        let first_seen = if forgets { Timestamp(0) } else { clock::now() };
        let row = InboxRow { state: InboxState::Applied, digest, first_seen };
        self.claims.insert(id, row);
    }

    pub(super) fn mark_dead(&mut self, id: &InboxId) {
        if let Some(row) = self.claims.get_mut(id) {
            row.state = InboxState::Dead;
        } else if self.shared.is(StoreBreak::RecordMarksReused) {
            self.overwritten.push(id.clone());
        }
    }

    pub(super) fn mark_parked(&mut self, id: &InboxId) {
        if let Some(row) = self.claims.get_mut(id) {
            row.state = InboxState::Parked;
        }
    }

    pub(super) fn note_dead(&mut self, consumer: i16, dead: &DeadLetter) -> Recorded {
        let mut key = dead.dedup().to_vec();
        if self.shared.is(StoreBreak::RecordGrows) {
            key.extend(self.number.to_be_bytes());
        }
        let key = (consumer, key);
        let mut state = self.shared.lock();
        if state.disk.dead.contains_key(&key) || self.dead.contains_key(&key) {
            return Recorded::Known;
        }
        let row = damage(dead, self.shared.broken);
        if self.shared.is(StoreBreak::RecordAutocommits) {
            state.disk.dead.insert(key, row);
        } else {
            self.dead.insert(key, row);
        }
        Recorded::New
    }

    /// Rolls back because that was asked for.
    pub(super) fn roll_back(&mut self) {
        self.asked = true;
        self.keep_locks_if(ParkingBreak::RollbackKeepsLocks);
        self.end(Ended::RolledBack);
    }

    /// Leaves the claims behind for ever.
    pub(super) fn leak(&mut self) {
        self.claims.clear();
        self.ended = Some(Ended::RolledBack);
    }

    /// Leaves the row locks behind for ever, in a store that is broken so.
    pub(super) fn keep_locks_if(&mut self, broken: ParkingBreak) {
        if self.shared.parking_broken == Some(broken) {
            self.parking.locked.clear();
        }
    }

    /// Makes everything durable or forgets it, and frees claims and row locks either way.
    pub(super) fn end(&mut self, how: Ended) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(how);
        let claims = std::mem::take(&mut self.claims);
        let dead = std::mem::take(&mut self.dead);
        let added = std::mem::take(&mut self.added);
        let mut parking = std::mem::take(&mut self.parking);
        let mut starts = std::mem::take(&mut self.starts);
        let mut versions = std::mem::take(&mut self.versions);
        {
            let mut state = self.shared.lock();
            if state.generation == self.generation {
                for id in claims.keys() {
                    state.claimed.remove(id);
                }
                for key in &parking.locked {
                    state.locked.remove(key);
                }
                let is = |broken| self.shared.is(broken);
                let lies = is(StoreBreak::CommitLies) && !added.is_empty();
                let committed = how == Ended::Committed && !lies;
                versions.end(&mut state, committed, !added.is_empty(), self.shared.version_broken);
                if committed || (self.asked && is(StoreBreak::RollbackKeepsClaims)) {
                    state.disk.inbox.extend(claims);
                }
                if !committed {
                    starts.roll_back(&mut state.disk, self.shared.start_broken);
                }
                if committed {
                    state.committed += 1;
                    parking.commit(&mut state.disk);
                    starts.commit(&mut state.disk, self.shared.start_broken);
                    for (key, row) in dead {
                        state.disk.dead.entry(key).or_insert(row);
                    }
                    for id in &self.overwritten {
                        if let Some(row) = state.disk.inbox.get_mut(id) {
                            row.state = InboxState::Dead;
                        }
                    }
                }
                let effects = committed && !is(StoreBreak::CommitForgetsEffects);
                if effects || (self.asked && is(StoreBreak::RollbackKeepsEffects)) {
                    for (counter, amount) in added {
                        *state.disk.counters.entry(counter).or_default() += amount;
                    }
                }
            }
        }
        self.shared.ended.send_modify(|ended| *ended += 1);
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        if self.ended.is_none() && self.shared.is(StoreBreak::DropKeepsClaims) {
            self.leak();
        }
        if self.ended.is_none() {
            self.keep_locks_if(ParkingBreak::DropKeepsLocks);
        }
        self.end(Ended::RolledBack);
    }
}

/// What a broken store makes of a dead letter.
fn damage(dead: &DeadLetter, broken: Option<StoreBreak>) -> DeadLetter {
    let mut dead = dead.clone();
    match broken {
        Some(StoreBreak::RecordDropsHeaders) => dead.record.headers = Headers::default(),
        Some(StoreBreak::RecordEmptiesNulls) => {
            dead.record.key.get_or_insert_with(Bytes::new);
            dead.record.value.get_or_insert_with(Bytes::new);
            let full = |header: &Header| {
                Header::new(header.name.clone(), header.value.clone().or(Some(Bytes::new())))
            };
            dead.record.headers = Headers::new(dead.record.headers.as_slice().iter().map(full).collect());
        }
        Some(StoreBreak::RecordForgetsTruncation) => dead.truncation = None,
        _ => {}
    }
    dead
}
