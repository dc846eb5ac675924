//! How often something was how large: bounds known in advance, a counter each, no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds for times, in nanoseconds: those that OpenTelemetry recommends for processing a message, and finer
/// ones below, where a local database answers.
pub(super) const TIMES_NANOS: [u64; 15] = [
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];
/// Upper bounds for the messages of a transaction.
pub(super) const BATCHES: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];
const NANOS_PER_SECOND: f64 = 1e9;

/// A histogram that one thread writes and any may read.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// What is recorded, in units that are told.
    per_unit: f64,
    /// One more than bounds: the last counts what is above them all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// A histogram as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// Upper bounds, ascending, with how much was at most so large.
    pub upto: Vec<(f64, u64)>,
    /// How much there was.
    pub count: u64,
    /// All of it together. Read beside the counts: while something is recorded it may be off by that.
    pub sum: f64,
}

impl Histogram {
    /// Of times, told in seconds.
    pub(super) fn of_times() -> Self {
        Self::new(&TIMES_NANOS, NANOS_PER_SECOND)
    }

    /// Of numbers of messages.
    pub(super) fn of_batches() -> Self {
        Self::new(&BATCHES, 1.0)
    }

    fn new(bounds: &'static [u64], per_unit: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, per_unit, counts, sum: AtomicU64::new(0) }
    }

    /// Records one.
    pub(crate) fn record(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Records a time.
    pub(crate) fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// As it is now.
    #[must_use]
    pub fn buckets(&self) -> Buckets {
        let sum = told(self.sum.load(Ordering::Relaxed), self.per_unit);
        let mut count = 0;
        let mut upto = Vec::with_capacity(self.bounds.len());
        for (at, of_bound) in self.counts.iter().enumerate() {
            count += of_bound.load(Ordering::Relaxed);
            if let Some(bound) = self.bounds.get(at) {
                upto.push((told(*bound, self.per_unit), count));
            }
        }
        Buckets { upto, count, sum }
    }
}

#[allow(clippy::cast_precision_loss, reason = "for reading: above 2^53 the last digits do not matter")]
fn told(value: u64, per_unit: f64) -> f64 {
    value as f64 / per_unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_on_a_bound_is_at_most_that_bound() {
        let histogram = Histogram::of_batches();
        for value in [1, 2, 3, 10_000, 10_001] {
            histogram.record(value);
        }
        let buckets = histogram.buckets();
        assert_eq!(buckets.upto[..3], [(1.0, 1), (2.0, 2), (5.0, 3)]);
        assert_eq!((buckets.upto.last(), buckets.count), (Some(&(10_000.0, 4)), 5));
        assert!((buckets.sum - 20_007.0).abs() < f64::EPSILON);
    }

    #[test]
    fn times_are_told_in_seconds() {
        let histogram = Histogram::of_times();
        histogram.record_time(Duration::from_millis(40));
        histogram.record_time(Duration::MAX);
        let buckets = histogram.buckets();
        assert_eq!(buckets.upto[0], (0.0005, 0));
        assert_eq!(buckets.upto[5..7], [(0.025, 0), (0.05, 1)]);
        assert_eq!(buckets.count, 2);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [&TIMES_NANOS[..], &BATCHES[..]] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }

    proptest! {
        /// Whatever is recorded, the counts ascend and each bound has what is at most so large.
        #[test]
        fn every_bound_has_what_is_at_most_so_large(values in prop::collection::vec(0_u64..20_000, 0..200)) {
            let histogram = Histogram::of_batches();
            values.iter().for_each(|value| histogram.record(*value));
            let buckets = histogram.buckets();
            for ((_, upto), bound) in buckets.upto.iter().zip(BATCHES) {
                prop_assert_eq!(*upto, values.iter().filter(|value| **value <= bound).count() as u64);
            }
            prop_assert_eq!(buckets.count, values.len() as u64);
        }
    }
}
