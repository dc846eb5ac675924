//! A stop that is asked for while the broker is away or on its way back ends well and soon: what could not be
//! committed is said, comes again, and is met in the inbox.

use crate::outages::{CREDITS, SUBJECT, publish};
use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::servers::{Database, Private, Topic};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const NOT_COMMITTED: &str = "offsets not committed before the end";
/// Nothing is committed before the stop, and the session outlasts it: what is lost before is not ours to commit.
const MORE: &str = "batch=10 pause-us=2000 commit-every-ms=3600000 option.session.timeout.ms=10000";

#[tokio::test]
async fn a_stop_while_the_broker_is_away_says_what_is_not_committed_and_costs_only_duplicates() {
    let kafka = Private::start_new("kafka");
    let database = Database::create().await;
    let topic = Topic::create_on(kafka.address(), 3).await;
    publish(&topic);
    let start = |more: &str| Subject::start(SUBJECT, &topic.arguments(&database.url, more));

    // The broker is gone for good, as far as this process will know.
    let mut subject = start(MORE);
    database.wait_for_rows(200).await;
    kafka.stop();
    subject.wait_for("no Kafka broker answers", LIMIT);
    subject.terminate();
    let (status, log) = subject.wait(LIMIT);
    let applied = database.ledger_rows().await;
    assert!(status.success(), "{status}: {}", log.join("\n"));
    let said = log.iter().find(|line| line.contains(NOT_COMMITTED)).cloned().unwrap_or_default();
    assert!(said.contains(" WARN ") && said.contains(&format!("{}[", topic.name)), "{}", log.join("\n"));
    assert_eq!(count(&log, NOT_COMMITTED), 1, "said once: {}", log.join("\n"));

    // The broker comes back just while the process is asked to stop.
    kafka.start();
    let subject = start(MORE);
    database.wait_for_rows(applied + 200).await;
    kafka.stop();
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| kafka.start());
        subject.terminate();
        let (status, log) = subject.wait(LIMIT);
        assert!(status.success(), "{status}: {}", log.join("\n"));
        starting.join().unwrap();
    });

    let subject = start("batch=100");
    database.wait_for_rows(CREDITS).await;
    let log = crate::outages::end_well(subject, &database).await;
    assert!(count(&log, "skipped duplicate") > 0, "what was not committed comes again: {}", log.join("\n"));
    database.drop_now().await;
}
