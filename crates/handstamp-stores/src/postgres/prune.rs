//! Forgetting: old ids, and failed attempts of messages that came to their end, deleted in batches.
//!
//! Authoritative: the server's clock, and a row's state under its lock. The inbox has no index by time, which would
//! cost every claim. It is gone through in parts of 512 pages, and of each part is known how old a consumer's oldest
//! row was when somebody looked: rows come with the present time, so only parts whose oldest row is old now are
//! looked at. What is known is never younger than the truth but where somebody moved rows behind our back; then
//! rows go late, at most by as long as ids are kept.
//!
//! A step is one transaction under short limits. It passes over rows that somebody holds, so that it never waits for
//! a consumer; whoever claims an id that is being deleted waits for the rest of that step. The commit does not wait
//! for the disk: what comes back after a crash of the server is deleted again.
//!
//! ```text
//!  next part with something old ─► BEGIN, limits ─► old rows, SKIP LOCKED ─► deleted by address, horizon noted
//!        └─ none: the end             ├─ max of them: the part again at the next step     ├─► COMMIT ─► pause, by the caller
//!                                     └─ fewer: its oldest row noted, on to the next part ┘
//! ```

use super::classify::store_error;
use super::connect::{COMMIT, Slot};
use super::failure::read_error;
use super::inbox::timestamp_of;
use super::parked::{failed, no_answer};
use super::redrive::Typed;
use super::store::PostgresStore;
use handstamp_core::{ConsumerKey, PruneCursor, PruneStep, PruneStore, StoreError, Timestamp};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Pages of a part; the statements say the same. Some 60,000 rows, which are read in ten milliseconds.
const PART_PAGES: i64 = 512;
/// Longest wait for a lock: nobody's but another pruner's is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest statement. Ten thousand rows take a tenth of a second.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);

const IDS: &str = "deleting old ids";
const ATTEMPTS: &str = "deleting old attempts";

impl PruneStore for PostgresStore {
    async fn prune_ids(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
        from: Option<&PruneCursor>,
    ) -> Result<PruneStep, StoreError> {
        let Some(part) = self.next_part(consumer, older_than, part_of(from)).await? else {
            return Ok(PruneStep { deleted: 0, next: None });
        };
        let (age, limit) = (seconds(older_than), i64::from(max));
        let (first, end) = part.addresses();
        let sql = self.schema().render(include_str!("sql/prune_ids.sql"), "true");
        let looked = self.schema().render(include_str!("sql/prune_looked.sql"), "true");
        let delete: [Typed<'_>; 5] = [
            (&consumer.id, Type::INT2),
            (&age, Type::INT4),
            (&first, Type::TEXT),
            (&end, Type::TEXT),
            (&limit, Type::INT8),
        ];
        let note: [Typed<'_>; 4] = [
            (&consumer.id, Type::INT2),
            (&part.number, Type::INT4),
            (&first, Type::TEXT),
            (&end, Type::TEXT),
        ];
        let deleted = self
            .prune_step(async |slot| {
                let deleted = count(slot, IDS, &sql, &delete).await?;
                if deleted < u64::from(max) {
                    let noted = slot.client().execute_typed(&looked, &note).await;
                    noted.map_err(|e| failed(IDS, e))?;
                }
                Ok(deleted)
            })
            .await?;
        let next = match deleted < u64::from(max) {
            true if part.number >= part.last => None,
            true => Some(cursor_of(part.number.saturating_add(1))),
            false => Some(cursor_of(part.number)),
        };
        Ok(PruneStep { deleted, next })
    }

    async fn prune_attempts(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, StoreError> {
        let (age, limit) = (seconds(older_than), i64::from(max));
        let sql = self.schema().render(include_str!("sql/prune_attempts.sql"), "true");
        let parameters: [Typed<'_>; 3] =
            [(&consumer.id, Type::INT2), (&age, Type::INT4), (&limit, Type::INT8)];
        self.prune_step(async |slot| count(slot, ATTEMPTS, &sql, &parameters).await).await
    }

    async fn prunable(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, StoreError> {
        const WHAT: &str = "counting old ids";
        let sql = self.schema().render(include_str!("sql/prunable.sql"), "true");
        let (age, mut found, mut from) = (seconds(older_than), 0_u64, 0);
        while let Some(part) = self.next_part(consumer, older_than, from).await? {
            let (first, end) = part.addresses();
            let left = i64::from(max).saturating_sub(i64::try_from(found).unwrap_or(i64::MAX));
            let parameters: [Typed<'_>; 5] = [
                (&consumer.id, Type::INT2),
                (&age, Type::INT4),
                (&first, Type::TEXT),
                (&end, Type::TEXT),
                (&left, Type::INT8),
            ];
            found += self.prune_step(async |slot| count(slot, WHAT, &sql, &parameters).await).await?;
            from = part.number.saturating_add(1);
            if found >= u64::from(max) || part.number >= part.last {
                break;
            }
        }
        Ok(found)
    }

    async fn forgotten_before(&self, consumer: &ConsumerKey) -> Result<Option<Timestamp>, StoreError> {
        let sql = self.schema().render(include_str!("sql/forgotten.sql"), "true");
        let parameters: [Typed<'_>; 1] = [(&consumer.id, Type::INT2)];
        let rows = self.read("reading up to when ids are forgotten", &sql, &parameters).await?;
        rows.first().map(|row| Ok(timestamp_of(row.try_get(0).map_err(read_error)?))).transpose()
    }
}

/// A part of the inbox.
#[derive(Debug, Clone, Copy)]
struct Part {
    number: i32,
    /// The last one of the inbox.
    last: i32,
}

impl Part {
    /// The address of its first row, and of the first row behind it.
    fn addresses(self) -> (String, String) {
        let page = |part: i64| format!("({},0)", (part * PART_PAGES).min(i64::from(u32::MAX)));
        (page(i64::from(self.number)), page(i64::from(self.number) + 1))
    }
}

impl PostgresStore {
    /// The next part that may hold something old.
    async fn next_part(
        &self,
        consumer: &ConsumerKey,
        older_than: Duration,
        from: i32,
    ) -> Result<Option<Part>, StoreError> {
        let age = seconds(older_than);
        let sql = self.schema().render(include_str!("sql/prune_part.sql"), "true");
        let parameters: [Typed<'_>; 3] =
            [(&consumer.id, Type::INT2), (&age, Type::INT4), (&from, Type::INT4)];
        let rows = self.read("looking for old ids", &sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (number, last) = (row.try_get(0).map_err(read_error)?, row.try_get(1).map_err(read_error)?);
        Ok(Some(Part { number, last }))
    }

    /// Something in a transaction of its own, under short limits.
    async fn prune_step(
        &self,
        what: impl AsyncFnOnce(&Slot) -> Result<u64, StoreError>,
    ) -> Result<u64, StoreError> {
        let ms = |limit: Duration| limit.as_millis().to_string();
        let open = include_str!("sql/prune_open.sql")
            .replace("{lock_timeout_ms}", &ms(LOCK_TIMEOUT.min(self.options().lock_timeout)))
            .replace("{statement_timeout_ms}", &ms(STATEMENT_TIMEOUT.min(self.options().statement_timeout)));
        // An error leaves the slot open: it is then closed, and the server rolls back.
        self.with_slot(async |slot| {
            let client = slot.client();
            client.batch_execute(&open).await.map_err(|e| store_error("opening a transaction", e))?;
            let done = what(slot).await?;
            client.batch_execute(COMMIT).await.map_err(|e| store_error("committing", e))?;
            Ok(done)
        })
        .await
    }
}

async fn count(slot: &Slot, what: &str, sql: &str, parameters: &[Typed<'_>]) -> Result<u64, StoreError> {
    let rows = slot.client().query_typed(sql, parameters).await.map_err(|e| failed(what, e))?;
    let row: &Row = rows.first().ok_or_else(|| no_answer(what))?;
    let count: i64 = row.try_get(0).map_err(read_error)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

/// Whole seconds, as far as a column of seconds goes back.
fn seconds(age: Duration) -> i32 {
    i32::try_from(age.as_secs()).unwrap_or(i32::MAX)
}

fn cursor_of(part: i32) -> PruneCursor {
    PruneCursor(part.to_be_bytes().to_vec())
}

fn part_of(cursor: Option<&PruneCursor>) -> i32 {
    let bytes = cursor.and_then(|cursor| <[u8; 4]>::try_from(cursor.0.as_slice()).ok());
    bytes.map_or(0, i32::from_be_bytes).max(0)
}
