//! What of a consumer's messages has not come to its end, or to a bad one: counted for people.
//!
//! Authoritative: the rows, in one snapshot.

use super::inbox::find_consumer;
use super::migrate::own_error;
use super::parked::status;
use super::store::SqliteStore;
use crate::redrive::Backlog;
use handstamp_core::{ConsumerName, StoreError};
use rusqlite::Connection;

const COUNT: &str = include_str!("sql/dead_letters_count.sql");

impl SqliteStore {
    /// How much is parked and how much was given up; nothing of a consumer that is not known.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn backlog(&self, consumer: &ConsumerName) -> Result<Backlog, StoreError> {
        self.read(|connection| backlog(connection, consumer))
    }
}

fn backlog(connection: &Connection, name: &ConsumerName) -> Result<Backlog, StoreError> {
    let Some((key, _)) = find_consumer(connection, name)? else { return Ok(Backlog::default()) };
    let parked = status(connection, &key)?;
    let count = connection.query_row(COUNT, [key.id], |row| row.get::<_, i64>(0));
    let count = count.map_err(|e| own_error(connection, "counting dead letters", e))?;
    Ok(Backlog { parked, dead_letters: u64::try_from(count).unwrap_or_default() })
}
