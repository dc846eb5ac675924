//! The seam to what is kept of a message that was given up: read again by its key.
//!
//! Authoritative: the dead letter's row. One that was sent back or discarded is not there any more.

use crate::parked::Dedup;
use crate::store::{ConsumerKey, DeadLetter, Store, StoreError};

/// A store that reads its dead letters back.
pub trait LetterStore: Store {
    /// The dead letter under this key, outside of any transaction. `None`: there is none (any more).
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    fn kept_letter(
        &self,
        consumer: &ConsumerKey,
        dedup: &Dedup,
    ) -> impl Future<Output = Result<Option<DeadLetter>, StoreError>> + Send;
}
