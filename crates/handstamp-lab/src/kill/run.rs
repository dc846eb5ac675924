//! One run of one row: everything of its own, kills by the schedule, a last consumer that drains.
//!
//! ```text
//!  topic filled, ledger made
//!     └─► for each kill: start ─► first effect ─► wait as scheduled, or until held ─► SIGKILL
//!            └─► start the last ─► committed = ends ─► quiet ─► end state ─► everything removed
//! ```
//!
//! A broker inside the lab is the run's own. Where it ends by itself, the run is made again from its beginning.

use super::settings::{Row, RowKind, Settings};
use crate::broker::{Broker, Topic};
use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::ledger::{Ledger, Place};
use crate::names::{self, LAB};
use crate::schedule::Random;
use crate::subjects::{Said, Setup, Subject, program};
use crate::supervisor::Process;
use crate::workload::{Plan, SentLog};
use std::cell::Cell;
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
    run: u32,
    kind: RowKind,
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
    let row = row.file_stem(run).replace('-', "_");
    format!("{LAB}{id}_{}_{row}", names::token())
}

/// How often a run is begun when the broker inside the lab ends by itself.
const ATTEMPTS: usize = 3;

/// Begins something again when the broker inside the lab has ended by itself meanwhile. `attempt` is given
/// what happened to those before.
///
/// # Errors
/// That of the last attempt.
pub(crate) fn persistently<T>(mut attempt: impl FnMut(&[String]) -> Result<T>) -> Result<T> {
    let mut earlier = Vec::new();
    loop {
        match attempt(&earlier) {
            Err(error) if error.kind == LabErrorKind::BrokerInside => {
                tracing::warn!(%error, attempt = earlier.len() + 1, "what ran on it proves nothing");
                earlier.push(error.message.clone());
                if earlier.len() == ATTEMPTS {
                    return Err(error);
                }
            }
            other => return other,
        }
    }
}

/// Does one run; its history and the producer's log are complete when it returns `Ok`.
///
/// # Errors
/// The broker or the database does not answer, or a subject did what no schedule explains. `BrokerInside`
/// when the broker inside the lab ended by itself each time: the history says so and is not complete.
pub(super) fn kill_run(around: &Surroundings<'_>, row: Row, run: u32, tick: &dyn Fn(Tick)) -> Result<()> {
    // What is done again is no step ahead.
    let furthest = Cell::new(0);
    persistently(|earlier| {
        let steps = Cell::new(0);
        attempt(around, row, run, earlier, &|what| {
            steps.set(steps.get() + 1);
            if steps.get() > furthest.get() {
                furthest.set(steps.get());
                tick(what);
            }
        })
    })
}

fn attempt(
    around: &Surroundings<'_>,
    row: Row,
    run: u32,
    earlier: &[String],
    tick: &dyn Fn(Tick),
) -> Result<()> {
    let plan = around.settings.plan(run, row.kind);
    let stem = around.folder.join(row.file_stem(run));
    let history = begin(around, &stem, &row.name(), run, plan.messages, earlier)?;
    let noted = history.clone();
    let work = || {
        let mut run_now = Run::open(around, row, run, plan, history)?;
        let done = run_now.work(&stem, tick);
        done.map_err(|error| run_now.blamed(error))
    };
    work().inspect_err(|error| note_broker(&noted, error))
}

/// A new history with its first lines.
pub(crate) fn begin(
    around: &Surroundings<'_>,
    stem: &Path,
    name: &str,
    run: u32,
    messages: u64,
    earlier: &[String],
) -> Result<History> {
    let path = stem.with_extension("jsonl");
    // What an ended consumer of an earlier attempt still said belongs into that one's file; there may be none.
    let _ = std::fs::remove_file(&path);
    let history = History::create(&path)?;
    history.note(Event::Run {
        subject: name.to_owned(),
        run,
        seed: around.settings.seed,
        messages,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    for why in earlier {
        history.note(Event::BrokerEnded { why: why.clone() });
    }
    Ok(history)
}

/// Says in a history that ends here why, when it was the broker inside the lab.
pub(crate) fn note_broker(history: &History, error: &LabError) {
    if error.kind == LabErrorKind::BrokerInside {
        history.note(Event::BrokerEnded { why: error.message.clone() });
    }
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
    persistently(|_| throughput_attempt(around, subject, batch_max, run))
}

fn throughput_attempt(
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
    let mut log = SentLog::create(&sent.0)?;
    run_now.rate(&mut log).map_err(|error| run_now.blamed(error))
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
        let broker = around.broker.for_one_run()?;
        let topic = broker.create_topic(&name, settings.partitions)?;
        let ledger = Ledger::create(around.place, &name, plan.accounts)?;
        let setup = Setup {
            subject: row.subject,
            brokers: broker.bootstrap().to_owned(),
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
        Ok(Self {
            around,
            run,
            kind: row.kind,
            name: row.name(),
            plan,
            topic,
            ledger,
            history,
            children: 0,
            setup,
        })
    }

    /// Sends, kills as scheduled, drains, and asks the database.
    fn work(&mut self, stem: &Path, tick: &dyn Fn(Tick)) -> Result<()> {
        let (settings, run) = (self.around.settings, self.run);
        let mut log = SentLog::create(&stem.with_extension("sent.jsonl"))?;
        self.topic.fill(&self.plan, &mut log, self.around.cancel)?;
        log.finish()?;
        match self.kind {
            RowKind::Random | RowKind::Resend => {
                for after_ms in settings.schedule(run).after_ms {
                    self.kill_after(Duration::from_millis(after_ms))?;
                    tick(Tick::Killed);
                }
            }
            RowKind::Held => {
                let mut random = Random::new(settings.seed, 500_000 + u64::from(run));
                for _ in 0..settings.held_kills {
                    self.kill_held(1 + random.below(50))?;
                    tick(Tick::Killed);
                }
            }
        }
        self.drain()?;
        tick(Tick::Drained);
        self.note_end()
    }

    /// The last lines of a history: what the database holds.
    pub(crate) fn note_end(&mut self) -> Result<()> {
        self.history.note_repeated(&self.ledger.repeated_ms()?);
        let end = self.ledger.end_state()?;
        self.history.note(Event::End(end));
        self.history.finish()
    }

    /// Messages a second of one consumer that nobody kills.
    fn rate(&mut self, log: &mut SentLog) -> Result<f64> {
        self.topic.fill(&self.plan, log, self.around.cancel)?;
        let mut child = self.start(None)?;
        let until = Instant::now() + self.limit();
        let span = loop {
            self.watch(&mut child, until, "handled everything")?;
            self.around.cancel.sleep(ASK_EVERY)?;
            if let Some(span) = self.ledger.span()?
                && span.effects >= self.plan.messages
            {
                break span;
            }
        };
        child.process.kill()?;
        #[allow(clippy::cast_precision_loss, reason = "a rate for reading")]
        let between = span.effects.saturating_sub(1) as f64;
        Ok(between / (span.last_s - span.first_s).max(1e-6))
    }

    /// The error, or what is behind it: a broker inside the lab that ended by itself.
    pub(crate) fn blamed(&self, error: LabError) -> LabError {
        if error.kind == LabErrorKind::Cancelled { error } else { self.topic.alive().err().unwrap_or(error) }
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
    /// It ended by itself, or took too long, or the broker inside the lab is gone.
    pub(crate) fn watch(&self, child: &mut Child, until: Instant, what: &str) -> Result<()> {
        self.topic.alive()?;
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

/// How the runtime's log says how many duplicates it named no more.
const LEFT_OUT: &str = " more duplicates were skipped without a line each left_out=";

/// What the runtime's log says of its partitions and of duplicates: evidence, as everything a subject says.
fn logged(child: u32, line: &str) -> Option<Event> {
    if let Some((_, lanes)) = line.split_once(" assigned lanes=") {
        let partitions = u32::try_from(lanes.split_whitespace().count()).unwrap_or(u32::MAX);
        Some(Event::Assigned { child, partitions })
    } else if line.contains("lost without notice") {
        Some(Event::Evicted { child })
    } else if line.contains("dropped results of an old assignment") {
        Some(Event::LateResultsDropped { child })
    } else if let Some((_, id)) = line.split_once(" skipped duplicate ") {
        Some(Event::DuplicateSkipped { child, id: id.split(" (").next().unwrap_or_default().to_owned() })
    } else if let Some((_, count)) = line.split_once(LEFT_OUT) {
        let count = count.split_whitespace().next().and_then(|count| count.parse().ok());
        count.map(|count| Event::DuplicatesLeftOut { child, count })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Profile;
    use super::*;

    #[test]
    fn what_the_runtime_logs_of_duplicates_is_evidence() {
        let at = "2026-01-01T00:00:00.000000Z  INFO handstamp:";
        let skipped =
            logged(3, &format!("{at} skipped duplicate evt-2 (topic/0@17) state=applied first_seen=1"));
        assert_eq!(skipped, Some(Event::DuplicateSkipped { child: 3, id: "evt-2".into() }));
        let more = logged(3, &format!("{at} more duplicates were skipped without a line each left_out=250"));
        assert_eq!(more, Some(Event::DuplicatesLeftOut { child: 3, count: 250 }));
        assert_eq!(logged(3, &format!("{at} skipped")), None);
    }

    #[test]
    fn the_longest_name_of_a_schema_is_not_cut_off_and_says_whose_it_is() {
        let settings = Settings::of(Profile::Source).checked(false).expect("sensible");
        for row in settings.rows() {
            let name = unique(&settings.id, row, 9999);
            assert!(format!("{name}_inbox").len() <= 63, "{name}");
            assert_eq!(names::mark(&name).map(|mark| mark.pid), Some(std::process::id()), "{name}");
        }
    }
}
