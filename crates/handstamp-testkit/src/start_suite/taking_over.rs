//! Taking over: what was left behind, and whom it charges.

use super::StartHarness;
use super::given::{LANE, Process, claim_of, crashes_by, dedup_of, lives, orphans_are};
use crate::check::same;
use crate::parking_suite::given::{claims_of, due};
use crate::store_suite::name;
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Park, ParkingStore};
use handstamp_core::{Crash, DeadLetter, FailureClass, PATIENCE, Start, Store, TakenOver};

pub(crate) async fn only_the_lanes_asked_for_are_taken_over<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let lanes = ["credits/0", "Credits/0", "credits/0 ", "credits/00", "credits"];
    for lane in lanes {
        one.dies_in(&one.many(lane, 10, 3)).await?;
    }
    for lane in lanes {
        orphans_are(&two.takes_over(&[lane]).await?, &[&one.many(lane, 10, 3)])?;
    }
    same("of a lane where nobody was", &two.takes_over(&["credits/9"]).await?, &TakenOver::default())?;
    same("of no lane", &two.takes_over(&[]).await?, &TakenOver::default())
}

pub(crate) async fn nobody_takes_over_from_itself<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let start = one.alone(LANE, "a")?;
    one.dies_in(&start).await?;
    same("taken over from itself", &one.takes_over(&[LANE]).await?, &TakenOver::default())?;
    let taken = two.takes_over(&[LANE]).await?;
    orphans_are(&taken, &[&start])?;
    crashes_by(&taken.crashes, &[&one])
}

pub(crate) async fn taking_over_again_answers_the_same<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    let start = one.alone(LANE, "a")?;
    one.dies_in(&start).await?;
    let mut first = two.takes_over(&[LANE]).await?;
    orphans_are(&first, &[&start])?;
    crashes_by(&first.crashes, &[&one])?;
    let new: Vec<bool> = first.crashes.iter().map(|crash| crash.is_new).collect();
    same("whether it is new", &new, &vec![true])?;
    first.crashes[0].is_new = false;
    same("taken over again", &two.takes_over(&[LANE]).await?, &first)?;
    same("taken over by another one", &three.takes_over(&[LANE]).await?, &first)
}

/// It was late to say that it lost its lane.
pub(crate) async fn an_owner_has_time_to_take_a_lane_back<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    let ends = async {
        tokio::time::sleep(PATIENCE / 3).await;
        one.ends(Some(&[LANE])).await
    };
    let (taken, ended) = tokio::join!(two.takes_over(&[LANE]), ends);
    ended?;
    same("taken over", &taken?, &TakenOver::default())?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &0)
}

pub(crate) async fn who_starts_anew_on_a_lane_is_not_dead<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    let lives = lives(one.dies_alone("a"), one.ends(Some(&[LANE])));
    let (taken, lived) = tokio::join!(two.takes_over(&[LANE]), lives);
    lived?;
    same("taken over", &taken?, &TakenOver::default())?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &0)
}

pub(crate) async fn a_start_of_many_charges_nobody<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    let many = one.many(LANE, 8, 3);
    one.dies_in(&many).await?;
    let taken = two.takes_over(&[LANE]).await?;
    orphans_are(&taken, &[&many])?;
    crashes_by::<H::Store>(&taken.crashes, &[])?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &0)
}

/// Starts one message alone, commits an outcome of it, and dies.
async fn dies_behind<H: StartHarness>(
    harness: &H,
    process: &Process<H::Store>,
    lane: &str,
    message: &Park,
) -> CaseResult {
    let letter = &message.letter;
    let start = Start { alone: letter.id.clone(), ..process.many(lane, 7, 1) };
    let (mut tx, _) = process.start(&start, &claims_of(std::slice::from_ref(message))).await?;
    match lane {
        "parked" => {
            process.store.park(&mut tx, &process.consumer, std::slice::from_ref(message)).await?;
        }
        "dead" | "discarded" => {
            process.store.record(&mut tx, &process.consumer, std::slice::from_ref(letter)).await?;
        }
        _ => {}
    }
    process.store.commit(tx).await?;
    if lane == "discarded" {
        harness.discard(&name("wallet")?, &letter.dedup()).await;
    }
    Ok(())
}

pub(crate) async fn an_orphan_the_inbox_knows_is_removed_and_charges_nobody<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    // Stores keep ids in ways of their own: an UUID, a short one, a long one, and an UUID that is not canonical.
    let outcomes = [
        ("applied", "0191b2c8-7a1e-7c3a-9d0e-2f4b6a8c0d1e"),
        ("parked", "a"),
        ("dead", "a-longer-id-than-sixteen-bytes"),
        ("discarded", "0191B2C8-7A1E-7C3A-9D0E-2F4B6A8C0D1E"),
    ];
    for (lane, message) in outcomes {
        dies_behind(harness, &one, lane, &due(message)?).await?;
        let seen = two.takes_over(&[lane]).await?;
        let said = |what: &str| format!("{what} of a message that is {lane}");
        same(&said("orphans and crashes"), &seen, &TakenOver::default())?;
        same(&said("crashes"), &harness.crashes(&name("wallet")?, &dedup_of(message)?).await, &0)?;
    }
    Ok(())
}

pub(crate) async fn each_owner_is_one_crash_of_a_message<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    one.dies_alone("a").await?;
    two.dies_alone("a").await?;
    let taken = three.takes_over(&[LANE]).await?;
    orphans_are(&taken, &[&one.alone(LANE, "a")?, &two.alone(LANE, "a")?])?;
    let mut by: Vec<_> = taken.crashes.iter().map(|crash| crash.by.owner).collect();
    by.sort_unstable();
    let mut expected = vec![one.by.owner, two.by.owner];
    expected.sort_unstable();
    same("crashes by", &by, &expected)
}

pub(crate) async fn crashes_are_told_oldest_first<H: StartHarness>(harness: &H) -> CaseResult {
    let mut dead = vec![];
    let mut expected: Vec<Crash> = vec![];
    for node in ["one", "two", "three"] {
        let next = Process::new(harness, node).await?;
        next.dies_alone("a").await?;
        let reader = Process::new(harness, "reader").await?;
        let taken = reader.takes_over(&[LANE]).await?;
        let orphan = taken.orphans.iter().find(|orphan| orphan.start.by == next.by);
        let orphan = orphan.ok_or_else(|| CaseFailure(format!("the start of {node} is not told")))?;
        expected.push(Crash { dedup: dedup_of("a")?, by: next.by.clone(), at: orphan.at, is_new: false });
        dead.push(next);
        // Told apart by a clock of whole milliseconds.
        tokio::time::sleep(harness.features().quiet / 10).await;
    }
    let last = Process::new(harness, "last").await?;
    // A lane that is past an orphan forgets it; the message is not decided by that.
    last.forgets(&[&dead[0]]).await?;
    same("crashes", &last.takes_over(&[LANE]).await?.crashes, &expected)
}

pub(crate) async fn crashes_of_other_messages_are_not_told<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    one.dies_alone("a").await?;
    two.dies_in(&two.alone("credits/1", "b")?).await?;
    for (lane, message, by) in [(LANE, "a", &one), ("credits/1", "b", &two)] {
        let crashes = three.takes_over(&[lane]).await?.crashes;
        crashes_by(&crashes, &[by])?;
        let of_others = crashes.iter().find(|crash| Ok(crash.dedup) != dedup_of(message));
        same("a crash of another message", &of_others, &None)?;
    }
    // Where an orphan names nobody, nobody's are told.
    two.dies_in(&two.many("credits/2", 10, 3)).await?;
    crashes_by::<H::Store>(&three.takes_over(&["credits/2"]).await?.crashes, &[])
}

/// A dead letter of a message.
fn crashed(message: &str) -> Result<DeadLetter, CaseFailure> {
    Ok(DeadLetter { class: FailureClass::Crashed, code: None, ..due(message)?.letter })
}

/// Claims a message and gives it up, as the engine does after too many crashes.
pub(super) async fn gives_up<H: StartHarness>(process: &Process<H::Store>, message: &str) -> CaseResult {
    let letter = crashed(message)?;
    let (mut tx, _) = process.start(&process.alone(LANE, message)?, &[claim_of(message)?]).await?;
    process.store.record(&mut tx, &process.consumer, std::slice::from_ref(&letter)).await?;
    Ok(process.store.commit(tx).await?)
}
