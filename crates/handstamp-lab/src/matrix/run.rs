//! Cells run side by side.

use super::cell;
use super::outcome::Outcome;
use super::plan::Cell;
use crate::cancel::Cancel;
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
    /// Where histories stay.
    pub record: PathBuf,
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
    pub(super) fn bootstrap(&self) -> &str {
        #[cfg(feature = "kafka")]
        if let Some(broker) = &self.broker {
            return broker.bootstrap();
        }
        ""
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
