//! Start records of parked messages on real servers: who is suspected, who is charged, and what a resume ends.

use crate::harness::{TestDatabase, id, on_each_server, request};
use crate::parked::{attempt, ids, park};
use crate::starts::{alone, lane, starter};
use handstamp_core::parked::{Dedup, ParkedMessage, ParkingStore, Resumed};
use handstamp_core::{Company, ConsumerKey, DeadLetter, Lost, Owner, StartStore, Store, StoreErrorKind};
use handstamp_stores::postgres::{PostgresStore, Tx};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

on_each_server!(
    what_is_due_is_started_before_it_is_answered,
    a_suspect_is_answered_alone,
    a_message_that_was_alone_is_charged_once_an_owner,
    what_is_not_answered_is_free_for_others,
    four_take_what_the_dead_left,
    a_resume_ends_what_it_writes,
    started_again_in_place_of_what_was_started,
    who_lives_is_not_counted,
    a_start_that_cannot_be_recorded_takes_nothing,
    an_owner_that_lives_takes_its_parked_messages_back,
);

const STARTED: &str = "SELECT count(*) FROM handstamp.parked_starts";
const ALONE: &str = "SELECT count(*) FROM handstamp.parked_starts WHERE alone";
const CRASHES: &str = "SELECT count(*) FROM handstamp.crashes";

fn dedup(text: &str) -> Dedup {
    DeadLetter::dedup_of_id(&id(text))
}

async fn due(store: &PostgresStore, key: &ConsumerKey, by: u8, max: usize) -> (Tx, Vec<ParkedMessage>) {
    store.start_due(key, max, &starter(by), Company::None).await.unwrap().expect("something is due")
}

/// Takes what is due, and dies; what was taken.
async fn die(store: &PostgresStore, key: &ConsumerKey, by: u8, max: usize) -> Vec<String> {
    let (tx, rows) = due(store, key, by, max).await;
    store.rollback(tx).await.unwrap();
    ids(&rows)
}

/// Whose crashes a message has, as told.
fn crashes(row: &ParkedMessage) -> Vec<String> {
    row.crashes.iter().map(|crash| crash.by.node.to_string()).collect()
}

async fn finish(
    store: &PostgresStore,
    key: &ConsumerKey,
    (mut tx, rows): (Tx, Vec<ParkedMessage>),
    with: Resumed,
) {
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, with.clone())).collect();
    store.resume(&mut tx, key, &outcomes).await.unwrap();
    store.commit(tx).await.unwrap();
}

fn again() -> Resumed {
    Resumed::Again { wait: Duration::ZERO, failed: attempt("again") }
}

fn dead() -> Resumed {
    Resumed::Dead { failed: attempt("no"), charged: true }
}

async fn what_is_due_is_started_before_it_is_answered(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    assert!(store.start_due(&key, 10, &starter(1), Company::None).await.unwrap().is_none());
    park(&store, &key, &["a", "b", "c"], None).await;
    let (tx, rows) = due(&store, &key, 1, 2).await;
    assert_eq!(ids(&rows), ["a", "b"]);
    assert_eq!((database.number(STARTED).await, database.number(ALONE).await), (2, 0));
    // Its backend is killed: the start records stay, and nobody is charged.
    let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    database.number(&format!("SELECT pg_terminate_backend({pid}, 10000)::int")).await;
    assert_eq!(store.commit(tx).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!((database.number(STARTED).await, database.number(CRASHES).await), (2, 0));
    // The owner itself is no suspect: it lives.
    let (tx, rows) = due(&store, &key, 1, 10).await;
    assert_eq!(ids(&rows), ["a", "b", "c"]);
    assert_eq!(database.number(STARTED).await, 3);
    finish(&store, &key, (tx, rows), Resumed::Applied).await;
    assert_eq!(database.number(STARTED).await, 0);
}

async fn a_suspect_is_answered_alone(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a", "b", "c", "d", "e"], None).await;
    let starts = "INSERT INTO handstamp.parked_starts SELECT consumer, dedup, decode(repeat('09', 16), 'hex'), 'gone', 1, false
                  FROM handstamp.parked WHERE convert_from(id, 'UTF8') IN ('c', 'd')";
    database.admin().await.batch_execute(starts).await.unwrap();
    for expected in [&["a", "b"][..], &["c"], &["d"], &["e"]] {
        let (tx, rows) = due(&store, &key, 1, 10).await;
        assert_eq!(ids(&rows), expected);
        assert!(rows.iter().all(|row| row.crashes.is_empty()), "{rows:?}");
        let is_alone = expected.len() == 1;
        assert_eq!(database.number(ALONE).await, i64::from(is_alone), "{expected:?}");
        finish(&store, &key, (tx, rows), Resumed::Applied).await;
    }
    assert_eq!((database.number(STARTED).await, database.number(CRASHES).await), (0, 0));
}

async fn a_message_that_was_alone_is_charged_once_an_owner(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a", "b"], None).await;
    assert_eq!(die(&store, &key, 1, 10).await, ["a", "b"]);
    for (owner, expected) in [(2, &[][..]), (3, &["host:2"]), (4, &["host:2", "host:3"])] {
        for _ in 0..2 {
            // The second time it is its own start record, of one that lives.
            let (tx, rows) = due(&store, &key, owner, 10).await;
            assert_eq!(
                (ids(&rows), crashes(&rows[0])),
                (vec!["a".to_owned()], expected.iter().map(ToString::to_string).collect())
            );
            assert!(rows[0].crashes.iter().all(|crash| crash.dedup == dedup("a")));
            assert!(rows[0].crashes.is_sorted_by_key(|crash| crash.at));
            store.rollback(tx).await.unwrap();
        }
    }
    // A lane counted the same message before it was parked.
    let (tx, _) = store.start_and_begin(&key, &[], &alone(7, "l", "b")).await.unwrap();
    store.rollback(tx).await.unwrap();
    let charge = "INSERT INTO handstamp.crashes SELECT consumer, alone_dedup, owner, node, at_ms FROM handstamp.starts";
    database.admin().await.batch_execute(charge).await.unwrap();
    let taken = due(&store, &key, 4, 10).await;
    finish(&store, &key, taken, dead()).await;
    let (tx, rows) =
        store.start_again(&key, &[dedup("b"), dedup("a")], &starter(4), Company::None).await.unwrap();
    assert_eq!((ids(&rows), crashes(&rows[0])), (vec!["b".to_owned()], vec!["host:7".to_owned()]));
    store.rollback(tx).await.unwrap();
    let (tx, rows) = due(&store, &key, 5, 10).await;
    assert_eq!(crashes(&rows[0]), ["host:7", "host:4"]);
    store.rollback(tx).await.unwrap();
}

async fn what_is_not_answered_is_free_for_others(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a", "b", "c"], None).await;
    assert_eq!(die(&store, &key, 1, 1).await, ["a"]);
    let (first, rows) = due(&store, &key, 2, 10).await;
    assert_eq!(ids(&rows), ["a"]);
    let other = database.store();
    let (second, rows) = due(&other, &key, 3, 10).await;
    assert_eq!(ids(&rows), ["b", "c"]);
    store.rollback(first).await.unwrap();
    other.rollback(second).await.unwrap();
}

/// Two stores, as two processes have them, with two workers each; some of the workers die now and then.
async fn four_take_what_the_dead_left(database: TestDatabase) {
    const ROWS: usize = 200;
    let (store, key) = database.wallet().await;
    let names: Vec<String> = (0..ROWS).map(|n| format!("m{n:03}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    park(&store, &key, &all, None).await;
    assert_eq!(die(&store, &key, 1, 60).await.len(), 60);
    let suspects: Arc<BTreeSet<Dedup>> = Arc::new(all[..60].iter().map(|text| dedup(text)).collect());
    let stores = [Arc::new(database.store()), Arc::new(database.store())];
    let workers = (0..4_u8).map(|worker| {
        let (store, key, suspects) = (stores[usize::from(worker % 2)].clone(), key.clone(), suspects.clone());
        tokio::spawn(async move {
            let since = Instant::now();
            let (mut turns, mut run) = (u32::from(worker), 0_u8);
            while store.parked_status(&key).await.unwrap().count > 0 {
                assert!(since.elapsed() < Duration::from_secs(120), "rows that nobody can take are left");
                let by = starter(10 + worker + 4 * run);
                let Some((tx, rows)) = store.start_due(&key, 20, &by, Company::None).await.unwrap() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let suspected = rows.iter().filter(|row| suspects.contains(&row.dedup)).count();
                assert!(suspected == 0 || rows.len() == 1, "a suspect among others: {:?}", ids(&rows));
                turns += 1;
                if turns.is_multiple_of(5) && run < 20 {
                    // A new run begins.
                    run += 1;
                    store.abandon(tx).await;
                    continue;
                }
                for row in &rows {
                    let text = row.letter.id.as_ref().unwrap().to_string();
                    tx.execute("INSERT INTO ledger VALUES ($1, 1, 1)", &[&text]).await.unwrap();
                }
                finish(&store, &key, (tx, rows), Resumed::Applied).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let rows = i64::try_from(ROWS).unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, rows);
    assert_eq!(database.number("SELECT count(DISTINCT event_id) FROM ledger").await, rows);
    assert_eq!((database.number(STARTED).await, database.number(CRASHES).await), (0, 0));
}

async fn a_resume_ends_what_it_writes(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a", "b", "c", "d"], None).await;
    let charge =
        "INSERT INTO handstamp.crashes SELECT consumer, dedup, decode(repeat(n, 16), 'hex'), 'gone', 1
                  FROM handstamp.parked, unnest(ARRAY['08', '09']) AS n";
    database.admin().await.batch_execute(charge).await.unwrap();
    assert_eq!(die(&store, &key, 1, 10).await.len(), 4);
    let keys = ["a", "b", "c", "d"].map(dedup);
    let (mut tx, rows) = store.start_again(&key, &keys, &starter(2), Company::None).await.unwrap();
    assert_eq!(ids(&rows), ["a", "b", "c", "d"]);
    assert!(rows.iter().all(|row| row.crashes.len() == 2), "{rows:?}");
    assert_eq!(database.number(STARTED).await, 8);
    let outcomes = [(keys[0], Resumed::Applied), (keys[1], again()), (keys[2], dead())];
    store.resume(&mut tx, &key, &outcomes).await.unwrap();
    assert_eq!(database.number(STARTED).await, 8, "not committed");
    store.rollback(tx).await.unwrap();
    assert_eq!((database.number(STARTED).await, database.number(CRASHES).await), (8, 8));
    let (mut tx, _) = store.start_again(&key, &keys, &starter(2), Company::None).await.unwrap();
    store.resume(&mut tx, &key, &outcomes).await.unwrap();
    store.commit(tx).await.unwrap();
    // What fails again keeps its crashes; what was not written keeps everything.
    let left = |table: &str| {
        format!(
            "SELECT count(*) * 10 + count(DISTINCT dedup) FROM handstamp.{table} WHERE dedup IN (SELECT dedup FROM handstamp.parked)"
        )
    };
    assert_eq!((database.number(STARTED).await, database.number(CRASHES).await), (2, 4));
    assert_eq!(database.number(&left("parked_starts")).await, 21);
    assert_eq!(database.number(&left("crashes")).await, 42);
    let (tx, rows) = store.start_again(&key, &[keys[1]], &starter(3), Company::None).await.unwrap();
    assert_eq!(crashes(&rows[0]), ["gone", "gone"]);
    store.rollback(tx).await.unwrap();
}

async fn started_again_in_place_of_what_was_started(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a", "b", "c"], None).await;
    assert_eq!(die(&store, &key, 1, 10).await.len(), 3);
    let (tx, rows) = store.start_again(&key, &[dedup("b")], &starter(1), Company::None).await.unwrap();
    assert_eq!(ids(&rows), ["b"]);
    assert_eq!((database.number(STARTED).await, database.number(ALONE).await), (1, 1));
    store.rollback(tx).await.unwrap();
    // Several, the same one twice, one that is not there.
    let keys = ["c", "a", "c", "x"].map(dedup);
    let (tx, rows) = store.start_again(&key, &keys, &starter(1), Company::None).await.unwrap();
    assert_eq!(ids(&rows), ["c", "a"]);
    assert_eq!((database.number(STARTED).await, database.number(ALONE).await), (2, 0));
    // Another process takes what is free; what is locked is not started.
    let other = database.store();
    let (theirs, rows) =
        other.start_again(&key, &["a", "b"].map(dedup), &starter(2), Company::None).await.unwrap();
    assert_eq!(ids(&rows), ["b"]);
    assert_eq!((database.number(STARTED).await, database.number(ALONE).await), (3, 1));
    let (nothing, rows) = other.start_again(&key, &[dedup("a")], &starter(3), Company::None).await.unwrap();
    assert_eq!(rows, []);
    for tx in [theirs, nothing] {
        other.rollback(tx).await.unwrap();
    }
    store.rollback(tx).await.unwrap();
}

/// Between two transactions of its turn an owner's row is free, and somebody takes the owner for dead.
async fn who_lives_is_not_counted(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a"], None).await;
    let other = database.store();
    assert_eq!(die(&store, &key, 1, 10).await, ["a"]);
    let (theirs, rows) = due(&other, &key, 2, 10).await;
    assert_eq!(crashes(&rows[0]), ["host:1"]);
    // The owner goes on: it finds its row locked, and takes the crash back.
    let (tx, rows) = store.start_again(&key, &[dedup("a")], &starter(1), Company::None).await.unwrap();
    assert_eq!(rows, []);
    store.rollback(tx).await.unwrap();
    assert_eq!(database.number(CRASHES).await, 0);
    other.rollback(theirs).await.unwrap();
    // It takes it first, after it was counted.
    assert_eq!(die(&store, &key, 1, 10).await, ["a"]);
    assert_eq!(die(&other, &key, 3, 10).await, ["a"]);
    assert_eq!(database.number(CRASHES).await, 2, "the second is dead indeed");
    let (tx, rows) = due(&store, &key, 1, 10).await;
    assert_eq!(crashes(&rows[0]), ["host:2", "host:3"]);
    let counted = "SELECT count(*) FROM handstamp.crashes WHERE node = 'host:1'";
    assert_eq!(database.number(counted).await, 0);
    store.rollback(tx).await.unwrap();
    // It goes on with another message.
    park(&store, &key, &["b"], None).await;
    let (theirs, rows) = due(&other, &key, 4, 10).await;
    assert_eq!((ids(&rows), database.number(counted).await), (vec!["a".to_owned()], 1));
    let (tx, rows) = due(&store, &key, 1, 10).await;
    assert_eq!((ids(&rows), crashes(&rows[0])), (vec!["b".to_owned()], vec![]));
    assert_eq!(database.number(counted).await, 0);
    store.rollback(tx).await.unwrap();
    other.rollback(theirs).await.unwrap();
}

async fn a_start_that_cannot_be_recorded_takes_nothing(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a"], None).await;
    let admin = database.admin().await;
    let revoke = format!("REVOKE INSERT ON handstamp.parked_starts FROM {}", database.role);
    admin.batch_execute(&revoke).await.unwrap();
    let error = store.start_due(&key, 10, &starter(1), Company::None).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
    assert!(error.to_string().contains("--grant-to"), "{error}");
    let error = store.start_again(&key, &[dedup("a")], &starter(1), Company::None).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
    let (tx, rows) = database.store().take_due(&key, 10).await.unwrap().expect("its lock is free");
    assert_eq!(ids(&rows), ["a"]);
    store.rollback(tx).await.unwrap();
}

async fn an_owner_that_lives_takes_its_parked_messages_back(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a"], None).await;
    assert_eq!(die(&store, &key, 1, 10).await, ["a"]);
    let taken = due(&store, &key, 2, 10).await;
    finish(&store, &key, taken, again()).await;
    assert_eq!(database.number(CRASHES).await, 1);
    store.withdraw(&key, &Owner([1; 16]), Lost::Everything).await.unwrap();
    let (tx, claims) = store.start_and_begin(&key, &[request("b", None)], &alone(1, "l", "b")).await.unwrap();
    assert_eq!(claims.len(), 1);
    store.rollback(tx).await.unwrap();
    let (tx, rows) = due(&store, &key, 3, 10).await;
    assert_eq!(crashes(&rows[0]), [""; 0]);
    store.rollback(tx).await.unwrap();
    store.end_starts(&key, &Owner([3; 16]), None).await.unwrap();
    store.end_starts(&key, &Owner([1; 16]), Some(&[lane("l")])).await.unwrap();
    assert_eq!(database.number(STARTED).await, 0);
}
