//! Accounts and ledger of one run, in a schema or a file of its own.
//!
//! ```text
//!  create (tables, accounts at 0) ─► the subject's children write ─► end state read ─► dropped
//! ```
//!
//! The ledger has no unique key on the id, so that it shows what ran twice. Authoritative for the verdict
//! is what this module reads from the database; no subject is asked.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
pub(crate) mod session;
mod sqlite;

use crate::checker::EndState;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where ledgers are made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A schema for each run in this database. The URL may hold a password: `Debug` does not show it.
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// A file for each run in this folder.
    Sqlite(PathBuf),
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => f.write_str("Postgres(…)"),
            Self::Sqlite(folder) => f.debug_tuple("Sqlite").field(folder).finish(),
        }
    }
}

/// How a subject reaches the ledger of its run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Database {
    /// A schema of a Postgres database.
    #[cfg(feature = "postgres")]
    Postgres {
        /// Connection string; may hold a password.
        url: String,
        /// The run's schema.
        schema: String,
    },
    /// A SQLite file.
    Sqlite {
        /// The file.
        path: PathBuf,
    },
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres { schema, .. } => write!(f, "Postgres({schema})"),
            Self::Sqlite { path } => write!(f, "Sqlite({})", path.display()),
        }
    }
}

impl Database {
    /// A connection string whose unqualified names mean the run's schema, and the schema of our own tables.
    /// `None` for SQLite.
    #[must_use]
    pub fn postgres(&self) -> Option<(String, String)> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres { url, schema } => {
                let mark = if url.contains('?') { '&' } else { '?' };
                Some((format!("{url}{mark}options=-c%20search_path%3D{schema}"), inbox_schema(schema)))
            }
            Self::Sqlite { .. } => None,
        }
    }
}

/// The ledger of one run; its schema or file is removed when it is dropped.
#[derive(Debug)]
pub enum Ledger {
    /// In Postgres.
    #[cfg(feature = "postgres")]
    Postgres(postgres::PostgresLedger),
    /// In SQLite.
    Sqlite(sqlite::SqliteLedger),
}

/// When the first and the last effect came, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Seconds since 1970 by the database's clock.
    pub first_s: f64,
    /// The same of the last effect.
    pub last_s: f64,
    /// Ledger lines.
    pub effects: u64,
}

impl Ledger {
    /// Makes tables and accounts 1 to `accounts`.
    ///
    /// # Errors
    /// `Unreachable` when the database does not answer, `Other` when it refuses.
    pub fn create(place: &Place, name: &str, accounts: u64) -> Result<Self> {
        match place {
            #[cfg(feature = "postgres")]
            Place::Postgres(url) => {
                Ok(Self::Postgres(postgres::PostgresLedger::create(url, name, accounts)?))
            }
            Place::Sqlite(folder) => Ok(Self::Sqlite(sqlite::SqliteLedger::create(folder, name, accounts)?)),
        }
    }

    /// How the subject reaches it.
    #[must_use]
    pub fn database(&self) -> Database {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ledger) => ledger.database(),
            Self::Sqlite(ledger) => ledger.database(),
        }
    }

    /// A number that grows with every committed effect; cheap enough to be asked many times a second.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn progress(&mut self) -> Result<i64> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ledger) => ledger.progress(),
            Self::Sqlite(ledger) => ledger.progress(),
        }
    }

    /// How many different ids have an effect.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn ids(&mut self) -> Result<u64> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ledger) => ledger.ids(),
            Self::Sqlite(ledger) => ledger.ids(),
        }
    }

    /// Connects again, after the server was away or another one has taken its place.
    ///
    /// # Errors
    /// `Usage` for a ledger that is a file; the database does not answer.
    #[cfg(feature = "postgres")]
    pub(crate) fn reconnect(&mut self, url: &str) -> Result<()> {
        match self {
            Self::Postgres(ledger) => ledger.reconnect(url),
            Self::Sqlite(_) => Err(crate::error::LabError::usage("a ledger that is a file is never away")),
        }
    }

    /// When effects came; `None` while there are none.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn span(&mut self) -> Result<Option<Span>> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ledger) => ledger.span(),
            Self::Sqlite(ledger) => ledger.span(),
        }
    }

    /// When effects came that their id had already, in milliseconds since 1970 by the database's clock.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn repeated_ms(&mut self) -> Result<Vec<u64>> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ledger) => ledger.repeated_ms(),
            Self::Sqlite(ledger) => ledger.repeated_ms(),
        }
    }

    /// Everything the verdict needs.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn end_state(&mut self) -> Result<EndState> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(ledger) => ledger.end_state(),
            Self::Sqlite(ledger) => ledger.end_state(),
        }
    }
}

/// Checks that a place can be used before anything is started.
///
/// # Errors
/// `Unreachable` when the database does not answer.
pub fn probe(place: &Place) -> Result<String> {
    match place {
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => postgres::version(url),
        Place::Sqlite(folder) => sqlite::probe(folder),
    }
}

const EFFECTS: &str = "SELECT event_id, count(*) FROM ledger GROUP BY event_id";
const BALANCES: &str = "SELECT id, balance FROM accounts";
const LEDGER: &str = "SELECT account_id, CAST(sum(amount) AS bigint) FROM ledger GROUP BY account_id";

/// The id as the message had it, from the bytes that our tables keep.
pub(crate) fn dead_letter_id(bytes: &[u8]) -> String {
    match <[u8; 16]>::try_from(bytes) {
        Ok(uuid) => uuid::Uuid::from_bytes(uuid).to_string(),
        Err(_) => String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned(),
    }
}

/// Where our own tables lie: no unqualified name may mean them.
#[cfg(feature = "postgres")]
fn inbox_schema(schema: &str) -> String {
    format!("{schema}_inbox")
}

/// The file of a run.
fn sqlite_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.db"))
}
