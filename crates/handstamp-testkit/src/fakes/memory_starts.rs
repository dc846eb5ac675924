//! Start records of the store in memory: written outside of the transaction that they announce, and left behind
//! by whoever dies.
//!
//! Authoritative: [`Starts`] on the disk. What an open transaction does to them lies in its [`StartWork`]. Which
//! crash came first follows the tokio clock, so that a paused clock works.

use super::breaks::StartBreak;
use super::memory_parked::ParkedKey;
use super::memory_store::{Disk, MemoryStore, StorePoint};
use super::memory_tx::MemoryTx;
use handstamp_core::parked::{Dedup, ParkedMessage, ParkingStore, Resumed, Taken};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, Crash, DeadLetter, InboxState, Orphan, Owner, Start,
    StartStore, Starter, Store, StoreError, StoreErrorKind, TakenOver, Timestamp, clock,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A consumer's number, a lane and who started there.
type LaneKey = (i16, Arc<str>, Owner);

/// What survives a restart.
#[derive(Debug, Default)]
pub(super) struct Starts {
    lanes: BTreeMap<LaneKey, LaneStart>,
    parked: BTreeMap<(ParkedKey, Owner), ParkedStart>,
    crashes: Vec<KeptCrash>,
}

/// A moment by the wall's clock and by the one that can be paused.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Timestamp,
    instant: Instant,
}

#[derive(Debug, Clone)]
struct LaneStart {
    start: Start,
    moment: Moment,
}

#[derive(Debug, Clone)]
struct ParkedStart {
    by: Starter,
    /// It was the only one.
    alone: bool,
    moment: Moment,
}

#[derive(Debug)]
struct KeptCrash {
    consumer: i16,
    crash: Crash,
    instant: Instant,
}

/// What an open transaction does to start records, unseen by others.
#[derive(Debug, Default)]
pub(super) struct StartWork {
    /// Messages whose outcome it wrote, and what that was.
    resumed: Vec<(ParkedKey, Ended)>,
    /// Who took its rows; only a broken store looks at it.
    by: Option<Owner>,
    /// The start in front of it; only a broken store looks at it.
    start: Option<(i16, Start)>,
}

/// What a parked message's outcome means for its crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Applied,
    Dead,
    Not,
}

impl Moment {
    fn now() -> Self {
        Self { at: clock::now(), instant: Instant::now() }
    }
}

fn lane_of(lane: &Arc<str>, broken: Option<StartBreak>) -> Arc<str> {
    if broken == Some(StartBreak::FoldsLanes) { lane.to_lowercase().into() } else { Arc::clone(lane) }
}

impl Starts {
    fn start(&mut self, consumer: i16, start: &Start, broken: Option<StartBreak>) {
        let is = |other| broken == Some(other);
        let key = (consumer, lane_of(&start.lane, broken), start.by.owner);
        let known = self.lanes.get(&key);
        if known.is_some() && is(StartBreak::KeepsTheFirstStart) {
            return;
        }
        let mut start = start.clone();
        if is(StartBreak::KeepsTheOldAlone) {
            start.alone = start.alone.or_else(|| known?.start.alone.clone());
        }
        let ends = |(number, lane, owner): &LaneKey| {
            let others_lane = *number == consumer && *owner == key.2 && *lane != key.1;
            let others_start = *number == consumer && *owner != key.2 && *lane == key.1;
            (others_lane && is(StartBreak::StartEndsOtherLanes))
                || (others_start && is(StartBreak::StartEndsOtherOwners))
        };
        self.lanes.retain(|other, _| !ends(other));
        self.lanes.insert(key, LaneStart { start, moment: Moment::now() });
    }

    /// A crash of a message, once an owner.
    fn charge(&mut self, key: ParkedKey, by: &Starter, moment: Moment, broken: Option<StartBreak>) {
        let is = |other| broken == Some(other);
        let of_message = |kept: &&KeptCrash| (kept.consumer, kept.crash.dedup) == key;
        let of_owner = |kept: &KeptCrash| kept.crash.by.owner == by.owner;
        let mut crashes = self.crashes.iter().filter(of_message);
        let known = crashes.any(|kept| of_owner(kept) || is(StartBreak::ChargesOnceAMessage));
        if known && !is(StartBreak::ChargesTwice) {
            return;
        }
        let mut by = by.clone();
        if is(StartBreak::CrashForgetsNode) {
            by.node = "".into();
        }
        let at = if is(StartBreak::CrashForgetsTime) { Timestamp(0) } else { moment.at };
        let (consumer, dedup) = key;
        self.crashes.push(KeptCrash { consumer, crash: Crash { dedup, by, at }, instant: moment.instant });
    }

    /// A consumer's crashes that are asked for, the oldest first.
    fn crashes(
        &self,
        consumer: i16,
        broken: Option<StartBreak>,
        asked: impl Fn(&Crash) -> bool,
    ) -> Vec<Crash> {
        let of_consumer = self.crashes.iter().filter(|kept| kept.consumer == consumer);
        let mut crashes: Vec<_> = of_consumer.filter(|kept| asked(&kept.crash)).collect();
        crashes.sort_by_key(|kept| kept.instant);
        if broken == Some(StartBreak::CrashesNewestFirst) {
            crashes.reverse();
        }
        crashes.into_iter().map(|kept| kept.crash.clone()).collect()
    }

    /// Writes starts of parked messages in place of those that the owner had there.
    fn start_parked(&mut self, keys: &[ParkedKey], consumer: i16, by: &Starter, replaces: bool) {
        self.parked
            .retain(|((number, _), owner), _| !(replaces && *number == consumer && *owner == by.owner));
        let alone = keys.len() == 1;
        let started = |key: &ParkedKey| {
            ((*key, by.owner), ParkedStart { by: by.clone(), alone, moment: Moment::now() })
        };
        self.parked.extend(keys.iter().map(started));
    }

    /// Whether somebody else had started a parked message, and did not end it; who was alone with it is charged.
    fn suspect(&mut self, key: ParkedKey, by: &Starter, broken: Option<StartBreak>) -> bool {
        let is = |other| broken == Some(other);
        let of_message = self.parked.range((key, Owner([0; 16]))..=(key, Owner([0xFF; 16])));
        let of_others =
            of_message.filter(|((_, owner), _)| *owner != by.owner || is(StartBreak::SuspectsItself));
        let of_others: Vec<ParkedStart> = of_others.map(|(_, start)| start.clone()).collect();
        for start in &of_others {
            let alone = start.alone || is(StartBreak::DueChargesTogether);
            if alone && !is(StartBreak::DueNeverCharges) {
                self.charge(key, &start.by, start.moment, broken);
            }
        }
        !of_others.is_empty()
    }

    /// Removes starts of an owner.
    fn end(&mut self, consumer: i16, owner: &Owner, lanes: Option<&[Arc<str>]>, broken: Option<StartBreak>) {
        let is = |other| broken == Some(other);
        let of_owner = |number: i16, started_by: &Owner| {
            (number == consumer || is(StartBreak::EndsForAllConsumers))
                && (started_by == owner || is(StartBreak::EndsAllOwners))
        };
        let asked = |lane: &Arc<str>| {
            let lanes = lanes.filter(|_| !is(StartBreak::EndsAllLanes));
            lanes.is_none_or(|lanes| lanes.iter().any(|asked| lane_of(asked, broken) == *lane))
        };
        self.lanes.retain(|(number, lane, started_by), _| !(of_owner(*number, started_by) && asked(lane)));
        if lanes.is_none() && !is(StartBreak::EndKeepsParkedStarts) {
            self.parked.retain(|((number, _), started_by), _| !of_owner(*number, started_by));
        }
        if is(StartBreak::EndTakesCrashes) {
            self.crashes.retain(|kept| kept.crash.by.owner != *owner);
        }
    }

    fn withdraw(&mut self, consumer: i16, owner: &Owner, broken: Option<StartBreak>) {
        let is = |other| broken == Some(other);
        let of_consumer = |number: i16| number == consumer || is(StartBreak::WithdrawsForAllConsumers);
        if !is(StartBreak::WithdrawKeepsStarts) {
            self.lanes.retain(|(number, _, by), _| !(of_consumer(*number) && by == owner));
        }
        if !is(StartBreak::WithdrawKeepsParkedStarts) {
            self.parked.retain(|((number, _), by), _| !(of_consumer(*number) && by == owner));
        }
        let all = is(StartBreak::WithdrawTakesAllCrashes);
        if !is(StartBreak::WithdrawKeepsCrashes) {
            let goes =
                |kept: &KeptCrash| of_consumer(kept.consumer) && (all || kept.crash.by.owner == *owner);
            self.crashes.retain(|kept| !goes(kept));
        }
    }

    fn forget(
        &mut self,
        consumer: i16,
        passed: &[(Arc<str>, Owner)],
        decided: &[Dedup],
        broken: Option<StartBreak>,
    ) {
        let is = |other| broken == Some(other);
        let of_consumer = |number: i16| number == consumer || is(StartBreak::ForgetsForAllConsumers);
        let whole = is(StartBreak::ForgetsWholeLanes);
        let is_passed = |(number, lane, owner): &LaneKey| {
            let named =
                |(passed, by): &(Arc<str>, Owner)| lane_of(passed, broken) == *lane && (by == owner || whole);
            of_consumer(*number) && passed.iter().any(named) && !is(StartBreak::ForgetKeepsPassed)
        };
        self.lanes.retain(|key, _| !is_passed(key));
        let all = is(StartBreak::ForgetTakesAllCrashes) && !decided.is_empty();
        let is_decided = |kept: &KeptCrash| {
            let named = all || decided.contains(&kept.crash.dedup);
            of_consumer(kept.consumer) && named && !is(StartBreak::ForgetKeepsCrashes)
        };
        self.crashes.retain(|kept| !is_decided(kept));
    }

    /// Takes the crashes of one message back.
    pub(super) fn absolve(&mut self, key: ParkedKey) {
        self.crashes.retain(|kept| (kept.consumer, kept.crash.dedup) != key);
    }
}

impl StartWork {
    /// The outcomes of these messages are written.
    pub(super) fn resumed(&mut self, consumer: i16, outcomes: &[(Dedup, Resumed)]) {
        self.resumed.extend(outcomes.iter().map(|(dedup, outcome)| {
            let ended = match outcome {
                Resumed::Applied => Ended::Applied,
                Resumed::Dead { .. } => Ended::Dead,
                Resumed::Again { .. } => Ended::Not,
            };
            ((consumer, *dedup), ended)
        }));
    }

    /// Makes everything durable.
    pub(super) fn commit(&mut self, disk: &mut Disk, broken: Option<StartBreak>) {
        let is = |other| broken == Some(other);
        for (key, ended) in std::mem::take(&mut self.resumed) {
            let stays = |owner: &Owner| {
                let others = self.by.is_some_and(|by| by != *owner);
                is(StartBreak::ResumeKeepsStarts) || (others && is(StartBreak::ResumeEndsItsOwnStarts))
            };
            disk.starts.parked.retain(|(started, owner), _| *started != key || stays(owner));
            let absolved = match ended {
                Ended::Applied => !is(StartBreak::AppliedKeepsCrashes),
                Ended::Dead => !is(StartBreak::DeadKeepsCrashes),
                Ended::Not => is(StartBreak::FailingForgetsCrashes),
            };
            if absolved {
                disk.starts.absolve(key);
            }
        }
        if let Some((consumer, start)) = self.start.take().filter(|_| is(StartBreak::StartsWithTheCommit)) {
            disk.starts.start(consumer, &start, broken);
        }
    }

    /// Forgets everything.
    pub(super) fn roll_back(&mut self, disk: &mut Disk, broken: Option<StartBreak>) {
        if let Some((consumer, start)) = self.start.take()
            && broken == Some(StartBreak::RollbackTakesTheStart)
        {
            disk.starts.end(consumer, &start.by.owner, Some(&[start.lane]), broken);
        }
    }
}

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
        replaces: bool,
    ) {
        tx.starts.by = Some(by.owner);
        let keys: Vec<ParkedKey> = rows.iter().map(|row| (consumer, row.dedup)).collect();
        self.shared.lock().disk.starts.start_parked(&keys, consumer, by, replaces);
    }

    /// Tells the crashes of each row.
    fn tell(&self, consumer: i16, rows: &mut [ParkedMessage], unless: StartBreak) {
        if self.start_is(unless) {
            return;
        }
        let state = self.shared.lock();
        for row in rows {
            let of_row = |crash: &Crash| crash.dedup == row.dedup;
            row.crashes = state.disk.starts.crashes(consumer, self.shared.start_broken, of_row);
        }
    }

    /// Of the rows that a transaction has locked, those to be answered: a suspect alone.
    fn sort_out(&self, consumer: i16, rows: &mut Vec<ParkedMessage>, by: &Starter) {
        let broken = self.shared.start_broken;
        let mut state = self.shared.lock();
        if self.start_is(StartBreak::SuspectsTheLiving) {
            let held: Vec<ParkedKey> = state.locked.keys().copied().collect();
            let held = held.into_iter().filter(|key| rows.iter().all(|row| row.dedup != key.1));
            for key in held {
                state.disk.starts.suspect(key, by, broken);
            }
        }
        let starts = &mut state.disk.starts;
        let mut suspect = |row: &ParkedMessage| starts.suspect((consumer, row.dedup), by, broken);
        let suspects: Vec<bool> = rows.iter().map(&mut suspect).collect();
        let Some(first) = suspects.iter().position(|suspect| *suspect) else { return };
        match broken {
            Some(StartBreak::SuspectsTogether) => {}
            Some(StartBreak::SuspectsFirst) => *rows = vec![rows.swap_remove(first)],
            _ => rows.truncate(first.max(1)),
        }
    }
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
        self.reach(StorePoint::TakeOver).await?;
        let (is, broken) = (|broken| self.start_is(broken), self.shared.start_broken);
        let lanes: Vec<Arc<str>> = lanes.iter().map(|lane| lane_of(lane, broken)).collect();
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
        let mut taken = TakenOver::default();
        let mut alone = BTreeSet::new();
        for (key, kept) in found {
            if let Some(id) = &kept.start.alone {
                let row = inbox.get(&self.shared.inbox_id(consumer.id, id));
                let known = row.is_some_and(|row| !self.charges_known(row.state));
                if known && !is(StartBreak::KeepsKnownOrphans) {
                    starts.lanes.remove(&key);
                    continue;
                }
                let dedup = DeadLetter::dedup_of_id(id);
                alone.insert(dedup);
                if !known {
                    starts.charge((consumer.id, dedup), &kept.start.by, kept.moment, broken);
                }
            }
            taken.orphans.push(self.shown(&kept));
            if is(StartBreak::TakeOverRemoves) {
                starts.lanes.remove(&key);
            }
        }
        let owners: BTreeSet<Owner> = taken.orphans.iter().map(|orphan| orphan.start.by.owner).collect();
        taken.crashes = starts.crashes(consumer.id, broken, |crash| {
            let named = alone.contains(&crash.dedup) || is(StartBreak::TellsEveryCrash);
            named && (owners.contains(&crash.by.owner) || !is(StartBreak::TellsCrashesOfOrphansOnly))
        });
        Ok(taken)
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

    async fn withdraw(&self, consumer: &ConsumerKey, owner: &Owner) -> Result<(), StoreError> {
        self.reach(StorePoint::Withdraw).await?;
        self.shared.lock().disk.starts.withdraw(consumer.id, owner, self.shared.start_broken);
        Ok(())
    }

    async fn forget(
        &self,
        consumer: &ConsumerKey,
        passed: &[(Arc<str>, Owner)],
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        self.reach(StorePoint::Forget).await?;
        self.shared.lock().disk.starts.forget(consumer.id, passed, decided, self.shared.start_broken);
        Ok(())
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
    ) -> Result<Option<Taken<MemoryTx>>, StoreError> {
        let Some((mut tx, mut rows)) = self.take_due(consumer, max).await? else { return Ok(None) };
        self.reach(StorePoint::Start).await?;
        self.sort_out(consumer.id, &mut rows, by);
        if !self.start_is(StartBreak::DueStartsNothing) {
            self.start_rows(&mut tx, consumer.id, &rows, by, true);
        }
        self.tell(consumer.id, &mut rows, StartBreak::DueTellsNoCrashes);
        Ok(Some((tx, rows)))
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
    ) -> Result<Taken<MemoryTx>, StoreError> {
        let (mut tx, mut rows) = self.take_again(consumer, keys).await?;
        self.reach(StorePoint::Start).await?;
        if !self.start_is(StartBreak::AgainStartsNothing) {
            let replaces = !self.start_is(StartBreak::AgainKeepsOldStarts);
            self.start_rows(&mut tx, consumer.id, &rows, by, replaces);
        }
        self.tell(consumer.id, &mut rows, StartBreak::AgainTellsNoCrashes);
        Ok((tx, rows))
    }
}
