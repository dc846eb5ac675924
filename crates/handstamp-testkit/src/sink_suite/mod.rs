//! The rules every sink keeps: each record has its own answer, and what was answered Ok is there.

mod cases;

use crate::{CaseResult, Payload};
use handstamp_core::{Origin, Record, Sink};

/// One empty destination, new for each case.
pub trait SinkHarness: Send + Sync + 'static {
    /// The sink.
    type Sink: Sink;

    /// Opens the destination.
    fn sink(&self) -> impl Future<Output = Self::Sink> + Send;

    /// True when keys, null values, headers and line ends travel too.
    fn whole_records(&self) -> bool;

    /// A record that this sink must refuse.
    fn unfit(&self) -> Payload;

    /// The name of the destination, for `origin.topic`.
    fn destination(&self) -> String;

    /// Everything that can be read back, in order.
    fn read_back(&self) -> impl Future<Output = Vec<Payload>> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __sink_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            what_is_answered_ok_is_there
            an_unfit_record_leaves_its_neighbours_alone
            nothing_is_published_for_nothing
            publishing_again_appends
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! sink_suite {
    ($harness:expr) => {
        $crate::__sink_cases!(__suite_tests [sink_suite, $harness, tokio::test(flavor = "multi_thread")]);
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__sink_cases!(__suite_names []);

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: SinkHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__sink_cases!(__suite_dispatch [case, harness])
}

fn record<H: SinkHarness>(harness: &H, payload: &Payload) -> Record {
    payload.at(Origin { topic: harness.destination().into(), partition: 0, offset: 0, line: None })
}
