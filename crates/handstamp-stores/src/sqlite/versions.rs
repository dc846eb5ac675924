//! Marks: the greatest version applied of each key.
//!
//! Authoritative: the table `handstamp_versions`. There is one writer, so the write lock of the file is the lock
//! of every mark: what a transaction reads of one stays so until it ends.
//!
//! ```text
//!  BEGIN IMMEDIATE ─► raise, key by key ─┬─ no row ─► inserted: no mark before ─┬─► COMMIT: raised
//!                                        └─ row: greater ─► written ────────────┴─► ROLLBACK: as before
//! ```

use super::failure::damaged;
use super::migrate::own_error;
use super::store::{SqliteStore, Tx};
use handstamp_core::version_store::VersionStore;
use handstamp_core::{ConsumerKey, ConsumerName, StoreError, Version, VersionKey};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;

const RAISE: &str = include_str!("sql/raise_mark.sql");
const MARK: &str = include_str!("sql/mark.sql");

impl VersionStore for SqliteStore {
    async fn raise_marks(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        versions: &BTreeMap<VersionKey, Version>,
    ) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
        tx.own(BTreeMap::new, |connection, _| raise(connection, consumer, versions))
    }
}

impl SqliteStore {
    /// The mark of a key: the greatest version applied of it.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn mark(
        &self,
        consumer: &ConsumerName,
        key: &VersionKey,
    ) -> Result<Option<Version>, StoreError> {
        self.read(|connection| {
            let failed = |e| own_error(connection, "reading a mark", e);
            let mut mark = connection.prepare_cached(MARK).map_err(failed)?;
            let found = mark.query_row(params![consumer.as_str(), key.0], |row| row.get(0));
            let found: Option<Vec<u8>> = found.optional().map_err(failed)?;
            found.as_deref().map(version_of).transpose()
        })
    }
}

/// Raises marks in the transaction that is open.
pub(super) fn raise(
    connection: &Connection,
    consumer: &ConsumerKey,
    versions: &BTreeMap<VersionKey, Version>,
) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
    let failed = |e| own_error(connection, "raising marks of versions", e);
    let mut raise = connection.prepare_cached(RAISE).map_err(failed)?;
    let mut before = BTreeMap::new();
    for (key, version) in versions {
        let values = params![consumer.id, key.0, version.as_bytes()];
        let mark: Option<Vec<u8>> = raise.query_row(values, |row| row.get(0)).map_err(failed)?;
        if let Some(mark) = mark {
            before.insert(*key, version_of(&mark)?);
        }
    }
    Ok(before)
}

fn version_of(bytes: &[u8]) -> Result<Version, StoreError> {
    Version::from_bytes(bytes)
        .ok_or_else(|| damaged("the mark of its version is not one this program writes"))
}
