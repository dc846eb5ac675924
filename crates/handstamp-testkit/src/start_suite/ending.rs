//! Ending, withdrawing, forgetting: what is asked for, and nothing else.

use super::StartHarness;
use super::given::{LANE, Process, claim_of, crashes_by, dedup_of, orphans_are};
use crate::check::{ensure, same};
use crate::parking_suite::given::{again, due};
use crate::store_suite::name;
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::ParkingStore;
use handstamp_core::{Lost, Store, TakenOver};
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn ending_a_lane_leaves_the_others<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let lanes = [LANE, "credits/1", "credits/2", "credits/3"];
    for lane in lanes {
        one.dies_in(&one.many(lane, 10, 3)).await?;
    }
    one.ends(Some(&[])).await?;
    one.ends(Some(&["credits/1", "credits/3"])).await?;
    let left = [one.many(LANE, 10, 3), one.many("credits/2", 10, 3)];
    orphans_are(&two.takes_over(&lanes).await?, &left.each_ref())
}

pub(crate) async fn ending_all_ends_parked_messages_too<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.given(harness).await.parked_each(&[due("a")?, due("b")?]).await?;
    one.dies_in(&one.alone(LANE, "c")?).await?;
    one.dies_with(&["a", "b"]).await?;
    one.ends(None).await?;
    same("taken over", &two.takes_over(&[LANE]).await?, &TakenOver::default())?;
    two.dies_with(&["a", "b"]).await.map(drop)
}

pub(crate) async fn ending_leaves_other_owners_and_crashes_alone<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    one.dies_alone("a").await?;
    crashes_by(&three.takes_over(&[LANE]).await?.crashes, &[&one])?;
    let left = two.alone("credits/1", "b")?;
    two.dies_in(&left).await?;
    one.ends(None).await?;
    orphans_are(&three.takes_over(&[LANE, "credits/1"]).await?, &[&left])?;
    two.ends(Some(&["credits/1"])).await?;
    same("taken over", &three.takes_over(&[LANE, "credits/1"]).await?, &TakenOver::default())?;
    for message in ["a", "b"] {
        let kept = harness.crashes(&name("wallet")?, &dedup_of(message)?).await;
        ensure(kept > 0, || format!("the crash of {message} is gone"))?;
    }
    Ok(())
}

pub(crate) async fn who_withdraws_takes_starts_and_crashes_back<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one])?;
    one.withdraws(Lost::Lanes(&[LANE.into()])).await?;
    same("taken over", &two.takes_over(&[LANE]).await?, &TakenOver::default())?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &0)
}

pub(crate) async fn who_withdraws_takes_starts_of_parked_messages_back<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.given(harness).await.parked_each(&[due("a")?, due("b")?]).await?;
    one.dies_with(&["a", "b"]).await?;
    one.withdraws(Lost::Parked).await?;
    two.dies_with(&["a", "b"]).await.map(drop)
}

pub(crate) async fn who_withdraws_keeps_what_it_holds<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.given(harness).await.parked_each(&[due("a")?]).await?;
    let [lost, held]: [Arc<str>; 2] = [LANE.into(), "credits/1".into()];
    let both = async || two.takes_over(&[&lost, &held]).await;
    let many = one.many(&held, 10, 3);
    one.dies_with(&["a"]).await?;
    one.dies_in(&many).await?;
    one.dies_alone("c").await?;
    crashes_by(&both().await?.crashes, &[&one])?;
    // Of no lane: it lives, and holds all of them.
    one.withdraws(Lost::Lanes(&[])).await?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("c")?).await, &0)?;
    one.withdraws(Lost::Lanes(std::slice::from_ref(&lost))).await?;
    orphans_are(&both().await?, &[&many])?;
    let (tx, rows) = two.takes(&["a"]).await?;
    same("whether the parked message is started still", &rows[0].suspected, &true)?;
    two.resumes(tx, &[("a", again(Duration::ZERO, 1))]).await?;
    one.withdraws(Lost::Parked).await?;
    orphans_are(&both().await?, &[&many])?;
    one.withdraws(Lost::Everything).await?;
    same("taken over", &both().await?, &TakenOver::default())
}

pub(crate) async fn who_withdraws_leaves_others_alone<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    one.dies_alone("a").await?;
    two.dies_in(&two.alone("credits/1", "b")?).await?;
    crashes_by(&three.takes_over(&[LANE, "credits/1"]).await?.crashes, &[&one, &two])?;
    let left = two.many(LANE, 10, 3);
    two.dies_in(&left).await?;
    one.withdraws(Lost::Everything).await?;
    orphans_are(&three.takes_over(&[LANE]).await?, &[&left])?;
    let kept = harness.crashes(&name("wallet")?, &dedup_of("b")?).await;
    ensure(kept > 0, || "another one's crash is gone".into())
}

pub(crate) async fn what_is_passed_is_forgotten<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    let (newer, other) = (two.many(LANE, 11, 2), three.many("credits/1", 10, 3));
    one.dies_in(&one.many(LANE, 10, 3)).await?;
    two.dies_in(&newer).await?;
    three.dies_in(&other).await?;
    let four = Process::new(harness, "four").await?;
    four.forgets(&[]).await?;
    four.forgets(&[&one]).await?;
    orphans_are(&four.takes_over(&[LANE, "credits/1"]).await?, &[&newer, &other])
}

pub(crate) async fn what_is_decided_has_no_crashes_left<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    let three = Process::new(harness, "three").await?;
    three.dies_alone("b").await?;
    crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one, &three])?;
    let crashes = async || {
        let (a, b) = (dedup_of("a")?, dedup_of("b")?);
        let wallet = name("wallet")?;
        let (a, b) = (harness.crashes(&wallet, &a).await, harness.crashes(&wallet, &b).await);
        Ok::<_, CaseFailure>((a > 0, b > 0))
    };
    two.absolves(&[], true).await?;
    two.absolves(&["a", "b"], false).await?;
    same("whether they have crashes before it is committed", &crashes().await?, &(true, true))?;
    two.absolves(&["a", "c"], true).await?;
    same("whether they have crashes", &crashes().await?, &(false, true))
}

/// Whoever commits a message's end may die before it says that the message killed nobody any more.
pub(crate) async fn an_orphan_of_a_message_at_its_end_takes_its_crashes_along<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    for (message, parks, expected) in [("a", false, 0), ("b", true, 1)] {
        let one = Process::new(harness, "one").await?;
        let two = Process::new(harness, "two").await?;
        let three = Process::new(harness, "three").await?;
        one.dies_alone(message).await?;
        crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one])?;
        let (mut tx, _) = two.start(&two.alone(LANE, message)?, &[claim_of(message)?]).await?;
        if parks {
            two.store.park(&mut tx, &two.consumer, &[due(message)?]).await?;
        }
        two.store.commit(tx).await?;
        same("taken over", &three.takes_over(&[LANE]).await?, &TakenOver::default())?;
        let kept = harness.crashes(&name("wallet")?, &dedup_of(message)?).await;
        same(&format!("crashes of {message}"), &kept, &expected)?;
    }
    Ok(())
}

pub(crate) async fn consumers_start_apart<H: StartHarness>(harness: &H) -> CaseResult {
    let wallet = Process::new(harness, "one").await?;
    let mut mail = Process::of(harness, "mail", "one").await?;
    mail.by = wallet.by.clone();
    let of_wallet = Process::new(harness, "two").await?;
    let of_mail = Process::of(harness, "mail", "two").await?;
    let start = mail.alone(LANE, "a")?;
    mail.dies_in(&start).await?;
    same("taken over", &of_wallet.takes_over(&[LANE]).await?, &TakenOver::default())?;
    for turn in 0..4 {
        mail.dies_in(&start).await?;
        wallet.dies_in(&start).await?;
        let taken = of_wallet.takes_over(&[LANE]).await?;
        orphans_are(&taken, &[&start])?;
        crashes_by(&taken.crashes, &[&wallet])?;
        match turn {
            0 => of_wallet.forgets(&[&wallet]).await?,
            1 => wallet.ends(Some(&[LANE])).await?,
            2 => wallet.ends(None).await?,
            _ => wallet.withdraws(Lost::Everything).await?,
        }
        same("taken over", &of_wallet.takes_over(&[LANE]).await?, &TakenOver::default())?;
        let taken = of_mail.takes_over(&[LANE]).await?;
        orphans_are(&taken, &[&start])?;
        crashes_by(&taken.crashes, &[&mail])?;
    }
    let (tx, claims) = of_mail.start(&of_mail.many(LANE, 1, 1), &[]).await?;
    same("claims", &claims.len(), &0)?;
    Ok(of_mail.store.rollback(tx).await?)
}
