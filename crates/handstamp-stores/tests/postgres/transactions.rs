//! The `Store`: how transactions begin and, above all, how they end.

use crate::harness::{TestDatabase, connect, fresh, id, letter, name, on_each_server, request};
use crate::proxy::{Proxy, Step};
use futures_util::FutureExt;
use handstamp_core::{
    Claim, FailureClass, Fault, Fingerprint, InboxState, Recorded, Store, StoreError, StoreErrorKind,
};
use handstamp_stores::postgres::{PostgresOptions, PostgresStore, SCHEMA_VERSION, SchemaName};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

on_each_server!(
    a_commit_keeps_claim_and_effect_together,
    a_handler_that_ends_the_transaction_is_found_out,
    a_swallowed_error_is_found_out,
    a_failed_begin_claims_nothing,
    begin_settings_and_claim_are_one_flight,
    an_unread_row_stream_does_not_hang_the_commit,
    an_abandoned_query_frees_its_locks_at_once,
    a_dropped_transaction_frees_its_locks,
    a_dropped_begin_frees_its_locks,
    a_killed_backend_is_unavailable_and_the_next_begin_works,
    time_limits_have_their_kinds,
    a_lost_commit_answer_is_unavailable_and_the_claims_tell,
    a_deadlock_is_a_conflict_and_the_process_goes_alone,
    dead_letters_are_kept_byte_for_byte,
    a_fingerprint_guards_the_name,
    other_versions_of_the_schema_are_refused,
    running_needs_no_right_to_create,
    another_schema_is_another_inbox,
    errors_come_with_their_kind,
);

const ADD: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 7";
const SUM: &str = "SELECT sum(balance) FROM accounts";
const ROWS: &str = "SELECT count(*) FROM handstamp.inbox";

async fn a_commit_keeps_claim_and_effect_together(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let requests = [request("m", Some(1)), request("n", None)];
    let (tx, claims) = store.begin(&key, &requests).await.unwrap();
    assert_eq!(claims, [Claim::First, Claim::First]);
    tx.execute(ADD, &[]).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((database.number(SUM).await, database.number(ROWS).await), (0, 0));

    let (tx, claims) = store.begin(&key, &requests).await.unwrap();
    assert_eq!(claims, [Claim::First, Claim::First]);
    let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    tx.execute(ADD, &[]).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!((database.number(SUM).await, database.number(ROWS).await), (1, 2));

    let (tx, claims) = store.begin(&key, &[request("m", Some(2)), request("n", None)]).await.unwrap();
    assert!(matches!(claims[0], Claim::IdReused { state: InboxState::Applied, .. }));
    assert!(matches!(claims[1], Claim::Duplicate { state: InboxState::Applied, .. }));
    let again: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    assert_eq!(pid, again, "the connection is used again");
    store.commit(tx).await.unwrap();

    // No id at all: a batch of dead letters without ids needs a transaction too.
    let (tx, claims) = store.begin(&key, &[]).await.unwrap();
    assert!(claims.is_empty());
    store.commit(tx).await.unwrap();
}

async fn a_handler_that_ends_the_transaction_is_found_out(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    for (round, sql) in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "COMMIT; BEGIN",
        "ABORT; START TRANSACTION",
    ]
    .into_iter()
    .enumerate()
    {
        let (mut tx, _) = store.begin(&key, &fresh(u32::try_from(round).unwrap(), 2)).await.unwrap();
        tx.execute(ADD, &[]).await.unwrap();
        tx.batch_execute(sql).await.unwrap();
        // What is recorded behind the handler's back is not kept.
        let letters = [letter(None, FailureClass::Identity, Some(b"x"))];
        store.record(&mut tx, &key, &letters).await.unwrap();
        let error = store.commit(tx).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::TransactionEnded, "{sql}: {error}");
    }
    assert_eq!(database.number("SELECT count(*) FROM handstamp.dead_letters").await, 0);
    // A savepoint of the handler's own is no end.
    let (tx, _) = store.begin(&key, &fresh(99, 2)).await.unwrap();
    tx.batch_execute("SAVEPOINT a; SAVEPOINT b; ROLLBACK TO a; RELEASE a").await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn a_swallowed_error_is_found_out(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    for sql in ["SELECT 1/0", "SELECT nothing", "INSERT INTO ledger VALUES ('x', 1, 5000)", "SELECT 'a'::int"]
    {
        let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
        assert_eq!(claims, [Claim::First], "nothing of the last try was kept");
        tx.execute(ADD, &[]).await.unwrap();
        assert!(tx.batch_execute(sql).await.is_err());
        let error = store.commit(tx).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Swallowed, "{sql}: {error}");
    }
    // The same inside the commit is the message's own failure, and no ended transaction.
    let deferred = "CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1/0; RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION divide()";
    database.admin().await.batch_execute(deferred).await.unwrap();
    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    tx.execute("INSERT INTO ledger VALUES ('x', 1, 5)", &[]).await.unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Statement, "{error}");
    assert_eq!((database.number(SUM).await, database.number(ROWS).await), (0, 0));
}

pub(crate) async fn proxied(database: &TestDatabase) -> (Proxy, PostgresStore, handstamp_core::ConsumerKey) {
    let direct = database.options().place();
    let server: SocketAddr = direct.split('/').next().unwrap().parse().unwrap();
    let proxy = Proxy::new(server).await;
    let url =
        format!("postgres://{}@127.0.0.1:{}/{}?sslmode=disable", database.role, proxy.port, database.name);
    let mut options = PostgresOptions::parse(&url).unwrap();
    options.commit_timeout = Duration::from_secs(20);
    let (store, key) = database.wallet_with(options).await;
    (proxy, store, key)
}

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, DEFERRABLE";

/// A claim behind a BEGIN that failed, or that was none, would commit by itself.
async fn a_failed_begin_claims_nothing(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    for count in [1, 5] {
        for instead in ["SELECT 1/0", "SELECT 1", "SAVEPOINT s", "ROLLBACK"] {
            let store = PostgresStore::new(store.options().clone()).unwrap();
            let met = Arc::new(AtomicUsize::new(0));
            let meeting = met.clone();
            proxy.script(move |sent| match (sent.kind, sent.sql) {
                (b'P', BEGIN) => {
                    meeting.fetch_add(1, Ordering::Relaxed);
                    Step::Prepare(instead)
                }
                _ => Step::Pass,
            });
            let claimed = store.begin(&key, &fresh(count, count)).await.map(|(_, claims)| claims);
            assert!(claimed.is_err(), "{instead}: {claimed:?}");
            assert_eq!(met.load(Ordering::Relaxed), 1, "{instead}");
            assert_eq!(database.number(ROWS).await, 0, "{instead}: claimed outside of a transaction");
        }
    }
}

async fn begin_settings_and_claim_are_one_flight(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    let (count_syncs, holding) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (syncs, hold) = (count_syncs.clone(), holding.clone());
    proxy.script(move |sent| {
        syncs.fetch_add(usize::from(sent.kind == b'S'), Ordering::Relaxed);
        // No answer comes back before the claim was sent whole.
        match (hold.load(Ordering::Relaxed), sent.kind) {
            (true, b'B') if sent.sql == BEGIN => Step::HoldAnswers,
            (true, b'S') => Step::FreeAnswers,
            _ => Step::Pass,
        }
    });
    let warm = store.begin(&key, &[request("warm", None)]).await.unwrap();
    store.rollback(warm.0).await.unwrap();
    holding.store(true, Ordering::Relaxed);
    for count in [1, 500] {
        count_syncs.store(0, Ordering::Relaxed);
        let begun =
            tokio::time::timeout(Duration::from_secs(30), store.begin(&key, &fresh(count, count))).await;
        let (tx, claims) = begun.expect("BEGIN and claim wait for one another").unwrap();
        assert!(claims.iter().all(|c| *c == Claim::First));
        assert_eq!(count_syncs.load(Ordering::Relaxed), 1, "one answer for BEGIN, settings and claim");
        tx.batch_execute(ADD).await.unwrap();
        count_syncs.store(0, Ordering::Relaxed);
        store.commit(tx).await.unwrap();
        assert_eq!(count_syncs.load(Ordering::Relaxed), 1, "one answer for guard and COMMIT");
    }
}

async fn an_unread_row_stream_does_not_hang_the_commit(database: TestDatabase) {
    let mut options = database.options();
    options.commit_timeout = Duration::from_millis(300);
    options.abandon_timeout = Duration::from_millis(300);
    let (store, key) = database.wallet_with(options).await;
    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    tx.execute(ADD, &[]).await.unwrap();
    let none: [&str; 0] = [];
    let kept = tx.query_raw("SELECT repeat('x', 1000) FROM generate_series(1, 300000)", none).await.unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    // The outcome is unknown here; the claim knows it.
    let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
    let known = matches!(claims[0], Claim::Duplicate { .. });
    assert_eq!(database.number(SUM).await, i64::from(known));
    store.rollback(tx).await.unwrap();
    drop(kept);
}

async fn an_abandoned_query_frees_its_locks_at_once(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    tx.execute(ADD, &[]).await.unwrap();
    let sleeping = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event = 'PgSleep'",
        database.name
    );
    {
        let slow = tx.batch_execute("SELECT pg_sleep(100)");
        tokio::select! {
            _ = slow => panic!("slept"),
            () = database.until(&sleeping, 1) => {}
        }
    }
    store.abandon(tx).await;
    let admin = database.admin().await;
    admin
        .batch_execute("BEGIN; SELECT 1 FROM accounts WHERE id = 7 FOR UPDATE NOWAIT; ROLLBACK")
        .await
        .unwrap();
    assert_eq!(database.number(&sleeping).await, 0);
    let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.rollback(tx).await.unwrap();
}

fn open_transactions(database: &TestDatabase) -> String {
    format!(
        "SELECT 1 - count(*) FROM pg_stat_activity WHERE usename = '{}' AND xact_start IS NOT NULL",
        database.role
    )
}

async fn a_dropped_transaction_frees_its_locks(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    tx.execute(ADD, &[]).await.unwrap();
    let sleeping = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event = 'PgSleep'",
        database.name
    );
    tokio::select! {
        _ = tx.batch_execute("SELECT pg_sleep(100)") => panic!("slept"),
        () = database.until(&sleeping, 1) => {}
    }
    drop(tx);
    database.until(&open_transactions(&database), 1).await;
    assert_eq!(database.number(ROWS).await, 0);
}

async fn a_dropped_begin_frees_its_locks(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (holder, _) = store.begin(&key, &[request("b", None)]).await.unwrap();
    {
        let requests = [request("a", None), request("b", None)];
        let waiting = store.begin(&key, &requests);
        tokio::select! {
            _ = waiting => panic!("b is held"),
            () = database.until_blocked(1) => {}
        }
    }
    // "a" was inserted by the dropped one: it must be free while "b" is still held.
    let begun = tokio::time::timeout(Duration::from_secs(20), store.begin(&key, &[request("a", None)])).await;
    let (tx, claims) = begun.expect("the dropped begin still holds its id").unwrap();
    assert_eq!(claims, [Claim::First]);
    store.rollback(tx).await.unwrap();
    store.rollback(holder).await.unwrap();
}

async fn a_killed_backend_is_unavailable_and_the_next_begin_works(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    for idle in [false, true] {
        let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
        let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let kill = async || {
            admin.execute("SELECT pg_terminate_backend($1, 10000)", &[&pid]).await.unwrap();
        };
        let outcome = if idle {
            kill().await;
            tx.execute(ADD, &[]).await.map(|_| ())
        } else {
            let (outcome, ()) = tokio::join!(tx.batch_execute("SELECT pg_sleep(100)"), kill());
            outcome
        };
        let error = outcome.unwrap_err();
        let fault = store.classify(&tx, &error).unwrap();
        assert_eq!(fault.kind, StoreErrorKind::Unavailable, "{fault:?}");
        // Whatever a handler makes of it.
        let hidden = std::io::Error::other("it did not work");
        assert_eq!(store.classify(&tx, &hidden).unwrap().kind, StoreErrorKind::Unavailable);
        let error = store.rollback(tx).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable);
    }
    let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    admin.execute("SELECT pg_terminate_backend($1, 10000)", &[&pid]).await.unwrap();
    assert_eq!(store.commit(tx).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(database.number(ROWS).await, 0);
}

async fn time_limits_have_their_kinds(database: TestDatabase) {
    let mut options = database.options();
    options.statement_timeout = Duration::from_millis(200);
    options.idle_in_transaction_timeout = Duration::from_millis(200);
    options.lock_timeout = Duration::from_millis(50);
    let (store, key) = database.wallet_with(options).await;
    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    let slow = tx.batch_execute("SELECT pg_sleep(100)").await.unwrap_err();
    assert_eq!(
        store.classify(&tx, &slow),
        Some(Fault { kind: StoreErrorKind::Timeout, code: Some("57014".into()) })
    );
    store.rollback(tx).await.unwrap();

    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    database.until(&open_transactions(&database), 1).await;
    let idle = tx.execute(ADD, &[]).await.unwrap_err();
    let fault = store.classify(&tx, &idle).unwrap();
    assert_eq!(fault.kind, StoreErrorKind::Timeout, "{fault:?}");
    drop(tx);

    let mut other = database.client().await;
    let consumer = handstamp_stores::postgres::ConsumerName::register(&other, "wallet").await.unwrap();
    let held = other.transaction().await.unwrap();
    handstamp_stores::postgres::claim(&held, &consumer, &id("held")).await.unwrap();
    let error = store.begin(&key, &[request("held", None)]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    held.rollback().await.unwrap();
    let (tx, claims) = store.begin(&key, &[request("held", None)]).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
}

async fn a_lost_commit_answer_is_unavailable_and_the_claims_tell(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    for arrives in [false, true] {
        let message = if arrives { "arrived" } else { "lost" };
        let mut committing = false;
        proxy.script(move |sent| {
            committing |= sent.kind == b'B' && sent.sql == "COMMIT";
            match (committing, arrives, sent.kind) {
                (true, false, _) => Step::CutBefore,
                (true, true, b'S') => Step::CutAfter,
                _ => Step::Pass,
            }
        });
        let (tx, _) = store.begin(&key, &[request(message, None)]).await.unwrap();
        tx.execute(ADD, &[]).await.unwrap();
        let error = store.commit(tx).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        proxy.script(|_| Step::Pass);
        // The claim waits for the old backend, however it ends.
        let (tx, claims) = store.begin(&key, &[request(message, None)]).await.unwrap();
        assert_eq!(matches!(claims[0], Claim::Duplicate { .. }), arrives, "{claims:?}");
        store.rollback(tx).await.unwrap();
    }
    assert_eq!(database.number(SUM).await, 1);
}

async fn a_deadlock_is_a_conflict_and_the_process_goes_alone(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (one, _) = store.begin(&key, &[request("a", None)]).await.unwrap();
    let (two, _) = store.begin(&key, &[request("b", None)]).await.unwrap();
    let add = |account: i32| format!("UPDATE accounts SET balance = balance + 1 WHERE id = {account}");
    one.batch_execute(&add(1)).await.unwrap();
    two.batch_execute(&add(2)).await.unwrap();
    let (sql_one, sql_two) = (add(2), add(1));
    let (first, second) = tokio::join!(one.batch_execute(&sql_one), two.batch_execute(&sql_two));
    let (victim, survivor, error) = match (first, second) {
        (Err(error), Ok(())) => (one, two, error),
        (Ok(()), Err(error)) => (two, one, error),
        other => panic!("no deadlock: {other:?}"),
    };
    let fault = store.classify(&victim, &error).unwrap();
    assert_eq!(fault, Fault { kind: StoreErrorKind::Conflict, code: Some("40P01".into()) });
    store.rollback(victim).await.unwrap();
    // From now on this process waits until it is alone: the survivor's shared lock is in its way.
    let requests = [request("c", None)];
    let mut alone = Box::pin(store.begin(&key, &requests));
    tokio::select! {
        _ = &mut alone => panic!("not alone"),
        () = database.until_blocked(1) => {}
    }
    let waits =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(database.number(waits).await, 1);
    // Another consumer is not in the way.
    let mails = store.register(&name("mails"), &Fingerprint("m".into()), false).await.unwrap();
    let (other, _) = store.begin(&mails, &[request("c", None)]).await.unwrap();
    store.commit(other).await.unwrap();
    store.commit(survivor).await.unwrap();
    let (tx, _) = alone.await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn dead_letters_are_kept_byte_for_byte(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let consumer = key.name.clone();
    let mut huge = letter(None, FailureClass::TooLarge, Some(b"prefix"));
    huge.truncation = Some(handstamp_core::Truncation { full_bytes: 1 << 33, blake3: [7; 32] });
    huge.record.origin.topic = "a\0b".into();
    huge.record.origin.line = Some(12);
    huge.record.timestamp = None;
    huge.record.key = None;
    huge.record.headers = handstamp_core::Headers::default();
    let letters = vec![
        letter(Some("bad"), FailureClass::Sql, Some(b"{\"a\":1}")),
        letter(Some("known"), FailureClass::IdReused, Some(b"\0\xff")),
        letter(None, FailureClass::Identity, None),
        letter(None, FailureClass::Identity, Some(b"")),
        huge,
    ];
    let (tx, _) = store.begin(&key, &[request("known", Some(1))]).await.unwrap();
    store.commit(tx).await.unwrap();
    for round in 0..2 {
        let (mut tx, claims) =
            store.begin(&key, &[request("bad", None), request("good", None)]).await.unwrap();
        let recorded = store.record(&mut tx, &key, &letters).await.unwrap();
        let expected = if round == 0 { Recorded::New } else { Recorded::Known };
        assert_eq!(recorded, vec![expected; letters.len()]);
        if round == 1 {
            assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Dead, .. }), "{claims:?}");
            assert!(matches!(claims[1], Claim::Duplicate { state: InboxState::Applied, .. }), "{claims:?}");
        }
        store.commit(tx).await.unwrap();
    }
    let page = store.dead_letters(&consumer, None, None, 3).await.unwrap();
    let rest = store.dead_letters(&consumer, None, page.last().map(|s| s.cursor()), 100).await.unwrap();
    assert_eq!((page.len(), rest.len()), (3, 2));
    let summaries: Vec<_> = page.into_iter().chain(rest).collect();
    for kept in &letters {
        let summary = summaries.iter().find(|s| s.key.0 == kept.dedup()).expect("listed");
        assert_eq!((summary.class, &summary.id, summary.attempts), (kept.class, &kept.id, kept.attempts));
        let row = store.dead_letter(&consumer, summary.key).await.unwrap().expect("kept");
        let mut expected = kept.clone();
        expected.record.origin.topic = expected.record.origin.topic.replace('\0', "\u{fffd}").into();
        assert_eq!(row.letter, expected);
        assert_eq!(row.consumer, consumer);
    }
    let only = store.dead_letters(&consumer, Some(FailureClass::Identity), None, 100).await.unwrap();
    assert_eq!(only.len(), 2);
    let bad = store.inbox_row(&consumer, &id("bad")).await.unwrap().expect("row");
    let reused = store.inbox_row(&consumer, &id("known")).await.unwrap().expect("row");
    assert_eq!((bad.state, reused.state, reused.digest), (InboxState::Dead, InboxState::Applied, Some(1)));
    assert_eq!(store.inbox_row(&consumer, &id("never")).await.unwrap(), None);
    assert_eq!(store.dead_letters(&name("other"), None, None, 9).await.unwrap(), []);
}

async fn a_fingerprint_guards_the_name(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let other = Fingerprint("another topic".into());
    let error = store.register(&key.name, &other, false).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::FingerprintMismatch);
    assert!(error.to_string().contains("another topic") && error.to_string().contains("--adopt"), "{error}");
    assert_eq!(store.register(&key.name, &Fingerprint("test".into()), false).await.unwrap(), key);
    assert_eq!(store.register(&key.name, &other, true).await.unwrap(), key);
    let error = store.register(&key.name, &Fingerprint("test".into()), false).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::FingerprintMismatch);
    // Level 0 names have none; the first to run gives them theirs.
    let client = database.client().await;
    let plain = handstamp_stores::postgres::ConsumerName::register(&client, "plain").await.unwrap();
    assert_eq!(store.register(&name("plain"), &other, false).await.unwrap(), *plain.key());
    assert!(store.register(&name("plain"), &Fingerprint("third".into()), false).await.is_err());
}

async fn other_versions_of_the_schema_are_refused(database: TestDatabase) {
    let admin = database.admin().await;
    let (_, key) = database.wallet().await;
    let begin = async || -> Result<(), StoreError> {
        let store = database.store();
        let (tx, _) = store.begin(&key, &[request("m", None)]).await?;
        store.rollback(tx).await
    };
    let newer = |by: i32| {
        format!("INSERT INTO handstamp.migrations (number, checksum) VALUES ({}, 'x')", SCHEMA_VERSION + by)
    };
    let older = format!("DELETE FROM handstamp.migrations WHERE number >= {SCHEMA_VERSION}");
    for (sql, fits) in [
        (newer(1).as_str(), true),
        (&newer(2), false),
        (&older, false),
        ("DELETE FROM handstamp.migrations", false),
        ("DROP SCHEMA handstamp CASCADE", false),
    ] {
        admin.batch_execute(sql).await.unwrap();
        match begin().await {
            Ok(()) => assert!(fits, "{sql}"),
            Err(error) => assert!(!fits && error.kind == StoreErrorKind::NotMigrated, "{sql}: {error}"),
        }
    }
}

async fn running_needs_no_right_to_create(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let client = database.client().await;
    for sql in [
        "CREATE TABLE t ()",
        "CREATE TABLE handstamp.t ()",
        "CREATE SCHEMA s",
        "ALTER TABLE handstamp.inbox ADD x int",
    ] {
        let error = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(error.code().map(|c| c.code()), Some("42501"), "{sql}");
    }
    let (mut tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    store.record(&mut tx, &key, &[letter(Some("m"), FailureClass::Failed, None)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let facts = store.facts().await.unwrap();
    assert!(facts.fsync && facts.deadlock_before_lock_timeout && facts.encoding == "UTF8", "{facts:?}");
    assert!(facts.version_num / 10_000 >= 15 && !facts.in_recovery, "{facts:?}");
}

async fn another_schema_is_another_inbox(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let schema = SchemaName::new("team_b").unwrap();
    let admin_url = connect_url(&database).await;
    let options = PostgresOptions::parse(&admin_url).unwrap().with_schema(schema);
    let other = PostgresStore::new(options).unwrap();
    other.migrate(&handstamp_stores::postgres::MigrateOptions::default()).await.unwrap();
    let other_key = other.register(&key.name, &Fingerprint("test".into()), false).await.unwrap();
    for (store, key) in [(&store, &key), (&other, &other_key)] {
        let (tx, claims) = store.begin(key, &[request("m", None)]).await.unwrap();
        assert_eq!(claims, [Claim::First]);
        store.commit(tx).await.unwrap();
    }
}

async fn connect_url(database: &TestDatabase) -> String {
    let user: String = connect(&database.server.url())
        .await
        .query_one("SELECT current_user::text", &[])
        .await
        .unwrap()
        .get(0);
    database.url_as(&user)
}

async fn errors_come_with_their_kind(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    for (sql, kind) in [
        ("SELECT nothing", StoreErrorKind::SchemaMismatch),
        ("SELECT * FROM nowhere", StoreErrorKind::SchemaMismatch),
        ("CREATE TABLE t ()", StoreErrorKind::SchemaMismatch),
        ("INSERT INTO ledger VALUES ('x', 1, 5000)", StoreErrorKind::Statement),
        ("INSERT INTO accounts VALUES (1, 0)", StoreErrorKind::Statement),
        ("DO $$BEGIN RAISE 'no'; END$$", StoreErrorKind::Statement),
        ("DO $$BEGIN RAISE SQLSTATE '53100'; END$$", StoreErrorKind::Unavailable),
        ("DO $$BEGIN RAISE SQLSTATE '40001'; END$$", StoreErrorKind::Conflict),
        ("SET TRANSACTION READ ONLY; UPDATE accounts SET balance = 0", StoreErrorKind::Unavailable),
    ] {
        let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
        let mut error: Box<dyn std::error::Error> = Box::new(tx.batch_execute(sql).await.unwrap_err());
        // However deep a handler wraps it.
        for _ in 0..3 {
            error = Box::new(Wrapped(error));
        }
        let fault = store.classify(&tx, error.as_ref());
        assert_eq!(fault.map(|f| f.kind), Some(kind), "{sql}");
        store.rollback(tx).await.unwrap();
    }
    let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    assert_eq!(store.classify(&tx, &std::fmt::Error), None);
    let driver = tx.query_one("SELECT 1 WHERE false", &[]).await.unwrap_err();
    assert_eq!(store.classify(&tx, &driver), None, "the driver's own complaint is no database error");
    // The second error of a handler that swallowed the first is the message's own failure.
    tx.batch_execute("SELECT 1/0").await.unwrap_err();
    let second = tx.batch_execute("SELECT 1").await.unwrap_err();
    let fault = store.classify(&tx, &second).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Statement, Some("25P02")));
    let nul = tx.batch_execute("SELECT '\0'").await.unwrap_err();
    assert_eq!(store.classify(&tx, &nul), None);
    store.rollback(tx).await.unwrap();
    // A server that is not there.
    let nowhere =
        PostgresStore::new(PostgresOptions::parse("postgres://u:s3cret@127.0.0.1:1/db").unwrap()).unwrap();
    let error = nowhere.begin(&key, &[]).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(!format!("{error:?}").contains("s3cret"));
    assert!(store.begin(&key, &[]).now_or_never().is_none(), "begin asks the server");
}

#[derive(Debug, thiserror::Error)]
#[error("the handler failed")]
struct Wrapped(#[source] Box<dyn std::error::Error>);
