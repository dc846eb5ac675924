//! What probes and scrapers are told by the engine: measured once at the seams, whatever the store and the source.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry;

use handstamp_core::telemetry::Unready;
use handstamp_core::{Consumer, ConsumerName, Identity, LiveCounts, Message};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::{LogBroker, MemoryStore, MemoryTx};
use retry::{Fate, World, options};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

fn paused(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, body);
}

/// Waits for these reasons, and no others.
async fn until(live: &LiveCounts, reasons: &[Unready]) {
    for _ in 0..100_000 {
        if live.vitals().unready() == reasons {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} and not {reasons:?}", live.vitals().unready());
}

/// Lanes, retries and what runs again: each committed transaction is measured once, and each run of the handler.
#[test]
fn every_commit_and_every_run_of_the_handler_is_measured_once() {
    paused(async {
        let world = World::new();
        world.fails("b", 3);
        world.fate("c", Fate { takes: Duration::from_millis(40), ..Fate::default() });
        world.publish(0, None, &["a", "b", "c", "d"]);
        world.publish(1, None, &["e", "f", "e"]);
        let run = world.start(options(10));
        let live = Arc::clone(&run.live);
        run.until(|counts| counts.applied + counts.resumed_applied == 6).await;
        let counts = run.counts().await;
        let vitals = live.vitals();
        let (batches, commits) = (vitals.batches().buckets(), vitals.committing().buckets());
        assert_eq!((batches.count, commits.count), (counts.commits, counts.commits));
        // All that was received and all that was resumed was in some of them.
        assert!(batches.sum >= 7.0 + 1.0, "{batches:?}");
        // A commit takes what the store needs for it.
        assert!(commits.sum >= 0.001, "{commits:?}");
        let handling = vitals.handling().buckets();
        assert!(handling.count >= 4, "{handling:?}");
        let slow = handling.count - handling.upto.iter().find(|(bound, _)| *bound >= 0.025).unwrap().1;
        assert_eq!(slow, u64::from(world.runs("c")), "{handling:?}");
    });
}

/// Also where nothing comes: then only what is parked is looked for.
#[test]
fn a_store_that_is_away_is_a_reason_for_as_long_as_it_is() {
    paused(async {
        let world = World::new();
        let run = world.start(options(10));
        until(&run.live, &[]).await;
        assert!(run.live.vitals().slots().is_some_and(|(all, taken)| all == 1 && taken <= 1));
        world.store.set_away(true);
        until(&run.live, &[Unready::StoreAway]).await;
        world.store.set_away(false);
        until(&run.live, &[]).await;
        world.store.set_away(true);
        world.publish(0, None, &["a"]);
        until(&run.live, &[Unready::StoreAway]).await;
        world.store.set_away(false);
        run.until(|counts| counts.applied == 1).await;
        until(&run.live, &[]).await;
        let live = Arc::clone(&run.live);
        run.counts().await;
        assert_eq!(live.vitals().unready(), [Unready::Stopping]);
    });
}

#[test]
fn lanes_that_are_taken_away_take_their_lag_along() {
    paused(async {
        let world = World::new();
        world.publish(0, None, &["a"]);
        world.publish(1, None, &["b"]);
        let run = world.start(options(10));
        let lanes = || run.live.vitals().lanes();
        run.until(|counts| counts.applied == 2 && lanes().len() == 2).await;
        world.broker.evict_all("group");
        for _ in 0..2_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let names: Vec<_> = lanes().iter().map(|lane| Arc::clone(&lane.name)).collect();
            assert!(names.len() < 2 || (names.len() == 2 && names[0] != names[1]), "{names:?}");
        }
        assert_eq!(run.live.lag(), lanes().iter().map(|lane| lane.lag).sum::<u64>());
        run.counts().await;
    });
}

/// A consumer with a thread of its own, whose handler says that it began and then waits for leave.
struct Blocking {
    live: Arc<LiveCounts>,
    broker: LogBroker,
    began: Receiver<()>,
    go_on: Sender<()>,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

fn blocking() -> Blocking {
    let live: Arc<LiveCounts> = Arc::default();
    let broker = LogBroker::new("credits", 1);
    let (says, began) = channel();
    let (go_on, leave) = channel();
    let leave = Mutex::new(leave);
    let consumer = Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Header("id".into()))
        .store(MemoryStore::new())
        .handler_fn(async move |_: &mut MemoryTx, _: &Message| {
            // Blocks the engine's thread on purpose.
            says.send(())?;
            leave.lock().unwrap().recv()?;
            Ok(())
        })
        .counting_into(Arc::clone(&live));
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stop = async { drop(stopped.await) };
        let report = runtime.block_on(consumer.run(stop)).unwrap();
        assert_eq!(report.counts.applied, 1);
    });
    Blocking { live, broker, began, go_on, stop, thread }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(90), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A thread that exists and does nothing is not alive.
#[test]
fn the_heart_beats_while_nothing_comes_and_stops_while_a_handler_keeps_the_thread() {
    let run = blocking();
    let silent = || run.live.vitals().silent_for();
    wait_for("it is ready", || run.live.vitals().unready().is_empty());
    for _ in 0..3 {
        let last = silent();
        wait_for("it beats though nothing comes", || silent() < last.max(Duration::from_millis(1)));
        wait_for("time passes", || silent() > Duration::from_millis(50));
    }
    run.broker.publish(0, Payload::value("x").with_header("id", Some("a".into()))).unwrap();
    run.began.recv_timeout(Duration::from_secs(60)).unwrap();
    wait_for("no beat for three times as long as one takes", || silent() > Duration::from_secs(3));
    run.go_on.send(()).unwrap();
    wait_for("it beats again", || silent() < Duration::from_secs(1));
    wait_for("it is applied", || run.live.snapshot().applied == 1);
    run.stop.send(()).unwrap();
    run.thread.join().unwrap();
}
