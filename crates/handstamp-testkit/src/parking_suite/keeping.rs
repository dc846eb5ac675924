//! Parking: whole, once, and only with its transaction.

use super::given::{Given, claims_of, due, due_in, failed, failure_of, letter, of_key};
use super::{HOUR, ParkingHarness, history_is, look, nothing_is_due, parked_count, patient, take};
use crate::check::{ensure, same};
use crate::store_suite::letters::{bare_letter, empty_letter};
use crate::store_suite::{begin, claim, claims_are, id, name, register, request};
use crate::{CaseFailure, CaseResult};
use bytes::Bytes;
use handstamp_core::parked::{Park, ParkingStore};
use handstamp_core::{Claim, FailureClass, InboxState, Recorded, Store, Truncation};
use std::time::Duration;

pub(crate) async fn a_parked_message_keeps_every_byte<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mut full = of_key("full", 0xFF)?;
    full.letter.id = Some(id(b"em\xffpty")?);
    let bare = Park { letter: bare_letter("bare")?, wait: Duration::ZERO, order_key: None };
    let empty = Park { letter: empty_letter("empty")?, ..of_key("empty", 0)? };
    let rows = [full, bare, empty];
    given.parked(&rows).await?;
    let (tx, taken) = take(&given.store, &given.consumer, 10).await?;
    given.store.commit(tx).await?;
    same("rows", &taken.len(), &3)?;
    for row in &rows {
        let found = taken.iter().find(|kept| kept.dedup == row.letter.dedup());
        let found = found.ok_or_else(|| CaseFailure(format!("{:?} is missing", row.letter.id)))?;
        same("headers", &found.letter.record.headers, &row.letter.record.headers)?;
        same("the message", &found.letter, &row.letter)?;
        same("its order key", &found.order_key, &row.order_key)?;
        let age = found.parked_for;
        let patience = harness.features().patience;
        ensure(age <= patience, || format!("it was parked just now, and is said to be {age:?} old"))?;
    }
    Ok(())
}

pub(crate) async fn a_large_message_is_parked_whole<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mut large = due("large")?;
    // Bytes that no compression makes small.
    let mut value = vec![0; 1 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut value);
    large.letter.record.value = Some(Bytes::from(value));
    large.letter.digest = large.letter.record.digest();
    let keys = given.parked(std::slice::from_ref(&large)).await?;
    let seen = look(&given.store, &given.consumer, &keys).await?;
    let value = seen.first().and_then(|row| row.letter.record.value.clone());
    same("its bytes", &value.as_ref().map(Bytes::len), &Some(1 << 20))?;
    ensure(value == large.letter.record.value, || "its bytes are others".into())
}

pub(crate) async fn a_parked_prefix_says_so<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mut prefix = due("prefix")?;
    prefix.letter.truncation = Some(Truncation { full_bytes: 5_000_000_000, blake3: [0xAB; 32] });
    let keys = given.parked(std::slice::from_ref(&prefix)).await?;
    let seen = look(&given.store, &given.consumer, &keys).await?;
    same(
        "truncations",
        &seen.into_iter().map(|row| row.letter.truncation).collect(),
        &vec![prefix.letter.truncation],
    )
}

pub(crate) async fn a_parked_message_says_so_in_its_inbox_row<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let parked = due_in("parked", HOUR)?;
    let ids = [request("good", 1)?, claims_of(std::slice::from_ref(&parked)).remove(0), request("fine", 1)?];
    let (mut tx, claims) = begin(&given.store, &given.consumer, &ids).await?;
    claims_are(&claims, "FFF")?;
    given.store.park(&mut tx, &given.consumer, std::slice::from_ref(&parked)).await?;
    given.store.commit(tx).await?;
    let expected =
        [("good", InboxState::Applied), ("parked", InboxState::Parked), ("fine", InboxState::Applied)];
    for (of, expected) in expected {
        let state = harness.inbox_state(&name("wallet")?, &id(of)?).await;
        same("the inbox row", &state, &Some(expected))?;
    }
    let again = claim(&given.store, &given.consumer, &ids).await?;
    let parked = matches!(again[1], Claim::Duplicate { state: InboxState::Parked, .. });
    ensure(parked, || format!("the redelivery was answered {:?}", again[1]))
}

pub(crate) async fn parking_is_rolled_back_too<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = given.beside(harness).await;
    let rows = [due("a")?];
    let (mut tx, _) = begin(&given.store, &given.consumer, &claims_of(&rows)).await?;
    given.store.park(&mut tx, &given.consumer, &rows).await?;
    same("rows before the commit", &parked_count(&other.store, &other.consumer).await?, &0)?;
    if harness.features().concurrent {
        nothing_is_due(&other.store, &other.consumer, "before its commit").await?;
    }
    given.store.rollback(tx).await?;
    same("rows", &parked_count(&other.store, &other.consumer).await?, &0)?;
    claims_are(&claim(&other.store, &other.consumer, &claims_of(&rows)).await?, "F")
}

pub(crate) async fn parking_twice_is_known<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let first = due("a")?;
    let keys = given.parked(std::slice::from_ref(&first)).await?;
    let mut twin = of_key("a", 1)?;
    twin.letter.attempts = 9;
    twin.letter.class = FailureClass::Panicked;
    let other = due("b")?;
    let (mut tx, _) = begin(&given.store, &given.consumer, &claims_of(std::slice::from_ref(&other))).await?;
    let rows = [twin, other.clone(), other];
    let answers = given.store.park(&mut tx, &given.consumer, &rows).await?;
    given.store.commit(tx).await?;
    same("parked", &answers, &vec![Recorded::Known, Recorded::New, Recorded::Known])?;
    same("rows", &parked_count(&given.store, &given.consumer).await?, &2)?;
    let seen = look(&given.store, &given.consumer, &keys).await?;
    let seen_failure = seen.first().map(|row| failure_of(&row.letter));
    same("the first", &seen_failure, &Some(failure_of(&first.letter)))?;
    same("its order key", &seen.first().and_then(|row| row.order_key), &None)
}

pub(crate) async fn attempts_are_noted_in_order<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let (parked, given_up) = (due_in("parked", HOUR)?, letter("given up")?);
    let ids = [claims_of(std::slice::from_ref(&parked)).remove(0), request("given up", given_up.digest)?];
    let (mut tx, _) = begin(&given.store, &given.consumer, &ids).await?;
    given.store.park(&mut tx, &given.consumer, std::slice::from_ref(&parked)).await?;
    given.store.record(&mut tx, &given.consumer, std::slice::from_ref(&given_up)).await?;
    let (one, two) = (parked.letter.dedup(), given_up.dedup());
    let all = [(two, failed(5)), (one, failed(1)), (two, failed(4)), (one, failed(2)), (two, failed(3))];
    given.store.note_attempts(&mut tx, &given.consumer, &all).await?;
    given.store.note_attempts(&mut tx, &given.consumer, &[]).await?;
    given.store.commit(tx).await?;
    history_is(harness, &one, &[failed(1), failed(2)]).await?;
    history_is(harness, &two, &[failed(5), failed(4), failed(3)]).await
}

pub(crate) async fn attempts_are_rolled_back_too<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let rows = [due_in("a", HOUR)?];
    let dedup = rows[0].letter.dedup();
    let (mut tx, _) = begin(&given.store, &given.consumer, &claims_of(&rows)).await?;
    given.store.note_attempts(&mut tx, &given.consumer, &[(dedup, failed(1))]).await?;
    given.store.rollback(tx).await?;
    history_is(harness, &dedup, &[]).await
}

pub(crate) async fn what_is_parked_survives_a_restart<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let keys = given.parked(&[due("a")?, due("b")?]).await?;
    harness.restart().await;
    drop(given);
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (tx, rows) = patient("take_again", async || store.take_again(&consumer, &keys).await).await?;
    store.commit(tx).await?;
    same("rows", &rows.len(), &2)?;
    claims_are(&claim(&store, &consumer, &claims_of(&[due("a")?, due("b")?])).await?, "DD")
}
