//! The rules every source keeps. A driver gives a harness and one macro call:
//!
//! ```text
//! handstamp_testkit::source_suite!(MyHarness::new().await);          // real time
//! handstamp_testkit::source_suite!(paused: MyHarness::new());        // plain tasks, paused clock
//! ```
//!
//! Which cases bind follows from the source's own [`Capabilities`](handstamp_core::Capabilities) and
//! the harness's [`SourceFeatures`]; a case that does not apply says nothing.

mod cases;
mod probe;

pub use probe::Probe;

use crate::{CaseResult, Payload};
use handstamp_core::Source;
use std::time::Duration;

/// What the harness can do and how fast its source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFeatures {
    /// Lanes that records can be published to, numbered from 0.
    pub lanes: u32,
    /// Keys, null values and headers travel too; otherwise values of one line without line ends.
    pub whole_records: bool,
    /// A second source of the same kind takes lanes from the first.
    pub rebalances: bool,
    /// How long to wait for what must come; longer than a lease and than a rebalance.
    pub patience: Duration,
    /// How long to listen for what must not come; shorter than a lease or a revoke may last.
    pub quiet: Duration,
}

impl SourceFeatures {
    /// For plain tasks under a paused clock: waiting costs nothing.
    pub const PAUSED: Self = Self {
        lanes: 1,
        whole_records: true,
        rebalances: false,
        patience: Duration::from_secs(120),
        quiet: Duration::from_secs(1),
    };
}

/// One broker's topic and group, new for each case.
pub trait SourceHarness: Send + Sync + 'static {
    /// What can be asked of it.
    fn features(&self) -> SourceFeatures;

    /// Publishes in order to one lane. Cases publish before they start a source.
    fn publish(&self, lane: u32, payloads: Vec<Payload>) -> impl Future<Output = ()> + Send;

    /// One more source for the same group or position.
    fn source(&self) -> impl Future<Output = Box<dyn Source>> + Send;

    /// How many of the published records are settled at the broker: those before the position, or
    /// those acked.
    fn settled(&self) -> impl Future<Output = usize> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __source_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            delivers_every_byte_intact
            assigns_a_lane_before_its_first_delivery
            keeps_the_order_of_a_lane
            tags_of_a_lane_grow
            batches_keep_their_limits
            what_is_settled_stays_settled
            what_is_not_settled_comes_again
            what_is_released_comes_again
            settles_never_pass_unfinished_work
            an_old_epoch_settles_nothing
            every_settle_is_answered
            a_held_lane_is_silent
            a_released_lane_goes_on
            a_full_port_does_not_block_commands
            close_settles_what_was_asked
            close_ends_the_deliveries
            nothing_is_settled_when_the_engine_is_gone
            a_revoke_waits_for_drained
            an_extended_lease_is_kept
            an_ended_lease_comes_again
            caught_up_comes_after_everything_else
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! source_suite {
    (paused: $harness:expr) => {
        $crate::__source_cases!(__suite_tests [source_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__source_cases!(__suite_tests [source_suite, $harness, tokio::test]);
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__source_cases!(__suite_names []);

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run(case: &str, harness: &impl SourceHarness) -> CaseResult {
    crate::__source_cases!(__suite_dispatch [case, harness])
}
