//! What a matrix leaves in its folder, and what that proves: recomputed, never remembered.
//!
//! ```text
//!  matrix.json             settings and every cell that was asked for
//!  NNN-CELL.jsonl          what happened in a cell; its last line is what the database held
//!  NNN-CELL.sent.jsonl     what was sent
//! ```
//!
//! Authoritative for doubled and lost: what was sent, and the database. Whether a point was hit is what the
//! supervisor saw: how the process ended, and the mark. A cell without its end proves nothing.

use super::outcome::{AtCrash, Named, Operated, Outcome, Shows};
use crate::checker::judge;
use crate::error::Result;
use crate::history::{self, Entry, Event, end_state};
use crate::json_file;
use crate::workload::{Credit, read_sent};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Settings of a matrix in its folder.
pub const SETTINGS_FILE: &str = "matrix.json";

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Decides ids, accounts and amounts.
    pub seed: u64,
    /// How often the process dies in a cell.
    pub kills: u32,
    /// `session.timeout.ms` of Kafka cells.
    pub session_timeout_ms: u64,
    /// How many cells ran at a time.
    pub side_by_side: usize,
    /// Broker and database.
    pub place: String,
    /// Every cell, in order.
    pub cells: Vec<Named>,
}

impl Settings {
    /// Writes them into the folder of a matrix.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        json_file::save(folder, SETTINGS_FILE, self)
    }

    /// Reads them.
    ///
    /// # Errors
    /// `Usage` when the folder holds no matrix.
    pub fn load(folder: &Path) -> Result<Self> {
        json_file::load(folder, SETTINGS_FILE, "matrix")
    }
}

/// Everything a folder proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// What was asked for.
    pub settings: Settings,
    /// Cells that came to their end.
    pub outcomes: Vec<Outcome>,
    /// Cells without an end.
    pub missing: Vec<Named>,
}

impl Record {
    /// What all cells together show.
    #[must_use]
    pub fn shows(&self) -> Shows {
        let any = |wanted| self.outcomes.iter().any(|outcome| outcome.shows() == wanted);
        if any(Shows::Violation) {
            Shows::Violation
        } else if any(Shows::Nothing) || !self.missing.is_empty() || self.outcomes.is_empty() {
            Shows::Nothing
        } else {
            Shows::AsItMust
        }
    }
}

/// The beginning of the names of a cell's files.
pub(super) fn stem(number: usize, cell: &Named) -> String {
    let Named { point, source, store, .. } = cell;
    let broken = cell.broken.map_or_else(String::new, |broken| format!("-{}", broken.as_str()));
    format!("{number:03}-{point}-{}-{}{broken}", source.as_str(), store.as_str())
}

/// Where the history of a cell lies.
#[must_use]
pub fn history_of(folder: &Path, number: usize, cell: &Named) -> std::path::PathBuf {
    folder.join(format!("{}.jsonl", stem(number, cell)))
}

/// What the folder of a matrix proves.
///
/// # Errors
/// The folder holds no matrix, or a file of it cannot be read.
pub fn recompute(folder: &Path) -> Result<Record> {
    let settings = Settings::load(folder)?;
    let (mut outcomes, mut missing) = (Vec::new(), Vec::new());
    for (number, cell) in settings.cells.iter().enumerate() {
        match outcome(folder, number, cell, settings.kills)? {
            Some(outcome) => outcomes.push(outcome),
            None => missing.push(cell.clone()),
        }
    }
    Ok(Record { settings, outcomes, missing })
}

/// What became of a cell; `None` when it did not come to its end.
///
/// # Errors
/// A file of it cannot be read.
pub(super) fn outcome(folder: &Path, number: usize, cell: &Named, kills: u32) -> Result<Option<Outcome>> {
    let history = history_of(folder, number, cell);
    let sent = history.with_extension("sent.jsonl");
    if !history.is_file() || !sent.is_file() {
        return Ok(None);
    }
    Ok(judged(cell, kills, &history::read(&history)?, &read_sent(&sent)?))
}

fn judged(cell: &Named, kills: u32, entries: &[Entry], sent: &[Credit]) -> Option<Outcome> {
    let end = end_state(entries)?;
    let (mut hits, mut otherwise, mut bad, mut operated) = (0_u32, None, None, None);
    let mut at_crash = AtCrash::default();
    for entry in entries {
        match &entry.event {
            Event::Armed { at, otherwise: how, effects, parked, dead, .. } => {
                at_crash = AtCrash { effects: *effects, parked: *parked, dead: *dead };
                if how.is_none() && *at == format!("{}:{}", cell.point, cell.nth) {
                    hits += 1;
                } else {
                    otherwise.get_or_insert(how.clone().unwrap_or_else(|| format!("died at {at}")));
                }
            }
            Event::Operated { meant, lines, messages } => {
                operated = Some(Operated { meant: *meant, lines: *lines, messages: *messages });
            }
            Event::DeadLetters { bad: sent, found } => bad = Some((*sent, *found)),
            _ => {}
        }
    }
    if otherwise.is_none() && hits != kills {
        otherwise = Some(format!("died there {hits} of {kills} times"));
    }
    Some(Outcome {
        cell: cell.clone(),
        hit: otherwise.is_none(),
        otherwise,
        at_crash,
        verdict: judge(sent, end),
        bad: bad?,
        operated,
        took_ms: entries.last().map_or(0, |entry| entry.at_ms),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::outcome::tests::named;
    use super::super::{Broken, SourceKind, StoreKind};
    use super::*;
    use crate::checker::EndState;
    use std::fmt::Write as _;

    fn plant_cell(folder: &Path, number: usize, cell: &Named, doubled: u64, lost: u64) {
        let credit = |n: u64| Credit { id: format!("m{n}"), account: 1, amount: 5 };
        let mut end = EndState::default();
        let mut sent = String::new();
        for n in 0..10 {
            writeln!(sent, "{}", serde_json::to_string(&credit(n)).unwrap()).unwrap();
            if n >= lost {
                end.effects.insert(credit(n).id, if n == lost { 1 + doubled } else { 1 });
            }
        }
        let worth = i64::try_from(10 - lost + doubled).unwrap() * 5;
        end.balances.insert(1, worth);
        end.ledger.insert(1, worth);
        let at = format!("{}:{}", cell.point, cell.nth);
        let events = [
            Event::Started { child: 0, pid: 7 },
            Event::Armed { child: 0, at, otherwise: None, effects: 4, parked: 2, dead: 1 },
            Event::Started { child: 1, pid: 8 },
            Event::Ended { child: 1, code: Some(0) },
            Event::Operated { meant: 3, lines: 3, messages: 3 },
            Event::DeadLetters { bad: 2, found: 2 },
            Event::End(end),
        ];
        let mut lines = String::new();
        for (at_ms, event) in (0..).zip(events) {
            writeln!(lines, "{}", serde_json::to_string(&Entry { at_ms, event }).unwrap()).unwrap();
        }
        let stem = stem(number, cell);
        std::fs::write(folder.join(format!("{stem}.jsonl")), lines).unwrap();
        std::fs::write(folder.join(format!("{stem}.sent.jsonl")), sent).unwrap();
    }

    /// A folder with a point on three pairs of source and store, and both controls.
    pub(crate) fn plant() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let on = |point: &str, source, store| Named { point: point.into(), source, store, ..named(None) };
        let cells = vec![
            on("here", SourceKind::File, StoreKind::Sqlite),
            on("here", SourceKind::Kafka, StoreKind::Sqlite),
            on("here", SourceKind::Kafka, StoreKind::Postgres),
            on("there", SourceKind::Kafka, StoreKind::Postgres),
            Named { broken: Some(Broken::NoInbox), ..on("here", SourceKind::File, StoreKind::Sqlite) },
            Named { broken: Some(Broken::SettleFirst), ..on("here", SourceKind::File, StoreKind::Sqlite) },
        ];
        for (number, cell) in cells.iter().enumerate() {
            let (doubled, lost) = match cell.broken {
                Some(Broken::NoInbox) => (3, 0),
                Some(Broken::SettleFirst | Broken::DoneFirst) => (0, 2),
                None => (0, 0),
            };
            plant_cell(folder.path(), number, cell, doubled, lost);
        }
        let place = "Kafka; PostgreSQL 18.6".to_owned();
        let settings =
            Settings { seed: 7, kills: 1, session_timeout_ms: 2000, side_by_side: 4, place, cells };
        settings.save(folder.path()).unwrap();
        folder
    }

    /// Writes a history anew with some of its lines changed.
    fn change(folder: &Path, stem: &str, change: impl Fn(Event) -> Option<Event>) {
        let path = folder.join(format!("{stem}.jsonl"));
        let mut lines = String::new();
        for Entry { at_ms, event } in history::read(&path).unwrap() {
            if let Some(event) = change(event) {
                writeln!(lines, "{}", serde_json::to_string(&Entry { at_ms, event }).unwrap()).unwrap();
            }
        }
        std::fs::write(path, lines).unwrap();
    }

    const OURS: &str = "001-here-kafka-sqlite";
    const CONTROL: &str = "004-here-file-sqlite-no-inbox";

    #[test]
    fn a_folder_is_read_as_it_was_left_and_shows_what_it_must() {
        let folder = plant();
        let record = recompute(folder.path()).unwrap();
        assert_eq!((record.outcomes.len(), record.missing.len()), (6, 0));
        assert_eq!(record.shows(), Shows::AsItMust);
        let at_crash = AtCrash { effects: 4, parked: 2, dead: 1 };
        assert!(record.outcomes.iter().all(|outcome| outcome.at_crash == at_crash && outcome.hit));
        assert_eq!(record.outcomes[4].verdict.doubled, 3);
    }

    #[test]
    fn a_planted_double_loss_dead_letter_and_audit_line_are_violations() {
        let spoils: [&dyn Fn(Event) -> Option<Event>; 5] = [
            &|event| match event {
                Event::End(mut end) => {
                    end.effects.insert("m3".into(), 2);
                    Some(Event::End(end))
                }
                other => Some(other),
            },
            &|event| match event {
                Event::End(mut end) => {
                    end.effects.remove("m3");
                    Some(Event::End(end))
                }
                other => Some(other),
            },
            &|event| match event {
                Event::DeadLetters { bad, .. } => Some(Event::DeadLetters { bad, found: 3 }),
                other => Some(other),
            },
            &|event| match event {
                Event::Operated { meant, .. } => Some(Event::Operated { meant, lines: 4, messages: 3 }),
                other => Some(other),
            },
            &|event| match event {
                Event::Operated { meant, .. } => Some(Event::Operated { meant, lines: 2, messages: 2 }),
                other => Some(other),
            },
        ];
        for spoil in spoils {
            let folder = plant();
            change(folder.path(), OURS, spoil);
            assert_eq!(recompute(folder.path()).unwrap().shows(), Shows::Violation);
        }
    }

    #[test]
    fn a_missed_point_a_harmless_control_and_a_cell_without_its_end_prove_nothing() {
        type Spoil<'a> = (&'a str, &'a dyn Fn(Event) -> Option<Event>, &'a str);
        let spoils: [Spoil<'_>; 4] = [
            // Nobody died there; somebody ended otherwise; somebody died elsewhere.
            (OURS, &|event| (!matches!(event, Event::Armed { .. })).then_some(event), "0 of 1"),
            (
                OURS,
                &|event| match event {
                    Event::Armed { child, at, effects, parked, dead, .. } => {
                        let otherwise = Some("ended with 0".into());
                        Some(Event::Armed { child, at, otherwise, effects, parked, dead })
                    }
                    other => Some(other),
                },
                "ended with 0",
            ),
            (
                OURS,
                &|event| match event {
                    Event::Armed { child, otherwise, effects, parked, dead, .. } => {
                        Some(Event::Armed { child, at: "there:1".into(), otherwise, effects, parked, dead })
                    }
                    other => Some(other),
                },
                "died at there:1",
            ),
            (
                CONTROL,
                &|event| match event {
                    Event::End(mut end) => {
                        end.effects.values_mut().for_each(|times| *times = 1);
                        Some(Event::End(end))
                    }
                    other => Some(other),
                },
                "0 doubled",
            ),
        ];
        for (stem, spoil, words) in spoils {
            let folder = plant();
            change(folder.path(), stem, spoil);
            let record = recompute(folder.path()).unwrap();
            assert_eq!(record.shows(), Shows::Nothing, "{words}");
            let told = record.outcomes.iter().find(|outcome| outcome.shows() == Shows::Nothing).unwrap();
            assert!(told.words().contains(words), "{}", told.words());
        }
        let folder = plant();
        change(folder.path(), OURS, |event| (!matches!(event, Event::End(_))).then_some(event));
        let record = recompute(folder.path()).unwrap();
        assert_eq!((record.shows(), record.missing.len()), (Shows::Nothing, 1));
        let folder = plant();
        std::fs::remove_file(folder.path().join(format!("{OURS}.sent.jsonl"))).unwrap();
        assert_eq!(recompute(folder.path()).unwrap().missing.len(), 1);
    }
}
