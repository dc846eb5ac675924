//! Consumers apart, and what is said of one.

use super::given::{Given, behind, claims_of, due, due_in, of_key};
use super::resuming::dead_letter_of;
use super::{HOUR, ParkingHarness, resume, retry, sorted_ids_of, strings, take};
use crate::CaseResult;
use crate::check::{ensure, same};
use crate::store_suite::{begin, id, name, register};
use handstamp_core::parked::{Dedup, OrderKey, ParkedStatus, ParkingStore, Resumed};
use handstamp_core::{DeadLetter, LetterStore, Store};
use std::time::Duration;

pub(crate) async fn consumers_park_apart<H: ParkingHarness>(harness: &H) -> CaseResult {
    let wallet = Given::new(harness).await?;
    let consumer = register(&wallet.store, "mail").await?;
    let mail = Given { store: harness.open().await, consumer };
    wallet.parked(&[of_key("a", 1)?]).await?;
    mail.parked(&[of_key("a", 1)?, due("b")?]).await?;
    let before = harness.inbox_state(&name("mail")?, &id("a")?).await;
    let (tx, rows) = take(&wallet.store, &wallet.consumer, 10).await?;
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    same("taken of one", &sorted_ids_of(&rows), &strings(&["a"]))?;
    resume(&wallet.store, tx, &wallet.consumer, &outcomes).await?;
    for (given, parked) in [(&wallet, false), (&mail, true)] {
        let (mut tx, _) = begin(&given.store, &given.consumer, &[]).await?;
        let keys = given.store.parked_keys(&mut tx, &given.consumer, &[OrderKey([1; 16])]).await?;
        given.store.rollback(tx).await?;
        same("whether the key is parked", &keys, &vec![parked])?;
        let count = given.store.parked_status(&given.consumer).await?.count;
        same("rows", &count, &if parked { 2 } else { 0 })?;
    }
    let state = harness.inbox_state(&name("mail")?, &id("a")?).await;
    same("the other's inbox row", &state, &before)?;
    let (tx, rows) = take(&mail.store, &mail.consumer, 10).await?;
    mail.store.commit(tx).await?;
    same("taken of the other", &sorted_ids_of(&rows), &strings(&["a", "b"]))
}

pub(crate) async fn the_status_counts_and_says_when<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let status = async || given.store.parked_status(&given.consumer).await;
    same("without rows", &status().await?, &ParkedStatus::default())?;
    let quiet = harness.features().quiet;
    let patience = harness.features().patience;
    given.parked(&[due_in("a", HOUR)?]).await?;
    tokio::time::sleep(quiet).await;
    let mut waits = of_key("b", 1)?;
    waits.wait = 2 * HOUR;
    given.parked_each(&[waits, behind("c", 1)?]).await?;
    let seen = status().await?;
    same("rows", &seen.count, &3)?;
    let first = |due: Duration| due <= HOUR && due + patience > HOUR;
    ensure(seen.due_in.is_some_and(first), || format!("the first is due in an hour: {:?}", seen.due_in))?;
    // Stores keep whole milliseconds.
    let old = |age: Duration| age.as_millis() + 2 >= quiet.as_millis() && age <= patience;
    ensure(seen.oldest.is_some_and(old), || format!("the oldest is {quiet:?} old: {:?}", seen.oldest))?;
    given.parked(&[due("d")?]).await?;
    let seen = status().await?;
    same("rows and when the first is due", &(seen.count, seen.due_in), &(4, Some(Duration::ZERO)))
}

pub(crate) async fn the_status_counts_what_is_taken<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = given.beside(harness).await;
    given.parked(&[due("a")?]).await?;
    let (tx, _) = take(&given.store, &given.consumer, 10).await?;
    let seen = other.store.parked_status(&other.consumer).await?;
    given.store.commit(tx).await?;
    same("rows and when the first is due", &(seen.count, seen.due_in), &(1, Some(Duration::ZERO)))?;
    retry(&given.store, &given.consumer, "a", Resumed::Applied).await?;
    same("without rows", &other.store.parked_status(&other.consumer).await?, &ParkedStatus::default())
}

pub(crate) async fn dead_letters_are_read_back_by_their_keys<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mail = register(&given.store, "mail").await?;
    let parked = given.parked(&[due("parked")?]).await?[0];
    let rows = [due("a")?, due("b")?];
    let letters = rows.each_ref().map(|row| row.letter.clone());
    let (mut tx, _) = begin(&given.store, &given.consumer, &claims_of(&rows)).await?;
    given.store.record(&mut tx, &given.consumer, &letters).await?;
    given.store.commit(tx).await?;
    let [a, b] = letters.each_ref().map(DeadLetter::dedup);
    let read = async |consumer, keys: &[Dedup]| given.store.kept_letters(consumer, keys).await;
    let (of_a, of_b) = (dead_letter_of(harness, "a").await?, dead_letter_of(harness, "b").await?);
    let kept = read(&given.consumer, &[b, parked, a, b]).await?;
    same("once they are dead", &kept, &vec![Some(of_b.clone()), None, Some(of_a), Some(of_b)])?;
    same("of nothing", &read(&given.consumer, &[]).await?, &vec![])?;
    same("of another consumer", &read(&mail, &[a, b]).await?, &vec![None, None])
}
