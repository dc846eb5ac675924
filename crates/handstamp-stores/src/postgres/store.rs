//! The `Store`: BEGIN, settings and claim in one flight; COMMIT behind a guard. Where there is a start record, it
//! stands in front of BEGIN in the same flight, a transaction of its own.
//!
//! Authoritative: the server. The driver shows neither transaction status nor command tag, and a bare
//! COMMIT answers Ok after the server rolled back; so the claim asks whether BEGIN opened its transaction, and
//! what follows BEGIN leaves a mark (`handstamp.tx`, local to the transaction) that the commit asks for. No
//! mark: the transaction is not the one we opened.
//!
//! ```text
//!  begin ─► open ─┬─ commit ───► guard ok ─► durable ─► slot back, or the next transaction is open on it
//!                 │              ├─ 22012 in the guard: a handler ended it ─► TransactionEnded, closed
//!                 │              ├─ 25P02 in the guard: an error was swallowed ─► Swallowed, rolled back
//!                 │              └─ no answer in time: outcome unknown ─► Unavailable, closed
//!                 ├─ rollback ─► slot back
//!                 └─ abandon ──► cancel, ROLLBACK, closed
//! ```
//!
//! Deadlocks: each batch holds a shared advisory lock of its consumer. After 40P01 this process takes it
//! exclusively for a while, which grows while deadlocks come back and starts small again when they stay
//! away: a deadlock costs a second of waiting, so the turn has to be much longer than that.

use super::classify::{DEADLOCK, code_of, fault_of, kind_of_code, store_error};
use super::config::{PostgresOptions, SchemaName};
use super::connect::{Slot, Slots};
use super::effect::EffectFailure;
use super::failure;
use super::inbox::{self, Batch, ClaimSql, ConsumerParameters, Opening};
use super::migrate::{MigrateOptions, Migrated, migrate_with};
use super::starts::{StartRow, record_start, start_and_claim};
use futures_util::future::{join, join3, maybe_done};
use handstamp_core::{
    Begun, ClaimRequest, ConsumerKey, ConsumerName, CrashPoint, DeadLetter, Fault, Fingerprint, Recorded,
    Store, StoreCapabilities, StoreError, StoreErrorKind,
};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, Row};

/// Added to the server's own limits before an answer is given up.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// How long a claim behind a COMMIT that failed may take to be answered before it is cancelled.
const UNWANTED_CLAIM: Duration = Duration::from_millis(50);
/// How long a process stays exclusive after a deadlock, at first and at most.
const EXCLUSIVE_MIN: Duration = Duration::from_secs(30);
const EXCLUSIVE_MAX: Duration = Duration::from_secs(480);

/// The inbox, the dead letters and the user's tables in one Postgres database.
///
/// Connections are made when they are needed, on the Tokio runtime that asks for them.
pub struct PostgresStore {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) slots: Slots,
    claim: ClaimSql,
    advisory_base: i64,
    exclusive: Mutex<HashMap<i16, Exclusive>>,
}

#[derive(Debug, Clone, Copy)]
struct Exclusive {
    until: Instant,
    turn: Duration,
}

/// An open transaction. It derefs to the driver's client, so that handlers query, execute and pipeline;
/// beginning or ending transactions through it is detected at the commit and refused.
///
/// What a handler sets for the session (`SET` without `LOCAL`, `LISTEN`, temporary tables) stays on the
/// connection for later transactions: use `SET LOCAL`.
pub struct Tx {
    pub(super) slot: Slot,
    pub(super) consumer: i16,
    /// No statement in it is older.
    pub(super) opened_at: std::time::Instant,
    /// It has a savepoint.
    pub(super) saved: bool,
    pub(super) shared: Arc<Shared>,
}

impl Deref for Tx {
    type Target = Client;
    fn deref(&self) -> &Client {
        self.slot.client()
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

impl Tx {
    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("options", &self.shared.slots.options).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// A store; nothing is connected yet.
    ///
    /// # Errors
    /// `Config` when TLS cannot be set up (a root certificate that cannot be read).
    pub fn new(options: PostgresOptions) -> Result<Self, StoreError> {
        let claim = ClaimSql::opening(&options);
        let advisory_base = advisory_key(b"handstamp batch", &options.schema, 0);
        let slots = Slots::new(options)?;
        let shared = Shared { slots, claim, advisory_base, exclusive: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What the user said, without its secrets.
    #[must_use]
    pub fn options(&self) -> &PostgresOptions {
        &self.shared.slots.options
    }

    /// Brings this store's schema up to date over a connection of its own; the schema is this store's.
    ///
    /// # Errors
    /// As [`migrate_with`].
    pub async fn migrate(&self, options: &MigrateOptions) -> Result<Migrated, StoreError> {
        let options = MigrateOptions { schema: self.schema().clone(), ..options.clone() };
        let client = self.shared.slots.connect_bare().await?;
        migrate_with(&client, &options).await
    }

    pub(crate) fn schema(&self) -> &SchemaName {
        &self.shared.slots.options.schema
    }

    /// Runs something on an idle connection outside of any transaction.
    pub(crate) async fn with_slot<T>(
        &self,
        what: impl AsyncFnOnce(&Slot) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut slot = self.shared.slots.take().await?;
        slot.opened();
        let outcome = timeout(self.options().statement_timeout, what(&slot))
            .await
            .map_err(|_| StoreError::new(StoreErrorKind::Unavailable, "Postgres did not answer in time"))?;
        if outcome.is_ok() {
            slot.ended();
            self.shared.slots.put_back(slot);
        }
        outcome
    }
}

impl Shared {
    /// The key of the consumer's advisory lock: its last two bytes are the consumer's number.
    fn lock_key(&self, consumer: i16) -> i64 {
        self.advisory_base | i64::from(u16::from_be_bytes(consumer.to_be_bytes()))
    }

    fn is_exclusive(&self, consumer: i16) -> bool {
        let exclusive = self.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        exclusive.get(&consumer).is_some_and(|e| Instant::now() < e.until)
    }

    /// Takes note of an error's code: after a deadlock this process goes alone for a while.
    pub(super) fn note(&self, consumer: i16, code: Option<&str>) {
        if code != Some(DEADLOCK) {
            return;
        }
        let now = Instant::now();
        let mut exclusive = self.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = match exclusive.get(&consumer) {
            Some(e) if now < e.until => return,
            Some(e) if now < e.until + e.turn => (e.turn * 2).min(EXCLUSIVE_MAX),
            _ => EXCLUSIVE_MIN,
        };
        exclusive.insert(consumer, Exclusive { until: now + turn, turn });
    }

    /// Ends a transaction whose statements are all answered; true when the connection is clean.
    async fn roll_back(&self, tx: Tx) -> bool {
        let Tx { mut slot, .. } = tx;
        let rollback = slot.client().batch_execute("ROLLBACK");
        let clean = matches!(timeout(self.slots.options.rollback_timeout, rollback).await, Ok(Ok(())));
        if clean {
            slot.ended();
            self.slots.put_back(slot);
        }
        clean
    }

    /// After a failed statement of ours: the connection is kept where the server still answers.
    pub(super) async fn end_failed(&self, tx: Tx, error: &StoreError) {
        self.note(tx.consumer, code_of(error).as_deref());
        match error.kind {
            StoreErrorKind::Unavailable | StoreErrorKind::TransactionEnded => tx.slot.abandon().await,
            StoreErrorKind::SchemaMismatch | StoreErrorKind::NotMigrated => {
                tx.slot.mark_stale();
                self.roll_back(tx).await;
            }
            _ => {
                self.roll_back(tx).await;
            }
        }
    }

    pub(super) fn opening(&self, consumer: &ConsumerKey) -> (ConsumerParameters, Opening) {
        let opening = Opening {
            lock: self.lock_key(consumer.id),
            alone: self.is_exclusive(consumer.id),
            looks_first: self.claim.expects_known(),
        };
        (ConsumerParameters::from(consumer), opening)
    }

    async fn open_and_claim(
        &self,
        tx: &Tx,
        consumer: &ConsumerKey,
        batch: &mut Batch,
        start: Option<&StartRow>,
    ) -> Result<(), StoreError> {
        let (parameters, opening) = self.opening(consumer);
        // All are sent before the first is answered, in one flight: what stands behind a failed statement is
        // skipped. Where a connection cannot coalesce, the claim does nothing outside of a transaction of ours.
        let flight = tx.slot.coalesce();
        let rows = start_and_claim(&tx.slot, batch, &parameters, &opening, start).await?;
        drop(flight);
        self.answer_claims(&tx.slot, &parameters, &rows, batch).await
    }

    /// Reads what the claim inserted, and asks for what it did not.
    async fn answer_claims(
        &self,
        slot: &Slot,
        parameters: &ConsumerParameters,
        rows: &[Row],
        batch: &mut Batch,
    ) -> Result<(), StoreError> {
        batch.take(rows)?;
        let client = slot.client();
        if !batch.is_answered() {
            // A new statement sees what the claim waited for too.
            let known = client.query(&slot.prepared.known, &[&batch.missing(), &parameters.id]).await;
            batch.take(&known.map_err(inbox::claim_error)?)?;
        }
        if !batch.is_answered() {
            inbox::answer_the_rest(client, &self.claim, parameters, batch).await?;
        }
        self.claim.note(batch);
        Ok(())
    }

    /// Guard and COMMIT, and behind them in the same write, with a Sync of its own, the next BEGIN and claim. The
    /// start record of the next is part of what is committed: it costs no transaction, and is there as soon as the
    /// next may be, and not without the commit.
    async fn commit_and_open(
        &self,
        slot: &Slot,
        consumer: &ConsumerKey,
        batch: &mut Batch,
        start: Option<&StartRow>,
        durable: oneshot::Sender<()>,
    ) -> Result<std::time::Instant, NotOpen> {
        let (parameters, opening) = self.opening(consumer);
        let opened_at;
        let rows = {
            let options = &self.slots.options;
            let _flight = slot.coalesce();
            let committed = CrashPoint::CommitSent.between_sending_and_answer(guard_and_commit(slot, start));
            let mut committed = pin!(maybe_done(committed));
            let mut opened = pin!(maybe_done(begin_and_claim(slot, batch, &parameters, &opening)));
            // The first poll of each sends it.
            poll_fn(|context| {
                let _ = committed.as_mut().poll(context);
                let _ = opened.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
            let answered = timeout(options.commit_timeout, committed.as_mut()).await;
            let answer = answered.ok().and_then(|()| committed.as_mut().take_output());
            if let Err(error) = answer.unwrap_or_else(|| Err(no_answer_to_commit())) {
                // What was sent behind it has an answer at once, or waits for somebody's lock.
                let answered = timeout(UNWANTED_CLAIM, opened.as_mut()).await.is_ok();
                return Err(NotOpen::NotCommitted { error, answered });
            }
            opened_at = std::time::Instant::now();
            // Nobody may wait for it any more.
            let _ = durable.send(());
            let answered = timeout(self.answer_limit(), opened.as_mut()).await;
            let rows = answered.ok().and_then(|()| opened.as_mut().take_output());
            rows.unwrap_or_else(|| Err(no_answer_to_claim())).map_err(NotOpen::NotBegun)?
        };
        timeout(self.answer_limit(), self.answer_claims(slot, &parameters, &rows, batch))
            .await
            .unwrap_or_else(|_| Err(no_answer_to_claim()))
            .map_err(NotOpen::NotBegun)?;
        Ok(opened_at)
    }

    /// After that long the server will not answer a statement of ours any more.
    pub(super) fn answer_limit(&self) -> Duration {
        self.slots.options.statement_timeout + ANSWER_MARGIN
    }
}

impl PostgresStore {
    /// `begin`, with or without a start record in front.
    pub(super) async fn begin_with(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&StartRow>,
    ) -> Result<Begun<Tx>, StoreError> {
        let shared = &self.shared;
        let mut slot = shared.slots.take().await?;
        slot.opened();
        let opened_at = std::time::Instant::now();
        let tx = Tx { slot, consumer: consumer.id, opened_at, saved: false, shared: shared.clone() };
        let mut batch = Batch::new(ids);
        match timeout(shared.answer_limit(), shared.open_and_claim(&tx, consumer, &mut batch, start)).await {
            Ok(Ok(())) => Ok((tx, batch.claims(ids))),
            Ok(Err(error)) => {
                shared.end_failed(tx, &error).await;
                Err(error)
            }
            Err(_) => {
                tx.slot.abandon().await;
                Err(no_answer_to_claim())
            }
        }
    }

    /// `commit_and_begin`, with or without a start record between both.
    pub(super) async fn commit_and_begin_with(
        &self,
        tx: Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&StartRow>,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<Begun<Tx>>, StoreError> {
        let shared = &self.shared;
        if tx.slot.is_stale() {
            // The next transaction needs another connection.
            self.commit(tx).await?;
            let _ = durable.send(());
            return Ok(None);
        }
        let mut batch = Batch::new(ids);
        match shared.commit_and_open(&tx.slot, consumer, &mut batch, start, durable).await {
            Ok(opened_at) => Ok(Some((Tx { opened_at, saved: false, ..tx }, batch.claims(ids)))),
            Err(NotOpen::NotCommitted { error, answered }) => {
                if answered {
                    shared.end_failed(tx, &error).await;
                } else {
                    shared.note(tx.consumer, code_of(&error).as_deref());
                    tx.slot.abandon().await;
                }
                Err(error)
            }
            Err(NotOpen::NotBegun(error)) => {
                tracing::debug!(target: "handstamp", %error, "committed; the next transaction was not opened with it");
                shared.end_failed(tx, &error).await;
                Ok(None)
            }
        }
    }
}

/// Why no transaction is open behind a commit.
enum NotOpen {
    /// `answered`: nothing is under way any more on the connection.
    NotCommitted {
        error: StoreError,
        answered: bool,
    },
    NotBegun(StoreError),
}

impl Store for PostgresStore {
    type Tx = Tx;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { writers_max: None }
    }

    async fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> Result<ConsumerKey, StoreError> {
        self.with_slot(async |slot| {
            let key =
                inbox::register_key(slot.client(), self.schema(), name, Some(fingerprint), adopt).await?;
            self.prune_starts(slot, key.id).await;
            Ok(key)
        })
        .await
    }

    async fn begin(&self, consumer: &ConsumerKey, ids: &[ClaimRequest]) -> Result<Begun<Tx>, StoreError> {
        self.begin_with(consumer, ids, None).await
    }

    async fn record(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        let limit = self.shared.answer_limit();
        let outcome = timeout(limit, failure::record(tx.slot.client(), self.schema(), consumer.id, rows))
            .await
            .unwrap_or_else(|_| {
                let message = "Postgres did not answer in time while keeping dead letters";
                Err(StoreError::new(StoreErrorKind::Unavailable, message))
            });
        if let Err(error) = &outcome {
            tx.shared.note(consumer.id, code_of(error).as_deref());
        }
        outcome
    }

    async fn commit(&self, tx: Tx) -> Result<(), StoreError> {
        let shared = &self.shared;
        let commit = commit_guarded(&tx.slot);
        let commit = CrashPoint::CommitSent.between_sending_and_answer(commit);
        match timeout(self.options().commit_timeout, commit).await {
            Ok(Ok(())) => {
                let Tx { mut slot, .. } = tx;
                slot.ended();
                shared.slots.put_back(slot);
                Ok(())
            }
            Ok(Err(error)) => {
                shared.end_failed(tx, &error).await;
                Err(error)
            }
            Err(_) => {
                tx.slot.abandon().await;
                Err(no_answer_to_commit())
            }
        }
    }

    async fn commit_and_begin(
        &self,
        tx: Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        durable: oneshot::Sender<()>,
    ) -> Result<Option<Begun<Tx>>, StoreError> {
        self.commit_and_begin_with(tx, consumer, ids, None, durable).await
    }

    async fn rollback(&self, tx: Tx) -> Result<(), StoreError> {
        if self.shared.roll_back(tx).await {
            return Ok(());
        }
        let message = "Postgres did not answer ROLLBACK: the connection was closed and the server rolls back";
        Err(StoreError::new(StoreErrorKind::Unavailable, message))
    }

    async fn abandon(&self, tx: Tx) {
        tx.slot.abandon().await;
    }

    fn classify(&self, tx: &Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        let mut fault = fault_of(error);
        if tx.slot.is_closed() && fault.as_ref().is_none_or(|f| f.code.is_none()) {
            let code = tx.slot.ended_by().map(str::to_owned);
            let kind = code.as_deref().map_or(StoreErrorKind::Unavailable, kind_of_code);
            fault = Some(Fault { kind, code });
        }
        let seen = fault.as_mut()?;
        if let Some(failure) = error.downcast_ref::<EffectFailure>() {
            let early = tx.opened_at.elapsed() < self.options().statement_timeout;
            seen.kind = failure.kind(seen.kind, early);
        }
        self.shared.note(tx.consumer, seen.code.as_deref());
        if seen.kind == StoreErrorKind::SchemaMismatch {
            tx.slot.mark_stale();
        }
        fault
    }
}

/// BEGIN and the claim, both sent by the first poll; the rows that were inserted.
pub(super) async fn begin_and_claim(
    slot: &Slot,
    batch: &Batch,
    parameters: &ConsumerParameters,
    opening: &Opening,
) -> Result<Vec<Row>, StoreError> {
    let (client, prepared) = (slot.client(), &slot.prepared);
    let failed = |e| store_error("opening a transaction", e);
    let begin = client.execute(&prepared.begin, &[]);
    if batch.len() == 0 {
        let (begun, opened) =
            join(begin, client.query(&prepared.open, &[&opening.lock, &opening.alone])).await;
        return begun.and(opened).map(|_| vec![]).map_err(failed);
    }
    let statement = match batch.len() {
        1 => &prepared.insert_one,
        _ if opening.looks_first => &prepared.claim_known,
        _ => &prepared.claim_many,
    };
    let values = batch.opening_parameters(parameters, opening);
    let claimed = CrashPoint::MidClaim.between_sending_and_answer(client.query(statement, &values));
    let (begun, rows) = join(begin, claimed).await;
    begun.map_err(failed)?;
    rows.map_err(inbox::claim_error)
}

/// Sends the guard and COMMIT in one flight.
async fn commit_guarded(slot: &Slot) -> Result<(), StoreError> {
    let _flight = slot.coalesce();
    guard_and_commit(slot, None).await
}

/// The guard, the start record of what follows, where there is one, and COMMIT, all sent by the first poll. A guard or
/// a record that fails leaves no transaction that could commit: COMMIT is then skipped, rolls back, or finds nothing
/// open.
async fn guard_and_commit(slot: &Slot, next: Option<&StartRow>) -> Result<(), StoreError> {
    let (client, prepared) = (slot.client(), &slot.prepared);
    let started = async {
        match next {
            Some(start) => record_start(slot, &prepared.start_next, start).await,
            None => Ok(()),
        }
    };
    let (guard, started, committed) =
        join3(client.query(&prepared.guard, &[]), started, client.execute(&prepared.commit, &[])).await;
    guard.map_err(guard_error)?;
    started?;
    committed.map(drop).map_err(unknown)
}

pub(super) fn no_answer_to_claim() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "Postgres did not answer BEGIN and claim in time")
}

fn no_answer_to_commit() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "Postgres did not answer COMMIT in time: whether it is durable is not known; the batch runs again and the claims will tell",
    )
}

/// What the guard, a savepoint or what is taken back to one says of the transaction it finds.
pub(super) fn guard_error(error: tokio_postgres::Error) -> StoreError {
    match error.code().map(tokio_postgres::error::SqlState::code) {
        Some("22012" | "25P01" | "3B001") => StoreError::new(
            StoreErrorKind::TransactionEnded,
            "a handler ended the transaction that was opened for it (COMMIT, ROLLBACK, BEGIN): what is durable is not known; nothing was settled. Take transaction control out of the handler",
        )
        .with_source(error),
        Some("25P02") => StoreError::new(
            StoreErrorKind::Swallowed,
            "a handler returned Ok although a statement of its had failed: the server had rolled back everything. Return the error, or use a savepoint around what may fail",
        )
        .with_source(error),
        _ => unknown(error),
    }
}

fn unknown(error: tokio_postgres::Error) -> StoreError {
    store_error("committing", error)
}

/// A key for an advisory lock, apart by purpose, schema and consumer.
pub(crate) fn advisory_key(purpose: &[u8], schema: &SchemaName, consumer: i16) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(purpose).update(b"\0").update(schema.as_str().as_bytes());
    let hash = hasher.finalize();
    let [a, b, c, d, e, f, ..] = *hash.as_bytes();
    let [g, h] = consumer.to_be_bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}
