//! Parked messages: kept with the claim's commit, taken when they are due, and what became of them.
//!
//! Authoritative: the table `handstamp_parked`, unique on (consumer, dedup), and this machine's clock. There is
//! one writer, so the write lock of the file is the lock of every row: who takes holds it until the transaction
//! ends, and a process that is gone holds none. A look without a lock comes first, so that taking makes nobody
//! wait while nothing is due. Of an order key only the row that was parked first is not `behind`; parking says
//! so, and the trigger `handstamp_parked_next` says it of the next one when the first goes.
//!
//! ```text
//!  park ─► parked ('p') ─► due? ─► BEGIN IMMEDIATE ─► take ─┬─ Applied: row gone, inbox 'a' ─┐
//!             ▲              └─ no: None                    ├─ Dead: dead letter, inbox 'd' ─┤ COMMIT
//!             └────────────── due later ◄───────────────────┴─ Again: one attempt more ──────┘
//! ```

use super::failure::{LETTER_VALUES, bind_letter, class_of, letter_of};
use super::inbox::{StoredIds, check_consumer};
use super::migrate::own_error;
use super::slot::Held;
use super::starts;
use super::store::{SqliteStore, Tx};
use handstamp_core::parked::{
    Dedup, FailedAttempt, OrderKey, Park, ParkedMessage, ParkedStatus, ParkingStore, Resumed,
};
use handstamp_core::{
    ConsumerKey, ConsumerName, CrashPoint, DeadLetter, InboxState, MessageId, Reason, Recorded, StoreError,
    StoreErrorKind, Timestamp,
};
use rusqlite::{Connection, Row, params};
use std::collections::HashSet;
use std::time::Duration;

const INSERT: &str = include_str!("sql/parked_insert.sql");
const MARK_PARKED: &str = include_str!("sql/mark_parked.sql");
const NOTE: &str = include_str!("sql/attempts_insert.sql");
const ATTEMPTS: &str = include_str!("sql/attempts.sql");
const KEYS: &str = include_str!("sql/parked_keys.sql");
const DUE: &str = include_str!("sql/parked_due.sql");
const TAKE: &str = include_str!("sql/parked_take.sql");
const TAKE_AGAIN: &str = include_str!("sql/parked_again.sql");
const SAY: &str = include_str!("sql/resume_inbox.sql");
const DONE: &str = include_str!("sql/resume_done.sql");
const AGAIN: &str = include_str!("sql/resume_again.sql");
const DEAD: &str = include_str!("sql/resume_dead.sql");
const STATUS: &str = include_str!("sql/parked_status.sql");

/// A hundred years; no wait is longer.
const WAIT_MAX_MS: i64 = 3_155_760_000_000;

impl ParkingStore for SqliteStore {
    async fn park(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        rows: &[Park],
    ) -> Result<Vec<Recorded>, StoreError> {
        tx.own(
            || vec![Recorded::New; rows.len()],
            |connection, claimed| park(connection, consumer, rows, claimed),
        )
    }

    async fn note_attempts(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        attempts: &[(Dedup, FailedAttempt)],
    ) -> Result<(), StoreError> {
        let note = |connection: &Connection| {
            attempts.iter().try_for_each(|(dedup, attempt)| note(connection, consumer, dedup, attempt))
        };
        tx.own(|| (), |connection, _| note(connection))
    }

    async fn parked_keys(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        keys: &[OrderKey],
    ) -> Result<Vec<bool>, StoreError> {
        tx.own(|| vec![false; keys.len()], |connection, _| parked_keys(connection, consumer, keys))
    }

    async fn take_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
    ) -> Result<Option<(Tx, Vec<ParkedMessage>)>, StoreError> {
        if max == 0 || !self.read(|connection| is_due(connection, consumer))? {
            return Ok(None);
        }
        let held = self.lock().await?;
        // Nothing below waits: a future dropped above holds no open transaction.
        let taken = take(held.connection(), consumer, max);
        if taken.as_ref().is_ok_and(Vec::is_empty) {
            // Somebody else took it between the look and the lock.
            held.roll_back()?;
            return Ok(None);
        }
        opened(held, taken).map(Some)
    }

    async fn take_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<(Tx, Vec<ParkedMessage>), StoreError> {
        let held = self.lock().await?;
        let taken = take_again(held.connection(), consumer, keys, Which::Any);
        opened(held, taken)
    }

    async fn savepoint(&self, tx: &mut Tx) -> Result<(), StoreError> {
        tx.save()
    }

    async fn take_back(&self, tx: &mut Tx) -> Result<(), StoreError> {
        tx.take_back()
    }

    async fn resume(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        outcomes: &[(Dedup, Resumed)],
    ) -> Result<(), StoreError> {
        let resume = |connection: &Connection| {
            outcomes.iter().try_for_each(|(dedup, outcome)| resume(connection, consumer, dedup, outcome))
        };
        tx.own(|| (), |connection, _| resume(connection))
    }

    async fn parked_status(&self, consumer: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
        self.read(|connection| status(connection, consumer))
    }
}

/// Which rows are taken by their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// All that are still there.
    Any,
    /// Those of them that are due now.
    Due,
}

/// The transaction with its rows; after an error it is rolled back.
pub(super) fn opened(
    held: Held,
    taken: Result<Vec<ParkedMessage>, StoreError>,
) -> Result<(Tx, Vec<ParkedMessage>), StoreError> {
    match taken {
        Ok(rows) => Ok((Tx::of(held, StoredIds::default()), rows)),
        Err(error) => {
            let _ = held.roll_back();
            Err(error)
        }
    }
}

/// Parks messages, and says so in the inbox rows among `claimed`.
fn park(
    connection: &Connection,
    consumer: &ConsumerKey,
    rows: &[Park],
    claimed: &StoredIds,
) -> Result<Vec<Recorded>, StoreError> {
    let failed = |e| own_error(connection, "parking messages", e);
    let mut insert = connection.prepare_cached(INSERT).map_err(failed)?;
    let mut mark = connection.prepare_cached(MARK_PARKED).map_err(failed)?;
    let mut parked = Vec::with_capacity(rows.len());
    for Park { letter, wait, order_key } in rows {
        let stored = letter.id.as_ref().map(MessageId::to_stored);
        bind_letter(&mut insert, consumer, letter, stored.as_deref()).map_err(failed)?;
        insert.raw_bind_parameter(LETTER_VALUES + 1, millis(*wait)).map_err(failed)?;
        insert.raw_bind_parameter(LETTER_VALUES + 2, order_key.map(|key| key.0)).map_err(failed)?;
        let changed = insert.raw_execute().map_err(failed)?;
        parked.push(if changed == 1 { Recorded::New } else { Recorded::Known });
        CrashPoint::MidPark.reached();
        if letter.marks_inbox()
            && let Some(stored) = stored
            && claimed.contains(&stored)
        {
            mark.execute((stored, consumer.id)).map_err(failed)?;
        }
    }
    Ok(parked)
}

/// Adds a failed attempt to the history of its message.
fn note(
    connection: &Connection,
    consumer: &ConsumerKey,
    dedup: &Dedup,
    attempt: &FailedAttempt,
) -> Result<(), StoreError> {
    let failed = |e| own_error(connection, "noting attempts", e);
    let FailedAttempt { at, node, class, code, reason } = attempt;
    let mut note = connection.prepare_cached(NOTE).map_err(failed)?;
    note.execute(params![consumer.id, dedup, at.0, node, class.as_str(), code, reason.as_str()])
        .map(drop)
        .map_err(failed)
}

/// The history of a message, oldest first.
pub(super) fn attempts(
    connection: &Connection,
    name: &ConsumerName,
    dedup: &Dedup,
) -> Result<Vec<FailedAttempt>, StoreError> {
    let failed = |e| own_error(connection, "reading failed attempts", e);
    let mut history = connection.prepare(ATTEMPTS).map_err(failed)?;
    let mut rows = history.query(params![name.as_str(), dedup]).map_err(failed)?;
    let mut attempts = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let read = || -> rusqlite::Result<(i64, String, String, Option<String>, String)> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        };
        let (at, node, class, code, reason) = read().map_err(failed)?;
        let (class, reason) = (class_of(&class)?, Reason::new(&reason));
        attempts.push(FailedAttempt { at: Timestamp(at), node, class, code, reason });
    }
    Ok(attempts)
}

fn parked_keys(
    connection: &Connection,
    consumer: &ConsumerKey,
    keys: &[OrderKey],
) -> Result<Vec<bool>, StoreError> {
    let failed = |e| own_error(connection, "looking for parked keys", e);
    let mut parked = connection.prepare_cached(KEYS).map_err(failed)?;
    keys.iter().map(|key| parked.query_row((consumer.id, key.0), |row| row.get(0)).map_err(failed)).collect()
}

/// Whether anything is due; the consumer is one of this file.
pub(super) fn is_due(connection: &Connection, consumer: &ConsumerKey) -> Result<bool, StoreError> {
    let failed = |e| own_error(connection, "looking for what is due", e);
    check_consumer(connection, consumer)?;
    let mut due = connection.prepare_cached(DUE).map_err(failed)?;
    due.query_row([consumer.id], |row| row.get(0)).map_err(failed)
}

fn take(
    connection: &Connection,
    consumer: &ConsumerKey,
    max: usize,
) -> Result<Vec<ParkedMessage>, StoreError> {
    let failed = |e| own_error(connection, "taking parked messages", e);
    check_consumer(connection, consumer)?;
    let mut due = connection.prepare_cached(TAKE).map_err(failed)?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut rows = due.query((consumer.id, max)).map_err(failed)?;
    let mut taken = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        taken.push(parked_of(row).map_err(failed)??);
    }
    Ok(taken)
}

pub(super) fn take_again(
    connection: &Connection,
    consumer: &ConsumerKey,
    keys: &[Dedup],
    which: Which,
) -> Result<Vec<ParkedMessage>, StoreError> {
    let failed = |e| own_error(connection, "taking parked messages again", e);
    check_consumer(connection, consumer)?;
    let mut one = connection.prepare_cached(TAKE_AGAIN).map_err(failed)?;
    let mut seen = HashSet::with_capacity(keys.len());
    let mut taken = Vec::with_capacity(keys.len());
    for dedup in keys.iter().filter(|key| seen.insert(**key)) {
        let mut rows = one.query(params![consumer.id, dedup, which == Which::Due]).map_err(failed)?;
        if let Some(row) = rows.next().map_err(failed)? {
            taken.push(parked_of(row).map_err(failed)??);
        }
    }
    Ok(taken)
}

fn parked_of(row: &Row<'_>) -> rusqlite::Result<Result<ParkedMessage, StoreError>> {
    let (parked_at, parked_for): (i64, i64) = (row.get(19)?, row.get(20)?);
    let order_key: Option<[u8; 16]> = row.get(21)?;
    Ok(letter_of(row)?.map(|(key, letter)| ParkedMessage {
        dedup: key.0,
        letter,
        parked_at: Timestamp(parked_at),
        parked_for: duration(parked_for),
        order_key: order_key.map(OrderKey),
        crashes: Vec::new(),
        suspected: false,
    }))
}

/// Writes what became of one row that this transaction has taken.
fn resume(
    connection: &Connection,
    consumer: &ConsumerKey,
    dedup: &Dedup,
    outcome: &Resumed,
) -> Result<(), StoreError> {
    starts::end_parked(connection, consumer, dedup)?;
    match outcome {
        Resumed::Applied => done(connection, consumer, dedup, InboxState::Applied),
        Resumed::Again { wait, failed } => {
            let failing = |e| own_error(connection, "parking messages again", e);
            let mut again = connection.prepare_cached(AGAIN).map_err(failing)?;
            let (class, reason) = (failed.class.as_str(), failed.reason.as_str());
            let values = params![consumer.id, dedup, failed.at.0, class, failed.code, reason, millis(*wait)];
            let changed = again.execute(values).map_err(failing)?;
            refuse_missing(changed)?;
            note(connection, consumer, dedup, failed)
        }
        Resumed::Dead { failed, charged } => {
            let failing = |e| own_error(connection, "giving parked messages up", e);
            let mut dead = connection.prepare_cached(DEAD).map_err(failing)?;
            let (class, reason) = (failed.class.as_str(), failed.reason.as_str());
            let values = params![consumer.id, dedup, failed.at.0, class, failed.code, reason, charged];
            let changed = dead.execute(values).map_err(failing)?;
            refuse_missing(changed)?;
            if *charged {
                note(connection, consumer, dedup, failed)?;
            }
            done(connection, consumer, dedup, InboxState::Dead)
        }
    }
}

/// The row goes, its inbox row says why, and whatever process it killed killed it for the last time.
fn done(
    connection: &Connection,
    consumer: &ConsumerKey,
    dedup: &Dedup,
    state: InboxState,
) -> Result<(), StoreError> {
    let failed = |e| own_error(connection, "writing what became of parked messages", e);
    let mut say = connection.prepare_cached(SAY).map_err(failed)?;
    say.execute(params![consumer.id, dedup, state.as_letter().to_string()]).map_err(failed)?;
    let mut gone = connection.prepare_cached(DONE).map_err(failed)?;
    let changed = gone.execute(params![consumer.id, dedup]).map_err(failed)?;
    refuse_missing(changed)?;
    starts::forget_crashes(connection, consumer, dedup)
}

/// What is not there cannot have been taken: its effect would come twice.
fn refuse_missing(changed: usize) -> Result<(), StoreError> {
    if changed == 1 {
        return Ok(());
    }
    let text = "a parked message is resumed that this transaction has not taken, or that its handler removed";
    Err(StoreError::new(StoreErrorKind::Config, text))
}

/// Parks a message of its own, takes it, lets it fail and gives it up, as a retry does; the caller rolls back.
pub(super) fn rehearse(
    connection: &Connection,
    consumer: &ConsumerKey,
    letter: DeadLetter,
    claimed: &StoredIds,
) -> Result<(), StoreError> {
    let (dedup, order_key, id) = (letter.dedup(), OrderKey([0; 16]), letter.id.clone());
    let failed = FailedAttempt {
        at: letter.failed_at,
        node: "rehearsal".into(),
        class: letter.class,
        code: None,
        reason: letter.reason.clone(),
    };
    let row = Park { letter, wait: Duration::ZERO, order_key: Some(order_key) };
    park(connection, consumer, &[row], claimed)?;
    starts::rehearse(connection, consumer, id, &dedup)?;
    parked_keys(connection, consumer, &[order_key])?;
    is_due(connection, consumer)?;
    // Prepared, and nobody's messages are read.
    take(connection, consumer, 0)?;
    take_again(connection, consumer, &[dedup], Which::Any)?;
    let again = Resumed::Again { wait: Duration::ZERO, failed: failed.clone() };
    resume(connection, consumer, &dedup, &again)?;
    resume(connection, consumer, &dedup, &Resumed::Dead { failed, charged: true })
}

pub(super) fn status(connection: &Connection, consumer: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
    let failed = |e| own_error(connection, "counting parked messages", e);
    let mut status = connection.prepare_cached(STATUS).map_err(failed)?;
    let read = |row: &Row<'_>| {
        let (count, due_in, oldest): (i64, Option<i64>, Option<i64>) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(ParkedStatus {
            count: u64::try_from(count).unwrap_or_default(),
            due_in: due_in.map(duration),
            oldest: oldest.map(duration),
        })
    };
    status.query_row([consumer.id], read).map_err(failed)
}

/// A wait as the row keeps it: never shorter than asked.
fn millis(wait: Duration) -> i64 {
    let up = wait.saturating_add(Duration::from_nanos(999_999)).as_millis();
    i64::try_from(up).unwrap_or(WAIT_MAX_MS).min(WAIT_MAX_MS)
}

/// A time that has passed or is to come; none below zero, whatever the clock did.
fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}
