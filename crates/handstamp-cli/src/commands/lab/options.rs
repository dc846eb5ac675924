//! Options that several commands of the lab share.

use clap::{Args, ValueEnum};
use std::time::Duration;

// No doc comment: it would become the help of the command that these stand in.
#[derive(Debug, Args)]
pub(crate) struct Servers {
    /// Kafka's bootstrap servers; without them a broker inside this program stands in.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of a Postgres database, where the lab makes schemas of its own; without it the
    /// ledgers are SQLite files.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
}

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileName {
    /// Shows the differences in a minute and a half.
    Quick,
    /// 20 kills a run, 5 runs, every subject: about an hour.
    Source,
    /// As `source`, with as many kills and runs as asked for.
    Long,
}

/// Reads a time with its unit.
///
/// # Errors
/// It has none, or is longer than an hour.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "write a time with its unit, such as 10ms or 6s".to_owned())?;
    if time > Duration::from_secs(3600) { Err("at most 1h".to_owned()) } else { Ok(time) }
}
