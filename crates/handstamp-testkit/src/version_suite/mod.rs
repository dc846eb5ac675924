//! The rules every store keeps with marks of versions. A driver that runs the
//! [store suite](mod@crate::store_suite) gives one more macro call:
//!
//! ```text
//! handstamp_testkit::version_suite!(MyHarness::new().await);          // several threads, real time
//! handstamp_testkit::version_suite!(paused: MyHarness::new());        // in memory, paused clock
//! ```

mod marks;
mod racing;

use crate::check::same;
use crate::store_suite::{StoreHarness, begin, register};
use crate::{CaseFailure, CaseResult};
use handstamp_core::version_store::VersionStore;
use handstamp_core::{ConsumerKey, Version, VersionKey};
use std::collections::BTreeMap;

/// One empty database, new for each case, of a store that keeps marks.
pub trait VersionHarness: StoreHarness<Store: VersionStore> {}

impl<H: StoreHarness<Store: VersionStore>> VersionHarness for H {}

#[doc(hidden)]
#[macro_export]
macro_rules! __version_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            the_first_version_of_a_key_has_no_mark_before_it
            a_mark_never_goes_down
            another_kind_leaves_the_mark_alone
            marks_keep_every_byte
            each_key_has_its_own_mark
            consumers_have_their_own_marks
            a_rollback_takes_marks_back
            a_transaction_that_is_given_up_raises_nothing
            a_transaction_sees_its_own_marks
            marks_come_with_the_effect
            marks_survive_a_restart
            a_transaction_the_handler_ended_raises_nothing
            nothing_to_raise_answers_nothing
            a_racer_waits_and_is_told_the_mark
            a_racer_behind_a_rollback_is_told_the_mark_before
            keys_apart_do_not_wait
            crossing_keys_both_end
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! version_suite {
    (paused: $harness:expr) => {
        $crate::__version_cases!(__suite_tests [version_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__version_cases!(
            __suite_tests [version_suite, $harness, tokio::test(flavor = "multi_thread", worker_threads = 2)]
        );
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__version_cases!(__suite_names []);

mod cases {
    pub(super) use super::marks::*;
    pub(super) use super::racing::*;
}

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: VersionHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__version_cases!(__suite_dispatch [case, harness])
}

type Marks = BTreeMap<VersionKey, Version>;

fn version(text: &str) -> Result<Version, CaseFailure> {
    Version::parse(text).map_err(|why| CaseFailure(format!("{text}: {why}")))
}

/// Keys that differ only in their last byte, so that a store that cuts them is found out.
fn key(number: u8) -> VersionKey {
    let mut key = [7; 16];
    key[15] = number;
    VersionKey(key)
}

fn marks(pairs: &[(u8, &str)]) -> Result<Marks, CaseFailure> {
    pairs.iter().map(|(of, text)| Ok((key(*of), version(text)?))).collect()
}

/// A store with one registered consumer.
struct Given<S> {
    store: S,
    consumer: ConsumerKey,
}

impl<S: VersionStore> Given<S> {
    async fn new<H: VersionHarness<Store = S>>(harness: &H) -> Result<Self, CaseFailure> {
        let store = harness.open().await;
        let consumer = register(&store, "wallet").await?;
        Ok(Self { store, consumer })
    }

    /// The same database as another process has it.
    async fn beside<H: VersionHarness<Store = S>>(&self, harness: &H) -> Self {
        Self { store: harness.open().await, consumer: self.consumer.clone() }
    }

    /// Begins and raises; the transaction is open.
    async fn raise(&self, pairs: &[(u8, &str)]) -> Result<(S::Tx, Marks), CaseFailure> {
        let (mut tx, _) = begin(&self.store, &self.consumer, &[]).await?;
        let before = self.store.raise_marks(&mut tx, &self.consumer, &marks(pairs)?).await?;
        Ok((tx, before))
    }

    /// Raises and commits; the marks before must be these.
    async fn raised(&self, pairs: &[(u8, &str)], before: &[(u8, &str)]) -> CaseResult {
        let (tx, seen) = self.raise(pairs).await?;
        self.store.commit(tx).await?;
        same(&format!("marks before {pairs:?}"), &seen, &marks(before)?)
    }
}
