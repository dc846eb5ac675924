//! Fakes, conformance suites and process control for Handstamp's tests.
//!
//! * [`fakes`]: brokers of three kinds and a store, in memory, as plain tasks under a paused clock.
//!   Each can be broken on purpose in one named way.
//! * [`mod@source_suite`], [`mod@store_suite`], [`mod@parking_suite`], [`mod@start_suite`],
//!   [`mod@version_suite`], [`mod@prune_suite`], [`mod@identity_suite`], [`mod@sink_suite`]: the rules every driver keeps, a case each. A driver's test file gives a harness and one
//!   macro call.
//! * [`redelivery`]: a handler's own unit test: its messages twice, out of order, with crashes.
//! * [`process`]: starting, waiting for and ending real processes.
//!
//! A suite that no broken fake fails proves nothing: `tests/honesty.toml` says which cases each broken
//! fake fails, and a test keeps it true.

mod check;
pub mod fakes;
pub mod identity_suite;
pub mod parking_suite;
mod payload;
pub mod process;
pub mod prune_suite;
pub mod redelivery;
pub mod sink_suite;
pub mod source_suite;
pub mod start_suite;
pub mod store_suite;
mod suite;
pub mod version_suite;

pub use check::{CaseFailure, CaseResult};
pub use payload::Payload;
