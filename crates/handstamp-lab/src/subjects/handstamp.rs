//! This project's runtime, as a user of the library writes it: the handler runs in the transaction that
//! holds the claim. One message a transaction, or batches; the work is done for each message.

use super::{CONSUMER, Res, Setup, stall};
use crate::ledger::Database;
use handstamp::kafka::hooks::Hooks;
use handstamp::kafka::{KafkaOptions, KafkaSource};
#[cfg(feature = "postgres")]
use handstamp::postgres::{PostgresOptions, PostgresStore, SchemaName};
use handstamp::sqlite::{SqliteOptions, SqliteStore};
use handstamp::{Consumer, ConsumerName, ConsumerOptions, HandlerError, Identity, Message};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

const UPDATE: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
const INSERT: &str = "INSERT INTO ledger (event_id, account_id, amount) VALUES ($1, $2, $3)";

#[derive(serde::Deserialize)]
struct Body {
    account_id: i64,
    amount: i64,
}

fn read(message: &Message) -> Result<(String, Body), HandlerError> {
    Ok((message.id().to_string(), serde_json::from_slice(message.value().unwrap_or_default())?))
}

/// Completes at SIGTERM; until then a subject runs.
async fn terminated() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => drop(terminate.recv().await),
        Err(_) => pending().await,
    }
}

pub(super) fn run(setup: &Setup) -> Res<()> {
    let hooks = Arc::new(Hooks::default());
    let source = KafkaSource::with_hooks(kafka_options(setup), Arc::clone(&hooks));
    let identity = Identity::Header("event_id".into());
    let options = ConsumerOptions { batch_max: setup.batch_max, ..ConsumerOptions::default() };
    let consumer = ConsumerName::new(CONSUMER)?;
    let work = Work { setup: setup.clone(), hooks };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    match &setup.database {
        #[cfg(feature = "postgres")]
        Database::Postgres { .. } => local.block_on(&runtime, async {
            let (url, schema) = setup.database.postgres().ok_or("no Postgres")?;
            let mut place = PostgresOptions::parse(&url)?;
            place.schema = SchemaName::new(&schema)?;
            let store = PostgresStore::new(place)?;
            let consumer = Consumer::builder(consumer)
                .source(source, identity)
                .store(store)
                .handler_fn(async move |tx: &mut handstamp::postgres::Tx, message: &Message| {
                    let (id, body) = read(message)?;
                    work.on(&id).await?;
                    tx.execute(UPDATE, &[&body.amount, &body.account_id]).await?;
                    tx.execute(INSERT, &[&id, &body.account_id, &body.amount]).await?;
                    Ok(())
                })
                .options(options);
            Box::pin(consumer.run_local(terminated())).await?;
            Ok(())
        }),
        Database::Sqlite { path } => local.block_on(&runtime, async {
            let store = SqliteStore::open(SqliteOptions::new(path)).await?;
            let consumer = Consumer::builder(consumer)
                .source(source, identity)
                .store(store)
                .handler_fn(async move |tx: &mut handstamp::sqlite::Tx, message: &Message| {
                    let (id, body) = read(message)?;
                    work.on(&id).await?;
                    tx.execute(UPDATE, (body.amount, body.account_id))?;
                    tx.execute(INSERT, (&id, body.account_id, body.amount))?;
                    Ok(())
                })
                .options(options);
            Box::pin(consumer.run_local(terminated())).await?;
            Ok(())
        }),
    }
}

fn kafka_options(setup: &Setup) -> KafkaOptions {
    let mut options = KafkaOptions::new(&setup.brokers, &setup.group, [&setup.topic])
        .with_commit_every(Duration::from_millis(setup.commit_every_ms))
        .option("session.timeout.ms", setup.session_timeout_ms.to_string())
        .option("heartbeat.interval.ms", (setup.session_timeout_ms / 3).to_string());
    if let Some(ms) = setup.max_poll_interval_ms {
        options = options.option("max.poll.interval.ms", ms.to_string());
    }
    if let Some(assignor) = setup.stall.as_ref().and_then(|stall| stall.assignor.as_ref()) {
        options = options.option("partition.assignment.strategy", assignor);
    }
    options
}

/// The work on one message beside the database, and the lab's stalls.
struct Work {
    setup: Setup,
    /// The lab's switch that stops the runtime's polling.
    hooks: Arc<Hooks>,
}

impl Work {
    async fn on(&self, id: &str) -> Result<(), HandlerError> {
        // The runtime's clock would make a millisecond of none.
        if self.setup.work_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.setup.work_ms)).await;
        }
        let stop_polling = |time: Duration| {
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            self.hooks.stall_ms.store(ms, Ordering::SeqCst);
        };
        stall::pass_async(&self.setup, id, stop_polling).await?;
        Ok(())
    }
}
