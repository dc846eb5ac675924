//! The rules every store keeps with messages that wait for a retry. A driver that runs the
//! [store suite](mod@crate::store_suite) gives one more method and one macro call:
//!
//! ```text
//! handstamp_testkit::parking_suite!(MyHarness::new().await);          // several threads, real time
//! handstamp_testkit::parking_suite!(paused: MyHarness::new());        // in memory, paused clock
//! ```
//!
//! No case asks how fast a store is. What must not be due waits an hour; what must come is waited for with
//! patience.

mod crowding;
pub(crate) mod given;
mod keeping;
mod ordering;
mod resuming;
mod reviewing;
mod saving;
mod taking;

use crate::check::{ensure, same};
use crate::store_suite::{StoreHarness, Tx, name};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, FailedAttempt, ParkedMessage, ParkingStore, Resumed, Taken};
use handstamp_core::{ConsumerKey, ConsumerName, LetterStore, Store, StoreError, StoreErrorKind};
use std::time::Duration;

/// One empty database, new for each case, of a store that parks.
pub trait ParkingHarness: StoreHarness<Store: ParkingStore + LetterStore> {
    /// The committed history of a message, oldest first.
    fn attempts(
        &self,
        consumer: &ConsumerName,
        dedup: &Dedup,
    ) -> impl Future<Output = Vec<FailedAttempt>> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __parking_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            a_parked_message_keeps_every_byte
            a_large_message_is_parked_whole
            a_parked_prefix_says_so
            a_parked_message_says_so_in_its_inbox_row
            parking_is_rolled_back_too
            parking_twice_is_known
            attempts_are_noted_in_order
            attempts_are_rolled_back_too
            what_is_parked_survives_a_restart
            nothing_is_taken_before_its_wait
            the_longest_due_comes_first
            no_more_is_taken_than_asked
            two_takers_never_share_a_row
            a_rollback_frees_its_rows
            an_abandoned_taker_frees_its_rows_at_once
            a_dropped_taker_frees_its_rows
            a_lost_taker_frees_its_rows
            what_is_taken_again_comes_in_the_order_asked
            a_redelivery_during_a_retry_is_a_duplicate
            applied_comes_with_the_effect
            a_rollback_takes_every_outcome_back
            a_retry_that_fails_again_is_due_later
            a_retry_that_fails_again_says_why
            a_message_that_is_given_up_is_a_dead_letter
            giving_up_counts_what_was_an_attempt
            outcomes_find_their_rows
            what_is_taken_back_leaves_the_rest
            rows_are_held_when_something_is_taken_back
            a_savepoint_says_what_a_handler_swallowed
            a_savepoint_says_that_the_handler_ended_it
            a_retry_the_handler_ended_resumes_nothing
            parking_after_the_handler_ended_keeps_nothing
            a_swallowed_error_resumes_nothing
            only_the_first_of_a_key_is_due
            a_key_waits_for_its_first
            the_next_of_a_key_follows_the_first
            a_first_that_fails_again_stays_first
            the_order_of_a_key_is_the_order_of_parking
            parked_keys_answer_in_the_order_asked
            parked_keys_see_what_a_waiting_claim_let_pass
            parked_keys_end_with_their_messages
            consumers_park_apart
            many_takers_count_each_attempt_once
            many_takers_keep_the_order_of_each_key
            the_status_counts_and_says_when
            the_status_counts_what_is_taken
            dead_letters_are_read_back_by_their_keys
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! parking_suite {
    (paused: $harness:expr) => {
        $crate::__parking_cases!(__suite_tests [parking_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__parking_cases!(
            __suite_tests [parking_suite, $harness, tokio::test(flavor = "multi_thread", worker_threads = 2)]
        );
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__parking_cases!(__suite_names []);

mod cases {
    pub(super) use super::crowding::*;
    pub(super) use super::keeping::*;
    pub(super) use super::ordering::*;
    pub(super) use super::resuming::*;
    pub(super) use super::reviewing::*;
    pub(super) use super::saving::*;
    pub(super) use super::taking::*;
}

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: ParkingHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__parking_cases!(__suite_dispatch [case, harness])
}

/// A wait that no case lives to see.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Asks again where the store asks for that, as the engine does.
pub(crate) async fn patient<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, CaseFailure> {
    for _ in 0..20 {
        match ask().await {
            Err(error) if error.kind == StoreErrorKind::Conflict => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return Ok(other?),
        }
    }
    Err(CaseFailure(format!("{what} ended with Conflict twenty times")))
}

async fn take_due<S: ParkingStore>(
    store: &S,
    consumer: &ConsumerKey,
    max: usize,
) -> Result<Option<Taken<S::Tx>>, CaseFailure> {
    patient("take_due", async || store.take_due(consumer, max).await).await
}

/// Takes what is due; there must be something.
async fn take<S: ParkingStore>(
    store: &S,
    consumer: &ConsumerKey,
    max: usize,
) -> Result<Taken<S::Tx>, CaseFailure> {
    let taken = take_due(store, consumer, max).await?;
    taken.ok_or_else(|| CaseFailure("nothing is due, though something must be".into()))
}

/// Takes as soon as so many rows are due at once.
async fn take_when_due<H: ParkingHarness>(
    harness: &H,
    store: &H::Store,
    consumer: &ConsumerKey,
    count: usize,
) -> Result<Taken<Tx<H>>, CaseFailure> {
    let due = async {
        loop {
            if let Some((tx, rows)) = take_due(store, consumer, count).await? {
                if rows.len() >= count {
                    return Ok((tx, rows));
                }
                store.commit(tx).await?;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let due = tokio::time::timeout(harness.features().patience, due).await;
    due.map_err(|_| CaseFailure(format!("{count} rows never came due")))?
}

/// Fails when something is due, and leaves it as it was.
async fn nothing_is_due<S: ParkingStore>(store: &S, consumer: &ConsumerKey, why: &str) -> CaseResult {
    match take_due(store, consumer, 100).await? {
        None => Ok(()),
        Some((tx, rows)) => {
            store.rollback(tx).await?;
            Err(CaseFailure(format!("{:?} was taken, {why}", ids_of(&rows))))
        }
    }
}

/// Looks at parked rows, due or not; those that are there.
pub(crate) async fn look<S: ParkingStore>(
    store: &S,
    consumer: &ConsumerKey,
    keys: &[Dedup],
) -> Result<Vec<ParkedMessage>, CaseFailure> {
    let (tx, rows) = patient("take_again", async || store.take_again(consumer, keys).await).await?;
    store.commit(tx).await?;
    Ok(rows)
}

/// Says what became of rows, and commits.
async fn resume<S: ParkingStore>(
    store: &S,
    mut tx: S::Tx,
    consumer: &ConsumerKey,
    outcomes: &[(Dedup, Resumed)],
) -> CaseResult {
    store.resume(&mut tx, consumer, outcomes).await?;
    Ok(store.commit(tx).await?)
}

/// Takes one row, which must be this one, says what became of it, and commits.
async fn retry<S: ParkingStore>(store: &S, consumer: &ConsumerKey, id: &str, outcome: Resumed) -> CaseResult {
    let (tx, rows) = take(store, consumer, 1).await?;
    same("taken", &ids_of(&rows), &vec![id.to_owned()])?;
    resume(store, tx, consumer, &[(rows[0].dedup, outcome)]).await
}

pub(crate) fn ids_of(rows: &[ParkedMessage]) -> Vec<String> {
    rows.iter().map(|row| row.letter.id.as_ref().map_or_else(String::new, ToString::to_string)).collect()
}

/// The rows' ids, in whatever order.
fn sorted_ids_of(rows: &[ParkedMessage]) -> Vec<String> {
    let mut ids = ids_of(rows);
    ids.sort();
    ids
}

pub(crate) fn strings(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// How many messages the consumer has parked.
async fn parked_count<S: ParkingStore>(store: &S, consumer: &ConsumerKey) -> Result<u64, CaseFailure> {
    Ok(store.parked_status(consumer).await?.count)
}

async fn history_is<H: ParkingHarness>(harness: &H, dedup: &Dedup, expected: &[FailedAttempt]) -> CaseResult {
    let seen = harness.attempts(&name("wallet")?, dedup).await;
    ensure(seen == expected, || format!("the history: saw {seen:?}, expected {expected:?}"))
}
