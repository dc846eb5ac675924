//! The engine's rules, on the smallest store and source and a paused clock.

mod mini;

use handstamp_core::consumer::OnIdReuse;
use handstamp_core::decide::Policy;
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::*;
use mini::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn apply(tx: &mut Tx, message: &Message) {
    tx.apply(&message.id().to_string());
}

async fn good(tx: &mut Tx, message: &Message) -> Result<(), HandlerError> {
    apply(tx, message);
    Ok(())
}

fn options() -> ConsumerOptions {
    ConsumerOptions { batch_max: 100, ..ConsumerOptions::default() }
}

/// All attempts in place.
fn attempts(max_attempts: u32) -> ConsumerOptions {
    let retry = RetryPolicy { max_attempts, immediate: max_attempts, ..RetryPolicy::default() };
    ConsumerOptions { policy: Policy { retry, ..Policy::default() }, ..options() }
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_transaction_and_settled_after_it() {
    let outcome = run_with(MiniStore::default(), numbered(100), options(), good).await;
    assert_eq!(outcome.counts().applied, 100);
    assert_eq!(outcome.store.0.lock().unwrap().transactions, 1);
    assert_eq!(outcome.acks(), 100);
    assert_eq!(outcome.report.unwrap().stopped, StopReason::SourceEnded);
}

#[tokio::test(start_paused = true)]
async fn duplicates_twins_and_reused_ids_are_told_apart() {
    let mut records = numbered(3);
    records.push(record(3, "m0", "m0"));
    records.push(record(4, "m1", "other"));
    let outcome = run_with(MiniStore::default(), records.clone(), options(), good).await;
    let counts = outcome.counts();
    assert_eq!((counts.applied, counts.duplicate, counts.id_reused), (3, 1, 1));
    let again = run_with(outcome.store, records, options(), good).await;
    // The reused id meets its own row: nothing new.
    assert_eq!((again.counts().applied, again.counts().duplicate), (0, 5));
    assert_eq!(again.acks(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_reused_id_may_only_be_counted() {
    let policy = Policy { on_id_reuse: OnIdReuse::Count, ..Policy::default() };
    let records = vec![record(0, "a", "1"), record(1, "a", "2")];
    let outcome =
        run_with(MiniStore::default(), records, ConsumerOptions { policy, ..options() }, good).await;
    assert_eq!((outcome.counts().id_reused, outcome.counts().dead_letter_rows), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failing_message_never_takes_its_neighbours_along() {
    for order in [Order::Partition, Order::None] {
        let runs = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&runs);
        let options = ConsumerOptions { order, ..attempts(3) };
        let outcome =
            run_with(MiniStore::default(), numbered(50), options, async move |tx: &mut Tx, m: &Message| {
                apply(tx, m);
                if m.id().as_bytes() == b"m7" {
                    seen.fetch_add(1, Ordering::SeqCst);
                    return Err("always".into());
                }
                Ok(())
            })
            .await;
        assert_eq!((outcome.counts().applied, outcome.counts().dead_lettered), (49, 1), "{order:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 3, "attempts of the message itself");
        assert_eq!(outcome.counts().attempts_failed, 3);
        assert_eq!(outcome.acks(), 50);
        assert!(!outcome.effects().contains(&"m7".to_owned()), "its effect was rolled back");
        let dead = outcome.store.0.lock().unwrap().dead.values().next().unwrap().clone();
        assert_eq!((dead.attempts, dead.class), (3, FailureClass::Failed));
        assert!(dead.reason.as_str().contains("always"));
    }
}

#[tokio::test(start_paused = true)]
async fn order_is_kept_or_given_up_as_asked() {
    for (order, place) in [(Order::Partition, 2), (Order::None, 9)] {
        let failed = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&failed);
        let options = ConsumerOptions { order, ..attempts(3) };
        let outcome =
            run_with(MiniStore::default(), numbered(10), options, async move |tx: &mut Tx, m: &Message| {
                if m.id().as_bytes() == b"m2" && seen.fetch_add(1, Ordering::SeqCst) < 2 {
                    return Err("twice".into());
                }
                apply(tx, m);
                Ok(())
            })
            .await;
        assert_eq!(outcome.effects().iter().position(|id| id == "m2"), Some(place), "{order:?}");
        assert_eq!(outcome.counts().applied, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn half_bad_messages_cost_a_linear_number_of_transactions_and_runs() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let options = ConsumerOptions { batch_max: 500, ..attempts(1) };
    let outcome =
        run_with(MiniStore::default(), numbered(500), options, async move |tx: &mut Tx, m: &Message| {
            seen.fetch_add(1, Ordering::SeqCst);
            apply(tx, m);
            let number: u32 = m.id().as_str().unwrap()[1..].parse().unwrap();
            if number % 2 == 1 { Err(HandlerError::reject("odd")) } else { Ok(()) }
        })
        .await;
    assert_eq!((outcome.counts().applied, outcome.counts().dead_lettered), (250, 250));
    let transactions = outcome.store.0.lock().unwrap().transactions;
    assert!(transactions <= 2 * 500, "{transactions} transactions");
    assert!(runs.load(Ordering::SeqCst) <= 4 * 500, "{} runs", runs.load(Ordering::SeqCst));
}

struct BatchWithoutCulprit(Arc<AtomicUsize>);

impl BatchHandler<Tx> for BatchWithoutCulprit {
    async fn handle_batch(&self, tx: &mut Tx, batch: &[Message]) -> Result<(), BatchError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        for message in batch {
            apply(tx, message);
        }
        if batch.iter().any(|m| m.id().as_bytes() == b"m3210") {
            return Err(BatchError { culprit: None, error: HandlerError::reject("one of them") });
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_culprit_among_5000_is_found_by_halving() {
    let log = Arc::new(Mutex::new(vec![]));
    let runs = Arc::new(AtomicUsize::new(0));
    let store = MiniStore::default();
    let batches = numbered(5000).chunks(500).map(<[_]>::to_vec).collect();
    let source = MiniSource { batches, log, ends: true };
    let options = ConsumerOptions { batch_max: 5000, batch_wait: Duration::from_secs(60), ..attempts(1) };
    let report = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(store.clone())
        .batch_handler(BatchWithoutCulprit(Arc::clone(&runs)))
        .options(options)
        .run_local(std::future::pending())
        .await
        .unwrap();
    assert_eq!((report.counts.applied, report.counts.dead_lettered), (4999, 1));
    let reruns = runs.load(Ordering::SeqCst) - 1;
    assert!(reruns <= 26, "{reruns} re-executions");
}

#[tokio::test(start_paused = true)]
async fn faults_of_the_store_charge_nobody_and_dead_letter_nothing() {
    use StoreErrorKind::{Conflict, NotMigrated, SchemaMismatch, Timeout, Unavailable};
    for kind in [Unavailable, Conflict, Timeout, SchemaMismatch, NotMigrated] {
        let store = MiniStore::default();
        store.0.lock().unwrap().begins.extend([Next::Fail(kind); 20]);
        store.0.lock().unwrap().commits.extend([Next::Fail(kind); 20]);
        let faults = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&faults);
        let outcome = run_with(store, numbered(20), attempts(1), async move |tx: &mut Tx, m: &Message| {
            apply(tx, m);
            if m.id().as_bytes() == b"m5" && kind != Timeout && seen.fetch_add(1, Ordering::SeqCst) < 20 {
                return Err(StoreFault(kind).into());
            }
            Ok(())
        })
        .await;
        let counts = outcome.counts();
        assert_eq!((counts.applied, counts.dead_lettered, counts.attempts_failed), (20, 0, 0), "{kind:?}");
        assert_eq!(outcome.effects().len(), 20, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn our_own_statement_timeout_inside_a_handler_is_a_failed_attempt() {
    let outcome =
        run_with(MiniStore::default(), numbered(2), attempts(2), async |tx: &mut Tx, m: &Message| {
            apply(tx, m);
            if m.id().as_bytes() == b"m1" { Err(StoreFault(StoreErrorKind::Timeout).into()) } else { Ok(()) }
        })
        .await;
    assert_eq!((outcome.counts().dead_lettered, outcome.counts().attempts_failed), (1, 2));
    assert_eq!(outcome.store.0.lock().unwrap().dead.values().next().unwrap().class, FailureClass::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_commit_without_an_answer_runs_again_and_counts_its_work_once() {
    for next in [Next::CommitThenNoAnswer, Next::Fail(StoreErrorKind::Unavailable)] {
        let store = MiniStore::default();
        store.0.lock().unwrap().commits.push_back(next);
        let mut records = numbered(10);
        records.push(record(10, "", "no id"));
        records.push(record(11, "m3", "m3"));
        let outcome = run_with(store, records, options(), good).await;
        let counts = outcome.counts();
        assert_eq!((counts.applied, counts.duplicate, counts.dead_lettered), (10, 1, 1), "{next:?}");
        assert_eq!(outcome.effects().len(), 10);
    }
}

#[tokio::test(start_paused = true)]
async fn panics_and_timeouts_are_failed_attempts() {
    let outcome =
        run_with(MiniStore::default(), numbered(10), attempts(2), async |tx: &mut Tx, m: &Message| {
            apply(tx, m);
            match m.id().as_bytes() {
                b"m2" => panic!("on purpose"),
                b"m4" => tokio::time::sleep(Duration::from_secs(3600)).await,
                _ => {}
            }
            Ok(())
        })
        .await;
    assert_eq!((outcome.counts().applied, outcome.counts().dead_lettered), (8, 2));
    let classes: Vec<FailureClass> =
        outcome.store.0.lock().unwrap().dead.values().map(|dead| dead.class).collect();
    assert!(classes.contains(&FailureClass::Panicked) && classes.contains(&FailureClass::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn swallowed_errors_are_found_and_an_ended_transaction_stops_the_consumer() {
    let store = MiniStore::default();
    let swallowed = Next::Fail(StoreErrorKind::Swallowed);
    // The whole batch, then each half's path to the one that swallows.
    store.0.lock().unwrap().commits.extend([swallowed, swallowed, swallowed]);
    let outcome = run_with(store, numbered(4), attempts(1), good).await;
    assert_eq!((outcome.counts().applied, outcome.counts().dead_lettered), (3, 1));

    let store = MiniStore::default();
    store.0.lock().unwrap().commits.push_back(Next::Fail(StoreErrorKind::TransactionEnded));
    let outcome = run_with(store, numbered(4), attempts(1), good).await;
    let error = outcome.report.as_ref().unwrap_err();
    assert_eq!(error.kind, RunErrorKind::Store(StoreErrorKind::TransactionEnded));
    assert_eq!((outcome.acks(), outcome.counts().released), (0, 4), "nothing is settled");
    assert!(error.message.contains("m0"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_usable_id_is_a_dead_letter_with_its_bytes() {
    let records = vec![record(0, "", "x"), record(1, "   ", "y"), record(2, &"k".repeat(1025), "z")];
    let outcome = run_with(MiniStore::default(), records.clone(), options(), good).await;
    assert_eq!((outcome.counts().dead_lettered, outcome.acks()), (3, 3));
    let again = run_with(outcome.store.clone(), records.clone(), options(), good).await;
    assert_eq!((again.counts().dead_lettered, again.counts().duplicate), (0, 3), "each meets its own row");
    let kept: BTreeMap<i64, Record> = outcome
        .store
        .0
        .lock()
        .unwrap()
        .dead
        .values()
        .map(|dead| (dead.record.origin.offset, dead.record.clone()))
        .collect();
    assert_eq!(kept.into_values().collect::<Vec<_>>(), records);
}

#[tokio::test(start_paused = true)]
async fn a_record_above_the_limit_keeps_a_flagged_prefix() {
    let body = "x".repeat(5000);
    let limit = ConsumerOptions { message_max_bytes: 1000, ..options() };
    let outcome = run_with(MiniStore::default(), vec![record(0, "big", &body)], limit, good).await;
    assert_eq!(outcome.counts().dead_lettered, 1);
    let dead = outcome.store.0.lock().unwrap().dead.values().next().unwrap().clone();
    let truncation = dead.truncation.unwrap();
    assert_eq!((dead.class, truncation.full_bytes), (FailureClass::TooLarge, 5000));
    assert_eq!(truncation.blake3, *blake3::hash(body.as_bytes()).as_bytes());
    assert_eq!(dead.record.value.unwrap().len(), 1000);
    assert_eq!(dead.digest, record(0, "big", &body).digest(), "the digest is the whole value's");
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_runs_and_gives_the_rest_back() {
    let log = Arc::new(Mutex::new(vec![]));
    let source = MiniSource { batches: vec![numbered(100)], log: Arc::clone(&log), ends: true };
    let store = MiniStore::default();
    let report = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(store.clone())
        .handler_fn(async |tx: &mut Tx, m: &Message| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            apply(tx, m);
            Ok(())
        })
        .options(ConsumerOptions { batch_max: 10, ..ConsumerOptions::default() })
        .run_local(tokio::time::sleep(Duration::from_secs(15)))
        .await
        .unwrap();
    assert_eq!((report.stopped, report.counts.applied, report.counts.released), (StopReason::Asked, 20, 80));
    assert_eq!(store.0.lock().unwrap().effects.len(), 20);
    assert_eq!(log.lock().unwrap().last().unwrap(), "close");
}

#[tokio::test(start_paused = true)]
async fn past_the_shutdown_timeout_what_runs_is_rolled_back_and_nothing_of_it_settled() {
    let log = Arc::new(Mutex::new(vec![]));
    let source = MiniSource { batches: vec![numbered(3)], log: Arc::clone(&log), ends: true };
    let store = MiniStore::default();
    let error = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(store.clone())
        .handler_fn(async |tx: &mut Tx, m: &Message| {
            apply(tx, m);
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(())
        })
        .options(ConsumerOptions { shutdown_timeout: Duration::from_secs(5), ..options() })
        .run_local(tokio::time::sleep(Duration::from_secs(1)))
        .await
        .unwrap_err();
    assert_eq!(error.kind, RunErrorKind::ShutdownTimeout);
    assert!(store.0.lock().unwrap().effects.is_empty());
    assert_eq!(error.report.unwrap().counts.released, 3);
    assert!(!log.lock().unwrap().iter().any(|line| line.starts_with("ack")));
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_store_is_away_or_a_conflict_lasts_ends_at_once_and_well() {
    use StoreErrorKind::{Conflict, SchemaMismatch, Timeout, Unavailable};
    for kind in [Unavailable, SchemaMismatch, Conflict, Timeout] {
        let store = MiniStore::default();
        store.0.lock().unwrap().begins.extend(vec![Next::Fail(kind); 1_000_000]);
        let log = Arc::new(Mutex::new(vec![]));
        let source = MiniSource { batches: vec![numbered(3)], log, ends: true };
        let report = Consumer::builder(ConsumerName::new("test").unwrap())
            .source(source, Identity::Key)
            .store(store)
            .handler_fn(good)
            .run_local(tokio::time::sleep(Duration::from_secs(60)))
            .await
            .unwrap();
        assert_eq!((report.stopped, report.counts.released), (StopReason::Asked, 3), "{kind:?}");
        assert_eq!(report.took.as_secs(), 60, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn fail_fast_ends_with_the_stores_error() {
    let store = MiniStore::default();
    store.0.lock().unwrap().begins.push_back(Next::Fail(StoreErrorKind::Unavailable));
    let options = ConsumerOptions { fail_fast: true, ..options() };
    let outcome = run_with(store, numbered(3), options, good).await;
    assert_eq!(outcome.report.unwrap_err().kind, RunErrorKind::Store(StoreErrorKind::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_messages_asked_for_are_taken() {
    let options = ConsumerOptions { messages_max: Some(7), ..options() };
    let outcome = run_with(MiniStore::default(), numbered(100), options, good).await;
    assert_eq!((outcome.counts().received, outcome.counts().applied), (7, 7));
    assert_eq!(outcome.report.unwrap().stopped, StopReason::MessagesMax);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_ends_ends_the_run_once_nothing_parked_is_due() {
    let now = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    let retry = RetryPolicy { immediate: 1, backoff: now, ..RetryPolicy::default() };
    // Forty that fail alike are no outage here.
    let breaker = BreakerPolicy { in_a_row: 0, percent: 0, ..BreakerPolicy::default() };
    let options = ConsumerOptions { policy: Policy { retry, ..Policy::default() }, breaker, ..options() };
    let failed = Arc::new(Mutex::new(BTreeMap::new()));
    let seen = Arc::clone(&failed);
    // More than are taken at once; the last fails later, and asks for an hour.
    let outcome =
        run_with(MiniStore::default(), numbered(40), options, async move |tx: &mut Tx, m: &Message| {
            let times = seen
                .lock()
                .unwrap()
                .entry(m.id().to_string())
                .and_modify(|n| *n += 1)
                .or_insert(1)
                .to_owned();
            match (m.id().as_bytes(), times) {
                (_, 1) => Err("once".into()),
                (b"m39", _) => Err(HandlerError::retry_after(Duration::from_secs(3_600), "later")),
                _ => {
                    apply(tx, m);
                    Ok(())
                }
            }
        })
        .await;
    let counts = outcome.counts();
    assert_eq!((counts.parked, counts.resumed_applied, counts.resumed_parked_again), (40, 39, 1));
    assert_eq!(outcome.store.0.lock().unwrap().parked.len(), 1);
    let report = outcome.report.unwrap();
    assert_eq!(report.stopped, StopReason::SourceEnded);
    assert!(report.took < Duration::from_secs(60), "{:?}", report.took);
}

#[tokio::test]
async fn the_consumer_runs_on_a_thread_of_its_own() {
    let log = Arc::new(Mutex::new(vec![]));
    let source = MiniSource { batches: vec![numbered(3)], log, ends: true };
    let report = Consumer::builder(ConsumerName::new("test").unwrap())
        .source(source, Identity::Key)
        .store(MiniStore::default())
        .handler_fn(good)
        .run(std::future::pending())
        .await
        .unwrap();
    assert_eq!(report.counts.applied, 3);
}
