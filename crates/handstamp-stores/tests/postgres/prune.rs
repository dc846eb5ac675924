//! How forgetting lies on real servers: what it reads, whom it waits for, and that nobody waits for it.

use crate::harness::{TestDatabase, fresh, id, name, on_each_server, request};
use handstamp_core::{Claim, ConsumerKey, Fingerprint, PruneStore, Store};
use handstamp_stores::postgres::PostgresStore;
use std::time::Duration;

on_each_server!(
    only_parts_with_something_old_are_read,
    a_row_that_somebody_holds_is_passed_over,
    whoever_claims_an_id_that_goes_waits_and_is_first,
    consumers_with_other_times_lie_in_the_same_parts,
    ids_that_are_taken_in_are_known,
);

const DAY: Duration = Duration::from_secs(86_400);

async fn claimed(store: &PostgresStore, key: &ConsumerKey, batch: u32, count: u32) {
    let (tx, claims) = store.begin(key, &fresh(batch, count)).await.unwrap();
    assert!(claims.iter().all(|claim| *claim == Claim::First));
    store.commit(tx).await.unwrap();
}

async fn aged(database: &TestDatabase, what: &str) {
    let sql = format!("UPDATE handstamp.inbox SET seen_at = seen_at - 864000 WHERE {what}");
    database.admin().await.batch_execute(&sql).await.unwrap();
}

/// Deletes what is old, step by step: what went, and in how many steps.
async fn pass(store: &PostgresStore, key: &ConsumerKey) -> (u64, u32) {
    let (mut went, mut from) = (0, None);
    for steps in 1..=1_000 {
        let step = store.prune_ids(key, DAY, 10_000, from.as_ref()).await.unwrap();
        went += step.deleted;
        from = step.next;
        if from.is_none() {
            return (went, steps);
        }
    }
    panic!("a pass never ended");
}

/// 150,000 rows lie in three parts; each is read once, and again only when its oldest row is old.
async fn only_parts_with_something_old_are_read(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    for batch in 0..30 {
        claimed(&store, &key, batch, 5_000).await;
    }
    let parts = "SELECT (pg_relation_size('handstamp.inbox') / 8192 - 1) / 512 + 1";
    let parts = u32::try_from(database.number(parts).await).unwrap();
    assert!(parts >= 2, "{parts}");
    assert_eq!(pass(&store, &key).await, (0, parts));
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox_parts").await, i64::from(parts));
    // Nothing can be old: nothing is read.
    assert_eq!(pass(&store, &key).await, (0, 1));
    let admin = database.admin().await;
    let reads =
        "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'inbox'";
    admin.batch_execute("SELECT pg_stat_reset()").await.unwrap();
    assert_eq!(pass(&store, &key).await, (0, 1));
    assert_eq!(database.number(reads).await, 0);
    // What is in the first part is old now, as it will be by and by, and what was seen of it too.
    aged(&database, "ctid < '(512,0)'").await;
    admin
        .batch_execute("UPDATE handstamp.inbox_parts SET oldest = oldest - 864000 WHERE part = 0")
        .await
        .unwrap();
    let old = database.number("SELECT count(*) FROM handstamp.inbox WHERE seen_at < (extract(epoch FROM now()) - 1577836800)::int4 - 86400").await;
    let (went, _) = pass(&store, &key).await;
    // Rows that were made older lie at the end of the table now; they are found when their part is looked at again.
    assert!(went <= u64::try_from(old).unwrap(), "{went} of {old}");
    admin.batch_execute("TRUNCATE handstamp.inbox_parts").await.unwrap();
    assert_eq!(went + pass(&store, &key).await.0, u64::try_from(old).unwrap());
}

async fn a_row_that_somebody_holds_is_passed_over(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    claimed(&store, &key, 0, 100).await;
    aged(&database, "true").await;
    let mut admin = database.admin().await;
    let tx = admin.transaction().await.unwrap();
    tx.batch_execute("SELECT FROM handstamp.inbox LIMIT 10 FOR UPDATE").await.unwrap();
    assert_eq!(pass(&store, &key).await.0, 90);
    tx.rollback().await.unwrap();
    assert_eq!(pass(&store, &key).await.0, 10);
}

async fn whoever_claims_an_id_that_goes_waits_and_is_first(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let asked = [request("m", None)];
    let (tx, _) = store.begin(&key, &asked).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut admin = database.admin().await;
    let deleting = admin.transaction().await.unwrap();
    deleting.batch_execute("DELETE FROM handstamp.inbox").await.unwrap();
    let racing = store.begin(&key, &asked);
    let ended = async {
        database.until_blocked(1).await;
        deleting.commit().await.unwrap();
    };
    let (begun, ()) = tokio::join!(racing, ended);
    let (tx, claims) = begun.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
}

async fn consumers_with_other_times_lie_in_the_same_parts(database: TestDatabase) {
    let (store, wallet) = database.wallet().await;
    let stock = store.register(&name("stock"), &Fingerprint("test".into()), false).await.unwrap();
    for batch in 0..4 {
        claimed(&store, if batch % 2 == 0 { &wallet } else { &stock }, batch, 500).await;
    }
    aged(&database, "true").await;
    assert_eq!(store.prunable(&wallet, DAY, 10_000).await.unwrap(), 1_000);
    assert_eq!(pass(&store, &wallet).await.0, 1_000);
    assert_eq!(store.prunable(&stock, DAY * 30, 10_000).await.unwrap(), 0);
    assert_eq!(pass(&store, &stock).await.0, 1_000);
}

async fn ids_that_are_taken_in_are_known(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    assert_eq!(pass(&store, &key).await.0, 0);
    let ids: Vec<_> = ["b", "a", "0193f5a0-7c3e-7b1a-8000-0123456789ab"].map(id).into();
    assert_eq!(store.import_ids(&key, &ids, None, true).await.unwrap(), 3);
    assert_eq!(store.import_ids(&key, &ids[..2], None, false).await.unwrap(), 2);
    assert_eq!(store.import_ids(&key, &ids, None, true).await.unwrap(), 1);
    let now = handstamp_core::clock::now();
    let old = handstamp_core::Timestamp(now.0 - 10 * 86_400_000);
    assert_eq!(store.import_ids(&key, &ids, Some(old), false).await.unwrap(), 1);
    let asked: Vec<_> =
        ["a", "b", "0193f5a0-7c3e-7b1a-8000-0123456789ab", "c"].map(|id| request(id, Some(7))).into();
    let (tx, claims) = store.begin(&key, &asked).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(claims[..3].iter().all(|claim| matches!(claim, Claim::Duplicate { .. })), "{claims:?}");
    assert_eq!(claims[3], Claim::First);
    // The one of an earlier time goes, though its part was looked at before.
    assert_eq!(pass(&store, &key).await.0, 1);
}
