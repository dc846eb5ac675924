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

use schedule::{Kind, run_schedule};
use std::collections::BTreeSet;

const SEEDS: u64 = 60;

fn run_all(kind: Kind) {
    let exits: BTreeSet<_> = (0..SEEDS).flat_map(|seed| run_schedule(kind, seed)).collect();
    // The counts were checked at exits of every kind.
    assert_eq!(exits, BTreeSet::from(["asked", "idle", "messages_max", "shutdown_timeout", "store"]));
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
