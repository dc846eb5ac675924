//! Opening the file, and the guard that watches what happens on the connection.
//!
//! Only our own code may end a transaction. While a handler holds the connection, BEGIN, COMMIT and
//! ROLLBACK are refused when they are prepared, and a commit that comes about in any other way (SQLite
//! rolled back after a full disk and the handler went on) is turned into a rollback by the commit hook.
//! So nothing that a handler writes is durable without its claim.

use super::classify::{is_busy, store_error};
use super::config::SqliteOptions;
use handstamp_core::{CrashPoint, StoreError, StoreErrorKind};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{Connection, OpenFlags};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often one try looks for the write lock, and blocks the thread in SQLite between looks: 10 milliseconds in all;
/// between tries the engine goes on. SQLite's own waits grow past the gap that a busy process leaves.
const BUSY_LOOKS: i32 = 40;
const BUSY_WAIT: Duration = Duration::from_micros(250);
/// How long a reader (of the program) may block.
const READER_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Steps of SQLite's machine between two looks at the clock.
const STEPS_BETWEEN_LOOKS: i32 = 5000;
/// Statements kept prepared on a connection.
const STATEMENTS_KEPT: usize = 128;

/// Who uses the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Our own code: everything is allowed.
    Own = 0,
    /// A handler: everything but ending the transaction.
    Handler = 1,
    /// A declared effect: rows of the user's tables only.
    Effect = 2,
    /// The user's schema file: no transaction control, none of our tables.
    Setup = 3,
    /// Our own code in a transaction that waits for no disk. No outcome hangs on its commit.
    Unwaited = 4,
}

/// A statement without a time limit.
const NEVER: u64 = 0;
/// A statement that may have begun: its time limit starts at the first look. A short one never reads a clock.
const JUST_BEGUN: u64 = u64::MAX;

/// Shared between a connection's owner and the hooks inside SQLite.
#[derive(Debug)]
pub(crate) struct Guard {
    mode: AtomicU8,
    /// A handler tried to end the transaction.
    tried_to_end: AtomicBool,
    origin: Instant,
    /// Milliseconds since `origin` when a statement must stop; [`NEVER`], or [`JUST_BEGUN`].
    deadline_ms: AtomicU64,
    statement_timeout: Duration,
}

impl Guard {
    fn new(statement_timeout: Duration) -> Self {
        Self {
            mode: AtomicU8::new(Mode::Own as u8),
            tried_to_end: AtomicBool::new(false),
            origin: Instant::now(),
            deadline_ms: AtomicU64::new(NEVER),
            statement_timeout,
        }
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
        if mode == Mode::Own {
            self.deadline_ms.store(NEVER, Ordering::Relaxed);
        }
    }

    /// Forgets what an earlier transaction did.
    pub(crate) fn clear(&self) {
        self.tried_to_end.store(false, Ordering::Relaxed);
    }

    pub(crate) fn tried_to_end(&self) -> bool {
        self.tried_to_end.load(Ordering::Relaxed)
    }

    /// A statement may begin now: it has its time limit from here.
    pub(crate) fn statement_begins(&self) {
        self.deadline_ms.store(JUST_BEGUN, Ordering::Relaxed);
    }

    /// SQLite's look at the clock, each [`STEPS_BETWEEN_LOOKS`].
    fn must_stop(&self) -> bool {
        match self.deadline_ms.load(Ordering::Relaxed) {
            NEVER => false,
            JUST_BEGUN => {
                let deadline = self.origin.elapsed().saturating_add(self.statement_timeout);
                let ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
                self.deadline_ms.store(ms.clamp(NEVER + 1, JUST_BEGUN - 1), Ordering::Relaxed);
                false
            }
            deadline => self.origin.elapsed() > Duration::from_millis(deadline),
        }
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Relaxed) == mode as u8
    }

    fn is_ours(&self) -> bool {
        self.is(Mode::Own) || self.is(Mode::Unwaited)
    }

    fn authorize(&self, context: &AuthContext<'_>) -> Authorization {
        if self.is_ours() {
            return Authorization::Allow;
        }
        if matches!(context.action, AuthAction::Transaction { .. }) {
            self.tried_to_end.store(true, Ordering::Relaxed);
            return Authorization::Deny;
        }
        let allowed = self.is(Mode::Handler)
            || (self.is(Mode::Effect) && fits_an_effect(&context.action, context.database_name))
            || (self.is(Mode::Setup) && fits_a_setup(&context.action));
        if allowed { Authorization::Allow } else { Authorization::Deny }
    }
}

/// Rows of the user's tables, and functions that do not load code.
fn fits_an_effect(action: &AuthAction<'_>, database: Option<&str>) -> bool {
    match action {
        // The messages of a batch: no effect can name it, `messages` is a query over it.
        AuthAction::Read { table_name, .. } if table_name.starts_with("handstamp_set_") => {
            database == Some("temp")
        }
        AuthAction::Select | AuthAction::Recursive => true,
        AuthAction::Read { table_name, .. }
        | AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => {
            let reserved = ["sqlite_", "pragma_"].iter().any(|start| table_name.starts_with(start));
            !is_own(table_name) && !reserved
        }
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        // Full-text tables ask it of themselves.
        AuthAction::Pragma { pragma_name, pragma_value: None } => {
            pragma_name.eq_ignore_ascii_case("data_version")
        }
        _ => false,
    }
}

fn fits_a_setup(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } | AuthAction::Savepoint { .. } => false,
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::CreateTable { table_name }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTable { table_name }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => !is_own(table_name),
        _ => true,
    }
}

/// True for a table of Handstamp's own.
fn is_own(table: &str) -> bool {
    table.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("handstamp_"))
}

thread_local! {
    /// The last statement that began to run on this thread since a handler last took its connection;
    /// empty: none did; `None`: no handler was ever here. SQLite's general error says nothing of where
    /// it happened; this does.
    static LAST_RUN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A handler takes its connection: what fails before anything ran failed while it was prepared.
pub(crate) fn nothing_ran_yet() {
    // The text's memory is used again.
    LAST_RUN.with_borrow_mut(|last| last.get_or_insert_default().clear());
}

/// Remembers each statement that a handler runs, until `unwatch_statements`.
pub(crate) fn watch_statements(connection: &Connection) {
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(remember_statement));
}

/// Declared effects know by themselves which statement failed.
pub(crate) fn unwatch_statements(connection: &Connection) {
    connection.trace_v2(TraceEventCodes::empty(), None);
}

fn remember_statement(event: TraceEvent<'_>) {
    // A trigger that starts is told as a comment.
    if let TraceEvent::Stmt(_, sql) = event
        && !sql.starts_with("--")
    {
        LAST_RUN.with_borrow_mut(|last| {
            let kept = last.get_or_insert_default();
            kept.clear();
            kept.push_str(sql);
        });
    }
}

/// True when a general error of a handler's statement came from preparing it: nothing ran, or what ran
/// cannot be prepared any more (its table went away while it was cached).
pub(crate) fn does_not_fit_the_schema(connection: &Connection) -> bool {
    match LAST_RUN.with_borrow(Clone::clone) {
        Some(last) => last.is_empty() || connection.prepare(&last).is_err(),
        None => false,
    }
}

/// Which file a connection is on, so that a file that was removed or replaced is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity(u64, u64);

impl FileIdentity {
    /// `None` when there is no file (or the system has no such thing).
    pub(crate) fn of(path: &Path) -> Option<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(path).ok().map(|found| Self(found.dev(), found.ino()))
        }
        #[cfg(not(unix))]
        {
            std::fs::metadata(path).ok().map(|_| Self(0, 0))
        }
    }
}

/// An open connection that may write.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) guard: Arc<Guard>,
    pub(crate) file: Option<FileIdentity>,
}

/// Opens the file for writing, in WAL mode with full durability. Both hold for as long as it is open, but for start
/// records ([`super::slot`]).
pub(crate) fn open(options: &SqliteOptions, create: bool) -> Result<Opened, StoreError> {
    let path = &options.path;
    refuse_path(path)?;
    let doing = format!("opening the SQLite file {}", path.display());
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = Connection::open_with_flags(path, flags).map_err(|e| store_error(&doing, e))?;
    connection.busy_handler(Some(look_again)).map_err(|e| store_error(&doing, e))?;
    use_wal(&connection, options, &doing)?;
    let settings = "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;";
    connection.execute_batch(settings).map_err(|e| store_error(&doing, e))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    let guard = watch(&connection, options).map_err(|e| store_error(&doing, e))?;
    Ok(Opened { connection, guard, file: FileIdentity::of(path) })
}

/// Waits a moment for a lock; false: so many times are enough.
fn look_again(looks: i32) -> bool {
    if looks >= BUSY_LOOKS {
        return false;
    }
    std::thread::sleep(BUSY_WAIT);
    true
}

/// Opens the file for reading; it must exist.
pub(crate) fn open_reader(options: &SqliteOptions) -> Result<Opened, StoreError> {
    refuse_path(&options.path)?;
    let doing = format!("opening the SQLite file {} for reading", options.path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&options.path, flags).map_err(|e| store_error(&doing, e))?;
    connection.busy_timeout(READER_BUSY_TIMEOUT).map_err(|e| store_error(&doing, e))?;
    let guard = watch(&connection, options).map_err(|e| store_error(&doing, e))?;
    Ok(Opened { connection, guard, file: FileIdentity::of(&options.path) })
}

fn watch(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<Arc<Guard>> {
    let guard = Arc::new(Guard::new(options.statement_timeout));
    let hook = Arc::clone(&guard);
    connection.authorizer(Some(move |context: AuthContext<'_>| hook.authorize(&context)))?;
    let hook = Arc::clone(&guard);
    // True turns the commit into a rollback.
    let on_commit = move || {
        if !hook.is(Mode::Unwaited) {
            CrashPoint::CommitSent.reached();
        }
        !hook.is_ours()
    };
    connection.commit_hook(Some(on_commit))?;
    let hook = Arc::clone(&guard);
    connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || hook.must_stop()))?;
    Ok(guard)
}

pub(crate) fn refuse_path(path: &Path) -> Result<(), StoreError> {
    let refuse = |why: &str| {
        let text = format!("{} cannot be the store's file: {why}", path.display());
        Err(StoreError::new(StoreErrorKind::Config, text))
    };
    if path.as_os_str().is_empty() {
        return refuse("it is empty; name a file");
    }
    // SQLite itself would take both for something else than a file of that name, depending on the folder.
    let name = path.file_name().unwrap_or_default();
    if name == ":memory:" {
        return refuse("a database in memory forgets every id; name a file");
    }
    let is_uri = |part: &std::ffi::OsStr| part.as_encoded_bytes().starts_with(b"file:");
    if path.iter().any(is_uri) {
        return refuse("URIs are not read; write the path of a file, without file: and without options");
    }
    if path.is_dir() {
        return refuse("it is a folder");
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            refuse(&format!("its folder {} does not exist; make it first", folder.display()))
        }
        _ => Ok(()),
    }
}

/// SQLite opens what it may not write all the same, and BEGIN IMMEDIATE then only reads: every claim would
/// fail, and nothing would say so before the first message.
pub(crate) fn refuse_read_only(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let doing = format!("writing to {}", path.display());
    if connection.is_readonly("main").map_err(|e| store_error(&doing, e))? {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
        return Err(store_error(&doing, rusqlite::Error::SqliteFailure(code, None)));
    }
    Ok(())
}

/// The switch to WAL needs the file for itself; other processes may be switching too.
fn use_wal(connection: &Connection, options: &SqliteOptions, doing: &str) -> Result<(), StoreError> {
    let deadline = Instant::now() + options.lock_timeout;
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Ok(mode) if mode.eq_ignore_ascii_case("wal") => return Ok(()),
            Ok(mode) => {
                let text = format!(
                    "{doing} failed: its journal mode stays {mode:?}; WAL needs a local disk with shared memory"
                );
                return Err(StoreError::new(StoreErrorKind::Config, text));
            }
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(store_error(doing, error)),
        }
    }
}
