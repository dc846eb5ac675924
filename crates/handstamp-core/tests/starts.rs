//! Start records in the engine: a process that dies is a run whose future is dropped while its handler runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a panic is the failure report")]

mod mini;

use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::source::NamedLane;
use handstamp_core::*;
use mini::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

fn options(batch_max: usize) -> ConsumerOptions {
    ConsumerOptions { batch_max, ..ConsumerOptions::default() }
}

/// A log with its committed offset, a store, and messages that kill whoever handles them.
struct World {
    store: MiniStore,
    records: Vec<Record>,
    committed: usize,
    poison: BTreeSet<String>,
    deaths: usize,
}

/// How a process came to its end.
enum Ended {
    Died,
    /// Asked to stop with the poison in hand, and cut off.
    Stopped,
    Well(Box<Report>),
}

impl World {
    fn new(records: i64, poison: &[&str]) -> Self {
        let poison = poison.iter().map(|id| (*id).to_owned()).collect();
        Self { store: MiniStore::default(), records: numbered(records), committed: 0, poison, deaths: 0 }
    }

    /// One process, from the committed offset on; the poison ends it, or a stop that comes while it is in hand.
    async fn process(&mut self, options: ConsumerOptions, stops: bool) -> Ended {
        let log = Arc::new(Mutex::new(vec![]));
        let rest = self.records[self.committed..].to_vec();
        let batches = if rest.is_empty() { vec![] } else { vec![rest] };
        let source = MiniSource { batches, log: Arc::clone(&log), ends: true };
        let (died, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (poison, met) = (self.poison.clone(), Arc::clone(if stops { &stop } else { &died }));
        let run = Consumer::builder(ConsumerName::new("test").unwrap())
            .source(source, Identity::Key)
            .store(self.store.clone())
            .handler_fn(async move |tx: &mut Tx, message: &Message| {
                if poison.contains(&message.id().to_string()) {
                    met.notify_one();
                    std::future::pending::<()>().await;
                }
                tx.apply(&message.id().to_string());
                Ok(())
            })
            .options(options)
            .run_local(stop.notified());
        let ended = tokio::select! {
            report = run => match report {
                Err(error) if stops && error.kind == RunErrorKind::ShutdownTimeout => Ended::Stopped,
                report => Ended::Well(Box::new(report.unwrap())),
            },
            () = died.notified() => Ended::Died,
        };
        self.committed += log.lock().unwrap().iter().filter(|line: &&String| line.starts_with("ack")).count();
        self.deaths += usize::from(matches!(ended, Ended::Died));
        assert_eq!(self.store.0.lock().unwrap().open, 0);
        ended
    }

    /// Processes one after the other until one comes to its end.
    async fn live(&mut self, batch_max: usize) -> Report {
        for _ in 0..50 {
            if let Ended::Well(report) = self.process(options(batch_max), false).await {
                return *report;
            }
        }
        panic!("{} deaths and no end", self.deaths);
    }

    /// All others are applied, once; the poison is dead; nothing is left behind.
    fn assert_over(&self) {
        let durable = self.store.0.lock().unwrap();
        let all = (0..self.records.len()).map(|n| format!("m{n}"));
        let expected: Vec<String> = all.filter(|id| !self.poison.contains(id)).collect();
        assert_eq!(durable.effects, expected);
        assert_eq!(durable.dead.len(), self.poison.len());
        for letter in durable.dead.values() {
            assert_eq!(letter.class, FailureClass::Crashed);
            assert!(letter.reason.as_str().contains("died 3 times"), "{}", letter.reason.as_str());
        }
        assert!(durable.starts.crashes.is_empty(), "{:?}", durable.starts.crashes);
        assert!(durable.starts.lanes.is_empty() && durable.starts.parked.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn poison_kills_once_in_its_batch_and_three_times_alone() {
    for (batch_max, deaths) in [(500, 4), (1, 3), (7, 4)] {
        let mut world = World::new(2_000, &["m1234"]);
        let report = world.live(batch_max).await;
        assert_eq!(world.deaths, deaths, "batch_max {batch_max}");
        assert_eq!(report.counts.dead_lettered, 1);
        world.assert_over();
    }
}

#[tokio::test(start_paused = true)]
async fn poison_beside_poison_and_at_both_ends_takes_no_neighbour_along() {
    let mut world = World::new(60, &["m0", "m1", "m30", "m59"]);
    world.live(20).await;
    // In its batch once for each of the three batches; alone three times each.
    assert_eq!(world.deaths, 3 + 4 * 3);
    world.assert_over();
}

#[tokio::test(start_paused = true)]
async fn stops_between_the_deaths_charge_nobody() {
    for batch_max in [50, 1] {
        let mut world = World::new(200, &["m120"]);
        let mut stopped = 0;
        for round in 1.. {
            let orphans = |world: &World| world.store.0.lock().unwrap().starts.lanes.len();
            let before = orphans(&world);
            match world.process(options(batch_max), round % 4 != 0).await {
                Ended::Died => {}
                Ended::Stopped => {
                    stopped += 1;
                    assert_eq!(orphans(&world), before, "a stop leaves no start record behind");
                }
                Ended::Well(_) => break,
            }
            assert!(round < 200);
        }
        assert!(stopped >= 9, "{stopped} stops came between");
        assert_eq!(world.deaths, if batch_max == 1 { 3 } else { 4 });
        world.assert_over();
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_nothing_is_recorded_and_nobody_is_given_up() {
    let mut world = World::new(30, &["m7"]);
    let mut options = options(10);
    options.policy.retry.max_crashes = 0;
    for _ in 0..6 {
        assert!(matches!(world.process(options.clone(), false).await, Ended::Died));
        let durable = world.store.0.lock().unwrap();
        assert!(durable.starts.lanes.is_empty() && durable.starts.crashes.is_empty());
    }
}

/// Outages and commits without an answer are nobody's crash, and no record stays of them.
#[tokio::test(start_paused = true)]
async fn faults_of_the_store_charge_nobody() {
    for fault in [Next::Fail(StoreErrorKind::Unavailable), Next::CommitThenNoAnswer] {
        for batch_max in [1, 10] {
            let store = MiniStore::default();
            {
                let mut durable = store.0.lock().unwrap();
                durable.commits = [Next::Ok, fault, fault, fault, fault].into();
                if matches!(fault, Next::Fail(_)) {
                    durable.begins = [Next::Ok, fault, fault, fault, fault].into();
                }
            }
            let outcome = run_with(store, numbered(30), options(batch_max), good).await;
            assert_eq!((outcome.effects().len(), outcome.acks()), (30, 30));
            let durable = outcome.store.0.lock().unwrap();
            assert!(durable.starts.crashes.is_empty() && durable.starts.lanes.is_empty());
            assert!(durable.dead.is_empty());
        }
    }
}

/// What is left behind by somebody else's run.
fn orphan(store: &MiniStore, first: i64, last: i64, alone: Option<&str>) -> Owner {
    let by = Starter { owner: Owner::random(), node: "other/1".into() };
    let alone = alone.map(|id| MessageId::try_from(id).unwrap());
    let count = u32::try_from(last - first + 1).unwrap();
    let start = Start { by: by.clone(), lane: "mini".into(), first, last, count, alone };
    store.0.lock().unwrap().starts.lanes.insert(("mini".into(), by.owner), start);
    by.owner
}

async fn good(tx: &mut Tx, message: &Message) -> Result<(), HandlerError> {
    tx.apply(&message.id().to_string());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn only_what_lies_in_the_span_runs_one_by_one() {
    let store = MiniStore::default();
    orphan(&store, 10, 12, None);
    let outcome = run_with(store, numbered(30), options(100), good).await;
    let durable = outcome.store.0.lock().unwrap();
    // What precedes it, three alone, what follows.
    assert_eq!(durable.transactions, 5);
    assert_eq!(durable.effects.len(), 30);
    assert!(durable.starts.lanes.is_empty(), "passed, so forgotten");
    assert_eq!(outcome.report.as_ref().unwrap().counts.crashes_found, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_watched_opens_nothing_ahead_until_it_is_past() {
    let store = MiniStore::default();
    orphan(&store, 5, 20, None);
    let outcome = run_with(store, numbered(60), options(1), good).await;
    let durable = outcome.store.0.lock().unwrap();
    assert_eq!((durable.transactions, durable.effects.len()), (60, 60));
    assert!(durable.chained > 20 && durable.chained <= 60 - 21, "{}", durable.chained);
}

/// The process died after its commit, or while it idled: its lane has passed what it left behind.
#[tokio::test(start_paused = true)]
async fn a_record_that_its_lane_has_passed_is_forgotten_and_nobody_runs_alone() {
    let store = MiniStore::default();
    orphan(&store, -20, -1, None);
    let outcome = run_with(store, numbered(30), options(100), good).await;
    let durable = outcome.store.0.lock().unwrap();
    assert_eq!((durable.transactions, durable.starts.lanes.len()), (1, 0));
    assert_eq!(outcome.report.as_ref().unwrap().counts.crashes_found, 0, "nobody died with anything");
}

#[tokio::test(start_paused = true)]
async fn a_crash_of_a_message_that_is_known_is_none_and_one_below_the_limit_is_forgotten_once_applied() {
    let store = MiniStore::default();
    let outcome = run_with(store, numbered(5), options(100), good).await;
    orphan(&outcome.store, 2, 2, Some("m2"));
    orphan(&outcome.store, 7, 7, Some("m7"));
    orphan(&outcome.store, 7, 7, Some("m7"));
    let outcome = run_with(outcome.store, numbered(10), options(100), good).await;
    let counts = outcome.counts();
    assert_eq!((counts.duplicate, counts.applied, counts.dead_lettered, counts.crashes_found), (5, 5, 0, 2));
    let starts = &outcome.store.0.lock().unwrap().starts;
    assert!(starts.crashes.is_empty() && starts.lanes.is_empty());
}

/// A source whose port the test holds.
struct Held(oneshot::Sender<SourcePort>);

impl Source for Held {
    fn capabilities(&self) -> Capabilities {
        log_capabilities(false)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint("held".into())
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        self.0.send(port).map_err(|_| SourceError::new(SourceErrorKind::Other, "nobody holds it"))
    }
}

/// The test's hands on it.
struct Hands {
    port: SourcePort,
    tag: u64,
    acked: usize,
    drained: bool,
}

fn lane(epoch: u32) -> Lane {
    Lane { id: 0, epoch }
}

impl Hands {
    fn assign(&self, epoch: u32) {
        let named = NamedLane { lane: lane(epoch), name: "mini".into() };
        self.port.control.send(Control::Assigned(vec![named])).unwrap();
    }

    async fn deliver(&mut self, epoch: u32, records: &[Record]) {
        let deliveries = records.iter().map(|record| {
            self.tag += 1;
            let ahead = ReadAhead::default();
            let tag = DeliveryTag(self.tag);
            Delivery { lane: lane(epoch), tag, record: record.clone(), fault: None, ahead }
        });
        let deliveries = deliveries.collect();
        self.port.deliveries.send(deliveries).await.unwrap();
        self.port.control.send(Control::CaughtUp(vec![lane(epoch)])).unwrap();
    }

    fn revoke(&self, epoch: u32) {
        let within = Duration::from_secs(10);
        self.port.control.send(Control::Revoking { lanes: vec![lane(epoch)], within }).unwrap();
    }

    /// Reads commands until it is so.
    async fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            match self.port.commands.recv().await.unwrap() {
                Command::Settle(settles) => {
                    let acks = settles.iter().filter(|(.., disposition)| *disposition == Disposition::Ack);
                    self.acked += acks.count();
                }
                Command::Drained(_) => self.drained = true,
                _ => {}
            }
        }
    }
}

/// A run whose source the test holds, until the test lets go.
async fn held<H>(
    store: &MiniStore,
    options: ConsumerOptions,
    handler: H,
    test: impl AsyncFnOnce(&mut Hands),
) -> Report
where
    H: AsyncFn(&mut Tx, &Message) -> Result<(), HandlerError> + Send + Sync + 'static,
{
    let (give, take) = oneshot::channel();
    let stop = Notify::new();
    let run = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(Held(give), Identity::Key)
        .store(store.clone())
        .handler_fn(handler)
        .options(options)
        .run_local(stop.notified());
    let test = async {
        let mut hands = Hands { port: take.await.unwrap(), tag: 0, acked: 0, drained: false };
        test(&mut hands).await;
        stop.notify_one();
    };
    let (report, ()) = tokio::join!(run, test);
    report.unwrap()
}

fn left(store: &MiniStore) -> Vec<(i64, i64)> {
    store.0.lock().unwrap().starts.lanes.values().map(|start| (start.first, start.last)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_duplicates_leaves_no_record_and_a_commit_leaves_one_until_the_stop() {
    for batch_max in [100, 1] {
        let store = run_with(MiniStore::default(), numbered(5), options(100), good).await.store;
        let all = numbered(10);
        held(&store, options(batch_max), good, async |hands: &mut Hands| {
            hands.assign(1);
            hands.deliver(1, &all[..5]).await;
            hands.until(|hands| hands.acked == 5).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(left(&store), [], "nothing of it was handed over");
            hands.deliver(1, &all[5..]).await;
            hands.until(|hands| hands.acked == 10).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let first = if batch_max == 1 { 9 } else { 5 };
            assert_eq!(left(&store), [(first, 9)]);
        })
        .await;
        assert_eq!(left(&store), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_taken_away_is_drained_without_a_record() {
    for busy in [false, true] {
        let store = MiniStore::default();
        let (begun, seen) = (Arc::new(Notify::new()), store.clone());
        let begins = Arc::clone(&begun);
        let slow = async move |tx: &mut Tx, message: &Message| {
            begins.notify_one();
            tokio::time::sleep(Duration::from_secs(3)).await;
            good(tx, message).await
        };
        held(&store, options(100), slow, async |hands: &mut Hands| {
            hands.assign(1);
            hands.deliver(1, &numbered(2)).await;
            begun.notified().await;
            assert_eq!(left(&seen), [(0, 1)]);
            if !busy {
                hands.until(|hands| hands.acked == 2).await;
                assert_eq!(left(&seen), [(0, 1)], "it stays behind a commit");
            }
            hands.revoke(1);
            hands.until(|hands| hands.drained).await;
            assert_eq!((left(&seen), hands.acked), (vec![], 2), "busy {busy}");
        })
        .await;
    }
}

/// Whoever gets the lane while we still run counts us dead; we say that we live.
#[tokio::test(start_paused = true)]
async fn who_is_put_out_and_lives_takes_its_crash_back() {
    let store = MiniStore::default();
    let begun = Arc::new(Notify::new());
    let (begins, other) = (Arc::clone(&begun), store.clone());
    let slow = async move |tx: &mut Tx, message: &Message| {
        begins.notify_one();
        tokio::time::sleep(Duration::from_secs(3)).await;
        good(tx, message).await
    };
    held(&store, options(100), slow, async |hands: &mut Hands| {
        hands.assign(1);
        hands.deliver(1, &numbered(1)).await;
        begun.notified().await;
        hands.port.control.send(Control::Lost(vec![lane(1)])).unwrap();
        let consumer = ConsumerKey { id: 1, name: ConsumerName::new("test").unwrap() };
        let by = Starter { owner: Owner::random(), node: "other/1".into() };
        let taken = other.take_over(&consumer, &by, &["mini".into()]).await.unwrap();
        assert_eq!((taken.orphans.len(), taken.crashes.len()), (1, 1));
        hands.until(|hands| hands.acked == 1).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let durable = other.0.lock().unwrap();
        assert!(durable.starts.crashes.is_empty() && durable.starts.lanes.is_empty());
    })
    .await;
}

/// One by one takes long, and a stop need not wait for it.
#[tokio::test(start_paused = true)]
async fn a_stop_leaves_what_runs_one_by_one() {
    let store = MiniStore::default();
    orphan(&store, 0, 19, None);
    let slow = async |tx: &mut Tx, message: &Message| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        good(tx, message).await
    };
    let report = held(&store, options(100), slow, async |hands: &mut Hands| {
        hands.assign(1);
        hands.deliver(1, &numbered(20)).await;
        hands.until(|hands| hands.acked == 3).await;
    })
    .await;
    assert_eq!((report.counts.applied, report.counts.released), (4, 16));
    assert_eq!(left(&store), [(0, 19)], "it is not passed");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_comes_back_is_taken_over_again() {
    let store = MiniStore::default();
    let other = store.clone();
    let report = held(&store, options(100), good, async |hands: &mut Hands| {
        hands.assign(1);
        hands.deliver(1, &numbered(4)).await;
        hands.until(|hands| hands.acked == 4).await;
        hands.revoke(1);
        hands.until(|hands| hands.drained).await;
        // Its owner meanwhile died with what follows.
        orphan(&other, 4, 7, None);
        hands.assign(3);
        hands.deliver(3, &numbered(8)[4..]).await;
        hands.until(|hands| hands.acked == 8).await;
    })
    .await;
    assert_eq!(report.counts.crashes_found, 1);
    assert_eq!(store.0.lock().unwrap().transactions, 5);
    assert_eq!(left(&store), []);
}

/// Killed while it waits, a process had nothing in hand.
#[tokio::test(start_paused = true)]
async fn a_long_wait_in_place_leaves_no_record() {
    let store = MiniStore::default();
    let (runs, seen) = (AtomicUsize::new(0), store.clone());
    let handler = async move |tx: &mut Tx, message: &Message| {
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(HandlerError::retry_after(Duration::from_secs(1), std::io::Error::other("later")));
        }
        good(tx, message).await
    };
    held(&store, options(100), handler, async |hands: &mut Hands| {
        hands.assign(1);
        hands.deliver(1, &numbered(1)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((left(&seen), hands.acked), (vec![], 0));
        hands.until(|hands| hands.acked == 1).await;
        assert_eq!(left(&seen), [(0, 0)]);
    })
    .await;
}

/// Parked messages: `count` of them fail once, are parked, and the first one then kills whoever retries it.
async fn parked_poison(count: i64) -> World {
    let mut world = World::new(count, &[]);
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(1) };
    let mut options = options(100);
    options.policy.retry = RetryPolicy { immediate: 1, backoff, ..RetryPolicy::default() };
    let fails = async |_: &mut Tx, _: &Message| Err("not yet".into());
    let stop = run_until_parked(&world, options.clone(), fails).await;
    assert_eq!(i64::try_from(stop.counts.parked), Ok(count));
    world.committed = world.records.len();
    world.poison.insert("m0".to_owned());
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if let Ended::Well(_) = world.process(options.clone(), false).await {
            return world;
        }
    }
    panic!("{} deaths and no end", world.deaths);
}

async fn run_until_parked<H>(world: &World, options: ConsumerOptions, handler: H) -> Report
where
    H: AsyncFn(&mut Tx, &Message) -> Result<(), HandlerError> + Send + Sync + 'static,
{
    let records = world.records.clone();
    held(&world.store, options, handler, async |hands: &mut Hands| {
        hands.assign(1);
        hands.deliver(1, &records).await;
        let count = records.len();
        hands.until(|hands| hands.acked == count).await;
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_parked_message_that_kills_is_given_up_too_and_its_neighbours_are_applied() {
    for (count, deaths) in [(1, 3), (5, 4)] {
        let world = parked_poison(count).await;
        assert_eq!(world.deaths, deaths, "{count} parked");
        let durable = world.store.0.lock().unwrap();
        assert_eq!(i64::try_from(durable.effects.len()), Ok(count - 1));
        assert_eq!((durable.dead.len(), durable.parked.len()), (1, 0));
        assert!(durable.starts.crashes.is_empty() && durable.starts.parked.is_empty());
    }
}

/// Crashes that a message had as a delivery count when it is parked.
#[tokio::test(start_paused = true)]
async fn a_message_takes_its_crashes_along_when_it_is_parked() {
    let store = MiniStore::default();
    orphan(&store, 0, 0, Some("m0"));
    orphan(&store, 0, 0, Some("m0"));
    let mut options = options(100);
    options.policy.retry.immediate = 1;
    let fails = async |_: &mut Tx, _: &Message| Err("not yet".into());
    held(&store, options, fails, async |hands: &mut Hands| {
        hands.assign(1);
        hands.deliver(1, &numbered(2)).await;
        hands.until(|hands| hands.acked == 2).await;
    })
    .await;
    let durable = store.0.lock().unwrap();
    assert_eq!((durable.parked.len(), durable.starts.crashes.len()), (2, 2));
    assert!(durable.starts.lanes.is_empty());
}

/// Somebody else holds its id; a process that seems to hang is ended again and again.
#[tokio::test(start_paused = true)]
async fn who_dies_while_a_claim_waits_charges_nobody() {
    for batch_max in [1, 100] {
        let mut world = World::new(3, &[]);
        world.store.0.lock().unwrap().claims_wait = Duration::from_secs(20);
        for _ in 0..5 {
            let run = world.process(options(batch_max), false);
            assert!(tokio::time::timeout(Duration::from_secs(3), run).await.is_err(), "it waits");
            let durable = world.store.0.lock().unwrap();
            assert!(durable.starts.lanes.is_empty(), "{:?}", durable.starts.lanes);
        }
        // One that is granted late is handled behind a record of its own.
        world.poison.insert("m0".to_owned());
        let store = world.store.clone();
        let granted = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            store.0.lock().unwrap().claims_wait = Duration::ZERO;
        };
        let (ended, ()) = tokio::join!(world.process(options(batch_max), false), granted);
        assert!(matches!(ended, Ended::Died));
        assert_eq!(world.store.0.lock().unwrap().starts.lanes.len(), 1);
        world.poison.clear();
        world.deaths = 0;
        world.live(batch_max).await;
        world.assert_over();
    }
}
