//! The program from outside: arguments in; standard output, standard error and exit code out.

// The example that they run is a file and SQLite; `scripts/test` has every feature.
#![cfg(all(feature = "file", feature = "sqlite"))]
// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod answers;
mod classes;
mod clauses;
mod common;
#[cfg(all(feature = "kafka", feature = "postgres", feature = "sqlite"))]
mod dead_letter_topic;
mod dry_run;
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
mod file_postgres;
mod first_contact;
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
mod growth;
mod import_ids;
#[cfg(all(feature = "kafka", feature = "postgres"))]
mod kafka_postgres;
#[cfg(feature = "lab")]
mod lab_demo;
mod mistakes;
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres", feature = "sqlite"))]
mod night;
mod operators;
mod outputs;
mod packaging;
mod parked;
mod peeks;
mod prune;
mod redrive;
mod refusals;
mod routing;
mod scrape;
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
mod server_refusals;
mod sets;
mod signals;
mod terminal;
mod usage;
mod variables;
mod versions;
mod wallet;
mod watch;
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
mod watch_servers;
mod widths;
