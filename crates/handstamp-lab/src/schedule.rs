//! When to kill (pure): everything random of a run comes from its seed, so the same seed gives the same
//! schedule for every subject.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A small generator (SplitMix64): reproducible on every machine and in every version of the lab.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed; `stream` keeps the uses of one seed apart.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xA076_1D64_78BD_642F));
        random.next_u64();
        random
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below a bound, 0 where the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is below 2^-40 for the bounds used here.
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }
}

/// The kills of one run: how long after its first handled message each consumer dies, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// One for each kill.
    pub after_ms: Vec<u64>,
}

impl Schedule {
    /// The schedule of run number `run` under a seed.
    #[must_use]
    pub fn seeded(seed: u64, run: u32, kills: u32, within_ms: &RangeInclusive<u64>) -> Self {
        let mut random = Random::new(seed, 1 + u64::from(run));
        let (from, to) = (*within_ms.start(), *within_ms.end());
        let width = to.saturating_sub(from) + 1;
        Self { after_ms: (0..kills).map(|_| from + random.below(width)).collect() }
    }

    /// How many messages the run needs so that at least `left` remain at the last kill: no consumer is
    /// faster than one message in `work`.
    #[must_use]
    pub fn messages_needed(&self, work: Duration, left: u64) -> u64 {
        let worked_us = self.after_ms.iter().sum::<u64>().saturating_mul(1000);
        let work_us = u64::try_from(work.as_micros()).unwrap_or(u64::MAX).max(1);
        // A tenth more: a kill comes a little later than planned, never earlier.
        let handled = worked_us.div_ceil(work_us);
        handled.saturating_add(handled / 10).saturating_add(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_another() {
        let of = |seed, run| Schedule::seeded(seed, run, 20, &(1000..=8000));
        assert_eq!(of(7, 0), of(7, 0));
        assert_ne!(of(7, 0), of(8, 0));
        assert_ne!(of(7, 0), of(7, 1));
    }

    #[test]
    fn times_stay_in_their_range_and_reach_its_ends() {
        let schedule = Schedule::seeded(3, 0, 10_000, &(1..=4));
        let count = |ms| schedule.after_ms.iter().filter(|one| **one == ms).count();
        assert_eq!(count(1) + count(2) + count(3) + count(4), 10_000);
        for ms in 1..=4 {
            assert!((2_300..2_700).contains(&count(ms)), "{ms}: {}", count(ms));
        }
    }

    #[test]
    fn a_run_is_long_enough_for_its_last_kill() {
        let schedule = Schedule { after_ms: vec![1000, 8000] };
        assert_eq!(schedule.messages_needed(Duration::from_millis(10), 300), 900 + 90 + 300);
        assert!(schedule.messages_needed(Duration::ZERO, 300) >= 9_000_000);
    }

    #[test]
    fn the_generator_never_changes() {
        // Published seeds must keep their meaning.
        let mut random = Random::new(42, 0);
        assert_eq!([random.below(1000), random.below(1000), random.below(1000)], [291, 858, 764]);
    }
}
