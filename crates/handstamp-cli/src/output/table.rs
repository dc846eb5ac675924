//! Tables for people.

use super::width;
use comfy_table::{ContentArrangement, Table, presets};
use handstamp_core::{Counts, Report, StopReason};

/// Columns between two cells.
const GAP: usize = 2;
/// The last column is never narrower than this.
const LAST_MIN: usize = 24;

/// A plain table with a header line.
pub(crate) fn plain(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    format!("{}\n", lines.join("\n"))
}

/// A plain table whose last column is wrapped to what is left of so many columns.
pub(crate) fn fitted(header: &[&str], mut rows: Vec<Vec<String>>, columns: usize) -> String {
    let before_last = header.len().saturating_sub(1);
    let widest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| width::width_of(cell));
        cells.chain([width::width_of(header[at])]).max().unwrap_or_default()
    };
    let used: usize = (0..before_last).map(|at| widest(at) + GAP).sum();
    let room = columns.saturating_sub(used + 1).max(LAST_MIN);
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(before_last)) {
        *cell = width::wrap(cell, room).join("\n");
    }
    plain(header, rows)
}

/// A table in which what needs more room stands below each row's cells. Their lines are at most so wide; what is
/// below fits by itself and ends with a line's end.
pub(crate) fn with_below(
    header: &[&str],
    header_below: &str,
    rows: Vec<(Vec<String>, String)>,
    columns: usize,
) -> String {
    let (mut cells, below): (Vec<Vec<String>>, Vec<String>) = rows.into_iter().unzip();
    let last = header.len().saturating_sub(1);
    let widest = |at: usize| {
        let own = cells.iter().filter_map(|row| row.get(at)).map(|cell| width::width_of(cell));
        own.chain([width::width_of(header[at])]).max().unwrap_or_default()
    };
    let used: usize = (0..last).map(|at| widest(at) + GAP).sum();
    let room = columns.saturating_sub(used + 1).max(1);
    for cell in cells.iter_mut().filter_map(|row| row.get_mut(last)) {
        *cell = width::cut_front(cell, room);
    }
    let table = plain(header, cells);
    let below = std::iter::once(header_below.to_owned()).chain(below);
    table.lines().zip(below).map(|(line, below)| format!("{}\n{below}", width::cut(line, columns))).collect()
}

/// Facts about one thing, one a line.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    fields.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

/// Each count with the word for people and what it means; zero rows of rare counts are left out.
fn count_rows(counts: &Counts) -> Vec<(&'static str, u64, &'static str)> {
    let all = [
        ("received", counts.received, "", true),
        ("applied", counts.applied, "effect committed", true),
        ("duplicate", counts.duplicate, "seen before: skipped", true),
        ("id reused", counts.id_reused, "known id with another body: dead letter", false),
        ("stale", counts.stale, "not newer than what is applied of its key", false),
        ("unmatched", counts.unmatched, "no effect wanted it", false),
        ("dead lettered", counts.dead_lettered, "see `handstamp dlq list`", true),
        ("parked", counts.parked, "kept for a later retry: see `handstamp dlq parked`", false),
        ("released", counts.released, "given back unfinished", false),
        ("resumed", counts.resumed, "taken up again after they were parked", false),
        ("  applied", counts.resumed_applied, "effect committed", false),
        ("  stale", counts.resumed_stale, "not newer than what is applied of its key", false),
        ("  parked again", counts.resumed_parked_again, "failed once more", false),
        ("  dead lettered", counts.resumed_dead, "see `handstamp dlq list`", false),
        ("  released", counts.resumed_released, "left as they were", false),
        ("copied", counts.dead_letter_copies, "copies of dead letters in their topic", false),
        (
            "not copied",
            counts.dead_letter_copies_failed,
            "refused by the topic; see `handstamp dlq list`",
            false,
        ),
        ("breaker opened", counts.breaker_opened, "paused: what the handler needs seemed to be down", false),
        ("crashes found", counts.crashes_found, "processes had died with messages in hand", false),
    ];
    all.into_iter()
        .filter(|(_, count, _, always)| *always || *count > 0)
        .map(|(word, count, meaning, _)| (word, count, meaning))
        .collect()
}

/// The table at the end of a run.
pub(crate) fn report(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = count_rows(&report.counts)
        .into_iter()
        .map(|(word, count, meaning)| {
            let meaning = if count == 0 { "" } else { meaning };
            vec![word.to_owned(), grouped(count), meaning.to_owned()]
        })
        .collect();
    for (notice, count) in &report.notices {
        rows.push(vec![notice.as_str().replace('_', " "), grouped(*count), String::new()]);
    }
    let lag: u64 = report.lag.iter().map(|lane| lane.lag).sum();
    if lag > 0 {
        rows.push(vec!["lag".to_owned(), grouped(lag), "not yet settled at the source".to_owned()]);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for row in rows {
        table.add_row(row);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let seconds = report.took.as_secs_f64();
    let rate = super::rate(report);
    format!("{}\n took {seconds:.2} s, {rate:.0} messages/s; {}\n", lines.join("\n"), stopped(report.stopped))
}

/// Why a run ended, for people.
fn stopped(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Asked => "stopped as asked",
        StopReason::SourceEnded => "the source is at its end",
        StopReason::Idle => "nothing more came",
        StopReason::MessagesMax => "the number of messages asked for was reached",
        StopReason::Failed => "an error ended it",
        _ => "stopped",
    }
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        for (number, shown) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), shown);
        }
    }

    #[test]
    fn what_is_stale_is_told_once_there_is_something() {
        let counts =
            Counts { received: 5, applied: 3, stale: 2, resumed: 1, resumed_stale: 1, ..Counts::default() };
        let rows: Vec<(&str, u64)> =
            count_rows(&counts).iter().map(|(word, count, _)| (*word, *count)).collect();
        assert!(rows.contains(&("stale", 2)) && rows.contains(&("  stale", 1)), "{rows:?}");
    }

    #[test]
    fn received_and_dead_letters_are_always_shown() {
        let words: Vec<&str> = count_rows(&Counts::default()).iter().map(|(word, ..)| *word).collect();
        assert_eq!(words, ["received", "applied", "duplicate", "dead lettered"]);
    }
}
