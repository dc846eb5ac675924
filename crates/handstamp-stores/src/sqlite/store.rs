//! The store: transactions that own the slot's write connection, and the guard at their end.
//!
//! ```text
//!  idle ──begin──► Tx ──commit / rollback──► idle
//!                  ├──── abandon ──────────► closed (the next begin opens another)
//!                  └──── dropped ──────────► closed; SQLite rolls back
//! ```

use super::classify::{code_of, fault_of, find, is_general, kind_of, store_error};
use super::config::SqliteOptions;
use super::connect::{
    Guard, Mode, does_not_fit_the_schema, nothing_ran_yet, open_reader, refuse_read_only, watch_statements,
};
use super::effect::{EffectFailure, SqlEffects};
use super::migrate::{self, Migrated, own_error};
use super::slot::{Held, Slot};
use super::{failure, inbox, starts};
use crate::redrive::DeadLetterFilter;
use crate::rows::{ConsumerRow, DeadLetterCursor, DeadLetterKey, DeadLetterRow, DeadLetterSummary, InboxRow};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, Fault, Fingerprint, MessageId,
    Recorded, Store, StoreCapabilities, StoreError, StoreErrorKind,
};
use rusqlite::Connection;
use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The wait before a file that another process has for itself is opened again.
const REOPEN: Duration = Duration::from_millis(10);

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    slot: Arc<Slot>,
}

/// An open transaction that holds the write lock. Dereferences to the connection for reading and writing;
/// only the engine ends it. Dropped, it closes its connection and SQLite rolls back.
#[derive(Debug)]
pub struct Tx {
    held: Held,
    /// The stored ids that this transaction claimed, sorted.
    first: inbox::StoredIds,
    /// It has a savepoint.
    saved: bool,
}

impl Tx {
    /// The open transaction of a held connection, as a handler may have it.
    pub(super) fn of(held: Held, first: inbox::StoredIds) -> Self {
        held.opened.guard.clear();
        held.opened.guard.set_mode(Mode::Handler);
        watch_statements(held.connection());
        nothing_ran_yet();
        Self { held, first, saved: false }
    }

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

impl Tx {
    /// From here on what is written can be taken back alone.
    pub(super) fn save(&mut self) -> Result<(), StoreError> {
        let moves = std::mem::replace(&mut self.saved, true);
        let sql =
            if moves { "RELEASE handstamp_row; SAVEPOINT handstamp_row" } else { "SAVEPOINT handstamp_row" };
        self.run(sql, "setting a savepoint")
    }

    /// Takes back what was written since; the savepoint stays.
    pub(super) fn take_back(&mut self) -> Result<(), StoreError> {
        self.run("ROLLBACK TO handstamp_row", "going back to a savepoint")
    }

    /// Runs a statement of our own on the transaction that a handler left; what is the matter with that.
    fn run(&self, sql: &str, doing: &str) -> Result<(), StoreError> {
        if self.guard().tried_to_end() {
            return Err(tried_to_end());
        }
        if self.connection().is_autocommit() {
            return Err(swallowed());
        }
        self.own(
            || (),
            |connection, _| connection.execute_batch(sql).map_err(|e| own_error(connection, doing, e)),
        )
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
        let mut held = self.slot.turn(true).await?;
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
        let held = self.slot.turn(true).await?;
        let (held, migrated) = self.migrate_held(held).await?;
        held.give_back();
        Ok(migrated)
    }

    fn over(options: SqliteOptions) -> Self {
        Self { slot: Slot::new(options) }
    }

    async fn migrate_held(&self, held: Held) -> Result<(Held, Migrated), StoreError> {
        let held = held.lock().await?;
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
        let found = self.read(|connection| inbox::find_consumer(connection, name))?;
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
        self.read(|connection| failure::inbox_row(connection, name, id))
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
        self.read(|connection| failure::dead_letters(connection, name, filter, after, limit))
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
        self.read(|connection| failure::dead_letter(connection, name, key))
    }

    /// Reads with a connection that is kept for it; no lock is waited for.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.slot.read(work)
    }

    /// Writes in one transaction of our own.
    pub(super) async fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let held = self.lock().await?;
        let connection = &held.opened.connection;
        match refuse_read_only(connection, &self.slot.options.path).and_then(|()| work(connection)) {
            Ok(done) => end(Tx { held, first: inbox::StoredIds::default(), saved: false }).map(|()| done),
            Err(error) => {
                let _ = held.roll_back();
                Err(error)
            }
        }
    }

    /// The write connection with the file's lock, in a transaction.
    pub(super) async fn lock(&self) -> Result<Held, StoreError> {
        self.slot.lock().await
    }

    /// The write connection, outside of a transaction.
    pub(super) async fn turn(&self) -> Result<Held, StoreError> {
        self.slot.turn(false).await
    }

    /// Writes what has to survive this process and not a power cut ([`Held::write_unwaited`]); the connection with
    /// the turn of this process goes on to whoever asked.
    pub(super) async fn write_unwaited<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<(Held, T), StoreError> {
        self.turn().await?.write_unwaited(work).await
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
        self.write(|connection| {
            let key = inbox::register(connection, name, fingerprint, adopt)?;
            starts::prune(connection, &key)?;
            Ok(key)
        })
        .await
    }

    async fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(Self::Tx, Vec<Claim>), StoreError> {
        // A future that is dropped holds no open transaction: nothing waits behind the lock.
        claimed(self.lock().await?, consumer, ids)
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
        tx.held.close();
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

/// Claims ids in the transaction that a held connection has just begun.
pub(super) fn claimed(
    held: Held,
    consumer: &ConsumerKey,
    ids: &[ClaimRequest],
) -> Result<(Tx, Vec<Claim>), StoreError> {
    match inbox::claim_batch(held.connection(), consumer, ids) {
        Ok(claimed) => Ok((Tx::of(held, claimed.first), claimed.claims)),
        Err(error) => {
            let _ = held.roll_back();
            Err(error)
        }
    }
}

fn tried_to_end() -> StoreError {
    let text = "a handler tried to begin or end a transaction: nothing of it was committed; remove BEGIN, COMMIT and ROLLBACK from it (SAVEPOINT is allowed)";
    StoreError::new(StoreErrorKind::TransactionEnded, text)
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
        return Err(tried_to_end());
    }
    if held.opened.connection.is_autocommit() {
        // Whatever the handler ran since then ran outside of a transaction, PRAGMA synchronous too.
        held.close();
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
