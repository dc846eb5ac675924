//! `lab faults outage`: a server goes away while messages flow, and comes back.
//!
//! ```text
//!  two members work ─► rate before ─► the fault ─┬─ half of it ─► SIGTERM to one member
//!                                                └─ the fault is over ─► that member ended with 0, another
//!  starts ─► rate after ─► the rest is drained ─► SIGTERM to both ─► verdict
//! ```
//!
//! A row is violated when a message was doubled, lost or given up as a dead letter, when a member did not end
//! well, or when nothing came on by itself. It proves nothing unless bytes went through its proxies and the
//! fault was felt: the server's answers stopped or no effect came.

use super::fault::{Fault, Scene};
use super::group::{Around, Ended, Group, Member, runtime, violation};
use super::report::{Row, Standing};
use super::through::Through;
use crate::checker::Verdict;
use crate::error::Result;
use crate::subjects::Subject;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How long things take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutageTimes {
    /// The window before the fault.
    pub before: Duration,
    /// How long the fault lasts, beside what stopping and starting takes.
    pub fault: Duration,
    /// From the return to the window after it.
    pub settle: Duration,
    /// The window after it.
    pub after: Duration,
    /// Work on each message beside the database.
    pub work_ms: u64,
}

impl OutageTimes {
    /// For every change: progress and verdict, no figure.
    pub const QUICK: Self = Self {
        before: Duration::from_millis(1500),
        fault: Duration::from_secs(3),
        settle: Duration::ZERO,
        after: Duration::from_millis(1500),
        work_ms: 20,
    };
    /// By hand: the figure of a window of 10 s, 20 s after the return, against the 30 s before.
    pub const LONG: Self = Self {
        before: Duration::from_secs(30),
        fault: Duration::from_secs(15),
        settle: Duration::from_secs(20),
        after: Duration::from_secs(10),
        work_ms: 10,
    };

    /// Enough that the group is not done before the window after the return is: no member is faster than its
    /// work, and stopping and starting a server takes up to 15 s.
    fn messages(&self) -> u64 {
        let all = self.before + self.fault + self.settle + self.after + Duration::from_secs(15);
        let each_ms = self.work_ms.max(1);
        u64::try_from(all.as_millis()).unwrap_or(u64::MAX) * MEMBERS / each_ms
    }
}

/// Members that work at a time.
const MEMBERS: u64 = 2;
/// Longest wait for the first effects, and for new ones after the return.
const FIRST_MAX: Duration = Duration::from_secs(60);

/// Shorter windows give no figure.
const WINDOW_MIN_S: f64 = 5.0;

/// What came of one fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutageRow {
    /// Which fault.
    pub fault: Fault,
    /// Length of the window after the return, in seconds.
    pub window_s: f64,
    /// Effects a second before it.
    pub before_per_s: f64,
    /// The same after the return; `None` when the backlog was empty by then.
    pub after_per_s: Option<f64>,
    /// Seconds from the return to the first new effect; `None` when none came.
    pub recovered_after_s: Option<f64>,
    /// Effects during the second half of the fault.
    pub effects_during: i64,
    /// Bytes that the server answered during the second half of the fault.
    pub answered_during: u64,
    /// Every member that was asked to end, the first of them during the fault.
    pub ended: Vec<Ended>,
    /// Between the subjects and the database.
    pub database: Through,
    /// Between the subjects and the broker.
    pub broker: Through,
    /// Whether everything was handled and settled in the end.
    pub drained: bool,
    /// The verdict of the checker.
    pub verdict: Verdict,
    /// The last lines of a member that did not end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

impl OutageRow {
    /// The rate after the return in per cent of the rate before; `None` for windows so short that a batch more
    /// or less decides it.
    #[must_use]
    pub fn rate_percent(&self) -> Option<f64> {
        if self.window_s < WINDOW_MIN_S {
            return None;
        }
        self.after_per_s.filter(|_| self.before_per_s > 0.0).map(|after| after / self.before_per_s * 100.0)
    }

    fn standing(&self) -> Standing {
        if !self.verdict.is_clean() {
            return Standing::Violated(violation(&self.verdict));
        }
        if let Some(bad) = self.ended.iter().find(|ended| ended.code != Some(0)) {
            let log = self.log.as_deref().unwrap_or_default();
            return Standing::Violated(format!(
                "a member ended with {:?} after {:.1} s, not with 0:\n{log}",
                bad.code, bad.took_s
            ));
        }
        if self.recovered_after_s.is_none() || !self.drained {
            return Standing::Violated("messages did not flow again by themselves".to_owned());
        }
        if self.database.bytes_down == 0 || self.broker.bytes_down == 0 {
            return Standing::Inconclusive("the subjects went around a proxy".to_owned());
        }
        let felt = if self.fault.silences() { self.answered_during == 0 } else { self.effects_during == 0 };
        if !felt {
            return Standing::Inconclusive(format!(
                "the fault was not felt: {} bytes answered, {} effects",
                self.answered_during, self.effects_during
            ));
        }
        if self.after_per_s.is_none() {
            return Standing::Inconclusive(
                "the backlog was empty before the window after the return".to_owned(),
            );
        }
        Standing::Held
    }

    /// Its row of the table.
    #[must_use]
    pub fn row(&self) -> Row {
        let percent = self.rate_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %"));
        let ends: Vec<String> = self
            .ended
            .iter()
            .map(|ended| {
                format!(
                    "{} in {:.1} s",
                    ended.code.map_or("killed".to_owned(), |code| code.to_string()),
                    ended.took_s
                )
            })
            .collect();
        Row {
            name: self.fault.describe().to_owned(),
            cells: vec![
                ("doubled", self.verdict.doubled.to_string()),
                ("lost", self.verdict.lost.to_string()),
                ("dead letters", self.verdict.dead_lettered.to_string()),
                (
                    "first effect after",
                    self.recovered_after_s.map_or("never".to_owned(), |s| format!("{s:.1} s")),
                ),
                ("rate before", format!("{:.0}/s", self.before_per_s)),
                ("after", percent),
                ("SIGTERM", ends.join(", ")),
                ("database bytes, lost", lines(&self.database)),
                ("broker bytes, lost", lines(&self.broker)),
            ],
            standing: self.standing(),
        }
    }
}

fn lines(through: &Through) -> String {
    format!("{}, {}", through.bytes_up + through.bytes_down, through.connections_lost)
}

/// Runs the given faults, one after the other.
///
/// # Errors
/// A server does not start or answer, a member ends by itself, `Cancelled`.
pub fn run(
    around: &Around<'_>,
    faults: &[Fault],
    subject: Subject,
    times: &OutageTimes,
) -> Result<Vec<std::result::Result<OutageRow, Row>>> {
    let runtime = runtime()?;
    let mut rows = Vec::new();
    // The pair of servers is started for its own faults alone.
    for pair in [false, true] {
        let own: Vec<Fault> = faults.iter().copied().filter(|fault| fault.needs_pair() == pair).collect();
        if own.is_empty() {
            continue;
        }
        (around.progress)("starting servers of this run's own");
        let mut scene =
            match Scene::open(around, &runtime, "kafka", if pair { "postgres-pair" } else { "postgres" })? {
                Ok(scene) => scene,
                Err(reason) => {
                    let refused = |fault: &Fault| Row {
                        name: fault.describe().to_owned(),
                        cells: vec![],
                        standing: Standing::Refused(reason.clone()),
                    };
                    rows.extend(own.iter().map(|fault| Err(refused(fault))));
                    continue;
                }
            };
        for fault in own {
            (around.progress)(fault.describe());
            rows.push(Ok(one(around, &mut scene, fault, subject, times)?));
        }
    }
    Ok(rows)
}

fn one(
    around: &Around<'_>,
    scene: &mut Scene<'_>,
    fault: Fault,
    subject: Subject,
    times: &OutageTimes,
) -> Result<OutageRow> {
    let mut group = scene.group(subject, times.messages())?;
    let (database, brokers) = (scene.database_url(), scene.bootstrap());
    let start = |group: &Group<'_>, work_ms| group.start(&brokers, &database, work_ms);
    let mut stays = start(&group, times.work_ms)?;
    let mut goes = start(&group, times.work_ms)?;
    let seen_before = scene.through();
    if !group.watch.wait_for_more(50, FIRST_MAX)? {
        stays.check()?;
        goes.check()?;
    }
    let before_per_s = group.watch.rate(times.before)?;

    let mut ends = Ends::default();
    scene.begin(fault, &mut group)?;
    around.cancel.sleep(times.fault / 2)?;
    goes.ask_to_end()?;
    let half = (scene.answered(fault), group.watch.effects().ok());
    around.cancel.sleep(times.fault / 2)?;
    let answered_during = scene.answered(fault) - half.0;
    let effects_during = match (half.1, group.watch.effects().ok()) {
        (Some(first), Some(last)) => last - first,
        // A database that does not answer has no effects.
        _ => 0,
    };
    let early = goes.ended()?;
    scene.end(fault, &mut group)?;
    let returned = Instant::now();
    let at_return = effects(around, &mut group)?;
    let recovered = group.watch.wait_for_more(at_return, FIRST_MAX)?;
    let recovered_after_s = recovered.then(|| returned.elapsed().as_secs_f64());
    match early {
        Some(ended) => ends.note(ended, &goes),
        None => ends.note(goes.wait(around.cancel)?, &goes),
    }
    drop(goes);
    let comes = start(&group, times.work_ms)?;
    around.cancel.sleep(times.settle.saturating_sub(returned.elapsed()))?;
    let after_per_s = group.watch.rate(times.after)?;
    let left = group.messages() - effects(around, &mut group)?;

    // The rest without work, by fresh members: those that worked end in good order first.
    let mut last = vec![start(&group, 0)?, start(&group, 0)?];
    for mut member in [stays, comes] {
        member.check()?;
        member.ask_to_end()?;
        let ended = member.wait(around.cancel)?;
        ends.note(ended, &member);
    }
    let drained = group.drain(&mut last)?;
    for mut member in last {
        member.ask_to_end()?;
        let ended = member.wait(around.cancel)?;
        ends.note(ended, &member);
    }
    let seen = scene.through();
    Ok(OutageRow {
        fault,
        window_s: times.after.as_secs_f64(),
        before_per_s,
        after_per_s: (left > 0).then_some(after_per_s),
        recovered_after_s,
        effects_during,
        answered_during,
        ended: ends.all,
        database: seen.0.since(seen_before.0),
        broker: seen.1.since(seen_before.1),
        drained,
        verdict: group.judge()?,
        log: ends.log,
    })
}

/// The ledger's lines, from a database that is said to be back.
fn effects(around: &Around<'_>, group: &mut Group<'_>) -> Result<i64> {
    let until = Instant::now() + FIRST_MAX;
    loop {
        match group.watch.effects() {
            Ok(effects) => return Ok(effects),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => around.cancel.sleep(Duration::from_millis(50))?,
        }
    }
}

/// How members ended.
#[derive(Default)]
struct Ends {
    all: Vec<Ended>,
    log: Option<String>,
}

impl Ends {
    fn note(&mut self, ended: Ended, member: &Member) {
        if ended.code != Some(0) {
            self.log = Some(member.log());
        }
        self.all.push(ended);
    }
}
