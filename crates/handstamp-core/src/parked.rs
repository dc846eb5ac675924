//! The seam to what waits for a retry: park, take what is due, say what became of it.
//!
//! Authoritative: the store's rows and the store's clock. A parked message is a row with all its bytes; its
//! inbox row says `parked`. Who takes it holds the row's lock in an open transaction, which is all the fence
//! that is needed: a worker that dies or freezes loses the lock with its connection and can commit nothing.
//!
//! ```text
//!  park (with the claim's commit) ─► parked, due ─► take ─► handled ─► resume(Applied) ─┐
//!                                       ▲                      └ fails ─► resume(Again) ─┤ commit
//!                                       │                              └► resume(Dead) ──┤
//!                                       └─ Again: due later ◄────────────────────────────┘
//! ```
//!
//! Parked rows of one order key are due one after the other, in the order in which they were parked.

use crate::message::Timestamp;
use crate::store::{ConsumerKey, DeadLetter, FailureClass, Reason, Recorded, Store, StoreError};
use std::time::Duration;

/// The unique key of a parked message or dead letter within its consumer ([`DeadLetter::dedup`]).
pub type Dedup = [u8; 16];

/// What messages must share to be kept in order: BLAKE3-128 of topic and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderKey(pub [u8; 16]);

impl OrderKey {
    /// The order key of a record; `None` for a null key, which has no order.
    #[must_use]
    pub fn of(record: &crate::message::Record) -> Option<Self> {
        let key = record.key.as_deref()?;
        let mut hasher = blake3::Hasher::new();
        let topic = record.origin.topic.as_bytes();
        hasher.update(&(topic.len() as u64).to_be_bytes()).update(topic).update(key);
        let mut half = [0; 16];
        half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Some(Self(half))
    }
}

/// One failed attempt, for the history of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    /// When it failed, by the clock of the process.
    pub at: Timestamp,
    /// The process: host and process id.
    pub node: String,
    /// Why.
    pub class: FailureClass,
    /// SQLSTATE or the database's own code, where there was one.
    pub code: Option<String>,
    /// One bounded reason.
    pub reason: Reason,
}

/// A message to be kept for a later retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Park {
    /// The message and its last failure, as a dead letter would have them. A message that waits only behind
    /// another of its order key has class [`FailureClass::Waiting`] and no attempts.
    pub letter: DeadLetter,
    /// Not before this wait, counted by the store's clock from the commit's statement on.
    pub wait: Duration,
    /// Set where the order of its key must hold.
    pub order_key: Option<OrderKey>,
}

/// A parked message that this transaction has locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedMessage {
    /// Its key.
    pub dedup: Dedup,
    /// The message and its last failure.
    pub letter: DeadLetter,
    /// Since when it is parked, by the store's clock; a redrive parks anew.
    pub parked_at: Timestamp,
    /// How long ago that was, by the store's clock.
    pub parked_for: Duration,
    /// Set where the order of its key must hold.
    pub order_key: Option<OrderKey>,
    /// How often a process died while it handled this message alone, the oldest first; told by
    /// [`start_due`](crate::StartStore::start_due) and [`start_again`](crate::StartStore::start_again), otherwise
    /// empty.
    pub crashes: Vec<crate::start::Crash>,
    /// Another owner had started it and did not end it; told as `crashes` are.
    pub suspected: bool,
}

/// What became of a parked message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// Its effect is part of this transaction: the inbox says `applied`, the row goes.
    Applied,
    /// It failed again: due after the wait, with one attempt more.
    Again {
        /// Not before this wait.
        wait: Duration,
        /// The failure.
        failed: FailedAttempt,
    },
    /// Given up: the row becomes a dead letter, the inbox says `dead`.
    Dead {
        /// The failure; `charged` is false where no handler ran.
        failed: FailedAttempt,
        /// Whether it counts as an attempt, and so belongs to the history.
        charged: bool,
    },
}

/// A store need not count further: how many parked messages are told apart from more.
pub const COUNTED_MAX: u64 = 1_000_000;

/// Failed attempts of a message that are kept; those beyond them are counted, and the last one's reason stands in
/// the message's own row.
pub const HISTORY_MAX: usize = 100;

/// What a consumer has parked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParkedStatus {
    /// Rows; a store may stop at [`COUNTED_MAX`].
    pub count: u64,
    /// How long until the first is due (zero: it is); rows that wait behind others of their order key are
    /// left out. `None`: none can become due.
    pub due_in: Option<Duration>,
    /// How long the oldest has been parked.
    pub oldest: Option<Duration>,
}

/// An open transaction, and the parked messages that it has locked.
pub type Taken<Tx> = (Tx, Vec<ParkedMessage>);

/// A store that keeps messages for a retry.
pub trait ParkingStore: Store {
    /// Keeps messages for a later retry, and says `parked` in the inbox rows that this transaction claimed
    /// for them. The n-th answer belongs to the n-th row; rows are parked in their order.
    ///
    /// # Errors
    /// As [`Store::record`]; the transaction must then be rolled back.
    fn park(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        rows: &[Park],
    ) -> impl Future<Output = Result<Vec<Recorded>, StoreError>> + Send;

    /// Adds failed attempts to the history of messages that this transaction parks or gives up; to a history that
    /// has [`HISTORY_MAX`] none.
    ///
    /// # Errors
    /// As [`Store::record`].
    fn note_attempts(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        attempts: &[(Dedup, FailedAttempt)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Of these order keys, which have a parked message now. Sees what was committed while this transaction's
    /// claims waited, and what it parked itself. The n-th answer belongs to the n-th key.
    ///
    /// # Errors
    /// As [`Store::begin`]; the transaction must then be rolled back.
    fn parked_keys(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        keys: &[OrderKey],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Opens a transaction and locks at most `max` rows that are due and that nobody else has locked, the
    /// longest due first, of an order key only the one that was parked first. `None`, and nothing is open:
    /// there is none.
    ///
    /// # Errors
    /// As [`Store::begin`]; nothing is open then.
    fn take_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
    ) -> impl Future<Output = Result<Option<Taken<Self::Tx>>, StoreError>> + Send;

    /// Opens a transaction and locks these rows again, due or not, those that are still there and that nobody
    /// else has locked, in the order given.
    ///
    /// # Errors
    /// As [`Store::begin`]; nothing is open then.
    fn take_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> impl Future<Output = Result<Taken<Self::Tx>, StoreError>> + Send;

    /// From here on what a handler writes for one message can be taken back alone. What was written since the last
    /// one of the transaction stays with it, whatever is taken back later.
    ///
    /// # Errors
    /// `Swallowed`: a statement since the last one had failed, and the handler said nothing; that message's work can
    /// be taken back. `TransactionEnded`: a handler ended the transaction itself. Otherwise as [`Store::record`].
    fn savepoint(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes back what was written since the last savepoint, which stays. The locks of rows taken before it are kept.
    ///
    /// # Errors
    /// The transaction must then be abandoned.
    fn take_back(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes what became of rows that this transaction has locked.
    ///
    /// # Errors
    /// As [`Store::record`]; the transaction must then be rolled back.
    fn resume(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        outcomes: &[(Dedup, Resumed)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How much is parked and when something is due, outside of any transaction.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    fn parked_status(
        &self,
        consumer: &ConsumerKey,
    ) -> impl Future<Output = Result<ParkedStatus, StoreError>> + Send;
}
