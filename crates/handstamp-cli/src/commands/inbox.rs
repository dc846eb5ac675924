//! `inbox get`: what became of a message.

use crate::backend::{Backend, with_backend};
use crate::cli::InboxGetArgs;
use crate::config::{self, Config};
use crate::exit::{CliError, Exit};
use crate::output::{self, table};
use handstamp_core::MessageId;
use handstamp_stores::rows::InboxRow;
use serde_json::{Value, json};

/// Prints the inbox row of an id; an unknown id is an answer, not an error.
///
/// # Errors
/// The id cannot be one, or what the store answered.
pub(crate) fn get(args: &InboxGetArgs) -> Result<Exit, CliError> {
    let id = MessageId::try_from(args.id.as_str()).map_err(|error| CliError::usage(error.to_string()))?;
    let config = config::load(&args.file)?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(get_with(&backend, &config, args, &id)))
}

async fn get_with<B: Backend>(
    backend: &B,
    config: &Config,
    args: &InboxGetArgs,
    id: &MessageId,
) -> Result<Exit, CliError> {
    let row = backend.inbox_row(config, id).await?;
    if args.json {
        output::print_json(&object(config, id, row.as_ref()))?;
        return Ok(Exit::Ok);
    }
    match row {
        None => output::print(&format!("consumer {} has not seen {id}\n", config.name))?,
        Some(row) => {
            let words = [row.state.as_str().to_owned(), super::time(row.first_seen), row.id.to_string()];
            output::print(&table::plain(&["state", "first seen", "id"], vec![words.to_vec()]))?;
        }
    }
    Ok(Exit::Ok)
}

fn object(config: &Config, id: &MessageId, row: Option<&InboxRow>) -> Value {
    json!({
        "consumer": config.name.as_str(),
        "id": id.to_string(),
        "known": row.is_some(),
        "state": row.map(|row| row.state.as_str()),
        "first_seen": row.map(|row| super::time(row.first_seen)),
        // 64 bits do not fit every reader's numbers.
        "digest": row.and_then(|row| row.digest).map(|digest| format!("{:016x}", digest.cast_unsigned())),
    })
}
