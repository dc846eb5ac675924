//! The page of `lab matrix`.

use super::grid::{Grid, Row, Stands};
use super::grouped;
use super::kill::version;
use super::page::{Page, Picture, Table};
use crate::error::Result;
use crate::history;
use crate::matrix::record::{self, Record};
use crate::matrix::{Broken, Named, Outcome, Shows, SourceKind, StoreKind};
use std::path::Path;

/// Makes it.
///
/// # Errors
/// The folder holds no matrix, or a file of it cannot be read.
pub(super) fn page(folder: &Path) -> Result<Page> {
    let record = record::recompute(folder)?;
    let mut programs = Vec::new();
    for (number, cell) in record.settings.cells.iter().enumerate() {
        let path = record::history_of(folder, number, cell);
        if path.is_file() {
            programs.extend(version(&history::read(&path)?));
        }
    }
    let settings = &record.settings;
    let mut shown = serde_json::to_value(settings).unwrap_or_default();
    if let Some(shown) = shown.as_object_mut() {
        // The table names them all.
        shown.insert("cells".to_owned(), settings.cells.len().into());
    }
    Ok(Page {
        what: "lab matrix",
        title: "The program, ended at every crash point",
        about: about(&record),
        conclusion: None,
        table: table(&record),
        more: vec![],
        notes: vec![
            "Doubled/lost: *doubled* is the sum of (effects of an id − 1), *lost* counts ids that were sent and have \
             no effect, both from what was sent and the database alone. A cell counts only if the process ended by \
             SIGKILL and left a mark that names the point.",
            "In the rows of an operator's commands the process is `dlq redrive` or `dlq discard`; each message that they \
             were to work on has one line in the audit.",
            "–: a file is never taken away from its reader. *Effects at the crash* are those that were durable when \
             the process was dead, in the order of the columns.",
        ],
        published: Table::default(),
        pictures: vec![picture(&record)],
        programs,
        settings: shown,
        outcome: serde_json::to_value(&record).unwrap_or_default(),
    })
}

fn about(record: &Record) -> String {
    let settings = &record.settings;
    let count = |shows| record.outcomes.iter().filter(|outcome| outcome.shows() == shows).count();
    let controls = settings.cells.iter().filter(|cell| cell.broken.is_some()).count();
    let mut text = format!(
        "{} cells, of which {controls} are controls that are broken on purpose and must do harm. In each the process \
         died {} at its point (SIGKILL), was started again and left alone until nothing was left.\n\n",
        settings.cells.len(),
        if settings.kills == 1 {
            "once".to_owned()
        } else {
            format!("{} times", grouped(settings.kills.into()))
        },
    );
    text.push_str(&match record.shows() {
        Shows::AsItMust if controls == 0 => {
            "**Kept:** nothing doubled, nothing got lost; no control was run beside it.".to_owned()
        }
        Shows::AsItMust => {
            "**Kept:** every point was hit, nothing doubled, nothing got lost, and the controls did harm."
                .to_owned()
        }
        Shows::Violation => format!("**VIOLATED:** in {} cells.", count(Shows::Violation)),
        Shows::Nothing => format!(
            "**Inconclusive:** {} cells prove nothing, {} did not come to their end.",
            count(Shows::Nothing),
            record.missing.len()
        ),
    });
    for outcome in record.outcomes.iter().filter(|outcome| outcome.shows() != Shows::AsItMust) {
        let words = outcome.words();
        text.push_str(&format!("\n* {}: {}", outcome.cell, words.lines().next().unwrap_or_default()));
    }
    for cell in &record.missing {
        text.push_str(&format!("\n* {cell}: not run to its end"));
    }
    text
}

/// Columns there are, in order.
fn columns(record: &Record) -> Vec<(SourceKind, StoreKind)> {
    let mut columns: Vec<_> = record.settings.cells.iter().map(|cell| (cell.source, cell.store)).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

fn column_name(column: (SourceKind, StoreKind)) -> &'static str {
    match column {
        (SourceKind::File, StoreKind::Sqlite) => "file, SQLite",
        (SourceKind::File, StoreKind::Postgres) => "file, Postgres",
        (SourceKind::Kafka, StoreKind::Sqlite) => "Kafka, SQLite",
        (SourceKind::Kafka, StoreKind::Postgres) => "Kafka, Postgres",
    }
}

/// A row: cells of one point (or control) that differ in source and store alone.
struct Line<'r> {
    point: &'r str,
    about: String,
    broken: Option<Broken>,
    /// For each column, the cell and what became of it.
    cells: Vec<Option<(&'r Named, Option<&'r Outcome>)>>,
}

fn lines(record: &Record) -> Vec<Line<'_>> {
    let columns = columns(record);
    let mut lines: Vec<Line<'_>> = Vec::new();
    for cell in &record.settings.cells {
        let at = columns.iter().position(|column| *column == (cell.source, cell.store)).unwrap_or(0);
        let ended = record.outcomes.iter().find(|outcome| outcome.cell == *cell);
        // The same point asked for at several times has several rows.
        let free = lines
            .iter_mut()
            .find(|line| line.point == cell.point && line.broken == cell.broken && line.cells[at].is_none());
        if let Some(line) = free {
            line.cells[at] = Some((cell, ended));
            continue;
        }
        let about = match cell.broken {
            Some(broken) => format!("control: {}", broken.about()),
            None => cell.about.clone(),
        };
        let mut cells = vec![None; columns.len()];
        cells[at] = Some((cell, ended));
        lines.push(Line { point: &cell.point, about, broken: cell.broken, cells });
    }
    lines
}

fn letters(cell: Option<(&Named, Option<&Outcome>)>) -> String {
    match cell {
        None => "–".to_owned(),
        Some((_, None)) => "not run".to_owned(),
        Some((_, Some(outcome))) => outcome.short(),
    }
}

fn table(record: &Record) -> Table {
    let mut header = vec!["point", "what is done, what is not"];
    header.extend(columns(record).into_iter().map(column_name));
    header.push("effects at the crash");
    let row = |line: &Line<'_>| {
        let mut row = vec![format!("`{}`", line.point), line.about.clone()];
        row.extend(line.cells.iter().map(|cell| letters(*cell)));
        let effects = line.cells.iter().map(|cell| match cell {
            Some((_, Some(outcome))) => outcome.at_crash.effects.to_string(),
            _ => "–".to_owned(),
        });
        row.push(effects.collect::<Vec<_>>().join(", "));
        row
    };
    Table { header, rows: lines(record).iter().map(row).collect() }
}

fn picture(record: &Record) -> Picture {
    let stands = |cell: &Option<(&Named, Option<&Outcome>)>| match cell {
        None => Stands::None,
        Some((_, None)) => Stands::Nothing,
        Some((cell, Some(outcome))) => match outcome.shows() {
            Shows::Violation => Stands::Violated,
            Shows::Nothing => Stands::Nothing,
            Shows::AsItMust if cell.broken.is_some() => Stands::Control,
            Shows::AsItMust => Stands::Held,
        },
    };
    let row = |line: &Line<'_>| Row {
        name: line.point.to_owned(),
        about: line.about.clone(),
        cells: line.cells.iter().map(|cell| (letters(*cell), stands(cell))).collect(),
    };
    let grid = Grid {
        title: "Doubled/lost at every crash point".to_owned(),
        under: format!("On {}; seed {}.", record.settings.place, record.settings.seed),
        columns: columns(record).into_iter().map(|column| column_name(column).to_owned()).collect(),
        rows: lines(record).iter().map(row).collect(),
    };
    Picture { file: "matrix.svg", title: grid.title.clone(), words: grid.words(), svg: grid.draw() }
}
