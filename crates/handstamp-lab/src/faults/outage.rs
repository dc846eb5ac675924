//! `lab faults outage`: a server goes away while messages flow, and comes back.
//!
//! ```text
//!  two members work ─► rate before ─► the fault ─┬─ half of it ─► SIGTERM to one member
//!                                                └─ the fault is over ─► that member ended with 0, another
//!  starts ─► rate after ─► the rest is drained ─► SIGTERM to both ─► verdict
//! ```
//!
//! The window after the return begins at most 30 s behind it. Rates, times and ends are read out of the row's
//! history, and so is the verdict, from the database's end state and the producer's log.
//!
//! A row is violated when a message was doubled, lost or given up as a dead letter, when a member did not end
//! well, or when nothing came on by itself. It proves nothing unless bytes went through its proxies and the
//! fault was felt: the server's answers stopped or no effect came.

use super::fault::{Fault, Scene};
use super::group::{Around, Ended, Group, ends};
use super::lanes::{Lane, deal, work_off};
use super::outcome::{self, Outcome};
use super::record::{self, Phase, Seen};
use super::report::{Row, Standing, violation};
use super::settings::{Command, RowKey, Settings};
use super::through::Through;
use crate::checker::{self, Verdict};
use crate::error::{LabError, Result};
use crate::history::{self, Entry};
use crate::subjects::Subject;
use crate::workload::Credit;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How long things take, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageTimes {
    /// The window before the fault.
    pub before_ms: u64,
    /// How long the fault lasts, beside what stopping and starting takes.
    pub fault_ms: u64,
    /// From the return to the window after it.
    pub settle_ms: u64,
    /// The window after it.
    pub after_ms: u64,
    /// Work on each message beside the database.
    pub work_ms: u64,
}

impl OutageTimes {
    /// For every change: progress and verdict, no figure.
    pub const QUICK: Self =
        Self { before_ms: 1500, fault_ms: 3000, settle_ms: 0, after_ms: 1500, work_ms: 20 };
    /// By hand: the figure of a window of 10 s, 20 s after the return, against the 30 s before.
    pub const LONG: Self =
        Self { before_ms: 30_000, fault_ms: 15_000, settle_ms: 20_000, after_ms: 10_000, work_ms: 10 };

    /// Enough that the group is not done before the window after the return is: no member is faster than its
    /// work, and stopping and starting a server takes up to 15 s.
    fn messages(&self) -> u64 {
        let all_ms = self.before_ms + self.fault_ms + self.settle_ms + self.after_ms + 15_000;
        all_ms * MEMBERS / self.work_ms.max(1)
    }
}

/// Members that work at a time.
const MEMBERS: u64 = 2;
/// Longest wait for the first effects, and for new ones after the return.
const FIRST_MAX: Duration = Duration::from_secs(60);
/// How often a member that was asked to end is looked at while a fault lasts.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Shorter windows give no figure.
const WINDOW_MIN_S: f64 = 5.0;
/// A window that begins later after the return gives no figure.
const AFTER_MAX_S: f64 = 30.0;

/// What came of one fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutageRow {
    /// Which fault.
    pub fault: Fault,
    /// Lengths of the windows before the fault and after the return, in seconds.
    pub windows_s: (f64, f64),
    /// Seconds from the return to the window after it.
    pub settled_s: f64,
    /// Effects that there were when the fault began.
    pub effects_before: u64,
    /// Effects a second before it.
    pub before_per_s: f64,
    /// The same after the return; `None` when the backlog was empty by then.
    pub after_per_s: Option<f64>,
    /// The rate after the return in per cent of the rate before; `None` for windows so short that a batch more
    /// or less decides it, or when the window began later than 30 s after the return.
    pub after_percent: Option<f64>,
    /// Seconds from the return to the first new effect; `None` when none came.
    pub recovered_after_s: Option<f64>,
    /// Effects during the second half of the fault.
    pub effects_during: u64,
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

#[allow(clippy::cast_precision_loss, reason = "a time for reading")]
fn seconds(from_ms: u64, to_ms: u64) -> f64 {
    to_ms.saturating_sub(from_ms) as f64 / 1000.0
}

/// Seconds to the first effect beyond those that were there at the return.
fn recovered(entries: &[Entry]) -> Option<f64> {
    let stretch = record::during(entries, Phase::Returned);
    let looks = record::progress(stretch);
    let at_return = looks.first()?.1;
    let first = looks.iter().find(|(_, effects)| *effects > at_return)?;
    Some(seconds(stretch.first()?.at_ms, first.0))
}

impl OutageRow {
    /// Out of a complete history.
    pub(super) fn of(fault: Fault, entries: &[Entry], sent: &[Credit]) -> Self {
        let (before, after) = (record::during(entries, Phase::Before), record::during(entries, Phase::After));
        let (before_s, before_per_s) = record::rate(before).unwrap_or_default();
        let (after_s, after_per_s) = record::rate(after).unwrap_or_default();
        let half = record::during(entries, Phase::Half);
        let at = |stretch: &[Entry]| stretch.first().map_or(0, |entry| entry.at_ms);
        let settled_s = seconds(at(record::during(entries, Phase::Returned)), at(after));
        let left = record::progress(after).last().is_some_and(|look| look.1 < record::messages(entries));
        let measured = before_s.min(after_s) >= WINDOW_MIN_S && settled_s <= AFTER_MAX_S;
        let (database, broker, _) = record::passed(entries);
        let last_lines = record::seen(entries).find_map(|(_, seen)| match seen {
            Seen::LastLines { text } => Some(text.clone()),
            _ => None,
        });
        let after_per_s = left.then_some(after_per_s);
        let figure = after_per_s.filter(|_| measured && before_per_s > 0.0);
        Self {
            fault,
            windows_s: (before_s, after_s),
            settled_s,
            effects_before: record::progress(before).last().map_or(0, |look| look.1),
            before_per_s,
            after_per_s,
            after_percent: figure.map(|after| after / before_per_s * 100.0),
            recovered_after_s: recovered(entries),
            effects_during: record::gained(half),
            answered_during: record::passed(half).2,
            ended: ends(entries),
            database,
            broker,
            drained: record::drained(entries),
            verdict: checker::judge(sent, &history::end_state(entries).cloned().unwrap_or_default()),
            log: last_lines,
        }
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
        if self.ended.is_empty() || self.effects_before == 0 {
            return Standing::Inconclusive("nobody was at work before the fault, or asked to end".to_owned());
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
    pub(super) fn row(&self) -> Row {
        let or_none = |figure: Option<f64>, unit| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.0}{unit}"))
        };
        let one = |ended: &Ended| {
            let code = ended.code.map_or("killed".to_owned(), |code| code.to_string());
            format!("{code} in {:.1} s", ended.took_s)
        };
        let first = self.recovered_after_s.map_or("never".to_owned(), |s| format!("{s:.1} s"));
        Row {
            name: self.fault.describe().to_owned(),
            cells: vec![
                ("doubled", self.verdict.doubled.to_string()),
                ("lost", self.verdict.lost.to_string()),
                ("dead letters", self.verdict.dead_lettered.to_string()),
                ("first effect after", first),
                ("rate before", format!("{:.0}/s", self.before_per_s)),
                ("after", or_none(self.after_per_s, "/s")),
                ("of before", or_none(self.after_percent, " %")),
                ("SIGTERM", self.ended.iter().map(one).collect::<Vec<_>>().join(", ")),
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

/// Runs the given faults and says what that proves.
///
/// # Errors
/// `Usage` when the folder holds a run; a server does not start or answer, a member ends by itself,
/// `Cancelled`.
pub fn run(
    around: &Around<'_>,
    faults: &[Fault],
    subject: Subject,
    times: &OutageTimes,
    side_by_side: usize,
) -> Result<Outcome> {
    let command = Command::Outage { subject, faults: faults.to_vec(), times: *times };
    let settings = Settings { seed: around.seed, side_by_side, command };
    settings.save(around.folder)?;
    work(around, &settings, side_by_side)
}

/// Does the rows that are left.
pub(super) fn work(around: &Around<'_>, settings: &Settings, side_by_side: usize) -> Result<Outcome> {
    let Command::Outage { times, .. } = settings.command else {
        return Err(settings.other_than("outage", around.folder));
    };
    let lanes = lanes(outcome::left(around.folder, settings), side_by_side);
    work_off(around, lanes, side_by_side, &|around, scene, key| one(around, scene, key, &times))?;
    outcome::recompute(around.folder)
}

/// The pair of servers is started for its own faults alone.
fn lanes(rows: Vec<RowKey>, side_by_side: usize) -> Vec<Lane> {
    let needs_pair = |key: &RowKey| matches!(key, RowKey::Outage(fault, _) if fault.needs_pair());
    let (pair, alone): (Vec<RowKey>, Vec<RowKey>) = rows.into_iter().partition(needs_pair);
    let rest = if pair.is_empty() { side_by_side } else { side_by_side.saturating_sub(1) };
    let mut lanes = deal("kafka", "postgres-pair", &pair, 1);
    lanes.extend(deal("kafka", "postgres", &alone, rest));
    lanes
}

fn one(around: &Around<'_>, scene: &mut Scene<'_>, key: RowKey, times: &OutageTimes) -> Result<()> {
    let RowKey::Outage(fault, _) = key else { return Err(LabError::usage("no row of an outage")) };
    let mut group = scene.group(key, times.messages())?;
    let (database, brokers) = (scene.database_url(), scene.bootstrap());
    let start = |group: &Group<'_>, work_ms| group.start(&brokers, &database, work_ms);
    group.note(scene.passed(key));
    let mut stays = start(&group, times.work_ms)?;
    let mut goes = start(&group, times.work_ms)?;
    if !group.watch.wait_for_more(50, FIRST_MAX)? {
        stays.check()?;
        goes.check()?;
    }
    group.begin(Phase::Before);
    group.watch.window(Duration::from_millis(times.before_ms))?;

    group.begin(Phase::Fault);
    scene.begin(fault, &mut group)?;
    group.watch.linger(Duration::from_millis(times.fault_ms / 2))?;
    goes.ask_to_end()?;
    group.begin(Phase::Half);
    group.note(scene.passed(key));
    let until = Instant::now() + Duration::from_millis(times.fault_ms / 2);
    while Instant::now() < until {
        goes.ended()?;
        group.watch.linger(LOOK_EVERY.min(until.saturating_duration_since(Instant::now())))?;
    }
    group.note(scene.passed(key));
    group.begin(Phase::Ending);
    goes.ended()?;
    scene.end(fault, &mut group)?;
    group.begin(Phase::Returned);
    let returned = Instant::now();
    let at_return = at_return(around, &mut group)?;
    group.watch.wait_for_more(at_return, FIRST_MAX)?;
    goes.wait(around.cancel)?;
    drop(goes);
    let comes = start(&group, times.work_ms)?;
    let settle = Duration::from_millis(times.settle_ms).saturating_sub(returned.elapsed());
    group.watch.linger(settle)?;
    group.begin(Phase::After);
    group.watch.window(Duration::from_millis(times.after_ms))?;

    // The rest without work, by fresh members: those that worked end in good order first.
    group.begin(Phase::Rest);
    let mut last = vec![start(&group, 0)?, start(&group, 0)?];
    for mut member in [stays, comes] {
        member.check()?;
        member.ask_to_end()?;
        member.wait(around.cancel)?;
    }
    group.drain(&mut last)?;
    for mut member in last {
        member.ask_to_end()?;
        member.wait(around.cancel)?;
    }
    group.note(scene.passed(key));
    group.finish()
}

/// The ledger's lines, from a database that is said to be back.
fn at_return(around: &Around<'_>, group: &mut Group<'_>) -> Result<i64> {
    let until = Instant::now() + FIRST_MAX;
    loop {
        match group.watch.edge() {
            Ok(effects) => return Ok(effects),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => around.cancel.sleep(Duration::from_millis(50))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fault: Fault) -> OutageRow {
        let through = Through { bytes_up: 1, bytes_down: 1, connections_lost: 1, ..Through::default() };
        OutageRow {
            fault,
            windows_s: (1.5, 1.5),
            settled_s: 1.0,
            effects_before: 200,
            before_per_s: 90.0,
            after_per_s: Some(80.0),
            after_percent: None,
            recovered_after_s: Some(0.5),
            effects_during: 0,
            answered_during: 0,
            ended: vec![Ended { code: Some(0), took_s: 0.1 }; 3],
            database: through,
            broker: through,
            drained: true,
            verdict: Verdict::default(),
            log: None,
        }
    }

    #[test]
    fn a_fault_that_was_not_felt_proves_nothing() {
        for fault in Fault::ALL {
            assert_eq!(row(fault).standing(), Standing::Held, "{fault:?}");
            // A server that is silent answers nothing; one that refuses answers, and nothing takes effect.
            let answered = OutageRow { answered_during: 1, ..row(fault) }.standing();
            let effects = OutageRow { effects_during: 1, ..row(fault) }.standing();
            let (not_felt, felt) = if fault.silences() { (answered, effects) } else { (effects, answered) };
            assert!(matches!(not_felt, Standing::Inconclusive(why) if why.contains("not felt")), "{fault:?}");
            assert_eq!(felt, Standing::Held, "{fault:?}");
        }
    }

    #[test]
    fn a_row_that_saw_too_little_proves_nothing() {
        let whole = || row(Fault::BrokerRestarted);
        for hole in [
            OutageRow { database: Through::default(), ..whole() },
            OutageRow { broker: Through::default(), ..whole() },
            OutageRow { after_per_s: None, ..whole() },
            OutageRow { effects_before: 0, ..whole() },
            OutageRow { ended: vec![], ..whole() },
        ] {
            assert!(matches!(hole.standing(), Standing::Inconclusive(_)), "{hole:?}");
        }
    }

    #[test]
    fn what_is_not_in_order_is_a_violation() {
        let whole = || row(Fault::DatabaseFrozen);
        let ended = |code| vec![Ended { code: Some(0), took_s: 0.1 }, Ended { code, took_s: 30.0 }];
        for broken in [
            OutageRow { verdict: Verdict { doubled: 1, ..Verdict::default() }, ..whole() },
            OutageRow { verdict: Verdict { lost: 1, ..Verdict::default() }, ..whole() },
            OutageRow { verdict: Verdict { dead_lettered: 1, ..Verdict::default() }, ..whole() },
            OutageRow { ended: ended(None), ..whole() },
            OutageRow { ended: ended(Some(7)), ..whole() },
            OutageRow { recovered_after_s: None, ..whole() },
            OutageRow { drained: false, ..whole() },
        ] {
            assert!(matches!(broken.standing(), Standing::Violated(_)), "{broken:?}");
        }
    }

    #[test]
    fn every_fault_has_a_lane_whatever_there_is_room_for() {
        for side_by_side in 1..6 {
            let command = Command::Outage {
                subject: Subject::Handstamp,
                faults: Fault::ALL.to_vec(),
                times: OutageTimes::QUICK,
            };
            let lanes = lanes(Settings { seed: 1, side_by_side, command }.rows(), side_by_side);
            let rows: usize = lanes.iter().map(|lane| lane.rows.len()).sum();
            assert!(rows == Fault::ALL.len() && lanes.len() == side_by_side.max(2), "{lanes:?}");
            let pair: Vec<&Lane> = lanes.iter().filter(|lane| lane.postgres == "postgres-pair").collect();
            assert!(pair.len() == 1 && pair[0].rows.len() == 1, "{lanes:?}");
        }
    }
}
