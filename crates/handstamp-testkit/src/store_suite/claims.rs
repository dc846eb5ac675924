//! Claims of one process after another, and registering.

use super::{StoreHarness, begin, claim, claims_are, name, register, request};
use crate::check::{ensure, same};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, Fingerprint, InboxState, Store, StoreErrorKind, clock,
};

pub(crate) async fn a_new_id_is_first_and_then_a_duplicate<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let before = clock::now().0 / 1_000;
    claims_are(&claim(&store, &consumer, &[request("a", 1)?]).await?, "F")?;
    let again = claim(&store, &consumer, &[request("a", 1)?]).await?;
    claims_are(&again, "D")?;
    let Claim::Duplicate { state, first_seen } = again[0] else { return Ok(()) };
    same("state", &state, &InboxState::Applied)?;
    let seen = first_seen.0 / 1_000;
    let now = clock::now().0 / 1_000;
    // A second of slack: stores keep whole seconds of their own clock.
    ensure((before - 1..=now + 1).contains(&seen), || format!("first seen at {seen} s, it is {now} s"))
}

pub(crate) async fn claims_answer_in_the_order_asked<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    claim(&store, &consumer, &[request("b", 1)?, request("z", 1)?]).await?;
    let ids = ["z", "c", "a", "b", "y"].map(|id| request(id, 1));
    let ids = ids.into_iter().collect::<Result<Vec<ClaimRequest>, CaseFailure>>()?;
    claims_are(&claim(&store, &consumer, &ids).await?, "DFFDF")
}

pub(crate) async fn a_twin_in_one_call_is_a_duplicate<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let ids = [request("a", 1)?, request("b", 1)?, request("a", 1)?, request("a", 2)?];
    let claims = claim(&store, &consumer, &ids).await?;
    claims_are(&claims[..3], "FFD")?;
    // With another body the twin is no redelivery.
    ensure(claims[3] != Claim::First, || "the same id was First twice in one call".into())
}

pub(crate) async fn another_body_is_a_reused_id<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    claim(&store, &consumer, &[request("a", 1)?, request("b", i64::MIN)?]).await?;
    let mut unknown = request("a", 0)?;
    unknown.digest = None;
    let ids = [request("a", 2)?, request("b", i64::MIN)?, unknown];
    claims_are(&claim(&store, &consumer, &ids).await?, "RDD")
}

pub(crate) async fn ids_are_scoped_by_consumer<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let wallet = register(&store, "wallet").await?;
    let mail = register(&store, "mail").await?;
    claims_are(&claim(&store, &wallet, &[request("a", 1)?]).await?, "F")?;
    claims_are(&claim(&store, &mail, &[request("a", 2)?]).await?, "F")
}

pub(crate) async fn an_empty_batch_commits<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (mut tx, claims) = begin(&store, &consumer, &[]).await?;
    claims_are(&claims, "")?;
    let recorded = store.record(&mut tx, &consumer, &[]).await?;
    ensure(recorded.is_empty(), || "answers without rows".into())?;
    Ok(store.commit(tx).await?)
}

pub(crate) async fn five_thousand_ids_in_one_batch<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let ids = |from: usize, to: usize| -> Result<Vec<ClaimRequest>, CaseFailure> {
        (from..to).map(|n| request(format!("id-{n:06}-with-a-longer-tail"), 1)).collect()
    };
    claims_are(&claim(&store, &consumer, &ids(0, 5_000)?).await?, &"F".repeat(5_000))?;
    let expected = format!("{}{}", "D".repeat(2_500), "F".repeat(2_500));
    claims_are(&claim(&store, &consumer, &ids(2_500, 7_500)?).await?, &expected)
}

/// A store may claim otherwise where it expects known ids: the answers must not depend on what came before.
pub(crate) async fn answers_after_a_replay_are_the_same<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let requests = |ids: &[(&str, i64)]| -> Result<Vec<ClaimRequest>, CaseFailure> {
        ids.iter().map(|(id, digest)| request(id, *digest)).collect()
    };
    let old = requests(&[("d", 1), ("b", 1), ("a", 1), ("c", 1)])?;
    let replayed = async || -> CaseResult {
        claims_are(&claim(&store, &consumer, &old).await?, "DDDD")?;
        claims_are(&claim(&store, &consumer, &old).await?, "DDDD")
    };
    claims_are(&claim(&store, &consumer, &old).await?, "FFFF")?;
    replayed().await?;
    let mixed = requests(&[("z", 1), ("b", 1), ("y", 1), ("c", 2), ("z", 1), ("a", 1)])?;
    let (tx, claims) = begin(&store, &consumer, &mixed).await?;
    claims_are(&claims, "FDFRDD")?;
    store.abandon(tx).await;
    replayed().await?;
    claims_are(&claim(&store, &consumer, &mixed).await?, "FDFRDD")?;
    claims_are(&claim(&store, &consumer, &mixed).await?, "DDDRDD")?;
    replayed().await?;
    claims_are(&claim(&store, &consumer, &requests(&[("n", 1), ("m", 1)])?).await?, "FF")?;
    replayed().await?;
    let stranger = ConsumerKey { id: 31_998, name: name("stranger")? };
    match store.begin(&stranger, &old).await {
        Ok((_, claims)) => Err(CaseFailure(format!("an unregistered consumer got {claims:?}"))),
        Err(error) => same("kind", &error.kind, &StoreErrorKind::UnknownConsumer),
    }
}

pub(crate) async fn registering_again_gives_the_same_key<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let first = register(&store, "wallet").await?;
    let other = register(&store, "mail").await?;
    let again = register(&harness.open().await, "wallet").await?;
    same("the key", &again, &first)?;
    ensure(other.id != first.id, || "two names share a number".into())
}

pub(crate) async fn another_fingerprint_is_refused<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    register(&store, "wallet").await?;
    match store.register(&name("wallet")?, &Fingerprint("another".into()), false).await {
        Ok(_) => Err(CaseFailure("another fingerprint was taken".into())),
        Err(error) => same("kind", &error.kind, &StoreErrorKind::FingerprintMismatch),
    }
}

pub(crate) async fn another_fingerprint_can_be_adopted<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let first = register(&store, "wallet").await?;
    let another = Fingerprint("another".into());
    let adopted = store.register(&name("wallet")?, &another, true).await?;
    same("the key", &adopted, &first)?;
    // From now on it is the consumer's own.
    same("the key", &store.register(&name("wallet")?, &another, false).await?, &first)
}

pub(crate) async fn an_unregistered_consumer_is_an_error<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    register(&store, "wallet").await?;
    let stranger = ConsumerKey { id: 31_999, name: name("stranger")? };
    match store.begin(&stranger, &[request("a", 1)?]).await {
        Ok((_, claims)) => Err(CaseFailure(format!("an unregistered consumer got {claims:?}"))),
        Err(error) => same("kind", &error.kind, &StoreErrorKind::UnknownConsumer),
    }
}
