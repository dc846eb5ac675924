//! Forgetting: old ids, and failed attempts of messages that came to their end, deleted in batches.
//!
//! Authoritative: this machine's clock, and a row's state under the file's write lock. The inbox has no index by
//! time. Each step goes through a part of it in the order of its key, on the connection that only reads and so holds
//! up nobody, and deletes what it found in one short transaction that looks at each row again.
//!
//! ```text
//!  part of the inbox ─► old ones ─┬─ none ─────────────────────────────────────────┬─► behind its last row
//!    (no lock)                    └─ write lock ─► deleted, horizon noted ─► COMMIT ┘
//! ```

use super::inbox::first_seen;
use super::migrate::own_error;
use super::store::SqliteStore;
use handstamp_core::{ConsumerKey, PruneCursor, PruneStep, PruneStore, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};
use std::time::Duration;

/// Most rows that one step goes through: some ten milliseconds of the thread that also runs the consumer.
const LOOKED_AT_MAX: u32 = 50_000;

const LOOK: &str = include_str!("sql/prune_look.sql");
const DELETE: &str = include_str!("sql/prune_id.sql");
const NOTE: &str = include_str!("sql/prune_note.sql");
const ATTEMPTS: &str = include_str!("sql/prune_attempts.sql");
const FORGOTTEN: &str = include_str!("sql/forgotten.sql");

impl PruneStore for SqliteStore {
    async fn prune_ids(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
        from: Option<&PruneCursor>,
    ) -> Result<PruneStep, StoreError> {
        let age = seconds(older_than);
        let part = self.read(|connection| look(connection, consumer, age, max, from))?;
        if part.old.is_empty() {
            return Ok(PruneStep { deleted: 0, next: part.next });
        }
        let deleted = self.write(|connection| delete(connection, consumer, age, &part.old)).await?;
        Ok(PruneStep { deleted, next: part.next })
    }

    async fn prune_attempts(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, StoreError> {
        let age = seconds(older_than);
        self.write(|connection| {
            let failed = |e| own_error(connection, "deleting old attempts", e);
            let mut delete = connection.prepare_cached(ATTEMPTS).map_err(failed)?;
            let deleted = delete.execute(params![consumer.id, age, max]).map_err(failed)?;
            Ok(u64::try_from(deleted).unwrap_or(u64::MAX))
        })
        .await
    }

    async fn prunable(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, StoreError> {
        let (mut count, mut from) = (0, None);
        loop {
            let left = max.saturating_sub(count);
            let part =
                self.read(|connection| look(connection, consumer, seconds(older_than), left, from.as_ref()))?;
            count = count.saturating_add(u32::try_from(part.old.len()).unwrap_or(u32::MAX));
            from = part.next;
            if from.is_none() || count >= max {
                return Ok(u64::from(count));
            }
            // The thread is the engine's too.
            tokio::task::yield_now().await;
        }
    }

    async fn forgotten_before(&self, consumer: &ConsumerKey) -> Result<Option<Timestamp>, StoreError> {
        self.read(|connection| {
            let failed = |e| own_error(connection, "reading up to when ids are forgotten", e);
            let mut forgotten = connection.prepare_cached(FORGOTTEN).map_err(failed)?;
            let horizon = forgotten.query_row([consumer.id], |row| row.get(0)).optional().map_err(failed)?;
            Ok(horizon.map(first_seen))
        })
    }
}

/// What one step found.
struct Part {
    /// Stored ids.
    old: Vec<Vec<u8>>,
    next: Option<PruneCursor>,
}

/// Goes on from a row until enough is found, or looked at.
fn look(
    connection: &Connection,
    consumer: &ConsumerKey,
    age: i64,
    max: u32,
    from: Option<&PruneCursor>,
) -> Result<Part, StoreError> {
    let failed = |e| own_error(connection, "looking for old ids", e);
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    // In front of every row: no consumer has a number below 1.
    let (id, number) = from.and_then(row_of).unwrap_or((&[], 0));
    let mut look = connection.prepare_cached(LOOK).map_err(failed)?;
    let mut rows = look.query(params![consumer.id, age, id, number, LOOKED_AT_MAX]).map_err(failed)?;
    let (mut old, mut last, mut looked_at) = (Vec::new(), None, 0);
    while old.len() < max
        && let Some(row) = rows.next().map_err(failed)?
    {
        looked_at += 1;
        let is_old: bool = row.get(2).map_err(failed)?;
        let at_the_end = looked_at == LOOKED_AT_MAX;
        if is_old || at_the_end {
            let (id, number): (Vec<u8>, i16) = (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
            last = Some(cursor_of(&id, number));
            old.extend(is_old.then_some(id));
        }
    }
    let all = looked_at < LOOKED_AT_MAX && old.len() < max;
    Ok(Part { old, next: last.filter(|_| !all) })
}

fn delete(
    connection: &Connection,
    consumer: &ConsumerKey,
    age: i64,
    ids: &[Vec<u8>],
) -> Result<u64, StoreError> {
    let failed = |e| own_error(connection, "deleting old ids", e);
    let mut delete = connection.prepare_cached(DELETE).map_err(failed)?;
    let mut deleted = 0;
    for id in ids {
        let gone = delete.execute(params![id, consumer.id, age]).map_err(failed)?;
        deleted += u64::try_from(gone).unwrap_or_default();
    }
    let mut note = connection.prepare_cached(NOTE).map_err(failed)?;
    note.execute(params![consumer.id, age]).map_err(failed)?;
    Ok(deleted)
}

fn seconds(age: Duration) -> i64 {
    // Further back than any row of the inbox.
    i64::from(u32::try_from(age.as_secs()).unwrap_or(u32::MAX))
}

/// The key of the last row that was looked at: a consumer's number and an id.
fn cursor_of(id: &[u8], number: i16) -> PruneCursor {
    PruneCursor([&number.to_be_bytes(), id].concat())
}

fn row_of(cursor: &PruneCursor) -> Option<(&[u8], i16)> {
    let (number, id) = cursor.0.split_first_chunk()?;
    Some((id, i16::from_be_bytes(*number)))
}
