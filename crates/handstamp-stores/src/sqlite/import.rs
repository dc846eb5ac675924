//! Ids of a table that was used before, taken into the inbox as applied.
//!
//! Authoritative: the inbox's primary key, as for a claim. An id that is known stays as it is, so the same ids may be
//! taken again. What they did is done: there is no digest to compare, and no effect.

use super::inbox::seconds_of;
use super::migrate::own_error;
use super::store::SqliteStore;
use handstamp_core::{ConsumerKey, MessageId, StoreError, Timestamp};
use rusqlite::params;
use std::collections::BTreeSet;

const IMPORT: &str = include_str!("sql/import_id.sql");
const KNOWN: &str = include_str!("sql/import_known.sql");

impl SqliteStore {
    /// Takes ids into the consumer's inbox, as applied and first seen then (`None`: now), in one transaction; how many
    /// were new. With `dry_run` they are only counted.
    ///
    /// # Errors
    /// `Conflict`, `Unavailable`: nothing was taken, or it is not known; the same again does no harm. `NotMigrated`.
    pub async fn import_ids(
        &self,
        consumer: &ConsumerKey,
        ids: &[MessageId],
        seen_at: Option<Timestamp>,
        dry_run: bool,
    ) -> Result<u64, StoreError> {
        // In the order of the key, so that neighbours are written together.
        let stored: BTreeSet<Vec<u8>> = ids.iter().map(MessageId::to_stored).collect();
        let seen_at = seen_at.map(seconds_of);
        if dry_run {
            return self.read(|connection| {
                let failed = |e| own_error(connection, "looking for ids", e);
                let mut known = connection.prepare_cached(KNOWN).map_err(failed)?;
                let mut new = 0;
                for id in &stored {
                    let is_known: bool =
                        known.query_row(params![id, consumer.id], |row| row.get(0)).map_err(failed)?;
                    new += u64::from(!is_known);
                }
                Ok(new)
            });
        }
        self.write(|connection| {
            let failed = |e| own_error(connection, "taking ids into the inbox", e);
            let mut import = connection.prepare_cached(IMPORT).map_err(failed)?;
            let mut new = 0;
            for id in &stored {
                let inserted = import.execute(params![id, consumer.id, seen_at]).map_err(failed)?;
                new += u64::try_from(inserted).unwrap_or_default();
            }
            Ok(new)
        })
        .await
    }
}
