//! How a transaction ends, and what is durable then.

use super::{EndInside, StoreHarness, begin, claim, claims_are, id, name, register, request};
use crate::check::{ensure, same};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{InboxState, Store, StoreErrorKind};

pub(crate) async fn effects_come_with_the_commit<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    store.commit(tx).await?;
    same("the counter", &harness.counter("account").await, &5)?;
    let state = harness.inbox_state(&name("wallet")?, &id("a")?).await;
    same("the inbox row", &state, &Some(InboxState::Applied))
}

pub(crate) async fn a_rollback_takes_effects_and_claims_back<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    store.rollback(tx).await?;
    same("the counter", &harness.counter("account").await, &0)?;
    claims_are(&claim(&store, &consumer, &[request("a", 1)?]).await?, "F")
}

pub(crate) async fn a_dropped_transaction_takes_everything_back<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    drop(tx);
    let patience = harness.features().patience;
    let claimed = tokio::time::timeout(patience, claim(&store, &consumer, &[request("a", 1)?])).await;
    let claimed = claimed.map_err(|_| CaseFailure("the dropped transaction still holds its claim".into()))?;
    claims_are(&claimed?, "F")?;
    same("the counter", &harness.counter("account").await, &0)
}

pub(crate) async fn an_abandoned_transaction_is_free_at_once<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let other = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    store.abandon(tx).await;
    let quiet = harness.features().quiet;
    let claimed = tokio::time::timeout(quiet, claim(&other, &consumer, &[request("a", 1)?])).await;
    let claimed =
        claimed.map_err(|_| CaseFailure("the abandoned transaction still holds its claim".into()))?;
    claims_are(&claimed?, "F")?;
    same("the counter", &harness.counter("account").await, &0)
}

pub(crate) async fn what_is_committed_survives_a_restart<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    claim(&store, &consumer, &[request("a", 1)?]).await?;
    let (tx, _) = begin(&store, &consumer, &[request("open", 1)?]).await?;
    harness.restart().await;
    drop(tx);
    drop(store);
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    claims_are(&claim(&store, &consumer, &[request("a", 1)?, request("open", 1)?]).await?, "DF")
}

pub(crate) async fn a_transaction_the_handler_ended_is_detected<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    for how in [EndInside::Commit, EndInside::Rollback] {
        let (mut tx, _) = begin(&store, &consumer, &[request(format!("{how:?}"), 1)?]).await?;
        harness.end_inside(&mut tx, how).await;
        match store.commit(tx).await {
            Ok(()) => return Err(CaseFailure(format!("commit said Ok after the handler's {how:?}"))),
            Err(error) => same("kind", &error.kind, &StoreErrorKind::TransactionEnded)?,
        }
    }
    Ok(())
}

pub(crate) async fn a_swallowed_error_commits_nothing<H: StoreHarness>(harness: &H) -> CaseResult {
    if !harness.features().errors_abort {
        return Ok(());
    }
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    harness.fail(&mut tx).await;
    match store.commit(tx).await {
        Ok(()) => return Err(CaseFailure("commit said Ok after a swallowed error".into())),
        Err(error) => same("kind", &error.kind, &StoreErrorKind::Swallowed)?,
    }
    claims_are(&claim(&store, &consumer, &[request("a", 1)?]).await?, "F")
}

pub(crate) async fn an_error_of_a_statement_is_classified<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, _) = begin(&store, &consumer, &[request("a", 1)?]).await?;
    let error = harness.fail(&mut tx).await;
    let fault = store.classify(&tx, &*error);
    let wrapped = Wrapped(error);
    let behind = store.classify(&tx, &wrapped);
    let foreign = store.classify(&tx, &std::fmt::Error);
    store.rollback(tx).await?;
    same("kind", &fault.as_ref().map(|fault| fault.kind), &Some(StoreErrorKind::Statement))?;
    ensure(fault.as_ref().is_some_and(|fault| fault.code.is_some()), || "no code".into())?;
    same("the same error behind another", &behind, &fault)?;
    same("an error that is no database's", &foreign, &None)
}

/// An error of the handler's own around the driver's.
#[derive(Debug, thiserror::Error)]
#[error("the handler failed")]
struct Wrapped(#[source] handstamp_core::BoxError);
