//! One process at a time reads a file for a consumer; a process that is gone, however it went, is not in
//! the way of the next one.

use handstamp_e2e::child::count;
use handstamp_e2e::money::credit;
use handstamp_e2e::world::{Kind, World};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_is_killed() {
    let world = World::create(Kind::Sqlite, env!("CARGO_BIN_EXE_subject")).await;
    let mut lines: Vec<String> = (1..=3).map(|n| credit(&format!("evt-{n}"), 1, 100)).collect();
    lines[1] = lines[1].replace('}', r#","fail":true}"#);
    world.write_lines("in.jsonl", &lines);
    // The first one never comes past its second line.
    let mut first = world.start("attempts=1000000 batch=1");
    let until = Instant::now() + LIMIT;
    while world.count("ledger").await < 1 {
        assert!(Instant::now() < until && first.is_running(), "{}", first.log().join("\n"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The lock is the file's and the consumer's, whatever the store.
    let other_store = format!("db={} attempts=1000000", world.path("other.db").display());
    let refuse = |when: &str| {
        let (status, log) = world.run(&other_store);
        let why = log.join("\n");
        assert_eq!(status.code(), Some(1), "{when}: {why}");
        assert_eq!(count(&log, "kind=Source(Locked)"), 1, "{when}: {why}");
        assert!(why.contains("is being read for consumer wallet by another process"), "{when}: {why}");
    };
    refuse("running");
    first.freeze();
    refuse("frozen");
    first.wake_up();
    refuse("awake again");
    assert!(first.is_running());
    first.kill();
    world.run_well("forgive=1");
    world.verdict().await.assert_once(3, 100);
    world.end().await;
}
