//! Harness for tests that need a whole path: real servers, real processes, deliberate faults.
//!
//! | file | owns |
//! |---|---|
//! | `bent_store` | a store with its inbox taken away, or that dies at a named place |
//! | `money` | the effect: a credit to an account and a line in the ledger, on both stores |
//! | `world` | files and a database of a test's own, on either store |
//! | `servers` | databases and topics of a test's own |
//! | `child` | the subject as a child process |
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test harness: a panic is the failure report"
)]

pub mod bent_store;
pub mod child;
pub mod money;
pub mod servers;
pub mod world;
