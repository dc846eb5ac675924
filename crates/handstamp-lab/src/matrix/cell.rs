//! One cell: filled, crashed, started again, judged, removed.
//!
//! ```text
//!  files ─► (published) ─► armed run ─┬─ SIGKILL and mark ─► hit
//!                            │ rival  └─ anything else ────► not hit
//!                            ▼
//!                          run until idle, exit 0 ─► tables read ─► verdict
//! ```
//!
//! A revoke needs a second member: the rival is started once the armed one has applied something.

#[cfg(feature = "postgres")]
use super::pipeline::DATABASE_URL;
use super::pipeline::Files;
use super::plan::{Cell, SourceKind, StoreKind, is_revoke};
use super::tables::Tables;
use super::{Options, Outcome};
use crate::cancel::Cancel;
use crate::checker::judge;
use crate::crash::{CRASH_AT, CRASH_MARK, CrashAt};
use crate::error::{LabError, LabErrorKind, Result};
use crate::supervisor::Process;
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
const SIGKILL: i32 = 9;

/// What a cell uses; removed when it is dropped.
struct Stage<'a> {
    options: &'a Options,
    cell: Cell,
    files: Files,
    tables: Tables,
    cancel: &'a Cancel,
    #[cfg(feature = "kafka")]
    _topic: Option<crate::broker::Topic>,
}

/// How the armed consumer ended.
struct Crash {
    /// If it was not at the point.
    otherwise: Option<String>,
    /// Effects in the database then.
    effects: u64,
}

/// Runs a cell to its verdict.
pub(super) fn run(options: &Options, cell: Cell, number: usize, cancel: &Cancel) -> Result<Outcome> {
    let started = Instant::now();
    let stage = Stage::set(options, cell, number, cancel)?;
    let told = |error: LabError| LabError { message: format!("{cell}: {}", error.message), ..error };
    stage.publish().map_err(told)?;
    let mut crash = stage.crash().map_err(told)?;
    for _ in 1..options.kills {
        if crash.otherwise.is_none() {
            crash = stage.crash().map_err(told)?;
        }
    }
    stage.drain().map_err(told)?;
    let found = stage.tables.read().map_err(told)?;
    Ok(Outcome {
        cell,
        hit: crash.otherwise.is_none(),
        otherwise: crash.otherwise,
        at_crash: crash.effects,
        verdict: judge(&stage.files.sent, &found.end),
        bad: (stage.files.bad, found.dead_letters),
        took_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

impl<'a> Stage<'a> {
    fn set(options: &'a Options, cell: Cell, number: usize, cancel: &'a Cancel) -> Result<Self> {
        cancel.check()?;
        let name = format!("{}_{number}", options.name);
        #[cfg(feature = "kafka")]
        let topic = match (cell.source, &options.broker) {
            (SourceKind::File, _) => None,
            (SourceKind::Kafka, Some(broker)) => Some(broker.create_topic(&name, 6)?),
            (SourceKind::Kafka, None) => return Err(LabError::usage("a Kafka cell needs a broker")),
        };
        let files = Files::write(cell, options, number, &name)?;
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
            cancel,
            #[cfg(feature = "kafka")]
            _topic: topic,
        })
    }

    /// The program in the cell's folder, without a crash point that this process may have been given.
    fn program(&self) -> Command {
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

    fn publish(&self) -> Result<()> {
        if self.cell.source != SourceKind::Kafka {
            return Ok(());
        }
        let mut publish = self.program();
        publish.args(["publish", "pipeline.toml", "--input", "lines.jsonl", "--allow-no-id"]);
        publish.args(["--id-field", "/event_id", "--key-field", "/account_id"]);
        self.must_end_well("publish", publish)
    }

    /// Starts the armed consumer and waits for its end.
    fn crash(&self) -> Result<Crash> {
        let mark = self.files.folder.join("mark");
        // One that is left from an earlier crash must not stand for this one; there may be none.
        let _ = std::fs::remove_file(&mark);
        let at = CrashAt { point: self.cell.point, nth: self.cell.nth };
        let mut command = self.consumer();
        command.env(CRASH_AT, at.to_string()).env(CRASH_MARK, &mark);
        if is_revoke(self.cell.point) {
            return self.crash_beside_a_rival(command, &mark, at);
        }
        command.args(["--until-idle", IDLE]);
        let mut armed = Process::start(&mut command, None, |_| {})?;
        let status = self.wait(&mut armed)?;
        Ok(self.crashed(status, &mark, at, &armed))
    }

    /// The rival's coming takes partitions away from the armed one.
    fn crash_beside_a_rival(&self, mut armed: Command, mark: &Path, at: CrashAt) -> Result<Crash> {
        // It ends by itself, too, should the lab be killed.
        let mut armed = Process::start(armed.args(["--until-idle", "30s"]), None, |_| {})?;
        let until = Instant::now() + LIMIT;
        while self.tables.effects() == 0 && armed.ended()?.is_none() && Instant::now() < until {
            self.cancel.sleep(LOOK_EVERY)?;
        }
        let mut rival = self.consumer();
        let mut rival = Process::start(rival.args(["--until-idle", IDLE]), None, |_| {})?;
        let status = self.wait(&mut armed)?;
        let crash = self.crashed(status, mark, at, &armed);
        ended_well("the second member", self.wait(&mut rival)?, &rival)?;
        Ok(crash)
    }

    fn crashed(&self, status: ExitStatus, mark: &Path, at: CrashAt, process: &Process) -> Crash {
        Crash { otherwise: not_at_the_point(status, mark, at, process), effects: self.tables.effects() }
    }

    /// Runs until nothing is left.
    fn drain(&self) -> Result<()> {
        let mut last = self.consumer();
        last.args(["--until-idle", IDLE]);
        self.must_end_well("the consumer after the crash", last)
    }

    fn must_end_well(&self, what: &str, mut command: Command) -> Result<()> {
        let mut process = Process::start(&mut command, None, |_| {})?;
        let status = self.wait(&mut process)?;
        ended_well(what, status, &process)
    }

    fn wait(&self, process: &mut Process) -> Result<ExitStatus> {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = process.ended()? {
                return Ok(status);
            }
            if Instant::now() >= until {
                let what = format!("a process did not end within {LIMIT:?}:\n{}", process.log_tail());
                return Err(LabError::new(LabErrorKind::Subject, what));
            }
            self.cancel.sleep(LOOK_EVERY)?;
        }
    }
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
