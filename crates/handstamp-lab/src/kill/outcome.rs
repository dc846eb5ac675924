//! What the runs of a folder prove: recomputed from histories and logs, never remembered.

use super::settings::{Row, RowKind, Settings};
use crate::checker::{self, Verdict};
use crate::error::Result;
use crate::history::{self, Event};
use crate::subjects::Subject;
use crate::workload;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The measured rates, in a run's folder.
pub(super) const THROUGHPUT_FILE: &str = "throughput.json";

/// One run of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunOutcome {
    /// Number of the run.
    pub run: u32,
    /// What it proved.
    pub verdict: Verdict,
    /// Kills that were done.
    pub kills: u32,
    /// Kills with enough left to mean something.
    pub kills_counted: u32,
    /// Evidence: duplicates that the subject says it skipped.
    pub skipped: u64,
    /// Evidence: offset commits that were refused.
    pub commits_refused: u64,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowOutcome {
    /// Which.
    pub row: Row,
    /// Its name.
    pub name: String,
    /// Complete runs.
    pub runs: Vec<RunOutcome>,
    /// Messages a second without kills.
    pub per_second: Option<f64>,
    /// How often the broker inside the lab ended by itself: what ran on it was run again, or is missing.
    #[serde(default)]
    pub broker_ended: u32,
}

impl RowOutcome {
    fn sum(&self, of: impl Fn(&RunOutcome) -> u64) -> u64 {
        self.runs.iter().map(of).sum()
    }

    /// Doubled effects over all runs.
    #[must_use]
    pub fn doubled(&self) -> u64 {
        self.sum(|run| run.verdict.doubled)
    }

    /// Lost messages over all runs.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sum(|run| run.verdict.lost)
    }

    /// Median, least and most of a figure of the runs.
    #[must_use]
    pub fn spread(&self, of: impl Fn(&Verdict) -> u64) -> Spread {
        Spread::of(self.runs.iter().map(|run| of(&run.verdict)).collect())
    }
}

/// Median and range of a figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spread {
    /// The middle one; of an even number the lower middle.
    pub median: u64,
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

impl Spread {
    /// Of these figures; all 0 where there are none.
    #[must_use]
    pub fn of(mut figures: Vec<u64>) -> Self {
        figures.sort_unstable();
        let at = |at: usize| figures.get(at).copied().unwrap_or(0);
        let last = figures.len().saturating_sub(1);
        Self { median: at(last / 2), min: at(0), max: at(last) }
    }
}

/// What it all proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "conclusion", content = "because")]
pub enum Conclusion {
    /// Everything that promises kept its promise, and the controls failed as they must.
    Kept,
    /// Something that promises doubled or lost an effect, or does not add up.
    Violated(Vec<String>),
    /// The run proves nothing: a control did not fail, kills came too late, or runs are missing.
    Inconclusive(Vec<String>),
}

/// Everything of a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked for.
    pub settings: Settings,
    /// One for each row.
    pub rows: Vec<RowOutcome>,
    /// What it proves.
    pub conclusion: Conclusion,
}

/// Whether a run of a row is complete.
#[must_use]
pub(super) fn is_complete(folder: &Path, row: Row, run: u32) -> bool {
    let path = folder.join(row.file_stem(run)).with_extension("jsonl");
    history::read(&path).is_ok_and(|entries| history::end_state(&entries).is_some())
}

/// Recomputes everything from a folder's histories and logs.
///
/// # Errors
/// The folder holds no run, or a file of it cannot be read.
pub fn recompute(folder: &Path) -> Result<Outcome> {
    let settings = Settings::load(folder)?;
    let rates = read_rates(folder);
    let mut rows = Vec::new();
    for row in settings.rows() {
        let mut runs = Vec::new();
        let mut broker_ended = 0;
        for run in 0..settings.runs {
            broker_ended += broker_ends(&folder.join(row.file_stem(run)));
            if is_complete(folder, row, run) {
                runs.push(run_outcome(folder, row, run)?);
            }
        }
        let per_second = match row.kind {
            RowKind::Random => rates.get(row.subject.name()).copied(),
            RowKind::Held | RowKind::Resend => None,
        };
        rows.push(RowOutcome { row, name: row.name(), runs, per_second, broker_ended });
    }
    let conclusion = conclude(&settings, &rows);
    Ok(Outcome { settings, rows, conclusion })
}

/// How often the broker inside the lab ended by itself in a run.
pub(crate) fn broker_ends(stem: &Path) -> u32 {
    let entries = history::read(&stem.with_extension("jsonl")).unwrap_or_default();
    let ends = entries.iter().filter(|entry| matches!(entry.event, Event::BrokerEnded { .. }));
    u32::try_from(ends.count()).unwrap_or(u32::MAX)
}

/// The rates measured so far.
#[must_use]
pub(super) fn read_rates(folder: &Path) -> BTreeMap<String, f64> {
    std::fs::read_to_string(folder.join(THROUGHPUT_FILE))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

fn run_outcome(folder: &Path, row: Row, run: u32) -> Result<RunOutcome> {
    let stem = folder.join(row.file_stem(run));
    let entries = history::read(&stem.with_extension("jsonl"))?;
    let sent = workload::read_sent(&stem.with_extension("sent.jsonl"))?;
    let verdict = history::end_state(&entries).map(|end| checker::judge(&sent, end)).unwrap_or_default();
    let count = |of: &dyn Fn(&Event) -> bool| entries.iter().filter(|entry| of(&entry.event)).count();
    let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(RunOutcome {
        run,
        verdict,
        kills: small(count(&|event| matches!(event, Event::Killed { .. }))),
        kills_counted: small(count(&|event| matches!(event, Event::Killed { counts: true, .. }))),
        skipped: history::skipped(&entries),
        commits_refused: u64::from(small(count(&|event| matches!(event, Event::CommitRefused { .. })))),
    })
}

/// What the rows prove (pure). A broken promise outweighs everything.
#[must_use]
pub(super) fn conclude(settings: &Settings, rows: &[RowOutcome]) -> Conclusion {
    let violations: Vec<String> = rows
        .iter()
        .flat_map(|row| row.runs.iter().map(move |run| (row, run)))
        .filter_map(|(row, run)| violation(row, run))
        .collect();
    if !violations.is_empty() {
        return Conclusion::Violated(violations);
    }
    let mut doubts = Vec::new();
    for row in rows {
        let missing = usize::try_from(settings.runs).unwrap_or(usize::MAX).saturating_sub(row.runs.len());
        if missing > 0 {
            let why = match row.broker_ended {
                0 => String::new(),
                times => format!(": the broker inside the lab ended by itself, {times} times in all"),
            };
            doubts.push(format!("{}: {missing} of {} runs are missing{why}", row.name, settings.runs));
            continue;
        }
        let (kills, counted) =
            (row.sum(|run| u64::from(run.kills)), row.sum(|run| u64::from(run.kills_counted)));
        if counted * 4 < kills * 3 || kills == 0 {
            doubts.push(format!("{}: only {counted} of {kills} kills left enough messages", row.name));
        }
        // What is killed exactly in its window does harm each time.
        if row.row.kind == RowKind::Held && !row.promises() && row.doubled() + row.lost() == 0 {
            doubts.push(format!("{}: neither doubled nor lost anything, though it must", row.name));
        }
    }
    let of = |subject: Subject| rows.iter().filter(move |row| row.row.subject == subject);
    for control in [Subject::A1, Subject::OffsetFirst] {
        if of(control).next().is_none() {
            doubts.push(format!("the control {control} is missing"));
        }
    }
    if of(Subject::A1).map(RowOutcome::doubled).sum::<u64>() == 0 {
        doubts.push("a1: doubled nothing, though it must".to_owned());
    }
    // At random times it is hit in its window nearly always, at its named point always.
    if of(Subject::OffsetFirst).map(RowOutcome::lost).sum::<u64>() == 0 {
        doubts.push("offset-first: lost nothing, though it must".to_owned());
    }
    if doubts.is_empty() { Conclusion::Kept } else { Conclusion::Inconclusive(doubts) }
}

impl RowOutcome {
    fn promises(&self) -> bool {
        self.row.promises()
    }
}

fn violation(row: &RowOutcome, run: &RunOutcome) -> Option<String> {
    let verdict = &run.verdict;
    // What was never sent, and money that does not add up, is nobody's to make.
    let broken = if row.promises() {
        !verdict.is_clean()
    } else {
        verdict.unsent > 0 || !verdict.accounts_off.is_empty()
    };
    broken.then(|| {
        format!(
            "{}, run {}: {} doubled, {} lost, {} never sent, {} dead letters, {} accounts off",
            row.name,
            run.run + 1,
            verdict.doubled,
            verdict.lost,
            verdict.unsent,
            verdict.dead_lettered,
            verdict.accounts_off.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::settings::Profile;
    use super::*;

    fn row(subject: Subject, doubled: u64, lost: u64) -> RowOutcome {
        let row = Row { subject, kind: RowKind::Random };
        let verdict = Verdict { sent: 1000, doubled, lost, ..Verdict::default() };
        let run = RunOutcome { run: 0, verdict, kills: 4, kills_counted: 4, skipped: 0, commits_refused: 0 };
        RowOutcome { row, name: row.name(), runs: vec![run], per_second: None, broker_ended: 0 }
    }

    fn rows() -> Vec<RowOutcome> {
        vec![row(Subject::A1, 300, 0), row(Subject::OffsetFirst, 0, 2), row(Subject::Handstamp, 0, 0)]
    }

    fn settings() -> Settings {
        Settings::of(Profile::Quick)
    }

    #[test]
    fn a_promise_kept_beside_controls_that_fail_is_kept() {
        assert_eq!(conclude(&settings(), &rows()), Conclusion::Kept);
    }

    #[test]
    fn every_kind_of_broken_promise_is_a_violation() {
        let spoils: [&dyn Fn(&mut Verdict); 5] = [
            &|verdict| verdict.doubled = 1,
            &|verdict| verdict.lost = 1,
            &|verdict| verdict.unsent = 1,
            &|verdict| verdict.dead_lettered = 1,
            &|verdict| verdict.accounts_off = vec![7],
        ];
        for spoil in spoils {
            let mut rows = rows();
            spoil(&mut rows[2].runs[0].verdict);
            assert!(matches!(conclude(&settings(), &rows), Conclusion::Violated(_)));
        }
        // Money that does not add up is a violation of anyone's run.
        let mut rows = rows();
        rows[0].runs[0].verdict.accounts_off = vec![7];
        assert!(matches!(conclude(&settings(), &rows), Conclusion::Violated(_)));
    }

    #[test]
    fn each_control_that_does_not_fail_makes_it_inconclusive() {
        for (at, word) in [(0, "a1"), (1, "offset-first")] {
            let mut rows = rows();
            rows[at].runs[0].verdict = Verdict { sent: 1000, ..Verdict::default() };
            let Conclusion::Inconclusive(why) = conclude(&settings(), &rows) else { panic!("{word}") };
            assert!(why[0].contains(word), "{why:?}");
            rows.remove(at);
            assert!(matches!(conclude(&settings(), &rows), Conclusion::Inconclusive(_)));
        }
    }

    #[test]
    fn kills_that_came_too_late_and_missing_runs_make_it_inconclusive() {
        let mut late = rows();
        late[2].runs[0].kills_counted = 2;
        assert!(matches!(conclude(&settings(), &late), Conclusion::Inconclusive(_)));
        let mut missing = rows();
        missing[2].runs.clear();
        missing[2].broker_ended = 3;
        let Conclusion::Inconclusive(why) = conclude(&settings(), &missing) else { panic!("missing") };
        assert!(why[0].contains("broker inside the lab ended by itself, 3 times"), "{why:?}");
    }

    #[test]
    fn a_held_row_that_doubles_nothing_is_inconclusive() {
        let mut rows = rows();
        rows.push(row(Subject::B, 0, 0));
        assert_eq!(conclude(&settings(), &rows), Conclusion::Kept);
        rows[3].row.kind = RowKind::Held;
        assert!(matches!(conclude(&settings(), &rows), Conclusion::Inconclusive(_)));
    }

    #[test]
    fn the_spread_is_median_and_range() {
        assert_eq!(Spread::of(vec![5, 0, 7]), Spread { median: 5, min: 0, max: 7 });
        assert_eq!(Spread::of(vec![4, 1]), Spread { median: 1, min: 1, max: 4 });
        assert_eq!(Spread::of(vec![]), Spread::default());
    }
}
