//! Whether a consumer lives, what it waits for and how long things take: what probes and dashboards ask.
//!
//! Written by the engine's thread at the seams, so that no source and no store can forget it; read from any thread.
//!
//! ```text
//! starting ─► running ─► stopping        beats: each step of the engine's loop, at least once a second
//! ```

use super::histogram::Histogram;
use super::ready::Unready;
use super::{LaneLag, Notice};
use crate::breaker::BreakerState;
use crate::consumer::Slots;
use crate::store::StoreErrorKind;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often somebody beats who only waits.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// The store's or the source's state while nothing keeps it from work.
const NOTHING: u8 = u8::MAX;

/// The signs of life of one consumer in this process.
#[derive(Debug)]
pub struct Vitals {
    born: Instant,
    /// When the last beat was, counted from the birth.
    beat_millis: AtomicU64,
    /// Lanes were handed over, or their broker was heard of: the number of a reason, or nothing.
    source: AtomicU8,
    /// The number of the reason for which the store cannot go on, or nothing.
    store: AtomicU8,
    stopping: AtomicBool,
    is_full: AtomicBool,
    breaker: AtomicU8,
    notices: [AtomicU64; Notice::ALL.len()],
    lag: AtomicU64,
    lanes: Mutex<Vec<LaneLag>>,
    slots: OnceLock<Slots>,
    batches: Histogram,
    handling: Histogram,
    committing: Histogram,
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            beat_millis: AtomicU64::new(0),
            source: AtomicU8::new(Unready::Starting as u8),
            store: AtomicU8::new(Unready::Starting as u8),
            stopping: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            breaker: AtomicU8::new(BreakerState::Closed as u8),
            notices: std::array::from_fn(|_| AtomicU64::new(0)),
            lag: AtomicU64::new(0),
            lanes: Mutex::default(),
            slots: OnceLock::new(),
            batches: Histogram::of_batches(),
            handling: Histogram::of_times(),
            committing: Histogram::of_times(),
        }
    }
}

impl Vitals {
    /// Why nothing new is taken up now; empty: it is.
    #[must_use]
    pub fn unready(&self) -> Vec<Unready> {
        let (store, source) = (self.store.load(Ordering::Relaxed), self.source.load(Ordering::Relaxed));
        let holds = |reason: &Unready| {
            let number = *reason as u8;
            match reason {
                Unready::Stopping => self.stopping.load(Ordering::Relaxed),
                Unready::Breaker => self.breaker() != BreakerState::Closed,
                Unready::ParkedMax => self.is_full.load(Ordering::Relaxed),
                _ => store == number || source == number,
            }
        };
        Unready::ALL.into_iter().filter(holds).collect()
    }

    /// Whether the store answers, as last met.
    #[must_use]
    pub fn store_is_up(&self) -> bool {
        self.store.load(Ordering::Relaxed) == NOTHING
    }

    /// Whether the source handed over lanes, and its broker was not said to be away since.
    #[must_use]
    pub fn source_is_up(&self) -> bool {
        self.source.load(Ordering::Relaxed) == NOTHING
    }

    /// How long ago the engine's loop turned for the last time, or whoever waits for the store in front of it.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        let last = Duration::from_millis(self.beat_millis.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(last)
    }

    /// The loop turned.
    pub fn beat(&self) {
        let millis = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_millis.store(millis, Ordering::Relaxed);
    }

    /// Beats for as long as it is polled: beside what only waits, on the same thread.
    pub async fn beats(&self) -> Infallible {
        let mut every = tokio::time::interval(BEAT_EVERY);
        loop {
            every.tick().await;
            self.beat();
        }
    }

    /// It was asked to stop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The store cannot go on.
    pub fn store_failed(&self, kind: StoreErrorKind) {
        self.store.store(Unready::of_store(kind) as u8, Ordering::Relaxed);
    }

    /// The store answers.
    pub fn store_answers(&self) {
        self.store.store(NOTHING, Ordering::Relaxed);
    }

    /// Where the handler's breaker stands.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        let number = self.breaker.load(Ordering::Relaxed);
        BreakerState::ALL.into_iter().find(|state| *state as u8 == number).unwrap_or_default()
    }

    /// Records behind the settled positions of all lanes, as last told.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.lag.load(Ordering::Relaxed)
    }

    /// The lag of each lane of which one was told.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneLag> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often each thing happened to the source.
    #[must_use]
    pub fn notices(&self) -> [(Notice, u64); Notice::ALL.len()] {
        Notice::ALL.map(|notice| (notice, self.notices[notice as usize].load(Ordering::Relaxed)))
    }

    /// How many transactions may be open at a time, and how many are taken; `None` before the consumer runs.
    #[must_use]
    pub fn slots(&self) -> Option<(usize, usize)> {
        self.slots.get().map(|slots| (slots.all(), slots.taken()))
    }

    /// Messages of each committed transaction.
    #[must_use]
    pub fn batches(&self) -> &Histogram {
        &self.batches
    }

    /// How long the handler took for what it was given at a time, whatever came of it.
    #[must_use]
    pub fn handling(&self) -> &Histogram {
        &self.handling
    }

    /// How long the store took to commit.
    #[must_use]
    pub fn committing(&self) -> &Histogram {
        &self.committing
    }

    pub(crate) fn note(&self, notice: Notice) {
        self.notices[notice as usize].fetch_add(1, Ordering::Relaxed);
        match notice {
            Notice::BrokerAway => self.source.store(Unready::SourceAway as u8, Ordering::Relaxed),
            Notice::BrokerBack => self.source_answers(),
            _ => {}
        }
    }

    pub(crate) fn source_answers(&self) {
        self.source.store(NOTHING, Ordering::Relaxed);
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub(crate) fn set_breaker(&self, state: BreakerState) {
        self.breaker.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_lags(&self, lags: impl Iterator<Item = LaneLag>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.clear();
        lanes.extend(lags);
        self.lag.store(lanes.iter().map(|lane| lane.lag).sum(), Ordering::Relaxed);
    }

    pub(crate) fn set_slots(&self, slots: Slots) {
        // One run has one set.
        let _ = self.slots.set(slots);
    }

    pub(crate) fn handled(&self, took: Duration) {
        self.handling.record_time(took);
    }

    pub(crate) fn committed(&self, messages: usize, took: Duration) {
        self.batches.record(u64::try_from(messages).unwrap_or(u64::MAX));
        self.committing.record_time(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_that_keeps_it_from_work_is_a_reason_and_goes_again() {
        let vitals = Vitals::default();
        assert_eq!(vitals.unready(), [Unready::Starting]);
        vitals.store_answers();
        assert_eq!(vitals.unready(), [Unready::Starting], "no lanes yet");
        vitals.source_answers();
        assert_eq!(vitals.unready(), []);
        for (kind, reason) in [
            (StoreErrorKind::Unavailable, Unready::StoreAway),
            (StoreErrorKind::NotMigrated, Unready::NotMigrated),
            (StoreErrorKind::SchemaMismatch, Unready::SchemaMismatch),
            (StoreErrorKind::Conflict, Unready::StoreBusy),
            (StoreErrorKind::Timeout, Unready::StoreBusy),
        ] {
            vitals.store_failed(kind);
            assert_eq!(vitals.unready(), [reason]);
            assert!(!vitals.store_is_up());
        }
        vitals.note(Notice::BrokerAway);
        vitals.store_answers();
        assert_eq!(vitals.unready(), [Unready::SourceAway]);
        vitals.note(Notice::BrokerBack);
        for state in [BreakerState::Open, BreakerState::Probing] {
            vitals.set_breaker(state);
            assert_eq!(vitals.unready(), [Unready::Breaker]);
        }
        vitals.set_breaker(BreakerState::Closed);
        vitals.set_full(true);
        vitals.stop();
        assert_eq!(vitals.unready(), [Unready::Stopping, Unready::ParkedMax]);
        vitals.set_full(false);
        assert_eq!(vitals.unready(), [Unready::Stopping]);
    }

    #[test]
    fn every_notice_is_counted_under_its_own_name() {
        let vitals = Vitals::default();
        for (times, notice) in Notice::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| vitals.note(notice));
        }
        for (times, (notice, count)) in vitals.notices().into_iter().enumerate() {
            assert_eq!((notice, count), (Notice::ALL[times], times as u64));
        }
    }

    #[test]
    fn a_lane_that_is_gone_has_no_lag() {
        let vitals = Vitals::default();
        let lane = |name: &str, lag| LaneLag { name: name.into(), lag };
        vitals.set_lags([lane("t[0]", 3), lane("t[1]", 4)].into_iter());
        assert_eq!((vitals.lag(), vitals.lanes().len()), (7, 2));
        vitals.set_lags([lane("t[1]", 5)].into_iter());
        assert_eq!((vitals.lag(), vitals.lanes()), (5, vec![lane("t[1]", 5)]));
    }
}
