//! Marks: the greatest version applied of each key.
//!
//! Authoritative: the table `versions` and the locks of its rows. Who raises a mark holds its row until the
//! transaction ends; whoever asks for the same key waits and reads what was committed, because an upsert reads
//! the row as it is and not as its statement's snapshot has it.
//!
//! ```text
//!  raise, keys in their order ─┬─ no row ─► inserted: no mark before ─────────────┬─► COMMIT: raised
//!                              └─ row: waits for its holder ─► greater ─► written ┴─► ROLLBACK: as before
//! ```

use super::config::SchemaName;
use super::connect::Slot;
use super::failure::read_error;
use super::inbox::GUARD;
use super::parked::{failed, no_answer};
use super::store::{PostgresStore, Tx};
use handstamp_core::version_store::VersionStore;
use handstamp_core::{ConsumerKey, ConsumerName, StoreError, StoreErrorKind, Version, VersionKey};
use std::collections::BTreeMap;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row, Statement};

const RAISING: &str = "raising marks of versions";

impl VersionStore for PostgresStore {
    async fn raise_marks(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        versions: &BTreeMap<VersionKey, Version>,
    ) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
        if versions.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.within(tx, RAISING, raise(&tx.slot, self.schema(), consumer.id, versions)).await
    }
}

impl PostgresStore {
    /// The mark of a key: the greatest version applied of it.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn mark(
        &self,
        consumer: &ConsumerName,
        key: &VersionKey,
    ) -> Result<Option<Version>, StoreError> {
        let sql = self.schema().render(include_str!("sql/mark.sql"), "true");
        let key = key.0.as_slice();
        self.with_slot(async |slot| {
            let rows = slot
                .client()
                .query_typed(&sql, &[(&consumer.as_str(), Type::TEXT), (&key, Type::BYTEA)])
                .await
                .map_err(|e| failed("reading a mark", e))?;
            rows.first().map(|row| version_of(row.try_get(0).map_err(read_error)?)).transpose()
        })
        .await
    }
}

async fn prepared<'a>(slot: &'a Slot, schema: &SchemaName) -> Result<&'a Statement, StoreError> {
    if slot.raise_marks.get().is_none() {
        let sql = schema.render(include_str!("sql/raise_marks.sql"), GUARD);
        let statement = slot.client().prepare(&sql).await.map_err(|e| failed(RAISING, e))?;
        // Two at once cannot be: a connection has one user.
        let _ = slot.raise_marks.set(statement);
    }
    slot.raise_marks.get().ok_or_else(|| no_answer(RAISING))
}

/// Raises marks in the transaction that is open on the slot.
pub(super) async fn raise(
    slot: &Slot,
    schema: &SchemaName,
    consumer: i16,
    versions: &BTreeMap<VersionKey, Version>,
) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
    let statement = prepared(slot, schema).await?;
    let (keys, greatest): (Vec<&[u8]>, Vec<&[u8]>) =
        versions.iter().map(|(key, version)| (key.0.as_slice(), version.as_bytes())).unzip();
    let client: &Client = slot.client();
    let rows = client.query(statement, &[&consumer, &keys, &greatest]).await;
    let rows = rows.map_err(|e| failed(RAISING, e))?;
    if rows.len() != keys.len() {
        let text = "marks of versions were raised outside of the transaction that was opened for them: what is durable is not known; nothing was settled";
        return Err(StoreError::new(StoreErrorKind::TransactionEnded, text));
    }
    let mut before = BTreeMap::new();
    for row in &rows {
        let (key, mark) = mark_of(row)?;
        before.extend(mark.map(|mark| (key, mark)));
    }
    Ok(before)
}

fn mark_of(row: &Row) -> Result<(VersionKey, Option<Version>), StoreError> {
    let key: &[u8] = row.try_get(0).map_err(read_error)?;
    let key = <[u8; 16]>::try_from(key).map_err(|_| strange())?;
    let mark: Option<&[u8]> = row.try_get(1).map_err(read_error)?;
    Ok((VersionKey(key), mark.map(version_of).transpose()?))
}

fn version_of(bytes: &[u8]) -> Result<Version, StoreError> {
    Version::from_bytes(bytes).ok_or_else(strange)
}

fn strange() -> StoreError {
    let message = "a mark of a version is not one this program writes: update the program";
    StoreError::new(StoreErrorKind::SchemaMismatch, message)
}
