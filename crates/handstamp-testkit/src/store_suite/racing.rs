//! Two processes at once.

use super::{StoreHarness, Tx, begin, claim, claims_are, register, request};
use crate::check::{ensure, same};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{Claim, ClaimRequest, ConsumerKey, Store};
use tokio::task::JoinHandle;

/// Another process claims `a` and commits.
async fn race<H: StoreHarness>(
    harness: &H,
) -> Result<(H::Store, Tx<H>, JoinHandle<Result<Vec<Claim>, CaseFailure>>), CaseFailure> {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (tx, claims) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    claims_are(&claims, "F")?;
    let racer = racer(harness, consumer, vec![request("a", 1)?]).await;
    tokio::time::sleep(harness.features().quiet).await;
    Ok((store, tx, racer))
}

async fn racer<H: StoreHarness>(
    harness: &H,
    consumer: ConsumerKey,
    ids: Vec<ClaimRequest>,
) -> JoinHandle<Result<Vec<Claim>, CaseFailure>> {
    let other = harness.open().await;
    tokio::spawn(async move { claim(&other, &consumer, &ids).await })
}

async fn answer<H: StoreHarness>(
    harness: &H,
    racer: JoinHandle<Result<Vec<Claim>, CaseFailure>>,
) -> Result<Vec<Claim>, CaseFailure> {
    let answered = tokio::time::timeout(harness.features().patience, racer).await;
    let answered = answered.map_err(|_| CaseFailure("the second claimer never had its answer".into()))?;
    answered?
}

pub(crate) async fn a_racing_claim_waits_and_is_a_duplicate<H: StoreHarness>(harness: &H) -> CaseResult {
    let (store, tx, racer) = race(harness).await?;
    ensure(!racer.is_finished(), || "the second claimer had its answer before the first was done".into())?;
    store.commit(tx).await?;
    claims_are(&answer(harness, racer).await?, "D")
}

pub(crate) async fn a_racing_claim_is_first_after_a_rollback<H: StoreHarness>(harness: &H) -> CaseResult {
    let (store, tx, racer) = race(harness).await?;
    store.rollback(tx).await?;
    claims_are(&answer(harness, racer).await?, "F")
}

/// The same behind a batch that was known, where a store may look before it inserts.
pub(crate) async fn a_racing_batch_after_a_replay_waits_and_is_answered<H: StoreHarness>(
    harness: &H,
) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let known = [request("a", 1)?, request("z", 1)?];
    claims_are(&claim(&store, &consumer, &known).await?, "FF")?;
    for commits in [true, false] {
        let new = format!("new-{commits}");
        let other = harness.open().await;
        claims_are(&claim(&other, &consumer, &known).await?, "DD")?;
        let (tx, claims) = begin(&store, &consumer, &[request("a", 1)?, request(&new, 1)?]).await?;
        claims_are(&claims, "DF")?;
        let asked = vec![request("a", 1)?, request(&new, 1)?, request("z", 1)?];
        let key = consumer.clone();
        let racer = tokio::spawn(async move { claim(&other, &key, &asked).await });
        tokio::time::sleep(harness.features().quiet).await;
        ensure(!racer.is_finished(), || "the second claimer did not wait for the first".into())?;
        if commits {
            store.commit(tx).await?;
        } else {
            store.rollback(tx).await?;
        }
        claims_are(&answer(harness, racer).await?, if commits { "DDD" } else { "DFD" })?;
    }
    Ok(())
}

pub(crate) async fn disjoint_batches_run_side_by_side<H: StoreHarness>(harness: &H) -> CaseResult {
    if !harness.features().concurrent {
        return Ok(());
    }
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (tx, _) = begin(&store, &consumer, &[request("a", 1)?, request("c", 1)?]).await?;
    let racer = racer(harness, consumer, vec![request("b", 1)?, request("d", 1)?]).await;
    let claims = answer(harness, racer).await?;
    claims_are(&claims, "FF")?;
    Ok(store.commit(tx).await?)
}

/// Two batches that ask for the same ids in opposite orders: each id is First exactly once.
pub(crate) async fn crossing_batches_both_end<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    for round in 0..20 {
        let ids = (0..10).map(|n| request(format!("{round}-{n}"), 1));
        let ids = ids.collect::<Result<Vec<ClaimRequest>, CaseFailure>>()?;
        let mut reversed = ids.clone();
        reversed.reverse();
        let one = racer(harness, consumer.clone(), ids).await;
        let two = racer(harness, consumer.clone(), reversed).await;
        let mut firsts = 0;
        for racer in [one, two] {
            let claims = answer(harness, racer).await?;
            firsts += claims.iter().filter(|claim| **claim == Claim::First).count();
        }
        same("ids that were First", &firsts, &10)?;
    }
    Ok(())
}
