//! What the program prints: results on standard output, everything else on standard error.
//!
//! | file | owns |
//! |---|---|
//! | `live` | the line that changes while a run goes on |
//! | `table` | tables for people |
//! | `width` | how wide a line for people may be |
//! | `json` | objects for programs |

pub(crate) mod json;
pub(crate) mod live;
pub(crate) mod table;
pub(crate) mod width;

use crate::exit::{CliError, Exit};
use crate::{logging, redact};
use serde_json::Map;
use std::io::{self, Write};
use tracing::Level;

/// Prints a result, redacted.
///
/// # Errors
/// Standard output cannot be written. A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    print_raw(redact::redact(text).as_bytes()).map(drop)
}

/// Prints an object on one line; its texts are redacted, so that it stays an object.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    print_raw(json::line(&json::redacted(value)).as_bytes()).map(drop)
}

/// Prints a result: the object for programs, or the text for people.
///
/// # Errors
/// As [`print`].
#[cfg(all(feature = "kafka", feature = "lab"))]
pub(crate) fn print_result(json: bool, object: &serde_json::Value, text: &str) -> Result<(), CliError> {
    if json { print_json(object) } else { print(text) }
}

/// Whether anybody still reads standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// What was printed is written.
    Listens,
    /// It went away, as `head` does: nothing more needs to be printed.
    Gone,
}

/// Prints bytes that were asked for as they are.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_raw(bytes: &[u8]) -> Result<Reader, CliError> {
    written(io::stdout().lock().write_all(bytes))
}

/// Makes sure that what was written to standard output left the program, and judges what came of it.
///
/// # Errors
/// As [`print`].
pub(crate) fn written(outcome: io::Result<()>) -> Result<Reader, CliError> {
    match outcome.and_then(|()| io::stdout().lock().flush()) {
        Ok(()) => Ok(Reader::Listens),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => {
            let hint = crate::hints::for_io(error.kind());
            let failed = CliError::new(Exit::Unexpected, format!("cannot write to standard output: {error}"));
            Err(hint.into_iter().fold(failed, CliError::hint))
        }
    }
}

/// Messages that ended for good a second, from the first delivery to the last outcome: waiting for the group
/// and idling at the end are no part of it.
fn rate(report: &handstamp_core::Report) -> f64 {
    live::per_second(report.counts.settled(), report.busy.as_secs_f64())
}

/// Says something beside the result, on standard error, redacted.
pub(crate) fn say(text: &str) {
    say_at(Level::INFO, text);
}

/// Says what went wrong, in the same way.
pub(crate) fn say_error(text: &str) {
    say_at(Level::ERROR, text);
}

fn say_at(level: Level, text: &str) {
    if logging::is_json() {
        return logging::write_json(level, "handstamp", text, Map::new());
    }
    live::write_above(&redact::redact(&format!("{text}\n")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::{BreakerState, Counts, Report, StopReason};
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn the_rate_is_of_the_time_with_messages_and_of_those_that_ended_for_good() {
        let counts =
            Counts { received: 900, applied: 500, duplicate: 100, released: 300, ..Counts::default() };
        let (took, busy) = (Duration::from_secs(5), Duration::from_secs(2));
        let (notices, lag) = (BTreeMap::new(), vec![]);
        let breaker = BreakerState::Open;
        let report = Report { counts, notices, lag, breaker, took, busy, stopped: StopReason::Idle };
        let text = table::report(&report);
        assert!(text.contains("took 5.00 s, 300 messages/s;"), "{text}");
        let object = json::report(None, &report);
        for (name, value) in [("took_seconds", 5.0), ("busy_seconds", 2.0), ("messages_per_second", 300.0)] {
            assert_eq!(object[name], value, "{name}");
        }
        assert_eq!((&object["breaker"], &object["breaker_opened"]), (&"open".into(), &0.into()));
        let nothing = Report { counts: Counts::default(), busy: Duration::ZERO, ..report };
        assert!(table::report(&nothing).contains("took 5.00 s, 0 messages/s;"));
    }
}
