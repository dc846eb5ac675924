//! A broker of cumulative offsets: partitions with gaps, groups, rebalances, committed positions.
//!
//! Authoritative: what is in here. Members ([`LogSource`]) may die, be put out of their group, or find
//! the broker away.
//!
//! ```text
//!  a partition:  free ──taken, epoch+1──► owned ──wanted elsewhere──► revoking ──Drained, or time over──► free
//!                  ▲                        └── evicted: Lost, at once ─────────────────────────────────────┘
//! ```

use super::breaks::SourceBreak;
use super::log_source::LogSource;
use crate::payload::Payload;
use handstamp_core::delivery::Settled;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The broker and everything that is durable in it; clones are the same broker.
#[derive(Debug, Clone)]
pub struct LogBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) topic: Arc<str>,
    pub(super) broken: Option<SourceBreak>,
    pub(super) revoke_within: Duration,
    pub(super) state: Mutex<State>,
    pub(super) changed: watch::Sender<u64>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) partitions: Vec<Log>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) members_made: u64,
    pub(super) away: bool,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) records: Vec<(i64, Payload)>,
    pub(super) next_offset: i64,
}

#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) partitions: Vec<GroupPartition>,
    pub(super) members: Vec<u64>,
    pub(super) evicted: BTreeSet<u64>,
    pub(super) shift: usize,
    pub(super) refusals: VecDeque<Settled>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct GroupPartition {
    pub(super) committed: Option<i64>,
    /// One past the highest offset ever handed over; only a broken fake looks at it.
    pub(super) handed: i64,
    pub(super) owner: Option<u64>,
    pub(super) epoch: u32,
}

impl Group {
    /// Who should own a partition.
    pub(super) fn wanted(&self, partition: usize) -> Option<u64> {
        let at = (partition + self.shift).checked_rem(self.members.len())?;
        self.members.get(at).copied()
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is(&self, broken: SourceBreak) -> bool {
        self.broken == Some(broken)
    }

    pub(super) fn bump(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn with_group<T>(&self, name: &str, act: impl FnOnce(&mut Group) -> T) -> T {
        let answer = {
            let mut state = self.lock();
            let partitions = state.partitions.len();
            let group = state.groups.entry(name.to_owned()).or_default();
            group.partitions.resize(partitions, GroupPartition::default());
            act(group)
        };
        self.bump();
        answer
    }
}

impl LogBroker {
    /// A broker with one topic.
    #[must_use]
    pub fn new(topic: &str, partitions: usize) -> Self {
        Self::broken(topic, partitions, None)
    }

    /// The same with a fault built in.
    #[must_use]
    pub fn broken(topic: &str, partitions: usize, broken: Option<SourceBreak>) -> Self {
        let partitions = (0..partitions).map(|_| Log::default()).collect();
        let state = State { partitions, groups: BTreeMap::new(), members_made: 0, away: false };
        Self {
            shared: Arc::new(Shared {
                topic: topic.into(),
                broken,
                revoke_within: Duration::from_secs(5),
                state: Mutex::new(state),
                changed: watch::channel(0).0,
            }),
        }
    }

    /// Appends a record and answers its offset; `None` for a partition that is not there.
    pub fn publish(&self, partition: usize, payload: Payload) -> Option<i64> {
        let offset = {
            let mut state = self.shared.lock();
            let log = state.partitions.get_mut(partition)?;
            let offset = log.next_offset;
            log.next_offset += 1;
            log.records.push((offset, payload));
            offset
        };
        self.shared.bump();
        Some(offset)
    }

    /// Leaves offsets out, as control records and compaction do.
    pub fn skip_offsets(&self, partition: usize, count: i64) {
        if let Some(log) = self.shared.lock().partitions.get_mut(partition) {
            log.next_offset += count;
        }
    }

    /// A member of a group; it joins when it is started.
    #[must_use]
    pub fn source(&self, group: &str) -> LogSource {
        LogSource::new(Arc::clone(&self.shared), group)
    }

    /// The group's committed position of a partition.
    #[must_use]
    pub fn committed(&self, group: &str, partition: usize) -> Option<i64> {
        self.shared.lock().groups.get(group)?.partitions.get(partition)?.committed
    }

    /// How many records of a partition lie before the group's committed position.
    #[must_use]
    pub fn settled_count(&self, group: &str, partition: usize) -> usize {
        let committed = self.committed(group, partition).unwrap_or(0);
        let state = self.shared.lock();
        let log = state.partitions.get(partition);
        log.map_or(0, |log| log.records.partition_point(|(offset, _)| *offset < committed))
    }

    /// Moves every partition to the next member, with notice.
    pub fn rebalance(&self, group: &str) {
        self.shared.with_group(group, |group| group.shift += 1);
    }

    /// Puts all members out without notice, as when they did not poll in time: others may take their
    /// partitions at once, and they themselves learn of it and join again.
    pub fn evict_all(&self, group: &str) {
        self.shared.with_group(group, |group| {
            group.evicted.extend(group.members.drain(..));
            for partition in group.partitions.iter_mut().filter(|partition| partition.owner.is_some()) {
                partition.owner = None;
                partition.epoch += 1;
            }
        });
    }

    /// Sets the committed positions back to the beginning, as an operator would.
    pub fn rewind(&self, group: &str) {
        self.shared.with_group(group, |group| {
            group.partitions.iter_mut().for_each(|partition| partition.committed = Some(0));
        });
        self.evict_all(group);
    }

    /// The next commits of a group are answered so and keep nothing.
    pub fn refuse_commits(&self, group: &str, answers: &[Settled]) {
        self.shared.with_group(group, |group| group.refusals.extend(answers));
    }

    /// Takes the broker away, or brings it back.
    pub fn set_away(&self, away: bool) {
        self.shared.lock().away = away;
        self.shared.bump();
    }
}
