//! One run: records sent, copies at work, the schedule, the drain, the count.
//!
//! ```text
//!  sent ─► started ─► first effect ─► for each step: progress ─► wait ─► fault
//!                         │              └─► committed = ends, quiet ─► counted
//!                         └─ none within the patience: proves nothing
//! ```

use super::copies::{Copies, Surroundings};
#[cfg(feature = "postgres")]
use super::home::Url;
use super::home::{Effects, Home, output_of};
use super::messages::{Workload, workload};
use super::outcome::{Done, Outcome, Seen, outcome};
use super::plan::{Fault, Step, schedule};
use super::send::send;
use super::settings::Settings;
use crate::broker::{Broker, Topic};
use crate::cancel::Cancel;
use crate::checker::EndState;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::ledger::Place;
use crate::proxy::{Ending, Proxy, ProxyOptions};
use crate::workload::SentLog;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often effects are counted and copies are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A fault counts when so many messages were left.
const LEFT_MIN: u64 = 20;

/// How far the run is, for the progress line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Faults done.
    pub faults: usize,
    /// Faults of the schedule.
    pub of: usize,
    /// Good messages that have an effect.
    pub applied: u64,
    /// Good messages in all.
    pub good: u64,
}

/// Does the run. Histories and the producer's log go into `folder`.
///
/// # Errors
/// The broker or the database does not answer, the program cannot be started, the query fails at the end, or
/// it was told to stop. A verdict is no error.
pub fn run(
    settings: &Settings,
    broker: &Broker,
    place: &Place,
    folder: &Path,
    cancel: &Cancel,
    progress: &dyn Fn(Stage),
) -> Result<Outcome> {
    let began = Instant::now();
    let work = workload(settings.seed, &settings.messages);
    let history = History::create(&folder.join("history.jsonl"))?;
    history.note(Event::Run {
        subject: settings.program.join(" "),
        run: 0,
        seed: settings.seed,
        messages: settings.messages.count,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let name = format!("hs_own_{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let topic = broker.create_topic(&name, settings.messages.partitions)?;
    let home = Home::create(place, &name)?;
    let cutter = (settings.faults.cuts > 0).then(|| Cutter::start(&home, settings.seed)).transpose()?;
    let around = Surroundings {
        brokers: broker.bootstrap().to_owned(),
        topic: topic.name.clone(),
        group: topic.group.clone(),
        database_url: cutter.as_ref().map_or_else(|| home.url(), |cutter| cutter.url.clone()),
        folder: folder.display().to_string(),
    };
    // Counting and setting up never go through the proxy.
    let direct = Surroundings { database_url: home.url(), ..around.clone() };
    if let Some(sql) = &settings.setup_sql {
        home.run(sql)?;
    }
    if !settings.setup_command.is_empty() {
        let words = direct.words(&settings.setup_command, 0);
        output_of("database.setup_command", &words, &direct.variables(settings, 0))?;
    }
    let mut log = SentLog::create(&folder.join("sent.jsonl"))?;
    send(broker.bootstrap(), &topic.name, &work, &mut log, cancel)?;
    log.finish()?;
    let variables = direct.variables(settings, 0);
    let copies = Copies::start(settings, around, history.clone())?;
    let mut run = Run {
        settings,
        work: &work,
        home: &home,
        copies,
        cutter,
        topic,
        variables,
        history,
        cancel,
        began,
        effects: Effects::new(),
        count_failed: None,
        schedule: Vec::new(),
        left_since: None,
        notes: Vec::new(),
        progress,
        of: 0,
    };
    run.go()
}

struct Run<'a> {
    settings: &'a Settings,
    work: &'a Workload,
    home: &'a Home,
    /// Ended before what they are connected to.
    copies: Copies<'a>,
    cutter: Option<Cutter>,
    topic: Topic,
    variables: Vec<(String, String)>,
    history: History,
    cancel: &'a Cancel,
    began: Instant,
    /// As they were at the last look.
    effects: Effects,
    /// Why the last count failed: the program may make its tables itself, later.
    count_failed: Option<LabError>,
    schedule: Vec<Done>,
    /// Good messages without an effect right after the last fault.
    left_since: Option<u64>,
    notes: Vec<String>,
    progress: &'a dyn Fn(Stage),
    of: usize,
}

impl Run<'_> {
    fn go(&mut self) -> Result<Outcome> {
        let steps = schedule(self.settings.seed, self.settings.copies, &self.settings.faults);
        self.of = steps.len();
        let mut never_began = None;
        if self.await_effects(0)? {
            for step in &steps {
                if !self.await_step(step)? {
                    break;
                }
                self.act(step)?;
                // What came until the very moment of the fault is no sign of life after it.
                self.recount();
                self.left_since = Some(self.left());
                if self.left() == 0 || !self.await_effects(self.total())? {
                    break;
                }
            }
            self.drain()?;
        } else {
            never_began = Some(self.why_nothing());
        }
        self.finish(never_began)
    }

    /// Counts and looks after the copies.
    fn look(&mut self) -> Result<()> {
        self.cancel.sleep(LOOK_EVERY)?;
        self.copies.watch()?;
        match self.home.effects(&self.settings.counted_by, &self.variables) {
            Ok(effects) => {
                self.effects = effects;
                self.count_failed = None;
            }
            Err(error) => self.count_failed = Some(error),
        }
        (self.progress)(Stage {
            faults: self.schedule.len(),
            of: self.of,
            applied: count(self.work.good.len()) - self.left(),
            good: count(self.work.good.len()),
        });
        Ok(())
    }

    /// Effects in all.
    fn total(&self) -> u64 {
        self.effects.values().sum()
    }

    /// Good messages without an effect.
    fn left(&self) -> u64 {
        count(self.work.good.iter().filter(|id| !self.effects.contains_key(*id)).count())
    }

    /// Waits for more effects than these; whether they came within the patience, or nothing is left.
    fn await_effects(&mut self, than: u64) -> Result<bool> {
        let until = Instant::now() + self.settings.patience;
        while Instant::now() < until {
            self.look()?;
            if self.total() > than || self.left() == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits as long as a step says; whether messages are left then.
    fn await_step(&mut self, step: &Step) -> Result<bool> {
        let until = Instant::now() + Duration::from_millis(step.after_ms);
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest <= LOOK_EVERY {
                self.cancel.sleep(rest)?;
                break;
            }
            self.look()?;
        }
        // A cut waits for somebody to be connected.
        let until = Instant::now() + self.settings.patience;
        let alone = |run: &Self| run.cutter.as_ref().is_some_and(|cutter| cutter.connections() == 0);
        while step.fault == Fault::Cut && alone(self) && Instant::now() < until {
            self.look()?;
        }
        // How many are left is asked right before, not a look earlier.
        self.recount();
        Ok(self.left() > 0)
    }

    /// Counts, unless the database does not answer right now.
    fn recount(&mut self) {
        if let Ok(effects) = self.home.effects(&self.settings.counted_by, &self.variables) {
            self.effects = effects;
        }
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        let left = self.left();
        let at_work = self.left_since.is_none_or(|since| left < since);
        let at_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let could_count = at_work && left >= LEFT_MIN;
        let met = match step.fault {
            Fault::Kill => {
                let child = self.copies.kill(step.copy)?;
                if let Some(child) = child {
                    self.history.note(Event::Killed { child, left, counts: could_count, point: None });
                }
                child.is_some()
            }
            Fault::Stop { for_ms } => {
                let child = self.copies.signal(step.copy, "STOP")?;
                if let Some(child) = child {
                    self.history.note(Event::Stopped { child });
                    self.stand_still(Duration::from_millis(for_ms))?;
                    self.copies.signal(step.copy, "CONT")?;
                    self.history.note(Event::Continued { child });
                }
                child.is_some()
            }
            Fault::Cut => {
                let connections = self.cutter.as_ref().map_or(0, Cutter::cut);
                self.history.note(Event::Cut { connections });
                connections > 0
            }
        };
        let counts = could_count && met;
        self.schedule.push(Done { at_ms, copy: step.copy, fault: step.fault, left, counts });
        Ok(())
    }

    /// Goes on looking while a copy is stopped, so that the others are started again when they end.
    fn stand_still(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.look()?;
        }
        Ok(())
    }

    /// Waits until the group has committed everything and nothing more comes, or nothing moves any more.
    fn drain(&mut self) -> Result<()> {
        let ends = self.topic.ends()?;
        let (mut seen, mut since) = (self.total(), Instant::now());
        loop {
            self.look()?;
            if self.total() != seen {
                (seen, since) = (self.total(), Instant::now());
            }
            if since.elapsed() >= self.settings.quiet && self.topic.is_drained(&ends)? {
                self.history.note(Event::Drained);
                return Ok(());
            }
            if since.elapsed() >= self.settings.patience {
                let mut note = format!(
                    "the group {} has not committed everything, and no effect came for {:?}: the consumers are \
                     stuck, or commit under another group",
                    self.topic.group, self.settings.patience
                );
                if let Some(end) = &self.copies.last_end {
                    note.push_str(&format!("; {end}"));
                }
                self.notes.push(note);
                return Ok(());
            }
        }
    }

    /// Why no effect ever came.
    fn why_nothing(&self) -> String {
        let mut why = format!("the program had no effect within {:?}", self.settings.patience);
        if let Some(error) = &self.count_failed {
            why.push_str(&format!("; effects cannot be counted: {}", chain(error)));
        }
        match &self.copies.last_end {
            Some(end) => why.push_str(&format!("; {end}")),
            None => {
                let tails = self.copies.log_tails();
                why.push_str(&if tails.is_empty() {
                    "; it logged nothing".into()
                } else {
                    format!("; {tails}")
                });
            }
        }
        why
    }

    fn finish(&mut self, never_began: Option<String>) -> Result<Outcome> {
        if never_began.is_none() {
            // The last count decides: it must not be one that failed.
            self.effects = self.home.effects(&self.settings.counted_by, &self.variables)?;
        }
        let faults = &self.settings.faults;
        let effects = std::mem::take(&mut self.effects);
        self.history.note(Event::End(EndState { effects: effects.clone(), ..EndState::default() }));
        self.history.finish()?;
        let seen = Seen {
            seed: self.settings.seed,
            asked: [faults.kills, faults.stops, faults.cuts],
            schedule: std::mem::take(&mut self.schedule),
            ended_by_itself: self.copies.ended_by_itself,
            notes: std::mem::take(&mut self.notes),
            never_began,
        };
        Ok(outcome(self.work, effects, seen))
    }
}

/// An error with what is behind it, in one line.
fn chain(error: &LabError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(inner) = next {
        text.push_str(&format!(": {inner}"));
        next = inner.source();
    }
    text
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The proxy between the copies and the database, with the runtime that drives it.
struct Cutter {
    proxy: Option<Proxy>,
    /// The run's database through the proxy.
    url: String,
    runtime: tokio::runtime::Runtime,
}

impl Cutter {
    #[cfg(feature = "postgres")]
    fn start(home: &Home, seed: u64) -> Result<Self> {
        let failed = |what: &str, error: std::io::Error| {
            LabError::new(LabErrorKind::Other, format!("no proxy: {what}")).because(error)
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| failed("no runtime", error))?;
        let url = Url::parse(&home.url())?;
        let options = ProxyOptions { seed, ..ProxyOptions::before(url.address()?) };
        let proxy = runtime.block_on(Proxy::start(options)).map_err(|error| failed("no port", error))?;
        Ok(Self { url: url.by(proxy.address()), proxy: Some(proxy), runtime })
    }

    #[cfg(not(feature = "postgres"))]
    fn start(_: &Home, _: u64) -> Result<Self> {
        Err(LabError::usage("faults.cuts: this program was built without Postgres"))
    }

    /// Connections that run.
    fn connections(&self) -> usize {
        self.proxy.as_ref().map_or(0, Proxy::running)
    }

    /// Resets every connection; how many there were.
    fn cut(&self) -> u64 {
        count(self.proxy.as_ref().map_or(0, |proxy| proxy.cut(Ending::Reset)))
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            self.runtime.block_on(proxy.stop());
        }
    }
}
