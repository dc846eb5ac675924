//! Start records: what is about to be handed to a handler, what the dead left behind, and whom it is counted for.
//!
//! Authoritative: the tables `starts` and `parked_starts`, which survive this process and not the server, and
//! `crashes`, which survives both. The start record of a lane is a transaction of its own in front of BEGIN in the
//! same write, with its own Sync; behind another transaction of the lane it is part of that one's commit, in front of
//! COMMIT. That of parked messages is written on a second connection, while the first holds their locks.
//!
//! ```text
//!  a lane           start ─ Sync ─► BEGIN, claim ─ Sync ─► …        committed before the claim is answered
//!                   … ─► guard, start, COMMIT ─ Sync ─► BEGIN, claim ─ Sync ─► …
//!  parked messages  BEGIN, lock rows ─► other connection: orphans among them, crashes, start ─► answered
//! ```
//!
//! The locks of start records order who counts a crash and who takes it back: counting locks the record first,
//! withdrawing removes it first and looks for crashes then, with a new snapshot.
//!
//! A backend that is gone frees its locks before the process behind it has noticed. So whoever finds that another had
//! started a message alone looks twice, [`PATIENCE`] apart by the clock of its own process and with nothing held, and
//! counts only who has not moved meanwhile.

use super::config::SchemaName;
use super::connect::Slot;
use super::failure::read_error;
use super::inbox::{Batch, ConsumerParameters, GUARD, Opening};
use super::parked::{failed, no_answer};
use super::pipeline::in_order;
use super::store::{PostgresStore, Tx, begin_and_claim, no_answer_to_claim};
use futures_util::future::{join, maybe_done};
use handstamp_core::parked::{Dedup, ParkedMessage, Taken};
use handstamp_core::{
    Begun, ClaimRequest, Company, ConsumerKey, Crash, CrashPoint, DeadLetter, Lost, MessageId, Orphan, Owner,
    PATIENCE, Start, StartStore, Starter, Store, StoreError, StoreErrorKind, TakenOver, Timestamp,
};
use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::oneshot;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

type Value<'a> = &'a (dyn ToSql + Sync);

/// What the errors of the statement in front of BEGIN say.
const RECORDING: &str = "recording what is about to be handled";
const TAKING_OVER: &str = "looking for what other processes left behind";
const ENDING: &str = "ending start records";
const FORGETTING: &str = "forgetting crashes";

/// How often is looked before what others had started is left for now.
const LOOKS_MAX: u32 = 5;
/// Who did not start anything for so long, in milliseconds, is not waited for.
const PRUNED_AFTER_MS: i64 = 7 * 24 * 3_600_000;

/// Starts of messages alone by somebody else: which, whose, and when.
type Others = HashSet<(Dedup, [u8; 16], i64)>;

/// Prepared on a connection when it first has to do with start records other than that in front of BEGIN.
pub(crate) struct Statements {
    take_over: Statement,
    end: Statement,
    end_all: Statement,
    end_parked: Statement,
    withdraw: Statement,
    forget: Statement,
    absolve: Statement,
    parked: Statement,
    others: Statement,
}

const SQL: [&str; 9] = [
    include_str!("sql/start_take_over.sql"),
    include_str!("sql/start_end.sql"),
    include_str!("sql/start_end_all.sql"),
    include_str!("sql/start_parked_end_all.sql"),
    include_str!("sql/crashes_withdraw.sql"),
    include_str!("sql/start_forget.sql"),
    include_str!("sql/crashes_forget.sql"),
    include_str!("sql/start_parked.sql"),
    include_str!("sql/start_parked_others.sql"),
];

impl Statements {
    async fn prepare(client: &Client, schema: &SchemaName) -> Result<Self, StoreError> {
        const PREPARING: &str = "preparing for start records";
        let sql = SQL.map(|sql| schema.render(sql, GUARD));
        let prepared = in_order(sql.iter().map(|sql| client.prepare(sql)).collect()).await;
        let prepared: Vec<Statement> =
            prepared.into_iter().collect::<Result<_, _>>().map_err(|e| failed(PREPARING, e))?;
        let [take_over, end, end_all, end_parked, withdraw, forget, absolve, parked, others] =
            <[Statement; 9]>::try_from(prepared).map_err(|_| no_answer(PREPARING))?;
        Ok(Self { take_over, end, end_all, end_parked, withdraw, forget, absolve, parked, others })
    }
}

/// A start record of a lane as the parameters of `start.sql`.
pub(super) struct StartRow {
    consumer: i16,
    lane: String,
    owner: [u8; 16],
    node: String,
    first: i64,
    last: i64,
    count: i32,
    alone: Option<Vec<u8>>,
    alone_dedup: Option<Dedup>,
}

impl StartRow {
    pub(super) fn new(consumer: &ConsumerKey, start: &Start) -> Self {
        Self {
            consumer: consumer.id,
            lane: text(&start.lane),
            owner: start.by.owner.0,
            node: text(&start.by.node),
            first: start.first,
            last: start.last,
            count: i32::try_from(start.count).unwrap_or(i32::MAX),
            alone: start.alone.as_ref().map(MessageId::to_stored),
            alone_dedup: start.alone.as_ref().map(DeadLetter::dedup_of_id),
        }
    }
}

/// text holds no NUL; no lane's name does either.
fn text(name: &str) -> String {
    name.replace('\0', "\u{fffd}")
}

/// The start record, where there is one, BEGIN and the claim, all sent by the first poll. Where BEGIN or the claim
/// fails, it is that error which is told.
pub(super) async fn start_and_claim(
    slot: &Slot,
    batch: &Batch,
    parameters: &ConsumerParameters,
    opening: &Opening,
    start: Option<&StartRow>,
) -> Result<Vec<Row>, StoreError> {
    let Some(start) = start else { return begin_and_claim(slot, batch, parameters, opening).await };
    let mut started = pin!(maybe_done(record_start(slot, &slot.prepared.start, start)));
    let _ = poll_fn(|context| Poll::Ready(started.as_mut().poll(context))).await;
    CrashPoint::AfterStart.reached_when_sent().await;
    let opened = begin_and_claim(slot, batch, parameters, opening);
    let ((), rows) = join(started.as_mut(), opened).await;
    let rows = rows?;
    started.take_output().unwrap_or_else(|| Err(no_answer_to_claim())).map(|()| rows)
}

/// Sends the start record by the first poll.
pub(super) async fn record_start(
    slot: &Slot,
    statement: &Statement,
    start: &StartRow,
) -> Result<(), StoreError> {
    let (owner, dedup) = (start.owner.as_slice(), start.alone_dedup.as_ref().map(<[u8; 16]>::as_slice));
    let values: [Value<'_>; 9] = [
        &start.consumer,
        &start.lane,
        &owner,
        &start.node,
        &start.first,
        &start.last,
        &start.count,
        &start.alone,
        &dedup,
    ];
    let started = slot.client().execute(statement, &values).await;
    started.map(drop).map_err(|e| failed(RECORDING, e))
}

impl PostgresStore {
    async fn starting<'a>(&self, slot: &'a Slot) -> Result<&'a Statements, StoreError> {
        if slot.starts.get().is_none() {
            // Two at once cannot be: a connection has one user.
            let _ = slot.starts.set(Statements::prepare(slot.client(), self.schema()).await?);
        }
        slot.starts.get().ok_or_else(|| no_answer("preparing for start records"))
    }

    /// Start records for rows that a transaction has locked, before it is answered; nothing is open after an error.
    /// `asked`: how many it was to lock. `None`, and nothing is open: what others had started alone was not `seen`
    /// before; it is now.
    async fn start_parked(
        &self,
        consumer: &ConsumerKey,
        (tx, mut rows): Taken<Tx>,
        asked: usize,
        by: (&Starter, Company),
        seen: &mut Others,
    ) -> Result<Option<Taken<Tx>>, StoreError> {
        let owner = by.0.owner;
        let recorded = self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            if rows.iter().any(|row| row.suspected) {
                let others = others(slot, statements, consumer.id, &rows, &owner).await?;
                if !others.is_subset(seen) {
                    *seen = others;
                    return Ok(None);
                }
            }
            let crashes = record_parked(slot, statements, consumer.id, &rows, by, seen).await?;
            // Somebody has taken this owner for dead, between a transaction of it and the next one, or may have.
            let mistaken = crashes.iter().any(|crash| crash.by.owner == owner) || rows.len() < asked;
            if mistaken {
                let owner = owner.0.as_slice();
                let withdrawn = slot.client().execute(&statements.withdraw, &[&consumer.id, &owner]).await;
                withdrawn.map_err(|e| failed(RECORDING, e))?;
            }
            Ok(Some(crashes))
        });
        match recorded.await {
            Ok(Some(crashes)) => {
                for crash in crashes.into_iter().filter(|crash| crash.by.owner != owner) {
                    if let Some(row) = rows.iter_mut().find(|row| row.dedup == crash.dedup) {
                        row.crashes.push(crash);
                    }
                }
                Ok(Some((tx, rows)))
            }
            Ok(None) => self.rollback(tx).await.map(|()| None),
            Err(error) => {
                // What that error says is what counts.
                let _ = self.rollback(tx).await;
                Err(error)
            }
        }
    }

    /// What other owners left behind on lanes, and whether somebody is to be waited for: those are `seen` then.
    async fn look_at_lanes(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[String],
        seen: &mut Vec<(String, Owner, i64)>,
    ) -> Result<(TakenOver, bool), StoreError> {
        let seen_lanes: Vec<&str> = seen.iter().map(|(lane, ..)| lane.as_str()).collect();
        let owners: Vec<&[u8]> = seen.iter().map(|(_, owner, _)| owner.0.as_slice()).collect();
        let times: Vec<i64> = seen.iter().map(|(.., at)| *at).collect();
        let owner = by.owner.0.as_slice();
        let values: [Value<'_>; 6] = [&consumer.id, &lanes, &owner, &seen_lanes, &owners, &times];
        let rows = self
            .with_slot(async |slot| {
                let statements = self.starting(slot).await?;
                let rows = slot.client().query(&statements.take_over, &values).await;
                rows.map_err(|e| failed(TAKING_OVER, e))
            })
            .await?;
        let mut taken = TakenOver::default();
        let mut unsure = Vec::new();
        for row in rows {
            let Some(lane) = row.try_get(0).map_err(read_error)? else {
                taken.crashes.push(crash_of(&row, 8, 9)?);
                continue;
            };
            let orphan = orphan_of(&row, lane)?;
            if !row.try_get::<_, bool>(9).map_err(read_error)? {
                unsure.push((lane.to_owned(), orphan.start.by.owner, orphan.at.0));
            }
            taken.orphans.push(orphan);
        }
        let waits = !unsure.is_empty();
        *seen = unsure;
        Ok((taken, waits))
    }

    /// Takes out what owners left behind that were not seen for long.
    pub(super) async fn prune_starts(&self, slot: &Slot, consumer: i16) {
        let sql = self.schema().render(include_str!("sql/start_prune.sql"), "true");
        if let Err(error) = slot.client().execute(&sql, &[&consumer, &PRUNED_AFTER_MS]).await {
            tracing::debug!(target: "handstamp", %error, "old start records stay");
        }
    }

    /// Writes a start record of each kind, a crash, and takes them back: in a transaction that is rolled back.
    pub(super) async fn rehearse_starts(
        &self,
        slot: &Slot,
        consumer: &ConsumerKey,
        letter: &DeadLetter,
    ) -> Result<(), StoreError> {
        let by = |owner| Starter { owner, node: "".into() };
        let lane: Arc<str> = "".into();
        let (first, last, alone) = (0, 0, letter.id.clone());
        let start = Start { by: by(Owner::random()), lane: lane.clone(), first, last, count: 1, alone };
        record_start(slot, &slot.prepared.start, &StartRow::new(consumer, &start)).await?;
        let statements = self.starting(slot).await?;
        let (client, id, owner) = (slot.client(), &consumer.id, start.by.owner.0.as_slice());
        let (lanes, dedups, owners, times) =
            (vec![""], vec![[0_u8; 16].as_slice()], vec![owner], vec![0_i64]);
        let other = Owner::random();
        let looks: [(&Statement, &[Value<'_>]); 3] = [
            (&statements.take_over, &[id, &lanes, &other.0.as_slice(), &lanes, &owners, &times]),
            (&statements.others, &[id, &dedups, &owner]),
            (&statements.parked, &[id, &dedups, &owner, &"", &true, &dedups, &owners, &times]),
        ];
        for (statement, values) in looks {
            client.query(statement, values).await.map_err(|e| failed(TAKING_OVER, e))?;
        }
        let endings: [(&Statement, &[Value<'_>]); 6] = [
            (&statements.end, &[id, &lanes, &owner]),
            (&statements.end_all, &[id, &owner]),
            (&statements.end_parked, &[id, &owner]),
            (&statements.withdraw, &[id, &owner]),
            (&statements.forget, &[id, &lanes, &owners]),
            (&statements.absolve, &[id, &dedups]),
        ];
        for (statement, values) in endings {
            client.execute(statement, values).await.map_err(|e| failed(ENDING, e))?;
        }
        Ok(())
    }
}

/// Who else had started some of these messages alone, and is not counted for it.
async fn others(
    slot: &Slot,
    statements: &Statements,
    consumer: i16,
    rows: &[ParkedMessage],
    owner: &Owner,
) -> Result<Others, StoreError> {
    let dedups: Vec<&[u8]> = rows.iter().map(|row| row.dedup.as_slice()).collect();
    let found = slot.client().query(&statements.others, &[&consumer, &dedups, &owner.0.as_slice()]).await;
    let mut others = Others::new();
    for row in found.map_err(|e| failed(RECORDING, e))? {
        let dedup = Dedup::try_from(row.try_get::<_, &[u8]>(0).map_err(read_error)?);
        let owner = <[u8; 16]>::try_from(row.try_get::<_, &[u8]>(1).map_err(read_error)?);
        let at = row.try_get(2).map_err(read_error)?;
        others.insert((dedup.map_err(|_| strange("key"))?, owner.map_err(|_| strange("owner"))?, at));
    }
    Ok(others)
}

/// Writes the start records of parked messages; every crash of them, once those that were `seen` are counted.
async fn record_parked(
    slot: &Slot,
    statements: &Statements,
    consumer: i16,
    rows: &[ParkedMessage],
    (by, company): (&Starter, Company),
    seen: &Others,
) -> Result<Vec<Crash>, StoreError> {
    let dedups: Vec<&[u8]> = rows.iter().map(|row| row.dedup.as_slice()).collect();
    let (owner, node) = (by.owner.0.as_slice(), text(&by.node));
    let alone = rows.len() == 1 && company == Company::None;
    let seen_dedups: Vec<&[u8]> = seen.iter().map(|(dedup, ..)| dedup.as_slice()).collect();
    let owners: Vec<&[u8]> = seen.iter().map(|(_, owner, _)| owner.as_slice()).collect();
    let times: Vec<i64> = seen.iter().map(|(.., at)| *at).collect();
    let values: [Value<'_>; 8] = [&consumer, &dedups, &owner, &node, &alone, &seen_dedups, &owners, &times];
    let crashes = slot.client().query(&statements.parked, &values).await;
    let crashes = crashes.map_err(|e| failed(RECORDING, e))?;
    crashes.iter().map(|row| crash_of(row, 0, 4)).collect()
}

impl StartStore for PostgresStore {
    async fn start_and_begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
    ) -> Result<Begun<Tx>, StoreError> {
        self.begin_with(consumer, ids, Some(&StartRow::new(consumer, start))).await
    }

    async fn commit_start_and_begin(
        &self,
        tx: Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<Begun<Tx>>, StoreError> {
        self.commit_and_begin_with(tx, consumer, ids, Some(&StartRow::new(consumer, start)), durable).await
    }

    async fn take_over(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
    ) -> Result<TakenOver, StoreError> {
        if lanes.is_empty() {
            return Ok(TakenOver::default());
        }
        let lanes: Vec<String> = lanes.iter().map(|lane| text(lane)).collect();
        let mut seen = Vec::new();
        for _ in 0..LOOKS_MAX {
            let (taken, waits) = self.look_at_lanes(consumer, by, &lanes, &mut seen).await?;
            if !waits {
                return Ok(taken);
            }
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
        let owner = owner.0.as_slice();
        let lanes: Option<Vec<String>> = lanes.map(|lanes| lanes.iter().map(|lane| text(lane)).collect());
        self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            let client = slot.client();
            let ended = match &lanes {
                Some(lanes) => client.execute(&statements.end, &[&consumer.id, lanes, &owner]).await,
                None => client.execute(&statements.end_all, &[&consumer.id, &owner]).await,
            };
            ended.map(drop).map_err(|e| failed(ENDING, e))
        })
        .await
    }

    async fn withdraw(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lost: Lost<'_>,
    ) -> Result<(), StoreError> {
        let owner = owner.0.as_slice();
        let lanes: Vec<String> = match lost {
            Lost::Lanes(lanes) => lanes.iter().map(|lane| text(lane)).collect(),
            Lost::Parked | Lost::Everything => vec![],
        };
        self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            let of_lanes: [Value<'_>; 3] = [&consumer.id, &lanes, &owner];
            let of_owner: [Value<'_>; 2] = [&consumer.id, &owner];
            let end: (&Statement, &[Value<'_>]) = match lost {
                Lost::Lanes(_) => (&statements.end, &of_lanes),
                Lost::Parked => (&statements.end_parked, &of_owner),
                Lost::Everything => (&statements.end_all, &of_owner),
            };
            // In this order, and each a transaction of its own.
            for (statement, values) in [end, (&statements.withdraw, &of_owner)] {
                let withdrawn = slot.client().execute(statement, values).await;
                withdrawn.map_err(|e| failed("taking start records and crashes back", e))?;
            }
            Ok(())
        })
        .await
    }

    async fn forget(&self, consumer: &ConsumerKey, passed: &[(Arc<str>, Owner)]) -> Result<(), StoreError> {
        if passed.is_empty() {
            return Ok(());
        }
        let (lanes, owners): (Vec<String>, Vec<&[u8]>) =
            passed.iter().map(|(lane, owner)| (text(lane), owner.0.as_slice())).unzip();
        self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            let forgotten = slot.client().execute(&statements.forget, &[&consumer.id, &lanes, &owners]).await;
            forgotten.map(drop).map_err(|e| failed("removing start records that are passed", e))
        })
        .await
    }

    async fn absolve(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        if decided.is_empty() {
            return Ok(());
        }
        let decided: Vec<&[u8]> = decided.iter().map(<[u8; 16]>::as_slice).collect();
        self.within(tx, FORGETTING, async {
            let statements = self.starting(&tx.slot).await?;
            let forgotten = tx.slot.client().execute(&statements.absolve, &[&consumer.id, &decided]).await;
            forgotten.map(drop).map_err(|e| failed(FORGETTING, e))
        })
        .await
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
        company: Company,
    ) -> Result<Option<Taken<Tx>>, StoreError> {
        let (mut limit, mut seen, mut looks) = (max, Others::new(), 0);
        loop {
            let (tx, rows, together) = self.open_and_take_due(consumer, limit, Some(&by.owner)).await?;
            if rows.is_empty() {
                self.rollback(tx).await?;
                return Ok(None);
            }
            if together < rows.len() {
                // Fewer each time, down to one: what is not to be answered stays free for others.
                self.rollback(tx).await?;
                limit = together;
                continue;
            }
            let started = self.start_parked(consumer, (tx, rows), together, (by, company), &mut seen).await?;
            looks += 1;
            if started.is_some() || looks == LOOKS_MAX {
                return Ok(started);
            }
            tokio::time::sleep(PATIENCE).await;
            limit = max;
        }
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> Result<Taken<Tx>, StoreError> {
        let mut seen = Others::new();
        for _ in 0..LOOKS_MAX {
            let taken = self.open_and_take_again(consumer, keys, Some(&by.owner)).await?;
            if let Some(started) =
                self.start_parked(consumer, taken, keys.len(), (by, company), &mut seen).await?
            {
                return Ok(started);
            }
            tokio::time::sleep(PATIENCE).await;
        }
        Err(they_move())
    }
}

/// Others that seem dead go on starting.
fn they_move() -> StoreError {
    let text = "other processes that seemed dead go on starting the same messages: asked again later";
    StoreError::new(StoreErrorKind::Conflict, text)
}

fn starter_of(row: &Row) -> Result<Starter, StoreError> {
    let owner = row.try_get::<_, &[u8]>(1).map_err(read_error)?;
    let owner = Owner(<[u8; 16]>::try_from(owner).map_err(|_| strange("owner"))?);
    Ok(Starter { owner, node: row.try_get::<_, &str>(2).map_err(read_error)?.into() })
}

/// Owner, node and time are the second column and those behind it; `dedup` and `is_new` are columns too.
fn crash_of(row: &Row, dedup: usize, is_new: usize) -> Result<Crash, StoreError> {
    let dedup = row.try_get::<_, &[u8]>(dedup).map_err(read_error)?;
    let dedup = Dedup::try_from(dedup).map_err(|_| strange("key"))?;
    let at = Timestamp(row.try_get(3).map_err(read_error)?);
    Ok(Crash { dedup, by: starter_of(row)?, at, is_new: row.try_get(is_new).map_err(read_error)? })
}

fn orphan_of(row: &Row, lane: &str) -> Result<Orphan, StoreError> {
    let alone: Option<&[u8]> = row.try_get(7).map_err(read_error)?;
    let start = Start {
        by: starter_of(row)?,
        lane: lane.into(),
        first: row.try_get(4).map_err(read_error)?,
        last: row.try_get(5).map_err(read_error)?,
        count: u32::try_from(row.try_get::<_, i32>(6).map_err(read_error)?).unwrap_or_default(),
        alone: alone.map(MessageId::from_stored).transpose().map_err(|_| strange("id"))?,
    };
    Ok(Orphan { start, at: Timestamp(row.try_get(3).map_err(read_error)?) })
}

fn strange(what: &str) -> StoreError {
    let message = format!("a start record's {what} is not one this program writes: update the program");
    StoreError::new(StoreErrorKind::SchemaMismatch, message)
}
