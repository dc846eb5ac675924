//! What the runs of a folder prove: recomputed from histories and logs.

use super::run::stalled_ids;
use super::{Group, Row, Stalls};
use crate::checker::{self, Verdict};
use crate::error::{LabError, Result};
use crate::history::{self, Event};
use crate::kill::{self, Conclusion, RowKind, Settings};
use crate::subjects::Subject;
use crate::workload;
use crate::workload::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

/// One run of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOutcome {
    /// Number of the run.
    pub run: u32,
    /// Consumers in the group.
    pub members: u32,
    /// `partition.assignment.strategy`; `None`: the client library's own.
    pub assignor: Option<String>,
    /// What it proved.
    pub verdict: Verdict,
    /// Messages that were stalled on.
    pub stalls: u64,
    /// How many of them have more than one effect.
    pub stalled_doubled: u64,
    /// Evidence: how often a consumer found that it had lost its partitions.
    pub evictions: u64,
    /// Evidence: offset commits that were refused, or results of an old assignment that were dropped.
    pub late_refused: u64,
    /// Evidence: duplicates that the subject says it skipped.
    pub skipped: u64,
    /// Evidence: how long new owners waited for a zombie's transaction, in milliseconds.
    pub held_up_ms: Vec<u64>,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowOutcome {
    /// Which.
    pub row: Row,
    /// Its name.
    pub name: String,
    /// Complete runs.
    pub runs: Vec<RunOutcome>,
    /// How often the broker inside the lab ended by itself: what ran on it was run again, or is missing.
    #[serde(default)]
    pub broker_ended: u32,
}

impl RowOutcome {
    /// A figure over all runs.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&RunOutcome) -> u64) -> u64 {
        self.runs.iter().map(of).sum()
    }

    /// The same in one part for each assignor; as it is where there is but one.
    #[must_use]
    pub fn by_assignor(&self) -> Vec<Self> {
        let all: BTreeSet<&Option<String>> = self.runs.iter().map(|run| &run.assignor).collect();
        if all.len() < 2 {
            return vec![self.clone()];
        }
        let part = |assignor: &Option<String>| Self {
            name: format!("{}, {}", self.name, assignor.as_deref().unwrap_or("the library's own")),
            runs: self.runs.iter().filter(|run| run.assignor == *assignor).cloned().collect(),
            ..self.clone()
        };
        all.into_iter().map(part).collect()
    }
}

/// Everything of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked for.
    pub settings: Settings,
    /// How consumers stalled.
    pub stalls: Stalls,
    /// One for each row.
    pub rows: Vec<RowOutcome>,
    /// What it proves.
    pub conclusion: Conclusion,
}

impl Outcome {
    /// The lines of the table: each row, in one line for each assignor where they differ.
    #[must_use]
    pub fn lines(&self) -> Vec<RowOutcome> {
        self.rows.iter().flat_map(RowOutcome::by_assignor).collect()
    }
}

/// Whether a run of a row is complete.
pub(super) fn is_complete(folder: &Path, row: Row, run: u32) -> bool {
    let path = folder.join(row.file_stem(run)).with_extension("jsonl");
    history::read(&path).is_ok_and(|entries| history::end_state(&entries).is_some())
}

/// Recomputes everything from a folder's histories and logs.
///
/// # Errors
/// The folder holds no run of `lab zombie`, or a file of it cannot be read.
pub fn recompute(folder: &Path) -> Result<Outcome> {
    let settings = Settings::load(folder)?;
    let path = folder.join(Stalls::FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        LabError::usage(format!("{} holds no run of lab zombie", folder.display())).because(error)
    })?;
    let stalls: Stalls = serde_json::from_str(&text)
        .map_err(|error| LabError::usage(format!("{}: no stalls", path.display())).because(error))?;
    let mut rows = Vec::new();
    for row in Row::ALL {
        let mut runs = Vec::new();
        let mut broker_ended = 0;
        for run in 0..settings.runs {
            broker_ended += kill::broker_ends(&folder.join(row.file_stem(run)));
            if is_complete(folder, row, run) {
                runs.push(run_outcome(folder, &settings, &stalls, row, run)?);
            }
        }
        rows.push(RowOutcome { row, name: row.name().to_owned(), runs, broker_ended });
    }
    let conclusion = conclude(&settings, &rows);
    Ok(Outcome { settings, stalls, rows, conclusion })
}

fn run_outcome(
    folder: &Path,
    settings: &Settings,
    stalls: &Stalls,
    row: Row,
    run: u32,
) -> Result<RunOutcome> {
    let stem = folder.join(row.file_stem(run));
    let entries = history::read(&stem.with_extension("jsonl"))?;
    let sent = workload::read_sent(&stem.with_extension("sent.jsonl"))?;
    let end = history::end_state(&entries).cloned().unwrap_or_default();
    let needed = settings.messages.max(stalls.one_in);
    let plan = Plan { messages: needed, ..settings.plan(run, RowKind::Random) };
    let doubled = |id: &String| end.effects.get(id).is_some_and(|effects| *effects > 1);
    let stalled = stalled_ids(&plan, stalls.one_in);
    let count = |of: &dyn Fn(&Event) -> bool| {
        u64::try_from(entries.iter().filter(|entry| of(&entry.event)).count()).unwrap_or(u64::MAX)
    };
    let Group { members, assignor } = stalls.group(settings.seed, run);
    Ok(RunOutcome {
        run,
        members,
        assignor,
        verdict: checker::judge(&sent, &end),
        stalls: count(&|event| matches!(event, Event::Stalled { .. })),
        stalled_doubled: u64::try_from(stalled.iter().filter(|id| doubled(id)).count()).unwrap_or(u64::MAX),
        evictions: count(&|event| matches!(event, Event::Evicted { .. })),
        late_refused: count(&|event| {
            matches!(event, Event::CommitRefused { .. } | Event::LateResultsDropped { .. })
        }),
        skipped: history::skipped(&entries),
        held_up_ms: entries
            .iter()
            .filter_map(|entry| if let Event::HeldUp { ms, .. } = entry.event { Some(ms) } else { None })
            .collect(),
    })
}

/// What the rows prove (pure). A broken promise outweighs everything.
fn conclude(settings: &Settings, rows: &[RowOutcome]) -> Conclusion {
    let mut violations = Vec::new();
    let mut doubts = Vec::new();
    for row in rows {
        let promises = row.row.subject.promises();
        for run in &row.runs {
            let verdict = &run.verdict;
            let adds_up = verdict.unsent == 0 && verdict.accounts_off.is_empty();
            if (promises && !verdict.is_clean()) || !adds_up {
                violations.push(format!(
                    "{}, run {}: {} doubled, {} lost, {} accounts off",
                    row.name,
                    run.run + 1,
                    verdict.doubled,
                    verdict.lost,
                    verdict.accounts_off.len()
                ));
            }
        }
        if row.runs.len() < usize::try_from(settings.runs).unwrap_or(usize::MAX) {
            let why = match row.broker_ended {
                0 => String::new(),
                times => format!(": the broker inside the lab ended by itself, {times} times in all"),
            };
            doubts.push(format!("{}: runs are missing{why}", row.name));
        }
        // Each assignor must have met what is to be shown.
        doubts.extend(row.by_assignor().iter().flat_map(unmet));
    }
    if !violations.is_empty() {
        Conclusion::Violated(violations)
    } else if doubts.is_empty() {
        Conclusion::Kept
    } else {
        Conclusion::Inconclusive(doubts)
    }
}

/// What did not happen that a line of the table is there to show, or happened that must not.
fn unmet(row: &RowOutcome) -> Vec<String> {
    let mut doubts = Vec::new();
    let (stalls, evictions) = (row.sum(|run| run.stalls), row.sum(|run| run.evictions));
    if stalls == 0 {
        doubts.push(format!("{}: nobody stalled", row.name));
    } else if row.row.is_evicted() && evictions == 0 {
        doubts.push(format!("{}: nobody was evicted", row.name));
    } else if !row.row.is_evicted() && evictions > 0 {
        doubts.push(format!("{}: evicted {evictions} times, though it goes on polling", row.name));
    }
    if row.row.subject == Subject::B && row.sum(|run| run.stalled_doubled) * 2 < stalls {
        doubts.push(format!("{}: doubled too few of its stalled messages to be a control", row.name));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kill::Profile;

    fn rows() -> Vec<RowOutcome> {
        let run = |row: Row| RunOutcome {
            run: 0,
            members: 3,
            assignor: None,
            verdict: Verdict {
                sent: 500,
                doubled: u64::from(row.subject == Subject::B),
                ..Verdict::default()
            },
            stalls: 1,
            stalled_doubled: u64::from(row.subject == Subject::B),
            evictions: u64::from(row.is_evicted()),
            late_refused: 1,
            skipped: 1,
            held_up_ms: vec![],
        };
        Row::ALL
            .map(|row| RowOutcome { row, name: row.name().into(), runs: vec![run(row)], broker_ended: 0 })
            .into()
    }

    #[test]
    fn a_zombie_that_doubles_only_without_an_inbox_is_the_promise_kept() {
        assert_eq!(conclude(&Settings::of(Profile::Quick), &rows()), Conclusion::Kept);
    }

    #[test]
    fn each_way_to_prove_nothing_is_seen() {
        type Spoil<'a> = &'a dyn Fn(&mut Vec<RowOutcome>);
        let spoils: [Spoil<'_>; 5] = [
            &|rows| rows[0].runs[0].stalled_doubled = 0,
            &|rows| rows[1].runs[0].evictions = 0,
            &|rows| rows[2].runs[0].stalls = 0,
            &|rows| rows[3].runs.clear(),
            &|rows| rows[4].runs[0].evictions = 1,
        ];
        for spoil in spoils {
            let mut rows = rows();
            spoil(&mut rows);
            let conclusion = conclude(&Settings::of(Profile::Quick), &rows);
            assert!(matches!(conclusion, Conclusion::Inconclusive(_)), "{conclusion:?}");
        }
    }

    #[test]
    fn a_double_of_what_promises_is_a_violation() {
        let mut rows = rows();
        rows[3].runs[0].verdict.doubled = 1;
        assert!(matches!(conclude(&Settings::of(Profile::Quick), &rows), Conclusion::Violated(_)));
    }

    #[test]
    fn assignors_are_counted_apart_and_each_must_have_met_a_zombie() {
        let mut all = rows();
        for row in &mut all {
            let mut other = row.runs[0].clone();
            (row.runs[0].assignor, other.assignor) =
                (Some("range".into()), Some("cooperative-sticky".into()));
            other.run = 1;
            row.runs.push(other);
        }
        let settings = Settings { runs: 2, ..Settings::of(Profile::Quick) };
        assert_eq!(conclude(&settings, &all), Conclusion::Kept);
        let lines = all[1].by_assignor();
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["c, cooperative-sticky", "c, range"]);
        assert!(lines.iter().all(|line| line.sum(|run| run.evictions) == 1));
        all[1].runs[1].evictions = 0;
        let doubts = vec!["c, cooperative-sticky: nobody was evicted".to_owned()];
        assert_eq!(conclude(&settings, &all), Conclusion::Inconclusive(doubts));
    }
}
