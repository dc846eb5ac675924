//! Level 0 on SQLite: claim a message id inside the transaction you already have.
//!
//! `level0_sqlite DATABASE EVENT_ID AMOUNT` credits account 1, once an event.
#![allow(clippy::print_stdout, reason = "an example that tells what it did")]

use handstamp::{Claim, MessageId, sqlite};
use rusqlite::{Connection, TransactionBehavior};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(event_id), Some(amount)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: level0_sqlite DATABASE EVENT_ID AMOUNT".into());
    };
    let amount: i64 = amount.parse()?;

    let mut connection = Connection::open(path)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
         INSERT INTO accounts VALUES (1, 0) ON CONFLICT DO NOTHING;",
    )?;
    sqlite::migrate(&connection)?;
    let wallet = sqlite::ConsumerName::register(&connection, "wallet")?;

    let mut tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    match sqlite::claim(&mut tx, &wallet, &MessageId::try_from(event_id.as_str())?)? {
        Claim::First => {
            tx.execute("UPDATE accounts SET balance = balance + ?1 WHERE id = 1", [amount])?;
            println!("applied {event_id}");
        }
        _ => println!("skipped duplicate {event_id}"),
    }
    tx.commit()?;
    // Only now tell the broker that the message is done.

    let balance: i64 =
        connection.query_row("SELECT balance FROM accounts WHERE id = 1", [], |row| row.get(0))?;
    println!("balance {balance}");
    Ok(())
}
