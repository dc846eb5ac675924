//! Start records of the store in memory: written outside of the transaction that they announce, and left behind
//! by whoever dies.

use super::breaks::StartBreak;
use super::memory_parked::ParkedKey;
use super::memory_start_rows::{LaneKey, LaneStart, lane_of};
use super::memory_store::{Disk, MemoryStore, StorePoint};
use super::memory_tx::MemoryTx;
use handstamp_core::parked::{Dedup, ParkedMessage, ParkingStore, Taken};
use handstamp_core::{
    Claim, ClaimRequest, Company, ConsumerKey, ConsumerName, Crash, DeadLetter, InboxState, Lost, Orphan,
    Owner, PATIENCE, Start, StartStore, Starter, Store, StoreError, StoreErrorKind, TakenOver, Timestamp,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Starts of messages alone by somebody else that are not counted: which, whose, and when.
type Others = BTreeSet<(Dedup, Owner, Instant)>;

/// How often is looked before what others had started is left for now.
const LOOKS_MAX: u32 = 5;

impl MemoryStore {
    /// Everybody's start records of a consumer's lanes.
    #[must_use]
    pub fn starts(&self, consumer: &ConsumerName) -> Vec<Orphan> {
        let state = self.shared.lock();
        let Some(number) = state.number_of(consumer) else { return vec![] };
        let of_consumer = state.disk.starts.lanes.iter().filter(|((of, ..), _)| *of == number);
        of_consumer.map(|(_, kept)| Orphan { start: kept.start.clone(), at: kept.moment.at }).collect()
    }

    /// Who has started which parked message of a consumer, and whether alone.
    #[must_use]
    pub fn parked_starts(&self, consumer: &ConsumerName) -> Vec<(Dedup, Starter, bool)> {
        let state = self.shared.lock();
        let Some(number) = state.number_of(consumer) else { return vec![] };
        let of_consumer = state.disk.starts.parked.iter().filter(|(((of, _), _), _)| *of == number);
        of_consumer.map(|(((_, dedup), _), start)| (*dedup, start.by.clone(), start.alone)).collect()
    }

    /// A consumer's crashes, the oldest first.
    #[must_use]
    pub fn crashes(&self, consumer: &ConsumerName) -> Vec<Crash> {
        let state = self.shared.lock();
        let number = state.number_of(consumer);
        number.map_or_else(Vec::new, |number| state.disk.starts.crashes(number, None, |_| true))
    }

    fn start_is(&self, broken: StartBreak) -> bool {
        self.shared.start_broken == Some(broken)
    }

    /// Writes a start record, in a transaction of its own.
    async fn start(&self, consumer: &ConsumerKey, start: &Start) -> Result<(), StoreError> {
        self.reach(StorePoint::Start).await?;
        let mut state = self.shared.lock();
        let is_registered = state.number_of(&consumer.name) == Some(consumer.id);
        if !is_registered {
            let message = format!("{} is not registered under number {}", consumer.name, consumer.id);
            let hides = self.start_is(StartBreak::StartHidesTheUnregistered);
            let kind = if hides { StoreErrorKind::Statement } else { StoreErrorKind::UnknownConsumer };
            return Err(StoreError::new(kind, message));
        }
        if !self.start_is(StartBreak::StartsWithTheCommit) {
            state.disk.starts.start(consumer.id, start, self.shared.start_broken);
        }
        Ok(())
    }

    /// Whether an orphan whose message has this inbox row is charged all the same.
    fn charges_known(&self, state: InboxState) -> bool {
        self.start_is(StartBreak::ChargesKnown)
            || (self.start_is(StartBreak::ChargesUnlessApplied) && state != InboxState::Applied)
            || (self.start_is(StartBreak::ChargesDiscarded) && state == InboxState::Discarded)
    }

    fn shown(&self, kept: &LaneStart) -> Orphan {
        let mut orphan = Orphan { start: kept.start.clone(), at: kept.moment.at };
        let start = &mut orphan.start;
        match self.shared.start_broken {
            Some(StartBreak::OrphanForgetsNode) => start.by.node = "".into(),
            Some(StartBreak::OrphanForgetsTime) => orphan.at = Timestamp(0),
            Some(StartBreak::OrphanCountsOne) => start.count = 1,
            Some(StartBreak::OrphanCutsPositions) => {
                start.first &= 0xFFFF_FFFF;
                start.last &= 0xFFFF_FFFF;
            }
            _ => {}
        }
        orphan
    }

    /// Writes the start records of rows that a transaction has locked.
    fn start_rows(
        &self,
        tx: &mut MemoryTx,
        consumer: i16,
        rows: &[ParkedMessage],
        by: &Starter,
        (replaces, company): (bool, Company),
    ) {
        tx.starts.by = Some(by.owner);
        let alone = self.start_is(StartBreak::CompanyIsNone);
        let company = if alone { Company::None } else { company };
        let keys: Vec<ParkedKey> = rows.iter().map(|row| (consumer, row.dedup)).collect();
        self.shared.lock().disk.starts.start_parked(&keys, consumer, by, (replaces, company));
    }

    /// Charges who was alone with one of these rows, and tells the crashes of each. Where somebody is not counted that
    /// was not seen before, nothing is done: true, and they are seen now.
    fn is_unsure(
        &self,
        consumer: i16,
        rows: &mut [ParkedMessage],
        by: &Starter,
        unless: StartBreak,
        seen: &mut Others,
    ) -> bool {
        let broken = self.shared.start_broken;
        let mut state = self.shared.lock();
        let starts = &mut state.disk.starts;
        let others = rows.iter().flat_map(|row| {
            let alone = starts.others_alone((consumer, row.dedup), by, broken);
            let starts = &*starts;
            let uncounted =
                alone.into_iter().filter(|start| !starts.is_counted((consumer, row.dedup), &start.by.owner));
            uncounted.map(|start| (row.dedup, start.by.owner, start.moment.instant)).collect::<Vec<_>>()
        });
        let others: Others = others.collect();
        let same_owner = |other: &(Dedup, Owner, Instant)| {
            seen.iter().any(|known| (known.0, known.1) == (other.0, other.1))
        };
        let sure = match broken {
            Some(StartBreak::DueChargesAtOnce) => true,
            Some(StartBreak::DueForgetsWhen) => others.iter().all(same_owner),
            _ => others.is_subset(seen),
        };
        if !sure {
            *seen = others;
            return true;
        }
        if broken != Some(StartBreak::StarterStaysCharged) {
            starts.withdraw(consumer, &by.owner, Lost::Lanes(&[]), None);
        }
        for row in rows {
            let key = (consumer, row.dedup);
            let new = starts.charge_others(key, by, broken);
            if broken != Some(unless) {
                row.crashes = starts.crashes(consumer, broken, |crash| crash.dedup == row.dedup);
            }
            row.crashes.iter_mut().for_each(|crash| crash.is_new = new.contains(&crash.by.owner));
            let suspected = !starts.others(key, by, broken).is_empty();
            row.suspected = suspected && broken != Some(StartBreak::SuspectsSilently);
        }
        false
    }

    /// Of the rows that a transaction has locked, those to be answered: a suspect alone.
    fn sort_out(&self, consumer: i16, rows: &mut Vec<ParkedMessage>, by: &Starter) {
        let broken = self.shared.start_broken;
        let mut state = self.shared.lock();
        if self.start_is(StartBreak::SuspectsTheLiving) {
            let held: Vec<ParkedKey> = state.locked.keys().copied().collect();
            let held = held.into_iter().filter(|key| rows.iter().all(|row| row.dedup != key.1));
            for key in held {
                state.disk.starts.charge_others(key, by, broken);
            }
        }
        let starts = &state.disk.starts;
        let suspect = |row: &ParkedMessage| !starts.others((consumer, row.dedup), by, broken).is_empty();
        let Some(first) = rows.iter().position(suspect) else { return };
        match broken {
            Some(StartBreak::SuspectsTogether) => {}
            Some(StartBreak::SuspectsFirst) => *rows = vec![rows.swap_remove(first)],
            _ => rows.truncate(first.max(1)),
        }
    }

    /// What others left behind on lanes, and who is to be waited for: alone, not counted and not seen before.
    fn look_at_lanes(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
        seen: &BTreeSet<(LaneKey, Instant)>,
    ) -> (TakenOver, BTreeSet<(LaneKey, Instant)>) {
        let (is, broken) = (|broken| self.start_is(broken), self.shared.start_broken);
        let asked = |(number, lane, owner): &LaneKey| {
            (*number == consumer.id || is(StartBreak::TakesOverAllConsumers))
                && (*owner != by.owner || is(StartBreak::TakesOverItself))
                && (lanes.contains(lane) || is(StartBreak::TakesOverAllLanes))
        };
        let mut state = self.shared.lock();
        let Disk { inbox, starts, .. } = &mut state.disk;
        let found: Vec<(LaneKey, LaneStart)> = starts
            .lanes
            .iter()
            .filter(|(key, _)| asked(key))
            .map(|(key, kept)| (key.clone(), kept.clone()))
            .collect();
        let (mut taken, mut unsure) = (TakenOver::default(), BTreeSet::new());
        let (mut alone, mut new) = (BTreeSet::new(), BTreeSet::new());
        for (key, kept) in found {
            if let Some(id) = &kept.start.alone {
                let row = inbox.get(&self.shared.inbox_id(consumer.id, id));
                let known = row.filter(|row| !self.charges_known(row.state)).map(|row| row.state);
                let dedup = DeadLetter::dedup_of_id(id);
                let (message, owner) = ((consumer.id, dedup), kept.start.by.owner);
                if let Some(state) = known {
                    let stays = state == InboxState::Parked && !is(StartBreak::KnownForgetsParkedCrashes);
                    if !stays && !is(StartBreak::KnownKeepsCrashes) {
                        starts.absolve(message);
                    }
                    if !is(StartBreak::KeepsKnownOrphans) {
                        starts.lanes.remove(&key);
                        continue;
                    }
                }
                alone.insert(dedup);
                let sight = (key.clone(), kept.moment.instant);
                let same = |known: &(LaneKey, Instant)| known.0 == key;
                let sure = seen.contains(&sight)
                    || (is(StartBreak::TakeOverForgetsWhen) && seen.iter().any(same))
                    || is(StartBreak::TakeOverChargesAtOnce)
                    || starts.is_counted(message, &owner);
                if known.is_none() && sure && starts.charge(message, &kept.start.by, kept.moment, broken) {
                    new.insert((dedup, owner));
                } else if known.is_none() && !sure {
                    unsure.insert(sight);
                }
            }
            taken.orphans.push(self.shown(&kept));
            let sure = !unsure.iter().any(|(other, _)| *other == key);
            if is(StartBreak::TakeOverRemoves) && sure {
                starts.lanes.remove(&key);
            }
        }
        let owners: BTreeSet<Owner> = taken.orphans.iter().map(|orphan| orphan.start.by.owner).collect();
        taken.crashes = starts.crashes(consumer.id, broken, |crash| {
            let named = alone.contains(&crash.dedup) || is(StartBreak::TellsEveryCrash);
            named && (owners.contains(&crash.by.owner) || !is(StartBreak::TellsCrashesOfOrphansOnly))
        });
        for crash in &mut taken.crashes {
            crash.is_new = new.contains(&(crash.dedup, crash.by.owner));
        }
        (taken, unsure)
    }
}

/// Others that seem dead go on starting.
fn they_move() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "others that seemed dead go on starting")
}

impl StartStore for MemoryStore {
    async fn start_and_begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
    ) -> Result<(MemoryTx, Vec<Claim>), StoreError> {
        self.start(consumer, start).await?;
        let (mut tx, claims) = self.begin(consumer, ids).await?;
        tx.starts.start = Some((consumer.id, start.clone()));
        if self.start_is(StartBreak::StartClaimsAreFirst) {
            return Ok((tx, vec![Claim::First; ids.len()]));
        }
        Ok((tx, claims))
    }

    async fn commit_start_and_begin(
        &self,
        tx: MemoryTx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<(MemoryTx, Vec<Claim>)>, StoreError> {
        if let Err(error) = self.commit(tx).await {
            if self.start_is(StartBreak::ChainBeginsBehindAFailedCommit) {
                return Ok(self.start_and_begin(consumer, ids, start).await.ok());
            }
            return Err(error);
        }
        let mut durable = Some(durable);
        if !self.start_is(StartBreak::ChainSaysDurableLate) {
            let _ = durable.take().map(|durable| durable.send(()));
        }
        // What is in the way is found again by a `start_and_begin` of its own.
        let next = if self.start_is(StartBreak::ChainStartsNothing) {
            self.begin(consumer, ids).await
        } else {
            self.start_and_begin(consumer, ids, start).await
        };
        let _ = durable.map(|durable| durable.send(()));
        Ok(next.ok())
    }

    async fn take_over(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
    ) -> Result<TakenOver, StoreError> {
        let lanes: Vec<Arc<str>> = lanes.iter().map(|lane| lane_of(lane, self.shared.start_broken)).collect();
        let mut seen = BTreeSet::new();
        for _ in 0..LOOKS_MAX {
            self.reach(StorePoint::TakeOver).await?;
            let (taken, unsure) = self.look_at_lanes(consumer, by, &lanes, &seen);
            if unsure.is_empty() {
                return Ok(taken);
            }
            seen = unsure;
            tokio::time::sleep(PATIENCE).await;
        }
        Err(they_move())
    }

    async fn end_starts(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lanes: Option<&[Arc<str>]>,
    ) -> Result<(), StoreError> {
        self.reach(StorePoint::EndStarts).await?;
        self.shared.lock().disk.starts.end(consumer.id, owner, lanes, self.shared.start_broken);
        Ok(())
    }

    async fn withdraw(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lost: Lost<'_>,
    ) -> Result<(), StoreError> {
        self.reach(StorePoint::Withdraw).await?;
        self.shared.lock().disk.starts.withdraw(consumer.id, owner, lost, self.shared.start_broken);
        Ok(())
    }

    async fn forget(&self, consumer: &ConsumerKey, passed: &[(Arc<str>, Owner)]) -> Result<(), StoreError> {
        self.reach(StorePoint::Forget).await?;
        self.shared.lock().disk.starts.forget(consumer.id, passed, self.shared.start_broken);
        Ok(())
    }

    async fn absolve(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerKey,
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        self.reach(StorePoint::Absolve).await?;
        tx.starts.absolved.extend(decided.iter().map(|dedup| (consumer.id, *dedup)));
        Ok(())
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
        company: Company,
    ) -> Result<Option<Taken<MemoryTx>>, StoreError> {
        let mut seen = Others::new();
        for _ in 0..LOOKS_MAX {
            let Some((mut tx, mut rows)) = self.take_due(consumer, max).await? else { return Ok(None) };
            self.reach(StorePoint::Start).await?;
            self.sort_out(consumer.id, &mut rows, by);
            if self.is_unsure(consumer.id, &mut rows, by, StartBreak::DueTellsNoCrashes, &mut seen) {
                self.rollback(tx).await?;
                tokio::time::sleep(PATIENCE).await;
                continue;
            }
            if !self.start_is(StartBreak::DueStartsNothing) {
                self.start_rows(&mut tx, consumer.id, &rows, by, (true, company));
            }
            return Ok(Some((tx, rows)));
        }
        Ok(None)
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> Result<Taken<MemoryTx>, StoreError> {
        let mut seen = Others::new();
        for _ in 0..LOOKS_MAX {
            let (mut tx, mut rows) = self.take_again(consumer, keys).await?;
            self.reach(StorePoint::Start).await?;
            if self.is_unsure(consumer.id, &mut rows, by, StartBreak::AgainTellsNoCrashes, &mut seen) {
                self.rollback(tx).await?;
                tokio::time::sleep(PATIENCE).await;
                continue;
            }
            if !self.start_is(StartBreak::AgainStartsNothing) {
                let replaces = !self.start_is(StartBreak::AgainKeepsOldStarts);
                self.start_rows(&mut tx, consumer.id, &rows, by, (replaces, company));
            }
            return Ok((tx, rows));
        }
        Err(they_move())
    }
}
