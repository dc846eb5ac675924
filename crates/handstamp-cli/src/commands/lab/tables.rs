//! What the lab says to people.

use crate::output::table;
use handstamp_lab::kill::{Conclusion, Outcome, RowKind, RowOutcome, Settings, Spread};
use handstamp_lab::reference;
use handstamp_lab::subjects::Subject;
use handstamp_lab::throughput::{Range, Rates};

/// What is going to be done.
pub(crate) fn intention(settings: &Settings) -> String {
    let (from, to) = settings.kill_within_ms;
    format!(
        "{}: {} runs of {} rows; {} kills a run, each {}-{} s after the first effect (seed {}); \
         work {} ms a message, session.timeout.ms={}\non {}",
        settings.profile,
        settings.runs,
        settings.rows().len(),
        settings.kills,
        seconds(from),
        seconds(to),
        settings.seed,
        settings.work_ms,
        settings.session_timeout_ms,
        settings.place
    )
}

fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { (ms / 1000).to_string() } else { format!("{}.{:03}", ms / 1000, ms % 1000) }
}

/// The table and what it proves.
pub(crate) fn outcome(outcome: &Outcome) -> String {
    let several = outcome.settings.runs > 1;
    let doubled = if several { "doubled a run" } else { "doubled" };
    let lost = if several { "lost a run" } else { "lost" };
    let mut header = vec!["subject", "", doubled, lost];
    if several {
        header.extend(["doubled in all", "lost in all"]);
    }
    header.extend(["kills", "messages/s"]);
    // The published numbers are of 20 kills.
    let published = outcome.settings.kills == 20;
    if published {
        header.push("published lab: doubled, lost");
    }
    let rows = outcome.rows.iter().map(|row| cells(row, several, published)).collect();
    let ended = broker_ended(outcome.rows.iter().map(|row| row.broker_ended).sum());
    format!("{}\n{ended}{}\n", table::plain(&header, rows), conclusion(&outcome.conclusion))
}

fn broker_ended(times: u32) -> String {
    match times {
        0 => String::new(),
        1 => "the broker inside the lab ended by itself once: what ran on it was run again\n".to_owned(),
        _ => {
            format!("the broker inside the lab ended by itself {times} times: what ran on it was run again\n")
        }
    }
}

fn cells(row: &RowOutcome, several: bool, published: bool) -> Vec<String> {
    let what = match row.row.kind {
        RowKind::Random => row.row.subject.describe().to_owned(),
        RowKind::Held => "killed exactly there".to_owned(),
        RowKind::Resend => "some events sent twice".to_owned(),
    };
    let mut cells = vec![row.name.clone(), what];
    if row.runs.is_empty() {
        cells.extend(["not run".to_owned(), String::new()]);
    } else {
        let spread = |of: Spread| if several { ranged(of) } else { table::grouped(of.median) };
        cells.push(spread(row.spread(|verdict| verdict.doubled)));
        cells.push(spread(row.spread(|verdict| verdict.lost)));
    }
    if several {
        cells.extend([table::grouped(row.doubled()), table::grouped(row.lost())]);
    }
    let kills: u32 = row.runs.iter().map(|run| run.kills).sum();
    let counted: u32 = row.runs.iter().map(|run| run.kills_counted).sum();
    cells.push(if kills == counted { kills.to_string() } else { format!("{counted} of {kills}") });
    cells.push(row.per_second.map(|rate| format!("{rate:.1}")).unwrap_or_default());
    if published && let Some(figure) = reference::KILL.iter().find(|figure| figure.subject == row.name) {
        let spread = |(median, min, max)| ranged(Spread { median, min, max });
        cells.push(format!("{}, {}", spread(figure.doubled), spread(figure.lost)));
    }
    cells
}

fn ranged(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    format!("{} ({}-{})", table::grouped(median), table::grouped(min), table::grouped(max))
}

fn conclusion(conclusion: &Conclusion) -> String {
    match conclusion {
        Conclusion::Kept => {
            "kept: what promises doubled nothing and lost nothing, and the controls did harm".into()
        }
        Conclusion::Violated(why) => format!("VIOLATED:\n  {}", why.join("\n  ")),
        Conclusion::Inconclusive(why) => {
            format!("inconclusive, this run proves nothing:\n  {}", why.join("\n  "))
        }
    }
}

/// What zombies did.
#[cfg(feature = "postgres")]
pub(crate) fn zombies(outcome: &handstamp_lab::zombie::Outcome) -> String {
    let lines = outcome.lines();
    let rows = lines.iter().map(|row| {
        let mut held: Vec<u64> = row.runs.iter().flat_map(|run| run.held_up_ms.clone()).collect();
        held.sort_unstable();
        let held = match (held.get(held.len() / 2), held.last()) {
            (Some(median), Some(max)) => format!("{median} ms (at most {max})"),
            _ => String::new(),
        };
        let published = reference::ZOMBIE.iter().find(|(name, _)| *name == row.name);
        vec![
            row.name.clone(),
            row.sum(|run| run.stalls).to_string(),
            row.sum(|run| run.evictions).to_string(),
            row.sum(|run| run.stalled_doubled).to_string(),
            row.sum(|run| run.verdict.doubled).to_string(),
            row.sum(|run| run.verdict.lost).to_string(),
            row.sum(|run| run.late_refused).to_string(),
            row.sum(|run| run.skipped).to_string(),
            held,
            published.map_or_else(String::new, |(_, doubled)| format!("{doubled} of 50")),
        ]
    });
    let header = [
        "subject",
        "stalls",
        "evictions",
        "stalled doubled",
        "doubled",
        "lost",
        "late commits refused",
        "skipped",
        "new owner held up",
        "published lab",
    ];
    let ended = broker_ended(outcome.rows.iter().map(|row| row.broker_ended).sum());
    format!("{}\n{ended}{}\n", table::plain(&header, rows.collect()), conclusion(&outcome.conclusion))
}

/// Messages a second, and how that compares with `b` in the same round.
pub(crate) fn rates(rates: &[Rates]) -> String {
    let base = rates.iter().find(|one| one.contender.subject == Subject::B);
    let rows = rates.iter().map(|one| {
        let ratio = base.and_then(|base| one.ratio(base));
        let published = reference::THROUGHPUT.iter().find(|(name, _)| *name == one.name);
        vec![
            one.name.clone(),
            one.range().map_or_else(String::new, |range| figures(range, 1)),
            ratio.map_or_else(String::new, |range| figures(range, 2)),
            published.map_or_else(String::new, |(_, rate)| rate.to_string()),
        ]
    });
    let header = ["subject", "messages/s", "of b's", "published lab"];
    format!("{}median (min-max)\n", table::plain(&header, rows.collect()))
}

fn figures(range: Range, digits: usize) -> String {
    let Range { median, min, max } = range;
    format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
}

/// Bytes per remembered id.
#[cfg(feature = "postgres")]
pub(crate) fn bytes(tables: &[handstamp_lab::storage::Bytes]) -> String {
    let median = |of: &[f64]| Range::of(of).map_or_else(String::new, |range| format!("{:.1}", range.median));
    let rows = tables.iter().map(|one| {
        let published = reference::STORAGE.iter().find(|(name, ..)| *name == one.name);
        vec![
            one.name.clone(),
            median(&one.heap),
            median(&one.index),
            median(&one.total()),
            published.map_or_else(String::new, |(.., total)| total.to_string()),
        ]
    });
    let header = ["id in", "heap", "index", "together", "published lab"];
    format!("{}bytes per id, medians, after VACUUM\n", table::plain(&header, rows.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_lab::checker::Verdict;
    use handstamp_lab::kill::{Profile, Row, RunOutcome};

    fn row(doubled: &[u64]) -> RowOutcome {
        let row = Row { subject: Subject::A1, kind: RowKind::Random };
        let runs = doubled.iter().zip(0..).map(|(doubled, run)| RunOutcome {
            run,
            verdict: Verdict { doubled: *doubled, ..Verdict::default() },
            kills: 20,
            kills_counted: 20,
            skipped: 0,
            commits_refused: 0,
        });
        RowOutcome { row, name: row.name(), runs: runs.collect(), per_second: Some(445.12), broker_ended: 2 }
    }

    #[test]
    fn the_table_has_median_range_totals_kills_and_rate() {
        let settings = Settings { runs: 3, ..Settings::of(Profile::Source) };
        let rows = vec![row(&[3000, 1000, 2000])];
        let text = outcome(&Outcome { settings, rows, conclusion: Conclusion::Kept });
        for part in [
            "a1",
            "2,000 (1,000-3,000)",
            "0 (0-0)",
            "6,000",
            "60",
            "445.1",
            "kept",
            "3,648 (2,777-4,525), 0 (0-0)",
            "ended by itself 2 times",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn rates_are_shown_with_their_ratio_to_b() {
        let one = |subject, per_second: &[f64]| {
            let contender = handstamp_lab::throughput::Contender { subject, batch_max: 1 };
            Rates { contender, name: contender.name(), per_second: per_second.to_vec() }
        };
        let text = rates(&[one(Subject::B, &[100.0, 200.0]), one(Subject::C, &[50.0, 100.0])]);
        for part in ["100.0 (100.0-200.0)", "0.50 (0.50-0.50)", "347.8", "323"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn one_run_needs_no_range_and_reasons_are_shown() {
        let settings = Settings::of(Profile::Quick);
        let conclusion = Conclusion::Inconclusive(vec!["a1: doubled nothing, though it must".into()]);
        let text = outcome(&Outcome { settings, rows: vec![row(&[7])], conclusion });
        assert!(
            !text.contains("(7-7)") && text.contains("inconclusive") && text.contains("a1: doubled"),
            "{text}"
        );
    }
}
