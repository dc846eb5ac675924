//! One run of one row: everything of its own, kills by the schedule, a last consumer that drains.
//!
//! ```text
//!  topic filled, ledger made
//!     └─► for each kill: start ─► first effect ─► wait as scheduled, or until held ─► SIGKILL
//!            └─► start the last ─► committed = ends ─► quiet ─► end state ─► everything removed
//! ```

use super::settings::{Row, RowKind, Settings};
use crate::broker::{Broker, Topic};
use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::ledger::{Ledger, Place};
use crate::schedule::Random;
use crate::subjects::{Said, Setup, Subject, program};
use crate::supervisor::Process;
use crate::workload::{Plan, SentLog};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the ledger is asked for progress.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the broker is asked for committed offsets.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// A drained consumer is done when nothing came for so long.
const QUIET: Duration = Duration::from_secs(1);
/// Longest wait for the first effect of a consumer, beyond its session timeout.
const FIRST_EFFECT_MAX: Duration = Duration::from_secs(90);
/// What one message may take at worst, beside its work, when a run's limit is computed.
const PER_MESSAGE_MAX: Duration = Duration::from_millis(60);

/// How this program is started again.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program itself.
    pub program: PathBuf,
    /// Arguments that lead to [`crate::subjects::main`].
    pub subject: Vec<String>,
    /// Arguments before a pipeline's file that run it.
    pub pipeline: Vec<String>,
}

/// What a run needs from outside.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// What is asked for.
    pub settings: &'a Settings,
    /// Where topics are made.
    pub broker: &'a Broker,
    /// Where ledgers are made.
    pub place: &'a Place,
    /// Where histories and logs go.
    pub folder: &'a Path,
    /// How subjects are started.
    pub launch: &'a Launch,
    /// Being told to stop.
    pub cancel: &'a Cancel,
}

/// What happens inside a run, for the progress line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// A kill was done.
    Killed,
    /// The last consumer drained.
    Drained,
    /// The throughput was measured.
    Measured,
}

/// A run while it goes on.
pub(crate) struct Run<'a> {
    around: &'a Surroundings<'a>,
    name: String,
    /// What is sent.
    pub(crate) plan: Plan,
    /// Where it is sent.
    pub(crate) topic: Topic,
    /// What it did.
    pub(crate) ledger: Ledger,
    /// What happens.
    pub(crate) history: History,
    children: u32,
    /// What every consumer is told.
    pub(crate) setup: Setup,
}

/// A consumer process with what it said.
pub(crate) struct Child {
    /// Which process of the run, from 0.
    pub(crate) number: u32,
    /// The process.
    pub(crate) process: Process,
    heard: Arc<Heard>,
}

/// What a consumer said, as far as the supervisor acts on it.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    held: AtomicBool,
    /// Messages it stalls on, until they are taken.
    stalled: Mutex<Vec<String>>,
    /// How many stalls it has not woken from.
    asleep: AtomicI64,
}

impl Child {
    /// The messages it began to stall on since the last question.
    pub(crate) fn take_stalled(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.stalled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it stalls now.
    pub(crate) fn is_asleep(&self) -> bool {
        self.heard.asleep.load(Ordering::SeqCst) > 0
    }
}

/// A name that no other run of any lab has, nor this one when it is resumed: for topics, groups, schemas
/// and files.
fn unique(id: &str, row: Row, run: u32) -> String {
    let once = uuid::Uuid::new_v4().simple().to_string();
    let row = row.file_stem(run).replace('-', "_");
    format!("hs_lab_{id}_{}_{row}", &once[..4])
}

/// Does one run; its history and the producer's log are complete when it returns `Ok`.
///
/// # Errors
/// The broker or the database does not answer, or a subject did what no schedule explains.
pub(super) fn kill_run(around: &Surroundings<'_>, row: Row, run: u32, tick: &dyn Fn(Tick)) -> Result<()> {
    let settings = around.settings;
    let plan = settings.plan(run, row.kind);
    let stem = around.folder.join(row.file_stem(run));
    let history = History::create(&stem.with_extension("jsonl"))?;
    history.note(Event::Run {
        subject: row.name(),
        run,
        seed: settings.seed,
        messages: plan.messages,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let mut run_now = Run::open(around, row, run, plan, history)?;
    let mut log = SentLog::create(&stem.with_extension("sent.jsonl"))?;
    run_now.topic.fill(&run_now.plan, &mut log, around.cancel)?;
    log.finish()?;
    match row.kind {
        RowKind::Random | RowKind::Resend => {
            for after_ms in settings.schedule(run).after_ms {
                run_now.kill_after(Duration::from_millis(after_ms))?;
                tick(Tick::Killed);
            }
        }
        RowKind::Held => {
            let mut random = Random::new(settings.seed, 500_000 + u64::from(run));
            for _ in 0..settings.held_kills {
                run_now.kill_held(1 + random.below(50))?;
                tick(Tick::Killed);
            }
        }
    }
    run_now.drain()?;
    tick(Tick::Drained);
    run_now.history.note_repeated(&run_now.ledger.repeated_ms()?);
    let end = run_now.ledger.end_state()?;
    run_now.history.note(Event::End(end));
    run_now.history.finish()
}

/// Messages a second of a subject that nobody kills, without work, every message settled. Leaves no file.
///
/// # Errors
/// As `lab kill`.
pub(crate) fn throughput_run(
    around: &Surroundings<'_>,
    subject: Subject,
    batch_max: usize,
    run: u32,
) -> Result<f64> {
    let row = Row { subject, kind: RowKind::Random };
    let settings = Settings { work_ms: 0, ..around.settings.clone() };
    let around = Surroundings { settings: &settings, ..*around };
    let plan = Plan { messages: settings.throughput_messages, ..settings.plan(run, row.kind) };
    let scratch = Scratch(around.folder.join(format!("throughput-{subject}.tmp")));
    let mut run_now = Run::open(&around, row, run, plan, History::create(&scratch.0)?)?;
    (run_now.setup.batch_max, run_now.setup.commit_every_ms) = (batch_max, 0);
    let sent = Scratch(around.folder.join(format!("throughput-{subject}.sent.tmp")));
    run_now.topic.fill(&run_now.plan, &mut SentLog::create(&sent.0)?, around.cancel)?;
    let mut child = run_now.start(None)?;
    let until = Instant::now() + run_now.limit();
    let span = loop {
        run_now.watch(&mut child, until, "handled everything")?;
        around.cancel.sleep(ASK_EVERY)?;
        if let Some(span) = run_now.ledger.span()?
            && span.effects >= run_now.plan.messages
        {
            break span;
        }
    };
    child.process.kill()?;
    #[allow(clippy::cast_precision_loss, reason = "a rate for reading")]
    let between = span.effects.saturating_sub(1) as f64;
    Ok(between / (span.last_s - span.first_s).max(1e-6))
}

/// A file that is removed with this.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing that a verdict needs is in it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl<'a> Run<'a> {
    /// Makes topic and ledger; both are gone when this is dropped.
    pub(crate) fn open(
        around: &'a Surroundings<'a>,
        row: Row,
        run: u32,
        plan: Plan,
        history: History,
    ) -> Result<Self> {
        let settings = around.settings;
        let name = unique(&settings.id, row, run);
        let topic = around.broker.create_topic(&name, settings.partitions)?;
        let ledger = Ledger::create(around.place, &name, plan.accounts)?;
        let setup = Setup {
            subject: row.subject,
            brokers: around.broker.bootstrap().to_owned(),
            topic: topic.name.clone(),
            group: topic.group.clone(),
            database: ledger.database(),
            work_ms: settings.work_ms,
            session_timeout_ms: settings.session_timeout_ms,
            folder: around.folder.to_owned(),
            batch_max: row.subject.batch_max(),
            // The runtime's default.
            commit_every_ms: 200,
            max_poll_interval_ms: None,
            stall: None,
            hold_at_nth: None,
        };
        Ok(Self { around, name: row.name(), plan, topic, ledger, history, children: 0, setup })
    }

    /// How long all messages may take at worst.
    pub(crate) fn limit(&self) -> Duration {
        let messages = u32::try_from(self.plan.messages + self.plan.resends).unwrap_or(u32::MAX);
        let each = Duration::from_millis(self.setup.work_ms) + PER_MESSAGE_MAX;
        each * messages + FIRST_EFFECT_MAX + Duration::from_millis(self.setup.session_timeout_ms)
    }

    /// Starts a consumer.
    pub(crate) fn start(&mut self, hold_at_nth: Option<u64>) -> Result<Child> {
        let launch = self.around.launch;
        let setup = Setup { hold_at_nth, ..self.setup.clone() };
        let mut command = Command::new(&launch.program);
        let line = match setup.subject {
            Subject::HandstampProgram | Subject::HandstampProgram50 => {
                let (pipeline, url) = program::write_pipeline(&setup)?;
                command.args(&launch.pipeline).arg(pipeline).env(program::URL_VARIABLE, url);
                None
            }
            _ => {
                command.args(&launch.subject);
                Some(serde_json::to_string(&setup).map_err(|error| {
                    LabError::new(LabErrorKind::Other, "a subject's setup is no JSON").because(error)
                })?)
            }
        };
        let number = self.children;
        self.children += 1;
        let heard = Arc::new(Heard::default());
        let listener = listen(number, self.history.clone(), Arc::clone(&heard));
        let process = Process::start(&mut command, line.as_deref(), listener)?;
        self.history.note(Event::Started { child: number, pid: process.pid() });
        Ok(Child { number, process, heard })
    }

    /// One look at a consumer that should be running.
    ///
    /// # Errors
    /// It ended by itself, or took too long.
    pub(crate) fn watch(&self, child: &mut Child, until: Instant, what: &str) -> Result<()> {
        let subject = &self.name;
        let failed = |what: String, log: &str| {
            let log = if log.is_empty() { "it logged nothing" } else { log };
            Err(LabError::new(LabErrorKind::Subject, format!("{subject}: {what}; its last lines:\n{log}")))
        };
        if let Some(status) = child.process.ended()? {
            self.history.note(Event::Ended { child: child.number, code: status.code() });
            return failed(format!("ended by itself ({status})"), &child.process.log_tail());
        }
        if Instant::now() > until {
            return failed(format!("has not {what} within its limit"), &child.process.log_tail());
        }
        Ok(())
    }

    /// Waits for the first effect of a consumer.
    fn first_effect(&mut self, child: &mut Child, before: i64) -> Result<()> {
        let session = Duration::from_millis(self.around.settings.session_timeout_ms);
        let until = Instant::now() + FIRST_EFFECT_MAX + session;
        while self.ledger.progress()? <= before {
            self.watch(child, until, "handled anything")?;
            self.around.cancel.sleep(LOOK_EVERY)?;
        }
        self.history.note(Event::FirstHandled { child: child.number });
        Ok(())
    }

    /// SIGKILL, and what was left then.
    fn kill(&mut self, child: Child, point: Option<&str>) -> Result<()> {
        let number = child.number;
        child.process.kill()?;
        let left = self.plan.messages.saturating_sub(self.ledger.ids()?);
        let effects = u64::try_from(self.ledger.progress()?).unwrap_or(0);
        let counts = point.is_some() || left >= self.around.settings.left_min;
        self.history.note(Event::Progress { effects });
        self.history.note(Event::Killed { child: number, left, counts, point: point.map(str::to_owned) });
        Ok(())
    }

    /// Starts a consumer and kills it so long after its first effect.
    fn kill_after(&mut self, after: Duration) -> Result<()> {
        let before = self.ledger.progress()?;
        let mut child = self.start(None)?;
        self.first_effect(&mut child, before)?;
        self.around.cancel.sleep(after)?;
        self.watch(&mut child, Instant::now() + QUIET, "ended")?;
        self.kill(child, None)
    }

    /// Starts a consumer that waits at its named point, and kills it there.
    fn kill_held(&mut self, nth: u64) -> Result<()> {
        let until = Instant::now() + self.limit();
        let mut child = self.start(Some(nth))?;
        while !child.heard.held.load(Ordering::SeqCst) {
            self.watch(&mut child, until, "come to its point")?;
            self.around.cancel.sleep(LOOK_EVERY)?;
        }
        self.kill(child, self.setup.subject.point())
    }

    /// Starts the last consumer and waits until the group has committed everything.
    fn drain(&mut self) -> Result<()> {
        let ends = self.topic.ends()?;
        let until = Instant::now() + self.limit();
        let mut child = self.start(None)?;
        while !self.topic.is_drained(&ends)? {
            self.watch(&mut child, until, "settled everything")?;
            self.around.cancel.sleep(ASK_EVERY)?;
        }
        // A consumer that commits first has something in hand still.
        let (mut seen, mut since) = (self.ledger.progress()?, Instant::now());
        while since.elapsed() < QUIET {
            self.watch(&mut child, until, "come to rest")?;
            self.around.cancel.sleep(LOOK_EVERY)?;
            let now = self.ledger.progress()?;
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        child.process.kill()?;
        self.history.note(Event::Drained);
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // What subjects keep beside the database: a cache, a pipeline. Most have none.
        for end in ["cache", "toml"] {
            let _ = std::fs::remove_file(self.setup.folder.join(format!("{}.{end}", self.topic.name)));
        }
    }
}

/// Turns what a subject says, and what it logs, into events.
fn listen(child: u32, history: History, heard: Arc<Heard>) -> impl Fn(&str) + Send + Sync + 'static {
    move |line| {
        let Ok(said) = serde_json::from_str::<Said>(line) else {
            if let Some(event) = logged(child, line) {
                history.note(event);
            }
            return;
        };
        history.note(match said {
            Said::Assigned(partitions) => Event::Assigned { child, partitions },
            Said::Evicted => Event::Evicted { child },
            Said::DuplicateSkipped(id) => Event::DuplicateSkipped { child, id },
            Said::CommitRefused(reason) => Event::CommitRefused { child, reason },
            Said::HeldUp(ms) => Event::HeldUp { child, ms },
            Said::Held(point) => {
                heard.held.store(true, Ordering::SeqCst);
                Event::Held { child, point }
            }
            Said::Stalled(id) => {
                heard.asleep.fetch_add(1, Ordering::SeqCst);
                heard.stalled.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
                Event::Stalled { child, id }
            }
            Said::Woke(id) => {
                heard.asleep.fetch_sub(1, Ordering::SeqCst);
                Event::Woke { child, id }
            }
        });
    }
}

/// What the runtime's log says of its partitions: evidence, as everything a subject says.
fn logged(child: u32, line: &str) -> Option<Event> {
    if let Some((_, lanes)) = line.split_once(" assigned lanes=") {
        let partitions = u32::try_from(lanes.split_whitespace().count()).unwrap_or(u32::MAX);
        Some(Event::Assigned { child, partitions })
    } else if line.contains("lost without notice") {
        Some(Event::Evicted { child })
    } else if line.contains("dropped results of an old assignment") {
        Some(Event::LateResultsDropped { child })
    } else {
        None
    }
}
