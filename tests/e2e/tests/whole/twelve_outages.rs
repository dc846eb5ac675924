//! Twelve outages of Postgres during 10,000 credits, by progress and not by the clock: the primary is ended ten
//! times as by `pg_ctl stop -m immediate`, once takes no writes, and once is lost for good, so that its synchronous
//! standby is promoted. Every one meets a consumer at work. Every credit is applied once; nobody is charged, parked
//! or given up.

use crate::outages::SUBJECT;
use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Database, Private, Topic, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const CREDITS: i64 = 10_000;
/// Effects between two outages.
const STEP: i64 = 720;
/// So many credits are sent before they are applied: there is always work, and never is all of it there.
const AHEAD: i64 = 600;
const LIMIT: Duration = Duration::from_secs(60);
const FELT: &str = "the store cannot go on; waiting";

/// Ledger rows, and whether the consumer is in a transaction that has written.
const LOOK: &str = "SELECT (SELECT count(*) FROM ledger), EXISTS (SELECT FROM pg_stat_activity \
     WHERE datname = current_database() AND application_name = 'subject' AND backend_xid IS NOT NULL)";

/// What nobody may have: attempts, parked messages, dead letters, crashes.
const CHARGED: &str = "SELECT (SELECT count(*) FROM handstamp.attempts) + (SELECT count(*) FROM handstamp.parked) \
     + (SELECT count(*) FROM handstamp.dead_letters) + (SELECT count(*) FROM handstamp.crashes)";

struct Look {
    rows: i64,
    is_writing: bool,
}

async fn look(client: &Client) -> Result<Look, tokio_postgres::Error> {
    let row = client.query_one(LOOK, &[]).await?;
    Ok(Look { rows: row.get(0), is_writing: row.get(1) })
}

/// Sends credits, so many ahead of what is applied, until all are sent.
async fn pace(topic: Arc<Topic>, applied: Arc<AtomicI64>, sent: Arc<AtomicI64>) {
    for n in 0..CREDITS {
        while n >= applied.load(Ordering::Relaxed) + AHEAD {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let id = uuid::Uuid::now_v7().to_string();
        topic.send(&id, &n.to_string(), &credit(&id, n % 1000, 1));
        sent.store(n + 1, Ordering::Relaxed);
    }
    topic.flush();
}

/// A primary with its standby, the consumer, and how far it has come.
struct Bed {
    pair: Arc<Private>,
    database: Database,
    subject: Subject,
    applied: Arc<AtomicI64>,
    sent: Arc<AtomicI64>,
    outages: usize,
}

impl Bed {
    async fn wait_for_work(&self, rows: i64) -> Look {
        let until = Instant::now() + LIMIT;
        loop {
            let seen = look(&self.database.client).await.unwrap();
            self.applied.store(seen.rows, Ordering::Relaxed);
            if seen.rows >= rows && (seen.is_writing || seen.rows == CREDITS) {
                return seen;
            }
            assert!(Instant::now() < until, "{} of {rows} rows: {}", seen.rows, self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Does something to the server once the consumer has come so far, and waits until the consumer has met it. What is
    /// seen last before the server is gone is a consumer at work, with more to do and more to come.
    async fn outage(&mut self, rows: i64, fault: impl FnOnce(&Private) + Send + 'static) {
        let before = self.wait_for_work(rows).await;
        let said = count(&self.subject.log(), FELT);
        let pair = Arc::clone(&self.pair);
        let fault = tokio::task::spawn_blocking(move || fault(&pair));
        let mut last = look(&self.database.client).await.unwrap_or(before);
        let first_rows = last.rows;
        while let Ok(seen) = look(&self.database.client).await {
            last = seen;
            self.applied.store(last.rows, Ordering::Relaxed);
            if fault.is_finished() && count(&self.subject.log(), FELT) > said {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        fault.await.unwrap();
        assert!(last.is_writing || last.rows > first_rows, "outage {} met nobody", self.outages + 1);
        let sent = self.sent.load(Ordering::Relaxed);
        assert!(last.rows < sent && sent < CREDITS, "{} applied, {sent} sent", last.rows);
        self.subject.wait_for_nth(FELT, said + 1, LIMIT);
        self.outages += 1;
    }

    fn log(&self) -> String {
        self.subject.log().join("\n")
    }
}

fn urls(pair: &Private) -> [String; 2] {
    ["PRIMARY", "STANDBY"].map(|member| pair.variable(&format!("HANDSTAMP_TEST_POSTGRES_{member}")))
}

/// Whichever of the two takes writes.
fn either(urls: &[String; 2], database: &str) -> String {
    let place = |url: &String| url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    let places = urls.each_ref().map(place).join(",");
    format!(
        "postgres://postgres@{places}/{database}?sslmode=disable&target_session_attrs=read-write&application_name=subject"
    )
}

async fn set(admin: &str, settings: &[&str]) {
    let client = connect(admin).await;
    for setting in settings.iter().chain(&["SELECT pg_reload_conf()"]) {
        client.batch_execute(setting).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_crashes_a_read_only_time_and_a_failover_cost_nothing() {
    let pair = Arc::new(Private::start_new("postgres-pair"));
    let admins = urls(&pair);
    // A standby that finds its primary again soon, and once it is promoted waits for no standby of its own.
    let standby = ["ALTER SYSTEM SET wal_retrieve_retry_interval = '100ms'"];
    set(&admins[1], &[standby[0], "ALTER SYSTEM SET synchronous_standby_names = ''"]).await;
    let database = Database::create_on(admins[0].clone()).await;
    let name = database.url.rsplit_once('/').unwrap().1.to_owned();
    let topic = Arc::new(Topic::create(3).await);
    let arguments = topic.arguments(&either(&admins, &name), "attempts=5 immediate=1 batch=20 pause-us=500");
    let subject = Subject::start(SUBJECT, &arguments);
    let (applied, sent) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let pace = tokio::spawn(pace(Arc::clone(&topic), Arc::clone(&applied), Arc::clone(&sent)));
    let mut bed = Bed { pair, database, subject, applied, sent, outages: 0 };
    for crash in 1..=10 {
        bed.outage(crash * STEP, |pair| pair.stop_immediately(1)).await;
        bed.pair.start_member(1);
        bed.database.reconnect().await;
    }

    let (admin, runtime) = (admins[0].clone(), tokio::runtime::Handle::current());
    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    bed.outage(11 * STEP, move |_| runtime.block_on(set(&admin, &[read_only]))).await;
    set(&admins[0], &["ALTER SYSTEM RESET default_transaction_read_only"]).await;

    bed.outage(12 * STEP, |pair| pair.kill_member(1)).await;
    connect(&admins[1]).await.query_one("SELECT pg_promote(true, 60)", &[]).await.unwrap();
    bed.database.url = format!("{}/{name}", admins[1].rsplit_once('/').unwrap().0);
    bed.database.reconnect().await;

    bed.wait_for_work(CREDITS).await;
    pace.await.unwrap();
    let Bed { database, subject, outages, .. } = bed;
    assert_eq!(outages, 12);
    subject.terminate();
    let (status, log) = subject.wait(LIMIT);
    assert!(status.success(), "{}", log.join("\n"));
    database.verdict().await.assert_once(CREDITS, 1);
    let charged: i64 = database.client.query_one(CHARGED, &[]).await.unwrap().get(0);
    assert_eq!(charged, 0, "an outage is nobody's failure: {}", log.join("\n"));
    for none in ["attempts_failed: 0,", " parked: 0,", " dead_lettered: 0,", " crashes_found: 0"] {
        assert_eq!(count(&log, none), 1, "{none}: {}", log.join("\n"));
    }
    assert!(count(&log, "the store is back") >= 12, "{}", log.join("\n"));
    Arc::into_inner(topic).unwrap().delete().await;
}
