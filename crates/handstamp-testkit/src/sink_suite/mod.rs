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

    /// A sink whose destination is away: nothing is wrong with a record, and it may work later.
    fn sink_out_of_reach(&self) -> impl Future<Output = Self::Sink> + Send;

    /// True when keys, null values, headers and line ends travel too.
    fn whole_records(&self) -> bool;

    /// A record that this sink must refuse.
    fn unfit(&self) -> Payload;

    /// The name of the destination, for `origin.topic`.
    fn destination(&self) -> String;

    /// One more destination of the same sink; `None` where a sink has only one.
    fn other_destination(&self) -> impl Future<Output = Option<String>> + Send;

    /// Everything that can be read back from a destination, in order.
    fn read_back(&self, destination: &str) -> impl Future<Output = Vec<Payload>> + Send;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __sink_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            what_is_answered_ok_is_there_once
            every_byte_arrives
            an_unfit_record_leaves_its_neighbours_alone
            nothing_is_published_for_nothing
            publishing_again_appends
            five_thousand_records_come_in_order
            each_destination_gets_its_own
            publishers_side_by_side_lose_nothing
            what_is_out_of_reach_may_work_later
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! sink_suite {
    (paused: $harness:expr) => {
        $crate::__sink_cases!(__suite_tests [sink_suite, $harness, tokio::test(start_paused = true)]);
    };
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

fn record(destination: &str, payload: &Payload) -> Record {
    payload.at(Origin { topic: destination.into(), partition: 0, offset: 0, line: None })
}
