//! Start records with a store that fails, and what the history of a message keeps of the processes it killed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a panic is the failure report")]

mod retry;

use handstamp_core::{
    ConsumerKey, ConsumerOptions, FailureClass, Fingerprint, Owner, Start, StartStore, Starter, Store,
    StoreErrorKind,
};
use handstamp_testkit::fakes::StorePoint;
use retry::*;
use std::time::Duration;
use tokio::task::LocalSet;

const LANE: &str = "credits[0]";

/// What processes left behind that died with one message in hand.
async fn left_behind(world: &World, position: i64, id: &str, deaths: usize) -> ConsumerKey {
    let consumer = world.store.register(&world.name, &Fingerprint("log credits".into()), true).await.unwrap();
    for death in 1..=deaths {
        let by = Starter { owner: Owner::random(), node: format!("dead/{death}").into() };
        let alone = Some(message_id(id));
        let (first, last, count) = (position, position, 1);
        let start = Start { by, lane: LANE.into(), first, last, count, alone };
        let (tx, _) = world.store.start_and_begin(&consumer, &[], &start).await.unwrap();
        world.store.rollback(tx).await.unwrap();
    }
    consumer
}

fn adopting() -> ConsumerOptions {
    ConsumerOptions { adopt: true, ..options(10) }
}

#[tokio::test(start_paused = true)]
async fn the_history_of_what_is_given_up_has_every_crash_with_its_process() {
    let test = async {
        let world = World::new();
        left_behind(&world, 1, "b", 3).await;
        world.publish(0, None, &["a", "b", "c"]);
        let running = world.start(adopting());
        running.until(|counts| counts.settled() == 3).await;
        let counts = running.counts().await;
        assert_eq!((counts.applied, counts.dead_lettered, counts.crashes_found), (2, 1, 3));
        assert_eq!((world.runs("b"), world.effects("b")), (0, 0));
        let dead = world.dead();
        assert_eq!((dead[0].class, dead[0].attempts), (FailureClass::Crashed, 0));
        for death in 1..=3 {
            assert!(dead[0].reason.as_str().contains(&format!("on dead/{death}")), "{:?}", dead[0].reason);
        }
        let nodes: Vec<String> = world.history("b").into_iter().map(|failed| failed.node).collect();
        assert_eq!(nodes, ["dead/1", "dead/2", "dead/3"]);
        assert!(world.store.crashes(&world.name).is_empty() && world.store.starts(&world.name).is_empty());
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_when_lanes_are_taken_over_is_waited_for() {
    let test = async {
        let world = World::new();
        left_behind(&world, 0, "a", 2).await;
        for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Conflict, StoreErrorKind::Unavailable] {
            world.store.fail_next(StorePoint::TakeOver, kind);
        }
        world.publish(0, None, &["a", "b"]);
        world.publish(1, None, &["c"]);
        let running = world.start(adopting());
        running.until(|counts| counts.settled() == 3).await;
        let counts = running.counts().await;
        assert_eq!(world.store.faults_left(), 0);
        assert_eq!((counts.applied, counts.attempts_failed, counts.crashes_found), (3, 0, 2));
        assert!(world.store.crashes(&world.name).is_empty());
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_forgotten_is_forgotten_later() {
    let test = async {
        let world = World::new();
        left_behind(&world, 0, "a", 2).await;
        world.store.fail_next(StorePoint::Forget, StoreErrorKind::Unavailable);
        world.publish(0, None, &["a", "b"]);
        let running = world.start(ConsumerOptions { batch_max: 1, ..adopting() });
        running.until(|counts| counts.settled() == 2).await;
        let counts = running.counts().await;
        assert_eq!((counts.applied, counts.attempts_failed, world.store.faults_left()), (2, 0, 0));
        assert!(world.store.crashes(&world.name).is_empty() && world.store.starts(&world.name).is_empty());
    };
    LocalSet::new().run_until(test).await;
}

/// A store that is away does not hold a stop, and its start does not fail anything.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_store_that_is_away() {
    let test = async {
        let world = World::new();
        world.publish(0, None, &["a"]);
        let running = world.start(options(10));
        running.until(|counts| counts.applied == 1).await;
        assert_eq!(world.store.starts(&world.name).len(), 1, "it stays behind a commit");
        world.store.set_away(true);
        let began = tokio::time::Instant::now();
        let counts = running.counts().await;
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!((counts.applied, counts.released), (1, 0));
        world.store.set_away(false);
        // Nobody died with it: its message is known, and the next process forgets it.
        world.publish(0, None, &["b"]);
        let running = world.start(options(10));
        running.until(|counts| counts.applied == 1).await;
        let counts = running.counts().await;
        assert_eq!((counts.crashes_found, world.store.crashes(&world.name).len()), (0, 0));
        assert!(world.store.starts(&world.name).is_empty());
    };
    LocalSet::new().run_until(test).await;
}

/// The store goes away in the middle of retries: what others may have counted meanwhile is taken back.
#[tokio::test(start_paused = true)]
async fn a_retry_that_lost_its_locks_takes_back_what_others_may_have_counted() {
    let test = async {
        let world = World::new();
        world.fails("a", 2);
        world.publish(0, None, &["a"]);
        let running = world.start(options(10));
        running.until(|counts| counts.parked == 1).await;
        world.store.fail_next(StorePoint::Commit, StoreErrorKind::Unavailable);
        while world.store.faults_left() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Less than the wait before the row is taken again.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(world.store.parked_starts(&world.name), [], "nobody can find us dead");
        running.until(|counts| counts.resumed_applied == 1).await;
        let counts = running.counts().await;
        assert_eq!((counts.resumed, counts.attempts_failed, world.store.faults_left()), (1, 2, 0));
        assert!(
            world.store.crashes(&world.name).is_empty() && world.store.parked_starts(&world.name).is_empty()
        );
    };
    LocalSet::new().run_until(test).await;
}
