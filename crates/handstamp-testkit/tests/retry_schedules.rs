//! Retries under seeded schedules: messages that fail in every way and such that kill their process, members that
//! come, go and die, faults of broker and store, and an operator who sends dead letters back or gives them up. On a paused clock, with one
//! log and the store in memory; what must hold is asserted after each step.
//!
//! A failure names its seed: the same seed gives the same messages and faults. The waits of the engine itself
//! have a jitter of their own, so that a schedule can still differ from run to run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry_schedule;
mod seeded;

use handstamp_testkit::fakes::{MemoryStore, ParkingBreak, StartBreak};
use retry_schedule::{CHARGED, Histogram, STEPS, UNLUCKY, run};

/// Steps of all schedules together.
const STEPS_MIN: usize = 150_000;
/// Each kind of event came so often.
const EACH_MIN: u64 = 1_000;

#[test]
fn retries_keep_what_is_promised_whatever_happens() {
    let seeds = STEPS_MIN.div_ceil(STEPS) as u64;
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(8) as u64;
    let mut all = Histogram::default();
    std::thread::scope(|scope| {
        let of = |first: u64| (first..seeds).step_by(usize::try_from(threads).unwrap());
        let running: Vec<_> = (0..threads)
            .map(|first| {
                let each = of(first).map(|seed| run(seed, MemoryStore::new()));
                scope.spawn(move || each.fold(Histogram::default(), Histogram::and))
            })
            .collect();
        for one in running {
            all = std::mem::take(&mut all).and(one.join().expect("a schedule failed"));
        }
    });
    println!("{all}");
    // Who lives is never counted, and no good message is given up, whoever dies beside it.
    let wrongs = [CHARGED, UNLUCKY].map(|wrong| all.0.remove(wrong).unwrap_or_default());
    assert_eq!(wrongs, [0, 0], "{CHARGED}; {UNLUCKY}");
    let rare: Vec<_> = all.0.iter().filter(|(_, count)| **count < EACH_MIN).collect();
    assert!(rare.is_empty(), "events that hardly came: {rare:?}");
    assert!(all.0["steps"] >= STEPS_MIN as u64);
}

/// Schedules that no broken store fails would prove nothing.
#[test]
fn broken_stores_are_noticed() {
    use ParkingBreak::*;
    let all = [
        ParkDropsHeaders,
        ParkForgetsInbox,
        ParkAutocommits,
        ParksInReverse,
        NoteAutocommits,
        ParkedKeysForgetFollowers,
        ParkedKeysInReverse,
        LocksNothing,
        ForgetsAtRestart,
        OrderKeyIgnored,
        OrderPassesOverLocks,
        TakeFreesTheClaim,
        AppliedForgetsInbox,
        ResumeAutocommits,
        ResumesSorted,
        AgainForgetsAttempt,
        AgainForgetsHistory,
        AgainGoesToTheBack,
        DeadLosesBytes,
        DeadForgetsInbox,
        DeadNeverCharges,
    ];
    assert_eq!(unnoticed(&all, MemoryStore::broken_parking), []);
}

/// Those of which none of the first schedules fails.
fn unnoticed<B: Copy + std::fmt::Debug + std::panic::RefUnwindSafe>(
    all: &[B],
    store: fn(Option<B>) -> MemoryStore,
) -> Vec<B> {
    let is_noticed = |broken: &B| {
        let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, store(Some(*broken)))).is_err();
        let noticed = (0..40).find(fails);
        println!("{broken:?} is noticed by seed {noticed:?}");
        noticed.is_some()
    };
    all.iter().copied().filter(|broken| !is_noticed(broken)).collect()
}

#[test]
fn broken_start_records_are_noticed() {
    use StartBreak::*;
    // What only goes wrong where two processes meet is for the suite.
    let all = [
        StartsWithTheCommit,
        RollbackTakesTheStart,
        ChargesTwice,
        ChargesOnceAMessage,
        ChargesKnown,
        DueStartsNothing,
        DueNeverCharges,
        DueChargesTogether,
        ResumeKeepsStarts,
    ];
    assert_eq!(unnoticed(&all, MemoryStore::broken_starts), []);
}
