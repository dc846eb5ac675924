//! Level 0 on a table of the user's own.

use super::classify::store_error;
use crate::own_table::OwnTable;
use handstamp_core::StoreError;
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

/// Claims an id on a table of your own: true exactly when this transaction is the one whose commit makes it known.
///
/// # Errors
/// `SchemaMismatch` where table and statement do not fit, such as a unique key that is missing; `Statement` for an id
/// that the column does not take; `Conflict`: run the transaction again; `Unavailable`, `Timeout`.
pub async fn claim_own(tx: &Transaction<'_>, table: &OwnTable, id: &str) -> Result<bool, StoreError> {
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![(&id, Type::TEXT)];
    let name = table.consumer();
    if let Some(name) = &name {
        parameters.push((name, Type::TEXT));
    }
    let inserted = tx.execute_typed(&table.postgres_sql(), &parameters).await;
    Ok(inserted.map_err(|e| store_error("claiming on a table of your own", e))? == 1)
}
