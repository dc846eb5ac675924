//! Level 1 on Kafka and Postgres, inside a service: runs until Ctrl-C.
//!
//! `level1_kafka BROKERS TOPIC GROUP POSTGRES_URL [--forever]` credits accounts by messages whose id is in the
//! header `event_id` and whose body is `{"account_id":1,"amount":100}`.
#![allow(clippy::print_stdout, reason = "an example that tells what it did")]

use handstamp::kafka::{KafkaOptions, KafkaSource};
use handstamp::postgres::{MigrateOptions, PostgresOptions, PostgresStore, Tx};
use handstamp::{Consumer, ConsumerName, ConsumerOptions, HandlerError, Identity, Message};
use std::error::Error;
use std::time::Duration;

/// Runs inside the transaction that also holds the claim; `tx` derefs to `tokio_postgres::Client`.
async fn credit(tx: &mut Tx, message: &Message) -> Result<(), HandlerError> {
    // Without this it would be tried again: what is no JSON now will be none later.
    let body = serde_json::from_slice(message.value().unwrap_or_default()).map_err(HandlerError::reject);
    let body: serde_json::Value = body?;
    let (Some(account), Some(amount)) = (body["account_id"].as_i64(), body["amount"].as_i64()) else {
        return Err(HandlerError::reject("account_id and amount must be whole numbers"));
    };
    let update = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
    if tx.execute(update, &[&amount, &account]).await? == 0 {
        return Err(HandlerError::reject(format!("no account {account}")));
    }
    let insert = "INSERT INTO ledger (event_id, account_id, amount) VALUES ($1, $2, $3)";
    tx.execute(insert, &[&message.id().to_string(), &account, &amount]).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let forever = arguments.pop_if(|last| last == "--forever").is_some();
    let [brokers, topic, group, url] = arguments.as_slice() else {
        return Err("usage: level1_kafka BROKERS TOPIC GROUP POSTGRES_URL [--forever]".into());
    };
    // A process that was killed is missed after 6 s instead of 45.
    let options = KafkaOptions::new(brokers, group, [topic.as_str()]).option("session.timeout.ms", "6000");
    let source = KafkaSource::new(options);
    let store = PostgresStore::new(PostgresOptions::parse(url)?)?;
    // A service would do this when it is deployed, not at every start.
    store.migrate(&MigrateOptions::default()).await?;
    let consumer = Consumer::builder(ConsumerName::new("wallet")?)
        .source(source, Identity::Header("event_id".into()))
        .store(store)
        .handler_fn(credit)
        // A service would leave this out; the example ends when nothing more comes, unless it is told otherwise.
        .options(ConsumerOptions {
            until_idle: (!forever).then_some(Duration::from_secs(2)),
            ..ConsumerOptions::default()
        });
    let stop = async {
        // Without a signal handler the process just ends: nothing is lost by that.
        let _ = tokio::signal::ctrl_c().await;
    };
    let report = consumer.run(stop).await?;
    println!("applied {}, duplicates {}", report.counts.applied, report.counts.duplicate);
    Ok(())
}
