//! What start records cost: nearly no WAL, no page beyond the first, nothing that a crash of the server keeps. On
//! a server of the test's own, because every byte of WAL counts.

use crate::claims::{quiet, wal_position};
use crate::harness::{Server, request};
use crate::private::PrivateServer;
use crate::starts::{alone, lane, many, starter};
use handstamp_core::{ConsumerKey, StartStore, Store, TakenOver};
use handstamp_stores::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::Client;

async fn number(admin: &Client, sql: &str) -> i64 {
    admin.query_one(&format!("SELECT ({sql})::int8"), &[]).await.expect(sql).get(0)
}

/// WAL of so many transactions of one new message each.
async fn wal_of(store: &PostgresStore, key: &ConsumerKey, admin: &Client, round: &str, starts: bool) -> i64 {
    let before = wal_position(admin).await;
    for n in 0..1_000_i64 {
        let text = format!("{round}{n:04}");
        let message = [request(&text, None)];
        let (tx, _) = match starts {
            true => store.start_and_begin(key, &message, &alone(1, "credits/0", &text)).await.unwrap(),
            false => store.begin(key, &message).await.unwrap(),
        };
        store.rollback(tx).await.unwrap();
    }
    wal_position(admin).await - before
}

async fn starts_write_next_to_no_wal(server: Server) {
    let (_private, admin, store, key) = quiet(server).await;
    wal_of(&store, &key, &admin, "w", true).await;
    let (without, with) =
        (wal_of(&store, &key, &admin, "a", false).await, wal_of(&store, &key, &admin, "b", true).await);
    let bytes = (with - without) / 1_000;
    println!("{server:?}: {bytes} bytes of WAL a start record");
    // The commit record of a transaction, and no more.
    assert!(bytes < 64, "{bytes}: {without} without, {with} with");
}

/// Ten thousand in one lane: the table stays where it is, whether anybody vacuums or not.
async fn starts_stay_within_their_page(server: Server) {
    let (_private, admin, store, key) = quiet(server).await;
    for n in 0..10_000_i64 {
        let (tx, _) = store.start_and_begin(&key, &[], &many(1, "credits/0", n, n + 499)).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let size = number(&admin, "SELECT pg_relation_size('handstamp.starts')").await;
    let index = number(&admin, "SELECT pg_relation_size('handstamp.starts_pkey')").await;
    assert_eq!((size, index), (8192, 2 * 8192), "autovacuum is off");
    let flushed = "SELECT 1 FROM (SELECT pg_stat_force_next_flush()) AS flushed";
    let (tx, _) = store.begin(&key, &[]).await.unwrap();
    tx.batch_execute(flushed).await.unwrap();
    store.commit(tx).await.unwrap();
    let stat = |column: &str| {
        format!("SELECT {column} FROM pg_stat_all_tables WHERE relid = 'handstamp.starts'::regclass")
    };
    let (all, hot) = (number(&admin, &stat("n_tup_upd")).await, number(&admin, &stat("n_tup_hot_upd")).await);
    assert!(all >= 9_000 && hot == all, "{hot} of {all} within their page");
}

/// A power cut takes start records along, and no crash that was counted.
async fn a_crash_of_the_server_forgets_starts_and_keeps_crashes(server: Server) {
    let (private, admin, store, key) = quiet(server).await;
    let (tx, _) = store.start_and_begin(&key, &[], &alone(1, "l", "m")).await.unwrap();
    store.rollback(tx).await.unwrap();
    let seen = store.take_over(&key, &starter(2), &[lane("l")]).await.unwrap();
    assert_eq!((seen.orphans.len(), seen.crashes.len()), (1, 1));
    drop((admin, store));
    private.crash_and_start();
    let (store, admin) = again(&private).await;
    assert_eq!(number(&admin, "SELECT count(*) FROM handstamp.crashes").await, 1);
    let seen = store.take_over(&key, &starter(2), &[lane("l")]).await.unwrap();
    assert_eq!(seen, TakenOver::default());
    let (tx, _) = store.start_and_begin(&key, &[], &alone(3, "l", "m")).await.unwrap();
    store.commit(tx).await.unwrap();
    let seen = store.take_over(&key, &starter(4), &[lane("l")]).await.unwrap();
    assert_eq!((seen.orphans.len(), seen.crashes.len()), (1, 2), "counting goes on");
}

async fn again(private: &PrivateServer) -> (PostgresStore, Client) {
    let store = PostgresStore::new(PostgresOptions::parse(&private.url).unwrap()).unwrap();
    (store, private.admin().await)
}

#[tokio::test]
async fn starts_write_next_to_no_wal_on_15() {
    starts_write_next_to_no_wal(Server::V15).await;
}

#[tokio::test]
async fn starts_write_next_to_no_wal_on_18() {
    starts_write_next_to_no_wal(Server::V18).await;
}

#[tokio::test]
async fn starts_stay_within_their_page_on_15() {
    starts_stay_within_their_page(Server::V15).await;
}

#[tokio::test]
async fn starts_stay_within_their_page_on_18() {
    starts_stay_within_their_page(Server::V18).await;
}

#[tokio::test]
async fn a_crash_of_the_server_forgets_starts_and_keeps_crashes_on_15() {
    a_crash_of_the_server_forgets_starts_and_keeps_crashes(Server::V15).await;
}

#[tokio::test]
async fn a_crash_of_the_server_forgets_starts_and_keeps_crashes_on_18() {
    a_crash_of_the_server_forgets_starts_and_keeps_crashes(Server::V18).await;
}
