//! Parked messages on real servers: who takes what, in which order, and what a lost connection leaves.

use crate::harness::{Server, TestDatabase, id, letter, name, on_each_server, request};
use handstamp_core::parked::{Dedup, FailedAttempt, OrderKey, Park, ParkedMessage, ParkingStore, Resumed};
use handstamp_core::{
    Claim, ConsumerKey, FailureClass, Fingerprint, InboxState, Reason, Recorded, Store, StoreErrorKind,
    Timestamp,
};
use handstamp_stores::postgres::{PostgresStore, Tx};
use handstamp_stores::rows::DeadLetterKey;
use std::time::Duration;

on_each_server!(
    a_worker_and_a_lane_meet_at_one_key,
    a_key_goes_on_whatever_its_lane_does,
    the_second_waits_for_the_commit_that_removes_the_first,
    an_old_snapshot_never_takes_the_second,
    a_waiting_lane_learns_that_its_key_is_parked,
    a_killed_backend_frees_its_rows_and_counts_nothing,
    each_due_row_is_taken_once,
    fifty_thousand_behind_one_key_cost_nothing,
    a_missing_right_is_found_before_the_first_message,
    a_record_that_came_again_meets_its_dead_letter,
);

pub(crate) fn attempt(why: &str) -> FailedAttempt {
    FailedAttempt {
        at: Timestamp(1_700_000_000_777),
        node: "host:1".into(),
        class: FailureClass::Sql,
        code: Some("23503".into()),
        reason: Reason::new(why),
    }
}

pub(crate) fn park_of(text: &str, order_key: Option<u8>) -> Park {
    Park {
        letter: letter(Some(text), FailureClass::Failed, Some(b"{}")),
        wait: Duration::ZERO,
        order_key: order_key.map(|n| OrderKey([n; 16])),
    }
}

/// Claims and parks in one transaction that stays open.
async fn parking(store: &PostgresStore, key: &ConsumerKey, ids: &[&str], order_key: Option<u8>) -> Tx {
    let requests: Vec<_> = ids.iter().map(|id| request(id, None)).collect();
    let (mut tx, claims) = store.begin(key, &requests).await.unwrap();
    assert!(claims.iter().all(|claim| *claim == Claim::First), "{claims:?}");
    let rows: Vec<Park> = ids.iter().map(|id| park_of(id, order_key)).collect();
    assert_eq!(store.park(&mut tx, key, &rows).await.unwrap(), vec![Recorded::New; ids.len()]);
    tx
}

pub(crate) async fn park(store: &PostgresStore, key: &ConsumerKey, ids: &[&str], order_key: Option<u8>) {
    let tx = parking(store, key, ids, order_key).await;
    store.commit(tx).await.unwrap();
}

pub(crate) async fn take(store: &PostgresStore, key: &ConsumerKey) -> Option<(Tx, Vec<ParkedMessage>)> {
    store.take_due(key, 100).await.unwrap()
}

pub(crate) fn ids(rows: &[ParkedMessage]) -> Vec<String> {
    rows.iter().map(|row| row.letter.id.as_ref().map_or_else(String::new, ToString::to_string)).collect()
}

fn all(rows: &[ParkedMessage], outcome: &Resumed) -> Vec<(Dedup, Resumed)> {
    rows.iter().map(|row| (row.dedup, outcome.clone())).collect()
}

/// Takes exactly these, says what became of them, and commits.
async fn retry(store: &PostgresStore, key: &ConsumerKey, expected: &[&str], outcome: Resumed) {
    let (mut tx, rows) = take(store, key).await.unwrap_or_else(|| panic!("{expected:?} is not due"));
    assert_eq!(ids(&rows), expected);
    store.resume(&mut tx, key, &all(&rows, &outcome)).await.unwrap();
    store.commit(tx).await.unwrap();
}

const BEHIND: &str = "SELECT count(*) FROM handstamp.parked WHERE behind";

/// Whoever comes first, no row is left that waits for one that is gone.
async fn a_worker_and_a_lane_meet_at_one_key(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let other = database.store();
    for outcome in [Resumed::Applied, Resumed::Dead { failed: attempt("no"), charged: true }] {
        let applied = outcome == Resumed::Applied;
        let named = |n: u32| format!("{applied}{n}");
        let [m1, m2, m3, m4] = [1, 2, 3, 4].map(named);
        // A worker holds the first while the lane parks the second.
        park(&store, &key, &[&m1], Some(1)).await;
        let (mut worker, rows) = take(&other, &key).await.unwrap();
        let lane = parking(&store, &key, &[&m2], Some(1)).await;
        other.resume(&mut worker, &key, &all(&rows, &outcome)).await.unwrap();
        other.commit(worker).await.unwrap();
        assert!(take(&other, &key).await.is_none(), "the second is not committed");
        store.commit(lane).await.unwrap();
        assert_eq!(database.number(BEHIND).await, 0);

        // The lane has parked the third and not committed: the worker takes nothing of the key meanwhile, and
        // nobody waits for a lock.
        let lane = parking(&store, &key, &[&m3], Some(1)).await;
        assert!(take(&other, &key).await.is_none(), "the lane relies on the second");
        store.commit(lane).await.unwrap();
        assert_eq!(database.number(BEHIND).await, 1);

        // A worker holds the second, the lane relies on the third: the worker ends first and waits for nobody.
        let (mut worker, rows) = take(&other, &key).await.unwrap();
        assert_eq!(ids(&rows), [m2.as_str()]);
        let lane = parking(&store, &key, &[&m4], Some(1)).await;
        other.resume(&mut worker, &key, &all(&rows, &outcome)).await.unwrap();
        other.commit(worker).await.unwrap();
        assert!(take(&other, &key).await.is_none(), "the lane relies on the third");
        store.commit(lane).await.unwrap();
        retry(&other, &key, &[&m3], outcome.clone()).await;
        retry(&other, &key, &[&m4], outcome.clone()).await;
        assert_eq!(database.number("SELECT count(*) FROM handstamp.parked").await, 0);
    }
}

/// A lane that rolls back, or fails again and again, leaves the key as it was.
async fn a_key_goes_on_whatever_its_lane_does(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["m1", "m2", "m3"], Some(1)).await;
    park(&store, &key, &["free"], None).await;
    assert_eq!(database.number(BEHIND).await, 2);
    let lane = parking(&store, &key, &["m4"], Some(1)).await;
    store.rollback(lane).await.unwrap();
    let again = Resumed::Again { wait: Duration::ZERO, failed: attempt("again") };
    retry(&store, &key, &["m1", "free"], again).await;
    let status = store.parked_status(&key).await.unwrap();
    assert_eq!((status.count, status.due_in), (4, Some(Duration::ZERO)));
    // The one that failed again stays the first of its key.
    let (mut tx, rows) = take(&store, &key).await.unwrap();
    let mut taken = ids(&rows);
    taken.sort();
    assert_eq!(taken, ["free", "m1"]);
    assert!(rows.iter().all(|row| row.letter.attempts == 4 && row.letter.reason == Reason::new("again")));
    store.resume(&mut tx, &key, &all(&rows, &Resumed::Applied)).await.unwrap();
    store.commit(tx).await.unwrap();
    for next in ["m2", "m3"] {
        retry(&store, &key, &[next], Resumed::Applied).await;
    }
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox WHERE state = 'a'").await, 4);
    let status = store.parked_status(&key).await.unwrap();
    assert_eq!((status.count, status.due_in, status.oldest), (0, None, None));
}

/// The racer asks while the removal is under way, and is made to wait until it is committed.
async fn the_second_waits_for_the_commit_that_removes_the_first(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["m1", "m2"], Some(1)).await;
    let (mut tx, rows) = take(&store, &key).await.unwrap();
    assert_eq!(ids(&rows), ["m1"]);
    store.resume(&mut tx, &key, &all(&rows, &Resumed::Applied)).await.unwrap();
    // Its effect is not durable: who looks now takes nothing.
    assert!(take(&database.store(), &key).await.is_none());
    // One that waits for the consumer's lock, behind somebody who wants it alone.
    let admin = database.admin().await;
    let row = admin
        .query_one(
            "SELECT (classid::int8 << 32) | objid::int8 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            &[],
        )
        .await
        .unwrap();
    let lock: i64 = row.get(0);
    let alone = tokio::spawn(async move {
        admin.execute("SELECT pg_advisory_lock($1)", &[&lock]).await.unwrap();
        admin
    });
    database.until_blocked(1).await;
    let (racing, of) = (database.store(), key.clone());
    let racer = tokio::spawn(async move {
        let (mut tx, rows) = racing.take_due(&of, 100).await.unwrap().expect("the second is due");
        racing.resume(&mut tx, &of, &all(&rows, &Resumed::Applied)).await.unwrap();
        racing.commit(tx).await.unwrap();
        ids(&rows)
    });
    database.until_blocked(2).await;
    store.commit(tx).await.unwrap();
    let admin = alone.await.unwrap();
    database.until_blocked(1).await;
    admin.execute("SELECT pg_advisory_unlock($1)", &[&lock]).await.unwrap();
    assert_eq!(racer.await.unwrap(), ["m2"]);
}

/// The racer's snapshot is from before the removal, and it asks for locks after the commit.
async fn an_old_snapshot_never_takes_the_second(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["m1"], Some(1)).await;
    let (mut tx, rows) = take(&store, &key).await.unwrap();
    // Parked while a worker holds the first, so that nothing but the look at the first keeps it back.
    park(&database.store(), &key, &["m2"], Some(1)).await;
    assert_eq!(database.number(BEHIND).await, 0);
    let admin = database.admin().await;
    admin.batch_execute("SELECT pg_advisory_lock(77)").await.unwrap();
    let sql = include_str!("../../src/postgres/sql/parked_take.sql");
    let sql = rendered(&sql.replace("{guard}", "(SELECT pg_advisory_lock_shared(77) IS NOT NULL)"));
    let (client, number) = (database.client().await, key.id);
    let racer = tokio::spawn(async move {
        let nobody = None::<&[u8]>;
        client.query(&sql, &[&number, &100_i64, &nobody]).await.unwrap().len()
    });
    database.until_blocked(1).await;
    store.resume(&mut tx, &key, &all(&rows, &Resumed::Applied)).await.unwrap();
    store.commit(tx).await.unwrap();
    admin.batch_execute("SELECT pg_advisory_unlock(77)").await.unwrap();
    assert_eq!(racer.await.unwrap(), 0);
    retry(&store, &key, &["m2"], Resumed::Applied).await;
}

/// The partition has moved to another node, whose claim waits for the old one's transaction.
async fn a_waiting_lane_learns_that_its_key_is_parked(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let old = parking(&store, &key, &["m1"], Some(1)).await;
    let (new, of) = (database.store(), key.clone());
    let lane = tokio::spawn(async move {
        let (mut tx, claims) = new.begin(&of, &[request("m1", None), request("m2", None)]).await.unwrap();
        assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Parked, .. }), "{claims:?}");
        assert_eq!(claims[1], Claim::First);
        let keys = [OrderKey([2; 16]), OrderKey([1; 16])];
        assert_eq!(new.parked_keys(&mut tx, &of, &keys).await.unwrap(), [false, true]);
        new.park(&mut tx, &of, &[park_of("m2", Some(1))]).await.unwrap();
        new.commit(tx).await.unwrap();
    });
    database.until_blocked(1).await;
    store.commit(old).await.unwrap();
    lane.await.unwrap();
    retry(&store, &key, &["m1"], Resumed::Applied).await;
    retry(&store, &key, &["m2"], Resumed::Applied).await;
}

async fn a_killed_backend_frees_its_rows_and_counts_nothing(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["m1", "m2"], None).await;
    let (mut tx, rows) = take(&store, &key).await.unwrap();
    assert!(take(&database.store(), &key).await.is_none(), "both are locked");
    let again = Resumed::Again { wait: Duration::from_secs(3600), failed: attempt("lost") };
    let dead = Resumed::Dead { failed: attempt("lost"), charged: true };
    store.resume(&mut tx, &key, &[(rows[0].dedup, again), (rows[1].dedup, dead)]).await.unwrap();
    let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    database.number(&format!("SELECT pg_terminate_backend({pid}, 10000)::int")).await;
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    let (tx, rows) = take(&store, &key).await.expect("the rows are free");
    assert_eq!(ids(&rows), ["m1", "m2"]);
    assert!(rows.iter().all(|row| row.letter.attempts == 3), "{rows:?}");
    for row in &rows {
        assert_eq!(store.attempts(&key.name, DeadLetterKey(row.dedup)).await.unwrap(), []);
    }
    store.rollback(tx).await.unwrap();
}

/// Two stores, as two processes have them, with two connections each.
async fn each_due_row_is_taken_once(database: TestDatabase) {
    const ROWS: usize = 1000;
    let (store, key) = database.wallet().await;
    let names: Vec<String> = (0..ROWS).map(|n| format!("m{n}")).collect();
    for (at, chunk) in names.chunks(100).enumerate() {
        // Some of one key, some of none.
        let chunk: Vec<&str> = chunk.iter().map(String::as_str).collect();
        park(&store, &key, &chunk[..90], None).await;
        park(&store, &key, &chunk[90..], u8::try_from(at).ok()).await;
    }
    let stores = [std::sync::Arc::new(database.store()), std::sync::Arc::new(database.store())];
    let workers = (0..4_usize).map(|worker| {
        let (store, key) = (stores[worker % 2].clone(), key.clone());
        tokio::spawn(async move {
            let since = std::time::Instant::now();
            let mut turns = worker;
            let mut held = 0_usize;
            while store.parked_status(&key).await.unwrap().count > 0 {
                assert!(since.elapsed() < Duration::from_secs(120), "rows that nobody can take are left");
                let Some((mut tx, rows)) = store.take_due(&key, 20).await.unwrap() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                held += rows.len();
                // Every third message fails the first time.
                let fails = |row: &ParkedMessage| {
                    row.letter.attempts == 3 && row.letter.id.as_ref().unwrap().as_bytes().ends_with(b"3")
                };
                let mut outcomes = Vec::new();
                for row in &rows {
                    if fails(row) {
                        let failed = attempt("the first time");
                        outcomes.push((row.dedup, Resumed::Again { wait: Duration::ZERO, failed }));
                        continue;
                    }
                    let text = row.letter.id.as_ref().unwrap().to_string();
                    tx.execute("INSERT INTO ledger VALUES ($1, 1, 1)", &[&text]).await.unwrap();
                    outcomes.push((row.dedup, Resumed::Applied));
                }
                store.resume(&mut tx, &key, &outcomes).await.unwrap();
                turns += 1;
                match turns % 7 {
                    0 => store.rollback(tx).await.unwrap(),
                    1 => store.abandon(tx).await,
                    _ => store.commit(tx).await.unwrap(),
                }
            }
            held
        })
    });
    let mut held = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        held.push(worker.await.unwrap());
    }
    assert!(held.iter().all(|rows| *rows > 0), "somebody never got a row: {held:?}");
    let rows = i64::try_from(ROWS).unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, rows);
    assert_eq!(database.number("SELECT count(DISTINCT event_id) FROM ledger").await, rows);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox WHERE state = 'a'").await, rows);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.attempts").await, rows / 10);
    assert_eq!(database.number("SELECT count(DISTINCT dedup) FROM handstamp.attempts").await, rows / 10);
}

fn rendered(sql: &str) -> String {
    let code = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
    code.collect::<Vec<_>>().join("\n").replace("{schema}", "handstamp").replace("{guard}", "true")
}

/// By the pages read and the rows looked at, not by the clock; with and without statistics.
async fn fifty_thousand_behind_one_key_cost_nothing(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    let fill = format!(
        "ALTER TABLE handstamp.parked SET (autovacuum_enabled = off);
         INSERT INTO handstamp.parked (consumer, dedup, due_at_ms, parked_at_ms, order_key, behind, failed_at_ms,
             received_at_ms, attempts, class, reason, id, digest, topic, partition, position, header_names, header_values)
         SELECT {}, decode(md5(n::text), 'hex'), CASE WHEN n <= 50000 OR n % 100 = 0 THEN 1000 + n ELSE 1::int8 << 60 END,
             1000, CASE WHEN n <= 50000 THEN decode(md5('hot'), 'hex') WHEN n % 2 = 0 THEN decode(md5('k' || n), 'hex') END,
             n BETWEEN 2 AND 50000, 0, 0, 0, 'failed', 'r', convert_to('m' || n, 'UTF8'), n, 't', 0, n, '{{}}', '{{}}'
         FROM generate_series(1, 100000) AS n",
        key.id
    );
    admin.batch_execute(&fill).await.unwrap();
    for (analyzed, plans) in [false, true].into_iter().flat_map(|a| ["custom", "generic"].map(|p| (a, p))) {
        if analyzed {
            admin.batch_execute("ANALYZE handstamp.parked").await.unwrap();
        }
        let sql = rendered(include_str!("../../src/postgres/sql/parked_take.sql"));
        let explain = format!(
            "SET plan_cache_mode = force_{plans}_plan; BEGIN; PREPARE take AS {sql};
             EXPLAIN (ANALYZE, BUFFERS, TIMING off, COSTS off) EXECUTE take({}, 100, '\\x01');
             DEALLOCATE take; ROLLBACK",
            key.id
        );
        let answer = admin.simple_query(&explain).await.unwrap();
        let plan: Vec<&str> = answer
            .iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        let text = plan.join("\n");
        let said = format!("analyzed: {analyzed}, {plans} plan\n{text}");
        for index in ["Index Scan using parked_by_due", "using parked_by_order"] {
            assert!(text.contains(index), "{said}");
        }
        for costly in ["Seq Scan", "Sort", "Rows Removed"] {
            assert!(!text.contains(costly), "{costly}: {said}");
        }
        let read = plan.iter().find_map(|line| line.trim().strip_prefix("Buffers: ")).unwrap();
        let pages = read.split_whitespace().filter_map(|word| word.split_once('=')?.1.parse::<u32>().ok());
        assert!(pages.sum::<u32>() < 1500, "{said}");
    }
    // What it answers, and that the next of the hot key follows.
    let (mut tx, rows) = store.take_due(&key, 3).await.unwrap().unwrap();
    assert_eq!(ids(&rows), ["m1", "m50100", "m50200"]);
    store.resume(&mut tx, &key, &all(&rows, &Resumed::Applied)).await.unwrap();
    store.commit(tx).await.unwrap();
    let (tx, rows) = store.take_due(&key, 2).await.unwrap().unwrap();
    assert_eq!(ids(&rows), ["m2", "m50300"]);
    store.rollback(tx).await.unwrap();
    assert_eq!(store.parked_status(&key).await.unwrap().count, 99_997);
}

async fn a_missing_right_is_found_before_the_first_message(database: TestDatabase) {
    let store = database.store();
    let (consumer, fingerprint) = (name("new"), Fingerprint("test".into()));
    assert!(!store.rehearse(&consumer, &fingerprint).await.unwrap());
    let admin = database.admin().await;
    for right in [
        "SELECT ON handstamp.parked",
        "INSERT ON handstamp.parked",
        "UPDATE ON handstamp.parked",
        "DELETE ON handstamp.parked",
        "INSERT ON handstamp.attempts",
        "INSERT ON handstamp.starts",
        "UPDATE ON handstamp.starts",
        "DELETE ON handstamp.starts",
        "SELECT ON handstamp.parked_starts",
        "INSERT ON handstamp.parked_starts",
        "DELETE ON handstamp.parked_starts",
        "SELECT ON handstamp.crashes",
        "INSERT ON handstamp.crashes",
        "DELETE ON handstamp.crashes",
    ] {
        admin.batch_execute(&format!("REVOKE {right} FROM {}", database.role)).await.unwrap();
        let error = database.store().rehearse(&consumer, &fingerprint).await.expect_err(right);
        assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{right}: {error}");
        assert!(error.to_string().contains("--grant-to"), "{right}: {error}");
        admin.batch_execute(&format!("GRANT {right} TO {}", database.role)).await.unwrap();
    }
    assert!(!store.rehearse(&consumer, &fingerprint).await.unwrap());
    let starts = ["starts", "parked_starts", "crashes"];
    for table in ["parked", "attempts", "dead_letters", "inbox", "consumers"].into_iter().chain(starts) {
        assert_eq!(database.number(&format!("SELECT count(*) FROM handstamp.{table}")).await, 0, "{table}");
    }
}

/// A record without a usable id was sent back under one, came again from its source, and the retry fails.
async fn a_record_that_came_again_meets_its_dead_letter(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let bad = letter(None, FailureClass::Identity, Some(b"x"));
    let mut parked = park_of("given", None);
    parked.letter = bad.clone();
    let (mut tx, _) = store.begin(&key, &[request("given", None)]).await.unwrap();
    store.park(&mut tx, &key, &[parked]).await.unwrap();
    store.commit(tx).await.unwrap();
    // As a redrive leaves it: the old key, a new id.
    let update = "UPDATE handstamp.parked SET id = 'given'; UPDATE handstamp.inbox SET state = 'p'";
    database.admin().await.batch_execute(update).await.unwrap();
    let (mut tx, _) = store.begin(&key, &[]).await.unwrap();
    assert_eq!(store.record(&mut tx, &key, &[bad]).await.unwrap(), [Recorded::New]);
    store.commit(tx).await.unwrap();
    retry(&store, &key, &["given"], Resumed::Dead { failed: attempt("no"), charged: false }).await;
    let letters = store.dead_letters(&key.name, None, None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].id.clone(), letters[0].class), (Some(id("given")), FailureClass::Sql));
    let state = store.inbox_row(&key.name, &id("given")).await.unwrap().unwrap().state;
    assert_eq!(state, InboxState::Dead);
}

#[tokio::test]
async fn a_process_takes_from_its_own_schema_only() {
    let database = TestDatabase::new(Server::V18).await;
    let (store, key) = database.wallet().await;
    park(&store, &key, &["m"], None).await;
    let other = store.register(&name("other"), &Fingerprint("test".into()), false).await.unwrap();
    assert!(take(&store, &other).await.is_none());
    let (tx, rows) = store.take_again(&other, &[park_of("m", None).letter.dedup()]).await.unwrap();
    assert_eq!(rows, []);
    store.commit(tx).await.unwrap();
}
