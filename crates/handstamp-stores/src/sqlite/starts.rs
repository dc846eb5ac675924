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
//! Parked messages anybody may take, and a lane may be lost by who lives. So whoever finds that another had started a
//! message alone looks twice, [`PATIENCE`] apart by the clock of its own process and with the lock free, and counts
//! only who has not moved meanwhile. And an owner that was counted all the same, or whose start somebody ended, begins
//! nothing: it takes the crash back first, and starts again.

use super::parked::{self, Which};
use super::slot::Held;
use super::start_rows::{
    Others, OthersInLanes, Rows, due_together, end, start_lane, take_over, take_with_crashes,
};
use super::store::{SqliteStore, Tx, claimed};
use handstamp_core::parked::{Dedup, ParkedMessage, Taken};
use handstamp_core::{
    Claim, ClaimRequest, Company, ConsumerKey, CrashPoint, Lost, MessageId, Owner, PATIENCE, Start,
    StartStore, Starter, Store, StoreError, StoreErrorKind, TakenOver,
};
use rusqlite::{Connection, params};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::oneshot;

const RESUMED: &str = include_str!("sql/resume_started.sql");
const FORGET: &str = include_str!("sql/crashes_forget.sql");
const PRUNE: [&str; 3] = [
    include_str!("sql/start_prune.sql"),
    include_str!("sql/start_parked_prune.sql"),
    include_str!("sql/crashes_prune.sql"),
];

/// Who did not start anything for so long, in milliseconds, is not waited for.
const PRUNED_AFTER_MS: i64 = 7 * 24 * 3_600_000;
/// How often is looked before what others had started is left for now.
const LOOKS_MAX: u32 = 5;
/// How often an owner starts again before it leaves the messages to others for now.
const STARTS_MAX: u32 = 8;

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
        let mut seen = OthersInLanes::new();
        for _ in 0..LOOKS_MAX {
            let look = |connection: &Connection| take_over(connection, consumer, &by.owner, lanes, &seen);
            let (taken, unsure) = self.write(look).await?;
            if unsure.is_empty() {
                return Ok(taken);
            }
            seen = unsure;
            tokio::time::sleep(PATIENCE).await;
        }
        Err(they_move())
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

    async fn withdraw(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lost: Lost<'_>,
    ) -> Result<(), StoreError> {
        self.write(|connection| {
            let rows = Rows { connection, consumer };
            match lost {
                Lost::Lanes(lanes) => end(rows, owner, Some(lanes))?,
                Lost::Parked => rows.end_parked_of(owner)?,
                Lost::Everything => end(rows, owner, None)?,
            }
            rows.take_back(owner)
        })
        .await
    }

    async fn forget(&self, consumer: &ConsumerKey, passed: &[(Arc<str>, Owner)]) -> Result<(), StoreError> {
        self.write(|connection| {
            let rows = Rows { connection, consumer };
            passed.iter().try_for_each(|(lane, owner)| rows.end_lane(lane, owner))
        })
        .await
    }

    async fn absolve(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        let forget = |connection: &Connection| {
            decided.iter().try_for_each(|dedup| forget_crashes(connection, consumer, dedup))
        };
        tx.own(|| Ok(()), |connection, _| Ok(forget(connection)))?
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
        company: Company,
    ) -> Result<Option<Taken<Tx>>, StoreError> {
        if max == 0 || !self.read(|connection| parked::is_due(connection, consumer))? {
            return Ok(None);
        }
        let due = |connection: &Connection| due_together(connection, consumer, max, &by.owner);
        let Some((held, Chosen { keys, counted, suspected })) =
            self.start_parked(consumer, by, company, due).await?
        else {
            return Ok(None);
        };
        if keys.is_empty() {
            // Somebody else took it between the look and the lock.
            held.give_back();
            return Ok(None);
        }
        let (tx, mut rows) = self.take_started(held, consumer, &keys, (by, company), Which::Due).await?;
        if rows.is_empty() {
            self.rollback(tx).await?;
            return Ok(None);
        }
        tell(&mut rows, &counted, suspected);
        Ok(Some((tx, rows)))
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> Result<Taken<Tx>, StoreError> {
        let mut seen = HashSet::with_capacity(keys.len());
        let keys: Vec<Dedup> = keys.iter().copied().filter(|key| seen.insert(*key)).collect();
        let chosen = self.start_parked(consumer, by, company, |_| Ok((keys.clone(), false))).await?;
        let Some((held, Chosen { keys, counted, .. })) = chosen else { return Err(they_move()) };
        let (tx, mut rows) = self.take_started(held, consumer, &keys, (by, company), Which::Any).await?;
        tell(&mut rows, &counted, false);
        Ok((tx, rows))
    }
}

impl SqliteStore {
    /// Starts the messages that are chosen under the lock; whether the first is suspected is chosen with them. Where
    /// others had started one alone and are not counted for it, nothing is started yet: the lock is left to them for a
    /// while. `None`: they go on starting.
    async fn start_parked(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        company: Company,
        choose: impl Fn(&Connection) -> Result<(Vec<Dedup>, bool), StoreError>,
    ) -> Result<Option<(Held, Chosen)>, StoreError> {
        let mut seen = Others::new();
        for _ in 0..LOOKS_MAX {
            let start = |connection: &Connection| {
                let rows = Rows { connection, consumer };
                // What it had started is over, and it lives.
                rows.end_parked_of(&by.owner)?;
                rows.take_back(&by.owner)?;
                let (keys, suspected) = choose(connection)?;
                let others = rows.others(&keys, &by.owner)?;
                let is_known = others.is_subset(&seen);
                if is_known {
                    if !others.is_empty() {
                        rows.count_others(&keys, &by.owner)?;
                    }
                    rows.start_parked(&keys, by, company)?;
                }
                Ok((Chosen { keys, counted: others, suspected }, is_known))
            };
            let (held, (chosen, is_known)) = self.write_unwaited(start).await?;
            if is_known {
                CrashPoint::AfterStart.reached();
                return Ok(Some((held, chosen)));
            }
            seen = chosen.counted;
            held.give_back();
            tokio::time::sleep(PATIENCE).await;
        }
        Ok(None)
    }

    /// Opens the transaction over messages that were started, as soon as they still are and nobody says that this
    /// owner is dead.
    async fn take_started(
        &self,
        mut held: Held,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        (by, company): (&Starter, Company),
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
            let again =
                |connection: &Connection| Rows { connection, consumer }.start_parked(keys, by, company);
            (held, ()) = self.write_unwaited(again).await?;
        }
        held.give_back();
        let text = "other processes took this one for dead again and again while it waited for the file's write lock: the messages are taken again";
        Err(StoreError::new(StoreErrorKind::Conflict, text))
    }
}

/// Parked messages that were started.
struct Chosen {
    keys: Vec<Dedup>,
    /// Who was counted with that.
    counted: Others,
    suspected: bool,
}

/// Says what is new of the crashes, and whether the first is suspected.
fn tell(rows: &mut [ParkedMessage], counted: &Others, suspected: bool) {
    for crash in rows.iter_mut().flat_map(|row| &mut row.crashes) {
        crash.is_new = counted.contains(&(crash.dedup, crash.by.owner.0, crash.at.0));
    }
    if let Some(first) = rows.first_mut() {
        first.suspected = suspected;
    }
}

/// Others that seem dead go on starting.
fn they_move() -> StoreError {
    let text = "other processes that seemed dead go on starting the same messages: asked again later";
    StoreError::new(StoreErrorKind::Conflict, text)
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

/// Takes out what owners left behind that were not seen for long; nobody is charged.
pub(super) fn prune(connection: &Connection, consumer: &ConsumerKey) -> Result<(), StoreError> {
    let rows = Rows { connection, consumer };
    let prune = |sql: &&str| rows.run("pruning start records", sql, params![consumer.id, PRUNED_AFTER_MS]);
    PRUNE.iter().try_for_each(|sql| prune(sql).map(drop))
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
    take_over(connection, consumer, &second.owner, &[lane], &OthersInLanes::new())?;
    prune(connection, consumer)?;
    due_together(connection, consumer, 0, &second.owner)?;
    let (rows, keys) = (Rows { connection, consumer }, [*dedup]);
    rows.start_parked(&keys, &first, Company::None)?;
    rows.others(&keys, &second.owner)?;
    rows.count_others(&keys, &second.owner)?;
    rows.start_parked(&keys, &second, Company::None)?;
    rows.own(&second.owner)?;
    take_with_crashes(connection, consumer, &keys, Which::Any)?;
    for starter in [&first, &second] {
        end(rows, &starter.owner, None)?;
        rows.take_back(&starter.owner)?;
    }
    Ok(())
}
