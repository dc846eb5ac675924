//! What both databases read back for people: one inbox row, one dead letter.

use handstamp_core::{ConsumerName, DeadLetter, InboxState, MessageId, Timestamp};

/// What the inbox knows of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// The consumer whose namespace it is in.
    pub consumer: ConsumerName,
    /// The id.
    pub id: MessageId,
    /// What became of it.
    pub state: InboxState,
    /// Digest of the value it came with; `None` when it was claimed without one.
    pub digest: Option<i64>,
    /// When the row was written (seconds kept).
    pub first_seen: Timestamp,
}

/// One dead letter with the number people name it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// Grows with each new row of the store; pages go by it.
    pub number: i64,
    /// The consumer that gave it up.
    pub consumer: ConsumerName,
    /// Everything that was kept.
    pub letter: DeadLetter,
}
