//! A member of a [`LogBroker`](super::LogBroker)'s group: a task that speaks through its port.
//!
//! Authoritative: the broker. A member finds out what changed when it looks, as a real one does.

use super::breaks::{LATE, SourceBreak, damage, shown_tag};
use super::log_broker::{Group, GroupPartition, Log, Shared, State};
use handstamp_core::delivery::{ReadAhead, Settled};
use handstamp_core::offsets::LowWaterMark;
use handstamp_core::source::{DeliveryCount, NamedLane, PortLimits, SettleKind};
use handstamp_core::{
    Capabilities, Command, Control, Delivery, DeliveryTag, Disposition, Fingerprint, Lane, Notice, Origin,
    Source, SourceError, SourcePort,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A member of a group.
#[derive(Debug)]
pub struct LogSource {
    shared: Arc<Shared>,
    group: String,
}

impl LogSource {
    pub(super) fn new(shared: Arc<Shared>, group: &str) -> Self {
        Self { shared, group: group.to_owned() }
    }

    /// What this kind of source can do.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        Capabilities {
            settle: SettleKind::Cumulative,
            ordered: true,
            lease: None,
            release_delay_max: None,
            delivery_count: DeliveryCount::None,
            redelivery_window: None,
            ends: false,
        }
    }
}

impl Source for LogSource {
    fn capabilities(&self) -> Capabilities {
        Self::capabilities()
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(format!("fake log {}", self.shared.topic))
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        let id = {
            let mut state = self.shared.lock();
            state.members_made += 1;
            state.members_made
        };
        let changed = self.shared.changed.subscribe();
        let member = Member {
            shared: self.shared,
            group: self.group,
            id,
            control: port.control,
            limits: port.limits,
            owned: BTreeMap::new(),
            late: vec![],
            turn: 0,
            revoke_until: None,
            commit_again: false,
        };
        tokio::spawn(member.serve(port.deliveries, port.commands, changed));
        Ok(())
    }
}

struct Member {
    shared: Arc<Shared>,
    group: String,
    id: u64,
    control: mpsc::UnboundedSender<Control>,
    limits: PortLimits,
    owned: BTreeMap<u32, Owned>,
    /// Assignments that a broken fake has not told yet.
    late: Vec<NamedLane>,
    turn: u32,
    revoke_until: Option<Instant>,
    /// A commit was refused: it is tried again soon.
    commit_again: bool,
}

/// How soon a refused commit is tried again.
const COMMIT_AGAIN: Duration = Duration::from_millis(200);

struct Owned {
    lane: Lane,
    /// Index of the next record to hand over.
    next: usize,
    mark: LowWaterMark,
    held: bool,
    revoking: bool,
    said_caught_up: bool,
}

impl Member {
    async fn serve(
        mut self,
        deliveries: mpsc::Sender<Vec<Delivery>>,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut changed: watch::Receiver<u64>,
    ) {
        let never_closes = self.shared.is(SourceBreak::NeverCloses).then(|| deliveries.clone());
        let mut late = vec![];
        loop {
            changed.mark_unchanged();
            self.reconcile();
            let ready = self.ready();
            if self.shared.is(SourceBreak::BlocksOnFullPort)
                && let Some(lane) = ready
            {
                let Ok(room) = deliveries.reserve().await else { break };
                room.send(self.batch(lane));
                continue;
            }
            let revoke_until = self.revoke_until.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Close { .. }) => break,
                    Some(Command::Settle(settles)) if self.shared.is(SourceBreak::ClosesWithoutSettling) => {
                        late.extend(settles);
                    }
                    Some(command) => self.obey(command),
                    None => {
                        self.engine_is_gone();
                        break;
                    }
                },
                _ = changed.changed() => {}
                () = tokio::time::sleep(COMMIT_AGAIN), if self.commit_again => {}
                () = tokio::time::sleep(LATE), if !late.is_empty() => self.settle(&std::mem::take(&mut late)),
                () = tokio::time::sleep_until(revoke_until), if self.revoke_until.is_some() => {
                    let lanes = self.owned.values().filter(|o| o.revoking).map(|o| o.lane).collect();
                    self.give_up(lanes);
                }
                room = deliveries.reserve(), if ready.is_some() => match (room, ready) {
                    (Ok(room), Some(lane)) => {
                        let batch = self.batch(lane);
                        if !batch.is_empty() {
                            room.send(batch);
                        }
                        self.tell_late().await;
                    }
                    _ => break,
                },
            }
        }
        self.leave();
        if never_closes.is_some() {
            std::future::pending::<()>().await;
        }
    }

    fn say(&self, control: Control) {
        let _ = self.control.send(control);
    }

    async fn tell_late(&mut self) {
        if !self.late.is_empty() {
            tokio::time::sleep(LATE).await;
            let late = std::mem::take(&mut self.late);
            self.say(Control::Assigned(late));
        }
    }

    /// Brings what this member owns in line with what the group wants.
    fn reconcile(&mut self) {
        let shared = Arc::clone(&self.shared);
        let (lost, leaving, taken) = {
            let mut state = shared.lock();
            if state.away {
                return;
            }
            let State { partitions, groups, .. } = &mut *state;
            let group = groups.entry(self.group.clone()).or_default();
            group.partitions.resize(partitions.len(), GroupPartition::default());
            let lost = group.evicted.remove(&self.id);
            if !group.members.contains(&self.id) {
                group.members.push(self.id);
                shared.bump();
            }
            if lost {
                (true, vec![], vec![])
            } else {
                (false, self.leaving(group), self.take(group, partitions))
            }
        };
        if lost {
            let lanes = std::mem::take(&mut self.owned).into_values().map(|owned| owned.lane).collect();
            self.revoke_until = None;
            self.say(Control::Noticed(Notice::Evicted));
            self.say(Control::Lost(lanes));
            self.shared.bump();
            return;
        }
        if !taken.is_empty() {
            if self.shared.is(SourceBreak::CatchesUpEarly) {
                self.say(Control::CaughtUp(taken.iter().map(|named| named.lane).collect()));
            }
            if self.shared.is(SourceBreak::AssignsLate) {
                self.late.extend(taken);
            } else {
                self.say(Control::Assigned(taken));
            }
        }
        if !leaving.is_empty() {
            if self.shared.is(SourceBreak::RevokesWithoutWaiting) {
                self.give_up(leaving);
            } else {
                let within = self.shared.revoke_within;
                self.revoke_until = Some(Instant::now() + within);
                self.say(Control::Revoking { lanes: leaving, within });
            }
        }
        self.commit();
        self.say_caught_up();
    }

    fn leaving(&mut self, group: &Group) -> Vec<Lane> {
        let mut leaving = vec![];
        for (&partition, owned) in &mut self.owned {
            let wanted = group.wanted(index(partition));
            if wanted != Some(self.id) && !owned.revoking {
                owned.revoking = true;
                leaving.push(owned.lane);
            }
        }
        leaving
    }

    fn take(&mut self, group: &mut Group, logs: &[Log]) -> Vec<NamedLane> {
        let mut taken = vec![];
        for (at, log) in logs.iter().enumerate() {
            if group.wanted(at) != Some(self.id) || group.partitions[at].owner.is_some() {
                continue;
            }
            let partition = &mut group.partitions[at];
            partition.owner = Some(self.id);
            partition.epoch += 1;
            let mut from = partition.committed.unwrap_or(0);
            if self.shared.is(SourceBreak::RedeliversNothing) {
                from = from.max(partition.handed);
            } else if self.shared.is(SourceBreak::RedeliversSettled) {
                from = 0;
            }
            let id = u32::try_from(at).unwrap_or(u32::MAX);
            let lane = Lane { id, epoch: partition.epoch };
            let owned = Owned {
                lane,
                next: log.records.partition_point(|(offset, _)| *offset < from),
                mark: LowWaterMark::new(),
                held: false,
                revoking: false,
                said_caught_up: false,
            };
            self.owned.insert(id, owned);
            taken.push(NamedLane { lane, name: format!("{}[{at}]", self.shared.topic).into() });
        }
        taken
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Settle(settles) => self.settle(&settles),
            Command::Hold(lane) if !self.shared.is(SourceBreak::IgnoresHold) => self.hold(lane, true),
            Command::Release(lane) if !self.shared.is(SourceBreak::ForgetsRelease) => self.hold(lane, false),
            Command::Drained(lanes) => self.give_up(lanes),
            _ => {}
        }
    }

    fn hold(&mut self, lane: Lane, held: bool) {
        if let Some(owned) = self.owned.get_mut(&lane.id).filter(|owned| owned.lane == lane) {
            owned.held = held;
        }
    }

    fn settle(&mut self, settles: &[(Lane, DeliveryTag, Disposition)]) {
        let mut answers = Vec::with_capacity(settles.len());
        for &(lane, tag, disposition) in settles {
            answers.push((lane, tag, self.settle_one(lane, tag, disposition)));
        }
        let refused = self.commit();
        for (_, _, answer) in &mut answers {
            match (*answer, refused) {
                (Settled::Done, Some(refused)) => {
                    *answer = refused;
                    let unknown = refused == Settled::Unknown;
                    let notice = if unknown { Notice::SettleUnknown } else { Notice::SettleFailed };
                    self.say(Control::Noticed(notice));
                }
                (Settled::Stale, _) => self.say(Control::Noticed(Notice::SettleStale)),
                _ => {}
            }
        }
        if !self.shared.is(SourceBreak::AnswersNothing) {
            self.say(Control::Settled(answers));
        }
        self.say_lag();
    }

    fn settle_one(&mut self, lane: Lane, tag: DeliveryTag, disposition: Disposition) -> Settled {
        let offset = i64::try_from(shown_tag(tag.0, self.shared.broken)).unwrap_or(i64::MAX);
        let acked = disposition == Disposition::Ack;
        if acked && self.shared.is(SourceBreak::ForgetsEpoch) {
            self.force_commit(lane.id, offset + 1);
        }
        if !self.owns(lane) {
            return Settled::Stale;
        }
        let Some(owned) = self.owned.get_mut(&lane.id).filter(|owned| owned.lane == lane) else {
            return Settled::Stale;
        };
        if acked {
            owned.mark.settled(offset);
            if self.shared.is(SourceBreak::PassesUnfinished) {
                self.force_commit(lane.id, offset + 1);
            }
        } else if self.shared.is(SourceBreak::LosesReleased) {
            owned.mark.settled(offset);
        }
        Settled::Done
    }

    /// What the broker says of a lane, which may be older news here.
    fn owns(&self, lane: Lane) -> bool {
        let state = self.shared.lock();
        let partition = state.groups.get(&self.group).and_then(|group| group.partitions.get(index(lane.id)));
        partition.is_some_and(|partition| partition.owner == Some(self.id) && partition.epoch == lane.epoch)
    }

    fn force_commit(&self, partition: u32, position: i64) {
        let mut state = self.shared.lock();
        if let Some(partition) =
            state.groups.get_mut(&self.group).and_then(|group| group.partitions.get_mut(index(partition)))
        {
            partition.committed = partition.committed.max(Some(position));
        }
    }

    /// Commits every position that moved; answers a refusal.
    fn commit(&mut self) -> Option<Settled> {
        let refused = self.try_commit();
        self.commit_again = refused.is_some();
        refused
    }

    fn try_commit(&self) -> Option<Settled> {
        let mut state = self.shared.lock();
        if state.away {
            return Some(Settled::Unknown);
        }
        let group = state.groups.get_mut(&self.group)?;
        for (&partition, owned) in &self.owned {
            let Some(position) = owned.mark.position() else { continue };
            let Some(at) = group.partitions.get_mut(index(partition)) else { continue };
            if at.owner != Some(self.id) || at.committed >= Some(position) {
                continue;
            }
            if let Some(refused) = group.refusals.pop_front() {
                return Some(refused);
            }
            at.committed = Some(position);
        }
        None
    }

    /// The next lane that has something to hand over.
    fn ready(&mut self) -> Option<u32> {
        let state = self.shared.lock();
        if state.away {
            return None;
        }
        let ready = |(partition, owned): &(&u32, &Owned)| {
            !owned.held
                && !owned.revoking
                && state.partitions.get(index(**partition)).is_some_and(|log| owned.next < log.records.len())
        };
        let after = self.owned.range(self.turn + 1..).find(ready);
        let lane = after.or_else(|| self.owned.iter().find(ready)).map(|(&partition, _)| partition)?;
        self.turn = lane;
        Some(lane)
    }

    fn batch(&mut self, partition: u32) -> Vec<Delivery> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let State { partitions, groups, .. } = &mut *state;
        let (Some(owned), Some(log)) = (self.owned.get_mut(&partition), partitions.get(index(partition)))
        else {
            return vec![];
        };
        let mut batch: Vec<Delivery> = vec![];
        let mut bytes = 0;
        let limited = !shared.is(SourceBreak::IgnoresLimits);
        while let Some((offset, payload)) = log.records.get(owned.next) {
            let origin = Origin {
                topic: shared.topic.clone(),
                partition: i32::try_from(partition).unwrap_or(i32::MAX),
                offset: *offset,
                line: None,
            };
            let record = damage(payload.clone(), shared.broken).at(origin);
            bytes += record.size_bytes();
            let full = batch.len() >= self.limits.batch_max || bytes > self.limits.batch_max_bytes;
            if limited && full && !batch.is_empty() {
                break;
            }
            owned.mark.received(*offset);
            owned.next += 1;
            let tag = DeliveryTag(shown_tag(u64::try_from(*offset).unwrap_or(0), shared.broken));
            let ahead = ReadAhead::of(&record);
            batch.push(Delivery { lane: owned.lane, tag, record, fault: None, ahead });
        }
        let group = groups.get_mut(&self.group).and_then(|group| group.partitions.get_mut(index(partition)));
        if let (Some(at), Some(last)) = (group, batch.last()) {
            at.handed = at.handed.max(last.record.origin.offset + 1);
            if shared.is(SourceBreak::SettlesEarly) && owned.mark.in_flight() > 6 {
                at.committed = at.committed.max(Some(at.handed));
            }
        }
        if shared.is(SourceBreak::Reverses) {
            batch.reverse();
        }
        owned.said_caught_up = false;
        batch
    }

    fn say_caught_up(&mut self) {
        if self.shared.is(SourceBreak::NeverCatchesUp) {
            return;
        }
        let mut caught_up = vec![];
        {
            let state = self.shared.lock();
            for (&partition, owned) in &mut self.owned {
                let length = state.partitions.get(index(partition)).map_or(0, |log| log.records.len());
                if owned.next >= length && !owned.said_caught_up {
                    owned.said_caught_up = true;
                    caught_up.push(owned.lane);
                }
            }
        }
        if !caught_up.is_empty() {
            self.say(Control::CaughtUp(caught_up));
        }
    }

    fn say_lag(&self) {
        let lags = {
            let state = self.shared.lock();
            let lag = |(&partition, owned): (&u32, &Owned)| {
                let log = state.partitions.get(index(partition))?;
                let position = owned.mark.position()?;
                let behind = log.records.len() - log.records.partition_point(|(at, _)| *at < position);
                Some((owned.lane, u64::try_from(behind).unwrap_or(u64::MAX)))
            };
            self.owned.iter().filter_map(lag).collect()
        };
        self.say(Control::Lag(lags));
    }

    fn give_up(&mut self, lanes: Vec<Lane>) {
        self.commit();
        let mut gone = false;
        for lane in lanes {
            if self.owned.get(&lane.id).is_none_or(|owned| owned.lane != lane || !owned.revoking) {
                continue;
            }
            self.owned.remove(&lane.id);
            self.free(lane.id);
            gone = true;
        }
        if !self.owned.values().any(|owned| owned.revoking) {
            self.revoke_until = None;
        }
        if gone {
            self.say(Control::Noticed(Notice::Revoked));
            self.shared.bump();
        }
    }

    fn free(&self, partition: u32) {
        let mut state = self.shared.lock();
        let group = state.groups.get_mut(&self.group);
        if let Some(at) = group.and_then(|group| group.partitions.get_mut(index(partition)))
            && at.owner == Some(self.id)
        {
            at.owner = None;
            at.epoch += 1;
        }
    }

    fn engine_is_gone(&self) {
        if self.shared.is(SourceBreak::SettlesForTheDead) {
            for &partition in self.owned.keys() {
                self.force_commit(partition, i64::MAX);
            }
        }
    }

    fn leave(&mut self) {
        for partition in std::mem::take(&mut self.owned).into_keys() {
            self.free(partition);
        }
        self.shared.with_group(&self.group, |group| group.members.retain(|member| *member != self.id));
    }
}

fn index(partition: u32) -> usize {
    usize::try_from(partition).unwrap_or(usize::MAX)
}
