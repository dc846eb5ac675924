//! Versions in the engine: out of order in a batch, across processes and retries, with and without an inbox, and
//! what a fault of the store makes of it. On a paused clock.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry;

use handstamp_core::json::Pointer;
use handstamp_core::{
    ConsumerOptions, Counts, FailureClass, InboxState, Order, RunErrorKind, StoreErrorKind, VersionGuard,
};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::{MemoryStore, StorePoint, VersionBreak};
use retry::{Fate, World, options};
use std::time::Duration;
use tokio::task::LocalSet;

fn paused(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, body);
}

fn guarded() -> ConsumerOptions {
    let guard = VersionGuard { version: Pointer::member("seq"), key: Some(Pointer::member("of")) };
    ConsumerOptions { version: Some(guard), ..options(10) }
}

fn without_inbox() -> ConsumerOptions {
    ConsumerOptions { inbox: false, ..guarded() }
}

/// Publishes messages: id, key and version as JSON has it.
fn publish(world: &World, partition: usize, messages: &[(&str, &str, &str)]) {
    for (id, of, seq) in messages {
        let body = format!(r#"{{"of":"{of}","seq":{seq}}}"#);
        let payload = Payload::value(body).with_header("id", Some((*id).to_owned().into()));
        world.broker.publish(partition, payload).unwrap();
    }
}

async fn run_until(world: &World, options: ConsumerOptions, settled: u64) -> Counts {
    let run = world.start(options);
    run.until(|counts| counts.settled() == settled).await;
    run.counts().await
}

#[test]
fn only_what_is_newer_is_applied_also_out_of_order_in_one_batch() {
    for options in [guarded(), without_inbox()] {
        paused(async {
            let world = World::new();
            let messages = [
                ("a9", "a", "9"),
                ("b1", "b", "1"),
                ("a10", "a", "10"),
                ("a9.5", "a", "9.5"),
                ("b-1", "b", "-1"),
                ("a1e1", "a", "1e1"),
                ("a10.0", "a", "\"10.0\""),
                ("b2", "b", "2"),
                ("far", "c", "9007199254740992"),
                ("farther", "c", "9007199254740993"),
            ];
            publish(&world, 0, &messages);
            let counts = run_until(&world, options, 10).await;
            assert_eq!(world.applied(), ["a9", "b1", "a10", "b2", "far", "farther"]);
            assert_eq!((counts.applied, counts.stale, counts.duplicate), (6, 4, 0));
            assert_eq!(counts.commits, 1, "it was one batch");
            for stale in ["a9.5", "b-1", "a1e1", "a10.0"] {
                assert_eq!(world.runs(stale), 0, "{stale}");
            }
            assert_eq!(world.broker.committed("group", 0), Some(10));
        });
    }
}

#[test]
fn times_are_compared_as_instants_across_batches_and_restarts() {
    paused(async {
        let world = World::new();
        let time = |text: &str| format!("\"{text}\"");
        for (id, text, applied) in [
            ("noon", "2026-01-31T12:00:00Z", true),
            ("before", "2026-01-31T12:59:59.999+01:00", false),
            ("same", "2026-01-31T13:00:00.000+01:00", false),
            ("after", "2026-01-31T12:00:00.000000001Z", true),
        ] {
            publish(&world, 0, &[(id, "a", &time(text))]);
            let counts = run_until(&world, guarded(), 1).await;
            assert_eq!((counts.applied, counts.stale), (u64::from(applied), u64::from(!applied)), "{id}");
        }
        assert_eq!(world.applied(), ["noon", "after"]);
    });
}

#[test]
fn the_first_of_equal_versions_wins_and_a_redelivery_is_a_duplicate() {
    paused(async {
        let world = World::new();
        publish(&world, 0, &[("first", "a", "1"), ("second", "a", "1")]);
        let counts = run_until(&world, guarded(), 2).await;
        assert_eq!((counts.applied, counts.stale), (1, 1));
        assert_eq!(world.applied(), ["first"]);
        // What is stale has an outcome: its id is remembered.
        assert_eq!(world.state("second"), Some(InboxState::Applied));
        world.broker.rewind("group");
        let counts = run_until(&world, guarded(), 2).await;
        assert_eq!((counts.duplicate, counts.applied, counts.stale), (2, 0, 0));
    });
}

#[test]
fn what_has_no_version_or_one_of_another_kind_is_a_dead_letter_that_says_why() {
    for options in [guarded(), without_inbox()] {
        paused(async {
            let world = World::new();
            let time = "\"2026-01-31T12:00:00Z\"";
            publish(
                &world,
                0,
                &[
                    ("none", "a", "null"),
                    ("number", "a", "5"),
                    ("time", "a", time),
                    ("time-first", "b", time),
                    ("then-number", "b", "9"),
                    ("word", "a", "\"canary\""),
                    ("more", "a", "6"),
                ],
            );
            world.broker.publish(0, Payload::value("{\"seq\":7}").with_header("id", Some("no-key".into())));
            world.broker.publish(0, Payload::value("no json").with_header("id", Some("no-json".into())));
            let counts = run_until(&world, options.clone(), 9).await;
            assert_eq!(world.applied(), ["number", "time-first", "more"]);
            assert_eq!((counts.dead_lettered, counts.dead_letter_rows, counts.stale), (6, 6, 0));
            let letters = world.dead();
            assert!(
                letters.iter().all(|letter| letter.class == FailureClass::Version && letter.attempts == 0)
            );
            let why = |id: &str| {
                let letter =
                    letters.iter().find(|letter| letter.id.as_ref().unwrap().as_bytes() == id.as_bytes());
                letter.unwrap().reason.as_str().to_owned()
            };
            assert_eq!(why("none"), "no usable version in field /seq: it is null");
            assert_eq!(
                why("time"),
                "its version is a time, but that of what is applied of its key is a number"
            );
            assert_eq!(
                why("then-number"),
                "its version is a number, but that of what is applied of its key is a time"
            );
            assert_eq!(why("no-key"), "no usable key of its version in field /of: it is missing");
            assert!(why("no-json").contains("the body is not JSON") && !why("word").contains("canary"));
            // Across batches it is the mark that says it, also to a batch that begins with the other kind.
            publish(&world, 0, &[("late-time", "a", time), ("early-number", "b", "10"), ("a7", "a", "7")]);
            let counts = run_until(&world, options, 3).await;
            assert_eq!((counts.dead_lettered, counts.applied), (2, 1));
            assert_eq!(world.applied().last().map(String::as_str), Some("a7"));
            publish(&world, 0, &[("a6.5", "a", "6.5")]);
            assert_eq!(run_until(&world, guarded(), 1).await.stale, 1, "that batch had raised the mark");
        });
    }
}

#[test]
fn what_fails_is_taken_out_and_the_rest_is_judged_anew() {
    // Where a rollback keeps the marks, what failed would leave its version behind: the case can fail.
    for (broken, applied, stale) in
        [(None, &["a1", "a3", "b1"][..], 0), (Some(VersionBreak::RollbackKeepsMarks), &[][..], 3)]
    {
        paused(async {
            let mut world = World::new();
            world.store = MemoryStore::broken_versions(broken);
            world.fails("a5", 100);
            let mut options = guarded();
            options.policy.retry.max_attempts = 2;
            options.policy.retry.immediate = 2;
            publish(&world, 0, &[("a1", "a", "1"), ("a5", "a", "5"), ("a3", "a", "3"), ("b1", "b", "1")]);
            let counts = run_until(&world, options, 4).await;
            // Its version was never applied: what is older than it and newer than the rest is.
            assert_eq!(world.applied(), applied, "{broken:?}");
            assert_eq!(counts.stale + counts.dead_lettered, stale + 1, "{broken:?}: {counts:?}");
        });
    }
}

#[test]
fn a_parked_message_is_stale_once_a_newer_one_is_applied() {
    for order in [Order::Partition, Order::None] {
        paused(async {
            let world = World::new();
            world.fate("a1", Fate { failures: 1, after: Some(Duration::from_secs(60)), ..Fate::default() });
            world.fate("b1", Fate { failures: 1, after: Some(Duration::from_secs(60)), ..Fate::default() });
            publish(&world, 0, &[("a1", "a", "1"), ("b1", "b", "1"), ("a2", "a", "2")]);
            let run = world.start(ConsumerOptions { order, ..guarded() });
            run.until(|counts| counts.resumed == 2 && counts.resumed_ended() == 2).await;
            let counts = run.counts().await;
            assert_eq!((counts.applied, counts.parked), (1, 2));
            assert_eq!((counts.resumed_applied, counts.resumed_stale), (1, 1));
            assert_eq!((world.runs("a1"), world.effects("a1")), (1, 0), "it did not run again");
            assert_eq!((world.effects("a2"), world.effects("b1")), (1, 1));
            assert_eq!((world.state("a1"), world.parked().len()), (Some(InboxState::Applied), 0));
        });
    }
}

#[test]
fn with_order_by_key_versions_are_judged_in_the_order_of_the_key() {
    paused(async {
        let world = World::new();
        world.fate("a1", Fate { failures: 1, after: Some(Duration::from_secs(60)), ..Fate::default() });
        for (id, seq) in [("a1", 1), ("a3", 3), ("a2", 2)] {
            let body = format!(r#"{{"of":"a","seq":{seq}}}"#);
            let payload = Payload::value(body).with_key("k").with_header("id", Some(id.into()));
            world.broker.publish(0, payload);
        }
        let run = world.start(ConsumerOptions { order: Order::Key, ..guarded() });
        run.until(|counts| counts.resumed_ended() == 3).await;
        let counts = run.counts().await;
        assert_eq!(world.applied(), ["a1", "a3"]);
        assert_eq!((counts.parked, counts.resumed_applied, counts.resumed_stale), (3, 2, 1));
    });
}

#[test]
fn a_parked_message_of_another_kind_is_dead_without_a_run() {
    paused(async {
        let world = World::new();
        world.fate("a1", Fate { failures: 1, after: Some(Duration::from_secs(60)), ..Fate::default() });
        publish(&world, 0, &[("a1", "a", "\"2026-01-31T12:00:00Z\""), ("a2", "a", "2")]);
        let run = world.start(guarded());
        run.until(|counts| counts.resumed_dead == 1).await;
        let counts = run.counts().await;
        assert_eq!((counts.resumed, world.runs("a1"), world.effects("a2")), (1, 1, 1));
        let letter = &world.dead()[0];
        assert_eq!((letter.class, letter.attempts), (FailureClass::Version, 1), "no attempt is charged");
        assert_eq!(world.state("a1"), Some(InboxState::Dead));
    });
}

/// What is sent back by an operator is judged as what is parked: the newer one stays.
#[test]
fn a_redriven_message_is_stale_behind_a_newer_one() {
    paused(async {
        let world = World::new();
        world.fails("a1", 1);
        let mut options = guarded();
        options.policy.retry.max_attempts = 1;
        publish(&world, 0, &[("a1", "a", "1"), ("a2", "a", "2")]);
        run_until(&world, options.clone(), 2).await;
        assert!(world.store.redrive(&world.name, &retry::dedup("a1"), None));
        let run = world.start(options);
        run.until(|counts| counts.resumed_stale == 1).await;
        run.counts().await;
        assert_eq!((world.runs("a1"), world.effects("a2")), (1, 1));
        assert_eq!((world.dead().len(), world.parked().len()), (0, 0));
    });
}

#[test]
fn a_redelivery_without_an_inbox_is_held_off_by_its_version() {
    paused(async {
        let world = World::new();
        publish(&world, 0, &[("a1", "a", "1"), ("a2", "a", "2"), ("b1", "b", "1")]);
        let counts = run_until(&world, without_inbox(), 3).await;
        assert_eq!((counts.applied, counts.stale), (3, 0));
        world.broker.rewind("group");
        publish(&world, 0, &[("b2", "b", "2")]);
        let counts = run_until(&world, without_inbox(), 4).await;
        assert_eq!((counts.applied, counts.stale, counts.duplicate), (1, 3, 0));
        for id in ["a1", "a2", "b1", "b2"] {
            assert_eq!((world.effects(id), world.state(id)), (1, None), "{id}");
        }
    });
}

#[test]
fn without_an_inbox_and_without_a_guard_a_redelivery_runs_again_as_was_asked_for() {
    paused(async {
        let world = World::new();
        let knowing = ConsumerOptions { inbox: false, naturally_idempotent: true, ..options(10) };
        publish(&world, 0, &[("a1", "a", "1"), ("a2", "a", "2")]);
        run_until(&world, knowing.clone(), 2).await;
        world.broker.rewind("group");
        let counts = run_until(&world, knowing, 2).await;
        assert_eq!((counts.applied, world.effects("a1"), world.effects("a2")), (2, 2, 2));
        // Without the promise it does not start.
        let error = world.start(ConsumerOptions { inbox: false, ..options(10) }).stop().await.unwrap_err();
        assert_eq!(error.kind, RunErrorKind::Store(StoreErrorKind::Config));
    });
}

#[test]
fn without_an_inbox_a_bad_message_has_one_row_however_often_it_comes() {
    paused(async {
        let world = World::new();
        let mut options = without_inbox();
        options.policy.retry.max_attempts = 1;
        world.fails("a1", 100);
        publish(&world, 0, &[("a1", "a", "1"), ("a0", "a", "0")]);
        run_until(&world, options.clone(), 2).await;
        world.broker.rewind("group");
        let counts = run_until(&world, options, 2).await;
        assert_eq!((world.dead().len(), counts.dead_letter_rows, counts.duplicate), (1, 0, 1));
        assert_eq!((counts.stale, world.effects("a0")), (1, 1));
        let world = World::new();
        world.fate("b1", Fate { failures: 100, after: Some(Duration::from_secs(3_600)), ..Fate::default() });
        publish(&world, 0, &[("b1", "b", "1")]);
        run_until(&world, without_inbox(), 1).await;
        world.broker.rewind("group");
        let counts = run_until(&world, without_inbox(), 1).await;
        assert_eq!((world.parked_ids(), counts.parked, counts.duplicate), (vec!["b1".to_owned()], 0, 1));
    });
}

#[test]
fn two_processes_with_one_key_never_go_back() {
    for options in [guarded(), without_inbox()] {
        paused(async {
            let world = World::new();
            // The same key in both partitions, each in an order of its own.
            for n in 0..300_u32 {
                let (up, mixed) = (n, n * 7 % 300);
                publish(&world, 0, &[(&format!("up-{n}"), "a", &format!("{up}.1"))]);
                publish(&world, 1, &[(&format!("mixed-{n}"), "a", &mixed.to_string())]);
            }
            let small = ConsumerOptions { batch_max: 7, ..options };
            let (one, two) = (world.start(small.clone()), world.start(small));
            let all = |partition| world.broker.committed("group", partition) == Some(300);
            one.until(|_| all(0) && all(1)).await;
            let (one, two) = (one.counts().await, two.counts().await);
            let applied = world.applied();
            assert_eq!(applied.len() as u64, one.applied + two.applied);
            assert!(one.stale + two.stale > 100, "{one:?} {two:?}");
            assert!(one.applied.min(two.applied) > 0, "both had a part: {one:?} {two:?}");
            let version = |id: &String| -> f64 {
                let (kind, n) = id.split_once('-').unwrap();
                let n: u32 = n.parse().unwrap();
                if kind == "up" { f64::from(n) + 0.1 } else { f64::from(n * 7 % 300) }
            };
            let versions: Vec<f64> = applied.iter().map(version).collect();
            assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
            assert_eq!(applied.last().map(String::as_str), Some("up-299"));
        });
    }
}

#[test]
fn one_statement_a_batch_and_none_without_a_guard() {
    paused(async {
        let world = World::new();
        let fault = || world.store.fail_next(StorePoint::RaiseMarks, StoreErrorKind::Conflict);
        publish(&world, 0, &[("a1", "a", "1"), ("b1", "b", "1"), ("a2", "a", "2")]);
        fault();
        run_until(&world, options(10), 3).await;
        assert_eq!(world.store.faults_left(), 1, "no statement without a guard");
        world.store.clear_faults();
        // Duplicates alone raise nothing either.
        fault();
        world.broker.rewind("group");
        run_until(&world, guarded(), 3).await;
        assert_eq!(world.store.faults_left(), 1);
        world.store.clear_faults();
        publish(&world, 0, &[("a3", "a", "3"), ("b2", "b", "2"), ("c1", "c", "1"), ("c0", "c", "0")]);
        // The batch runs again after the first; a second statement of it would meet the third.
        (0..3).for_each(|_| fault());
        let counts = run_until(&world, guarded(), 4).await;
        assert_eq!((counts.commits, counts.reruns, counts.attempts_failed), (1, 3, 0), "{counts:?}");
        assert_eq!((counts.applied, counts.stale), (3, 1));
    });
}

#[test]
fn faults_of_the_store_are_nobodys_failure_and_change_no_outcome() {
    for (point, kind) in [
        (StorePoint::RaiseMarks, StoreErrorKind::Unavailable),
        (StorePoint::RaiseMarks, StoreErrorKind::Conflict),
        (StorePoint::Commit, StoreErrorKind::Conflict),
        (StorePoint::CommitThenLost, StoreErrorKind::Unavailable),
    ] {
        for options in [guarded(), without_inbox()] {
            paused(async {
                let world = World::new();
                publish(&world, 0, &[("a2", "a", "2"), ("a1", "a", "1"), ("b1", "b", "1"), ("b2", "b", "2")]);
                world.store.fail_next(point, kind);
                let counts = run_until(&world, options.clone(), 4).await;
                assert_eq!(world.store.faults_left(), 0, "{point:?}");
                assert_eq!(world.applied(), ["a2", "b1", "b2"], "{point:?}");
                // What was committed without an answer is counted once, as what it was.
                assert_eq!((counts.applied, counts.stale), (3, 1), "{point:?} {}", options.inbox);
                assert_eq!((counts.attempts_failed, counts.duplicate), (0, 0), "{point:?}");
                for id in ["a2", "b1", "b2"] {
                    assert_eq!(world.effects(id), 1, "{point:?} {id}");
                }
            });
        }
    }
}

#[test]
fn a_fault_while_a_retry_is_judged_charges_nothing() {
    for point in [StorePoint::RaiseMarks, StorePoint::CommitThenLost] {
        paused(async {
            let world = World::new();
            world.fate("a1", Fate { failures: 1, after: Some(Duration::from_secs(60)), ..Fate::default() });
            publish(&world, 0, &[("a1", "a", "1"), ("a2", "a", "2")]);
            let run = world.start(guarded());
            run.until(|counts| counts.settled() == 2).await;
            world.store.fail_next(point, StoreErrorKind::Unavailable);
            run.until(|counts| counts.resumed_stale == 1).await;
            let counts = run.counts().await;
            assert_eq!((counts.resumed, counts.attempts_failed), (1, 1), "{point:?}");
            assert_eq!((world.parked().len(), world.runs("a1"), world.store.faults_left()), (0, 1, 0));
        });
    }
}
