//! Databases and topics of a test's own, on the servers that `scripts/services` started.

use crate::money::{POSTGRES_SCHEMA, VERDICT, Verdict, credit};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests by scripts/test, or `eval \"$(scripts/services env)\"` after `scripts/services up`")
    })
}

pub fn brokers() -> String {
    variable("HANDSTAMP_TEST_KAFKA")
}

fn unique(what: &str) -> String {
    format!("{what}_{}", uuid::Uuid::now_v7().simple())
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A database of this test's own, dropped at the end.
pub struct Database {
    pub url: String,
    pub client: Client,
    name: String,
    admin: String,
}

impl Database {
    /// A database with our tables and the accounts and ledger of the tests.
    pub async fn create() -> Self {
        Self::create_on(variable("HANDSTAMP_TEST_POSTGRES")).await
    }

    /// The same on another server; `admin` is the URL of a superuser.
    pub async fn create_on(admin: String) -> Self {
        let name = unique("e2e");
        connect(&admin).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let (server, _) = admin.rsplit_once('/').unwrap();
        let url = format!("{server}/{name}");
        let client = connect(&url).await;
        handstamp::postgres::migrate(&client).await.unwrap();
        client.batch_execute(POSTGRES_SCHEMA).await.unwrap();
        Self { url, client, name, admin }
    }

    /// Connects anew, after the server was away.
    pub async fn reconnect(&mut self) {
        let until = Instant::now() + Duration::from_secs(30);
        self.client = loop {
            match tokio_postgres::connect(&self.url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    break client;
                }
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
    }

    pub async fn ledger_rows(&self) -> i64 {
        self.client.query_one("SELECT count(*) FROM ledger", &[]).await.unwrap().get(0)
    }

    /// Waits until so many effects are committed, with a limit.
    pub async fn wait_for_rows(&self, rows: i64) {
        let until = Instant::now() + Duration::from_secs(90);
        loop {
            let seen = self.ledger_rows().await;
            if seen >= rows {
                return;
            }
            assert!(Instant::now() < until, "{seen} of {rows} ledger rows");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn dead_letters(&self) -> i64 {
        self.client.query_one("SELECT count(*) FROM handstamp.dead_letters", &[]).await.unwrap().get(0)
    }

    pub async fn verdict(&self) -> Verdict {
        let row = self.client.query_one(VERDICT, &[]).await.unwrap();
        Verdict { effects: row.get(0), ids: row.get(1), balance: row.get(2), amounts: row.get(3) }
    }

    pub async fn drop_now(self) {
        let Self { client, admin, name, .. } = self;
        drop(client);
        connect(&admin).await.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
    }
}

/// A topic of this test's own, deleted at the end.
pub struct Topic {
    pub brokers: String,
    pub name: String,
    pub group: String,
    producer: ThreadedProducer<DefaultProducerContext>,
}

fn client_config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

impl Topic {
    pub async fn create(partitions: i32) -> Self {
        Self::create_on(brokers(), partitions).await
    }

    /// The same on another broker.
    pub async fn create_on(brokers: String, partitions: i32) -> Self {
        let name = unique("e2e");
        let admin: AdminClient<DefaultClientContext> = client_config(&brokers).create().unwrap();
        let topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
        for result in admin.create_topics([&topic], &options).await.unwrap() {
            result.unwrap();
        }
        let producer = client_config(&brokers).set("enable.idempotence", "true").create().unwrap();
        Self { group: format!("g_{name}"), name, producer, brokers }
    }

    /// Queues a record with its id in the header `event_id`.
    pub fn send(&self, id: &str, key: &str, body: &str) {
        let headers = OwnedHeaders::new().insert(Header { key: "event_id", value: Some(id) });
        let record = BaseRecord::to(&self.name).key(key).payload(body).headers(headers);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
    }

    /// Sends so many credits of 1, each to the account that is chosen for it.
    pub fn send_credits(&self, credits: i64, account: impl Fn(i64) -> i64) {
        for n in 0..credits {
            let id = uuid::Uuid::now_v7().to_string();
            self.send(&id, &n.to_string(), &credit(&id, account(n), 1));
        }
        self.flush();
    }

    /// What a subject is told that reads this topic into a Postgres database: the first failure of a message
    /// is its last, unless `more` says otherwise.
    pub fn arguments(&self, url: &str, more: &str) -> Vec<String> {
        let Self { brokers, name, group, .. } = self;
        let place =
            format!("source=kafka brokers={brokers} topic={name} group={group} store=postgres db={url}");
        format!("{place} attempts=1 {more}").split_whitespace().map(str::to_owned).collect()
    }

    pub fn flush(&self) {
        self.producer.flush(Duration::from_secs(30)).unwrap();
    }

    /// Sets the group's offsets to the beginning, as an operator does while no member is there.
    pub fn rewind(&self, partitions: i32) {
        let client: BaseConsumer =
            client_config(&self.brokers).set("group.id", &self.group).create().unwrap();
        let mut offsets = TopicPartitionList::new();
        for partition in 0..partitions {
            offsets.add_partition_offset(&self.name, partition, Offset::Offset(0)).unwrap();
        }
        client.commit(&offsets, CommitMode::Sync).unwrap();
    }

    pub async fn delete(self) {
        let admin: AdminClient<DefaultClientContext> = client_config(&self.brokers).create().unwrap();
        admin.delete_topics(&[&self.name], &AdminOptions::new()).await.unwrap();
    }
}

/// A server of this test's own, so that it may be stopped and killed.
pub struct Private {
    name: String,
}

impl Private {
    /// Starts `postgres`, `postgres-pair` or `kafka` beside the common one.
    pub fn start_new(kind: &str) -> Self {
        let server = Self { name: format!("{kind}@{}", unique("e2e")) };
        server.services(&["up"], "");
        server
    }

    /// `member` is empty for all of them, or `:2` for the second.
    fn services(&self, words: &[&str], member: &str) -> String {
        let name = format!("{}{member}", self.name);
        let output =
            Command::new(variable("HANDSTAMP_TEST_SERVICES")).args(words).arg(&name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {name}: {said}", words.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Stops it in good order.
    pub fn stop(&self) {
        self.services(&["stop"], "");
    }

    /// Ends a member as `pg_ctl stop -m immediate` does: no checkpoint, nobody is waited for.
    pub fn stop_immediately(&self, member: u8) {
        self.services(&["stop", "--immediate"], &format!(":{member}"));
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.services(&["kill"], "");
    }

    /// SIGKILL to one member.
    pub fn kill_member(&self, member: u8) {
        self.services(&["kill"], &format!(":{member}"));
    }

    /// Starts it again with its data and its port.
    pub fn start(&self) {
        self.services(&["start"], "");
    }

    /// Starts one member again.
    pub fn start_member(&self, member: u8) {
        self.services(&["start"], &format!(":{member}"));
    }

    /// Its address, as `scripts/services env` prints it.
    pub fn address(&self) -> String {
        let kafka = self.name.starts_with("kafka");
        self.variable(if kafka { "HANDSTAMP_TEST_KAFKA" } else { "HANDSTAMP_TEST_POSTGRES" })
    }

    /// What `scripts/services env` says of it.
    pub fn variable(&self, name: &str) -> String {
        let lines = self.services(&["env"], "");
        let prefix = format!("{name}=");
        let line =
            lines.lines().find_map(|line| line.split_once(&prefix)).unwrap_or_else(|| panic!("{lines}"));
        line.1.trim_matches(['\'', '"']).to_owned()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = Command::new(variable("HANDSTAMP_TEST_SERVICES")).args(["down", &self.name]).output();
    }
}
