//! Retries under seeded schedules: messages that fail in every way, members that come, go and die, faults of
//! broker and store, and an operator who sends dead letters back or gives them up. On a paused clock, with one
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

use handstamp_testkit::fakes::ParkingBreak;
use retry_schedule::{Histogram, STEPS, run};

/// Steps of all schedules together.
const STEPS_MIN: usize = 100_000;
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
                let each = of(first).map(|seed| run(seed, None));
                scope.spawn(move || each.fold(Histogram::default(), Histogram::and))
            })
            .collect();
        for one in running {
            all = std::mem::take(&mut all).and(one.join().expect("a schedule failed"));
        }
    });
    println!("{all}");
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
    for broken in all {
        let noticed = (0..40).find(|seed| std::panic::catch_unwind(|| run(*seed, Some(broken))).is_err());
        println!("{broken:?} is noticed by seed {noticed:?}");
        assert!(noticed.is_some(), "nobody notices {broken:?}");
    }
}
