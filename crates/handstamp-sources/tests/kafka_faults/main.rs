//! The Kafka source while brokers, topics and clients fail.
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

mod commit_errors;
#[path = "../kafka/common.rs"]
mod common;
mod ends;
mod faults;
mod reconnect;
