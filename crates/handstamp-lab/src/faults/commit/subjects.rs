//! The two consumers whose commits are cut: ours, and what a careful person writes without an inbox.
//!
//! Both read the same credits from memory-sized files or lists and run in this process: what is cut is
//! their connection, so nothing is gained by a process of its own.

use crate::error::{LabError, LabErrorKind, Result};
use crate::ledger::Database;
use crate::workload::Credit;
use handstamp::file::{FileOptions, FileSource};
use handstamp::postgres::{PostgresOptions, PostgresStore, SchemaName, SqlEffects, Tx};
use handstamp::{
    Consumer, ConsumerName, ConsumerOptions, HandlerError, Identity, Message, Report, RunError, json::Pointer,
};
use handstamp_stores::effect::EffectSpec;
use std::path::Path;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

const UPDATE: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
const INSERT: &str = "INSERT INTO ledger (event_id, account_id, amount) VALUES ($1, $2, $3)";
/// How long an unanswered COMMIT is waited for: short, so that silence costs little.
const COMMIT_WAIT: Duration = Duration::from_millis(400);
/// A transaction that hears nothing more is ended by the server after this.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// A pause of the subject without an inbox before it connects again.
const AGAIN: Duration = Duration::from_millis(20);

/// Where a subject works.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// The run's ledger, through the proxy.
    pub(super) database: Database,
    pub(super) lane: u32,
    /// Most messages in one transaction.
    pub(super) batch: usize,
    /// The handler declares its effects as SQL, as the program's do; otherwise it is plain Rust.
    pub(super) declared: bool,
}

fn refused(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LabError {
    LabError::new(LabErrorKind::Subject, format!("the subject {what}")).because(error)
}

/// Our runtime over a file of credits, to its end. It gets no help whatever happens.
pub(super) async fn ours(job: Job, file: std::path::PathBuf) -> Result<()> {
    let name = format!("lane-{}", job.lane);
    let name = ConsumerName::new(&name).map_err(|error| refused("has no name", error))?;
    let (url, schema) =
        job.database.postgres().ok_or_else(|| LabError::usage("commits are cut on Postgres"))?;
    let mut options = PostgresOptions::parse(&url).map_err(|error| refused("has no database", error))?;
    options = options.with_schema(SchemaName::new(&schema).map_err(|error| refused("has no schema", error))?);
    options.commit_timeout = COMMIT_WAIT;
    options.abandon_timeout = COMMIT_WAIT;
    options.idle_in_transaction_timeout = IDLE_MAX;
    let store = PostgresStore::new(options).map_err(|error| refused("has no store", error))?;
    let identity = Identity::Field(Pointer::parse("/event_id").map_err(|error| refused("has no id", error))?);
    let builder =
        Consumer::builder(name.clone()).source(FileSource::new(FileOptions::new(file, name)), identity);
    let builder = builder.store(store);
    let consumer = if job.declared {
        let specs = [
            EffectSpec::new("UPDATE accounts SET balance = balance + :amount WHERE id = :account_id"),
            EffectSpec::new(
                "INSERT INTO ledger (event_id, account_id, amount) VALUES (:message_id, :account_id, :amount)",
            ),
        ];
        builder.batch_handler(SqlEffects::compile(&specs).map_err(|error| refused("has no effects", error))?)
    } else {
        builder.handler_fn(credit)
    };
    let options =
        ConsumerOptions { batch_max: job.batch, batch_wait: Duration::ZERO, ..ConsumerOptions::default() };
    let report = quietly(consumer.options(options)).await?;
    report.map(drop).map_err(|error| refused("stopped", error))
}

/// Runs a consumer on a thread of its own that logs nothing: each of thousands of cuts would be a warning.
/// It stops when nobody waits for it any more.
async fn quietly(consumer: Consumer<PostgresStore>) -> Result<std::result::Result<Report, RunError>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| refused("has no runtime", error))?;
    let (mut answer, result) = tokio::sync::oneshot::channel();
    let run = move || {
        tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
            let report = runtime.block_on(consumer.run_local(answer.closed()));
            // The caller may be gone: then nobody waits for the answer.
            drop(answer.send(report));
        });
    };
    let thread = std::thread::Builder::new().name("subject".to_owned()).spawn(run);
    thread.map_err(|error| refused("has no thread", error))?;
    result.await.map_err(|error| refused("ended without an answer", error))
}

async fn credit(tx: &mut Tx, message: &Message) -> std::result::Result<(), HandlerError> {
    let credit: Credit = serde_json::from_slice(message.value().unwrap_or_default())?;
    tx.execute(UPDATE, &[&credit.amount, &credit.account]).await?;
    tx.execute(INSERT, &[&credit.id, &credit.account, &credit.amount]).await?;
    Ok(())
}

/// Database, then offset, no inbox: a credit whose transaction did not answer is done again, as a
/// redelivery would do it.
pub(super) async fn without_inbox(job: Job, credits: Vec<Credit>) -> Result<()> {
    let (url, _) = job.database.postgres().ok_or_else(|| LabError::usage("commits are cut on Postgres"))?;
    let mut client = None;
    for chunk in credits.chunks(job.batch.max(1)) {
        loop {
            let connected = match client.take() {
                Some(connected) => Ok(connected),
                None => connect(&url).await,
            };
            if let Ok(mut connected) = connected
                && let Ok(Ok(())) = tokio::time::timeout(IDLE_MAX, apply(&mut connected, chunk)).await
            {
                client = Some(connected);
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    Ok(())
}

async fn connect(url: &str) -> std::result::Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Its error is the error of the next question.
    drop(tokio::spawn(connection));
    let idle_ms = IDLE_MAX.as_millis();
    client.batch_execute(&format!("SET idle_in_transaction_session_timeout = {idle_ms}")).await?;
    Ok(client)
}

async fn apply(client: &mut Client, credits: &[Credit]) -> std::result::Result<(), tokio_postgres::Error> {
    let tx = client.transaction().await?;
    for credit in credits {
        tx.execute(UPDATE, &[&credit.amount, &credit.account]).await?;
        tx.execute(INSERT, &[&credit.id, &credit.account, &credit.amount]).await?;
    }
    tx.commit().await
}

/// Writes credits as the lines our file source reads.
pub(super) fn write_lines(path: &Path, credits: &[Credit]) -> Result<()> {
    let mut text = String::new();
    for credit in credits {
        let (id, account, amount) = (&credit.id, credit.account, credit.amount);
        let line = serde_json::json!({
            "event_id": id, "account_id": account, "amount": amount,
            // What the plain handler reads.
            "id": id, "account": account,
        });
        text.push_str(&line.to_string());
        text.push('\n');
    }
    std::fs::write(path, text).map_err(|error| LabError::file("write", path, error))
}
