//! One process: what a mark is, and whose.

use super::{Given, VersionHarness, begin, key, marks, register, same, version};
use crate::store_suite::EndInside;
use crate::{CaseFailure, CaseResult};
use handstamp_core::version_store::VersionStore;
use handstamp_core::{Store, VersionKey};
use std::collections::BTreeMap;

pub(crate) async fn the_first_version_of_a_key_has_no_mark_before_it<H: VersionHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    given.raised(&[(1, "6"), (2, "1")], &[(1, "5")]).await
}

pub(crate) async fn a_mark_never_goes_down<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    for lower in ["4", "5", "-7", "0"] {
        given.raised(&[(1, lower)], &[(1, "5")]).await?;
    }
    given.raised(&[(1, "6")], &[(1, "5")]).await
}

pub(crate) async fn another_kind_leaves_the_mark_alone<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let time = "2026-01-31T12:00:00Z";
    given.raised(&[(1, "5"), (2, time)], &[]).await?;
    given.raised(&[(1, time), (2, "5")], &[(1, "5"), (2, time)]).await?;
    given.raised(&[(1, "6"), (2, "2026-01-31T12:00:01Z")], &[(1, "5"), (2, time)]).await
}

pub(crate) async fn marks_keep_every_byte<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let long = format!("1.{}1", "0".repeat(900));
    let numbers = [
        "-123456789012345678901234567890.5",
        "-0.1",
        "0",
        "1e-300",
        "0.30000000000000004",
        "1",
        &long,
        "9007199254740992",
        "9007199254740993",
        "340282366920938463463374607431768211455",
        "1e400",
    ];
    let times = [
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999999Z",
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00.000000000001Z",
        "9999-12-31T23:59:59Z",
    ];
    for (of, rising) in [(1, &numbers[..]), (2, &times[..])] {
        let mut before: Vec<(u8, &str)> = vec![];
        for text in rising {
            given.raised(&[(of, text)], &before).await?;
            before = vec![(of, text)];
        }
    }
    Ok(())
}

pub(crate) async fn each_key_has_its_own_mark<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let many = |add: u32| -> Result<BTreeMap<VersionKey, handstamp_core::Version>, CaseFailure> {
        let of = |number: u32| {
            // The others differ in their last byte.
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            Ok((VersionKey(bytes), version(&(number * 7 % 1_000 + add).to_string())?))
        };
        (0..1_500).map(of).collect()
    };
    for (add, before) in [(0, None), (1, Some(0)), (2, Some(1))] {
        let (mut tx, _) = begin(&given.store, &given.consumer, &[]).await?;
        let seen = given.store.raise_marks(&mut tx, &given.consumer, &many(add)?).await?;
        given.store.commit(tx).await?;
        let expected = before.map_or_else(|| Ok(BTreeMap::new()), &many)?;
        crate::check::ensure(seen == expected, || {
            let wrong = seen.iter().find(|(key, mark)| expected.get(key) != Some(mark));
            format!("marks of 1,500 keys: {} of {}, {wrong:?}", seen.len(), expected.len())
        })?;
    }
    let pairs: Vec<(u8, &str)> = (0..=255).map(|of| (of, "1")).collect();
    given.raised(&pairs, &[]).await?;
    given.raised(&[(9, "2")], &[(9, "1")]).await?;
    given.raised(&[(8, "2"), (9, "3"), (10, "2")], &[(8, "1"), (9, "2"), (10, "1")]).await
}

pub(crate) async fn consumers_have_their_own_marks<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    let consumer = register(&given.store, "stock").await?;
    let other = Given { store: given.store, consumer };
    other.raised(&[(1, "3")], &[]).await
}

pub(crate) async fn a_rollback_takes_marks_back<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    let (tx, _) = given.raise(&[(1, "7"), (2, "7")]).await?;
    given.store.rollback(tx).await?;
    given.raised(&[(1, "6"), (2, "6")], &[(1, "5")]).await
}

pub(crate) async fn a_transaction_that_is_given_up_raises_nothing<H: VersionHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    let (tx, _) = given.raise(&[(1, "7")]).await?;
    drop(tx);
    let (tx, seen) = given.raise(&[(1, "8")]).await?;
    same("the mark behind a dropped transaction", &seen, &marks(&[(1, "5")])?)?;
    given.store.abandon(tx).await;
    given.raised(&[(1, "6")], &[(1, "5")]).await
}

pub(crate) async fn a_transaction_sees_its_own_marks<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    let (mut tx, _) = given.raise(&[(1, "7"), (2, "7")]).await?;
    let again = marks(&[(1, "6"), (2, "8")])?;
    let seen = given.store.raise_marks(&mut tx, &given.consumer, &again).await?;
    given.store.commit(tx).await?;
    same("marks the second time", &seen, &marks(&[(1, "7"), (2, "7")])?)?;
    given.raised(&[(1, "9"), (2, "9")], &[(1, "7"), (2, "8")]).await
}

pub(crate) async fn marks_come_with_the_effect<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let (mut tx, _) = given.raise(&[(1, "5")]).await?;
    harness.add(&mut tx, "balance", 5).await.map_err(|e| CaseFailure(e.to_string()))?;
    given.store.commit(tx).await?;
    same("the counter", &harness.counter("balance").await, &5)?;
    given.raised(&[(1, "6")], &[(1, "5")]).await
}

pub(crate) async fn marks_survive_a_restart<H: VersionHarness>(harness: &H) -> CaseResult {
    {
        let given = Given::new(harness).await?;
        given.raised(&[(1, "5")], &[]).await?;
        harness.restart().await;
    }
    let given = Given::new(harness).await?;
    given.raised(&[(1, "6")], &[(1, "5")]).await
}

pub(crate) async fn a_transaction_the_handler_ended_raises_nothing<H: VersionHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    for how in [EndInside::Commit, EndInside::Rollback] {
        let (mut tx, _) = begin(&given.store, &given.consumer, &[]).await?;
        harness.end_inside(&mut tx, how).await;
        // Refused here or at the commit, as the store can tell.
        let raised = given.store.raise_marks(&mut tx, &given.consumer, &marks(&[(1, "5")])?).await;
        if raised.is_ok() {
            // Its own case asks what the commit says.
            let _ = given.store.commit(tx).await;
        } else {
            given.store.abandon(tx).await;
        }
    }
    given.raised(&[(1, "6")], &[]).await
}

pub(crate) async fn nothing_to_raise_answers_nothing<H: VersionHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.raised(&[(1, "5")], &[]).await?;
    given.raised(&[], &[]).await?;
    let (tx, seen) = given.raise(&[(2, "5")]).await?;
    given.store.rollback(tx).await?;
    same("marks of another key", &seen.contains_key(&key(1)), &false)
}
