//! What operators do: send dead letters back, give them up, look at what is parked and at what was done.
//!
//! Authoritative: the dead letter's row lock, so that two operators never move the same one, and the inbox's
//! key, so that a new id is nobody else's. Each call is one transaction with its audit rows, guarded as every
//! transaction of ours. Who begins while it is open waits for no lock of it but those of its ids.
//!
//! ```text
//!  dead ('d') ─► lock ─┬─ own id: inbox 'd' ─► 'p' ──┬─► parked, due at once, audit ─► COMMIT
//!                      ├─ new id: free ─► 'p' ───────┘
//!                      ├─ new id: known ─► stays
//!                      └─ discard: inbox 'd' ─► 'x' ─► row gone, audit ─► COMMIT
//! ```

use super::config::SchemaName;
use super::failure::{IN_FLIGHT_MAX, PAGE_MAX, Read, read_error, strange, summary_of};
use super::inbox::{GUARD, state_of};
use super::parked::{failed, no_answer};
use super::pipeline::in_order;
use super::store::{PostgresStore, Tx};
use crate::redrive::{Action, AuditFilter, AuditRow, Operation, ParkedSummary, Redrive, Redriven};
use crate::rows::DeadLetterKey;
use handstamp_core::parked::{FailedAttempt, OrderKey};
use handstamp_core::{
    ConsumerKey, ConsumerName, CrashPoint, FailureClass, InboxState, MessageId, Reason, Store, StoreError,
    StoreErrorKind, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// Failed attempts read of one message.
const ATTEMPTS_MAX: i64 = 10_000;

pub(super) type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

impl PostgresStore {
    /// Sends dead letters back, in the order given: each is parked, due at once, with no attempts counted and its
    /// history kept. The n-th answer belongs to the n-th; what stays a dead letter hinders no other.
    ///
    /// # Errors
    /// `Conflict`: nothing was done, run it again; `Unavailable`: what was done is not known, and running it again
    /// answers `Missing` for what was; `NotMigrated`, `SchemaMismatch` where the role lacks a right.
    pub async fn redrive(
        &self,
        consumer: &ConsumerName,
        asked: &[Redrive],
        operation: &Operation,
    ) -> Result<Vec<Redriven>, StoreError> {
        let Some(key) = self.key_of(consumer).await? else {
            return Ok(vec![Redriven::Missing; asked.len()]);
        };
        let (tx, _) = self.begin(&key, &[]).await?;
        let what = async |client: &Client| redrive_in(client, self.schema(), key.id, asked, operation).await;
        self.operate(tx, what).await
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
        let Some(key) = self.key_of(consumer).await? else { return Ok(vec![false; keys.len()]) };
        let (tx, _) = self.begin(&key, &[]).await?;
        let what = async |client: &Client| discard_in(client, self.schema(), key.id, keys, operation).await;
        self.operate(tx, what).await
    }

    /// The failed attempts of a message that was parked or given up, oldest first, also of those before a redrive.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn attempts(
        &self,
        consumer: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Vec<FailedAttempt>, StoreError> {
        let sql = self.schema().render(include_str!("sql/attempts.sql"), "true");
        let dedup = key.0.as_slice();
        let parameters: [Typed<'_>; 3] =
            [(&consumer.as_str(), Type::TEXT), (&dedup, Type::BYTEA), (&ATTEMPTS_MAX, Type::INT8)];
        let rows = self.read("reading failed attempts", &sql, &parameters).await?;
        rows.iter().map(|row| attempt_of(row).map_err(read_error)?).collect()
    }

    /// What operators did to one message or to all of a consumer, newest first; at most 1,000 lines.
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

    /// A page of those lines that fit a filter, newest first, behind the one with the number `after`; at most
    /// 1,000.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn audit_where(
        &self,
        consumer: &ConsumerName,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let sql = self.schema().render(include_str!("sql/audit.sql"), "true");
        let dedup = filter.message.as_ref().map(|key| key.0.as_slice());
        let (before, limit) = (after.unwrap_or(i64::MAX), i64::from(limit.min(PAGE_MAX)));
        let action = filter.action.map(Action::as_str);
        let since = filter.since.map_or(i64::MIN, |time| time.0);
        let until = filter.until.map_or(i64::MAX, |time| time.0.saturating_sub(1));
        let id = filter.id.as_ref().map(MessageId::to_stored);
        let parameters: [Typed<'_>; 8] = [
            (&consumer.as_str(), Type::TEXT),
            (&dedup, Type::BYTEA),
            (&before, Type::INT8),
            (&action, Type::TEXT),
            (&since, Type::INT8),
            (&until, Type::INT8),
            (&id, Type::BYTEA),
            (&limit, Type::INT8),
        ];
        let rows = self.read("reading the audit", &sql, &parameters).await?;
        rows.iter().map(|row| audit_of(row).map_err(read_error)?).collect()
    }

    /// A page of a consumer's parked messages in the order in which they were parked, behind the one with the
    /// number `after`, without their bodies; at most 1,000.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn parked(
        &self,
        consumer: &ConsumerName,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<ParkedSummary>, StoreError> {
        let sql = self.schema().render(include_str!("sql/parked_page.sql"), "true");
        let (after, limit) = (after.unwrap_or(i64::MIN), i64::from(limit.min(PAGE_MAX)));
        let parameters: [Typed<'_>; 3] =
            [(&consumer.as_str(), Type::TEXT), (&after, Type::INT8), (&limit, Type::INT8)];
        let rows = self.read("reading parked messages", &sql, &parameters).await?;
        rows.iter().map(|row| parked_summary_of(row).map_err(read_error)?).collect()
    }

    pub(super) async fn read(
        &self,
        what: &str,
        sql: &str,
        parameters: &[Typed<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.with_slot(async |slot| {
            slot.client().query_typed(sql, parameters).await.map_err(|e| failed(what, e))
        })
        .await
    }

    pub(super) async fn key_of(&self, name: &ConsumerName) -> Result<Option<ConsumerKey>, StoreError> {
        let sql = self.schema().render(include_str!("sql/consumer.sql"), "true");
        let parameters: [Typed<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let rows = self.read("looking for the consumer", &sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(ConsumerKey { id: row.try_get(0).map_err(read_error)?, name: name.clone() }))
    }

    /// Runs something in a transaction of ours and commits it.
    pub(super) async fn operate<T>(
        &self,
        tx: Tx,
        what: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match timeout(self.shared.answer_limit(), what(tx.slot.client())).await {
            Ok(Ok(answer)) => {
                self.commit(tx).await?;
                Ok(answer)
            }
            Ok(Err(error)) => {
                self.shared.end_failed(tx, &error).await;
                Err(error)
            }
            Err(_) => {
                tx.slot.abandon().await;
                Err(no_answer("moving dead letters"))
            }
        }
    }
}

/// What a locked dead letter says of its id.
struct Locked {
    id: Option<Vec<u8>>,
    is_own: bool,
    digest: i64,
    /// It was sent back under another id before, and its record was delivered again since.
    is_parked: bool,
}

/// One of the letters that are to be moved.
#[derive(Clone)]
struct Chosen {
    at: usize,
    /// The id it will have.
    id: Vec<u8>,
    is_new: bool,
    digest: i64,
}

async fn redrive_in(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    asked: &[Redrive],
    operation: &Operation,
) -> Result<Vec<Redriven>, StoreError> {
    let mut locked = lock(client, schema, consumer, asked).await?;
    let mut answers = vec![Redriven::Missing; asked.len()];
    let mut chosen = Vec::with_capacity(asked.len());
    let mut new_ids = BTreeSet::new();
    for (at, redrive) in asked.iter().enumerate() {
        let Some(letter) = locked.remove(&redrive.dead_letter) else { continue };
        let new_id = redrive.new_id.as_ref().map(MessageId::to_stored);
        let keeps_own = letter.is_own && (new_id.is_none() || new_id == letter.id);
        let id = if keeps_own { letter.id } else { new_id };
        let Some(id) = id else {
            answers[at] = Redriven::NoId;
            continue;
        };
        // It is parked already, or another one of this call gets the id.
        if letter.is_parked || (!keeps_own && !new_ids.insert(id.clone())) {
            answers[at] = Redriven::Known(InboxState::Parked);
            continue;
        }
        chosen.push(Chosen { at, id, is_new: !keeps_own, digest: letter.digest });
    }
    let free = free_ids(client, schema, consumer, &chosen).await?;
    let (moved, known): (Vec<Chosen>, Vec<Chosen>) =
        chosen.into_iter().partition(|one| free.contains(&(one.is_new, one.id.clone())));
    let states = states_of(client, schema, consumer, &known).await?;
    for one in known {
        let state = states.get(&one.id).copied().ok_or_else(|| {
            let message = "an id was held by another transaction that is gone: run it again";
            StoreError::new(StoreErrorKind::Conflict, message)
        })?;
        answers[one.at] = Redriven::Known(state);
    }
    move_all(client, schema, consumer, asked, &moved).await?;
    CrashPoint::MidRedrive.reached();
    for one in &moved {
        answers[one.at] = Redriven::Parked;
    }
    let touched: Vec<Touched<'_>> =
        moved.iter().map(|one| (asked[one.at].dead_letter.0.as_slice(), Some(one.id.as_slice()))).collect();
    audit(client, schema, consumer, Action::Redrive, &touched, operation).await?;
    Ok(answers)
}

async fn lock(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    asked: &[Redrive],
) -> Result<BTreeMap<DeadLetterKey, Locked>, StoreError> {
    let sql = schema.render(include_str!("sql/redrive_lock.sql"), GUARD);
    let keys: Vec<&[u8]> = asked.iter().map(|redrive| redrive.dead_letter.0.as_slice()).collect();
    let parameters: [Typed<'_>; 2] = [(&consumer, Type::INT2), (&keys, Type::BYTEA_ARRAY)];
    let rows = client.query_typed(&sql, &parameters).await.map_err(|e| failed("locking dead letters", e))?;
    let mut locked = BTreeMap::new();
    for row in rows {
        let read = || -> Result<(Vec<u8>, Locked), tokio_postgres::Error> {
            let id: Option<Vec<u8>> = row.try_get(1)?;
            let reused = row.try_get::<_, &str>(2)? == FailureClass::IdReused.as_str();
            let is_own = id.is_some() && !reused;
            Ok((row.try_get(0)?, Locked { id, is_own, digest: row.try_get(3)?, is_parked: row.try_get(4)? }))
        };
        let (key, letter) = read().map_err(read_error)?;
        let key = <[u8; 16]>::try_from(key).map_err(|_| strange("key"))?;
        locked.insert(DeadLetterKey(key), letter);
    }
    Ok(locked)
}

/// The ids that are parked from now on, each with whether it is new.
async fn free_ids(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    chosen: &[Chosen],
) -> Result<BTreeSet<(bool, Vec<u8>)>, StoreError> {
    let mut free = BTreeSet::new();
    let own = schema.render(include_str!("sql/redrive_own.sql"), GUARD);
    let new = schema.render(include_str!("sql/redrive_new.sql"), GUARD);
    for (is_new, sql) in [(false, own), (true, new)] {
        let of_kind = chosen.iter().filter(|one| one.is_new == is_new);
        let (ids, digests): (Vec<&[u8]>, Vec<i64>) =
            of_kind.map(|one| (one.id.as_slice(), one.digest)).unzip();
        if ids.is_empty() {
            continue;
        }
        let parameters: [Typed<'_>; 3] =
            [(&consumer, Type::INT2), (&ids, Type::BYTEA_ARRAY), (&digests, Type::INT8_ARRAY)];
        let rows = client.query_typed(&sql, &parameters).await;
        for row in rows.map_err(|e| failed("claiming ids of dead letters", e))? {
            free.insert((is_new, row.try_get(0).map_err(read_error)?));
        }
    }
    Ok(free)
}

async fn states_of(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    known: &[Chosen],
) -> Result<BTreeMap<Vec<u8>, InboxState>, StoreError> {
    let mut states = BTreeMap::new();
    if known.is_empty() {
        return Ok(states);
    }
    let sql = schema.render(include_str!("sql/known.sql"), GUARD);
    let ids: Vec<&[u8]> = known.iter().map(|one| one.id.as_slice()).collect();
    let parameters: [Typed<'_>; 2] = [(&ids, Type::BYTEA_ARRAY), (&consumer, Type::INT2)];
    let rows = client.query_typed(&sql, &parameters).await;
    for row in rows.map_err(|e| failed("reading what is known of ids", e))? {
        let state = state_of(row.try_get(3).map_err(read_error)?)?;
        states.insert(row.try_get(0).map_err(read_error)?, state);
    }
    Ok(states)
}

/// Moves letters one after the other, so that each sees those of its order key in front of it.
async fn move_all(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    asked: &[Redrive],
    moved: &[Chosen],
) -> Result<(), StoreError> {
    let sql = schema.render(include_str!("sql/redrive_move.sql"), GUARD);
    let rows: Vec<_> = moved
        .iter()
        .map(|one| {
            let redrive = &asked[one.at];
            let order_key = redrive.order_key.as_ref().map(|key| key.0.as_slice());
            let new_id = one.is_new.then_some(one.id.as_slice());
            (redrive.dead_letter.0.as_slice(), new_id, order_key)
        })
        .collect();
    for chunk in rows.chunks(IN_FLIGHT_MAX) {
        let parameters: Vec<[Typed<'_>; 4]> = chunk
            .iter()
            .map(|(dedup, new_id, order_key)| {
                [
                    (&consumer as _, Type::INT2),
                    (dedup as _, Type::BYTEA),
                    (new_id as _, Type::BYTEA),
                    (order_key as _, Type::BYTEA),
                ]
            })
            .collect();
        let sent = parameters.iter().map(|parameters| client.execute_typed(&sql, parameters)).collect();
        for answer in in_order(sent).await {
            if answer.map_err(|e| failed("parking dead letters", e))? != 1 {
                let message = "a dead letter changed while it was sent back: run it again";
                return Err(StoreError::new(StoreErrorKind::Conflict, message));
            }
        }
    }
    Ok(())
}

/// A message's key, and its id where it has one.
pub(super) type Touched<'a> = (&'a [u8], Option<&'a [u8]>);

/// Writes down what is done to some messages, in this order.
pub(super) async fn audit(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    action: Action,
    touched: &[Touched<'_>],
    operation: &Operation,
) -> Result<(), StoreError> {
    if touched.is_empty() {
        return Ok(());
    }
    let sql = schema.render(include_str!("sql/audit_insert.sql"), GUARD);
    let words = Words::of(operation);
    let number = operation.number.as_slice();
    let (keys, ids): (Vec<&[u8]>, Vec<Option<&[u8]>>) = touched.iter().copied().unzip();
    let parameters: [Typed<'_>; 7] = [
        (&consumer, Type::INT2),
        (&number, Type::BYTEA),
        (&action.as_str(), Type::TEXT),
        (&words.done_by, Type::TEXT),
        (&words.why, Type::TEXT),
        (&keys, Type::BYTEA_ARRAY),
        (&ids, Type::BYTEA_ARRAY),
    ];
    let written = client.execute_typed(&sql, &parameters).await;
    written.map(drop).map_err(|e| failed("writing the audit", e))
}

async fn discard_in(
    client: &Client,
    schema: &SchemaName,
    consumer: i16,
    keys: &[DeadLetterKey],
    operation: &Operation,
) -> Result<Vec<bool>, StoreError> {
    let sql = schema.render(include_str!("sql/discard.sql"), GUARD);
    let words = Words::of(operation);
    let (number, asked) = (operation.number.as_slice(), keys.iter().map(|key| key.0.as_slice()));
    let asked: Vec<&[u8]> = asked.collect();
    let parameters: [Typed<'_>; 6] = [
        (&consumer, Type::INT2),
        (&number, Type::BYTEA),
        (&Action::Discard.as_str(), Type::TEXT),
        (&words.done_by, Type::TEXT),
        (&words.why, Type::TEXT),
        (&asked, Type::BYTEA_ARRAY),
    ];
    let rows =
        client.query_typed(&sql, &parameters).await.map_err(|e| failed("discarding dead letters", e))?;
    CrashPoint::MidDiscard.reached();
    let mut gone: BTreeSet<Vec<u8>> =
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(read_error)?;
    Ok(keys.iter().map(|key| gone.remove(key.0.as_slice())).collect())
}

/// An operation's words as text holds them: without NUL.
struct Words {
    done_by: String,
    why: String,
}

impl Words {
    fn of(operation: &Operation) -> Self {
        let text = |text: &str| text.replace('\0', "\u{fffd}");
        Self { done_by: text(&operation.done_by), why: text(&operation.why) }
    }
}

fn attempt_of(row: &Row) -> Read<FailedAttempt> {
    let Some(class) = FailureClass::from_word(row.try_get(2)?) else { return Ok(Err(strange("class"))) };
    Ok(Ok(FailedAttempt {
        at: Timestamp(row.try_get(0)?),
        node: row.try_get(1)?,
        class,
        code: row.try_get(3)?,
        reason: Reason::new(row.try_get(4)?),
    }))
}

fn audit_of(row: &Row) -> Read<AuditRow> {
    let (Some(action), Ok(number), Ok(dedup), Ok(id)) = (
        Action::from_word(row.try_get(1)?),
        <[u8; 16]>::try_from(row.try_get::<_, &[u8]>(2)?),
        <[u8; 16]>::try_from(row.try_get::<_, &[u8]>(5)?),
        row.try_get::<_, Option<&[u8]>>(6)?.map(MessageId::from_stored).transpose(),
    ) else {
        return Ok(Err(strange("audit")));
    };
    Ok(Ok(AuditRow {
        number: row.try_get(7)?,
        at: Timestamp(row.try_get(0)?),
        action,
        operation: Operation { number, done_by: row.try_get(3)?, why: row.try_get(4)? },
        dead_letter: DeadLetterKey(dedup),
        id,
    }))
}

fn parked_summary_of(row: &Row) -> Read<ParkedSummary> {
    let message = match summary_of(row)? {
        Ok(message) => message,
        Err(error) => return Ok(Err(error)),
    };
    let (Ok(order_key), Ok(behind)) = (
        row.try_get::<_, Option<&[u8]>>(15)?.map(<[u8; 16]>::try_from).transpose(),
        row.try_get::<_, Option<&[u8]>>(17)?.map(<[u8; 16]>::try_from).transpose(),
    ) else {
        return Ok(Err(strange("key")));
    };
    let due_in: i64 = row.try_get(16)?;
    Ok(Ok(ParkedSummary {
        seq: row.try_get(12)?,
        message,
        parked_at: Timestamp(row.try_get(13)?),
        due_at: Timestamp(row.try_get(14)?),
        order_key: order_key.map(OrderKey),
        due_in: Duration::from_millis(u64::try_from(due_in).unwrap_or_default()),
        behind: behind.map(DeadLetterKey),
    }))
}
