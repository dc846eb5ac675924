//! The rule that finds a message's id (pure).
use crate::message::Record;
use crate::message_id::MessageId;

/// Where the producer put the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The record's key.
    Key,
}

/// Why a record has no usable id; one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct IdentityFault {
    /// One line for a person.
    pub reason: String,
}

impl Identity {
    /// The record's id by this rule.
    ///
    /// # Errors
    /// [`IdentityFault`] when the record has no usable id.
    pub fn message_id(&self, record: &Record) -> Result<MessageId, IdentityFault> {
        let fault = |reason: String| IdentityFault { reason };
        match self {
            Self::Key => {
                let key = record.key.clone().ok_or_else(|| fault("the key is null".into()))?;
                MessageId::new(key).map_err(|e| fault(format!("the key: {e}")))
            }
        }
    }
}
