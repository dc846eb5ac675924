//! What an idempotent consumer must do, and what the wrong ones do, each on both stores, with a real
//! process that really ends where it says so.

use handstamp_e2e::child::count;
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Topic, brokers};
use handstamp_e2e::world::{Kind, World};
use std::time::{Duration, Instant};

const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");

fn credits(count: i64) -> Vec<String> {
    (1..=count).map(|n| credit(&format!("evt-{n}"), 1, 100)).collect()
}

async fn world(kind: Kind, lines: &[String]) -> World {
    let world = World::create(kind, SUBJECT).await;
    world.write_lines("in.jsonl", lines);
    world
}

async fn double_delivery(kind: Kind) {
    let mut lines = credits(2);
    lines.push(lines[1].clone());
    let world = world(kind, &lines).await;
    let log = world.run_well("");
    world.verdict().await.assert_once(2, 100);
    assert_eq!(count(&log, "skipped duplicate evt-2 "), 1, "{}", log.join("\n"));
    world.end().await;
}

async fn crash_right_after_the_commit(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    world.run_to_death("batch=1 bend-store=die-after-commit:2");
    let log = world.run_well("");
    world.verdict().await.assert_once(5, 100);
    assert!(count(&log, "skipped duplicate evt-2 ") == 1, "{}", log.join("\n"));
    world.end().await;
}

fn on_kafka(topic: &Topic) -> String {
    format!("source=kafka brokers={} topic={} group={} ", brokers(), topic.name, topic.group)
}

async fn crash_right_after_the_commit_on_kafka(kind: Kind) {
    let topic = Topic::create(1).await;
    for n in 1..=5 {
        topic.send(&format!("evt-{n}"), "1", &credit(&format!("evt-{n}"), 1, 100));
    }
    topic.flush();
    let world = world(kind, &[]).await;
    let kafka = on_kafka(&topic);
    world.run_to_death(&format!("{kafka} batch=1 bend-store=die-after-commit:2"));
    let log = world.run_well(&format!("{kafka} idle-ms=500"));
    world.verdict().await.assert_once(5, 100);
    assert!(count(&log, "skipped duplicate evt-2 ") == 1, "{}", log.join("\n"));
    topic.delete().await;
    world.end().await;
}

async fn two_racing_consumers(kind: Kind) {
    let world = world(kind, &credits(2_000)).await;
    world.write_lines("other.jsonl", &credits(2_000));
    let other = format!("batch=20 path={}", world.path("other.jsonl").display());
    let racers = [world.start("batch=20"), world.start(&other)];
    for racer in racers {
        let (status, log) = racer.wait(Duration::from_secs(60));
        assert!(status.success(), "{}", log.join("\n"));
    }
    world.verdict().await.assert_once(2_000, 100);
    world.end().await;
}

async fn without_the_inbox_a_crash_doubles(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    world.run_to_death("batch=1 bend-store=no-inbox-die-after-commit:2");
    world.run_well("bend-store=no-inbox");
    let verdict = world.verdict().await;
    assert!(verdict.doubled() >= 1, "the control must double: {verdict:?}");
    assert_eq!(verdict.ids, 5);
    world.end().await;
}

async fn offset_first_loses(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    world.run_to_death("batch=1 bend-source=settle-first bend-store=die-before-commit:1");
    world.run_well("");
    let verdict = world.verdict().await;
    assert!(verdict.ids < 5, "the control must lose: {verdict:?}");
    world.end().await;
}

async fn no_id_is_a_dead_letter(kind: Kind) {
    let mut lines = credits(3);
    lines.insert(1, r#"{"account_id":1,"amount":100}"#.into());
    let world = world(kind, &lines).await;
    world.run_well("");
    world.verdict().await.assert_once(3, 100);
    assert_eq!(world.count("{dead_letters} WHERE class = 'identity'").await, 1);
    world.end().await;
}

async fn a_failed_settle_is_told_and_not_fatal(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    let log = world.run_well("bend-source=lose-settles");
    assert!(count(&log, "SettleFailed: 1") == 1, "{}", log.join("\n"));
    let log = world.run_well("");
    assert_eq!(count(&log, "skipped duplicate"), 5);
    world.verdict().await.assert_once(5, 100);
    world.end().await;
}

async fn an_effect_error_rolls_the_claim_back(kind: Kind) {
    let mut lines = credits(3);
    lines[1] = lines[1].replace('}', r#","fail":true}"#);
    let world = world(kind, &lines).await;
    let failing = world.start("attempts=1000000 shutdown-ms=200");
    let until = Instant::now() + Duration::from_secs(30);
    while world.count("ledger").await < 1 {
        assert!(Instant::now() < until, "evt-1 was never applied");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    failing.terminate();
    failing.wait(Duration::from_secs(60));
    assert_eq!(world.count("ledger").await, 1, "order: evt-3 waits behind evt-2");
    assert_eq!(world.count("{inbox}").await, 1, "the claim of what failed is gone with its effect");
    assert_eq!(world.count("{dead_letters}").await, 0);
    world.run_well("forgive=1");
    world.verdict().await.assert_once(3, 100);
    world.end().await;
}

async fn a_failed_commit_settles_nothing(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    let mut failing = world.start("bend-store=fail-commits");
    failing.wait_for("commit failed on purpose", Duration::from_secs(30));
    failing.terminate();
    let (status, log) = failing.wait(Duration::from_secs(60));
    assert!(status.success(), "waiting for a store ends well: {}", log.join("\n"));
    let log = world.run_well("");
    assert_eq!(count(&log, "applied: 5,"), 1, "everything came again: {}", log.join("\n"));
    world.verdict().await.assert_once(5, 100);
    world.end().await;
}

async fn a_duplicate_is_settled_too(kind: Kind) {
    let topic = Topic::create(1).await;
    for _ in 0..2 {
        for n in 1..=5 {
            topic.send(&format!("evt-{n}"), "1", &credit(&format!("evt-{n}"), 1, 100));
        }
    }
    topic.flush();
    let world = world(kind, &[]).await;
    let kafka = format!("{} idle-ms=500 batch=5", on_kafka(&topic));
    let log = world.run_well(&kafka);
    assert_eq!(count(&log, "applied: 5, duplicate: 5,"), 1, "{}", log.join("\n"));
    let log = world.run_well(&kafka);
    assert_eq!(count(&log, "received: 0,"), 1, "{}", log.join("\n"));
    world.verdict().await.assert_once(5, 100);
    topic.delete().await;
    world.end().await;
}

async fn an_id_is_scoped_by_its_consumer(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    world.run_well("consumer=wallet");
    world.run_well("consumer=points");
    let verdict = world.verdict().await;
    assert_eq!((verdict.effects, verdict.ids), (10, 5), "each consumer applies each id once");
    world.end().await;
}

async fn ids_survive_a_restart(kind: Kind) {
    let world = world(kind, &credits(5)).await;
    world.run_well("");
    let elsewhere = world.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let log = world.run_well(&format!("state={}", elsewhere.display()));
    assert_eq!(count(&log, "skipped duplicate"), 5, "{}", log.join("\n"));
    world.verdict().await.assert_once(5, 100);
    world.end().await;
}

/// Its backend would sleep for an hour with the account locked; the next credit is for the same account.
#[tokio::test]
async fn a_handler_that_is_cut_off_in_mid_query_holds_no_lock() {
    let mut lines = credits(2);
    lines[0] = lines[0].replace('}', r#","sleep_s":3600}"#);
    let world = world(Kind::Postgres, &lines).await;
    let log = world.run_well("attempts=1 handler-ms=300");
    let told = log.join("\n");
    assert_eq!(count(&log, "applied: 1, duplicate: 0,"), 1, "{told}");
    assert_eq!(world.count("{dead_letters} WHERE class = 'timed_out'").await, 1, "{told}");
    // The cut and nothing else: nobody waited for a lock in vain, and the store was not away.
    assert_eq!(count(&log, "attempts_failed: 1, commits: 2, reruns: 1,"), 1, "{told}");
    assert_eq!(count(&log, " WARN "), 1, "only of the dead letter: {told}");
    assert_eq!(world.verdict().await.effects, 1);
    assert_eq!(
        world.count("pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'").await,
        0
    );
    world.end().await;
}

macro_rules! on_both_stores {
    ($($case:ident)*) => {
        mod sqlite { $(#[tokio::test] async fn $case() { super::$case(super::Kind::Sqlite).await; })* }
        mod postgres { $(#[tokio::test] async fn $case() { super::$case(super::Kind::Postgres).await; })* }
    };
}

on_both_stores! {
    double_delivery
    crash_right_after_the_commit
    crash_right_after_the_commit_on_kafka
    two_racing_consumers
    without_the_inbox_a_crash_doubles
    offset_first_loses
    no_id_is_a_dead_letter
    a_failed_settle_is_told_and_not_fatal
    an_effect_error_rolls_the_claim_back
    a_failed_commit_settles_nothing
    a_duplicate_is_settled_too
    an_id_is_scoped_by_its_consumer
    ids_survive_a_restart
}
