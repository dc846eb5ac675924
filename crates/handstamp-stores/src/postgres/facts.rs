//! What the server is and how it is set up, for `check`.

use super::classify::store_error;
use super::store::PostgresStore;
use handstamp_core::StoreError;
use tokio_postgres::types::Type;

/// How a server is set up, for `check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version_num`, as 180006.
    pub version_num: i32,
    /// `fsync`: off loses committed transactions in a crash.
    pub fsync: bool,
    /// `full_page_writes`: off can tear pages in a crash.
    pub full_page_writes: bool,
    /// `synchronous_commit` of this role in this database; `off` is raised by every commit of ours.
    pub synchronous_commit: String,
    /// True on a standby, which takes no claims.
    pub in_recovery: bool,
    /// `deadlock_timeout` < `lock_timeout`: a deadlock is told from a queue.
    pub deadlock_before_lock_timeout: bool,
    /// `server_encoding`; must be UTF8.
    pub encoding: String,
}

impl PostgresStore {
    /// What the server is and how it is set up; the schema need not be there.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn facts(&self) -> Result<ServerFacts, StoreError> {
        let client = self.shared.slots.connect_bare().await?;
        let sql = self.schema().render(include_str!("sql/facts.sql"), "true");
        let lock_timeout_s = self.options().lock_timeout.as_secs_f64();
        let failed = |e| store_error("asking the server how it is set up", e);
        let row = client.query_typed_one(&sql, &[(&lock_timeout_s, Type::FLOAT8)]).await.map_err(failed)?;
        let read = || -> Result<ServerFacts, tokio_postgres::Error> {
            Ok(ServerFacts {
                version_num: row.try_get(0)?,
                fsync: row.try_get(1)?,
                full_page_writes: row.try_get(2)?,
                synchronous_commit: row.try_get(3)?,
                in_recovery: row.try_get(4)?,
                deadlock_before_lock_timeout: row.try_get(5)?,
                encoding: row.try_get(6)?,
            })
        };
        read().map_err(failed)
    }
}
