//! The values of those metrics that the engine has, as they are now.
//!
//! Read from atomics, so a look costs the engine nothing. Label values are bounded: all but a lane's name are words
//! of ours, and of lanes there are at most [`LANES_MAX`].

use super::histogram::{Buckets, Histogram};
use super::metrics::{self, CONSUMER, Metric};
use super::{Counts, LaneLag, LiveCounts, Unready, Vitals};
use crate::breaker::BreakerState;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// So many lanes have a series of their own.
pub const LANES_MAX: usize = 100;
/// The label of a lane's name.
const LANE: &str = "lane";
/// The lane that stands for those beyond.
const OTHER: &str = "other";

/// One metric with its series.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Which.
    pub metric: &'static Metric,
    /// One for each combination of labels; none where nothing is known.
    pub series: Vec<Series>,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Names and values, `consumer` in front.
    pub labels: Vec<(&'static str, Cow<'static, str>)>,
    /// Its value now.
    pub value: Value,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A count.
    Whole(u64),
    /// A time.
    Real(f64),
    /// A histogram.
    Buckets(Buckets),
}

/// The metrics of a consumer that its engine knows, all of one look: what ended is never more than what came.
#[must_use]
pub fn samples(consumer: &str, live: &LiveCounts, now: SystemTime) -> Vec<Family> {
    let of = Of { consumer };
    let mut families = of.counts(&live.snapshot());
    families.extend(of.vitals(live.vitals(), now));
    families
}

impl Series {
    /// A series of a consumer.
    #[must_use]
    pub fn of(consumer: &str, value: Value) -> Self {
        Self { labels: vec![(CONSUMER, Cow::Owned(consumer.to_owned()))], value }
    }

    /// The same with one label more.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}

/// Whose metrics they are.
struct Of<'c> {
    consumer: &'c str,
}

impl Of<'_> {
    fn one(&self, metric: &'static Metric, value: Value) -> Family {
        Family { metric, series: vec![Series::of(self.consumer, value)] }
    }

    fn count(&self, metric: &'static Metric, count: u64) -> Family {
        self.one(metric, Value::Whole(count))
    }

    /// One series for each word of the metric's only label.
    fn by<const N: usize>(&self, metric: &'static Metric, counts: [(&'static str, u64); N]) -> Family {
        let label = metric.labels.first().map_or("", |label| label.name);
        let series = |(word, count)| Series::of(self.consumer, Value::Whole(count)).with(label, word);
        Family { metric, series: counts.into_iter().map(series).collect() }
    }

    fn counts(&self, counts: &Counts) -> Vec<Family> {
        let ended = [
            ("applied", counts.applied),
            ("duplicate", counts.duplicate),
            ("id_reused", counts.id_reused),
            ("stale", counts.stale),
            ("unmatched", counts.unmatched),
            ("dead_lettered", counts.dead_lettered),
            ("parked", counts.parked),
            ("released", counts.released),
        ];
        let resumed = [
            ("applied", counts.resumed_applied),
            ("stale", counts.resumed_stale),
            ("parked_again", counts.resumed_parked_again),
            ("dead", counts.resumed_dead),
            ("released", counts.resumed_released),
        ];
        let copies = [("taken", counts.dead_letter_copies), ("refused", counts.dead_letter_copies_failed)];
        vec![
            self.count(&metrics::RECEIVED, counts.received),
            self.by(&metrics::MESSAGES, ended),
            self.count(&metrics::PENDING, counts.pending()),
            self.count(&metrics::RESUMED_TAKEN, counts.resumed),
            self.by(&metrics::RESUMED, resumed),
            self.count(&metrics::ATTEMPTS_FAILED, counts.attempts_failed),
            self.count(&metrics::DEAD_LETTER_ROWS, counts.dead_letter_rows),
            self.by(&metrics::DEAD_LETTER_COPIES, copies),
            self.count(&metrics::CRASHES_FOUND, counts.crashes_found),
            self.count(&metrics::COMMITS, counts.commits),
            self.count(&metrics::RERUNS, counts.reruns),
            self.count(&metrics::BREAKER_OPENED, counts.breaker_opened),
        ]
    }

    fn vitals(&self, vitals: &Vitals, now: SystemTime) -> Vec<Family> {
        let unready = vitals.unready();
        let reasons = Unready::ALL.map(|reason| (reason.as_str(), u64::from(unready.contains(&reason))));
        let breaker = vitals.breaker();
        let states = BreakerState::ALL.map(|state| (state.as_str(), u64::from(state == breaker)));
        let notices = vitals.notices().map(|(notice, count)| (notice.as_str(), count));
        let turned = now.checked_sub(vitals.silent_for()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let turned = turned.unwrap_or_default().as_secs_f64();
        let (slots, used) = vitals.slots().unwrap_or_default();
        let buckets = |histogram: &Histogram| Value::Buckets(histogram.buckets());
        vec![
            self.count(&metrics::READY, u64::from(unready.is_empty())),
            self.by(&metrics::UNREADY, reasons),
            self.one(&metrics::LAST_TURN, Value::Real(turned)),
            self.count(&metrics::STORE_UP, u64::from(vitals.store_is_up())),
            self.count(&metrics::SOURCE_UP, u64::from(vitals.source_is_up())),
            self.one(&metrics::BATCH, buckets(vitals.batches())),
            self.one(&metrics::HANDLER, buckets(vitals.handling())),
            self.one(&metrics::COMMIT, buckets(vitals.committing())),
            self.by(&metrics::BREAKER_STATE, states),
            self.lag(&vitals.lanes()),
            self.by(&metrics::SOURCE_NOTICES, notices),
            self.count(&metrics::SLOTS, u64::try_from(slots).unwrap_or(u64::MAX)),
            self.count(&metrics::SLOTS_USED, u64::try_from(used).unwrap_or(u64::MAX)),
        ]
    }

    /// The first lanes have series of their own, so that none comes and goes with its lag.
    fn lag(&self, lanes: &[LaneLag]) -> Family {
        let (named, others) = lanes.split_at(lanes.len().min(LANES_MAX));
        let series =
            |name: &str, lag| Series::of(self.consumer, Value::Whole(lag)).with(LANE, name.to_owned());
        let mut all: Vec<Series> = named.iter().map(|lane| series(&lane.name, lane.lag)).collect();
        if !others.is_empty() {
            all.push(series(OTHER, others.iter().map(|lane| lane.lag).sum()));
        }
        Family { metric: &metrics::LAG, series: all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(families: &[Family], metric: &'static Metric) -> Vec<(String, Value)> {
        let found = families.iter().find(|family| std::ptr::eq(family.metric, metric)).unwrap();
        let last = |series: &Series| series.labels.last().map_or("", |(_, value)| value).to_owned();
        found.series.iter().map(|series| (last(series), series.value.clone())).collect()
    }

    fn of(live: &LiveCounts) -> Vec<Family> {
        samples("wallet", live, SystemTime::now())
    }

    /// The words of a label that the table tells are those that are exposed.
    #[test]
    fn every_series_has_the_labels_that_the_table_tells_and_their_values() {
        for family in of(&LiveCounts::default()) {
            let (metric, told) = (family.metric, family.metric.labels);
            assert!(told.len() <= 1, "{}", metric.name);
            for series in &family.series {
                let names: Vec<&str> = series.labels.iter().map(|(name, _)| *name).collect();
                let expected: Vec<&str> =
                    [CONSUMER].into_iter().chain(told.iter().map(|label| label.name)).collect();
                assert_eq!(names, expected, "{}", metric.name);
            }
            let Some(label) = told.first().filter(|label| label.name != LANE) else { continue };
            let values: Vec<&str> = family.series.iter().map(|series| &*series.labels[1].1).collect();
            assert_eq!(values.join(", "), label.values, "{}", metric.name);
        }
    }

    #[test]
    fn no_metric_comes_twice() {
        let families = of(&LiveCounts::default());
        for family in &families {
            let same = families.iter().filter(|other| std::ptr::eq(other.metric, family.metric));
            assert_eq!(same.count(), 1, "{}", family.metric.name);
        }
    }

    #[test]
    fn what_ended_and_what_is_pending_add_up_to_what_came() {
        let live = LiveCounts::default();
        live.add(&Counts { received: 9, applied: 3, duplicate: 2, parked: 1, ..Counts::default() });
        let families = of(&live);
        let sum = |metric| -> u64 {
            let whole = |(_, value)| if let Value::Whole(count) = value { count } else { 0 };
            family(&families, metric).into_iter().map(whole).sum()
        };
        assert_eq!((sum(&metrics::RECEIVED), sum(&metrics::MESSAGES), sum(&metrics::PENDING)), (9, 6, 3));
    }

    #[test]
    fn lanes_beyond_the_bound_are_one_and_nothing_of_the_lag_is_left_out() {
        let live = LiveCounts::default();
        let lane = |number: usize| LaneLag { name: format!("t[{number}]").into(), lag: 2 };
        live.vitals().set_lags((0..LANES_MAX).map(lane));
        assert_eq!(family(&of(&live), &metrics::LAG).len(), LANES_MAX);
        live.vitals().set_lags((0..LANES_MAX + 50).map(lane));
        let lag = family(&of(&live), &metrics::LAG);
        assert_eq!(lag.len(), LANES_MAX + 1);
        assert_eq!(lag[LANES_MAX], (OTHER.to_owned(), Value::Whole(100)));
    }
}
