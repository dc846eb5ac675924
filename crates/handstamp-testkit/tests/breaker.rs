//! The handler's breaker: what opens it, what never does, and what a lane, a stop, a revoke, a duplicate and the
//! retry worker make of one that is open. On a paused clock.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry;

use handstamp_core::{
    BatchError, BatchHandler, BreakerPolicy, BreakerState, ConsumerOptions, Counts, Handler, HandlerError,
    InboxState, Message, Order, StopReason, StoreErrorKind,
};
use handstamp_testkit::fakes::MemoryTx;
use retry::{World, options};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

/// Messages in a row that open it, by default.
const ROW: usize = 20;

fn paused(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, body);
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a handler's call to its dependency comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Works,
    Refused,
    Hangs,
    /// The database does not like the message.
    Violates,
    Rejects,
    Panics,
}

#[derive(Default)]
struct Seen {
    /// Every run: the message, and what came of it.
    runs: Vec<(String, Call)>,
    active: usize,
    most_active: usize,
}

type Rule = Box<dyn Fn(&str) -> Call + Send>;

/// Calls a dependency for each message; the rule says what comes of that.
#[derive(Clone)]
struct Needs {
    rule: Arc<Mutex<Rule>>,
    seen: Arc<Mutex<Seen>>,
}

impl Needs {
    fn new(rule: impl Fn(&str) -> Call + Send + 'static) -> Self {
        Self { rule: Arc::new(Mutex::new(Box::new(rule))), seen: Arc::default() }
    }

    fn becomes(&self, rule: impl Fn(&str) -> Call + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    fn runs(&self) -> usize {
        self.seen.lock().unwrap().runs.len()
    }

    /// Of the runs from this one on, those that came to this.
    fn since(&self, from: usize, call: Call) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.runs[from..].iter().filter(|(_, was)| *was == call).map(|(id, _)| id.clone()).collect()
    }

    /// The most that ran at a time since this was asked for last.
    fn most_active(&self) -> usize {
        let mut seen = self.seen.lock().unwrap();
        let active = seen.active;
        std::mem::replace(&mut seen.most_active, active)
    }

    async fn call(&self, id: &str) -> Call {
        let call = (self.rule.lock().unwrap())(id);
        {
            let mut seen = self.seen.lock().unwrap();
            seen.runs.push((id.to_owned(), call));
            seen.active += 1;
            seen.most_active = seen.most_active.max(seen.active);
        }
        let _ends = Ends(Arc::clone(&self.seen));
        sleep(if call == Call::Hangs { seconds(3_600) } else { Duration::from_millis(1) }).await;
        call
    }
}

/// A handler that is cut off ends too.
struct Ends(Arc<Mutex<Seen>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().unwrap().active -= 1;
    }
}

impl Handler<MemoryTx> for Needs {
    async fn handle(&self, tx: &mut MemoryTx, message: &Message) -> Result<(), HandlerError> {
        let id = message.id().to_string();
        match self.call(&id).await {
            Call::Works => Ok(tx.add(&format!("effect:{id}"), 1)?),
            Call::Violates => Ok(tx.fail(StoreErrorKind::Statement, "23503")?),
            Call::Rejects => Err(HandlerError::reject("not that one")),
            Call::Panics => panic!("on purpose"),
            Call::Refused | Call::Hangs => Err("connection refused".into()),
        }
    }
}

/// Does not say which of its messages failed.
struct Together(Needs);

impl BatchHandler<MemoryTx> for Together {
    async fn handle_batch(&self, tx: &mut MemoryTx, batch: &[Message]) -> Result<(), BatchError> {
        for message in batch {
            let id = message.id().to_string();
            if self.0.call(&id).await != Call::Works {
                return Err("one of them failed".into());
            }
            tx.add(&format!("effect:{id}"), 1)?;
        }
        Ok(())
    }
}

fn with_breaker(max_attempts: u32) -> ConsumerOptions {
    ConsumerOptions { breaker: BreakerPolicy::default(), ..options(max_attempts) }
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

fn publish(world: &World, partition: usize, ids: &[String]) {
    world.publish(partition, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
}

fn ended_well(counts: &Counts) -> u64 {
    counts.applied + counts.resumed_applied
}

/// Distinct messages among them.
fn distinct(ids: &[String]) -> usize {
    ids.iter().collect::<BTreeSet<_>>().len()
}

fn applied_once(world: &World, ids: &[String]) {
    let wrong: Vec<&String> = ids
        .iter()
        .filter(|id| world.effects(id) != 1 || world.state(id) != Some(InboxState::Applied))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(world.dead().is_empty() && world.parked().is_empty());
}

#[test]
fn five_thousand_that_violate_one_constraint_are_dead_and_the_good_ones_behind_them_applied() {
    paused(async {
        let world = World::new();
        let (bad, good) = (names("bad", 5_000), names("good", 100));
        publish(&world, 0, &bad);
        publish(&world, 0, &good);
        let needs = Needs::new(|id| if id.starts_with("bad") { Call::Violates } else { Call::Works });
        let run = world.start_with(with_breaker(3), needs.clone());
        run.until(|counts| counts.applied == 100 && counts.resumed_dead == 5_000).await;
        let counts = run.counts().await;
        assert_eq!((counts.breaker_opened, counts.parked, counts.attempts_failed), (0, 5_000, 15_000));
        assert_eq!((world.dead().len(), world.parked().len()), (5_000, 0));
        assert!(good.iter().all(|id| world.effects(id) == 1));
    });
}

#[test]
fn what_is_a_messages_own_fault_never_opens_it() {
    for own in [Call::Violates, Call::Rejects, Call::Panics] {
        paused(async {
            let world = World::new();
            publish(&world, 0, &names("bad", 300));
            let needs = Needs::new(move |_| own);
            let run = world.start_with(with_breaker(2), needs.clone());
            run.until(|counts| counts.dead_lettered == 300).await;
            assert_eq!(run.counts().await.breaker_opened, 0, "{own:?}");
        });
    }
}

#[test]
fn a_dependency_that_is_down_for_a_while_costs_twenty_messages_and_the_probes_an_attempt_and_none_its_life() {
    for order in [Order::Partition, Order::None] {
        paused(async {
            let world = World::new();
            let ids = names("m", 1_000);
            publish(&world, 0, &ids[..900]);
            let needs = Needs::new(|id| {
                let number: u32 = id[1..].parse().unwrap();
                if number >= 100 { Call::Refused } else { Call::Works }
            });
            let run = world.start_with(ConsumerOptions { order, ..with_breaker(10) }, needs.clone());
            run.until(|counts| counts.breaker_opened == 1).await;
            let (opened, before) = (Instant::now(), needs.runs());
            let charged = distinct(&needs.since(0, Call::Refused));
            // With order = "none" those in front of the first one are applied behind it, and the row begins anew.
            assert_eq!(charged, ROW + usize::from(order == Order::None), "{order:?}");
            assert_eq!(run.live.breaker(), BreakerState::Open);
            // What comes meanwhile waits like the rest.
            publish(&world, 1, &ids[900..]);
            sleep(seconds(300)).await;
            let probes = needs.since(before, Call::Refused);
            // After 1, 2, 4 and 8 s, then every 10 s.
            assert!((26..=36).contains(&probes.len()), "{order:?}: {} probes", probes.len());
            assert_ne!(run.live.breaker(), BreakerState::Closed);
            let counts = run.live.snapshot();
            let failed = needs.since(0, Call::Refused).len() as u64;
            assert_eq!(
                (counts.applied, counts.attempts_failed),
                (100, failed),
                "each run of theirs is an attempt"
            );
            assert!(failed <= 2 * (ROW as u64 + 1) + probes.len() as u64);
            assert!(counts.parked <= (ROW + probes.len()) as u64, "{order:?}: {counts:?}");
            needs.becomes(|_| Call::Works);
            run.until(|counts| ended_well(counts) == 1_000).await;
            assert!(opened.elapsed() < seconds(300 + 10 + 5), "{:?}", opened.elapsed());
            assert_eq!(run.live.breaker(), BreakerState::Closed);
            let report = run.stop().await.unwrap();
            assert_eq!(
                (report.counts.breaker_opened, report.breaker),
                (1, BreakerState::Closed),
                "{order:?}"
            );
            applied_once(&world, &ids);
        });
    }
}

#[test]
fn most_of_fifty_within_half_a_minute_open_it_and_three_quarters_do_not() {
    for (of, opens) in [(6, 1), (4, 0)] {
        paused(async {
            let world = World::new();
            publish(&world, 0, &names("m", 300));
            // One in six, or in four, works: never twenty in a row fail.
            let needs = Needs::new(move |id| {
                let number: u32 = id[1..].parse().unwrap();
                if number.is_multiple_of(of) { Call::Works } else { Call::Refused }
            });
            let run = world.start_with(ConsumerOptions { batch_max: 1, ..with_breaker(100) }, needs.clone());
            run.until(|counts| counts.breaker_opened == 1 || counts.parked == 225).await;
            let counts = run.live.snapshot();
            assert_eq!(counts.breaker_opened, opens, "{counts:?}");
            assert!(counts.applied + counts.parked >= 49, "{counts:?}");
            run.counts().await;
        });
    }
}

#[test]
fn timeouts_open_it_and_a_batch_without_a_culprit_does_not_count_for_many() {
    for hangs in [true, false] {
        paused(async {
            let world = World::new();
            let ids = names("m", 500);
            publish(&world, 0, &ids);
            let needs = Needs::new(move |_| if hangs { Call::Hangs } else { Call::Refused });
            let options = ConsumerOptions { handler_timeout: seconds(2), ..with_breaker(10) };
            let run = world.start_batches(options, Together(needs.clone()));
            run.until(|counts| counts.breaker_opened == 1).await;
            // Nineteen were found; the twentieth opened it, and waits.
            sleep(Duration::from_millis(100)).await;
            let counts = run.live.snapshot();
            assert_eq!(counts.parked, ROW as u64 - 1, "{counts:?}");
            let before = needs.runs();
            sleep(seconds(60)).await;
            assert!(needs.runs() - before < 10, "one message at a time");
            needs.becomes(|_| Call::Works);
            run.until(|counts| ended_well(counts) == 500).await;
            run.counts().await;
            applied_once(&world, &ids);
        });
    }
}

#[test]
fn one_bad_message_in_each_batch_never_opens_it() {
    paused(async {
        let world = World::new();
        publish(&world, 0, &names("m", 3_000));
        let needs = Needs::new(|id| {
            let number: u32 = id[1..].parse().unwrap();
            if number % 100 == 77 { Call::Refused } else { Call::Works }
        });
        let run =
            world.start_batches(ConsumerOptions { batch_max: 100, ..with_breaker(100) }, Together(needs));
        run.until(|counts| counts.settled() == 3_000).await;
        let counts = run.counts().await;
        assert_eq!((counts.breaker_opened, counts.applied, counts.parked), (0, 2_970, 30));
    });
}

#[test]
fn a_stop_while_it_is_open_ends_at_once_and_charges_nothing_more() {
    for wait in [Duration::from_millis(10), seconds(100)] {
        paused(async {
            let world = World::new();
            let ids = names("m", 300);
            publish(&world, 0, &ids[..200]);
            publish(&world, 1, &ids[200..]);
            let needs = Needs::new(|_| Call::Refused);
            let run = world.start_with(ConsumerOptions { concurrency: 2, ..with_breaker(10) }, needs.clone());
            run.until(|counts| counts.breaker_opened == 1).await;
            sleep(wait).await;
            let (before, asked) = (run.live.snapshot(), Instant::now());
            let report = run.stop().await.unwrap();
            assert!(asked.elapsed() < seconds(2), "{:?}", asked.elapsed());
            assert_eq!(report.stopped, StopReason::Asked);
            let counts = report.counts;
            assert_eq!((counts.parked, counts.attempts_failed), (before.parked, before.attempts_failed));
            assert_eq!(counts.parked + counts.released, 300, "{counts:?}");
            assert_ne!(report.breaker, BreakerState::Closed);
            // The next run begins with a closed one, and everything is applied.
            needs.becomes(|_| Call::Works);
            let run = world.start_with(with_breaker(10), needs.clone());
            run.until(|now| ended_well(now) == 300).await;
            run.counts().await;
            applied_once(&world, &ids);
        });
    }
}

#[test]
fn a_lane_that_is_taken_away_while_it_is_open_is_given_up_at_once() {
    paused(async {
        let world = World::new();
        let ids = names("m", 200);
        publish(&world, 0, &ids[..100]);
        publish(&world, 1, &ids[100..]);
        let needs = Needs::new(|_| Call::Refused);
        let run = world.start_with(with_breaker(10), needs.clone());
        run.until(|counts| counts.breaker_opened == 1).await;
        sleep(seconds(20)).await;
        let before = run.live.snapshot();
        let asked = Instant::now();
        // Another member takes one of the two.
        let other = world.start_with(with_breaker(10), needs.clone());
        run.until(|counts| counts.released >= 70).await;
        other.until(|counts| counts.received >= 70).await;
        assert!(asked.elapsed() < seconds(2), "{:?}", asked.elapsed());
        let counts = run.live.snapshot();
        assert_eq!((counts.parked, counts.attempts_failed), (before.parked, before.attempts_failed));
        needs.becomes(|_| Call::Works);
        for _ in 0..60_000 {
            if ids.iter().all(|id| world.effects(id) == 1) {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        run.counts().await;
        other.counts().await;
        applied_once(&world, &ids);
    });
}

#[test]
fn a_probe_that_is_a_duplicate_tells_nothing_and_the_next_one_follows_at_once() {
    paused(async {
        let world = World::new();
        let (known, ids) = (names("known", 10), names("m", 60));
        publish(&world, 1, &known);
        let needs = Needs::new(|id| if id.starts_with("known") { Call::Works } else { Call::Refused });
        let run = world.start_with(with_breaker(10), needs.clone());
        run.until(|counts| counts.applied == 10).await;
        publish(&world, 0, &ids[..ROW]);
        publish(&world, 0, &known);
        publish(&world, 0, &ids[ROW..]);
        run.until(|counts| counts.breaker_opened == 1).await;
        let (before, at) = (needs.runs(), Instant::now());
        // The twentieth is probed after a second and parked; then come the duplicates, and behind them the next probe.
        run.until(|counts| counts.duplicate == 10).await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!(needs.since(before, Call::Refused), ["m19", "m20"]);
        assert!(at.elapsed() < Duration::from_millis(3_500), "{:?}", at.elapsed());
        assert_eq!(run.live.breaker(), BreakerState::Open);
        needs.becomes(|_| Call::Works);
        run.until(|counts| ended_well(counts) == 70).await;
        assert!(at.elapsed() < seconds(20), "{:?}", at.elapsed());
        assert_eq!(run.counts().await.breaker_opened, 1);
        applied_once(&world, &[known, ids].concat());
    });
}

/// As many as open it, then nothing is delivered any more: all of them are parked in the end, and the breaker is open.
async fn opened_by_twenty(world: &World, needs: &Needs) -> (retry::Running, Vec<String>, Instant) {
    let ids = names("m", ROW);
    publish(world, 0, &ids);
    let run = world.start_with(with_breaker(10), needs.clone());
    run.until(|counts| counts.breaker_opened == 1).await;
    let opened = Instant::now();
    run.until(|counts| counts.parked == ROW as u64).await;
    (run, ids, opened)
}

#[test]
fn the_retry_worker_probes_with_one_row_where_nothing_else_can() {
    paused(async {
        let world = World::new();
        let needs = Needs::new(|_| Call::Refused);
        let (run, ids, opened) = opened_by_twenty(&world, &needs).await;
        needs.most_active();
        let (before, known) = (needs.runs(), run.live.snapshot());
        sleep(seconds(100)).await;
        let probes = needs.runs() - before;
        assert!((9..=13).contains(&probes), "{probes} probes");
        assert_eq!(needs.most_active(), 1);
        let counts = run.live.snapshot();
        assert_eq!(counts.resumed_parked_again - known.resumed_parked_again, probes as u64, "{counts:?}");
        needs.becomes(|_| Call::Works);
        run.until(|counts| counts.resumed_applied == ROW as u64).await;
        assert!(opened.elapsed() < seconds(120), "{:?}", opened.elapsed());
        let counts = run.counts().await;
        assert_eq!((counts.breaker_opened, counts.resumed_dead), (1, 0));
        applied_once(&world, &ids);
    });
}

#[test]
fn a_message_that_comes_while_the_worker_waits_is_the_probe() {
    paused(async {
        let world = World::new();
        let needs = Needs::new(|_| Call::Refused);
        let (run, _, _) = opened_by_twenty(&world, &needs).await;
        let before = needs.runs();
        world.publish(1, None, &["new"]);
        // Nobody takes a row while it waits: after 2 s and after 4 s it is tried.
        sleep(seconds(7)).await;
        assert_eq!(needs.since(before, Call::Refused), ["new", "new"]);
        needs.becomes(|_| Call::Works);
        run.until(|counts| ended_well(counts) == 21).await;
        run.counts().await;
    });
}

/// Messages that a run without a breaker has parked, all of them due.
async fn parked_before(world: &World, needs: &Needs, count: usize) -> Vec<String> {
    let ids = names("bad", count);
    publish(world, 0, &ids);
    let run = world.start_with(options(10), needs.clone());
    run.until(|counts| counts.parked == count as u64).await;
    run.counts().await;
    sleep(seconds(3_600)).await;
    ids
}

#[test]
fn parked_messages_that_always_fail_come_to_their_end_in_time_whatever_the_lanes_do() {
    for good in [0, 2_000] {
        paused(async {
            let world = World::new();
            let needs = Needs::new(|id| if id.starts_with("bad") { Call::Refused } else { Call::Works });
            let bad = parked_before(&world, &needs, 200).await;
            let before = needs.runs();
            let began = Instant::now();
            let run = world.start_with(with_breaker(10), needs.clone());
            let good = names("good", good);
            for some in good.chunks(100) {
                publish(&world, 1, some);
                sleep(Duration::from_millis(100)).await;
            }
            run.until(|counts| counts.applied == good.len() as u64).await;
            assert!(began.elapsed() < seconds(30), "{:?}", began.elapsed());
            run.until(|counts| counts.resumed_dead == 200).await;
            // Eight attempts each, a wait of up to a second between them.
            assert!(began.elapsed() < seconds(30), "{:?}", began.elapsed());
            let counts = run.counts().await;
            assert_eq!((counts.breaker_opened, counts.attempts_failed), (0, 1_600), "{counts:?}");
            assert_eq!(needs.since(before, Call::Refused).len(), 1_600, "each attempt is one run");
            assert!(bad.iter().all(|id| world.state(id) == Some(InboxState::Dead) && world.effects(id) == 0));
        });
    }
}

#[test]
fn an_outage_that_fails_fresh_and_parked_messages_alike_opens_it_and_costs_none_its_life() {
    paused(async {
        let world = World::new();
        let needs = Needs::new(|_| Call::Refused);
        let parked = parked_before(&world, &needs, 60).await;
        let fresh = names("m", 500);
        publish(&world, 0, &fresh[..250]);
        publish(&world, 1, &fresh[250..]);
        let run = world.start_with(ConsumerOptions { concurrency: 2, ..with_breaker(10) }, needs.clone());
        run.until(|counts| counts.breaker_opened == 1).await;
        sleep(Duration::from_millis(100)).await;
        let (before, at_first) = (needs.runs(), run.live.snapshot());
        sleep(seconds(600)).await;
        let probes = (needs.runs() - before) as u64;
        let counts = run.live.snapshot();
        assert!((55..=70).contains(&probes), "{probes} probes");
        assert!(counts.parked - at_first.parked <= probes, "{counts:?}");
        assert_eq!(counts.resumed_parked_again, at_first.resumed_parked_again, "lanes probe, not rows");
        needs.becomes(|_| Call::Works);
        run.until(|counts| ended_well(counts) == 560).await;
        let counts = run.counts().await;
        assert_eq!((counts.breaker_opened, counts.dead_letter_rows), (1, 0));
        applied_once(&world, &[parked, fresh].concat());
    });
}

#[test]
fn a_parked_message_that_works_closes_it() {
    paused(async {
        let world = World::new();
        let needs = Needs::new(|_| Call::Refused);
        let (run, ids, _) = opened_by_twenty(&world, &needs).await;
        needs.becomes(|id| if id == "m7" { Call::Works } else { Call::Refused });
        run.until(|counts| counts.resumed_applied == 1).await;
        assert_eq!(run.live.breaker(), BreakerState::Closed);
        // The others fail on, and that is no news.
        run.until(|counts| counts.resumed_dead == 19).await;
        assert_eq!(run.counts().await.breaker_opened, 1);
        assert_eq!(world.effects(&ids[7]), 1);
    });
}

#[test]
fn lanes_share_one_breaker_and_probe_in_turn() {
    paused(async {
        let world = World::new();
        let (bad, good) = (names("bad", 200), names("good", 200));
        publish(&world, 0, &bad);
        let needs = Needs::new(|id| if id.starts_with("bad") { Call::Refused } else { Call::Works });
        let run = world.start_with(ConsumerOptions { concurrency: 4, ..with_breaker(100) }, needs.clone());
        run.until(|counts| counts.breaker_opened == 1).await;
        needs.most_active();
        let opened = Instant::now();
        // The other lane has good ones only: it gets its turn behind one probe of the first, which closes it.
        publish(&world, 1, &good);
        run.until(|counts| counts.applied > 0).await;
        assert!(opened.elapsed() < seconds(5), "{:?}", opened.elapsed());
        run.until(|counts| counts.applied == 200).await;
        run.counts().await;
    });
}

#[test]
fn while_it_is_open_nothing_runs_beside_a_probe() {
    paused(async {
        let world = World::new();
        let ids = names("m", 400);
        publish(&world, 0, &ids[..200]);
        publish(&world, 1, &ids[200..]);
        let needs = Needs::new(|_| Call::Refused);
        let run = world.start_with(ConsumerOptions { concurrency: 4, ..with_breaker(10) }, needs.clone());
        run.until(|counts| counts.breaker_opened == 1).await;
        // What ran when it opened ends first.
        sleep(Duration::from_millis(500)).await;
        needs.most_active();
        let parked = run.live.snapshot().parked;
        needs.becomes(|_| Call::Hangs);
        sleep(seconds(200)).await;
        assert_eq!(needs.most_active(), 1);
        let counts = run.live.snapshot();
        let probes = needs.since(0, Call::Hangs).len() as u64;
        assert!(probes > 2 && counts.parked - parked <= probes, "{probes} probes, {counts:?}");
        needs.becomes(|_| Call::Works);
        run.until(|counts| ended_well(counts) == 400).await;
        run.counts().await;
        applied_once(&world, &ids);
    });
}
