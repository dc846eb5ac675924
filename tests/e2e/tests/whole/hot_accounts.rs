//! Two processes on ten hot accounts whose keys have nothing to do with the partitions: locks are taken
//! in crossing orders, so deadlocks occur; the end state is right all the same, without a dead letter.

use handstamp_e2e::child::Subject;
use handstamp_e2e::servers::{Database, Topic};
use std::time::{Duration, Instant};

const CREDITS: i64 = 6_000;

#[tokio::test]
async fn two_processes_on_hot_accounts_end_in_the_right_state() {
    let database = Database::create().await;
    let topic = Topic::create(6).await;
    // The account's order inside a partition differs from partition to partition.
    topic.send_credits(CREDITS, |n| (n * 7 + n / 6 * 3) % 10);
    let arguments =
        |n: u32| topic.arguments(&format!("{}?application_name=subject{n}", database.url), "batch=100");
    let program = env!("CARGO_BIN_EXE_subject");
    let subjects = [Subject::start(program, &arguments(1)), Subject::start(program, &arguments(2))];
    let until = Instant::now() + Duration::from_secs(120);
    while database.ledger_rows().await < CREDITS {
        assert!(Instant::now() < until, "no progress");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for subject in subjects {
        subject.terminate();
        let (status, log) = subject.wait(Duration::from_secs(40));
        assert!(status.success(), "{}", log.join("\n"));
    }
    database.verdict().await.assert_once(CREDITS, 1);
    assert_eq!(database.dead_letters().await, 0, "a deadlock is nobody's failure");
    topic.delete().await;
    database.drop_now().await;
}

/// The control: the same crossing orders without anything that keeps batches apart do deadlock.
#[tokio::test]
async fn crossing_orders_do_deadlock() {
    let database = Database::create().await;
    let mut first = handstamp_e2e::servers::connect(&database.url).await;
    let mut second = handstamp_e2e::servers::connect(&database.url).await;
    let update = "UPDATE accounts SET balance = balance + 1 WHERE id = $1";
    let a = first.transaction().await.unwrap();
    let b = second.transaction().await.unwrap();
    a.execute(update, &[&1_i64]).await.unwrap();
    b.execute(update, &[&2_i64]).await.unwrap();
    let (one, two) = tokio::join!(a.execute(update, &[&2_i64]), b.execute(update, &[&1_i64]));
    let codes: Vec<String> =
        [one, two].into_iter().filter_map(|r| r.err()).map(|e| e.code().unwrap().code().to_owned()).collect();
    assert_eq!(codes, ["40P01"]);
    drop((a, b));
    database.drop_now().await;
}
