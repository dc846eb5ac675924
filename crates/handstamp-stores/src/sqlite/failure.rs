//! Dead letters: kept in the transaction that decides them, read back for people.
//!
//! Authoritative: the unique key (consumer, dedup). A redelivered bad message meets its own row.

use super::inbox::{StoredIds, first_seen, state_of};
use super::migrate::own_error;
use super::store::SqliteStore;
use crate::headers;
use crate::redrive::DeadLetterFilter;
use crate::rows::{DeadLetterCursor, DeadLetterKey, DeadLetterRow, DeadLetterSummary, InboxRow};
use bytes::Bytes;
use handstamp_core::{
    ConsumerKey, ConsumerName, CrashPoint, DeadLetter, Dedup, FailureClass, LetterStore, MessageId, Origin,
    Reason, Record, Recorded, StoreError, StoreErrorKind, Timestamp, Truncation,
};
use rusqlite::{Connection, OptionalExtension, Row, Statement, ToSql, params};

const INSERT: &str = include_str!("sql/dead_letter_insert.sql");
const MARK_DEAD: &str = include_str!("sql/mark_dead.sql");
const INBOX_ROW: &str = include_str!("sql/inbox_row.sql");
const PAGE: &str = include_str!("sql/dead_letter_page.sql");
const ONE: &str = include_str!("sql/dead_letter.sql");

/// Writes dead letters, and `dead` into the inbox rows among `claimed` (sorted stored ids).
pub(crate) fn record(
    connection: &Connection,
    consumer: &ConsumerKey,
    letters: &[DeadLetter],
    claimed: &StoredIds,
) -> Result<Vec<Recorded>, StoreError> {
    let failed = |e| own_error(connection, "keeping dead letters", e);
    let mut insert = connection.prepare_cached(INSERT).map_err(failed)?;
    let mut mark = connection.prepare_cached(MARK_DEAD).map_err(failed)?;
    let mut recorded = Vec::with_capacity(letters.len());
    for letter in letters {
        let stored = letter.id.as_ref().map(MessageId::to_stored);
        bind_letter(&mut insert, consumer, letter, stored.as_deref()).map_err(failed)?;
        let changed = insert.raw_execute().map_err(failed)?;
        recorded.push(if changed == 1 { Recorded::New } else { Recorded::Known });
        CrashPoint::MidDeadLetter.reached();
        if letter.marks_inbox()
            && let Some(stored) = stored
            && claimed.contains(&stored)
        {
            mark.execute((stored, consumer.id)).map_err(failed)?;
        }
    }
    Ok(recorded)
}

/// Values that [`bind_letter`] binds; a statement's own come behind them.
pub(super) const LETTER_VALUES: usize = 20;

/// Binds a letter to the first parameters of a statement that keeps it.
pub(super) fn bind_letter(
    statement: &mut Statement<'_>,
    consumer: &ConsumerKey,
    letter: &DeadLetter,
    stored: Option<&[u8]>,
) -> rusqlite::Result<()> {
    let record = &letter.record;
    let truncation = letter.truncation.as_ref();
    let values: [&dyn ToSql; LETTER_VALUES] = [
        &consumer.id,
        &letter.dedup(),
        &letter.failed_at.0,
        &letter.received_at.0,
        &letter.attempts,
        &letter.class.as_str(),
        &letter.code,
        &letter.reason.as_str(),
        &stored,
        &letter.digest,
        &&*record.origin.topic,
        &record.origin.partition,
        &record.origin.offset,
        &record.origin.line.map(to_i64),
        &record.timestamp.map(|timestamp| timestamp.0),
        &record.key.as_deref(),
        &headers::encode(&record.headers),
        &truncation.map(|truncation| to_i64(truncation.full_bytes)),
        &truncation.map(|truncation| truncation.blake3),
        &record.value.as_deref(),
    ];
    values.into_iter().enumerate().try_for_each(|(at, value)| statement.raw_bind_parameter(at + 1, value))
}

/// SQLite has no unsigned numbers; a line or length beyond 2^63 cannot come about.
fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn inbox_row(
    connection: &Connection,
    name: &ConsumerName,
    id: &MessageId,
) -> Result<Option<InboxRow>, StoreError> {
    let failed = |e| own_error(connection, "reading the inbox", e);
    let found: Option<(String, i64, Option<i64>)> = connection
        .query_row(INBOX_ROW, (name.as_str(), id.to_stored()), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()
        .map_err(failed)?;
    let Some((letter, seen_at, digest)) = found else {
        return Ok(None);
    };
    let state = state_of(&letter)?;
    Ok(Some(InboxRow {
        consumer: name.clone(),
        id: id.clone(),
        state,
        digest,
        first_seen: first_seen(seen_at),
    }))
}

pub(crate) fn dead_letters(
    connection: &Connection,
    name: &ConsumerName,
    filter: &DeadLetterFilter,
    after: Option<DeadLetterCursor>,
    limit: u32,
) -> Result<Vec<DeadLetterSummary>, StoreError> {
    let failed = |e| own_error(connection, "reading dead letters", e);
    let after = after.unwrap_or_else(DeadLetterCursor::start);
    let origin = &after.origin;
    let mut page = connection.prepare(PAGE).map_err(failed)?;
    // Before every time lies none: nothing is before the first millisecond there is.
    let last = filter.until.map_or(Some(i64::MAX), |until| until.0.checked_sub(1));
    let Some(last) = last else { return Ok(Vec::new()) };
    let values = params![
        name.as_str(),
        filter.since.map_or(i64::MIN, |since| since.0),
        last,
        after.failed_at.0,
        origin.topic.as_ref(),
        origin.partition,
        origin.offset,
        after.key.0,
        filter.class.map(FailureClass::as_str),
        filter.key,
        filter.topic,
        filter.id.as_ref().map(MessageId::to_stored),
        limit
    ];
    let mut rows = page.query(values).map_err(failed)?;
    let mut letters = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        letters.push(summary_of(row).map_err(failed)??);
    }
    Ok(letters)
}

/// What a row says whose columns are those of a page.
pub(super) fn summary_of(row: &Row<'_>) -> rusqlite::Result<Result<DeadLetterSummary, StoreError>> {
    let head = read_head(row)?;
    let value_bytes: Option<i64> = row.get(11)?;
    let (id, class) = match (head.id(), class_of(&head.class)) {
        (Ok(id), Ok(class)) => (id, class),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    Ok(Ok(DeadLetterSummary {
        key: head.key,
        id,
        origin: head.origin,
        class,
        code: head.code,
        reason: Reason::new(&head.reason),
        attempts: head.attempts,
        failed_at: head.failed_at,
        value_bytes: value_bytes.map(|bytes| u64::try_from(bytes).unwrap_or_default()),
    }))
}

pub(crate) fn dead_letter(
    connection: &Connection,
    name: &ConsumerName,
    key: DeadLetterKey,
) -> Result<Option<DeadLetterRow>, StoreError> {
    let failed = |e| own_error(connection, "reading a dead letter", e);
    let mut one = connection.prepare(ONE).map_err(failed)?;
    let mut rows = one.query(params![name.as_str(), key.0]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else {
        return Ok(None);
    };
    let (key, letter) = letter_of(row).map_err(failed)??;
    Ok(Some(DeadLetterRow { consumer: name.clone(), key, letter }))
}

impl LetterStore for SqliteStore {
    async fn kept_letters(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.read(|connection| {
            let failed = |e| own_error(connection, "reading dead letters", e);
            let mut one = connection.prepare(ONE).map_err(failed)?;
            let mut kept = Vec::with_capacity(keys.len());
            for dedup in keys {
                let mut rows = one.query(params![consumer.name.as_str(), dedup]).map_err(failed)?;
                let row = rows.next().map_err(failed)?;
                let letter = row.map(|row| letter_of(row).map_err(failed)?).transpose()?;
                kept.push(letter.map(|(_, letter)| letter));
            }
            Ok(kept)
        })
    }
}

/// The whole message of a row whose first columns are those of `dead_letter.sql`.
pub(super) fn letter_of(row: &Row<'_>) -> rusqlite::Result<Result<(DeadLetterKey, DeadLetter), StoreError>> {
    let (head, tail) = (read_head(row)?, read_tail(row)?);
    Ok(whole(head, tail))
}

fn whole(head: Head, tail: Tail) -> Result<(DeadLetterKey, DeadLetter), StoreError> {
    let headers = headers::decode(&tail.headers).map_err(|e| damaged(&e.to_string()))?;
    let letter = DeadLetter {
        id: head.id()?,
        digest: tail.digest,
        record: Record {
            key: tail.key.map(Bytes::from),
            value: tail.value.map(Bytes::from),
            headers,
            origin: head.origin,
            timestamp: tail.timestamp.map(Timestamp),
        },
        truncation: tail.truncation,
        class: class_of(&head.class)?,
        code: head.code,
        reason: Reason::new(&head.reason),
        attempts: head.attempts,
        received_at: Timestamp(tail.received_at),
        failed_at: head.failed_at,
    };
    Ok((head.key, letter))
}

/// The columns that both readings have.
struct Head {
    key: DeadLetterKey,
    failed_at: Timestamp,
    class: String,
    code: Option<String>,
    reason: String,
    stored: Option<Vec<u8>>,
    attempts: u32,
    origin: Origin,
}

impl Head {
    fn id(&self) -> Result<Option<MessageId>, StoreError> {
        let read = |stored: &Vec<u8>| MessageId::from_stored(stored).map_err(|e| damaged(&e.to_string()));
        self.stored.as_ref().map(read).transpose()
    }
}

fn read_head(row: &Row<'_>) -> rusqlite::Result<Head> {
    Ok(Head {
        key: DeadLetterKey(row.get(0)?),
        failed_at: Timestamp(row.get(1)?),
        class: row.get(2)?,
        code: row.get(3)?,
        reason: row.get(4)?,
        stored: row.get(5)?,
        attempts: row.get(6)?,
        origin: Origin {
            topic: row.get::<_, String>(7)?.into(),
            partition: row.get(8)?,
            offset: row.get(9)?,
            line: row.get::<_, Option<i64>>(10)?.and_then(|line| u64::try_from(line).ok()),
        },
    })
}

struct Tail {
    received_at: i64,
    digest: i64,
    timestamp: Option<i64>,
    key: Option<Vec<u8>>,
    headers: Vec<u8>,
    truncation: Option<Truncation>,
    value: Option<Vec<u8>>,
}

fn read_tail(row: &Row<'_>) -> rusqlite::Result<Tail> {
    let full_bytes: Option<i64> = row.get(16)?;
    let blake3: Option<[u8; 32]> = row.get(17)?;
    Ok(Tail {
        received_at: row.get(11)?,
        digest: row.get(12)?,
        timestamp: row.get(13)?,
        key: row.get(14)?,
        headers: row.get(15)?,
        truncation: full_bytes.zip(blake3).map(|(full_bytes, blake3)| Truncation {
            full_bytes: u64::try_from(full_bytes).unwrap_or_default(),
            blake3,
        }),
        value: row.get(18)?,
    })
}

pub(super) fn class_of(word: &str) -> Result<FailureClass, StoreError> {
    FailureClass::from_word(word).ok_or_else(|| {
        let text =
            format!("a message has the class {word:?}, which this program does not know: use a newer one");
        StoreError::new(StoreErrorKind::NotMigrated, text)
    })
}

pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("a message that was kept cannot be read: {what}"))
}
