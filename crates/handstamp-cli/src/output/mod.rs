//! What the program prints: results on standard output, everything else on standard error.
//!
//! | file | owns |
//! |---|---|
//! | `live` | the line that changes while a run goes on |
//! | `table` | tables for people |
//! | `json` | objects for programs |

pub(crate) mod json;
pub(crate) mod live;
pub(crate) mod table;

use crate::exit::{CliError, Exit};
use crate::redact;
use std::io::{self, Write};

/// Prints a result, redacted.
///
/// # Errors
/// Standard output cannot be written. A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    print_raw(redact::redact(text).as_bytes())
}

/// Prints an object on one line; its texts are redacted, so that it stays an object.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    print_raw(json::line(&json::redacted(value)).as_bytes())
}

/// Prints bytes that were asked for as they are.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_raw(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(Exit::Unexpected, format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Says something beside the result, on standard error, redacted.
pub(crate) fn say(text: &str) {
    live::write_above(&redact::redact(&format!("{text}\n")));
}
