//! Level 0 on Postgres: claim a message id inside the transaction you already have.
//!
//! `level0_postgres URL EVENT_ID AMOUNT` credits account 1, once an event. The URL has no TLS here, to
//! keep the example short; `tokio_postgres::connect` takes any TLS connector.
#![allow(clippy::print_stdout, reason = "an example that tells what it did")]

use handstamp::{Claim, MessageId, postgres};
use std::error::Error;
use tokio_postgres::NoTls;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(event_id), Some(amount)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: level0_postgres URL EVENT_ID AMOUNT".into());
    };
    let amount: i64 = amount.parse()?;

    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS accounts (id int8 PRIMARY KEY, balance int8 NOT NULL);
             INSERT INTO accounts VALUES (1, 0) ON CONFLICT DO NOTHING;",
        )
        .await?;
    postgres::migrate(&client).await?;
    let wallet = postgres::ConsumerName::register(&client, "wallet").await?;

    let tx = client.transaction().await?;
    match postgres::claim(&tx, &wallet, &MessageId::try_from(event_id.as_str())?).await? {
        Claim::First => {
            tx.execute("UPDATE accounts SET balance = balance + $1 WHERE id = 1", &[&amount]).await?;
            println!("applied {event_id}");
        }
        _ => println!("skipped duplicate {event_id}"),
    }
    tx.commit().await?;
    // Only now commit the offset, or ack the message.

    let balance: i64 = client.query_one("SELECT balance FROM accounts WHERE id = 1", &[]).await?.get(0);
    println!("balance {balance}");
    Ok(())
}
