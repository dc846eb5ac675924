//! Thousands of messages that violate one constraint, through declared effects: all of them are given up in seconds,
//! what lies behind them is applied, and the breaker stays closed.

use crate::support::{beside, number, open};
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::{BreakerState, Consumer, ConsumerName, ConsumerOptions, Identity};
use handstamp_stores::effect::{CompiledEffect, EffectSpec};
use handstamp_stores::sqlite::SqlEffects;
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BAD: u64 = 5_000;
const GOOD: u64 = 500;

/// Two attempts in place and one of the retry worker's, due at once.
fn options() -> ConsumerOptions {
    let soon = Duration::from_millis(1);
    let backoff = Backoff { base: soon, cap: soon };
    let retry = RetryPolicy { max_attempts: 3, backoff, ..RetryPolicy::default() };
    let policy = Policy { retry, ..Policy::default() };
    ConsumerOptions { policy, messages_max: Some(BAD + GOOD), ..ConsumerOptions::default() }
}

#[tokio::test]
async fn five_thousand_that_violate_one_constraint_are_dead_and_those_behind_them_applied() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let broker = LogBroker::new("credits", 1);
    for at in 0..BAD + GOOD {
        let amount = if at < BAD { 5_000 } else { 5 };
        broker.publish(0, Payload::value(format!(r#"{{"id":"id-{at}","amount":{amount}}}"#))).unwrap();
    }
    let limited = "CREATE TABLE limited (event_id TEXT NOT NULL, amount INTEGER CHECK (amount < 1000))";
    beside(&folder).execute_batch(limited).unwrap();
    let effect = EffectSpec::new("INSERT INTO limited VALUES (:message_id, :amount)");
    let effects = SqlEffects::new(vec![CompiledEffect::compile(&effect).unwrap()]);
    let began = Instant::now();
    let consumer = Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Field(Pointer::member("id")))
        .store(store)
        .batch_handler(effects)
        .options(options());
    let live = consumer.live_counts();
    let (first, report) = tokio::join!(
        async {
            while live.snapshot().applied < GOOD {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            began.elapsed()
        },
        consumer.run_local(std::future::pending())
    );
    let report = report.unwrap();
    println!(
        "{BAD} bad and {GOOD} good: the good ones applied after {first:?}, the bad ones dead after {:?}",
        report.took
    );
    let counts = report.counts;
    assert_eq!(
        (counts.applied, counts.resumed_dead, counts.attempts_failed),
        (GOOD, BAD, 3 * BAD),
        "{counts:?}"
    );
    assert_eq!((counts.breaker_opened, report.breaker), (0, BreakerState::Closed));
    let eyes = beside(&folder);
    assert_eq!(
        number(&eyes, "SELECT count(*) FROM handstamp_dead_letters WHERE class = 'sql' AND attempts = 3"),
        5_000
    );
    assert_eq!(number(&eyes, "SELECT count(*) FROM limited"), 500);
}
