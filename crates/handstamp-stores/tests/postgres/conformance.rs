//! The suite that every store passes, on both servers.

use crate::harness::{Server, TestDatabase};
use handstamp_core::parked::{Dedup, FailedAttempt};
use handstamp_core::{BoxError, ConsumerName, DeadLetter, InboxState, MessageId};
use handstamp_stores::postgres::{PostgresStore, Tx};
use handstamp_stores::redrive::{Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_testkit::parking_suite::ParkingHarness;
use handstamp_testkit::prune_suite::PruneHarness;
use handstamp_testkit::start_suite::StartHarness;
use handstamp_testkit::store_suite::{EndInside, StoreFeatures, StoreHarness};
use std::time::Duration;

struct PostgresHarness {
    database: TestDatabase,
}

impl PostgresHarness {
    async fn new(server: Server) -> Self {
        let database = TestDatabase::new(server).await;
        let tables = format!(
            "CREATE TABLE counters (name text PRIMARY KEY, n int8 NOT NULL CHECK (n < 1000000));
             GRANT SELECT, INSERT, UPDATE ON counters TO {}",
            database.role
        );
        database.admin().await.batch_execute(&tables).await.expect("counters");
        Self { database }
    }
}

impl StoreHarness for PostgresHarness {
    type Store = PostgresStore;

    fn features(&self) -> StoreFeatures {
        StoreFeatures {
            errors_abort: true,
            concurrent: true,
            patience: Duration::from_secs(60),
            quiet: Duration::from_millis(200),
        }
    }

    async fn open(&self) -> PostgresStore {
        self.database.store()
    }

    async fn restart(&self) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '{}'",
            self.database.role
        );
        self.database.admin().await.batch_execute(&sql).await.expect("terminate");
    }

    async fn add(&self, tx: &mut Tx, counter: &str, amount: i64) -> Result<(), BoxError> {
        let sql = "INSERT INTO counters VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET n = counters.n + $2";
        tx.execute(sql, &[&counter, &amount]).await?;
        Ok(())
    }

    async fn counter(&self, counter: &str) -> i64 {
        let admin = self.database.admin().await;
        let row =
            admin.query_opt("SELECT n FROM counters WHERE name = $1", &[&counter]).await.expect("counter");
        row.map_or(0, |row| row.get(0))
    }

    async fn fail(&self, tx: &mut Tx) -> BoxError {
        tx.execute("INSERT INTO counters VALUES ('fails', 1000000)", &[])
            .await
            .expect_err("the check fails")
            .into()
    }

    async fn end_inside(&self, tx: &mut Tx, how: EndInside) {
        let sql = match how {
            EndInside::Commit => "COMMIT",
            EndInside::Rollback => "ROLLBACK",
        };
        tx.batch_execute(sql).await.expect(sql);
    }

    async fn dead_letters(&self, consumer: &ConsumerName) -> Vec<DeadLetter> {
        let store = self.database.store();
        let mut letters = Vec::new();
        for summary in store.dead_letters(consumer, None, None, 1000).await.expect("page") {
            letters.push(store.dead_letter(consumer, summary.key).await.expect("read").expect("kept").letter);
        }
        letters
    }

    async fn inbox_state(&self, consumer: &ConsumerName, id: &MessageId) -> Option<InboxState> {
        self.database.store().inbox_row(consumer, id).await.expect("row").map(|row| row.state)
    }
}

impl ParkingHarness for PostgresHarness {
    async fn attempts(&self, consumer: &ConsumerName, dedup: &Dedup) -> Vec<FailedAttempt> {
        self.database.store().attempts(consumer, DeadLetterKey(*dedup)).await.expect("attempts")
    }
}

impl StartHarness for PostgresHarness {
    async fn crashes(&self, consumer: &ConsumerName, dedup: &Dedup) -> usize {
        let sql =
            "SELECT count(*) FROM handstamp.crashes AS k JOIN handstamp.consumers AS c ON c.id = k.consumer
                   WHERE c.name = $1 AND k.dedup = $2";
        let admin = self.database.admin().await;
        let row = admin.query_one(sql, &[&consumer.as_str(), &dedup.as_slice()]).await.expect("crashes");
        usize::try_from(row.get::<_, i64>(0)).expect("a count")
    }

    async fn redrive(&self, consumer: &ConsumerName, dedup: &Dedup) {
        let redrive = Redrive { dead_letter: DeadLetterKey(*dedup), new_id: None, order_key: None };
        let answers = self.database.store().redrive(consumer, &[redrive], &operation()).await;
        assert_eq!(answers.expect("redrive"), [Redriven::Parked]);
    }

    async fn discard(&self, consumer: &ConsumerName, dedup: &Dedup) {
        let keys = [DeadLetterKey(*dedup)];
        let answers = self.database.store().discard(consumer, &keys, &operation()).await;
        assert_eq!(answers.expect("discard"), [true]);
    }
}

impl PruneHarness for PostgresHarness {
    async fn age(&self, by: Duration) {
        let sql = format!(
            "UPDATE handstamp.inbox SET seen_at = seen_at - {s};
             UPDATE handstamp.inbox_parts SET oldest = oldest - {s};
             UPDATE handstamp.attempts SET at_ms = at_ms - {s} * 1000::int8",
            s = by.as_secs()
        );
        self.database.admin().await.batch_execute(&sql).await.expect("age");
    }
}

fn operation() -> Operation {
    Operation { number: [7; 16], done_by: "suite".into(), why: "a case".into() }
}

mod postgres15 {
    handstamp_testkit::store_suite!(super::PostgresHarness::new(super::Server::V15).await);
}

mod postgres15_parking {
    handstamp_testkit::parking_suite!(super::PostgresHarness::new(super::Server::V15).await);
}

mod postgres15_starts {
    handstamp_testkit::start_suite!(super::PostgresHarness::new(super::Server::V15).await);
}

mod postgres18_starts {
    handstamp_testkit::start_suite!(super::PostgresHarness::new(super::Server::V18).await);
}

mod postgres18_parking {
    handstamp_testkit::parking_suite!(super::PostgresHarness::new(super::Server::V18).await);
}

mod postgres18 {
    handstamp_testkit::store_suite!(super::PostgresHarness::new(super::Server::V18).await);
}

mod postgres15_versions {
    handstamp_testkit::version_suite!(super::PostgresHarness::new(super::Server::V15).await);
}

mod postgres18_versions {
    handstamp_testkit::version_suite!(super::PostgresHarness::new(super::Server::V18).await);
}

mod postgres15_forgets {
    handstamp_testkit::prune_suite!(super::PostgresHarness::new(super::Server::V15).await);
}

mod postgres18_forgets {
    handstamp_testkit::prune_suite!(super::PostgresHarness::new(super::Server::V18).await);
}

mod postgres15_identity {
    handstamp_testkit::identity_suite!(super::PostgresHarness::new(super::Server::V15).await);
}

mod postgres18_identity {
    handstamp_testkit::identity_suite!(super::PostgresHarness::new(super::Server::V18).await);
}
