//! Servers that go away and come back while messages flow: nothing is lost, doubled, charged or
//! dead-lettered, and nobody has to do anything.

use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::servers::{Database, Private, Topic};
use std::time::{Duration, Instant};

pub(crate) const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");
pub(crate) const CREDITS: i64 = 2_000;

pub(crate) fn publish(topic: &Topic) {
    topic.send_credits(CREDITS, |n| n % 1000);
}

/// Ends the subject by SIGTERM and checks that no message was charged or given up.
pub(crate) async fn end_well(subject: Subject, database: &Database) -> Vec<String> {
    subject.terminate();
    let (status, log) = subject.wait(Duration::from_secs(60));
    assert!(status.success(), "{}", log.join("\n"));
    database.verdict().await.assert_once(CREDITS, 1);
    assert_eq!(database.dead_letters().await, 0, "an outage is nobody's failure");
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
        subject.wait_for_nth("the store cannot go on; waiting", nth, Duration::from_secs(60));
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
        subject.wait_for_nth(
            "the store cannot go on; waiting",
            usize::try_from(at).unwrap(),
            Duration::from_secs(60),
        );
        database.client.batch_execute(mend_it).await.unwrap();
    }
    database.client.batch_execute("ALTER TABLE ledger ADD COLUMN note text").await.unwrap();
    database.wait_for_rows(CREDITS).await;
    end_well(subject, &database).await;
    topic.delete().await;
    database.drop_now().await;
}
