//! The SQLite store: one program, so that it is linked once.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is the failure report")]
#![allow(clippy::print_stdout, reason = "a figure that is reported")]

mod claims;
mod conformance;
mod effects;
mod endings;
mod engine;
mod failures;
mod level0;
mod mass_failure;
mod migrations;
mod objections;
mod parked;
mod plans;
mod race;
mod redrive;
mod routing;
mod sets;
mod starts;
mod store;
mod support;
mod unpark;
mod unwaited;
mod versions;
