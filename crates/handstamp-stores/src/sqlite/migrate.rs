//! Our tables and the user's own: numbered SQL files, each run once and known again by its checksum.
//!
//! Authoritative: `handstamp_migrations` and `handstamp_setup` in the file. Everything runs in one
//! transaction that holds the write lock, so many processes may start at once and a failing schema file
//! leaves nothing behind.

use super::classify::store_error;
use super::config::Setup;
use super::connect::{Guard, Mode};
use handstamp_core::{CrashPoint, StoreError, StoreErrorKind};
use rusqlite::{Connection, OptionalExtension};

/// One numbered file.
struct Migration {
    number: i64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: [Migration; 5] = [
    Migration { number: 1, name: "0001_inbox.sql", sql: include_str!("migrations/0001_inbox.sql") },
    Migration { number: 2, name: "0002_parked.sql", sql: include_str!("migrations/0002_parked.sql") },
    Migration { number: 3, name: "0003_starts.sql", sql: include_str!("migrations/0003_starts.sql") },
    Migration { number: 4, name: "0004_versions.sql", sql: include_str!("migrations/0004_versions.sql") },
    Migration { number: 5, name: "0005_prune.sql", sql: include_str!("migrations/0005_prune.sql") },
];

/// The newest schema this program makes.
const NEWEST: i64 = 5;

/// Where migrations are remembered.
const MEMORY: &str = "CREATE TABLE IF NOT EXISTS handstamp_migrations (
    number   INTEGER PRIMARY KEY,
    name     TEXT    NOT NULL,
    checksum BLOB    NOT NULL,
    run_at   INTEGER NOT NULL DEFAULT (unixepoch())
) STRICT;
";

/// The tables that messages lie in, and which migration makes each.
const TABLES: [(&str, i64); 11] = [
    ("handstamp_consumers", 1),
    ("handstamp_inbox", 1),
    ("handstamp_dead_letters", 1),
    ("handstamp_parked", 2),
    ("handstamp_attempts", 2),
    ("handstamp_audit", 2),
    ("handstamp_starts", 3),
    ("handstamp_parked_starts", 3),
    ("handstamp_crashes", 3),
    ("handstamp_versions", 4),
    ("handstamp_pruned", 5),
];

/// What a migration did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Files that ran now, in order; empty when everything was there.
    pub ran: Vec<String>,
}

/// Makes our tables in a database, or finds them (idempotent, safe from many processes at once).
///
/// # Errors
/// `Conflict` when another connection holds the lock for longer than the connection's busy timeout;
/// `NotMigrated` when the tables were made by a newer version or changed by hand; `Config` inside an open
/// transaction; `Unavailable`.
pub fn migrate(connection: &Connection) -> Result<Migrated, StoreError> {
    if !connection.is_autocommit() {
        let text = "migrate needs a connection outside of a transaction";
        return Err(StoreError::new(StoreErrorKind::Config, text));
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(|e| store_error("migrating", e))?;
    finish(connection, None, None)
}

/// The SQL that [`migrate`] runs, for people who run it themselves.
#[must_use]
pub fn show_sql() -> String {
    let mut out = format!("BEGIN IMMEDIATE;\n\n{MEMORY}");
    for migration in &MIGRATIONS {
        let checksum = checksum(migration.sql);
        let hex: String = checksum.iter().map(|byte| format!("{byte:02x}")).collect();
        out.push_str(&format!(
            "\n{}\nINSERT INTO handstamp_migrations (number, name, checksum) VALUES ({}, '{}', x'{hex}');\n",
            migration.sql, migration.number, migration.name
        ));
    }
    out.push_str("\nCOMMIT;\n");
    out
}

/// Our tables and the user's setup, in the transaction that the caller began IMMEDIATE; ends it.
pub(crate) fn finish(
    connection: &Connection,
    setup: Option<&Setup>,
    guard: Option<&Guard>,
) -> Result<Migrated, StoreError> {
    let failed = |e| store_error("migrating", e);
    let done = run_all(connection, setup, guard).and_then(|migrated| {
        CrashPoint::MidMigrate.reached();
        connection.execute_batch("COMMIT").map(|()| migrated).map_err(failed)
    });
    if done.is_err() && !connection.is_autocommit() {
        // The first error is the one to tell; a rollback that fails closes with the connection.
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

fn run_all(
    connection: &Connection,
    setup: Option<&Setup>,
    guard: Option<&Guard>,
) -> Result<Migrated, StoreError> {
    let failed = |e| store_error("migrating", e);
    if !has_table(connection, "handstamp_migrations")? && any_table(connection)? {
        return Err(no_memory());
    }
    connection.execute_batch(MEMORY).map_err(failed)?;
    let newest = newest_run(connection)?;
    refuse_newer(newest)?;
    let mut migrated = Migrated::default();
    for migration in &MIGRATIONS {
        if checksum_of(connection, migration)? {
            continue;
        }
        let doing = |e| store_error(&format!("running {}", migration.name), e);
        connection.execute_batch(migration.sql).map_err(doing)?;
        let remember = "INSERT INTO handstamp_migrations (number, name, checksum) VALUES (?1, ?2, ?3)";
        let values = (migration.number, migration.name, checksum(migration.sql));
        connection.execute(remember, values).map_err(doing)?;
        migrated.ran.push(migration.name.to_owned());
    }
    if let Some(setup) = setup
        && !setup_has_run(connection, setup)?
    {
        run_setup(connection, setup, guard)?;
        migrated.ran.push(setup.name.clone());
    }
    Ok(migrated)
}

/// Runs the user's file with transaction control and our own tables refused.
fn run_setup(connection: &Connection, setup: &Setup, guard: Option<&Guard>) -> Result<(), StoreError> {
    if let Some(guard) = guard {
        guard.clear();
        guard.set_mode(Mode::Setup);
    }
    let ran = connection.execute_batch(&setup.sql);
    let controlled = guard.is_some_and(Guard::tried_to_end) || connection.is_autocommit();
    if let Some(guard) = guard {
        guard.set_mode(Mode::Own);
        guard.clear();
    }
    let failed = |what: String| StoreError::new(StoreErrorKind::Config, what);
    match ran {
        Err(error) if controlled => Err(failed(format!(
            "the setup file {} contains BEGIN, COMMIT or ROLLBACK: remove them, it runs in one transaction",
            setup.name
        ))
        .with_source(error)),
        Err(error) => {
            let kind = match super::classify::kind_of(&error) {
                Some(kind @ (StoreErrorKind::Unavailable | StoreErrorKind::Conflict)) => kind,
                _ => StoreErrorKind::Config,
            };
            Err(StoreError::new(
                kind,
                format!("the setup file {} failed; nothing of it was kept", setup.name),
            )
            .with_source(error))
        }
        Ok(()) if controlled => Err(failed(format!("the setup file {} ended its transaction", setup.name))),
        Ok(()) => {
            let remember = "INSERT INTO handstamp_setup (name, checksum) VALUES (?1, ?2)";
            connection
                .execute(remember, (&setup.name, checksum(&setup.sql)))
                .map(|_| ())
                .map_err(|e| store_error("remembering the setup file", e))
        }
    }
}

/// True when the user's file has run; an error when it has changed since.
fn setup_has_run(connection: &Connection, setup: &Setup) -> Result<bool, StoreError> {
    let found: Option<Vec<u8>> = connection
        .query_row("SELECT checksum FROM handstamp_setup WHERE name = ?1", [&setup.name], |row| row.get(0))
        .optional()
        .map_err(|e| store_error("reading handstamp_setup", e))?;
    match found {
        None => Ok(false),
        Some(known) if known == checksum(&setup.sql) => Ok(true),
        Some(_) => Err(StoreError::new(
            StoreErrorKind::Config,
            format!(
                "the setup file {} has changed since it ran: put it back and write the change as a new file, or apply it by hand",
                setup.name
            ),
        )),
    }
}

/// Refuses a database that `run` cannot use, without changing it.
pub(crate) fn check(connection: &Connection, setup: Option<&Setup>) -> Result<(), StoreError> {
    if !has_table(connection, "handstamp_migrations")? {
        return Err(no_tables(connection));
    }
    let newest = newest_run(connection)?;
    refuse_newer(newest)?;
    for migration in &MIGRATIONS {
        if !checksum_of(connection, migration)? {
            return Err(has_not_run(migration));
        }
    }
    match setup {
        Some(setup) if !setup_has_run(connection, setup)? => {
            Err(not_migrated(&format!("the setup file {} has not run", setup.name)))
        }
        _ => Ok(()),
    }
}

/// True when the database holds no table at all: a new file.
pub(crate) fn is_empty(connection: &Connection) -> Result<bool, StoreError> {
    connection
        .query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
        .map_err(|e| store_error("reading the file", e))
}

/// An error of one of our own statements: missing tables are told apart.
pub(crate) fn own_error(connection: &Connection, doing: &str, error: rusqlite::Error) -> StoreError {
    if super::classify::is_general(&error) {
        if matches!(has_table(connection, "handstamp_migrations"), Ok(false)) {
            return no_tables(connection).with_source(error);
        }
        let missing = |(table, _): &&(&str, i64)| matches!(has_table(connection, table), Ok(false));
        if let Some((table, number)) = TABLES.iter().find(missing) {
            let made = newest_run(connection).unwrap_or(i64::MAX);
            let maker = MIGRATIONS.iter().find(|migration| migration.number == *number && *number > made);
            if let Some(maker) = maker {
                return has_not_run(maker).with_source(error);
            }
            let text = format!(
                "Handstamp's table {table} is missing, though handstamp_migrations says that it was made: put the file back as it was"
            );
            return StoreError::new(StoreErrorKind::NotMigrated, text).with_source(error);
        }
    }
    let place = connection.path().filter(|path| !path.is_empty());
    let doing = place.map_or_else(|| doing.to_owned(), |path| format!("{doing} in {path}"));
    let mut error = store_error(&doing, error);
    if error.kind == StoreErrorKind::Statement {
        // Never a message's own failure: our statements hold nothing of its body but bytes.
        error.kind = StoreErrorKind::SchemaMismatch;
    }
    error
}

fn has_not_run(migration: &Migration) -> StoreError {
    not_migrated(&format!("{} has not run", migration.name))
}

fn not_migrated(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::NotMigrated,
        format!("{what}: run `handstamp migrate` with the pipeline's file"),
    )
}

/// The error where `handstamp_migrations` is not there.
fn no_tables(connection: &Connection) -> StoreError {
    match any_table(connection) {
        Ok(false) => not_migrated("Handstamp's tables are missing in the file"),
        Ok(true) => no_memory(),
        Err(error) => error,
    }
}

/// Nobody knows of what version the tables are: running the migrations again would fail, or worse, not fail.
fn no_memory() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotMigrated,
        "the file has tables of Handstamp, but handstamp_migrations, which says of what version, is missing: put the file back as it was",
    )
}

fn any_table(connection: &Connection) -> Result<bool, StoreError> {
    TABLES.iter().try_fold(false, |found, (table, _)| Ok(found || has_table(connection, table)?))
}

fn has_table(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)",
            [name],
            |row| row.get(0),
        )
        .map_err(|e| store_error("reading the schema", e))
}

fn newest_run(connection: &Connection) -> Result<i64, StoreError> {
    connection
        .query_row("SELECT coalesce(max(number), 0) FROM handstamp_migrations", [], |row| row.get(0))
        .map_err(|e| store_error("reading handstamp_migrations", e))
}

/// One version ahead is fine (rolling deploys); more is not.
fn refuse_newer(newest: i64) -> Result<(), StoreError> {
    if newest > NEWEST + 1 {
        let text = format!(
            "the file's tables are of version {newest}, this program knows {NEWEST} and {}: use a newer program",
            NEWEST + 1
        );
        return Err(StoreError::new(StoreErrorKind::NotMigrated, text));
    }
    Ok(())
}

/// True when a migration has run; an error when it was another file.
fn checksum_of(connection: &Connection, migration: &Migration) -> Result<bool, StoreError> {
    let found: Option<Vec<u8>> = connection
        .query_row("SELECT checksum FROM handstamp_migrations WHERE number = ?1", [migration.number], |row| {
            row.get(0)
        })
        .optional()
        .map_err(|e| store_error("reading handstamp_migrations", e))?;
    match found {
        None => Ok(false),
        Some(known) if known == checksum(migration.sql) => Ok(true),
        Some(_) => {
            let text = format!(
                "{} ran with another content: the tables are not those of this program; use the program that made them, or another file",
                migration.name
            );
            Err(StoreError::new(StoreErrorKind::NotMigrated, text))
        }
    }
}

fn checksum(sql: &str) -> [u8; 32] {
    *blake3::hash(sql.as_bytes()).as_bytes()
}
