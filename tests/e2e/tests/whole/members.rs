//! Members that freeze and wake up, operators who rewind, the new group protocol: each credit once.

use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Database, Topic, brokers};
use std::time::{Duration, Instant};

const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");
const CREDITS: i64 = 1_500;

fn publish(topic: &Topic) {
    for n in 0..CREDITS {
        let id = uuid::Uuid::now_v7().to_string();
        topic.send(&id, &n.to_string(), &credit(&id, n % 1000, 1));
    }
    topic.flush();
}

fn arguments(topic: &Topic, database: &Database, more: &str) -> Vec<String> {
    let mut all = vec![
        "source=kafka".to_owned(),
        format!("brokers={}", brokers()),
        format!("topic={}", topic.name),
        format!("group={}", topic.group),
        "store=postgres".to_owned(),
        format!("db={}", database.url),
        "attempts=1".to_owned(),
    ];
    all.extend(more.split_whitespace().map(str::to_owned));
    all
}

async fn wait_for_rows(database: &Database, rows: i64) {
    let until = Instant::now() + Duration::from_secs(90);
    while database.ledger_rows().await < rows {
        assert!(Instant::now() < until, "no progress to {rows} ledger rows");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Frozen past its session in the middle of its work, put out of the group, and awake again while
/// another member has its partitions: a zombie. The unique key decides between them.
#[tokio::test]
async fn a_member_that_freezes_and_wakes_up_doubles_nothing() {
    let database = Database::create().await;
    let topic = Topic::create(4).await;
    publish(&topic);
    let slow = "batch=20 pause-us=3000";
    let mut zombie = Subject::start(SUBJECT, &arguments(&topic, &database, slow));
    wait_for_rows(&database, 100).await;
    zombie.freeze();
    let frozen_at = database.ledger_rows().await;
    let other = Subject::start(SUBJECT, &arguments(&topic, &database, slow));
    // The other one works: the broker has given the partitions away.
    wait_for_rows(&database, frozen_at + 200).await;
    zombie.wake_up();
    wait_for_rows(&database, CREDITS).await;
    assert!(zombie.is_running(), "it goes on by itself");
    for subject in [zombie, other] {
        subject.terminate();
        let (status, log) = subject.wait(Duration::from_secs(60));
        assert!(status.success(), "{}", log.join("\n"));
    }
    database.verdict().await.assert_once(CREDITS, 1);
    let dead = database.client.query_one("SELECT count(*) FROM handstamp.dead_letters", &[]).await.unwrap();
    assert_eq!(dead.get::<_, i64>(0), 0);
    topic.delete().await;
    database.drop_now().await;
}

/// A group that starts again at the beginning meets every id in the inbox.
#[tokio::test]
async fn reading_everything_again_changes_nothing() {
    let database = Database::create().await;
    let mut topic = Topic::create(3).await;
    publish(&topic);
    for (run, expected) in [("applied: 1500, duplicate: 0,", 1), ("applied: 0, duplicate: 1500,", 1)] {
        let subject = Subject::start(SUBJECT, &arguments(&topic, &database, "idle-ms=1000"));
        let (status, log) = subject.wait(Duration::from_secs(90));
        assert!(status.success(), "{}", log.join("\n"));
        assert_eq!(count(&log, run), expected, "{}", log.join("\n"));
        // Another group has no offsets: it begins at the beginning, under the same consumer name.
        topic.group.push_str("_again");
    }
    database.verdict().await.assert_once(CREDITS, 1);
    topic.delete().await;
    database.drop_now().await;
}

#[tokio::test]
async fn the_new_group_protocol_passes_through_with_a_warning() {
    let database = Database::create().await;
    let topic = Topic::create(3).await;
    publish(&topic);
    let new = "option.group.protocol=consumer idle-ms=2000";
    let subject = Subject::start(SUBJECT, &arguments(&topic, &database, new));
    let (status, log) = subject.wait(Duration::from_secs(90));
    assert!(status.success(), "{}", log.join("\n"));
    assert!(count(&log, "group.protocol") >= 1, "{}", log.join("\n"));
    database.verdict().await.assert_once(CREDITS, 1);
    topic.delete().await;
    database.drop_now().await;
}
