//! The seam to start records: what a process is about to hand to a handler, so that a message which kills the
//! process is found by whoever comes after it.
//!
//! Authoritative: the store's rows. A start record is written outside of the transaction that it announces and
//! has to survive the process, not a power cut. It is overwritten by the next one of its lane, ended when a lane
//! is left, and stays behind when the process dies.
//!
//! ```text
//!  start(lane, span) ─► BEGIN, claim, handler, COMMIT ─► start(lane, next span) … ─► end_starts
//!        └ the process dies: an orphan. Whoever gets the lane takes over:
//!            its message is known to the inbox ─► removed, nobody is charged
//!            it names one message alone        ─► a crash of that message, once an owner
//!            it names none alone               ─► nobody is charged; they run one by one until they are passed
//! ```
//!
//! Alone is what nothing else of its process runs beside: a message that had company, in its transaction or in
//! another lane, is not named.
//!
//! An owner that lost its lane and still lives withdraws: its crashes are taken back. That is why a crash names
//! its owner, and why taking over twice charges once. It gets [`PATIENCE`] for that: whoever finds a start of a
//! message alone that is not counted yet looks twice. Where lanes are shared by living processes (queues) an
//! orphan cannot be told from a neighbour's work, and no start is recorded.

use crate::letter_store::LetterStore;
use crate::message::Timestamp;
use crate::message_id::MessageId;
use crate::parked::{Dedup, ParkingStore, Taken};
use crate::store::{Begun, ClaimRequest, ConsumerKey, StoreError};
use crate::version_store::VersionStore;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the start of a message alone has to lie unchanged (message, owner and time) before it is counted, by the
/// clock of whoever finds it. An owner that lives has so long to say so: it withdraws as soon as a transaction of it
/// fails or a lane is lost.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// One run of a consumer in one process: random, so that no two are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub [u8; 16]);

impl Owner {
    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        for half in bytes.chunks_mut(8) {
            half.copy_from_slice(&RandomState::new().hash_one(std::process::id()).to_be_bytes());
        }
        Self(bytes)
    }
}

/// Who starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Starter {
    /// The run.
    pub owner: Owner,
    /// What the process is called in the history of a message.
    pub node: Arc<str>,
}

/// Whether something else of a process may run beside parked messages that it starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Company {
    /// Nothing: who dies with one of them alone died of it.
    #[default]
    None,
    /// Lanes: none of them is alone.
    Lanes,
}

/// Messages of one lane that are about to be handled in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Who.
    pub by: Starter,
    /// The lane's name.
    pub lane: Arc<str>,
    /// Position of the first message.
    pub first: i64,
    /// Position of the last message.
    pub last: i64,
    /// How many.
    pub count: u32,
    /// Its id, where it is one message alone, and nothing else of the process runs beside it.
    pub alone: Option<MessageId>,
}

/// A start whose owner did not end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// What was started, by whom.
    pub start: Start,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// A message's process died while it was alone in its start record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The message: [`DeadLetter::dedup_of_id`](crate::DeadLetter::dedup_of_id).
    pub dedup: Dedup,
    /// Who died.
    pub by: Starter,
    /// When it had started, by the store's clock.
    pub at: Timestamp,
    /// Counted by the call that tells it: nobody was told of it before.
    pub is_new: bool,
}

/// What an owner could not hold, though it lives: others may have counted it dead there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost<'a> {
    /// These lanes; of none, only the crashes are taken back.
    Lanes(&'a [Arc<str>]),
    /// The parked messages that it had started.
    Parked,
    /// All of it: at the end of a run.
    Everything,
}

/// What the former owners of lanes left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// In no order. They stay until they are forgotten, so that they are found again after the next crash.
    pub orphans: Vec<Orphan>,
    /// Every crash of the messages that orphans name alone, the oldest first.
    pub crashes: Vec<Crash>,
}

/// A store that keeps start records; the last of the seams that the engine asks a store for.
pub trait StartStore: ParkingStore + VersionStore + LetterStore {
    /// As [`begin`](crate::Store::begin), with a start record in front: an own transaction that is committed before the
    /// claim is answered, whatever becomes of it. It replaces that of the same owner and lane.
    ///
    /// # Errors
    /// As `begin`; nothing is open then, and the start may be recorded.
    fn start_and_begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
    ) -> impl Future<Output = Result<Begun<Self::Tx>, StoreError>> + Send;

    /// As [`commit_and_begin`](crate::Store::commit_and_begin), with a start record between both, or as part of what is
    /// committed. A store that opens nothing need not record it: the next begin does.
    ///
    /// # Errors
    /// As `commit_and_begin`, and where the start cannot be recorded; nothing is open then.
    fn commit_start_and_begin(
        &self,
        tx: Self::Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
        durable: oneshot::Sender<()>,
    ) -> impl Future<Output = Result<Option<Begun<Self::Tx>>, StoreError>> + Send {
        let _ = (consumer, ids, start);
        async move {
            self.commit(tx).await?;
            // Nobody may wait for it any more.
            let _ = durable.send(());
            Ok(None)
        }
    }

    /// What other owners left behind on these lanes. An orphan whose message alone has an inbox row is removed, and
    /// the crashes of that message with it unless it is parked; any other with a message alone is a crash of it, once
    /// an owner, after [`PATIENCE`]: the call waits for that. Taking over again answers the same, and nothing is new.
    ///
    /// # Errors
    /// `Unavailable`, `Conflict`, `NotMigrated`.
    fn take_over(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
    ) -> impl Future<Output = Result<TakenOver, StoreError>> + Send;

    /// Removes the start records of an owner: those of these lanes, or all of them, parked messages included.
    ///
    /// # Errors
    /// As [`take_over`](StartStore::take_over).
    fn end_starts(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lanes: Option<&[Arc<str>]>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes back what an owner that lives was taken for dead for: its start records of what it lost, and all
    /// crashes it was counted for. What it holds elsewhere stays started.
    ///
    /// # Errors
    /// As [`take_over`](StartStore::take_over).
    fn withdraw(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lost: Lost<'_>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes orphans whose lane has passed them.
    ///
    /// # Errors
    /// As [`take_over`](StartStore::take_over).
    fn forget(
        &self,
        consumer: &ConsumerKey,
        passed: &[(Arc<str>, Owner)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets the crashes of messages that this transaction brings to their end, or that are at it.
    ///
    /// # Errors
    /// As [`record`](crate::Store::record).
    fn absolve(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        decided: &[Dedup],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// As [`take_due`](ParkingStore::take_due), with start records for what is answered. A message that an owner had
    /// started and did not end is [`suspected`](crate::ParkedMessage::suspected) and answered alone: when it is the
    /// first that is due it is the only one, otherwise those in front of it are. Where that owner had started it
    /// alone, that is a crash of it, once an owner, after [`PATIENCE`]: the call waits for that, and holds nothing
    /// meanwhile. Each message says its [`crashes`](crate::ParkedMessage::crashes). `resume` ends the start records
    /// of the messages it writes, whoever started them, and those that it says applied or dead lose their crashes.
    ///
    /// # Errors
    /// As `take_due`; start records may be there all the same.
    fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
        company: Company,
    ) -> impl Future<Output = Result<Option<Taken<Self::Tx>>, StoreError>> + Send;

    /// As [`take_again`](ParkingStore::take_again), with start records for these rows in front, which replace those
    /// of the same owner for parked messages. What others had started alone is counted as by `start_due`.
    ///
    /// # Errors
    /// As `take_again`; start records may be there all the same.
    fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> impl Future<Output = Result<Taken<Self::Tx>, StoreError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_owners_are_alike() {
        let owners: HashSet<Owner> = (0..1_000).map(|_| Owner::random()).collect();
        assert_eq!(owners.len(), 1_000);
    }
}
