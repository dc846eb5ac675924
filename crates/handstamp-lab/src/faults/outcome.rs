//! What a folder of `lab faults` proves: recomputed from its histories and producers' logs, never remembered.

use super::commit::CommitRow;
use super::outage::OutageRow;
use super::partition::PartitionRow;
use super::record;
use super::report::{Row, Standing, conclude};
use super::settings::{Command, RowKey, Settings};
use crate::error::Result;
use crate::history::{self, Entry, Event};
use crate::kill::Conclusion;
use crate::workload;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Everything that was measured of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// Of `lab faults commit`.
    Commit(CommitRow),
    /// Of `lab faults outage`.
    Outage(OutageRow),
    /// Of `lab faults partition`.
    Partition(PartitionRow),
}

/// A row of the table, and all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Told {
    /// Which.
    #[serde(skip)]
    pub key: RowKey,
    /// The row.
    #[serde(flatten)]
    pub row: Row,
    /// What was measured; `None` for a row that was refused or did not come to its end.
    pub measured: Option<Measured>,
}

/// Everything of a folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What was asked for.
    pub settings: Settings,
    /// One for each row.
    pub rows: Vec<Told>,
    /// What it proves.
    pub conclusion: Conclusion,
}

/// The first line of a row's history.
pub(super) fn begun(key: RowKey, seed: u64, messages: u64) -> Event {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Event::Run { subject: key.name(), run: 0, seed, messages, version }
}

/// Recomputes everything from a folder's histories and logs.
///
/// # Errors
/// The folder holds no run of `lab faults`, or a file of it cannot be read.
pub fn recompute(folder: &Path) -> Result<Outcome> {
    let settings = Settings::load(folder)?;
    let mut rows = Vec::new();
    for key in settings.rows() {
        let mut parts = Vec::new();
        for stem in settings.stems(folder, key) {
            parts.push((entries(&stem)?, stem));
        }
        rows.push(told(&settings, key, parts)?);
    }
    let conclusion = conclude(&rows.iter().map(|told| &told.row).collect::<Vec<_>>());
    Ok(Outcome { settings, rows, conclusion })
}

/// The history of a row's part; one that was not begun has none.
fn entries(stem: &Path) -> Result<Vec<Entry>> {
    let path = stem.with_extension("jsonl");
    if path.exists() { history::read(&path) } else { Ok(Vec::new()) }
}

/// The history of a part that came to its end.
pub(super) fn complete(stem: &Path) -> Option<Vec<Entry>> {
    entries(stem).ok().filter(|entries| history::end_state(entries).is_some())
}

/// The rows that did not come to their end yet.
pub(super) fn left(folder: &Path, settings: &Settings) -> Vec<RowKey> {
    let done = |key: &RowKey| settings.stems(folder, *key).iter().all(|stem| complete(stem).is_some());
    settings.rows().into_iter().filter(|key| !done(key)).collect()
}

fn told(settings: &Settings, key: RowKey, parts: Vec<(Vec<Entry>, PathBuf)>) -> Result<Told> {
    let unmeasured = |standing| {
        let row = Row { name: key.name(), cells: vec![], standing };
        Told { key, row, measured: None }
    };
    if let Some(why) = parts.iter().find_map(|(entries, _)| record::refused(entries)) {
        return Ok(unmeasured(Standing::Refused(why.to_owned())));
    }
    if parts.iter().any(|(entries, _)| history::end_state(entries).is_none()) {
        return Ok(unmeasured(Standing::Inconclusive("it did not come to its end".to_owned())));
    }
    let mut read = Vec::new();
    for (entries, stem) in parts {
        read.push((entries, workload::read_sent(&stem.with_extension("sent.jsonl"))?));
    }
    // Rows of the other commands are one part.
    let (entries, sent) = read.first().map_or((&[][..], &[][..]), |(entries, sent)| (entries, sent));
    let (row, measured) = match key {
        RowKey::Commit(contender) => {
            let measured = CommitRow::of(contender, &read);
            (measured.row(), Measured::Commit(measured))
        }
        RowKey::Outage(fault, _) => {
            let measured = OutageRow::of(fault, entries, sent);
            (measured.row(), Measured::Outage(measured))
        }
        RowKey::Partition(split, subject) => {
            let rounds = match settings.command {
                Command::Partition { rounds, .. } => rounds,
                Command::Commit { .. } | Command::Outage { .. } => 0,
            };
            let measured = PartitionRow::of(split, subject, rounds, entries, sent);
            (measured.row(key), Measured::Partition(measured))
        }
    };
    Ok(Told { key, row, measured: Some(measured) })
}

#[cfg(test)]
mod tests {
    use super::super::commit::Contender;
    use super::super::fault::Fault;
    use super::super::partition::Split;
    use super::super::planted::{COMMIT, entries, plant, settings, write};
    use super::super::record::{Phase, Seen};
    use super::*;
    use crate::checker::EndState;
    use crate::subjects::Subject;

    /// Recomputes after a change to the history of one row.
    fn changed(folder: &Path, key: RowKey, change: impl Fn(&mut Vec<Entry>)) -> Outcome {
        let whole = entries(folder, key);
        let mut changed = whole.clone();
        change(&mut changed);
        assert_ne!(changed, whole, "{key:?}: nothing was changed");
        write(folder, key, &changed);
        let outcome = recompute(folder).unwrap();
        write(folder, key, &whole);
        outcome
    }

    fn end(entries: &mut [Entry]) -> &mut EndState {
        match &mut entries.last_mut().unwrap().event {
            Event::End(end) => end,
            other => panic!("{other:?}"),
        }
    }

    fn standing(outcome: &Outcome, key: RowKey) -> &Standing {
        &outcome.rows.iter().find(|told| told.key == key).unwrap().row.standing
    }

    #[test]
    fn a_folder_is_judged_from_what_lies_in_it() {
        for settings in settings() {
            let folder = plant(&settings);
            let outcome = recompute(folder.path()).unwrap();
            assert_eq!(outcome.conclusion, Conclusion::Kept, "{outcome:#?}");
            assert_eq!(outcome.rows.len(), settings.rows().len());
            for told in &outcome.rows {
                let expected = if told.key.promises() { Standing::Held } else { Standing::Control };
                assert_eq!(told.row.standing, expected, "{:?}", told.key);
            }
        }
    }

    #[test]
    fn every_planted_fault_of_every_row_that_promises_is_found() {
        let faults: [&dyn Fn(&mut EndState); 5] = [
            // An effect twice; one missing; one that nobody sent; a balance that is not its ledger; a good
            // message among the dead letters.
            &|end| *end.effects.get_mut("m17").unwrap() = 2,
            &|end| assert_eq!(end.effects.remove("m17"), Some(1)),
            &|end| assert_eq!(end.effects.insert("ghost".into(), 1), None),
            &|end| *end.balances.get_mut(&1).unwrap() += 1,
            &|end| end.dead_letters.push("m17".into()),
        ];
        for settings in settings() {
            let folder = plant(&settings);
            for key in settings.rows().into_iter().filter(|key| key.promises()) {
                for fault in faults {
                    let outcome = changed(folder.path(), key, |entries| fault(end(entries)));
                    assert!(matches!(outcome.conclusion, Conclusion::Violated(_)), "{outcome:#?}");
                    assert!(matches!(standing(&outcome, key), Standing::Violated(_)), "{key:?}");
                }
            }
            assert_eq!(recompute(folder.path()).unwrap().conclusion, Conclusion::Kept);
        }
    }

    #[test]
    fn a_control_that_did_no_harm_proves_nothing() {
        for settings in settings() {
            let folder = plant(&settings);
            for key in settings.rows().into_iter().filter(|key| !key.promises()) {
                let other = settings.rows()[0];
                let clean = end(&mut entries(folder.path(), other)).clone();
                let outcome = changed(folder.path(), key, |entries| *end(entries) = clean.clone());
                assert!(matches!(outcome.conclusion, Conclusion::Inconclusive(_)), "{outcome:#?}");
            }
        }
    }

    #[test]
    fn nothing_through_a_proxy_proves_nothing_in_any_row() {
        for settings in settings() {
            let folder = plant(&settings);
            for key in settings.rows() {
                let outcome = changed(folder.path(), key, |entries| {
                    entries.retain(|entry| !matches!(entry.event, Event::Fault(Seen::Passed { .. })));
                });
                assert!(matches!(standing(&outcome, key), Standing::Inconclusive(_)), "{outcome:#?}");
            }
        }
    }

    #[test]
    fn a_row_that_is_missing_cut_off_or_refused_proves_nothing() {
        for settings in settings() {
            let folder = plant(&settings);
            for key in settings.rows() {
                let cut_off = changed(folder.path(), key, |entries| drop(entries.pop()));
                let never = changed(folder.path(), key, Vec::clear);
                let refused = changed(folder.path(), key, |entries| {
                    let why = "no second listener".to_owned();
                    entries.truncate(1);
                    entries.push(Entry { at_ms: 3, event: Event::Fault(Seen::Refused { why }) });
                });
                assert!(matches!(standing(&refused, key), Standing::Refused(_)), "{refused:#?}");
                for outcome in [cut_off, never, refused] {
                    assert!(matches!(outcome.conclusion, Conclusion::Inconclusive(_)), "{outcome:#?}");
                }
            }
        }
    }

    #[test]
    fn what_the_database_says_of_a_cut_transaction_decides_its_outcome() {
        let [settings, ..] = settings();
        let folder = plant(&settings);
        let figures = |outcome: &Outcome| match &outcome.rows[0].measured {
            Some(Measured::Commit(row)) => {
                (row.committed, row.not_committed, row.without_effect, row.unexplained)
            }
            other => panic!("{other:?}"),
        };
        let whole = figures(&recompute(folder.path()).unwrap());
        assert!(whole.0 > 40 && whole.1 > 40 && whole.2 > 40 && whole.3 == 0, "{whole:?}");
        let outcome = changed(folder.path(), COMMIT[0], |entries| {
            for entry in entries {
                if let Event::Fault(Seen::Written { connections }) = &mut entry.event {
                    // One that was committed had one transaction more.
                    connections.iter_mut().find(|one| one.transactions == 4).unwrap().transactions = 3;
                }
            }
        });
        assert_eq!(figures(&outcome), (whole.0 - 1, whole.1 + 1, whole.2, 0));
        let outcome = changed(folder.path(), COMMIT[0], |entries| {
            entries.retain(|entry| !matches!(entry.event, Event::Fault(Seen::Written { .. })));
        });
        assert!(
            matches!(standing(&outcome, COMMIT[0]), Standing::Inconclusive(why) if why.contains("not known"))
        );
        assert_eq!(RowKey::Commit(Contender::Handstamp), COMMIT[0]);
    }

    #[test]
    fn a_row_in_parts_is_all_of_them_and_one_that_is_missing_is_left() {
        let [mut settings, ..] = settings();
        let folder = plant(&settings);
        let one = recompute(folder.path()).unwrap();
        let whole = entries(folder.path(), COMMIT[0]);
        if let Command::Commit { part, .. } = &mut settings.command {
            *part = std::num::NonZeroUsize::new(50);
        }
        std::fs::remove_file(folder.path().join(Settings::FILE)).unwrap();
        settings.save(folder.path()).unwrap();
        assert_eq!(left(folder.path(), &settings), [COMMIT[0]]);
        let stem = |part: usize| folder.path().join(format!("commit-handstamp-{part}"));
        let sent = folder.path().join("commit-handstamp.sent.jsonl");
        let write = |part: usize, entries: &[Entry]| {
            let lines: String =
                entries.iter().map(|entry| serde_json::to_string(entry).unwrap() + "\n").collect();
            std::fs::write(stem(part).with_extension("jsonl"), lines).unwrap();
            std::fs::copy(&sent, stem(part).with_extension("sent.jsonl")).unwrap();
        };
        write(0, &whole);
        assert!(matches!(standing(&recompute(folder.path()).unwrap(), COMMIT[0]), Standing::Inconclusive(_)));
        assert_eq!(left(folder.path(), &settings), [COMMIT[0]]);
        write(1, &whole);
        assert_eq!(left(folder.path(), &settings), []);
        let both = recompute(folder.path()).unwrap();
        assert_eq!(both.conclusion, Conclusion::Kept);
        let figures = |outcome: &Outcome| match &outcome.rows[0].measured {
            Some(Measured::Commit(row)) => {
                [row.planned, row.dealt, row.committed, row.not_committed, row.without_effect]
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(figures(&both), figures(&one).map(|figure| figure * 2));
        // A fault that is planted in either part is found.
        for part in 0..2 {
            let mut doubled = whole.clone();
            *end(&mut doubled).effects.get_mut("m17").unwrap() = 2;
            write(part, &doubled);
            assert!(
                matches!(recompute(folder.path()).unwrap().conclusion, Conclusion::Violated(_)),
                "{part}"
            );
            write(part, &whole);
        }
    }

    #[test]
    fn the_figure_of_an_outage_is_the_window_after_against_the_window_before() {
        let [_, settings, _] = settings();
        let folder = plant(&settings);
        let percent = |outcome: &Outcome, at: usize| match &outcome.rows[at].measured {
            Some(Measured::Outage(row)) => {
                row.after_percent.map(|percent| (percent.round(), row.before_per_s, row.settled_s.round()))
            }
            other => panic!("{other:?}"),
        };
        let outcome = recompute(folder.path()).unwrap();
        assert_eq!(percent(&outcome, 0), Some((98.0, 80.0, 20.0)));
        assert_eq!(percent(&outcome, 1), Some((50.0, 80.0, 20.0)));
        let cells = &outcome.rows[1].row.cells;
        assert!(cells.contains(&("of before", "50 %".to_owned())), "{cells:?}");
        // A window that begins later than half a minute after the return is no figure.
        let key = settings.rows()[0];
        let late = changed(folder.path(), key, |entries| {
            let after = |entry: &Entry| entry.event == Event::Fault(Seen::Phase { phase: Phase::After });
            let from = entries.iter().position(after).unwrap();
            entries[from..].iter_mut().for_each(|entry| entry.at_ms += 11_000);
        });
        assert_eq!(percent(&late, 0), None);
    }

    #[test]
    fn an_outage_that_was_answered_or_a_cut_that_nobody_took_over_proves_nothing() {
        let [_, outages, partitions] = settings();
        let folder = plant(&outages);
        let key = RowKey::Outage(Fault::DatabaseFrozen, Subject::HandstampProgram50);
        let outcome = changed(folder.path(), key, |entries| {
            let mut answered = |entry: &mut Entry| {
                if let Event::Fault(Seen::Passed { answered, .. }) = &mut entry.event {
                    *answered += entry.at_ms;
                }
            };
            entries.iter_mut().for_each(&mut answered);
        });
        assert!(matches!(standing(&outcome, key), Standing::Inconclusive(why) if why.contains("not felt")));
        let folder = plant(&partitions);
        let key = RowKey::Partition(Split::UpOnly, Subject::HandstampProgram50);
        let outcome = changed(folder.path(), key, |entries| {
            let took = |entry: &Entry| entry.event == Event::Fault(Seen::Round { taken_over: true });
            let first = entries.iter().position(took).unwrap();
            drop(entries.remove(first));
        });
        assert!(
            matches!(standing(&outcome, key), Standing::Inconclusive(why) if why.contains("1 of 2 rounds"))
        );
    }

    #[test]
    fn a_folder_of_another_command_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(recompute(folder.path()).unwrap_err().to_string().contains("no run of lab faults"));
    }
}
