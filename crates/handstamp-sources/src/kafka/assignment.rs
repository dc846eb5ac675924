//! The lanes: which partitions are ours, in which epoch, and how far each one is.
//!
//! ```text
//!            assign: epoch + 1                      revoke, loss: epoch + 1
//!  unknown ───────────────────► ours ─────────────────────────────────────► not ours
//!            (the id stays)      │ ▲                                            │
//!                                └─┘ log cut behind us, release: epoch + 1      │
//!                 ▲─────────────────────────────────────────────────────────────┘
//! ```
//!
//! A result counts only for the epoch its delivery was made in.

use super::ffi::{Code, Queue};
use handstamp_core::offsets::{LowWaterMark, Received};
use handstamp_core::source::NamedLane;
use handstamp_core::{Lane, Record, RecordFault};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// What was read of a partition and not yet handed over.
// Nearly every item is a record, so a box would cost more than it saves.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(super) enum Item {
    /// A record, and what is wrong with it.
    Record(Record, Option<RecordFault>),
    /// The end of the partition at this offset.
    End(i64),
}

/// A partition that is ours.
pub(super) struct Owned {
    /// What waits inside the client library.
    pub(super) queue: Queue,
    /// The outage in which that was last seen empty: what comes later was fetched later.
    pub(super) emptied_in: u32,
    /// Read and not yet handed over; at most one small read.
    pub(super) left: VecDeque<Item>,
    /// What was handed over and settled in this epoch.
    pub(super) mark: LowWaterMark,
    /// Acked and not yet answered.
    pub(super) acked: Vec<i64>,
    /// Handed over and neither acked nor released.
    pub(super) unanswered: usize,
    /// Released in this epoch: the lane goes back when nothing of it is in flight.
    pub(super) released: bool,
    /// The position that the broker has of this epoch.
    pub(super) committed: Option<i64>,
    /// A position that the broker would not have: not tried again.
    pub(super) refused: Option<i64>,
    /// The first offset handed over in this epoch.
    pub(super) first: Option<i64>,
    /// Where the group stood when the lane was assigned, if it was told.
    pub(super) start: Option<i64>,
    /// One past the last offset handed over.
    pub(super) next: Option<i64>,
    /// The offset of the last end that was reached.
    pub(super) end: Option<i64>,
    /// Said that the end was reached, and nothing handed over since.
    pub(super) told_end: bool,
    /// The last error of the partition's queue, since it gave something.
    pub(super) trouble: Option<Code>,
    /// Out of the group: a revoke follows. Should none come, commits are tried again after this.
    pub(super) fenced_until: Option<Instant>,
}

impl Owned {
    pub(super) fn new(queue: Queue, start: Option<i64>) -> Self {
        Self {
            queue,
            emptied_in: 0,
            left: VecDeque::new(),
            mark: LowWaterMark::new(),
            acked: vec![],
            unanswered: 0,
            released: false,
            committed: None,
            refused: None,
            first: None,
            start,
            next: None,
            end: None,
            told_end: false,
            trouble: None,
            fenced_until: None,
        }
    }

    /// The same partition in a new epoch: nothing of the old one counts.
    pub(super) fn begin_anew(&mut self, start: Option<i64>) {
        self.mark = LowWaterMark::new();
        self.unanswered = 0;
        self.released = false;
        self.committed = None;
        self.refused = None;
        self.first = None;
        self.start = start;
        self.next = None;
        self.end = None;
        self.told_end = false;
    }

    /// The position that is worth a commit now.
    pub(super) fn to_commit(&self) -> Option<i64> {
        let position = self.mark.position()?;
        let known = self.committed.max(self.refused);
        let fenced = self.fenced_until.is_some_and(|until| Instant::now() < until);
        (!fenced && known.is_none_or(|known| position > known)).then_some(position)
    }

    /// Where the settled part ends, as far as is known: behind control records when all is settled.
    pub(super) fn settled_to(&self) -> Option<i64> {
        let settled = self.mark.position().or(self.start);
        if self.mark.in_flight() == 0 && self.left.is_empty() { settled.max(self.end) } else { settled }
    }

    /// As `settled_to`, of what the broker is known to have: what comes again lies behind it.
    pub(super) fn committed_to(&self) -> Option<i64> {
        let committed = self.committed.or(self.start);
        if self.mark.position().is_none_or(|position| Some(position) <= committed) {
            self.settled_to().or(self.first)
        } else {
            committed.or(self.first)
        }
    }

    /// Whether something may be waiting. A lane with something released hands over nothing until it can
    /// go back.
    pub(super) fn ready(&self) -> bool {
        if self.released {
            return self.unanswered == 0 && self.to_commit().is_none();
        }
        !self.left.is_empty() || self.queue.signal().is_none_or(super::wake::Signal::is_raised)
    }

    /// Notes that a record is handed over now; false when its offset lies before one handed over.
    pub(super) fn hand_over(&mut self, offset: i64) -> bool {
        if self.mark.received(offset) == Received::Repeated {
            return false;
        }
        self.unanswered += 1;
        self.first = self.first.or(Some(offset));
        self.next = Some(offset + 1);
        self.told_end = false;
        true
    }

    /// Takes the acked offsets below the position out.
    pub(super) fn take_acked_below(&mut self, position: i64) -> Vec<i64> {
        let (below, rest) =
            std::mem::take(&mut self.acked).into_iter().partition(|offset| *offset < position);
        self.acked = rest;
        below
    }
}

/// A partition we have seen.
pub(super) struct Slot {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    name: Arc<str>,
    epoch: u32,
    pub(super) held: bool,
    pub(super) owned: Option<Owned>,
}

/// All partitions of this process; a lane's id is its place here and never changes.
#[derive(Default)]
pub(super) struct Lanes {
    ids: HashMap<(Arc<str>, i32), u32>,
    slots: Vec<Slot>,
}

impl Lanes {
    /// The id of a partition, new or known.
    pub(super) fn id(&mut self, topic: &str, partition: i32) -> u32 {
        let key = (Arc::<str>::from(topic), partition);
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let name = Arc::from(format!("{topic}[{partition}]"));
        let topic = Arc::clone(&key.0);
        self.slots.push(Slot { topic, partition, name, epoch: 0, held: false, owned: None });
        self.ids.insert(key, id);
        id
    }

    /// The id of a partition seen before.
    pub(super) fn known(&self, topic: &str, partition: i32) -> Option<u32> {
        self.ids.get(&(Arc::<str>::from(topic), partition)).copied()
    }

    pub(super) fn slot(&mut self, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(id).ok()?)
    }

    /// The lane in its present epoch.
    pub(super) fn lane(&self, id: u32) -> Lane {
        let epoch = usize::try_from(id).ok().and_then(|at| self.slots.get(at)).map_or(0, |slot| slot.epoch);
        Lane { id, epoch }
    }

    /// The lane with its name.
    pub(super) fn named(&self, id: u32) -> NamedLane {
        let at = usize::try_from(id).unwrap_or(usize::MAX);
        let name = self.slots.get(at).map_or_else(|| Arc::from(""), |slot| Arc::clone(&slot.name));
        NamedLane { lane: self.lane(id), name }
    }

    /// The partition, when it is ours in exactly this epoch.
    pub(super) fn current(&mut self, lane: Lane) -> Option<&mut Owned> {
        let slot = self.slot(lane.id)?;
        if slot.epoch == lane.epoch { slot.owned.as_mut() } else { None }
    }

    /// Raises the lane's epoch.
    pub(super) fn raise_epoch(&mut self, id: u32) -> Lane {
        if let Some(slot) = self.slot(id) {
            slot.epoch = slot.epoch.wrapping_add(1);
            slot.held = false;
        }
        self.lane(id)
    }

    /// Handed over and neither acked nor released, of all lanes.
    pub(super) fn unanswered(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.owned.as_ref()).map(|owned| owned.unanswered).sum()
    }

    /// Ids of the partitions that are ours.
    pub(super) fn ours(&self) -> Vec<u32> {
        (0_u32..).zip(&self.slots).filter(|(_, slot)| slot.owned.is_some()).map(|(id, _)| id).collect()
    }

    /// The next lane from `after` on, round and round, that has something for a lane not held.
    pub(super) fn next_ready(&self, after: usize) -> Option<usize> {
        let count = self.slots.len();
        (1..=count).map(|step| (after + step) % count).find(|at| {
            let slot = &self.slots[*at];
            !slot.held && slot.owned.as_ref().is_some_and(Owned::ready)
        })
    }
}
