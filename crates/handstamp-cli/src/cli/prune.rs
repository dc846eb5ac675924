//! `prune`.

use clap::Args;
use std::path::PathBuf;

/// `prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Count what would go, delete nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What stands below its options.
pub(crate) const AFTER_HELP: &str = "Examples:
  handstamp prune wallet.toml --dry-run
  handstamp prune wallet.toml

What was first seen longer ago than `[retention] keep` and two hours more is deleted, in batches of 10,000 with pauses, \
if it is applied or discarded; what is parked or dead stays. The brokers are asked for how long a topic is kept: exit 5, \
with the numbers, when a message could come again after its id is forgotten.

Stopped, it has done what it said; the same command again goes on with the rest. Variables of `[identity]` and the \
effects need not be set. `run` does the same beside consuming, all the time.";
