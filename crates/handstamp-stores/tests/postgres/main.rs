//! The Postgres store on real servers: 15 and 18, each test in a database of its own, as a role without
//! any DDL right. A missing server fails the tests.
#![cfg(feature = "postgres")]
// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod chained;
mod claims;
mod conformance;
mod due_rows;
mod effects;
mod endings;
mod functions;
mod harness;
mod level0;
mod mass_failure;
mod migrations;
mod own_table;
mod pages;
mod parked;
mod private;
mod proxy;
mod prune;
mod redrive;
mod routing;
mod sets;
mod start_costs;
mod starts;
mod starts_parked;
mod tls;
mod transactions;
mod unpark;
mod upgrade;
mod versions;
