//! A database and a role of a test's own on a real server, gone when the test ends.

use handstamp_core::{
    ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, Fingerprint, Header, Headers,
    MessageId, Origin, Reason, Record, Store, Timestamp,
};
use handstamp_stores::postgres::{MigrateOptions, PostgresOptions, PostgresStore, migrate_with};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

/// The servers every test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    V15,
    V18,
}

impl Server {
    /// The superuser's URL.
    pub(crate) fn url(self) -> String {
        let (variable, name) = match self {
            Self::V15 => ("HANDSTAMP_TEST_POSTGRES15", "postgres15"),
            Self::V18 => ("HANDSTAMP_TEST_POSTGRES", "postgres"),
        };
        std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: scripts/services up {name}; eval \"$(scripts/services env)\"")
        })
    }
}

/// Runs a test once on each server.
macro_rules! on_each_server {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn postgres15() {
                super::$name($crate::harness::TestDatabase::new($crate::harness::Server::V15).await).await;
            }
            #[tokio::test]
            async fn postgres18() {
                super::$name($crate::harness::TestDatabase::new($crate::harness::Server::V18).await).await;
            }
        }
    )* };
}
pub(crate) use on_each_server;

/// A database of a test's own, migrated, and a role that may only do what running needs.
pub(crate) struct TestDatabase {
    pub(crate) server: Server,
    pub(crate) name: String,
    pub(crate) role: String,
}

impl TestDatabase {
    pub(crate) async fn new(server: Server) -> Self {
        let database = Self::empty(server).await;
        let admin = database.admin().await;
        let options = MigrateOptions { grant_to: vec![database.role.clone()], ..MigrateOptions::default() };
        migrate_with(&admin, &options).await.expect("migrate");
        database
    }

    /// Without our tables.
    pub(crate) async fn empty(server: Server) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).expect("clock").subsec_nanos();
        let unique = format!("{}_{}_{nanos}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let database = Self { server, name: format!("hs_{unique}"), role: format!("hs_app_{unique}") };
        let client = connect(&server.url()).await;
        client.batch_execute(&format!("CREATE ROLE {} LOGIN", database.role)).await.expect("role");
        client.batch_execute(&format!("CREATE DATABASE {}", database.name)).await.expect("database");
        database
    }

    pub(crate) fn url_as(&self, user: &str) -> String {
        let config: Config = self.server.url().parse().expect("test URL");
        let Host::Tcp(host) = &config.get_hosts()[0] else { panic!("the test servers listen on TCP") };
        format!("postgres://{user}@{host}:{}/{}", config.get_ports()[0], self.name)
    }

    pub(crate) fn url(&self) -> String {
        self.url_as(&self.role)
    }

    /// The superuser's connection to this database.
    pub(crate) async fn admin(&self) -> Client {
        let config: Config = self.server.url().parse().expect("test URL");
        connect(&self.url_as(config.get_user().expect("user"))).await
    }

    /// A connection as the role that runs.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions::parse(&self.url()).expect("options")
    }

    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::new(self.options()).expect("store")
    }

    /// A store, a registered consumer, and a table `accounts(id, balance)` with accounts 1 to 10.
    pub(crate) async fn wallet(&self) -> (PostgresStore, ConsumerKey) {
        self.wallet_with(self.options()).await
    }

    pub(crate) async fn wallet_with(&self, options: PostgresOptions) -> (PostgresStore, ConsumerKey) {
        let setup = format!(
            "CREATE TABLE accounts (id int PRIMARY KEY, balance numeric NOT NULL);
             INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10) AS i;
             CREATE TABLE ledger (event_id text, account_id int, amount numeric CHECK (amount < 1000));
             GRANT SELECT, INSERT, UPDATE ON accounts, ledger TO {}",
            self.role
        );
        self.admin().await.batch_execute(&setup).await.expect("wallet");
        let store = PostgresStore::new(options).expect("store");
        let key =
            store.register(&name("wallet"), &Fingerprint("test".into()), false).await.expect("register");
        (store, key)
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let row = self.admin().await.query_one(&format!("SELECT ({sql})::int8"), &[]).await.expect(sql);
        row.get(0)
    }

    /// Waits until a query counts at least `wanted`; bounded.
    pub(crate) async fn until(&self, sql: &str, wanted: i64) {
        let admin = self.admin().await;
        let since = Instant::now();
        loop {
            let row = admin.query_one(&format!("SELECT ({sql})::int8"), &[]).await.expect(sql);
            if row.get::<_, i64>(0) >= wanted {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "never {wanted}: {sql}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until so many backends of this database wait for a lock.
    pub(crate) async fn until_blocked(&self, backends: i64) {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'",
            self.name
        );
        self.until(&sql, backends).await;
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (url, name, role) = (self.server.url(), self.name.clone(), self.role.clone());
        let dropped = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async {
                let client = connect(&url).await;
                client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.expect("drop");
                client.batch_execute(&format!("DROP ROLE {role}")).await.expect("drop role");
            });
        })
        .join();
        if !std::thread::panicking() {
            dropped.expect("the test's database is dropped");
        }
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

pub(crate) fn name(text: &str) -> ConsumerName {
    ConsumerName::new(text).expect("name")
}

pub(crate) fn id(text: &str) -> MessageId {
    MessageId::try_from(text).expect("id")
}

pub(crate) fn request(text: &str, digest: Option<i64>) -> ClaimRequest {
    ClaimRequest { id: id(text), digest }
}

/// Ids that sort and look like UUIDv7, fresh for each `batch`.
pub(crate) fn fresh(batch: u32, count: u32) -> Vec<ClaimRequest> {
    (0..count)
        .map(|n| {
            let noise = blake3::hash(&[batch.to_be_bytes(), n.to_be_bytes()].concat());
            let hex = noise.to_hex();
            let (a, b) = (&hex[..3], &hex[3..15]);
            let text = format!("0193{batch:04x}-{:04x}-7{a}-8{}-{b}", n & 0xffff, &hex[15..18]);
            ClaimRequest { id: id(&text), digest: Some(i64::from(n)) }
        })
        .collect()
}

pub(crate) fn letter(text: Option<&str>, class: FailureClass, value: Option<&'static [u8]>) -> DeadLetter {
    let record = Record {
        key: Some(bytes::Bytes::from_static(b"\0key\xff")),
        value: value.map(bytes::Bytes::from_static),
        headers: Headers::new(vec![
            Header::new("event_id", Some("e".into())),
            Header::new(&b"\xff\0"[..], None),
            Header::new("event_id", Some(bytes::Bytes::new())),
        ]),
        origin: Origin { topic: "credits".into(), partition: 3, offset: 1 << 40, line: None },
        timestamp: Some(Timestamp(i64::MAX)),
    };
    DeadLetter {
        id: text.map(id),
        digest: record.digest(),
        record,
        truncation: None,
        class,
        code: Some("22P02".into()),
        reason: Reason::new("a reason"),
        attempts: 3,
        received_at: Timestamp(1_700_000_000_000),
        failed_at: Timestamp(1_700_000_000_123),
    }
}
