//! Members that freeze and wake up, operators who rewind, the new group protocol: each credit once.

use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Database, Topic};
use std::time::Duration;

const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");
const CREDITS: i64 = 1_500;

fn publish(topic: &Topic) {
    topic.send_credits(CREDITS, |n| n % 1000);
}

/// Ends both by SIGTERM, well; returns their logs.
fn end_well(subjects: [Subject; 2]) -> [Vec<String>; 2] {
    subjects.map(|subject| {
        subject.terminate();
        let (status, log) = subject.wait(Duration::from_secs(60));
        assert!(status.success(), "{}", log.join("\n"));
        log
    })
}

/// What the report says of a notice or a count.
fn told(log: &[String], name: &str) -> u64 {
    let report = log.iter().find(|line| line.contains(" report counts=")).unwrap();
    let Some((_, rest)) = report.split_once(&format!("{name}: ")) else { return 0 };
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// A member reads a group that has settled everything: nothing comes again.
fn assert_nothing_is_left(topic: &Topic, database: &Database) {
    let (status, log) =
        Subject::start(SUBJECT, &topic.arguments(&database.url, "idle-ms=300")).wait(Duration::from_secs(60));
    assert!(status.success(), "{}", log.join("\n"));
    assert_eq!(told(&log, "received"), 0, "{}", log.join("\n"));
}

/// Frozen past its session in the middle of its work, put out of the group, and awake again while
/// another member has its partitions: a zombie. The unique key decides between them.
#[tokio::test]
async fn a_member_that_freezes_and_wakes_up_doubles_nothing() {
    let database = Database::create().await;
    let topic = Topic::create(4).await;
    publish(&topic);
    // It freezes inside a transaction. The server ends that one, and whoever waits for its claims goes on.
    let slow = "batch=20 pause-us=3000 handler-ms=1500";
    let mut zombie = Subject::start(SUBJECT, &topic.arguments(&database.url, slow));
    database.wait_for_rows(100).await;
    zombie.freeze();
    let frozen_at = database.ledger_rows().await;
    let other = Subject::start(SUBJECT, &topic.arguments(&database.url, slow));
    // The other one works: the broker has given the partitions away.
    database.wait_for_rows(frozen_at + 200).await;
    zombie.wake_up();
    database.wait_for_rows(CREDITS).await;
    assert!(zombie.is_running(), "it goes on by itself");
    let [zombie, _] = end_well([zombie, other]);
    assert!(told(&zombie, "Lost") >= 1, "it was told: {}", zombie.join("\n"));
    database.verdict().await.assert_once(CREDITS, 1);
    assert_eq!(database.dead_letters().await, 0);
    assert_nothing_is_left(&topic, &database);
    topic.delete().await;
    database.drop_now().await;
}

/// Its client sends heartbeats and its engine works, but nothing is polled for longer than
/// `max.poll.interval.ms`: the group gives its partitions away. What it finished meanwhile comes too late.
#[tokio::test]
async fn a_member_that_stops_polling_is_put_out_and_its_late_results_are_refused() {
    let database = Database::create().await;
    let topic = Topic::create(4).await;
    publish(&topic);
    let hanging = "batch=20 pause-us=3000 option.max.poll.interval.ms=1500 hang-ms=8000";
    let mut zombie = Subject::start(SUBJECT, &topic.arguments(&database.url, hanging));
    database.wait_for_rows(100).await;
    zombie.hang();
    zombie.wait_for("nothing is polled", Duration::from_secs(30));
    let mut other = Subject::start(SUBJECT, &topic.arguments(&database.url, "batch=20"));
    // Both have worked at the same credits before the zombie knows that they are not its own any more.
    other.wait_for("skipped duplicate", Duration::from_secs(60));
    zombie.wait_for("max.poll.interval.ms passed without a poll", Duration::from_secs(60));
    database.wait_for_rows(CREDITS).await;
    // The group takes it back, and it works again.
    zombie.wait_for_nth("assigned lanes=", 2, Duration::from_secs(60));
    publish(&topic);
    database.wait_for_rows(2 * CREDITS).await;
    let [zombie, other] = end_well([zombie, other]);
    assert_eq!(told(&zombie, "Evicted"), 1, "{}", zombie.join("\n"));
    assert!(told(&zombie, "Lost") >= 1, "{}", zombie.join("\n"));
    let refused = told(&zombie, "SettleStale") + told(&zombie, "SettleFailed");
    assert!(refused >= 1, "results that came too late are counted: {}", zombie.join("\n"));
    assert!(told(&other, "applied") >= 1, "the other one took over: {}", other.join("\n"));
    database.verdict().await.assert_once(2 * CREDITS, 1);
    assert_eq!(database.dead_letters().await, 0);
    assert_nothing_is_left(&topic, &database);
    topic.delete().await;
    database.drop_now().await;
}

/// Polling goes on while a handler works: however long it takes, nobody is put out of the group.
#[tokio::test]
async fn a_handler_slower_than_the_poll_interval_keeps_its_partition() {
    let database = Database::create().await;
    let topic = Topic::create(1).await;
    topic.send("slow", "1", &credit("slow", 1, 1));
    topic.flush();
    let slow = "option.max.poll.interval.ms=1500 pause-us=4500000 idle-ms=300";
    let (status, log) =
        Subject::start(SUBJECT, &topic.arguments(&database.url, slow)).wait(Duration::from_secs(90));
    assert!(status.success(), "{}", log.join("\n"));
    assert_eq!([told(&log, "received"), told(&log, "applied")], [1, 1], "{}", log.join("\n"));
    assert_eq!(count(&log, "notices={}"), 1, "nothing happened to the source: {}", log.join("\n"));
    assert_nothing_is_left(&topic, &database);
    database.verdict().await.assert_once(1, 1);
    topic.delete().await;
    database.drop_now().await;
}

/// A group that an operator rewound to the start meets every id in the inbox; so does another group.
#[tokio::test]
async fn reading_everything_again_changes_nothing() {
    let database = Database::create().await;
    let mut topic = Topic::create(3).await;
    publish(&topic);
    let all = u64::try_from(CREDITS).unwrap();
    for (run, applied) in [("first", all), ("rewound", 0), ("another group", 0)] {
        match run {
            "rewound" => topic.rewind(3),
            "another group" => topic.group.push_str("_again"),
            _ => {}
        }
        let subject = Subject::start(SUBJECT, &topic.arguments(&database.url, "idle-ms=500"));
        let (status, log) = subject.wait(Duration::from_secs(90));
        assert!(status.success(), "{run}: {}", log.join("\n"));
        let seen = ["received", "applied", "duplicate"].map(|count| told(&log, count));
        assert_eq!(seen, [all, applied, all - applied], "{run}: {}", log.join("\n"));
    }
    database.verdict().await.assert_once(CREDITS, 1);
    assert_eq!(database.dead_letters().await, 0);
    topic.delete().await;
    database.drop_now().await;
}

#[tokio::test]
async fn the_new_group_protocol_passes_through_with_a_warning() {
    let database = Database::create().await;
    let topic = Topic::create(3).await;
    publish(&topic);
    let new = "option.group.protocol=consumer idle-ms=2000";
    let subject = Subject::start(SUBJECT, &topic.arguments(&database.url, new));
    let (status, log) = subject.wait(Duration::from_secs(90));
    assert!(status.success(), "{}", log.join("\n"));
    assert!(count(&log, "group.protocol") >= 1, "{}", log.join("\n"));
    database.verdict().await.assert_once(CREDITS, 1);
    topic.delete().await;
    database.drop_now().await;
}
