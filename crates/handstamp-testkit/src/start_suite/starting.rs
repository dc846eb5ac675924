//! Starting: there before the claims are answered, whatever becomes of the transaction.

use super::StartHarness;
use super::given::{LANE, Process, claim_of, orphans_are};
use crate::check::{ensure, same};
use crate::store_suite::{EndInside, Tx, claim, claims_are, id, name, request};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, InboxState, Owner, Start, StartStore, Starter, Store, StoreErrorKind,
    clock,
};
use tokio::sync::oneshot;

pub(crate) async fn a_start_is_there_before_its_claims_are_answered<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let start = one.many(LANE, 10, 3);
    let (tx, claims) = one.start(&start, &[claim_of("a")?]).await?;
    claims_are(&claims, "F")?;
    let taken = if harness.features().concurrent {
        let taken = two.takes_over(&[LANE]).await?;
        one.store.rollback(tx).await?;
        taken
    } else {
        one.store.rollback(tx).await?;
        two.takes_over(&[LANE]).await?
    };
    orphans_are(&taken, &[&start])
}

pub(crate) async fn a_start_stays_whatever_becomes_of_its_transaction<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let two = Process::new(harness, "two").await?;
    let ends = ["committed", "rolled back", "abandoned", "dropped"];
    let mut starts = vec![];
    for end in ends {
        let one = Process::new(harness, "one").await?;
        starts.push(one.many(end, 10, 3));
        let (mut tx, _) = one.start(&one.many(end, 10, 3), &[claim_of(end)?]).await?;
        harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
        match end {
            "committed" => one.store.commit(tx).await?,
            "rolled back" => one.store.rollback(tx).await?,
            "abandoned" => one.store.abandon(tx).await,
            _ => drop(tx),
        }
    }
    orphans_are(&two.takes_over(&ends).await?, &starts.iter().collect::<Vec<_>>())?;
    same("the counter", &harness.counter("account").await, &5)
}

pub(crate) async fn a_start_survives_its_process<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let start = one.many(LANE, 10, 3);
    let (tx, _) = one.start(&start, &[claim_of("a")?]).await?;
    harness.restart().await;
    drop((tx, one));
    let two = Process::new(harness, "two").await?;
    orphans_are(&two.takes_over(&[LANE]).await?, &[&start])
}

pub(crate) async fn a_start_replaces_the_last_of_its_owner_and_lane<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_in(&one.many(LANE, 10, 3)).await?;
    let last = one.many(LANE, 13, 500);
    one.dies_in(&last).await?;
    orphans_are(&two.takes_over(&[LANE]).await?, &[&last])
}

pub(crate) async fn a_start_leaves_other_lanes_and_owners_alone<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    let starts = [one.many(LANE, 10, 3), two.many(LANE, 20, 4), one.many("credits/1", 30, 5)];
    one.dies_in(&starts[0]).await?;
    two.dies_in(&starts[1]).await?;
    one.dies_in(&starts[2]).await?;
    let taken = three.takes_over(&[LANE, "credits/1"]).await?;
    orphans_are(&taken, &starts.each_ref())
}

pub(crate) async fn a_start_comes_with_its_claims<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    claim(&one.store, &one.consumer, &[claim_of("a")?]).await?;
    let ids = [claim_of("b")?, claim_of("a")?, request("a", 2)?, claim_of("b")?];
    let (mut tx, claims) = one.start(&one.many(LANE, 10, 4), &ids).await?;
    claims_are(&claims, "FDRD")?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    one.store.commit(tx).await?;
    same("the counter", &harness.counter("account").await, &5)?;
    claims_are(&claim(&one.store, &one.consumer, &[claim_of("b")?]).await?, "D")?;
    // Without an id it is a start all the same.
    let (tx, claims) = one.start(&one.many(LANE, 14, 1), &[]).await?;
    one.store.commit(tx).await?;
    same("claims", &claims.len(), &0)
}

pub(crate) async fn a_start_of_an_unregistered_consumer_is_an_error<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let consumer = ConsumerKey { id: 32_000, name: name("nobody")? };
    match one.store.start_and_begin(&consumer, &[claim_of("a")?], &one.many(LANE, 10, 1)).await {
        Ok(_) => Err(CaseFailure("an unregistered consumer started".into())),
        Err(error) => same("kind", &error.kind, &StoreErrorKind::UnknownConsumer),
    }
}

/// Commits and starts as the engine does: by a start of its own where the commit opened nothing.
async fn commit_and_start<H: StartHarness>(
    process: &Process<H::Store>,
    tx: Tx<H>,
    ids: &[ClaimRequest],
    start: &Start,
) -> Result<(Tx<H>, Vec<Claim>), CaseFailure> {
    let (tell, told) = oneshot::channel();
    let next = process.store.commit_start_and_begin(tx, &process.consumer, ids, start, tell).await?;
    ensure(told.await.is_ok(), || "committed, and nobody was told".into())?;
    match next {
        Some(opened) => Ok(opened),
        None => process.start(start, ids).await,
    }
}

pub(crate) async fn a_chained_start_follows_its_commit<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let (mut tx, _) = one.start(&one.many(LANE, 0, 1), &[claim_of("a")?]).await?;
    let mut last = one.many(LANE, 0, 1);
    for round in 0..4 {
        harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
        last = one.many(LANE, 10 + round, 2);
        let ids = [claim_of("a")?, claim_of(&format!("b{round}"))?];
        let (opened, claims) = commit_and_start::<H>(&one, tx, &ids, &last).await?;
        claims_are(&claims, "DF")?;
        tx = opened;
        same("the counter", &harness.counter("account").await, &(5 * (round + 1)))?;
        if harness.features().concurrent {
            orphans_are(&two.takes_over(&[LANE]).await?, &[&last])?;
        }
    }
    one.store.rollback(tx).await?;
    if !harness.features().concurrent {
        orphans_are(&two.takes_over(&[LANE]).await?, &[&last])?;
    }
    same("the counter", &harness.counter("account").await, &20)?;
    claims_are(&claim(&one.store, &one.consumer, &[claim_of("b2")?, claim_of("b3")?]).await?, "DF")
}

/// Told at once, though the next claim waits for another process.
pub(crate) async fn durable_is_said_before_the_claims_behind_a_start<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let (tx, _) = one.start(&one.many(LANE, 0, 1), &[claim_of("a")?]).await?;
    let held = if harness.features().concurrent {
        Some(two.start(&two.many("credits/1", 0, 1), &[claim_of("b")?]).await?.0)
    } else {
        None
    };
    let (tell, told) = oneshot::channel();
    let (start, next) = (one.many(LANE, 1, 1), [claim_of("b")?]);
    let running = tokio::spawn(async move {
        let next = one.store.commit_start_and_begin(tx, &one.consumer, &next, &start, tell).await;
        (one, start, next)
    });
    // Shorter than the store waits for the other process.
    let told = tokio::time::timeout(harness.features().quiet, told).await;
    ensure(matches!(told, Ok(Ok(()))), || format!("durable was not said: {told:?}"))?;
    let state = harness.inbox_state(&name("wallet")?, &id("a")?).await;
    same("the inbox row when durable was said", &state, &Some(InboxState::Applied))?;
    let is_held = held.is_some();
    if let Some(held) = held {
        two.store.commit(held).await?;
    }
    let (one, start, next) = running.await?;
    let (tx, claims) = match next? {
        Some(opened) => opened,
        None => one.start(&start, &[claim_of("b")?]).await?,
    };
    claims_are(&claims, if is_held { "D" } else { "F" })?;
    Ok(one.store.rollback(tx).await?)
}

pub(crate) async fn a_start_behind_a_failed_commit_opens_nothing<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let mut wrong = vec![(Some(EndInside::Rollback), StoreErrorKind::TransactionEnded)];
    if harness.features().errors_abort {
        wrong.push((None, StoreErrorKind::Swallowed));
    }
    for (end, kind) in wrong {
        let (mut tx, _) = one.start(&one.many(LANE, 0, 1), &[claim_of(&format!("a {end:?}"))?]).await?;
        match end {
            Some(end) => harness.end_inside(&mut tx, end).await,
            None => drop(harness.fail(&mut tx).await),
        }
        let next = [claim_of(&format!("b {end:?}"))?];
        let (tell, told) = oneshot::channel();
        let start = one.many(LANE, 1, 1);
        match one.store.commit_start_and_begin(tx, &one.consumer, &next, &start, tell).await {
            Ok(_) => return Err(CaseFailure(format!("Ok though {kind:?} was to be said"))),
            Err(error) => same("kind", &error.kind, &kind)?,
        }
        ensure(told.await.is_err(), || "durable was said of a commit that failed".into())?;
        let quiet = harness.features().quiet;
        let claimed = tokio::time::timeout(quiet, claim(&two.store, &two.consumer, &next)).await;
        claims_are(&claimed.map_err(|_| CaseFailure("the next ids are still claimed".into()))??, "F")?;
    }
    Ok(())
}

pub(crate) async fn an_orphan_says_who_what_and_when<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "host-\u{1F4B6} '\\/7").await?;
    let two = Process::new(harness, "two").await?;
    let starts = [
        one.many("a", 1 << 40, 500),
        Start {
            by: Starter { owner: Owner::random(), node: "".into() },
            lane: "b\u{e4} '\\".into(),
            first: i64::MAX,
            last: i64::MAX,
            count: 1,
            alone: Some(id(b"em\xffpty")?),
        },
    ];
    for start in &starts {
        one.dies_in(start).await?;
    }
    let taken = two.takes_over(&starts.each_ref().map(|start| &*start.lane)).await?;
    let seen: Vec<Start> = taken.orphans.iter().map(|orphan| orphan.start.clone()).collect();
    same("orphans", &seen, &starts.to_vec())?;
    let patience = i64::try_from(harness.features().patience.as_millis())?;
    for orphan in taken.orphans {
        let (at, now) = (orphan.at, clock::now());
        let just_now = (now.0 - at.0).abs() <= patience;
        ensure(just_now, || format!("started just now, {now:?}, and said to have been at {at:?}"))?;
    }
    Ok(())
}
