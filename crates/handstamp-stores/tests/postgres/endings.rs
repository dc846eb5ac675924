//! What a handler can leave behind: rows nobody reads, in whatever way the transaction ends.

use crate::harness::{TestDatabase, on_each_server, request};
use handstamp_core::{Claim, Store};
use std::time::Duration;

on_each_server!(unread_rows_hang_no_end_and_hold_no_lock);

const ADD: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 7";

async fn unread_rows_hang_no_end_and_hold_no_lock(database: TestDatabase) {
    let mut options = database.options();
    options.rollback_timeout = Duration::from_millis(300);
    options.abandon_timeout = Duration::from_millis(300);
    let (store, key) = database.wallet_with(options).await;
    let admin = database.admin().await;
    for end in ["rollback", "abandon", "drop"] {
        let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
        assert_eq!(claims, [Claim::First], "{end}");
        tx.execute(ADD, &[]).await.unwrap();
        let none: [&str; 0] = [];
        let kept = tx.query_raw("SELECT repeat('x', 1000) FROM generate_series(1, 40000)", none).await;
        let kept = kept.unwrap();
        match end {
            "rollback" => drop(store.rollback(tx).await),
            "abandon" => store.abandon(tx).await,
            _ => drop(tx),
        }
        // The server needs a moment to see that its client is gone; nobody waits for the rows to be read.
        admin
            .batch_execute("SET lock_timeout = '20s'; UPDATE accounts SET balance = balance WHERE id = 7")
            .await
            .unwrap_or_else(|error| panic!("{end}: the lock is held: {error}"));
        assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, 0, "{end}");
        assert_eq!(database.number("SELECT sum(balance) FROM accounts").await, 0, "{end}");
        drop(kept);
    }
}
