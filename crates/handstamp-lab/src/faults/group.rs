//! A consumer group over a backlog of its own: members are started, asked to end and replaced, and in the end
//! the checker says what came of every message.

use super::watch::Watch;
use crate::broker::{Broker, Topic};
use crate::cancel::Cancel;
use crate::checker::{self, Verdict};
use crate::error::{LabError, LabErrorKind, Result};
use crate::kill::Launch;
use crate::ledger::{Database, Ledger, Place};
use crate::subjects::{Setup, Subject, program};
use crate::supervisor::Process;
use crate::workload::{self, Plan, SentLog};
use serde::Serialize;
use std::cell::Cell;
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
    /// Where logs of what was sent go.
    pub folder: &'a Path,
    /// Decides messages and faults.
    pub seed: u64,
    /// Being told to stop.
    pub cancel: &'a Cancel,
    /// Told what is being done.
    pub progress: &'a dyn Fn(&str),
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

/// A running member.
#[derive(Debug)]
pub(super) struct Member {
    process: Process,
    asked: Option<Instant>,
}

impl Member {
    /// SIGTERM.
    pub(super) fn ask_to_end(&mut self) -> Result<()> {
        self.asked = Some(Instant::now());
        self.process.signal("TERM")
    }

    /// How it ended, once it has.
    pub(super) fn ended(&mut self) -> Result<Option<Ended>> {
        let asked = self.asked;
        let status = self.process.ended()?;
        Ok(status.map(|status| Ended {
            code: status.code(),
            took_s: asked.map_or(0.0, |asked| asked.elapsed().as_secs_f64()),
        }))
    }

    /// Waits for the end it was asked for.
    pub(super) fn wait(&mut self, cancel: &Cancel) -> Result<Ended> {
        let until = Instant::now() + END_MAX;
        loop {
            if let Some(ended) = self.ended()? {
                return Ok(ended);
            }
            if Instant::now() > until {
                let took_s = self.asked.map_or(0.0, |asked| asked.elapsed().as_secs_f64());
                // It is killed when it is dropped: what it left is somebody else's work now.
                return Ok(Ended { code: None, took_s });
            }
            cancel.sleep(Duration::from_millis(20))?;
        }
    }

    /// A member that nobody asked to end is an error of the subject.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(ended) => Err(LabError::new(
                LabErrorKind::Subject,
                format!(
                    "a member ended by itself (exit {:?}); its last lines:\n{}",
                    ended.code,
                    self.process.log_tail()
                ),
            )),
        }
    }

    /// The last lines of its log.
    pub(super) fn log(&self) -> String {
        self.process.log_tail()
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
    /// The producer's log and the members' files; removed with this.
    folder: PathBuf,
    started: Cell<u32>,
    messages: u64,
    name: String,
}

/// The producer's log in a group's folder.
const SENT_FILE: &str = "sent.jsonl";

impl<'a> Group<'a> {
    /// Fills a topic and makes a ledger.
    pub(super) fn open(
        around: &'a Around<'a>,
        runtime: &'a Runtime,
        broker: &Broker,
        admin: &str,
        subject: Subject,
        messages: u64,
    ) -> Result<Self> {
        let once = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("hs_lab_faults_{}", &once[..12]);
        let topic = broker.create_topic(&name, PARTITIONS)?;
        let ledger = Ledger::create(&Place::Postgres(admin.to_owned()), &name, ACCOUNTS)?;
        let folder = around.folder.join(&name);
        make(&folder)?;
        let mut log = SentLog::create(&folder.join(SENT_FILE))?;
        topic.fill(
            &Plan { seed: around.seed, messages, accounts: ACCOUNTS, resends: 0 },
            &mut log,
            around.cancel,
        )?;
        log.finish()?;
        let watch = Watch::new(runtime, around.cancel, admin, &name);
        Ok(Self {
            around,
            subject,
            session_timeout_ms: 6000,
            topic,
            ledger,
            watch,
            folder,
            started: Cell::new(0),
            messages,
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

    /// Messages in the topic.
    pub(super) fn messages(&self) -> i64 {
        i64::try_from(self.messages).unwrap_or(i64::MAX)
    }

    /// Starts a member that goes to these brokers and this database.
    pub(super) fn start(&self, brokers: &str, url: &str, work_ms: u64) -> Result<Member> {
        // Each member has a folder of its own: they may go to different brokers by files of the same name.
        let folder = self.folder.join(format!("member-{}", self.started.get()));
        self.started.set(self.started.get() + 1);
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
        Ok(Member { process, asked: None })
    }

    /// What the group committed, summed up a partition; partitions without a commit are missing.
    pub(super) fn committed(&mut self) -> Result<std::collections::BTreeMap<i32, i64>> {
        self.topic.committed()
    }

    /// The end of each partition.
    pub(super) fn ends(&mut self) -> Result<std::collections::BTreeMap<i32, i64>> {
        self.topic.ends()
    }

    /// The database is reached by another URL from now on, or is back after its connections broke.
    pub(super) fn reconnect(&mut self, admin: &str) -> Result<()> {
        self.watch.follow(admin);
        self.ledger.reconnect(admin)
    }

    /// Waits until everything is handled and settled; false when it is not in time.
    pub(super) fn drain(&mut self, members: &mut [Member]) -> Result<bool> {
        let until = Instant::now() + DRAIN_MAX;
        loop {
            for member in members.iter_mut() {
                member.check()?;
            }
            // A broker that has just come back may need a moment.
            let drained = self.topic.ends().and_then(|ends| self.topic.is_drained(&ends));
            if drained.is_ok_and(|drained| drained) {
                return Ok(true);
            }
            if Instant::now() > until {
                return Ok(false);
            }
            self.around.cancel.sleep(ASK_EVERY)?;
        }
    }

    /// What came of every message, from the producer's log and the database.
    pub(super) fn judge(&mut self) -> Result<Verdict> {
        let sent = workload::read_sent(&self.folder.join(SENT_FILE))?;
        Ok(checker::judge(&sent, &self.ledger.end_state()?))
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // The run's folder is the caller's; what is left in it harms nobody.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| LabError::file("make", folder, error))
}

/// One line about a verdict that is not clean.
pub(super) fn violation(verdict: &Verdict) -> String {
    format!(
        "{} doubled {:?}, {} lost {:?}, {} never sent, {} dead letters, accounts that do not add up: {:?}",
        verdict.doubled,
        verdict.doubled_ids,
        verdict.lost,
        verdict.lost_ids,
        verdict.unsent,
        verdict.dead_lettered,
        verdict.accounts_off
    )
}
