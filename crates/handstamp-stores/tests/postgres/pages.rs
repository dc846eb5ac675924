//! Pages of dead letters.

use crate::harness::{TestDatabase, letter, on_each_server};
use handstamp_core::{FailureClass, Origin, Store, Timestamp};

on_each_server!(pages_hold_every_letter_once_in_the_order_of_its_source,);

async fn pages_hold_every_letter_once_in_the_order_of_its_source(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    // Topics that the languages of the world sort in another order than their bytes.
    let topics = ["Z", "a", "a-b", "ab", "ä"];
    let letters: Vec<_> = (0..60_i32)
        .map(|n| {
            let mut letter = letter(Some(&format!("{n}")), FailureClass::Sql, Some(b"{}"));
            let topic = topics[usize::try_from(n % 5).unwrap()];
            letter.record.origin =
                Origin { topic: topic.into(), partition: n % 3, offset: i64::from(99 - n), line: None };
            letter.failed_at = Timestamp(i64::from(n % 2) - 1);
            letter
        })
        .collect();
    let (mut tx, _) = store.begin(&key, &[]).await.unwrap();
    store.record(&mut tx, &key, &letters).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut wanted: Vec<_> = letters
        .iter()
        .map(|letter| {
            let origin = &letter.record.origin;
            (letter.failed_at, origin.topic.to_string(), origin.partition, origin.offset)
        })
        .collect();
    wanted.sort();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.dead_letters(&key.name, None, after, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.cursor());
        seen.extend(page.into_iter().map(|row| {
            (row.failed_at, row.origin.topic.to_string(), row.origin.partition, row.origin.offset)
        }));
    }
    assert_eq!(seen, wanted);
}
