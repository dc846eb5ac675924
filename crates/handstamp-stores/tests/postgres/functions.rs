//! Level 0 as functions in the database: what the guide prints, executed as it prints it.

use crate::harness::{TestDatabase, id, name, on_each_server};
use handstamp_core::{Claim, MessageId, PruneStore};
use handstamp_stores::postgres::{ConsumerName, claim};
use std::time::Duration;
use tokio_postgres::Client;

on_each_server!(
    the_guide_claims,
    both_ways_mean_the_same_id,
    what_cannot_be_claimed_says_why,
    a_racer_waits,
    rows_of_functions_can_be_forgotten,
);

/// The guide's blocks of SQL, in their order.
fn guide() -> Vec<String> {
    let text = include_str!("../../../../docs/guides/level-0.md");
    let blocks = text.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().trim().to_owned()).collect()
}

async fn claimed(client: &Client, consumer: &str, id: &str) -> bool {
    let claim = guide().into_iter().find(|sql| sql.contains("handstamp.claim")).unwrap();
    client.query_one(&claim, &[&consumer, &id]).await.unwrap().get(0)
}

async fn registered(database: &TestDatabase) -> Client {
    let client = database.client().await;
    let register = guide().into_iter().find(|sql| sql.contains("handstamp.register")).unwrap();
    for _ in 0..2 {
        client.batch_execute(&register).await.unwrap();
    }
    client
}

async fn the_guide_claims(database: TestDatabase) {
    let mut client = registered(&database).await;
    for (commits, first) in [(false, true), (true, true), (true, false)] {
        let tx = client.transaction().await.unwrap();
        let sql = guide().into_iter().find(|sql| sql.contains("handstamp.claim")).unwrap();
        let answer: bool = tx.query_one(&sql, &[&"wallet", &"m"]).await.unwrap().get(0);
        assert_eq!(answer, first);
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
    }
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox WHERE state = 'a'").await, 1);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.consumers").await, 1);
}

/// Whoever claims first, the other one is told so, for every kind of id.
async fn both_ways_mean_the_same_id(database: TestDatabase) {
    let mut client = registered(&database).await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let long = "x".repeat(1024);
    let ids = [
        "a",
        "fifteen-bytes-1",
        "sixteen-bytes-12",
        "0193f5a0-7c3e-7b1a-8000-0123456789ab",
        "0193F5A0-7C3E-7B1A-8000-0123456789AB",
        "0193f5a0-7c3e-7b1a-8000-0123456789ab\n",
        "0193f5a07c3e7b1a80000123456789ab",
        "g193f5a0-7c3e-7b1a-8000-0123456789ab",
        "Zählung-\u{1F4B6}-größer",
        " space around ",
        &long,
    ];
    for (at, text) in ids.into_iter().enumerate() {
        let by_function_first = at % 2 == 0;
        for first in [true, false] {
            if by_function_first == first {
                assert_eq!(claimed(&client, "wallet", text).await, first, "{text:?}");
                continue;
            }
            let tx = client.transaction().await.unwrap();
            let answer = claim(&tx, &consumer, &MessageId::try_from(text).unwrap()).await.unwrap();
            assert_eq!(answer == Claim::First, first, "{text:?}: {answer:?}");
            tx.commit().await.unwrap();
        }
        let row = database.store().inbox_row(&name("wallet"), &id(text)).await.unwrap();
        assert!(row.is_some(), "{text:?}");
    }
    let rows = i64::try_from(ids.len()).unwrap();
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, rows);
}

async fn what_cannot_be_claimed_says_why(database: TestDatabase) {
    let client = registered(&database).await;
    let long = "x".repeat(1025);
    for (consumer, id, code) in [
        (Some("stock"), Some("m"), "42704"),
        (None, Some("m"), "42704"),
        (Some("wallet"), None, "22023"),
        (Some("wallet"), Some(""), "22023"),
        (Some("wallet"), Some(" \t\n"), "22023"),
        (Some("wallet"), Some(long.as_str()), "22023"),
    ] {
        let error = client.query_one("SELECT handstamp.claim($1, $2)", &[&consumer, &id]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), code, "{consumer:?} {id:?}");
        assert!(error.as_db_error().unwrap().message().starts_with("handstamp: "), "{error}");
    }
    for bad in [None, Some(""), Some("a b"), Some("a\n"), Some("é")] {
        let error = client.execute("SELECT handstamp.register($1)", &[&bad]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "22023", "{bad:?}");
    }
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, 0);
}

async fn a_racer_waits(database: TestDatabase) {
    let mut one = registered(&database).await;
    let two = database.client().await;
    for commits in [true, false] {
        let id = format!("race-{commits}");
        let tx = one.transaction().await.unwrap();
        tx.query_one("SELECT handstamp.claim('wallet', $1)", &[&id]).await.unwrap();
        let racing = claimed(&two, "wallet", &id);
        let ended = async {
            database.until_blocked(1).await;
            match commits {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
        };
        let (first, ()) = tokio::join!(racing, ended);
        assert_eq!(first, !commits);
    }
}

async fn rows_of_functions_can_be_forgotten(database: TestDatabase) {
    let client = registered(&database).await;
    assert!(claimed(&client, "wallet", "m").await);
    database
        .admin()
        .await
        .batch_execute("UPDATE handstamp.inbox SET seen_at = seen_at - 864000")
        .await
        .unwrap();
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let day = Duration::from_secs(86_400);
    assert_eq!(database.store().prune_ids(consumer.key(), day, 10, None).await.unwrap().deleted, 1);
    assert!(claimed(&client, "wallet", "m").await);
}
