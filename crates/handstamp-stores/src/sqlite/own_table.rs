//! Level 0 on a table of the user's own.

use super::classify::store_error;
use crate::own_table::OwnTable;
use handstamp_core::StoreError;
use rusqlite::{Transaction, params};

/// Claims an id on a table of your own: true exactly when this transaction is the one whose commit makes it known.
/// Begin the transaction IMMEDIATE.
///
/// # Errors
/// As the other claims; a table without a unique key on the columns is refused by SQLite.
pub fn claim_own(tx: &mut Transaction<'_>, table: &OwnTable, id: &str) -> Result<bool, StoreError> {
    let failed = |e| store_error("claiming on a table of your own", e);
    let mut claim = tx.prepare_cached(&table.sqlite_sql()).map_err(failed)?;
    let inserted = match table.consumer() {
        Some(name) => claim.execute(params![id, name]),
        None => claim.execute(params![id]),
    };
    Ok(inserted.map_err(failed)? == 1)
}
