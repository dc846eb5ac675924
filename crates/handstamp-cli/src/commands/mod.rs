//! One file for each command.

mod check;
mod completions;
mod dlq;
mod dry_run;
mod explain;
mod import_ids;
mod inbox;
mod init;
#[cfg(feature = "lab")]
pub(crate) mod lab;
mod left;
mod man;
mod migrate;
mod prune;
mod pruning;
pub(crate) mod publish;
mod routing;
mod run;
mod schema;
mod versions;

use crate::cli::{Command, InboxCommand};
use crate::exit::{CliError, Exit};
use serde_json::{Map, Value};

/// Runs a command.
///
/// # Errors
/// What went wrong, with the exit code it asks for.
pub(crate) fn dispatch(command: Command) -> Result<Exit, CliError> {
    #[cfg(feature = "crash-points")]
    lab::matrix::arm()?;
    match command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::check(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Inbox(InboxCommand::Get(args)) => inbox::get(&args),
        Command::Dlq(command) => dlq::dispatch(&command),
        Command::Explain(args) => explain::explain(&args),
        Command::ImportIds(args) => import_ids::import_ids(&args),
        Command::Prune(args) => prune::prune(&args),
        Command::Publish(args) => publish::publish(&args),
        Command::Init(args) => init::init(&args),
        Command::Schema => schema::schema(),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => man::man(&args),
        #[cfg(feature = "lab")]
        Command::Lab(command) => lab::dispatch(&command),
    }
}

/// What `--json` prints of a command that has done nothing; `None` where the command prints no object, or was
/// not asked for one. The lines of `dlq export` are dead letters and nothing else.
pub(crate) fn nothing(command: &Command) -> Option<Value> {
    match command {
        Command::Run(args) if args.json && args.dry_run => Some(dry_run::nothing()),
        Command::Run(args) if args.json => Some(run::nothing()),
        Command::Check(args) if args.json => Some(Value::Object(Map::new())),
        Command::Migrate(args) if args.json => Some(migrate::nothing()),
        Command::ImportIds(args) if args.json => Some(import_ids::nothing()),
        Command::Prune(args) if args.json => Some(prune::nothing()),
        Command::Publish(args) if args.json => Some(publish::nothing()),
        Command::Inbox(InboxCommand::Get(args)) if args.json => Some(Value::Object(Map::new())),
        Command::Dlq(command) => dlq::nothing(command),
        Command::Explain(args) if args.json => Some(Value::Object(Map::new())),
        #[cfg(feature = "lab")]
        Command::Lab(command) if command.wants_json() => Some(Value::Object(Map::new())),
        _ => None,
    }
}

/// The same for words that could not be parsed.
pub(crate) fn nothing_of(words: &[String]) -> Option<Value> {
    let has = |wanted: &str| words.iter().take_while(|word| *word != "--").any(|word| word == wanted);
    if !has("--json") || has("export") {
        return None;
    }
    // The first word that is a command; a file may have the name of another.
    let run = if has("--dry-run") { dry_run::nothing() } else { run::nothing() };
    let commands = [
        ("run", run),
        ("migrate", migrate::nothing()),
        ("publish", publish::nothing()),
        ("prune", prune::nothing()),
        ("import-ids", import_ids::nothing()),
    ];
    let asked = words.iter().find_map(|word| commands.iter().find(|(name, _)| word == name));
    Some(asked.map_or_else(|| Value::Object(Map::new()), |(_, nothing)| nothing.clone()))
}

/// The runtime that a command and its engine share: one thread.
///
/// # Errors
/// The operating system gave none.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(Exit::Unexpected, format!("no runtime: {error}")))
}
