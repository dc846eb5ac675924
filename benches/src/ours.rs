//! Handstamp's side: the same consumer, store and effects that the program `handstamp run` builds.

use crate::bare_kafka::Loop;
use crate::bare_sqlite::{DATABASE, LINES};
use crate::harness::Res;
use crate::kafka::brokers;
use crate::postgres::runtime;
use crate::wrap::{Marks, marked};
use handstamp::decide::Policy;
use handstamp::json::Pointer;
use handstamp::kafka::{KafkaOptions, KafkaSource};
use handstamp::postgres::{self, MigrateOptions, PostgresOptions, PostgresStore};
use handstamp::sqlite::{self, SqliteOptions, SqliteStore};
use handstamp::{Consumer, ConsumerName, ConsumerOptions, Identity, Order};
use handstamp_stores::effect::{CompiledEffect, EffectSpec, ExpectRows};
use std::path::Path;
use std::sync::Arc;

/// A store with default settings.
pub(crate) fn postgres_store(url: &str) -> Res<PostgresStore> {
    Ok(PostgresStore::new(PostgresOptions::parse(url)?)?)
}

/// Makes our tables in a database.
pub(crate) async fn migrate(url: &str) -> Res<()> {
    postgres_store(url)?.migrate(&MigrateOptions::default()).await?;
    Ok(())
}

fn effects() -> Res<Vec<CompiledEffect>> {
    let sql = [
        "UPDATE accounts SET balance = balance + :amount WHERE id = :account_id",
        "INSERT INTO ledger (event_id, account_id, amount) VALUES (:message_id, :account_id, :amount)",
    ];
    let one = Some(ExpectRows::Exactly(1));
    let specs = sql.into_iter().map(|sql| EffectSpec { expect_rows: one, ..EffectSpec::new(sql) });
    specs.map(|spec| Ok(CompiledEffect::compile(&spec)?)).collect()
}

/// The default one, or one that keeps no start records.
fn policy(starts: bool) -> Policy {
    let mut policy = Policy::default();
    if !starts {
        policy.retry.max_crashes = 0;
    }
    policy
}

/// Runs a consumer from Kafka to Postgres until `count` messages are received, or `stop`.
pub(crate) fn run_kafka(options: &Loop, marks: &Arc<Marks>, stop: impl Future<Output = ()>) -> Res<()> {
    let kafka = KafkaOptions::new(brokers()?, &options.group, [&options.topic])
        .with_commit_every(options.commit_every);
    let settings = ConsumerOptions {
        batch_max: options.batch_max,
        concurrency: options.lanes,
        messages_max: options.count,
        order: Order::Partition,
        policy: policy(options.starts),
        ..ConsumerOptions::default()
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime()?, async {
        let store = postgres_store(&options.url)?;
        let effects = if options.set { crate::set::effects(false)? } else { effects()? };
        let effects = postgres::SqlEffects::new(effects);
        effects.check(&store).await?;
        let consumer = Consumer::builder(ConsumerName::new("wallet")?)
            .source(KafkaSource::new(kafka), Identity::Header("event_id".into()))
            .store(marked(store, Arc::clone(marks), options.inbox))
            .batch_handler(effects)
            .options(settings);
        consumer.run_local(stop).await?;
        Ok(())
    })
}

/// Runs a consumer from a file of lines to SQLite until the file's end.
pub(crate) fn run_sqlite(folder: &Path, batch_max: usize, starts: bool, marks: &Arc<Marks>) -> Res<()> {
    run_sqlite_with(effects()?, folder, batch_max, starts, marks)
}

/// The same with effects that run once a batch.
pub(crate) fn run_sqlite_sets(folder: &Path, batch_max: usize, marks: &Arc<Marks>) -> Res<()> {
    run_sqlite_with(crate::set::effects(true)?, folder, batch_max, true, marks)
}

fn run_sqlite_with(
    effects: Vec<CompiledEffect>,
    folder: &Path,
    batch_max: usize,
    starts: bool,
    marks: &Arc<Marks>,
) -> Res<()> {
    let name = ConsumerName::new("wallet")?;
    let file = handstamp::file::FileOptions::new(folder.join(LINES), name.clone()).with_state_dir(folder);
    let settings = ConsumerOptions { batch_max, policy: policy(starts), ..ConsumerOptions::default() };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime()?, async {
        let store = SqliteStore::open(SqliteOptions::new(folder.join(DATABASE))).await?;
        let effects = sqlite::SqlEffects::new(effects);
        store.check_effects(&effects).await?;
        let consumer = Consumer::builder(name)
            .source(handstamp::file::FileSource::new(file), Identity::Field(Pointer::member("id")))
            .store(marked(store, Arc::clone(marks), true))
            .batch_handler(effects)
            .options(settings);
        consumer.run_local(std::future::pending()).await?;
        Ok(())
    })
}
