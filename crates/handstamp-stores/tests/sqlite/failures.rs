//! Dead letters on SQLite: kept byte for byte in the deciding transaction, and read back.

use crate::support::{beside, id, letter, number, open, registered, requests};
use bytes::Bytes;
use handstamp_core::{
    Claim, ConsumerName, DeadLetter, FailureClass, Header, Headers, InboxState, Origin, Reason, Recorded,
    Store, Timestamp, Truncation,
};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::SqliteStore;
use tempfile::TempDir;

async fn keep(store: &SqliteStore, ids: &[&str], letters: &[DeadLetter]) -> Vec<Recorded> {
    let consumer = registered(store, "wallet").await;
    let (mut tx, _) = store.begin(&consumer, &requests(ids)).await.unwrap();
    let recorded = store.record(&mut tx, &consumer, letters).await.unwrap();
    store.commit(tx).await.unwrap();
    recorded
}

fn wallet() -> ConsumerName {
    ConsumerName::new("wallet").unwrap()
}

#[tokio::test]
async fn every_byte_comes_back() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let all: Vec<u8> = (0..=255).collect();
    let mut hostile = letter(Some(b"\xff\0id"), FailureClass::Sql);
    hostile.record.key = Some(Bytes::from(all.clone()));
    hostile.record.value = Some(Bytes::from(all.clone()));
    hostile.record.headers = Headers::new(vec![
        Header::new("a", None),
        Header::new("a", Some(Bytes::new())),
        Header::new(all, Some(Bytes::from_static(b"\xff"))),
    ]);
    hostile.record.origin =
        Origin { topic: "töpic".into(), partition: i32::MAX, offset: i64::MAX, line: Some(9) };
    hostile.record.timestamp = Some(Timestamp(-5));
    hostile.code = Some("2067".into());
    hostile.reason = Reason::new("a\0b\n'\u{1F600}");
    hostile.truncation = Some(Truncation { full_bytes: 9_999_999, blake3: [7; 32] });
    hostile.attempts = u32::MAX;
    let mut null = letter(None, FailureClass::Identity);
    null.record.value = None;
    let mut empty = letter(None, FailureClass::Identity);
    empty.record.value = Some(Bytes::new());
    empty.record.key = Some(Bytes::new());
    let letters = [hostile, null, empty];
    assert_eq!(keep(&store, &[], &letters).await, [Recorded::New; 3], "null and empty are two letters");
    for kept in &letters {
        let key = DeadLetterKey(kept.dedup());
        let row = store.dead_letter(&wallet(), key).await.unwrap().unwrap();
        assert_eq!((row.consumer, row.key, &row.letter), (wallet(), key, kept));
    }
    assert_eq!(store.dead_letter(&wallet(), DeadLetterKey([0; 16])).await.unwrap(), None);
    let other = ConsumerName::new("other").unwrap();
    assert_eq!(store.dead_letter(&other, DeadLetterKey(letters[0].dedup())).await.unwrap(), None);
}

#[tokio::test]
async fn a_redelivered_bad_message_meets_its_own_row() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let bad = letter(None, FailureClass::Identity);
    let mut later = bad.clone();
    later.failed_at = Timestamp(99);
    let mut elsewhere = bad.clone();
    elsewhere.record.origin.offset += 1;
    assert_eq!(keep(&store, &[], &[bad.clone(), later.clone()]).await, [Recorded::New, Recorded::Known]);
    assert_eq!(keep(&store, &[], &[later, elsewhere]).await, [Recorded::Known, Recorded::New]);
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_dead_letters"), 2);
    let kept = store.dead_letter(&wallet(), DeadLetterKey(bad.dedup())).await.unwrap().unwrap();
    assert_eq!(kept.letter.failed_at, Timestamp(2), "the first one stays");
}

#[tokio::test]
async fn the_inbox_says_dead_only_for_what_this_transaction_claimed() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    keep(&store, &["applied"], &[]).await;
    let letters = [
        letter(Some(b"bad"), FailureClass::Failed),
        letter(Some(b"applied"), FailureClass::IdReused),
        letter(Some(b"applied"), FailureClass::Failed),
    ];
    keep(&store, &["bad", "applied"], &letters).await;
    for (name, state) in [("bad", InboxState::Dead), ("applied", InboxState::Applied)] {
        let row = store.inbox_row(&wallet(), &id(name)).await.unwrap().unwrap();
        assert_eq!((row.state, row.digest, row.id), (state, Some(1), id(name)), "{name}");
    }
    assert_eq!(store.inbox_row(&wallet(), &id("unknown")).await.unwrap(), None);
    let consumer = registered(&store, "wallet").await;
    let (tx, claims) = store.begin(&consumer, &requests(["bad"])).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Dead, .. }), "it is not tried again");
    store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_rollback_takes_the_dead_letter_along() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let (mut tx, _) = store.begin(&consumer, &requests(["bad"])).await.unwrap();
    store.record(&mut tx, &consumer, &[letter(Some(b"bad"), FailureClass::Sql)]).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_dead_letters"), 0);
    assert_eq!(store.inbox_row(&wallet(), &id("bad")).await.unwrap(), None);
}

#[tokio::test]
async fn pages_hold_every_letter_once_in_order() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let letters: Vec<DeadLetter> = (0..25)
        .map(|n: u8| {
            let class = if n.is_multiple_of(2) { FailureClass::Sql } else { FailureClass::Binding };
            let mut letter = letter(Some(&[b'i', n]), class);
            // Several at the same time, and times below zero.
            letter.failed_at = Timestamp(i64::from(n / 7) - 3);
            let topic = ["Z", "a", "ä"][usize::from(n % 3)].into();
            let (partition, offset) = (i32::from(n % 2), i64::from(99 - n));
            letter.record.origin = Origin { topic, partition, offset, line: None };
            letter
        })
        .collect();
    keep(&store, &[], &letters).await;
    for class in [None, Some(FailureClass::Sql)] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = store.dead_letters(&wallet(), class, after, 4).await.unwrap();
            assert!(page.len() <= 4);
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            seen.extend(page.into_iter().map(|row| {
                let origin = (row.origin.topic.to_string(), row.origin.partition, row.origin.offset);
                ((row.failed_at, origin), row.key, row.class, row.value_bytes)
            }));
        }
        let wanted = letters.iter().filter(|letter| class.is_none_or(|class| class == letter.class)).count();
        assert_eq!(seen.len(), wanted);
        assert!(seen.is_sorted_by(|a, b| (&a.0, a.1) < (&b.0, b.1)));
        assert!(seen.iter().all(|row| row.3 == Some(4) && class.is_none_or(|class| class == row.2)));
    }
}

#[tokio::test]
async fn a_state_of_a_newer_program_is_refused_not_guessed() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    keep(&store, &["a"], &[]).await;
    beside(&folder).execute("UPDATE handstamp_inbox SET state = 'q'", []).unwrap();
    let consumer = registered(&store, "wallet").await;
    let error = store.begin(&consumer, &requests(["a"])).await.unwrap_err();
    assert_eq!(error.kind, handstamp_core::StoreErrorKind::NotMigrated, "{error}");
}
