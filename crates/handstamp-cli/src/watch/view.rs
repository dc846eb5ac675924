//! What is known of the run: metrics, health, readiness. Reads only.

use crate::config::{Config, StoreSection};
use handstamp_core::LiveCounts;
use handstamp_core::telemetry::{Family, Series, Unready, Value, metrics, samples};
use handstamp_stores::redrive::Backlog;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Beside what a batch may take by the file: scheduling, a commit, a slow disk.
const MARGIN: Duration = Duration::from_secs(10);

/// What answers are made of.
pub(super) struct View {
    consumer: String,
    parked_max: u64,
    silence_max: Duration,
    live: Arc<LiveCounts>,
    counted: Mutex<Option<Counted>>,
}

/// What the store counted, and when.
struct Counted {
    backlog: Backlog,
    at: Instant,
    time: SystemTime,
}

impl View {
    pub(super) fn new(config: &Config, live: Arc<LiveCounts>) -> Self {
        let lock_timeout = match &config.store {
            StoreSection::Sqlite(sqlite) => sqlite.lock_timeout,
            StoreSection::Postgres(postgres) => postgres.lock_timeout,
        };
        // SQLite's statements and its waits for the file's lock run on the engine's thread.
        let silence_max = config.options.handler_timeout.saturating_add(lock_timeout).saturating_add(MARGIN);
        Self {
            consumer: config.name.as_str().to_owned(),
            parked_max: config.options.parked_max,
            silence_max,
            live,
            counted: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn of_test(live: Arc<LiveCounts>) -> Self {
        let counted = Mutex::default();
        Self { consumer: "wallet".to_owned(), parked_max: 7, silence_max: MARGIN, live, counted }
    }

    pub(super) fn live(&self) -> &LiveCounts {
        &self.live
    }

    /// Keeps what the store counted.
    pub(super) fn count(&self, backlog: Backlog) {
        let counted = Counted { backlog, at: Instant::now(), time: SystemTime::now() };
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some(counted);
    }

    /// Why nothing new is taken up.
    pub(super) fn unready(&self) -> Vec<Unready> {
        self.live.vitals().unready()
    }

    /// Whether the engine's loop turns.
    pub(super) fn health(&self) -> Result<(), String> {
        alive(self.live.vitals().silent_for(), self.silence_max)
    }

    /// Every metric that has a value now.
    pub(super) fn families(&self, now: SystemTime) -> Vec<Family> {
        let one = |metric, value| Family { metric, series: vec![Series::of(&self.consumer, value)] };
        let version =
            Series { labels: vec![("version", env!("CARGO_PKG_VERSION").into())], value: Value::Whole(1) };
        let mut families = vec![Family { metric: &metrics::BUILD_INFO, series: vec![version] }];
        families.extend(samples(&self.consumer, &self.live, now));
        families.push(one(&metrics::PARKED_MAX, Value::Whole(self.parked_max)));
        if let Some(counted) = &*self.counted.lock().unwrap_or_else(PoisonError::into_inner) {
            let parked = counted.backlog.parked;
            let oldest = parked.oldest.map_or(Duration::ZERO, |age| age.saturating_add(counted.at.elapsed()));
            let looked = counted.time.duration_since(UNIX_EPOCH).unwrap_or_default();
            families.push(one(&metrics::STORE_PARKED, Value::Whole(parked.count)));
            families.push(one(&metrics::STORE_PARKED_OLDEST, Value::Real(oldest.as_secs_f64())));
            families.push(one(&metrics::STORE_DEAD_LETTERS, Value::Whole(counted.backlog.dead_letters)));
            families.push(one(&metrics::STORE_LOOKED, Value::Real(looked.as_secs_f64())));
        }
        families
    }
}

/// A loop that has been silent for so long, and how long it may be.
fn alive(silent_for: Duration, silence_max: Duration) -> Result<(), String> {
    if silent_for <= silence_max {
        return Ok(());
    }
    let (silent, most) = (silent_for.as_secs(), silence_max.as_secs());
    Err(format!("the engine's loop has not turned for {silent} s; a batch may take {most} s at most"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::ParkedStatus;
    use handstamp_core::telemetry::METRICS;

    #[test]
    fn a_loop_that_is_silent_for_longer_than_a_batch_may_take_is_not_alive() {
        let most = Duration::from_secs(45);
        assert_eq!(alive(most, most), Ok(()));
        let why = alive(most + Duration::from_secs(1), most).unwrap_err();
        assert!(why.contains("46 s") && why.contains("45 s"), "{why}");
    }

    /// Once the store was asked, the table and what is exposed are the same.
    #[test]
    fn every_metric_of_the_table_is_exposed_and_no_other() {
        let view = View::of_test(Arc::default());
        let parked = ParkedStatus { count: 3, due_in: None, oldest: Some(Duration::from_secs(60)) };
        view.count(Backlog { parked, dead_letters: 2 });
        let families = view.families(SystemTime::now());
        let mut exposed: Vec<&str> = families.iter().map(|family| family.metric.name).collect();
        let mut table: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        exposed.sort_unstable();
        table.sort_unstable();
        assert_eq!(exposed, table);
    }

    #[test]
    fn what_nobody_has_counted_yet_is_not_told_as_nothing() {
        let view = View::of_test(Arc::default());
        let told = |view: &View| {
            view.families(SystemTime::now())
                .iter()
                .any(|family| std::ptr::eq(family.metric, &raw const metrics::STORE_PARKED))
        };
        assert!(!told(&view));
        view.count(Backlog::default());
        assert!(told(&view));
    }
}
