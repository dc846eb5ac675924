//! Start records: what is about to be handled, what dead processes left, and which messages killed one.
//!
//! Authoritative: the tables `handstamp_starts`, `handstamp_parked_starts` and `handstamp_crashes`, under the file's
//! write lock. A start is a transaction of its own right before the one that it announces, on the same connection,
//! and does not wait for the disk ([`Held::write_unwaited`]); behind another transaction of its lane it is part of that
//! one's commit.
//!
//! ```text
//!  start ─ COMMIT ─┬─ BEGIN IMMEDIATE ─► claim … ─► COMMIT
//!                  └ the lock is free: whoever comes in between cannot tell a living owner from a dead one
//! ```
//!
//! Nobody comes in between on a lane, because a lane has one reader. Parked messages anybody may take. So whoever
//! finds one that another started alone looks twice, [`PATIENCE`] apart and with the lock free, and counts only who
//! has not moved meanwhile. And an owner that was counted all the same, or whose start somebody ended, begins
//! nothing: it takes the crash back first, and starts again.

use super::failure::damaged;
use super::inbox::check_consumer;
use super::migrate::own_error;
use super::parked::{self, Which};
use super::slot::Held;
use super::store::{SqliteStore, Tx, claimed};
use handstamp_core::parked::{Dedup, ParkedMessage, Taken};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, Crash, CrashPoint, DeadLetter, MessageId, Orphan, Owner, Start,
    StartStore, Starter, Store, StoreError, StoreErrorKind, TakenOver, Timestamp,
};
use rusqlite::{Connection, Row, ToSql, params};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

const START: &str = include_str!("sql/start.sql");
const END: &str = include_str!("sql/start_end.sql");
const END_ALL: &str = include_str!("sql/start_end_all.sql");
const KNOWN: &str = include_str!("sql/start_known.sql");
const CRASHED: &str = include_str!("sql/start_crashed.sql");
const TAKE_OVER: &str = include_str!("sql/start_take_over.sql");
const LOOK: &str = include_str!("sql/start_look.sql");
const PARKED: &str = include_str!("sql/start_parked.sql");
const ANY: &str = include_str!("sql/start_parked_any.sql");
const OTHERS: &str = include_str!("sql/start_parked_others.sql");
const OWN: &str = include_str!("sql/start_parked_own.sql");
const PARKED_CRASHED: &str = include_str!("sql/start_parked_crashed.sql");
const PARKED_END_ALL: &str = include_str!("sql/start_parked_end_all.sql");
const RESUMED: &str = include_str!("sql/resume_started.sql");
const ANY_CRASH: &str = include_str!("sql/crashes_any.sql");
const CRASHES: &str = include_str!("sql/crashes.sql");
const FORGET: &str = include_str!("sql/crashes_forget.sql");
const WITHDRAW: &str = include_str!("sql/crashes_withdraw.sql");

/// How long a living owner has to move: it tries for the lock every few milliseconds.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often an owner starts again before it leaves the messages to others for now.
const STARTS_MAX: u32 = 8;

/// A start of a parked message by somebody else: which, whose, and when.
type Others = HashSet<(Dedup, [u8; 16], i64)>;

impl StartStore for SqliteStore {
    async fn start_and_begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
    ) -> Result<(Tx, Vec<Claim>), StoreError> {
        let (held, ()) = self.write_unwaited(|connection| start_lane(connection, consumer, start)).await?;
        CrashPoint::AfterStart.reached();
        // A future that is dropped holds no open transaction: nothing waits behind the lock.
        claimed(held.lock().await?, consumer, ids)
    }

    /// The start is part of what is committed: no transaction of its own.
    async fn commit_start_and_begin(
        &self,
        tx: Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<(Tx, Vec<Claim>)>, StoreError> {
        if let Err(error) = tx.own(|| (), |connection, _| start_lane(connection, consumer, start)) {
            self.rollback(tx).await?;
            return Err(error);
        }
        self.commit(tx).await?;
        // Nobody may wait for it any more.
        let _ = durable.send(());
        match self.begin(consumer, ids).await {
            Ok(begun) => Ok(Some(begun)),
            Err(error) => {
                tracing::debug!(target: "handstamp", %error, "committed; the next transaction was not opened with it");
                Ok(None)
            }
        }
    }

    async fn take_over(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
    ) -> Result<TakenOver, StoreError> {
        self.write(|connection| take_over(connection, consumer, &by.owner, lanes)).await
    }

    async fn end_starts(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lanes: Option<&[Arc<str>]>,
    ) -> Result<(), StoreError> {
        let (held, ()) =
            self.write_unwaited(|connection| end(Rows { connection, consumer }, owner, lanes)).await?;
        held.give_back();
        Ok(())
    }

    async fn withdraw(&self, consumer: &ConsumerKey, owner: &Owner) -> Result<(), StoreError> {
        self.write(|connection| {
            let rows = Rows { connection, consumer };
            end(rows, owner, None)?;
            rows.take_back(owner)
        })
        .await
    }

    async fn forget(
        &self,
        consumer: &ConsumerKey,
        passed: &[(Arc<str>, Owner)],
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        self.write(|connection| {
            let rows = Rows { connection, consumer };
            passed.iter().try_for_each(|(lane, owner)| rows.end_lane(lane, owner))?;
            decided.iter().try_for_each(|dedup| forget_crashes(connection, consumer, dedup))
        })
        .await
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
    ) -> Result<Option<Taken<Tx>>, StoreError> {
        if max == 0 || !self.read(|connection| parked::is_due(connection, consumer))? {
            return Ok(None);
        }
        let due = |connection: &Connection| due_together(connection, consumer, max, &by.owner);
        let (held, keys) = self.start_parked(consumer, by, due).await?;
        if keys.is_empty() {
            // Somebody else took it between the look and the lock.
            held.give_back();
            return Ok(None);
        }
        let (tx, rows) = self.take_started(held, consumer, &keys, by, Which::Due).await?;
        if rows.is_empty() {
            self.rollback(tx).await?;
            return Ok(None);
        }
        Ok(Some((tx, rows)))
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
    ) -> Result<Taken<Tx>, StoreError> {
        let mut seen = HashSet::with_capacity(keys.len());
        let keys: Vec<Dedup> = keys.iter().copied().filter(|key| seen.insert(*key)).collect();
        let (held, keys) = self.start_parked(consumer, by, |_| Ok(keys.clone())).await?;
        self.take_started(held, consumer, &keys, by, Which::Any).await
    }
}

impl SqliteStore {
    /// Starts the messages that are chosen under the lock. Where others had started one alone and are not counted for
    /// it, nothing is started yet: the lock is left to them for a while.
    async fn start_parked(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        choose: impl Fn(&Connection) -> Result<Vec<Dedup>, StoreError>,
    ) -> Result<(Held, Vec<Dedup>), StoreError> {
        let mut seen = Others::new();
        loop {
            let start = |connection: &Connection| {
                let rows = Rows { connection, consumer };
                // What it had started is over, and it lives.
                rows.end_parked_of(&by.owner)?;
                rows.take_back(&by.owner)?;
                let keys = choose(connection)?;
                let others = rows.others(&keys, &by.owner)?;
                let is_known = others.is_subset(&seen);
                if is_known {
                    if !others.is_empty() {
                        rows.count_others(&keys, &by.owner)?;
                    }
                    rows.start_parked(&keys, by)?;
                }
                Ok((keys, others, is_known))
            };
            let (held, (keys, others, is_known)) = self.write_unwaited(start).await?;
            if is_known {
                CrashPoint::AfterStart.reached();
                return Ok((held, keys));
            }
            seen = others;
            held.give_back();
            tokio::time::sleep(PATIENCE).await;
        }
    }

    /// Opens the transaction over messages that were started, as soon as they still are and nobody says that this
    /// owner is dead.
    async fn take_started(
        &self,
        mut held: Held,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        which: Which,
    ) -> Result<Taken<Tx>, StoreError> {
        for _ in 0..STARTS_MAX {
            held = held.lock().await?;
            let taken = take_with_crashes(held.connection(), consumer, keys, which).and_then(|taken| {
                let own = Rows { connection: held.connection(), consumer }.own(&by.owner)?;
                let of_ours =
                    |row: &ParkedMessage| row.crashes.iter().any(|crash| crash.by.owner == by.owner);
                let stands = own >= taken.len() && !taken.iter().any(of_ours);
                Ok(stands.then_some(taken))
            });
            if let Some(taken) = taken.transpose() {
                return parked::opened(held, taken);
            }
            held.roll_back()?;
            let again = |connection: &Connection| Rows { connection, consumer }.start_parked(keys, by);
            (held, ()) = self.write_unwaited(again).await?;
        }
        held.give_back();
        let text = "other processes took this one for dead again and again while it waited for the file's write lock: the messages are taken again";
        Err(StoreError::new(StoreErrorKind::Conflict, text))
    }
}

/// Our rows of a consumer.
#[derive(Clone, Copy)]
struct Rows<'a> {
    connection: &'a Connection,
    consumer: &'a ConsumerKey,
}

impl Rows<'_> {
    fn run(self, doing: &str, sql: &str, values: &[&dyn ToSql]) -> Result<usize, StoreError> {
        let failed = |e| own_error(self.connection, doing, e);
        self.connection.prepare_cached(sql).map_err(failed)?.execute(values).map_err(failed)
    }

    /// What a statement that asks whether there is something answers.
    fn says(self, sql: &str, values: &[&dyn ToSql]) -> Result<bool, StoreError> {
        let failed = |e| own_error(self.connection, "looking for start records", e);
        let mut asked = self.connection.prepare_cached(sql).map_err(failed)?;
        asked.query_row(values, |row| row.get(0)).map_err(failed)
    }

    fn end_lane(self, lane: &Arc<str>, owner: &Owner) -> Result<(), StoreError> {
        self.run("ending start records", END, params![self.consumer.id, lane, owner.0]).map(drop)
    }

    fn end_parked_of(self, owner: &Owner) -> Result<(), StoreError> {
        self.run("ending start records", PARKED_END_ALL, params![self.consumer.id, owner.0]).map(drop)
    }

    /// An owner that does anything lives: nothing died with it.
    fn take_back(self, owner: &Owner) -> Result<(), StoreError> {
        self.run("taking crashes back", WITHDRAW, params![self.consumer.id, owner.0]).map(drop)
    }

    /// Starts parked messages in place of those that the owner had started.
    fn start_parked(self, keys: &[Dedup], by: &Starter) -> Result<(), StoreError> {
        check_consumer(self.connection, self.consumer)?;
        self.take_back(&by.owner)?;
        self.end_parked_of(&by.owner)?;
        let is_alone = keys.len() == 1;
        for dedup in keys {
            let values = params![self.consumer.id, dedup, by.owner.0, by.node, is_alone];
            self.run("writing start records", PARKED, values)?;
        }
        Ok(())
    }

    /// Who else had started some of these messages alone, and is not counted for it.
    fn others(self, keys: &[Dedup], owner: &Owner) -> Result<Others, StoreError> {
        let failed = |e| own_error(self.connection, "looking for start records", e);
        let mut others = Others::new();
        if !self.says(ANY, params![self.consumer.id, owner.0])? {
            return Ok(others);
        }
        let mut look = self.connection.prepare_cached(OTHERS).map_err(failed)?;
        for dedup in keys {
            let mut rows = look.query(params![self.consumer.id, dedup, owner.0]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let of = || -> rusqlite::Result<_> { Ok((*dedup, row.get(0)?, row.get(1)?)) };
                others.insert(of().map_err(failed)?);
            }
        }
        Ok(others)
    }

    /// Whoever else had started one of these messages alone died of it.
    fn count_others(self, keys: &[Dedup], owner: &Owner) -> Result<(), StoreError> {
        keys.iter().try_for_each(|dedup| {
            let values = params![self.consumer.id, dedup, owner.0];
            self.run("counting crashes", PARKED_CRASHED, values).map(drop)
        })
    }

    /// How many parked messages the owner has started.
    fn own(self, owner: &Owner) -> Result<usize, StoreError> {
        let failed = |e| own_error(self.connection, "looking for start records", e);
        let mut own = self.connection.prepare_cached(OWN).map_err(failed)?;
        let own: i64 = own.query_row(params![self.consumer.id, owner.0], |row| row.get(0)).map_err(failed)?;
        Ok(usize::try_from(own).unwrap_or_default())
    }

    fn crashes(self, dedup: &Dedup) -> Result<Vec<Crash>, StoreError> {
        let failed = |e| own_error(self.connection, "reading crashes", e);
        let mut crashes = self.connection.prepare_cached(CRASHES).map_err(failed)?;
        let read = |row: &Row<'_>| {
            let by = Starter { owner: Owner(row.get(0)?), node: row.get(1)? };
            Ok(Crash { dedup: *dedup, by, at: Timestamp(row.get(2)?) })
        };
        let rows = crashes.query_map(params![self.consumer.id, dedup], read).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }
}

fn start_lane(connection: &Connection, consumer: &ConsumerKey, start: &Start) -> Result<(), StoreError> {
    let failed = |e| own_error(connection, "writing a start record", e);
    let Start { by, lane, first, last, count, alone } = start;
    let stored = alone.as_ref().map(MessageId::to_stored);
    let dedup = alone.as_ref().map(DeadLetter::dedup_of_id);
    let mut record = connection.prepare_cached(START).map_err(failed)?;
    let values = params![consumer.id, lane, by.owner.0, by.node, first, last, count, stored, dedup];
    match record.execute(values) {
        Ok(_) => Ok(()),
        Err(error) => {
            // No row of the consumer to refer to: that is what is wrong.
            check_consumer(connection, consumer)?;
            Err(failed(error))
        }
    }
}

fn take_over(
    connection: &Connection,
    consumer: &ConsumerKey,
    owner: &Owner,
    lanes: &[Arc<str>],
) -> Result<TakenOver, StoreError> {
    let rows = Rows { connection, consumer };
    let mut taken = TakenOver::default();
    for lane in lanes {
        let of_lane = params![consumer.id, lane, owner.0];
        rows.run("removing start records of known messages", KNOWN, of_lane)?;
        rows.run("counting crashes", CRASHED, of_lane)?;
        let failed = |e| own_error(connection, "reading start records", e);
        let mut orphans = connection.prepare_cached(TAKE_OVER).map_err(failed)?;
        let mut found = orphans.query(of_lane).map_err(failed)?;
        while let Some(row) = found.next().map_err(failed)? {
            taken.orphans.push(orphan_of(row, lane).map_err(failed)??);
        }
    }
    let alone = taken.orphans.iter().filter_map(|orphan| orphan.start.alone.as_ref());
    let alone: HashSet<Dedup> = alone.map(DeadLetter::dedup_of_id).collect();
    for dedup in &alone {
        taken.crashes.extend(rows.crashes(dedup)?);
    }
    taken.crashes.sort_by_key(|crash| (crash.at, crash.by.owner));
    Ok(taken)
}

fn orphan_of(row: &Row<'_>, lane: &Arc<str>) -> rusqlite::Result<Result<Orphan, StoreError>> {
    let stored: Option<Vec<u8>> = row.get(6)?;
    let Ok(alone) = stored.as_deref().map(MessageId::from_stored).transpose() else {
        return Ok(Err(damaged("the id in its start record is none")));
    };
    let start = Start {
        by: Starter { owner: Owner(row.get(0)?), node: row.get(1)? },
        lane: Arc::clone(lane),
        first: row.get(3)?,
        last: row.get(4)?,
        count: row.get(5)?,
        alone,
    };
    Ok(Ok(Orphan { start, at: Timestamp(row.get(2)?) }))
}

/// Ends start records of an owner: those of lanes, or all of them and those of parked messages.
fn end(rows: Rows<'_>, owner: &Owner, lanes: Option<&[Arc<str>]>) -> Result<(), StoreError> {
    match lanes {
        Some(lanes) => lanes.iter().try_for_each(|lane| rows.end_lane(lane, owner)),
        None => {
            rows.run("ending start records", END_ALL, params![rows.consumer.id, owner.0])?;
            rows.end_parked_of(owner)
        }
    }
}

/// The first that are due, up to one that another owner had started; that one alone where it is the first.
fn due_together(
    connection: &Connection,
    consumer: &ConsumerKey,
    max: usize,
    owner: &Owner,
) -> Result<Vec<Dedup>, StoreError> {
    let failed = |e| own_error(connection, "looking for what is due", e);
    let mut look = connection.prepare_cached(LOOK).map_err(failed)?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut rows = look.query(params![consumer.id, max, owner.0]).map_err(failed)?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let is_suspect: bool = row.get(1).map_err(failed)?;
        if is_suspect && !keys.is_empty() {
            break;
        }
        keys.push(row.get(0).map_err(failed)?);
        if is_suspect {
            break;
        }
    }
    Ok(keys)
}

fn take_with_crashes(
    connection: &Connection,
    consumer: &ConsumerKey,
    keys: &[Dedup],
    which: Which,
) -> Result<Vec<ParkedMessage>, StoreError> {
    let mut taken = parked::take_again(connection, consumer, keys, which)?;
    let rows = Rows { connection, consumer };
    if rows.says(ANY_CRASH, params![consumer.id])? {
        for row in &mut taken {
            row.crashes = rows.crashes(&row.dedup)?;
        }
    }
    Ok(taken)
}

/// Ends the start records of a parked message, whoever wrote them.
pub(super) fn end_parked(
    connection: &Connection,
    consumer: &ConsumerKey,
    dedup: &Dedup,
) -> Result<(), StoreError> {
    let rows = Rows { connection, consumer };
    rows.run("ending start records", RESUMED, params![consumer.id, dedup]).map(drop)
}

/// Forgets the crashes of a message.
pub(super) fn forget_crashes(
    connection: &Connection,
    consumer: &ConsumerKey,
    dedup: &Dedup,
) -> Result<(), StoreError> {
    let rows = Rows { connection, consumer };
    rows.run("forgetting crashes", FORGET, params![consumer.id, dedup]).map(drop)
}

/// Starts a message of its own in a lane and a parked one, counts them and takes all of it back; the caller rolls
/// back.
pub(super) fn rehearse(
    connection: &Connection,
    consumer: &ConsumerKey,
    alone: Option<MessageId>,
    dedup: &Dedup,
) -> Result<(), StoreError> {
    let [first, second] = [0; 2].map(|_| Starter { owner: Owner::random(), node: "rehearsal".into() });
    let lane: Arc<str> = "rehearsal".into();
    let start = Start { by: first.clone(), lane: Arc::clone(&lane), first: 0, last: 0, count: 1, alone };
    start_lane(connection, consumer, &start)?;
    start_lane(connection, consumer, &start)?;
    take_over(connection, consumer, &second.owner, &[lane])?;
    due_together(connection, consumer, 0, &second.owner)?;
    let (rows, keys) = (Rows { connection, consumer }, [*dedup]);
    rows.start_parked(&keys, &first)?;
    rows.others(&keys, &second.owner)?;
    rows.count_others(&keys, &second.owner)?;
    rows.start_parked(&keys, &second)?;
    rows.own(&second.owner)?;
    take_with_crashes(connection, consumer, &keys, Which::Any)?;
    for starter in [&first, &second] {
        end(rows, &starter.owner, None)?;
        rows.take_back(&starter.owner)?;
    }
    Ok(())
}
