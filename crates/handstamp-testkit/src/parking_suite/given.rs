//! What the cases park.

use super::ParkingHarness;
use crate::store_suite::letters::dead_letter;
use crate::store_suite::{begin, claims_are, register};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, FailedAttempt, OrderKey, Park, ParkingStore, Resumed};
use handstamp_core::{ClaimRequest, ConsumerKey, DeadLetter, FailureClass, Reason, Recorded, Timestamp};
use std::time::Duration;

/// A store with one registered consumer.
pub(crate) struct Given<S> {
    pub(crate) store: S,
    pub(crate) consumer: ConsumerKey,
}

impl<S: ParkingStore> Given<S> {
    pub(crate) async fn new<H: ParkingHarness<Store = S>>(harness: &H) -> Result<Self, CaseFailure> {
        let store = harness.open().await;
        let consumer = register(&store, "wallet").await?;
        Ok(Self { store, consumer })
    }

    /// The same database as another process has it.
    pub(crate) async fn beside<H: ParkingHarness<Store = S>>(&self, harness: &H) -> Self {
        Self { store: harness.open().await, consumer: self.consumer.clone() }
    }

    /// Claims the ids and parks their messages in one transaction, in their order.
    pub(crate) async fn parked(&self, rows: &[Park]) -> Result<Vec<Dedup>, CaseFailure> {
        let (mut tx, claims) = begin(&self.store, &self.consumer, &claims_of(rows)).await?;
        claims_are(&claims, &"F".repeat(rows.len()))?;
        let answers = self.store.park(&mut tx, &self.consumer, rows).await?;
        self.store.commit(tx).await?;
        crate::check::same("parked", &answers, &vec![Recorded::New; rows.len()])?;
        Ok(rows.iter().map(|row| row.letter.dedup()).collect())
    }

    /// The same in a transaction of its own for each, so that their order is beyond doubt.
    pub(crate) async fn parked_each(&self, rows: &[Park]) -> CaseResult {
        for row in rows {
            self.parked(std::slice::from_ref(row)).await?;
        }
        Ok(())
    }
}

/// Why and how often a message failed.
pub(crate) fn failure_of(letter: &DeadLetter) -> (FailureClass, Option<String>, Reason, Timestamp, u32) {
    (letter.class, letter.code.clone(), letter.reason.clone(), letter.failed_at, letter.attempts)
}

pub(crate) fn claims_of(rows: &[Park]) -> Vec<ClaimRequest> {
    let ids = rows.iter().filter_map(|row| row.letter.id.clone().map(|id| (id, row.letter.digest)));
    ids.map(|(id, digest)| ClaimRequest { id, digest: Some(digest) }).collect()
}

/// A message after three failed attempts.
pub(crate) fn letter(letter_id: &str) -> Result<DeadLetter, CaseFailure> {
    dead_letter(Some(letter_id), FailureClass::Sql, 1 << 40)
}

/// A message that is due at once and has no order.
pub(crate) fn due(letter_id: &str) -> Result<Park, CaseFailure> {
    Ok(Park { letter: letter(letter_id)?, wait: Duration::ZERO, order_key: None })
}

/// A message that waits.
pub(crate) fn due_in(letter_id: &str, wait: Duration) -> Result<Park, CaseFailure> {
    Ok(Park { wait, ..due(letter_id)? })
}

/// A message of an order key, due at once.
pub(crate) fn of_key(letter_id: &str, key: u8) -> Result<Park, CaseFailure> {
    Ok(Park { order_key: Some(OrderKey([key; 16])), ..due(letter_id)? })
}

/// A message that waits only behind another of its order key.
pub(crate) fn behind(letter_id: &str, key: u8) -> Result<Park, CaseFailure> {
    let mut row = of_key(letter_id, key)?;
    row.letter.class = FailureClass::Waiting;
    row.letter.attempts = 0;
    row.letter.code = None;
    row.letter.reason = Reason::new("waits behind another of its key");
    Ok(row)
}

/// A failed attempt, told apart by its number.
pub(crate) fn failed(number: u16) -> FailedAttempt {
    FailedAttempt {
        at: Timestamp(1_700_000_100_000 + i64::from(number)),
        node: format!("host-{number} \u{1F4B6}/{number}"),
        class: if number.is_multiple_of(2) { FailureClass::Failed } else { FailureClass::Sql },
        code: (!number.is_multiple_of(2)).then(|| format!("2350{}", number % 10)),
        reason: Reason::new(&format!("attempt {number}\0 failed: '\\\nsecond line")),
    }
}

pub(crate) fn again(wait: Duration, number: u16) -> Resumed {
    Resumed::Again { wait, failed: failed(number) }
}

pub(crate) fn dead(number: u16, charged: bool) -> Resumed {
    Resumed::Dead { failed: failed(number), charged }
}

/// What a message looks like after this failure.
pub(crate) fn after(letter: &DeadLetter, failed: &FailedAttempt, attempts: u32) -> DeadLetter {
    DeadLetter {
        class: failed.class,
        code: failed.code.clone(),
        reason: failed.reason.clone(),
        failed_at: failed.at,
        attempts,
        ..letter.clone()
    }
}
