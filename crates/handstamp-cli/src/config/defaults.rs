//! Defaults of keys that belong to the program, and why they are that. Those of the engine stand in
//! `ConsumerOptions`; the reference page lists every key, and tests hold it to both.

use std::time::Duration;

/// Offsets follow the database by at most this: a crash costs that much of duplicates, which the
/// inbox skips; a commit for each message costs a third of the throughput.
pub(crate) const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// Long enough for a batch to finish, short enough that the group does not wait for us.
pub(crate) const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than Postgres' `deadlock_timeout`, so that a deadlock is named as one.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The schema of our tables in Postgres.
pub(crate) const SCHEMA: &str = "handstamp";
