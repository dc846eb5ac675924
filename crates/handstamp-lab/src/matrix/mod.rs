//! `lab matrix`: the program dies once at every crash point, with every source and every store, and is
//! started again; afterwards each good message has one effect and each bad one is a dead letter.
//!
//! ```text
//!  cell = point × source × store
//!  filled ─► run, armed ─► killed by itself (SIGKILL, mark read) ─► run until idle ─► judged ─► removed
//!                 └─ ended otherwise: the point was not hit, the cell proves nothing
//! ```
//!
//! The program is a black box: what it is told is its pipeline's file, what it did is read from the
//! database. So that the matrix is known to be able to fail, the same cells run with a consumer broken on
//! purpose: without an inbox it must double behind the commit, settling first it must lose before it.
//!
//! | file | owns |
//! |---|---|
//! | `plan` | which cells there are, and what each must show (pure) |
//! | `cell` | one cell, from its files to its verdict |
//! | `pipeline` | the files of a cell |
//! | `tables` | what a cell's database holds |
//! | `broken` | the consumer broken on purpose |

pub mod broken;
mod cell;
mod pipeline;
mod plan;
mod tables;

pub use broken::Broken;
pub use plan::{Cell, SourceKind, StoreKind, cells, controls};

use crate::cancel::Cancel;
use crate::checker::Verdict;
use crate::error::{LabError, LabErrorKind, Result};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};

/// What a matrix needs.
#[derive(Debug)]
pub struct Options {
    /// The program `handstamp`, built with crash points.
    pub program: PathBuf,
    /// A folder of its own for the cells' files; made and removed by the matrix.
    pub folder: PathBuf,
    /// Distinguishes this matrix's topics and schemas; `[a-z0-9_]`, at most 40 characters.
    pub name: String,
    /// The broker of Kafka cells.
    #[cfg(feature = "kafka")]
    pub broker: Option<crate::broker::Broker>,
    /// The database of Postgres cells: a connection string.
    #[cfg(feature = "postgres")]
    pub database: Option<String>,
    /// Decides ids, accounts and amounts.
    pub seed: u64,
    /// How many cells run at a time.
    pub side_by_side: usize,
    /// `session.timeout.ms` of Kafka cells: so long the group waits for one that died.
    pub session_timeout_ms: u64,
    /// How often the process dies in a cell before it is left alone.
    pub kills: u32,
}

impl Options {
    /// What Kafka cells connect to.
    fn bootstrap(&self) -> &str {
        #[cfg(feature = "kafka")]
        if let Some(broker) = &self.broker {
            return broker.bootstrap();
        }
        ""
    }
}

/// What became of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Which one.
    pub cell: Cell,
    /// The process died at the point every time: SIGKILL, and the mark names it.
    pub hit: bool,
    /// How the armed process ended, when it was not at the point.
    pub otherwise: Option<String>,
    /// Effects that the database showed right after the last crash: evidence of where it was.
    pub at_crash: u64,
    /// From what was sent and the database alone.
    pub verdict: Verdict,
    /// Bad messages sent, and dead letters found.
    pub bad: (u64, u64),
    /// Milliseconds.
    pub took_ms: u64,
}

/// What a cell shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// What it must.
    AsItMust,
    /// A promise was broken: something doubled, lost, or off.
    Violation,
    /// The point was not hit, or a broken consumer did no harm: the cell proves nothing.
    Nothing,
}

impl Outcome {
    /// Judges the cell.
    #[must_use]
    pub fn shows(&self) -> Shows {
        let harm = match self.cell.broken {
            Some(Broken::NoInbox) => self.verdict.doubled > 0,
            Some(Broken::SettleFirst) => self.verdict.lost > 0,
            None if !self.verdict.is_clean() || self.bad.0 != self.bad.1 => return Shows::Violation,
            None => true,
        };
        if self.hit && harm { Shows::AsItMust } else { Shows::Nothing }
    }
}

/// Runs cells side by side; each outcome is told when it is there.
///
/// # Errors
/// A server does not answer, or a consumer does what no crash explains. What was started is ended first.
pub fn run(
    options: &Options,
    cells: &[Cell],
    cancel: &Cancel,
    mut told: impl FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let made = std::fs::create_dir_all(&options.folder);
    made.map_err(|error| LabError::file("make", &options.folder, error))?;
    let _removed = Folder(&options.folder);
    let queue: Mutex<VecDeque<(usize, Cell)>> = Mutex::new(cells.iter().copied().enumerate().collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (tell, outcomes) = mpsc::channel();
    let mut done = Vec::with_capacity(cells.len());
    let mut failed: Option<LabError> = None;
    // Ends the other cells when one cannot go on.
    let stop = Cancel::default();
    std::thread::scope(|scope| {
        for _ in 0..options.side_by_side.clamp(1, cells.len().max(1)) {
            let (tell, next, stop) = (tell.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.is_cancelled()
                    && let Some((at, cell)) = next()
                {
                    if tell.send((at, cell::run(options, cell, at, stop))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        loop {
            match outcomes.recv_timeout(std::time::Duration::from_millis(50)) {
                Ok((at, Ok(outcome))) => {
                    told(&outcome);
                    done.push((at, outcome));
                }
                Ok((_, Err(error))) => {
                    stop.cancel();
                    // The first reason is the reason; the others were told to stop.
                    failed.get_or_insert(error);
                }
                Err(mpsc::RecvTimeoutError::Timeout) if cancel.is_cancelled() => stop.cancel(),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    cancel.check()?;
    if let Some(error) = failed {
        return Err(error);
    }
    if done.len() != cells.len() {
        return Err(LabError::new(LabErrorKind::Other, "a cell's thread ended without an answer"));
    }
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Removed, with whatever is left in it, when the matrix is over.
struct Folder<'a>(&'a std::path::Path);

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "the lab's folder is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp::CrashPoint;

    fn outcome(broken: Option<Broken>, doubled: u64, lost: u64) -> Outcome {
        let cell = Cell {
            point: CrashPoint::AfterCommit,
            nth: 1,
            source: SourceKind::File,
            store: StoreKind::Sqlite,
            broken,
        };
        let verdict = Verdict { doubled, lost, ..Verdict::default() };
        Outcome { cell, hit: true, otherwise: None, at_crash: 0, verdict, bad: (2, 2), took_ms: 1 }
    }

    #[test]
    fn a_promise_broken_is_a_violation_and_a_harmless_fault_proves_nothing() {
        assert_eq!(outcome(None, 0, 0).shows(), Shows::AsItMust);
        assert_eq!(outcome(None, 1, 0).shows(), Shows::Violation);
        assert_eq!(outcome(None, 0, 1).shows(), Shows::Violation);
        assert_eq!(Outcome { bad: (2, 1), ..outcome(None, 0, 0) }.shows(), Shows::Violation);
        assert_eq!(Outcome { bad: (2, 3), ..outcome(None, 0, 0) }.shows(), Shows::Violation);
        assert_eq!(Outcome { hit: false, ..outcome(None, 0, 0) }.shows(), Shows::Nothing);
        // A violation is one whether or not the point was hit.
        assert_eq!(Outcome { hit: false, ..outcome(None, 1, 0) }.shows(), Shows::Violation);
        assert_eq!(outcome(Some(Broken::NoInbox), 3, 0).shows(), Shows::AsItMust);
        assert_eq!(outcome(Some(Broken::NoInbox), 0, 0).shows(), Shows::Nothing);
        assert_eq!(outcome(Some(Broken::SettleFirst), 0, 3).shows(), Shows::AsItMust);
        assert_eq!(outcome(Some(Broken::SettleFirst), 3, 0).shows(), Shows::Nothing);
    }
}
