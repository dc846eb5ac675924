//! A dry run: transactions that are registered in, claimed in and written to like any other, and never committed.
//!
//! Authoritative: the same functions that a run calls. A file that is new, or holds no table yet, is tried on one
//! made beside it, as the rehearsal does.

use super::config::SqliteOptions;
use super::connect::refuse_read_only;
use super::rehearse::{Beside, is_new};
use super::store::{SqliteStore, Tx, claimed};
use super::{connect::refuse_path, inbox};
use handstamp_core::{Begun, ClaimRequest, ConsumerKey, ConsumerName, Fingerprint, StoreError};

/// A store of which nothing stays.
#[derive(Debug)]
pub struct DryStore {
    /// Where transactions are opened with [`SqliteStore::begin_dry`].
    pub store: SqliteStore,
    /// The tables were made for this run alone: nothing is known yet of any message.
    pub is_new: bool,
    _beside: Option<Beside>,
}

impl SqliteStore {
    /// Opens the file as [`SqliteStore::open`] does; one that is new is left alone, and a file beside it used, which
    /// goes when the answer is dropped.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub async fn open_dry(options: SqliteOptions) -> Result<DryStore, StoreError> {
        refuse_path(&options.path)?;
        if !is_new(&options)? {
            let store = Self::open(SqliteOptions { migrate_new: false, ..options }).await?;
            return Ok(DryStore { store, is_new: false, _beside: None });
        }
        let beside = Beside::of(&options.path);
        // Whoever reads an error knows only the file that was named.
        let (made, named) = (beside.path().display().to_string(), options.path.display().to_string());
        let scratch = SqliteOptions { path: beside.path().to_owned(), migrate_new: true, ..options };
        let opened = Self::open(scratch).await.map_err(|mut error| {
            error.message = error.message.replace(&made, &named);
            error
        });
        Ok(DryStore { store: opened?, is_new: true, _beside: Some(beside) })
    }

    /// Opens a transaction, registers the consumer and claims the ids in it. It must be rolled back.
    ///
    /// # Errors
    /// As `register` and `begin`; nothing is open then.
    pub async fn begin_dry(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
        ids: &[ClaimRequest],
    ) -> Result<(ConsumerKey, Begun<Tx>), StoreError> {
        let held = self.lock().await?;
        let registered = refuse_read_only(held.connection(), &held.slot.options.path)
            .and_then(|()| inbox::register(held.connection(), name, fingerprint, adopt));
        match registered {
            Ok(consumer) => claimed(held, &consumer, ids).map(|begun| (consumer, begun)),
            Err(error) => {
                let _ = held.roll_back();
                Err(error)
            }
        }
    }
}
