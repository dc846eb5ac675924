//! Level 1 without a server: a file of JSON lines, a handler in Rust, a SQLite file.
//!
//! `level1_file FILE DATABASE` credits accounts by lines such as
//! `{"id":"evt-1","account_id":1,"amount":100}`.
#![allow(clippy::print_stdout, reason = "an example that tells what it did")]

use handstamp::file::{FileOptions, FileSource};
use handstamp::json::Pointer;
use handstamp::sqlite::{SqliteOptions, SqliteStore, Tx};
use handstamp::{Consumer, ConsumerName, HandlerError, Identity, Message};
use std::error::Error;
use std::path::Path;

/// Runs inside the transaction that also holds the claim. `?` means: try again, then dead letter.
async fn credit(tx: &mut Tx, message: &Message) -> Result<(), HandlerError> {
    let body: serde_json::Value = serde_json::from_slice(message.value().unwrap_or_default())?;
    let (Some(account), Some(amount)) = (body["account_id"].as_i64(), body["amount"].as_i64()) else {
        return Err(HandlerError::reject("account_id and amount must be whole numbers"));
    };
    tx.execute("INSERT INTO accounts VALUES (?1, 0) ON CONFLICT DO NOTHING", [account])?;
    tx.execute("UPDATE accounts SET balance = balance + ?1 WHERE id = ?2", [amount, account])?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(database)) = (arguments.next(), arguments.next()) else {
        return Err("usage: level1_file FILE DATABASE".into());
    };
    let store = SqliteStore::open(SqliteOptions::new(&database)).await?;
    rusqlite::Connection::open(&database)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
    )?;

    let name = ConsumerName::new("wallet")?;
    let state_dir = Path::new(&database).parent().unwrap_or(Path::new("."));
    let source = FileSource::new(FileOptions::new(&file, name.clone()).with_state_dir(state_dir));
    let report = Consumer::builder(name)
        .source(source, Identity::Field(Pointer::parse("/id")?))
        .store(store)
        .handler_fn(credit)
        .run(std::future::pending())
        .await?;

    let counts = report.counts;
    println!(
        "applied {}, duplicates {}, dead letters {}",
        counts.applied, counts.duplicate, counts.dead_lettered
    );
    Ok(())
}
