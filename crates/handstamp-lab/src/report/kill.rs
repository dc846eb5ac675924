//! The page of `lab kill`.

use super::chart::{Bar, Chart, Row as ChartRow, Scale, Spread, fixed};
use super::page::{Page, Picture, Table};
use super::svg::colour;
use super::timeline::{self, Lane};
use super::{grouped, measure};
use crate::error::Result;
use crate::history::{self, Event};
use crate::kill::{self, Outcome, RowKind, RowOutcome, Settings};
use crate::reference;
use std::path::Path;

/// Kills of each run of the published lab.
const PUBLISHED_KILLS: u32 = 20;

/// Said where it happened.
pub(super) const BROKER_ENDED: &str = "The broker inside the lab ended by itself meanwhile: what ran on it was run again \
     from its beginning, or is missing; `outcome` in report.json counts it for each row.";

/// Makes it.
///
/// # Errors
/// The folder holds no run, or a file of it cannot be read.
pub(super) fn page(folder: &Path) -> Result<Page> {
    let outcome = kill::recompute(folder)?;
    let settings = &outcome.settings;
    let mut lanes = Vec::new();
    let mut programs = Vec::new();
    for row in &outcome.rows {
        for run in &row.runs {
            let path = folder.join(row.row.file_stem(run.run)).with_extension("jsonl");
            let entries = history::read(&path)?;
            programs.extend(version(&entries));
            if run.run == 0 {
                let (doubled, lost) = (run.verdict.doubled, run.verdict.lost);
                lanes.push(Lane { name: row.name.clone(), doubled, lost, entries });
            }
        }
    }
    let mut pictures = vec![harm_picture(&outcome), timeline_picture(settings, &lanes)];
    pictures.extend(rates_picture(&outcome));
    let mut notes = vec![
        "*Doubled* is the sum of (effects of an id − 1), *lost* counts ids that were sent and have no effect: both \
         from the producer's log and the database alone. Median (least–most) of a run, and totals.",
        "*Kills* counts those that left enough messages to mean something. *Skipped* and *late refused* are what \
         consumers say of themselves: evidence, never part of the verdict.",
    ];
    notes.extend(outcome.rows.iter().any(|row| row.broker_ended > 0).then_some(BROKER_ENDED));
    Ok(Page {
        what: "lab kill",
        title: "Consumers killed on purpose",
        about: about(settings),
        conclusion: Some(outcome.conclusion.clone()),
        table: table(&outcome),
        more: vec![],
        notes,
        published: published(),
        pictures,
        programs,
        settings: serde_json::to_value(settings).unwrap_or_default(),
        outcome: serde_json::to_value(&outcome).unwrap_or_default(),
    })
}

/// Which program wrote a history.
pub(super) fn version(entries: &[history::Entry]) -> Option<String> {
    entries.iter().find_map(|entry| match &entry.event {
        Event::Run { version, .. } => Some(version.clone()),
        _ => None,
    })
}

fn about(settings: &Settings) -> String {
    let (from, to) = settings.kill_within_ms;
    format!(
        "Each consumer was killed (SIGKILL) {} times a run, {from} to {to} ms after its first effect, and started \
         again; a last one worked until everything was settled. {} {} of at least {} messages, one schedule for all.",
        settings.kills,
        settings.runs,
        if settings.runs == 1 { "run" } else { "runs" },
        grouped(settings.messages)
    )
}

fn spread(row: &RowOutcome, of: impl Fn(&crate::checker::Verdict) -> u64) -> Spread {
    let kill::Spread { median, min, max } = row.spread(of);
    (median, min, max).into()
}

fn table(outcome: &Outcome) -> Table {
    let header = vec![
        "subject",
        "doubled a run",
        "lost a run",
        "doubled in all",
        "lost in all",
        "kills",
        "messages/s",
        "skipped",
        "late refused",
    ];
    let row = |row: &RowOutcome| {
        if row.runs.is_empty() {
            let mut cells = vec![row.name.clone(), "not run".to_owned()];
            cells.resize(9, String::new());
            return cells;
        }
        let sum = |of: &dyn Fn(&kill::RunOutcome) -> u64| row.runs.iter().map(of).sum::<u64>();
        let (kills, counted) = (sum(&|run| u64::from(run.kills)), sum(&|run| u64::from(run.kills_counted)));
        vec![
            row.name.clone(),
            spread(row, |verdict| verdict.doubled).words(0),
            spread(row, |verdict| verdict.lost).words(0),
            grouped(row.doubled()),
            grouped(row.lost()),
            if kills == counted { grouped(kills) } else { format!("{counted} of {kills}") },
            row.per_second.map_or_else(|| "–".to_owned(), |rate| fixed(rate, 1)),
            grouped(sum(&|run| run.skipped)),
            grouped(sum(&|run| run.commits_refused)),
        ]
    };
    Table { header, rows: outcome.rows.iter().map(row).collect() }
}

fn published() -> Table {
    let rows = reference::KILL.iter().map(|figure| {
        let (doubled, lost) = (Spread::from(figure.doubled), Spread::from(figure.lost));
        vec![figure.subject.to_owned(), doubled.words(0), lost.words(0)]
    });
    Table {
        header: vec!["subject, 20 kills a run, 5 runs", "doubled a run", "lost a run"],
        rows: rows.collect(),
    }
}

fn harm_picture(outcome: &Outcome) -> Picture {
    let comparable = outcome.settings.kills == PUBLISHED_KILLS;
    let rows = outcome.rows.iter().filter(|row| !row.runs.is_empty()).map(|row| {
        let figure =
            comparable.then(|| reference::KILL.iter().find(|figure| figure.subject == row.name)).flatten();
        let bar = |what, colour, spread, reference: Option<(u64, u64, u64)>| Bar {
            what,
            colour,
            spread,
            reference: reference.map(Spread::from),
            more: String::new(),
        };
        let doubled = spread(row, |verdict| verdict.doubled);
        let lost = spread(row, |verdict| verdict.lost);
        ChartRow {
            name: row.name.clone(),
            about: match row.row.kind {
                RowKind::Random => row.row.subject.describe().to_owned(),
                RowKind::Held => "killed exactly there".to_owned(),
                RowKind::Resend => "some events sent twice".to_owned(),
            },
            bars: vec![
                bar("doubled", colour::VERMILLION, doubled, figure.map(|figure| figure.doubled)),
                bar("lost", colour::BLUE, lost, figure.map(|figure| figure.lost)),
            ],
        }
    });
    let several = if outcome.settings.runs > 1 { ": median, and the range from least to most" } else { "" };
    let chart = Chart {
        title: "Doubled and lost a run".to_owned(),
        under: format!(
            "{} kills a run, runs: {}{several}. On {}; seed {}.",
            outcome.settings.kills, outcome.settings.runs, outcome.settings.place, outcome.settings.seed
        ),
        axis: "messages a run; right of 1, each step is about ten times the one before".to_owned(),
        legend: vec![
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

fn timeline_picture(settings: &Settings, lanes: &[Lane]) -> Picture {
    let title = "What happened in the first run of each row".to_owned();
    let under = format!("On {}; seed {}: the same kills for every row.", settings.place, settings.seed);
    let svg = timeline::draw(&title, &under, lanes);
    Picture { file: "timeline.svg", title, words: timeline::words(lanes), svg }
}

fn rates_picture(outcome: &Outcome) -> Option<Picture> {
    let rates: Vec<(String, String, Vec<f64>)> = outcome
        .rows
        .iter()
        .filter_map(|row| {
            Some((row.name.clone(), row.row.subject.describe().to_owned(), vec![row.per_second?]))
        })
        .collect();
    let under = format!(
        "One consumer, {} messages measured once, no work beside the database. On {}.",
        grouped(outcome.settings.throughput_messages),
        outcome.settings.place
    );
    (!rates.is_empty()).then(|| measure::rates_picture(&rates, under))
}
