//! The pages of `lab faults`.

use super::chart::{Bar, Chart, Row as ChartRow, Scale, Spread};
use super::cuts::{self, Cuts};
use super::grouped;
use super::kill::version;
use super::page::{Page, Picture, Table};
use super::phases::{self, Lane};
use super::svg::colour;
use crate::checker::Verdict;
use crate::error::Result;
use crate::faults::commit::{aimed, blows};
use crate::faults::outage::OutageRow;
use crate::faults::partition::PartitionRow;
use crate::faults::{self, Command, Measured, Outcome, RowKey, Settings, Told};
use crate::history::{self, Entry};
use std::path::Path;

/// Makes it.
///
/// # Errors
/// The folder holds no run of `lab faults`, or a file of it cannot be read.
pub(super) fn page(folder: &Path) -> Result<Page> {
    let outcome = faults::recompute(folder)?;
    let mut rows: Vec<(&Told, Vec<Vec<Entry>>)> = Vec::new();
    for told in outcome.rows.iter().filter(|told| told.measured.is_some()) {
        let stems = outcome.settings.stems(folder, told.key).into_iter();
        let parts = stems.map(|stem| history::read(&stem.with_extension("jsonl")));
        rows.push((told, parts.collect::<Result<_>>()?));
    }
    let programs = rows.iter().flat_map(|(_, parts)| parts).filter_map(|entries| version(entries)).collect();
    let under = format!("Seed {}.", outcome.settings.seed);
    let (what, title) = match outcome.settings.command {
        Command::Commit { .. } => ("lab faults commit", "Connections cut while they commit"),
        Command::Outage { .. } => ("lab faults outage", "Servers that go away and come back"),
        Command::Partition { .. } => ("lab faults partition", "Consumers cut off from their broker"),
    };
    let pictures = match outcome.settings.command {
        Command::Commit { .. } => vec![cuts_picture(rows, &under)],
        Command::Outage { .. } => {
            let mut pictures = vec![timeline(rows, &under, "the fault")];
            pictures.extend(rates_picture(&outcome, &under));
            pictures
        }
        Command::Partition { .. } => vec![timeline(rows, &under, "cut off, or a broker dead")],
    };
    Ok(Page {
        what,
        title,
        about: about(&outcome.settings),
        conclusion: Some(outcome.conclusion.clone()),
        table: table(&outcome),
        more: vec![],
        notes: notes(&outcome.settings.command),
        published: Table::default(),
        pictures,
        programs,
        settings: serde_json::to_value(&outcome.settings).unwrap_or_default(),
        outcome: serde_json::to_value(&outcome).unwrap_or_default(),
    })
}

fn about(settings: &Settings) -> String {
    match &settings.command {
        Command::Commit { cuts, control_cuts, lanes, .. } => format!(
            "The connection between consumer and database was cut at every byte position of the COMMIT exchange, both \
             ways, closed and reset, and around it: at least {} faults for Handstamp and {} for the control without an \
             inbox, {lanes} consumers side by side.",
            grouped(u64::try_from(*cuts).unwrap_or(u64::MAX)),
            grouped(u64::try_from(*control_cuts).unwrap_or(u64::MAX))
        ),
        Command::Outage { subject, times, .. } => format!(
            "Two consumers ({subject}) worked while a server went away for {} ms and came back; one got SIGTERM in the \
             middle. Rates: a window of {} ms before the fault, and one of {} ms, {} ms after the return.",
            grouped(times.fault_ms),
            grouped(times.before_ms),
            grouped(times.after_ms),
            grouped(times.settle_ms)
        ),
        Command::Partition { subject, rounds, .. } => format!(
            "One of three consumers ({subject}) was cut off from the broker for at least three sessions while it still \
             reached the database, and the leader of three brokers was killed; rounds: {rounds}."
        ),
    }
}

fn notes(command: &Command) -> Vec<&'static str> {
    let judged = "*Doubled* and *lost* come from the producer's log and the database alone. Bytes and connections are \
                  those that went through the lab's proxies: a row without them proves nothing.";
    let more = match command {
        Command::Commit { .. } => {
            "*Committed* and *not committed* count cut transactions with an effect, as the ledger tells afterwards; \
             each must be a tenth of all faults."
        }
        Command::Outage { .. } => {
            "*Of before* is the rate of the window after the return, which begins at most 30 s behind it, in per cent \
             of the rate before; windows below 5 s give no figure. *SIGTERM*: exit code and time of each consumer, the \
             first of them during the fault."
        }
        Command::Partition { .. } => {
            "*Taken over* counts rounds in which every partition went on meanwhile. The control has no inbox."
        }
    };
    vec![judged, more]
}

fn table(outcome: &Outcome) -> Table {
    let names = outcome.rows.iter().map(|told| &told.row.cells).find(|cells| !cells.is_empty());
    let names: Vec<&'static str> = names.into_iter().flatten().map(|(name, _)| *name).collect();
    let row = |told: &Told| {
        let mut cells = vec![told.row.name.clone()];
        cells.extend(told.row.cells.iter().map(|(_, value)| value.clone()));
        cells.resize(names.len() + 1, String::new());
        cells.push(told.row.standing.words().to_owned());
        cells
    };
    let rows = outcome.rows.iter().map(row).collect();
    let header = [&["row"][..], &names[..], &["stands"][..]].concat();
    Table { header, rows }
}

fn cuts_picture(rows: Vec<(&Told, Vec<Vec<Entry>>)>, under: &str) -> Picture {
    let title = "Cut where, and committed or not".to_owned();
    let one = |(told, parts): (&Told, Vec<Vec<Entry>>)| Cuts {
        name: told.row.name.clone(),
        layout: parts.first().map(|entries| aimed(entries).1).unwrap_or_default(),
        blows: parts.iter().flat_map(|entries| blows(entries)).collect(),
    };
    let all: Vec<Cuts> = rows.into_iter().map(one).collect();
    let under = format!("{under} Bars: cuts at neighbouring positions, each panel on its own scale.");
    let svg = cuts::draw(&title, &under, &all);
    Picture { file: "cuts.svg", title, words: cuts::words(&all), svg }
}

fn timeline(rows: Vec<(&Told, Vec<Vec<Entry>>)>, under: &str, fault: &str) -> Picture {
    let title = "What happened in each row".to_owned();
    // Rows of these commands are one part.
    let lanes: Vec<Lane> = rows.into_iter().map(|(told, parts)| lane(told, parts.concat())).collect();
    let svg = phases::draw(&title, under, fault, &lanes);
    Picture { file: "timeline.svg", title, words: phases::words(&lanes), svg }
}

fn harm(verdict: &Verdict) -> String {
    format!("{} doubled, {} lost", grouped(verdict.doubled), grouped(verdict.lost))
}

fn lane(told: &Told, entries: Vec<Entry>) -> Lane {
    let (name, about) = match told.key {
        RowKey::Commit(contender) => (contender.name().to_owned(), String::new()),
        RowKey::Outage(fault, subject) => (fault.describe().to_owned(), subject.name().to_owned()),
        RowKey::Partition(split, subject) => {
            let control = if subject.promises() { "" } else { " (control)" };
            (split.describe().to_owned(), format!("{subject}{control}"))
        }
    };
    let figures = match &told.measured {
        Some(Measured::Outage(row)) => outage_figures(row),
        Some(Measured::Partition(row)) => partition_figures(row),
        Some(Measured::Commit(row)) => [harm(&row.verdict), String::new(), String::new()],
        None => Default::default(),
    };
    Lane { name, about, figures, entries }
}

fn outage_figures(row: &OutageRow) -> [String; 3] {
    let after = row.after_per_s.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}/s"));
    let percent = row.after_percent.map_or_else(String::new, |percent| format!(": {percent:.0} %"));
    let first = row.recovered_after_s.map_or_else(|| "never".to_owned(), |s| format!("after {s:.1} s"));
    [
        harm(&row.verdict),
        format!("{:.0}/s before, {after} after{percent}", row.before_per_s),
        format!("first effect {first}"),
    ]
}

fn partition_figures(row: &PartitionRow) -> [String; 3] {
    [
        harm(&row.verdict),
        format!("taken over {} of {}", row.taken_over, row.rounds),
        format!("{} connections lost", grouped(row.broker.connections_lost)),
    ]
}

fn rates_picture(outcome: &Outcome, under: &str) -> Option<Picture> {
    let one = |value: f64| Spread { median: value, min: value, max: value };
    let rows: Vec<ChartRow> = outcome
        .rows
        .iter()
        .filter_map(|told| match &told.measured {
            Some(Measured::Outage(row)) => Some(row),
            _ => None,
        })
        .map(|row| {
            let bar = |what, colour, rate: f64, more| Bar {
                what,
                colour,
                spread: one(rate),
                reference: None,
                more,
            };
            let percent = row.after_percent.map_or_else(String::new, |percent| format!(" ({percent:.0} %)"));
            ChartRow {
                name: row.fault.describe().to_owned(),
                about: format!("windows of {:.0} s and {:.0} s", row.windows_s.0, row.windows_s.1),
                bars: vec![
                    bar("before", colour::GREEN, row.before_per_s, String::new()),
                    bar("after", colour::BLUE, row.after_per_s.unwrap_or(0.0), percent),
                ],
            }
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let chart = Chart {
        title: "Effects a second before the fault and after the return".to_owned(),
        under: under.to_owned(),
        axis: "effects a second".to_owned(),
        legend: vec![(colour::GREEN, "before".to_owned()), (colour::BLUE, "after the return".to_owned())],
        scale: Scale::Linear,
        digits: 0,
        stacked: false,
        rows,
    };
    let (title, words) = (chart.title.clone(), chart.words());
    Some(Picture { file: "rates.svg", title, words, svg: chart.draw() })
}
