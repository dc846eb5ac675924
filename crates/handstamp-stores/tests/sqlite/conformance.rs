//! The rules that every store keeps, on SQLite.

use crate::support::options;
use handstamp_core::parked::{Dedup, FailedAttempt};
use handstamp_core::{BoxError, ConsumerName, DeadLetter, InboxState, MessageId};
use handstamp_stores::redrive::{Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::{Setup, SqliteOptions, SqliteStore, Tx};
use handstamp_testkit::parking_suite::ParkingHarness;
use handstamp_testkit::prune_suite::PruneHarness;
use handstamp_testkit::start_suite::StartHarness;
use handstamp_testkit::store_suite::{EndInside, StoreFeatures, StoreHarness};
use rusqlite::Connection;
use std::time::Duration;
use tempfile::TempDir;

/// An empty file for each case; another `open` is another connection, as another process has it.
struct SqliteHarness {
    folder: TempDir,
}

impl SqliteHarness {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn options(&self) -> SqliteOptions {
        let sql = "CREATE TABLE counters (name TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT";
        let setup = Setup { name: "counters.sql".into(), sql: sql.into() };
        SqliteOptions { setup: Some(setup), ..options(&self.folder) }
    }

    fn eyes(&self) -> Connection {
        crate::support::beside(&self.folder)
    }
}

impl StoreHarness for SqliteHarness {
    type Store = SqliteStore;

    fn features(&self) -> StoreFeatures {
        StoreFeatures {
            errors_abort: false,
            concurrent: false,
            patience: Duration::from_secs(30),
            quiet: Duration::from_millis(200),
        }
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.options()).await.unwrap()
    }

    async fn add(&self, tx: &mut Tx, counter: &str, amount: i64) -> Result<(), BoxError> {
        let sql =
            "INSERT INTO counters VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET amount = amount + ?2";
        tx.prepare_cached(sql)?.execute((counter, amount))?;
        Ok(())
    }

    async fn counter(&self, counter: &str) -> i64 {
        let sql = "SELECT coalesce(sum(amount), 0) FROM counters WHERE name = ?1";
        self.eyes().query_row(sql, [counter], |row| row.get(0)).unwrap()
    }

    async fn fail(&self, tx: &mut Tx) -> BoxError {
        tx.execute("INSERT INTO counters VALUES (NULL, NULL)", []).unwrap_err().into()
    }

    async fn end_inside(&self, tx: &mut Tx, how: EndInside) {
        let sql = match how {
            EndInside::Commit => "COMMIT",
            EndInside::Rollback => "ROLLBACK",
        };
        // The handler swallows the refusal.
        let _ = tx.execute_batch(sql);
    }

    async fn dead_letters(&self, consumer: &ConsumerName) -> Vec<DeadLetter> {
        let store = self.open().await;
        let mut letters = Vec::new();
        for summary in store.dead_letters(consumer, None, None, 10_000).await.unwrap() {
            letters.push(store.dead_letter(consumer, summary.key).await.unwrap().unwrap().letter);
        }
        letters
    }

    async fn inbox_state(&self, consumer: &ConsumerName, id: &MessageId) -> Option<InboxState> {
        self.open().await.inbox_row(consumer, id).await.unwrap().map(|row| row.state)
    }
}

impl ParkingHarness for SqliteHarness {
    async fn attempts(&self, consumer: &ConsumerName, dedup: &Dedup) -> Vec<FailedAttempt> {
        self.open().await.attempts(consumer, DeadLetterKey(*dedup)).await.unwrap()
    }
}

impl StartHarness for SqliteHarness {
    async fn crashes(&self, consumer: &ConsumerName, dedup: &Dedup) -> usize {
        let sql =
            "SELECT count(*) FROM handstamp_crashes AS k JOIN handstamp_consumers AS c ON c.id = k.consumer
                   WHERE c.name = ?1 AND k.dedup = ?2";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let crashes = self.eyes().query_row(sql, (consumer.as_str(), dedup), read).unwrap();
        usize::try_from(crashes).unwrap()
    }

    async fn redrive(&self, consumer: &ConsumerName, dedup: &Dedup) {
        let redrive = Redrive { dead_letter: DeadLetterKey(*dedup), new_id: None, order_key: None };
        let answers = self.open().await.redrive(consumer, &[redrive], &operation()).await;
        assert_eq!(answers.unwrap(), [Redriven::Parked]);
    }

    async fn discard(&self, consumer: &ConsumerName, dedup: &Dedup) {
        let keys = [DeadLetterKey(*dedup)];
        assert_eq!(self.open().await.discard(consumer, &keys, &operation()).await.unwrap(), [true]);
    }
}

impl PruneHarness for SqliteHarness {
    async fn age(&self, by: Duration) {
        let eyes = self.eyes();
        let s = i64::try_from(by.as_secs()).unwrap();
        eyes.execute("UPDATE handstamp_inbox SET seen_at = seen_at - ?1", [s]).unwrap();
        eyes.execute("UPDATE handstamp_attempts SET at_ms = at_ms - ?1 * 1000", [s]).unwrap();
    }
}

fn operation() -> Operation {
    Operation { number: [7; 16], done_by: "suite".into(), why: "a case".into() }
}

handstamp_testkit::store_suite!(SqliteHarness::new());

mod parking {
    use super::SqliteHarness;

    handstamp_testkit::parking_suite!(SqliteHarness::new());
}

mod starting {
    use super::SqliteHarness;

    handstamp_testkit::start_suite!(SqliteHarness::new());
}

mod marking {
    use super::SqliteHarness;

    handstamp_testkit::version_suite!(SqliteHarness::new());
}

mod knowing {
    use super::SqliteHarness;

    handstamp_testkit::identity_suite!(SqliteHarness::new());
}

mod forgetting {
    use super::SqliteHarness;

    handstamp_testkit::prune_suite!(SqliteHarness::new());
}
