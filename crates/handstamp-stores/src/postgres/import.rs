//! Ids of a table that was used before, taken into the inbox as applied.
//!
//! Authoritative: the inbox's primary key, as for a claim. An id that is known stays as it is, so the same ids may be
//! taken again. What they did is done: there is no digest to compare, and no effect.

use super::failure::read_error;
use super::inbox::seconds_of;
use super::parked::{failed, no_answer};
use super::redrive::Typed;
use super::store::PostgresStore;
use handstamp_core::{ConsumerKey, MessageId, StoreError, Timestamp};
use std::collections::BTreeSet;
use tokio_postgres::types::Type;

impl PostgresStore {
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
        const WHAT: &str = "taking ids into the inbox";
        // In the order in which claims lock them.
        let stored: BTreeSet<Vec<u8>> = ids.iter().map(MessageId::to_stored).collect();
        let stored: Vec<Vec<u8>> = stored.into_iter().collect();
        let seen_at = seen_at.map(seconds_of);
        let (known, import) = (include_str!("sql/import_known.sql"), include_str!("sql/import_ids.sql"));
        let sql = self.schema().render(if dry_run { known } else { import }, "true");
        let mut parameters: Vec<Typed<'_>> = vec![(&consumer.id, Type::INT2), (&stored, Type::BYTEA_ARRAY)];
        if !dry_run {
            parameters.push((&seen_at, Type::INT4));
        }
        let count = self
            .with_slot(async |slot| {
                let client = slot.client();
                // A role may have it off, and who asks stops the old consumer by what is answered.
                client
                    .batch_execute("BEGIN; SET LOCAL synchronous_commit = on")
                    .await
                    .map_err(|e| failed(WHAT, e))?;
                let rows = client.query_typed(&sql, &parameters).await.map_err(|e| failed(WHAT, e))?;
                client.batch_execute("COMMIT").await.map_err(|e| failed(WHAT, e))?;
                let row = rows.first().ok_or_else(|| no_answer(WHAT))?;
                row.try_get::<_, i64>(0).map_err(read_error)
            })
            .await?;
        let count = u64::try_from(count).unwrap_or_default();
        let all = u64::try_from(stored.len()).unwrap_or(u64::MAX);
        Ok(if dry_run { all.saturating_sub(count) } else { count })
    }
}
