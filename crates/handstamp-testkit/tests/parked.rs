//! What the store in memory offers to tests of the engine beyond what every store does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

use handstamp_core::parked::{Dedup, FailedAttempt, OrderKey, Park, ParkingStore, Resumed};
use handstamp_core::{
    ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, Fingerprint, InboxState, MessageId,
    Origin, Reason, Store, StoreErrorKind, Timestamp,
};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::{MemoryStore, StorePoint};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn wallet() -> ConsumerName {
    ConsumerName::new("wallet").unwrap()
}

fn message(id: &str) -> MessageId {
    MessageId::new(id.as_bytes().to_vec()).unwrap()
}

fn letter(id: &str) -> DeadLetter {
    let origin = Origin { topic: "credits".into(), partition: 0, offset: 7, line: None };
    let record = Payload::value(id.to_owned()).at(origin);
    DeadLetter {
        id: Some(message(id)),
        digest: record.digest(),
        record,
        truncation: None,
        class: FailureClass::Failed,
        code: None,
        reason: Reason::new("no"),
        attempts: 2,
        received_at: Timestamp(1),
        failed_at: Timestamp(2),
    }
}

fn failure() -> FailedAttempt {
    FailedAttempt {
        at: Timestamp(3),
        node: "host/1".into(),
        class: FailureClass::Failed,
        code: None,
        reason: Reason::new("again no"),
    }
}

async fn with_parked(ids: &[&str], wait: Duration) -> (MemoryStore, ConsumerKey, Vec<Dedup>) {
    let store = MemoryStore::new();
    let consumer = store.register(&wallet(), &Fingerprint("test".into()), false).await.unwrap();
    let requests: Vec<_> = ids.iter().map(|id| ClaimRequest { id: message(id), digest: None }).collect();
    let rows: Vec<_> =
        ids.iter().map(|id| Park { letter: letter(id), wait, order_key: Some(OrderKey([1; 16])) }).collect();
    let (mut tx, _) = store.begin(&consumer, &requests).await.unwrap();
    store.park(&mut tx, &consumer, &rows).await.unwrap();
    assert_eq!(tx.held().parked, ids.len());
    store.commit(tx).await.unwrap();
    (store, consumer, rows.iter().map(|row| row.letter.dedup()).collect())
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_not_locked_is_not_resumed() {
    let (store, consumer, keys) = with_parked(&["a", "b"], Duration::ZERO).await;
    let (mut tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    assert_eq!((rows.len(), tx.held().taken), (1, 1));
    for wrong in [keys[1], [9; 16]] {
        let error = store.resume(&mut tx, &consumer, &[(wrong, Resumed::Applied)]).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Config);
    }
    store.resume(&mut tx, &consumer, &[(keys[0], Resumed::Applied)]).await.unwrap();
    let twice = store.resume(&mut tx, &consumer, &[(keys[0], Resumed::Applied)]).await.unwrap_err();
    assert_eq!(twice.kind, StoreErrorKind::Config);
    let (mut tx, _) = store.begin(&consumer, &[]).await.unwrap();
    let error = store.resume(&mut tx, &consumer, &[(keys[1], Resumed::Applied)]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn faults_strike_at_their_points_and_waits_follow_the_clock() {
    let (store, consumer, keys) = with_parked(&["a"], HOUR).await;
    let at = |point| store.fail_next(point, StoreErrorKind::Conflict);
    at(StorePoint::TakeDue);
    assert_eq!(store.take_due(&consumer, 1).await.unwrap_err().kind, StoreErrorKind::Conflict);
    assert!(store.take_due(&consumer, 1).await.unwrap().is_none());
    assert_eq!(store.parked_status(&consumer).await.unwrap().due_in, Some(HOUR));
    tokio::time::advance(HOUR).await;
    let status = store.parked_status(&consumer).await.unwrap();
    assert_eq!((status.count, status.due_in, status.oldest), (1, Some(Duration::ZERO), Some(HOUR)));
    let (mut tx, rows) = store.take_due(&consumer, 1).await.unwrap().unwrap();
    assert_eq!(rows[0].parked_for, HOUR);
    for point in [StorePoint::Park, StorePoint::NoteAttempts, StorePoint::ParkedKeys, StorePoint::Resume] {
        at(point);
    }
    assert!(store.park(&mut tx, &consumer, &[]).await.is_err());
    assert!(store.note_attempts(&mut tx, &consumer, &[]).await.is_err());
    assert!(store.parked_keys(&mut tx, &consumer, &[]).await.is_err());
    assert!(store.resume(&mut tx, &consumer, &[]).await.is_err());
    store.rollback(tx).await.unwrap();
    for point in [StorePoint::TakeAgain, StorePoint::ParkedStatus] {
        at(point);
    }
    assert!(store.take_again(&consumer, &keys).await.is_err());
    assert!(store.parked_status(&consumer).await.is_err());
    assert_eq!(store.faults_left(), 0);
    store.set_away(true);
    assert_eq!(store.take_due(&consumer, 1).await.unwrap_err().kind, StoreErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_sent_back_or_given_up() {
    let (store, consumer, keys) = with_parked(&["a", "b", "c"], Duration::ZERO).await;
    for key in &keys[..2] {
        let (mut tx, _) = store.take_due(&consumer, 1).await.unwrap().unwrap();
        let dead = Resumed::Dead { failed: failure(), charged: true };
        store.resume(&mut tx, &consumer, &[(*key, dead)]).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    assert!(!store.redrive(&wallet(), &keys[2], None), "it is no dead letter");
    assert!(store.redrive(&wallet(), &keys[0], Some(OrderKey([1; 16]))));
    assert!(!store.redrive(&wallet(), &keys[0], None), "it is one no more");
    assert!(store.discard(&wallet(), &keys[1]));
    let state = |id| store.inbox_state(&wallet(), &message(id));
    assert_eq!((state("a"), state("b")), (Some(InboxState::Parked), Some(InboxState::Discarded)));
    assert!(store.dead_letters(&wallet()).is_empty());
    // Sent back, it is parked behind what is parked of its key; its history stays.
    let parked = store.parked(&wallet());
    let keys_parked: Vec<_> = parked.iter().map(|row| row.dedup).collect();
    assert_eq!(keys_parked, [keys[2], keys[0]]);
    assert_eq!((parked[1].letter.attempts, parked[1].letter.class), (0, FailureClass::Failed));
    assert_eq!(store.attempts(&wallet(), &keys[0]), [failure()]);
}
