//! Dead letters: kept byte for byte in the transaction that gives the message up, and read back.
//!
//! Authoritative: the table `dead_letters`, unique on (consumer, dedup), so that a redelivered bad
//! message meets its own row; and the state in the message's inbox row, written with it.

use super::classify::store_error;
use super::config::SchemaName;
use super::inbox::{GUARD, claim_error, state_of, timestamp_of};
use super::pipeline::in_order;
use super::store::PostgresStore;
use crate::redrive::DeadLetterFilter;
use crate::rows::{ConsumerRow, DeadLetterCursor, DeadLetterKey, DeadLetterRow, DeadLetterSummary, InboxRow};
use bytes::Bytes;
use handstamp_core::{
    ConsumerKey, ConsumerName, CrashPoint, DeadLetter, Dedup, FailureClass, Fingerprint, Header, Headers,
    LetterStore, MessageId, Origin, Reason, Record, Recorded, StoreError, StoreErrorKind, Timestamp,
    Truncation,
};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// Dead letters sent before the first is answered.
pub(super) const IN_FLIGHT_MAX: usize = 100;
/// Largest page of a list.
pub(super) const PAGE_MAX: u32 = 1000;

const TYPES: [Type; 21] = [
    Type::INT2,
    Type::BYTEA,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::TEXT,
    Type::TEXT,
    Type::TEXT,
    Type::BYTEA,
    Type::INT8,
    Type::TEXT,
    Type::INT4,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8,
    Type::BYTEA,
];

/// Keeps dead letters and marks their inbox rows; inside our own transactions only.
pub(crate) async fn record(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    letters: &[DeadLetter],
) -> Result<Vec<Recorded>, StoreError> {
    let insert = schema.render(include_str!("sql/dead_letter_insert.sql"), GUARD);
    let mut outcomes = Vec::with_capacity(letters.len());
    for chunk in letters.chunks(IN_FLIGHT_MAX) {
        let rows: Vec<LetterRow<'_>> = chunk.iter().map(|letter| LetterRow::new(consumer, letter)).collect();
        let sent = rows.iter().map(|row| row.insert(client, &insert)).collect();
        for kept in in_order(sent).await {
            let kept = kept.map_err(claim_error)?;
            outcomes.push(if kept == 0 { Recorded::Known } else { Recorded::New });
        }
    }
    CrashPoint::MidDeadLetter.reached();
    let marked: Vec<Vec<u8>> = letters
        .iter()
        .filter(|letter| letter.marks_inbox())
        .filter_map(|letter| letter.id.as_ref().map(MessageId::to_stored))
        .collect();
    if !marked.is_empty() {
        let mark = schema.render(include_str!("sql/mark_dead.sql"), GUARD);
        let parameters = [(&marked as _, Type::BYTEA_ARRAY), (&consumer as _, Type::INT2)];
        client.execute_typed(&mark, &parameters).await.map_err(claim_error)?;
    }
    Ok(outcomes)
}

/// A dead letter in the types of its columns.
pub(super) struct LetterRow<'a> {
    consumer: i16,
    dedup: [u8; 16],
    failed_at: i64,
    received_at: i64,
    attempts: i64,
    class: &'static str,
    code: &'a Option<String>,
    reason: &'a str,
    id: Option<Vec<u8>>,
    digest: i64,
    topic: String,
    partition: i32,
    position: i64,
    line: Option<i64>,
    timestamp: Option<i64>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    header_names: Vec<&'a [u8]>,
    header_values: Vec<Option<&'a [u8]>>,
    full_bytes: Option<i64>,
    blake3: Option<&'a [u8]>,
}

impl<'a> LetterRow<'a> {
    pub(super) fn new(consumer: i16, letter: &'a DeadLetter) -> Self {
        let record = &letter.record;
        let headers = record.headers.as_slice();
        Self {
            consumer,
            dedup: letter.dedup(),
            failed_at: letter.failed_at.0,
            received_at: letter.received_at.0,
            attempts: i64::from(letter.attempts),
            class: letter.class.as_str(),
            code: &letter.code,
            reason: letter.reason.as_str(),
            id: letter.id.as_ref().map(MessageId::to_stored),
            digest: letter.digest,
            // text holds no NUL; no broker's topic name does either.
            topic: record.origin.topic.replace('\0', "\u{fffd}"),
            partition: record.origin.partition,
            position: record.origin.offset,
            line: record.origin.line.and_then(|line| i64::try_from(line).ok()),
            timestamp: record.timestamp.map(|t| t.0),
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            header_names: headers.iter().map(|h| h.name.as_ref()).collect(),
            header_values: headers.iter().map(|h| h.value.as_deref()).collect(),
            full_bytes: letter.truncation.as_ref().map(|t| i64::try_from(t.full_bytes).unwrap_or(i64::MAX)),
            blake3: letter.truncation.as_ref().map(|t| t.blake3.as_slice()),
        }
    }

    /// The parameters that every statement which keeps a whole message begins with.
    pub(super) fn values<'b>(&'b self, dedup: &'b &'b [u8]) -> [&'b (dyn ToSql + Sync); 21] {
        [
            &self.consumer,
            dedup,
            &self.failed_at,
            &self.received_at,
            &self.attempts,
            &self.class,
            self.code,
            &self.reason,
            &self.id,
            &self.digest,
            &self.topic,
            &self.partition,
            &self.position,
            &self.line,
            &self.timestamp,
            &self.key,
            &self.value,
            &self.header_names,
            &self.header_values,
            &self.full_bytes,
            &self.blake3,
        ]
    }

    pub(super) fn dedup(&self) -> &[u8] {
        &self.dedup
    }

    async fn insert(&self, client: &Client, sql: &str) -> Result<u64, tokio_postgres::Error> {
        let dedup = self.dedup();
        let parameters: Vec<_> = self.values(&dedup).into_iter().zip(TYPES).collect();
        client.execute_typed(sql, &parameters).await
    }
}

impl LetterStore for PostgresStore {
    async fn kept_letters(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let mut kept = vec![None; keys.len()];
        if keys.is_empty() {
            return Ok(kept);
        }
        let sql = self.schema().render(include_str!("sql/dead_letters_kept.sql"), "true");
        let wanted: Vec<&[u8]> = keys.iter().map(<[u8; 16]>::as_slice).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&consumer.id, Type::INT2), (&wanted, Type::BYTEA_ARRAY)];
        let rows = self
            .with_slot(async |slot| slot.client().query_typed(&sql, &parameters).await.map_err(claim_error))
            .await?;
        for row in &rows {
            let place: i32 = row.try_get(19).map_err(read_error)?;
            let place = usize::try_from(place).unwrap_or_default().wrapping_sub(1);
            if let Some(kept) = kept.get_mut(place) {
                *kept = Some(letter_of(row).map_err(read_error)??);
            }
        }
        Ok(kept)
    }
}

impl PostgresStore {
    /// A page of a consumer's dead letters, oldest first, those of one time in the order of their source,
    /// without their bodies; at most 1,000.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn dead_letters(
        &self,
        consumer: &ConsumerName,
        class: Option<FailureClass>,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<DeadLetterSummary>, StoreError> {
        let filter = DeadLetterFilter { class, ..DeadLetterFilter::default() };
        self.dead_letters_where(consumer, &filter, after, limit).await
    }

    /// The same of those that fit a filter.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn dead_letters_where(
        &self,
        consumer: &ConsumerName,
        filter: &DeadLetterFilter,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<DeadLetterSummary>, StoreError> {
        let sql = self.schema().render(include_str!("sql/dead_letter_page.sql"), "true");
        let after = after.unwrap_or_else(DeadLetterCursor::start);
        let (topic, key) = (after.origin.topic.as_ref(), after.key.0.as_slice());
        let class = filter.class.map(FailureClass::as_str);
        let limit = i64::from(limit.min(PAGE_MAX));
        let since = filter.since.map_or(i64::MIN, |time| time.0);
        let until = filter.until.map_or(i64::MAX, |time| time.0.saturating_sub(1));
        let id = filter.id.as_ref().map(MessageId::to_stored);
        let parameters: [(&(dyn ToSql + Sync), Type); 13] = [
            (&consumer.as_str(), Type::TEXT),
            (&after.failed_at.0, Type::INT8),
            (&topic, Type::TEXT),
            (&after.origin.partition, Type::INT4),
            (&after.origin.offset, Type::INT8),
            (&key, Type::BYTEA),
            (&class, Type::TEXT),
            (&limit, Type::INT8),
            (&since, Type::INT8),
            (&until, Type::INT8),
            (&filter.key, Type::BYTEA),
            (&filter.topic, Type::TEXT),
            (&id, Type::BYTEA),
        ];
        let rows = self
            .with_slot(async |slot| slot.client().query_typed(&sql, &parameters).await.map_err(claim_error))
            .await?;
        rows.iter().map(|row| summary_of(row).map_err(read_error)?).collect()
    }

    /// One dead letter, whole.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn dead_letter(
        &self,
        consumer: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Option<DeadLetterRow>, StoreError> {
        let sql = self.schema().render(include_str!("sql/dead_letter.sql"), "true");
        let dedup = key.0.as_slice();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&consumer.as_str(), Type::TEXT), (&dedup, Type::BYTEA)];
        let rows = self
            .with_slot(async |slot| slot.client().query_typed(&sql, &parameters).await.map_err(claim_error))
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let letter = letter_of(row).map_err(read_error)??;
        Ok(Some(DeadLetterRow { consumer: consumer.clone(), key, letter }))
    }

    /// What is registered under a consumer's name; registers nothing.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn consumer(&self, name: &ConsumerName) -> Result<Option<ConsumerRow>, StoreError> {
        let sql = self.schema().render(include_str!("sql/consumer.sql"), "true");
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&name.as_str(), Type::TEXT)];
        let rows = self
            .with_slot(async |slot| slot.client().query_typed(&sql, &parameters).await.map_err(claim_error))
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let fingerprint: Option<String> = row.try_get(1).map_err(read_error)?;
        Ok(Some(ConsumerRow { name: name.clone(), fingerprint: fingerprint.map(Fingerprint) }))
    }

    /// What the inbox knows of an id.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn inbox_row(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> Result<Option<InboxRow>, StoreError> {
        let sql = self.schema().render(include_str!("sql/inbox_row.sql"), "true");
        let stored = id.to_stored();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&consumer.as_str(), Type::TEXT), (&stored, Type::BYTEA)];
        let rows = self
            .with_slot(async |slot| slot.client().query_typed(&sql, &parameters).await.map_err(claim_error))
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let state = state_of(row.try_get(0).map_err(read_error)?)?;
        let first_seen = timestamp_of(row.try_get(1).map_err(read_error)?);
        let digest = row.try_get(2).map_err(read_error)?;
        Ok(Some(InboxRow { consumer: consumer.clone(), id: id.clone(), state, digest, first_seen }))
    }
}

pub(super) fn read_error(error: tokio_postgres::Error) -> StoreError {
    store_error("reading a row", error)
}

pub(super) fn strange(what: &str) -> StoreError {
    let message = format!("a dead letter's {what} is not one this program writes: update the program");
    StoreError::new(StoreErrorKind::SchemaMismatch, message)
}

pub(super) type Read<T> = Result<Result<T, StoreError>, tokio_postgres::Error>;

pub(super) fn summary_of(row: &Row) -> Read<DeadLetterSummary> {
    let Some(class) = FailureClass::from_word(row.try_get(2)?) else { return Ok(Err(strange("class"))) };
    let Ok(key) = <[u8; 16]>::try_from(row.try_get::<_, &[u8]>(0)?) else { return Ok(Err(strange("key"))) };
    let id = match row.try_get::<_, Option<&[u8]>>(5)?.map(MessageId::from_stored).transpose() {
        Ok(id) => id,
        Err(_) => return Ok(Err(strange("id"))),
    };
    Ok(Ok(DeadLetterSummary {
        key: DeadLetterKey(key),
        failed_at: Timestamp(row.try_get(1)?),
        class,
        code: row.try_get(3)?,
        reason: Reason::new(row.try_get(4)?),
        id,
        attempts: u32::try_from(row.try_get::<_, i64>(6)?).unwrap_or(u32::MAX),
        origin: origin_of(row, 7)?,
        value_bytes: row.try_get::<_, Option<i64>>(11)?.and_then(|n| u64::try_from(n).ok()),
    }))
}

fn origin_of(row: &Row, at: usize) -> Result<Origin, tokio_postgres::Error> {
    Ok(Origin {
        topic: row.try_get::<_, &str>(at)?.into(),
        partition: row.try_get(at + 1)?,
        offset: row.try_get(at + 2)?,
        line: row.try_get::<_, Option<i64>>(at + 3)?.and_then(|n| u64::try_from(n).ok()),
    })
}

pub(super) fn letter_of(row: &Row) -> Read<DeadLetter> {
    let Some(class) = FailureClass::from_word(row.try_get(3)?) else { return Ok(Err(strange("class"))) };
    let id = match row.try_get::<_, Option<&[u8]>>(6)?.map(MessageId::from_stored).transpose() {
        Ok(id) => id,
        Err(_) => return Ok(Err(strange("id"))),
    };
    let bytes =
        |at| Ok::<_, tokio_postgres::Error>(row.try_get::<_, Option<&[u8]>>(at)?.map(Bytes::copy_from_slice));
    let names: Vec<&[u8]> = row.try_get(15)?;
    let values: Vec<Option<&[u8]>> = row.try_get(16)?;
    if names.len() != values.len() {
        return Ok(Err(strange("headers")));
    }
    let headers = names.iter().zip(values);
    let headers = headers.map(|(name, value)| Header {
        name: Bytes::copy_from_slice(name),
        value: value.map(Bytes::copy_from_slice),
    });
    let truncation = match (row.try_get::<_, Option<i64>>(17)?, row.try_get::<_, Option<&[u8]>>(18)?) {
        (Some(full), Some(hash)) => match (u64::try_from(full), <[u8; 32]>::try_from(hash)) {
            (Ok(full_bytes), Ok(blake3)) => Some(Truncation { full_bytes, blake3 }),
            _ => return Ok(Err(strange("truncation"))),
        },
        _ => None,
    };
    Ok(Ok(DeadLetter {
        id,
        digest: row.try_get(7)?,
        record: Record {
            key: bytes(13)?,
            value: bytes(14)?,
            headers: Headers::new(headers.collect()),
            origin: origin_of(row, 8)?,
            timestamp: row.try_get::<_, Option<i64>>(12)?.map(Timestamp),
        },
        truncation,
        class,
        code: row.try_get(4)?,
        reason: Reason::new(row.try_get(5)?),
        attempts: u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX),
        received_at: Timestamp(row.try_get(1)?),
        failed_at: Timestamp(row.try_get(0)?),
    }))
}
