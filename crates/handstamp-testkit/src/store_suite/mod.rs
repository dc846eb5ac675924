//! The rules every store keeps. A driver gives a harness and one macro call:
//!
//! ```text
//! handstamp_testkit::store_suite!(MyHarness::new().await);          // several threads, real time
//! handstamp_testkit::store_suite!(paused: MyHarness::new());        // in memory, paused clock
//! ```
//!
//! The harness gives an empty, migrated database, new for each case, opened with the rights that `run`
//! has.

mod chained;
mod claims;
mod ids;
pub(crate) mod letters;
mod outcomes;
mod racing;
mod records;

use crate::check::ensure;
use crate::{CaseFailure, CaseResult};
use handstamp_core::{
    BoxError, Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fingerprint, InboxState, MessageId,
    Store, StoreErrorKind,
};
use std::time::Duration;

/// What the store is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreFeatures {
    /// A failed statement makes the whole transaction worthless, as in Postgres.
    pub errors_abort: bool,
    /// Transactions with nothing in common run side by side.
    pub concurrent: bool,
    /// How long to wait for what must come; longer than the store waits for a lock.
    pub patience: Duration,
    /// How long to watch a claim that must wait; shorter than the store waits for a lock.
    pub quiet: Duration,
}

impl StoreFeatures {
    /// For a store in memory under a paused clock.
    pub const PAUSED: Self = Self {
        errors_abort: false,
        concurrent: true,
        patience: Duration::from_secs(60),
        quiet: Duration::from_secs(1),
    };
}

/// What a handler must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndInside {
    /// Commit.
    Commit,
    /// Roll back.
    Rollback,
}

/// One empty database, new for each case.
pub trait StoreHarness: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// What it is like.
    fn features(&self) -> StoreFeatures;

    /// Opens the database once more, as another process would.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;

    /// Closes every connection of all opened stores, as far as that is possible from outside.
    fn restart(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Adds to a counter of the user's own tables inside the transaction.
    fn add(
        &self,
        tx: &mut <Self::Store as Store>::Tx,
        counter: &str,
        amount: i64,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// The committed counter.
    fn counter(&self, counter: &str) -> impl Future<Output = i64> + Send;

    /// Runs a statement that breaks a constraint; its error, as the driver gives it to a handler.
    fn fail(&self, tx: &mut <Self::Store as Store>::Tx) -> impl Future<Output = BoxError> + Send;

    /// Ends the transaction as a handler must not.
    fn end_inside(
        &self,
        tx: &mut <Self::Store as Store>::Tx,
        how: EndInside,
    ) -> impl Future<Output = ()> + Send;

    /// The committed dead letters of a consumer, oldest first.
    fn dead_letters(&self, consumer: &ConsumerName) -> impl Future<Output = Vec<DeadLetter>> + Send;

    /// What the committed inbox says of an id.
    fn inbox_state(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> impl Future<Output = Option<InboxState>> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            a_new_id_is_first_and_then_a_duplicate
            claims_answer_in_the_order_asked
            a_twin_in_one_call_is_a_duplicate
            another_body_is_a_reused_id
            ids_are_scoped_by_consumer
            an_empty_batch_commits
            five_thousand_ids_in_one_batch
            ids_are_exact
            random_ids_are_exact
            answers_after_a_replay_are_the_same
            registering_again_gives_the_same_key
            another_fingerprint_is_refused
            another_fingerprint_can_be_adopted
            an_unregistered_consumer_is_an_error
            effects_come_with_the_commit
            a_rollback_takes_effects_and_claims_back
            a_dropped_transaction_takes_everything_back
            an_abandoned_transaction_is_free_at_once
            what_is_committed_survives_a_restart
            a_transaction_the_handler_ended_is_detected
            a_swallowed_error_commits_nothing
            an_error_of_a_statement_is_classified
            a_commit_opens_the_next_transaction
            the_next_claims_know_what_was_committed
            durable_is_said_when_it_is_so
            a_failed_commit_opens_nothing
            a_racing_claim_waits_and_is_a_duplicate
            a_racing_claim_is_first_after_a_rollback
            a_racing_batch_after_a_replay_waits_and_is_answered
            disjoint_batches_run_side_by_side
            crossing_batches_both_end
            dead_letters_keep_every_byte
            a_dead_letter_marks_its_inbox_row
            a_dead_letter_without_an_id_is_kept_once
            a_dead_letter_of_a_reused_id_leaves_the_first_alone
            a_truncated_dead_letter_says_so
            a_dead_letter_is_rolled_back_too
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! store_suite {
    (paused: $harness:expr) => {
        $crate::__store_cases!(__suite_tests [store_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__store_cases!(
            __suite_tests [store_suite, $harness, tokio::test(flavor = "multi_thread", worker_threads = 2)]
        );
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__store_cases!(__suite_names []);

mod cases {
    pub(super) use super::chained::*;
    pub(super) use super::claims::*;
    pub(super) use super::ids::*;
    pub(super) use super::outcomes::*;
    pub(super) use super::racing::*;
    pub(super) use super::records::*;
}

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: StoreHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__store_cases!(__suite_dispatch [case, harness])
}

pub(crate) type Tx<H> = <<H as StoreHarness>::Store as Store>::Tx;

pub(crate) fn name(name: &str) -> Result<ConsumerName, CaseFailure> {
    Ok(ConsumerName::new(name)?)
}

pub(crate) fn id(bytes: impl AsRef<[u8]>) -> Result<MessageId, CaseFailure> {
    Ok(MessageId::new(bytes.as_ref().to_vec())?)
}

pub(crate) fn request(bytes: impl AsRef<[u8]>, digest: i64) -> Result<ClaimRequest, CaseFailure> {
    Ok(ClaimRequest { id: id(bytes)?, digest: Some(digest) })
}

pub(crate) async fn register<S: Store>(store: &S, consumer: &str) -> Result<ConsumerKey, CaseFailure> {
    Ok(store.register(&name(consumer)?, &Fingerprint("suite".into()), false).await?)
}

/// Begins, and begins again where the store asks for that, as the engine does.
pub(crate) async fn begin<S: Store>(
    store: &S,
    consumer: &ConsumerKey,
    ids: &[ClaimRequest],
) -> Result<(S::Tx, Vec<Claim>), CaseFailure> {
    for _ in 0..20 {
        match store.begin(consumer, ids).await {
            Err(error) if error.kind == StoreErrorKind::Conflict => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return Ok(other?),
        }
    }
    Err(CaseFailure("begin ended with Conflict twenty times".into()))
}

/// Claims and commits in one go.
pub(crate) async fn claim<S: Store>(
    store: &S,
    consumer: &ConsumerKey,
    ids: &[ClaimRequest],
) -> Result<Vec<Claim>, CaseFailure> {
    let (tx, claims) = begin(store, consumer, ids).await?;
    store.commit(tx).await?;
    Ok(claims)
}

fn is_duplicate(claim: &Claim) -> bool {
    matches!(claim, Claim::Duplicate { .. })
}

fn is_reused(claim: &Claim) -> bool {
    matches!(claim, Claim::IdReused { .. })
}

pub(crate) fn claims_are(claims: &[Claim], expected: &str) -> CaseResult {
    let seen: String = claims
        .iter()
        .map(|claim| match claim {
            Claim::First => 'F',
            claim if is_duplicate(claim) => 'D',
            claim if is_reused(claim) => 'R',
            _ => '?',
        })
        .collect();
    ensure(seen == expected, || format!("claims (First, Duplicate, Reused): saw {seen}, expected {expected}"))
}
