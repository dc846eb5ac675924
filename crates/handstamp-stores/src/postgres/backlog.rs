//! What of a consumer's messages has not come to its end, or to a bad one: counted for people.
//!
//! Authoritative: the rows, in one snapshot.

use super::failure::read_error;
use super::parked::status_of;
use super::redrive::Typed;
use super::store::PostgresStore;
use crate::redrive::Backlog;
use handstamp_core::parked::COUNTED_MAX;
use handstamp_core::{ConsumerName, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

impl PostgresStore {
    /// How much is parked and how much was given up, each counted up to [`COUNTED_MAX`]; nothing of a consumer that
    /// is not known.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn backlog(&self, consumer: &ConsumerName) -> Result<Backlog, StoreError> {
        let sql = self.schema().render(include_str!("sql/backlog.sql"), "true");
        let count_max = i64::try_from(COUNTED_MAX).unwrap_or(i64::MAX);
        let parameters: [Typed<'_>; 2] = [(&consumer.as_str(), Type::TEXT), (&count_max, Type::INT8)];
        let rows = self.read("counting what waits and what was given up", &sql, &parameters).await?;
        rows.first().map_or_else(|| Ok(Backlog::default()), |row| backlog_of(row).map_err(read_error))
    }
}

fn backlog_of(row: &Row) -> Result<Backlog, tokio_postgres::Error> {
    let dead_letters = u64::try_from(row.try_get::<_, i64>(3)?).unwrap_or_default();
    Ok(Backlog { parked: status_of(row)?, dead_letters })
}
