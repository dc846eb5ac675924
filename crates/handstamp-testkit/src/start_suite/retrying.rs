//! Parked messages: a suspect runs alone, and only who was alone is charged.

use super::StartHarness;
use super::given::{LANE, Process, crashes_by, dedup_of, lives, told};
use super::taking_over::gives_up;
use crate::check::{ensure, same};
use crate::parking_suite::given::{again, dead, due, of_key};
use crate::parking_suite::{HOUR, ids_of, look, strings};
use crate::store_suite::name;
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, OrderKey, Park, ParkedMessage, ParkingStore, Resumed};
use handstamp_core::{Company, Lost, PATIENCE, StartStore, Store, StoreErrorKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Parks messages that are due at once, one after the other.
async fn parked<H: StartHarness>(harness: &H, messages: &[&str]) -> CaseResult {
    let rows = messages.iter().map(|message| due(message)).collect::<Result<Vec<Park>, CaseFailure>>()?;
    Process::new(harness, "parks").await?.given(harness).await.parked_each(&rows).await
}

/// Nothing is due for anybody.
async fn nothing_is_due<S: StartStore>(process: &Process<S>) -> CaseResult {
    match process.start_due(10).await? {
        None => Ok(()),
        Some((_, rows)) => Err(CaseFailure(format!("{} messages are due that must not be", rows.len()))),
    }
}

pub(crate) async fn what_was_started_together_runs_one_by_one<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a", "b", "c"]).await?;
    let rows = one.dies_with(&["a", "b", "c"]).await?;
    ensure(rows.iter().all(|row| !row.suspected), || format!("suspected at first: {rows:?}"))?;
    for message in ["a", "b", "c"] {
        let (tx, rows) = two.takes(&[message]).await?;
        told::<H::Store>(&rows[0], &[])?;
        same("whether it is suspected", &rows[0].suspected, &true)?;
        two.resumes(tx, &[(message, Resumed::Applied)]).await?;
    }
    nothing_is_due(&two).await
}

pub(crate) async fn those_in_front_of_a_suspect_go_first<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a", "b", "c", "d"]).await?;
    one.dies_again_with("c").await?;
    for messages in [&["a", "b"][..], &["c"], &["d"]] {
        let (tx, _) = two.takes(messages).await?;
        let outcomes: Vec<_> = messages.iter().map(|message| (*message, Resumed::Applied)).collect();
        two.resumes(tx, &outcomes).await?;
    }
    nothing_is_due(&two).await
}

pub(crate) async fn each_owner_is_one_crash_of_a_parked_message<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    parked(harness, &["a"]).await?;
    told::<H::Store>(&one.dies_with(&["a"]).await?[0], &[])?;
    tokio::time::sleep(harness.features().quiet / 10).await;
    for is_new in [true, false] {
        let rows = two.dies_with(&["a"]).await?;
        told(&rows[0], &[&one])?;
        same("whether it is new", &rows[0].crashes[0].is_new, &is_new)?;
    }
    for _ in 0..2 {
        told(&three.dies_with(&["a"]).await?[0], &[&one, &two])?;
    }
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &2)
}

/// Its transaction was cut off, and it was late to notice.
pub(crate) async fn an_owner_has_time_to_take_a_parked_message_back<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a", "b"]).await?;
    one.dies_again_with("a").await?;
    let withdraws = async {
        tokio::time::sleep(PATIENCE / 3).await;
        one.withdraws(Lost::Parked).await
    };
    let (taken, withdrawn) = tokio::join!(two.start_due(1), withdraws);
    withdrawn?;
    let (tx, rows) = taken?.ok_or_else(|| CaseFailure("nothing is due".into()))?;
    two.store.rollback(tx).await?;
    told::<H::Store>(&rows[0], &[])?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &0)
}

pub(crate) async fn who_starts_a_parked_message_anew_is_not_dead<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a"]).await?;
    one.dies_again_with("a").await?;
    let lives = lives(one.dies_again_with("a"), one.withdraws(Lost::Parked));
    let (taken, lived) = tokio::join!(two.start_due(1), lives);
    lived?;
    let (tx, rows) = taken?.ok_or_else(|| CaseFailure("nothing is due".into()))?;
    two.store.rollback(tx).await?;
    told::<H::Store>(&rows[0], &[])?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &0)
}

pub(crate) async fn who_starts_takes_back_what_it_was_counted_for<H: StartHarness>(
    harness: &H,
) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a"]).await?;
    one.dies_with(&["a"]).await?;
    told(&two.dies_with(&["a"]).await?[0], &[&one])?;
    told(&one.dies_with(&["a"]).await?[0], &[&two])?;
    same("crashes kept", &harness.crashes(&name("wallet")?, &dedup_of("a")?).await, &1)
}

/// Something else of the process may have killed it.
pub(crate) async fn who_had_company_is_charged_to_nobody<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    parked(harness, &["a"]).await?;
    let taken = one.start_due_in(10, Company::Lanes).await?;
    let (tx, _) = taken.ok_or_else(|| CaseFailure("nothing is due".into()))?;
    one.store.rollback(tx).await?;
    let (tx, rows) = two.start_again(&["a"], Company::Lanes).await?;
    two.store.rollback(tx).await?;
    told::<H::Store>(&rows[0], &[])?;
    told::<H::Store>(&three.dies_with(&["a"]).await?[0], &[])
}

pub(crate) async fn an_owner_is_no_suspect_to_itself<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    parked(harness, &["a", "b"]).await?;
    for _ in 0..2 {
        one.dies_with(&["a", "b"]).await?;
    }
    one.dies_again_with("a").await?;
    for row in one.dies_with(&["a", "b"]).await? {
        told::<H::Store>(&row, &[])?;
    }
    Ok(())
}

pub(crate) async fn a_living_neighbour_is_no_suspect<H: StartHarness>(harness: &H) -> CaseResult {
    if !harness.features().concurrent {
        return Ok(());
    }
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a", "b"]).await?;
    let taken = one.start_due(1).await?;
    let (lives, rows) = taken.ok_or_else(|| CaseFailure("nothing is due".into()))?;
    same("taken", &rows.len(), &1)?;
    let (tx, _) = two.takes(&["b"]).await?;
    two.resumes(tx, &[("b", Resumed::Applied)]).await?;
    nothing_is_due(&two).await?;
    one.resumes(lives, &[("a", again(Duration::ZERO, 1))]).await?;
    told::<H::Store>(&two.dies_with(&["a"]).await?[0], &[])
}

/// What the takers saw, each while it held its rows.
#[derive(Debug, Default)]
struct Drained {
    suspected: Vec<ParkedMessage>,
    applied: BTreeMap<Option<OrderKey>, Vec<Dedup>>,
}

/// Takes and resumes until nothing is left: each message fails once.
async fn drains<S: StartStore>(process: Process<S>, max: usize, seen: Arc<Mutex<Drained>>) -> CaseResult {
    let pause = Duration::from_millis(5);
    let (store, consumer) = (&process.store, &process.consumer);
    loop {
        match store.start_due(consumer, max, &process.by, Company::None).await {
            Ok(Some((mut tx, rows))) => {
                tokio::time::sleep(pause).await;
                let mut outcomes = vec![];
                for row in rows {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    if row.letter.attempts == 3 {
                        outcomes.push((row.dedup, again(Duration::ZERO, 1)));
                    } else {
                        outcomes.push((row.dedup, Resumed::Applied));
                        seen.applied.entry(row.order_key).or_default().push(row.dedup);
                    }
                    seen.suspected.extend(Some(row).filter(|row| !row.crashes.is_empty()));
                }
                store.resume(&mut tx, consumer, &outcomes).await?;
                store.commit(tx).await?;
            }
            Ok(None) if store.parked_status(consumer).await?.count == 0 => return Ok(()),
            Ok(None) => tokio::time::sleep(pause).await,
            Err(error) if error.kind == StoreErrorKind::Conflict => tokio::time::sleep(pause).await,
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) async fn many_starters_suspect_nobody<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let row = |n: u8| match n % 4 {
        0 => due(&format!("id-{n:02}")),
        key => of_key(&format!("id-{n:02}"), key),
    };
    let rows = (0..60).map(row).collect::<Result<Vec<Park>, CaseFailure>>()?;
    one.given(harness).await.parked(&rows).await?;
    let seen = Arc::new(Mutex::new(Drained::default()));
    let mut running = vec![];
    // Some take one alone, which would be charged.
    for (node, max) in [("two", 1), ("three", 7), ("four", 1), ("five", 7)] {
        running.push(tokio::spawn(drains(Process::new(harness, node).await?, max, Arc::clone(&seen))));
    }
    for one in running {
        let ended = tokio::time::timeout(harness.features().patience, one).await;
        ended.map_err(|_| CaseFailure("the takers never came to an end".into()))???;
    }
    let mut seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let suspected = &seen.suspected;
    ensure(suspected.is_empty(), || format!("suspected though nobody died: {suspected:?}"))?;
    let all: usize = seen.applied.values().map(Vec::len).sum();
    same("applied", &all, &60)?;
    for key in 1..=3 {
        let key = Some(OrderKey([key; 16]));
        let of_key = rows.iter().filter(|row| row.order_key == key).map(|row| row.letter.dedup());
        same("applied, in its order", &seen.applied.remove(&key), &Some(of_key.collect()))?;
    }
    same("rows", &one.store.parked_status(&one.consumer).await?.count, &0)
}

pub(crate) async fn what_is_taken_again_is_started_alone<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    parked(harness, &["a", "b", "c"]).await?;
    one.dies_with(&["a", "b", "c"]).await?;
    one.dies_again_with("a").await?;
    let (tx, _) = two.takes(&["a"]).await?;
    two.resumes(tx, &[("a", again(HOUR, 1))]).await?;
    // Those were started before that only.
    two.dies_with(&["b", "c"]).await.map(drop)
}

pub(crate) async fn what_is_taken_again_tells_its_crashes<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one])?;
    parked(harness, &["a", "b"]).await?;
    let (tx, rows) = two.start_again(&["b", "a"], Company::None).await?;
    two.store.rollback(tx).await?;
    same("taken", &ids_of(&rows), &strings(&["b", "a"]))?;
    told::<H::Store>(&rows[0], &[])?;
    told(&rows[1], &[&one])?;
    // Who only takes is not told.
    told::<H::Store>(&look(&two.store, &two.consumer, &[dedup_of("a")?]).await?[0], &[])
}

pub(crate) async fn what_is_resumed_is_started_by_nobody<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    parked(harness, &["a", "b"]).await?;
    one.dies_again_with("a").await?;
    let taken = two.start_due(1).await?;
    let (tx, _) = taken.ok_or_else(|| CaseFailure("nothing is due".into()))?;
    // The other one is due first from now on.
    tokio::time::sleep(harness.features().quiet / 10).await;
    two.resumes(tx, &[("a", again(Duration::ZERO, 1))]).await?;
    three.dies_with(&["b", "a"]).await.map(drop)
}

pub(crate) async fn a_rollback_keeps_starts_and_crashes<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    let three = Process::new(harness, "three").await?;
    parked(harness, &["a", "b"]).await?;
    one.dies_again_with("a").await?;
    let (mut tx, _) = two.takes(&["a"]).await?;
    two.store.resume(&mut tx, &two.consumer, &[(dedup_of("a")?, Resumed::Applied)]).await?;
    two.store.rollback(tx).await?;
    three.dies_with(&["a"]).await.map(drop)
}

pub(crate) async fn crashes_end_with_their_message<H: StartHarness>(harness: &H) -> CaseResult {
    let outcomes = [
        ("a", Resumed::Applied, false),
        ("b", dead(1, false), false),
        ("c", dead(2, true), false),
        ("d", again(HOUR, 3), true),
    ];
    for (message, outcome, expected) in outcomes {
        let one = Process::new(harness, "one").await?;
        let two = Process::new(harness, "two").await?;
        one.dies_alone(message).await?;
        crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one])?;
        two.forgets(&[&one]).await?;
        parked(harness, &[message]).await?;
        let (tx, _) = two.takes(&[message]).await?;
        let said = format!("whether {message} has crashes after {outcome:?}");
        two.resumes(tx, &[(message, outcome)]).await?;
        same(&said, &(harness.crashes(&name("wallet")?, &dedup_of(message)?).await > 0), &expected)?;
    }
    Ok(())
}

pub(crate) async fn crashes_follow_a_message_to_its_retry<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one])?;
    two.forgets(&[&one]).await?;
    parked(harness, &["a", "b"]).await?;
    let rows = two.dies_with(&["a", "b"]).await?;
    told(&rows[0], &[&one])?;
    told::<H::Store>(&rows[1], &[])
}

pub(crate) async fn what_is_sent_back_has_no_crashes<H: StartHarness>(harness: &H) -> CaseResult {
    let one = Process::new(harness, "one").await?;
    let two = Process::new(harness, "two").await?;
    one.dies_alone("a").await?;
    crashes_by(&two.takes_over(&[LANE]).await?.crashes, &[&one])?;
    gives_up::<H>(&two, "a").await?;
    // It dies before it forgets the crashes of what it has decided.
    harness.redrive(&name("wallet")?, &dedup_of("a")?).await;
    told::<H::Store>(&two.dies_with(&["a"]).await?[0], &[])
}
