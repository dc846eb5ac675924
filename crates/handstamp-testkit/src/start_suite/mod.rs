//! The rules every store keeps with start records. A driver that runs the
//! [parking suite](mod@crate::parking_suite) gives three more methods and one macro call:
//!
//! ```text
//! handstamp_testkit::start_suite!(MyHarness::new().await);          // several threads, real time
//! handstamp_testkit::start_suite!(paused: MyHarness::new());        // in memory, paused clock
//! ```
//!
//! A process that dies is one that says nothing more: its transaction is rolled back, its start record stays.

mod ending;
mod given;
mod retrying;
mod starting;
mod taking_over;

use crate::CaseResult;
use crate::parking_suite::ParkingHarness;
use handstamp_core::parked::Dedup;
use handstamp_core::{ConsumerName, StartStore};

/// One empty database, new for each case, of a store that keeps start records.
pub trait StartHarness: ParkingHarness<Store: StartStore> {
    /// How many crashes are kept of a message.
    fn crashes(&self, consumer: &ConsumerName, dedup: &Dedup) -> impl Future<Output = usize> + Send;

    /// Sends a dead letter back, as an operator does.
    fn redrive(&self, consumer: &ConsumerName, dedup: &Dedup) -> impl Future<Output = ()> + Send;

    /// Gives a dead letter up for good, as an operator does.
    fn discard(&self, consumer: &ConsumerName, dedup: &Dedup) -> impl Future<Output = ()> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __start_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            a_start_is_there_before_its_claims_are_answered
            a_start_stays_whatever_becomes_of_its_transaction
            a_start_survives_its_process
            a_start_replaces_the_last_of_its_owner_and_lane
            a_start_leaves_other_lanes_and_owners_alone
            a_start_comes_with_its_claims
            a_start_of_an_unregistered_consumer_is_an_error
            a_chained_start_follows_its_commit
            durable_is_said_before_the_claims_behind_a_start
            a_start_behind_a_failed_commit_opens_nothing
            an_orphan_says_who_what_and_when
            only_the_lanes_asked_for_are_taken_over
            nobody_takes_over_from_itself
            taking_over_again_answers_the_same
            an_owner_has_time_to_take_a_lane_back
            who_starts_anew_on_a_lane_is_not_dead
            a_start_of_many_charges_nobody
            an_orphan_the_inbox_knows_is_removed_and_charges_nobody
            each_owner_is_one_crash_of_a_message
            crashes_are_told_oldest_first
            crashes_of_other_messages_are_not_told
            ending_a_lane_leaves_the_others
            ending_all_ends_parked_messages_too
            ending_leaves_other_owners_and_crashes_alone
            who_withdraws_takes_starts_and_crashes_back
            who_withdraws_takes_starts_of_parked_messages_back
            who_withdraws_keeps_what_it_holds
            who_withdraws_leaves_others_alone
            what_is_passed_is_forgotten
            what_is_decided_has_no_crashes_left
            an_orphan_of_a_message_at_its_end_takes_its_crashes_along
            consumers_start_apart
            what_was_started_together_runs_one_by_one
            those_in_front_of_a_suspect_go_first
            each_owner_is_one_crash_of_a_parked_message
            an_owner_has_time_to_take_a_parked_message_back
            who_starts_a_parked_message_anew_is_not_dead
            who_starts_takes_back_what_it_was_counted_for
            who_had_company_is_charged_to_nobody
            an_owner_is_no_suspect_to_itself
            a_living_neighbour_is_no_suspect
            many_starters_suspect_nobody
            what_is_taken_again_is_started_alone
            what_is_taken_again_tells_its_crashes
            what_is_resumed_is_started_by_nobody
            a_rollback_keeps_starts_and_crashes
            crashes_end_with_their_message
            crashes_follow_a_message_to_its_retry
            what_is_sent_back_has_no_crashes
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! start_suite {
    (paused: $harness:expr) => {
        $crate::__start_cases!(__suite_tests [start_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__start_cases!(
            __suite_tests [start_suite, $harness, tokio::test(flavor = "multi_thread", worker_threads = 2)]
        );
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__start_cases!(__suite_names []);

mod cases {
    pub(super) use super::ending::*;
    pub(super) use super::retrying::*;
    pub(super) use super::starting::*;
    pub(super) use super::taking_over::*;
}

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: StartHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__start_cases!(__suite_dispatch [case, harness])
}
