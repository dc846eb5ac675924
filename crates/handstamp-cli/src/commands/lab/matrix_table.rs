//! What a matrix came to: a table or an object, and the report of its folder.

use crate::exit::{CliError, Exit};
use crate::output::{self, table};
use handstamp_lab::matrix::record::Record;
use handstamp_lab::matrix::{Broken, Named, Outcome, Shows, SourceKind, StoreKind};
use serde_json::{Value, json};
use std::path::Path;

/// Prints it, writes its report and says what the program ends with.
///
/// # Errors
/// The report cannot be written.
pub(crate) fn print(record: &Record, folder: &Path, json: bool) -> Result<Exit, CliError> {
    output::print_result(json, &object(record), &shown(record))?;
    // A report names the version of the Kafka client.
    #[cfg(feature = "kafka")]
    super::folder::tell_report(folder)?;
    #[cfg(not(feature = "kafka"))]
    let _ = folder;
    Ok(match record.shows() {
        Shows::AsItMust => Exit::Ok,
        Shows::Violation => Exit::CheckFailed,
        Shows::Nothing => Exit::Inconclusive,
    })
}

fn object(record: &Record) -> Value {
    let settings = &record.settings;
    json!({
        "seed": settings.seed, "kills": settings.kills, "place": settings.place,
        "shows": record.shows(),
        "cells": record.outcomes.iter().map(cell).collect::<Vec<_>>(),
        "missing": record.missing.iter().map(Named::to_string).collect::<Vec<_>>(),
    })
}

fn cell(outcome: &Outcome) -> Value {
    let Named { point, nth, source, store, broken, .. } = &outcome.cell;
    json!({
        "point": point, "nth": nth, "source": source.as_str(), "store": store.as_str(),
        "broken": broken.map(Broken::as_str), "hit": outcome.hit,
        "effects_at_crash": outcome.at_crash.effects, "parked_at_crash": outcome.at_crash.parked,
        "dead_letters_at_crash": outcome.at_crash.dead, "operated": outcome.operated,
        "verdict": outcome.verdict, "bad": outcome.bad.0, "dead_letters": outcome.bad.1,
        "took_ms": outcome.took_ms, "shows": outcome.shows(),
    })
}

/// A row for each point and fault, a column for each source and store: doubled / lost.
fn shown(record: &Record) -> String {
    let outcomes = &record.outcomes;
    let mut columns: Vec<(SourceKind, StoreKind)> =
        record.settings.cells.iter().map(|cell| (cell.source, cell.store)).collect();
    columns.sort_unstable();
    columns.dedup();
    let titles: Vec<String> =
        columns.iter().map(|(source, store)| format!("{} {}", source.as_str(), store.as_str())).collect();
    let mut header = vec!["point", "doubled/lost:"];
    header.extend(titles.iter().map(String::as_str));
    let mut rows: Vec<Vec<String>> = vec![];
    let mut seen = vec![];
    for Named { point, about, broken, .. } in &record.settings.cells {
        if seen.contains(&(point, *broken)) {
            continue;
        }
        seen.push((point, *broken));
        let about = broken.map_or_else(|| about.clone(), |b| format!("control: {}", b.about()));
        let mut row = vec![point.clone(), about];
        row.extend(columns.iter().map(|(source, store)| {
            let here = |cell: &Named| {
                (&cell.point, cell.broken, cell.source, cell.store) == (point, *broken, *source, *store)
            };
            let ended = outcomes.iter().filter(|outcome| here(&outcome.cell)).map(Outcome::short);
            let missing = record.missing.iter().filter(|cell| here(cell)).map(|_| "not run".to_owned());
            let shown: Vec<String> = ended.chain(missing).collect();
            if shown.is_empty() { "–".to_owned() } else { shown.join(" ") }
        }));
        rows.push(row);
    }
    let hit = outcomes.iter().filter(|outcome| outcome.hit).count();
    let as_it_must = outcomes.iter().filter(|outcome| outcome.shows() == Shows::AsItMust).count();
    let all = record.settings.cells.len();
    let mut text = table::plain(&header, rows);
    text.push_str(&format!(
        "\n{hit} of {all} cells died at their point, {as_it_must} of {all} show what they must.\n"
    ));
    if text.contains('–') {
        text.push_str("–: a file is never taken away from its reader.\n");
    }
    text
}
