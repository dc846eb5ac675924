//! The rules every store keeps when it forgets. A driver that runs the [start suite](mod@crate::start_suite) and the
//! [version suite](mod@crate::version_suite) gives one more method and one macro call:
//!
//! ```text
//! handstamp_testkit::prune_suite!(MyHarness::new().await);          // several threads, real time
//! handstamp_testkit::prune_suite!(paused: MyHarness::new());        // in memory, paused clock
//! ```
//!
//! Nothing waits until it is old: the harness makes what is kept older.

mod forgetting;
mod histories;
mod steps;

use crate::parking_suite::given::Given;
use crate::start_suite::StartHarness;
use crate::store_suite::{claim, request};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, PruneCursor, PruneStep, PruneStore, StoreErrorKind, VersionStore,
};
use std::time::Duration;

/// One empty database, new for each case, of a store that forgets.
pub trait PruneHarness: StartHarness<Store: PruneStore + VersionStore> {
    /// Makes all inbox rows and failed attempts older.
    fn age(&self, by: Duration) -> impl Future<Output = ()> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __prune_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            the_old_go_in_batches_and_the_recent_stay
            steps_go_on_where_the_last_one_ended
            two_at_once_share_the_work
            an_open_claim_is_in_nobodys_way
            counting_deletes_nothing
            a_forgotten_id_is_first_again
            parked_ids_stay_until_they_are_applied
            dead_ids_stay_until_they_are_applied
            discarded_ids_go
            consumers_forget_apart
            it_is_known_up_to_when_ids_are_forgotten
            marks_stay
            old_histories_go
            histories_of_what_waits_stay
            recent_histories_stay
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! prune_suite {
    (paused: $harness:expr) => {
        $crate::__prune_cases!(__suite_tests [prune_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__prune_cases!(
            __suite_tests [prune_suite, $harness, tokio::test(flavor = "multi_thread", worker_threads = 2)]
        );
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__prune_cases!(__suite_names []);

mod cases {
    pub(super) use super::forgetting::*;
    pub(super) use super::histories::*;
    pub(super) use super::steps::*;
}

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: PruneHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__prune_cases!(__suite_dispatch [case, harness])
}

/// What is older goes.
const KEEP: Duration = Duration::from_secs(86_400);
/// Well past it.
const OLD: Duration = Duration::from_secs(10 * 86_400);
/// Steps after which something must have come to its end.
const STEPS_MAX: u32 = 1_000;

/// `count` ids that begin alike.
fn ids(kind: &str, count: u32) -> Result<Vec<ClaimRequest>, CaseFailure> {
    // Spread over the order of the keys, as ids without an order are.
    (0..count).map(|n| request(format!("{:08x}-{kind}-{n}", n.wrapping_mul(2_654_435_761)), 1)).collect()
}

impl<S: PruneStore> Given<S> {
    /// Claims and commits, in batches as a consumer does.
    async fn claimed(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, CaseFailure> {
        let mut claims = Vec::with_capacity(requests.len());
        for batch in requests.chunks(5_000) {
            claims.extend(claim(&self.store, &self.consumer, batch).await?);
        }
        Ok(claims)
    }

    async fn step(&self, max: u32, from: Option<&PruneCursor>) -> Result<PruneStep, CaseFailure> {
        self.step_of(&self.consumer, max, from).await
    }

    /// One step, tried again where somebody was in the way, as a pass does.
    async fn step_of(
        &self,
        consumer: &ConsumerKey,
        max: u32,
        from: Option<&PruneCursor>,
    ) -> Result<PruneStep, CaseFailure> {
        for _ in 0..20 {
            match self.store.prune_ids(consumer, KEEP, max, from).await {
                Err(error) if matches!(error.kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => return Ok(other?),
            }
        }
        Err(CaseFailure("prune_ids ended with Conflict twenty times".into()))
    }

    /// Deletes all that is old, from the beginning, and says how many went.
    async fn all_go(&self) -> Result<u64, CaseFailure> {
        let (mut deleted, mut from) = (0, None);
        for _ in 0..STEPS_MAX {
            let step = self.step(10_000, from.as_ref()).await?;
            deleted += step.deleted;
            from = step.next;
            if from.is_none() {
                return Ok(deleted);
            }
        }
        Err(CaseFailure(format!("after {STEPS_MAX} steps there is said to be more")))
    }
}
