//! Retries that survive: what is parked, when it is taken up again, and what a stop, a restart, a second process
//! or a fault of the store make of it. On a paused clock.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry;

use handstamp_core::decide::{OnFailure, Policy};
use handstamp_core::{
    ConsumerOptions, Counts, FailureClass, Handler, HandlerError, InboxState, Message, Order, RunErrorKind,
    StopReason, StoreErrorKind,
};
use handstamp_testkit::fakes::{MemoryTx, StorePoint};
use retry::{Fate, World, dedup, options, policy};
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

fn paused(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, body);
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_failing_message_is_parked_and_applied_at_its_time_while_its_neighbours_go_on() {
    paused(async {
        let world = World::new();
        let hour = seconds(3_600);
        world.fate("a3", Fate { failures: 2, after: Some(hour), ..Fate::default() });
        world.publish(0, None, &["a1", "a2", "a3", "a4", "a5"]);
        let run = world.start(options(10));
        run.until(|counts| counts.settled() == 5).await;
        assert_eq!(world.broker.committed("group", 0), Some(5), "the partition goes on");
        assert_eq!(world.applied(), ["a1", "a2", "a4", "a5"]);
        assert_eq!(world.state("a3"), Some(InboxState::Parked));
        let row = &world.parked()[0];
        assert_eq!((row.letter.attempts, row.letter.class), (1, FailureClass::Failed));
        assert_eq!(row.letter.record.value.as_deref(), Some(&b"a3"[..]));
        let parked_at = Instant::now();
        // It asks for an hour once more, now out of the row.
        run.until(|counts| counts.resumed_parked_again == 1).await;
        let waited = parked_at.elapsed();
        assert!(waited > hour - seconds(2) && waited < hour + seconds(2), "{waited:?}");
        assert_eq!(world.parked()[0].letter.attempts, 2);
        run.until(|counts| counts.resumed_applied == 1).await;
        assert!(parked_at.elapsed() > hour * 2 - seconds(2));
        assert_eq!((world.effects("a3"), world.runs("a3")), (1, 3));
        assert_eq!((world.state("a3"), world.parked().len()), (Some(InboxState::Applied), 0));
        let counts = run.counts().await;
        assert_eq!((counts.applied, counts.parked, counts.attempts_failed), (4, 1, 2));
        assert_eq!((counts.resumed, counts.dead_letter_rows), (2, 0));
        let history = world.history("a3");
        assert_eq!(history.len(), 2);
        assert!(history.iter().all(|failed| failed.node == "host/1" && failed.class == FailureClass::Failed));
    });
}

#[test]
fn attempts_are_counted_once_whatever_restarts_lie_between() {
    paused(async {
        let world = World::new();
        world.fails("a2", 1_000);
        world.publish(0, None, &["a1", "a2", "a3"]);
        let mut all = Counts::default();
        for node in 0..20 {
            let options =
                ConsumerOptions { until_idle: Some(seconds(1)), node: format!("host/{node}"), ..options(7) };
            let report = world.start(options).ended().await;
            all.resumed_parked_again += report.resumed_parked_again;
            all.attempts_failed += report.attempts_failed;
            all.dead_letter_rows += report.dead_letter_rows;
            all.resumed_dead += report.resumed_dead;
            sleep(seconds(2)).await;
        }
        assert_eq!((world.runs("a2"), all.attempts_failed), (7, 7));
        assert_eq!((all.resumed_dead, all.dead_letter_rows), (1, 1));
        let dead = world.dead();
        assert_eq!((dead.len(), dead[0].attempts), (1, 7));
        assert_eq!((world.state("a2"), world.parked().len()), (Some(InboxState::Dead), 0));
        let history = world.history("a2");
        assert_eq!(history.len(), 7);
        assert!(history.first().unwrap().node < history.last().unwrap().node, "of more than one process");
        assert_eq!((world.effects("a1"), world.effects("a2"), world.effects("a3")), (1, 0, 1));
    });
}

#[test]
fn a_parked_message_that_is_too_old_is_dead_when_it_fails() {
    paused(async {
        let world = World::new();
        world.fails("a1", 1_000);
        world.publish(0, None, &["a1"]);
        let mut aged = options(1_000_000);
        aged.policy.retry.max_age = Some(seconds(60));
        let run = world.start(aged);
        let began = Instant::now();
        run.until(|counts| counts.resumed_dead == 1).await;
        let took = began.elapsed();
        assert!(took >= seconds(60) && took < seconds(62), "{took:?}");
        assert!(run.counts().await.resumed_parked_again > 10);
    });
}

#[test]
fn attempts_by_code_are_those_of_the_row() {
    struct Violates;
    impl Handler<MemoryTx> for Violates {
        async fn handle(&self, tx: &mut MemoryTx, _: &Message) -> Result<(), HandlerError> {
            Ok(tx.fail(StoreErrorKind::Statement, "23503")?)
        }
    }
    paused(async {
        let world = World::new();
        world.publish(0, None, &["a1"]);
        let mut options = options(3);
        options.policy.retry.max_attempts_by_code.insert("23503".into(), 6);
        let run = world.start_with(options, Violates);
        run.until(|counts| counts.resumed_dead == 1).await;
        run.counts().await;
        let dead = world.dead();
        assert_eq!((dead[0].attempts, dead[0].class), (6, FailureClass::Sql));
        assert_eq!(dead[0].code.as_deref(), Some("23503"));
    });
}

#[test]
fn order_by_key_holds_only_that_key_and_beyond_the_death_of_its_head() {
    for (failures, max_attempts) in [(4, 10), (1_000, 4)] {
        paused(async {
            let world = World::new();
            world.fails("k1", failures);
            world.publish(0, Some("k"), &["k1", "k2"]);
            world.publish(0, Some("other"), &["o1"]);
            world.publish(0, None, &["n1"]);
            world.publish(0, Some("k"), &["k3"]);
            let by_key = || ConsumerOptions { order: Order::Key, batch_max: 3, ..options(max_attempts) };
            let run = world.start(by_key());
            run.until(|counts| counts.settled() == 5).await;
            assert_eq!(world.applied(), ["o1", "n1"]);
            assert_eq!(world.parked_ids(), ["k1", "k2", "k3"]);
            let waiting = &world.parked()[2].letter;
            assert_eq!((waiting.class, waiting.attempts), (FailureClass::Waiting, 0));
            // What comes later waits too, also in another process.
            let first = run.counts().await;
            world.publish(0, Some("k"), &["k4"]);
            let run = world.start(by_key());
            run.until(|counts| counts.settled() == 1).await;
            run.until(|counts| first.resumed_applied + counts.resumed_applied + counts.resumed_dead == 4)
                .await;
            let dies = failures == 1_000;
            let order: &[&str] = if dies { &["k2", "k3", "k4"] } else { &["k1", "k2", "k3", "k4"] };
            assert_eq!(world.applied()[2..], *order);
            assert_eq!((world.dead().len(), world.parked().len()), (usize::from(dies), 0));
            // Nothing of the key is parked any more: it goes straight through.
            world.publish(0, Some("k"), &["k5"]);
            run.until(|counts| counts.applied == 1).await;
            run.counts().await;
            assert!(world.history("k2").is_empty());
        });
    }
}

/// Parks so many messages for an hour, each to be applied at its next attempt.
async fn with_parked(world: &World, count: usize) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|n| format!("m{n}")).collect();
    for id in &ids {
        world.fate(id, Fate { failures: 1, after: Some(seconds(3_600)), ..Fate::default() });
        world.publish(0, None, &[id]);
    }
    let run = world.start(options(10));
    run.until(|counts| counts.parked == count as u64).await;
    run.counts().await;
    assert_eq!(world.parked().len(), count);
    ids
}

#[test]
fn two_processes_take_each_due_message_once() {
    paused(async {
        let world = World::new();
        let ids = with_parked(&world, 300).await;
        // Every tenth fails twice more.
        for id in ids.iter().step_by(10) {
            world.fails(id, 2);
        }
        sleep(seconds(3_600)).await;
        let runs: Vec<_> = (0..4).map(|_| world.start(options(10))).collect();
        let all = |get: fn(&Counts) -> u64| -> u64 { runs.iter().map(|run| get(&run.live.snapshot())).sum() };
        for _ in 0..10_000 {
            if all(|counts| counts.resumed_applied) == 300 {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert!(ids.iter().all(|id| world.effects(id) == 1 && world.state(id) == Some(InboxState::Applied)));
        let mut sum = Counts::default();
        let mut took_part = 0;
        for run in runs {
            let counts = run.counts().await;
            took_part += usize::from(counts.resumed_applied > 0);
            sum.resumed_applied += counts.resumed_applied;
            sum.resumed_parked_again += counts.resumed_parked_again;
            sum.attempts_failed += counts.attempts_failed;
        }
        assert_eq!((sum.resumed_applied, sum.attempts_failed), (300, 60));
        assert!(took_part > 1);
        // Each failed run is written once; or not at all, where another process applied the message meanwhile.
        let written: usize = ids.iter().map(|id| world.history(id).len() - 1).sum();
        assert_eq!(sum.resumed_parked_again, written as u64);
        assert!((50..=60).contains(&written), "{written} of 60");
    });
}

#[test]
fn faults_of_the_store_charge_no_attempt() {
    use StoreErrorKind::{Conflict, SchemaMismatch, Timeout, Unavailable};
    let points = [
        (StorePoint::ParkedStatus, vec![Unavailable, SchemaMismatch]),
        (StorePoint::TakeDue, vec![Unavailable, Conflict]),
        (StorePoint::Resume, vec![Unavailable, Conflict, Timeout]),
        (StorePoint::TakeAgain, vec![]),
        (StorePoint::Commit, vec![Unavailable, Conflict, Timeout]),
        (StorePoint::CommitThenLost, vec![Unavailable]),
    ];
    for (point, kinds) in points {
        paused(async {
            let world = World::new();
            let ids = with_parked(&world, 10).await;
            world.fails(&ids[4], 1);
            sleep(seconds(3_600)).await;
            for kind in &kinds {
                world.store.fail_next(point, *kind);
            }
            if kinds.is_empty() {
                // Behind the failed run of the fifth, and where it is written.
                world.store.fail_next(StorePoint::TakeAgain, Unavailable);
                world.store.fail_next(StorePoint::Resume, Conflict);
                world.store.fail_next(StorePoint::TakeAgain, Conflict);
            }
            let run = world.start(options(10));
            run.until(|counts| counts.resumed_applied == 10).await;
            assert_eq!(world.store.faults_left(), 0, "{point:?}");
            let counts = run.counts().await;
            let again = counts.resumed_parked_again;
            assert_eq!((again, counts.attempts_failed, counts.resumed_released), (1, 1, 0), "{point:?}");
            assert!(ids.iter().all(|id| world.effects(id) == 1), "{point:?}");
            let failed: Vec<usize> = ids.iter().map(|id| world.history(id).len()).collect();
            assert_eq!(failed, [1, 1, 1, 1, 2, 1, 1, 1, 1, 1], "{point:?}");
            assert!(world.dead().is_empty());
        });
    }
}

#[test]
fn a_row_that_another_process_takes_in_between_keeps_its_attempt() {
    paused(async {
        use handstamp_core::{Fingerprint, ParkingStore, Store};
        let world = World::new();
        let ids = with_parked(&world, 1).await;
        world.fate(&ids[0], Fate { failures: 1, after: None, takes: seconds(1) });
        sleep(seconds(3_600)).await;
        let run = world.start(options(10));
        run.until(|counts| counts.resumed == 1).await;
        // Once it failed, somebody else has it for a while, who does nothing.
        world.store.fail_next(StorePoint::TakeAgain, StoreErrorKind::Conflict);
        let key = world.store.register(&world.name, &Fingerprint(String::new()), true).await.unwrap();
        let mut taken = None;
        while taken.is_none() {
            taken = world.store.take_due(&key, 1).await.unwrap();
        }
        let (tx, _) = taken.unwrap();
        assert_eq!(world.runs(&ids[0]), 2);
        sleep(seconds(1)).await;
        assert_eq!(world.history(&ids[0]).len(), 1);
        world.store.rollback(tx).await.unwrap();
        run.until(|counts| counts.resumed_applied == 1).await;
        assert_eq!((world.history(&ids[0]).len(), world.runs(&ids[0])), (2, 3));
        run.counts().await;
    });
}

#[test]
fn a_stop_in_the_middle_of_a_retry_lets_it_finish_or_rolls_it_back() {
    for (shutdown_timeout, finishes) in [(seconds(60), true), (seconds(5), false)] {
        paused(async {
            let world = World::new();
            let ids = with_parked(&world, 2).await;
            sleep(seconds(3_600)).await;
            for id in &ids {
                world.fate(id, Fate { failures: 0, after: None, takes: seconds(10) });
            }
            let run = world.start(ConsumerOptions { shutdown_timeout, ..options(10) });
            run.until(|counts| counts.resumed == 2).await;
            sleep(seconds(1)).await;
            let live = std::sync::Arc::clone(&run.live);
            let stopped = run.stop().await;
            let counts = live.snapshot();
            handstamp_core::invariants::counts_reconcile(&counts).unwrap();
            assert_eq!(counts.resumed, 2);
            if finishes {
                assert_eq!(stopped.unwrap().stopped, StopReason::Asked);
                assert_eq!((counts.resumed_applied, world.effects("m0"), world.effects("m1")), (2, 1, 1));
            } else {
                assert_eq!(stopped.unwrap_err().kind, RunErrorKind::ShutdownTimeout);
                assert_eq!((counts.resumed_released, world.effects("m0")), (2, 0));
                assert_eq!(world.parked().len(), 2);
                // Its lock is free: the next process takes it up.
                let run = world.start(options(10));
                run.until(|counts| counts.resumed_applied == 2).await;
                run.counts().await;
            }
        });
    }
}

#[test]
fn with_too_many_parked_nothing_new_is_begun_until_there_are_fewer() {
    paused(async {
        let world = World::new();
        with_parked(&world, 20).await;
        let ids: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
        world.publish(1, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        let run = world.start(ConsumerOptions { parked_max: 20, ..options(10) });
        sleep(seconds(60)).await;
        let counts = run.live.snapshot();
        assert_eq!((counts.received, counts.applied), (10, 0), "the log is read, nothing is begun");
        sleep(seconds(3_600)).await;
        let counts = run.counts().await;
        assert_eq!((counts.applied, counts.resumed_applied), (10, 20));
    });
}

#[test]
fn what_blocks_holds_its_lane_and_no_other() {
    paused(async {
        let world = World::new();
        world.fails("a2", 1_000);
        world.publish(0, None, &["a1", "a2", "a3"]);
        let policy = Policy { on_failure: OnFailure::Block, ..policy(8) };
        let mut blocks = ConsumerOptions { policy, concurrency: 1, ..options(8) };
        blocks.policy.retry.backoff.base = seconds(600);
        blocks.policy.retry.backoff.cap = seconds(600);
        let run = world.start(blocks);
        run.until(|counts| counts.attempts_failed == 3).await;
        world.publish(1, None, &["b1", "b2"]);
        run.until(|counts| counts.applied == 3).await;
        assert_eq!(world.applied(), ["a1", "b1", "b2"], "the other lane goes on");
        assert_eq!((world.parked().len(), world.state("a3")), (0, None));
        run.until(|counts| counts.applied == 4).await;
        assert_eq!(world.applied(), ["a1", "b1", "b2", "a3"]);
        let counts = run.counts().await;
        assert_eq!((counts.dead_lettered, counts.parked, world.runs("a2")), (1, 0, 8));
        assert_eq!((world.dead()[0].attempts, world.history("a2").len()), (8, 8));
    });
}

#[test]
fn a_stop_does_not_wait_for_a_lane_that_blocks() {
    paused(async {
        let world = World::new();
        world.fate("a2", Fate { failures: 1_000, after: Some(seconds(3_600)), ..Fate::default() });
        world.publish(0, None, &["a1", "a2", "a3"]);
        let policy = Policy { on_failure: OnFailure::Block, ..policy(8) };
        let run = world.start(ConsumerOptions { policy, ..options(8) });
        run.until(|counts| counts.attempts_failed == 1).await;
        let began = Instant::now();
        let counts = run.counts().await;
        assert!(began.elapsed() < seconds(2), "{:?}", began.elapsed());
        assert_eq!((counts.applied, counts.released), (1, 2));
    });
}

#[test]
fn the_end_of_the_source_takes_what_is_due_and_leaves_what_waits() {
    paused(async {
        let world = World::new();
        let ids = with_parked(&world, 30).await;
        world.fate(&ids[3], Fate { failures: 1, after: Some(seconds(600)), ..Fate::default() });
        let ends = || ConsumerOptions { until_idle: Some(seconds(1)), ..options(10) };
        assert_eq!(world.start(ends()).ended().await, Counts::default(), "nothing is due");
        sleep(seconds(3_600)).await;
        let began = Instant::now();
        let counts = world.start(ends()).ended().await;
        assert_eq!((counts.resumed_applied, counts.resumed_parked_again), (29, 1));
        assert!(began.elapsed() < seconds(5), "{:?}", began.elapsed());
        assert_eq!(world.parked_ids(), [ids[3].clone()]);
        assert_eq!(world.parked()[0].dedup, dedup(&ids[3]));
    });
}

#[test]
fn a_message_that_lost_its_bytes_is_dead_without_an_attempt() {
    paused(async {
        let world = World::new();
        let large = "x".repeat(5_000);
        world
            .broker
            .publish(0, handstamp_testkit::Payload::value(large).with_header("id", Some("big".into())));
        let small = ConsumerOptions { message_max_bytes: 1_000, ..options(10) };
        let run = world.start(small.clone());
        run.until(|counts| counts.dead_lettered == 1).await;
        run.counts().await;
        assert!(world.store.redrive(&world.name, &dedup("big"), None));
        let run = world.start(small);
        run.until(|counts| counts.resumed_dead == 1).await;
        run.counts().await;
        let dead = &world.dead()[0];
        assert_eq!((dead.class, dead.attempts, world.runs("big")), (FailureClass::TooLarge, 0, 0));
        assert!(world.history("big").is_empty());
    });
}

/// Three hundred messages of one batch that fail so often, with a wait of a second in place.
fn much_fails(world: &World, fate: Fate) -> (ConsumerOptions, Vec<String>) {
    let ids: Vec<String> = (0..300).map(|n| format!("bad{n}")).collect();
    for id in &ids {
        world.fate(id, fate);
    }
    world.publish(0, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    let mut options = options(1_000);
    options.policy.retry.immediate = 2;
    options.policy.retry.wait = seconds(1);
    (options, ids)
}

#[test]
fn what_is_due_is_not_held_up_by_a_lane_in_which_much_fails() {
    paused(async {
        let world = World::new();
        world.fate("early", Fate { failures: 2, after: Some(seconds(5)), ..Fate::default() });
        world.publish(0, None, &["early"]);
        let (options, _) = much_fails(&world, Fate { failures: 1, ..Fate::default() });
        let run = world.start(options);
        let began = Instant::now();
        run.until(|counts| counts.resumed_applied == 1).await;
        // Twice five seconds and a turn of the lane's own; the batch alone takes three hundred.
        assert!(began.elapsed() < seconds(20), "{:?}", began.elapsed());
        let counts = run.stop().await.unwrap().counts;
        assert!(counts.applied < 100, "the batch was still being taken apart: {counts:?}");
    });
}

#[test]
fn a_stop_leaves_a_batch_that_is_being_taken_apart() {
    paused(async {
        let world = World::new();
        let (options, ids) = much_fails(&world, Fate { failures: 1, ..Fate::default() });
        let run = world.start(options);
        run.until(|counts| counts.applied == 3).await;
        let asked = Instant::now();
        let counts = run.stop().await.unwrap().counts;
        assert!(asked.elapsed() < seconds(5), "{:?}", asked.elapsed());
        assert!(counts.applied >= 3 && counts.applied < 10, "{counts:?}");
        assert_eq!(counts.applied + counts.released, 300, "{counts:?}");
        let applied = ids.iter().filter(|id| world.effects(id) == 1).count();
        assert_eq!(applied as u64, counts.applied);
    });
}

#[test]
fn three_waits_in_vain_and_the_lane_goes_on_without() {
    paused(async {
        let world = World::new();
        let (options, ids) = much_fails(&world, Fate { failures: 1_000_000, ..Fate::default() });
        let began = Instant::now();
        let run = world.start(options);
        run.until(|counts| counts.parked == 300).await;
        // Three, and one in a hundred runs; each of them waiting alone takes five minutes.
        assert!(began.elapsed() < seconds(20), "{:?}", began.elapsed());
        run.counts().await;
        assert!(ids.iter().all(|id| world.history(id).len() >= 2), "each had its attempts in place");
    });
}

#[test]
fn a_wait_that_was_asked_for_is_kept_elsewhere_where_waits_are_in_vain() {
    paused(async {
        let world = World::new();
        let fate = Fate { failures: 1_000_000, after: Some(seconds(1)), ..Fate::default() };
        let (options, ids) = much_fails(&world, fate);
        let began = Instant::now();
        let run = world.start(options);
        run.until(|counts| counts.parked == 300).await;
        assert!(began.elapsed() < seconds(20), "{:?}", began.elapsed());
        // Most of them ran once in place, where the first ran twice; some ran once more since.
        let attempts: Vec<u32> = world.parked().iter().map(|row| row.letter.attempts).collect();
        let most = attempts.iter().max().copied().unwrap();
        assert!(attempts.iter().filter(|attempts| **attempts < most).count() > 200, "{attempts:?}");
        run.counts().await;
        assert_eq!(world.parked_ids().len(), ids.len());
    });
}
