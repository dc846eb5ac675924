//! The consumers that are killed: each a short file of plain client code, to be held beside a description of
//! the pattern it follows.
//!
//! | subject | what it does | what a crash does to it |
//! |---|---|---|
//! | `a1` | auto-commit, one message at a time | doubles up to five seconds of work |
//! | `a2` | auto-commit, a hundred taken at a time | doubles, and loses what was taken and not handled |
//! | `b` | database, then offset, no inbox | doubles what was committed and not settled |
//! | `c` | a hand-written inbox | nothing |
//! | `offset_first` | offset, then database | loses the message in hand |
//! | `look_up_first` | look up, act, mark: three transactions | doubles between act and mark |
//! | `cache_first` | marks the id outside the database, then acts | loses between mark and act |
//! | `handstamp` | this project's runtime | nothing |
//! | `program` | `handstamp run pipeline.toml` | nothing |
//!
//! `client` and `db` are what the hand-written ones share; `stall` is where one stops in the middle.
//!
//! A subject is this same program again, under a hidden command. Its [`Setup`] comes as one line on its
//! standard input, whose end tells it that the lab is gone; what it says of itself goes line by line to its
//! standard output and is evidence only.

#[cfg(feature = "kafka")]
mod a1;
#[cfg(feature = "kafka")]
mod a2;
#[cfg(feature = "kafka")]
mod b;
#[cfg(feature = "kafka")]
mod c;
#[cfg(feature = "kafka")]
mod cache_first;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod db;
#[cfg(feature = "kafka")]
mod handstamp;
#[cfg(feature = "kafka")]
mod look_up_first;
#[cfg(feature = "kafka")]
mod offset_first;
pub mod program;
#[cfg(feature = "kafka")]
pub(crate) mod stall;

use crate::error::{LabError, Result};
use crate::ledger::Database;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::str::FromStr;

/// What a subject's own code may fail with.
type Res<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The name under which subjects remember ids.
const CONSUMER: &str = "wallet-credits";

/// Which consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Subject {
    /// Auto-commit, one message a poll.
    A1,
    /// Auto-commit, a hundred messages taken at a time and handled one by one.
    A2,
    /// Database, then offset; no inbox.
    B,
    /// A hand-written inbox.
    C,
    /// Offset, then database.
    OffsetFirst,
    /// Look up, act, mark, in separate transactions.
    LookUpFirst,
    /// The id marked outside the database, then the effect.
    CacheFirst,
    /// The runtime, one message a transaction.
    Handstamp,
    /// The runtime, up to 50 messages a transaction.
    Handstamp50,
    /// `handstamp run`, one message a transaction.
    HandstampProgram,
    /// `handstamp run`, up to 50 messages a transaction.
    HandstampProgram50,
}

impl Subject {
    /// Every subject, in the table's order.
    pub const ALL: [Self; 11] = [
        Self::A1,
        Self::A2,
        Self::B,
        Self::OffsetFirst,
        Self::LookUpFirst,
        Self::CacheFirst,
        Self::C,
        Self::Handstamp,
        Self::Handstamp50,
        Self::HandstampProgram,
        Self::HandstampProgram50,
    ];

    /// The name in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A1 => "a1",
            Self::A2 => "a2",
            Self::B => "b",
            Self::C => "c",
            Self::OffsetFirst => "offset-first",
            Self::LookUpFirst => "look-up-first",
            Self::CacheFirst => "cache-first",
            Self::Handstamp => "handstamp",
            Self::Handstamp50 => "handstamp-50",
            Self::HandstampProgram => "handstamp-program",
            Self::HandstampProgram50 => "handstamp-program-50",
        }
    }

    /// What it does, for people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::A1 => "auto-commit, one message a poll",
            Self::A2 => "auto-commit, 100 taken at a time",
            Self::B => "database, then offset; no inbox",
            Self::C => "hand-written inbox",
            Self::OffsetFirst => "offset, then database",
            Self::LookUpFirst => "look up, act, mark: three transactions",
            Self::CacheFirst => "id marked in a cache, then the effect",
            Self::Handstamp => "Handstamp, one message a transaction",
            Self::Handstamp50 => "Handstamp, batches of 50",
            Self::HandstampProgram => "handstamp run, one message a transaction",
            Self::HandstampProgram50 => "handstamp run, batches of 50",
        }
    }

    /// Whether it promises that every effect happens once: one doubled or lost is a violation.
    #[must_use]
    pub fn promises(self) -> bool {
        !matches!(
            self,
            Self::A1 | Self::A2 | Self::B | Self::OffsetFirst | Self::LookUpFirst | Self::CacheFirst
        )
    }

    /// Most messages in one transaction of ours.
    #[must_use]
    pub fn batch_max(self) -> usize {
        if matches!(self, Self::Handstamp50 | Self::HandstampProgram50) { 50 } else { 1 }
    }

    /// The point at which it is held in a run that does not leave the kill to chance.
    #[must_use]
    pub fn point(self) -> Option<&'static str> {
        match self {
            Self::B => Some("after-commit"),
            Self::LookUpFirst => Some("before-mark"),
            Self::OffsetFirst => Some("after-offset"),
            Self::CacheFirst => Some("after-mark"),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Subject {
    type Err = LabError;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|subject| subject.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            LabError::usage(format!("{name:?} is no subject: {known}"))
        })
    }
}

/// Everything a subject is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Which one it is.
    pub subject: Subject,
    /// Bootstrap servers.
    pub brokers: String,
    /// The run's topic.
    pub topic: String,
    /// The run's group.
    pub group: String,
    /// The run's ledger.
    pub database: Database,
    /// How long handling a message takes beside the database, in milliseconds.
    pub work_ms: u64,
    /// `session.timeout.ms`.
    pub session_timeout_ms: u64,
    /// A folder of the run, for what a subject keeps outside the database.
    pub folder: PathBuf,
    /// Most messages in one transaction (the runtime and the program only).
    pub batch_max: usize,
    /// How far offsets may follow the database, in milliseconds (the runtime only).
    pub commit_every_ms: u64,
    /// `max.poll.interval.ms`; `None`: the client library's own.
    pub max_poll_interval_ms: Option<u64>,
    /// Messages to stall on; `None`: none.
    pub stall: Option<Stall>,
    /// Wait to be killed at the subject's named point, the n-th time it comes by (from 1).
    pub hold_at_nth: Option<u64>,
}

/// Which messages a subject stalls on, the first time anybody handles them, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The messages' ids.
    pub ids: Vec<String>,
    /// For how long.
    pub ms: u64,
    /// How.
    pub how: Stalling,
    /// `partition.assignment.strategy`; `None`: the client library's own.
    pub assignor: Option<String>,
}

/// How a subject stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stalling {
    /// The handler takes so long; whatever polls goes on polling, where it is not the handler's own loop.
    Handler,
    /// The handler takes so long, and the runtime does not poll either (a switch for the lab).
    NotPolling,
    /// The process is frozen by SIGSTOP in the handler, longer than its session lasts.
    Frozen,
}

#[cfg(feature = "kafka")]
impl Setup {
    /// The work on one message beside the database.
    fn work(&self) {
        std::thread::sleep(std::time::Duration::from_millis(self.work_ms));
    }
}

/// What a subject says of itself: evidence, never the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It was given partitions; so many are its own now.
    Assigned(u32),
    /// It lost its partitions to a timeout.
    Evicted,
    /// A message was applied before and is skipped.
    DuplicateSkipped(String),
    /// The commit of an offset was refused.
    CommitRefused(String),
    /// It waits at its named point.
    Held(String),
    /// It stalls on a message now.
    Stalled(String),
    /// It goes on after a stall.
    Woke(String),
    /// It waited so many milliseconds for another's transaction.
    HeldUp(u64),
}

/// Says something to the supervisor. One that is gone does not listen, and ends us by our standard input.
#[cfg(feature = "kafka")]
fn say(said: &Said) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    if let Ok(line) = serde_json::to_string(said) {
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

/// The hidden command: reads the setup from standard input and consumes until killed.
///
/// # Errors
/// The setup cannot be read, or the consumer fails.
pub fn main() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let setup: Setup = serde_json::from_str(&line)?;
    std::thread::Builder::new().name("lifeline".into()).spawn(|| {
        // Whatever ends standard input ends the subject, as hard as a kill would.
        let mut rest = [0; 64];
        while std::io::stdin().lock().read(&mut rest).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    })?;
    consume(&setup)
}

#[cfg(feature = "kafka")]
fn consume(setup: &Setup) -> Res<()> {
    match setup.subject {
        Subject::A1 => a1::run(setup),
        Subject::A2 => a2::run(setup),
        Subject::B => b::run(setup),
        Subject::C => c::run(setup),
        Subject::OffsetFirst => offset_first::run(setup),
        Subject::LookUpFirst => look_up_first::run(setup),
        Subject::CacheFirst => cache_first::run(setup),
        Subject::Handstamp | Subject::Handstamp50 => handstamp::run(setup),
        Subject::HandstampProgram | Subject::HandstampProgram50 => Err("it is a program of its own".into()),
    }
}

#[cfg(not(feature = "kafka"))]
fn consume(setup: &Setup) -> Res<()> {
    Err(format!("{}: this build has no Kafka client (feature `kafka`)", setup.subject).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_has_a_name_of_its_own_that_is_read_back() {
        for subject in Subject::ALL {
            assert_eq!(subject.name().parse::<Subject>().expect("known"), subject);
        }
        let error = "a3".parse::<Subject>().expect_err("unknown").to_string();
        assert!(error.contains("a3") && error.contains("offset-first"), "{error}");
    }

    #[test]
    fn what_promises_is_ours_and_the_inbox() {
        let promises: Vec<&str> =
            Subject::ALL.into_iter().filter(|subject| subject.promises()).map(Subject::name).collect();
        assert_eq!(promises, ["c", "handstamp", "handstamp-50", "handstamp-program", "handstamp-program-50"]);
    }
}
