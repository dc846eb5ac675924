//! Taking: what is due, once, and free again when the taker is gone.

use super::given::{Given, claims_of, due, due_in};
use super::{
    HOUR, ParkingHarness, ids_of, look, nothing_is_due, patient, resume, sorted_ids_of, strings, take,
    take_when_due,
};
use crate::check::{ensure, same};
use crate::store_suite::{Tx, claim, claims_are, register};
use crate::{CaseFailure, CaseResult};
use handstamp_core::Store;
use handstamp_core::parked::{Park, ParkingStore, Resumed, Taken};
use std::time::Duration;

pub(crate) async fn nothing_is_taken_before_its_wait<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    nothing_is_due(&given.store, &given.consumer, "and nothing is parked").await?;
    let soon = harness.features().quiet;
    given.parked(&[due_in("late", HOUR)?, due_in("soon", soon)?]).await?;
    let (tx, rows) = take_when_due(harness, &given.store, &given.consumer, 1).await?;
    same("taken", &ids_of(&rows), &strings(&["soon"]))?;
    let age = rows[0].parked_for;
    // Stores keep whole milliseconds.
    ensure(age.as_millis() + 1 >= soon.as_millis(), || format!("taken after {age:?}, not after {soon:?}"))?;
    resume(&given.store, tx, &given.consumer, &[(rows[0].dedup, Resumed::Applied)]).await?;
    nothing_is_due(&given.store, &given.consumer, "an hour too early").await
}

pub(crate) async fn the_longest_due_comes_first<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let quiet = harness.features().quiet;
    let rows = [due_in("a", quiet)?, due_in("b", quiet / 2)?, due_in("c", quiet / 4)?, due_in("d", quiet)?];
    given.parked(&rows).await?;
    let (tx, taken) = take_when_due(harness, &given.store, &given.consumer, 4).await?;
    given.store.commit(tx).await?;
    same("taken", &ids_of(&taken), &strings(&["c", "b", "a", "d"]))
}

pub(crate) async fn no_more_is_taken_than_asked<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let ids = ["a", "b", "c", "d", "e"];
    given.parked(&ids.map(due).into_iter().collect::<Result<Vec<Park>, CaseFailure>>()?).await?;
    let mut all = vec![];
    for expected in [2, 2, 1] {
        let (tx, rows) = take(&given.store, &given.consumer, 2).await?;
        same("taken", &rows.len(), &expected)?;
        let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
        resume(&given.store, tx, &given.consumer, &outcomes).await?;
        all.extend(ids_of(&rows));
    }
    all.sort();
    same("all that was taken", &all, &strings(&ids))
}

/// Takes what is due beside another taker, which must not make it wait.
async fn take_beside<H: ParkingHarness>(
    harness: &H,
    given: &Given<H::Store>,
    max: usize,
) -> Result<Option<Taken<Tx<H>>>, CaseFailure> {
    let patience = harness.features().patience;
    let taken = tokio::time::timeout(patience, given.store.take_due(&given.consumer, max)).await;
    Ok(taken.map_err(|_| CaseFailure("a taker waits for another one's rows".into()))??)
}

pub(crate) async fn two_takers_never_share_a_row<H: ParkingHarness>(harness: &H) -> CaseResult {
    if !harness.features().concurrent {
        return Ok(());
    }
    let given = Given::new(harness).await?;
    let other = given.beside(harness).await;
    let third = given.beside(harness).await;
    let rows = (0..10).map(|n| due(&format!("id-{n}"))).collect::<Result<Vec<Park>, CaseFailure>>()?;
    given.parked(&rows).await?;
    let (one_tx, one) = take(&given.store, &given.consumer, 4).await?;
    let two = take_beside(harness, &other, 10).await?;
    let (two_tx, two) = two.ok_or_else(|| CaseFailure("the second taker got nothing".into()))?;
    same("taken", &(one.len(), two.len()), &(4, 6))?;
    ensure(take_beside(harness, &third, 10).await?.is_none(), || "the third taker got something".into())?;
    let taken = [one.clone(), two].concat();
    let expected: Vec<String> = (0..10).map(|n| format!("id-{n}")).collect();
    same("all that was taken", &sorted_ids_of(&taken), &expected)?;
    other.store.commit(two_tx).await?;
    let outcomes: Vec<_> = one.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    resume(&given.store, one_tx, &given.consumer, &outcomes).await?;
    // What is free again is taken again, what is applied is not.
    let (tx, rows) = take(&third.store, &third.consumer, 10).await?;
    third.store.commit(tx).await?;
    same("taken", &rows.len(), &6)
}

/// A taker ends without a word; both its rows can be taken again.
async fn ended<H: ParkingHarness>(
    harness: &H,
    within: Duration,
    end: impl AsyncFnOnce(&H::Store, Tx<H>) -> CaseResult,
) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = given.beside(harness).await;
    given.parked(&[due("a")?, due("b")?]).await?;
    let (mut tx, rows) = take(&given.store, &given.consumer, 10).await?;
    same("taken", &sorted_ids_of(&rows), &strings(&["a", "b"]))?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    end(&given.store, tx).await?;
    let due = tokio::time::timeout(within, take_when_due(harness, &other.store, &other.consumer, 2)).await;
    let (tx, rows) = due.map_err(|_| CaseFailure("the ended taker still holds its rows".into()))??;
    other.store.commit(tx).await?;
    same("taken", &sorted_ids_of(&rows), &strings(&["a", "b"]))?;
    same("the counter", &harness.counter("account").await, &0)
}

pub(crate) async fn a_rollback_frees_its_rows<H: ParkingHarness>(harness: &H) -> CaseResult {
    let patience = harness.features().patience;
    ended(harness, patience, async |store, tx| Ok(store.rollback(tx).await?)).await
}

pub(crate) async fn an_abandoned_taker_frees_its_rows_at_once<H: ParkingHarness>(harness: &H) -> CaseResult {
    let quiet = harness.features().quiet;
    let abandon = async |store: &H::Store, tx| {
        store.abandon(tx).await;
        Ok(())
    };
    ended(harness, quiet, abandon).await
}

pub(crate) async fn a_dropped_taker_frees_its_rows<H: ParkingHarness>(harness: &H) -> CaseResult {
    let patience = harness.features().patience;
    let leave = async |_: &H::Store, tx| {
        drop(tx);
        Ok(())
    };
    ended(harness, patience, leave).await
}

pub(crate) async fn a_lost_taker_frees_its_rows<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.parked(&[due("a")?, due("b")?]).await?;
    let (tx, _) = take(&given.store, &given.consumer, 1).await?;
    harness.restart().await;
    drop(tx);
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (tx, rows) = take_when_due(harness, &store, &consumer, 2).await?;
    store.commit(tx).await?;
    same("taken", &sorted_ids_of(&rows), &strings(&["a", "b"]))
}

pub(crate) async fn what_is_taken_again_comes_in_the_order_asked<H: ParkingHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    let (store, consumer) = (&given.store, &given.consumer);
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let rows = ids.map(|id| due_in(id, HOUR)).into_iter().collect::<Result<Vec<Park>, CaseFailure>>()?;
    let mut keys = given.parked(&rows).await?;
    keys.reverse();
    same(
        "taken",
        &ids_of(&look(store, consumer, &keys).await?),
        &strings(&["h", "g", "f", "e", "d", "c", "b", "a"]),
    )?;
    same("taken", &ids_of(&look(store, consumer, &[]).await?), &vec![])?;
    // Those that are gone, and those that somebody has, are left out.
    let gone = [keys[7], keys[6]];
    let (tx, rows) = patient("take_again", async || store.take_again(consumer, &gone).await).await?;
    same("taken", &ids_of(&rows), &strings(&["a", "b"]))?;
    resume(store, tx, consumer, &gone.map(|key| (key, Resumed::Applied))).await?;
    let held = if harness.features().concurrent {
        let other = given.beside(harness).await;
        let (tx, _) = other.store.take_again(consumer, &[keys[0], keys[3]]).await?;
        Some((other, tx))
    } else {
        None
    };
    let expected = if held.is_some() { vec!["g", "f", "d", "c"] } else { vec!["h", "g", "f", "e", "d", "c"] };
    same("taken", &ids_of(&look(store, consumer, &keys).await?), &strings(&expected))?;
    match held {
        Some((other, tx)) => Ok(other.store.rollback(tx).await?),
        None => Ok(()),
    }
}

/// Takes a row, resumes it, and lets another process claim its id meanwhile.
async fn redelivered<H: ParkingHarness>(
    harness: &H,
    given: &Given<H::Store>,
    row: &Park,
    commits: bool,
) -> CaseResult {
    let other = given.beside(harness).await;
    let (mut tx, rows) = take(&given.store, &given.consumer, 1).await?;
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    given.store.resume(&mut tx, &given.consumer, &outcomes).await?;
    let ids = claims_of(std::slice::from_ref(row));
    let racer = tokio::spawn(async move { claim(&other.store, &other.consumer, &ids).await });
    tokio::time::sleep(harness.features().quiet).await;
    if commits {
        given.store.commit(tx).await?;
    } else {
        given.store.rollback(tx).await?;
    }
    let answered = tokio::time::timeout(harness.features().patience, racer).await;
    claims_are(&answered.map_err(|_| CaseFailure("the claim never had its answer".into()))???, "D")
}

pub(crate) async fn a_redelivery_during_a_retry_is_a_duplicate<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let row = due("a")?;
    given.parked(std::slice::from_ref(&row)).await?;
    redelivered(harness, &given, &row, false).await?;
    redelivered(harness, &given, &row, true).await
}
