//! What the client library says of a partition or of the group is said once, as a warning, with its name and
//! what follows.

use crate::outages::SUBJECT;
use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::servers::{Database, Topic};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn ends_well(subject: Subject) -> Vec<String> {
    subject.terminate();
    let (status, log) = subject.wait(LIMIT);
    assert!(status.success(), "{status}: {}", log.join("\n"));
    log
}

#[tokio::test]
async fn a_partition_that_cannot_be_read_is_named_with_the_reason_and_what_follows() {
    let database = Database::create().await;
    let topic = Topic::create(2).await;
    topic.send_credits(10, |n| n);
    // A group without offsets, and nothing that says where it begins.
    let arguments = topic.arguments(&database.url, "option.auto.offset.reset=error");
    let mut subject = Subject::start(SUBJECT, &arguments);
    for partition in 0..2 {
        subject.wait_for(&format!("partition {}[{partition}] gives an error", topic.name), LIMIT);
    }
    let log = ends_well(subject);
    for partition in 0..2 {
        let name = format!("partition {}[{partition}] gives an error", topic.name);
        let lines: Vec<&String> = log.iter().filter(|line| line.contains(&name)).collect();
        assert_eq!(lines.len(), 1, "said once: {}", log.join("\n"));
        assert!(lines[0].contains(" WARN "), "{}", lines[0]);
        assert!(lines[0].contains("no previously committed offset"), "the library's words: {}", lines[0]);
        assert!(lines[0].contains("nothing of it is read until"), "what follows: {}", lines[0]);
        assert!(lines[0].contains(&format!("partition={partition}")), "{}", lines[0]);
    }
    assert_eq!(database.ledger_rows().await, 0, "nothing was read");
    topic.delete().await;
    database.drop_now().await;
}

#[tokio::test]
async fn a_group_that_does_not_take_a_member_is_a_warning_with_the_reason() {
    let database = Database::create().await;
    let topic = Topic::create(2).await;
    let start = |strategy: &str| {
        let more = format!("option.partition.assignment.strategy={strategy}");
        Subject::start(SUBJECT, &topic.arguments(&database.url, &more))
    };
    let mut first = start("range");
    first.wait_for("assigned lanes=", LIMIT);
    let mut other = start("cooperative-sticky");
    other.wait_for("JoinGroup failed", LIMIT);
    let log = ends_well(other);
    let line = log.iter().find(|line| line.contains("JoinGroup failed")).unwrap();
    assert!(line.contains(" WARN ") && line.contains("trying again"), "{line}");
    assert_eq!(count(&log, "JoinGroup failed"), 1, "said once in ten seconds: {}", log.join("\n"));
    ends_well(first);
    topic.delete().await;
    database.drop_now().await;
}
