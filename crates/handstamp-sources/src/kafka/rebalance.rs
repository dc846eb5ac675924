//! Partitions come and go. Done between two polls, while the client library waits for our answer.

use super::assignment::Owned;
use super::context::{self, Rebalance};
use super::ffi::Queue;
use super::session::Session;
use super::thread::End;
use super::wake::Signal;
use handstamp_core::{Control, CrashPoint, Lane, Notice};
use rdkafka::consumer::Consumer as _;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest time a commit gets when partitions are taken away.
const LAST_COMMIT: Duration = Duration::from_millis(500);

impl Session {
    /// Answers one rebalance.
    pub(super) fn rebalance(&mut self, rebalance: &Rebalance) {
        match rebalance {
            Rebalance::Assign(list) => self.assigned(list, rebalance),
            Rebalance::Revoke(list) => {
                self.revoked(list);
                self.answer(rebalance);
            }
        }
    }

    fn answer(&mut self, rebalance: &Rebalance) {
        if let Err(error) = context::answer(&self.client, rebalance) {
            tracing::error!(target: "handstamp", %error, "the Kafka client refused an assignment; building a new one");
            self.end = Some(End::Rebuild);
        }
    }

    fn assigned(&mut self, list: &TopicPartitionList, rebalance: &Rebalance) {
        let starts = self.starts(list);
        let mut ids = vec![];
        let mut grown = false;
        for element in list.elements() {
            let (topic, partition) = (element.topic(), element.partition());
            let Some(mut queue) = Queue::of_partition(&self.client, topic, partition) else {
                tracing::error!(target: "handstamp", topic, partition, "no queue for a partition; building a new client");
                self.end = Some(End::Rebuild);
                return;
            };
            queue.raise(Signal::new(Arc::clone(&self.worker.wake)));
            let count = self.plan.partitions.entry(topic.to_owned()).or_insert(0);
            if partition >= *count {
                grown |= *count > 0;
                *count = partition + 1;
            }
            let id = self.worker.lanes.id(topic, partition);
            let start = starts.iter().find(|one| one.0 == topic && one.1 == partition).map(|one| one.2);
            self.worker.lanes.raise_epoch(id);
            if let Some(slot) = self.worker.lanes.slot(id) {
                slot.owned = Some(Owned::new(queue, start));
            }
            ids.push(id);
        }
        self.answer(rebalance);
        self.told.evicted = false;
        if grown {
            self.worker.notice(Notice::Grown);
            tracing::info!(target: "handstamp", "a topic has more partitions than before");
        }
        let named: Vec<_> = ids.into_iter().map(|id| self.worker.lanes.named(id)).collect();
        let names: Vec<&str> = named.iter().map(|one| &*one.name).collect();
        tracing::info!(target: "handstamp", lanes = names.join(" "), "assigned");
        CrashPoint::OnAssign.reached();
        self.worker.say(Control::Assigned(named));
        if self.worker.lanes.ours().len() > self.planned_lanes.saturating_mul(2) {
            tracing::info!(target: "handstamp", "many more partitions than the queues were sized for; building a new client");
            self.end = Some(End::Rebuild);
        }
    }

    /// Where the group stands, as far as the coordinator answers in time.
    fn starts(&self, list: &TopicPartitionList) -> Vec<(String, i32, i64)> {
        if list.count() == 0 {
            return vec![];
        }
        let timeout = self.worker.options.commit_timeout();
        let mut plain = TopicPartitionList::with_capacity(list.count());
        for element in list.elements() {
            plain.add_partition(element.topic(), element.partition());
        }
        match self.client.committed_offsets(plain, timeout) {
            Ok(found) => found
                .elements()
                .iter()
                .filter_map(|one| match one.offset() {
                    Offset::Offset(offset) => Some((one.topic().to_owned(), one.partition(), offset)),
                    _ => None,
                })
                .collect(),
            Err(error) => {
                tracing::debug!(target: "handstamp", %error, "kafka client: committed offsets not known");
                vec![]
            }
        }
    }

    fn revoked(&mut self, list: &TopicPartitionList) {
        let mut ids: Vec<u32> = list
            .elements()
            .iter()
            .filter_map(|one| self.worker.lanes.known(one.topic(), one.partition()))
            .collect();
        ids.retain(|id| self.worker.lanes.slot(*id).is_some_and(|slot| slot.owned.is_some()));
        if ids.is_empty() {
            return;
        }
        let lanes: Vec<Lane> = ids.iter().map(|id| self.worker.lanes.lane(*id)).collect();
        let names: Vec<_> = ids.iter().map(|id| self.worker.lanes.named(*id).name).collect();
        let names = names.join(" ");
        if self.is_lost() {
            self.worker.notice(Notice::Lost);
            tracing::warn!(target: "handstamp", lanes = names, "lost without notice; settling nothing of them");
            self.worker.say(Control::Lost(lanes));
        } else {
            self.worker.notice(Notice::Revoked);
            tracing::info!(target: "handstamp", lanes = names, "being taken away");
            let limit = Instant::now() + self.worker.options.revoke_timeout();
            CrashPoint::RevokeBeforeDrain.reached();
            self.drain(lanes, limit);
            CrashPoint::RevokeAfterDrain.reached();
            if !self.worker.engine_gone {
                self.flush_commits(limit.max(Instant::now() + LAST_COMMIT));
            }
        }
        self.forget(&ids);
    }

    /// Asks the engine to finish the lanes and carries out its commands until it has.
    fn drain(&mut self, lanes: Vec<Lane>, limit: Instant) {
        let within = limit.saturating_duration_since(Instant::now());
        self.worker.say(Control::Revoking { lanes: lanes.clone(), within });
        let mut drained = HashSet::new();
        loop {
            while let Some(command) = self.worker.next_command() {
                self.command(command, &mut drained);
            }
            if self.worker.engine_gone || lanes.iter().all(|lane| drained.contains(lane)) {
                return;
            }
            let limit = self.worker.closing.map_or(limit, |closing| closing.min(limit));
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(target: "handstamp", "the engine did not finish in time; what is unsettled comes again");
                return;
            }
            self.worker.wake.wait(left);
        }
    }

    /// The lanes are not ours any more.
    fn forget(&mut self, ids: &[u32]) {
        for id in ids {
            let old = self.worker.lanes.lane(*id);
            let acked = self.take_acked(*id);
            self.worker.lanes.raise_epoch(*id);
            if let Some(slot) = self.worker.lanes.slot(*id) {
                slot.owned = None;
            }
            self.answer_left(old, acked);
        }
    }

    /// Forgets everything; lanes that the engine may still work on are said to be lost.
    pub(super) fn forget_all(&mut self) {
        let ids = self.worker.lanes.ours();
        if ids.is_empty() {
            return;
        }
        let lanes = ids.iter().map(|id| self.worker.lanes.lane(*id)).collect();
        self.forget(&ids);
        if !self.worker.ending() {
            self.worker.say(Control::Lost(lanes));
        }
    }
}
