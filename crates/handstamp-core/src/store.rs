//! The seam to a database: claim, handle, record, commit, in one transaction.
//!
//! Authoritative: the store's unique key on (consumer, id). It alone decides between First and
//! Duplicate; no lock, cache or clock does.
//!
//! ```text
//!  begin(ids) ─► claims ─► handlers write through Tx ─► record(dead letters) ─► commit ─► durable
//!     │                        │                              │                    └─ no answer: unknown, run again
//!     └── error: nothing open  └── failure: rollback, or abandon when a statement may still run
//! ```

pub use crate::failure_class::FailureClass;
use crate::message::{Record, Timestamp, Truncation};
use crate::message_id::MessageId;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The name of a consumer: a namespace of inbox ids the user chose. `[A-Za-z0-9._-]{1,64}`.
///
/// A checked text that no database knows of yet: [`Consumer::builder`](crate::Consumer::builder) takes it and
/// registers it by itself. Level 0 registers first: `postgres::ConsumerName` and `sqlite::ConsumerName` are
/// this name *registered in one database*, made by their `register(&client, "wallet")`, and what their `claim`
/// takes. The same text is the same consumer whichever way it was registered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerName(Arc<str>);

/// The name holds something else than 1 to 64 of `A-Z a-z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no consumer name: use 1 to 64 of A-Z a-z 0-9 . _ -")]
pub struct NameError(pub String);

impl ConsumerName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NameError`] when it does not match `[A-Za-z0-9._-]{1,64}`.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(NameError(name.chars().take(80).collect()));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a consumer reads, so that the same name is not used for two streams by mistake.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A registered consumer: the small number that inbox rows carry, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsumerKey {
    /// The number in the store.
    pub id: i16,
    /// The name.
    pub name: ConsumerName,
}

/// One id to claim, with the digest that tells reuse from redelivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The message's id.
    pub id: MessageId,
    /// Digest of its value; `None` leaves reuse unnoticed.
    pub digest: Option<i64>,
}

/// What is known of an id that was claimed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InboxState {
    /// Its effect is committed.
    Applied,
    /// It waits for a retry.
    Parked,
    /// It is a dead letter.
    Dead,
    /// An operator gave it up.
    Discarded,
}

impl InboxState {
    /// The single letter that rows carry.
    #[must_use]
    pub fn as_letter(self) -> char {
        match self {
            Self::Applied => 'a',
            Self::Parked => 'p',
            Self::Dead => 'd',
            Self::Discarded => 'x',
        }
    }

    /// The state behind a row's letter.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        match letter {
            'a' => Some(Self::Applied),
            'p' => Some(Self::Parked),
            'd' => Some(Self::Dead),
            'x' => Some(Self::Discarded),
            _ => None,
        }
    }

    /// The word for people and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
        }
    }
}

/// The answer to one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// Ours, as soon as this transaction commits.
    First,
    /// Its outcome is durable elsewhere: skip and settle.
    Duplicate {
        /// What became of it.
        state: InboxState,
        /// When the row was written (seconds kept).
        first_seen: Timestamp,
    },
    /// The id is known with another body: a conflict, not a redelivery.
    IdReused {
        /// What became of the message that had the id first.
        state: InboxState,
        /// When the row was written (seconds kept).
        first_seen: Timestamp,
    },
}

/// A failure's reason: valid text without NUL, at most [`Reason::MAX_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    /// Longest reason kept.
    pub const MAX_BYTES: usize = 2048;

    /// Bounds a text: control characters but newline and tab are escaped, the rest is cut at a
    /// character's end.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let limit = Self::MAX_BYTES - '…'.len_utf8();
        let mut out = String::with_capacity(text.len().min(Self::MAX_BYTES));
        for c in text.chars() {
            let before = out.len();
            if c.is_control() && c != '\n' && c != '\t' {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
            if out.len() > limit {
                out.truncate(before);
                out.push('…');
                break;
            }
        }
        Self(out)
    }

    /// The reason of an error and of the errors behind it, outermost first.
    #[must_use]
    pub fn from_error(error: &(dyn Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut next = error.source();
        let mut depth = 0;
        while let Some(inner) = next
            && depth < 16
        {
            if let Some(added) = crate::chain::added(&text, &inner.to_string()) {
                text.push_str(": ");
                text.push_str(&added);
            }
            next = inner.source();
            depth += 1;
        }
        Self::new(&text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A message that is given up for now, with everything an operator needs to send it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The id, where it is usable.
    pub id: Option<MessageId>,
    /// Digest of the value.
    pub digest: i64,
    /// Key, value, headers and origin, byte for byte.
    pub record: Record,
    /// Set when the value is only a prefix.
    pub truncation: Option<Truncation>,
    /// Why.
    pub class: FailureClass,
    /// SQLSTATE or the database's own code, where there was one.
    pub code: Option<String>,
    /// One bounded reason.
    pub reason: Reason,
    /// Attempts that failed; 0 where no handler ran.
    pub attempts: u32,
    /// When this process received it.
    pub received_at: Timestamp,
    /// When it was given up.
    pub failed_at: Timestamp,
}

impl DeadLetter {
    /// The unique key of the dead letter within its consumer: a redelivered bad message meets its own
    /// row. BLAKE3-128 over the kind and the id (normal), the id and the record's digest (id reused),
    /// or the origin and the record's digest (no usable id).
    #[must_use]
    pub fn dedup(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        match (&self.id, self.class) {
            (Some(id), FailureClass::IdReused) => {
                hasher.update(b"reused\0").update(&self.digest.to_be_bytes()).update(id.as_bytes());
            }
            (Some(id), _) => return Self::dedup_of_id(id),
            (None, _) => {
                let origin = &self.record.origin;
                hasher.update(b"origin\0").update(&self.record_digest());
                hasher.update(&origin.partition.to_be_bytes()).update(&origin.offset.to_be_bytes());
                hasher.update(origin.topic.as_bytes());
            }
        }
        first_half(&hasher)
    }

    /// The key of the dead letter that an id's own message becomes: where to look for the reason when the
    /// inbox says `dead`.
    #[must_use]
    pub fn dedup_of_id(id: &MessageId) -> [u8; 16] {
        first_half(blake3::Hasher::new().update(b"id\0").update(id.as_bytes()))
    }

    /// True when the inbox row of the same transaction must say `dead`.
    #[must_use]
    pub fn marks_inbox(&self) -> bool {
        self.id.is_some() && self.class != FailureClass::IdReused
    }

    fn record_digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: Option<&[u8]>| {
            let length = bytes.map_or(u64::MAX, |b| b.len() as u64);
            hasher.update(&length.to_be_bytes()).update(bytes.unwrap_or(&[]));
        };
        field(self.record.key.as_deref());
        match &self.truncation {
            Some(truncation) => field(Some(&truncation.blake3)),
            None => field(self.record.value.as_deref()),
        }
        for header in self.record.headers.as_slice() {
            field(Some(&header.name));
            field(header.value.as_deref());
        }
        *hasher.finalize().as_bytes()
    }
}

fn first_half(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    half
}

/// What became of a dead letter in `record`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// A new row.
    New,
    /// Its row was there: the bad message was redelivered.
    Known,
}

/// What a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCapabilities {
    /// How many transactions may write at once; `None` is unbounded.
    pub writers_max: Option<usize>,
}

/// The kind decides what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Away, read-only, full or out of connections: pause intake, no attempt charged.
    Unavailable,
    /// Serialization, deadlock, lock timeout, busy: run the transaction again, no attempt charged.
    Conflict,
    /// Our own statement timeout: run again in claim and commit; a handler timeout in a handler.
    Timeout,
    /// A statement does not fit the schema: prepare again, then pause like `Unavailable`.
    SchemaMismatch,
    /// Our tables are missing or of another version: refuse to start (exit code 4).
    NotMigrated,
    /// The consumer is not registered.
    UnknownConsumer,
    /// The consumer is registered with another fingerprint.
    FingerprintMismatch,
    /// An id is longer than the store keeps.
    TooLong,
    /// The message's own failure: a data or constraint error, a raised exception.
    Statement,
    /// The server had rolled back: a handler swallowed an SQL error. The message's own failure.
    Swallowed,
    /// A handler ended the transaction itself: what is durable is not known. Refuse to go on.
    TransactionEnded,
    /// Wrong configuration.
    Config,
}

/// A store's error: the kind carries the decision, the chain the driver's error.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoreError {
    /// Decides what happens next.
    pub kind: StoreErrorKind,
    /// What happened and what to do, one line, no secret.
    pub message: String,
    /// The driver's error.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a line for a person.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with the driver's error behind it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|e| e.as_ref() as _)
    }
}

/// What a database says of an error that a handler returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Decides what happens next.
    pub kind: StoreErrorKind,
    /// SQLSTATE or the database's own code.
    pub code: Option<String>,
}

/// An open transaction, and the n-th claim of its n-th id.
pub type Begun<Tx> = (Tx, Vec<Claim>);

/// A database that keeps the inbox, the dead letters and the user's own tables together.
///
/// A `Tx` that did not end by `commit`, `rollback` or `abandon` closes its connection when dropped;
/// its claims and effects are rolled back by the server.
pub trait Store: Send + Sync + 'static {
    /// An open transaction, owned; handlers write through it.
    type Tx: Send + 'static;

    /// What this store can do.
    fn capabilities(&self) -> StoreCapabilities;

    /// Registers a consumer name (idempotent, no DDL). Another fingerprint under the same name is
    /// refused unless `adopt`.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`, `FingerprintMismatch`.
    fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> impl Future<Output = Result<ConsumerKey, StoreError>> + Send;

    /// Opens a transaction and claims every id in it, in one flight. The n-th claim answers the n-th
    /// request; the same id twice is answered First, then Duplicate (or `IdReused`).
    ///
    /// # Errors
    /// `Unavailable`, `Conflict`, `UnknownConsumer`, `TooLong`, `NotMigrated`; nothing is open then.
    fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> impl Future<Output = Result<(Self::Tx, Vec<Claim>), StoreError>> + Send;

    /// Writes dead letters, and `dead` into the inbox rows that this transaction claimed for them. The
    /// n-th answer belongs to the n-th row.
    ///
    /// # Errors
    /// As `begin`; the transaction must then be rolled back.
    fn record(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> impl Future<Output = Result<Vec<Recorded>, StoreError>> + Send;

    /// Commits, guarded: Ok means that everything written through `tx` is durable.
    ///
    /// # Errors
    /// `Unavailable`: the outcome is unknown, run the batch again. `Conflict`, `Timeout`: rolled back.
    /// `Swallowed`: the server had rolled back. `TransactionEnded`: a handler ended it. `Statement`: a
    /// deferred constraint failed.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Commits as [`commit`](Store::commit) does and opens the next transaction: a store whose server is a
    /// round trip away sends both at once. `durable` is told as soon as the commit is durable, before the
    /// next claims are answered. Ok without a transaction: nothing is open, [`begin`](Store::begin) opens the
    /// next one and says what is in the way. That is what a store does that gains nothing.
    ///
    /// # Errors
    /// Those of `commit`; nothing is open then.
    fn commit_and_begin(
        &self,
        tx: Self::Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        durable: oneshot::Sender<()>,
    ) -> impl Future<Output = Result<Option<Begun<Self::Tx>>, StoreError>> + Send {
        let _ = (consumer, ids);
        async move {
            self.commit(tx).await?;
            // Nobody may wait for it any more.
            let _ = durable.send(());
            Ok(None)
        }
    }

    /// Rolls back a transaction on which no statement is running.
    ///
    /// # Errors
    /// `Unavailable`: the connection is closed; the server rolls back by itself.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a transaction on which a statement may still run: cancels it, rolls back within a short
    /// limit and closes the connection, so that its locks are free at once.
    fn abandon(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// What the database says of an error that came out of a handler; walks the error's sources.
    /// `None`: no database error.
    fn classify(&self, tx: &Self::Tx, error: &(dyn Error + 'static)) -> Option<Fault>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "wallet", "A.b_c-9", &"x".repeat(64)] {
            assert!(ConsumerName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a:b", "é", &"x".repeat(65)] {
            assert!(ConsumerName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reasons_are_bounded_valid_text_without_nul() {
        let reason = Reason::new(&format!("a\0b{}", "é".repeat(5000)));
        assert!(reason.as_str().len() <= Reason::MAX_BYTES);
        assert!(!reason.as_str().contains('\0'));
        assert!(reason.as_str().ends_with('…'));
    }

    #[test]
    fn letters_and_words_come_back() {
        for state in [InboxState::Applied, InboxState::Parked, InboxState::Dead, InboxState::Discarded] {
            assert_eq!(InboxState::from_letter(state.as_letter()), Some(state));
        }
    }
}
