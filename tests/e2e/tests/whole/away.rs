//! A minute without something that is needed. Its module is the first by name and so starts first: the
//! others run beside the wait.

use crate::outages::{CREDITS, SUBJECT, end_well, publish};
use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::servers::{Database, Private, Topic};
use std::time::{Duration, Instant};

const AWAY: Duration = Duration::from_secs(60);
/// Our own line is one. The client library tries hundreds of times and says so of each of its connections
/// when it fails in a new way, and then twice a minute.
const WARNINGS_MAX: usize = 20;

/// Lines that say so again every ten seconds, for at least a minute.
const SAID_MIN: usize = 5;
/// The minute, and what a busy machine makes of starts and ends.
const SAID_MAX: usize = 14;

#[tokio::test]
async fn a_minute_without_a_broker_a_topic_or_a_store_costs_nothing_and_is_said_now_and_then() {
    let kafka = Private::start_new("kafka");
    let database = Database::create().await;
    let topic = Topic::create_on(kafka.address(), 3).await;
    publish(&topic);
    let start = |url: &str, more: &str| Subject::start(SUBJECT, &topic.arguments(url, more));
    let mut subject = start(&database.url, "batch=10 pause-us=2000");
    let mut without_topic = start(&database.url, "topic=never_made consumer=topicless");
    // A port that nobody listens on.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut without_store = start(&format!("postgres://nobody@{closed}/nothing"), "group=storeless");
    without_topic.wait_for("has no topic never_made", Duration::from_secs(60));
    without_store.wait_for("waiting for the store", Duration::from_secs(60));
    database.wait_for_rows(300).await;
    let before = count(&subject.log(), " WARN ");
    kafka.kill();
    let back_at = Instant::now() + AWAY;
    subject.wait_for("no Kafka broker answers", Duration::from_secs(30));
    while Instant::now() < back_at {
        for waiting in [&mut subject, &mut without_topic, &mut without_store] {
            assert!(waiting.is_running(), "{}", waiting.log().join("\n"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let log = subject.log();
    assert_eq!(count(&log, "no Kafka broker answers"), 1, "said once: {}", log.join("\n"));
    let warnings = count(&log, " WARN ") - before;
    assert!(warnings <= WARNINGS_MAX, "{warnings} warnings in a minute: {}", log.join("\n"));
    for (waiting, what) in [(without_topic, "; waiting"), (without_store, "waiting for the store")] {
        waiting.terminate();
        let (status, log) = waiting.wait(Duration::from_secs(60));
        let said = count(&log, what);
        assert!(status.success(), "a stop while waiting is well: {}", log.join("\n"));
        assert!((SAID_MIN..=SAID_MAX).contains(&said), "{what:?} said {said} times: {}", log.join("\n"));
    }
    kafka.start();
    subject.wait_for("a Kafka broker answers again", Duration::from_secs(90));
    database.wait_for_rows(CREDITS).await;
    let log = end_well(subject, &database).await;
    assert_eq!(count(&log, "BrokerAway: 1"), 1, "counted once: {}", log.join("\n"));
    database.drop_now().await;
}
