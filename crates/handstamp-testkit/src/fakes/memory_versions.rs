//! Marks of versions of the store in memory: who raises one holds its lock until the transaction ends, others wait
//! and then see what was committed.
//!
//! Authoritative: the disk's `marks`. What an open transaction raised lies in its [`VersionWork`].

use super::breaks::VersionBreak;
use super::memory_store::{LOCK_TIMEOUT, MemoryStore, Shared, State, StorePoint, connection_lost};
use super::memory_tx::MemoryTx;
use handstamp_core::version_store::VersionStore;
use handstamp_core::{ConsumerKey, ConsumerName, StoreError, StoreErrorKind, Version, VersionKey};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::{Instant, timeout_at};

/// A consumer's number and a key.
pub(super) type MarkKey = (i16, VersionKey);

/// What an open transaction raised, unseen by others.
#[derive(Debug, Default)]
pub(super) struct VersionWork {
    locked: BTreeSet<MarkKey>,
    marks: BTreeMap<MarkKey, Version>,
    /// The committed marks at its first raise; only a broken store looks at them.
    snapshot: Option<BTreeMap<MarkKey, Version>>,
}

impl VersionWork {
    /// What is raised so far.
    pub(super) fn marks(&self) -> BTreeMap<MarkKey, Version> {
        self.marks.clone()
    }

    /// What is raised is this again; the locks stay.
    pub(super) fn back_to(&mut self, marks: BTreeMap<MarkKey, Version>) {
        self.marks = marks;
    }

    /// Makes everything durable or forgets it, and frees the locks.
    pub(super) fn end(
        &mut self,
        state: &mut State,
        committed: bool,
        effects: bool,
        broken: Option<VersionBreak>,
    ) {
        let keeps = committed || broken == Some(VersionBreak::RollbackKeepsMarks);
        if keeps && !(effects && broken == Some(VersionBreak::CommitForgetsMarks)) {
            state.disk.marks.append(&mut self.marks);
        }
        let leaks = broken == Some(VersionBreak::RollbackKeepsLocks) && !committed;
        for key in std::mem::take(&mut self.locked) {
            if !leaks {
                state.marks_locked.remove(&key);
            }
        }
    }
}

impl Shared {
    fn version_is(&self, broken: VersionBreak) -> bool {
        self.version_broken == Some(broken)
    }
}

impl MemoryStore {
    /// The committed mark of a key.
    #[must_use]
    pub fn mark(&self, consumer: &ConsumerName, key: &VersionKey) -> Option<Version> {
        let state = self.shared.lock();
        let number = state.number_of(consumer)?;
        state.disk.marks.get(&(number, *key)).cloned()
    }

    fn mark_key(&self, consumer: i16, key: &VersionKey) -> MarkKey {
        let consumer = if self.shared.version_is(VersionBreak::ForgetsScope) { 0 } else { consumer };
        let mut key = *key;
        if self.shared.version_is(VersionBreak::ForgetsKeyStart) {
            key.0[0] = 0;
        }
        (consumer, key)
    }

    /// Locks a mark and raises it, waiting while another open transaction has it; what it was before.
    async fn raise_one(
        &self,
        tx: &mut MemoryTx,
        key: MarkKey,
        version: &Version,
    ) -> Result<Option<Version>, StoreError> {
        let is = |broken| self.shared.version_is(broken);
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let mut ended = self.shared.ended.subscribe();
            {
                let mut state = self.shared.lock();
                if state.generation != tx.generation() {
                    return Err(connection_lost());
                }
                let holder = state.marks_locked.get(&key).copied();
                let other = holder.is_some_and(|holder| holder != tx.number());
                let crowded = is(VersionBreak::OneAtATime)
                    && state.marks_locked.values().any(|holder| *holder != tx.number());
                if !(other || crowded) || is(VersionBreak::WaitsForNobody) {
                    state.marks_locked.insert(key, tx.number());
                    tx.versions.locked.insert(key);
                    return Ok(self.raise_locked(&mut state, tx, key, version));
                }
            }
            if timeout_at(until, ended.changed()).await.is_err() {
                let message = "waited too long for another transaction's mark";
                return Err(StoreError::new(StoreErrorKind::Conflict, message));
            }
        }
    }

    fn raise_locked(
        &self,
        state: &mut State,
        tx: &mut MemoryTx,
        key: MarkKey,
        version: &Version,
    ) -> Option<Version> {
        let is = |broken| self.shared.version_is(broken);
        let committed = match &tx.versions.snapshot {
            Some(snapshot) if is(VersionBreak::OldSnapshot) => snapshot.get(&key),
            _ => state.disk.marks.get(&key),
        };
        let own = tx.versions.marks.get(&key).filter(|_| !is(VersionBreak::ForgetsOwn));
        let before = own.or(committed).cloned();
        let greater = |mark: &Version| match version.partial_cmp(mark) {
            Some(order) => order.is_gt(),
            None => is(VersionBreak::MixesKinds),
        };
        // Numbers begin with their kind and then with their sign.
        let negative = version.as_bytes().starts_with(&[1, 0]);
        if before.as_ref().is_none_or(greater) || (negative && is(VersionBreak::TakesNegatives)) {
            let kept = if is(VersionBreak::CutsVersions) { cut(version) } else { version.clone() };
            tx.versions.marks.insert(key, kept);
        }
        before
    }
}

/// What a column of so many bytes keeps.
fn cut(version: &Version) -> Version {
    let bytes = version.as_bytes();
    Version::from_bytes(&bytes[..bytes.len().min(100)]).unwrap_or_else(|| version.clone())
}

impl VersionStore for MemoryStore {
    async fn raise_marks(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        versions: &BTreeMap<VersionKey, Version>,
    ) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
        self.reach(StorePoint::RaiseMarks).await?;
        let is = |broken| self.shared.version_is(broken);
        let ended = tx.check_open().is_err();
        if !(ended && is(VersionBreak::RaisesEnded)) {
            tx.check_statement()?;
        }
        if tx.versions.snapshot.is_none() && is(VersionBreak::OldSnapshot) {
            tx.versions.snapshot = Some(self.shared.lock().disk.marks.clone());
        }
        let mut before = BTreeMap::new();
        let mut order: Vec<_> = versions.iter().collect();
        if is(VersionBreak::LocksInTwoOrders) && tx.number() % 2 == 1 {
            order.reverse();
        }
        for (at, (key, version)) in order.into_iter().enumerate() {
            if at >= 1_000 && is(VersionBreak::CountsToAThousand) {
                break;
            }
            if is(VersionBreak::LocksInTwoOrders) {
                tokio::task::yield_now().await;
            }
            let mark = self.raise_one(tx, self.mark_key(consumer.id, key), version).await?;
            before.extend(mark.map(|mark| (*key, mark)));
        }
        if ended {
            tx.versions.end(&mut self.shared.lock(), true, false, None);
        }
        if versions.is_empty() && is(VersionBreak::AnswersForNothing) {
            before.extend(self.shared.lock().disk.marks.iter().map(|((_, key), mark)| (*key, mark.clone())));
        }
        if let Some(mark) = before.values().next().cloned().filter(|_| is(VersionBreak::InventsMarks)) {
            for key in versions.keys() {
                before.entry(*key).or_insert_with(|| mark.clone());
            }
        }
        Ok(before)
    }
}
