//! Level 0 on sqlx: the same rules as on tokio-postgres, on real servers, in a database of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is the failure report")]

use ::sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Postgres, Row, Transaction};
use handstamp_core::{Claim, ClaimRequest, InboxState, MessageId, StoreErrorKind};
use handstamp_stores::own_table::{IdColumn, OwnTable};
use handstamp_stores::sqlx::{ConsumerName, claim, claim_many, claim_own, claim_with_digest};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

macro_rules! on_each_server {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn postgres15() {
                let database = super::Database::new("HANDSTAMP_TEST_POSTGRES15").await;
                super::$name(&database).await;
                database.dropped().await;
            }
            #[tokio::test]
            async fn postgres18() {
                let database = super::Database::new("HANDSTAMP_TEST_POSTGRES").await;
                super::$name(&database).await;
                database.dropped().await;
            }
        }
    )* };
}

on_each_server!(
    the_first_claim_wins_and_the_next_one_is_a_duplicate,
    a_rolled_back_claim_never_was,
    one_call_answers_twins_and_known_ids,
    an_unregistered_consumer_is_never_a_duplicate,
    ids_are_scoped_by_consumer_and_kept_apart,
    a_racer_waits_and_then_gets_duplicate_or_first,
    stricter_isolation_gives_conflict,
    opposite_orders_do_not_deadlock,
    without_our_tables_it_says_so,
    an_own_table_remembers_too,
);

/// A database with our tables, as the migration's files make them.
struct Database {
    server: String,
    name: String,
}

impl Database {
    async fn new(variable: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: scripts/services up, then eval \"$(scripts/services env)\"")
        });
        let name = format!("hs_sqlx_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let database = Self { server, name };
        let mut admin = PgConnection::connect(&database.server).await.unwrap();
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {}", database.name))).await.unwrap();
        let mut ours = database.connect().await;
        for file in [
            include_str!("../../src/postgres/sql/bootstrap.sql"),
            include_str!("../../src/postgres/migrations/0001_inbox.sql"),
            include_str!("../../src/postgres/migrations/0002_parked.sql"),
            include_str!("../../src/postgres/migrations/0003_starts.sql"),
            include_str!("../../src/postgres/migrations/0004_versions.sql"),
            include_str!("../../src/postgres/migrations/0005_prune.sql"),
        ] {
            let sql = file.replace("{schema}", "handstamp");
            ::sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut ours).await.unwrap();
        }
        database
    }

    async fn connect(&self) -> PgConnection {
        let (server, _) = self.server.rsplit_once('/').unwrap();
        PgConnection::connect(&format!("{server}/{}", self.name)).await.unwrap()
    }

    async fn number(&self, sql: &str) -> i64 {
        let row =
            self.connect().await.fetch_one(AssertSqlSafe(format!("SELECT ({sql})::int8"))).await.unwrap();
        row.get(0)
    }

    /// Waits until a backend of this database waits for a lock; bounded.
    async fn until_blocked(&self) {
        let since = Instant::now();
        let blocked = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
            self.name
        );
        while self.number(&blocked).await == 0 {
            assert!(since.elapsed() < Duration::from_secs(30), "nobody waits");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn dropped(&self) {
        let mut admin = PgConnection::connect(&self.server).await.unwrap();
        admin.execute(AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name))).await.unwrap();
    }
}

fn id(text: &str) -> MessageId {
    MessageId::try_from(text).unwrap()
}

fn request(text: &str, digest: Option<i64>) -> ClaimRequest {
    ClaimRequest { id: id(text), digest }
}

fn is_duplicate(claim: Claim) -> bool {
    matches!(claim, Claim::Duplicate { state: InboxState::Applied, .. })
}

async fn begin(connection: &mut PgConnection) -> Transaction<'_, Postgres> {
    connection.begin().await.unwrap()
}

async fn the_first_claim_wins_and_the_next_one_is_a_duplicate(database: &Database) {
    let mut connection = database.connect().await;
    let consumer = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    let again = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    assert_eq!(consumer.key(), again.key());
    let mut tx = begin(&mut connection).await;
    assert_eq!(claim(&mut tx, &consumer, &id("m")).await.unwrap(), Claim::First);
    assert!(is_duplicate(claim(&mut tx, &consumer, &id("m")).await.unwrap()));
    tx.commit().await.unwrap();
    let mut tx = begin(&mut connection).await;
    assert!(is_duplicate(claim(&mut tx, &consumer, &id("m")).await.unwrap()));
    assert_eq!(claim_with_digest(&mut tx, &consumer, &id("n"), 7).await.unwrap(), Claim::First);
    let reused = claim_with_digest(&mut tx, &consumer, &id("n"), 8).await.unwrap();
    assert!(matches!(reused, Claim::IdReused { .. }), "{reused:?}");
    let Claim::Duplicate { first_seen, .. } = claim(&mut tx, &consumer, &id("m")).await.unwrap() else {
        panic!()
    };
    let now = handstamp_core::clock::now().0;
    assert!(now.abs_diff(first_seen.0) < 600_000, "{first_seen}");
}

async fn a_rolled_back_claim_never_was(database: &Database) {
    let mut connection = database.connect().await;
    let consumer = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    for _ in 0..3 {
        let mut tx = begin(&mut connection).await;
        assert_eq!(claim(&mut tx, &consumer, &id("m")).await.unwrap(), Claim::First);
        tx.rollback().await.unwrap();
    }
    // Dropped, too.
    drop(begin(&mut connection).await);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, 0);
}

async fn one_call_answers_twins_and_known_ids(database: &Database) {
    let mut connection = database.connect().await;
    let consumer = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    let mut tx = begin(&mut connection).await;
    claim_with_digest(&mut tx, &consumer, &id("known"), 1).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = begin(&mut connection).await;
    let asked = [
        request("b", Some(1)),
        request("known", Some(2)),
        request("a", None),
        request("b", Some(1)),
        request("b", Some(3)),
        request("known", Some(1)),
    ];
    let claims = claim_many(&mut tx, &consumer, &asked).await.unwrap();
    assert_eq!((claims[0], claims[2]), (Claim::First, Claim::First));
    assert!(
        matches!(claims[1], Claim::IdReused { .. }) && matches!(claims[4], Claim::IdReused { .. }),
        "{claims:?}"
    );
    assert!(is_duplicate(claims[3]) && is_duplicate(claims[5]), "{claims:?}");
    assert_eq!(claim_many(&mut tx, &consumer, &[]).await.unwrap(), []);
    let many: Vec<_> = (0..5_000).map(|n| request(&format!("many-{n}"), None)).collect();
    let claims = claim_many(&mut tx, &consumer, &many).await.unwrap();
    assert!(claims.iter().all(|claim| *claim == Claim::First));
}

async fn an_unregistered_consumer_is_never_a_duplicate(database: &Database) {
    let mut connection = database.connect().await;
    let consumer = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    connection.execute("DELETE FROM handstamp.consumers").await.unwrap();
    let mut tx = begin(&mut connection).await;
    let error = claim(&mut tx, &consumer, &id("m")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
    drop(tx);
    for name in ["", "a b"] {
        let error = ConsumerName::register(&mut connection, name).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Config);
    }
}

async fn ids_are_scoped_by_consumer_and_kept_apart(database: &Database) {
    let mut connection = database.connect().await;
    let wallet = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    let stock = ConsumerName::register(&mut connection, "stock").await.unwrap();
    let mut tx = begin(&mut connection).await;
    let ids =
        ["a", "A", " a", "0193f5a0-7c3e-7b1a-8000-0123456789ab", "0193F5A0-7C3E-7B1A-8000-0123456789AB"];
    for consumer in [&wallet, &stock] {
        for text in ids {
            assert_eq!(claim(&mut tx, consumer, &id(text)).await.unwrap(), Claim::First, "{text}");
        }
        let raw = MessageId::new(vec![0xff, 0x00]).unwrap();
        assert_eq!(claim(&mut tx, consumer, &raw).await.unwrap(), Claim::First);
    }
}

async fn a_racer_waits_and_then_gets_duplicate_or_first(database: &Database) {
    let (mut one, mut two) = (database.connect().await, database.connect().await);
    let consumer = ConsumerName::register(&mut one, "wallet").await.unwrap();
    for commits in [true, false] {
        let text = format!("race-{commits}");
        let mut tx = begin(&mut one).await;
        assert_eq!(claim(&mut tx, &consumer, &id(&text)).await.unwrap(), Claim::First);
        let racing = async {
            let mut tx = begin(&mut two).await;
            let answer = claim(&mut tx, &consumer, &id(&text)).await.unwrap();
            tx.commit().await.unwrap();
            answer
        };
        let ends = async {
            database.until_blocked().await;
            if commits { tx.commit().await } else { tx.rollback().await }.unwrap();
        };
        let (answer, ()) = tokio::join!(racing, ends);
        assert_eq!(answer == Claim::First, !commits, "{answer:?}");
    }
}

async fn stricter_isolation_gives_conflict(database: &Database) {
    let (mut one, mut two) = (database.connect().await, database.connect().await);
    let consumer = ConsumerName::register(&mut one, "wallet").await.unwrap();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut tx = begin(&mut one).await;
        tx.execute(AssertSqlSafe(format!("SET TRANSACTION ISOLATION LEVEL {level}"))).await.unwrap();
        tx.execute("SELECT count(*) FROM handstamp.inbox").await.unwrap();
        let mut other = begin(&mut two).await;
        claim(&mut other, &consumer, &id(level)).await.unwrap();
        other.commit().await.unwrap();
        let error = claim(&mut tx, &consumer, &id(level)).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Conflict, "{level}: {error}");
    }
}

async fn opposite_orders_do_not_deadlock(database: &Database) {
    let (mut one, mut two) = (database.connect().await, database.connect().await);
    let consumer = ConsumerName::register(&mut one, "wallet").await.unwrap();
    for round in 0..10 {
        let up: Vec<_> = (0..50).map(|n| request(&format!("{round}-{n:02}"), None)).collect();
        let down: Vec<_> = up.iter().rev().cloned().collect();
        let claims = async |connection: &mut PgConnection, asked: &[ClaimRequest]| {
            let mut tx = begin(connection).await;
            let claims = claim_many(&mut tx, &consumer, asked).await.unwrap();
            tx.commit().await.unwrap();
            claims.iter().filter(|claim| **claim == Claim::First).count()
        };
        let (a, b) = tokio::join!(claims(&mut one, &up), claims(&mut two, &down));
        assert_eq!(a + b, 50);
    }
}

async fn without_our_tables_it_says_so(database: &Database) {
    let mut connection = database.connect().await;
    let consumer = ConsumerName::register(&mut connection, "wallet").await.unwrap();
    connection.execute("DROP SCHEMA handstamp CASCADE").await.unwrap();
    let error = ConsumerName::register(&mut connection, "wallet").await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
    let mut tx = begin(&mut connection).await;
    let error = claim(&mut tx, &consumer, &id("m")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated, "{error}");
    assert!(error.to_string().contains("handstamp migrate"), "{error}");
}

async fn an_own_table_remembers_too(database: &Database) {
    let mut connection = database.connect().await;
    let tables = "CREATE TABLE processed (consumer text, id uuid, PRIMARY KEY (consumer, id)); CREATE TABLE bare (id text)";
    ::sqlx::raw_sql(tables).execute(&mut connection).await.unwrap();
    let table = OwnTable::new("processed", "id").unwrap().with_column(IdColumn::Uuid);
    let table = table.of_consumer("consumer", "wallet").unwrap();
    let id = "0193f5a0-7c3e-7b1a-8000-0123456789ab";
    for (commits, first) in [(false, true), (true, true), (true, false)] {
        let mut tx = begin(&mut connection).await;
        assert_eq!(claim_own(&mut tx, &table, id).await.unwrap(), first);
        if commits {
            tx.commit().await.unwrap();
        }
    }
    let mut tx = begin(&mut connection).await;
    let error = claim_own(&mut tx, &OwnTable::new("bare", "id").unwrap(), id).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
}
