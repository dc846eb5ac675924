//! What happened in one run of one subject, as JSON lines: written while it happens, read by `lab verify`.
//!
//! Authoritative for the verdict are only [`Event::End`] (read from the database) and the producer's log;
//! the other events are evidence and material for the time line. The last line of a complete history is
//! its end; a history without one is of a run that was interrupted, and is run again.

use crate::checker::EndState;
use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// First line: what was run.
    Run {
        /// The row of the table.
        subject: String,
        /// Number of the run, from 0.
        run: u32,
        /// Of the whole command.
        seed: u64,
        /// Different credits sent.
        messages: u64,
        /// Which program wrote this.
        version: String,
    },
    /// A consumer process was started.
    Started {
        /// Which process of the run, from 0.
        child: u32,
        /// Its process id.
        pid: u32,
    },
    /// The supervisor saw the first effect of this process.
    FirstHandled {
        /// Which process.
        child: u32,
    },
    /// So many ledger lines, as the supervisor saw them.
    Progress {
        /// Lines of the ledger.
        effects: u64,
    },
    /// A consumer process was killed (SIGKILL).
    Killed {
        /// Which process.
        child: u32,
        /// Credits without an effect at that moment.
        left: u64,
        /// Whether enough were left for the kill to mean something.
        counts: bool,
        /// The named point it was held at, when it was not killed at random.
        point: Option<String>,
    },
    /// A consumer process was stopped (SIGSTOP).
    Stopped {
        /// Which process.
        child: u32,
    },
    /// A stopped consumer process goes on (SIGCONT).
    Continued {
        /// Which process.
        child: u32,
    },
    /// Connections between the consumers and the database were reset.
    Cut {
        /// How many.
        connections: u64,
    },
    /// A consumer process ended by itself.
    Ended {
        /// Which process.
        child: u32,
        /// Its exit code; `None` after a signal.
        code: Option<i32>,
    },
    /// A subject was given partitions.
    Assigned {
        /// Which process.
        child: u32,
        /// How many it has now.
        partitions: u32,
    },
    /// A subject lost its partitions to a timeout.
    Evicted {
        /// Which process.
        child: u32,
    },
    /// A subject found that a message was applied before.
    DuplicateSkipped {
        /// Which process.
        child: u32,
        /// The message.
        id: String,
    },
    /// A subject's offset commit was refused.
    CommitRefused {
        /// Which process.
        child: u32,
        /// What the broker or client said.
        reason: String,
    },
    /// A subject reached a named point and waits there to be killed.
    Held {
        /// Which process.
        child: u32,
        /// The point.
        point: String,
    },
    /// A subject stalls on a message, the first time it is handled.
    Stalled {
        /// Which process.
        child: u32,
        /// The message.
        id: String,
    },
    /// A stalled subject goes on, whatever became of its partitions.
    Woke {
        /// Which process.
        child: u32,
        /// The message.
        id: String,
    },
    /// A subject waited for another's transaction before it could decide about a message.
    HeldUp {
        /// Which process.
        child: u32,
        /// For so long.
        ms: u64,
    },
    /// Results of an old assignment were dropped instead of committed.
    LateResultsDropped {
        /// Which process.
        child: u32,
    },
    /// The broker inside the lab ended by itself: the run was made again from its beginning, or given up.
    BrokerEnded {
        /// How, and its last lines.
        why: String,
    },
    /// The last consumer had settled everything: committed offsets are the end offsets.
    Drained,
    /// Messages a second without kills, measured apart.
    Throughput {
        /// The rate.
        per_second: f64,
        /// From so many messages.
        messages: u64,
    },
    /// When effects came that their id had already, by the database's clock: for the time line.
    Repeated {
        /// Milliseconds since the run began, in order; only as exact as the two clocks agree.
        times_ms: Vec<u64>,
    },
    /// Last line: what the database held.
    End(EndState),
}

/// An event and when it happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Milliseconds since the run began.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// A history being written; clones write to the same file.
#[derive(Debug, Clone)]
pub struct History {
    inner: Arc<Mutex<Writer>>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    path: PathBuf,
    began: Instant,
    began_ms: u64,
    failed: Option<LabError>,
}

impl History {
    /// A new history; an old one of that name is replaced.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| LabError::file("write", path, error))?;
        let writer =
            Writer { file, path: path.to_owned(), began: Instant::now(), began_ms: now_ms(), failed: None };
        Ok(Self { inner: Arc::new(Mutex::new(writer)) })
    }

    /// Appends an event. A file that cannot be written is reported by [`History::finish`].
    pub fn note(&self, event: Event) {
        let mut writer = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let at_ms = u64::try_from(writer.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let written = serde_json::to_string(&Entry { at_ms, event })
            .map_err(std::io::Error::from)
            .and_then(|line| writeln!(writer.file, "{line}"));
        if let Err(error) = written {
            let failed = LabError::file("write", &writer.path, error);
            writer.failed.get_or_insert(failed);
        }
    }

    /// Notes effects that repeated others; their times are milliseconds since 1970 by the database's clock.
    pub fn note_repeated(&self, times_ms: &[u64]) {
        let began_ms = self.inner.lock().unwrap_or_else(PoisonError::into_inner).began_ms;
        let times_ms = times_ms.iter().map(|time| time.saturating_sub(began_ms)).collect();
        self.note(Event::Repeated { times_ms });
    }

    /// Says whether everything was written.
    ///
    /// # Errors
    /// The first write that failed.
    pub fn finish(&self) -> Result<()> {
        let mut writer = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        writer.failed.take().map_or(Ok(()), Err)
    }
}

/// Milliseconds since 1970 by this machine's clock.
fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a history. A last line that was cut off by a crash is left out.
///
/// # Errors
/// The file cannot be read, or a line in its middle is no event.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let file = File::open(path).map_err(|error| LabError::file("read", path, error))?;
    let lines = BufReader::new(file)
        .lines()
        .collect::<std::io::Result<Vec<String>>>()
        .map_err(|error| LabError::file("read", path, error))?;
    let mut entries = Vec::with_capacity(lines.len());
    for (at, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            Err(_) if at + 1 == lines.len() => break,
            Err(error) => {
                let place = format!("{}, line {}: no event of a history", path.display(), at + 1);
                return Err(LabError::usage(place).because(error));
            }
        }
    }
    Ok(entries)
}

/// The end state of a complete history.
#[must_use]
pub fn end_state(entries: &[Entry]) -> Option<&EndState> {
    match entries.last() {
        Some(Entry { event: Event::End(state), .. }) => Some(state),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written_and_a_cut_line_makes_it_incomplete() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.jsonl");
        let history = History::create(&path).expect("a history");
        let events = [
            Event::Started { child: 0, pid: 7 },
            Event::Killed { child: 0, left: 900, counts: true, point: None },
            Event::DuplicateSkipped { child: 1, id: "x".into() },
            Event::Throughput { per_second: 81.5, messages: 100 },
            Event::Repeated { times_ms: vec![1, 2] },
            Event::End(EndState {
                effects: [("x".to_owned(), 2)].into(),
                balances: [(1, 500), (-2, 0)].into(),
                ledger: [(1, 500)].into(),
                dead_letters: vec!["y".into()],
            }),
        ];
        for event in &events {
            history.note(event.clone());
        }
        history.finish().expect("written");
        let entries = read(&path).expect("read");
        assert_eq!(
            entries.iter().map(|entry| &entry.event).collect::<Vec<_>>(),
            events.iter().collect::<Vec<_>>()
        );
        assert_eq!(end_state(&entries).map(|state| state.effects["x"]), Some(2));

        let text = std::fs::read_to_string(&path).expect("read");
        std::fs::write(&path, &text[..text.len() - 5]).expect("written");
        let entries = read(&path).expect("read");
        assert_eq!(entries.len(), events.len() - 1);
        assert!(end_state(&entries).is_none());
        std::fs::write(&path, format!("nonsense\n{text}")).expect("written");
        assert!(read(&path).is_err());
    }
}
