//! What operators do with dead letters, in the words both databases share: find, group, send back, give up.
//!
//! Authoritative: the tables. A redrive moves a dead letter among the parked messages, due at once, in one
//! transaction with its inbox row and an audit row; whoever runs the consumer applies it then. What runs
//! already goes on; nothing is applied twice, since the inbox row is the same.
//!
//! ```text
//!  dead letter ─┬─ redrive ─► parked, due at once ─► applied, or dead again
//!               │     └ it has no id, or its new one is known already ─► stays dead, said
//!               └─ discard ─► gone; the inbox says `discarded`
//!  parked ──────┬─ redrive ─► due at once; its attempts stay counted
//!               └─ discard ─► gone; the inbox says `discarded`, the next of its order key is the first
//! ```

use crate::rows::{DeadLetterKey, DeadLetterRow, DeadLetterSummary};
use handstamp_core::parked::{OrderKey, ParkedStatus};
use handstamp_core::{FailureClass, InboxState, MessageId, Timestamp};
use std::time::Duration;

/// Which dead letters are meant; everything that is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Of this class.
    pub class: Option<FailureClass>,
    /// Given up at this time or later.
    pub since: Option<Timestamp>,
    /// Given up before this time.
    pub until: Option<Timestamp>,
    /// With exactly this key of the record.
    pub key: Option<Vec<u8>>,
    /// From this topic or path.
    pub topic: Option<String>,
    /// With this id.
    pub id: Option<MessageId>,
}

/// One dead letter to send back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redrive {
    /// Which. Named twice in one call, it is missing the second time.
    pub dead_letter: DeadLetterKey,
    /// The id it is to have from now on, where it had none or one that was another message's. Its own id is
    /// the same as none.
    pub new_id: Option<MessageId>,
    /// Set where the order of its key must hold: it is parked behind what is parked of that key.
    pub order_key: Option<OrderKey>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redriven {
    /// Parked, due at once.
    Parked,
    /// Its id is known with this state, so that another message has it or its outcome is durable: it stays a
    /// dead letter.
    Known(InboxState),
    /// It has no id of its own (no usable one, or one that is another message's) and was given none: it stays
    /// a dead letter.
    NoId,
    /// There is no such dead letter (any more).
    Missing,
}

/// Who does something, and why; kept with every message it is done to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What rows of one command share.
    pub number: [u8; 16],
    /// Who: the user's name as the system knows it, or what was given.
    pub done_by: String,
    /// Why, in the operator's words.
    pub why: String,
}

/// What was done to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sent back.
    Redrive,
    /// Given up for good.
    Discard,
}

impl Action {
    /// Every action, for parsers.
    pub const ALL: [Self; 2] = [Self::Redrive, Self::Discard];

    /// The word kept in rows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    /// The action behind a row's word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }
}

/// Which lines of the audit are meant; everything that is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// What was done to this message.
    pub message: Option<DeadLetterKey>,
    /// What was done to messages with this id.
    pub id: Option<MessageId>,
    /// Only this.
    pub action: Option<Action>,
    /// At this time or later.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

/// One line of the audit; the newest comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its place; a page begins before one.
    pub number: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What was done.
    pub action: Action,
    /// The command it belongs to.
    pub operation: Operation,
    /// The message.
    pub dead_letter: DeadLetterKey,
    /// Its id, where it had one.
    pub id: Option<MessageId>,
}

/// What became of a parked message that an operator named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparked {
    /// What was asked for is done.
    Done,
    /// A worker is trying it now; nothing was done.
    Busy,
    /// There is no such parked message (any more).
    Missing,
}

/// One parked message, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRow {
    /// The message, and its last failure.
    pub message: DeadLetterRow,
    /// Since when it is parked, by the database's clock.
    pub parked_at: Timestamp,
    /// Not before this time, by the database's clock.
    pub due_at: Timestamp,
    /// How long until then, by the database's clock; zero: it is due.
    pub due_in: Duration,
    /// Set where the order of its key must hold.
    pub order_key: Option<OrderKey>,
    /// The first of its order key, where that is another one: this one waits for it.
    pub behind: Option<DeadLetterKey>,
}

/// One parked message in a list: everything but its bytes. Lists are in the order of parking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedSummary {
    /// Its place in the order of parking; a page begins behind one.
    pub seq: i64,
    /// What a list of dead letters would say of it; `failed_at` and the reason are its last failure's.
    pub message: DeadLetterSummary,
    /// Since when it is parked, by the database's clock.
    pub parked_at: Timestamp,
    /// Not before this time, by the database's clock, and not before those of its order key in front of it.
    pub due_at: Timestamp,
    /// How long until then, by the database's clock; zero: it is due, or would be but for one in front of it.
    pub due_in: Duration,
    /// Set where the order of its key must hold.
    pub order_key: Option<OrderKey>,
    /// The first of its order key, where that is another one: this one waits for it.
    pub behind: Option<DeadLetterKey>,
}

/// What of a consumer's messages has not come to its end, or to a bad one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// What waits for a retry.
    pub parked: ParkedStatus,
    /// How many dead letters there are; a store may stop at [`COUNTED_MAX`](handstamp_core::parked::COUNTED_MAX).
    pub dead_letters: u64,
}
