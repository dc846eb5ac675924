//! Thousands of parked messages that are due at once: what a retry of each costs, those that work and those that fail.

use crate::harness::{Server, TestDatabase};
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::parked::{Park, ParkingStore};
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::{
    BreakerPolicy, ClaimRequest, Consumer, ConsumerKey, ConsumerOptions, DeadLetter, FailureClass, Headers,
    Identity, MessageId, Origin, Reason, Record, Store, Timestamp,
};
use handstamp_stores::effect::EffectSpec;
use handstamp_stores::postgres::{PostgresStore, SqlEffects};
use handstamp_testkit::fakes::LogBroker;
use std::time::Duration;
use tokio::sync::oneshot;

const ROWS: u64 = 2_000;

fn parked(at: u64, amount: u64) -> Park {
    let id = MessageId::try_from(format!("id-{at}").as_str()).unwrap();
    let letter = DeadLetter {
        digest: 0,
        record: Record {
            key: None,
            value: Some(format!(r#"{{"id":"{id}","amount":{amount}}}"#).into()),
            headers: Headers::default(),
            origin: Origin {
                topic: "credits".into(),
                partition: 0,
                offset: i64::try_from(at).unwrap(),
                line: None,
            },
            timestamp: None,
        },
        id: Some(id),
        truncation: None,
        class: FailureClass::Sql,
        code: None,
        reason: Reason::new("not yet"),
        attempts: 2,
        received_at: Timestamp(0),
        failed_at: Timestamp(0),
    };
    Park { letter, wait: Duration::ZERO, order_key: None }
}

async fn park(store: &PostgresStore, key: &ConsumerKey, amount_of: impl Fn(u64) -> u64) {
    for batch in 0..ROWS / 500 {
        let rows: Vec<Park> = (batch * 500..(batch + 1) * 500).map(|at| parked(at, amount_of(at))).collect();
        let claim = |row: &Park| ClaimRequest { id: row.letter.id.clone().unwrap(), digest: Some(0) };
        let ids: Vec<ClaimRequest> = rows.iter().map(claim).collect();
        let (mut tx, _) = store.begin(key, &ids).await.unwrap();
        store.park(&mut tx, key, &rows).await.unwrap();
        store.commit(tx).await.unwrap();
    }
}

fn options() -> ConsumerOptions {
    let backoff = Backoff { base: Duration::from_secs(36_000), cap: Duration::from_secs(36_000) };
    let retry = RetryPolicy { backoff, ..RetryPolicy::default() };
    let breaker = BreakerPolicy { in_a_row: 0, percent: 0, ..BreakerPolicy::default() };
    let policy = Policy { retry, ..Policy::default() };
    ConsumerOptions { policy, breaker, adopt: true, ..ConsumerOptions::default() }
}

/// Of each hundred so many violate a constraint.
async fn each_is_tried_once_in_few_transactions(bad: u64) {
    let database = TestDatabase::new(Server::V18).await;
    let (store, key) = database.wallet().await;
    let is_bad = |at: u64| at % 100 < bad;
    park(&store, &key, |at| if is_bad(at) { 5_000 } else { 5 }).await;
    let broker = LogBroker::new("credits", 1);
    let effect = EffectSpec::new("INSERT INTO ledger VALUES (:message_id, 1, :amount)");
    let effects = SqlEffects::compile(&[effect]).unwrap();
    let consumer = Consumer::builder(key.name.clone())
        .source(broker.source("group"), Identity::Field(Pointer::member("id")))
        .store(store)
        .batch_handler(effects)
        .options(options());
    let live = consumer.live_counts();
    let (stop, stopped) = oneshot::channel::<()>();
    let began = std::time::Instant::now();
    let (took, report) = tokio::join!(
        async {
            let tried = || {
                let counts = live.snapshot();
                counts.resumed_applied + counts.resumed_parked_again
            };
            while tried() < ROWS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let took = began.elapsed();
            drop(stop);
            took
        },
        consumer.run_local(async { drop(stopped.await) })
    );
    let counts = report.unwrap().counts;
    println!("{bad} of 100 fail: {:.0} rows/s, {} commits", ROWS as f64 / took.as_secs_f64(), counts.commits);
    // A wait of hours may be one of moments.
    let failed = ROWS * bad / 100;
    assert!((failed..failed + 5).contains(&counts.resumed_parked_again), "{counts:?}");
    assert_eq!(counts.resumed_applied, ROWS - failed);
    assert!(counts.commits < ROWS / 20, "{} commits for {ROWS} rows", counts.commits);
    let applied = database.number("SELECT count(*) FROM ledger").await;
    assert_eq!(u64::try_from(applied).unwrap(), ROWS - failed);
    let noted = database.number("SELECT count(*) FROM handstamp.attempts").await;
    assert_eq!(u64::try_from(noted).unwrap(), counts.resumed_parked_again);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.parked_starts").await, 0);
}

#[tokio::test]
async fn rows_that_work_share_their_transactions() {
    each_is_tried_once_in_few_transactions(0).await;
}

#[tokio::test]
async fn rows_that_fail_share_their_transactions() {
    each_is_tried_once_in_few_transactions(100).await;
}

#[tokio::test]
async fn rows_of_both_kinds_share_their_transactions() {
    each_is_tried_once_in_few_transactions(30).await;
}
