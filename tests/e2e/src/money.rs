//! The effect of a credit, on both stores: add to an account, write a line into the ledger.
//!
//! The ledger has no unique key on the id, so that it shows what ran twice.

use handstamp::{HandlerError, Message, postgres, sqlite};
use serde_json::Value;
use std::time::Duration;

pub const POSTGRES_SCHEMA: &str = "
    CREATE TABLE accounts (id int8 PRIMARY KEY, balance int8 NOT NULL DEFAULT 0);
    CREATE TABLE ledger (event_id text NOT NULL, account_id int8 NOT NULL, amount int8 NOT NULL);
    INSERT INTO accounts (id) SELECT generate_series(0, 999);";

pub const SQLITE_SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS ledger (event_id TEXT NOT NULL, account_id INTEGER NOT NULL, amount INTEGER NOT NULL);
    WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < 999)
    INSERT INTO accounts (id) SELECT id FROM n WHERE true ON CONFLICT DO NOTHING;";

/// One credit as JSON.
pub fn credit(event_id: &str, account_id: i64, amount: i64) -> String {
    format!(r#"{{"id":"{event_id}","account_id":{account_id},"amount":{amount}}}"#)
}

pub struct Credit {
    pub event_id: String,
    pub account_id: i64,
    pub amount: i64,
    /// The handler fails while this is set.
    pub fail: bool,
    /// How long the statement after the update takes, in seconds.
    pub sleep_s: f64,
}

impl Credit {
    pub fn read(message: &Message) -> Result<Self, HandlerError> {
        let body: Value = serde_json::from_slice(message.value().unwrap_or_default())?;
        let number =
            |name: &str| body[name].as_i64().ok_or_else(|| HandlerError::reject(format!("no {name}")));
        Ok(Self {
            event_id: message.id().to_string(),
            account_id: number("account_id")?,
            amount: number("amount")?,
            fail: body["fail"].as_bool().unwrap_or(false),
            sleep_s: body["sleep_s"].as_f64().unwrap_or(0.0),
        })
    }
}

/// Writes a credit through the transaction, after a pause inside it.
pub async fn apply_postgres(
    tx: &postgres::Tx,
    message: &Message,
    pause: Duration,
    forgive: bool,
) -> Result<(), HandlerError> {
    let credit = Credit::read(message)?;
    let pause_s = pause.as_secs_f64();
    if !pause.is_zero() {
        tx.execute("SELECT pg_sleep($1)", &[&pause_s]).await?;
    }
    let update = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
    if tx.execute(update, &[&credit.amount, &credit.account_id]).await? != 1 {
        return Err(HandlerError::reject(format!("no account {}", credit.account_id)));
    }
    if credit.sleep_s > 0.0 {
        tx.execute("SELECT pg_sleep($1)", &[&credit.sleep_s]).await?;
    }
    tx.execute(
        "INSERT INTO ledger (event_id, account_id, amount) VALUES ($1, $2, $3)",
        &[&credit.event_id, &credit.account_id, &credit.amount],
    )
    .await?;
    if credit.fail && !forgive { Err("the message asks to fail".into()) } else { Ok(()) }
}

/// The same on SQLite.
pub fn apply_sqlite(tx: &sqlite::Tx, message: &Message, forgive: bool) -> Result<(), HandlerError> {
    let credit = Credit::read(message)?;
    let update = "UPDATE accounts SET balance = balance + ?1 WHERE id = ?2";
    if tx.execute(update, (credit.amount, credit.account_id))? != 1 {
        return Err(HandlerError::reject(format!("no account {}", credit.account_id)));
    }
    let insert = "INSERT INTO ledger (event_id, account_id, amount) VALUES (?1, ?2, ?3)";
    tx.execute(insert, (&credit.event_id, credit.account_id, credit.amount))?;
    if credit.fail && !forgive { Err("the message asks to fail".into()) } else { Ok(()) }
}

/// What the database holds, whatever the consumers said.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Ledger lines.
    pub effects: i64,
    /// Distinct ids in the ledger.
    pub ids: i64,
    /// Sum of all balances.
    pub balance: i64,
    /// Sum of all ledger amounts.
    pub amounts: i64,
}

impl Verdict {
    pub fn doubled(&self) -> i64 {
        self.effects - self.ids
    }

    /// Every sent id once, balances equal to the ledger.
    #[track_caller]
    pub fn assert_once(&self, ids: i64, amount: i64) {
        assert_eq!(self, &Self { effects: ids, ids, balance: ids * amount, amounts: ids * amount });
    }
}

pub const VERDICT: &str = "SELECT (SELECT count(*) FROM ledger), (SELECT count(DISTINCT event_id) FROM ledger), \
    (SELECT CAST(sum(balance) AS bigint) FROM accounts), \
    (SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM ledger)";
