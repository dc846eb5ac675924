//! What the user says about a SQLite store: which file, and how long things may take.

use std::path::PathBuf;
use std::time::Duration;

/// Where a SQLite store is and how long things may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The database file; made when missing (its folder is not).
    pub path: PathBuf,
    /// Longest wait for the write lock; after it the transaction is a conflict and runs again.
    pub lock_timeout: Duration,
    /// Longest run of one statement of a handler or effect: the handler's time limit. A blocking statement
    /// cannot be cut off from outside, so SQLite is told to stop by itself.
    pub statement_timeout: Duration,
    /// Make our tables by itself in a file that holds no table yet.
    pub migrate_new: bool,
    /// The user's own schema file.
    pub setup: Option<Setup>,
}

impl SqliteOptions {
    /// The defaults for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            lock_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            migrate_new: true,
            setup: None,
        }
    }
}

/// The user's own tables: a file that `migrate` runs once and knows again by its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The file's name, without its folder: the same name with another content is refused.
    pub name: String,
    /// Its SQL: any number of statements, no transaction control.
    pub sql: String,
}
