//! Turns of several batches: the next claim leaves with a commit, and nothing begins that is not wanted any more.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a panic is the failure report")]

mod mini;

use handstamp_core::source::NamedLane;
use handstamp_core::*;
use mini::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

fn one_by_one() -> ConsumerOptions {
    ConsumerOptions { batch_max: 1, ..ConsumerOptions::default() }
}

async fn good(tx: &mut Tx, message: &Message) -> Result<(), HandlerError> {
    tx.apply(&message.id().to_string());
    Ok(())
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

#[tokio::test(start_paused = true)]
async fn small_batches_open_with_the_commit_before_them() {
    let outcome = run_with(MiniStore::default(), numbered(100), one_by_one(), good).await;
    assert_eq!(outcome.effects(), names(100));
    let acks: Vec<String> = (1..=100).map(|tag| format!("ack {tag}")).collect();
    assert_eq!(outcome.log[..100], acks);
    let (transactions, chained) = {
        let durable = outcome.store.0.lock().unwrap();
        (durable.transactions, durable.chained)
    };
    assert_eq!(transactions, 100);
    assert!(chained >= 80, "{chained} of 100 opened with a commit");
    assert_eq!(outcome.counts().commits, 100);
}

#[tokio::test(start_paused = true)]
async fn large_batches_and_slow_ones_take_turns_of_one() {
    let options = ConsumerOptions { batch_max: 50, ..ConsumerOptions::default() };
    let outcome = run_with(MiniStore::default(), numbered(200), options, good).await;
    assert_eq!(outcome.store.0.lock().unwrap().chained, 0);
    let slow = async |tx: &mut Tx, message: &Message| {
        tokio::time::sleep(Duration::from_millis(100)).await;
        good(tx, message).await
    };
    let outcome = run_with(MiniStore::default(), numbered(20), one_by_one(), slow).await;
    assert_eq!(outcome.store.0.lock().unwrap().chained, 0);
    assert_eq!(outcome.effects(), names(20));
}

#[tokio::test(start_paused = true)]
async fn faults_anywhere_in_a_turn_lose_and_double_nothing() {
    use StoreErrorKind::{Conflict, Unavailable};
    for place in 0..16 {
        for fault in [Next::Fail(Conflict), Next::Fail(Unavailable), Next::CommitThenNoAnswer] {
            for commits in [true, false] {
                let store = MiniStore::default();
                {
                    let mut durable = store.0.lock().unwrap();
                    let faults = (0..place).map(|_| Next::Ok).chain([fault]);
                    if commits {
                        durable.commits = faults.collect();
                    } else if fault != Next::CommitThenNoAnswer {
                        durable.begins = faults.collect();
                    }
                }
                let outcome = run_with(store, numbered(30), one_by_one(), good).await;
                let counts = outcome.counts();
                assert_eq!(outcome.effects(), names(30), "{fault:?} at {place}");
                assert_eq!((counts.applied, counts.duplicate, counts.attempts_failed), (30, 0, 0));
                assert_eq!(outcome.acks(), 30);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_message_in_a_turn_is_alone_with_its_fate() {
    let handler = async |tx: &mut Tx, message: &Message| {
        if message.id().as_bytes() == b"m13" {
            return Err(HandlerError::reject(std::io::Error::other("never")));
        }
        good(tx, message).await
    };
    let outcome = run_with(MiniStore::default(), numbered(30), one_by_one(), handler).await;
    assert_eq!((outcome.counts().applied, outcome.counts().dead_lettered), (29, 1));
    assert_eq!(outcome.effects().len(), 29);
    assert_eq!(outcome.acks(), 30);
}

/// Hands over 40 records on one lane; takes the lane away, or lets the consumer be stopped, at the third ack.
struct Leaving {
    log: Arc<Mutex<Vec<String>>>,
    stop: Option<Arc<Notify>>,
}

impl Source for Leaving {
    fn capabilities(&self) -> Capabilities {
        log_capabilities(false)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint("leaving".into())
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        tokio::task::spawn(leave(*self, port));
        Ok(())
    }
}

async fn leave(source: Leaving, mut port: SourcePort) {
    port.control.send(Control::Assigned(vec![NamedLane { lane: LANE, name: "l".into() }])).unwrap();
    for (tag, record) in (1..).zip(numbered(40)) {
        let ahead = ReadAhead::of(&record);
        let delivery = Delivery { lane: LANE, tag: DeliveryTag(tag), record, fault: None, ahead };
        port.deliveries.send(vec![delivery]).await.unwrap();
    }
    while let Some(command) = port.commands.recv().await {
        match command {
            Command::Settle(settles) => {
                let words = settles.iter().map(|(_, tag, disposition)| {
                    let word = if *disposition == Disposition::Ack { "ack" } else { "release" };
                    format!("{word} {}", tag.0)
                });
                source.log.lock().unwrap().extend(words);
                if source.log.lock().unwrap().iter().any(|line| line == "ack 3") {
                    match &source.stop {
                        Some(stop) => stop.notify_one(),
                        None => {
                            let within = Duration::from_secs(10);
                            drop(port.control.send(Control::Revoking { lanes: vec![LANE], within }));
                        }
                    }
                }
            }
            Command::Drained(_) => source.log.lock().unwrap().push("drained".into()),
            Command::Close { .. } => return,
            _ => {}
        }
    }
}

/// The log, the effects and the report of a run that is left at the third ack.
async fn left(by_stop: bool) -> (Vec<String>, Vec<String>, Report) {
    let (log, stop) = (Arc::new(Mutex::new(vec![])), Arc::new(Notify::new()));
    let (store, handled) = (MiniStore::default(), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&handled);
    let source = Leaving { log: Arc::clone(&log), stop: by_stop.then(|| Arc::clone(&stop)) };
    let consumer = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(store.clone())
        .handler_fn(async move |tx: &mut Tx, message: &Message| {
            seen.fetch_add(1, Ordering::SeqCst);
            // Long enough for others to speak, and quick.
            tokio::time::sleep(Duration::from_millis(1)).await;
            good(tx, message).await
        })
        .options(ConsumerOptions { until_idle: Some(Duration::from_secs(1)), ..one_by_one() });
    let report = consumer.run_local(stop.notified()).await.unwrap();
    let durable = store.0.lock().unwrap();
    assert_eq!(durable.open, 0, "what was opened for a batch that did not begin is rolled back");
    assert!(durable.chained > 0, "the turn was one of several batches");
    assert_eq!(handled.load(Ordering::SeqCst), durable.effects.len(), "a batch began and was given up");
    let log = log.lock().unwrap().clone();
    (log, durable.effects.clone(), report)
}

#[tokio::test(start_paused = true)]
async fn a_lane_or_a_consumer_that_leaves_begins_nothing_more() {
    for by_stop in [true, false] {
        let (log, effects, report) = left(by_stop).await;
        let acked = log.iter().filter(|line| line.starts_with("ack")).count();
        assert_eq!(acked, effects.len(), "{log:?}");
        assert!((3..8).contains(&acked), "the turn went on: {log:?}");
        assert_eq!(effects, names(acked));
        let released: Vec<&String> = log.iter().filter(|line| line.starts_with("release")).collect();
        assert_eq!(released.len() + acked, 40, "{log:?}");
        assert_eq!(report.counts.released, released.len() as u64);
        if !by_stop {
            assert_eq!(log.last().map(String::as_str), Some("drained"));
        }
    }
}

/// Hands over from a thread of its own, as the real sources do, as fast as they are taken.
struct Flood {
    count: i64,
}

impl Source for Flood {
    fn capabilities(&self) -> Capabilities {
        log_capabilities(false)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint("flood".into())
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        let SourcePort { deliveries, control, mut commands, .. } = port;
        control.send(Control::Assigned(vec![NamedLane { lane: LANE, name: "f".into() }])).unwrap();
        std::thread::spawn(move || {
            let deliveries_of = (1..).zip(numbered(self.count)).map(|(tag, record)| {
                let ahead = ReadAhead::default();
                Delivery { lane: LANE, tag: DeliveryTag(tag), record, fault: None, ahead }
            });
            let all: Vec<Delivery> = deliveries_of.collect();
            for some in all.chunks(500) {
                if deliveries.blocking_send(some.to_vec()).is_err() {
                    return;
                }
            }
            // Until the engine says that it is over, or is gone.
            while let Some(command) = commands.blocking_recv() {
                if matches!(command, Command::Close { .. }) {
                    return;
                }
            }
        });
        Ok(())
    }
}

/// A store and a handler that never wait, as SQLite's, leave the engine's thread no pause in which anything
/// else would be looked at.
#[tokio::test]
async fn a_stop_is_heard_while_nothing_ever_waits() {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (stop, handled) = (Mutex::new(Some(stop)), Arc::new(AtomicUsize::new(0)));
    let (store, seen) = (MiniStore::default(), Arc::clone(&handled));
    let source = Flood { count: 20_000 };
    let report = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(store.clone())
        .handler_fn(async move |tx: &mut Tx, message: &Message| {
            if seen.fetch_add(1, Ordering::SeqCst) == 100 {
                let stop = stop.lock().unwrap().take().unwrap();
                stop.send(()).unwrap();
            }
            // What was done before does not matter here, and copying it would.
            let _ = (tx, message);
            Ok(())
        })
        .options(ConsumerOptions { batch_max: 33, ..ConsumerOptions::default() })
        .run_local(async { drop(stopped.await) })
        .await
        .unwrap();
    assert_eq!(report.stopped, StopReason::Asked);
    let handled = handled.load(Ordering::SeqCst);
    assert!(handled <= 100 + 2 * 33, "{handled} messages were handled although a stop was asked for");
    assert_eq!(report.counts.applied, handled as u64);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_for_ever_ends_with_its_lane() {
    for begun_before in [0, 3] {
        let store = MiniStore::default();
        // The first in a turn, and one that leaves with a commit.
        let waits = (0..begun_before).map(|_| Next::Ok).chain([Next::Hang]);
        store.0.lock().unwrap().begins = waits.collect();
        let log = Arc::new(Mutex::new(vec![]));
        let source = MiniSource { batches: vec![numbered(20)], log: Arc::clone(&log), ends: true };
        let options = ConsumerOptions { shutdown_timeout: Duration::from_secs(5), ..one_by_one() };
        let run = Consumer::builder(ConsumerName::new("test").unwrap())
            .source(source, Identity::Key)
            .store(store.clone())
            .handler_fn(good)
            .options(options)
            .run_local(tokio::time::sleep(Duration::from_millis(500)));
        let ended = tokio::time::timeout(Duration::from_secs(60), run).await;
        let ended = ended.expect("it ends");
        // Nobody wants the claim behind a commit any more; the first in a turn has until shutdown_timeout.
        let counts = match ended {
            Ok(report) if begun_before > 0 => {
                assert!(report.took < Duration::from_secs(5), "{:?}", report.took);
                report.counts
            }
            Err(error) if begun_before == 0 && error.kind == RunErrorKind::ShutdownTimeout => {
                error.report.unwrap().counts
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((counts.applied, counts.released), (begun_before, 20 - begun_before), "{begun_before}");
        assert_eq!(store.0.lock().unwrap().open, 0);
        let acks = log.lock().unwrap().iter().filter(|line| line.starts_with("ack")).count();
        assert_eq!(acks as u64, begun_before, "what was durable is settled");
    }
}
