//! A commit with the next claim in the same write: what is sent when, and what is left by every way to fail.

use crate::harness::{TestDatabase, on_each_server, request};
use crate::proxy::Step;
use crate::transactions::proxied;
use handstamp_core::{Claim, ConsumerKey, Store, StoreErrorKind};
use handstamp_stores::postgres::{PostgresStore, Tx};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_postgres::SimpleQueryMessage;

on_each_server!(
    commit_and_next_claim_leave_before_any_answer,
    a_deferred_constraint_fails_the_commit_and_opens_nothing,
    a_failed_commit_does_not_wait_for_the_claim_behind_it,
    a_claim_that_waits_too_long_leaves_the_commit_alone,
    a_backend_killed_behind_the_commit_leaves_the_commit_alone,
    a_connection_cut_anywhere_keeps_what_was_said,
    a_stale_connection_is_not_used_again,
);

const ADD: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 7";
const SUM: &str = "SELECT sum(balance) FROM accounts";
const PID: &str = "SELECT pg_backend_pid()";
const LIMIT: Duration = Duration::from_secs(30);

async fn pid(tx: &Tx) -> i32 {
    let SimpleQueryMessage::Row(row) = &tx.simple_query(PID).await.unwrap()[1] else { panic!("no row") };
    row.get(0).unwrap().parse().unwrap()
}

/// Begins for `id` and adds.
async fn added(store: &PostgresStore, key: &ConsumerKey, id: &str) -> Tx {
    let (tx, claims) = store.begin(key, &[request(id, None)]).await.unwrap();
    assert_eq!(claims, [Claim::First], "{id}");
    // Leaves no statement to be closed later.
    tx.batch_execute(ADD).await.unwrap();
    tx
}

/// The claim of an id by another connection, rolled back; it waits for nobody.
async fn answer(store: &PostgresStore, key: &ConsumerKey, id: &str) -> Claim {
    let requests = [request(id, None)];
    let begun = tokio::time::timeout(LIMIT, store.begin(key, &requests)).await;
    let (tx, claims) = begun.expect("somebody still holds the id").unwrap();
    store.rollback(tx).await.unwrap();
    claims[0]
}

async fn commit_and_next_claim_leave_before_any_answer(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    let tx = added(&store, &key, "a").await;
    let before = pid(&tx).await;
    let syncs = Arc::new(AtomicUsize::new(0));
    let seen = syncs.clone();
    let (mut guarded, mut claims) = (false, false);
    proxy.script(move |sent| {
        // What was sent before, such as the closing of a statement, does not count.
        guarded |= sent.kind == b'B' && sent.sql.starts_with("SELECT 1/");
        claims |= sent.kind == b'B' && sent.sql.contains("INSERT INTO");
        seen.fetch_add(usize::from(guarded && sent.kind == b'S'), Ordering::Relaxed);
        match sent.kind {
            b'B' if sent.sql == "COMMIT" => Step::HoldAnswers,
            b'S' if claims => Step::FreeAnswers,
            _ => Step::Pass,
        }
    });
    let (tell, told) = oneshot::channel();
    let next = [request("b", None)];
    let ended = tokio::time::timeout(LIMIT, store.commit_and_begin(tx, &key, &next, tell)).await;
    let (tx, claims) =
        ended.expect("COMMIT and the claim wait for one another").unwrap().expect("it is open");
    assert_eq!(claims, [Claim::First]);
    assert_eq!(told.await, Ok(()));
    assert_eq!(syncs.load(Ordering::Relaxed), 2, "one answer for the commit, one for the claim");
    assert_eq!(pid(&tx).await, before);
    store.commit(tx).await.unwrap();
    assert_eq!(database.number(SUM).await, 1);
}

async fn a_deferred_constraint_fails_the_commit_and_opens_nothing(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let unique = "ALTER TABLE ledger ADD UNIQUE (event_id) DEFERRABLE INITIALLY DEFERRED";
    database.admin().await.batch_execute(unique).await.unwrap();
    let (tx, _) = store.begin(&key, &[request("a", None)]).await.unwrap();
    let before = pid(&tx).await;
    tx.batch_execute("INSERT INTO ledger VALUES ('e', 1, 1), ('e', 1, 1)").await.unwrap();
    let (tell, told) = oneshot::channel();
    let error = store.commit_and_begin(tx, &key, &[request("b", None)], tell).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Statement, "{error}");
    assert!(told.await.is_err());
    for id in ["a", "b"] {
        assert_eq!(answer(&store, &key, id).await, Claim::First, "{id}");
    }
    let (tx, _) = store.begin(&key, &[request("c", None)]).await.unwrap();
    assert_eq!(pid(&tx).await, before, "the connection is used again");
    store.rollback(tx).await.unwrap();
}

async fn a_failed_commit_does_not_wait_for_the_claim_behind_it(database: TestDatabase) {
    let mut options = database.options();
    options.lock_timeout = 4 * LIMIT;
    options.statement_timeout = 5 * LIMIT;
    let (store, key) = database.wallet_with(options).await;
    let unique = "ALTER TABLE ledger ADD UNIQUE (event_id) DEFERRABLE INITIALLY DEFERRED";
    database.admin().await.batch_execute(unique).await.unwrap();
    let (held, _) = store.begin(&key, &[request("held", None)]).await.unwrap();
    let (tx, _) = store.begin(&key, &[request("a", None)]).await.unwrap();
    tx.batch_execute("INSERT INTO ledger VALUES ('e', 1, 1), ('e', 1, 1)").await.unwrap();
    let (tell, told) = oneshot::channel();
    let next = [request("held", None)];
    let ended = tokio::time::timeout(LIMIT, store.commit_and_begin(tx, &key, &next, tell)).await;
    let error = ended.expect("it waits for the lock behind it").unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Statement, "{error}");
    assert!(told.await.is_err());
    // Nothing of the claim is left: no lock, nobody in the queue.
    store.rollback(held).await.unwrap();
    for id in ["a", "held"] {
        assert_eq!(answer(&store, &key, id).await, Claim::First, "{id}");
    }
}

async fn a_claim_that_waits_too_long_leaves_the_commit_alone(database: TestDatabase) {
    let mut options = database.options();
    options.lock_timeout = Duration::from_millis(200);
    let (store, key) = database.wallet_with(options).await;
    let (held, _) = store.begin(&key, &[request("held", None)]).await.unwrap();
    let tx = added(&store, &key, "a").await;
    let (tell, told) = oneshot::channel();
    let next = [request("held", None)];
    let ended = store.commit_and_begin(tx, &key, &next, tell).await.unwrap();
    assert!(ended.is_none(), "nothing is open");
    assert_eq!(told.await, Ok(()));
    assert_eq!(database.number(SUM).await, 1);
    let error = store.begin(&key, &next).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    store.rollback(held).await.unwrap();
    assert_eq!(answer(&store, &key, "held").await, Claim::First);
    assert!(matches!(answer(&store, &key, "a").await, Claim::Duplicate { .. }));
}

async fn a_backend_killed_behind_the_commit_leaves_the_commit_alone(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (held, _) = store.begin(&key, &[request("held", None)]).await.unwrap();
    let tx = added(&store, &key, "a").await;
    let backend = pid(&tx).await;
    let (tell, told) = oneshot::channel();
    let next = [request("held", None)];
    let admin = database.admin().await;
    let (ended, ()) = tokio::join!(store.commit_and_begin(tx, &key, &next, tell), async {
        told.await.unwrap();
        database.until_blocked(1).await;
        admin.execute("SELECT pg_terminate_backend($1)", &[&backend]).await.unwrap();
    });
    assert!(ended.unwrap().is_none());
    assert_eq!(database.number(SUM).await, 1);
    store.rollback(held).await.unwrap();
    assert_eq!(answer(&store, &key, "held").await, Claim::First);
}

/// Cut in front of or behind each message of the write, before its answers arrive.
async fn a_connection_cut_anywhere_keeps_what_was_said(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    let (mut durable, mut unknown, mut committed) = (0, 0, 0);
    for position in 0..24 {
        let (at, before) = (position / 2, position % 2 == 0);
        let (first, second) = (format!("a{position}"), format!("b{position}"));
        let tx = added(&store, &key, &first).await;
        let mut seen = 0;
        proxy.script(move |_| {
            seen += 1;
            match (seen == at + 1, before) {
                (true, true) => Step::CutBefore,
                (true, false) => Step::CutAfter,
                _ => Step::Pass,
            }
        });
        let (tell, told) = oneshot::channel();
        let next = [request(&second, None)];
        let ended = store.commit_and_begin(tx, &key, &next, tell).await;
        proxy.script(|_| Step::Pass);
        let was_told = told.await.is_ok();
        assert_eq!(was_told, ended.is_ok(), "position {position}");
        durable += i32::from(was_told);
        match ended {
            Ok(Some((tx, _))) => store.rollback(tx).await.unwrap_or_default(),
            Ok(None) => {}
            Err(error) => {
                assert_eq!(error.kind, StoreErrorKind::Unavailable, "position {position}: {error}");
                unknown += 1;
            }
        }
        let is_known = matches!(answer(&store, &key, &first).await, Claim::Duplicate { .. });
        assert!(is_known || !was_told, "position {position}: said to be durable and is not");
        committed += i64::from(is_known);
        assert_eq!(answer(&store, &key, &second).await, Claim::First, "position {position}");
    }
    assert_eq!(database.number(SUM).await, committed, "effects and claims go together");
    println!("{durable} said to be durable, {unknown} unknown, {committed} committed of 24");
    assert!(unknown >= 4 && committed > i64::from(durable), "{unknown} {committed} {durable}");
}

async fn a_stale_connection_is_not_used_again(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let tx = added(&store, &key, "a").await;
    let before = pid(&tx).await;
    let missing = tx.batch_execute("SAVEPOINT s; SELECT nobody FROM ledger").await.unwrap_err();
    store.classify(&tx, &missing);
    tx.batch_execute("ROLLBACK TO s").await.unwrap();
    let (tell, told) = oneshot::channel();
    let next = [request("b", None)];
    assert!(store.commit_and_begin(tx, &key, &next, tell).await.unwrap().is_none());
    assert_eq!(told.await, Ok(()));
    let (tx, _) = store.begin(&key, &next).await.unwrap();
    assert_ne!(pid(&tx).await, before);
    store.rollback(tx).await.unwrap();
}
