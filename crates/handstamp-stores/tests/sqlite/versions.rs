//! Marks of versions in a file: two engines with the same keys, and what `mark` reads.

use crate::support::{beside, number, open, registered};
use handstamp_core::json::Pointer;
use handstamp_core::version_store::VersionStore;
use handstamp_core::{
    Consumer, ConsumerName, ConsumerOptions, Counts, Identity, Message, Store, Version, VersionGuard,
    VersionKey,
};
use handstamp_stores::sqlite::Tx;
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use std::collections::BTreeMap;
use tempfile::TempDir;

const COUNT: i64 = 600;

/// Every version of one key, in an order that no two topics share.
fn topic(step: i64) -> LogBroker {
    let broker = LogBroker::new("states", 1);
    for n in 0..COUNT {
        let seq = n * step % COUNT;
        broker.publish(0, Payload::value(format!(r#"{{"id":"{step}-{seq}","of":1,"seq":{seq}}}"#))).unwrap();
    }
    broker
}

/// An engine on a thread of its own, with its own connection.
async fn engine(folder: &TempDir, step: i64, inbox: bool) -> Counts {
    let guard = VersionGuard { version: Pointer::member("seq"), key: Some(Pointer::member("of")) };
    let options = ConsumerOptions {
        batch_max: 10,
        version: Some(guard),
        inbox,
        messages_max: Some(u64::try_from(COUNT).unwrap()),
        ..ConsumerOptions::default()
    };
    let consumer = Consumer::builder(ConsumerName::new("states").unwrap())
        .source(topic(step).source("group"), Identity::Field(Pointer::member("id")))
        .store(open(folder).await)
        .handler_fn(async |tx: &mut Tx, message: &Message| {
            let body = std::str::from_utf8(message.value().unwrap())?;
            tx.execute("INSERT INTO ledger (event_id, amount) VALUES ('x', ?1 ->> '$.seq')", [body])?;
            Ok(())
        })
        .options(options);
    consumer.run(std::future::pending()).await.unwrap().counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_engines_with_the_same_key_never_go_back() {
    for inbox in [true, false] {
        let folder = TempDir::new().unwrap();
        let (one, two) = tokio::join!(engine(&folder, 7, inbox), engine(&folder, 599, inbox));
        for counts in [one, two] {
            assert_eq!(counts.applied + counts.stale, counts.received, "{counts:?}");
            assert_eq!((counts.attempts_failed, counts.dead_letter_rows), (0, 0), "{counts:?}");
        }
        let eyes = beside(&folder);
        let back =
            "SELECT count(*) FROM (SELECT amount, lag(amount) OVER (ORDER BY rowid) AS before FROM ledger)
                    WHERE amount <= before";
        assert_eq!(number(&eyes, back), 0, "none older behind a newer one");
        assert_eq!(number(&eyes, "SELECT max(amount) FROM ledger"), COUNT - 1);
        let applied = u64::try_from(number(&eyes, "SELECT count(*) FROM ledger")).unwrap();
        assert_eq!(applied, one.applied + two.applied);
        assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_versions"), 1);
        assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_inbox") > 0, inbox);
    }
}

#[tokio::test]
async fn a_mark_can_be_read() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let (key, version) = (VersionKey([1; 16]), Version::parse("5").unwrap());
    let (mut tx, _) = store.begin(&consumer, &[]).await.unwrap();
    store.raise_marks(&mut tx, &consumer, &BTreeMap::from([(key, version.clone())])).await.unwrap();
    assert_eq!(store.mark(&consumer.name, &key).await.unwrap(), None, "not before the commit");
    store.commit(tx).await.unwrap();
    assert_eq!(store.mark(&consumer.name, &key).await.unwrap(), Some(version));
    let other = ConsumerName::new("other").unwrap();
    assert_eq!(store.mark(&other, &key).await.unwrap(), None);
}
