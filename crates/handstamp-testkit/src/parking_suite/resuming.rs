//! What became of a message: with its effect, its inbox row and its history, or not at all.

use super::given::{Given, after, again, behind, claims_of, dead, due, failed, failure_of, letter};
use super::{HOUR, ParkingHarness, history_is, look, nothing_is_due, parked_count, resume, retry, take};
use crate::check::{ensure, same};
use crate::store_suite::letters::{bare_letter, empty_letter};
use crate::store_suite::{EndInside, begin, claim, id, name};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, Park, ParkedMessage, ParkingStore, Resumed};
use handstamp_core::{Claim, DeadLetter, InboxState, Store, StoreErrorKind};
use std::time::Duration;

async fn inbox_is<H: ParkingHarness>(harness: &H, of: &str, expected: InboxState) -> CaseResult {
    let state = harness.inbox_state(&name("wallet")?, &id(of)?).await;
    same(&format!("the inbox row of {of}"), &state, &Some(expected))
}

/// The committed dead letter of an id.
pub(super) async fn dead_letter_of<H: ParkingHarness>(
    harness: &H,
    of: &str,
) -> Result<DeadLetter, CaseFailure> {
    let wanted = Some(id(of)?);
    let kept = harness.dead_letters(&name("wallet")?).await;
    let found = kept.into_iter().find(|letter| letter.id == wanted);
    found.ok_or_else(|| CaseFailure(format!("there is no dead letter of {of}")))
}

pub(crate) async fn applied_comes_with_the_effect<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let row = due("a")?;
    given.parked(std::slice::from_ref(&row)).await?;
    let (mut tx, rows) = take(&given.store, &given.consumer, 10).await?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    resume(&given.store, tx, &given.consumer, &[(rows[0].dedup, Resumed::Applied)]).await?;
    same("the counter", &harness.counter("account").await, &5)?;
    inbox_is(harness, "a", InboxState::Applied).await?;
    same("rows", &parked_count(&given.store, &given.consumer).await?, &0)?;
    same("dead letters", &harness.dead_letters(&name("wallet")?).await.len(), &0)?;
    nothing_is_due(&given.store, &given.consumer, "and was applied").await?;
    let again = claim(&given.store, &given.consumer, &claims_of(&[row])).await?;
    let applied = matches!(again[0], Claim::Duplicate { state: InboxState::Applied, .. });
    ensure(applied, || format!("its redelivery was answered {:?}", again[0]))
}

pub(crate) async fn a_rollback_takes_every_outcome_back<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let ids = ["a", "b", "c"];
    let parked = ids.map(due).into_iter().collect::<Result<Vec<Park>, CaseFailure>>()?;
    let keys = given.parked(&parked).await?;
    let before = harness.inbox_state(&name("wallet")?, &id("a")?).await;
    let (mut tx, rows) = take(&given.store, &given.consumer, 10).await?;
    harness.add(&mut tx, "account", 5).await.map_err(|error| CaseFailure(error.to_string()))?;
    let outcomes = [Resumed::Applied, again(HOUR, 1), dead(2, true)];
    let outcomes: Vec<_> = rows.iter().map(|row| row.dedup).zip(outcomes).collect();
    same("taken", &outcomes.len(), &3)?;
    given.store.resume(&mut tx, &given.consumer, &outcomes).await?;
    given.store.rollback(tx).await?;
    same("the counter", &harness.counter("account").await, &0)?;
    same("dead letters", &harness.dead_letters(&name("wallet")?).await.len(), &0)?;
    for (of, key) in ids.iter().zip(&keys) {
        let state = harness.inbox_state(&name("wallet")?, &id(of)?).await;
        same("the inbox row", &state, &before)?;
        history_is(harness, key, &[]).await?;
    }
    for (key, row) in keys.iter().zip(parked) {
        let seen = letters_of(look(&given.store, &given.consumer, &[*key]).await?);
        same("the failures", &seen.iter().map(failure_of).collect(), &vec![failure_of(&row.letter)])?;
    }
    Ok(())
}

fn letters_of(rows: Vec<ParkedMessage>) -> Vec<DeadLetter> {
    rows.into_iter().map(|row| row.letter).collect()
}

pub(crate) async fn a_retry_that_fails_again_is_due_later<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let keys = given.parked(&[due("a")?]).await?;
    let before = look(&given.store, &given.consumer, &keys).await?;
    let quiet = harness.features().quiet;
    tokio::time::sleep(quiet).await;
    retry(&given.store, &given.consumer, "a", again(Duration::ZERO, 1)).await?;
    retry(&given.store, &given.consumer, "a", again(HOUR, 2)).await?;
    nothing_is_due(&given.store, &given.consumer, "an hour too early").await?;
    inbox_is(harness, "a", InboxState::Parked).await?;
    let after = look(&given.store, &given.consumer, &keys).await?;
    same("rows", &(before.len(), after.len()), &(1, 1))?;
    same("since when it is parked", &after[0].parked_at, &before[0].parked_at)?;
    let ages = (before[0].parked_for, after[0].parked_for);
    // Stores keep whole milliseconds.
    let older = ages.1 + Duration::from_millis(2) >= ages.0 + quiet;
    ensure(older, || format!("{quiet:?} later it is not so much older: {ages:?}"))
}

pub(crate) async fn a_retry_that_fails_again_says_why<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mut parked = due("a")?;
    parked.letter.attempts = 3;
    let keys = given.parked(std::slice::from_ref(&parked)).await?;
    for number in 1..=3_u16 {
        retry(&given.store, &given.consumer, "a", again(Duration::ZERO, number)).await?;
        let seen = letters_of(look(&given.store, &given.consumer, &keys).await?);
        let expected = after(&parked.letter, &failed(number), 3 + u32::from(number));
        same("the message", &seen, &vec![expected])?;
    }
    history_is(harness, &keys[0], &[failed(1), failed(2), failed(3)]).await
}

pub(crate) async fn a_message_that_is_given_up_is_a_dead_letter<H: ParkingHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    let letters = [letter("full")?, bare_letter("bare")?, empty_letter("empty")?];
    let park = |letter| Park { letter, wait: Duration::ZERO, order_key: None };
    let rows: Vec<Park> = letters.iter().cloned().map(park).collect();
    given.parked(&rows).await?;
    let (tx, taken) = take(&given.store, &given.consumer, 10).await?;
    let outcomes: Vec<_> = taken.iter().map(|row| (row.dedup, dead(7, true))).collect();
    resume(&given.store, tx, &given.consumer, &outcomes).await?;
    for (of, letter) in ["full", "bare", "empty"].into_iter().zip(&letters) {
        inbox_is(harness, of, InboxState::Dead).await?;
        let kept = dead_letter_of(harness, of).await?;
        same("headers", &kept.record.headers, &letter.record.headers)?;
        same("its bytes", &kept.record, &letter.record)?;
        same("its reason", &(kept.class, kept.reason), &(failed(7).class, failed(7).reason))?;
        same("its code and time", &(kept.code, kept.failed_at), &(failed(7).code, failed(7).at))?;
        same("when it was received", &kept.received_at, &letter.received_at)?;
    }
    same("rows", &parked_count(&given.store, &given.consumer).await?, &0)?;
    let again = claim(&given.store, &given.consumer, &claims_of(&rows)).await?;
    let dead = |claim: &Claim| matches!(claim, Claim::Duplicate { state: InboxState::Dead, .. });
    ensure(again.iter().all(dead), || format!("their redelivery was answered {again:?}"))
}

pub(crate) async fn giving_up_counts_what_was_an_attempt<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let mut waiting = behind("waiting", 1)?;
    waiting.order_key = None;
    let keys = given.parked(&[due("tried")?, due("not tried")?, waiting]).await?;
    let (tx, _) = take(&given.store, &given.consumer, 10).await?;
    let outcomes = [(keys[0], dead(1, true)), (keys[1], dead(2, false)), (keys[2], dead(3, true))];
    resume(&given.store, tx, &given.consumer, &outcomes).await?;
    for (of, attempts) in [("tried", 4), ("not tried", 3), ("waiting", 1)] {
        let kept = dead_letter_of(harness, of).await?.attempts;
        same(&format!("attempts of {of}"), &kept, &attempts)?;
    }
    history_is(harness, &keys[0], &[failed(1)]).await?;
    history_is(harness, &keys[1], &[]).await?;
    history_is(harness, &keys[2], &[failed(3)]).await
}

pub(crate) async fn outcomes_find_their_rows<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let rows = (0..240).map(|n| due(&format!("id-{n}"))).collect::<Result<Vec<Park>, CaseFailure>>()?;
    let keys = given.parked(&rows).await?;
    let (tx, taken) = take(&given.store, &given.consumer, 1_000).await?;
    same("taken", &taken.len(), &240)?;
    let outcome_of = |n: usize| match n % 3 {
        0 => Resumed::Applied,
        1 => again(HOUR, 1),
        _ => dead(2, true),
    };
    // In an order that is nobody's: 240 and 77 have no common factor.
    let order = (0..240).map(|turn| turn * 77 % 240);
    let outcomes: Vec<(Dedup, Resumed)> = order.map(|n| (keys[n], outcome_of(n))).collect();
    resume(&given.store, tx, &given.consumer, &outcomes).await?;
    for n in (0..30).step_by(3) {
        inbox_is(harness, &format!("id-{n}"), InboxState::Applied).await?;
        inbox_is(harness, &format!("id-{}", n + 2), InboxState::Dead).await?;
    }
    same("rows", &parked_count(&given.store, &given.consumer).await?, &80)?;
    same("dead letters", &harness.dead_letters(&name("wallet")?).await.len(), &80)
}

/// What a message looks like to others: its inbox row, and its failure where it is parked.
async fn look_of<H: ParkingHarness>(
    harness: &H,
    given: &Given<H::Store>,
    row: &Park,
) -> Result<impl PartialEq + std::fmt::Debug + use<H>, CaseFailure> {
    let of = row.letter.id.clone().ok_or_else(|| CaseFailure("no id".into()))?;
    let state = harness.inbox_state(&name("wallet")?, &of).await;
    let seen = look(&given.store, &given.consumer, &[row.letter.dedup()]).await?;
    Ok((state, seen.iter().map(|row| failure_of(&row.letter)).collect::<Vec<_>>()))
}

pub(crate) async fn a_retry_the_handler_ended_resumes_nothing<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    for how in [EndInside::Commit, EndInside::Rollback] {
        for (n, outcome) in [Resumed::Applied, again(HOUR, 1), dead(2, true)].into_iter().enumerate() {
            let row = due(&format!("{how:?}-{n}"))?;
            given.parked(std::slice::from_ref(&row)).await?;
            let before = look_of(harness, &given, &row).await?;
            let (mut tx, _) = given.store.take_again(&given.consumer, &[row.letter.dedup()]).await?;
            harness.end_inside(&mut tx, how).await;
            let outcomes = [(row.letter.dedup(), outcome)];
            // A store may notice it at once or at the commit.
            if given.store.resume(&mut tx, &given.consumer, &outcomes).await.is_err() {
                given.store.abandon(tx).await;
            } else {
                match given.store.commit(tx).await {
                    Ok(()) => return Err(CaseFailure(format!("commit said Ok after the handler's {how:?}"))),
                    Err(error) => same("kind", &error.kind, &StoreErrorKind::TransactionEnded)?,
                }
            }
            same("the message", &look_of(harness, &given, &row).await?, &before)?;
        }
    }
    Ok(())
}

pub(crate) async fn parking_after_the_handler_ended_keeps_nothing<H: ParkingHarness>(
    harness: &H,
) -> CaseResult {
    let given = Given::new(harness).await?;
    for how in [EndInside::Commit, EndInside::Rollback] {
        let row = due(&format!("{how:?}"))?;
        let ids = claims_of(std::slice::from_ref(&row));
        let (mut tx, _) = begin(&given.store, &given.consumer, &ids).await?;
        harness.end_inside(&mut tx, how).await;
        if given.store.park(&mut tx, &given.consumer, std::slice::from_ref(&row)).await.is_err() {
            given.store.abandon(tx).await;
        } else if given.store.commit(tx).await.is_ok() {
            return Err(CaseFailure(format!("commit said Ok after the handler's {how:?}")));
        }
        same("rows", &parked_count(&given.store, &given.consumer).await?, &0)?;
        // What the handler committed is the claim, where its COMMIT is not refused.
        let state = harness.inbox_state(&name("wallet")?, &id(format!("{how:?}"))?).await;
        let committed = how == EndInside::Commit && state == Some(InboxState::Applied);
        ensure(state.is_none() || committed, || format!("the inbox says {state:?} after {how:?}"))?;
    }
    Ok(())
}

pub(crate) async fn a_swallowed_error_resumes_nothing<H: ParkingHarness>(harness: &H) -> CaseResult {
    if !harness.features().errors_abort {
        return Ok(());
    }
    let given = Given::new(harness).await?;
    let row = due("a")?;
    let keys = given.parked(std::slice::from_ref(&row)).await?;
    let before = look_of(harness, &given, &row).await?;
    let (mut tx, _) = given.store.take_again(&given.consumer, &keys).await?;
    drop(harness.fail(&mut tx).await);
    if given.store.resume(&mut tx, &given.consumer, &[(keys[0], Resumed::Applied)]).await.is_err() {
        given.store.abandon(tx).await;
    } else {
        match given.store.commit(tx).await {
            Ok(()) => return Err(CaseFailure("commit said Ok after a swallowed error".into())),
            Err(error) => same("kind", &error.kind, &StoreErrorKind::Swallowed)?,
        }
    }
    same("the message", &look_of(harness, &given, &row).await?, &before)
}
