//! What operators do: send dead letters back, give them up, look at what is parked and at what was done.
//!
//! Authoritative: the rows, under the file's write lock, so that two operators never move the same one, and the
//! inbox's key, so that a new id is nobody else's. Each call is one transaction with its audit rows.
//!
//! ```text
//!  dead ('d') ─► BEGIN IMMEDIATE ─┬─ own id: inbox 'd' ─► 'p' ─┬─► parked, due at once, audit ─► COMMIT
//!                                 ├─ new id: free ─► 'p' ──────┘
//!                                 ├─ new id: known ─► stays
//!                                 └─ discard: inbox 'd' ─► 'x' ─► row gone, audit ─► COMMIT
//! ```

use super::failure::{damaged, summary_of};
use super::inbox::{find_consumer, state_of};
use super::migrate::own_error;
use super::parked;
use super::store::SqliteStore;
use crate::redrive::{Action, AuditFilter, AuditRow, Operation, ParkedSummary, Redrive, Redriven};
use crate::rows::DeadLetterKey;
use handstamp_core::parked::{FailedAttempt, OrderKey};
use handstamp_core::{ConsumerName, CrashPoint, FailureClass, InboxState, MessageId, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

const LOOK: &str = include_str!("sql/redrive_look.sql");
const OWN: &str = include_str!("sql/redrive_own.sql");
const NEW: &str = include_str!("sql/redrive_new.sql");
const MOVE: &str = include_str!("sql/redrive_move.sql");
const DELETE: &str = include_str!("sql/dead_letter_delete.sql");
const KEEP: &str = include_str!("sql/attempts_keep.sql");
const DISCARD: &str = include_str!("sql/discard_inbox.sql");
const KNOWN: &str = include_str!("sql/known.sql");
const FORGET: &str = include_str!("sql/crashes_forget.sql");
const AUDIT_INSERT: &str = include_str!("sql/audit_insert.sql");
const AUDIT: &str = include_str!("sql/audit.sql");
const AUDIT_ALL: &str = include_str!("sql/audit_all.sql");
const PAGE: &str = include_str!("sql/parked_page.sql");

impl SqliteStore {
    /// Sends dead letters back, in the order given: each is parked, due at once, with no attempts counted and
    /// its history kept. The n-th answer belongs to the n-th; what stays a dead letter hinders no other.
    ///
    /// # Errors
    /// `Conflict`: nothing was done, run it again; `Unavailable`: what was done is not known, and running it
    /// again answers `Missing` for what was; `NotMigrated`.
    pub async fn redrive(
        &self,
        consumer: &ConsumerName,
        asked: &[Redrive],
        operation: &Operation,
    ) -> Result<Vec<Redriven>, StoreError> {
        self.write(|connection| {
            let Some((key, _)) = find_consumer(connection, consumer)? else {
                return Ok(vec![Redriven::Missing; asked.len()]);
            };
            let within = Within { connection, consumer: key.id, operation };
            asked.iter().map(|redrive| within.redrive(redrive)).collect()
        })
        .await
    }

    /// Gives dead letters up for good. The n-th answer belongs to the n-th: whether it was there.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn discard(
        &self,
        consumer: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
    ) -> Result<Vec<bool>, StoreError> {
        self.write(|connection| {
            let Some((key, _)) = find_consumer(connection, consumer)? else {
                return Ok(vec![false; keys.len()]);
            };
            let within = Within { connection, consumer: key.id, operation };
            keys.iter().map(|key| within.discard(*key)).collect()
        })
        .await
    }

    /// The failed attempts of a message that was parked or given up, oldest first, also of those before a
    /// redrive.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn attempts(
        &self,
        consumer: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Vec<FailedAttempt>, StoreError> {
        self.read(|connection| parked::attempts(connection, consumer, &key.0))
    }

    /// What operators did to one message or to all of a consumer, newest first.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn audit(
        &self,
        consumer: &ConsumerName,
        message: Option<DeadLetterKey>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let filter = AuditFilter { message, ..AuditFilter::default() };
        self.audit_where(consumer, &filter, None, limit).await
    }

    /// A page of those lines that fit a filter, newest first, behind the one with the number `after`.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn audit_where(
        &self,
        consumer: &ConsumerName,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        self.read(|connection| audit(connection, consumer, filter, after, limit))
    }

    /// A page of a consumer's parked messages in the order in which they were parked, behind the one with the
    /// number `after`, without their bodies.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn parked(
        &self,
        consumer: &ConsumerName,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<ParkedSummary>, StoreError> {
        self.read(|connection| page(connection, consumer, after, limit))
    }
}

/// One command's transaction.
pub(super) struct Within<'a> {
    pub(super) connection: &'a Connection,
    pub(super) consumer: i16,
    pub(super) operation: &'a Operation,
}

/// What a dead letter says of its id.
struct Found {
    id: Option<Vec<u8>>,
    /// The id is its own, not another message's.
    is_own: bool,
    digest: i64,
    /// It was sent back under another id before, and its record was delivered again since.
    is_parked: bool,
}

impl Within<'_> {
    fn redrive(&self, redrive: &Redrive) -> Result<Redriven, StoreError> {
        let key = redrive.dead_letter;
        let Some(found) = self.look(key)? else { return Ok(Redriven::Missing) };
        let new_id = redrive.new_id.as_ref().map(MessageId::to_stored);
        let keeps_own = found.is_own && (new_id.is_none() || new_id == found.id);
        let Some(id) = (if keeps_own { found.id } else { new_id }) else { return Ok(Redriven::NoId) };
        if found.is_parked {
            return Ok(Redriven::Known(InboxState::Parked));
        }
        let claim = if keeps_own { OWN } else { NEW };
        if self.run("claiming ids of dead letters", claim, params![id, self.consumer, found.digest])? != 1 {
            return self.state_of(&id).map(Redriven::Known);
        }
        let order_key = redrive.order_key.map(|key| key.0);
        self.keep_why(key)?;
        self.run("parking dead letters", MOVE, params![self.consumer, key.0, id, order_key])?;
        self.run("parking dead letters", DELETE, params![self.consumer, key.0])?;
        self.forget_crashes(key)?;
        CrashPoint::MidRedrive.reached();
        self.audit(Action::Redrive, key, Some(&id))?;
        Ok(Redriven::Parked)
    }

    fn discard(&self, key: DeadLetterKey) -> Result<bool, StoreError> {
        let Some(found) = self.look(key)? else { return Ok(false) };
        if found.is_own {
            self.run("discarding dead letters", DISCARD, params![found.id, self.consumer])?;
        }
        self.keep_why(key)?;
        self.run("discarding dead letters", DELETE, params![self.consumer, key.0])?;
        self.forget_crashes(key)?;
        CrashPoint::MidDiscard.reached();
        self.audit(Action::Discard, key, found.id.as_deref())?;
        Ok(true)
    }

    /// Whoever looks later finds why it was a dead letter.
    fn keep_why(&self, key: DeadLetterKey) -> Result<(), StoreError> {
        self.run("keeping failed attempts", KEEP, params![self.consumer, key.0]).map(drop)
    }

    /// Whoever gave the message up may have died before it could forget them.
    fn forget_crashes(&self, key: DeadLetterKey) -> Result<(), StoreError> {
        self.run("forgetting crashes", FORGET, params![self.consumer, key.0]).map(drop)
    }

    fn look(&self, key: DeadLetterKey) -> Result<Option<Found>, StoreError> {
        let failed = |e| own_error(self.connection, "looking for dead letters", e);
        let mut look = self.connection.prepare_cached(LOOK).map_err(failed)?;
        let found = look.query_row(params![self.consumer, key.0], |row| {
            let id: Option<Vec<u8>> = row.get(0)?;
            let is_reused = row.get::<_, String>(1)? == FailureClass::IdReused.as_str();
            let is_own = id.is_some() && !is_reused;
            Ok(Found { id, is_own, digest: row.get(2)?, is_parked: row.get(3)? })
        });
        found.optional().map_err(failed)
    }

    fn state_of(&self, id: &[u8]) -> Result<InboxState, StoreError> {
        let failed = |e| own_error(self.connection, "reading what is known of ids", e);
        let mut known = self.connection.prepare_cached(KNOWN).map_err(failed)?;
        let letter: String = known.query_row(params![id, self.consumer], |row| row.get(0)).map_err(failed)?;
        state_of(&letter)
    }

    pub(super) fn audit(
        &self,
        action: Action,
        key: DeadLetterKey,
        id: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        // As text holds them: without NUL.
        let text = |text: &str| text.replace('\0', "\u{fffd}");
        let Operation { number, done_by, why } = self.operation;
        let values = params![self.consumer, number, action.as_str(), text(done_by), text(why), key.0, id];
        self.run("writing the audit", AUDIT_INSERT, values).map(drop)
    }

    pub(super) fn run(
        &self,
        doing: &str,
        sql: &str,
        values: &[&dyn rusqlite::ToSql],
    ) -> Result<usize, StoreError> {
        let failed = |e| own_error(self.connection, doing, e);
        self.connection.prepare_cached(sql).map_err(failed)?.execute(values).map_err(failed)
    }
}

fn audit(
    connection: &Connection,
    name: &ConsumerName,
    filter: &AuditFilter,
    after: Option<i64>,
    limit: u32,
) -> Result<Vec<AuditRow>, StoreError> {
    let failed = |e| own_error(connection, "reading the audit", e);
    // Before every time lies none: nothing is before the first millisecond there is.
    let last = filter.until.map_or(Some(i64::MAX), |until| until.0.checked_sub(1));
    let Some(last) = last else { return Ok(Vec::new()) };
    let since = filter.since.map_or(i64::MIN, |since| since.0);
    let (name, before) = (name.as_str(), after.unwrap_or(i64::MAX));
    let action = filter.action.map(Action::as_str);
    let id = filter.id.as_ref().map(MessageId::to_stored);
    let sql = if filter.message.is_some() { AUDIT } else { AUDIT_ALL };
    let mut lines = connection.prepare(sql).map_err(failed)?;
    let mut rows = match filter.message {
        Some(key) => lines.query(params![name, before, action, since, last, id, key.0, limit]),
        None => lines.query(params![name, before, action, since, last, id, limit]),
    }
    .map_err(failed)?;
    let mut audit = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        audit.push(audit_of(row).map_err(failed)??);
    }
    Ok(audit)
}

fn audit_of(row: &Row<'_>) -> rusqlite::Result<Result<AuditRow, StoreError>> {
    let stored: Option<Vec<u8>> = row.get(6)?;
    let (Some(action), Ok(id)) = (
        Action::from_word(&row.get::<_, String>(1)?),
        stored.as_deref().map(MessageId::from_stored).transpose(),
    ) else {
        return Ok(Err(damaged("its line of the audit says what this program does not know")));
    };
    Ok(Ok(AuditRow {
        number: row.get(7)?,
        at: Timestamp(row.get(0)?),
        action,
        operation: Operation { number: row.get(2)?, done_by: row.get(3)?, why: row.get(4)? },
        dead_letter: DeadLetterKey(row.get(5)?),
        id,
    }))
}

fn page(
    connection: &Connection,
    name: &ConsumerName,
    after: Option<i64>,
    limit: u32,
) -> Result<Vec<ParkedSummary>, StoreError> {
    let failed = |e| own_error(connection, "reading parked messages", e);
    let mut page = connection.prepare(PAGE).map_err(failed)?;
    let values = params![name.as_str(), after.unwrap_or(i64::MIN), limit];
    let mut rows = page.query(values).map_err(failed)?;
    let mut parked = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        parked.push(parked_summary_of(row).map_err(failed)??);
    }
    Ok(parked)
}

fn parked_summary_of(row: &Row<'_>) -> rusqlite::Result<Result<ParkedSummary, StoreError>> {
    let message = match summary_of(row)? {
        Ok(message) => message,
        Err(error) => return Ok(Err(error)),
    };
    Ok(Ok(ParkedSummary {
        seq: row.get(12)?,
        message,
        parked_at: Timestamp(row.get(13)?),
        due_at: Timestamp(row.get(14)?),
        order_key: row.get::<_, Option<[u8; 16]>>(15)?.map(OrderKey),
        due_in: Duration::from_millis(u64::try_from(row.get::<_, i64>(16)?).unwrap_or_default()),
        behind: row.get::<_, Option<[u8; 16]>>(17)?.map(DeadLetterKey),
    }))
}
