//! `lab demo`: what one crash does to four consumers, in seconds and without any server.
//!
//! ```text
//!  five credits of 100 for account 1: evt-1 … evt-5, in a file
//!    └─► for each story: consumer ─► held at its line ─► SIGKILL ─► the same consumer again ─► account 1
//! ```
//!
//! The consumers are processes of this same program; the file of JSON lines stands for the broker, a file
//! with a number in it for the committed offset. Authoritative for what happened: the ledger in each story's
//! database, how the first process ended, and (for the skipped duplicate alone) the second one's log.
//!
//! | file | owns |
//! |---|---|
//! | `consumers` | the processes that are killed: three written by hand, and the runtime |
//! | `hold_after` | what holds the process right after a commit |

mod consumers;
mod hold_after;

pub use consumers::main;

use crate::cancel::Cancel;
use crate::checker::judge;
use crate::error::{LabError, LabErrorKind, Result};
use crate::ledger::{Database, Ledger, Place};
use crate::supervisor::Process;
use crate::workload::Credit;
use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest life of one process: it has five messages.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// What a process says when it waits to be killed; nothing else it says begins so.
const HELD: &str = "held: ";
/// SIGKILL.
const KILLED: i32 = 9;
/// What each account has when every credit was applied once.
const TOLD_BALANCE: i64 = 500;

/// One consumer and the line at which it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Story {
    /// Database first, then the position; no inbox.
    NoInbox,
    /// This project's runtime, killed at the same line.
    Handstamp,
    /// The position first, then the database.
    OffsetFirst,
    /// Look up, act, mark, in separate transactions.
    LookUpFirst,
}

impl Story {
    /// All of them, in the order they are told.
    pub const ALL: [Self; 4] = [Self::NoInbox, Self::Handstamp, Self::OffsetFirst, Self::LookUpFirst];

    /// Its name in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoInbox => "no inbox",
            Self::Handstamp => "Handstamp",
            Self::OffsetFirst => "offset first",
            Self::LookUpFirst => "look up, act, mark",
        }
    }

    /// The message in hand when it dies.
    fn held_id(self) -> &'static str {
        if self == Self::OffsetFirst { "evt-1" } else { "evt-2" }
    }

    /// The line at which it dies.
    fn line(self) -> &'static str {
        match self {
            Self::NoInbox | Self::Handstamp => "after evt-2 was committed, before its offset was",
            Self::OffsetFirst => "after the offset of evt-1 was committed, before its credit was",
            Self::LookUpFirst => "after evt-2 was credited, before it was marked as done",
        }
    }

    /// What becomes of account 1.
    fn told(self) -> (i64, &'static [&'static str], &'static [&'static str]) {
        match self {
            Self::NoInbox | Self::LookUpFirst => (TOLD_BALANCE + 100, &["evt-2"], &[]),
            Self::Handstamp => (TOLD_BALANCE, &[], &[]),
            Self::OffsetFirst => (TOLD_BALANCE - 100, &[], &["evt-1"]),
        }
    }

    /// What a log line of the second process must say.
    fn told_line(self) -> Option<&'static str> {
        (self == Self::Handstamp).then_some("skipped duplicate evt-2")
    }

    /// Why it went as it did.
    fn why(self) -> &'static str {
        match self {
            Self::NoInbox => "evt-2 came again and nothing knew it: it was credited twice",
            Self::Handstamp => "evt-2 came again, met the row of its own transaction and was skipped",
            Self::OffsetFirst => "evt-1 never came again: its credit is lost",
            Self::LookUpFirst => "evt-2 came again, the look-up found no mark: it was credited twice",
        }
    }
}

/// How one story ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Which one.
    pub story: Story,
    /// Where the process was killed.
    pub killed: String,
    /// The first process was held at its line and ended by SIGKILL.
    pub really_killed: bool,
    /// Account 1 at the end.
    pub balance: i64,
    /// What it would be with every credit once.
    pub right_balance: i64,
    /// Ids that were credited more than once.
    pub doubled: Vec<String>,
    /// Ids that were never credited.
    pub lost: Vec<String>,
    /// What the second process logged of skipped duplicates.
    pub log: Vec<String>,
    /// It ended as this module says it does.
    pub as_told: bool,
    /// One sentence for a person.
    pub sentence: String,
}

/// How the processes are started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// This program.
    pub program: PathBuf,
    /// Arguments that lead to [`main`].
    pub arguments: Vec<String>,
}

/// What a consumer process is told, as one line on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Told {
    story: Story,
    /// The credits.
    input: PathBuf,
    /// Where the position is kept.
    folder: PathBuf,
    /// The database.
    database: PathBuf,
    /// Wait to be killed with this message in hand.
    hold: Option<String>,
}

/// The credits of the story.
fn credits() -> Vec<Credit> {
    (1..=5).map(|n| Credit { id: format!("evt-{n}"), account: 1, amount: 100 }).collect()
}

/// Tells every story; `each` hears how one ended. Files go into `folder`, which is the caller's.
///
/// # Errors
/// A process cannot be started or ends by itself, a file cannot be written, or it was told to stop. A story
/// that ends otherwise than told is no error.
pub fn run(
    launch: &Launch,
    folder: &Path,
    cancel: &Cancel,
    each: &mut dyn FnMut(&Ended) -> Result<()>,
) -> Result<Vec<Ended>> {
    let input = folder.join("credits.jsonl");
    let line = |credit: &Credit| {
        format!("{{\"event_id\":\"{}\",\"account_id\":1,\"amount\":{}}}\n", credit.id, credit.amount)
    };
    let text: String = credits().iter().map(line).collect();
    std::fs::write(&input, text).map_err(|error| LabError::file("write", &input, error))?;
    let mut all = Vec::new();
    for story in Story::ALL {
        let ended = tell(story, launch, folder, &input, cancel)?;
        each(&ended)?;
        all.push(ended);
    }
    Ok(all)
}

fn tell(story: Story, launch: &Launch, folder: &Path, input: &Path, cancel: &Cancel) -> Result<Ended> {
    let name = story.name().replace([',', ' '], "-").to_lowercase();
    let folder = folder.join(&name);
    std::fs::create_dir_all(&folder).map_err(|error| LabError::file("make", &folder, error))?;
    let mut ledger = Ledger::create(&Place::Sqlite(folder.clone()), "wallet", 1)?;
    let database = match ledger.database() {
        Database::Sqlite { path } => path,
        #[cfg(feature = "postgres")]
        Database::Postgres { .. } => return Err(LabError::new(LabErrorKind::Other, "the demo uses SQLite")),
    };
    let mut told =
        Told { story, input: input.to_owned(), folder, database, hold: Some(story.held_id().into()) };
    let (status, _) = process(launch, &told, cancel)?;
    let really_killed = status.signal() == Some(KILLED);
    told.hold = None;
    let (status, lines) = process(launch, &told, cancel)?;
    if !status.success() {
        return Err(LabError::new(
            LabErrorKind::Subject,
            format!("{}: the second process ended with {status}:\n{}", story.name(), lines.join("\n")),
        ));
    }
    let end = ledger.end_state()?;
    let verdict = judge(&credits(), &end);
    let log = lines.iter().filter_map(|line| line.find("skipped duplicate").map(|at| line[at..].to_owned()));
    Ok(judged(story, really_killed, end.balances.get(&1).copied().unwrap_or(0), &verdict, log.collect()))
}

/// Compares what happened with what is told.
fn judged(
    story: Story,
    really_killed: bool,
    balance: i64,
    verdict: &crate::checker::Verdict,
    log: Vec<String>,
) -> Ended {
    let doubled: Vec<String> = verdict.doubled_ids.iter().map(|(id, _)| id.clone()).collect();
    let lost = verdict.lost_ids.clone();
    let (told_balance, told_doubled, told_lost) = story.told();
    let line = story.told_line();
    // The runtime adds what it knows of the duplicate behind the words.
    let logged = line.is_none_or(|line| log.iter().any(|said| said.starts_with(line)));
    let as_told = really_killed
        && logged
        && balance == told_balance
        && doubled == told_doubled
        && lost == told_lost
        && verdict.unsent == 0
        && verdict.accounts_off.is_empty();
    let ends = format!("account 1 ends at {balance}, not at {TOLD_BALANCE}");
    let sentence = match (as_told, line) {
        (true, Some(line)) => {
            format!("Killed {}: {} (\"{line}\"); account 1 ends at {balance}.", story.line(), story.why())
        }
        (true, None) => format!("Killed {}: {}; {ends}.", story.line(), story.why()),
        (false, _) => format!(
            "NOT AS TOLD: account 1 ends at {balance}, told was {told_balance}; doubled {doubled:?}, lost \
             {lost:?}; really killed: {really_killed}; log: {log:?}."
        ),
    };
    Ended {
        story,
        killed: story.line().to_owned(),
        really_killed,
        balance,
        right_balance: TOLD_BALANCE,
        doubled,
        lost,
        log,
        as_told,
        sentence,
    }
}

/// Runs one consumer process to its end: killed where it holds, or ended by itself with the file.
fn process(launch: &Launch, told: &Told, cancel: &Cancel) -> Result<(ExitStatus, Vec<String>)> {
    let setup = serde_json::to_string(told)
        .map_err(|error| LabError::new(LabErrorKind::Other, "a setup is no JSON").because(error))?;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = {
        let heard = Arc::clone(&heard);
        move |line: &str| heard.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned())
    };
    let mut command = Command::new(&launch.program);
    let mut process = Process::start(command.args(&launch.arguments), Some(&setup), listener)?;
    let lines = || heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let until = Instant::now() + LIFE_MAX;
    while process.ended()?.is_none() && !lines().iter().any(|line| line.starts_with(HELD)) {
        if Instant::now() > until {
            let what = format!("{}: no end within {LIFE_MAX:?}:\n{}", told.story.name(), lines().join("\n"));
            return Err(LabError::new(LabErrorKind::Subject, what));
        }
        cancel.sleep(LOOK_EVERY)?;
    }
    let status = process.kill()?;
    Ok((status, lines()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Verdict;

    #[test]
    fn what_ends_otherwise_is_not_as_told() {
        let doubled = Verdict { doubled: 1, doubled_ids: vec![("evt-2".into(), 2)], ..Verdict::default() };
        let skipped = || vec!["skipped duplicate evt-2 state=applied".to_owned()];
        let as_told = |story, killed, balance, verdict: &Verdict, log| {
            judged(story, killed, balance, verdict, log).as_told
        };
        assert!(as_told(Story::NoInbox, true, 600, &doubled, vec![]));
        assert!(!as_told(Story::NoInbox, false, 600, &doubled, vec![]));
        assert!(!as_told(Story::NoInbox, true, 500, &Verdict::default(), vec![]));
        assert!(as_told(Story::Handstamp, true, 500, &Verdict::default(), skipped()));
        assert!(!as_told(Story::Handstamp, true, 500, &Verdict::default(), vec![]));
        assert!(!as_told(Story::Handstamp, true, 600, &doubled, skipped()));
        let ended = judged(Story::Handstamp, true, 600, &doubled, vec![]);
        assert!(ended.sentence.starts_with("NOT AS TOLD") && ended.sentence.contains("600"));
    }
}
