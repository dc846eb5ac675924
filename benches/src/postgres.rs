//! Databases of one run: made, migrated, checked, dropped; and the server's counters.

use crate::credits::Sent;
use crate::harness::{Res, Sample, float};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls};

/// The user's own tables.
const TABLES: &str = "
CREATE TABLE accounts (id int8 PRIMARY KEY, balance int8 NOT NULL);
CREATE TABLE ledger (
    id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL, account_id int8 NOT NULL, amount int8 NOT NULL);
ALTER TABLE ledger SET (autovacuum_enabled = off);
ALTER TABLE accounts SET (autovacuum_enabled = off);";

/// The first effect.
pub(crate) const UPDATE: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
/// The second effect.
pub(crate) const INSERT: &str = "INSERT INTO ledger (event_id, account_id, amount) VALUES ($1, $2, $3)";

fn server() -> Res<Config> {
    let url = std::env::var("HANDSTAMP_TEST_POSTGRES").map_err(|_| "HANDSTAMP_TEST_POSTGRES is not set")?;
    Ok(url.parse()?)
}

/// A runtime for one thread's clients.
pub(crate) fn runtime() -> Res<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Opens a connection whose task runs on the current runtime.
pub(crate) async fn connect(url: &str) -> Res<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        // The client's next call tells of an error.
        drop(connection.await);
    });
    Ok(client)
}

/// The server's version, for the results.
pub(crate) fn version() -> Res<String> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let config = server()?;
        let client = connect(&url_of(&config, config.get_dbname().unwrap_or("postgres"))?).await?;
        Ok(client.query_one("SHOW server_version", &[]).await?.try_get(0)?)
    })
}

fn url_of(config: &Config, database: &str) -> Res<String> {
    let host = match config.get_hosts().first() {
        Some(tokio_postgres::config::Host::Tcp(host)) => host,
        _ => return Err("HANDSTAMP_TEST_POSTGRES must name a TCP host".into()),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let user = config.get_user().unwrap_or("postgres");
    let password = config.get_password().map(String::from_utf8_lossy);
    let password = password.map(|password| format!(":{password}")).unwrap_or_default();
    Ok(format!("postgres://{user}{password}@{host}:{port}/{database}"))
}

/// A database that is dropped when this is dropped.
pub(crate) struct Database {
    pub(crate) url: String,
    name: String,
    runtime: Runtime,
    admin: Client,
    /// Of the run's own database.
    client: Client,
}

impl Database {
    /// Makes a database with our tables and the user's, with so many accounts.
    pub(crate) fn create(name: &str, accounts: u64) -> Res<Self> {
        let config = server()?;
        let runtime = runtime()?;
        let url = url_of(&config, name)?;
        let (admin, client) = runtime.block_on(async {
            let admin = connect(&url_of(&config, config.get_dbname().unwrap_or("postgres"))?).await?;
            admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
            let client = connect(&url).await?;
            crate::ours::migrate(&url).await?;
            client.batch_execute(TABLES).await?;
            let fill = "INSERT INTO accounts SELECT i, 0 FROM generate_series(0, $1::int8 - 1) AS i";
            client.execute(fill, &[&i64::try_from(accounts)?]).await?;
            client.batch_execute("ALTER TABLE handstamp.inbox SET (autovacuum_enabled = off)").await?;
            client.batch_execute("VACUUM ANALYZE").await?;
            admin.batch_execute("CHECKPOINT").await?;
            Res::Ok((admin, client))
        })?;
        Ok(Self { url, name: name.to_owned(), runtime, admin, client })
    }

    /// Fails unless every message sent was applied once: ids, amounts and balances.
    pub(crate) fn check(&self, sent: &Sent, inbox: bool) -> Res<()> {
        let row = self.runtime.block_on(self.client.query_one(
            "SELECT count(*), count(DISTINCT event_id), coalesce(sum(amount), 0)::int8,
                    coalesce(sum(('x' || right(event_id::text, 12))::bit(48)::int8), 0)::text,
                    (SELECT sum(balance)::int8 FROM accounts),
                    (SELECT count(*) FROM accounts AS a LEFT JOIN
                        (SELECT account_id, sum(amount) AS sum FROM ledger GROUP BY 1) AS l ON l.account_id = a.id
                     WHERE a.balance <> coalesce(l.sum, 0)),
                    (SELECT count(*) FROM handstamp.inbox)
             FROM ledger",
            &[],
        ))?;
        let count = i64::try_from(sent.count)?;
        let inbox_rows = if inbox { count } else { 0 };
        let ids: String = row.try_get(3)?;
        let found: [i64; 6] = [
            row.try_get(0)?,
            row.try_get(1)?,
            row.try_get(2)?,
            row.try_get(4)?,
            row.try_get(5)?,
            row.try_get(6)?,
        ];
        let expected = [count, count, sent.amount, sent.amount, 0, inbox_rows];
        if found != expected || ids != sent.id_sum.to_string() {
            let what = "ledger rows, distinct ids, amounts, balances, wrong accounts, inbox rows";
            return Err(
                format!("{what}: {found:?}, expected {expected:?}; ids {ids}, {}", sent.id_sum).into()
            );
        }
        Ok(())
    }

    /// Fails unless what was applied so far was applied once, and all that was settled is applied; for a
    /// consumer that was killed at work.
    pub(crate) fn check_so_far(&self, settled: u64) -> Res<()> {
        self.settle_counters()?;
        let row = self.runtime.block_on(self.client.query_one(
            "SELECT count(*), count(DISTINCT event_id), (SELECT count(*) FROM handstamp.inbox),
                    coalesce(sum(amount), 0)::int8, (SELECT sum(balance)::int8 FROM accounts)
             FROM ledger",
            &[],
        ))?;
        let found: [i64; 5] =
            [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?];
        let [rows, ids, inbox, amounts, balances] = found;
        if rows != ids || rows != inbox || amounts != balances || rows < i64::try_from(settled)? {
            let what = "ledger rows, distinct ids, inbox rows, amounts, balances";
            return Err(format!("{what}: {found:?}, {settled} settled").into());
        }
        Ok(())
    }

    /// The counters as they are now.
    pub(crate) fn counters(&self) -> Res<Counters> {
        let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
        // Version 18 moved the count of flushes from pg_stat_wal to pg_stat_io.
        let moved = "SELECT EXISTS (SELECT FROM pg_stat_io WHERE object = 'wal')";
        let flushes = |moved| {
            if moved {
                "SELECT coalesce(sum(fsyncs), 0)::int8 FROM pg_stat_io WHERE object = 'wal'"
            } else {
                "SELECT wal_sync::int8 FROM pg_stat_wal"
            }
        };
        self.runtime.block_on(async {
            // A backend that ended has told its numbers; this one's are few.
            let moved: bool = self.admin.query_one(moved, &[]).await?.try_get(0)?;
            let fsyncs: i64 = self.admin.query_one(flushes(moved), &[]).await?.try_get(0)?;
            let commits: i64 = self.admin.query_one(commits, &[&self.name]).await?.try_get(0)?;
            let lsn = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8";
            let wal: i64 = self.admin.query_one(lsn, &[]).await?.try_get(0)?;
            let offsets = crate::kafka::offset_records().unwrap_or(0.0);
            Ok(Counters { commits, fsyncs, wal, offsets })
        })
    }

    /// Waits until the run's backends are gone and have told their counters.
    pub(crate) fn settle_counters(&self) -> Res<()> {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            let backends: i64 =
                self.runtime.block_on(self.admin.query_one(others, &[&self.name]))?.try_get(0)?;
            if backends <= 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        // Left behind, it costs only room on a test server.
        drop(self.runtime.block_on(self.admin.batch_execute(&sql)));
    }
}

/// What the servers counted; the WAL and its flushes are the whole server's, so nothing else may run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    commits: i64,
    fsyncs: i64,
    wal: i64,
    offsets: f64,
}

impl Counters {
    /// Writes what was counted since `before` into a sample, a message.
    pub(crate) fn since(self, before: Self, messages: u64, sample: &mut Sample) {
        let each = |difference: i64| float(u64::try_from(difference).unwrap_or(0)) / float(messages.max(1));
        sample.set("commits_per_message", each(self.commits - before.commits));
        sample.set("fsyncs_per_message", each(self.fsyncs - before.fsyncs));
        sample.set("wal_bytes_per_message", each(self.wal - before.wal));
        sample.set("offset_records_per_message", (self.offsets - before.offsets) / float(messages.max(1)));
    }
}
