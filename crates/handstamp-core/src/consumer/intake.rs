//! The lanes' queues and their bounds (no I/O, no clock of its own).
//!
//! A lane holds deliveries until a batch takes them. Past its share it is held at the source, and
//! released again at half of it; past the bound of all lanes together the engine stops reading the
//! port, so that the source keeps what it has and goes on polling.

use super::options::ConsumerOptions;
use crate::delivery::{Delivery, DeliveryTag, Lane};
use crate::source::NamedLane;
use crate::telemetry::LaneLag;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// One lane that is assigned to us.
pub(crate) struct LaneState {
    pub(crate) lane: Lane,
    pub(crate) name: Arc<str>,
    queue: VecDeque<Delivery>,
    bytes: usize,
    oldest: Option<Instant>,
    /// What its turn works on.
    pub(crate) running: Vec<DeliveryTag>,
    /// When its turn began, and of how many batches it is.
    turn: (Option<Instant>, u32),
    /// The batches of its last turn ended quickly.
    quick: bool,
    /// Handed over everything that was there.
    pub(crate) caught_up: bool,
    /// Being taken away: no new batch.
    pub(crate) revoking: bool,
    held: bool,
    served: u64,
    /// As last told.
    pub(crate) lag: Option<u64>,
}

/// All lanes of this process.
pub(crate) struct Intake {
    pub(crate) lanes: BTreeMap<Lane, LaneState>,
    bytes: usize,
    count: usize,
    limits: Limits,
    turn: u64,
}

struct Limits {
    batch_max: usize,
    batch_max_bytes: usize,
    batch_wait: Duration,
    all_bytes: usize,
    all_count: usize,
}

/// What the source is asked to do with a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Hold(Lane),
    Release(Lane),
}

/// A lane's queue is never held below this many batches: a lane must not starve between fetches.
const LANE_BATCHES: usize = 16;
/// Deliveries of one lane that are always allowed.
const LANE_COUNT_MIN: usize = 1_000;
/// A turn is one batch, or so many of so few messages together.
const TURN_BATCHES: usize = 8;
const TURN_MESSAGES: usize = 64;
/// A batch that takes longer gains nothing from the next one's company.
const QUICK: Duration = Duration::from_millis(20);
/// Bookkeeping per queued delivery that the byte bounds count beside its bytes.
const DELIVERY_OVERHEAD_BYTES: usize = 256;

impl Intake {
    pub(crate) fn new(options: &ConsumerOptions) -> Self {
        let limits = Limits {
            batch_max: options.batch_max.max(1),
            batch_max_bytes: options.batch_max_bytes.max(1),
            batch_wait: options.batch_wait,
            // Half of the queue belongs to the source and its client library.
            all_bytes: (options.queue_max_bytes / 2).max(1),
            all_count: options.batch_max.saturating_mul(64).max(10_000),
        };
        Self { lanes: BTreeMap::new(), bytes: 0, count: 0, limits, turn: 0 }
    }

    /// True while more deliveries may be taken from the port.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < self.limits.all_bytes && self.count < self.limits.all_count
    }

    pub(crate) fn assign(&mut self, named: NamedLane) {
        let state = LaneState {
            lane: named.lane,
            name: named.name,
            queue: VecDeque::new(),
            bytes: 0,
            oldest: None,
            running: vec![],
            turn: (None, 0),
            quick: false,
            caught_up: false,
            revoking: false,
            held: false,
            served: 0,
            lag: None,
        };
        self.lanes.insert(named.lane, state);
    }

    /// Queues deliveries, of one lane as a rule; stray ones come back. What meets an empty queue becomes the
    /// queue, without being moved.
    pub(crate) fn push_all(&mut self, batch: Vec<Delivery>, now: Instant) -> Vec<Delivery> {
        let of_one_lane =
            batch.first().map(|first| first.lane).filter(|lane| batch.iter().all(|d| d.lane == *lane));
        let state = of_one_lane.and_then(|lane| self.lanes.get_mut(&lane));
        let Some(state) = state.filter(|state| !state.revoking && state.queue.is_empty()) else {
            return batch.into_iter().filter_map(|delivery| self.push(delivery, now)).collect();
        };
        let size: usize = batch.iter().map(cost).sum();
        state.bytes += size;
        self.bytes += size;
        self.count += batch.len();
        state.oldest.get_or_insert(now);
        state.caught_up = false;
        state.queue = VecDeque::from(batch);
        vec![]
    }

    /// Queues a delivery; a stray one, whose lane is not ours (any more), comes back.
    pub(crate) fn push(&mut self, delivery: Delivery, now: Instant) -> Option<Delivery> {
        let Some(state) = self.lanes.get_mut(&delivery.lane).filter(|state| !state.revoking) else {
            return Some(delivery);
        };
        let size = cost(&delivery);
        state.bytes += size;
        self.bytes += size;
        self.count += 1;
        state.oldest.get_or_insert(now);
        state.caught_up = false;
        state.queue.push_back(delivery);
        None
    }

    /// Keeps what the source told of lanes that are ours.
    pub(crate) fn note_lag(&mut self, lags: &[(Lane, u64)]) {
        for (lane, lag) in lags {
            if let Some(state) = self.lanes.get_mut(lane) {
                state.lag = Some(*lag);
            }
        }
    }

    /// The lag of each lane of which one was told.
    pub(crate) fn lags(&self) -> impl Iterator<Item = LaneLag> {
        let lag = |state: &LaneState| Some(LaneLag { name: Arc::clone(&state.name), lag: state.lag? });
        self.lanes.values().filter_map(lag)
    }

    /// Takes everything still queued of a lane.
    pub(crate) fn drain(&mut self, lane: Lane) -> Vec<Delivery> {
        let Some(state) = self.lanes.get_mut(&lane) else { return vec![] };
        self.bytes -= std::mem::take(&mut state.bytes);
        self.count -= state.queue.len();
        state.oldest = None;
        state.queue.drain(..).collect()
    }

    /// Forgets a lane; what was queued comes back.
    pub(crate) fn remove(&mut self, lane: Lane) -> Vec<Delivery> {
        let rest = self.drain(lane);
        self.lanes.remove(&lane);
        rest
    }

    /// Asks for more or less of a lane, when that changed.
    pub(crate) fn flow(&mut self, lane: Lane) -> Option<Flow> {
        let lanes = self.lanes.len().max(1);
        let bytes_high = (self.limits.all_bytes / lanes).max(256 << 10);
        let count_high = (self.limits.batch_max * LANE_BATCHES).max(LANE_COUNT_MIN);
        let state = self.lanes.get_mut(&lane)?;
        let full = state.bytes >= bytes_high || state.queue.len() >= count_high;
        let half = state.bytes <= bytes_high / 2 && state.queue.len() <= count_high / 2;
        if full && !state.held {
            state.held = true;
            Some(Flow::Hold(lane))
        } else if half && state.held {
            state.held = false;
            Some(Flow::Release(lane))
        } else {
            None
        }
    }

    /// The lane whose batch should start now: full, waited long enough or caught up; least recently
    /// served first. `eager` starts whatever is there.
    pub(crate) fn ready(&self, now: Instant, eager: bool) -> Option<Lane> {
        let limits = &self.limits;
        self.lanes
            .values()
            .filter(|s| s.running.is_empty() && !s.revoking && !s.queue.is_empty())
            .filter(|s| {
                eager
                    || s.caught_up
                    || s.queue.len() >= limits.batch_max
                    || s.bytes >= limits.batch_max_bytes
                    || s.oldest.is_some_and(|oldest| now.duration_since(oldest) >= limits.batch_wait)
            })
            .min_by_key(|s| s.served)
            .map(|s| s.lane)
    }

    /// True when a lane could start a batch that is as large as may be.
    pub(crate) fn has_full_batch(&self) -> bool {
        self.lanes
            .values()
            .any(|s| s.running.is_empty() && !s.revoking && s.queue.len() >= self.limits.batch_max)
    }

    /// When the first waiting batch becomes ready by time.
    pub(crate) fn next_ready_at(&self) -> Option<Instant> {
        self.lanes
            .values()
            .filter(|s| s.running.is_empty() && !s.revoking)
            .filter_map(|s| s.oldest)
            .min()
            .map(|oldest| oldest + self.limits.batch_wait)
    }

    /// Takes the batches of a lane's turn and marks them running: one, or several full ones of few messages
    /// where the last turn was quick, so that other lanes do not wait long.
    pub(crate) fn take_turn(&mut self, lane: Lane, now: Instant) -> Vec<Vec<Delivery>> {
        self.turn += 1;
        let mut batches = vec![self.take_batch(lane, now)];
        let batch_max = self.limits.batch_max;
        while batches.len() < TURN_BATCHES
            && (batches.len() + 1) * batch_max <= TURN_MESSAGES
            && self.lanes.get(&lane).is_some_and(|s| s.quick && s.queue.len() >= batch_max)
        {
            batches.push(self.take_batch(lane, now));
        }
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.served = self.turn;
            state.turn = (Some(now), u32::try_from(batches.len()).unwrap_or(u32::MAX));
        }
        batches
    }

    /// A lane's turn is over.
    pub(crate) fn turn_ended(&mut self, lane: Lane, now: Instant) {
        let Some(state) = self.lanes.get_mut(&lane) else { return };
        state.running.clear();
        if let (Some(began), batches) = std::mem::take(&mut state.turn) {
            state.quick = now.duration_since(began) <= QUICK * batches;
        }
    }

    fn take_batch(&mut self, lane: Lane, now: Instant) -> Vec<Delivery> {
        let Some(state) = self.lanes.get_mut(&lane) else { return vec![] };
        let (mut count, mut bytes, mut costs) = (0, 0, 0);
        for next in state.queue.iter().take(self.limits.batch_max) {
            let size = next.record.size_bytes();
            if count > 0 && bytes + size > self.limits.batch_max_bytes {
                break;
            }
            count += 1;
            bytes += size;
            costs += cost(next);
        }
        state.bytes -= costs;
        self.bytes -= costs;
        self.count -= count;
        let batch: Vec<Delivery> = if count == state.queue.len() {
            Vec::from(std::mem::take(&mut state.queue))
        } else {
            state.queue.drain(..count).collect()
        };
        state.oldest = (!state.queue.is_empty()).then_some(now);
        state.running.extend(batch.iter().map(|delivery| delivery.tag));
        batch
    }

    /// True while something is queued or running.
    pub(crate) fn has_work(&self) -> bool {
        self.lanes.values().any(|s| !s.queue.is_empty() || !s.running.is_empty())
    }

    /// True when nothing is queued or running and every lane has caught up.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_work() && self.lanes.values().all(|s| s.caught_up)
    }

    /// Every delivery that this process still works on or keeps, for leases.
    pub(crate) fn in_hand(&self) -> Vec<(Lane, DeliveryTag)> {
        self.lanes
            .values()
            .flat_map(|s| {
                s.running.iter().copied().chain(s.queue.iter().map(|d| d.tag)).map(|tag| (s.lane, tag))
            })
            .collect()
    }
}

fn cost(delivery: &Delivery) -> usize {
    delivery.record.size_bytes() + DELIVERY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::ReadAhead;
    use crate::message::{Headers, Origin, Record};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn delivery(lane: Lane, tag: u64, bytes: usize) -> Delivery {
        let record = Record {
            key: None,
            value: Some(Bytes::from(vec![b'x'; bytes])),
            headers: Headers::default(),
            origin: Origin { topic: "t".into(), partition: 0, offset: 0, line: None },
            timestamp: None,
        };
        Delivery { lane, tag: DeliveryTag(tag), record, fault: None, ahead: ReadAhead::default() }
    }

    fn named(id: u32) -> NamedLane {
        NamedLane { lane: Lane { id, epoch: 1 }, name: "t".into() }
    }

    proptest! {
        /// Whatever comes and goes, the bounds' bookkeeping is exact and batches keep their limits.
        #[test]
        fn bounds_are_kept(steps in proptest::collection::vec((0_u32..3, 0_usize..2_000, any::<bool>()), 1..200)) {
            let options = ConsumerOptions { batch_max: 7, batch_max_bytes: 4_000, ..ConsumerOptions::default() };
            let mut intake = Intake::new(&options);
            let now = Instant::now();
            for id in 0..3 { intake.assign(named(id)); }
            for (tag, (id, bytes, take)) in steps.into_iter().enumerate() {
                let lane = Lane { id, epoch: 1 };
                if take {
                    let batch = intake.take_batch(lane, now);
                    let total: usize = batch.iter().map(|d| d.record.size_bytes()).sum();
                    prop_assert!(batch.len() <= 7);
                    prop_assert!(total <= 4_000 || batch.len() == 1);
                } else {
                    let batch = (0..bytes % 5).map(|_| delivery(lane, tag as u64, bytes)).collect();
                    prop_assert!(intake.push_all(batch, now).is_empty());
                }
                let bytes: usize = intake.lanes.values().map(|s| s.queue.iter().map(cost).sum::<usize>()).sum();
                let count: usize = intake.lanes.values().map(|s| s.queue.len()).sum();
                prop_assert_eq!((intake.bytes, intake.count), (bytes, count));
            }
        }
    }

    #[test]
    fn a_delivery_of_another_epoch_comes_back() {
        let mut intake = Intake::new(&ConsumerOptions::default());
        intake.assign(named(1));
        let stale = delivery(Lane { id: 1, epoch: 0 }, 1, 1);
        assert_eq!(intake.push_all(vec![stale.clone()], Instant::now()).len(), 1);
        assert_eq!(
            intake.push_all(vec![delivery(Lane { id: 1, epoch: 1 }, 2, 1), stale], Instant::now()).len(),
            1
        );
    }

    #[test]
    fn a_full_lane_is_held_once_and_released_at_half() {
        let options = ConsumerOptions { batch_max: 10, ..ConsumerOptions::default() };
        let mut intake = Intake::new(&options);
        intake.assign(named(1));
        let lane = Lane { id: 1, epoch: 1 };
        let mut asked = vec![];
        for tag in 0..1_500 {
            assert!(intake.push(delivery(lane, tag, 1), Instant::now()).is_none());
            asked.extend(intake.flow(lane));
        }
        while !intake.take_batch(lane, Instant::now()).is_empty() {
            asked.extend(intake.flow(lane));
        }
        assert_eq!(asked, [Flow::Hold(lane), Flow::Release(lane)]);
    }
}
