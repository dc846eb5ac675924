//! From a partition's queue to the engine: lane after lane, one lane a batch, only when there is room.

use super::assignment::{Item, Owned};
use super::ffi::{self, Code};
use super::outbox::Room;
use super::session::Session;
use super::trouble::LaneError;
use handstamp_core::{Control, CrashPoint, Delivery, DeliveryTag, Lane, Notice, ReadAhead};
use rdkafka::Offset;
use rdkafka::consumer::Consumer as _;
use std::time::Duration;

/// Most batches handed over between two polls of the main queue.
const BATCHES_MAX: usize = 32;
/// Most records read from a queue at a time.
const READ_MAX: usize = 256;

/// What came of building a batch.
#[derive(Default)]
struct Built {
    batch: Vec<Delivery>,
    bytes: usize,
    /// The end of the partition was reached behind the batch.
    ended: bool,
    /// The next record lies before what was handed over: the lane begins anew.
    backwards: bool,
}

impl Session {
    /// Hands over what there is. Returns true when it stopped only to let others have their turn.
    pub(super) fn deliver(&mut self) -> bool {
        for _ in 0..BATCHES_MAX {
            if self.end.is_some() {
                return false;
            }
            let Some(at) = self.worker.lanes.next_ready(self.cursor) else { return false };
            match self.worker.outbox.room(&self.worker.waker) {
                Room::Free => {}
                Room::Full => return false,
                Room::Closed => {
                    self.worker.engine_gone = true;
                    return true;
                }
            }
            self.cursor = at;
            self.deliver_lane(u32::try_from(at).unwrap_or(u32::MAX));
        }
        true
    }

    fn deliver_lane(&mut self, id: u32) {
        if self.rewind_if_released(id) {
            return;
        }
        let lane = self.worker.lanes.lane(id);
        let built = self.batch(id, lane);
        if !built.batch.is_empty() {
            CrashPoint::AfterPoll.reached();
            self.worker.outbox.send(built.batch);
        }
        if built.ended
            && let Some(owned) = self.worker.lanes.current(lane)
            && !std::mem::replace(&mut owned.told_end, true)
        {
            self.worker.say(Control::CaughtUp(vec![lane]));
        }
        if built.backwards {
            self.notice_gap(id, "the log goes on before what was handed over");
            self.begin_anew(id, None);
        }
    }

    fn batch(&mut self, id: u32, lane: Lane) -> Built {
        let mut built = Built::default();
        let limits = self.worker.limits;
        while built.batch.len() < limits.batch_max.max(1) && !built.ended {
            if !self.read(id) {
                break;
            }
            let Some(slot) = self.worker.lanes.slot(id) else { break };
            let Some(owned) = slot.owned.as_mut() else { break };
            let Some(item) = owned.left.pop_front() else { break };
            match item {
                Item::End(offset) => {
                    owned.end = Some(offset);
                    built.ended = true;
                }
                Item::Record(record, fault) => {
                    let bytes = record.size_bytes();
                    if !built.batch.is_empty() && built.bytes + bytes > limits.batch_max_bytes {
                        owned.left.push_front(Item::Record(record, fault));
                        break;
                    }
                    let offset = record.origin.offset;
                    let expected = owned.next.or(owned.start);
                    if !owned.hand_over(offset) {
                        owned.left.push_front(Item::Record(record, fault));
                        built.backwards = true;
                        break;
                    }
                    built.bytes += bytes;
                    let tag = DeliveryTag(u64::try_from(offset).unwrap_or(0));
                    built.batch.push(Delivery { lane, tag, record, fault, ahead: ReadAhead::default() });
                    if expected.is_some_and(|expected| expected != offset) {
                        self.look_at_gap(id, expected.unwrap_or(0), offset);
                    }
                }
            }
        }
        built
    }

    /// Makes sure that something is left to hand over. Returns false when there is nothing.
    fn read(&mut self, id: u32) -> bool {
        let max = self.worker.limits.batch_max.clamp(1, READ_MAX);
        let (copier, outage) = (&mut self.copier, self.told.outages);
        let Some(slot) = self.worker.lanes.slot(id) else { return false };
        let (topic, partition) = (&slot.topic, slot.partition);
        let Some(Owned { queue, left, emptied_in, trouble, .. }) = slot.owned.as_mut() else { return false };
        if !left.is_empty() {
            return true;
        }
        if let Some(signal) = queue.signal() {
            if !signal.is_raised() {
                *emptied_in = outage;
                return false;
            }
            signal.lower();
        }
        let mut errors = vec![];
        let read = queue.read(max, |raw| match raw.code() {
            Code::NONE => {
                let (record, fault) = copier.copy(raw, topic, partition);
                left.push_back(Item::Record(record, fault));
            }
            Code::PARTITION_EOF => left.push_back(Item::End(raw.offset())),
            code => errors.push(LaneError { code, offset: raw.offset(), words: raw.words() }),
        });
        if read == max
            && let Some(signal) = queue.signal()
        {
            signal.keep();
        }
        let found = !left.is_empty();
        // What was fetched before the broker went away says nothing about it.
        let is_news = *emptied_in == outage;
        if found {
            *trouble = None;
        } else {
            *emptied_in = outage;
        }
        if found && is_news {
            self.broker_answers();
        }
        for error in errors {
            self.lane_trouble(id, &error);
        }
        found
    }

    /// A gap is ordinary (compaction, transactions) unless the log now begins behind it; a first record
    /// before the committed position means that the position was out of range.
    fn look_at_gap(&mut self, id: u32, expected: i64, offset: i64) {
        let Some(slot) = self.worker.lanes.slot(id) else { return };
        let low = ffi::watermarks(&self.client, &slot.topic, slot.partition).map(|(low, _)| low);
        if offset < expected || low.is_some_and(|low| low > expected) {
            self.notice_gap(id, &format!("the log has nothing at {expected}, going on at {offset}"));
        }
    }

    fn notice_gap(&mut self, id: u32, what: &str) {
        self.worker.notice(Notice::Truncated);
        tracing::warn!(target: "handstamp", lane = %self.worker.lanes.named(id).name, "{what}");
    }

    /// Once nothing of a lane is in flight and something of it was released: goes back to its mark in a
    /// new epoch, so that what was released comes again.
    fn rewind_if_released(&mut self, id: u32) -> bool {
        let client = self.client.clone();
        let Some(slot) = self.worker.lanes.slot(id) else { return false };
        let Some(owned) = slot.owned.as_mut() else { return false };
        if !owned.released {
            return false;
        }
        owned.released = false;
        if owned.mark.in_flight() == 0 {
            return false;
        }
        let Some(back_to) = owned.mark.position().or(owned.first) else { return false };
        if let Err(error) = client.seek(&slot.topic, slot.partition, Offset::Offset(back_to), Duration::ZERO)
        {
            let lane = self.worker.lanes.named(id).name;
            tracing::warn!(target: "handstamp", %lane, %error, offset = back_to,
                "cannot go back to what was released; it comes again after a restart");
            return false;
        }
        owned.left.clear();
        self.begin_anew(id, Some(back_to));
        true
    }

    /// The same partition in a new epoch: what was handed over before counts no more.
    fn begin_anew(&mut self, id: u32, start: Option<i64>) {
        let old = self.worker.lanes.lane(id);
        let acked = self.take_acked(id);
        let held = self.worker.lanes.slot(id).is_some_and(|slot| slot.held);
        self.worker.lanes.raise_epoch(id);
        if let Some(slot) = self.worker.lanes.slot(id) {
            slot.held = held;
            if let Some(owned) = slot.owned.as_mut() {
                owned.begin_anew(start);
            }
        }
        self.answer_left(old, acked);
        self.worker.say(Control::Lost(vec![old]));
        self.worker.say(Control::Assigned(vec![self.worker.lanes.named(id)]));
    }
}
