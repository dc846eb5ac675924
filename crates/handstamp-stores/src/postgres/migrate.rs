//! Migrations: numbered SQL files with checksums, the user's own setup file, grants.
//!
//! Authoritative: the table `migrations` of our schema. One transaction under one advisory lock does
//! everything, so that many processes may migrate at once and a failure leaves nothing half done.
//! Running needs no DDL right; only this file does.
//!
//! ```text
//!  none ─► 1 ─► … ─► N (this program) ─► N+1 (the next one: still runs) ─► N+2: refused, update
//! ```

use super::classify::store_error;
use super::config::SchemaName;
use super::inbox::GUARD;
use handstamp_core::{CrashPoint, StoreError, StoreErrorKind};
use std::time::Duration;
use tokio_postgres::types::{Oid, Type};
use tokio_postgres::{Client, GenericClient};

/// The number of the last migration that this program brings.
pub const SCHEMA_VERSION: i32 = 5;

struct Migration {
    number: i32,
    sql: &'static str,
}

const MIGRATIONS: [Migration; 5] = [
    Migration { number: 1, sql: include_str!("migrations/0001_inbox.sql") },
    Migration { number: 2, sql: include_str!("migrations/0002_parked.sql") },
    Migration { number: 3, sql: include_str!("migrations/0003_starts.sql") },
    Migration { number: 4, sql: include_str!("migrations/0004_versions.sql") },
    Migration { number: 5, sql: include_str!("migrations/0005_prune.sql") },
];
const BOOTSTRAP: &str = include_str!("sql/bootstrap.sql");

/// What a role that runs needs of our own relations: privileges, and on what. Numbers of rows come from identity
/// columns, whose sequences need no right of their own.
const OWN_GRANTS: [(&str, &str); 15] = [
    ("USAGE", "SCHEMA {schema}"),
    ("SELECT", "{schema}.migrations"),
    ("SELECT", "{schema}.setups"),
    ("SELECT, INSERT, UPDATE", "{schema}.consumers"),
    ("SELECT, INSERT, UPDATE, DELETE", "{schema}.inbox"),
    ("SELECT, INSERT, UPDATE, DELETE", "{schema}.dead_letters"),
    ("SELECT, INSERT, UPDATE, DELETE", "{schema}.parked"),
    ("SELECT, INSERT, DELETE", "{schema}.attempts"),
    ("SELECT, INSERT", "{schema}.audit"),
    ("SELECT, INSERT, UPDATE, DELETE", "{schema}.starts"),
    ("SELECT, INSERT, UPDATE, DELETE", "{schema}.parked_starts"),
    ("SELECT, INSERT, DELETE", "{schema}.crashes"),
    ("SELECT, INSERT, UPDATE", "{schema}.versions"),
    ("SELECT, INSERT, UPDATE", "{schema}.pruned"),
    ("SELECT, INSERT, UPDATE", "{schema}.inbox_parts"),
];

/// A file of the user's own tables, run once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// What the file is known by from now on.
    pub name: String,
    /// Its whole text.
    pub sql: String,
}

/// What `migrate` does beside our own tables.
#[derive(Debug, Clone)]
pub struct MigrateOptions {
    /// The schema of our own tables.
    pub schema: SchemaName,
    /// The user's own tables.
    pub setup: Option<Setup>,
    /// Roles that get the rights that running needs.
    pub grant_to: Vec<String>,
    /// Longest wait for another process that migrates.
    pub lock_timeout: Duration,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        Self {
            schema: SchemaName::default(),
            setup: None,
            grant_to: Vec::new(),
            lock_timeout: Duration::from_secs(60),
        }
    }
}

/// What `migrate` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// Numbers of the migrations applied now; empty when the schema was up to date.
    pub applied: Vec<i32>,
    /// True when the setup file was run now.
    pub setup_run: bool,
    /// The schema's version now.
    pub version: i32,
}

/// Brings the schema `handstamp` up to date. Needs the right to create in this database.
///
/// # Errors
/// As [`migrate_with`].
pub async fn migrate(client: &Client) -> Result<Migrated, StoreError> {
    migrate_with(client, &MigrateOptions::default()).await
}

/// Brings our tables up to date, runs the user's setup file once and grants rights, in one transaction.
/// Safe from many processes at once.
///
/// # Errors
/// `Config` when an applied file was changed since, the database's encoding is not UTF-8 or the setup
/// file fails; `NotMigrated` when the schema is of a much newer version; `Conflict` when another process
/// migrates for too long; `Unavailable`.
pub async fn migrate_with(client: &Client, options: &MigrateOptions) -> Result<Migrated, StoreError> {
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL handstamp.tx = '1'; SET LOCAL lock_timeout = {}; \
         SET LOCAL statement_timeout = 0; SET LOCAL synchronous_commit = on; SET LOCAL client_min_messages = warning; \
         SELECT pg_advisory_xact_lock({})",
        options.lock_timeout.as_millis(),
        lock_key(&options.schema),
    );
    let outcome = async {
        client
            .batch_execute(&begin)
            .await
            .map_err(|e| store_error("waiting for the lock of migrations", e))?;
        let migrated = migrate_locked(client, options).await?;
        CrashPoint::MidMigrate.reached();
        client.batch_execute("COMMIT").await.map_err(|e| store_error("committing the migration", e))?;
        Ok(migrated)
    }
    .await;
    if outcome.is_err() {
        // The error says what happened; a rollback that fails too leaves it to the server.
        let _ = client.batch_execute("ROLLBACK").await;
    }
    outcome
}

async fn migrate_locked(client: &Client, options: &MigrateOptions) -> Result<Migrated, StoreError> {
    let schema = &options.schema;
    let failed = |e| migration_error("reading the schema's version", e);
    let encoding =
        client.query_typed_one("SELECT current_setting('server_encoding')", &[]).await.map_err(failed)?;
    let encoding: String = encoding.try_get(0).map_err(failed)?;
    if encoding != "UTF8" {
        let message = format!("the database's encoding is {encoding}: Handstamp needs UTF8");
        return Err(StoreError::new(StoreErrorKind::Config, message));
    }
    let table = format!("\"{schema}\".migrations");
    let exists = client
        .query_typed_one("SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)])
        .await
        .map_err(failed)?;
    if !exists.try_get::<_, bool>(0).map_err(failed)? {
        client
            .batch_execute(&schema.render(BOOTSTRAP, "true"))
            .await
            .map_err(|e| migration_error(&format!("creating the schema {schema}"), e))?;
    }
    let mut migrated = Migrated { applied: Vec::new(), setup_run: false, version: 0 };
    let known = applied_migrations(client, schema).await?;
    for migration in &MIGRATIONS {
        match known.iter().find(|(number, _)| *number == migration.number) {
            Some((_, checksum)) if *checksum == checksum_of(migration.sql) => {}
            Some(_) => {
                return Err(changed(&format!("migration {} of the schema {schema}", migration.number)));
            }
            None => {
                apply(client, schema, migration).await?;
                migrated.applied.push(migration.number);
            }
        }
    }
    migrated.version = known.iter().map(|(number, _)| *number).max().unwrap_or(0).max(SCHEMA_VERSION);
    check_version(migrated.version, schema)?;
    if let Some(setup) = &options.setup {
        migrated.setup_run = run_setup(client, schema, setup).await?;
    }
    for role in &options.grant_to {
        grant(client, schema, role).await?;
    }
    Ok(migrated)
}

async fn applied_migrations(client: &Client, schema: &SchemaName) -> Result<Vec<(i32, String)>, StoreError> {
    let sql = schema.render("SELECT number, checksum FROM {schema}.migrations ORDER BY number", "true");
    let failed = |e| migration_error("reading the list of migrations", e);
    let rows = client.query_typed(&sql, &[]).await.map_err(failed)?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, _>>().map_err(failed)
}

async fn apply(client: &Client, schema: &SchemaName, migration: &Migration) -> Result<(), StoreError> {
    let failed = |e| migration_error(&format!("applying migration {}", migration.number), e);
    client.batch_execute(&schema.render(migration.sql, "true")).await.map_err(failed)?;
    client.batch_execute(&record_sql(schema, migration)).await.map_err(failed)
}

fn record_sql(schema: &SchemaName, migration: &Migration) -> String {
    let (number, checksum) = (migration.number, checksum_of(migration.sql));
    format!("INSERT INTO \"{schema}\".migrations (number, checksum) VALUES ({number}, '{checksum}');\n")
}

/// Runs a setup file unless it was run; true when it ran now.
async fn run_setup(client: &Client, schema: &SchemaName, setup: &Setup) -> Result<bool, StoreError> {
    let failed = |e| migration_error(&format!("running the setup file {}", setup.name), e);
    let checksum = checksum_of(&setup.sql);
    let sql = schema.render("SELECT checksum FROM {schema}.setups WHERE name = $1 OR checksum = $2", "true");
    let rows = client
        .query_typed(&sql, &[(&setup.name, Type::TEXT), (&checksum, Type::TEXT)])
        .await
        .map_err(failed)?;
    let kept: Vec<String> = rows.iter().map(|r| r.try_get(0)).collect::<Result<_, _>>().map_err(failed)?;
    if kept.contains(&checksum) {
        return Ok(false);
    }
    if !kept.is_empty() {
        return Err(changed(&format!("the setup file {}", setup.name)));
    }
    let relations = "SELECT oid FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S')";
    let rows = client.query_typed(relations, &[]).await.map_err(failed)?;
    let before: Vec<Oid> = rows.iter().map(|r| r.try_get(0)).collect::<Result<_, _>>().map_err(failed)?;
    client.batch_execute(&setup.sql).await.map_err(|e| {
        let mut error = failed(e);
        if matches!(error.kind, StoreErrorKind::Statement | StoreErrorKind::SchemaMismatch) {
            error.kind = StoreErrorKind::Config;
        }
        error
    })?;
    let guard = client.query_typed_one(&format!("SELECT {GUARD}"), &[]).await.map_err(failed)?;
    if !guard.try_get::<_, bool>(0).map_err(failed)? {
        return Err(StoreError::new(
            StoreErrorKind::Config,
            format!(
                "the setup file {} ends the transaction it runs in: take BEGIN, COMMIT and ROLLBACK out of it (what it did up to there is kept)",
                setup.name
            ),
        ));
    }
    let record = schema.render(
        "INSERT INTO {schema}.setups (name, checksum, relations)
         SELECT $1, $2, coalesce(array_agg(format('%I.%I', n.nspname, c.relname)), '{}')
         FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.oid <> ALL ($3) AND n.nspname !~ '^pg_'",
        "true",
    );
    let parameters =
        [(&setup.name as _, Type::TEXT), (&checksum as _, Type::TEXT), (&before as _, Type::OID_ARRAY)];
    client.execute_typed(&record, &parameters).await.map_err(failed)?;
    Ok(true)
}

async fn grant(client: &Client, schema: &SchemaName, role: &str) -> Result<(), StoreError> {
    let failed = |e| migration_error(&format!("granting rights to {role:?}"), e);
    let sql = schema.render(include_str!("sql/grants.sql"), "true");
    let rows = client.query_typed(&sql, &[(&role, Type::TEXT)]).await.map_err(failed)?;
    let made: Vec<String> = rows.iter().map(|r| r.try_get(0)).collect::<Result<_, _>>().map_err(failed)?;
    client.batch_execute(&format!("{}{}", show_grants(schema, role), made.join(";\n"))).await.map_err(failed)
}

/// The SQL that `migrate` runs on an empty database, for those who run it themselves.
#[must_use]
pub fn show_sql(schema: &SchemaName) -> String {
    let quoted = format!("\"{schema}\"");
    let mut text = format!("BEGIN;\n\n{}", BOOTSTRAP.replace("{schema}", &quoted));
    for migration in &MIGRATIONS {
        text.push('\n');
        text.push_str(&migration.sql.replace("{schema}", &quoted));
        text.push_str(&record_sql(schema, migration));
    }
    text.push_str("\nCOMMIT;\n");
    text
}

/// The statements by which a migration lets a role use our own tables, for those who run them themselves. What
/// setup files made is not known without their database.
#[must_use]
pub fn show_grants(schema: &SchemaName, role: &str) -> String {
    let role = role.replace('"', "\"\"");
    OWN_GRANTS.iter().fold(String::new(), |text, (privileges, object)| {
        let object = object.replace("{schema}", &format!("\"{schema}\""));
        text + &format!("GRANT {privileges} ON {object} TO \"{role}\";\n")
    })
}

/// The number of the last migration in the database; 0 when there are none of ours.
pub(crate) async fn installed_version<C: GenericClient + Sync>(
    client: &C,
    schema: &SchemaName,
) -> Result<i32, StoreError> {
    let sql = schema.render(include_str!("sql/version.sql"), "true");
    let failed = |e: tokio_postgres::Error| match e.code().map(tokio_postgres::error::SqlState::code) {
        Some("42P01" | "3F000") => missing_tables().with_source(e),
        Some("42501") => {
            let what = format!(
                "no right to read the schema {schema}: run `handstamp migrate --grant-to` with this role's name"
            );
            store_error(&what, e)
        }
        _ => store_error("reading the schema's version", e),
    };
    let row = client.query_typed_one(&sql, &[]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Whether this program runs on a schema of that version: its own, or the next one.
pub(crate) fn check_version(version: i32, schema: &SchemaName) -> Result<(), StoreError> {
    let message = if version < SCHEMA_VERSION {
        format!(
            "the schema {schema} has version {version}, this program needs {SCHEMA_VERSION}: run `handstamp migrate`"
        )
    } else if version > SCHEMA_VERSION + 1 {
        format!(
            "the schema {schema} has version {version}, this program knows {SCHEMA_VERSION}: update the program"
        )
    } else {
        return Ok(());
    };
    Err(StoreError::new(StoreErrorKind::NotMigrated, message))
}

/// Our tables are not there.
pub(crate) fn missing_tables() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotMigrated,
        "Handstamp's tables are missing in this database: run `handstamp migrate`, or `handstamp::postgres::migrate` in Rust",
    )
}

/// The claim cannot be prepared, though the list of migrations says that its tables were made.
pub(crate) fn prepare_error(schema: &SchemaName, error: tokio_postgres::Error) -> StoreError {
    if !matches!(error.code().map(tokio_postgres::error::SqlState::code), Some("42P01" | "3F000")) {
        return store_error("preparing the claim", error);
    }
    let said = error.as_db_error().map_or("", |db| db.message());
    let message = format!(
        "a table of Handstamp's is missing, though {schema}.migrations says that it was made: {said}: put the schema back as it was"
    );
    StoreError::new(StoreErrorKind::NotMigrated, message).with_source(error)
}

fn migration_error(what: &str, error: tokio_postgres::Error) -> StoreError {
    store_error(what, error)
}

fn changed(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Config,
        format!(
            "{what} was run with another text before: files that were run are never changed; add a new one"
        ),
    )
}

fn checksum_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The advisory lock that migrations of one schema share.
fn lock_key(schema: &SchemaName) -> i64 {
    super::store::advisory_key(b"handstamp migrate", schema, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_by_one_and_end_at_the_schema_version() {
        let numbers: Vec<i32> = MIGRATIONS.iter().map(|m| m.number).collect();
        assert_eq!(numbers, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn this_version_and_the_next_are_accepted() {
        let schema = SchemaName::default();
        for (version, fits) in
            [(0, false), (SCHEMA_VERSION, true), (SCHEMA_VERSION + 1, true), (SCHEMA_VERSION + 2, false)]
        {
            let outcome = check_version(version, &schema);
            assert_eq!(outcome.is_ok(), fits, "{version}");
            assert!(outcome.err().is_none_or(|e| e.kind == StoreErrorKind::NotMigrated));
        }
    }
}
