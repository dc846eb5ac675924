//! Of rows that are due some fail: each is taken back alone, and written in the transaction of the others. On a
//! paused clock.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry;
#[allow(dead_code, reason = "shared by test binaries, none of which needs all of it")]
mod seeded;

use handstamp_core::retry::Backoff;
use handstamp_core::{ConsumerOptions, Handler, HandlerError, InboxState, Message, Order, StoreErrorKind};
use handstamp_testkit::fakes::MemoryTx;
use retry::{World, options};
use seeded::paused;
use std::time::Duration;
use tokio::time::sleep;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn rows_that_fail_cost_no_transaction_of_their_own() {
    for (failing, order) in [(1, Order::Partition), (3, Order::None), (100, Order::Key)] {
        paused(async {
            let world = World::new();
            let ids: Vec<String> = (0..300).map(|number| format!("m{number}")).collect();
            world.publish(0, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
            let of_failing = |number: usize| number % 100 < failing;
            for (number, id) in ids.iter().enumerate() {
                world.fails(id, if of_failing(number) { 4 } else { 2 });
            }
            let parking = ConsumerOptions { messages_max: Some(300), order, ..options(10) };
            let mut away = parking.clone();
            away.policy.retry.backoff = Backoff { base: seconds(3_600), cap: seconds(3_600) };
            let run = world.start(away);
            run.until(|counts| counts.parked == 300).await;
            // A wait of up to an hour may be one of moments.
            let soon = run.counts().await;
            sleep(seconds(3_600)).await;
            let (_, before) = world.store.transactions();
            let run = world.start(parking);
            run.until(|counts| counts.resumed_applied + soon.resumed_applied == 300).await;
            let again = run.counts().await.resumed_parked_again + soon.resumed_parked_again;
            let (_, after) = world.store.transactions();
            assert_eq!(again, 2 * 3 * failing as u64);
            // Three looks at a hundred each and what they put off, each of them in two or three pieces.
            assert!(after - before < 120, "{failing} of 100: {} transactions", after - before);
            for (number, id) in ids.iter().enumerate() {
                assert_eq!(world.effects(id), 1, "{id}");
                assert_eq!(world.history(id).len(), if of_failing(number) { 4 } else { 2 }, "{id}");
            }
        });
    }
}

/// A panic and a handler that takes too long take their transaction along; the others of it lose nothing.
#[test]
fn rows_whose_transaction_is_lost_are_written_with_what_precedes_them() {
    struct Wild(World);
    impl Handler<MemoryTx> for Wild {
        async fn handle(&self, tx: &mut MemoryTx, message: &Message) -> Result<(), HandlerError> {
            let id = message.id().to_string();
            let tried = self.0.history(&id).len();
            let number: usize = id[1..].parse().unwrap();
            tx.add(&format!("effect:{id}"), 1)?;
            match number % 5 {
                _ if tried < 2 => Err("not yet".into()),
                1 if tried < 4 => panic!("on purpose"),
                2 if tried < 4 => {
                    sleep(seconds(3_600)).await;
                    Ok(())
                }
                3 if tried < 4 => Ok(tx.fail(StoreErrorKind::Statement, "23514")?),
                _ => Ok(()),
            }
        }
    }
    paused(async {
        let world = World::new();
        let ids: Vec<String> = (0..50).map(|number| format!("m{number}")).collect();
        world.publish(0, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        let options = ConsumerOptions { handler_timeout: seconds(2), ..options(10) };
        let run = world.start_with(options, Wild(world.clone()));
        run.until(|counts| counts.resumed_applied == 50).await;
        let counts = run.counts().await;
        assert_eq!((counts.resumed_dead, counts.resumed_parked_again, counts.attempts_failed), (0, 60, 160));
        for (number, id) in ids.iter().enumerate() {
            assert_eq!((world.effects(id), world.state(id)), (1, Some(InboxState::Applied)), "{id}");
            assert_eq!(world.history(id).len(), if [0, 4].contains(&(number % 5)) { 2 } else { 4 }, "{id}");
        }
    });
}

#[test]
fn a_row_that_swallows_an_error_behind_one_that_fails_is_charged_itself() {
    struct Swallows(World);
    impl Handler<MemoryTx> for Swallows {
        async fn handle(&self, tx: &mut MemoryTx, message: &Message) -> Result<(), HandlerError> {
            let id = message.id().to_string();
            let tried = self.0.history(&id).len();
            tx.add(&format!("effect:{id}"), 1)?;
            match (&*id, tried) {
                (_, 0 | 1) => Err("not yet".into()),
                ("m0", 2) => Ok(tx.fail(StoreErrorKind::Statement, "23514")?),
                // It says nothing of a statement that failed.
                ("m1", 2) => {
                    drop(tx.fail(StoreErrorKind::Statement, "23514"));
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    }
    paused(async {
        let world = World::new();
        world.publish(0, None, &["m0", "m1", "m2"]);
        let mut away = options(10);
        away.policy.retry.backoff = Backoff { base: seconds(3_600), cap: seconds(3_600) };
        let run = world.start_with(away, Swallows(world.clone()));
        run.until(|counts| counts.parked == 3).await;
        run.counts().await;
        sleep(seconds(3_600)).await;
        let run = world.start_with(options(10), Swallows(world.clone()));
        run.until(|counts| counts.resumed_applied == 3).await;
        assert_eq!(run.counts().await.attempts_failed, 2);
        for (id, failed) in [("m0", 3), ("m1", 3), ("m2", 2)] {
            assert_eq!((world.effects(id), world.history(id).len()), (1, failed), "{id}");
        }
    });
}
