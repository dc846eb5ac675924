//! Start records on the disk of the store in memory, and what an open transaction does to them.
//!
//! Authoritative: [`Starts`]. Which crash came first follows the tokio clock, so that a paused clock works.

use super::breaks::StartBreak;
use super::memory_parked::ParkedKey;
use super::memory_store::Disk;
use handstamp_core::parked::{Dedup, Resumed};
use handstamp_core::{Company, Crash, Lost, Owner, Start, Starter, Timestamp, clock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// A consumer's number, a lane and who started there.
pub(super) type LaneKey = (i16, Arc<str>, Owner);

/// What survives a restart.
#[derive(Debug, Default)]
pub(super) struct Starts {
    pub(super) lanes: BTreeMap<LaneKey, LaneStart>,
    pub(super) parked: BTreeMap<(ParkedKey, Owner), ParkedStart>,
    crashes: Vec<KeptCrash>,
}

/// A moment by the wall's clock and by the one that can be paused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    pub(super) instant: Instant,
}

#[derive(Debug, Clone)]
pub(super) struct LaneStart {
    pub(super) start: Start,
    pub(super) moment: Moment,
}

#[derive(Debug, Clone)]
pub(super) struct ParkedStart {
    pub(super) by: Starter,
    /// It was the only one.
    pub(super) alone: bool,
    pub(super) moment: Moment,
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
    pub(super) by: Option<Owner>,
    /// The start in front of it; only a broken store looks at it.
    pub(super) start: Option<(i16, Start)>,
    /// Messages whose crashes it forgets.
    pub(super) absolved: Vec<ParkedKey>,
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

pub(super) fn lane_of(lane: &Arc<str>, broken: Option<StartBreak>) -> Arc<str> {
    if broken == Some(StartBreak::FoldsLanes) { lane.to_lowercase().into() } else { Arc::clone(lane) }
}

impl Starts {
    pub(super) fn start(&mut self, consumer: i16, start: &Start, broken: Option<StartBreak>) {
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

    /// A crash of a message, once an owner; whether it is new.
    pub(super) fn charge(
        &mut self,
        key: ParkedKey,
        by: &Starter,
        moment: Moment,
        broken: Option<StartBreak>,
    ) -> bool {
        let is = |other| broken == Some(other);
        let of_message = |kept: &&KeptCrash| (kept.consumer, kept.crash.dedup) == key;
        let of_owner = |kept: &KeptCrash| kept.crash.by.owner == by.owner;
        let mut crashes = self.crashes.iter().filter(of_message);
        let known = crashes.any(|kept| of_owner(kept) || is(StartBreak::ChargesOnceAMessage));
        if known && !is(StartBreak::ChargesTwice) {
            return is(StartBreak::AlwaysNew);
        }
        let mut by = by.clone();
        if is(StartBreak::CrashForgetsNode) {
            by.node = "".into();
        }
        let at = if is(StartBreak::CrashForgetsTime) { Timestamp(0) } else { moment.at };
        let (consumer, dedup) = key;
        let crash = Crash { dedup, by, at, is_new: false };
        self.crashes.push(KeptCrash { consumer, crash, instant: moment.instant });
        !is(StartBreak::NeverNew)
    }

    pub(super) fn is_counted(&self, key: ParkedKey, owner: &Owner) -> bool {
        let same =
            |kept: &KeptCrash| (kept.consumer, kept.crash.dedup) == key && kept.crash.by.owner == *owner;
        self.crashes.iter().any(same)
    }

    /// A consumer's crashes that are asked for, the oldest first.
    pub(super) fn crashes(
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
    pub(super) fn start_parked(
        &mut self,
        keys: &[ParkedKey],
        consumer: i16,
        by: &Starter,
        (replaces, company): (bool, Company),
    ) {
        self.parked
            .retain(|((number, _), owner), _| !(replaces && *number == consumer && *owner == by.owner));
        let alone = keys.len() == 1 && company == Company::None;
        let started = |key: &ParkedKey| {
            ((*key, by.owner), ParkedStart { by: by.clone(), alone, moment: Moment::now() })
        };
        self.parked.extend(keys.iter().map(started));
    }

    /// Who else had started a parked message, and did not end it.
    pub(super) fn others(
        &self,
        key: ParkedKey,
        by: &Starter,
        broken: Option<StartBreak>,
    ) -> Vec<ParkedStart> {
        let of_message = self.parked.range((key, Owner([0; 16]))..=(key, Owner([0xFF; 16])));
        let itself = broken == Some(StartBreak::SuspectsItself);
        let of_others = of_message.filter(|((_, owner), _)| *owner != by.owner || itself);
        of_others.map(|(_, start)| start.clone()).collect()
    }

    /// Those of them that were alone with it.
    pub(super) fn others_alone(
        &self,
        key: ParkedKey,
        by: &Starter,
        broken: Option<StartBreak>,
    ) -> Vec<ParkedStart> {
        let is = |other| broken == Some(other);
        let mut others = self.others(key, by, broken);
        others.retain(|start| {
            (start.alone || is(StartBreak::DueChargesTogether)) && !is(StartBreak::DueNeverCharges)
        });
        others
    }

    /// Charges who was alone with a parked message; who is new.
    pub(super) fn charge_others(
        &mut self,
        key: ParkedKey,
        by: &Starter,
        broken: Option<StartBreak>,
    ) -> BTreeSet<Owner> {
        let others = self.others_alone(key, by, broken).into_iter();
        let charged = others.filter(|start| self.charge(key, &start.by, start.moment, broken));
        charged.map(|start| start.by.owner).collect()
    }

    /// Removes starts of an owner.
    pub(super) fn end(
        &mut self,
        consumer: i16,
        owner: &Owner,
        lanes: Option<&[Arc<str>]>,
        broken: Option<StartBreak>,
    ) {
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

    pub(super) fn withdraw(
        &mut self,
        consumer: i16,
        owner: &Owner,
        lost: Lost<'_>,
        broken: Option<StartBreak>,
    ) {
        let is = |other| broken == Some(other);
        let lost = if is(StartBreak::WithdrawTakesEverything) { Lost::Everything } else { lost };
        let of_consumer = |number: i16| number == consumer || is(StartBreak::WithdrawsForAllConsumers);
        let of_lane = |lane: &Arc<str>| match lost {
            Lost::Lanes(lanes) => lanes.iter().any(|lost| lane_of(lost, broken) == *lane),
            Lost::Parked => false,
            Lost::Everything => true,
        };
        if !is(StartBreak::WithdrawKeepsStarts) {
            self.lanes
                .retain(|(number, lane, by), _| !(of_consumer(*number) && by == owner && of_lane(lane)));
        }
        if !is(StartBreak::WithdrawKeepsParkedStarts) && !matches!(lost, Lost::Lanes(_)) {
            self.parked.retain(|((number, _), by), _| !(of_consumer(*number) && by == owner));
        }
        let all = is(StartBreak::WithdrawTakesAllCrashes);
        if !is(StartBreak::WithdrawKeepsCrashes) {
            let goes =
                |kept: &KeptCrash| of_consumer(kept.consumer) && (all || kept.crash.by.owner == *owner);
            self.crashes.retain(|kept| !goes(kept));
        }
    }

    pub(super) fn forget(&mut self, consumer: i16, passed: &[(Arc<str>, Owner)], broken: Option<StartBreak>) {
        let is = |other| broken == Some(other);
        let of_consumer = |number: i16| number == consumer || is(StartBreak::ForgetsForAllConsumers);
        let whole = is(StartBreak::ForgetsWholeLanes);
        let is_passed = |(number, lane, owner): &LaneKey| {
            let named =
                |(passed, by): &(Arc<str>, Owner)| lane_of(passed, broken) == *lane && (by == owner || whole);
            of_consumer(*number) && passed.iter().any(named) && !is(StartBreak::ForgetKeepsPassed)
        };
        self.lanes.retain(|key, _| !is_passed(key));
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
        for key in std::mem::take(&mut self.absolved) {
            if is(StartBreak::AbsolveTakesAllCrashes) {
                disk.starts.crashes.clear();
            } else if !is(StartBreak::AbsolveKeepsCrashes) {
                disk.starts.absolve(key);
            }
        }
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
        for key in std::mem::take(&mut self.absolved) {
            if broken == Some(StartBreak::AbsolveAutocommits) {
                disk.starts.absolve(key);
            }
        }
        if let Some((consumer, start)) = self.start.take()
            && broken == Some(StartBreak::RollbackTakesTheStart)
        {
            disk.starts.end(consumer, &start.by.owner, Some(&[start.lane]), broken);
        }
    }
}
