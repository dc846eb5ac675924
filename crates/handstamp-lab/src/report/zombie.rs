//! The page of `lab zombie`.

use super::chart::{Bar, Chart, Row as ChartRow, Scale, Spread};
use super::kill::{BROKER_ENDED, version};
use super::page::{Page, Picture, Table};
use super::svg::colour;
use super::timeline::{self, Lane};
use super::{About, grouped};
use crate::error::Result;
use crate::history;
use crate::reference;
use crate::zombie::{self, Outcome, RowOutcome};
use serde_json::Value;
use std::path::Path;

/// Makes it.
///
/// # Errors
/// The folder holds no run, or a file of it cannot be read.
pub(super) fn page(folder: &Path, about: Option<&About>) -> Result<Page> {
    let mut outcome = zombie::recompute(folder)?;
    if let Some(about) = about.filter(|_| outcome.settings.place.is_empty()) {
        outcome.settings.place.clone_from(&about.servers);
    }
    let (settings, stalls) = (&outcome.settings, &outcome.stalls);
    let mut lanes = Vec::new();
    let mut programs = Vec::new();
    for row in &outcome.rows {
        for run in &row.runs {
            let entries = history::read(&folder.join(row.row.file_stem(run.run)).with_extension("jsonl"))?;
            programs.extend(version(&entries));
            if run.run == 0 {
                let (doubled, lost) = (run.verdict.doubled, run.verdict.lost);
                lanes.push(Lane { name: row.name.clone(), doubled, lost, entries });
            }
        }
    }
    let title = "What happened in the first run of each row".to_owned();
    let under = format!("On {}; seed {}: the same stalls for every row.", settings.place, settings.seed);
    let svg = timeline::draw(&title, &under, &lanes);
    let line = Picture { file: "timeline.svg", title, words: timeline::words(&lanes), svg };
    let mut asked = serde_json::to_value(settings).unwrap_or_default();
    if let (Value::Object(asked), Ok(Value::Object(more))) = (&mut asked, serde_json::to_value(stalls)) {
        asked.extend(more.into_iter().map(|(name, value)| (format!("stalls.{name}"), value)));
    }
    let mut notes = vec![
        "*Stalled doubled* counts the stalled messages that have more than one effect. Evictions, refused late \
         commits, skips and waits are what consumers say of themselves: evidence, never part of the verdict.",
    ];
    notes.extend(outcome.rows.iter().any(|row| row.broker_ended > 0).then_some(BROKER_ENDED));
    Ok(Page {
        what: "lab zombie",
        title: "Consumers that their group has given up on",
        about: format!(
            "{}, {} messages a run, runs: {}; one message in {} stalls for {} ms the first time, with \
             max.poll.interval.ms={}.",
            stalls.describe_groups(),
            grouped(settings.messages),
            settings.runs,
            stalls.one_in,
            stalls.ms,
            stalls.max_poll_interval_ms
        ),
        conclusion: Some(outcome.conclusion.clone()),
        table: table(&outcome),
        more: vec![],
        notes,
        published: Table {
            header: vec!["subject, 50 evictions", "stalled doubled"],
            rows: reference::ZOMBIE
                .iter()
                .map(|(name, count)| vec![(*name).to_owned(), count.to_string()])
                .collect(),
        },
        pictures: vec![harm_picture(&outcome), line],
        programs,
        settings: asked,
        outcome: serde_json::to_value(&outcome).unwrap_or_default(),
    })
}

fn table(outcome: &Outcome) -> Table {
    let header = vec![
        "subject",
        "stalls",
        "evictions",
        "stalled doubled",
        "doubled",
        "lost",
        "late refused",
        "skipped",
        "new owner waited, ms (most)",
    ];
    let row = |row: &RowOutcome| {
        let mut waits: Vec<u64> = row.runs.iter().flat_map(|run| run.held_up_ms.clone()).collect();
        waits.sort_unstable();
        let waited = match (waits.get(waits.len() / 2), waits.last()) {
            (Some(median), Some(most)) => format!("{} ({})", grouped(*median), grouped(*most)),
            _ => "–".to_owned(),
        };
        let sum = |of: &dyn Fn(&zombie::RunOutcome) -> u64| grouped(row.sum(of));
        vec![
            row.name.clone(),
            sum(&|run| run.stalls),
            sum(&|run| run.evictions),
            sum(&|run| run.stalled_doubled),
            sum(&|run| run.verdict.doubled),
            sum(&|run| run.verdict.lost),
            sum(&|run| run.late_refused),
            sum(&|run| run.skipped),
            waited,
        ]
    };
    Table { header, rows: outcome.lines().iter().map(row).collect() }
}

fn harm_picture(outcome: &Outcome) -> Picture {
    let lines = outcome.lines();
    let rows = lines.iter().filter(|row| !row.runs.is_empty()).map(|row| {
        let bar = |what, colour, of: &dyn Fn(&zombie::RunOutcome) -> u64| {
            let crate::kill::Spread { median, min, max } =
                crate::kill::Spread::of(row.runs.iter().map(of).collect());
            let total = row.sum(of);
            let told = total > 0 && row.runs.len() > 1;
            let more = if told { format!(", {} in all", grouped(total)) } else { String::new() };
            Bar { what, colour, spread: Spread::from((median, min, max)), reference: None, more }
        };
        ChartRow {
            name: row.name.clone(),
            about: row.row.subject.describe().to_owned(),
            bars: vec![
                bar("evictions", colour::PURPLE, &|run| run.evictions),
                bar("doubled", colour::VERMILLION, &|run| run.verdict.doubled),
                bar("lost", colour::BLUE, &|run| run.verdict.lost),
            ],
        }
    });
    let chart = Chart {
        title: "Evictions, and what was doubled and lost a run".to_owned(),
        under: format!(
            "Runs: {}. On {}; seed {}.",
            outcome.settings.runs, outcome.settings.place, outcome.settings.seed
        ),
        axis: "in a run".to_owned(),
        legend: vec![
            (colour::PURPLE, "evictions".to_owned()),
            (colour::VERMILLION, "effects doubled".to_owned()),
            (colour::BLUE, "messages lost".to_owned()),
        ],
        scale: Scale::Tens,
        digits: 0,
        stacked: false,
        rows: rows.collect(),
    };
    Picture { file: "doubled-lost.svg", title: chart.title.clone(), words: chart.words(), svg: chart.draw() }
}
