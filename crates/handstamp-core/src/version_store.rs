//! The seam to marks: the greatest version applied of each key, in the store.
//!
//! Authoritative: the store's row of a key, under its lock. Who raises a mark holds the lock until its
//! transaction ends, so that two processes with messages of one key go one after the other, and the second is
//! told what the first has applied.
//!
//! ```text
//!  claims ─► raise(greatest version of each key) ─► the marks before ─► what is newer runs ─► COMMIT: raised
//!                 │ waits for whoever has the key         └ stale: nothing runs          └─ ROLLBACK: as before
//!                 └ keys are locked in their order
//! ```

use crate::store::{ConsumerKey, Store, StoreError};
use crate::version::{Version, VersionKey};
use std::collections::BTreeMap;

/// A store that keeps marks.
pub trait VersionStore: Store {
    /// Raises marks as part of this transaction, each where the version given is greater than it and of its kind,
    /// and makes those that are not there yet. Answers what they were before, as this transaction sees them after
    /// it has waited for others that raise the same keys; keys without a mark are left out.
    ///
    /// # Errors
    /// As [`Store::record`]; the transaction must then be rolled back.
    fn raise_marks(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        versions: &BTreeMap<VersionKey, Version>,
    ) -> impl Future<Output = Result<BTreeMap<VersionKey, Version>, StoreError>> + Send;
}
