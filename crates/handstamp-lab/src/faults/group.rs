//! A consumer group over a backlog of its own: members are started, asked to end and replaced, and in the end
//! the database tells what came of every message. All of it is noted in the row's history.

use super::outcome::begun;
use super::record::{Phase, Seen};
use super::settings::RowKey;
use super::watch::Watch;
use crate::broker::{Broker, Topic};
use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Entry, Event, History};
use crate::kill::Launch;
use crate::ledger::{Database, Ledger, Place};
use crate::names::{self, LAB};
use crate::subjects::{Setup, Subject, program};
use crate::supervisor::Process;
use crate::workload::{Plan, SentLog};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Partitions of every topic here.
pub(super) const PARTITIONS: i32 = 6;
/// Accounts of every ledger here.
const ACCOUNTS: u64 = 100;
/// Longest time until everything is handled and settled, once nothing is wrong any more.
const DRAIN_MAX: Duration = Duration::from_secs(180);
/// How often the broker is asked for committed offsets.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A member that was asked to end has `shutdown_timeout` (25 s) and a little more.
const END_MAX: Duration = Duration::from_secs(32);

/// What every run needs from outside.
pub struct Around<'a> {
    /// How subjects are started.
    pub launch: &'a Launch,
    /// The project's `scripts/services`: servers that may be stopped are started by it.
    pub services: &'a Path,
    /// The run's folder: histories and logs of what was sent.
    pub folder: &'a Path,
    /// Decides messages and faults.
    pub seed: u64,
    /// Being told to stop.
    pub cancel: &'a Cancel,
    /// Told what is being done.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

impl std::fmt::Debug for Around<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Around")
            .field("launch", &self.launch)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// A runtime for proxies and questions.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))
}

/// How a member ended after SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ended {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Seconds from the signal to the end.
    pub took_s: f64,
}

/// Every member that was asked to end, in that order, and how it did.
pub(super) fn ends(entries: &[Entry]) -> Vec<Ended> {
    let asked: Vec<(u32, u64)> = super::record::seen(entries)
        .filter_map(|(at_ms, seen)| match seen {
            Seen::Asked { child } => Some((*child, at_ms)),
            _ => None,
        })
        .collect();
    let ended: BTreeMap<u32, (u64, Option<i32>)> = entries
        .iter()
        .filter_map(|entry| match entry.event {
            Event::Ended { child, code } => Some((child, (entry.at_ms, code))),
            _ => None,
        })
        .collect();
    let one = |(child, asked_ms): (u32, u64)| {
        let (ended_ms, code) = ended.get(&child).copied().unwrap_or((asked_ms, None));
        #[allow(clippy::cast_precision_loss, reason = "a time for reading")]
        let took_s = ended_ms.saturating_sub(asked_ms) as f64 / 1000.0;
        Ended { code, took_s }
    };
    asked.into_iter().map(one).collect()
}

/// A running member.
#[derive(Debug)]
pub(super) struct Member {
    process: Process,
    number: u32,
    history: History,
    asked: Option<Instant>,
    ended: Option<Option<i32>>,
}

impl Member {
    /// SIGTERM.
    pub(super) fn ask_to_end(&mut self) -> Result<()> {
        self.asked = Some(Instant::now());
        self.history.note(Event::Fault(Seen::Asked { child: self.number }));
        self.process.signal("TERM")
    }

    /// Its exit code once it has ended, which is noted; the inner one is `None` after a signal.
    pub(super) fn ended(&mut self) -> Result<Option<Option<i32>>> {
        if self.ended.is_none()
            && let Some(status) = self.process.ended()?
        {
            self.note_end(status.code());
        }
        Ok(self.ended)
    }

    fn note_end(&mut self, code: Option<i32>) {
        self.ended = Some(code);
        self.history.note(Event::Ended { child: self.number, code });
        if code != Some(0) {
            self.history.note(Event::Fault(Seen::LastLines { text: self.process.log_tail() }));
        }
    }

    /// Waits for the end it was asked for.
    pub(super) fn wait(&mut self, cancel: &Cancel) -> Result<()> {
        let until = self.asked.unwrap_or_else(Instant::now) + END_MAX;
        while self.ended()?.is_none() {
            if Instant::now() > until {
                // It is killed when it is dropped: what it left is somebody else's work now.
                self.note_end(None);
                return Ok(());
            }
            cancel.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// A member that nobody asked to end is an error of the subject.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(code) => Err(LabError::new(
                LabErrorKind::Subject,
                format!(
                    "a member ended by itself (exit {code:?}); its last lines:\n{}",
                    self.process.log_tail()
                ),
            )),
        }
    }
}

/// The group.
pub(super) struct Group<'a> {
    around: &'a Around<'a>,
    subject: Subject,
    session_timeout_ms: u64,
    topic: Topic,
    ledger: Ledger,
    /// Asks the ledger's database.
    pub(super) watch: Watch<'a>,
    history: History,
    /// The members' files; removed with this.
    folder: PathBuf,
    started: Cell<u32>,
    name: String,
}

impl<'a> Group<'a> {
    /// Fills a topic, makes a ledger and begins the row's history and producer's log.
    pub(super) fn open(
        around: &'a Around<'a>,
        runtime: &'a Runtime,
        broker: &Broker,
        admin: &str,
        key: RowKey,
        messages: u64,
    ) -> Result<Self> {
        let name = format!("{LAB}faults_{}", names::token());
        let topic = broker.create_topic(&name, PARTITIONS)?;
        let ledger = Ledger::create(&Place::Postgres(admin.to_owned()), &name, ACCOUNTS)?;
        let folder = around.folder.join(&name);
        make(&folder)?;
        let stem = around.folder.join(key.file_stem());
        let history = History::create(&stem.with_extension("jsonl"))?;
        history.note(begun(key, around.seed, messages));
        let mut log = SentLog::create(&stem.with_extension("sent.jsonl"))?;
        topic.fill(
            &Plan { seed: around.seed, messages, accounts: ACCOUNTS, resends: 0 },
            &mut log,
            around.cancel,
        )?;
        log.finish()?;
        let mut watch = Watch::new(runtime, around.cancel, admin, &name);
        watch.tell(&history);
        let subject = match key {
            RowKey::Outage(_, subject) | RowKey::Partition(_, subject) => subject,
            RowKey::Commit(_) => return Err(LabError::usage("cuts of the COMMIT exchange have no group")),
        };
        Ok(Self {
            around,
            subject,
            session_timeout_ms: 6000,
            topic,
            ledger,
            watch,
            history,
            folder,
            started: Cell::new(0),
            name,
        })
    }

    /// The same with another `session.timeout.ms`.
    pub(super) fn with_session_timeout(mut self, session_timeout_ms: u64) -> Self {
        self.session_timeout_ms = session_timeout_ms;
        self
    }

    /// The run's schema; that of our own tables is this with `_inbox` behind it.
    pub(super) fn schema(&self) -> &str {
        &self.name
    }

    /// The run's topic.
    pub(super) fn topic(&self) -> &str {
        &self.topic.name
    }

    /// Notes what was seen.
    pub(super) fn note(&self, event: Event) {
        self.history.note(event);
    }

    /// Notes that a stretch of the row begins.
    pub(super) fn begin(&self, phase: Phase) {
        self.note(Event::Fault(Seen::Phase { phase }));
    }

    /// Starts a member that goes to these brokers and this database.
    pub(super) fn start(&self, brokers: &str, url: &str, work_ms: u64) -> Result<Member> {
        // Each member has a folder of its own: they may go to different brokers by files of the same name.
        let number = self.started.get();
        let folder = self.folder.join(format!("member-{number}"));
        self.started.set(number + 1);
        make(&folder)?;
        let setup = Setup {
            subject: self.subject,
            brokers: brokers.to_owned(),
            topic: self.topic.name.clone(),
            group: self.topic.group.clone(),
            database: Database::Postgres { url: url.to_owned(), schema: self.name.clone() },
            work_ms,
            session_timeout_ms: self.session_timeout_ms,
            folder,
            batch_max: self.subject.batch_max(),
            commit_every_ms: 200,
            max_poll_interval_ms: None,
            hold_at_nth: None,
            stall: None,
        };
        let launch = self.around.launch;
        let mut command = Command::new(&launch.program);
        let line =
            if matches!(self.subject, Subject::HandstampProgram | Subject::HandstampProgram50) {
                let (pipeline, url) = program::write_pipeline(&setup)?;
                command.args(&launch.pipeline).arg(pipeline).env(program::URL_VARIABLE, url);
                None
            } else {
                command.args(&launch.subject);
                let line = serde_json::to_string(&setup);
                Some(line.map_err(|error| {
                    LabError::new(LabErrorKind::Other, "a setup is no JSON").because(error)
                })?)
            };
        // What it says of itself is evidence that no verdict here needs.
        let process = Process::start(&mut command, line.as_deref(), |_| {})?;
        self.note(Event::Started { child: number, pid: process.pid() });
        Ok(Member { process, number, history: self.history.clone(), asked: None, ended: None })
    }

    /// What the group committed, summed up a partition; partitions without a commit are missing.
    pub(super) fn committed(&mut self) -> Result<BTreeMap<i32, i64>> {
        self.topic.committed()
    }

    /// The end of each partition.
    pub(super) fn ends(&mut self) -> Result<BTreeMap<i32, i64>> {
        self.topic.ends()
    }

    /// The database is reached by another URL from now on, or is back after its connections broke.
    pub(super) fn reconnect(&mut self, admin: &str) -> Result<()> {
        self.watch.follow(admin);
        self.ledger.reconnect(admin)
    }

    /// Waits until everything is handled and settled, and notes that it is, or until its time is over.
    pub(super) fn drain(&mut self, members: &mut [Member]) -> Result<()> {
        let until = Instant::now() + DRAIN_MAX;
        loop {
            for member in members.iter_mut() {
                member.check()?;
            }
            // A broker that has just come back may need a moment.
            let drained = self.topic.ends().and_then(|ends| self.topic.is_drained(&ends));
            if drained.is_ok_and(|drained| drained) {
                self.note(Event::Drained);
                return Ok(());
            }
            if Instant::now() > until {
                return Ok(());
            }
            self.watch.linger(ASK_EVERY)?;
        }
    }

    /// Notes what the database holds: the end of the history.
    pub(super) fn finish(mut self) -> Result<()> {
        self.history.note_repeated(&self.ledger.repeated_ms()?);
        let end = self.ledger.end_state()?;
        self.note(Event::End(end));
        self.history.finish()
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // Histories stay; what is left of members' files harms nobody.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| LabError::file("make", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_asked_to_end_and_did_not_was_killed() {
        let at = |at_ms, event| Entry { at_ms, event };
        let asked = |at_ms, child| at(at_ms, Event::Fault(Seen::Asked { child }));
        let entries = [
            asked(100, 1),
            asked(200, 0),
            at(1600, Event::Ended { child: 1, code: Some(0) }),
            asked(2000, 2),
            at(2500, Event::Ended { child: 2, code: Some(7) }),
        ];
        let ends: Vec<(Option<i32>, f64)> = ends(&entries).iter().map(|end| (end.code, end.took_s)).collect();
        assert_eq!(ends, [(Some(0), 1.5), (None, 0.0), (Some(7), 0.5)]);
    }
}
