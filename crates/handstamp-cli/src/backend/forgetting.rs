//! What a store is asked before anything in it is forgotten.

use super::Backend;
use crate::config::Config;
use crate::exit::CliError;
use handstamp_core::parked::ParkingStore;
use handstamp_core::{ConsumerKey, ConsumerName, Fingerprint, MessageId, Store, StoreError, Timestamp};
use std::time::Duration;

/// A store that tells whether a name was ever used, and takes ids in.
pub(crate) trait Registered {
    /// Registers nothing.
    async fn is_registered(&self, name: &ConsumerName) -> Result<bool, StoreError>;

    /// Takes ids into the inbox as applied, or only counts them; how many were new.
    async fn import_ids(
        &self,
        consumer: &ConsumerKey,
        ids: &[MessageId],
        seen_at: Option<Timestamp>,
        dry_run: bool,
    ) -> Result<u64, StoreError>;
}

/// Both stores have the same methods.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
macro_rules! registered {
    ($store:ty) => {
        impl Registered for $store {
            async fn is_registered(&self, name: &ConsumerName) -> Result<bool, StoreError> {
                Ok(<$store>::consumer(self, name).await?.is_some())
            }

            async fn import_ids(
                &self,
                consumer: &ConsumerKey,
                ids: &[MessageId],
                seen_at: Option<Timestamp>,
                dry_run: bool,
            ) -> Result<u64, StoreError> {
                <$store>::import_ids(self, consumer, ids, seen_at, dry_run).await
            }
        }
    };
}

#[cfg(feature = "sqlite")]
registered!(handstamp_stores::sqlite::SqliteStore);
#[cfg(feature = "postgres")]
registered!(handstamp_stores::postgres::PostgresStore);

/// The consumer's number. `None`: nobody has used the name, so there is nothing of it.
///
/// # Errors
/// The name belongs to another source, or what the store answered.
pub(crate) async fn key<B: Backend>(
    store: &B::Store,
    config: &Config,
    fingerprint: &Fingerprint,
) -> Result<Option<ConsumerKey>, CliError> {
    if !store.is_registered(&config.name).await? {
        return Ok(None);
    }
    Ok(Some(store.register(&config.name, fingerprint, false).await?))
}

/// How long the oldest parked message has been waiting.
///
/// # Errors
/// What the store answered.
pub(crate) async fn oldest_parked<S: ParkingStore>(
    store: &S,
    consumer: &ConsumerKey,
) -> Result<Option<Duration>, StoreError> {
    Ok(store.parked_status(consumer).await?.oldest)
}
