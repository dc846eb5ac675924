//! The Kafka source and sink on real brokers, in one program: it is linked once, and its waits overlap.
#![cfg(feature = "kafka")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::too_many_lines,
    reason = "helpers of tests may panic as tests do"
)]

mod cloud_events;
mod common;
mod conformance;
mod deliver;
mod rebalance;
mod shapes;
mod windows;
