//! Thousands of messages that violate one constraint, through declared effects: all of them are given up in seconds,
//! what lies behind them is applied, and the breaker stays closed.

use crate::harness::{Server, TestDatabase};
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::retry::RetryPolicy;
use handstamp_core::{BreakerState, Consumer, ConsumerName, ConsumerOptions, Identity};
use handstamp_stores::effect::EffectSpec;
use handstamp_stores::postgres::SqlEffects;
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use std::time::{Duration, Instant};

const BAD: u64 = 5_000;
const GOOD: u64 = 500;

/// Two attempts, both in place.
fn options() -> ConsumerOptions {
    let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    let policy = Policy { retry, ..Policy::default() };
    ConsumerOptions { policy, messages_max: Some(BAD + GOOD), ..ConsumerOptions::default() }
}

#[tokio::test]
async fn five_thousand_that_violate_one_constraint_are_dead_and_those_behind_them_applied() {
    let database = TestDatabase::new(Server::V18).await;
    let (store, _) = database.wallet().await;
    let broker = LogBroker::new("credits", 1);
    for at in 0..BAD + GOOD {
        let amount = if at < BAD { 5_000 } else { 5 };
        broker.publish(0, Payload::value(format!(r#"{{"id":"id-{at}","amount":{amount}}}"#))).unwrap();
    }
    let effect = EffectSpec::new("INSERT INTO ledger VALUES (:message_id, 1, :amount)");
    let effects = SqlEffects::compile(&[effect]).unwrap();
    let began = Instant::now();
    let consumer = Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Field(Pointer::member("id")))
        .store(store)
        .batch_handler(effects)
        .options(ConsumerOptions { adopt: true, ..options() });
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
        (counts.applied, counts.dead_lettered, counts.attempts_failed),
        (GOOD, BAD, 2 * BAD),
        "{counts:?}"
    );
    assert_eq!((counts.breaker_opened, report.breaker), (0, BreakerState::Closed));
    let dead = "SELECT count(*) FROM handstamp.dead_letters WHERE class = 'sql' AND attempts = 2";
    assert_eq!(database.number(dead).await, 5_000);
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 500);
}
