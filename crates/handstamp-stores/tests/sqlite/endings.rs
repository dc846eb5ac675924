//! How a handler can leave a transaction, what of it is durable then, and that the lock is free: claims and
//! effects stay together whatever it does.

use crate::support::{beside, number, open, options, registered, requests};
use handstamp_core::{Claim, Store, StoreErrorKind};
use handstamp_stores::sqlite::{SqliteStore, Tx};
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

/// A statement that was read halfway and let go, or never let go of: the commit has both or neither.
#[tokio::test]
async fn unread_rows_part_no_claim_from_its_effect() {
    let select = format!("{NUMBERS} SELECT i FROM n");
    let returning = "INSERT INTO ledger SELECT 'x', 1 FROM accounts UNION ALL SELECT 'y', 2 RETURNING amount";
    for (sql, forgotten) in [(select.as_str(), false), (&select, true), (returning, false), (returning, true)]
    {
        let when = format!("{sql}, forgotten: {forgotten}");
        let folder = TempDir::new().unwrap();
        let store = open(&folder).await;
        let (tx, claims) = begun(&store, "a").await;
        assert_eq!(claims, [Claim::First]);
        tx.execute(CREDIT, []).unwrap();
        let mut statement = tx.prepare(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        assert!(rows.next().unwrap().is_some());
        if forgotten {
            std::mem::forget(rows);
            std::mem::forget(statement);
        } else {
            drop(rows);
            drop(statement);
        }
        let committed = store.commit(tx).await;
        let both = number(&beside(&folder), BOTH);
        assert_eq!(both, if committed.is_ok() { 11 } else { 0 }, "{when}: {committed:?}");
        assert_lock_is_free(&folder, &when);
        // The store goes on and knows what became of it.
        let (tx, claims) = begun(&store, "a").await;
        assert_eq!(claims == [Claim::First], committed.is_err(), "{when}: {claims:?}");
        store.rollback(tx).await.unwrap();
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
