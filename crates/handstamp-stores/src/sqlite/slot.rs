//! The slot of the one write connection: whose turn it is, how the file's write lock is got, and how a connection
//! comes back.
//!
//! ```text
//!  idle ─► turn ─► Held ─┬─ lock: BEGIN IMMEDIATE ─► Tx ──────────────────────────────────────┬─► idle
//!                        │                            └─ whose transaction SQLite had ended ──┼─► closed
//!                        └─ write_unwaited: NORMAL ─► BEGIN, write, COMMIT ─► FULL, looked at ┘
//!                                             └─ dropped, or not FULL again ─► closed
//! ```
//!
//! SQLite has no queue for its write lock. A process that met a busy lock pauses for a millisecond
//! behind each of its long transactions for a while, so that the others get their turn. Measured with
//! two processes and batches of 500: the longest wait for the lock fell from 150–570 ms to 60–260 ms, for
//! about a fifth of their common throughput; behind short transactions a pause only cost, so there is none.
//!
//! A start record has to survive the process, not a power cut. In WAL mode a commit below `synchronous = FULL` is
//! in the system's hands and waits for no disk, unless it is the one that copies the log into the file, which
//! happens once in a thousand pages. It needs this very connection: another one's commits would empty this one's
//! cache of pages. The journal mode cannot change meanwhile: leaving WAL takes the file for itself, and this
//! connection holds its part of the lock for as long as it is open.

use super::classify::{is_busy, store_error};
use super::config::SqliteOptions;
use super::connect::{FileIdentity, Mode, Opened, open, open_reader, unwatch_statements};
use super::migrate::own_error;
use handstamp_core::{StoreError, StoreErrorKind};
use rusqlite::Connection;
use std::hash::{BuildHasher, RandomState};
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

/// What `PRAGMA synchronous` says when a commit waits for the disk.
const FULL: i64 = 2;

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Slot {
    /// A connection that only reads, kept for looks that come often. It is closed before the one that writes:
    /// the last one to be closed empties the WAL into the file, which only a writer can.
    reader: Mutex<Option<Opened>>,
    pub(super) options: SqliteOptions,
    turns: Arc<Semaphore>,
    idle: Mutex<Option<Opened>>,
    yield_until: Mutex<Option<Instant>>,
    /// The last transaction held the lock for long.
    held_long: AtomicBool,
}

impl Slot {
    pub(super) fn new(options: SqliteOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            turns: Arc::new(Semaphore::new(1)),
            idle: Mutex::new(None),
            reader: Mutex::new(None),
            yield_until: Mutex::new(None),
            held_long: AtomicBool::new(false),
        })
    }

    /// The connection, when no other transaction of this process has it.
    pub(super) async fn turn(self: &Arc<Self>, create: bool) -> Result<Held, StoreError> {
        if self.yields() {
            tokio::time::sleep(YIELD).await;
        }
        let turn = Arc::clone(&self.turns).acquire_owned();
        let turn = match tokio::time::timeout(self.options.lock_timeout, turn).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) => return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is closed")),
            Err(_) => return Err(waited_too_long(&self.options, "another transaction of this process")),
        };
        let here = FileIdentity::of(&self.options.path);
        let opened = match self.take() {
            // A file that was removed or replaced would take commits and lose them.
            Some(opened) if opened.file == here => opened,
            Some(gone) => {
                drop(gone);
                open(&self.options, create)?
            }
            None => open(&self.options, create)?,
        };
        Ok(Held { opened, slot: Arc::clone(self), since: Instant::now(), _turn: turn })
    }

    /// The connection with the file's write lock, in a transaction.
    pub(super) async fn lock(self: &Arc<Self>) -> Result<Held, StoreError> {
        self.turn(false).await?.lock().await
    }

    /// Reads with a connection that is kept for it; no lock is waited for.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let place = || self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let here = FileIdentity::of(&self.options.path);
        let kept = place().take().filter(|opened| opened.file == here);
        let opened = match kept {
            Some(opened) => opened,
            None => open_reader(&self.options)?,
        };
        let done = work(&opened.connection);
        *place() = Some(opened);
        done
    }

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
    pub(super) opened: Opened,
    pub(super) slot: Arc<Slot>,
    /// When it got the write lock.
    since: Instant,
    _turn: OwnedSemaphorePermit,
}

impl Held {
    pub(super) fn connection(&self) -> &Connection {
        &self.opened.connection
    }

    /// Begins a transaction that holds the write lock.
    pub(super) async fn lock(mut self) -> Result<Self, StoreError> {
        match self.begin().await {
            Ok(()) => Ok(self),
            Err(error) => {
                if error.kind == StoreErrorKind::Conflict {
                    self.give_back();
                }
                Err(error)
            }
        }
    }

    /// BEGIN IMMEDIATE, with many short tries: the thread goes on between them, and a gap between two
    /// transactions of a busy process is met sooner than by SQLite's own growing waits.
    async fn begin(&mut self) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.slot.options.lock_timeout;
        let mut tries = 0_u64;
        loop {
            match self.opened.connection.execute_batch("BEGIN IMMEDIATE") {
                Ok(()) => {
                    self.since = Instant::now();
                    return Ok(());
                }
                Err(error) if is_busy(&error) => {
                    self.slot.met_busy();
                    if Instant::now() >= deadline {
                        return Err(waited_too_long(&self.slot.options, "another process").with_source(error));
                    }
                }
                Err(error) => return Err(own_error(&self.opened.connection, "beginning", error)),
            }
            tries += 1;
            let jitter = RandomState::new().hash_one(tries) % 4;
            tokio::time::sleep(Duration::from_millis(1 + jitter)).await;
        }
    }

    /// Writes in a transaction of our own whose commit waits for no disk: it survives this process, not a power
    /// cut, until the next commit that waits takes it along. Dropped on the way, or not certain to be at FULL
    /// again, the connection is closed.
    pub(super) async fn write_unwaited<T>(
        mut self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<(Self, T), StoreError> {
        let normal = self.connection().execute_batch("PRAGMA synchronous = NORMAL");
        normal.map_err(|e| own_error(self.connection(), "preparing a start record", e))?;
        let done = self.begin_and_write(work).await;
        match (done, back_to_full(self.connection())) {
            (Ok(done), Ok(())) => Ok((self, done)),
            (Ok(_), Err(error)) => Err(error),
            (Err(error), full) => {
                if full.is_ok() {
                    self.give_back();
                }
                Err(error)
            }
        }
    }

    async fn begin_and_write<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.begin().await?;
        // Nothing below waits.
        let Opened { connection, guard, .. } = &self.opened;
        guard.set_mode(Mode::Unwaited);
        let done = work(connection).and_then(|done| {
            let committed = connection.execute_batch("COMMIT");
            committed.map(|()| done).map_err(|e| own_error(connection, "committing a start record", e))
        });
        guard.set_mode(Mode::Own);
        if !connection.is_autocommit() {
            // A transaction that stays open keeps the connection below FULL, and so it is closed.
            let _ = connection.execute_batch("ROLLBACK");
        }
        done
    }

    /// Back into the slot, when no transaction is open on it.
    pub(super) fn give_back(self) {
        self.opened.guard.set_mode(Mode::Own);
        unwatch_statements(&self.opened.connection);
        self.opened.guard.clear();
        self.slot.held_long.store(self.since.elapsed() >= LONG, Ordering::Relaxed);
        if self.opened.connection.is_autocommit() {
            self.slot.put(self.opened);
        }
    }

    /// Rolls back what is open, then back into the slot; a connection that cannot is closed. So is one whose
    /// transaction SQLite had ended by itself: whatever ran on it since then, PRAGMA synchronous too, ran outside
    /// of one.
    pub(super) fn roll_back(self) -> Result<(), StoreError> {
        self.opened.guard.set_mode(Mode::Own);
        if self.opened.connection.is_autocommit() {
            return Ok(());
        }
        let rolled_back = self.opened.connection.execute_batch("ROLLBACK");
        rolled_back.map_err(|e| store_error("rolling back", e))?;
        self.give_back();
        Ok(())
    }

    /// Rolls back and never uses the connection again: a statement that somebody left running on it would
    /// keep every later transaction from committing.
    pub(super) fn close(self) {
        self.opened.guard.set_mode(Mode::Own);
        // Closing rolls back too, unless such a statement keeps the connection from closing; this frees the lock
        // even if closing is late.
        if !self.opened.connection.is_autocommit() {
            let _ = self.opened.connection.execute_batch("ROLLBACK");
        }
    }
}

/// Commits wait for the disk again, and SQLite says so.
fn back_to_full(connection: &Connection) -> Result<(), StoreError> {
    let failed = |e| own_error(connection, "making commits wait for the disk again", e);
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
    let level: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).map_err(failed)?;
    if level == FULL {
        return Ok(());
    }
    let text = format!(
        "commits do not wait for the disk (PRAGMA synchronous says {level}, not {FULL}): the connection is closed, the next one is opened anew"
    );
    Err(StoreError::new(StoreErrorKind::Unavailable, text))
}

fn waited_too_long(options: &SqliteOptions, who: &str) -> StoreError {
    let text =
        format!("{who} held the write lock of {} for {:?}", options.path.display(), options.lock_timeout);
    StoreError::new(StoreErrorKind::Conflict, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

    async fn level(slot: &Arc<Slot>) -> i64 {
        let held = slot.turn(true).await.unwrap();
        let level = held.connection().query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
        held.give_back();
        level
    }

    fn slot(folder: &tempfile::TempDir) -> Arc<Slot> {
        Slot::new(SqliteOptions::new(folder.path().join("store.db")))
    }

    fn marked(slot: &Slot) -> bool {
        let idle = slot.idle.lock().unwrap();
        let marked = |opened: &Opened| opened.connection.execute_batch("SELECT * FROM temp.mark").is_ok();
        idle.as_ref().is_some_and(marked)
    }

    /// A table that only this one connection knows: whether it is still the same.
    const MARK: &str = "CREATE TEMP TABLE mark (a)";

    #[tokio::test]
    async fn a_commit_does_not_wait_only_inside_and_the_connection_stays() {
        let folder = tempfile::TempDir::new().unwrap();
        let slot = slot(&folder);
        let held = slot.turn(true).await.unwrap();
        held.connection().execute_batch(MARK).unwrap();
        let inside = |connection: &Connection| {
            connection.execute_batch("CREATE TABLE t (a)").unwrap();
            Ok(connection.query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0)).unwrap())
        };
        let (held, seen) = held.write_unwaited(inside).await.unwrap();
        assert_eq!(seen, 1, "NORMAL");
        held.give_back();
        assert_eq!(level(&slot).await, FULL);
        let refused = |_: &Connection| Err::<(), _>(StoreError::new(StoreErrorKind::Config, "no"));
        slot.turn(false).await.unwrap().write_unwaited(refused).await.unwrap_err();
        assert_eq!(level(&slot).await, FULL);
        assert!(marked(&slot), "an error that left nothing open closes nothing");
    }

    /// What is written is rolled back where it cannot be committed, and the connection is sound.
    #[tokio::test]
    async fn a_commit_that_is_refused_leaves_nothing_open() {
        let folder = tempfile::TempDir::new().unwrap();
        let slot = slot(&folder);
        let (held, ()) = slot
            .turn(true)
            .await
            .unwrap()
            .write_unwaited(|connection| {
                let tables = "CREATE TABLE p (id INTEGER PRIMARY KEY);
                    CREATE TABLE c (p REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)";
                connection.execute_batch(tables).unwrap();
                Ok(())
            })
            .await
            .unwrap();
        let orphan = |connection: &Connection| {
            connection.execute_batch("INSERT INTO c VALUES (1)").unwrap();
            Ok(())
        };
        held.write_unwaited(orphan).await.unwrap_err();
        assert_eq!(level(&slot).await, FULL);
        let held = slot.lock().await.unwrap();
        let left: i64 = held.connection().query_row("SELECT count(*) FROM c", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0);
    }

    /// The way back is refused: by whom does not matter.
    #[tokio::test]
    async fn a_connection_that_is_not_at_full_again_is_closed() {
        let folder = tempfile::TempDir::new().unwrap();
        let slot = slot(&folder);
        for done in [true, false] {
            let held = slot.turn(true).await.unwrap();
            held.connection().execute_batch(MARK).unwrap();
            let refuse = move |connection: &Connection| {
                let pragmas = |context: AuthContext<'_>| match context.action {
                    AuthAction::Pragma { .. } => Authorization::Deny,
                    _ => Authorization::Allow,
                };
                connection.authorizer(Some(pragmas)).unwrap();
                if done { Ok(()) } else { Err(StoreError::new(StoreErrorKind::Config, "no")) }
            };
            held.write_unwaited(refuse).await.unwrap_err();
            assert!(slot.idle.lock().unwrap().is_none(), "it was closed");
            assert_eq!(level(&slot).await, FULL);
            assert!(!marked(&slot), "another connection");
        }
        let held = slot.turn(false).await.unwrap();
        held.connection().execute_batch("PRAGMA synchronous = NORMAL; BEGIN").unwrap();
        back_to_full(held.connection()).unwrap_err();
    }

    /// Whoever stops waiting for the lock in the middle leaves no connection below FULL behind.
    #[tokio::test]
    async fn a_wait_that_is_given_up_leaves_no_connection_below_full() {
        let folder = tempfile::TempDir::new().unwrap();
        let slot = slot(&folder);
        let held = slot.turn(true).await.unwrap();
        held.connection().execute_batch(MARK).unwrap();
        let other = Connection::open(folder.path().join("store.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        tokio::select! {
            biased;
            _ = held.write_unwaited(|_| Ok(())) => panic!("the lock is held"),
            () = tokio::task::yield_now() => {}
        }
        assert!(slot.idle.lock().unwrap().is_none(), "it was closed");
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(level(&slot).await, FULL);
    }
}
