//! The page of `lab own`.

use super::grouped;
use super::kill::version;
use super::page::{Page, Picture, Table};
use super::timeline::{self, Lane};
use crate::error::Result;
use crate::history;
use crate::own::record::HISTORY_FILE;
use crate::own::{self, Asked, Conclusion, Done, Fault, Outcome, Trace};
use serde_json::Value;
use std::path::Path;

/// Longest name of a lane.
const NAME_MAX: usize = 26;

/// Makes it.
///
/// # Errors
/// The folder holds no run, or a file of it cannot be read.
pub(super) fn page(folder: &Path) -> Result<Page> {
    let (asked, outcome) = (Asked::load(folder)?, own::recompute(folder)?);
    let entries = history::read(&folder.join(HISTORY_FILE))?;
    let programs = version(&entries).into_iter().collect();
    let lane =
        Lane { name: lane_name(&asked.program), doubled: outcome.doubled, lost: outcome.missing, entries };
    let title = "What happened when".to_owned();
    let under = format!("On {}; seed {}.", asked.place, asked.seed);
    let lanes = [lane];
    let svg = timeline::draw(&title, &under, &lanes);
    let picture = Picture { file: "timeline.svg", title, words: timeline::words(&lanes), svg };
    Ok(Page {
        what: "lab own",
        title: "A consumer of one's own in the crash lab",
        about: about(&asked, &outcome),
        conclusion: None,
        table: table(&asked, &outcome),
        more: vec![
            ("The first doubled", doubled(&outcome)),
            ("The first missing", missing(&outcome)),
            ("The schedule", schedule(&outcome)),
            ("What went through the lab's proxies", through(&outcome)),
        ],
        notes: vec![
            "*Doubled* is the sum of (effects of an id − 1), *missing* counts ids that were sent and have no effect: both \
             from the producer's log and the effects that the query or command answered, and from nothing else.",
            "Times are those at which the lab saw an effect, ten looks a second; the fault named beside an id is the one \
             that these times point to: evidence, never part of the verdict.",
        ],
        published: Table::default(),
        pictures: vec![picture],
        programs,
        settings: settings(&asked),
        outcome: serde_json::to_value(&outcome).unwrap_or_default(),
    })
}

/// Every setting by its name in the file.
fn settings(asked: &Asked) -> Value {
    let mut flat = serde_json::Map::new();
    for (name, value) in
        serde_json::to_value(asked).ok().as_ref().and_then(Value::as_object).into_iter().flatten()
    {
        match value {
            Value::Object(inner) => {
                flat.extend(inner.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())));
            }
            value => _ = flat.insert(name.clone(), value.clone()),
        }
    }
    Value::Object(flat)
}

/// The program, with the script that an interpreter runs, short enough for a picture.
fn lane_name(program: &[String]) -> String {
    let base = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    let script = program.get(1).filter(|word| !word.starts_with('-') && !word.contains('{'));
    let name = program.first().into_iter().chain(script).map(base).collect::<Vec<_>>().join(" ");
    if name.chars().count() <= NAME_MAX {
        return name;
    }
    name.chars().take(NAME_MAX - 1).chain(['…']).collect()
}

fn about(asked: &Asked, outcome: &Outcome) -> String {
    let faults = &asked.faults;
    let mut text = format!(
        "`{}`: {} messages in {} records ({} sent twice, {} out of order, {} bad) to {} {}, under {} kills, {} stops, {} \
         cuts from the database and {} cuts from the broker.\n\n",
        asked.program.join(" ").replace('`', "'"),
        grouped(outcome.good + outcome.bad),
        grouped(outcome.records),
        grouped(outcome.duplicates),
        grouped(outcome.reordered),
        grouped(outcome.bad),
        asked.copies,
        if asked.copies == 1 { "copy" } else { "copies" },
        faults.kills,
        faults.stops,
        faults.cuts,
        faults.broker_cuts
    );
    let (sentence, why): (&str, &[String]) = match &outcome.conclusion {
        Conclusion::Kept => ("**Kept:** every good message had its effect once, every bad one none.", &[]),
        Conclusion::Violated(why) => ("**VIOLATED:**", why),
        Conclusion::Inconclusive(why) => ("**Inconclusive:** this run proves nothing.", why),
    };
    text.push_str(sentence);
    for reason in why.iter().chain(&outcome.notes) {
        let mut lines = reason.lines();
        text.push_str(&format!("\n* {}", lines.next().unwrap_or_default()));
        for line in lines {
            text.push_str(&format!("\n      {line}"));
        }
    }
    text
}

fn table(asked: &Asked, outcome: &Outcome) -> Table {
    let [kills, stops, cuts, broker_cuts] = asked.faults.asked();
    let count = |of: fn(&Fault) -> bool, all: u32| {
        let done = outcome.schedule.iter().filter(|done| of(&done.fault));
        format!("{} of {all}", done.filter(|done| done.counts).count())
    };
    let row = |what: &str, figure: String| vec![what.to_owned(), figure];
    Table {
        header: vec!["", "figure"],
        rows: vec![
            row("effects doubled", grouped(outcome.doubled)),
            row("doubled ids that were sent once", grouped(outcome.doubled_sent_once)),
            row("doubled ids that were sent again", grouped(outcome.doubled_sent_again)),
            row("messages missing", grouped(outcome.missing)),
            row("bad messages with an effect", grouped(outcome.bad_applied)),
            row("effects of ids that nobody sent", grouped(outcome.unsent)),
            row("kills that count", count(|fault| *fault == Fault::Kill, kills)),
            row("stops that count", count(|fault| matches!(fault, Fault::Stop { .. }), stops)),
            row("cuts from the database that count", count(|fault| *fault == Fault::Cut, cuts)),
            row("cuts from the broker that count", count(|fault| *fault == Fault::CutBroker, broker_cuts)),
            row("copies that ended by themselves", grouped(outcome.ended_by_itself.into())),
        ],
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

fn fault_words(done: &Done) -> String {
    match done.fault {
        Fault::Kill => format!("copy {} killed", done.copy),
        Fault::Stop { for_ms } => format!("copy {} stopped for {}", done.copy, seconds(for_ms)),
        Fault::Cut => "connections to the database cut".to_owned(),
        Fault::CutBroker => "connections to the broker cut".to_owned(),
    }
}

/// The fault that led to an id, with its number in the schedule.
fn led_there(outcome: &Outcome, trace: Option<&Trace>) -> String {
    let found = trace.and_then(|trace| trace.fault).and_then(|at| Some((at, outcome.schedule.get(at)?)));
    let told =
        found.map(|(at, done)| format!("{}: at {} {}", at + 1, seconds(done.at_ms), fault_words(done)));
    told.unwrap_or_else(|| "none".to_owned())
}

fn trace<'o>(outcome: &'o Outcome, id: &str) -> Option<&'o Trace> {
    outcome.traces.iter().find(|trace| trace.id == id)
}

fn doubled(outcome: &Outcome) -> Table {
    let row = |(id, times): &(String, u64)| {
        let trace = trace(outcome, id);
        let seen: Vec<String> =
            trace.into_iter().flat_map(|trace| &trace.seen_ms).map(|ms| seconds(*ms)).collect();
        let sent = trace.map_or_else(|| "?".to_owned(), |trace| trace.sent.to_string());
        vec![format!("`{id}`"), times.to_string(), sent, seen.join(", "), led_there(outcome, trace)]
    };
    Table {
        header: vec!["id", "effects", "sent", "seen at", "the fault between"],
        rows: outcome.doubled_ids.iter().map(row).collect(),
    }
}

fn missing(outcome: &Outcome) -> Table {
    let row = |id: &String| {
        let trace = trace(outcome, id);
        let before = trace.and_then(|trace| trace.before_ms);
        let fault = match trace.and_then(|trace| trace.fault) {
            Some(_) => led_there(outcome, trace),
            None => "none that times point to".to_owned(),
        };
        vec![format!("`{id}`"), before.map_or_else(|| "not seen".to_owned(), seconds), fault]
    };
    Table {
        header: vec!["id", "the message before it had its effect at", "the fault after that"],
        rows: outcome.missing_ids.iter().map(row).collect(),
    }
}

fn schedule(outcome: &Outcome) -> Table {
    let row = |(at, done): (usize, &Done)| {
        let counts = if done.counts { "yes" } else { "no" };
        vec![
            (at + 1).to_string(),
            seconds(done.at_ms),
            fault_words(done),
            grouped(done.left),
            counts.to_owned(),
        ]
    };
    Table {
        header: vec!["", "at", "what", "messages left", "counts"],
        rows: outcome.schedule.iter().enumerate().map(row).collect(),
    }
}

fn through(outcome: &Outcome) -> Table {
    let row = |through: &own::Through| {
        vec![
            through.wire.as_str().to_owned(),
            grouped(through.up),
            grouped(through.down),
            grouped(through.connections),
            grouped(through.cut),
        ]
    };
    Table {
        header: vec!["before the", "bytes to it", "bytes from it", "connections", "cut"],
        rows: outcome.through.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_how_many_faults_is_what_was_asked_for_not_what_came() {
        let folder = crate::own::record::tests::plant();
        let (mut asked, outcome) =
            (Asked::load(folder.path()).unwrap(), own::recompute(folder.path()).unwrap());
        asked.faults.kills = 3;
        let rows = table(&asked, &outcome).rows;
        let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap()[1].clone();
        assert_eq!(row("kills that count"), "1 of 3");
        assert_eq!(row("stops that count"), "1 of 1");
        assert_eq!(row("doubled ids that were sent once"), "1");
    }

    #[test]
    fn a_lane_has_the_name_of_the_program_and_fits() {
        let name =
            |words: &[&str]| lane_name(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(name(&["venv/bin/python", "/somewhere/b.py", "--x"]), "python b.py");
        assert_eq!(name(&["./consumer", "{topic}"]), "consumer");
        assert_eq!(name(&["./consumer", "--topic", "{topic}"]), "consumer");
        assert_eq!(name(&["a-very-long-name-of-a-program-of-mine"]).chars().count(), NAME_MAX);
    }
}
