//! Marks of versions on real servers: two engines with the same keys, what a statement reads, and how marks lie.

use crate::harness::{TestDatabase, on_each_server};
use handstamp_core::json::Pointer;
use handstamp_core::version_store::VersionStore;
use handstamp_core::{
    Consumer, ConsumerKey, ConsumerName, ConsumerOptions, Counts, Identity, Message, Store, Version,
    VersionGuard, VersionKey,
};
use handstamp_stores::postgres::{PostgresStore, Tx};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use std::collections::BTreeMap;

on_each_server! {
    two_engines_with_the_same_keys_never_go_back,
    marks_are_overwritten_in_place,
    a_mark_can_be_read,
}

const KEYS: i64 = 5;
const VERSIONS: i64 = 400;

fn guard() -> VersionGuard {
    VersionGuard { version: Pointer::member("seq"), key: Some(Pointer::member("of")) }
}

/// The n-th version that an engine (0 or 1) gets of a key: rising but for neighbours out of order, now ahead of the
/// other engine's and now behind.
fn version_of(n: i64, engine: i64) -> i64 {
    2 * (n ^ 5) + engine + 100 * ((n / 40 + engine) % 2)
}

fn topic(engine: i64) -> LogBroker {
    let broker = LogBroker::new("states", 2);
    for n in 0..KEYS * VERSIONS {
        let (of, seq) = (n % KEYS, version_of(n / KEYS, engine));
        let body = format!(r#"{{"id":"{engine}-{n}","of":{of},"seq":{seq}}}"#);
        broker.publish(usize::try_from(n / KEYS % 2).unwrap(), Payload::value(body)).unwrap();
    }
    broker
}

async fn engine(database: &TestDatabase, number: i64, inbox: bool) -> Counts {
    let options = ConsumerOptions {
        batch_max: 20,
        version: Some(guard()),
        inbox,
        messages_max: Some(u64::try_from(KEYS * VERSIONS).unwrap()),
        ..ConsumerOptions::default()
    };
    let consumer = Consumer::builder(ConsumerName::new("states").unwrap())
        .source(topic(number).source("group"), Identity::Field(Pointer::member("id")))
        .store(database.store())
        .handler_fn(async |tx: &mut Tx, message: &Message| {
            let body = std::str::from_utf8(message.value().unwrap())?;
            // The number of the row says who had the key first: it is drawn while the mark is held.
            tx.execute(
                "INSERT INTO applied (of, seq) SELECT (b ->> 'of')::int8, (b ->> 'seq')::int8 FROM (SELECT $1::text::jsonb) AS t (b)",
                &[&body],
            )
            .await?;
            Ok(())
        })
        .options(options);
    Box::pin(consumer.run_local(std::future::pending())).await.unwrap().counts
}

async fn two_engines_with_the_same_keys_never_go_back(database: TestDatabase) {
    for inbox in [true, false] {
        let admin = database.admin().await;
        let tables = format!(
            "DROP TABLE IF EXISTS applied; DELETE FROM handstamp.versions;
             CREATE TABLE applied (n int8 GENERATED ALWAYS AS IDENTITY, of int8, seq int8);
             GRANT SELECT, INSERT ON applied TO {}",
            database.role
        );
        admin.batch_execute(&tables).await.unwrap();
        let local = tokio::task::LocalSet::new();
        let (one, two) = local
            .run_until(async { tokio::join!(engine(&database, 0, inbox), engine(&database, 1, inbox)) })
            .await;
        for counts in [one, two] {
            assert_eq!(counts.applied + counts.stale, counts.received, "{counts:?}");
            assert!(counts.applied > 0 && counts.stale > 0, "newer ones and older ones: {counts:?}");
            assert_eq!((counts.attempts_failed, counts.dead_letter_rows), (0, 0), "{counts:?}");
        }
        let all = (0..VERSIONS).flat_map(|n| [version_of(n, 0), version_of(n, 1)]);
        let last_version = all.max().unwrap();
        let row = admin
            .query_one(
                "SELECT count(*), count(*) FILTER (WHERE seq <= before), count(DISTINCT of) FILTER (WHERE seq = $1)
                 FROM (SELECT of, seq, lag(seq) OVER (PARTITION BY of ORDER BY n) AS before FROM applied) AS a",
                &[&last_version],
            )
            .await
            .unwrap();
        let (all, back, last): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(u64::try_from(all).unwrap(), one.applied + two.applied);
        assert_eq!((back, last), (0, KEYS), "none older behind a newer one, and the last of each");
        let marks: i64 =
            admin.query_one("SELECT count(*) FROM handstamp.versions", &[]).await.unwrap().get(0);
        assert_eq!(marks, KEYS);
    }
}

fn key(number: u8) -> VersionKey {
    VersionKey([number; 16])
}

fn version(number: u32) -> Version {
    Version::parse(&number.to_string()).unwrap()
}

/// Twenty marks, each raised so many times in a transaction of its own.
async fn raise(store: &PostgresStore, consumer: &ConsumerKey, first: u32, times: u32) {
    for round in first..first + times {
        let (mut tx, _) = store.begin(consumer, &[]).await.unwrap();
        let all: BTreeMap<_, _> = (0..20).map(|of| (key(of), version(round))).collect();
        store.raise_marks(&mut tx, consumer, &all).await.unwrap();
        store.commit(tx).await.unwrap();
    }
}

/// Bytes of the table of marks and of its index.
async fn room(database: &TestDatabase) -> (i64, i64) {
    let sql = "SELECT pg_relation_size('handstamp.versions'), pg_relation_size('handstamp.versions_pkey')";
    let row = database.admin().await.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Marks that are raised hundreds of times take no more room than before: each new row lies in the page of the old
/// one, and the index is not written. A transaction that is open anywhere on the server keeps old rows for as long as
/// it takes, and then the table grows; so one stretch without growth is asked for, of many.
async fn marks_are_overwritten_in_place(database: TestDatabase) {
    const TIMES: u32 = 300;
    let (store, consumer) = database.wallet().await;
    raise(&store, &consumer, 0, 1).await;
    let admin = database.admin().await;
    let quiet = "ALTER TABLE handstamp.versions SET (autovacuum_enabled = false)";
    admin.batch_execute(quiet).await.unwrap();
    let mut grown = Vec::new();
    for stretch in 0..40 {
        let before = room(&database).await;
        raise(&store, &consumer, 1 + stretch * TIMES, TIMES).await;
        let after = room(&database).await;
        if before == after {
            println!("{:?}: nothing grew in stretch {stretch}: {after:?} bytes", database.server);
            return;
        }
        grown.push((after.0 - before.0, after.1 - before.1));
    }
    panic!("table and index grew each time 20 marks were raised {TIMES} times, by {grown:?} bytes");
}

async fn a_mark_can_be_read(database: TestDatabase) {
    let (store, consumer) = database.wallet().await;
    assert_eq!(store.mark(&consumer.name, &key(1)).await.unwrap(), None);
    let (mut tx, _) = store.begin(&consumer, &[]).await.unwrap();
    store.raise_marks(&mut tx, &consumer, &BTreeMap::from([(key(1), version(5))])).await.unwrap();
    assert_eq!(store.mark(&consumer.name, &key(1)).await.unwrap(), None, "not before the commit");
    store.commit(tx).await.unwrap();
    assert_eq!(store.mark(&consumer.name, &key(1)).await.unwrap(), Some(version(5)));
    assert_eq!(store.mark(&ConsumerName::new("other").unwrap(), &key(1)).await.unwrap(), None);
}
