//! Twenty SIGKILLs during 10,000 credits from a real Kafka into a real Postgres, by progress and not by
//! the clock; ten of them while our transaction is seen open. With the inbox every credit is applied
//! once; the same schedule without it doubles.

use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::servers::{Database, Topic};
use std::time::{Duration, Instant};

const CREDITS: i64 = 10_000;
const KILLS: i64 = 20;
const STEP: i64 = 450;
const LIMIT: Duration = Duration::from_secs(60);

fn arguments(topic: &Topic, database: &Database, bend: &str, more: &str) -> Vec<String> {
    let url = format!("{}?application_name=subject", database.url);
    topic.arguments(&url, &format!("attempts=3 bend-store={bend} batch=50 pause-us=500 {more}"))
}

async fn wait_for_progress(database: &Database, rows: i64, subject: &mut Subject) {
    let until = Instant::now() + LIMIT;
    while database.ledger_rows().await < rows {
        assert!(subject.is_running(), "the subject ended by itself");
        assert!(Instant::now() < until, "no progress to {rows} ledger rows within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a transaction of the subject is open and has written; true when it was seen.
async fn wait_for_open_transaction(database: &Database) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name = 'subject' AND xact_start IS NOT NULL AND backend_xid IS NOT NULL";
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        let open: i64 = database.client.query_one(sql, &[]).await.unwrap().get(0);
        if open > 0 {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

struct Outcome {
    database: Database,
    kills_in_a_transaction: usize,
    duplicates_met: usize,
}

async fn run_schedule(bend: &str) -> Outcome {
    let database = Database::create().await;
    let topic = Topic::create(6).await;
    for n in 0..CREDITS {
        let id = uuid::Uuid::now_v7().to_string();
        let account = n % 1000;
        topic.send(&id, &account.to_string(), &handstamp_e2e::money::credit(&id, account, 1));
    }
    topic.flush();
    let program = env!("CARGO_BIN_EXE_subject");
    let mut kills_in_a_transaction = 0;
    let mut duplicates_met = 0;
    for k in 1..=KILLS {
        let mut subject = Subject::start(program, &arguments(&topic, &database, bend, ""));
        wait_for_progress(&database, k * STEP, &mut subject).await;
        if k % 2 == 0 && wait_for_open_transaction(&database).await {
            kills_in_a_transaction += 1;
        }
        duplicates_met += count(&subject.kill(), "skipped duplicate");
    }
    let last = Subject::start(program, &arguments(&topic, &database, bend, "idle-ms=2000"));
    let (status, log) = last.wait(Duration::from_secs(120));
    assert!(status.success(), "{}", log.join("\n"));
    duplicates_met += count(&log, "skipped duplicate");
    topic.delete().await;
    Outcome { database, kills_in_a_transaction, duplicates_met }
}

#[tokio::test]
async fn twenty_kills_apply_every_credit_once() {
    let outcome = run_schedule("none").await;
    outcome.database.verdict().await.assert_once(CREDITS, 1);
    assert!(outcome.kills_in_a_transaction >= 5, "{} kills in a transaction", outcome.kills_in_a_transaction);
    assert!(
        outcome.duplicates_met >= 20,
        "only {} duplicates met: the schedule proves nothing",
        outcome.duplicates_met
    );
    outcome.database.drop_now().await;
}

#[tokio::test]
async fn the_same_kills_without_the_inbox_double() {
    let outcome = run_schedule("no-inbox").await;
    let verdict = outcome.database.verdict().await;
    assert_eq!(verdict.ids, CREDITS, "nothing is lost");
    assert!(verdict.doubled() > 0, "the control must double: {verdict:?}");
    assert_eq!(verdict.balance, verdict.amounts, "money and ledger tell the same story");
    outcome.database.drop_now().await;
}
