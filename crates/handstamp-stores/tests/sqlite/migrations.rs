//! Migration on SQLite: once, by checksum, from many processes, and never over what does not fit.

use crate::support::{attempt, beside, id, letter, number, open, options, park, registered, requests, row};
use handstamp_core::parked::{ParkingStore, Resumed};
use handstamp_core::{
    Claim, Company, ConsumerName, FailureClass, Fingerprint, InboxState, Owner, PruneStore, StartStore,
    Starter, Store, StoreErrorKind, Version, VersionKey, VersionStore,
};
use handstamp_stores::redrive::{Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::{self, Setup, SqliteOptions, SqliteStore};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::BTreeMap;
use std::time::Duration;
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
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_migrations"), 5);
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
        [
            "0001_inbox.sql",
            "0002_parked.sql",
            "0003_starts.sql",
            "0004_versions.sql",
            "0005_prune.sql",
            "schema.sql"
        ]
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
    let ran = sqlite::migrate(&by_us).unwrap().ran;
    assert_eq!(
        ran,
        ["0001_inbox.sql", "0002_parked.sql", "0003_starts.sql", "0004_versions.sql", "0005_prune.sql"]
    );
    assert_eq!(schema(&by_hand), schema(&by_us));
}

fn schema(connection: &Connection) -> Vec<String> {
    texts(connection, "SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name")
}

fn tables(connection: &Connection) -> Vec<String> {
    texts(connection, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
}

fn texts(connection: &Connection, sql: &str) -> Vec<String> {
    let mut all = connection.prepare(sql).unwrap();
    let rows = all.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
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
        ("CREATE TABLE a (b); DELETE FROM handstamp_audit", "nothing of it was kept"),
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
    newer(6);
    SqliteStore::open(options(&folder)).await.unwrap();
    newer(7);
    refused(options(&folder), StoreErrorKind::NotMigrated, "newer program").await;
    eyes.execute_batch(
        "DELETE FROM handstamp_migrations WHERE number > 5; UPDATE handstamp_migrations SET checksum = x'00'",
    )
    .unwrap();
    refused(options(&folder), StoreErrorKind::NotMigrated, "another content").await;
}

/// A file that a program of the first version made, with an applied message and a dead letter.
fn first_version(folder: &TempDir) {
    let mut file = beside(folder);
    let sql = sqlite::show_sql();
    let first = sql.split("-- Messages that wait for a retry").next().unwrap();
    file.execute_batch(&format!("{first}COMMIT;")).unwrap();
    let wallet = sqlite::ConsumerName::register(&file, "wallet").unwrap();
    let mut tx = file.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let claims = sqlite::claim_many(&mut tx, &wallet, &requests(["applied", "dead"])).unwrap();
    assert_eq!(claims, [Claim::First; 2]);
    tx.execute("UPDATE handstamp_inbox SET state = 'd' WHERE id = CAST('dead' AS BLOB)", []).unwrap();
    let letter = letter(Some(b"dead"), FailureClass::Sql);
    tx.execute(
        "INSERT INTO handstamp_dead_letters (consumer, dedup, failed_at_ms, received_at_ms, attempts, class, reason,
             id, digest, topic, partition, position, headers, value)
         VALUES (1, ?1, 2, 1, 3, 'sql', 'why', CAST('dead' AS BLOB), ?2, 'credits', 0, 5, x'', CAST('body' AS BLOB))",
        (letter.dedup(), letter.digest),
    )
    .unwrap();
    tx.commit().unwrap();
}

fn unset(folder: &TempDir) -> SqliteOptions {
    SqliteOptions { setup: None, ..options(folder) }
}

#[tokio::test]
async fn a_file_of_the_first_version_is_brought_up_when_asked_and_keeps_its_data() {
    let folder = TempDir::new().unwrap();
    first_version(&folder);
    let name = ConsumerName::new("wallet").unwrap();
    let effects = sqlite::SqlEffects::new(Vec::new());
    let fingerprint = Fingerprint("test".into());
    for refused in [
        SqliteStore::open(unset(&folder)).await.map(drop),
        SqliteStore::rehearse(&unset(&folder), &effects, &name, &fingerprint).await.map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
        assert!(error.message.contains("0002_parked.sql has not run"), "{error}");
        assert!(error.message.contains("handstamp migrate"), "{error}");
    }
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_migrations"), 1);
    let ran = SqliteStore::migrate(unset(&folder)).await.unwrap().ran;
    assert_eq!(ran, ["0002_parked.sql", "0003_starts.sql", "0004_versions.sql", "0005_prune.sql"]);
    let store = SqliteStore::open(unset(&folder)).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let (tx, claims) = store.begin(&consumer, &requests(["applied", "dead"])).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(states_of(claims), [InboxState::Applied, InboxState::Dead]);
    let letter = letter(Some(b"dead"), FailureClass::Sql);
    let key = DeadLetterKey(letter.dedup());
    assert_eq!(store.dead_letter(&name, key).await.unwrap().unwrap().letter, letter);
    let redrive = Redrive { dead_letter: key, new_id: None, order_key: None };
    let operation = Operation { number: [1; 16], done_by: "me".into(), why: "fixed".into() };
    assert_eq!(store.redrive(&name, &[redrive], &operation).await.unwrap(), [Redriven::Parked]);
    SqliteStore::rehearse(&unset(&folder), &effects, &name, &fingerprint).await.unwrap();
    let (tx, rows) = store.take_due(&consumer, 10).await.unwrap().expect("it is due");
    store.rollback(tx).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.dedup).collect::<Vec<_>>(), [letter.dedup()]);
}

fn states_of(claims: Vec<Claim>) -> Vec<InboxState> {
    let state = |claim| match claim {
        Claim::Duplicate { state, .. } => state,
        other => panic!("{other:?}"),
    };
    claims.into_iter().map(state).collect()
}

/// Whoever reads a file of the first version is told what is missing, not that something is broken.
#[tokio::test]
async fn what_needs_the_second_version_says_so() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    registered(&store, "wallet").await;
    let eyes = beside(&folder);
    let name = ConsumerName::new("wallet").unwrap();
    for table in ["handstamp_parked", "handstamp_attempts", "handstamp_audit"] {
        eyes.execute_batch(&format!("DROP TABLE {table}")).unwrap();
    }
    let broken = store.parked(&name, None, 10).await.unwrap_err();
    assert_eq!(broken.kind, StoreErrorKind::NotMigrated);
    assert!(broken.message.contains("handstamp_parked is missing"), "{broken}");
    eyes.execute_batch("DELETE FROM handstamp_migrations WHERE number >= 2").unwrap();
    let operation = Operation { number: [1; 16], done_by: "me".into(), why: "fixed".into() };
    for error in [
        store.parked(&name, None, 10).await.map(drop).unwrap_err(),
        store.audit(&name, None, 10).await.map(drop).unwrap_err(),
        store.attempts(&name, DeadLetterKey([0; 16])).await.map(drop).unwrap_err(),
        store.discard(&name, &[DeadLetterKey([0; 16])], &operation).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
        assert!(error.message.contains("0002_parked.sql has not run"), "{error}");
    }
}

/// A file that a program of the second version made: an applied message, a parked one that failed once, and one that
/// was sent back.
async fn second_version(folder: &TempDir) {
    let store = SqliteStore::open(unset(folder)).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("parked", Some(1)), row("behind", Some(1))]).await;
    let (mut tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    let again = Resumed::Again { wait: std::time::Duration::ZERO, failed: attempt(1) };
    store.resume(&mut tx, &consumer, &[(rows[0].dedup, again)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let dead = letter(Some(b"dead"), FailureClass::Sql);
    let (mut tx, _) = store.begin(&consumer, &requests(["applied", "dead"])).await.unwrap();
    store.record(&mut tx, &consumer, std::slice::from_ref(&dead)).await.unwrap();
    store.commit(tx).await.unwrap();
    let redrive = Redrive { dead_letter: DeadLetterKey(dead.dedup()), new_id: None, order_key: None };
    let operation = Operation { number: [1; 16], done_by: "me".into(), why: "fixed".into() };
    let name = ConsumerName::new("wallet").unwrap();
    assert_eq!(store.redrive(&name, &[redrive], &operation).await.unwrap(), [Redriven::Parked]);
    drop(store);
    let by_hand = Connection::open_in_memory().unwrap();
    let sql = sqlite::show_sql();
    let second = sql.split("-- What processes are about to hand").next().unwrap();
    by_hand.execute_batch(&format!("{second}COMMIT;")).unwrap();
    // What that program did not make goes.
    let file = beside(folder);
    let known = tables(&by_hand);
    for table in tables(&file).iter().filter(|table| !known.contains(table)) {
        file.execute_batch(&format!("DROP TABLE {table}")).unwrap();
    }
    file.execute_batch(
        "DROP INDEX handstamp_attempts_by_time; DELETE FROM handstamp_migrations WHERE number > 2",
    )
    .unwrap();
    assert_eq!(schema(&file), schema(&by_hand));
}

#[tokio::test]
async fn a_file_of_the_second_version_keeps_what_is_parked_and_its_history() {
    let folder = TempDir::new().unwrap();
    second_version(&folder).await;
    let error = SqliteStore::open(unset(&folder)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
    assert!(error.message.contains("0003_starts.sql has not run"), "{error}");
    assert_eq!(
        SqliteStore::migrate(unset(&folder)).await.unwrap().ran,
        ["0003_starts.sql", "0004_versions.sql", "0005_prune.sql"]
    );
    let store = SqliteStore::open(unset(&folder)).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let name = ConsumerName::new("wallet").unwrap();
    let parked = DeadLetterKey(row("parked", None).letter.dedup());
    assert_eq!(store.attempts(&name, parked).await.unwrap(), [attempt(1)]);
    assert_eq!(store.audit(&name, None, 10).await.unwrap().len(), 1);
    for (id_text, state) in
        [("applied", InboxState::Applied), ("parked", InboxState::Parked), ("dead", InboxState::Parked)]
    {
        assert_eq!(store.inbox_row(&name, &id(id_text)).await.unwrap().unwrap().state, state, "{id_text}");
    }
    let by = Starter { owner: Owner::random(), node: "node/1".into() };
    let (mut tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    assert_eq!(rows.len(), 2, "one waits behind its key");
    let applied: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    store.resume(&mut tx, &consumer, &applied).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(store.parked_status(&consumer).await.unwrap().count, 1);
}

/// A file that a program of the third version made: a start that nobody ended, and what that version knows of.
#[tokio::test]
async fn a_file_of_the_third_version_keeps_what_was_started_and_gets_marks() {
    let folder = TempDir::new().unwrap();
    let store = SqliteStore::open(unset(&folder)).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("parked", None)]).await;
    let by = Starter { owner: Owner::random(), node: "node/1".into() };
    let (tx, _) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    drop(store);
    let file = beside(&folder);
    file.execute_batch(
        "DROP TABLE handstamp_versions; DROP TABLE handstamp_pruned; DROP INDEX handstamp_attempts_by_time;
         DELETE FROM handstamp_migrations WHERE number > 3",
    )
    .unwrap();
    let error = SqliteStore::open(unset(&folder)).await.unwrap_err();
    assert!(error.message.contains("0004_versions.sql has not run"), "{error}");
    assert_eq!(
        SqliteStore::migrate(unset(&folder)).await.unwrap().ran,
        ["0004_versions.sql", "0005_prune.sql"]
    );
    let store = SqliteStore::open(unset(&folder)).await.unwrap();
    // Another owner finds that the message was started alone.
    let other = Starter { owner: Owner::random(), node: "node/2".into() };
    let (mut tx, rows) = store.start_due(&consumer, 10, &other, Company::None).await.unwrap().unwrap();
    assert_eq!(rows[0].crashes.len(), 1);
    let marks = BTreeMap::from([(VersionKey([1; 16]), Version::parse("5").unwrap())]);
    assert!(store.raise_marks(&mut tx, &consumer, &marks).await.unwrap().is_empty());
    store.resume(&mut tx, &consumer, &[(rows[0].dedup, Resumed::Applied)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let (mut tx, _) = store.begin(&consumer, &[]).await.unwrap();
    assert_eq!(store.raise_marks(&mut tx, &consumer, &marks).await.unwrap(), marks);
    store.rollback(tx).await.unwrap();
}

/// A file that a program of the fourth version made: its ids stay, and can be forgotten.
#[tokio::test]
async fn a_file_of_the_fourth_version_keeps_its_ids_and_forgets_when_asked() {
    let folder = TempDir::new().unwrap();
    let store = SqliteStore::open(unset(&folder)).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let (tx, _) = store.begin(&consumer, &requests(["old", "new"])).await.unwrap();
    store.commit(tx).await.unwrap();
    park(&store, &consumer, &[row("parked", None)]).await;
    drop(store);
    let file = beside(&folder);
    file.execute_batch(
        "DROP TABLE handstamp_pruned; DROP INDEX handstamp_attempts_by_time;
         DELETE FROM handstamp_migrations WHERE number > 4;
         UPDATE handstamp_inbox SET seen_at = seen_at - 1000000 WHERE id <> CAST('new' AS BLOB)",
    )
    .unwrap();
    let error = SqliteStore::open(unset(&folder)).await.unwrap_err();
    assert!(error.message.contains("0005_prune.sql has not run"), "{error}");
    assert_eq!(SqliteStore::migrate(unset(&folder)).await.unwrap().ran, ["0005_prune.sql"]);
    let store = SqliteStore::open(unset(&folder)).await.unwrap();
    let step = store.prune_ids(&consumer, Duration::from_secs(86_400), 10, None).await.unwrap();
    assert_eq!((step.deleted, step.next), (1, None));
    let (tx, claims) = store.begin(&consumer, &requests(["old", "new"])).await.unwrap();
    assert_eq!(claims[0], Claim::First);
    assert_eq!(states_of(claims[1..].to_vec()), [InboxState::Applied]);
    store.rollback(tx).await.unwrap();
    assert_eq!(number(&file, "SELECT count(*) FROM handstamp_inbox WHERE state = 'p'"), 1);
}

/// What a retry would meet at night is met before the first message.
#[tokio::test]
async fn a_rehearsal_parks_retries_and_gives_up() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    let eyes = beside(&folder);
    let (name, fingerprint) = (ConsumerName::new("wallet").unwrap(), Fingerprint("test".into()));
    let effects = sqlite::SqlEffects::new(Vec::new());
    let options = options(&folder);
    let rehearse = || SqliteStore::rehearse(&options, &effects, &name, &fingerprint);
    rehearse().await.unwrap();
    for (when, table) in [
        ("INSERT", "handstamp_parked"),
        ("UPDATE", "handstamp_parked"),
        ("DELETE", "handstamp_parked"),
        ("INSERT", "handstamp_attempts"),
        ("INSERT", "handstamp_starts"),
        ("UPDATE", "handstamp_starts"),
        ("DELETE", "handstamp_starts"),
        ("INSERT", "handstamp_parked_starts"),
        ("DELETE", "handstamp_parked_starts"),
        ("INSERT", "handstamp_crashes"),
        ("DELETE", "handstamp_crashes"),
    ] {
        let broken =
            format!("CREATE TRIGGER no BEFORE {when} ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END");
        eyes.execute_batch(&broken).unwrap();
        let error = rehearse().await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{when} {table}: {error}");
        eyes.execute_batch("DROP TRIGGER no").unwrap();
    }
    // Nothing of it stays, and what was parked is as it was.
    let all = "SELECT (SELECT count(*) FROM handstamp_parked WHERE attempts = 0) * 100
        + (SELECT count(*) FROM handstamp_inbox) * 10 + (SELECT count(*) FROM handstamp_attempts)
        + (SELECT count(*) FROM handstamp_starts) + (SELECT count(*) FROM handstamp_parked_starts)
        + (SELECT count(*) FROM handstamp_crashes)";
    assert_eq!(number(&eyes, all), 110);
}

#[test]
fn many_processes_may_bring_a_file_up_at_once() {
    let folder = TempDir::new().unwrap();
    first_version(&folder);
    let starts: Vec<_> = (0..6)
        .map(|_| {
            let options = unset(&folder);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(SqliteStore::migrate(options)).map(|migrated| migrated.ran.len())
            })
        })
        .collect();
    let ran: usize = starts.into_iter().map(|start| start.join().unwrap().unwrap()).sum();
    assert_eq!(ran, 4);
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_inbox"), 2);
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
