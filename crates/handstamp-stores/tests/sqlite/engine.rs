//! The engine over SQLite, whose statements block its thread: time limits, stops and foreign locks.

use crate::support::{beside, number, open, options};
use handstamp_core::consumer::BuilderWithStore;
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::retry::RetryPolicy;
use handstamp_core::{
    Consumer, ConsumerName, ConsumerOptions, Counts, Identity, LiveCounts, Message, RunErrorKind, StartStore,
};
use handstamp_stores::effect::{CompiledEffect, EffectSpec};
use handstamp_stores::sqlite::{SqlEffects, SqliteStore, Tx};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// More steps than any limit of these tests lets through.
const ENDLESS: &str = "1000000000";
/// Counts to the message's number of steps, then writes one row.
const COUNTING: &str = "INSERT INTO ledger SELECT :message_id, (WITH RECURSIVE n(i) AS
    (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :steps) SELECT count(*) FROM n)";

/// A topic of one partition with a message for each number of steps.
fn topic(steps: &[&str]) -> LogBroker {
    let broker = LogBroker::new("credits", 1);
    for (at, steps) in steps.iter().enumerate() {
        broker.publish(0, Payload::value(format!(r#"{{"id":"id-{at}","steps":{steps}}}"#))).unwrap();
    }
    broker
}

fn counting() -> SqlEffects {
    SqlEffects::new(vec![CompiledEffect::compile(&EffectSpec::new(COUNTING)).unwrap()])
}

async fn with_limit(folder: &TempDir, statement_timeout: Duration) -> SqliteStore {
    let mut options = options(folder);
    options.statement_timeout = statement_timeout;
    SqliteStore::open(options).await.unwrap()
}

fn consumer<S: StartStore>(broker: &LogBroker, store: S) -> BuilderWithStore<S> {
    Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Field(Pointer::member("id")))
        .store(store)
}

fn until(messages: u64) -> ConsumerOptions {
    let wait = Duration::from_millis(1);
    let retry = RetryPolicy { max_attempts: 2, wait, ..RetryPolicy::default() };
    let policy = Policy { retry, ..Policy::default() };
    ConsumerOptions { messages_max: Some(messages), policy, ..ConsumerOptions::default() }
}

/// Lets others run until the counts are as wanted; the sleep is only to spare the processor.
async fn wait_for(counts: &LiveCounts, wanted: impl Fn(&Counts) -> bool) {
    for _ in 0..30_000 {
        if wanted(&counts.snapshot()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it did not come to that: {:?}", counts.snapshot());
}

fn lock_is_free(folder: &TempDir) -> bool {
    let eyes = beside(folder);
    eyes.busy_timeout(Duration::ZERO).unwrap();
    eyes.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
}

#[tokio::test]
async fn an_endless_statement_is_cut_off_and_only_its_message_is_given_up() {
    let limit = Duration::from_millis(50);
    for by_handler in [false, true] {
        let folder = TempDir::new().unwrap();
        let broker = topic(&["1", ENDLESS, "2"]);
        let building = consumer(&broker, with_limit(&folder, limit).await);
        let consumer = if by_handler {
            building.handler_fn(async |tx: &mut Tx, message: &Message| {
                let steps = std::str::from_utf8(message.value().unwrap())?.contains(ENDLESS);
                let sql = COUNTING.replace(":message_id", "?1").replace(":steps", "?2");
                let steps = if steps { i64::MAX } else { 1 };
                tx.execute(&sql, (message.id().as_str(), steps))?;
                Ok(())
            })
        } else {
            building.batch_handler(counting())
        };
        let report = consumer.options(until(3)).run_local(std::future::pending()).await.unwrap();
        let counts = report.counts;
        assert_eq!((counts.applied, counts.dead_lettered, counts.attempts_failed), (2, 1, 2), "{counts:?}");
        let eyes = beside(&folder);
        let classes: String = eyes
            .query_row("SELECT group_concat(class || attempts) FROM handstamp_dead_letters", [], |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!(classes, "timed_out2");
        assert_eq!(number(&eyes, "SELECT count(*) FROM ledger"), 2);
        assert_eq!(broker.settled_count("group", 0), 3);
    }
}

#[tokio::test]
async fn a_stop_in_mid_statement_ends_by_the_statements_limit_and_settles_nothing() {
    let folder = TempDir::new().unwrap();
    let broker = topic(&[ENDLESS]);
    let store = with_limit(&folder, Duration::from_millis(100)).await;
    let (begun, has_begun) = oneshot::channel();
    let begun = Mutex::new(Some(begun));
    let consumer = consumer(&broker, store)
        .handler_fn(async move |tx: &mut Tx, _: &Message| {
            if let Some(begun) = begun.lock().unwrap().take() {
                begun.send(()).unwrap();
            }
            tx.execute(COUNTING, rusqlite::named_params! { ":message_id": "x", ":steps": i64::MAX })?;
            Ok(())
        })
        .options(ConsumerOptions { shutdown_timeout: Duration::ZERO, ..ConsumerOptions::default() });
    // Its own thread is the one that SQLite blocks.
    let stop = async move { has_begun.await.unwrap() };
    let ended = consumer.run(stop).await.unwrap_err();
    assert_eq!(ended.kind, RunErrorKind::ShutdownTimeout, "{ended}");
    let counts = ended.report.unwrap().counts;
    assert_eq!((counts.received, counts.released, counts.pending()), (1, 1, 0), "{counts:?}");
    assert_eq!(broker.settled_count("group", 0), 0);
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_inbox"), 0);
    assert!(lock_is_free(&folder));
}

/// A batch that is slow as a whole, of statements that are not: the limit of the handler cuts it off between
/// two of them, and its parts go on.
#[tokio::test]
async fn a_batch_above_the_handlers_limit_goes_on_in_parts() {
    const COUNT: usize = 24;
    let folder = TempDir::new().unwrap();
    let broker = topic(&["100000"; COUNT]);
    let options = ConsumerOptions { handler_timeout: Duration::from_millis(1), ..until(COUNT as u64) };
    let consumer = consumer(&broker, open(&folder).await).batch_handler(counting()).options(options);
    let report = consumer.run_local(std::future::pending()).await.unwrap();
    let counts = report.counts;
    assert_eq!((counts.applied, counts.attempts_failed), (COUNT as u64, 0), "{counts:?}");
    assert!(counts.reruns > 0, "{counts:?}");
    assert_eq!(number(&beside(&folder), "SELECT count(*) = 24 FROM ledger"), 1);
}

/// A handler of one message at a time that never waits must not keep the thread for a whole batch.
#[tokio::test]
async fn a_stop_is_seen_between_the_messages_of_a_batch() {
    const COUNT: usize = 200;
    let folder = TempDir::new().unwrap();
    let broker = topic(&["1"; COUNT]);
    let handled = Arc::new(AtomicUsize::new(0));
    let (seen, stop) = (Arc::clone(&handled), Arc::new(tokio::sync::Notify::new()));
    let asked = Arc::clone(&stop);
    let consumer = consumer(&broker, open(&folder).await)
        .handler_fn(async move |tx: &mut Tx, _: &Message| {
            seen.fetch_add(1, Ordering::SeqCst);
            asked.notify_one();
            tx.execute(COUNTING, rusqlite::named_params! { ":message_id": "x", ":steps": 200_000 })?;
            Ok(())
        })
        .options(ConsumerOptions { shutdown_timeout: Duration::ZERO, ..ConsumerOptions::default() });
    let ended = consumer.run_local(stop.notified()).await.unwrap_err();
    assert_eq!(ended.kind, RunErrorKind::ShutdownTimeout, "{ended}");
    assert!(handled.load(Ordering::SeqCst) < COUNT, "the whole batch ran");
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_inbox"), 0);
    assert!(lock_is_free(&folder));
}

#[tokio::test]
async fn a_lock_held_by_another_process_costs_no_attempt() {
    let folder = TempDir::new().unwrap();
    let mut options = options(&folder);
    options.lock_timeout = Duration::from_millis(20);
    let store = SqliteStore::open(options).await.unwrap();
    let broker = topic(&["1"]);
    let consumer = consumer(&broker, store).batch_handler(counting()).options(until(3));
    let counts = consumer.live_counts();
    let another = async {
        wait_for(&counts, |counts| counts.applied == 1).await;
        let other = beside(&folder);
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        for at in 1..3 {
            broker.publish(0, Payload::value(format!(r#"{{"id":"later-{at}","steps":1}}"#))).unwrap();
        }
        // More often than a message may fail.
        wait_for(&counts, |counts| counts.reruns > 3).await;
        other.execute_batch("COMMIT").unwrap();
    };
    let (report, ()) = tokio::join!(consumer.run_local(std::future::pending()), another);
    let counts = report.unwrap().counts;
    assert_eq!((counts.applied, counts.attempts_failed, counts.dead_lettered), (3, 0, 0), "{counts:?}");
}

#[tokio::test]
async fn a_lock_held_by_another_process_does_not_hold_up_a_stop() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let broker = topic(&["1"]);
    let options =
        ConsumerOptions { shutdown_timeout: Duration::from_millis(20), ..ConsumerOptions::default() };
    let consumer = consumer(&broker, store).batch_handler(counting()).options(options);
    let counts = consumer.live_counts();
    let other = beside(&folder);
    let stop = async {
        wait_for(&counts, |counts| counts.applied == 1).await;
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        broker.publish(0, Payload::value(r#"{"id":"later","steps":1}"#)).unwrap();
        wait_for(&counts, |counts| counts.received == 2).await;
    };
    // `lock_timeout` is five seconds; the other one never lets go.
    let ended = consumer.run_local(stop).await.unwrap_err();
    assert_eq!(ended.kind, RunErrorKind::ShutdownTimeout, "{ended}");
    let counts = ended.report.unwrap().counts;
    assert_eq!((counts.applied, counts.released, counts.pending()), (1, 1, 0), "{counts:?}");
    assert_eq!(broker.settled_count("group", 0), 1);
}
