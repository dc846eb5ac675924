//! Which ids go, and what is known of it.

use super::{Given, KEEP, OLD, PruneHarness, ids};
use crate::check::{ensure, same};
use crate::parking_suite::given::due;
use crate::store_suite::letters::dead_letter;
use crate::store_suite::{begin, claims_are, register, request};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{ParkingStore, Resumed};
use handstamp_core::version_store::VersionStore;
use handstamp_core::{DeadLetter, FailureClass, PruneStore, Store, Version, VersionKey, clock};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) async fn a_forgotten_id_is_first_again<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let old = ids("old", 20)?;
    given.claimed(&old).await?;
    harness.age(OLD).await;
    claims_are(&given.claimed(&old).await?, &"D".repeat(20))?;
    same("went", &given.all_go().await?, &20)?;
    claims_are(&given.claimed(&old).await?, &"F".repeat(20))
}

/// Applies whatever is due.
async fn retried<S: PruneStore + ParkingStore>(given: &Given<S>) -> CaseResult {
    let taken = given.store.take_due(&given.consumer, 10).await?;
    let (mut tx, rows) =
        taken.ok_or_else(|| CaseFailure("nothing is due, though something must be".into()))?;
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    given.store.resume(&mut tx, &given.consumer, &outcomes).await?;
    Ok(given.store.commit(tx).await?)
}

pub(crate) async fn parked_ids_stay_until_they_are_applied<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let row = due("waits")?;
    given.parked(std::slice::from_ref(&row)).await?;
    harness.age(OLD).await;
    same("went while parked", &given.all_go().await?, &0)?;
    claims_are(&given.claimed(&[request("waits", row.letter.digest)?]).await?, "D")?;
    retried(&given).await?;
    same("went once applied", &given.all_go().await?, &1)
}

/// A dead letter, committed; its key.
async fn died<S: PruneStore>(given: &Given<S>, message: &str) -> Result<DeadLetter, CaseFailure> {
    let letter = dead_letter(Some(message), FailureClass::Sql, 1 << 40)?;
    let (mut tx, _) = begin(&given.store, &given.consumer, &[request(message, letter.digest)?]).await?;
    given.store.record(&mut tx, &given.consumer, std::slice::from_ref(&letter)).await?;
    given.store.commit(tx).await?;
    Ok(letter)
}

pub(crate) async fn dead_ids_stay_until_they_are_applied<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let letter = died(&given, "dead").await?;
    harness.age(OLD).await;
    same("went while dead", &given.all_go().await?, &0)?;
    same("dead letters", &harness.dead_letters(&given.consumer.name).await.len(), &1)?;
    harness.redrive(&given.consumer.name, &letter.dedup()).await;
    same("went while sent back", &given.all_go().await?, &0)?;
    retried(&given).await?;
    same("went once applied", &given.all_go().await?, &1)
}

pub(crate) async fn discarded_ids_go<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let letter = died(&given, "discarded").await?;
    harness.discard(&given.consumer.name, &letter.dedup()).await;
    harness.age(OLD).await;
    same("went", &given.all_go().await?, &1)
}

pub(crate) async fn consumers_forget_apart<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = register(&given.store, "stock").await?;
    let old = ids("old", 30)?;
    given.claimed(&old).await?;
    let stock = Given { store: given.store, consumer: other };
    stock.claimed(&old).await?;
    harness.age(OLD).await;
    same("went of one", &stock.all_go().await?, &30)?;
    let given = Given::new(harness).await?;
    same("known of the other", &given.store.forgotten_before(&given.consumer).await?, &None)?;
    claims_are(&given.claimed(&old).await?, &"D".repeat(30))
}

pub(crate) async fn it_is_known_up_to_when_ids_are_forgotten<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let forgotten = async || given.store.forgotten_before(&given.consumer).await;
    given.claimed(&ids("old", 3)?).await?;
    given.all_go().await?;
    same("before anything went", &forgotten().await?, &None)?;
    harness.age(OLD).await;
    given.all_go().await?;
    let first =
        forgotten().await?.ok_or_else(|| CaseFailure("nobody knows that ids are forgotten".into()))?;
    let ago = clock::now().0 - first.0;
    let keep = i64::try_from(KEEP.as_millis()).unwrap_or(i64::MAX);
    ensure((keep - 60_000..keep + 600_000).contains(&ago), || {
        format!(
            "ids are said to be forgotten that are older than {ago} ms, deleted were those older than {keep}"
        )
    })?;
    // Who keeps ids for longer from now on does not bring back what is gone.
    given.claimed(&ids("older", 3)?).await?;
    harness.age(OLD).await;
    let step = given.store.prune_ids(&given.consumer, KEEP * 5, 10, None).await?;
    ensure(step.deleted > 0, || "nothing went".into())?;
    let now = forgotten().await?;
    ensure(now >= Some(first), || format!("was {first}, and is {now:?}"))
}

pub(crate) async fn marks_stay<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let parsed = Version::parse("5").map_err(|why| CaseFailure(why.to_string()))?;
    let marks = BTreeMap::from([(VersionKey([1; 16]), parsed)]);
    let (mut tx, _) = begin(&given.store, &given.consumer, &ids("old", 5)?).await?;
    given.store.raise_marks(&mut tx, &given.consumer, &marks).await?;
    given.store.commit(tx).await?;
    harness.age(OLD).await;
    same("went", &given.all_go().await?, &5)?;
    given.store.prune_attempts(&given.consumer, Duration::ZERO, 10).await?;
    let (mut tx, _) = begin(&given.store, &given.consumer, &[]).await?;
    let before = given.store.raise_marks(&mut tx, &given.consumer, &marks).await?;
    given.store.rollback(tx).await?;
    same("marks", &before, &marks)
}
