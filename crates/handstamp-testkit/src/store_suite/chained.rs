//! A commit that opens the next transaction.

use super::{EndInside, StoreHarness, Tx, begin, claim, claims_are, id, name, register, request};
use crate::check::{ensure, same};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{Claim, ClaimRequest, ConsumerKey, InboxState, Store, StoreErrorKind};
use tokio::sync::oneshot;

/// Commits and begins as the engine does: by a `begin` of its own where the commit opened nothing.
async fn commit_and_begin<H: StoreHarness>(
    store: &H::Store,
    tx: Tx<H>,
    consumer: &ConsumerKey,
    ids: &[ClaimRequest],
) -> Result<(Tx<H>, Vec<Claim>), CaseFailure> {
    let (tell, told) = oneshot::channel();
    let next = store.commit_and_begin(tx, consumer, ids, tell).await?;
    ensure(told.await.is_ok(), || "committed, and nobody was told".into())?;
    match next {
        Some(opened) => Ok(opened),
        None => begin(store, consumer, ids).await,
    }
}

pub(crate) async fn a_commit_opens_the_next_transaction<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    for round in 0..5 {
        harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
        let next = [request(format!("b{round}"), 1)?, request(format!("c{round}"), 1)?];
        let (opened, claims) = commit_and_begin::<H>(&store, tx, &consumer, &next).await?;
        claims_are(&claims, "FF")?;
        tx = opened;
        same("the counter", &harness.counter("account").await, &(5 * (round + 1)))?;
    }
    // What is not committed is taken back, and only that.
    store.rollback(tx).await?;
    same("the counter", &harness.counter("account").await, &25)?;
    let ids = [request("a", 1)?, request("b3", 1)?, request("b4", 1)?];
    claims_are(&claim(&store, &consumer, &ids).await?, "DDF")
}

pub(crate) async fn the_next_claims_know_what_was_committed<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    let next = [request("a", 1)?, request("b", 1)?, request("a", 2)?, request("b", 1)?];
    let (tx, claims) = commit_and_begin::<H>(&store, tx, &consumer, &next).await?;
    claims_are(&claims, "DFRD")?;
    let (tx, claims) = commit_and_begin::<H>(&store, tx, &consumer, &next).await?;
    claims_are(&claims, "DDRD")?;
    Ok(store.commit(tx).await?)
}

/// Told at once, though the next claim waits for another process.
pub(crate) async fn durable_is_said_when_it_is_so<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let other = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    let held = if harness.features().concurrent {
        Some(begin(&other, &consumer, &[request("b", 1)?]).await?.0)
    } else {
        None
    };
    let (tell, told) = oneshot::channel();
    let next = [request("b", 1)?];
    let running = tokio::spawn(async move {
        let next = store.commit_and_begin(tx, &consumer, &next, tell).await;
        (store, consumer, next)
    });
    // Shorter than the store waits for the other process.
    let told = tokio::time::timeout(harness.features().quiet, told).await;
    ensure(matches!(told, Ok(Ok(()))), || format!("durable was not said: {told:?}"))?;
    let state = harness.inbox_state(&name("wallet")?, &id("a")?).await;
    same("the inbox row when durable was said", &state, &Some(InboxState::Applied))?;
    let is_held = held.is_some();
    if let Some(held) = held {
        other.commit(held).await?;
    }
    let (store, consumer, next) = running.await?;
    let (tx, claims) = match next? {
        Some(opened) => opened,
        None => begin(&store, &consumer, &[request("b", 1)?]).await?,
    };
    claims_are(&claims, if is_held { "D" } else { "F" })?;
    Ok(store.rollback(tx).await?)
}

pub(crate) async fn a_failed_commit_opens_nothing<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let other = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let mut wrong = vec![(Some(EndInside::Commit), StoreErrorKind::TransactionEnded)];
    wrong.push((Some(EndInside::Rollback), StoreErrorKind::TransactionEnded));
    if harness.features().errors_abort {
        wrong.push((None, StoreErrorKind::Swallowed));
    }
    for (end, kind) in wrong {
        let (mut tx, _) = begin(&store, &consumer, &[request(format!("a {end:?}"), 1)?]).await?;
        match end {
            Some(end) => harness.end_inside(&mut tx, end).await,
            None => drop(harness.fail(&mut tx).await),
        }
        let next = [request(format!("b {end:?}"), 1)?];
        let (tell, told) = oneshot::channel();
        match store.commit_and_begin(tx, &consumer, &next, tell).await {
            Ok(_) => return Err(CaseFailure(format!("Ok though {kind:?} was to be said"))),
            Err(error) => same("kind", &error.kind, &kind)?,
        }
        ensure(told.await.is_err(), || "durable was said of a commit that failed".into())?;
        let quiet = harness.features().quiet;
        let claimed = tokio::time::timeout(quiet, claim(&other, &consumer, &next)).await;
        claims_are(&claimed.map_err(|_| CaseFailure("the next ids are still claimed".into()))??, "F")?;
    }
    Ok(())
}
