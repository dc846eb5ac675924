//! One cell: filled, crashed, started again, judged, removed.
//!
//! ```text
//!  files ─► (published) ─► armed run ─┬─ SIGKILL and mark ─► hit
//!                            │ rival  └─ anything else ────► not hit
//!                            ▼
//!                          run until idle, exit 0, again while something is parked
//!                            └─► tables read ─► history ends ─► verdict
//! ```
//!
//! A revoke needs a second member: the rival is started once the armed one has applied something.

use super::outcome::{Named, Outcome, SourceKind, StoreKind};
#[cfg(feature = "postgres")]
use super::pipeline::DATABASE_URL;
use super::pipeline::{Files, LINES};
use super::plan::{Cell, Operation, is_revoke};
use super::record::{self, stem};
use super::run::Options;
use super::tables::{Kept, Tables};
use crate::cancel::Cancel;
use crate::crash::{CRASH_AT, CRASH_MARK, CrashAt};
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::supervisor::Process;
use crate::workload::SentLog;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Longest time that one process of a cell may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How often a process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A consumer that found nothing more for so long is done.
const IDLE: &str = "400ms";
/// So often it runs until nothing is parked any more: each run ends when nothing is due.
const RUNS_MAX: u32 = 200;
const SIGKILL: i32 = 9;

/// What a cell uses; removed when it is dropped.
pub(super) struct Stage<'a> {
    pub(super) options: &'a Options,
    pub(super) cell: Cell,
    pub(super) files: Files,
    pub(super) tables: Tables,
    pub(super) history: History,
    /// Processes of the cell so far.
    children: std::cell::Cell<u32>,
    cancel: &'a Cancel,
    #[cfg(feature = "kafka")]
    topic: std::cell::RefCell<Option<crate::broker::Topic>>,
}

/// Runs a cell to its verdict.
pub(super) fn run(options: &Options, cell: Cell, number: usize, cancel: &Cancel) -> Result<Outcome> {
    let named = cell.named();
    let stage = Stage::set(options, cell, &named, number, cancel)?;
    let told = |error: LabError| LabError { message: format!("{named}: {}", error.message), ..error };
    stage.publish(LINES).map_err(told)?;
    match Operation::of(cell.point) {
        None => stage.crash_again_and_again(|| stage.consumer()).map_err(told)?,
        Some(operation) => stage.operate(operation).map_err(told)?,
    }
    stage.drain().map_err(told)?;
    let found = stage.tables.read().map_err(told)?;
    stage.history.note(Event::DeadLetters { bad: stage.files.bad, found: found.dead_letters });
    stage.history.note(Event::End(found.end));
    stage.history.finish()?;
    // The verdict is what the folder says, as for anyone who asks later.
    record::outcome(&options.record, number, &named, options.kills)?
        .ok_or_else(|| LabError::new(LabErrorKind::Other, format!("{named}: its history has no end")))
}

impl<'a> Stage<'a> {
    fn set(
        options: &'a Options,
        cell: Cell,
        named: &Named,
        number: usize,
        cancel: &'a Cancel,
    ) -> Result<Self> {
        cancel.check()?;
        let name = format!("{}_{number}", options.name);
        #[cfg(feature = "kafka")]
        let topic = match (cell.source, &options.broker) {
            (SourceKind::File, _) => None,
            (SourceKind::Kafka, Some(broker)) => Some(broker.create_topic(&name, 6)?),
            (SourceKind::Kafka, None) => return Err(LabError::usage("a Kafka cell needs a broker")),
        };
        let files = Files::write(cell, options, number, &name)?;
        let history = begin_history(options, named, number, &files)?;
        let tables = match cell.store {
            StoreKind::Sqlite => Tables::sqlite(&files.folder),
            #[cfg(feature = "postgres")]
            StoreKind::Postgres => {
                let url = options.database.as_deref();
                let url = url.ok_or_else(|| LabError::usage("a Postgres cell needs a database"))?;
                Tables::Postgres(Box::new(super::tables::postgres::Schemas::open(url, &name)?))
            }
            #[cfg(not(feature = "postgres"))]
            StoreKind::Postgres => return Err(LabError::usage("built without Postgres")),
        };
        Ok(Self {
            options,
            cell,
            files,
            tables,
            history,
            children: std::cell::Cell::new(0),
            cancel,
            #[cfg(feature = "kafka")]
            topic: topic.into(),
        })
    }

    /// Lets armed processes die one after the other, as often as asked.
    pub(super) fn crash_again_and_again(&self, armed: impl Fn() -> Command) -> Result<()> {
        for _ in 0..self.options.kills {
            if !self.crash(armed())? {
                break;
            }
        }
        Ok(())
    }

    /// The program in the cell's folder, without a crash point that this process may have been given.
    pub(super) fn program(&self) -> Command {
        let mut command = Command::new(&self.options.program);
        command.current_dir(&self.files.folder).env_remove(CRASH_AT).env_remove(CRASH_MARK);
        #[cfg(feature = "postgres")]
        if let Some(url) = &self.options.database {
            command.env(DATABASE_URL, url);
        }
        command
    }

    /// The consumer: the program's own, or the one that is broken.
    fn consumer(&self) -> Command {
        let mut command = self.program();
        match self.cell.broken {
            None => command.arg("run"),
            Some(broken) => command.args(["lab", "broken-subject", broken.as_str()]),
        };
        command.args(["pipeline.toml", "--migrate", "--json"]);
        command
    }

    /// Sends the messages of a file, where the source is not that file.
    pub(super) fn publish(&self, lines: &str) -> Result<()> {
        if self.cell.source != SourceKind::Kafka {
            return Ok(());
        }
        let mut publish = self.program();
        publish.args(["publish", "pipeline.toml", "--input", lines, "--allow-no-id"]);
        publish.args(["--id-field", "/event_id", "--key-field", "/account_id"]);
        self.must_end_well("publish", publish)
    }

    fn start(&self, command: &mut Command) -> Result<Started> {
        let process = Process::start(command, None, |_| {})?;
        let child = self.children.replace(self.children.get() + 1);
        self.history.note(Event::Started { child, pid: process.pid() });
        Ok(Started { process, child })
    }

    /// Starts the process, armed, and waits for its end; whether that was at the point.
    fn crash(&self, mut command: Command) -> Result<bool> {
        let mark = self.files.folder.join("mark");
        // One that is left from an earlier crash must not stand for this one; there may be none.
        let _ = std::fs::remove_file(&mark);
        let at = CrashAt { point: self.cell.point, nth: self.cell.nth };
        command.env(CRASH_AT, at.to_string()).env(CRASH_MARK, &mark);
        if is_revoke(self.cell.point) {
            return self.crash_beside_a_rival(command, &mark, at);
        }
        if Operation::of(self.cell.point).is_none() {
            command.args(["--until-idle", IDLE]);
        }
        let mut runs = 0;
        loop {
            runs += 1;
            let mut armed = self.start(&mut command)?;
            let status = self.wait(&mut armed.process)?;
            let is_file = self.cell.source == SourceKind::File;
            // A file may be at its end before what it parked is due: the next run takes that up.
            let comes_later = is_file && status.success() && self.tables.kept(Kept::Parked) > 0;
            if !comes_later || runs == RUNS_MAX {
                return Ok(self.crashed(status, &mark, at, &armed));
            }
            self.history.note(Event::Ended { child: armed.child, code: status.code() });
        }
    }

    /// The rival's coming takes partitions away from the armed one.
    fn crash_beside_a_rival(&self, mut armed: Command, mark: &Path, at: CrashAt) -> Result<bool> {
        // It ends by itself, too, should the lab be killed.
        let mut armed = self.start(armed.args(["--until-idle", "30s"]))?;
        let until = Instant::now() + LIMIT;
        while self.tables.effects() == 0 && armed.process.ended()?.is_none() && Instant::now() < until {
            self.cancel.sleep(LOOK_EVERY)?;
        }
        let mut rival = self.consumer();
        let mut rival = self.start(rival.args(["--until-idle", IDLE]))?;
        let status = self.wait(&mut armed.process)?;
        let hit = self.crashed(status, mark, at, &armed);
        let status = self.wait(&mut rival.process)?;
        self.history.note(Event::Ended { child: rival.child, code: status.code() });
        ended_well("the second member", status, &rival.process)?;
        Ok(hit)
    }

    fn crashed(&self, status: ExitStatus, mark: &Path, at: CrashAt, armed: &Started) -> bool {
        let otherwise = not_at_the_point(status, mark, at, &armed.process);
        let hit = otherwise.is_none();
        let (effects, kept) = (self.tables.effects(), |what| self.tables.kept(what));
        let (parked, dead) = (kept(Kept::Parked), kept(Kept::Dead));
        let at = at.to_string();
        self.history.note(Event::Armed { child: armed.child, at, otherwise, effects, parked, dead });
        hit
    }

    /// Runs until nothing is left, not even among what is parked. One run may not be enough: what is parked waits,
    /// and a group gives partitions to a member that was killed, until its session is over.
    pub(super) fn drain(&self) -> Result<()> {
        for _ in 0..RUNS_MAX {
            let mut last = self.consumer();
            last.args(["--until-idle", IDLE]);
            self.must_end_well("the consumer after the crash", last)?;
            if self.tables.kept(Kept::Parked) == 0 && self.is_settled()? {
                return Ok(());
            }
        }
        let what = format!("something is still parked or not settled after {RUNS_MAX} runs");
        Err(LabError::new(LabErrorKind::Subject, what))
    }

    /// Whether the group has committed all there is; a file ends when it is read.
    fn is_settled(&self) -> Result<bool> {
        #[cfg(feature = "kafka")]
        if let Some(topic) = &mut *self.topic.borrow_mut() {
            let ends = topic.ends()?;
            return topic.is_drained(&ends);
        }
        Ok(true)
    }

    pub(super) fn must_end_well(&self, what: &str, mut command: Command) -> Result<()> {
        let mut started = self.start(&mut command)?;
        let status = self.wait(&mut started.process)?;
        self.history.note(Event::Ended { child: started.child, code: status.code() });
        ended_well(what, status, &started.process)
    }

    fn wait(&self, process: &mut Process) -> Result<ExitStatus> {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = process.ended()? {
                return Ok(status);
            }
            #[cfg(feature = "kafka")]
            self.topic.borrow().as_ref().map_or(Ok(()), crate::broker::Topic::alive)?;
            if Instant::now() >= until {
                let what = format!("a process did not end within {LIMIT:?}:\n{}", process.log_tail());
                return Err(LabError::new(LabErrorKind::Subject, what));
            }
            self.cancel.sleep(LOOK_EVERY)?;
        }
    }
}

/// A process of the cell and its number.
struct Started {
    process: Process,
    child: u32,
}

/// What was sent is noted before anything is started.
fn begin_history(options: &Options, named: &Named, number: usize, files: &Files) -> Result<History> {
    let stem = stem(number, named);
    let mut log = SentLog::create(&options.record.join(format!("{stem}.sent.jsonl")))?;
    files.sent.iter().try_for_each(|credit| log.note(credit))?;
    log.finish()?;
    let history = History::create(&options.record.join(format!("{stem}.jsonl")))?;
    history.note(Event::Run {
        subject: named.to_string(),
        run: 0,
        seed: options.seed,
        messages: u64::try_from(files.sent.len()).unwrap_or(u64::MAX),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    Ok(history)
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // What is left of it lies in a folder that the caller made for this run.
        let _ = std::fs::remove_dir_all(&self.files.folder);
    }
}

fn ended_well(what: &str, status: ExitStatus, process: &Process) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let message = format!("{what} ended with {status}:\n{}", process.log_tail());
    Err(LabError::new(LabErrorKind::Subject, message))
}

/// `None` when the process died at the point: by SIGKILL, and its mark names the point.
fn not_at_the_point(status: ExitStatus, mark: &Path, at: CrashAt, process: &Process) -> Option<String> {
    let marked = std::fs::read_to_string(mark).unwrap_or_default();
    if status.signal() == Some(SIGKILL) && marked == at.to_string() {
        return None;
    }
    Some(format!("ended with {status}, mark {marked:?}:\n{}", process.log_tail()))
}
