//! `inbox get`: what became of a message.

use super::dlq;
use crate::backend::{Backend, Operations, with_backend};
use crate::cli::InboxGetArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, table};
use handstamp_core::{DeadLetter, FailureClass, InboxState, MessageId};
use handstamp_stores::redrive::{DeadLetterFilter, ParkedRow};
use handstamp_stores::rows::{DeadLetterKey, DeadLetterSummary, InboxRow};
use serde_json::{Value, json};

/// Other bodies of one id that are shown; `dlq list --class id_reused` has all.
const REUSED_MAX: u32 = 100;

/// Prints the inbox row of an id, and why it was given up or waits, where it does; an unknown id is an answer, not an
/// error.
///
/// # Errors
/// The id cannot be one, or what the store answered.
pub(crate) fn get(args: &InboxGetArgs) -> Result<Exit, CliError> {
    let id = MessageId::try_from(args.id.as_str()).map_err(|error| CliError::usage(error.to_string()))?;
    let config = config::load(&args.file, Uses::Store)?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(get_with(&backend, &config, args, &id)))
}

async fn get_with<B: Backend>(
    backend: &B,
    config: &Config,
    args: &InboxGetArgs,
    id: &MessageId,
) -> Result<Exit, CliError> {
    let store = backend.existing(config).await?;
    let row = store.inbox_row(&config.name, id).await?;
    let own = match &row {
        Some(row) if row.state == InboxState::Dead => own(&*store, config, id).await?,
        _ => None,
    };
    let parked = match &row {
        Some(row) if row.state == InboxState::Parked => {
            dlq::parked::with_id(&*store, &config.name, id).await?
        }
        _ => None,
    };
    let letters = Letters { own, parked, reused: reused(&*store, config, id).await? };
    if args.json {
        output::print_json(&object(config, id, row.as_ref(), &letters))?;
        return Ok(Exit::Ok);
    }
    match row {
        None => output::print(&not_known(config, id))?,
        Some(row) => output::print(&table::fields(&fields(config, &row, &letters)))?,
    }
    for letter in &letters.reused {
        let fields = dlq::fields(letter);
        output::print(&format!("\ncame again with another body:\n{}", table::fields(&fields)))?;
    }
    Ok(Exit::Ok)
}

/// The messages that came under an id.
struct Letters {
    /// Its own message, given up.
    own: Option<DeadLetterSummary>,
    /// Its own message, waiting for a retry.
    parked: Option<ParkedRow>,
    /// Other bodies that came under it, oldest first.
    reused: Vec<DeadLetterSummary>,
}

/// The dead letter of an id. One that got its id by a redrive has a key of its own.
async fn own<S: Operations>(
    store: &S,
    config: &Config,
    id: &MessageId,
) -> Result<Option<DeadLetterSummary>, CliError> {
    let key = DeadLetterKey(DeadLetter::dedup_of_id(id));
    if let Some(row) = store.letter(&config.name, key).await? {
        return Ok(Some(row.summary()));
    }
    let filter = DeadLetterFilter { id: Some(id.clone()), ..DeadLetterFilter::default() };
    let found = store.letters(&config.name, &filter, None, REUSED_MAX).await?;
    Ok(found.into_iter().find(|letter| letter.class != FailureClass::IdReused))
}

/// Other bodies that came under the id.
async fn reused<S: Operations>(
    store: &S,
    config: &Config,
    id: &MessageId,
) -> Result<Vec<DeadLetterSummary>, CliError> {
    let (class, id) = (Some(FailureClass::IdReused), Some(id.clone()));
    let filter = DeadLetterFilter { class, id, ..DeadLetterFilter::default() };
    Ok(store.letters(&config.name, &filter, None, REUSED_MAX).await?)
}

fn not_known(config: &Config, id: &MessageId) -> String {
    let name = &config.name;
    match config.options.inbox {
        true => format!("consumer {name} has not seen {id}\n"),
        false => format!("consumer {name} remembers no id (inbox = false), so nothing is known of {id}\n"),
    }
}

/// With a version guard the inbox says applied of what is stale too: its outcome is durable, and nothing of it ran.
pub(super) fn may_be_stale(config: &Config, state: InboxState) -> bool {
    state == InboxState::Applied && config.options.version.is_some()
}

/// For a person: a fact a line.
fn fields(config: &Config, row: &InboxRow, letters: &Letters) -> Vec<(&'static str, String)> {
    let state = match may_be_stale(config, row.state) {
        true => "done: applied, or stale (not newer than what is applied of its key)",
        false => row.state.as_str(),
    };
    let mut fields = vec![
        ("state", state.to_owned()),
        ("first seen", row.first_seen.to_string()),
        ("id", row.id.to_string()),
    ];
    let removed = || "removed: nothing is kept of it".to_owned();
    match (row.state, &letters.own, &letters.parked) {
        (_, Some(letter), _) => fields.extend(dlq::fields(letter)),
        (_, _, Some(parked)) => fields.extend(dlq::parked::fields(parked)),
        (InboxState::Dead, ..) => fields.push(("dead letter", removed())),
        (InboxState::Parked, ..) => fields.push(("parked message", removed())),
        _ => {}
    }
    fields
}

fn object(config: &Config, id: &MessageId, row: Option<&InboxRow>, letters: &Letters) -> Value {
    let first = letters.own.as_ref().or(letters.reused.first());
    json!({
        "consumer": config.name.as_str(),
        "id": id.to_string(),
        "known": row.is_some(),
        "state": row.map(|row| row.state.as_str()),
        "may_be_stale": row.is_some_and(|row| may_be_stale(config, row.state)),
        "first_seen": row.map(|row| row.first_seen.to_string()),
        // 64 bits do not fit every reader's numbers.
        "digest": row.and_then(|row| row.digest).map(|digest| format!("{:016x}", digest.cast_unsigned())),
        "dead_letter": first.map(dlq::summary),
        "parked": letters.parked.as_ref().map(dlq::parked::summary),
        "id_reused": letters.reused.iter().map(dlq::summary).collect::<Vec<Value>>(),
    })
}
