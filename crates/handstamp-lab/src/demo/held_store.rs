//! A store around ours that holds the process right after the commit of one message: what the broker was to
//! be told next is not told any more.

use super::consumers::hold_here;
use handstamp::sqlite::{SqliteStore, Tx};
use handstamp::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fault, Fingerprint, Recorded, Store,
    StoreCapabilities, StoreError, StoreErrorKind,
};
use std::error::Error;
use std::sync::Mutex;
use std::sync::PoisonError;

/// Passes everything on; holds once.
pub(super) struct HeldStore {
    inner: SqliteStore,
    hold: Option<String>,
    /// The ids of the open transaction.
    open: Mutex<Vec<String>>,
}

impl HeldStore {
    /// Holds after the commit of the message with this id.
    pub(super) fn new(inner: SqliteStore, hold: Option<String>) -> Self {
        Self { inner, hold, open: Mutex::default() }
    }
}

impl Store for HeldStore {
    type Tx = Tx;

    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> Result<ConsumerKey, StoreError> {
        self.inner.register(name, fingerprint, adopt).await
    }

    async fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(Tx, Vec<Claim>), StoreError> {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) =
            ids.iter().map(|request| request.id.to_string()).collect();
        self.inner.begin(consumer, ids).await
    }

    async fn record(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.inner.record(tx, consumer, rows).await
    }

    async fn commit(&self, tx: Tx) -> Result<(), StoreError> {
        self.inner.commit(tx).await?;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match &self.hold {
            Some(id) if open.contains(id) => hold_here(id)
                .map_err(|error| StoreError::new(StoreErrorKind::Config, format!("holding: {error}"))),
            _ => Ok(()),
        }
    }

    async fn rollback(&self, tx: Tx) -> Result<(), StoreError> {
        self.inner.rollback(tx).await
    }

    async fn abandon(&self, tx: Tx) {
        self.inner.abandon(tx).await;
    }

    fn classify(&self, tx: &Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        self.inner.classify(tx, error)
    }
}
