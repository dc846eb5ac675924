//! What operators do about one parked message: look at it whole, send it now, give it up.
//!
//! Authoritative: the row's lock. What a worker has locked is being tried and is left alone. Each call is one
//! transaction with its audit rows.
//!
//! ```text
//!  parked ('p') ─► lock, or busy ─┬─ now: due at once, attempts as they are ──────────┬─► audit ─► COMMIT
//!                                 └─ discard: inbox 'x', row gone ─► next of its key ─┘
//! ```

use super::config::SchemaName;
use super::failure::{Read, letter_of, read_error, strange};
use super::inbox::GUARD;
use super::parked::failed;
use super::redrive::{Touched, Typed, audit};
use super::store::PostgresStore;
use crate::redrive::{Action, Operation, ParkedRow, Unparked};
use crate::rows::{DeadLetterKey, DeadLetterRow};
use handstamp_core::parked::{COUNTED_MAX, OrderKey};
use handstamp_core::{ConsumerName, Store, StoreError, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

impl PostgresStore {
    /// One parked message, whole.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn parked_message(
        &self,
        consumer: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Option<ParkedRow>, StoreError> {
        let sql = self.schema().render(include_str!("sql/parked_one.sql"), "true");
        let dedup = key.0.as_slice();
        let parameters: [Typed<'_>; 2] = [(&consumer.as_str(), Type::TEXT), (&dedup, Type::BYTEA)];
        let rows = self.read("reading a parked message", &sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        parked_row_of(consumer, key, row).map_err(read_error)?.map(Some)
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
        self.unpark(consumer, keys, Action::Redrive, operation).await
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
        self.unpark(consumer, keys, Action::Discard, operation).await
    }

    /// How many parked messages have a key and no order key: they were parked before the order of keys was kept.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn parked_unordered(&self, consumer: &ConsumerName) -> Result<u64, StoreError> {
        let sql = self.schema().render(include_str!("sql/parked_unordered.sql"), "true");
        let count_max = i64::try_from(COUNTED_MAX).unwrap_or(i64::MAX);
        let parameters: [Typed<'_>; 2] = [(&consumer.as_str(), Type::TEXT), (&count_max, Type::INT8)];
        let rows = self.read("counting parked messages", &sql, &parameters).await?;
        let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(read_error)?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    async fn unpark(
        &self,
        consumer: &ConsumerName,
        keys: &[DeadLetterKey],
        action: Action,
        operation: &Operation,
    ) -> Result<Vec<Unparked>, StoreError> {
        let Some(key) = self.key_of(consumer).await? else {
            return Ok(vec![Unparked::Missing; keys.len()]);
        };
        let (tx, _) = self.begin(&key, &[]).await?;
        let what =
            async |client: &Client| unpark_in(client, self.schema(), key.id, keys, action, operation).await;
        self.operate(tx, what).await
    }
}

async fn unpark_in(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    keys: &[DeadLetterKey],
    action: Action,
    operation: &Operation,
) -> Result<Vec<Unparked>, StoreError> {
    let asked: Vec<&[u8]> = keys.iter().map(|key| key.0.as_slice()).collect();
    let lock = schema.render(include_str!("sql/parked_lock.sql"), GUARD);
    let locked = rows_of(client, &lock, consumer, &asked, "locking parked messages").await?;
    let mut locked: BTreeMap<Vec<u8>, Locked> =
        locked.iter().map(locked_of).collect::<Result<_, _>>().map_err(read_error)?;
    let there = schema.render(include_str!("sql/parked_there.sql"), GUARD);
    let there = rows_of(client, &there, consumer, &asked, "looking for parked messages").await?;
    let there: BTreeSet<Vec<u8>> =
        there.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(read_error)?;
    let mut answers = Vec::with_capacity(keys.len());
    let mut done = Vec::with_capacity(keys.len());
    for key in &asked {
        answers.push(match locked.remove(*key) {
            Some(row) => {
                done.push((*key, row));
                Unparked::Done
            }
            // Named twice, it is missing the second time.
            None if there.contains(*key) && done.iter().all(|(one, _)| one != key) => Unparked::Busy,
            None => Unparked::Missing,
        });
    }
    if done.is_empty() {
        return Ok(answers);
    }
    let chosen: Vec<&[u8]> = done.iter().map(|(key, _)| *key).collect();
    match action {
        Action::Redrive => {
            change(client, schema, include_str!("sql/parked_now.sql"), consumer, &chosen).await?;
        }
        Action::Discard => {
            change(client, schema, include_str!("sql/parked_discard.sql"), consumer, &chosen).await?;
            let order_keys: BTreeSet<&[u8]> =
                done.iter().filter_map(|(_, row)| row.order_key.as_deref()).collect();
            let order_keys: Vec<&[u8]> = order_keys.into_iter().collect();
            if !order_keys.is_empty() {
                change(client, schema, include_str!("sql/parked_first.sql"), consumer, &order_keys).await?;
            }
        }
    }
    let touched: Vec<Touched<'_>> = done.iter().map(|(key, row)| (*key, row.id.as_deref())).collect();
    audit(client, schema, consumer, action, &touched, operation).await?;
    Ok(answers)
}

/// What a locked row says of itself.
struct Locked {
    id: Option<Vec<u8>>,
    order_key: Option<Vec<u8>>,
}

fn locked_of(row: &Row) -> Result<(Vec<u8>, Locked), tokio_postgres::Error> {
    Ok((row.try_get(0)?, Locked { id: row.try_get(1)?, order_key: row.try_get(2)? }))
}

async fn change(
    client: &Client,
    schema: &SchemaName,
    sql: &str,
    consumer: i16,
    keys: &[&[u8]],
) -> Result<(), StoreError> {
    let parameters: [Typed<'_>; 2] = [(&consumer, Type::INT2), (&keys, Type::BYTEA_ARRAY)];
    let changed = client.execute_typed(&schema.render(sql, GUARD), &parameters).await;
    changed.map(drop).map_err(|e| failed("moving parked messages", e))
}

async fn rows_of(
    client: &Client,
    sql: &str,
    consumer: i16,
    keys: &[&[u8]],
    doing: &str,
) -> Result<Vec<Row>, StoreError> {
    let parameters: [Typed<'_>; 2] = [(&consumer, Type::INT2), (&keys, Type::BYTEA_ARRAY)];
    client.query_typed(sql, &parameters).await.map_err(|e| failed(doing, e))
}

fn parked_row_of(name: &ConsumerName, key: DeadLetterKey, row: &Row) -> Read<ParkedRow> {
    let letter = match letter_of(row)? {
        Ok(letter) => letter,
        Err(error) => return Ok(Err(error)),
    };
    let (Ok(order_key), Ok(behind)) = (
        row.try_get::<_, Option<&[u8]>>(22)?.map(<[u8; 16]>::try_from).transpose(),
        row.try_get::<_, Option<&[u8]>>(23)?.map(<[u8; 16]>::try_from).transpose(),
    ) else {
        return Ok(Err(strange("key")));
    };
    let due_in: i64 = row.try_get(21)?;
    Ok(Ok(ParkedRow {
        message: DeadLetterRow { consumer: name.clone(), key, letter },
        parked_at: Timestamp(row.try_get(19)?),
        due_at: Timestamp(row.try_get(20)?),
        due_in: Duration::from_millis(u64::try_from(due_in).unwrap_or_default()),
        order_key: order_key.map(OrderKey),
        behind: behind.map(DeadLetterKey),
    }))
}
