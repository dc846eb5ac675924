//! What a run leaves in its folder, and what that proves: recomputed, never remembered.
//!
//! ```text
//!  own.json        what was asked for, without a secret
//!  sent.jsonl      the ids that must have one effect, written once the broker had acknowledged them
//!  bad.jsonl       the ids that must have none
//!  history.jsonl   what happened; its last line is what the user's query answered
//! ```

use super::outcome::{Done, Outcome, Seen, Through, Trace, outcome};
use super::plan::Fault;
use super::settings::{CountedBy, Faults, Messages, Settings};
use crate::error::Result;
use crate::history::{self, Entry, Event, end_state};
use crate::json_file;
use crate::workload::read_sent;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Settings of a run in its folder.
pub const SETTINGS_FILE: &str = "own.json";
/// The history of a run.
pub const HISTORY_FILE: &str = "history.jsonl";
/// The producer's log.
pub(super) const SENT_FILE: &str = "sent.jsonl";
/// Ids of bad messages.
pub(super) const BAD_FILE: &str = "bad.jsonl";

/// What was asked for. Values of the environment and of the broker's options are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Decides messages and schedule.
    pub seed: u64,
    /// The program and its arguments, words in braces as they were written.
    pub program: Vec<String>,
    /// How many copies.
    pub copies: u32,
    /// Broker and database.
    pub place: String,
    /// What was sent.
    pub messages: Messages,
    /// What was done.
    pub faults: Faults,
    /// How effects were counted.
    pub counted_by: CountedBy,
    /// Names of the variables that were added.
    pub env: Vec<String>,
    /// Names of the options that the lab's own clients had.
    pub broker_options: Vec<String>,
    /// Longest time without an effect, in milliseconds.
    pub patience_ms: u64,
    /// Time without an effect after the last commit, in milliseconds.
    pub quiet_ms: u64,
}

impl Asked {
    pub(super) fn of(settings: &Settings, place: &str) -> Self {
        let names = |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect();
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            seed: settings.seed,
            program: settings.program.clone(),
            copies: settings.copies,
            place: place.to_owned(),
            messages: settings.messages.clone(),
            faults: settings.faults.clone(),
            counted_by: settings.counted_by.clone(),
            env: names(&settings.env),
            broker_options: names(&settings.broker.options),
            patience_ms: ms(settings.patience),
            quiet_ms: ms(settings.quiet),
        }
    }

    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        json_file::save(folder, SETTINGS_FILE, self)
    }

    /// Reads them from a folder.
    ///
    /// # Errors
    /// `Usage` when the folder holds no run of a user's program.
    pub fn load(folder: &Path) -> Result<Self> {
        json_file::load(folder, SETTINGS_FILE, "run of a program")
    }
}

/// What a folder proves.
///
/// # Errors
/// It holds no run, or a file of it cannot be read.
pub fn recompute(folder: &Path) -> Result<Outcome> {
    let asked = Asked::load(folder)?;
    let read = |file: &str| {
        let path = folder.join(file);
        // One that was interrupted early has not written them yet.
        if path.is_file() { read_sent(&path) } else { Ok(Vec::new()) }
    };
    let (good, bad) = (read(SENT_FILE)?, read(BAD_FILE)?);
    let entries = history::read(&folder.join(HISTORY_FILE))?;
    let mut seen = seen(&asked, &entries);
    let effects = match end_state(&entries) {
        Some(end) => end.effects.clone(),
        None => {
            seen.unfinished = Some("the run did not come to its end".to_owned());
            std::collections::BTreeMap::new()
        }
    };
    let bad = bad.into_iter().map(|credit| credit.id).collect();
    Ok(outcome(&good, &bad, effects, seen))
}

fn seen(asked: &Asked, entries: &[Entry]) -> Seen {
    let mut seen = Seen { seed: asked.seed, asked: asked.faults.asked(), ..Seen::default() };
    for entry in entries {
        match &entry.event {
            Event::Sent { records, twice, reordered } => seen.records = [*records, *twice, *reordered],
            Event::Dealt { began_ms, copy, fault, for_ms, left, counts } => {
                let fault = Fault::from_name(fault, *for_ms);
                let (at_ms, copy, left, counts) = (*began_ms, *copy, *left, *counts);
                seen.schedule.extend(fault.map(|fault| Done { at_ms, copy, fault, left, counts }));
            }
            Event::Ended { .. } => seen.ended_by_itself += 1,
            Event::Note { text } => seen.notes.push(text.clone()),
            Event::NeverBegan { why } => seen.unfinished = Some(why.clone()),
            Event::Through { wire, up, down, connections, cut } => {
                let (wire, up, down) = (*wire, *up, *down);
                seen.through.push(Through { wire, up, down, connections: *connections, cut: *cut });
            }
            Event::Traced { id, sent, seen_ms, before_ms } => {
                let (id, sent, seen_ms) = (id.clone(), *sent, seen_ms.clone());
                seen.traces.push(Trace { id, sent, seen_ms, before_ms: *before_ms, fault: None });
            }
            _ => {}
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::outcome::Conclusion;
    use super::super::settings::tests::settings;
    use super::*;
    use crate::checker::EndState;
    use crate::history::Wire;
    use std::fmt::Write as _;

    /// A run in which `m3` has two effects and `m4` none, with a kill, a stop and both kinds of cuts.
    pub(crate) fn plant() -> tempfile::TempDir {
        plant_with(&|_| {})
    }

    fn plant_with(change: &dyn Fn(&mut EndState)) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings();
        settings.faults = Faults { kills: 1, stops: 1, cuts: 1, broker_cuts: 1, ..settings.faults };
        Asked::of(&settings, "Kafka; PostgreSQL 18.6").save(folder.path()).unwrap();
        let line = |id: &str| format!(r#"{{"id":"{id}","account":0,"amount":0}}"#) + "\n";
        let sent: String = (0..100).map(|n| line(&format!("m{n}"))).collect();
        std::fs::write(folder.path().join(SENT_FILE), sent).unwrap();
        std::fs::write(folder.path().join(BAD_FILE), line("bad")).unwrap();
        let mut end = EndState::default();
        for n in (0..100).filter(|n| *n != 4) {
            end.effects.insert(format!("m{n}"), if n == 3 { 2 } else { 1 });
        }
        change(&mut end);
        let mut lines = String::new();
        for (at_ms, event) in events(end) {
            writeln!(lines, "{}", serde_json::to_string(&Entry { at_ms, event }).unwrap()).unwrap();
        }
        std::fs::write(folder.path().join(HISTORY_FILE), lines).unwrap();
        folder
    }

    fn events(end: EndState) -> Vec<(u64, Event)> {
        let dealt = |began_ms, fault: &str, for_ms, left| Event::Dealt {
            began_ms,
            copy: 0,
            fault: fault.into(),
            for_ms,
            left,
            counts: true,
        };
        let through = |wire| Event::Through { wire, up: 4_000, down: 90_000, connections: 5, cut: 3 };
        let version = "0.0.9".to_owned();
        vec![
            (0, Event::Run { subject: "python b.py".into(), run: 0, seed: 7, messages: 100, version }),
            (5, Event::Sent { records: 105, twice: 5, reordered: 2 }),
            (10, Event::Started { child: 0, pid: 70 }),
            (10, Event::Started { child: 1, pid: 71 }),
            (900, Event::Killed { child: 0, left: 80, counts: true, point: None }),
            (901, Event::Started { child: 2, pid: 72 }),
            (902, dealt(900, "kill", None, 80)),
            (1900, Event::Stopped { child: 1 }),
            (3900, Event::Continued { child: 1 }),
            (3901, dealt(1900, "stop", Some(2000), 60)),
            (4500, Event::Cut { connections: 2, wire: Wire::Database }),
            (4500, dealt(4500, "cut", None, 40)),
            (5500, Event::Cut { connections: 4, wire: Wire::Broker }),
            (5500, dealt(5500, "broker_cut", None, 30)),
            (6000, Event::Drained),
            (6100, Event::Repeated { times_ms: vec![2000] }),
            (6100, Event::Traced { id: "m3".into(), sent: 1, seen_ms: vec![850, 2000], before_ms: None }),
            (6100, Event::Traced { id: "m4".into(), sent: 1, seen_ms: vec![], before_ms: Some(800) }),
            (6100, through(Wire::Database)),
            (6100, through(Wire::Broker)),
            (6100, Event::End(end)),
        ]
    }

    #[test]
    fn a_folder_tells_what_doubled_what_is_missing_and_what_led_there() {
        let folder = plant();
        let outcome = recompute(folder.path()).unwrap();
        assert_eq!((outcome.good, outcome.bad, outcome.records), (100, 1, 105));
        assert_eq!((outcome.doubled, outcome.missing), (1, 1));
        assert_eq!(outcome.doubled_ids, [("m3".to_owned(), 2)]);
        assert_eq!(outcome.missing_ids, ["m4"]);
        let faults: Vec<Fault> = outcome.schedule.iter().map(|done| done.fault).collect();
        assert_eq!(faults, [Fault::Kill, Fault::Stop { for_ms: 2000 }, Fault::Cut, Fault::CutBroker]);
        assert_eq!(outcome.traces.iter().map(|trace| trace.fault).collect::<Vec<_>>(), [Some(0), Some(0)]);
        assert_eq!(outcome.through.len(), 2);
        assert!(matches!(&outcome.conclusion, Conclusion::Violated(why) if why.len() == 2));
    }

    #[test]
    fn a_clean_folder_is_kept_and_one_without_its_end_proves_nothing() {
        let folder = plant_with(&|end| {
            end.effects.insert("m3".into(), 1);
            end.effects.insert("m4".into(), 1);
        });
        assert_eq!(recompute(folder.path()).unwrap().conclusion, Conclusion::Kept);
        let path = folder.path().join(HISTORY_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let cut = text.trim_end().rsplit_once('\n').unwrap().0;
        std::fs::write(&path, cut).unwrap();
        let unfinished = recompute(folder.path()).unwrap().conclusion;
        assert!(matches!(&unfinished, Conclusion::Inconclusive(why) if why[0].contains("its end")));
    }

    #[test]
    fn the_folder_holds_no_secret() {
        let folder = plant();
        let text = std::fs::read_to_string(folder.path().join(SETTINGS_FILE)).unwrap();
        assert!(text.contains("PASSWORD") && text.contains("sasl.password"), "{text}");
        assert!(!text.contains("secret-of"), "{text}");
        assert_eq!(Asked::load(folder.path()).unwrap().faults.broker_cuts, 1);
    }
}
