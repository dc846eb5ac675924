//! `dlq`: what can be typed about dead letters.

use crate::dlq::groups::GroupName;
use crate::dlq::pace::Rate;
use crate::dlq::time;
use clap::{Args, Subcommand};
use handstamp_core::{FailureClass, MessageId, Timestamp};
use handstamp_stores::redrive::{Action, AuditFilter, DeadLetterFilter};
use handstamp_stores::rows::DeadLetterKey;
use std::path::PathBuf;

/// `dlq`.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, oldest first.
    #[command(after_help = "Examples:
  handstamp dlq list wallet.toml
  handstamp dlq list wallet.toml --class identity --limit 20 --json
  handstamp dlq list wallet.toml --since 2h --topic credits")]
    List(DlqListArgs),
    /// Count dead letters that failed alike: the same class, code and reason but for its values.
    #[command(after_help = "Examples:
  handstamp dlq groups wallet.toml
  handstamp dlq groups wallet.toml --since 2026-01-31T22:00:00Z --json
  handstamp dlq groups wallet.toml --wide

Two lines a group: below its counts stand the key of an example, for `dlq show`, and the reason as far as it fits. \
--wide has one line a group and the whole reason. A group's name is computed from what its dead letters share: it is the same tomorrow and on another machine, and \
`dlq redrive --group` takes it. At most 10,000 groups are told apart; what fits none of them is counted as `other`.")]
    Groups(DlqGroupsArgs),
    /// Show one dead letter or parked message whole, with its failed attempts and what operators did to it.
    #[command(after_help = "Example:
  handstamp dlq show wallet.toml 0f1e2d3c4b5a69788796a5b4c3d2e1f0

A parked message says when it is due, and which one of its key it waits behind. One that was sent back or given up \
has its attempts and its audit still: they are shown where the dead letter itself is no more.")]
    Show(DlqShowArgs),
    /// Write dead letters as JSON lines, byte for byte.
    #[command(after_help = "Examples:
  handstamp dlq export wallet.toml > dead.jsonl
  handstamp dlq export wallet.toml --class sql --until 1h

Key, value and header values are text where they are UTF-8, otherwise {\"base64\": \"…\"}; null stays null.")]
    Export(DlqExportArgs),
    /// Send dead letters back: whoever runs the consumer handles them once more, from their first attempt.
    #[command(after_help = "Examples:
  handstamp dlq redrive wallet.toml --group 1f0c8a9b --dry-run
  handstamp dlq redrive wallet.toml --group 1f0c8a9b --rate 50/s --why 'accounts were imported'
  handstamp dlq redrive wallet.toml 0f1e2d3c4b5a69788796a5b4c3d2e1f0
  handstamp dlq redrive wallet.toml 0f1e2d3c4b5a69788796a5b4c3d2e1f0 --as-id order-17-b
  handstamp dlq redrive wallet.toml --all --limit 100

What is sent back is parked and due at once; a consumer has to run to apply it. A message keeps its history and is \
applied at most once. Nothing is meant that was not named: KEY, a filter, --group or --all. A KEY or --id of a parked \
message makes it due now; its attempts stay counted, and the order of its key holds.

One without an id gets the id that today's `[identity]` finds, and stays where it finds none. One whose id is \
another message's (class id_reused) needs `--as-id NEW`. One of which only a prefix was kept stays. What stays is said \
with its reason.

Stopped, by Ctrl-C or a cut connection, it has done what it said; the same command again goes on with the rest, and \
says of what was sent back before what became of it. Exit 0: everything that was meant was sent back, or was before, or \
is due already, or a filter found nothing; 5: something stayed, or a KEY, --id or --group names none; 7: stopped.")]
    Redrive(DlqRedriveArgs),
    /// Give dead letters or parked messages up for good: their bytes go, their ids stay known as discarded.
    #[command(after_help = "Examples:
  handstamp dlq discard wallet.toml --group 1f0c8a9b --dry-run --why 'test messages'
  handstamp dlq discard wallet.toml 0f1e2d3c4b5a69788796a5b4c3d2e1f0 --why 'refunded by hand'

A KEY or --id of a parked message gives it up; the next of its key is then the first. `dlq export` keeps the bytes of dead \
letters, if it is run before, and `dlq show --json` those of a parked message. Exit codes as of `dlq redrive`.")]
    Discard(DlqDiscardArgs),
    /// List messages that wait for a retry, in the order of parking.
    #[command(after_help = "Examples:
  handstamp dlq parked wallet.toml
  handstamp dlq parked wallet.toml --limit 10 --json

Two lines a message: when it is due, and below its id and as much of the reason as fits. One that is behind another of \
its key has no time of its own: `dlq show` names the one it waits for.")]
    Parked(DlqParkedArgs),
    /// List what operators did, newest first: when, who, what, why.
    #[command(after_help = "Examples:
  handstamp dlq audit wallet.toml
  handstamp dlq audit wallet.toml --id order-17
  handstamp dlq audit wallet.toml --action discard --since 12h --limit 500 --json")]
    Audit(DlqAuditArgs),
}

/// Which dead letters; everything that is given must hold.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only this class, such as `identity` or `sql`.
    #[arg(long, value_parser = class)]
    pub(crate) class: Option<FailureClass>,
    /// Only those given up at this moment or later, such as 2026-01-31T08:00:00Z; or how long ago, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<Timestamp>,
    /// Only those given up before this moment.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
    /// Only those whose record has this key.
    #[arg(long = "key", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) record_key: Option<String>,
    /// Only those from this topic or path.
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only those with this message id.
    #[arg(long, value_name = "ID", value_parser = message_id, allow_hyphen_values = true)]
    pub(crate) id: Option<MessageId>,
}

impl FilterArgs {
    /// As the store takes it.
    pub(crate) fn filter(&self) -> DeadLetterFilter {
        DeadLetterFilter {
            class: self.class,
            since: self.since,
            until: self.until,
            key: self.record_key.clone().map(String::into_bytes),
            topic: self.topic.clone(),
            id: self.id.clone(),
        }
    }
}

/// Which dead letters something is done to.
#[derive(Debug, Args)]
pub(crate) struct SelectionArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Messages by their keys from `dlq list` or `dlq parked`.
    #[arg(value_name = "KEY", value_parser = dead_letter_key, conflicts_with_all = ["class", "since", "until", "record_key", "topic", "id", "group", "all"])]
    pub(crate) keys: Vec<DeadLetterKey>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only those of this group from `dlq groups`.
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupName>,
    /// Mean all of them.
    #[arg(long, conflicts_with_all = ["class", "since", "until", "record_key", "topic", "id", "group"])]
    pub(crate) all: bool,
    /// Stop after so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Who does it, for the audit; default: the user's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Print one JSON object at the end, also when it fails.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `dlq list`.
#[derive(Debug, Args)]
pub(crate) struct DlqListArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `dlq groups`.
#[derive(Debug, Args)]
pub(crate) struct DlqGroupsArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Show at most so many groups, the largest first.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// One line a group, with the whole reason.
    #[arg(long, conflicts_with = "json")]
    pub(crate) wide: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `dlq show`.
#[derive(Debug, Args)]
pub(crate) struct DlqShowArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Its key from `dlq list` or `dlq parked`.
    #[arg(value_parser = dead_letter_key)]
    pub(crate) key: DeadLetterKey,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `dlq export`.
#[derive(Debug, Args)]
pub(crate) struct DlqExportArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// JSON lines; always so, accepted for symmetry.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `dlq redrive`.
#[derive(Debug, Args)]
pub(crate) struct DlqRedriveArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// The id that the one dead letter named is to have: it had none, or one that is another message's.
    #[arg(long, value_name = "ID", value_parser = message_id, allow_hyphen_values = true)]
    pub(crate) as_id: Option<MessageId>,
    /// At most so many in a second, minute or hour, such as 50/s, 600/m or 100/h; default: as fast as it goes.
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<Rate>,
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
}

/// `dlq discard`.
#[derive(Debug, Args)]
pub(crate) struct DlqDiscardArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) why: String,
}

/// `dlq parked`.
#[derive(Debug, Args)]
pub(crate) struct DlqParkedArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `dlq audit`.
#[derive(Debug, Args)]
pub(crate) struct DlqAuditArgs {
    /// The pipeline's TOML file.
    pub(crate) file: PathBuf,
    /// Only what was done to messages with this id.
    #[arg(long, value_name = "ID", value_parser = message_id, allow_hyphen_values = true)]
    pub(crate) id: Option<MessageId>,
    /// Only `redrive` or `discard`.
    #[arg(long, value_parser = action)]
    pub(crate) action: Option<Action>,
    /// Only what was done at this moment or later, such as 2026-01-31T08:00:00Z; or how long ago, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<Timestamp>,
    /// Only what was done before this moment.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
    /// At most so many lines.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl DlqAuditArgs {
    /// As the store takes it.
    pub(crate) fn filter(&self) -> AuditFilter {
        AuditFilter {
            message: None,
            id: self.id.clone(),
            action: self.action,
            since: self.since,
            until: self.until,
        }
    }
}

fn action(word: &str) -> Result<Action, String> {
    Action::from_word(word).ok_or_else(|| format!("one of {}", Action::ALL.map(Action::as_str).join(", ")))
}

fn class(word: &str) -> Result<FailureClass, String> {
    FailureClass::from_word(word).ok_or_else(|| {
        let words: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
        format!("one of {}", words.join(", "))
    })
}

fn moment(text: &str) -> Result<Timestamp, String> {
    time::moment(text, time::now())
}

fn message_id(text: &str) -> Result<MessageId, String> {
    MessageId::try_from(text).map_err(|error| error.to_string())
}

fn dead_letter_key(text: &str) -> Result<DeadLetterKey, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("say why".to_owned()) } else { Ok(text.to_owned()) }
}
