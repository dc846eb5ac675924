//! Start records of lanes on real servers: what is left by every way to end, and whom it is counted for.

use crate::harness::{TestDatabase, id, letter, name, on_each_server, request};
use crate::parked::park;
use crate::proxy::Step;
use crate::transactions::proxied;
use handstamp_core::{
    Claim, Company, ConsumerKey, Crash, DeadLetter, Dedup, FailureClass, Fingerprint, InboxState, Lost,
    Orphan, Owner, PATIENCE, Start, StartStore, Starter, Store, StoreErrorKind, TakenOver,
};
use handstamp_stores::postgres::{PostgresStore, Tx};
use handstamp_stores::redrive::{Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

on_each_server!(
    a_start_outlives_its_transaction,
    a_start_is_there_while_its_claim_waits,
    a_start_outlives_a_claim_that_fails,
    a_start_is_overwritten_by_the_next_of_its_lane,
    a_start_that_cannot_be_recorded_opens_nothing,
    commit_start_and_next_claim_leave_before_any_answer,
    a_commit_that_fails_leaves_its_start_alone,
    a_connection_cut_anywhere_claims_nothing_without_a_start,
    an_orphan_alone_is_a_crash_once_an_owner,
    many_take_over_at_once_and_charge_once,
    an_orphan_of_many_charges_nobody,
    an_orphan_whose_message_is_known_is_removed,
    an_owner_that_lives_takes_everything_back,
    who_withdraws_meets_who_takes_over,
    what_is_passed_and_decided_is_forgotten,
    an_owner_ends_what_it_started,
    what_is_left_for_long_is_taken_out_at_registration,
    a_message_sent_back_or_given_up_has_no_crashes,
);

const STARTS: &str = "SELECT count(*) FROM handstamp.starts";
const CRASHES: &str = "SELECT count(*) FROM handstamp.crashes";
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn starter(n: u8) -> Starter {
    Starter { owner: Owner([n; 16]), node: format!("host:{n}").into() }
}

pub(crate) fn lane(text: &str) -> Arc<str> {
    text.into()
}

/// One message alone.
pub(crate) fn alone(by: u8, of: &str, text: &str) -> Start {
    Start { by: starter(by), lane: lane(of), first: 7, last: 7, count: 1, alone: Some(id(text)) }
}

/// Many messages.
pub(crate) fn many(by: u8, of: &str, first: i64, last: i64) -> Start {
    let count = u32::try_from(last - first + 1).unwrap();
    Start { by: starter(by), lane: lane(of), first, last, count, alone: None }
}

/// Starts, and dies: what was claimed is rolled back.
async fn die(store: &PostgresStore, key: &ConsumerKey, start: &Start) {
    let (tx, _) = store.start_and_begin(key, &[], start).await.unwrap();
    store.rollback(tx).await.unwrap();
}

async fn take_over(store: &PostgresStore, key: &ConsumerKey, by: u8, lanes: &[&str]) -> TakenOver {
    let lanes: Vec<Arc<str>> = lanes.iter().map(|text| lane(text)).collect();
    store.take_over(key, &starter(by), &lanes).await.unwrap()
}

fn starts(orphans: &[Orphan]) -> Vec<Start> {
    let mut starts: Vec<Start> = orphans.iter().map(|orphan| orphan.start.clone()).collect();
    starts.sort_by_key(|start| (start.lane.clone(), start.by.owner));
    starts
}

/// Whose crashes of which messages, in the order they are told.
fn told(crashes: &[Crash]) -> Vec<(String, [u8; 16])> {
    crashes.iter().map(|crash| (crash.by.node.to_string(), crash.dedup)).collect()
}

fn by(n: u8, text: &str) -> (String, [u8; 16]) {
    (format!("host:{n}"), DeadLetter::dedup_of_id(&id(text)))
}

async fn now(database: &TestDatabase) -> i64 {
    database.number("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)").await
}

async fn pid(tx: &Tx) -> i32 {
    tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn a_start_outlives_its_transaction(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    for (at, end) in ["rolled back", "dropped", "abandoned", "killed"].into_iter().enumerate() {
        let message = [request("m", None)];
        let start = Start { lane: lane(end), ..many(1, "", at.try_into().unwrap(), 500) };
        let before = now(&database).await;
        let (tx, claims) = store.start_and_begin(&key, &message, &start).await.unwrap();
        assert_eq!(claims, [Claim::First], "{end}");
        // Another process sees it while the transaction is open.
        let other = database.store();
        let seen = take_over(&other, &key, 2, &[end]).await;
        assert_eq!(starts(&seen.orphans), std::slice::from_ref(&start), "{end}");
        assert!((before..=now(&database).await).contains(&seen.orphans[0].at.0), "{:?}", seen.orphans);
        match end {
            "rolled back" => store.rollback(tx).await.unwrap(),
            "dropped" => drop(tx),
            "abandoned" => store.abandon(tx).await,
            _ => {
                let pid = pid(&tx).await;
                admin.execute("SELECT pg_terminate_backend($1, 10000)", &[&pid]).await.unwrap();
                assert_eq!(store.commit(tx).await.unwrap_err().kind, StoreErrorKind::Unavailable);
            }
        }
        assert_eq!(starts(&take_over(&other, &key, 2, &[end]).await.orphans), [start], "{end}");
    }
    assert_eq!(
        take_over(&store, &key, 1, &["rolled back", "dropped"]).await,
        TakenOver::default(),
        "its own"
    );
    assert_eq!(take_over(&store, &key, 2, &[]).await, TakenOver::default());
}

async fn a_start_is_there_while_its_claim_waits(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (held, _) = store.begin(&key, &[request("held", None)]).await.unwrap();
    let (waiting, of) = (database.store(), key.clone());
    let waiter = tokio::spawn(async move {
        let start = alone(1, "l", "held");
        waiting.start_and_begin(&of, &[request("held", None)], &start).await.map(|_| ())
    });
    database.until_blocked(1).await;
    let seen = take_over(&store, &key, 2, &["l"]).await;
    assert_eq!(starts(&seen.orphans), [alone(1, "l", "held")]);
    assert_eq!(told(&seen.crashes), [by(1, "held")]);
    // Killed while it waits: the start stays.
    let sql = "SELECT count(*) FROM (SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock') AS killed";
    assert_eq!(database.number(sql).await, 1);
    assert_eq!(waiter.await.unwrap().unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(starts(&take_over(&store, &key, 2, &["l"]).await.orphans), [alone(1, "l", "held")]);
    store.rollback(held).await.unwrap();
}

async fn a_start_outlives_a_claim_that_fails(database: TestDatabase) {
    let mut options = database.options();
    options.lock_timeout = Duration::from_millis(200);
    let (store, key) = database.wallet_with(options).await;
    let (held, _) = store.begin(&key, &[request("held", None)]).await.unwrap();
    let held_again = [request("held", None)];
    let error = store.start_and_begin(&key, &held_again, &many(1, "waits", 1, 2)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    // Behind a commit it is the same.
    let (tx, _) =
        store.start_and_begin(&key, &[request("a", None)], &many(1, "chained", 1, 2)).await.unwrap();
    let (tell, durable) = oneshot::channel();
    let next = many(1, "chained", 3, 4);
    let chained = store.commit_start_and_begin(tx, &key, &held_again, &next, tell).await.unwrap();
    assert!(chained.is_none(), "nothing is open");
    assert_eq!(durable.await, Ok(()));
    store.rollback(held).await.unwrap();
    let unknown = ConsumerKey { id: 77, name: name("nobody") };
    let error = store.start_and_begin(&unknown, &held_again, &many(1, "nobody", 1, 2)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
    let seen = take_over(&database.store(), &key, 2, &["waits", "chained"]).await;
    assert_eq!(starts(&seen.orphans), [next, many(1, "waits", 1, 2)]);
}

async fn a_start_is_overwritten_by_the_next_of_its_lane(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let other = store.register(&name("other"), &Fingerprint("o".into()), false).await.unwrap();
    let (tx, _) = store.start_and_begin(&key, &[request("a", None)], &many(1, "l", 1, 500)).await.unwrap();
    let (tell, _durable) = oneshot::channel();
    let second = alone(1, "l", "b");
    let chained = store.commit_start_and_begin(tx, &key, &[request("b", None)], &second, tell).await.unwrap();
    let (tx, claims) = chained.expect("it is open");
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
    assert_eq!(database.number(STARTS).await, 1);
    die(&store, &key, &many(1, "l", 8, 9)).await;
    die(&store, &key, &many(1, "m", 1, 3)).await;
    die(&store, &key, &many(2, "l", 5, 6)).await;
    die(&store, &other, &many(2, "l", 100, 200)).await;
    assert_eq!(database.number(STARTS).await, 4, "one a consumer, lane and owner");
    let seen = take_over(&store, &key, 3, &["l", "m", "l"]).await;
    assert_eq!(starts(&seen.orphans), [many(1, "l", 8, 9), many(2, "l", 5, 6), many(1, "m", 1, 3)]);
    // A new run of the same node, whatever its name holds.
    let mut odd = many(4, "a\0b", i64::MIN, i64::MIN + 1);
    (odd.first, odd.last, odd.by.node) = (i64::MIN, i64::MAX, "h\0:1".into());
    die(&store, &key, &odd).await;
    let seen = take_over(&store, &key, 5, &["a\0b"]).await;
    assert_eq!((seen.orphans[0].start.first, seen.orphans[0].start.last), (i64::MIN, i64::MAX));
}

async fn a_start_that_cannot_be_recorded_opens_nothing(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let message = [request("m", None)];
    let admin = database.admin().await;
    let (tx, _) = store.begin(&key, &[request("a", None)]).await.unwrap();
    admin.batch_execute(&format!("REVOKE INSERT ON handstamp.starts FROM {}", database.role)).await.unwrap();
    let error = store.start_and_begin(&key, &message, &many(1, "l", 1, 2)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
    assert!(error.to_string().contains("--grant-to"), "{error}");
    let (tell, durable) = oneshot::channel();
    let start = many(1, "l", 1, 2);
    let error = store.commit_start_and_begin(tx, &key, &message, &start, tell).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
    assert!(durable.await.is_err(), "nothing is committed without the start of what follows");
    let other = database.store();
    let (tx, claims) = other.begin(&key, &[request("a", None), message[0].clone()]).await.unwrap();
    assert_eq!(claims, [Claim::First, Claim::First]);
    other.rollback(tx).await.unwrap();
    assert_eq!(database.number(STARTS).await, 0);
}

async fn commit_start_and_next_claim_leave_before_any_answer(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    for chained in [false, true] {
        let (first, second) = (format!("{chained}a"), format!("{chained}b"));
        let tx =
            if chained { Some(store.begin(&key, &[request(&first, None)]).await.unwrap().0) } else { None };
        let syncs = Arc::new(AtomicUsize::new(0));
        let seen = syncs.clone();
        let (mut begun, mut claims) = (false, false);
        proxy.script(move |sent| {
            let opens =
                sent.kind == b'B' && (sent.sql.starts_with("SELECT 1/") || sent.sql.contains(".starts"));
            let opening = opens && !begun;
            begun |= opens;
            claims |= sent.kind == b'B' && sent.sql.contains(".inbox");
            seen.fetch_add(usize::from(begun && sent.kind == b'S'), Ordering::Relaxed);
            match sent.kind {
                _ if opening => Step::HoldAnswers,
                b'S' if claims => Step::FreeAnswers,
                _ => Step::Pass,
            }
        });
        let (tell, durable) = oneshot::channel();
        let (next, start) = ([request(&second, None)], alone(1, "l", &second));
        let begun = async {
            match tx {
                Some(tx) => store.commit_start_and_begin(tx, &key, &next, &start, tell).await.unwrap(),
                None => Some(store.start_and_begin(&key, &next, &start).await.unwrap()),
            }
        };
        let (tx, claims) =
            tokio::time::timeout(LIMIT, begun).await.expect("one waits for the other").unwrap();
        assert_eq!(claims, [Claim::First]);
        assert_eq!(durable.await.is_ok(), chained);
        assert_eq!(syncs.load(Ordering::Relaxed), 2, "one answer for each transaction: {chained}");
        store.commit(tx).await.unwrap();
    }
}

async fn a_commit_that_fails_leaves_its_start_alone(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let unique = "ALTER TABLE ledger ADD UNIQUE (event_id) DEFERRABLE INITIALLY DEFERRED";
    database.admin().await.batch_execute(unique).await.unwrap();
    let endings =
        ["INSERT INTO ledger VALUES ('e', 1, 1), ('e', 1, 1)", "COMMIT", "ROLLBACK", "COMMIT; BEGIN"];
    for (at, (sql, kind)) in endings
        .into_iter()
        .zip([
            StoreErrorKind::Statement,
            StoreErrorKind::TransactionEnded,
            StoreErrorKind::TransactionEnded,
            StoreErrorKind::TransactionEnded,
        ])
        .enumerate()
    {
        let (first, second) = (format!("a{at}"), [request("next", None)]);
        let (tx, _) =
            store.start_and_begin(&key, &[request(&first, None)], &many(1, "l", 1, 2)).await.unwrap();
        tx.batch_execute(sql).await.unwrap();
        let (tell, durable) = oneshot::channel();
        let next = many(1, "l", 3, 4);
        let error = store.commit_start_and_begin(tx, &key, &second, &next, tell).await.unwrap_err();
        assert_eq!(error.kind, kind, "{sql}: {error}");
        assert!(durable.await.is_err(), "{sql}");
        // Nothing of the next is claimed, and it is the first that is recorded.
        let (tx, claims) = store.begin(&key, &second).await.unwrap();
        assert_eq!(claims, [Claim::First], "{sql}");
        store.rollback(tx).await.unwrap();
        let seen = take_over(&store, &key, 2, &["l"]).await;
        assert_eq!(starts(&seen.orphans), [many(1, "l", 1, 2)], "{sql}");
    }
}

/// Cut in front of or behind each message of the write: who was told that a message is claimed has left a start.
async fn a_connection_cut_anywhere_claims_nothing_without_a_start(database: TestDatabase) {
    let (proxy, store, key) = proxied(&database).await;
    let (mut recorded, mut open) = (0_i64, 0_i64);
    for position in 0..30 {
        let (at, before) = (position / 2, position % 2 == 0);
        let (first, second) = (format!("a{position}"), format!("b{position}"));
        let (tx, _) =
            store.start_and_begin(&key, &[request(&first, None)], &many(1, "l", 0, 1)).await.unwrap();
        let mut seen = 0;
        proxy.script(move |_| {
            seen += 1;
            match (seen == at + 1, before) {
                (true, true) => Step::CutBefore,
                (true, false) => Step::CutAfter,
                _ => Step::Pass,
            }
        });
        let (tell, _durable) = oneshot::channel();
        let (next, start) = ([request(&second, None)], alone(1, "l", &second));
        let ended = store.commit_start_and_begin(tx, &key, &next, &start, tell).await;
        proxy.script(|_| Step::Pass);
        let is_open = matches!(ended, Ok(Some(_)));
        if let Ok(Some((tx, _))) = ended {
            store.rollback(tx).await.unwrap_or_default();
        }
        let (tx, claims) = store.begin(&key, &next).await.unwrap();
        assert_eq!(claims, [Claim::First], "position {position}");
        store.rollback(tx).await.unwrap();
        let alone = database.number("SELECT count(*) FROM handstamp.starts WHERE alone IS NOT NULL").await;
        recorded += alone;
        assert!(alone == 1 || !is_open, "position {position}: a claim was answered without a start record");
        open += i64::from(is_open);
    }
    println!("{recorded} start records and {open} claims answered of 30 cuts");
    assert!(open > 0 && (open + 1..30).contains(&recorded), "{recorded} {open}");
}

async fn an_orphan_alone_is_a_crash_once_an_owner(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let other = store.register(&name("other"), &Fingerprint("o".into()), false).await.unwrap();
    die(&store, &key, &alone(1, "l", "m")).await;
    for _ in 0..2 {
        let seen = take_over(&store, &key, 2, &["l"]).await;
        assert_eq!(starts(&seen.orphans), [alone(1, "l", "m")]);
        assert_eq!(told(&seen.crashes), [by(1, "m")]);
        assert_eq!(seen.crashes[0].at, seen.orphans[0].at);
        assert_eq!(seen.crashes[0].by, starter(1));
    }
    // The next owner dies of it as well; what it left is told to the third, the oldest first.
    die(&store, &key, &alone(2, "l", "m")).await;
    die(&store, &key, &alone(3, "m", "n")).await;
    let seen = take_over(&store, &key, 4, &["l"]).await;
    assert_eq!(starts(&seen.orphans), [alone(1, "l", "m"), alone(2, "l", "m")]);
    assert_eq!(told(&seen.crashes), [by(1, "m"), by(2, "m")]);
    assert!(seen.crashes.is_sorted_by_key(|crash| crash.at));
    // An orphan that is gone was a crash all the same, as long as another one names the message.
    store.forget(&key, &[(lane("l"), Owner([1; 16]))]).await.unwrap();
    let seen = take_over(&store, &key, 5, &["l", "m"]).await;
    assert_eq!(starts(&seen.orphans), [alone(2, "l", "m"), alone(3, "m", "n")]);
    let mut crashes = told(&seen.crashes);
    crashes.sort();
    assert_eq!(crashes, [by(1, "m"), by(2, "m"), by(3, "n")]);
    assert_eq!(take_over(&store, &other, 5, &["l", "m"]).await, TakenOver::default());
    assert_eq!(take_over(&store, &key, 5, &["nowhere"]).await, TakenOver::default());
    assert_eq!(database.number(CRASHES).await, 3);
}

async fn many_take_over_at_once_and_charge_once(database: TestDatabase) {
    const LANES: usize = 40;
    let (store, key) = database.wallet().await;
    let names: Vec<String> = (0..LANES).map(|n| format!("l{n}")).collect();
    for lane in &names {
        die(&store, &key, &alone(1, lane, lane)).await;
    }
    let takers = (2..6_u8).map(|taker| {
        let (store, key, mut lanes) = (database.store(), key.clone(), names.clone());
        // Each asks in another order.
        lanes.rotate_left(usize::from(taker) * 7);
        tokio::spawn(async move {
            let lanes: Vec<&str> = lanes.iter().map(String::as_str).collect();
            for _ in 0..5 {
                let seen = take_over(&store, &key, taker, &lanes).await;
                assert_eq!((seen.orphans.len(), seen.crashes.len()), (LANES, LANES));
            }
        })
    });
    for taker in takers.collect::<Vec<_>>() {
        taker.await.unwrap();
    }
    assert_eq!(database.number(CRASHES).await, i64::try_from(LANES).unwrap());
}

async fn an_orphan_of_many_charges_nobody(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    die(&store, &key, &many(1, "l", 1, 500)).await;
    // All of them are known by now: it stays until its lane has passed it.
    for _ in 0..2 {
        let seen = take_over(&store, &key, 2, &["l"]).await;
        assert_eq!((starts(&seen.orphans), seen.crashes), (vec![many(1, "l", 1, 500)], vec![]));
    }
    assert_eq!(database.number(CRASHES).await, 0);
}

async fn an_orphan_whose_message_is_known_is_removed(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (mut tx, _) = store.begin(&key, &[request("applied", None), request("dead", None)]).await.unwrap();
    let dead = letter(Some("dead"), FailureClass::Failed, None);
    store.record(&mut tx, &key, &[dead]).await.unwrap();
    store.commit(tx).await.unwrap();
    park(&store, &key, &["parked"], None).await;
    let uuid = "01930000-0000-7000-8000-000000000001";
    for message in ["applied", "dead", "parked", "open", uuid] {
        die(&store, &key, &alone(1, message, message)).await;
    }
    // One that is claimed and not committed is not known.
    let (open, _) = store.begin(&key, &[request("open", None)]).await.unwrap();
    let lanes = ["applied", "dead", "parked", "open", uuid];
    let other = database.store();
    let seen = take_over(&other, &key, 2, &lanes).await;
    assert_eq!(starts(&seen.orphans), [alone(1, uuid, uuid), alone(1, "open", "open")]);
    assert_eq!((database.number(STARTS).await, database.number(CRASHES).await), (2, 2));
    store.commit(open).await.unwrap();
    let seen = take_over(&other, &key, 2, &lanes).await;
    assert_eq!(starts(&seen.orphans), [alone(1, uuid, uuid)]);
    assert_eq!(told(&seen.crashes), [by(1, uuid)]);
    assert_eq!(store.inbox_row(&key.name, &id("parked")).await.unwrap().unwrap().state, InboxState::Parked);
}

async fn an_owner_that_lives_takes_everything_back(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let other = store.register(&name("other"), &Fingerprint("o".into()), false).await.unwrap();
    for owner in [1, 2] {
        die(&store, &key, &alone(owner, "l", "m")).await;
        die(&store, &key, &many(owner, "n", 1, 2)).await;
        die(&store, &other, &alone(owner, "l", "m")).await;
    }
    for consumer in [&key, &other] {
        assert_eq!(told(&take_over(&store, consumer, 3, &["l"]).await.crashes).len(), 2);
    }
    store.withdraw(&key, &Owner([1; 16]), Lost::Everything).await.unwrap();
    let seen = take_over(&store, &key, 3, &["l", "n"]).await;
    assert_eq!(starts(&seen.orphans), [alone(2, "l", "m"), many(2, "n", 1, 2)]);
    assert_eq!(told(&seen.crashes), [by(2, "m")]);
    assert_eq!(take_over(&store, &other, 3, &["l"]).await.crashes.len(), 2, "another consumer");
    store.withdraw(&key, &Owner([9; 16]), Lost::Everything).await.unwrap();
}

/// Whoever gets the record's lock first, no crash of a living owner is left.
async fn who_withdraws_meets_who_takes_over(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    for withdraws_first in [false, true] {
        die(&store, &key, &alone(1, "l", "m")).await;
        let (taking, withdrawing) = (database.store(), database.store());
        let (of, also_of) = (key.clone(), key.clone());
        let take = async move { take_over(&taking, &of, 2, &["l"]).await };
        let withdraw =
            async move { withdrawing.withdraw(&also_of, &Owner([1; 16]), Lost::Everything).await.unwrap() };
        // It looks, and looks again: then it would count.
        let took = tokio::spawn(take);
        tokio::time::sleep(PATIENCE / 2).await;
        admin.batch_execute("BEGIN; SELECT FROM handstamp.starts FOR UPDATE").await.unwrap();
        if !withdraws_first {
            database.until_blocked(1).await;
        }
        let withdrew = tokio::spawn(withdraw);
        database.until_blocked(2).await;
        admin.batch_execute("COMMIT").await.unwrap();
        withdrew.await.unwrap();
        let seen = took.await.unwrap();
        println!("withdraws first: {withdraws_first}, charged: {}", seen.crashes.len());
        assert_eq!((database.number(CRASHES).await, database.number(STARTS).await), (0, 0));
    }
}

async fn what_is_passed_and_decided_is_forgotten(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    for (owner, of, message) in [(1, "l", "m"), (2, "l", "m"), (1, "n", "o")] {
        die(&store, &key, &alone(owner, of, message)).await;
    }
    take_over(&store, &key, 3, &["l", "n"]).await;
    store.forget(&key, &[]).await.unwrap();
    assert_eq!((database.number(STARTS).await, database.number(CRASHES).await), (3, 3));
    store.forget(&key, &[(lane("l"), Owner([1; 16])), (lane("n"), Owner([2; 16]))]).await.unwrap();
    assert_eq!((database.number(STARTS).await, database.number(CRASHES).await), (2, 3));
    let absolve = async |decided: &[Dedup], commits: bool| {
        let (mut tx, _) = store.begin(&key, &[]).await.unwrap();
        store.absolve(&mut tx, &key, decided).await.unwrap();
        if commits { store.commit(tx).await.unwrap() } else { store.rollback(tx).await.unwrap() }
    };
    absolve(&[by(0, "m").1], false).await;
    absolve(&[], true).await;
    assert_eq!(database.number(CRASHES).await, 3);
    absolve(&[by(0, "m").1, [0; 16]], true).await;
    assert_eq!((database.number(STARTS).await, database.number(CRASHES).await), (2, 1));
    store.forget(&key, &[(lane("n"), Owner([1; 16]))]).await.unwrap();
    absolve(&[by(0, "o").1], true).await;
    let seen = take_over(&store, &key, 3, &["l", "n"]).await;
    assert_eq!(starts(&seen.orphans), [alone(2, "l", "m")]);
}

async fn an_owner_ends_what_it_started(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    for (owner, of) in [(1, "l"), (1, "m"), (1, "n"), (2, "l"), (2, "m")] {
        die(&store, &key, &alone(owner, of, of)).await;
    }
    park(&store, &key, &["p"], None).await;
    let (tx, _) = store.start_due(&key, 10, &starter(1), Company::None).await.unwrap().expect("it is due");
    store.rollback(tx).await.unwrap();
    take_over(&store, &key, 3, &["l"]).await;
    let parked = "SELECT count(*) FROM handstamp.parked_starts";
    store.end_starts(&key, &Owner([1; 16]), Some(&[])).await.unwrap();
    assert_eq!(database.number(STARTS).await, 5);
    store.end_starts(&key, &Owner([1; 16]), Some(&[lane("l"), lane("m"), lane("x")])).await.unwrap();
    assert_eq!((database.number(STARTS).await, database.number(parked).await), (3, 1));
    store.end_starts(&key, &Owner([1; 16]), None).await.unwrap();
    assert_eq!((database.number(STARTS).await, database.number(parked).await), (2, 0));
    assert_eq!(starts(&take_over(&store, &key, 3, &["l", "m", "n"]).await.orphans).len(), 2);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.crashes WHERE node = 'host:1'").await, 1);
}

/// Its process died between the commit that gave it up and the word that its crashes can go.
async fn a_message_sent_back_or_given_up_has_no_crashes(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let messages = ["sent back", "given up", "neither"];
    let letters = messages.map(|text| letter(Some(text), FailureClass::Crashed, Some(b"{}")));
    for text in messages {
        die(&store, &key, &alone(1, text, text)).await;
    }
    take_over(&store, &key, 2, &messages).await;
    let (mut tx, _) = store.begin(&key, &messages.map(|text| request(text, None))).await.unwrap();
    store.record(&mut tx, &key, &letters).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(database.number(CRASHES).await, 3);
    let redrive = Redrive { dead_letter: DeadLetterKey(letters[0].dedup()), new_id: None, order_key: None };
    let operation = Operation { number: [1; 16], done_by: "o".into(), why: "w".into() };
    assert_eq!(store.redrive(&key.name, &[redrive], &operation).await.unwrap(), [Redriven::Parked]);
    let discard = [DeadLetterKey(letters[1].dedup())];
    assert_eq!(store.discard(&key.name, &discard, &operation).await.unwrap(), [true]);
    assert_eq!(database.number(CRASHES).await, 1);
    let (tx, rows) = store.start_due(&key, 10, &starter(3), Company::None).await.unwrap().expect("it is due");
    assert_eq!((rows[0].dedup, rows[0].crashes.as_slice()), (letters[0].dedup(), &[][..]));
    store.rollback(tx).await.unwrap();
}

/// Of lanes that nobody takes any more, and of messages that came to their end unseen.
async fn what_is_left_for_long_is_taken_out_at_registration(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    park(&store, &key, &["p"], None).await;
    die(&store, &key, &alone(1, "gone", "m")).await;
    die(&store, &key, &alone(1, "too", "n")).await;
    let (tx, _) = store.start_due(&key, 10, &starter(1), Company::None).await.unwrap().expect("it is due");
    store.rollback(tx).await.unwrap();
    let (tx, _) = store.start_due(&key, 10, &starter(2), Company::None).await.unwrap().expect("it is due");
    store.rollback(tx).await.unwrap();
    take_over(&store, &key, 2, &["gone", "too"]).await;
    let count = async || {
        let mut left = vec![];
        for table in ["starts", "parked_starts", "crashes"] {
            left.push(database.number(&format!("SELECT count(*) FROM handstamp.{table}")).await);
        }
        left
    };
    let again = async || store.register(&key.name, &Fingerprint("s".into()), true).await.unwrap();
    assert_eq!((again().await.id, count().await), (key.id, vec![2, 2, 3]));
    let age = "UPDATE handstamp.starts SET at_ms = at_ms - 7 * 86400000::int8 WHERE lane = 'gone';
               UPDATE handstamp.parked_starts SET at_ms = at_ms - 7 * 86400000::int8 WHERE node = 'host:1';
               UPDATE handstamp.crashes SET at_ms = at_ms - 7 * 86400000::int8
               WHERE dedup <> (SELECT alone_dedup FROM handstamp.starts WHERE lane = 'too')";
    admin.batch_execute(age).await.unwrap();
    again().await;
    // The crash of what is parked stays with it.
    assert_eq!(count().await, [1, 1, 2]);
    assert_eq!(told(&take_over(&store, &key, 3, &["gone", "too"]).await.crashes), [by(1, "n")]);
}
