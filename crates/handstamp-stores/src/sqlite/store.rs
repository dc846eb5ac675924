//! The store: one write connection in a slot, transactions that own it, and the guard at their end.
//!
//! ```text
//!  idle ──begin──► Tx ──commit / rollback──► idle
//!                  ├──── abandon ──────────► closed (the next begin opens another)
//!                  └──── dropped ──────────► closed; SQLite rolls back
//! ```
//!
//! SQLite has no queue for its write lock. A process that met a busy lock pauses for a millisecond
//! behind each of its long transactions for a while, so that the others get their turn. Measured with
//! two processes and batches of 500: the longest wait for the lock fell from 150–570 ms to 60–260 ms, for
//! about a fifth of their common throughput; behind short transactions a pause only cost, so there is none.

use super::classify::{code_of, fault_of, find, is_busy, is_general, kind_of, store_error};
use super::config::SqliteOptions;
use super::connect::{
    FileIdentity, Guard, Mode, Opened, does_not_fit_the_schema, nothing_ran_yet, open, open_reader,
    refuse_read_only, unwatch_statements, watch_statements,
};
use super::effect::{EffectFailure, SqlEffects};
use super::migrate::{self, Migrated};
use super::{failure, inbox};
use crate::redrive::DeadLetterFilter;
use crate::rows::{ConsumerRow, DeadLetterCursor, DeadLetterKey, DeadLetterRow, DeadLetterSummary, InboxRow};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, Fault, Fingerprint, MessageId,
    Recorded, Store, StoreCapabilities, StoreError, StoreErrorKind,
};
use rusqlite::Connection;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For how long a process that met a busy lock leaves room for others.
const YIELD_FOR: Duration = Duration::from_secs(1);
/// The room it leaves before a transaction.
const YIELD: Duration = Duration::from_millis(1);
/// A transaction that held the lock for so long is followed by that room; short ones leave gaps enough.
const LONG: Duration = Duration::from_millis(5);

/// The wait before a file that another process has for itself is opened again.
const REOPEN: Duration = Duration::from_millis(10);

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    slot: Arc<Slot>,
}

/// The one write connection.
#[derive(Debug)]
struct Slot {
    /// A connection that only reads, kept for looks that come often. It is closed before the one that writes:
    /// the last one to be closed empties the WAL into the file, which only a writer can.
    reader: Mutex<Option<Opened>>,
    options: SqliteOptions,
    turns: Arc<Semaphore>,
    idle: Mutex<Option<Opened>>,
    yield_until: Mutex<Option<Instant>>,
    /// The last transaction held the lock for long.
    held_long: AtomicBool,
}

impl Slot {
    fn take(&self) -> Option<Opened> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, opened: Opened) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
    }

    fn met_busy(&self) {
        let until = Instant::now() + YIELD_FOR;
        *self.yield_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    fn yields(&self) -> bool {
        if !self.held_long.load(Ordering::Relaxed) {
            return false;
        }
        let until = *self.yield_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }
}

/// A connection taken out of the slot; dropping it closes it.
#[derive(Debug)]
pub(super) struct Held {
    opened: Opened,
    slot: Arc<Slot>,
    /// When it got the write lock.
    since: Instant,
    _turn: OwnedSemaphorePermit,
}

impl Held {
    pub(super) fn connection(&self) -> &Connection {
        &self.opened.connection
    }

    /// The open transaction, as a handler may have it.
    pub(super) fn into_tx(self, first: inbox::StoredIds) -> Tx {
        self.opened.guard.clear();
        self.opened.guard.set_mode(Mode::Handler);
        watch_statements(&self.opened.connection);
        nothing_ran_yet();
        Tx { held: self, first }
    }

    /// Back into the slot, when no transaction is open on it.
    fn give_back(self) {
        self.opened.guard.set_mode(Mode::Own);
        unwatch_statements(&self.opened.connection);
        self.opened.guard.clear();
        self.slot.held_long.store(self.since.elapsed() >= LONG, Ordering::Relaxed);
        if self.opened.connection.is_autocommit() {
            self.slot.put(self.opened);
        }
    }

    /// Rolls back what is open, then back into the slot; a connection that cannot is closed.
    pub(super) fn roll_back(self) -> Result<(), StoreError> {
        self.opened.guard.set_mode(Mode::Own);
        if !self.opened.connection.is_autocommit() {
            let rolled_back = self.opened.connection.execute_batch("ROLLBACK");
            rolled_back.map_err(|e| store_error("rolling back", e))?;
        }
        self.give_back();
        Ok(())
    }

    /// Rolls back and never uses the connection again: a statement that somebody left running on it would
    /// keep every later transaction from committing.
    fn close(self) {
        self.opened.guard.set_mode(Mode::Own);
        // Closing rolls back too, unless such a statement keeps the connection from closing.
        let _ = self.opened.connection.execute_batch("ROLLBACK");
    }
}

/// An open transaction that holds the write lock. Dereferences to the connection for reading and writing;
/// only the engine ends it. Dropped, it closes its connection and SQLite rolls back.
#[derive(Debug)]
pub struct Tx {
    held: Held,
    /// The stored ids that this transaction claimed, sorted.
    first: inbox::StoredIds,
}

impl Tx {
    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.held.opened.guard
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.held.opened.connection
    }

    /// Runs statements of our own, with the stored ids that this transaction claimed. Where the transaction is
    /// gone by a handler's swallowed error, nothing is written, because it would commit alone: the answer is
    /// `gone`, and commit will say so and charge it.
    pub(super) fn own<T>(
        &self,
        gone: impl FnOnce() -> T,
        work: impl FnOnce(&Connection, &inbox::StoredIds) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let opened = &self.held.opened;
        if opened.connection.is_autocommit() {
            return Ok(gone());
        }
        opened.guard.set_mode(Mode::Own);
        let done = work(&opened.connection, &self.first);
        opened.guard.set_mode(Mode::Handler);
        done
    }
}

impl Deref for Tx {
    type Target = Connection;

    /// Each use starts the time limit of a statement.
    fn deref(&self) -> &Connection {
        self.held.opened.guard.statement_begins();
        nothing_ran_yet();
        &self.held.opened.connection
    }
}

impl SqliteStore {
    /// Opens the file (makes it when it is missing) and checks its tables. A file without any table is
    /// migrated at once, the setup file included, unless `migrate_new` is off.
    ///
    /// # Errors
    /// `NotMigrated` with what to type, `Config` (not a database, a folder, a changed setup file),
    /// `Unavailable`, `Conflict`.
    pub async fn open(options: SqliteOptions) -> Result<Self, StoreError> {
        let store = Self::over(options);
        let patience = Patience::begin(&store.slot.options);
        loop {
            match store.prepare().await {
                Err(error) if patience.allows(&error) => tokio::time::sleep(REOPEN).await,
                done => return done.map(|()| store),
            }
        }
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        let mut held = self.take_turn(true).await?;
        if self.slot.options.migrate_new && migrate::is_empty(&held.opened.connection)? {
            held = self.migrate_held(held).await?.0;
        }
        migrate::check(&held.opened.connection, self.slot.options.setup.as_ref())?;
        held.give_back();
        Ok(())
    }

    /// Makes our tables and runs the setup file; makes the file when it is missing (idempotent, safe from
    /// many processes at once).
    ///
    /// # Errors
    /// `Config` for a setup file that fails or has changed, `NotMigrated` for tables of a newer program,
    /// `Unavailable`, `Conflict`.
    pub async fn migrate(options: SqliteOptions) -> Result<Migrated, StoreError> {
        let store = Self::over(options);
        let patience = Patience::begin(&store.slot.options);
        loop {
            match store.migrate_once().await {
                Err(error) if patience.allows(&error) => tokio::time::sleep(REOPEN).await,
                done => return done,
            }
        }
    }

    async fn migrate_once(&self) -> Result<Migrated, StoreError> {
        let held = self.take_turn(true).await?;
        let (held, migrated) = self.migrate_held(held).await?;
        held.give_back();
        Ok(migrated)
    }

    fn over(options: SqliteOptions) -> Self {
        let turns = Arc::new(Semaphore::new(1));
        let slot = Slot {
            options,
            turns,
            idle: Mutex::new(None),
            reader: Mutex::new(None),
            yield_until: Mutex::new(None),
            held_long: AtomicBool::new(false),
        };
        Self { slot: Arc::new(slot) }
    }

    async fn migrate_held(&self, held: Held) -> Result<(Held, Migrated), StoreError> {
        let held = self.lock_held(held).await?;
        let setup = self.slot.options.setup.as_ref();
        let migrated = migrate::finish(&held.opened.connection, setup, Some(&held.opened.guard))?;
        Ok((held, migrated))
    }

    /// Checks declared effects against the tables: each is prepared, none is run.
    ///
    /// # Errors
    /// `Config` for a statement that is refused, `SchemaMismatch` for one that does not fit the tables,
    /// each naming its effect; `Unavailable`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn check_effects(&self, effects: &SqlEffects) -> Result<(), StoreError> {
        let opened = open_reader(&self.slot.options)?;
        effects.check(&opened.connection, &opened.guard)
    }

    /// What is registered under a consumer's name; registers nothing.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn consumer(&self, name: &ConsumerName) -> Result<Option<ConsumerRow>, StoreError> {
        let found = inbox::find_consumer(&open_reader(&self.slot.options)?.connection, name)?;
        Ok(found.map(|(key, fingerprint)| ConsumerRow {
            name: key.name,
            fingerprint: fingerprint.map(Fingerprint),
        }))
    }

    /// What the inbox knows of an id.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn inbox_row(
        &self,
        name: &ConsumerName,
        id: &MessageId,
    ) -> Result<Option<InboxRow>, StoreError> {
        failure::inbox_row(&open_reader(&self.slot.options)?.connection, name, id)
    }

    /// A page of a consumer's dead letters, oldest first, those of one time in the order of their source.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    pub async fn dead_letters(
        &self,
        name: &ConsumerName,
        class: Option<FailureClass>,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<DeadLetterSummary>, StoreError> {
        let filter = DeadLetterFilter { class, ..DeadLetterFilter::default() };
        self.dead_letters_where(name, &filter, after, limit).await
    }

    /// A page of those of a consumer's dead letters that fit a filter, in the same order.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn dead_letters_where(
        &self,
        name: &ConsumerName,
        filter: &DeadLetterFilter,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<DeadLetterSummary>, StoreError> {
        failure::dead_letters(&open_reader(&self.slot.options)?.connection, name, filter, after, limit)
    }

    /// One dead letter, whole.
    ///
    /// # Errors
    /// `Unavailable`, `NotMigrated`.
    #[expect(clippy::unused_async, reason = "the stores look the same; another database waits here")]
    pub async fn dead_letter(
        &self,
        name: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Option<DeadLetterRow>, StoreError> {
        failure::dead_letter(&open_reader(&self.slot.options)?.connection, name, key)
    }

    /// The slot's connection, when no other transaction of this process has it.
    async fn take_turn(&self, create: bool) -> Result<Held, StoreError> {
        let turn = Arc::clone(&self.slot.turns).acquire_owned();
        let turn = match tokio::time::timeout(self.slot.options.lock_timeout, turn).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) => return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is closed")),
            Err(_) => return Err(waited_too_long(&self.slot.options, "another transaction of this process")),
        };
        let here = FileIdentity::of(&self.slot.options.path);
        let opened = match self.slot.take() {
            // A file that was removed or replaced would take commits and lose them.
            Some(opened) if opened.file == here => opened,
            Some(gone) => {
                drop(gone);
                open(&self.slot.options, create)?
            }
            None => open(&self.slot.options, create)?,
        };
        Ok(Held { opened, slot: Arc::clone(&self.slot), since: Instant::now(), _turn: turn })
    }

    /// Reads with a connection that is kept for it; no lock is waited for.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let place = || self.slot.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let here = FileIdentity::of(&self.slot.options.path);
        let kept = place().take().filter(|opened| opened.file == here);
        let opened = match kept {
            Some(opened) => opened,
            None => open_reader(&self.slot.options)?,
        };
        let done = work(&opened.connection);
        *place() = Some(opened);
        done
    }

    /// Writes in one transaction of our own.
    pub(super) async fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let held = self.lock().await?;
        let connection = &held.opened.connection;
        match refuse_read_only(connection, &self.slot.options.path).and_then(|()| work(connection)) {
            Ok(done) => end(Tx { held, first: inbox::StoredIds::default() }).map(|()| done),
            Err(error) => {
                let _ = held.roll_back();
                Err(error)
            }
        }
    }

    pub(super) async fn lock(&self) -> Result<Held, StoreError> {
        if self.slot.yields() {
            tokio::time::sleep(YIELD).await;
        }
        self.lock_held(self.take_turn(false).await?).await
    }

    /// BEGIN IMMEDIATE, with many short tries: the thread goes on between them, and a gap between two
    /// transactions of a busy process is met sooner than by SQLite's own growing waits.
    async fn lock_held(&self, mut held: Held) -> Result<Held, StoreError> {
        let deadline = Instant::now() + self.slot.options.lock_timeout;
        let mut tries = 0_u64;
        loop {
            match held.opened.connection.execute_batch("BEGIN IMMEDIATE") {
                Ok(()) => {
                    held.since = Instant::now();
                    return Ok(held);
                }
                Err(error) if is_busy(&error) => {
                    self.slot.met_busy();
                    if Instant::now() >= deadline {
                        held.give_back();
                        return Err(waited_too_long(&self.slot.options, "another process").with_source(error));
                    }
                }
                Err(error) => return Err(migrate::own_error(&held.opened.connection, "beginning", error)),
            }
            tries += 1;
            let jitter = RandomState::new().hash_one(tries) % 4;
            tokio::time::sleep(Duration::from_millis(1 + jitter)).await;
        }
    }
}

/// Another process may have the file for itself for a moment: it switches to WAL, recovers or migrates.
struct Patience(Instant);

impl Patience {
    fn begin(options: &SqliteOptions) -> Self {
        Self(Instant::now() + options.lock_timeout)
    }

    fn allows(&self, error: &StoreError) -> bool {
        error.kind == StoreErrorKind::Conflict && Instant::now() < self.0
    }
}

fn waited_too_long(options: &SqliteOptions, who: &str) -> StoreError {
    let text =
        format!("{who} held the write lock of {} for {:?}", options.path.display(), options.lock_timeout);
    StoreError::new(StoreErrorKind::Conflict, text)
}

impl Store for SqliteStore {
    type Tx = Tx;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { writers_max: Some(1) }
    }

    async fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> Result<ConsumerKey, StoreError> {
        self.write(|connection| inbox::register(connection, name, fingerprint, adopt)).await
    }

    async fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(Self::Tx, Vec<Claim>), StoreError> {
        let held = self.lock().await?;
        // Nothing below waits: a future dropped above holds no open transaction.
        match inbox::claim_batch(&held.opened.connection, consumer, ids) {
            Ok(claimed) => Ok((held.into_tx(claimed.first), claimed.claims)),
            Err(error) => {
                let _ = held.roll_back();
                Err(error)
            }
        }
    }

    async fn record(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        tx.own(
            || vec![Recorded::New; rows.len()],
            |connection, claimed| failure::record(connection, consumer, rows, claimed),
        )
    }

    async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
        end(tx)
    }

    async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
        tx.held.roll_back()
    }

    async fn abandon(&self, tx: Self::Tx) {
        let Tx { held, .. } = tx;
        held.opened.guard.set_mode(Mode::Own);
        if !held.opened.connection.is_autocommit() {
            // Closing rolls back as well; this frees the lock even if closing is late.
            let _ = held.opened.connection.execute_batch("ROLLBACK");
        }
    }

    fn classify(&self, tx: &Self::Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        if let Some(failure) = find::<EffectFailure>(error) {
            return failure.fault();
        }
        let fault = fault_of(error)?;
        if tx.guard().tried_to_end() {
            return Some(Fault { kind: StoreErrorKind::TransactionEnded, ..fault });
        }
        if find::<rusqlite::Error>(error).is_some_and(is_general) && does_not_fit_the_schema(tx.connection())
        {
            return Some(Fault { kind: StoreErrorKind::SchemaMismatch, ..fault });
        }
        Some(fault)
    }
}

fn swallowed() -> StoreError {
    let text = "SQLite had rolled the transaction back after an error (a full disk, an interrupted statement) that the handler did not return";
    StoreError::new(StoreErrorKind::Swallowed, text)
}

/// The guard, then COMMIT.
fn end(tx: Tx) -> Result<(), StoreError> {
    let Tx { held, .. } = tx;
    if held.opened.guard.tried_to_end() {
        let _ = held.roll_back();
        let text = "a handler tried to begin or end a transaction: nothing of it was committed; remove BEGIN, COMMIT and ROLLBACK from it (SAVEPOINT is allowed)";
        return Err(StoreError::new(StoreErrorKind::TransactionEnded, text));
    }
    if held.opened.connection.is_autocommit() {
        held.give_back();
        return Err(swallowed());
    }
    held.opened.guard.set_mode(Mode::Own);
    let Err(error) = held.opened.connection.execute_batch("COMMIT") else {
        held.give_back();
        return Ok(());
    };
    let path = held.slot.options.path.display();
    match kind_of(&error) {
        Some(StoreErrorKind::Conflict) => {
            let mut failed = store_error(&format!("committing to {path}"), error);
            failed
                .message
                .push_str("; a handler that keeps a statement running beyond its end does this too");
            held.close();
            Err(failed)
        }
        // A deferred foreign key: the transaction is still open.
        Some(StoreErrorKind::Statement) if !held.opened.connection.is_autocommit() => {
            let _ = held.roll_back();
            let code = code_of(&error).unwrap_or_default();
            let text =
                format!("the commit was refused (SQLite code {code}): a deferred constraint does not hold");
            Err(StoreError::new(StoreErrorKind::Statement, text).with_source(error))
        }
        // The connection is closed: what the file holds is found out by running the batch again.
        _ => {
            let mut failed = store_error(&format!("committing to {path}"), error);
            failed.kind = StoreErrorKind::Unavailable;
            failed.message.push_str("; the outcome is unknown, the batch runs again");
            Err(failed)
        }
    }
}
