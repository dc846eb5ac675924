//! The SQLite store: transactions that only the engine ends, locks, faults and their kinds.

use crate::support::{beside, id, letter, number, open, options, registered, requests};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, FailureClass, Fingerprint, Store, StoreErrorKind,
};
use handstamp_stores::sqlite::{SqliteOptions, SqliteStore, Tx};
use std::error::Error;
use std::time::Duration;
use tempfile::TempDir;

const CREDIT: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 7";
const BALANCE: &str = "SELECT balance FROM accounts WHERE id = 7";
const INBOX: &str = "SELECT count(*) FROM handstamp_inbox";

fn registered_key(connection: &rusqlite::Connection) -> ConsumerKey {
    handstamp_stores::sqlite::ConsumerName::register(connection, "wallet").unwrap().key().clone()
}

async fn begun(store: &SqliteStore, ids: &[&str]) -> (Tx, Vec<Claim>) {
    let consumer = registered(store, "wallet").await;
    store.begin(&consumer, &requests(ids)).await.unwrap()
}

#[tokio::test]
async fn claims_and_effects_commit_together() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let (tx, claims) = begun(&store, &["a", "b", "a"]).await;
    assert_eq!(claims[..2], [Claim::First, Claim::First]);
    assert!(matches!(claims[2], Claim::Duplicate { .. }));
    tx.execute(CREDIT, []).unwrap();
    let eyes = beside(&folder);
    assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (0, 0), "nothing is seen before the commit");
    store.commit(tx).await.unwrap();
    assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (1, 2));
}

#[tokio::test]
async fn the_file_is_durable_by_its_settings() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let (tx, _) = begun(&store, &["a"]).await;
    let setting = |name: &str| {
        tx.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0)).unwrap()
    };
    assert_eq!(setting("journal_mode"), "wal".to_owned().into());
    assert_eq!(setting("synchronous"), 2_i64.into(), "FULL");
    assert_eq!(setting("foreign_keys"), 1_i64.into());
    assert_eq!(store.capabilities().writers_max, Some(1));
}

#[tokio::test]
async fn what_is_not_committed_is_gone_and_the_lock_is_free() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let eyes = beside(&folder);
    for end in ["rollback", "abandon", "drop"] {
        let (tx, claims) = begun(&store, &["a"]).await;
        assert_eq!(claims, [Claim::First], "{end}");
        tx.execute(CREDIT, []).unwrap();
        match end {
            "rollback" => store.rollback(tx).await.unwrap(),
            "abandon" => store.abandon(tx).await,
            _ => drop(tx),
        }
        eyes.busy_timeout(Duration::ZERO).unwrap();
        eyes.execute_batch("BEGIN IMMEDIATE; ROLLBACK")
            .unwrap_or_else(|e| panic!("{end}: the lock is held: {e}"));
        assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (0, 0), "{end}");
    }
}

#[tokio::test]
async fn a_handler_cannot_end_the_transaction() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let eyes = beside(&folder);
    for sql in
        ["COMMIT", "END", "ROLLBACK", "BEGIN", "ROLLBACK; BEGIN", "COMMIT; BEGIN IMMEDIATE", "/**/ commit"]
    {
        let (tx, _) = begun(&store, &["a"]).await;
        tx.execute(CREDIT, []).unwrap();
        let error = tx.execute_batch(sql).expect_err(sql);
        let fault = store.classify(&tx, &error).unwrap();
        assert_eq!(fault.kind, StoreErrorKind::TransactionEnded, "{sql}: returned");
        assert!(tx.prepare_cached("COMMIT").is_err(), "{sql}");
        tx.execute(CREDIT, []).unwrap();
        let error = store.commit(tx).await.expect_err(sql);
        assert_eq!(error.kind, StoreErrorKind::TransactionEnded, "{sql}: swallowed");
        assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (0, 0), "{sql}: nothing is durable");
    }
    let (tx, claims) = begun(&store, &["a"]).await;
    assert_eq!(claims, [Claim::First], "the store goes on");
    tx.execute_batch("SAVEPOINT s").unwrap();
    tx.execute(CREDIT, []).unwrap();
    tx.execute_batch("ROLLBACK TO s; RELEASE s").unwrap();
    tx.execute(CREDIT, []).unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (1, 1), "savepoints are the handler's own");
}

#[tokio::test]
async fn an_automatic_rollback_that_is_swallowed_is_noticed() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let eyes = beside(&folder);
    let (tx, _) = begun(&store, &["a"]).await;
    tx.execute(CREDIT, []).unwrap();
    let pages = number(&tx, "PRAGMA page_count");
    tx.pragma_update(None, "max_page_count", pages).unwrap();
    let fill = "INSERT INTO ledger SELECT hex(randomblob(4000)), 1 FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50) SELECT i FROM n)";
    let error = tx.execute(fill, []).unwrap_err();
    let fault = store.classify(&tx, &error).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Unavailable, Some("13")), "disk full");
    // A full disk is an ordinary failure of one statement: the transaction is still whole, or it is gone.
    if tx.is_autocommit() {
        assert!(tx.execute(CREDIT, []).is_err(), "nothing commits without its claim");
    }
    tx.execute_batch("PRAGMA max_page_count = 1000000").unwrap();
    let open_still = !tx.is_autocommit();
    let ended = store.commit(tx).await;
    if open_still {
        ended.unwrap();
        assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (1, 1));
    } else {
        assert_eq!(ended.unwrap_err().kind, StoreErrorKind::Swallowed);
        assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (0, 0));
    }
}

#[tokio::test]
async fn an_interrupted_write_rolls_back_and_nothing_after_it_is_durable() {
    let folder = TempDir::new().unwrap();
    let mut options = options(&folder);
    options.statement_timeout = Duration::from_millis(30);
    let store = SqliteStore::open(options).await.unwrap();
    let eyes = beside(&folder);
    let (tx, _) = begun(&store, &["a"]).await;
    tx.execute(CREDIT, []).unwrap();
    let endless = "INSERT INTO ledger SELECT 'x', i FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000000) SELECT count(*) AS i FROM n)";
    let error = tx.execute(endless, []).unwrap_err();
    assert_eq!(store.classify(&tx, &error).unwrap().kind, StoreErrorKind::Timeout);
    assert!(tx.is_autocommit(), "SQLite rolls an interrupted write back by itself");
    // The handler swallows the error and goes on: what it writes now must not commit alone.
    let error = tx.execute(CREDIT, []).unwrap_err();
    assert_eq!(
        store.classify(&tx, &error).unwrap().kind,
        StoreErrorKind::Statement,
        "charged to the message"
    );
    assert_eq!(number(&eyes, BALANCE), 0);
    let consumer = registered_key(&eyes);
    let mut tx = tx;
    store.record(&mut tx, &consumer, &[letter(Some(b"z"), FailureClass::Sql)]).await.unwrap();
    assert_eq!(store.commit(tx).await.unwrap_err().kind, StoreErrorKind::Swallowed);
    assert_eq!(
        number(&eyes, "SELECT count(*) FROM handstamp_dead_letters"),
        0,
        "no dead letter commits alone"
    );
    assert_eq!((number(&eyes, BALANCE), number(&eyes, INBOX)), (0, 0));
    let (tx, claims) = begun(&store, &["a"]).await;
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_deferred_constraint_is_the_messages_failure() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let (tx, _) = begun(&store, &["a"]).await;
    tx.execute("INSERT INTO children VALUES (99)", []).unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Statement, "{error}");
    assert_eq!(number(&beside(&folder), INBOX), 0);
    let (tx, claims) = begun(&store, &["a"]).await;
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_lock_held_elsewhere_is_a_conflict_and_never_blocks_the_thread() {
    let folder = TempDir::new().unwrap();
    let mut options = options(&folder);
    options.lock_timeout = Duration::from_millis(200);
    let store = SqliteStore::open(options).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let other = beside(&folder);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.begin(&consumer, &requests(["a"])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    // One thread: the waiting begin must let the other future release the lock.
    let mut turns = 0;
    let free = async {
        for _ in 0..5 {
            tokio::task::yield_now().await;
            turns += 1;
        }
        other.execute_batch("ROLLBACK").unwrap();
    };
    let asked = requests(["a"]);
    let (begun, ()) = tokio::join!(store.begin(&consumer, &asked), free);
    let (tx, claims) = begun.unwrap();
    assert_eq!((claims, turns), (vec![Claim::First], 5));
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_begin_that_is_dropped_leaves_nothing_open() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let other = beside(&folder);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let asked = requests(["a"]);
    tokio::select! {
        biased;
        _ = store.begin(&consumer, &asked) => panic!("the lock is held"),
        () = tokio::task::yield_now() => {}
    }
    other.execute_batch("COMMIT").unwrap();
    let (tx, claims) = store.begin(&consumer, &asked).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn one_transaction_at_a_time() {
    let folder = TempDir::new().unwrap();
    let mut options = options(&folder);
    options.lock_timeout = Duration::from_millis(100);
    let store = SqliteStore::open(options).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let (tx, _) = store.begin(&consumer, &requests(["a"])).await.unwrap();
    let error = store.begin(&consumer, &requests(["b"])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    let asked = requests(["b"]);
    let (second, first) = tokio::join!(store.begin(&consumer, &asked), store.commit(tx));
    first.unwrap();
    store.commit(second.unwrap().0).await.unwrap();
    assert_eq!(number(&beside(&folder), INBOX), 2);
}

#[tokio::test]
async fn claims_know_reuse_and_unknown_consumers() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let ask = |digest| [ClaimRequest { id: id("a"), digest: Some(digest) }];
    let (tx, _) = store.begin(&consumer, &ask(1)).await.unwrap();
    store.commit(tx).await.unwrap();
    let (tx, claims) = store.begin(&consumer, &ask(2)).await.unwrap();
    assert!(matches!(claims[0], Claim::IdReused { .. }));
    store.rollback(tx).await.unwrap();
    let mut unknown = consumer.clone();
    unknown.id = 99;
    for (stranger, asked) in [(&unknown, requests(["a"])), (&unknown, vec![])] {
        let error = store.begin(stranger, &asked).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::UnknownConsumer);
    }
    let (tx, claims) = store.begin(&consumer, &[]).await.unwrap();
    assert!(claims.is_empty());
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn another_stream_under_the_same_name_is_refused() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let name = ConsumerName::new("wallet").unwrap();
    let of = |text: &str| Fingerprint(text.into());
    let key = store.register(&name, &of("kafka credits"), false).await.unwrap();
    assert_eq!(store.register(&name, &of("kafka credits"), false).await.unwrap(), key);
    let error = store.register(&name, &of("file"), false).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::FingerprintMismatch);
    assert!(error.message.contains("kafka credits") && error.message.contains("--adopt"), "{error}");
    assert_eq!(store.register(&name, &of("file"), true).await.unwrap(), key, "adopted: the ids stay");
    assert_eq!(store.register(&name, &of("file"), false).await.unwrap(), key);
    // A name registered at level 0 has no stream yet: the first run gives it one.
    let level0 = handstamp_stores::sqlite::ConsumerName::register(&beside(&folder), "plain").unwrap();
    let plain = ConsumerName::new("plain").unwrap();
    assert_eq!(&store.register(&plain, &of("file"), false).await.unwrap(), level0.key());
    let error = store.register(&plain, &of("kafka x"), false).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::FingerprintMismatch);
}

#[tokio::test]
async fn a_file_that_cannot_be_a_store_is_said_to_be_none() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "this is no database, it is a text of more than sixteen bytes\n".repeat(100))
        .unwrap();
    let users = folder.path().join("users.db");
    rusqlite::Connection::open(&users).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    let empty = folder.path().join("empty.db");
    for (path, migrate_new, kind) in [
        (text, true, StoreErrorKind::Config),
        (folder.path().to_owned(), true, StoreErrorKind::Config),
        (folder.path().join("no/such/folder.db"), true, StoreErrorKind::Config),
        (":memory:".into(), true, StoreErrorKind::Config),
        ("".into(), true, StoreErrorKind::Config),
        (users, true, StoreErrorKind::NotMigrated),
        (empty, false, StoreErrorKind::NotMigrated),
    ] {
        let shown = path.display().to_string();
        let error =
            SqliteStore::open(SqliteOptions { migrate_new, ..SqliteOptions::new(path) }).await.unwrap_err();
        assert_eq!(error.kind, kind, "{shown}: {error}");
    }
}

#[tokio::test]
async fn a_file_that_was_removed_or_replaced_takes_no_commits() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    for name in ["store.db", "store.db-wal", "store.db-shm"] {
        std::fs::rename(folder.path().join(name), folder.path().join(format!("old-{name}"))).unwrap();
    }
    let error = store.begin(&consumer, &requests(["a"])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert!(!folder.path().join("store.db").exists(), "no empty file takes its place");
    // A backup comes back: the store goes on with it.
    for name in ["store.db", "store.db-wal", "store.db-shm"] {
        std::fs::rename(folder.path().join(format!("old-{name}")), folder.path().join(name)).unwrap();
    }
    let (tx, claims) = store.begin(&consumer, &requests(["a"])).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
    // An empty database comes in its place: not migrated, never a silent start from nothing.
    drop(store);
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    std::fs::rename(folder.path().join("store.db"), folder.path().join("gone.db")).unwrap();
    rusqlite::Connection::open(folder.path().join("store.db"))
        .unwrap()
        .execute_batch("CREATE TABLE t (a)")
        .unwrap();
    let error = store.begin(&consumer, &requests(["b"])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
}

#[derive(Debug, thiserror::Error)]
#[error("the handler failed")]
struct Wrapped(#[source] Box<dyn Error + Send + Sync>);

#[tokio::test]
async fn a_handlers_error_is_classified_through_its_wrapping() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let (tx, _) = begun(&store, &["a"]).await;
    let unique = tx.execute("INSERT INTO accounts VALUES (7, 0)", []).unwrap_err();
    let fault = store.classify(&tx, &Wrapped(Box::new(Wrapped(unique.into())))).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Statement, Some("1555")));
    assert_eq!(store.classify(&tx, &Wrapped("no database".into())), None);
    store.commit(tx).await.unwrap();
    assert_eq!(number(&beside(&folder), INBOX), 1, "a failed statement does not end the transaction");
}

#[tokio::test]
async fn a_handlers_statement_that_no_longer_fits_is_nobodys_failure() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let (tx, _) = begun(&store, &["a"]).await;
    let kind = |tx: &Tx, error: rusqlite::Error| store.classify(tx, &error).unwrap().kind;
    // Prepared anew and bad.
    for sql in ["UPDATE accounts SET nope = 1", "UPDATE nope SET a = 1", "SELECT * FROM nope", "SELECT FROM"]
    {
        tx.execute(CREDIT, []).unwrap();
        let error = tx.execute(sql, []).expect_err(sql);
        assert_eq!(kind(&tx, error), StoreErrorKind::SchemaMismatch, "{sql}");
    }
    // The same code while running: the message's own.
    for sql in ["SELECT json_extract('no json', '$.a')", "SELECT abs(-9223372036854775808)"] {
        let error = tx.query_row(sql, [], |_| Ok(())).expect_err(sql);
        assert_eq!(kind(&tx, error), StoreErrorKind::Statement, "{sql}");
    }
    // Kept prepared while its table goes away.
    let use_ledger = |tx: &Tx| tx.prepare_cached("INSERT INTO ledger VALUES ('x', 1)").unwrap().execute([]);
    use_ledger(&tx).unwrap();
    store.commit(tx).await.unwrap();
    beside(&folder).execute_batch("DROP TABLE ledger").unwrap();
    let (tx, _) = begun(&store, &["b"]).await;
    let error = use_ledger(&tx).unwrap_err();
    assert_eq!(kind(&tx, error), StoreErrorKind::SchemaMismatch);
    store.abandon(tx).await;
}
