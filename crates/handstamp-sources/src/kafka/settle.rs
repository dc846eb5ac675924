//! Commands of the engine, and commits of what they settled.

use super::commit::{InFlight, Verdict, verdict};
use super::ffi::{self, Code, CommitAnswer};
use super::session::Session;
use handstamp_core::{Command, CrashPoint, DeliveryTag, Disposition, Lane, Notice, Settled};
use rdkafka::consumer::Consumer as _;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How often commands are looked for while they do not wake the thread: how late a close may be heard.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The engine has enough to do when what it holds lasts so many times as long as what it just settled; it
/// asks for more of a held lane at half.
const ENGINE_BUSY_LOOKS: usize = 4;
/// Most settles of a lane that wait for the interval: what is remembered of them must not grow with it.
const ACKED_MAX: usize = 50_000;
/// How long a lane commits nothing after the broker said that we are out of the group.
const FENCED_FOR: Duration = Duration::from_secs(10);

impl Session {
    /// Carries out every command that is there. Returns true when they were settles that wait for the
    /// interval anyway, and the engine has work for longer than [`LOOK_EVERY`]: then the next commands do
    /// not wake the thread, it looks for them by itself. With one message a transaction, waking costs more
    /// than all the rest of a message's way through this thread.
    pub(super) fn take_commands(&mut self) -> bool {
        let mut drained = HashSet::new();
        let before = self.worker.lanes.unanswered();
        let (mut settles, mut others) = (false, false);
        while let Some(command) = self.worker.waiting_command() {
            let settle = matches!(command, Command::Settle(_));
            settles |= settle;
            others |= !settle;
            self.command(command, &mut drained);
        }
        let left = self.worker.lanes.unanswered();
        let busy = left / ENGINE_BUSY_LOOKS > before.saturating_sub(left);
        if settles && !others && busy && self.commits.may_wait(LOOK_EVERY, Instant::now()) {
            return true;
        }
        while let Some(command) = self.worker.next_command() {
            self.command(command, &mut drained);
        }
        false
    }

    /// Carries one command out. `Drained` lanes are put into the set.
    pub(super) fn command(&mut self, command: Command, drained: &mut HashSet<Lane>) {
        match command {
            Command::Settle(settles) => self.settle(settles),
            Command::Hold(lane) => self.hold(lane, true),
            Command::Release(lane) => self.hold(lane, false),
            Command::Drained(lanes) => drained.extend(lanes),
            Command::Close { within } => self.worker.closing = Some(Instant::now() + within),
            // No lease to extend; commands that are not known yet ask nothing of a log.
            _ => {}
        }
    }

    fn hold(&mut self, lane: Lane, held: bool) {
        if self.worker.lanes.current(lane).is_none() {
            return;
        }
        if let Some(slot) = self.worker.lanes.slot(lane.id) {
            slot.held = held;
        }
        if held {
            self.commits.soon(Instant::now());
        }
    }

    fn settle(&mut self, settles: Vec<(Lane, DeliveryTag, Disposition)>) {
        let (mut stale, mut released, mut full) = (vec![], vec![], false);
        for (lane, tag, disposition) in settles {
            let Some(owned) = self.worker.lanes.current(lane) else {
                stale.push((lane, tag, Settled::Stale));
                continue;
            };
            match disposition {
                Disposition::Ack => {
                    let offset = i64::try_from(tag.0).unwrap_or(i64::MAX);
                    if owned.mark.settled(offset) {
                        owned.acked.push(offset);
                        full |= owned.acked.len() >= ACKED_MAX;
                        owned.unanswered = owned.unanswered.saturating_sub(1);
                    }
                }
                Disposition::Release { .. } => {
                    owned.released = true;
                    owned.unanswered = owned.unanswered.saturating_sub(1);
                    released.push((lane, tag, Settled::Done));
                }
            }
        }
        if !stale.is_empty() {
            self.worker.notice(Notice::SettleStale);
            tracing::info!(target: "handstamp", results = stale.len(),
                "dropped results of an old assignment; whoever owns the lane now meets the inbox rows");
            self.worker.settled(stale);
        }
        if full || !released.is_empty() {
            // A lane goes back only when its mark is committed.
            self.commits.soon(Instant::now());
        }
        self.worker.settled(released);
    }

    pub(super) fn anything_to_commit(&mut self) -> bool {
        self.positions().next().is_some()
    }

    /// Lanes and the positions that the broker does not have of them, in words.
    pub(super) fn not_committed(&mut self) -> String {
        let left: Vec<(u32, i64)> = self.positions().collect();
        let name = |(id, position): (u32, i64)| format!("{}:{position}", self.worker.lanes.named(id).name);
        left.into_iter().map(name).collect::<Vec<_>>().join(" ")
    }

    fn positions(&mut self) -> impl Iterator<Item = (u32, i64)> {
        let lanes = &mut self.worker.lanes;
        lanes.ours().into_iter().filter_map(|id| {
            let position = lanes.slot(id)?.owned.as_ref()?.to_commit()?;
            Some((id, position))
        })
    }

    /// Takes answers, gives up on late ones, sends what is due. Never blocks.
    pub(super) fn commit_step(&mut self, now: Instant) {
        self.take_answers(Duration::ZERO);
        self.give_up_late(now);
        if self.commits.due(now) {
            self.send_commit(now, self.worker.options.commit_timeout());
        }
    }

    /// Commits everything that is settled and waits for the answers, until the limit.
    pub(super) fn flush_commits(&mut self, limit: Instant) {
        loop {
            let now = Instant::now();
            if self.commits.in_flight.is_some() {
                if now >= limit {
                    self.give_up_at(limit);
                    return;
                }
                self.take_answers(limit.saturating_duration_since(now));
                self.give_up_late(Instant::now());
                continue;
            }
            if let Some(failing) = self.commits.failing_wait() {
                std::thread::sleep(failing.min(limit.saturating_duration_since(now)));
            }
            if now >= limit || !self.send_commit(now, limit.saturating_duration_since(now)) {
                return;
            }
        }
    }

    /// Sends one request for all positions that are worth it. Returns false when there is none.
    fn send_commit(&mut self, now: Instant, wait: Duration) -> bool {
        let positions: Vec<(u32, i64)> = self.positions().collect();
        // Between a loss and the next assignment nothing is ours.
        if positions.is_empty() || self.is_lost() {
            return false;
        }
        let mut list = TopicPartitionList::with_capacity(positions.len());
        let mut lanes = Vec::with_capacity(positions.len());
        for (id, position) in positions {
            let lane = self.worker.lanes.lane(id);
            let Some(slot) = self.worker.lanes.slot(id) else { continue };
            if list.add_partition_offset(&slot.topic, slot.partition, Offset::Offset(position)).is_ok() {
                lanes.push((lane, position));
            }
        }
        let number = self.commits.number();
        let request = InFlight { number, deadline: now + wait, positions: lanes };
        match ffi::commit(&self.client, &list, &self.answers, number) {
            Ok(()) => {
                self.commits.sent(request, now);
                CrashPoint::MidSettle.reached();
                true
            }
            Err(code) => {
                let answer = CommitAnswer { number, code, partitions: vec![] };
                self.commits.sent(request, now);
                self.answered(answer);
                false
            }
        }
    }

    /// Whether what is assigned may belong to somebody else already.
    pub(super) fn is_lost(&self) -> bool {
        self.told.evicted || self.client.assignment_lost()
    }

    fn take_answers(&mut self, wait: Duration) {
        let mut wait = wait;
        while let Some(answer) = self.answers.commit_answer(wait) {
            self.answered(answer);
            wait = Duration::ZERO;
        }
    }

    fn answered(&mut self, answer: CommitAnswer) {
        if self.commits.in_flight.as_ref().is_none_or(|one| one.number != answer.number) {
            self.answered_late(&answer);
            return;
        }
        let Some(request) = self.commits.in_flight.take() else { return };
        let mut well = true;
        for (lane, position) in request.positions {
            let code = self.code_for(&answer, lane);
            well &= self.outcome(lane, position, code);
        }
        if well {
            self.broker_answers();
        } else {
            self.worker.notice(Notice::SettleFailed);
        }
        self.commits.ended(well, Instant::now());
    }

    /// An answer nobody waits for any more. If it took effect, a position of an older request may have
    /// replaced a newer one: what is ours is committed again.
    fn answered_late(&mut self, answer: &CommitAnswer) {
        for (topic, partition, offset, code) in &answer.partitions {
            if answer.code != Code::NONE || *code != Code::NONE {
                continue;
            }
            let Some(id) = self.worker.lanes.known(topic, *partition) else { continue };
            if let Some(owned) = self.worker.lanes.slot(id).and_then(|slot| slot.owned.as_mut())
                && owned.committed.is_some_and(|committed| committed > *offset)
            {
                owned.committed = None;
            }
        }
        tracing::debug!(target: "handstamp", "a commit was answered after its limit");
    }

    fn code_for(&mut self, answer: &CommitAnswer, lane: Lane) -> Code {
        let Some(slot) = self.worker.lanes.slot(lane.id) else { return answer.code };
        let own = answer.partitions.iter().find(|one| *one.0 == *slot.topic && one.1 == slot.partition);
        match own {
            Some((_, _, _, code)) if *code != Code::NONE => *code,
            _ => answer.code,
        }
    }

    /// Takes one partition's answer in. Returns whether the broker has the position.
    fn outcome(&mut self, lane: Lane, position: i64, code: Code) -> bool {
        let verdict = verdict(code);
        let name = self.worker.lanes.named(lane.id).name;
        let Some(owned) = self.worker.lanes.current(lane) else { return verdict == Verdict::Done };
        match verdict {
            Verdict::Done => {
                owned.committed = Some(owned.committed.map_or(position, |committed| committed.max(position)));
                let acked = owned.take_acked_below(position);
                CrashPoint::AfterSettle.reached();
                self.worker.settled(answers(lane, acked, Settled::Done));
                return true;
            }
            Verdict::Keep => {}
            Verdict::Fenced => owned.fenced_until = Some(Instant::now() + FENCED_FOR),
            Verdict::Refused => {
                owned.refused = Some(position);
                let acked = owned.take_acked_below(position);
                self.worker.settled(answers(lane, acked, Settled::Failed));
            }
        }
        if self.told.may_say(code.0) {
            tracing::warn!(target: "handstamp", lane = %name, position, ?verdict,
                "offset not committed: {}; the inbox holds what was applied", code.text());
        }
        false
    }

    fn give_up_late(&mut self, now: Instant) {
        if self.commits.in_flight.as_ref().is_some_and(|one| now >= one.deadline) {
            self.give_up_at(now);
        }
    }

    /// The answer did not come: its outcome is unknown, and the inbox holds what was applied.
    fn give_up_at(&mut self, now: Instant) {
        let Some(request) = self.commits.in_flight.take() else { return };
        self.worker.notice(Notice::SettleUnknown);
        if self.told.may_say(i32::MIN) {
            let name = |(lane, position): &(Lane, i64)| {
                format!("{}:{position}", self.worker.lanes.named(lane.id).name)
            };
            let positions = request.positions.iter().map(name).collect::<Vec<_>>().join(" ");
            tracing::warn!(target: "handstamp", %positions,
                "no answer to an offset commit within its limit; the inbox holds what was applied");
        }
        for (lane, position) in request.positions {
            if let Some(owned) = self.worker.lanes.current(lane) {
                let acked = owned.take_acked_below(position);
                self.worker.settled(answers(lane, acked, Settled::Unknown));
            }
        }
        self.commits.ended(false, now);
    }

    /// Takes out the acked offsets of a lane that were never answered.
    pub(super) fn take_acked(&mut self, id: u32) -> Vec<i64> {
        let owned = self.worker.lanes.slot(id).and_then(|slot| slot.owned.as_mut());
        owned.map(|owned| std::mem::take(&mut owned.acked)).unwrap_or_default()
    }

    /// Answers what is left of a lane's old epoch.
    pub(super) fn answer_left(&mut self, old: Lane, acked: Vec<i64>) {
        if !acked.is_empty() {
            self.worker.settled(answers(old, acked, Settled::Stale));
        }
    }
}

fn answers(lane: Lane, offsets: Vec<i64>, settled: Settled) -> Vec<(Lane, DeliveryTag, Settled)> {
    offsets
        .into_iter()
        .map(|offset| (lane, DeliveryTag(u64::try_from(offset).unwrap_or(0)), settled))
        .collect()
}
