//! The command line: what can be typed, with examples.

pub(crate) mod dlq;
pub(crate) mod first_contact;
pub(crate) mod import_ids;
pub(crate) mod prune;

use crate::config::{self, TIME_MAX};
use clap::{Args, Parser, Subcommand, ValueEnum};
use dlq::DlqCommand;
use first_contact::{CompletionsArgs, InitArgs, ManArgs};
pub(crate) use import_ids::ImportIdsArgs;
pub(crate) use prune::PruneArgs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXIT_CODES: &str = "Exit codes:
  0  done, or stopped as asked
  1  unexpected error
  2  wrong command line or configuration
  3  source or store cannot be reached
  4  the tables are missing: run `handstamp migrate FILE`
  5  a check, or the lab, found a problem; dead letters that were named stayed, or are not there
  6  a run of the lab proves nothing: a control did no harm
  7  stopped before it had finished; what was open is rolled back and comes again";

/// Makes message handlers safe to redeliver: each message's database effect is committed once.
#[derive(Debug, Parser)]
#[command(name = "handstamp", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    /// What is logged to standard error: off, error, warn, info, debug, trace, or a filter like
    /// `info,handstamp_core=debug`.
    #[arg(
        long,
        global = true,
        env = "HANDSTAMP_LOG",
        default_value = "info",
        value_name = "LEVEL",
        hide_env_values = true
    )]
    pub(crate) log: String,
    /// How a line of the log is written: text, or json, which is one object a line.
    #[arg(
        long,
        global = true,
        env = "HANDSTAMP_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT",
        value_enum,
        hide_env_values = true,
        hide_possible_values = true
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// One object a line: time, level, target, message and fields.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Consume messages and commit their effects once each.
    #[command(after_help = "Examples:
  handstamp run wallet.toml
  handstamp run wallet.toml --migrate --until-idle 2s --json
  DATABASE_URL=postgres://… handstamp run wallet.toml --fail-fast
  handstamp run wallet.toml --dry-run

--dry-run looks at the next messages (10, or --max-messages) where they lie, registers, claims and runs the effects in \
one transaction that is rolled back, and says what would become of each. Nothing is settled, and no group is joined.

Ctrl-C or SIGTERM once: finish what runs, settle, exit 0. A second time: exit 7 at once; what was open is rolled back.

--until-idle goes by position: the end of every partition was reached and nothing came since. New partitions are \
looked for four times in that time, unless `topic.metadata.refresh.interval.ms` is set; what is added right before \
the end is read by the next run.

`took` is the whole run. `messages/s` is of the time from the first message taken to the last outcome: it leaves out \
waiting for the group, idling at the end, and what was given back. `lag` is what lies behind the offsets that Kafka \
has; the next run receives it.

With --json standard output is one object whatever happens: every counter, `error` (null when all went well), \
`details`, `hints` and `exit_code`; `took_seconds`, `busy_seconds` and `messages_per_second`; `lag` of each partition.")]
    Run(RunArgs),
    /// Look for everything that would go wrong, without consuming.
    #[command(after_help = "Examples:
  handstamp check wallet.toml
  handstamp check wallet.toml --print

Whatever `run` would refuse is found: the store is tried out as `run` does it, in a transaction that is rolled back.
Of a file's first lines the names are looked at: one that the pipeline asks for and none of them has is warned of.
Exit 5 when a check fails, 0 with warnings alone, 2 when the file cannot be read or parsed.")]
    Check(CheckArgs),
    /// Make or update the tables, then run `[store] setup` once.
    #[command(after_help = "Examples:
  handstamp migrate wallet.toml
  handstamp migrate wallet.toml --show-sql
  handstamp migrate wallet.toml --grant-to wallet_runner

--grant-to names a role that exists. Variables of `[source]`, `[identity]` and the effects need not be set, and those \
of `url` neither beside a `migrate_url`; --show-sql needs no connection at all.")]
    Migrate(MigrateArgs),
    /// Ask what became of a message.
    #[command(subcommand)]
    Inbox(InboxCommand),
    /// Look at dead letters, send them back, give them up.
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Forget ids that can no longer come again.
    #[command(after_help = prune::AFTER_HELP)]
    Prune(PruneArgs),
    /// Take the ids of a table of processed messages into the inbox.
    #[command(after_help = import_ids::AFTER_HELP)]
    ImportIds(ImportIdsArgs),
    /// Say in plain words what happens to a message that fails.
    #[command(after_help = "Examples:
  handstamp explain wallet.toml
  handstamp explain wallet.toml --json

What is said is computed by the function that decides for `run`, with the waits of this file. No server is asked; \
variables of `[source]`, `[store]`, `[identity]` and the effects need not be set.")]
    Explain(ExplainArgs),
    /// Publish messages to consume.
    #[command(after_help = "Examples:
  handstamp publish kafka.toml --sample credits --count 1000 --duplicates 0.1 --create-topic
  handstamp publish kafka.toml --input events.jsonl --id-field /event_id
  cat events.jsonl | handstamp publish kafka.toml --input -
  handstamp publish --out credits.jsonl --sample credits --count 1000 --duplicates 0.1

Variables of `[store]` and the effects need not be set.")]
    Publish(PublishArgs),
    /// Write a commented pipeline to start from.
    #[command(after_help = "Examples:
  handstamp init
  handstamp init wallet --source kafka --store postgres

Nothing is asked, nothing is connected to, and no file is replaced. The next commands to type are said.")]
    Init(InitArgs),
    /// Print the JSON Schema of the pipeline's file, for editors.
    #[command(after_help = "Examples:
  handstamp schema > handstamp.schema.json

An editor with a TOML language server completes a pipeline whose first line is `#:schema ./handstamp.schema.json`; \
`init` writes both.")]
    Schema,
    /// Print the script by which a shell completes commands and options.
    #[command(after_help = "Examples:
  handstamp completions bash > ~/.local/share/bash-completion/completions/handstamp
  handstamp completions zsh > ~/.zfunc/_handstamp
  handstamp completions fish > ~/.config/fish/completions/handstamp.fish")]
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for each command.
    #[command(after_help = "Examples:
  handstamp man | man -l -
  handstamp man ~/.local/share/man/man1")]
    Man(ManArgs),
    /// Measure what crashes do.
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(crate::commands::lab::LabCommand),
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Make or update the tables first, as `migrate` does.
    #[arg(long)]
    pub(crate) migrate: bool,
    /// Take over a consumer name that is registered with another source.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Stop once everything that was there is done and nothing more came for so long.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) until_idle: Option<Duration>,
    /// Stop after so many messages.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_messages: Option<u64>,
    /// Say what would become of the next messages; commit nothing, settle nothing.
    #[arg(long, conflicts_with_all = ["migrate", "until_idle"])]
    pub(crate) dry_run: bool,
    /// Print one JSON object at the end instead of a table, also when the run fails.
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit 3 instead of waiting when the source or the store is away.
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Answer /metrics, /healthz and /readyz there, such as 127.0.0.1:9464; instead of `[watch] listen`.
    #[arg(long, value_name = "ADDRESS", value_parser = config::address)]
    pub(crate) watch: Option<SocketAddr>,
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Print the effective configuration, defaults included, and nothing else.
    #[arg(long)]
    pub(crate) print: bool,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "print")]
    pub(crate) json: bool,
}

/// `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Print the SQL instead of running it.
    #[arg(long)]
    pub(crate) show_sql: bool,
    /// Grant what `run` needs to this role (Postgres).
    #[arg(long, value_name = "ROLE")]
    pub(crate) grant_to: Option<String>,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "show_sql")]
    pub(crate) json: bool,
}

/// `inbox`.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxCommand {
    /// What became of one message id.
    #[command(after_help = "Examples:
  handstamp inbox get wallet.toml 0193f5a0-7c3e-7b1a-8000-0123456789ab
  handstamp inbox get wallet.toml --json order-17

An id that the consumer has not seen is an answer (`known` is false), not an error: exit 0. Other bodies that came \
under the id are in `id_reused`, at most 100 of them; `dead_letter` is the id's own, or else the first of those.")]
    Get(InboxGetArgs),
}

/// `inbox get`.
#[derive(Debug, Args)]
pub(crate) struct InboxGetArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// The message id.
    #[arg(allow_hyphen_values = true)]
    pub(crate) id: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `publish`.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// The pipeline's TOML file: its source says where to.
    #[arg(required_unless_present = "out", conflicts_with = "out")]
    pub(crate) file: Option<PathBuf>,
    /// Append JSON lines to this file instead.
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Make messages up.
    #[arg(long, value_enum, conflicts_with = "input", required_unless_present = "input")]
    pub(crate) sample: Option<Sample>,
    /// Read JSON lines from this file, or from standard input (`-`).
    #[arg(long, value_name = "PATH")]
    pub(crate) input: Option<PathBuf>,
    /// How many different messages to make up.
    #[arg(long, default_value_t = 1000, value_name = "N", requires = "sample")]
    pub(crate) count: u64,
    /// Which part of them is published a second time, from 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "PART", requires = "sample", value_parser = part)]
    pub(crate) duplicates: f64,
    /// How many accounts they credit, from 1 up.
    #[arg(long, default_value_t = 10, value_name = "N", requires = "sample", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) accounts: u64,
    /// Make the same messages again, ids included.
    #[arg(long, value_name = "NUMBER", requires = "sample")]
    pub(crate) seed: Option<u64>,
    /// Where a line has its id; default: where the pipeline looks for it, or the field named as its header.
    #[arg(long, value_name = "POINTER")]
    pub(crate) id_field: Option<String>,
    /// Which field becomes the record's key; default: none for lines, the account for samples.
    #[arg(long, value_name = "POINTER")]
    pub(crate) key_field: Option<String>,
    /// Add a header to each message (Kafka), beside the id's own; may be given many times.
    #[arg(long = "header", value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub(crate) headers: Vec<String>,
    /// Publish lines without a readable id too, without the header; they will be dead letters.
    #[arg(long)]
    pub(crate) allow_no_id: bool,
    /// Make the topic when it is missing.
    #[arg(long)]
    pub(crate) create_topic: bool,
    /// Partitions of a topic that is made.
    #[arg(long, default_value_t = 6, value_name = "N", requires = "create_topic", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) partitions: i32,
    /// Print one JSON object beside what is said on standard error.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What can be made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sample {
    /// Credits to accounts: event_id, account_id, amount.
    Credits,
}

fn duration(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "write a time with its unit, such as 2s or 500ms".to_owned())?;
    // A longer one could not be added to the clock.
    if time > TIME_MAX { Err("at most 365 days".to_owned()) } else { Ok(time) }
}

fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "write a number from 0 to 1, such as 0.1".to_owned())?;
    if (0.0..=1.0).contains(&part) {
        Ok(part)
    } else {
        Err("write a number from 0 to 1, such as 0.1".to_owned())
    }
}
