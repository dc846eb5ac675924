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

/// A way that a proxy of the lab stands on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// To the database.
    #[default]
    Database,
    /// To the brokers.
    Broker,
}

impl Wire {
    /// The word that people read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Broker => "broker",
        }
    }
}

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
    /// Connections between the consumers and a server were reset.
    Cut {
        /// How many.
        connections: u64,
        /// Which ones.
        #[serde(default)]
        wire: Wire,
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
    /// A subject found more of these than it named one by one.
    DuplicatesLeftOut {
        /// Which process.
        child: u32,
        /// How many more.
        count: u64,
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
    /// A process that was to end itself at a named point has ended.
    Armed {
        /// Which process.
        child: u32,
        /// The point and the how manieth time.
        at: String,
        /// How it ended, if it was not by SIGKILL with a mark that names the point.
        otherwise: Option<String>,
        /// Effects that the database showed then.
        effects: u64,
        /// Parked messages that it showed.
        #[serde(default)]
        parked: u64,
        /// Dead letters that it showed.
        #[serde(default)]
        dead: u64,
    },
    /// What an operator's command did to dead letters, by its audit.
    Operated {
        /// Messages that it was to be done to.
        meant: u64,
        /// Lines of the audit.
        lines: u64,
        /// Different messages that they are about.
        messages: u64,
    },
    /// Bad messages, and what became of them.
    DeadLetters {
        /// How many were sent.
        bad: u64,
        /// Dead letters, those without an id included.
        found: u64,
    },
    /// What was sent to a program that is not the lab's own.
    Sent {
        /// Records.
        records: u64,
        /// Records that were a second copy.
        twice: u64,
        /// Records that changed places.
        reordered: u64,
    },
    /// A fault of a schedule was dealt, and what it met.
    Dealt {
        /// When, in milliseconds since the run began.
        began_ms: u64,
        /// Which copy; a cut meets all of them.
        copy: u32,
        /// kill, stop, cut or broker_cut.
        fault: String,
        /// How long a stop lasted, in milliseconds.
        for_ms: Option<u64>,
        /// Messages without an effect at that moment.
        left: u64,
        /// Whether it means something.
        counts: bool,
    },
    /// What went through a proxy of the lab in all.
    Through {
        /// Before what it stood.
        wire: Wire,
        /// Bytes to the server.
        up: u64,
        /// Bytes to the program.
        down: u64,
        /// Connections accepted.
        connections: u64,
        /// Connections cut.
        cut: u64,
    },
    /// When the effects of an id were seen that has not exactly one: evidence, as exact as the looks are close.
    Traced {
        /// The message.
        id: String,
        /// Records that carried it.
        sent: u64,
        /// Milliseconds since the run began, one for each effect that was seen.
        seen_ms: Vec<u64>,
        /// The same for the message before it under its key.
        before_ms: Option<u64>,
    },
    /// What a person should know.
    Note {
        /// In a sentence.
        text: String,
    },
    /// The run never began to work.
    NeverBegan {
        /// Why.
        why: String,
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
    /// When effects came that their id had already, for the time line: by the database's clock, or when they
    /// were seen where a user's query does not tell it.
    Repeated {
        /// Milliseconds since the run began, in order; only as exact as the two clocks, or the looks, are.
        times_ms: Vec<u64>,
    },
    /// What was seen of a row of `lab faults`.
    #[cfg(all(feature = "kafka", feature = "postgres"))]
    Fault(crate::faults::record::Seen),
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

/// Evidence: duplicates that subjects say they skipped.
#[cfg(feature = "kafka")]
#[must_use]
pub(crate) fn skipped(entries: &[Entry]) -> u64 {
    let of = |entry: &Entry| match entry.event {
        Event::DuplicateSkipped { .. } => 1,
        Event::DuplicatesLeftOut { count, .. } => count,
        _ => 0,
    };
    entries.iter().map(of).sum()
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
            Event::DuplicatesLeftOut { child: 1, count: 6 },
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
        #[cfg(feature = "kafka")]
        assert_eq!(skipped(&entries), 7);

        let text = std::fs::read_to_string(&path).expect("read");
        std::fs::write(&path, &text[..text.len() - 5]).expect("written");
        let entries = read(&path).expect("read");
        assert_eq!(entries.len(), events.len() - 1);
        assert!(end_state(&entries).is_none());
        std::fs::write(&path, format!("nonsense\n{text}")).expect("written");
        assert!(read(&path).is_err());
    }
}
