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

use super::config::SchemaName;
use super::connect::Slot;
use super::failure::read_error;
use super::inbox::{Batch, ConsumerParameters, Opening};
use super::parked::{failed, no_answer};
use super::pipeline::in_order;
use super::store::{PostgresStore, Tx, begin_and_claim, no_answer_to_claim};
use futures_util::future::{join, maybe_done};
use handstamp_core::parked::{Dedup, ParkedMessage, ParkingStore, Taken};
use handstamp_core::{
    Begun, ClaimRequest, ConsumerKey, Crash, CrashPoint, DeadLetter, MessageId, Orphan, Owner, Start,
    StartStore, Starter, Store, StoreError, StoreErrorKind, TakenOver, Timestamp,
};
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

/// Prepared on a connection when it first has to do with start records other than that in front of BEGIN.
pub(crate) struct Statements {
    take_over: Statement,
    end: Statement,
    end_all: Statement,
    withdraw: Statement,
    forget: Statement,
    parked: Statement,
}

const SQL: [&str; 6] = [
    include_str!("sql/start_take_over.sql"),
    include_str!("sql/start_end.sql"),
    include_str!("sql/start_end_all.sql"),
    include_str!("sql/crashes_withdraw.sql"),
    include_str!("sql/start_forget.sql"),
    include_str!("sql/start_parked.sql"),
];

impl Statements {
    async fn prepare(client: &Client, schema: &SchemaName) -> Result<Self, StoreError> {
        const PREPARING: &str = "preparing for start records";
        let sql = SQL.map(|sql| schema.render(sql, "true"));
        let prepared = in_order(sql.iter().map(|sql| client.prepare(sql)).collect()).await;
        let prepared: Vec<Statement> =
            prepared.into_iter().collect::<Result<_, _>>().map_err(|e| failed(PREPARING, e))?;
        let [take_over, end, end_all, withdraw, forget, parked] =
            <[Statement; 6]>::try_from(prepared).map_err(|_| no_answer(PREPARING))?;
        Ok(Self { take_over, end, end_all, withdraw, forget, parked })
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
    /// `asked`: how many it was to lock.
    async fn start_parked(
        &self,
        consumer: &ConsumerKey,
        (tx, mut rows): Taken<Tx>,
        asked: usize,
        by: &Starter,
    ) -> Result<Taken<Tx>, StoreError> {
        let recorded = self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            let crashes = record_parked(slot, statements, consumer.id, &rows, by).await?;
            // Somebody has taken this owner for dead, between a transaction of it and the next one, or may have.
            let mistaken = crashes.iter().any(|crash| crash.by.owner == by.owner) || rows.len() < asked;
            if mistaken {
                let owner = by.owner.0.as_slice();
                let withdrawn = slot.client().execute(&statements.withdraw, &[&consumer.id, &owner]).await;
                withdrawn.map_err(|e| failed(RECORDING, e))?;
            }
            Ok(crashes)
        });
        match recorded.await {
            Ok(crashes) => {
                for crash in crashes.into_iter().filter(|crash| crash.by.owner != by.owner) {
                    if let Some(row) = rows.iter_mut().find(|row| row.dedup == crash.dedup) {
                        row.crashes.push(crash);
                    }
                }
                Ok((tx, rows))
            }
            Err(error) => {
                // What that error says is what counts.
                let _ = self.rollback(tx).await;
                Err(error)
            }
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
        let (lanes, dedups) = (vec![""], vec![[0_u8; 16].as_slice()]);
        let other = Owner::random();
        client
            .query(&statements.take_over, &[id, &lanes, &other.0.as_slice()])
            .await
            .map_err(|e| failed(TAKING_OVER, e))?;
        client
            .query(&statements.parked, &[id, &dedups, &owner, &""])
            .await
            .map_err(|e| failed(RECORDING, e))?;
        let endings: [(&Statement, &[Value<'_>]); 4] = [
            (&statements.end, &[id, &lanes, &owner]),
            (&statements.end_all, &[id, &owner]),
            (&statements.withdraw, &[id, &owner]),
            (&statements.forget, &[id, &lanes, &vec![owner], &dedups]),
        ];
        for (statement, values) in endings {
            client.execute(statement, values).await.map_err(|e| failed(ENDING, e))?;
        }
        Ok(())
    }
}

/// Writes the start records of parked messages; every crash of them.
async fn record_parked(
    slot: &Slot,
    statements: &Statements,
    consumer: i16,
    rows: &[ParkedMessage],
    by: &Starter,
) -> Result<Vec<Crash>, StoreError> {
    let dedups: Vec<&[u8]> = rows.iter().map(|row| row.dedup.as_slice()).collect();
    let (owner, node) = (by.owner.0.as_slice(), text(&by.node));
    let crashes = slot.client().query(&statements.parked, &[&consumer, &dedups, &owner, &node]).await;
    let crashes = crashes.map_err(|e| failed(RECORDING, e))?;
    crashes.iter().map(|row| crash_of(row, 0)).collect()
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
        self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            let owner = by.owner.0.as_slice();
            let rows = slot.client().query(&statements.take_over, &[&consumer.id, &lanes, &owner]).await;
            let mut taken = TakenOver::default();
            for row in rows.map_err(|e| failed(TAKING_OVER, e))? {
                match row.try_get(0).map_err(read_error)? {
                    Some(lane) => taken.orphans.push(orphan_of(&row, lane)?),
                    None => taken.crashes.push(crash_of(&row, 8)?),
                }
            }
            Ok(taken)
        })
        .await
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

    async fn withdraw(&self, consumer: &ConsumerKey, owner: &Owner) -> Result<(), StoreError> {
        let owner = owner.0.as_slice();
        self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            // In this order, and each a transaction of its own.
            for statement in [&statements.end_all, &statements.withdraw] {
                let withdrawn = slot.client().execute(statement, &[&consumer.id, &owner]).await;
                withdrawn.map_err(|e| failed("taking start records and crashes back", e))?;
            }
            Ok(())
        })
        .await
    }

    async fn forget(
        &self,
        consumer: &ConsumerKey,
        passed: &[(Arc<str>, Owner)],
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        if passed.is_empty() && decided.is_empty() {
            return Ok(());
        }
        let (lanes, owners): (Vec<String>, Vec<&[u8]>) =
            passed.iter().map(|(lane, owner)| (text(lane), owner.0.as_slice())).unzip();
        let decided: Vec<&[u8]> = decided.iter().map(<[u8; 16]>::as_slice).collect();
        self.with_slot(async |slot| {
            let statements = self.starting(slot).await?;
            let values: [Value<'_>; 4] = [&consumer.id, &lanes, &owners, &decided];
            let forgotten = slot.client().execute(&statements.forget, &values).await;
            forgotten.map(drop).map_err(|e| failed("removing start records that are passed", e))
        })
        .await
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
    ) -> Result<Option<Taken<Tx>>, StoreError> {
        let mut max = max;
        loop {
            let (tx, rows, together) = self.open_and_take_due(consumer, max, Some(&by.owner)).await?;
            if rows.is_empty() {
                self.rollback(tx).await?;
                return Ok(None);
            }
            if together == rows.len() {
                return self.start_parked(consumer, (tx, rows), together, by).await.map(Some);
            }
            // Fewer each time, down to one: what is not to be answered stays free for others.
            self.rollback(tx).await?;
            max = together;
        }
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
    ) -> Result<Taken<Tx>, StoreError> {
        let taken = self.take_again(consumer, keys).await?;
        self.start_parked(consumer, taken, keys.len(), by).await
    }
}

fn starter_of(row: &Row) -> Result<Starter, StoreError> {
    let owner = row.try_get::<_, &[u8]>(1).map_err(read_error)?;
    let owner = Owner(<[u8; 16]>::try_from(owner).map_err(|_| strange("owner"))?);
    Ok(Starter { owner, node: row.try_get::<_, &str>(2).map_err(read_error)?.into() })
}

/// Owner, node and time are the second column and those behind it; `dedup` is the column of the message.
fn crash_of(row: &Row, dedup: usize) -> Result<Crash, StoreError> {
    let dedup = row.try_get::<_, &[u8]>(dedup).map_err(read_error)?;
    let dedup = Dedup::try_from(dedup).map_err(|_| strange("key"))?;
    Ok(Crash { dedup, by: starter_of(row)?, at: Timestamp(row.try_get(3).map_err(read_error)?) })
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
