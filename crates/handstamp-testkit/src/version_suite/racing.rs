//! Two processes at once.

use super::{Given, Marks, VersionHarness, marks, same};
use crate::check::ensure;
use crate::store_suite::Tx;
use crate::{CaseFailure, CaseResult};
use handstamp_core::version_store::VersionStore;
use handstamp_core::{Store, StoreErrorKind};
use std::time::Duration;
use tokio::task::JoinHandle;

type Racer = JoinHandle<Result<Marks, CaseFailure>>;

/// Another process raises and commits, as often as the store asks for.
async fn racer<H: VersionHarness>(
    harness: &H,
    given: &Given<H::Store>,
    pairs: Vec<(u8, &'static str)>,
) -> Racer {
    let other = given.beside(harness).await;
    tokio::spawn(async move {
        let versions = marks(&pairs)?;
        for _ in 0..20 {
            let (mut tx, _) = super::begin(&other.store, &other.consumer, &[]).await?;
            match other.store.raise_marks(&mut tx, &other.consumer, &versions).await {
                Ok(seen) => return Ok(other.store.commit(tx).await.map(|()| seen)?),
                Err(error) if error.kind == StoreErrorKind::Conflict => other.store.abandon(tx).await,
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(CaseFailure("raising marks ended with Conflict twenty times".into()))
    })
}

async fn answer<H: VersionHarness>(harness: &H, racer: Racer) -> Result<Marks, CaseFailure> {
    let answered = tokio::time::timeout(harness.features().patience, racer).await;
    answered.map_err(|_| CaseFailure("the second process never had its answer".into()))??
}

/// One process has raised a mark from 5 to 7, and another one asks for 6 and waits.
async fn race<H: VersionHarness>(harness: &H) -> Result<(Given<H::Store>, Tx<H>, Racer), CaseFailure> {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    let (tx, _) = given.raise(&[(1, "7")]).await?;
    let racer = racer(harness, &given, vec![(1, "6")]).await;
    tokio::time::sleep(harness.features().quiet).await;
    Ok((given, tx, racer))
}

pub(crate) async fn a_racer_waits_and_is_told_the_mark<H: VersionHarness>(harness: &H) -> CaseResult {
    let (given, tx, racer) = race(harness).await?;
    ensure(!racer.is_finished(), || "the second process had its answer before the first was done".into())?;
    given.store.commit(tx).await?;
    same("the mark", &answer(harness, racer).await?, &marks(&[(1, "7")])?)?;
    given.raised(&[(1, "8")], &[(1, "7")]).await
}

pub(crate) async fn a_racer_behind_a_rollback_is_told_the_mark_before<H: VersionHarness>(
    harness: &H,
) -> CaseResult {
    let (given, tx, racer) = race(harness).await?;
    given.store.rollback(tx).await?;
    same("the mark", &answer(harness, racer).await?, &marks(&[(1, "5")])?)?;
    given.raised(&[(1, "8")], &[(1, "6")]).await
}

pub(crate) async fn keys_apart_do_not_wait<H: VersionHarness>(harness: &H) -> CaseResult {
    if !harness.features().concurrent {
        return Ok(());
    }
    let given = Given::new(harness).await?;
    let (tx, _) = given.raise(&[(1, "5"), (3, "5")]).await?;
    let racer = racer(harness, &given, vec![(2, "5"), (4, "5")]).await;
    same("marks", &answer(harness, racer).await?, &Marks::new())?;
    Ok(given.store.commit(tx).await?)
}

/// Many keys of two processes: both end, and each key has the greatest version of both.
pub(crate) async fn crossing_keys_both_end<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    for _ in 0..10 {
        let up: Vec<(u8, &'static str)> = (0..40).map(|of| (of, "2")).collect();
        let down: Vec<(u8, &'static str)> = (0..40).rev().map(|of| (of, "3")).collect();
        let (one, two) = (racer(harness, &given, up).await, racer(harness, &given, down).await);
        answer(harness, one).await?;
        answer(harness, two).await?;
    }
    let all: Vec<(u8, &str)> = (0..40).map(|of| (of, "3")).collect();
    given.raised(&all, &all).await
}
