//! The engine under seeded schedules: three kinds of broker, a store, and everything that can go wrong
//! with them, on a paused clock. The invariants are asserted after each step, not only at the end.
//!
//! A failure names its seed: the same seed gives the same messages and faults. The waits of the engine
//! itself have a jitter of their own, so that a schedule can still differ from run to run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests: a panic is the failure report"
)]

mod schedule;
mod seeded;

use schedule::{Kind, Ran, run_schedule};
use std::collections::BTreeSet;

const SEEDS: u64 = 60;

fn run_all(kind: Kind) {
    let mut ran = Ran::default();
    for seed in 0..SEEDS {
        run_schedule(kind, seed, &mut ran);
    }
    println!("{ran:?}");
    // What is parked came to each of its ends, again and again.
    for (what, least) in [("parked", 600), ("applied", 200), ("again", 200), ("dead", 200), ("released", 5)] {
        assert!(ran.parked[what] >= least, "{what}: {:?}", ran.parked);
    }
    // The counts were checked at exits of every kind.
    assert_eq!(ran.exits, BTreeSet::from(["asked", "idle", "messages_max", "shutdown_timeout", "store"]));
}

#[test]
fn a_log_with_rebalances_evictions_and_rewinds() {
    run_all(Kind::Log);
}

#[test]
fn a_queue_with_leases() {
    run_all(Kind::Lease);
}

#[test]
fn a_queue_without_leases() {
    run_all(Kind::Ack);
}

/// Without faults nothing is handled twice and nothing is delivered again.
#[test]
fn a_quiet_schedule_applies_each_message_in_one_run() {
    for kind in [Kind::Log, Kind::Lease, Kind::Ack] {
        schedule::run_quietly(kind);
    }
}
