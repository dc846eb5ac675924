//! Migration on SQLite: once, by checksum, from many processes, and never over what does not fit.

use crate::support::{beside, number, options};
use handstamp_core::StoreErrorKind;
use handstamp_stores::sqlite::{self, Setup, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

const TABLES: &str = "SELECT count(*) FROM sqlite_schema WHERE type = 'table'";

fn with_setup(folder: &TempDir, sql: &str) -> SqliteOptions {
    SqliteOptions { setup: Some(Setup { name: "schema.sql".into(), sql: sql.into() }), ..options(folder) }
}

async fn refused(options: SqliteOptions, kind: StoreErrorKind, part: &str) {
    for error in [
        SqliteStore::open(options.clone()).await.map(|_| ()),
        SqliteStore::migrate(options.clone()).await.map(|_| ()),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_new_file_is_migrated_once() {
    let folder = TempDir::new().unwrap();
    SqliteStore::open(options(&folder)).await.unwrap();
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM accounts"), 1);
    assert_eq!(
        SqliteStore::migrate(options(&folder)).await.unwrap().ran,
        Vec::<String>::new(),
        "nothing is left"
    );
    SqliteStore::open(options(&folder)).await.unwrap();
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM accounts"), 1, "the setup file ran once");
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_migrations"), 2);
}

#[tokio::test]
async fn a_file_with_tables_is_migrated_only_when_asked() {
    let folder = TempDir::new().unwrap();
    beside(&folder).execute_batch("CREATE TABLE mine (a)").unwrap();
    let error = SqliteStore::open(options(&folder)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated);
    assert_eq!(number(&beside(&folder), TABLES), 1);
    assert_eq!(
        SqliteStore::migrate(options(&folder)).await.unwrap().ran,
        ["0001_inbox.sql", "0002_parked.sql", "schema.sql"]
    );
    SqliteStore::open(options(&folder)).await.unwrap();
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    let folder = TempDir::new().unwrap();
    let by_hand = beside(&folder);
    by_hand.execute_batch(&sqlite::show_sql()).unwrap();
    assert_eq!(sqlite::migrate(&by_hand).unwrap().ran, Vec::<String>::new());
    let by_us = Connection::open_in_memory().unwrap();
    assert_eq!(sqlite::migrate(&by_us).unwrap().ran, ["0001_inbox.sql", "0002_parked.sql"]);
    let schema = |connection: &Connection| -> Vec<String> {
        let mut all =
            connection.prepare("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name").unwrap();
        let rows = all.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(schema(&by_hand), schema(&by_us));
}

#[tokio::test]
async fn a_changed_setup_file_is_refused() {
    let folder = TempDir::new().unwrap();
    SqliteStore::open(options(&folder)).await.unwrap();
    refused(with_setup(&folder, "CREATE TABLE other (a)"), StoreErrorKind::Config, "has changed").await;
    let mut renamed = with_setup(&folder, "CREATE TABLE other (a)");
    renamed.setup.as_mut().unwrap().name = "more.sql".into();
    assert_eq!(SqliteStore::open(renamed.clone()).await.unwrap_err().kind, StoreErrorKind::NotMigrated);
    assert_eq!(SqliteStore::migrate(renamed.clone()).await.unwrap().ran, ["more.sql"]);
    SqliteStore::open(renamed).await.unwrap();
}

#[tokio::test]
async fn a_setup_file_that_fails_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    for (sql, part) in [
        ("CREATE TABLE a (b); COMMIT; CREATE TABLE c (d)", "COMMIT"),
        ("BEGIN; CREATE TABLE a (b)", "BEGIN"),
        ("CREATE TABLE a (b); ROLLBACK", "ROLLBACK"),
        ("CREATE TABLE a (b); INSERT INTO nope VALUES (1)", "nothing of it was kept"),
        ("CREATE TABLE a (b); DROP TABLE handstamp_inbox", "nothing of it was kept"),
        ("CREATE TABLE handstamp_mine (b)", "nothing of it was kept"),
        ("CREATE TABLE a (b); INSERT INTO handstamp_consumers (name) VALUES ('x')", "nothing of it was kept"),
        ("ATTACH ':memory:' AS other", "nothing of it was kept"),
    ] {
        refused(with_setup(&folder, sql), StoreErrorKind::Config, part).await;
        assert_eq!(number(&beside(&folder), TABLES), 0, "{sql}");
    }
    SqliteStore::open(options(&folder)).await.unwrap();
}

#[tokio::test]
async fn tables_of_another_program_are_refused() {
    let folder = TempDir::new().unwrap();
    SqliteStore::open(options(&folder)).await.unwrap();
    let eyes = beside(&folder);
    let newer = |number: i64| {
        eyes.execute(
            "INSERT INTO handstamp_migrations (number, name, checksum) VALUES (?1, 'x', x'')",
            [number],
        )
        .unwrap()
    };
    newer(3);
    SqliteStore::open(options(&folder)).await.unwrap();
    newer(4);
    refused(options(&folder), StoreErrorKind::NotMigrated, "newer program").await;
    eyes.execute_batch(
        "DELETE FROM handstamp_migrations WHERE number > 2; UPDATE handstamp_migrations SET checksum = x'00'",
    )
    .unwrap();
    refused(options(&folder), StoreErrorKind::NotMigrated, "another content").await;
}

#[test]
fn many_processes_may_start_at_once() {
    let folder = TempDir::new().unwrap();
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let options = options(&folder);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(SqliteStore::open(options)).map(|_| ())
            })
        })
        .collect();
    for start in starts {
        start.join().unwrap().unwrap();
    }
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM accounts"), 1);
}

#[test]
fn migrating_inside_a_transaction_is_refused() {
    let mut connection = Connection::open_in_memory().unwrap();
    let tx = connection.transaction().unwrap();
    assert_eq!(sqlite::migrate(&tx).unwrap_err().kind, StoreErrorKind::Config);
}
