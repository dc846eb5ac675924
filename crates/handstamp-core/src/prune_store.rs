//! The seam to forgetting: old ids, and what belongs to them, deleted in batches.
//!
//! Authoritative: the store's clock and the state of a row under its lock. Only rows in state applied or discarded
//! are deleted. Those of parked and dead messages stay, however old: a retry or a redrive has to find them. Each step
//! is a transaction of its own that waits for nobody's lock, so that several processes may delete at once and no
//! claim waits longer than one step takes.
//!
//! ```text
//!  applied, discarded ─┬─ younger ─► stays
//!                      └─ older ───► deleted: the id may come again, and is then First
//!  parked, dead ─────────────────► stays
//! ```

use crate::message::Timestamp;
use crate::store::{ConsumerKey, Store, StoreError};
use std::time::Duration;

/// Where the next step goes on. What is inside is the store's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneCursor(pub Vec<u8>);

/// What one step deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneStep {
    /// Rows.
    pub deleted: u64,
    /// Where the next step goes on. `None`: there was nothing more.
    pub next: Option<PruneCursor>,
}

/// A store that forgets.
pub trait PruneStore: Store {
    /// Deletes at most `max` inbox rows of the consumer that were first seen longer than `older_than` ago, in state
    /// applied or discarded. A row that somebody holds is passed over. Fewer than `max` may go although there are
    /// more: the answer's `next` says whether there are.
    ///
    /// # Errors
    /// `Unavailable`, `Conflict`, `Timeout`: nothing was deleted, ask again later; `NotMigrated`, `SchemaMismatch`
    /// where the role lacks the right to delete.
    fn prune_ids(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
        from: Option<&PruneCursor>,
    ) -> impl Future<Output = Result<PruneStep, StoreError>> + Send;

    /// Deletes at most `max` failed attempts of the consumer that are older than that, of messages that are neither
    /// parked nor dead. How many went.
    ///
    /// # Errors
    /// As [`prune_ids`](Self::prune_ids).
    fn prune_attempts(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// How many inbox rows would go, counted to at most `max`; deletes nothing.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    fn prunable(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Ids that were first seen before this time may be forgotten. `None`: nothing was ever deleted.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    fn forgotten_before(
        &self,
        consumer: &ConsumerKey,
    ) -> impl Future<Output = Result<Option<Timestamp>, StoreError>> + Send;
}
