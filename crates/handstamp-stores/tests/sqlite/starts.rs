//! Start records on SQLite: what outlives a process, and who is counted for what.

use crate::support::{SCHEMA, attempt, beside, id, letter, number, open, park, registered, requests, row};
use crate::unwaited::{FULL, synchronous};
use handstamp_core::parked::{Dedup, ParkedMessage, ParkingStore, Resumed};
use handstamp_core::{
    Company, ConsumerKey, ConsumerName, Crash, DeadLetter, FailureClass, Fingerprint, Lost, Owner, Start,
    StartStore, Starter, Store, StoreErrorKind, TakenOver,
};
use handstamp_stores::redrive::Operation;
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::{Setup, SqliteOptions, SqliteStore, Tx};
use handstamp_testkit::process::{Process, Signal};
use rusqlite::Connection;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const STARTS: &str = "SELECT count(*) FROM handstamp_starts";
pub(crate) const PARKED_STARTS: &str = "SELECT count(*) FROM handstamp_parked_starts";
pub(crate) const CRASHES: &str = "SELECT count(*) FROM handstamp_crashes";
const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn starter(name: &str) -> Starter {
    Starter { owner: Owner::random(), node: name.into() }
}

pub(crate) fn lane(name: &str) -> Arc<str> {
    name.into()
}

/// A span of many messages in the lane `credits/0`.
pub(crate) fn span(by: &Starter, first: i64, last: i64) -> Start {
    let count = u32::try_from(last - first + 1).unwrap();
    Start { by: by.clone(), lane: lane("credits/0"), first, last, count, alone: None }
}

pub(crate) fn alone(by: &Starter, position: i64, id_text: &str) -> Start {
    Start { alone: Some(id(id_text)), ..span(by, position, position) }
}

pub(crate) async fn started(store: &SqliteStore, consumer: &ConsumerKey, start: &Start, ids: &[&str]) -> Tx {
    store.start_and_begin(consumer, &requests(ids), start).await.unwrap().0
}

async fn taken_over(store: &SqliteStore, consumer: &ConsumerKey, by: &Starter) -> TakenOver {
    store.take_over(consumer, by, &[lane("credits/0")]).await.unwrap()
}

fn starts_of(taken: &TakenOver) -> Vec<&Start> {
    taken.orphans.iter().map(|orphan| &orphan.start).collect()
}

/// Who is counted, in an order of its own: two may have started within a millisecond.
pub(crate) fn owners(crashes: &[Crash]) -> Vec<Owner> {
    sorted(crashes.iter().map(|crash| crash.by.owner).collect())
}

fn sorted(mut owners: Vec<Owner>) -> Vec<Owner> {
    owners.sort_unstable();
    owners
}

pub(crate) fn keys(rows: &[ParkedMessage]) -> Vec<Dedup> {
    rows.iter().map(|row| row.dedup).collect()
}

pub(crate) fn dedup(id_text: &str) -> Dedup {
    DeadLetter::dedup_of_id(&id(id_text))
}

#[tokio::test]
async fn a_start_stays_whatever_becomes_of_its_transaction() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (starter("first/1"), starter("second/2"));
    for (at, end) in ["commit", "rollback", "abandon", "drop", "store", "refused"].into_iter().enumerate() {
        let store = open(&folder).await;
        let consumer = registered(&store, "wallet").await;
        let at = i64::try_from(at).unwrap();
        let start = span(&first, 10 * at, 10 * at + 9);
        if end == "refused" {
            // The claim's own check of the consumer's name comes behind the start.
            let stranger = ConsumerKey { name: ConsumerName::new("other").unwrap(), ..consumer.clone() };
            let error = store.start_and_begin(&stranger, &requests(["a"]), &start).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
        } else {
            let tx = started(&store, &consumer, &start, &["a", "b"]).await;
            tx.execute("INSERT INTO ledger VALUES ('a', 1)", []).unwrap();
            match end {
                "commit" => store.commit(tx).await.unwrap(),
                "rollback" => store.rollback(tx).await.unwrap(),
                "abandon" => store.abandon(tx).await,
                "drop" => drop(tx),
                _ => drop((tx, store)),
            }
        }
        let store = open(&folder).await;
        let taken = taken_over(&store, &consumer, &second).await;
        assert_eq!(starts_of(&taken), [&start], "{end}");
        assert_eq!(taken.crashes, [], "{end}: of many nobody is counted");
        assert!(taken.orphans[0].at.0 > 1_600_000_000_000, "{end}: by the clock of this machine");
    }
    let eyes = beside(&folder);
    assert_eq!(number(&eyes, "SELECT count(*) FROM ledger"), 1, "only what was committed");
    assert_eq!(number(&eyes, STARTS), 1, "each start replaced the one before");
}

const PATH: &str = "HANDSTAMP_TEST_SQLITE_STARTS_FILE";

/// In a process of its own: starts `a` alone in its lane, or the parked `p` alone, and hangs inside its handler.
async fn hang(path: &Path, kind: &str) {
    let setup = Setup { name: "schema.sql".into(), sql: SCHEMA.into() };
    let options = SqliteOptions { setup: Some(setup), ..SqliteOptions::new(path) };
    let store = SqliteStore::open(options).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let by = starter("killed/9");
    let tx = if kind == "lane" {
        started(&store, &consumer, &alone(&by, 5, "a"), &["a"]).await
    } else {
        store.start_due(&consumer, 1, &by, Company::None).await.unwrap().unwrap().0
    };
    tx.execute("INSERT INTO ledger VALUES ('a', 1)", []).unwrap();
    std::io::stdout().write_all(b"in the handler\n").unwrap();
    tokio::time::sleep(HOUR).await;
    drop(tx);
}

#[tokio::test]
async fn a_killed_process_leaves_its_start_and_nothing_else() {
    if let Some(path) = std::env::var_os(PATH) {
        let (path, kind) = (Path::new(&path).parent().unwrap(), Path::new(&path).file_name().unwrap());
        hang(&path.join("store.db"), kind.to_str().unwrap()).await;
        return;
    }
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("p", None), row("q", None)]).await;
    for kind in ["lane", "parked"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "starts::a_killed_process_leaves_its_start_and_nothing_else", "--nocapture"])
            .env(PATH, folder.path().join(kind));
        let mut child = Process::start(&mut command).unwrap();
        let patience = Duration::from_secs(60);
        child.wait_for_text("in the handler", patience).unwrap();
        child.signal(Signal::Kill).unwrap();
        assert!(!child.wait(patience).unwrap().status.success(), "{kind}");
    }
    let by = starter("next/2");
    let taken = taken_over(&store, &consumer, &by).await;
    assert_eq!((taken.orphans.len(), taken.crashes.len()), (1, 1));
    assert_eq!(taken.orphans[0].start.alone, Some(id("a")));
    let crash = &taken.crashes[0];
    assert_eq!((crash.dedup, &*crash.by.node), (dedup("a"), "killed/9"));
    assert_eq!(crash.at, taken.orphans[0].at);
    let (tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    assert_eq!(keys(&rows), [dedup("p")], "alone, for a process died while it handled it");
    assert_eq!(rows[0].crashes.len(), 1);
    assert_eq!(&*rows[0].crashes[0].by.node, "killed/9");
    store.rollback(tx).await.unwrap();
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM ledger"), 0);
}

#[tokio::test]
async fn the_next_start_of_an_owner_replaces_the_one_before_in_its_lane_only() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let other = registered(&store, "other").await;
    let (first, second) = (starter("first/1"), starter("second/2"));
    let elsewhere = Start { lane: lane("credits/1"), ..span(&first, 7, 8) };
    for (consumer, start) in [
        (&consumer, alone(&first, 1, "a")),
        (&consumer, elsewhere.clone()),
        (&other, span(&first, 3, 4)),
        (&consumer, span(&second, 5, 6)),
        (&consumer, span(&first, 2, 9)),
    ] {
        let tx = started(&store, consumer, &start, &[]).await;
        store.commit(tx).await.unwrap();
    }
    let third = starter("third/3");
    let mut taken = taken_over(&store, &consumer, &third).await;
    taken.orphans.sort_by_key(|orphan| orphan.start.first);
    assert_eq!(starts_of(&taken), [&span(&first, 2, 9), &span(&second, 5, 6)], "nothing of `a` is left");
    assert_eq!(taken.crashes, []);
    let taken = store.take_over(&consumer, &third, &[lane("credits/1")]).await.unwrap();
    assert_eq!(starts_of(&taken), [&elsewhere]);
    assert_eq!(
        starts_of(&taken_over(&store, &consumer, &first).await),
        [&span(&second, 5, 6)],
        "not its own"
    );
    assert_eq!(store.take_over(&consumer, &third, &[]).await.unwrap(), TakenOver::default());
    assert_eq!(store.take_over(&consumer, &third, &[lane("Credits/0")]).await.unwrap(), TakenOver::default());
}

#[tokio::test]
async fn taking_over_twice_counts_once_and_each_owner_once() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let dead = [starter("first/1"), starter("second/2")];
    for by in &dead {
        drop(started(&store, &consumer, &alone(by, 5, "a"), &["a"]).await);
    }
    let next = starter("next/3");
    let mut first = taken_over(&store, &consumer, &next).await;
    assert_eq!((first.orphans.len(), first.crashes.len()), (2, 2));
    assert!(first.crashes.is_sorted_by_key(|crash| crash.at), "the oldest first");
    assert!(first.crashes.iter().all(|crash| crash.dedup == dedup("a")));
    assert!(first.crashes.iter().all(|crash| crash.is_new));
    first.crashes.iter_mut().for_each(|crash| crash.is_new = false);
    for by in [&next, &starter("another/4")] {
        let again = taken_over(&open(&folder).await, &consumer, by).await;
        assert_eq!(again.crashes, first.crashes);
        assert_eq!(again.orphans.len(), 2);
    }
    assert_eq!(number(&beside(&folder), CRASHES), 2);
    // An owner that finds its own lane again has left nothing there, and another's crash is a crash all the same.
    let taken = taken_over(&store, &consumer, &dead[0]).await;
    assert_eq!((taken.orphans.len(), taken.crashes.len()), (1, 2));
}

#[tokio::test]
async fn a_message_that_the_inbox_knows_killed_nobody() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let name = ConsumerName::new("wallet").unwrap();
    let (tx, _) = store.begin(&consumer, &requests(["applied"])).await.unwrap();
    store.commit(tx).await.unwrap();
    park(&store, &consumer, &[row("parked", None)]).await;
    let letters = ["dead", "discarded"].map(|id| letter(Some(id.as_bytes()), FailureClass::Sql));
    let (mut tx, _) = store.begin(&consumer, &requests(["dead", "discarded"])).await.unwrap();
    store.record(&mut tx, &consumer, &letters).await.unwrap();
    store.commit(tx).await.unwrap();
    let operation = Operation { number: [1; 16], done_by: "me".into(), why: "gone".into() };
    let key = DeadLetterKey(letters[1].dedup());
    assert_eq!(store.discard(&name, &[key], &operation).await.unwrap(), [true]);
    // The same id, of another consumer: it says nothing of this one.
    let other = registered(&store, "other").await;
    let (tx, _) = store.begin(&other, &requests(["unknown"])).await.unwrap();
    store.commit(tx).await.unwrap();
    let next = starter("next/2");
    for id_text in ["applied", "parked", "dead", "discarded"] {
        let by = starter("first/1");
        drop(started(&store, &consumer, &alone(&by, 5, id_text), &[id_text]).await);
        assert_eq!(taken_over(&store, &consumer, &next).await, TakenOver::default(), "{id_text}");
        assert_eq!(number(&beside(&folder), STARTS), 0, "{id_text}: removed");
    }
    drop(started(&store, &consumer, &alone(&starter("first/1"), 5, "unknown"), &[]).await);
    let taken = taken_over(&store, &consumer, &next).await;
    assert_eq!((taken.orphans.len(), taken.crashes.len()), (1, 1));
    // Where many are named, what the inbox knows of one of them does not matter.
    drop(started(&store, &consumer, &span(&starter("first/1"), 5, 6), &["applied"]).await);
    assert_eq!(taken_over(&store, &consumer, &next).await.orphans.len(), 2);
    assert_eq!(number(&beside(&folder), CRASHES), 1);
}

#[tokio::test]
async fn who_withdraws_takes_back_what_it_was_counted_for_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("p", None)]).await;
    let (living, dead) = (starter("living/1"), starter("dead/2"));
    for by in [&living, &dead] {
        drop(store.start_due(&consumer, 1, by, Company::None).await.unwrap().unwrap());
        drop(started(&store, &consumer, &alone(by, 5, "a"), &["a"]).await);
    }
    let next = starter("next/3");
    assert_eq!(taken_over(&store, &consumer, &next).await.crashes.len(), 2);
    let (tx, rows) = store.start_due(&consumer, 1, &next, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(owners(&rows[0].crashes), sorted(vec![living.owner, dead.owner]));
    store.withdraw(&consumer, &living.owner, Lost::Everything).await.unwrap();
    let taken = taken_over(&store, &consumer, &next).await;
    assert_eq!((owners(&taken.crashes), taken.orphans.len()), (vec![dead.owner], 1));
    let (tx, rows) = store.start_due(&consumer, 1, &next, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(owners(&rows[0].crashes), [dead.owner]);
    // And once more, with nothing left.
    store.withdraw(&consumer, &living.owner, Lost::Everything).await.unwrap();
    let eyes = beside(&folder);
    assert_eq!((number(&eyes, STARTS), number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (1, 2, 2));
}

#[tokio::test]
async fn ends_are_those_of_the_owner_and_lanes_that_were_named() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("p", None)]).await;
    let (first, second) = (starter("first/1"), starter("second/2"));
    for by in [&first, &second] {
        for name in ["credits/0", "credits/1", "credits/2"] {
            drop(started(&store, &consumer, &Start { lane: lane(name), ..span(by, 1, 2) }, &[]).await);
        }
        drop(store.start_due(&consumer, 1, by, Company::None).await.unwrap().unwrap());
    }
    let eyes = beside(&folder);
    let both = || (number(&eyes, STARTS), number(&eyes, PARKED_STARTS));
    assert_eq!(both(), (6, 2));
    store.end_starts(&consumer, &first.owner, Some(&[lane("credits/0"), lane("none")])).await.unwrap();
    assert_eq!(both(), (5, 2));
    assert_eq!(starts_of(&taken_over(&store, &consumer, &starter("next/3")).await), [&span(&second, 1, 2)]);
    store.end_starts(&consumer, &first.owner, Some(&[])).await.unwrap();
    assert_eq!(both(), (5, 2));
    store.end_starts(&consumer, &first.owner, None).await.unwrap();
    assert_eq!(both(), (3, 1));
    store
        .forget(&consumer, &[(lane("credits/1"), second.owner), (lane("credits/2"), first.owner)])
        .await
        .unwrap();
    assert_eq!(both(), (2, 1), "one lane of one owner");
    assert_eq!(
        number(&eyes, CRASHES),
        1,
        "the first owner's, counted by the second: only outcomes take it out"
    );
    for (id_text, commits) in [("other", true), ("p", false)] {
        let (mut tx, _) = store.begin(&consumer, &[]).await.unwrap();
        store.absolve(&mut tx, &consumer, &[dedup(id_text)]).await.unwrap();
        if commits {
            store.commit(tx).await.unwrap()
        } else {
            store.rollback(tx).await.unwrap()
        }
        assert_eq!(number(&eyes, CRASHES), 1);
    }
    let (mut tx, _) = store.begin(&consumer, &[]).await.unwrap();
    store.absolve(&mut tx, &consumer, &[dedup("p")]).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!((both(), number(&eyes, CRASHES)), ((2, 1), 0));
}

#[tokio::test]
async fn a_suspect_is_answered_alone_and_the_others_in_front_of_it() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &["a", "b", "c", "d"].map(|id| row(id, None))).await;
    let eyes = beside(&folder);
    // Due one after the other, and not by their names.
    for (late, id_text) in ["c", "a", "d", "b"].into_iter().enumerate() {
        let sql = "UPDATE handstamp_parked SET due_at_ms = 1000 + ?1 WHERE dedup = ?2";
        eyes.execute(sql, (i64::try_from(late).unwrap(), dedup(id_text))).unwrap();
    }
    let dead = starter("dead/1");
    let (tx, rows) = store
        .start_again(&consumer, &[dedup("a"), dedup("d"), dedup("a")], &dead, Company::None)
        .await
        .unwrap();
    assert_eq!(keys(&rows), [dedup("a"), dedup("d")]);
    drop(tx);
    let next = starter("next/2");
    // Its own are no suspects, and a start of it replaces all that it had started.
    let (tx, rows) = store.start_due(&consumer, 10, &dead, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(keys(&rows), ["c", "a", "d", "b"].map(dedup));
    drop(store.start_again(&consumer, &[dedup("a"), dedup("d")], &dead, Company::None).await.unwrap());
    let order = [vec!["c"], vec!["a"], vec!["d"], vec!["b"]];
    for ids in order {
        let (mut tx, rows) = store.start_due(&consumer, 10, &next, Company::None).await.unwrap().unwrap();
        assert_eq!(keys(&rows), ids.iter().map(|id| dedup(id)).collect::<Vec<_>>());
        assert_eq!(rows[0].crashes, [], "of several nobody is counted");
        store.resume(&mut tx, &consumer, &[(rows[0].dedup, Resumed::Applied)]).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    assert!(store.start_due(&consumer, 10, &next, Company::None).await.unwrap().is_none());
    assert!(store.start_due(&consumer, 0, &next, Company::None).await.unwrap().is_none());
    assert_eq!((number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (0, 0));
}

#[tokio::test]
async fn a_parked_message_counts_each_owner_that_died_alone_with_it_until_its_outcome() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &["a", "b", "c"].map(|id| row(id, None))).await;
    let dead = [starter("first/1"), starter("second/2"), starter("third/3")];
    let mut counted = Vec::new();
    for by in &dead {
        let (tx, rows) = store.start_due(&consumer, 1, by, Company::None).await.unwrap().unwrap();
        assert_eq!((keys(&rows), owners(&rows[0].crashes)), (vec![dedup("a")], counted.clone()));
        drop(tx);
        counted = sorted([counted, vec![by.owner]].concat());
    }
    let next = starter("next/4");
    let eyes = beside(&folder);
    for (outcome, left) in [
        (Resumed::Again { wait: Duration::ZERO, failed: attempt(1) }, 3),
        (Resumed::Dead { failed: attempt(2), charged: false }, 0),
    ] {
        let (mut tx, rows) = store.start_again(&consumer, &[dedup("a")], &next, Company::None).await.unwrap();
        assert_eq!(owners(&rows[0].crashes), counted);
        assert!(rows[0].crashes.is_sorted_by_key(|crash| crash.at));
        store.resume(&mut tx, &consumer, &[(dedup("a"), outcome.clone())]).await.unwrap();
        let before = (number(&eyes, PARKED_STARTS), number(&eyes, CRASHES));
        drop(tx);
        assert_eq!((number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), before, "not without the commit");
        let (mut tx, _) = store.start_again(&consumer, &[dedup("a")], &next, Company::None).await.unwrap();
        store.resume(&mut tx, &consumer, &[(dedup("a"), outcome)]).await.unwrap();
        store.commit(tx).await.unwrap();
        assert_eq!((number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (0, left));
    }
}

/// Rows that are gone are not started, and nothing waits behind a key's first that was started.
#[tokio::test]
async fn only_what_is_there_is_started() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", Some(1)), row("behind", Some(1))]).await;
    let by = starter("first/1");
    let eyes = beside(&folder);
    let (tx, rows) =
        store.start_again(&consumer, &[dedup("gone"), dedup("a")], &by, Company::None).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((keys(&rows), number(&eyes, PARKED_STARTS)), (vec![dedup("a")], 1));
    let (tx, rows) = store.start_again(&consumer, &[], &by, Company::None).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((rows, number(&eyes, PARKED_STARTS)), (vec![], 0));
    let (tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((keys(&rows), number(&eyes, PARKED_STARTS)), (vec![dedup("a")], 1));
}

const ROWS: usize = 300;

/// Retries whatever is due, some twice, with some transactions dropped.
async fn work(path: &Path) -> usize {
    let setup = Setup { name: "schema.sql".into(), sql: SCHEMA.into() };
    let store =
        SqliteStore::open(SqliteOptions { setup: Some(setup), ..SqliteOptions::new(path) }).await.unwrap();
    let name = ConsumerName::new("wallet").unwrap();
    let consumer = store.register(&name, &Fingerprint("test".into()), false).await.unwrap();
    let by = starter("worker");
    let (mut applied, mut turns, began) = (0, 0_usize, Instant::now());
    while store.parked_status(&consumer).await.unwrap().count > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "what is parked never comes due");
        let (mut tx, rows) = match store.start_due(&consumer, 17, &by, Company::None).await {
            Ok(Some(due)) => due,
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(error) if error.kind == StoreErrorKind::Conflict => continue,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(synchronous(&tx), FULL);
        assert!(rows.iter().all(|row| !owners(&row.crashes).contains(&by.owner)), "it lives");
        for row in &rows {
            let id = row.letter.id.as_ref().unwrap().to_string();
            tx.execute("INSERT INTO ledger VALUES (?1, 1)", [&id]).unwrap();
        }
        let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
        store.resume(&mut tx, &consumer, &outcomes).await.unwrap();
        turns += 1;
        if turns.is_multiple_of(5) {
            drop(tx);
        } else {
            store.commit(tx).await.unwrap();
            applied += rows.len();
        }
    }
    store.withdraw(&consumer, &by.owner, Lost::Everything).await.unwrap();
    applied
}

#[tokio::test]
async fn two_stores_on_one_file_start_each_row_until_it_is_applied_once() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let rows: Vec<_> = (0..ROWS).map(|n| row(&format!("id-{n:03}"), None)).collect();
    park(&store, &consumer, &rows).await;
    let path = folder.path().join("store.db");
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(work(&path))
            })
        })
        .collect();
    let applied: Vec<usize> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    assert_eq!(applied.iter().sum::<usize>(), ROWS, "{applied:?}");
    let eyes = beside(&folder);
    let rows = i64::try_from(ROWS).unwrap();
    assert_eq!(number(&eyes, "SELECT count(*) FROM ledger"), rows);
    assert_eq!(number(&eyes, "SELECT count(DISTINCT event_id) FROM ledger"), rows);
    assert_eq!((number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (0, 0));
}

#[tokio::test]
async fn tables_that_are_missing_are_said() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let eyes: Connection = beside(&folder);
    eyes.execute_batch("DROP TABLE handstamp_starts").unwrap();
    let by = starter("first/1");
    for error in [
        store.start_and_begin(&consumer, &[], &span(&by, 1, 2)).await.map(drop).unwrap_err(),
        taken_over_error(&store, &consumer, &by).await,
    ] {
        assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
        assert!(error.message.contains("handstamp_starts is missing"), "{error}");
    }
}

async fn taken_over_error(
    store: &SqliteStore,
    consumer: &ConsumerKey,
    by: &Starter,
) -> handstamp_core::StoreError {
    store.take_over(consumer, by, &[lane("credits/0")]).await.unwrap_err()
}

/// Of lanes that nobody takes any more, and of messages that came to their end unseen.
#[tokio::test]
async fn what_is_left_for_long_is_taken_out_at_registration() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("p", None)]).await;
    let (first, second) = (starter("first/1"), starter("second/2"));
    for (name, id_text) in [("gone", "m"), ("too", "n")] {
        let start = Start { lane: lane(name), ..alone(&first, 5, id_text) };
        drop(started(&store, &consumer, &start, &[]).await);
    }
    for by in [&first, &second] {
        drop(store.start_due(&consumer, 1, by, Company::None).await.unwrap().unwrap());
    }
    store.take_over(&consumer, &second, &[lane("gone"), lane("too")]).await.unwrap();
    let eyes = beside(&folder);
    let count = || (number(&eyes, STARTS), number(&eyes, PARKED_STARTS), number(&eyes, CRASHES));
    registered(&store, "wallet").await;
    assert_eq!(count(), (2, 2, 3));
    for sql in [
        "UPDATE handstamp_starts SET at_ms = at_ms - 7 * 86400000 WHERE lane = 'gone'",
        "UPDATE handstamp_parked_starts SET at_ms = at_ms - 7 * 86400000 WHERE node = 'first/1'",
        "UPDATE handstamp_crashes SET at_ms = at_ms - 7 * 86400000
         WHERE dedup <> (SELECT alone_dedup FROM handstamp_starts WHERE lane = 'too')",
    ] {
        assert!(eyes.execute(sql, []).unwrap() > 0, "{sql}");
    }
    registered(&store, "wallet").await;
    assert_eq!(count(), (1, 1, 2), "the crash of what is parked stays with it");
    let taken = store.take_over(&consumer, &starter("next/3"), &[lane("gone"), lane("too")]).await.unwrap();
    assert_eq!((owners(&taken.crashes), taken.orphans.len()), (vec![first.owner], 1));
}
