//! How the store in memory forgets.
//!
//! Authoritative: the disk's inbox. A step is one turn of the state's lock, so nobody sees half of one.

use super::memory_store::{InboxId, MemoryStore, Shared, State, StorePoint};
use super::prune_breaks::PruneBreak;
use handstamp_core::{
    ConsumerKey, InboxState, PruneCursor, PruneStep, PruneStore, StoreError, StoreErrorKind, Timestamp, clock,
};
use std::ops::Bound;
use std::time::Duration;

/// The time before which something is old.
fn horizon(older_than: Duration) -> Timestamp {
    Timestamp(clock::now().0 - i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX / 2))
}

/// Where a pass goes on: behind a row.
fn cursor_of((consumer, id): &InboxId) -> PruneCursor {
    PruneCursor([&consumer.to_be_bytes(), id.as_slice()].concat())
}

fn row_of(cursor: &PruneCursor) -> Option<InboxId> {
    let (consumer, id) = cursor.0.split_first_chunk()?;
    Some((i16::from_be_bytes(*consumer), id.to_vec()))
}

impl Shared {
    fn prune_is(&self, broken: PruneBreak) -> bool {
        self.prune_broken == Some(broken)
    }
}

impl MemoryStore {
    /// An empty database with a fault in how it forgets.
    #[must_use]
    pub fn broken_prune(broken: Option<PruneBreak>) -> Self {
        Self::with(None, None, None, None, broken)
    }

    /// Makes all inbox rows and failed attempts older.
    pub fn age(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX / 2);
        let mut state = self.shared.lock();
        for row in state.disk.inbox.values_mut() {
            row.first_seen.0 -= by;
        }
        for attempt in state.disk.parking.attempts.values_mut().flatten() {
            attempt.at.0 -= by;
        }
    }

    /// Rows that may go, behind a row, in the order of their keys.
    fn old_ids(
        &self,
        state: &State,
        consumer: i16,
        before: Timestamp,
        from: Option<InboxId>,
    ) -> Vec<InboxId> {
        let is = |broken| self.shared.prune_is(broken);
        let goes = |row: InboxState| match row {
            InboxState::Applied => true,
            InboxState::Discarded => !is(PruneBreak::KeepsDiscarded),
            InboxState::Parked => is(PruneBreak::TakesParked),
            _ => is(PruneBreak::TakesDead),
        };
        let behind = from.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = state.disk.inbox.range((behind, Bound::Unbounded));
        let ours = rows.filter(|((of, _), _)| *of == consumer || is(PruneBreak::ForgetsScope));
        let old = ours.filter(|(_, row)| row.first_seen < before || is(PruneBreak::TakesRecent));
        old.filter(|(_, row)| goes(row.state)).map(|(id, _)| id.clone()).collect()
    }

    fn note_horizon(&self, state: &mut State, consumer: i16, before: Timestamp) {
        let is = |broken| self.shared.prune_is(broken);
        if is(PruneBreak::ForgetsHorizon) {
            return;
        }
        let known = state.disk.pruned.entry(consumer).or_insert(before);
        *known = if is(PruneBreak::MovesTheHorizonBack) { before } else { before.max(*known) };
    }
}

impl PruneStore for MemoryStore {
    async fn prune_ids(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
        from: Option<&PruneCursor>,
    ) -> Result<PruneStep, StoreError> {
        self.reach(StorePoint::Prune).await?;
        let is = |broken| self.shared.prune_is(broken);
        let before = horizon(older_than);
        let from = from.and_then(row_of);
        let max =
            if is(PruneBreak::IgnoresMax) { usize::MAX } else { usize::try_from(max).unwrap_or(usize::MAX) };
        let seen = is(PruneBreak::CountsWhatOthersTook)
            .then(|| self.old_ids(&self.shared.lock(), consumer.id, before, from.clone()));
        if seen.is_some() {
            tokio::task::yield_now().await;
        }
        let mut state = self.shared.lock();
        if is(PruneBreak::WaitsForClaims) && !state.claimed.is_empty() {
            return Err(StoreError::new(StoreErrorKind::Conflict, "an open transaction is in the way"));
        }
        let mut old = seen.unwrap_or_else(|| self.old_ids(&state, consumer.id, before, from));
        let more = old.len() > max;
        old.truncate(max);
        if !is(PruneBreak::DeletesNothing) {
            for id in &old {
                state.disk.inbox.remove(id);
            }
        }
        if is(PruneBreak::TakesMarks) {
            state.disk.marks.clear();
        }
        if !old.is_empty() || is(PruneBreak::NotesWithoutDeleting) {
            self.note_horizon(&mut state, consumer.id, before);
        }
        let last = old.last().map(|last| match is(PruneBreak::SkipsBetweenSteps) {
            true => (last.0, [last.1.as_slice(), &[0xff; 8]].concat()),
            false => last.clone(),
        });
        let last = last.map(|(consumer, mut id)| {
            if is(PruneBreak::SkipsBetweenSteps) && !id.is_empty() {
                id[0] = id[0].saturating_add(1);
            }
            cursor_of(&(consumer, id))
        });
        let next = last.filter(|_| more && !is(PruneBreak::EndsEarly));
        Ok(PruneStep { deleted: u64::try_from(old.len()).unwrap_or(u64::MAX), next })
    }

    async fn prune_attempts(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, StoreError> {
        self.reach(StorePoint::Prune).await?;
        let is = |broken| self.shared.prune_is(broken);
        let before = horizon(older_than);
        let mut state = self.shared.lock();
        let disk = &mut state.disk;
        let mut left = if is(PruneBreak::HistoriesIgnoreMax) { u32::MAX } else { max };
        let mut gone = 0;
        for ((of, dedup), history) in &mut disk.parking.attempts {
            let waits =
                disk.parking.rows.contains_key(&(*of, *dedup)) && !is(PruneBreak::TakesParkedHistories);
            let dead = disk.dead.contains_key(&(*of, dedup.to_vec())) && !is(PruneBreak::TakesDeadHistories);
            let ours = *of == consumer.id || is(PruneBreak::TakesHistoriesOfEverybody);
            if waits || dead || !ours || is(PruneBreak::KeepsHistories) {
                continue;
            }
            history.retain(|attempt| {
                let old = attempt.at < before || is(PruneBreak::TakesRecentHistories);
                let goes = old && left > 0;
                left -= u32::from(goes);
                gone += u64::from(goes);
                !goes
            });
        }
        Ok(gone)
    }

    async fn prunable(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, StoreError> {
        self.reach(StorePoint::Prune).await?;
        let is = |broken| self.shared.prune_is(broken);
        let mut state = self.shared.lock();
        let old = self.old_ids(&state, consumer.id, horizon(older_than), None);
        let count = if is(PruneBreak::CountsEverything) { state.disk.inbox.len() } else { old.len() };
        if is(PruneBreak::CountDeletes) {
            state.disk.inbox.retain(|id, _| !old.contains(id));
        }
        let max = if is(PruneBreak::CountIgnoresMax) { u64::MAX } else { u64::from(max) };
        Ok(u64::try_from(count).unwrap_or(u64::MAX).min(max))
    }

    async fn forgotten_before(&self, consumer: &ConsumerKey) -> Result<Option<Timestamp>, StoreError> {
        self.reach(StorePoint::Prune).await?;
        let state = self.shared.lock();
        if self.shared.prune_is(PruneBreak::HorizonOfEverybody) {
            return Ok(state.disk.pruned.values().max().copied());
        }
        Ok(state.disk.pruned.get(&consumer.id).copied())
    }
}
