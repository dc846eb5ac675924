//! Start records alone are written without waiting for the disk: the connection is at FULL inside of every
//! transaction with messages and behind it, whatever happened.

use crate::starts::{PARKED_STARTS, STARTS, alone, dedup, lane, span, started, starter};
use crate::support::{beside, number, open, options, park, registered, requests, row};
use handstamp_core::{Company, ConsumerKey, Lost, StartStore, Store, StoreErrorKind};
use handstamp_stores::sqlite::{SqliteOptions, SqliteStore, Tx};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const FULL: i64 = 2;

/// What a commit waits for on the store's own connection.
pub(crate) fn synchronous(tx: &Tx) -> i64 {
    tx.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap()
}

async fn is_full(store: &SqliteStore, consumer: &ConsumerKey, when: &str) {
    let (tx, _) = store.begin(consumer, &[]).await.unwrap();
    assert_eq!(synchronous(&tx), FULL, "{when}");
    store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn commits_of_messages_always_wait_for_the_disk() {
    let folder = TempDir::new().unwrap();
    let patience = Duration::from_millis(30);
    let store =
        SqliteStore::open(SqliteOptions { lock_timeout: patience, ..options(&folder) }).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("p", None)]).await;
    let by = starter("first/1");
    let tx = started(&store, &consumer, &alone(&by, 1, "a"), &["a"]).await;
    assert_eq!(synchronous(&tx), FULL, "behind a start");
    // Inside a transaction SQLite itself refuses.
    assert!(tx.execute_batch("PRAGMA synchronous = OFF").is_err());
    store.commit(tx).await.unwrap();
    is_full(&store, &consumer, "behind a commit").await;
    let (tx, _) = store.start_due(&consumer, 1, &by, Company::None).await.unwrap().unwrap();
    assert_eq!(synchronous(&tx), FULL, "behind the starts of parked messages");
    store.rollback(tx).await.unwrap();
    let (tx, _) = store.start_again(&consumer, &[dedup("p")], &by, Company::None).await.unwrap();
    assert_eq!(synchronous(&tx), FULL);
    store.abandon(tx).await;
    is_full(&store, &consumer, "on a new connection").await;
    store.end_starts(&consumer, &by.owner, None).await.unwrap();
    is_full(&store, &consumer, "behind ended starts").await;
    // Errors: a stranger, a busy lock in front of the start, a statement that is refused.
    let stranger = ConsumerKey { id: 99, ..consumer.clone() };
    let start = span(&by, 1, 2);
    let error = store.start_and_begin(&stranger, &requests(["b"]), &start).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
    is_full(&store, &consumer, "behind a stranger").await;
    let eyes = beside(&folder);
    eyes.execute_batch("BEGIN IMMEDIATE").unwrap();
    for error in [
        store.start_and_begin(&consumer, &requests(["b"]), &start).await.map(drop).unwrap_err(),
        store.start_due(&consumer, 1, &by, Company::None).await.map(drop).unwrap_err(),
        store.start_again(&consumer, &[dedup("p")], &by, Company::None).await.map(drop).unwrap_err(),
        store.end_starts(&consumer, &by.owner, None).await.unwrap_err(),
        store.take_over(&consumer, &by, &[lane("credits/0")]).await.map(drop).unwrap_err(),
        store.withdraw(&consumer, &by.owner, Lost::Everything).await.unwrap_err(),
        store.forget(&consumer, &[(lane("l"), by.owner)]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    }
    eyes.execute_batch("ROLLBACK").unwrap();
    assert_eq!((number(&eyes, STARTS), number(&eyes, PARKED_STARTS)), (0, 0), "nothing was written");
    is_full(&store, &consumer, "behind a busy lock").await;
    eyes.execute_batch(
        "CREATE TRIGGER no BEFORE INSERT ON handstamp_starts BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    .unwrap();
    let error = store.start_and_begin(&consumer, &requests(["b"]), &start).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
    is_full(&store, &consumer, "behind a refused start").await;
}

/// SQLite rolled back by itself, and the handler made the connection weaker, outside of any transaction then.
#[tokio::test]
async fn what_a_handler_does_outside_of_its_transaction_weakens_no_later_one() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    beside(&folder)
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON ledger WHEN NEW.amount = 0 BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        )
        .unwrap();
    for end in ["commit", "rollback"] {
        let tx = started(&store, &consumer, &span(&starter("first/1"), 1, 2), &["a"]).await;
        tx.execute("INSERT INTO ledger VALUES ('x', 0)", []).unwrap_err();
        tx.execute_batch("PRAGMA synchronous = OFF").unwrap();
        assert_eq!(synchronous(&tx), 0);
        match end {
            "commit" => {
                let error = store.commit(tx).await.unwrap_err();
                assert_eq!(error.kind, StoreErrorKind::Swallowed, "{error}");
            }
            _ => store.rollback(tx).await.unwrap(),
        }
        is_full(&store, &consumer, end).await;
    }
}

/// A wait for the lock that is given up leaves nothing behind: no lock, no connection below FULL.
#[tokio::test]
async fn a_start_that_is_dropped_leaves_nothing_open() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let other = beside(&folder);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (asked, start) = (requests(["a"]), span(&starter("first/1"), 1, 2));
    tokio::select! {
        biased;
        _ = store.start_and_begin(&consumer, &asked, &start) => panic!("the lock is held"),
        () = tokio::task::yield_now() => {}
    }
    other.execute_batch("COMMIT").unwrap();
    is_full(&store, &consumer, "dropped").await;
    let tx = started(&store, &consumer, &start, &["a"]).await;
    assert_eq!(synchronous(&tx), FULL);
    store.commit(tx).await.unwrap();
}
