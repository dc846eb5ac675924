//! Messages behind savepoints: what one wrote is taken back alone.

use super::given::{Given, again, due};
use super::{HOUR, ParkingHarness, parked_count, resume, take};
use crate::check::{ensure, same};
use crate::store_suite::{EndInside, Tx};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{ParkingStore, Resumed};
use handstamp_core::{Store, StoreErrorKind};

async fn add<H: ParkingHarness>(harness: &H, tx: &mut Tx<H>, amount: i64) -> CaseResult {
    harness.add(tx, "account", amount).await.map_err(|error| CaseFailure(error.to_string()))
}

pub(crate) async fn what_is_taken_back_leaves_the_rest<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let keys = given.parked(&[due("a")?, due("b")?, due("c")?]).await?;
    let (mut tx, rows) = take(&given.store, &given.consumer, 10).await?;
    same("taken", &rows.len(), &3)?;
    let store = &given.store;
    store.savepoint(&mut tx).await?;
    add(harness, &mut tx, 5).await?;
    store.savepoint(&mut tx).await?;
    add(harness, &mut tx, 70).await?;
    store.take_back(&mut tx).await?;
    // By an error of the database, too; the savepoint is still there.
    add(harness, &mut tx, 1_000).await?;
    drop(harness.fail(&mut tx).await);
    store.take_back(&mut tx).await?;
    add(harness, &mut tx, 200).await?;
    store.savepoint(&mut tx).await?;
    let outcomes = [Resumed::Applied, again(HOUR, 1), Resumed::Applied];
    let outcomes: Vec<_> = keys.into_iter().zip(outcomes).collect();
    resume(store, tx, &given.consumer, &outcomes).await?;
    same("the counter", &harness.counter("account").await, &205)?;
    same("rows", &parked_count(store, &given.consumer).await?, &1)
}

pub(crate) async fn rows_are_held_when_something_is_taken_back<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = given.beside(harness).await;
    let keys = given.parked(&[due("a")?]).await?;
    let (mut tx, _) = take(&given.store, &given.consumer, 10).await?;
    given.store.savepoint(&mut tx).await?;
    add(harness, &mut tx, 70).await?;
    given.store.take_back(&mut tx).await?;
    let looked = async {
        match other.store.take_again(&other.consumer, &keys).await {
            // A store with one writer lets nobody in meanwhile.
            Err(_) => Ok(()),
            Ok((tx, rows)) => {
                other.store.rollback(tx).await?;
                same("rows that are held and taken all the same", &rows.len(), &0)
            }
        }
    };
    // Who waits for the lock gets nothing of it either.
    let looked = tokio::time::timeout(harness.features().quiet, looked).await;
    looked.unwrap_or(Ok(()))?;
    resume(&given.store, tx, &given.consumer, &[(keys[0], again(HOUR, 1))]).await?;
    same("the counter", &harness.counter("account").await, &0)
}

pub(crate) async fn a_savepoint_says_what_a_handler_swallowed<H: ParkingHarness>(harness: &H) -> CaseResult {
    if !harness.features().errors_abort {
        return Ok(());
    }
    let given = Given::new(harness).await?;
    let keys = given.parked(&[due("a")?]).await?;
    let (mut tx, _) = take(&given.store, &given.consumer, 10).await?;
    given.store.savepoint(&mut tx).await?;
    drop(harness.fail(&mut tx).await);
    match given.store.savepoint(&mut tx).await {
        Ok(()) => return Err(CaseFailure("a savepoint was set over a statement that had failed".into())),
        Err(error) => same("kind", &error.kind, &StoreErrorKind::Swallowed)?,
    }
    given.store.take_back(&mut tx).await?;
    add(harness, &mut tx, 5).await?;
    given.store.savepoint(&mut tx).await?;
    resume(&given.store, tx, &given.consumer, &[(keys[0], Resumed::Applied)]).await?;
    same("the counter", &harness.counter("account").await, &5)
}

pub(crate) async fn a_savepoint_says_that_the_handler_ended_it<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    for how in [EndInside::Commit, EndInside::Rollback] {
        let row = due(&format!("{how:?}"))?;
        given.parked(std::slice::from_ref(&row)).await?;
        let (mut tx, _) = given.store.take_again(&given.consumer, &[row.letter.dedup()]).await?;
        given.store.savepoint(&mut tx).await?;
        harness.end_inside(&mut tx, how).await;
        let said = given.store.savepoint(&mut tx).await;
        given.store.abandon(tx).await;
        // A store may refuse the handler's words, and then nothing has ended.
        let kind = said.err().map(|error| error.kind);
        let ended = kind == Some(StoreErrorKind::TransactionEnded);
        ensure(ended, || format!("after the handler's {how:?} a savepoint said {kind:?}"))?;
    }
    Ok(())
}
