//! The few calls to a database that the hand-written subjects need, the same for Postgres and SQLite.

use super::Res;
use crate::ledger::Database;
use crate::workload::Credit;
use rusqlite::{CachedStatement, Connection};
use std::time::Duration;

/// A parameter: `$1`, `$2` … in the order they are first named.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A connection outside of a transaction, unless `begin` was called.
pub(super) struct Db(Kind);

enum Kind {
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Session>),
    Sqlite(Connection),
}

impl Db {
    /// Connects to the run's ledger.
    pub(super) fn connect(database: &Database) -> Res<Self> {
        match database {
            #[cfg(feature = "postgres")]
            Database::Postgres { url, schema } => {
                Ok(Self(Kind::Postgres(Box::new(postgres::Session::open(url, schema)?))))
            }
            Database::Sqlite { path } => {
                let connection = Connection::open(path)?;
                connection.busy_timeout(Duration::from_secs(10))?;
                connection.execute_batch("PRAGMA synchronous = FULL")?;
                Ok(Self(Kind::Sqlite(connection)))
            }
        }
    }

    /// Runs a statement and answers how many rows it touched.
    pub(super) fn execute(&mut self, sql: &str, values: &[Value]) -> Res<u64> {
        match &mut self.0 {
            #[cfg(feature = "postgres")]
            Kind::Postgres(session) => session.execute(sql, values),
            Kind::Sqlite(connection) => Ok(u64::try_from(bound(connection, sql, values)?.raw_execute()?)?),
        }
    }

    /// Whether a query finds a row.
    pub(super) fn exists(&mut self, sql: &str, values: &[Value]) -> Res<bool> {
        match &mut self.0 {
            #[cfg(feature = "postgres")]
            // The server counts the rows of a SELECT as touched.
            Kind::Postgres(session) => Ok(session.execute(sql, values)? > 0),
            Kind::Sqlite(connection) => Ok(bound(connection, sql, values)?.raw_query().next()?.is_some()),
        }
    }

    /// BEGIN.
    pub(super) fn begin(&mut self) -> Res<()> {
        self.run(if matches!(self.0, Kind::Sqlite(_)) { "BEGIN IMMEDIATE" } else { "BEGIN" })
    }

    /// COMMIT.
    pub(super) fn commit(&mut self) -> Res<()> {
        self.run("COMMIT")
    }

    fn run(&mut self, sql: &str) -> Res<()> {
        match &mut self.0 {
            #[cfg(feature = "postgres")]
            Kind::Postgres(session) => session.run(sql),
            Kind::Sqlite(connection) => Ok(connection.execute_batch(sql)?),
        }
    }
}

/// A statement with its values.
fn bound<'a>(connection: &'a Connection, sql: &str, values: &[Value]) -> Res<CachedStatement<'a>> {
    let mut statement = connection.prepare_cached(sql)?;
    for (at, value) in values.iter().enumerate() {
        match value {
            Value::Text(text) => statement.raw_bind_parameter(at + 1, text)?,
            Value::Number(number) => statement.raw_bind_parameter(at + 1, number)?,
        }
    }
    Ok(statement)
}

/// The effect: an increment, so that running it twice credits twice.
pub(super) fn apply(db: &mut Db, credit: &Credit) -> Res<()> {
    db.execute(
        "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
        &[credit.amount.into(), credit.account.into()],
    )?;
    db.execute(
        "INSERT INTO ledger (event_id, account_id, amount) VALUES ($1, $2, $3)",
        &[(&credit.id).into(), credit.account.into(), credit.amount.into()],
    )?;
    Ok(())
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::{Res, Value};
    use std::collections::HashMap;
    use tokio::runtime::Runtime;
    use tokio_postgres::types::ToSql;
    use tokio_postgres::{Client, NoTls, Statement};

    /// A connection, what it prepared, and the runtime that drives it while an answer is waited for.
    pub(super) struct Session {
        client: Client,
        prepared: HashMap<String, Statement>,
        runtime: Runtime,
    }

    impl Session {
        pub(super) fn open(url: &str, schema: &str) -> Res<Self> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                drop(tokio::spawn(connection));
                client.batch_execute(&format!("SET search_path TO {schema}")).await?;
                Res::Ok(client)
            })?;
            Ok(Self { client, prepared: HashMap::new(), runtime })
        }

        pub(super) fn execute(&mut self, sql: &str, values: &[Value]) -> Res<u64> {
            let Self { client, prepared, runtime } = self;
            runtime.block_on(async {
                if !prepared.contains_key(sql) {
                    prepared.insert(sql.to_owned(), client.prepare(sql).await?);
                }
                let parameters: Vec<&(dyn ToSql + Sync)> = values
                    .iter()
                    .map(|value| match value {
                        Value::Text(text) => text as &(dyn ToSql + Sync),
                        Value::Number(number) => number,
                    })
                    .collect();
                Ok(client.execute(&prepared[sql], &parameters).await?)
            })
        }

        pub(super) fn run(&mut self, sql: &str) -> Res<()> {
            Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
        }
    }
}
