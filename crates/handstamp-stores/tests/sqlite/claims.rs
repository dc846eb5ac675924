//! Level 0 on SQLite: a claim inside the transaction the user already has.

use crate::support::{connect, id, number};
use handstamp_core::{Claim, ClaimRequest, InboxState, StoreErrorKind};
use handstamp_stores::sqlite::{self, ConsumerName, claim, claim_many, claim_with_digest};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use tempfile::TempDir;

fn migrated(folder: &TempDir) -> Connection {
    let connection = connect(&folder.path().join("store.db"));
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    sqlite::migrate(&connection).unwrap();
    connection
}

fn immediate(connection: &mut Connection) -> Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn claim_and_commit(connection: &mut Connection, consumer: &ConsumerName, bytes: &[u8]) -> Claim {
    let mut tx = immediate(connection);
    let answer = claim(&mut tx, consumer, &id(bytes)).unwrap();
    tx.commit().unwrap();
    answer
}

#[test]
fn the_first_claim_that_commits_is_first_and_the_next_is_a_duplicate() {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    let mut tx = immediate(&mut connection);
    assert_eq!(claim(&mut tx, &wallet, &id("a")).unwrap(), Claim::First);
    tx.rollback().unwrap();
    assert_eq!(claim_and_commit(&mut connection, &wallet, b"a"), Claim::First, "a rollback frees the id");
    let before = number(&connection, "SELECT unixepoch() * 1000");
    let Claim::Duplicate { state: InboxState::Applied, first_seen } =
        claim_and_commit(&mut connection, &wallet, b"a")
    else {
        panic!("not a duplicate");
    };
    assert!((before - 60_000..=before + 1000).contains(&first_seen.0), "{first_seen:?}");
}

#[test]
fn ids_are_bytes_and_survive_a_restart() {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    let uuid = "0193f5a0-7c3e-7b1a-8000-0123456789ab";
    let raw_uuid = id(uuid).to_stored();
    let ids: Vec<Vec<u8>> = [
        &b"1e3"[..],
        b"1000",
        b"1000.0",
        b"007",
        b"7",
        b"null",
        b"a",
        b"A",
        b"a ",
        b"a\t",
        b"a\n",
        b"a\0",
        b"a\0\0",
        b"\0",
        b"\xff\xfe",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"'; DROP TABLE handstamp_inbox; --",
        uuid.as_bytes(),
        &raw_uuid,
    ]
    .into_iter()
    .map(<[u8]>::to_vec)
    .chain([
        uuid.to_uppercase().into_bytes(),
        format!("{{{uuid}}}").into_bytes(),
        vec![b'x'; 1024],
        vec![b'x'; 1023],
    ])
    .collect();
    for bytes in &ids {
        assert_eq!(
            claim_and_commit(&mut connection, &wallet, bytes),
            Claim::First,
            "{}",
            bytes.escape_ascii()
        );
    }
    drop(connection);
    let mut connection = connect(&folder.path().join("store.db"));
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    for bytes in &ids {
        let answer = claim_and_commit(&mut connection, &wallet, bytes);
        assert!(matches!(answer, Claim::Duplicate { .. }), "{}", bytes.escape_ascii());
    }
    assert_eq!(
        number(&connection, "SELECT count(*) FROM handstamp_inbox"),
        i64::try_from(ids.len()).unwrap()
    );
    assert_eq!(number(&connection, "SELECT count(*) FROM handstamp_inbox WHERE typeof(id) <> 'blob'"), 0);
}

#[test]
fn many_claims_answer_in_the_order_asked() {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    claim_and_commit(&mut connection, &wallet, b"m");
    let ask = |text: &str, digest: i64| ClaimRequest { id: id(text), digest: Some(digest) };
    let mut tx = immediate(&mut connection);
    let answers =
        claim_many(&mut tx, &wallet, &[ask("z", 1), ask("m", 1), ask("a", 1), ask("z", 1), ask("a", 2)])
            .unwrap();
    assert_eq!(answers[0], Claim::First);
    assert!(
        matches!(answers[1], Claim::Duplicate { .. }),
        "claimed without a digest before: no reuse is seen"
    );
    assert_eq!(answers[2], Claim::First);
    assert!(matches!(answers[3], Claim::Duplicate { .. }), "the same id twice in one call");
    assert!(matches!(answers[4], Claim::IdReused { .. }), "the same id with another body");
    tx.commit().unwrap();
    let mut tx = immediate(&mut connection);
    assert!(matches!(claim_with_digest(&mut tx, &wallet, &id("z"), 2).unwrap(), Claim::IdReused { .. }));
    assert!(matches!(claim_with_digest(&mut tx, &wallet, &id("z"), 1).unwrap(), Claim::Duplicate { .. }));
    assert_eq!(claim_many(&mut tx, &wallet, &[]).unwrap(), []);
}

#[test]
fn ids_are_scoped_by_consumer() {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let one = ConsumerName::register(&connection, "one").unwrap();
    let two = ConsumerName::register(&connection, "two").unwrap();
    assert_eq!(ConsumerName::register(&connection, "one").unwrap(), one, "registering again finds it");
    assert_ne!(one.key().id, two.key().id);
    assert_eq!(claim_and_commit(&mut connection, &one, b"a"), Claim::First);
    assert_eq!(claim_and_commit(&mut connection, &two, b"a"), Claim::First);
    let error = ConsumerName::register(&connection, "not a name").unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Config);
}

#[test]
fn an_unregistered_consumer_is_never_a_duplicate() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut connection = migrated(&folder);
    let other = migrated(&elsewhere);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    let foreign = ConsumerName::register(&other, "foreign").unwrap();
    assert_eq!(wallet.key().id, foreign.key().id, "the same number in another file");
    claim_and_commit(&mut connection, &wallet, b"a");
    for bytes in [b"a", b"b"] {
        let mut tx = immediate(&mut connection);
        let error = claim(&mut tx, &foreign, &id(bytes)).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
    }
    assert_eq!(number(&connection, "SELECT count(*) FROM handstamp_inbox"), 1);
}

#[test]
fn what_the_inbox_refuses_is_an_error_with_its_code() {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    let made: String = connection
        .query_row("SELECT sql FROM sqlite_schema WHERE name = 'handstamp_inbox'", [], |row| row.get(0))
        .unwrap();
    let stricter = made.replace("state    TEXT    NOT NULL,", "state TEXT NOT NULL, CHECK (length(id) < 4),");
    assert_ne!(made, stricter);
    connection.execute_batch(&format!("DROP TABLE handstamp_inbox; {stricter}")).unwrap();
    assert_eq!(claim_and_commit(&mut connection, &wallet, b"abc"), Claim::First);
    let request = |text: &str| ClaimRequest { id: id(text), digest: None };
    for requests in [vec![request("abcd")], vec![request("a"), request("abcd")]] {
        let mut tx = immediate(&mut connection);
        let error = claim_many(&mut tx, &wallet, &requests).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().downcast_ref::<rusqlite::Error>().unwrap();
        let code = cause.sqlite_error().map(|code| code.extended_code);
        assert_eq!(
            code,
            Some(rusqlite::ffi::SQLITE_CONSTRAINT_CHECK),
            "not hidden, and no duplicate: {error}"
        );
    }
}

#[test]
fn without_our_tables_the_error_says_what_to_type() {
    let connection = Connection::open_in_memory().unwrap();
    let error = ConsumerName::register(&connection, "wallet").unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated);
    assert!(error.message.contains("handstamp migrate"), "{error}");
}

#[test]
fn a_deferred_transaction_that_has_read_must_begin_immediate() {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    let mut other = connect(&folder.path().join("store.db"));
    let read = "SELECT count(*) FROM handstamp_inbox";

    // Another one committed since the read: the snapshot is too old.
    let mut deferred = connection.transaction().unwrap();
    number(&deferred, read);
    claim_and_commit(&mut other, &wallet, b"b");
    let error = claim(&mut deferred, &wallet, &id("a")).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict);
    assert!(error.message.contains("IMMEDIATE"), "{error}");
    deferred.rollback().unwrap();

    // Another one holds the lock: no busy timeout helps.
    let mut deferred = connection.transaction().unwrap();
    number(&deferred, read);
    let held = immediate(&mut other);
    assert_eq!(claim(&mut deferred, &wallet, &id("a")).unwrap_err().kind, StoreErrorKind::Conflict);
    deferred.rollback().unwrap();
    held.rollback().unwrap();

    // Run again as the error says.
    assert_eq!(claim_and_commit(&mut connection, &wallet, b"a"), Claim::First);
    // A deferred transaction that writes first works as well.
    let mut deferred = connection.transaction().unwrap();
    assert_eq!(claim(&mut deferred, &wallet, &id("c")).unwrap(), Claim::First);
    deferred.commit().unwrap();
}

static BLOCKED: AtomicU32 = AtomicU32::new(0);

fn count_blocked(_: i32) -> bool {
    BLOCKED.fetch_add(1, Ordering::SeqCst);
    std::thread::yield_now();
    true
}

/// The second racer is seen waiting in SQLite before the first one ends.
fn race(first_commits: bool) -> Claim {
    let folder = TempDir::new().unwrap();
    let mut connection = migrated(&folder);
    let wallet = ConsumerName::register(&connection, "wallet").unwrap();
    let mut tx = immediate(&mut connection);
    assert_eq!(claim(&mut tx, &wallet, &id("a")).unwrap(), Claim::First);
    let path = folder.path().join("store.db");
    let (said, heard) = mpsc::channel();
    let seen = BLOCKED.load(Ordering::SeqCst);
    let racer = std::thread::spawn(move || {
        let mut connection = Connection::open(path).unwrap();
        connection.busy_handler(Some(count_blocked)).unwrap();
        let wallet = ConsumerName::register(&connection, "wallet").unwrap();
        said.send(()).unwrap();
        claim_and_commit(&mut connection, &wallet, b"a")
    });
    heard.recv().unwrap();
    while BLOCKED.load(Ordering::SeqCst) == seen {
        std::thread::yield_now();
    }
    if first_commits {
        tx.commit().unwrap()
    } else {
        tx.rollback().unwrap()
    }
    racer.join().unwrap()
}

#[test]
fn a_racer_waits_and_takes_what_the_first_one_leaves() {
    assert!(matches!(race(true), Claim::Duplicate { state: InboxState::Applied, .. }));
    assert_eq!(race(false), Claim::First);
}

/// The control: look up, act and mark in two transactions.
#[test]
fn looking_up_before_acting_doubles() {
    let folder = TempDir::new().unwrap();
    let (mut one, mut two) = (migrated(&folder), connect(&folder.path().join("store.db")));
    one.execute_batch("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (0); CREATE TABLE seen (id TEXT PRIMARY KEY)")
        .unwrap();
    let known = |connection: &Connection| number(connection, "SELECT count(*) FROM seen WHERE id = 'a'") > 0;
    let both_looked = (known(&one), known(&two));
    for (connection, known) in [(&one, both_looked.0), (&two, both_looked.1)] {
        if !known {
            connection.execute("UPDATE account SET balance = balance + 1", []).unwrap();
            connection.execute("INSERT INTO seen VALUES ('a') ON CONFLICT DO NOTHING", []).unwrap();
        }
    }
    assert_eq!(number(&one, "SELECT balance FROM account"), 2, "the wrong version doubles");

    let wallet = ConsumerName::register(&one, "wallet").unwrap();
    for connection in [&mut one, &mut two] {
        let mut tx = immediate(connection);
        if claim(&mut tx, &wallet, &id("b")).unwrap() == Claim::First {
            tx.execute("UPDATE account SET balance = balance + 10", []).unwrap();
        }
        tx.commit().unwrap();
    }
    assert_eq!(number(&one, "SELECT balance FROM account"), 12, "a claim does not");
}
