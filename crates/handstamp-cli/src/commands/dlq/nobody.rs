//! What is said where a dead letter was named and none is there: what it is instead, and what to type.

use super::parked;
use crate::backend::Operations;
use crate::dlq::groups::GroupName;
use crate::exit::{CliError, Exit};
use handstamp_core::{ConsumerName, MessageId};
use std::path::Path;

/// A group has none.
pub(super) fn in_group(file: &Path, group: GroupName) -> CliError {
    let file = file.display();
    CliError::new(Exit::CheckFailed, format!("no dead letter is in the group {group}"))
        .hint(format!("`handstamp dlq groups {file}` shows the groups there are"))
        .hint(format!("if it was sent back or given up before: `handstamp dlq audit {file}` says so"))
}

/// None has an id.
///
/// # Errors
/// What the store answered.
pub(super) async fn with_id<S: Operations>(
    store: &S,
    name: &ConsumerName,
    file: &Path,
    id: &MessageId,
) -> Result<CliError, CliError> {
    let file = file.display();
    if let Some(parked) = parked::with_id(store, name, id).await? {
        let key = parked.message.key;
        let message = format!("message {id} is parked, and no dead letter");
        return Ok(CliError::new(Exit::CheckFailed, message)
            .hint(format!("`handstamp dlq redrive {file} {key}` makes it due now"))
            .hint(format!("`handstamp dlq discard {file} {key} --why '…'` gives it up")));
    }
    let error = match store.inbox_row(name, id).await? {
        Some(row) => {
            let message = format!("no dead letter that fits has the id {id}: it is {}", row.state.as_str());
            let hint = format!("`handstamp inbox get {file} {id}` says what became of it");
            CliError::new(Exit::CheckFailed, message).hint(hint)
        }
        None => {
            CliError::new(Exit::CheckFailed, format!("consumer {name} has no dead letter with the id {id}"))
                .hint(format!("`handstamp dlq list {file}` shows the ids"))
        }
    };
    Ok(error)
}
