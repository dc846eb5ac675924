//! `lab kill`: consumers are killed by one seeded schedule, and the database tells what that did.
//!
//! ```text
//!  settings ─► jobs (run × row) ─► side by side ─► histories ─► outcome ─► kept | violated | inconclusive
//!                   ▲ those already complete are skipped (`--resume`)
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `settings` | profiles, rows, plans and schedules; the folder's `settings.json` |
//! | `run` | one run of one row |
//! | `outcome` | what a folder proves, recomputed from its files; also `lab verify` |

mod outcome;
mod run;
mod settings;

pub(crate) use outcome::broker_ends;
pub use outcome::{Conclusion, Outcome, RowOutcome, RunOutcome, Spread, recompute};
pub(crate) use run::{Child, Run, begin, note_broker, persistently, throughput_run};
pub use run::{Launch, Surroundings, Tick};
pub use settings::{Profile, Row, RowKind, SETTINGS_FILE, Settings};

use crate::error::{LabError, LabErrorKind, Result};
use crate::json_file;
use crate::subjects::Subject;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far everything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Steps done: kills, drains, measurements.
    pub done: u64,
    /// Steps in all.
    pub all: u64,
    /// How long it took so far.
    pub took: Duration,
}

impl Progress {
    /// How long the rest takes if it goes on like this; `None` before the first step.
    #[must_use]
    pub fn rest(&self) -> Option<Duration> {
        let left = self.all.saturating_sub(self.done);
        if self.done == 0 {
            return None;
        }
        let each = self.took.checked_div(u32::try_from(self.done).unwrap_or(u32::MAX))?;
        each.checked_mul(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

/// One run of one row that is to be done.
type Job = (u32, Row);

/// Does every run that is not complete yet, measures the rates, and says what it all proves.
///
/// # Errors
/// The broker or the database does not answer, a subject did what no schedule explains, or it was told to
/// stop. What is complete by then can be resumed.
pub fn run(around: &Surroundings<'_>, progress: &(dyn Fn(Progress) + Sync)) -> Result<Outcome> {
    let settings = around.settings;
    settings.save(around.folder)?;
    let jobs: VecDeque<Job> = (0..settings.runs)
        .flat_map(|run| settings.rows().into_iter().map(move |row| (run, row)))
        .filter(|(run, row)| !outcome::is_complete(around.folder, *row, *run))
        .collect();
    let steps = |(_, row): &Job| match row.kind {
        RowKind::Held => u64::from(settings.held_kills) + 1,
        RowKind::Random | RowKind::Resend => u64::from(settings.kills) + 1,
    };
    let mut rates = outcome::read_rates(around.folder);
    let measured =
        |subject: &Subject| rates.contains_key(subject.name()) || settings.throughput_messages == 0;
    let unmeasured: Vec<Subject> =
        settings.subjects.iter().filter(|subject| !measured(subject)).copied().collect();
    let all = jobs.iter().map(steps).sum::<u64>() + u64::try_from(unmeasured.len()).unwrap_or(0);
    let meter = Meter { done: Mutex::new(0), all, began: Instant::now(), progress };
    side_by_side(around, jobs, &meter)?;
    // Rates are measured alone: neighbours would slow each other down.
    for subject in unmeasured {
        let rate = run::throughput_run(around, subject, subject.batch_max(), 0)?;
        rates.insert(subject.name().to_owned(), rate);
        save_rates(around, &rates)?;
        meter.step();
    }
    recompute(around.folder)
}

fn save_rates(around: &Surroundings<'_>, rates: &BTreeMap<String, f64>) -> Result<()> {
    json_file::save(around.folder, outcome::THROUGHPUT_FILE, rates)
}

struct Meter<'a> {
    done: Mutex<u64>,
    all: u64,
    began: Instant,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Meter<'_> {
    fn step(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += 1;
        (self.progress)(Progress { done: *done, all: self.all, took: self.began.elapsed() });
    }
}

/// Works the jobs off, several at a time; the first failure stops the others.
fn side_by_side(around: &Surroundings<'_>, jobs: VecDeque<Job>, meter: &Meter<'_>) -> Result<()> {
    let workers = around.settings.side_by_side.clamp(1, jobs.len().max(1));
    let jobs = Mutex::new(jobs);
    let failed: Mutex<Option<LabError>> = Mutex::new(None);
    let cancel = around.cancel.below();
    let around = Surroundings { cancel: &cancel, ..*around };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((number, row)) = job else { return };
                    if let Err(error) = run::kill_run(&around, row, number, &|_| meter.step()) {
                        // Its history says why it is not complete; the others have brokers of their own.
                        if error.kind == LabErrorKind::BrokerInside {
                            continue;
                        }
                        cancel.cancel();
                        let mut first = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // Those that were stopped because of another only say so.
                        let told = first.as_ref().is_some_and(|first| first.kind != LabErrorKind::Cancelled);
                        if !told {
                            *first = Some(error);
                        }
                        return;
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_what_the_steps_took_so_far() {
        let at = |done| Progress { done, all: 40, took: Duration::from_secs(30) };
        assert_eq!(at(0).rest(), None);
        assert_eq!(at(10).rest(), Some(Duration::from_secs(90)));
        assert_eq!(at(40).rest(), Some(Duration::ZERO));
    }
}
