//! Parked messages on SQLite beyond what the parking suite asks of every store: many processes on one file, what
//! needs no lock, and what happens when something else touches the rows.

use crate::support::{SCHEMA, attempt, beside, id, number, open, options, park, registered, requests, row};
use handstamp_core::parked::{Park, ParkingStore, Resumed};
use handstamp_core::{ConsumerName, Fingerprint, InboxState, Store, StoreErrorKind};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::{Setup, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const ROWS: usize = 1_000;
const PATH: &str = "HANDSTAMP_TEST_SQLITE_PARKED_FILE";
const HOUR: Duration = Duration::from_secs(3_600);

fn rows() -> Vec<Park> {
    // Every third has an order: ten messages a key.
    let key = |n: usize| n.is_multiple_of(3).then(|| u8::try_from(n / 30).unwrap());
    (0..ROWS).map(|n| row(&format!("id-{n:04}"), key(n))).collect()
}

/// Takes whatever is due until nothing is parked. Each message fails once, then it is applied. Some transactions
/// are dropped when all is written.
async fn work(path: &Path) -> usize {
    let setup = Setup { name: "schema.sql".into(), sql: SCHEMA.into() };
    let store =
        SqliteStore::open(SqliteOptions { setup: Some(setup), ..SqliteOptions::new(path) }).await.unwrap();
    let name = ConsumerName::new("wallet").unwrap();
    let consumer = store.register(&name, &Fingerprint("test".into()), false).await.unwrap();
    let (mut taken, mut turns, began) = (0, 0_usize, Instant::now());
    while store.parked_status(&consumer).await.unwrap().count > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "what is parked never comes due");
        let (mut tx, rows) = match store.take_due(&consumer, 17).await {
            Ok(Some(due)) => due,
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(error) if error.kind == StoreErrorKind::Conflict => continue,
            Err(error) => panic!("{error}"),
        };
        let mut outcomes = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.letter.attempts == 0 {
                outcomes.push((row.dedup, Resumed::Again { wait: Duration::ZERO, failed: attempt(1) }));
            } else {
                let id = row.letter.id.as_ref().unwrap().to_string();
                tx.execute("INSERT INTO ledger VALUES (?1, 1)", [&id]).unwrap();
                tx.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 7", []).unwrap();
                outcomes.push((row.dedup, Resumed::Applied));
            }
        }
        store.resume(&mut tx, &consumer, &outcomes).await.unwrap();
        turns += 1;
        if turns.is_multiple_of(5) {
            drop(tx);
        } else {
            store.commit(tx).await.unwrap();
            taken += rows.len();
        }
    }
    taken
}

fn run(path: &Path) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(path))
}

fn each_row_once(eyes: &Connection) {
    let rows = i64::try_from(ROWS).unwrap();
    assert_eq!(number(eyes, "SELECT balance FROM accounts WHERE id = 7"), rows);
    assert_eq!(number(eyes, "SELECT count(*) FROM ledger"), rows);
    assert_eq!(number(eyes, "SELECT count(DISTINCT event_id) FROM ledger"), rows);
    assert_eq!(number(eyes, "SELECT count(*) FROM handstamp_inbox WHERE state = 'a'"), rows);
    assert_eq!(number(eyes, "SELECT count(*) FROM handstamp_attempts"), rows, "each failure is counted once");
    assert_eq!(number(eyes, "SELECT count(DISTINCT dedup) FROM handstamp_attempts"), rows);
    let mut applied = eyes.prepare("SELECT event_id FROM ledger ORDER BY rowid").unwrap();
    let applied: Vec<String> = applied.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let key_of = |id: &String| id[3..].parse().ok().filter(|n: &usize| n.is_multiple_of(3)).map(|n| n / 30);
    for key in 0..34 {
        let of_key: Vec<&String> = applied.iter().filter(|id| key_of(id) == Some(key)).collect();
        assert!(!of_key.is_empty() && of_key.is_sorted(), "{of_key:?}");
    }
}

async fn thousand(folder: &TempDir) -> std::path::PathBuf {
    let store = open(folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &rows()).await;
    folder.path().join("store.db")
}

#[tokio::test]
async fn stores_on_one_file_take_each_row_once() {
    let folder = TempDir::new().unwrap();
    let path = thousand(&folder).await;
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || run(&path))
        })
        .collect();
    let taken: Vec<usize> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    assert_eq!(taken.iter().sum::<usize>(), 2 * ROWS, "once to fail and once to be applied: {taken:?}");
    each_row_once(&beside(&folder));
}

#[tokio::test]
async fn processes_on_one_file_take_each_row_once() {
    // In a process that this test started, it is one of the workers.
    if let Some(path) = std::env::var_os(PATH) {
        work(Path::new(&path)).await;
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = thousand(&folder).await;
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "parked::processes_on_one_file_take_each_row_once", "--nocapture"])
                .env(PATH, &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
    each_row_once(&beside(&folder));
}

#[tokio::test]
async fn a_dropped_transaction_frees_its_rows_and_counts_nothing() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let rows = ["again", "dead", "applied"].map(|id| row(id, Some(1)));
    park(&store, &consumer, &rows).await;
    let keys: Vec<_> = rows.iter().map(|row| row.letter.dedup()).collect();
    let (mut tx, taken) = store.take_again(&consumer, &keys).await.unwrap();
    assert_eq!(taken.len(), 3);
    let outcomes = [
        (keys[0], Resumed::Again { wait: HOUR, failed: attempt(1) }),
        (keys[1], Resumed::Dead { failed: attempt(2), charged: true }),
        (keys[2], Resumed::Applied),
    ];
    store.resume(&mut tx, &consumer, &outcomes).await.unwrap();
    drop(tx);
    let eyes = beside(&folder);
    eyes.busy_timeout(Duration::ZERO).unwrap();
    eyes.execute_batch("BEGIN IMMEDIATE; ROLLBACK").expect("the lock is free");
    let untouched = "SELECT count(*) FROM handstamp_parked WHERE attempts = 0 AND class = 'sql'";
    assert_eq!(number(&eyes, untouched), 3);
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_attempts"), 0);
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_dead_letters"), 0);
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_inbox WHERE state = 'p'"), 3);
    let (tx, taken) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(taken.iter().map(|row| row.dedup).collect::<Vec<_>>(), [keys[0]]);
}

/// The lock is held and never given up; what needs it would wait for an hour.
#[tokio::test]
async fn nothing_due_is_answered_beside_a_writer() {
    let folder = TempDir::new().unwrap();
    let store = SqliteStore::open(SqliteOptions { lock_timeout: HOUR, ..options(&folder) }).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    let later = Park { wait: HOUR, ..row("later", None) };
    park(&store, &consumer, &[later]).await;
    let writer = beside(&folder);
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let patience = Duration::from_secs(60);
    let none = tokio::time::timeout(patience, store.take_due(&consumer, 10)).await.expect("it waits");
    assert!(none.unwrap().is_none());
    let status = tokio::time::timeout(patience, store.parked_status(&consumer)).await.expect("it waits");
    assert_eq!(status.unwrap().count, 1);
    writer.execute_batch("ROLLBACK").unwrap();
    // A transaction of this process, the same.
    let (tx, _) = store.begin(&consumer, &requests(["other"])).await.unwrap();
    let none = tokio::time::timeout(patience, store.take_due(&consumer, 10)).await.expect("it waits");
    assert!(none.unwrap().is_none());
    store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_busy_writer_is_a_conflict_and_nothing_is_lost() {
    let folder = TempDir::new().unwrap();
    let patience = Duration::from_millis(50);
    let store =
        SqliteStore::open(SqliteOptions { lock_timeout: patience, ..options(&folder) }).await.unwrap();
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    let writer = beside(&folder);
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let key = row("a", None).letter.dedup();
    for error in [
        store.take_due(&consumer, 10).await.map(drop).unwrap_err(),
        store.take_again(&consumer, &[key]).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    }
    writer.execute_batch("ROLLBACK").unwrap();
    let (tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!((rows.len(), rows[0].letter.attempts), (1, 0));
}

#[tokio::test]
async fn an_unknown_consumer_is_said_not_idle() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let mut consumer = registered(&store, "wallet").await;
    consumer.id = 99;
    for error in [
        store.take_due(&consumer, 1).await.map(drop).unwrap_err(),
        store.take_again(&consumer, &[]).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
    }
    registered(&store, "wallet").await;
}

#[tokio::test]
async fn what_was_not_taken_is_not_resumed() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    let again = Resumed::Again { wait: HOUR, failed: attempt(1) };
    let dead = Resumed::Dead { failed: attempt(1), charged: true };
    for outcome in [Resumed::Applied, again, dead] {
        let (mut tx, _) = store.take_due(&consumer, 10).await.unwrap().unwrap();
        let error = store.resume(&mut tx, &consumer, &[([0; 16], outcome)]).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Config, "{error}");
        store.rollback(tx).await.unwrap();
        // The same when the handler took the row away itself: its effect would come again.
        let (mut tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
        tx.execute("DELETE FROM handstamp_parked", []).unwrap();
        let error = store.resume(&mut tx, &consumer, &[(rows[0].dedup, Resumed::Applied)]).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Config, "{error}");
        store.rollback(tx).await.unwrap();
    }
    assert_eq!(store.parked_status(&consumer).await.unwrap().count, 1);
}

/// A person who deletes the first of a key must not leave those behind it waiting for ever.
#[tokio::test]
async fn the_next_of_a_key_follows_whoever_takes_the_first_out() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let other = registered(&store, "other").await;
    park(&store, &consumer, &["a", "b", "c"].map(|id| row(id, Some(1)))).await;
    park(&store, &other, &["d", "e"].map(|id| row(id, Some(1)))).await;
    let eyes = beside(&folder);
    let free = "SELECT group_concat(CAST(id AS TEXT)) FROM (SELECT id FROM handstamp_parked WHERE NOT behind ORDER BY seq)";
    let free = || eyes.query_row(free, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(free(), "a,d");
    eyes.execute("DELETE FROM handstamp_parked WHERE id = CAST('b' AS BLOB)", []).unwrap();
    assert_eq!(free(), "a,d");
    eyes.execute("DELETE FROM handstamp_parked WHERE id = CAST('a' AS BLOB)", []).unwrap();
    assert_eq!(free(), "c,d");
    let (tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.letter.id.clone()).collect::<Vec<_>>(), [Some(id("c"))]);
}

/// SQLite rolled back by itself and the handler went on: nothing of it may be written alone.
#[tokio::test]
async fn nothing_is_resumed_when_sqlite_had_rolled_back() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    beside(&folder)
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON ledger WHEN NEW.amount = 0 BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        )
        .unwrap();
    let (mut tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    let key = rows[0].dedup;
    tx.execute("INSERT INTO ledger VALUES ('x', 0)", []).unwrap_err();
    assert!(tx.is_autocommit());
    store.resume(&mut tx, &consumer, &[(key, Resumed::Applied)]).await.unwrap();
    store.note_attempts(&mut tx, &consumer, &[(key, attempt(1))]).await.unwrap();
    store.park(&mut tx, &consumer, &[row("b", None)]).await.unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Swallowed, "{error}");
    assert_eq!(store.parked_status(&consumer).await.unwrap().count, 1);
    let name = ConsumerName::new("wallet").unwrap();
    assert_eq!(store.attempts(&name, DeadLetterKey(key)).await.unwrap(), []);
    assert_eq!(store.inbox_row(&name, &id("a")).await.unwrap().unwrap().state, InboxState::Parked);
}

/// Whoever copies the file of a program that has ended copies all of it.
#[tokio::test]
async fn a_closed_store_leaves_one_file() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    assert_eq!(store.parked_status(&consumer).await.unwrap().count, 1);
    let (tx, _) = store.take_due(&consumer, 1).await.unwrap().unwrap();
    store.commit(tx).await.unwrap();
    assert!(folder.path().join("store.db-wal").exists());
    drop(store);
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["store.db"]);
}

/// A file that was removed or replaced is noticed by what only reads, too.
#[tokio::test]
async fn another_file_under_the_same_name_is_read_anew() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    assert_eq!(store.parked_status(&consumer).await.unwrap().count, 1);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.path().join(format!("store.db{end}")));
    }
    let error = store.parked_status(&consumer).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    let other = open(&folder).await;
    registered(&other, "wallet").await;
    assert_eq!(store.parked_status(&consumer).await.unwrap().count, 0);
    assert!(store.take_due(&consumer, 1).await.unwrap().is_none());
}

/// No number runs over.
#[tokio::test]
async fn a_wait_beyond_all_times_is_a_long_one() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let rows = [Park { wait: Duration::MAX, ..row("a", None) }];
    park(&store, &consumer, &rows).await;
    assert!(store.take_due(&consumer, 1).await.unwrap().is_none());
    let due_in = store.parked_status(&consumer).await.unwrap().due_in.unwrap();
    assert!(due_in > 24 * 365 * HOUR, "{due_in:?}");
    let key = rows[0].letter.dedup();
    let (mut tx, _) = store.take_again(&consumer, &[key]).await.unwrap();
    let again = Resumed::Again { wait: Duration::MAX, failed: attempt(1) };
    store.resume(&mut tx, &consumer, &[(key, again)]).await.unwrap();
    store.commit(tx).await.unwrap();
    assert!(store.take_due(&consumer, 1).await.unwrap().is_none());
}
