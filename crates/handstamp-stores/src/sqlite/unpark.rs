//! What operators do about one parked message: look at it whole, send it now, give it up.
//!
//! Authoritative: the rows, under the file's write lock, which no worker has then. Each call is one transaction
//! with its audit rows.
//!
//! ```text
//!  parked ('p') ─► BEGIN IMMEDIATE ─┬─ now: due at once, attempts as they are ──────────┬─► audit ─► COMMIT
//!                                   └─ discard: inbox 'x', row gone ─► next of its key ─┘
//! ```

use super::failure::letter_of;
use super::inbox::find_consumer;
use super::migrate::own_error;
use super::redrive::Within;
use super::store::SqliteStore;
use crate::redrive::{Action, Operation, ParkedRow, Unparked};
use crate::rows::{DeadLetterKey, DeadLetterRow};
use handstamp_core::parked::OrderKey;
use handstamp_core::{ConsumerName, InboxState, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashSet;
use std::time::Duration;

const ONE: &str = include_str!("sql/parked_one.sql");
const ID: &str = include_str!("sql/parked_id.sql");
const NOW: &str = include_str!("sql/parked_now.sql");
const SAY: &str = include_str!("sql/resume_inbox.sql");
const GONE: &str = include_str!("sql/resume_done.sql");
const STARTS: &str = include_str!("sql/resume_started.sql");
const CRASHES: &str = include_str!("sql/crashes_forget.sql");
const UNORDERED: &str = include_str!("sql/parked_unordered.sql");

impl SqliteStore {
    /// One parked message, whole.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn parked_message(
        &self,
        consumer: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Option<ParkedRow>, StoreError> {
        self.read(|connection| one(connection, consumer, key))
    }

    /// Makes parked messages due at once; their attempts stay counted. One that is behind another of its order
    /// key still waits for it. The n-th answer belongs to the n-th.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn send_now(
        &self,
        consumer: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
    ) -> Result<Vec<Unparked>, StoreError> {
        self.unpark(consumer, keys, operation, |within, key| within.send_now(key)).await
    }

    /// Gives parked messages up for good; the next of an order key is then the first. The n-th answer belongs to
    /// the n-th.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn discard_parked(
        &self,
        consumer: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
    ) -> Result<Vec<Unparked>, StoreError> {
        self.unpark(consumer, keys, operation, |within, key| within.discard_parked(key)).await
    }

    /// How many parked messages have a key and no order key: they were parked before the order of keys was kept.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn parked_unordered(&self, consumer: &ConsumerName) -> Result<u64, StoreError> {
        let count = |connection: &Connection| {
            connection
                .query_row(UNORDERED, [consumer.as_str()], |row| row.get::<_, i64>(0))
                .map_err(|e| own_error(connection, "counting parked messages", e))
        };
        self.read(count).map(|count| u64::try_from(count).unwrap_or_default())
    }

    async fn unpark(
        &self,
        consumer: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
        what: fn(&Within<'_>, DeadLetterKey) -> Result<Unparked, StoreError>,
    ) -> Result<Vec<Unparked>, StoreError> {
        self.write(|connection| {
            let Some((key, _)) = find_consumer(connection, consumer)? else {
                return Ok(vec![Unparked::Missing; keys.len()]);
            };
            let within = Within { connection, consumer: key.id, operation };
            let mut seen = HashSet::with_capacity(keys.len());
            // Named twice, it is missing the second time.
            let one = |key: &DeadLetterKey| match seen.insert(*key) {
                true => what(&within, *key),
                false => Ok(Unparked::Missing),
            };
            keys.iter().map(one).collect()
        })
        .await
    }
}

impl Within<'_> {
    fn send_now(&self, key: DeadLetterKey) -> Result<Unparked, StoreError> {
        let Some(id) = self.parked_id(key)? else { return Ok(Unparked::Missing) };
        self.run("making parked messages due", NOW, params![self.consumer, key.0])?;
        self.audit(Action::Redrive, key, id.as_deref())?;
        Ok(Unparked::Done)
    }

    fn discard_parked(&self, key: DeadLetterKey) -> Result<Unparked, StoreError> {
        let Some(id) = self.parked_id(key)? else { return Ok(Unparked::Missing) };
        let doing = "discarding parked messages";
        let state = InboxState::Discarded.as_letter().to_string();
        self.run(doing, SAY, params![self.consumer, key.0, state])?;
        for sql in [GONE, STARTS, CRASHES] {
            self.run(doing, sql, params![self.consumer, key.0])?;
        }
        self.audit(Action::Discard, key, id.as_deref())?;
        Ok(Unparked::Done)
    }

    /// Its id, if it has one; `None` where it is not parked.
    fn parked_id(&self, key: DeadLetterKey) -> Result<Option<Option<Vec<u8>>>, StoreError> {
        let failed = |e| own_error(self.connection, "looking for parked messages", e);
        let mut id = self.connection.prepare_cached(ID).map_err(failed)?;
        id.query_row(params![self.consumer, key.0], |row| row.get(0)).optional().map_err(failed)
    }
}

fn one(
    connection: &Connection,
    name: &ConsumerName,
    key: DeadLetterKey,
) -> Result<Option<ParkedRow>, StoreError> {
    let failed = |e| own_error(connection, "reading a parked message", e);
    let mut one = connection.prepare(ONE).map_err(failed)?;
    let mut rows = one.query(params![name.as_str(), key.0]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    parked_row_of(name, row).map_err(failed)?.map(Some)
}

fn parked_row_of(name: &ConsumerName, row: &Row<'_>) -> rusqlite::Result<Result<ParkedRow, StoreError>> {
    let (key, letter) = match letter_of(row)? {
        Ok(found) => found,
        Err(error) => return Ok(Err(error)),
    };
    let due_in: i64 = row.get(21)?;
    Ok(Ok(ParkedRow {
        message: DeadLetterRow { consumer: name.clone(), key, letter },
        parked_at: Timestamp(row.get(19)?),
        due_at: Timestamp(row.get(20)?),
        due_in: Duration::from_millis(u64::try_from(due_in).unwrap_or_default()),
        order_key: row.get::<_, Option<[u8; 16]>>(22)?.map(OrderKey),
        behind: row.get::<_, Option<[u8; 16]>>(23)?.map(DeadLetterKey),
    }))
}
