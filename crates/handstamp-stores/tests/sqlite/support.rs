//! What the SQLite tests share: a store in a temporary folder, messages, and a second pair of eyes.

use bytes::Bytes;
use handstamp_core::parked::{FailedAttempt, OrderKey, Park, ParkingStore};
use handstamp_core::{
    ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, Fingerprint, Headers, Message,
    MessageId, Origin, Reason, Record, Store, Timestamp,
};
use handstamp_stores::sqlite::{Setup, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use std::path::Path;
use tempfile::TempDir;

/// The user's own tables in these tests.
pub(crate) const SCHEMA: &str = "
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE ledger (event_id TEXT NOT NULL, amount INTEGER NOT NULL);
CREATE TABLE parents (id INTEGER PRIMARY KEY);
CREATE TABLE children (parent INTEGER NOT NULL REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);
INSERT INTO accounts VALUES (7, 0);
";

pub(crate) fn options(folder: &TempDir) -> SqliteOptions {
    let setup = Setup { name: "schema.sql".into(), sql: SCHEMA.into() };
    SqliteOptions { setup: Some(setup), ..SqliteOptions::new(folder.path().join("store.db")) }
}

pub(crate) async fn open(folder: &TempDir) -> SqliteStore {
    SqliteStore::open(options(folder)).await.unwrap()
}

pub(crate) async fn registered(store: &SqliteStore, name: &str) -> ConsumerKey {
    let name = ConsumerName::new(name).unwrap();
    store.register(&name, &Fingerprint("test".into()), false).await.unwrap()
}

pub(crate) fn id(bytes: impl AsRef<[u8]>) -> MessageId {
    MessageId::new(bytes.as_ref().to_vec()).unwrap()
}

pub(crate) fn requests<T: AsRef<[u8]>>(ids: impl IntoIterator<Item = T>) -> Vec<ClaimRequest> {
    ids.into_iter().map(|bytes| ClaimRequest { id: id(bytes), digest: Some(1) }).collect()
}

pub(crate) fn record(value: Option<&[u8]>) -> Record {
    Record {
        key: None,
        value: value.map(Bytes::copy_from_slice),
        headers: Headers::default(),
        origin: Origin { topic: "credits".into(), partition: 0, offset: 5, line: None },
        timestamp: None,
    }
}

pub(crate) fn message(id_text: &str, value: &str) -> Message {
    Message::new(id(id_text), record(Some(value.as_bytes())))
}

pub(crate) fn letter(id_bytes: Option<&[u8]>, class: FailureClass) -> DeadLetter {
    let record = record(Some(b"body"));
    DeadLetter {
        id: id_bytes.map(id),
        digest: record.digest(),
        record,
        truncation: None,
        class,
        code: None,
        reason: Reason::new("why"),
        attempts: 3,
        received_at: Timestamp(1),
        failed_at: Timestamp(2),
    }
}

/// A message to park, due at once.
pub(crate) fn row(id_text: &str, order_key: Option<u8>) -> Park {
    let mut letter = letter(Some(id_text.as_bytes()), FailureClass::Sql);
    letter.attempts = 0;
    let order_key = order_key.map(|key| OrderKey([key; 16]));
    Park { letter, wait: std::time::Duration::ZERO, order_key }
}

/// Claims the ids of messages and parks them, in one transaction.
pub(crate) async fn park(store: &SqliteStore, consumer: &ConsumerKey, rows: &[Park]) {
    let ids: Vec<ClaimRequest> = rows
        .iter()
        .filter_map(|row| Some(ClaimRequest { id: row.letter.id.clone()?, digest: Some(row.letter.digest) }))
        .collect();
    let (mut tx, _) = store.begin(consumer, &ids).await.unwrap();
    store.park(&mut tx, consumer, rows).await.unwrap();
    store.commit(tx).await.unwrap();
}

pub(crate) fn attempt(number: i64) -> FailedAttempt {
    FailedAttempt {
        at: Timestamp(number),
        node: "node/1".into(),
        class: FailureClass::Failed,
        code: None,
        reason: Reason::new(&format!("attempt {number}")),
    }
}

/// A connection beside the store's, as another process has it.
pub(crate) fn beside(folder: &TempDir) -> Connection {
    connect(&folder.path().join("store.db"))
}

pub(crate) fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    connection
}

pub(crate) fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}
