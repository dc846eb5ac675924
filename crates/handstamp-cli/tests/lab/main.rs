//! The lab's commands as a user types them, with real processes that really die.

// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::panic)]
#![cfg(all(feature = "lab", feature = "kafka", feature = "postgres"))]

mod broker;
mod common;
mod ends;
mod faults;
mod processes;
mod resumed;
mod servers;
mod usage;
mod verify;
