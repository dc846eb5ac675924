//! `lab kill` with real processes that really die: on the mock broker with SQLite, and on a real broker with
//! Postgres.

// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;
mod mock;
mod real;
