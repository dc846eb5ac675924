//! Servers that go away and come back while messages flow: nothing is lost, doubled, charged or
//! dead-lettered, and nobody has to do anything.

use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::servers::{Database, Private, Topic};
use handstamp_lab::proxy::{Ending, Proxy, ProxyOptions};
use std::time::{Duration, Instant};

pub(crate) const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");
pub(crate) const CREDITS: i64 = 2_000;
/// Fewer, through a proxy that costs time.
const FEW: i64 = 800;
const CANNOT_GO_ON: &str = "the store cannot go on; waiting";

pub(crate) fn publish(topic: &Topic) {
    topic.send_credits(CREDITS, |n| n % 1000);
}

/// Ends the subject by SIGTERM and checks that no message was charged or given up.
pub(crate) async fn end_well(subject: Subject, database: &Database) -> Vec<String> {
    end_well_of(subject, database, CREDITS).await
}

async fn end_well_of(subject: Subject, database: &Database, credits: i64) -> Vec<String> {
    subject.terminate();
    let (status, log) = subject.wait(Duration::from_secs(60));
    assert!(status.success(), "{}", log.join("\n"));
    database.verdict().await.assert_once(credits, 1);
    assert_eq!(database.dead_letters().await, 0, "an outage is nobody's failure");
    let kept = "SELECT (SELECT count(*) FROM handstamp.attempts) + (SELECT count(*) FROM handstamp.parked)";
    let kept: i64 = database.client.query_one(kept, &[]).await.unwrap().get(0);
    assert_eq!(kept, 0, "nothing is parked, and no attempt is on record");
    assert_eq!(count(&log, "attempts_failed: 0,"), 1, "an outage charges nobody: {}", log.join("\n"));
    log
}

#[tokio::test]
async fn a_store_that_is_killed_and_restarted_costs_nothing() {
    let postgres = Private::start_new("postgres");
    let mut database = Database::create_on(postgres.address()).await;
    let topic = Topic::create(3).await;
    publish(&topic);
    // Down at the start: it waits and says so.
    postgres.stop();
    let mut subject = Subject::start(SUBJECT, &topic.arguments(&database.url, "batch=20 pause-us=500"));
    subject.wait_for("waiting for the store", Duration::from_secs(60));
    postgres.start();
    database.reconnect().await;
    for outage in 1..=3 {
        database.wait_for_rows(outage * 400).await;
        if outage % 2 == 0 {
            postgres.stop()
        } else {
            postgres.kill()
        }
        let nth = usize::try_from(outage).unwrap();
        subject.wait_for_nth(CANNOT_GO_ON, nth, Duration::from_secs(60));
        postgres.start();
        database.reconnect().await;
    }
    database.wait_for_rows(CREDITS).await;
    let log = end_well(subject, &database).await;
    assert!(count(&log, "the store is back") >= 3, "{}", log.join("\n"));
    topic.delete().await;
}

#[tokio::test]
async fn connections_cut_in_the_middle_cost_nothing() {
    let database = Database::create().await;
    let topic = Topic::create(3).await;
    publish(&topic);
    let url = format!("{}?application_name=cut_me", database.url);
    let subject = Subject::start(SUBJECT, &topic.arguments(&url, "batch=20 pause-us=200"));
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name = 'cut_me' AND xact_start IS NOT NULL";
    let mut cuts = 0;
    let until = Instant::now() + Duration::from_secs(90);
    while database.ledger_rows().await < CREDITS {
        assert!(Instant::now() < until, "no progress");
        if cuts < 30 {
            cuts += database.client.query_one(cut, &[]).await.unwrap().get::<_, i64>(0);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    end_well(subject, &database).await;
    assert!(cuts >= 10, "only {cuts} transactions were cut: this proves nothing");
    topic.delete().await;
    database.drop_now().await;
}

/// A proxy before a database's server, and the database's URL through it.
async fn behind_a_proxy(database: &Database) -> (Proxy, String) {
    let place = database.url.split_once('@').unwrap().1.split_once('/').unwrap().0;
    let proxy = Proxy::start(ProxyOptions::before(place.parse().unwrap())).await.unwrap();
    let url = database.url.replacen(place, &proxy.address().to_string(), 1);
    (proxy, url)
}

/// The connection is reset while the server works on a statement of a handler: neither side says goodbye.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_in_the_middle_of_a_statement_cost_nothing() {
    const RESETS: i64 = 12;
    let database = Database::create().await;
    let topic = Topic::create(3).await;
    topic.send_credits(FEW, |n| n);
    let (proxy, url) = behind_a_proxy(&database).await;
    let mut subject = Subject::start(SUBJECT, &topic.arguments(&url, "batch=20 pause-us=1000"));
    let in_a_statement = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                          AND state = 'active' AND query LIKE 'SELECT pg_sleep%'";
    for reset in 1..=RESETS {
        database.wait_for_rows(reset * 50).await;
        let said = count(&subject.log(), CANNOT_GO_ON);
        let until = Instant::now() + Duration::from_secs(60);
        while database.client.query_one(in_a_statement, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(Instant::now() < until, "no statement runs");
        }
        assert!(proxy.cut(Ending::Reset) > 0, "reset {reset} met no connection");
        subject.wait_for_nth(CANNOT_GO_ON, said + 1, Duration::from_secs(60));
    }
    database.wait_for_rows(FEW).await;
    end_well_of(subject, &database, FEW).await;
    proxy.stop().await;
    topic.delete().await;
    database.drop_now().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_free_connection_costs_nothing() {
    let database = Database::create().await;
    let topic = Topic::create(3).await;
    topic.send_credits(FEW, |n| n);
    // The limit holds for those who are no superuser.
    database.client.batch_execute("CREATE ROLE runner LOGIN").await.ok();
    database
        .client
        .batch_execute(
            "GRANT USAGE ON SCHEMA handstamp TO runner; GRANT ALL ON ALL TABLES IN SCHEMA handstamp, public TO runner",
        )
        .await
        .unwrap();
    let (proxy, url) = behind_a_proxy(&database).await;
    let url = url.replacen("postgres@", "runner@", 1);
    let name = database.url.rsplit_once('/').unwrap().1;
    let limit = async |connections: &str| {
        let sql = format!("ALTER DATABASE {name} CONNECTION LIMIT {connections}");
        database.client.batch_execute(&sql).await.unwrap();
    };
    // None at the start: it says why.
    limit("0").await;
    let mut subject = Subject::start(SUBJECT, &topic.arguments(&url, "batch=20 pause-us=500"));
    subject.wait_for("too many connections for database", Duration::from_secs(60));
    limit("-1").await;
    for outage in 1..=4 {
        database.wait_for_rows(outage * 150).await;
        limit("0").await;
        let accepted = proxy.totals().accepted;
        assert!(proxy.cut(Ending::Close) > 0, "outage {outage} met no connection");
        let until = Instant::now() + Duration::from_secs(60);
        // Refused again and again.
        while proxy.totals().accepted < accepted + 4 {
            assert!(Instant::now() < until, "it does not try: {}", subject.log().join("\n"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(database.ledger_rows().await < FEW, "outage {outage} was in the middle");
        limit("-1").await;
    }
    database.wait_for_rows(FEW).await;
    end_well_of(subject, &database, FEW).await;
    proxy.stop().await;
    topic.delete().await;
    database.drop_now().await;
}

#[tokio::test]
async fn a_table_dropped_or_changed_and_a_right_taken_in_mid_run_are_nobodys_failure() {
    let database = Database::create().await;
    let topic = Topic::create(3).await;
    publish(&topic);
    database.client.batch_execute("CREATE ROLE runner LOGIN").await.ok();
    database
        .client
        .batch_execute(
            "GRANT USAGE ON SCHEMA handstamp TO runner; GRANT ALL ON ALL TABLES IN SCHEMA handstamp, public TO runner",
        )
        .await
        .unwrap();
    let url = database.url.replacen("postgres@", "runner@", 1);
    assert_ne!(url, database.url);
    let mut subject = Subject::start(SUBJECT, &topic.arguments(&url, "batch=20 pause-us=500"));
    let changes = [
        ("ALTER TABLE ledger RENAME TO ledger_away", "ALTER TABLE ledger_away RENAME TO ledger"),
        ("REVOKE INSERT ON ledger FROM runner", "GRANT INSERT ON ledger TO runner"),
        ("ALTER TABLE accounts RENAME balance TO b", "ALTER TABLE accounts RENAME b TO balance"),
    ];
    for (at, (break_it, mend_it)) in (1..).zip(changes) {
        database.wait_for_rows(at * 300).await;
        database.client.batch_execute(break_it).await.unwrap();
        subject.wait_for_nth(CANNOT_GO_ON, usize::try_from(at).unwrap(), Duration::from_secs(60));
        database.client.batch_execute(mend_it).await.unwrap();
    }
    database.client.batch_execute("ALTER TABLE ledger ADD COLUMN note text").await.unwrap();
    database.wait_for_rows(CREDITS).await;
    end_well(subject, &database).await;
    topic.delete().await;
    database.drop_now().await;
}
