//! Logs to standard error, each line through the redaction, never in the middle of the live line.

use crate::exit::CliError;
use crate::output::live;
use crate::redact;
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging.
///
/// # Errors
/// The level or filter is none.
pub(crate) fn start(filter: &str) -> Result<(), CliError> {
    // Levels by target. Filters by span fields would bring regular expressions into every small build.
    let parsed: Targets = filter.parse().map_err(|_| {
        CliError::usage(format!("--log: {filter:?} is no level"))
            .hint("use off, error, warn, info, debug or trace")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    tracing_subscriber::registry()
        .with(lines)
        .with(parsed)
        .try_init()
        .map_err(|error| CliError::new(crate::exit::Exit::Unexpected, format!("logging: {error}")))
}

struct Stderr;

impl<'w> MakeWriter<'w> for Stderr {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        Line(Vec::new())
    }
}

/// One log line, written at its end: a secret must not slip through between two writes.
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        live::write_above(&redact::redact(&text));
    }
}
