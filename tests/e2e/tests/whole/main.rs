//! Whole paths, in one program: most of each test is waiting, so that they run side by side.

#![allow(clippy::unwrap_used, reason = "a panic is the failure report")]

mod away;
mod behaviours;
mod due_rows;
mod file_lock;
mod full_disk;
mod hot_accounts;
mod kill;
mod members;
mod outages;
mod poison;
mod said;
mod stops;
mod twelve_outages;
mod versions;
