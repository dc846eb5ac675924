//! One run: records sent, copies at work, the schedule, the drain, the count.
//!
//! ```text
//!  sent ─► started ─► first effect ─► for each step: progress ─► wait ─► fault
//!                         │              └─► committed = ends, quiet ─► counted
//!                         └─ none within the patience: proves nothing
//! ```

use super::copies::{Copies, STARTS_MAX, Surroundings};
use super::home::{Effects, Home, output_of};
use super::messages::{Workload, workload};
use super::outcome::{LEFT_MIN, Outcome};
use super::plan::{Fault, Step, schedule};
use super::record::{self, Asked, BAD_FILE, HISTORY_FILE, SENT_FILE};
use super::send::send;
use super::settings::Settings;
use super::sightings::Sightings;
use super::ways::Ways;
use crate::broker::{Broker, Topic};
use crate::cancel::Cancel;
use crate::checker::EndState;
use crate::error::{LabError, Result};
use crate::history::{Event, History};
use crate::ledger::Place;
use crate::names::{self, OWN};
use crate::workload::{Credit, SentLog};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often effects are counted and copies are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// What a run stands on.
#[derive(Debug)]
pub struct Ground<'a> {
    /// Where the topic is made.
    pub broker: &'a Broker,
    /// Where the database is made.
    pub place: &'a Place,
    /// Both with their versions, for the report.
    pub servers: &'a str,
    /// Where history, log and settings stay.
    pub folder: &'a Path,
    /// Being told to stop.
    pub cancel: &'a Cancel,
}

/// Does the run. History and the producer's log stay in the folder; what they prove is the answer.
///
/// # Errors
/// The broker or the database does not answer, a fault cannot be done there, the program cannot be started, the
/// query fails at the end, or it was told to stop. A verdict is no error.
pub fn run(settings: &Settings, ground: &Ground<'_>, progress: &dyn Fn(Stage)) -> Result<Outcome> {
    let Ground { broker, place, servers, folder, cancel } = ground;
    let began = Instant::now();
    let work = workload(settings.seed, &settings.messages);
    Asked::of(settings, servers).save(folder)?;
    let history = begin_history(settings, &work, folder)?;
    let name = format!("{OWN}{}", names::token());
    let topic = broker.create_topic(&name, settings.messages.partitions)?;
    let home = Home::create(place, &name)?;
    let ways = Ways::open(settings, broker.bootstrap(), &home)?;
    let around = Surroundings {
        brokers: ways.brokers.clone(),
        topic: topic.name.clone(),
        group: topic.group.clone(),
        database_url: with_parameters(&ways.database_url, settings.url_parameters.as_deref()),
        folder: folder.display().to_string(),
    };
    // Counting and setting up never go through a proxy.
    let direct = Surroundings {
        brokers: broker.bootstrap().to_owned(),
        database_url: with_parameters(&home.url(), settings.url_parameters.as_deref()),
        ..around.clone()
    };
    if let Some(sql) = &settings.setup_sql {
        home.run(sql)?;
    }
    if !settings.setup_command.is_empty() {
        let words = direct.words(&settings.setup_command, 0);
        output_of("database.setup_command", &words, &direct.variables(settings, 0))?;
    }
    let mut log = SentLog::create(&folder.join(SENT_FILE))?;
    send(broker, &topic.name, &work, &mut log, cancel)?;
    log.finish()?;
    let variables = direct.variables(settings, 0);
    let copies = Copies::start(settings, around, history.clone())?;
    let mut run = Run {
        settings,
        work: &work,
        home: &home,
        copies,
        ways,
        topic,
        variables,
        history,
        cancel,
        began,
        effects: Effects::new(),
        sightings: Sightings::default(),
        count_failed: None,
        dealt: 0,
        left_since: None,
        progress,
        of: 0,
    };
    run.go()?;
    record::recompute(folder)
}

/// What is sent is noted before anything is started.
fn begin_history(settings: &Settings, work: &Workload, folder: &Path) -> Result<History> {
    let mut bad = SentLog::create(&folder.join(BAD_FILE))?;
    for id in &work.bad {
        bad.note(&Credit { id: id.clone(), account: 0, amount: 0 })?;
    }
    bad.finish()?;
    let history = History::create(&folder.join(HISTORY_FILE))?;
    history.note(Event::Run {
        subject: settings.program.join(" "),
        run: 0,
        seed: settings.seed,
        messages: settings.messages.count,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    history.note(Event::Sent {
        records: count(work.records.len()),
        twice: work.duplicates,
        reordered: work.reordered,
    });
    Ok(history)
}

/// A URL with parameters of the user's behind its own.
fn with_parameters(url: &str, parameters: Option<&str>) -> String {
    match parameters {
        None => url.to_owned(),
        Some(more) => format!("{url}{}{more}", if url.contains('?') { '&' } else { '?' }),
    }
}

struct Run<'a> {
    settings: &'a Settings,
    work: &'a Workload,
    home: &'a Home,
    /// Ended before what they are connected to.
    copies: Copies<'a>,
    ways: Ways,
    topic: Topic,
    variables: Vec<(String, String)>,
    history: History,
    cancel: &'a Cancel,
    began: Instant,
    /// As they were at the last look.
    effects: Effects,
    sightings: Sightings,
    /// Why the last count failed: the program may make its tables itself, later.
    count_failed: Option<LabError>,
    /// Faults so far.
    dealt: usize,
    /// Good messages without an effect right after the last fault.
    left_since: Option<u64>,
    progress: &'a dyn Fn(Stage),
    of: usize,
}

impl Run<'_> {
    fn go(&mut self) -> Result<()> {
        let steps = schedule(self.settings.seed, self.settings.copies, &self.settings.faults);
        self.of = steps.len();
        let began = self.await_effects(0)?;
        if began {
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
            self.history.note(Event::NeverBegan { why: self.why_nothing() });
        }
        self.finish(began)
    }

    /// Counts and looks after the copies.
    fn look(&mut self) -> Result<()> {
        self.cancel.sleep(LOOK_EVERY)?;
        self.topic.alive()?;
        self.copies.watch()?;
        match self.home.effects(&self.settings.counted_by, &self.variables) {
            Ok(effects) => {
                self.note_effects(effects);
                self.count_failed = None;
            }
            Err(error) => self.count_failed = Some(error),
        }
        (self.progress)(Stage {
            faults: self.dealt,
            of: self.of,
            applied: count(self.work.good.len()) - self.left(),
            good: count(self.work.good.len()),
        });
        Ok(())
    }

    fn note_effects(&mut self, effects: Effects) {
        self.sightings.note(&effects, self.now_ms());
        self.effects = effects;
    }

    /// Milliseconds since the run began.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Effects in all.
    fn total(&self) -> u64 {
        self.effects.values().sum()
    }

    /// Good messages without an effect.
    fn left(&self) -> u64 {
        count(self.work.good.iter().filter(|id| !self.effects.contains_key(*id)).count())
    }

    /// Waits for more effects than these; whether they came within the patience, or nothing is left. A program
    /// that only fails before its first effect is not waited for.
    fn await_effects(&mut self, than: u64) -> Result<bool> {
        let until = Instant::now() + self.settings.patience;
        while Instant::now() < until {
            self.look()?;
            if self.total() > than || self.left() == 0 {
                return Ok(true);
            }
            if self.effects.is_empty() && self.copies.only_fail() {
                return Ok(false);
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
        let alone = |run: &Self| step.fault.wire().is_some_and(|wire| run.ways.running(wire) == 0);
        while alone(self) && Instant::now() < until {
            self.look()?;
        }
        // How many are left is asked right before, not a look earlier.
        self.recount();
        Ok(self.left() > 0)
    }

    /// Counts, unless the database does not answer right now.
    fn recount(&mut self) {
        if let Ok(effects) = self.home.effects(&self.settings.counted_by, &self.variables) {
            self.note_effects(effects);
        }
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        let left = self.left();
        let at_work = self.left_since.is_none_or(|since| left < since);
        let began_ms = self.now_ms();
        let could_count = at_work && left >= LEFT_MIN;
        let met = match step.fault {
            Fault::Kill => self.copies.kill(step.copy, left, could_count)?,
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
            Fault::Cut | Fault::CutBroker => {
                let wire = step.fault.wire().unwrap_or_default();
                let connections = self.ways.cut(wire);
                self.history.note(Event::Cut { connections, wire });
                connections > 0
            }
        };
        let (fault, for_ms) = step.fault.name();
        self.history.note(Event::Dealt {
            began_ms,
            copy: step.copy,
            fault: fault.to_owned(),
            for_ms,
            left,
            counts: could_count && met,
        });
        self.dealt += 1;
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
                self.history.note(Event::Note { text: note });
                return Ok(());
            }
        }
    }

    /// Why no effect ever came.
    fn why_nothing(&self) -> String {
        let mut why = if self.copies.only_fail() {
            format!("the program ends with an error whenever it is started ({STARTS_MAX} times)")
        } else {
            format!("the program had no effect within {:?}", self.settings.patience)
        };
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

    /// The history's end: what came about, what went through the proxies, what the database holds.
    fn finish(&mut self, began: bool) -> Result<()> {
        if began {
            // The last count decides: it must not be one that failed.
            let effects = self.home.effects(&self.settings.counted_by, &self.variables)?;
            self.note_effects(effects);
        }
        self.sightings.tell(&self.history, self.work, &self.effects);
        for through in self.ways.through() {
            let super::outcome::Through { wire, up, down, connections, cut } = through;
            self.history.note(Event::Through { wire, up, down, connections, cut });
        }
        let effects = std::mem::take(&mut self.effects);
        self.history.note(Event::End(EndState { effects, ..EndState::default() }));
        self.history.finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_the_user_come_behind_those_of_the_url() {
        assert_eq!(with_parameters("postgres://h/d", None), "postgres://h/d");
        assert_eq!(
            with_parameters("postgres://h/d", Some("sslmode=require")),
            "postgres://h/d?sslmode=require"
        );
        assert_eq!(with_parameters("postgres://h/d?a=1", Some("b=2")), "postgres://h/d?a=1&b=2");
    }
}
