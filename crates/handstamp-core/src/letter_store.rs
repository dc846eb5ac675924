//! The seam to what is kept of a message that was given up: read again by its key.
//!
//! Authoritative: the dead letter's row. One that was sent back or discarded is not there any more.

use crate::parked::Dedup;
use crate::store::{ConsumerKey, DeadLetter, Store, StoreError};

/// A store that reads its dead letters back.
pub trait LetterStore: Store {
    /// The dead letters under these keys, outside of any transaction and in as few questions as the store can. The
    /// n-th answer belongs to the n-th key; `None`: there is none (any more).
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    fn kept_letters(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetter>>, StoreError>> + Send;
}
