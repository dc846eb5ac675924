//! Ids, digests and routes on the store in memory; and the suite fails where it must.

#![allow(clippy::unwrap_used, reason = "a panic is the failure report")]

use handstamp_testkit::fakes::{MemoryHarness, StoreBreak};
use handstamp_testkit::identity_suite;

handstamp_testkit::identity_suite!(paused: handstamp_testkit::fakes::MemoryHarness::new_starts(None));

fn fails(broken: StoreBreak) -> Vec<&'static str> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let fails = |case: &&&str| {
        let harness = MemoryHarness::new(Some(broken));
        runtime.block_on(identity_suite::run(case, &harness)).is_err()
    };
    identity_suite::CASES.iter().filter(fails).copied().collect()
}

#[test]
fn a_store_that_ignores_digests_is_found() {
    let found = fails(StoreBreak::IgnoresDigest);
    for case in [
        "an_event_in_another_mode_is_never_applied_twice",
        "a_reused_id_is_found_by_the_chosen_fields",
        "a_body_without_the_fields_counts_whole",
    ] {
        assert!(found.contains(&case), "{case}: {found:?}");
    }
    assert!(!found.contains(&"a_resend_with_another_body_is_a_duplicate"), "{found:?}");
}

#[test]
fn a_store_that_cuts_or_mislabels_what_it_keeps_is_found() {
    let mislabels = fails(StoreBreak::RecordLeavesApplied);
    assert!(mislabels.contains(&"what_nobody_can_handle_is_a_dead_letter_without_a_run"), "{mislabels:?}");
    let grows = fails(StoreBreak::RecordGrows);
    assert!(grows.len() <= identity_suite::CASES.len() / 2, "{grows:?}");
}
