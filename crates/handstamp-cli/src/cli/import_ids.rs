//! `import-ids`.

use crate::dlq::time;
use clap::Args;
use handstamp_core::Timestamp;
use std::path::PathBuf;

/// `import-ids`.
#[derive(Debug, Args)]
pub(crate) struct ImportIdsArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// A file with an id a line, in its first column, or standard input (`-`).
    #[arg(long, value_name = "PATH")]
    pub(crate) from: PathBuf,
    /// The first line names the columns.
    #[arg(long)]
    pub(crate) header: bool,
    /// When they were first seen, for `[retention]`; default: now, which keeps them for longest.
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    pub(crate) seen_at: Option<Timestamp>,
    /// Count what is new, take nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn moment(text: &str) -> Result<Timestamp, String> {
    time::moment(text, time::now())
}

/// What stands below its options.
pub(crate) const AFTER_HELP: &str = "Examples:
  psql -AtX -c \"COPY (SELECT message_id FROM processed_messages WHERE consumer = 'wallet') TO STDOUT\" > ids.csv
  handstamp import-ids wallet.toml --from ids.csv --dry-run
  handstamp import-ids wallet.toml --from ids.csv
  … | handstamp import-ids wallet.toml --from -

What was processed before is then known as applied: it is a duplicate when it comes again. A line is CSV: what stands \
behind a first comma is not read, and an id with a comma or a quote stands in quotes. Ids that are known stay as they \
are, so a command that was stopped is given again. Exit 5 when a line holds no usable id; the others are taken.

Variables of `[identity]` and the effects need not be set. docs/guides/adopting.md says in which order to go.";
