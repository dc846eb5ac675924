//! Versions with a process that really dies: nothing but the mark knows what it had committed.

use handstamp_e2e::child::count;
use handstamp_e2e::world::{Kind, World};

const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");
/// A version guard, and no inbox.
const GUARDED: &str = "inbox=0 version=/seq version-key=/account_id ";

fn versions(count: i64) -> Vec<String> {
    let line = |n| format!(r#"{{"id":"evt-{n}","account_id":1,"amount":100,"seq":{n}}}"#);
    (1..=count).map(line).collect()
}

async fn killed_between_commit_and_settle_without_an_inbox(kind: Kind) {
    let world = World::create(kind, SUBJECT).await;
    world.write_lines("in.jsonl", &versions(5));
    world.run_to_death(&format!("{GUARDED} batch=1 bend-store=die-after-commit:2"));
    assert_eq!(world.verdict().await.effects, 2);
    let log = world.run_well(GUARDED);
    let told = log.join("\n");
    world.verdict().await.assert_once(5, 100);
    // The second, and the first where its position was not written any more.
    assert_eq!(count(&log, " stale: 1,") + count(&log, " stale: 2,"), 1, "{told}");
    assert_eq!(world.count("{inbox}").await, 0, "nothing remembers an id");
    assert_eq!(world.count("{versions}").await, 1, "one row for the key");
    assert_eq!(world.count("{dead_letters}").await, 0, "{told}");
    world.end().await;
}

/// The control: the same death without a guard doubles.
async fn the_same_death_without_a_guard_doubles(kind: Kind) {
    let world = World::create(kind, SUBJECT).await;
    world.write_lines("in.jsonl", &versions(5));
    let knowing = "inbox=0 idempotent=1";
    world.run_to_death(&format!("{knowing} batch=1 bend-store=die-after-commit:2"));
    world.run_well(knowing);
    assert!(world.verdict().await.doubled() >= 1, "the control must double");
    world.end().await;
}

/// Killed in the middle again and again: what is applied of the key only grows, and its last version is.
async fn kills_never_lead_back(kind: Kind) {
    let world = World::create(kind, SUBJECT).await;
    // Two delivered twice, the second time late.
    let mut lines = versions(40);
    lines.insert(20, lines[3].replace("evt-4", "late-4"));
    lines.push(lines[9].replace("evt-10", "late-10"));
    world.write_lines("in.jsonl", &lines);
    for nth in 1..=3 {
        world.run_to_death(&format!("{GUARDED} batch=4 bend-store=die-after-commit:{nth}"));
    }
    let log = world.run_well(GUARDED);
    let verdict = world.verdict().await;
    assert_eq!((verdict.effects, verdict.ids), (40, 40), "{verdict:?} {}", log.join("\n"));
    world.end().await;
}

macro_rules! on_both_stores {
    ($($case:ident)*) => {
        mod sqlite { $(#[tokio::test] async fn $case() { super::$case(super::Kind::Sqlite).await; })* }
        mod postgres { $(#[tokio::test] async fn $case() { super::$case(super::Kind::Postgres).await; })* }
    };
}

on_both_stores! {
    killed_between_commit_and_settle_without_an_inbox
    the_same_death_without_a_guard_doubles
    kills_never_lead_back
}
