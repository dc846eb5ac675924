//! What holds the process right after the commit of one message: what the broker was to be told next is not
//! told any more.

use super::consumers::hold_here;
use crate::bent::{StoreBend, begin};
use handstamp::{Claim, ClaimRequest, ConsumerKey, Start, StartStore, StoreError, StoreErrorKind};
use std::sync::{Mutex, PoisonError};

/// Passes everything on; holds once.
pub(super) struct HoldAfter {
    id: Option<String>,
    /// The ids of the open transaction.
    open: Mutex<Vec<String>>,
}

impl HoldAfter {
    /// Holds after the commit of the message with this id.
    pub(super) fn new(id: Option<String>) -> Self {
        Self { id, open: Mutex::default() }
    }
}

impl<S: StartStore> StoreBend<S> for HoldAfter {
    async fn begin(
        &self,
        store: &S,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
    ) -> Result<(S::Tx, Vec<Claim>), StoreError> {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) =
            ids.iter().map(|request| request.id.to_string()).collect();
        begin(store, consumer, ids, start).await
    }

    async fn commit(&self, store: &S, tx: S::Tx) -> Result<(), StoreError> {
        store.commit(tx).await?;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match &self.id {
            Some(id) if open.contains(id) => hold_here(id)
                .map_err(|error| StoreError::new(StoreErrorKind::Config, format!("holding: {error}"))),
            _ => Ok(()),
        }
    }
}
