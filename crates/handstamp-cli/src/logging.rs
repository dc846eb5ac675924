//! Logs to standard error, each line through the redaction, never in the middle of the live line.

use crate::exit::CliError;
use crate::output::live;
use crate::redact;
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Starts logging.
///
/// # Errors
/// The level or filter is none.
pub(crate) fn start(filter: &str) -> Result<(), CliError> {
    let parsed = EnvFilter::try_new(filter).map_err(|_| {
        CliError::usage(format!("--log: {filter:?} is no level"))
            .hint("use off, error, warn, info, debug or trace")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(Stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
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
