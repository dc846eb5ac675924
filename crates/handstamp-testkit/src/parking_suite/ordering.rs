//! Order of a key: one after the other, in the order of parking, and only they.

use super::given::{Given, again, behind, claims_of, dead, due, of_key};
use super::{
    HOUR, ParkingHarness, nothing_is_due, parked_count, resume, retry, sorted_ids_of, strings, take,
};
use crate::check::{ensure, same};
use crate::store_suite::{begin, claims_are, request};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{OrderKey, ParkingStore, Resumed};
use handstamp_core::{Claim, Store};
use std::time::Duration;

pub(crate) async fn only_the_first_of_a_key_is_due<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let rows = [of_key("a1", 1)?, behind("a2", 1)?, of_key("b1", 2)?, due("n")?, of_key("a3", 1)?];
    given.parked_each(&rows).await?;
    given.parked_each(&[behind("b2", 2)?]).await?;
    let (tx, taken) = take(&given.store, &given.consumer, 10).await?;
    same("taken", &sorted_ids_of(&taken), &strings(&["a1", "b1", "n"]))?;
    if harness.features().concurrent {
        let other = given.beside(harness).await;
        nothing_is_due(&other.store, &other.consumer, "while the first of its key is taken").await?;
    }
    Ok(given.store.commit(tx).await?)
}

pub(crate) async fn a_key_waits_for_its_first<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mut first = of_key("a", 1)?;
    first.wait = HOUR;
    given.parked_each(&[first, behind("b", 1)?]).await?;
    nothing_is_due(&given.store, &given.consumer, "though the first of its key waits").await?;
    same("rows", &parked_count(&given.store, &given.consumer).await?, &2)
}

pub(crate) async fn the_next_of_a_key_follows_the_first<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.parked_each(&[of_key("a", 1)?, behind("b", 1)?, behind("c", 1)?, behind("d", 1)?]).await?;
    let outcomes =
        [("a", Resumed::Applied), ("b", dead(1, true)), ("c", dead(2, false)), ("d", Resumed::Applied)];
    for (of, outcome) in outcomes {
        retry(&given.store, &given.consumer, of, outcome).await?;
    }
    nothing_is_due(&given.store, &given.consumer, "and nothing was left").await
}

pub(crate) async fn a_first_that_fails_again_stays_first<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.parked_each(&[of_key("a", 1)?, behind("b", 1)?]).await?;
    retry(&given.store, &given.consumer, "a", again(Duration::ZERO, 1)).await?;
    retry(&given.store, &given.consumer, "a", again(HOUR, 2)).await?;
    nothing_is_due(&given.store, &given.consumer, "though the first of its key waits").await
}

pub(crate) async fn the_order_of_a_key_is_the_order_of_parking<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let calls = [["m", "z", "a", "q", "b", "y"], ["0", "x", "c", "9", "w", "d"]];
    for ids in calls {
        let rows = ids.map(|id| of_key(id, 1)).into_iter().collect::<Result<Vec<_>, CaseFailure>>()?;
        given.parked(&rows).await?;
    }
    for of in calls.concat() {
        retry(&given.store, &given.consumer, of, Resumed::Applied).await?;
    }
    Ok(())
}

pub(crate) async fn parked_keys_answer_in_the_order_asked<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.parked(&[of_key("a", 1)?]).await?;
    let rows = [of_key("b", 2)?, due("c")?];
    let (mut tx, _) = begin(&given.store, &given.consumer, &claims_of(&rows)).await?;
    given.store.park(&mut tx, &given.consumer, &rows).await?;
    let keys = [3, 1, 2, 1, 3, 2].map(|key| OrderKey([key; 16]));
    let seen = given.store.parked_keys(&mut tx, &given.consumer, &keys).await?;
    let none = given.store.parked_keys(&mut tx, &given.consumer, &[]).await?;
    given.store.rollback(tx).await?;
    same("parked keys", &seen, &vec![false, true, true, true, false, true])?;
    same("answers without a key", &none, &vec![])
}

/// Another process parks a message of the key while the claim of this one waits for it: what comes behind
/// it must not overtake it.
pub(crate) async fn parked_keys_see_what_a_waiting_claim_let_pass<H: ParkingHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    let other = given.beside(harness).await;
    let rows = [of_key("a", 1)?];
    let (mut tx, _) = begin(&given.store, &given.consumer, &claims_of(&rows)).await?;
    let ids = [claims_of(&rows).remove(0), request("b", 1)?];
    let racer = tokio::spawn(async move {
        let (mut tx, claims) = begin(&other.store, &other.consumer, &ids).await?;
        let keys = [OrderKey([1; 16]), OrderKey([2; 16])];
        let keys = other.store.parked_keys(&mut tx, &other.consumer, &keys).await?;
        other.store.rollback(tx).await?;
        Ok::<(Vec<Claim>, Vec<bool>), CaseFailure>((claims, keys))
    });
    tokio::time::sleep(harness.features().quiet).await;
    ensure(!racer.is_finished(), || "the second claimer did not wait for the first".into())?;
    given.store.park(&mut tx, &given.consumer, &rows).await?;
    given.store.commit(tx).await?;
    let answered = tokio::time::timeout(harness.features().patience, racer).await;
    let (claims, keys) = answered.map_err(|_| CaseFailure("the claim never had its answer".into()))???;
    claims_are(&claims, "DF")?;
    same("parked keys", &keys, &vec![true, false])
}

pub(crate) async fn parked_keys_end_with_their_messages<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    given.parked_each(&[of_key("a", 1)?, behind("b", 1)?]).await?;
    let (a, b) = (of_key("a", 1)?.letter.dedup(), behind("b", 1)?.letter.dedup());
    let outcomes = [(a, again(Duration::ZERO, 1)), (a, dead(2, true)), (b, Resumed::Applied)];
    let mut seen = vec![];
    for outcome in outcomes {
        let (tx, _) = given.store.take_again(&given.consumer, &[outcome.0]).await?;
        resume(&given.store, tx, &given.consumer, &[outcome]).await?;
        let (mut tx, _) = begin(&given.store, &given.consumer, &[]).await?;
        seen.extend(given.store.parked_keys(&mut tx, &given.consumer, &[OrderKey([1; 16])]).await?);
        given.store.rollback(tx).await?;
    }
    same("whether the key is parked", &seen, &vec![true, true, false])
}
