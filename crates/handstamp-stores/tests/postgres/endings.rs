//! What can be left behind: rows nobody reads, in whatever way the transaction ends; a client that vanished.

use crate::harness::{TestDatabase, on_each_server, request};
use handstamp_core::{Claim, Store};
use std::time::Duration;

on_each_server!(
    unread_rows_hang_no_end_and_hold_no_lock,
    the_server_misses_a_vanished_client_within_a_minute
);

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

/// A backend in the middle of a flight is under no time limit of a transaction: only keep-alive probes tell it
/// that its client is gone, and the server's own come after two hours.
async fn the_server_misses_a_vanished_client_within_a_minute(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    // The second time on the same connection too.
    for _ in 0..2 {
        let (tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
        let sql = "SELECT current_setting('tcp_keepalives_' || name)::int8 FROM unnest(ARRAY['idle', 'interval', 'count']) AS name";
        let rows = tx.query(sql, &[]).await.unwrap();
        let of: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert!(of.iter().all(|value| *value > 0) && of[0] + of[1] * of[2] <= 60, "{of:?}");
        store.rollback(tx).await.unwrap();
    }
}
