//! Rows side by side: each lane has servers of its own, which its rows stop, freeze and kill one after the other.
//!
//! ```text
//!  lanes ─► as many at a time as asked ─► scene ─► row, row, row ─► servers ended
//!                 the first failure stops the others
//! ```

use super::fault::Scene;
use super::group::{Around, runtime};
use super::outcome::begun;
use super::record::Seen;
use super::settings::RowKey;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::kill::Progress;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Runtime;

/// Rows that share their servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lane {
    /// The kind of broker.
    pub(super) kafka: &'static str,
    /// The kind of database.
    pub(super) postgres: &'static str,
    /// What is done there, in order.
    pub(super) rows: Vec<RowKey>,
}

/// Deals rows out to so many lanes of the same kinds; lanes without a row are left out.
pub(super) fn deal(kafka: &'static str, postgres: &'static str, rows: &[RowKey], lanes: usize) -> Vec<Lane> {
    let lanes = lanes.max(1);
    let rows = |at: usize| rows.iter().copied().skip(at).step_by(lanes).collect::<Vec<_>>();
    let all = (0..lanes).map(|at| Lane { kafka, postgres, rows: rows(at) });
    all.filter(|lane| !lane.rows.is_empty()).collect()
}

/// Does one row in a scene.
pub(super) type Do<'a> = &'a (dyn Fn(&Around<'_>, &mut Scene<'_>, RowKey) -> Result<()> + Sync);

/// Works all lanes off, so many at a time; histories and logs are complete when it returns `Ok`.
///
/// # Errors
/// The first failure: a server does not start or answer, a member ends by itself, `Cancelled`.
pub(super) fn work_off(
    around: &Around<'_>,
    lanes: Vec<Lane>,
    side_by_side: usize,
    row: Do<'_>,
) -> Result<()> {
    let runtime = runtime()?;
    let workers = side_by_side.clamp(1, lanes.len().max(1));
    let meter = Meter {
        all: lanes.iter().map(|lane| lane.rows.len()).sum(),
        done: AtomicUsize::new(0),
        began: Instant::now(),
    };
    let lanes = Mutex::new(VecDeque::from(lanes));
    let (noting, failed) = (Mutex::new(()), Mutex::new(None::<LabError>));
    let cancel = around.cancel.below();
    let around = Around { cancel: &cancel, ..*around };
    let work = || {
        loop {
            let next = lanes.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(lane) = next else { return };
            if let Err(error) = one_lane(&around, &runtime, &lane, &noting, &meter, row) {
                cancel.cancel();
                let mut first = failed.lock().unwrap_or_else(PoisonError::into_inner);
                // Those that were stopped because of another only say so.
                if first.as_ref().is_none_or(|first| first.kind == LabErrorKind::Cancelled) {
                    *first = Some(error);
                }
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// How far all rows are.
struct Meter {
    all: usize,
    done: AtomicUsize,
    began: Instant,
}

impl Meter {
    /// One more row is done: how many are, and how long the rest takes if it goes on like this.
    fn step(&self) -> String {
        let done = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
        let progress = Progress { done: count(done), all: count(self.all), took: self.began.elapsed() };
        match progress.rest() {
            Some(rest) if done < self.all => {
                format!("{done} of {} rows, about {} s left", self.all, rest.as_secs())
            }
            _ => format!("{done} of {} rows", self.all),
        }
    }
}

fn one_lane(
    around: &Around<'_>,
    runtime: &Runtime,
    lane: &Lane,
    noting: &Mutex<()>,
    meter: &Meter,
    row: Do<'_>,
) -> Result<()> {
    around.cancel.check()?;
    let names: Vec<String> = lane.rows.iter().map(|row| row.name()).collect();
    (around.progress)(&format!("starting servers for: {}", names.join("; ")));
    let mut scene = match Scene::open(around, runtime, lane.kafka, lane.postgres)? {
        Ok(scene) => scene,
        Err(reason) => {
            return lane.rows.iter().try_for_each(|row| refuse(around, *row, &reason));
        }
    };
    {
        let _one_at_a_time = noting.lock().unwrap_or_else(PoisonError::into_inner);
        crate::report::note(around.folder, &scene.describe()?, &serde_json::Value::Null)?;
    }
    for key in &lane.rows {
        (around.progress)(&key.name());
        row(around, &mut scene, *key)?;
        (around.progress)(&format!("{}: done; {}", key.name(), meter.step()));
    }
    Ok(())
}

/// A row that cannot be run here has a history too, which says why.
fn refuse(around: &Around<'_>, key: RowKey, why: &str) -> Result<()> {
    let history = History::create(&around.folder.join(key.file_stem()).with_extension("jsonl"))?;
    history.note(begun(key, around.seed, 0));
    history.note(Event::Fault(Seen::Refused { why: why.to_owned() }));
    history.finish()
}

#[cfg(test)]
mod tests {
    use super::super::fault::Fault;
    use super::*;
    use crate::subjects::Subject;

    #[test]
    fn a_row_that_is_done_says_how_many_are_left_and_how_long_they_take() {
        let began = Instant::now().checked_sub(std::time::Duration::from_secs(60)).expect("a minute ago");
        let meter = Meter { all: 3, done: AtomicUsize::new(0), began };
        assert!(meter.step().starts_with("1 of 3 rows, about 12"), "twice a minute");
        assert!(meter.step().starts_with("2 of 3 rows, about 3"), "half a minute each");
        assert_eq!(meter.step(), "3 of 3 rows");
    }

    #[test]
    fn every_row_is_dealt_to_one_lane_and_no_lane_is_empty() {
        let rows: Vec<RowKey> =
            Fault::ALL.iter().map(|fault| RowKey::Outage(*fault, Subject::Handstamp)).collect();
        for lanes in 0..9 {
            let dealt = deal("kafka", "postgres", &rows, lanes);
            assert!(
                dealt.len() == lanes.clamp(1, rows.len()) && dealt.iter().all(|lane| !lane.rows.is_empty())
            );
            let all: Vec<RowKey> = dealt.into_iter().flat_map(|lane| lane.rows).collect();
            assert!(all.len() == rows.len() && rows.iter().all(|row| all.contains(row)), "{lanes}");
        }
        assert!(deal("kafka", "postgres", &[], 3).is_empty());
    }
}
