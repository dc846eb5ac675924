//! What a cell's database holds: read for the verdict, removed at the end. The user's own accounts are opened
//! here, too: that is how the cause of a dead letter goes away.

use crate::checker::EndState;
use crate::error::{LabError, LabErrorKind, Result};
use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cell's tables; they may not be there yet.
pub(super) enum Tables {
    /// In a file.
    Sqlite(PathBuf),
    /// In two schemas: ours, and the user's own.
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Schemas>),
}

/// What is in them.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) end: EndState,
    /// All dead letters, those without an id included.
    pub(super) dead_letters: u64,
}

/// Of the tables of the store: how many rows they have, as far as they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Parked,
    Dead,
}

impl Kept {
    fn table(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Dead => "dead_letters",
        }
    }
}

impl Tables {
    pub(super) fn sqlite(folder: &Path) -> Self {
        Self::Sqlite(folder.join("store.db"))
    }

    /// How many effects there are; none while the tables are not there.
    pub(super) fn effects(&self) -> u64 {
        let own = self.own();
        self.number(&format!("SELECT count(*) FROM {own}ledger")).unwrap_or(0)
    }

    /// How much the store keeps; nothing while the tables are not there.
    pub(super) fn kept(&self, what: Kept) -> u64 {
        let ours = self.ours();
        self.number(&format!("SELECT count(*) FROM {ours}{}", what.table())).unwrap_or(0)
    }

    /// Every account takes credits from now on.
    pub(super) fn open_accounts(&self) -> Result<()> {
        let own = self.own();
        self.execute(&format!("UPDATE {own}accounts SET opens_at = 0"))
    }

    /// Lines of the audit about an action, and how many messages they are about.
    pub(super) fn audited(&self, action: &str) -> Result<(u64, u64)> {
        let from = format!("FROM {}audit WHERE action = '{action}'", self.ours());
        let lines = self.number(&format!("SELECT count(*) {from}"))?;
        Ok((lines, self.number(&format!("SELECT count(DISTINCT dedup) {from}"))?))
    }

    /// What stands before the names of the user's tables.
    fn own(&self) -> String {
        match self {
            Self::Sqlite(_) => String::new(),
            #[cfg(feature = "postgres")]
            Self::Postgres(schemas) => schemas.own(),
        }
    }

    /// What stands before the names of the store's tables.
    fn ours(&self) -> String {
        match self {
            Self::Sqlite(_) => "handstamp_".to_owned(),
            #[cfg(feature = "postgres")]
            Self::Postgres(schemas) => schemas.ours(),
        }
    }

    fn number(&self, sql: &str) -> Result<u64> {
        let number: i64 = match self {
            Self::Sqlite(path) => {
                let read = sqlite_open(path).and_then(|file| file.query_row(sql, [], |row| row.get(0)));
                read.map_err(no_store)?
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(schemas) => schemas.number(sql)?,
        };
        Ok(u64::try_from(number).unwrap_or(0))
    }

    fn execute(&self, sql: &str) -> Result<()> {
        match self {
            Self::Sqlite(path) => {
                sqlite_open(path).and_then(|file| file.execute_batch(sql)).map_err(no_store)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(schemas) => schemas.execute(sql),
        }
    }

    /// Reads everything the verdict needs.
    pub(super) fn read(&self) -> Result<Found> {
        match self {
            Self::Sqlite(path) => sqlite_read(path).map_err(no_store),
            #[cfg(feature = "postgres")]
            Self::Postgres(schemas) => schemas.read(),
        }
    }
}

fn no_store(error: rusqlite::Error) -> LabError {
    LabError::new(LabErrorKind::Other, "a cell's file is no store").because(error)
}

fn effects(own: &str) -> String {
    format!("SELECT event_id, count(*) FROM {own}ledger GROUP BY event_id")
}

fn balances(own: &str) -> String {
    format!("SELECT id, balance FROM {own}accounts")
}

fn sums(own: &str) -> String {
    format!("SELECT account_id, CAST(sum(amount) AS bigint) FROM {own}ledger GROUP BY account_id")
}

fn counted(effects: BTreeMap<String, i64>) -> BTreeMap<String, u64> {
    effects.into_iter().map(|(id, times)| (id, u64::try_from(times).unwrap_or(0))).collect()
}

fn sqlite_open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}

fn sqlite_read(path: &Path) -> rusqlite::Result<Found> {
    fn pairs<K: rusqlite::types::FromSql + Ord>(
        connection: &Connection,
        sql: &str,
    ) -> rusqlite::Result<BTreeMap<K, i64>> {
        let mut statement = connection.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }
    let connection = sqlite_open(path)?;
    let mut dead = connection.prepare("SELECT id FROM handstamp_dead_letters")?;
    let dead: Vec<Option<Vec<u8>>> =
        dead.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(Found {
        dead_letters: dead.len() as u64,
        end: EndState {
            effects: counted(pairs(&connection, &effects(""))?),
            balances: pairs(&connection, &balances(""))?,
            ledger: pairs(&connection, &sums(""))?,
            dead_letters: dead.iter().flatten().map(|id| crate::ledger::dead_letter_id(id)).collect(),
        },
    })
}

#[cfg(feature = "postgres")]
pub(super) mod postgres {
    use super::super::pipeline::own_schema;
    use super::{Found, balances, counted, effects, sums};
    use crate::checker::EndState;
    use crate::error::{LabError, LabErrorKind, Result};
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tokio::runtime::Runtime;
    use tokio_postgres::{Client, NoTls, Row};

    /// Longest wait for one answer.
    const WAIT: Duration = Duration::from_secs(30);

    /// A cell's two schemas, and the connection that looks at them.
    pub(in super::super) struct Schemas {
        client: Client,
        runtime: Runtime,
        name: String,
    }

    fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LabError {
        LabError::new(LabErrorKind::Unreachable, "the Postgres database does not answer").because(error)
    }

    impl Schemas {
        pub(in super::super) fn open(url: &str, name: &str) -> Result<Self> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
            let connected = runtime
                .block_on(async { tokio::time::timeout(WAIT, tokio_postgres::connect(url, NoTls)).await });
            let (client, connection) = connected.map_err(unreachable)?.map_err(unreachable)?;
            // Its error is the error of the next question.
            drop(runtime.spawn(connection));
            Ok(Self { client, runtime, name: name.to_owned() })
        }

        pub(super) fn own(&self) -> String {
            format!("{}.", own_schema(&self.name))
        }

        pub(super) fn ours(&self) -> String {
            format!("{}.", self.name)
        }

        pub(super) fn number(&self, sql: &str) -> Result<i64> {
            Ok(self.rows(sql)?.first().map_or(0, |row| row.get(0)))
        }

        pub(super) fn execute(&self, sql: &str) -> Result<()> {
            let done = self
                .runtime
                .block_on(async { tokio::time::timeout(WAIT, self.client.batch_execute(sql)).await });
            done.map_err(unreachable)?.map_err(unreachable)
        }

        fn rows(&self, sql: &str) -> Result<Vec<Row>> {
            let answer = self
                .runtime
                .block_on(async { tokio::time::timeout(WAIT, self.client.query(sql, &[])).await });
            answer.map_err(unreachable)?.map_err(unreachable)
        }

        fn pairs<K>(&self, sql: &str) -> Result<BTreeMap<K, i64>>
        where
            K: Ord + for<'a> tokio_postgres::types::FromSql<'a>,
        {
            Ok(self.rows(sql)?.iter().map(|row| (row.get(0), row.get(1))).collect())
        }

        pub(super) fn read(&self) -> Result<Found> {
            let own = self.own();
            let dead = self.rows(&format!("SELECT id FROM {}dead_letters", self.ours()))?;
            let ids = dead.iter().filter_map(|row| row.get::<_, Option<&[u8]>>(0));
            Ok(Found {
                dead_letters: dead.len() as u64,
                end: EndState {
                    effects: counted(self.pairs(&effects(&own))?),
                    balances: self.pairs(&balances(&own))?,
                    ledger: self.pairs(&sums(&own))?,
                    dead_letters: ids.map(crate::ledger::dead_letter_id).collect(),
                },
            })
        }
    }

    impl Drop for Schemas {
        fn drop(&mut self) {
            // A killed consumer's backend may hold locks until the server notices that it is gone.
            let drop = format!(
                "SET lock_timeout = '10s'; DROP SCHEMA IF EXISTS {}, {} CASCADE",
                self.name,
                own_schema(&self.name)
            );
            if self.execute(&drop).is_err() {
                tracing::warn!(schema = %self.name, "the lab's schemas are left behind");
            }
        }
    }
}
