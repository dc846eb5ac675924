//! Batches, and several that delete at once.

use super::{Given, KEEP, OLD, PruneHarness, STEPS_MAX, ids};
use crate::check::{ensure, same};
use crate::store_suite::{begin, claims_are};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{Claim, PruneStore, Store};

/// 25,000 old ids and 100 recent ones, in batches of 10,000.
pub(crate) async fn the_old_go_in_batches_and_the_recent_stay<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.claimed(&ids("old", 25_000)?).await?;
    harness.age(OLD).await;
    let recent = ids("recent", 100)?;
    given.claimed(&recent).await?;
    let mut went = vec![];
    for _ in 0..4 {
        went.push(given.step(10_000, None).await?.deleted);
    }
    same("went", &went, &vec![10_000, 10_000, 5_000, 0])?;
    claims_are(&given.claimed(&recent).await?, &"D".repeat(100))
}

pub(crate) async fn steps_go_on_where_the_last_one_ended<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.claimed(&ids("old", 2_500)?).await?;
    harness.age(OLD).await;
    let recent = ids("recent", 300)?;
    given.claimed(&recent).await?;
    let (mut went, mut from) = (0, None);
    for steps in 1..=STEPS_MAX {
        let step = given.step(400, from.as_ref()).await?;
        ensure(step.deleted <= 400, || format!("a step of at most 400 deleted {}", step.deleted))?;
        went += step.deleted;
        from = step.next;
        if from.is_none() {
            same("went", &went, &2_500)?;
            return ensure(steps >= 7, || format!("2,500 went in {steps} steps of at most 400"));
        }
    }
    Err(CaseFailure(format!("after {STEPS_MAX} steps there is said to be more")))
}

/// What each of two says to have deleted is all that was there, and nothing twice.
pub(crate) async fn two_at_once_share_the_work<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.claimed(&ids("old", 4_000)?).await?;
    harness.age(OLD).await;
    let mut both = vec![];
    for _ in 0..2 {
        let one = given.beside(harness).await;
        both.push(tokio::spawn(async move {
            let mut went = 0;
            for _ in 0..STEPS_MAX {
                let step = one.step(100, None).await?;
                if step.deleted == 0 && step.next.is_none() {
                    return Ok::<u64, CaseFailure>(went);
                }
                went += step.deleted;
            }
            Err(CaseFailure(format!("after {STEPS_MAX} steps there is said to be more")))
        }));
    }
    let mut went = 0;
    for one in both {
        let ended = tokio::time::timeout(harness.features().patience, one).await;
        went += ended.map_err(|_| CaseFailure("one of two never ended".into()))???;
    }
    // What one passed over because the other held it is left for the next.
    went += given.all_go().await?;
    same("went", &went, &4_000)
}

pub(crate) async fn an_open_claim_is_in_nobodys_way<H: PruneHarness>(harness: &H) -> CaseResult {
    if !harness.features().concurrent {
        return Ok(());
    }
    let given = Given::new(harness).await?;
    given.claimed(&ids("old", 50)?).await?;
    harness.age(OLD).await;
    let recent = ids("recent", 50)?;
    let (tx, claims) = begin(&given.store, &given.consumer, &recent).await?;
    ensure(claims.iter().all(|claim| *claim == Claim::First), || format!("{claims:?}"))?;
    let other = given.beside(harness).await;
    let step = tokio::time::timeout(harness.features().patience, other.step(100, None)).await;
    let step = step.map_err(|_| CaseFailure("deleting waits for an open transaction".into()))??;
    same("went", &step.deleted, &50)?;
    given.store.commit(tx).await?;
    claims_are(&given.claimed(&recent).await?, &"D".repeat(50))
}

pub(crate) async fn counting_deletes_nothing<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.claimed(&ids("old", 1_200)?).await?;
    harness.age(OLD).await;
    given.claimed(&ids("recent", 100)?).await?;
    for (max, count) in [(10_000, 1_200), (1_000, 1_000), (10_000, 1_200)] {
        let counted = given.store.prunable(&given.consumer, KEEP, max).await?;
        same(&format!("counted to at most {max}"), &counted, &count)?;
    }
    same("went", &given.all_go().await?, &1_200)?;
    same("counted", &given.store.prunable(&given.consumer, KEEP, 10_000).await?, &0)
}
