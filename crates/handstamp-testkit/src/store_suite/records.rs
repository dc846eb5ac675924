//! Dead letters: whole, once, and only with their transaction.

use super::letters::{bare_letter, dead_letter, empty_letter};
use super::{StoreHarness, begin, claim, claims_are, id, name, register, request};
use crate::check::{ensure, same};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{Claim, ConsumerKey, DeadLetter, FailureClass, InboxState, Recorded, Store, Truncation};

/// Claims the id, records the letter, commits.
async fn keep<S: Store>(
    store: &S,
    consumer: &ConsumerKey,
    letter: &DeadLetter,
) -> Result<(Vec<Claim>, Vec<Recorded>), CaseFailure> {
    let ids = match &letter.id {
        Some(id) => vec![request(id.as_bytes(), letter.digest)?],
        // A batch of bad messages only is another case's.
        None => vec![request("neighbour", 1)?],
    };
    let (mut tx, claims) = begin(store, consumer, &ids).await?;
    let recorded = store.record(&mut tx, consumer, std::slice::from_ref(letter)).await?;
    store.commit(tx).await?;
    Ok((claims, recorded))
}

pub(crate) async fn dead_letters_keep_every_byte<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let (full, bare) = (dead_letter(Some("full"), FailureClass::Sql, 1)?, bare_letter("bare")?);
    let mut empty = empty_letter("empty")?;
    empty.id = Some(id(b"em\xffpty")?);
    for letter in [&full, &bare, &empty] {
        same("recorded", &keep(&store, &consumer, letter).await?.1, &vec![Recorded::New])?;
    }
    let kept = harness.dead_letters(&name("wallet")?).await;
    same("rows", &kept.len(), &3)?;
    for letter in [full, bare, empty] {
        let found = kept.iter().find(|row| row.id == letter.id).cloned();
        let found = found.ok_or_else(|| CaseFailure(format!("the row of {:?} is missing", letter.id)))?;
        same("headers", &found.record.headers, &letter.record.headers)?;
        same("the row", &found, &letter)?;
    }
    Ok(())
}

pub(crate) async fn a_dead_letter_marks_its_inbox_row<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let letter = dead_letter(Some("a"), FailureClass::Rejected, 1)?;
    let (claims, _) = keep(&store, &consumer, &letter).await?;
    claims_are(&claims, "F")?;
    let state = harness.inbox_state(&name("wallet")?, &id("a")?).await;
    same("the inbox row", &state, &Some(InboxState::Dead))?;
    let again = claim(&store, &consumer, &[request("a", letter.digest)?]).await?;
    let dead = matches!(again[0], Claim::Duplicate { state: InboxState::Dead, .. });
    ensure(dead, || format!("its redelivery was answered {:?}", again[0]))
}

pub(crate) async fn a_dead_letter_without_an_id_is_kept_once<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let letter = dead_letter(None, FailureClass::Identity, 1)?;
    same("recorded", &keep(&store, &consumer, &letter).await?.1, &vec![Recorded::New])?;
    same("recorded again", &keep(&store, &consumer, &letter).await?.1, &vec![Recorded::Known])?;
    let elsewhere = dead_letter(None, FailureClass::Identity, 2)?;
    same("another place", &keep(&store, &consumer, &elsewhere).await?.1, &vec![Recorded::New])?;
    // Twice in one transaction, too.
    let third = dead_letter(None, FailureClass::Identity, 3)?;
    let (mut tx, _) = begin(&store, &consumer, &[]).await?;
    let twice = store.record(&mut tx, &consumer, &[third.clone(), third]).await?;
    store.commit(tx).await?;
    same("twice in one call", &twice, &vec![Recorded::New, Recorded::Known])?;
    same("rows", &harness.dead_letters(&name("wallet")?).await.len(), &3)
}

pub(crate) async fn a_dead_letter_of_a_reused_id_leaves_the_first_alone<H: StoreHarness>(
    harness: &H,
) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    claim(&store, &consumer, &[request("a", 1)?]).await?;
    let letter = dead_letter(Some("a"), FailureClass::IdReused, 1)?;
    let (mut tx, claims) = begin(&store, &consumer, &[request("a", letter.digest)?]).await?;
    claims_are(&claims, "R")?;
    let recorded = store.record(&mut tx, &consumer, std::slice::from_ref(&letter)).await?;
    store.commit(tx).await?;
    same("recorded", &recorded, &vec![Recorded::New])?;
    let state = harness.inbox_state(&name("wallet")?, &id("a")?).await;
    same("the inbox row", &state, &Some(InboxState::Applied))
}

pub(crate) async fn a_truncated_dead_letter_says_so<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let mut letter = dead_letter(None, FailureClass::TooLarge, 1)?;
    letter.truncation = Some(Truncation { full_bytes: 5_000_000_000, blake3: [0xAB; 32] });
    keep(&store, &consumer, &letter).await?;
    let kept = harness.dead_letters(&name("wallet")?).await;
    same("truncations", &kept.iter().map(|row| row.truncation.clone()).collect(), &vec![letter.truncation])
}

pub(crate) async fn a_dead_letter_is_rolled_back_too<H: StoreHarness>(harness: &H) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let letter = dead_letter(None, FailureClass::Unreadable, 1)?;
    let (mut tx, _) = begin(&store, &consumer, &[request("neighbour", 1)?]).await?;
    store.record(&mut tx, &consumer, std::slice::from_ref(&letter)).await?;
    store.rollback(tx).await?;
    same("rows", &harness.dead_letters(&name("wallet")?).await.len(), &0)
}
