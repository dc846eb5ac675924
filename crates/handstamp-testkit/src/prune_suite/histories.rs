//! Failed attempts of messages that came to their end.

use super::{Given, KEEP, OLD, PruneHarness};
use crate::check::same;
use crate::parking_suite::given::{again, dead, due, failed};
use crate::store_suite::register;
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, FailedAttempt, ParkingStore, Resumed};
use handstamp_core::{PruneStore, clock};
use std::time::Duration;

/// Parks a message, which is old, with an attempt that is.
async fn parked<S: PruneStore + ParkingStore>(given: &Given<S>, message: &str) -> Result<Dedup, CaseFailure> {
    let keys = given.parked(&[due(message)?]).await?;
    noted(given, &keys[0], failed(1)).await?;
    Ok(keys[0])
}

async fn noted<S: PruneStore + ParkingStore>(
    given: &Given<S>,
    key: &Dedup,
    attempt: FailedAttempt,
) -> CaseResult {
    let (mut tx, _) = crate::store_suite::begin(&given.store, &given.consumer, &[]).await?;
    given.store.note_attempts(&mut tx, &given.consumer, &[(*key, attempt)]).await?;
    Ok(given.store.commit(tx).await?)
}

/// Says what became of everything that is due.
async fn ends<S: PruneStore + ParkingStore>(given: &Given<S>, outcome: &Resumed) -> CaseResult {
    let taken = given.store.take_due(&given.consumer, 100).await?;
    let (mut tx, rows) =
        taken.ok_or_else(|| CaseFailure("nothing is due, though something must be".into()))?;
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, outcome.clone())).collect();
    given.store.resume(&mut tx, &given.consumer, &outcomes).await?;
    Ok(given.store.commit(tx).await?)
}

pub(crate) async fn old_histories_go<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = register(&given.store, "stock").await?;
    let mut keys = vec![];
    for n in 0..5 {
        keys.push(parked(&given, &format!("applied-{n}")).await?);
    }
    ends(&given, &Resumed::Applied).await?;
    let stock = Given { store: harness.open().await, consumer: other };
    let theirs = parked(&stock, "theirs").await?;
    ends(&stock, &Resumed::Applied).await?;
    harness.age(OLD).await;
    let mut went = vec![];
    for _ in 0..4 {
        went.push(given.store.prune_attempts(&given.consumer, KEEP, 2).await?);
    }
    same("went", &went, &vec![2, 2, 1, 0])?;
    for key in &keys {
        same("history", &harness.attempts(&given.consumer.name, key).await.len(), &0)?;
    }
    same("history of another consumer", &harness.attempts(&stock.consumer.name, &theirs).await.len(), &1)
}

pub(crate) async fn histories_of_what_waits_stay<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let gave_up = parked(&given, "dead").await?;
    ends(&given, &dead(2, true)).await?;
    let waits = parked(&given, "waits").await?;
    ends(&given, &again(Duration::from_secs(3_600), 2)).await?;
    harness.age(OLD).await;
    same("went", &given.store.prune_attempts(&given.consumer, KEEP, 100).await?, &0)?;
    for key in [gave_up, waits] {
        same("history", &harness.attempts(&given.consumer.name, &key).await.len(), &2)?;
    }
    Ok(())
}

pub(crate) async fn recent_histories_stay<H: PruneHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let key = given.parked(&[due("applied")?]).await?[0];
    noted(&given, &key, FailedAttempt { at: clock::now(), ..failed(1) }).await?;
    ends(&given, &Resumed::Applied).await?;
    same("went", &given.store.prune_attempts(&given.consumer, KEEP, 100).await?, &0)?;
    same("history", &harness.attempts(&given.consumer.name, &key).await.len(), &1)
}
