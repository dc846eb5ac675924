//! How a handler can leave a transaction, what of it is durable then, and that the lock is free: claims and
//! effects stay together whatever it does.

use crate::support::{beside, number, open, options, registered, requests};
use handstamp_core::{Claim, Store, StoreErrorKind};
use handstamp_stores::sqlite::{SqliteStore, Tx};
use std::mem::ManuallyDrop;
use std::time::Duration;
use tempfile::TempDir;

const CREDIT: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 7";
const BOTH: &str =
    "SELECT (SELECT balance FROM accounts WHERE id = 7) * 10 + (SELECT count(*) FROM handstamp_inbox)";
const NUMBERS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000000)";

async fn begun(store: &SqliteStore, id: &str) -> (Tx, Vec<Claim>) {
    let consumer = registered(store, "wallet").await;
    store.begin(&consumer, &requests([id])).await.unwrap()
}

/// Another process gets the lock without waiting.
fn assert_lock_is_free(folder: &TempDir, when: &str) {
    let other = beside(folder);
    other.busy_timeout(Duration::ZERO).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap_or_else(|e| panic!("{when}: held: {e}"));
}

/// What Postgres knows as other ways to end a transaction is no SQL here. It ends nothing, and what tries to
/// end a transaction is not committed either.
#[tokio::test]
async fn what_ends_a_transaction_elsewhere_ends_nothing() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    for sql in ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "START TRANSACTION", "ABORT"] {
        let (tx, claims) = begun(&store, "a").await;
        assert_eq!(claims, [Claim::First], "{sql}");
        tx.execute(CREDIT, []).unwrap();
        let error = tx.execute_batch(sql).expect_err(sql);
        let ended = store.classify(&tx, &error).unwrap().kind == StoreErrorKind::TransactionEnded;
        assert_eq!(ended, sql.contains("CHAIN"), "{sql}: {error}");
        assert!(!tx.is_autocommit(), "{sql}");
        if ended {
            let error = store.commit(tx).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::TransactionEnded, "{sql}: {error}");
        } else {
            store.rollback(tx).await.unwrap();
        }
        assert_eq!(number(&beside(&folder), BOTH), 0, "{sql}");
        assert_lock_is_free(&folder, sql);
    }
}

/// Statements that were read halfway and let go: what they wrote is written, and nothing else is touched.
#[tokio::test]
async fn unread_rows_part_no_claim_from_its_effect() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let returning = "INSERT INTO ledger VALUES ('x', 1), ('y', 2), ('z', 3) RETURNING amount";
    for (at, sql) in [format!("{NUMBERS} SELECT i FROM n").as_str(), returning].into_iter().enumerate() {
        let id = ["a", "b"][at];
        let (tx, claims) = begun(&store, id).await;
        assert_eq!(claims, [Claim::First], "{sql}");
        tx.execute(CREDIT, []).unwrap();
        {
            let mut kept = tx.prepare_cached(sql).unwrap();
            let mut rows = kept.query([]).unwrap();
            assert!(rows.next().unwrap().is_some(), "{sql}");
        }
        store.commit(tx).await.unwrap();
        let done = i64::try_from(at + 1).unwrap();
        assert_eq!(number(&beside(&folder), BOTH), 11 * done, "{sql}");
        assert_lock_is_free(&folder, sql);
        let (tx, claims) = begun(&store, id).await;
        assert!(matches!(claims[0], Claim::Duplicate { .. }), "{sql}");
        store.rollback(tx).await.unwrap();
    }
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM ledger"), 3);
}

/// A statement that still runs when its transaction is to be committed keeps it from being committed; the
/// transactions after it have nothing to do with it.
#[tokio::test]
async fn a_statement_that_is_left_running_spoils_its_own_transaction_only() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let (tx, _) = begun(&store, "a").await;
    let sql = "INSERT INTO ledger VALUES ('x', 1), ('y', 2) RETURNING amount";
    // Neither is ever finished.
    let mut left = ManuallyDrop::new(Box::new(tx.prepare(sql).unwrap()));
    let mut rows = ManuallyDrop::new(left.query([]).unwrap());
    assert!(rows.next().unwrap().is_some());
    let spoiled = store.commit(tx).await;
    let durable = number(&beside(&folder), BOTH);
    assert_eq!(durable, i64::from(spoiled.is_ok()), "{spoiled:?}");
    assert_lock_is_free(&folder, "after the commit");
    for id in ["b", "c"] {
        let (tx, claims) = begun(&store, id).await;
        assert_eq!(claims, [Claim::First], "{id}");
        tx.execute(CREDIT, []).unwrap();
        store.commit(tx).await.unwrap_or_else(|e| panic!("{id}: {e}"));
    }
}

#[tokio::test]
async fn a_timeout_in_mid_query_frees_the_lock_at_once() {
    let folder = TempDir::new().unwrap();
    let mut options = options(&folder);
    options.statement_timeout = Duration::from_millis(30);
    let store = SqliteStore::open(options).await.unwrap();
    for (end, sql) in [
        ("abandon", format!("{NUMBERS} SELECT count(*) FROM n")),
        ("rollback", format!("{NUMBERS} SELECT count(*) FROM n")),
        ("drop", format!("INSERT INTO ledger {NUMBERS} SELECT 'x', count(*) FROM n")),
    ] {
        let (tx, claims) = begun(&store, "a").await;
        assert_eq!(claims, [Claim::First], "{end}");
        tx.execute(CREDIT, []).unwrap();
        let error = tx.query_row(&sql, [], |_| Ok(())).expect_err(end);
        assert_eq!(store.classify(&tx, &error).unwrap().kind, StoreErrorKind::Timeout, "{end}: {error}");
        match end {
            "abandon" => store.abandon(tx).await,
            "rollback" => drop(store.rollback(tx).await),
            _ => drop(tx),
        }
        assert_lock_is_free(&folder, end);
        assert_eq!(number(&beside(&folder), BOTH), 0, "{end}");
    }
}
