//! The ledger as a schema of a Postgres database.

use super::{BALANCES, Database, EFFECTS, LEDGER, Span, dead_letter_id};
use crate::checker::EndState;
use crate::error::{LabError, LabErrorKind, Result};
use handstamp::postgres::{MigrateOptions, SchemaName, migrate_with};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

/// Longest wait for one answer.
const WAIT: Duration = Duration::from_secs(30);

fn schema_sql(schema: &str) -> String {
    format!(
        "CREATE SCHEMA {schema};
         SET search_path TO {schema};
         CREATE TABLE accounts (id int8 PRIMARY KEY, balance int8 NOT NULL DEFAULT 0);
         CREATE TABLE ledger (
             seq int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             event_id text NOT NULL, account_id int8 NOT NULL, amount int8 NOT NULL,
             at timestamptz NOT NULL DEFAULT clock_timestamp()
         );
         CREATE TABLE processed_messages (
             consumer text NOT NULL, message_id text NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(),
             PRIMARY KEY (consumer, message_id)
         );"
    )
}

/// One run's schema.
pub struct PostgresLedger {
    session: Session,
    url: String,
    schema: String,
}

impl std::fmt::Debug for PostgresLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresLedger").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A connection with the runtime that drives it while an answer is waited for.
struct Session {
    client: Client,
    runtime: Runtime,
}

fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LabError {
    LabError::new(LabErrorKind::Unreachable, "the Postgres database does not answer").because(error)
}

fn refused(error: tokio_postgres::Error) -> LabError {
    if error.as_db_error().is_none() {
        return unreachable(error);
    }
    LabError::new(LabErrorKind::Other, "Postgres refuses").because(error)
}

impl Session {
    fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
        let connected =
            runtime.block_on(async { tokio::time::timeout(WAIT, tokio_postgres::connect(url, NoTls)).await });
        let (client, connection) = connected.map_err(unreachable)?.map_err(unreachable)?;
        // Its error is the error of the next question.
        drop(runtime.spawn(connection));
        Ok(Self { client, runtime })
    }

    fn wait<T>(
        &self,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(WAIT, answer).await });
        answer.map_err(unreachable)?.map_err(refused)
    }

    fn run(&self, sql: &str) -> Result<()> {
        self.wait(self.client.batch_execute(sql))
    }

    fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.wait(self.client.query_one(sql, &[]))?.get(0))
    }
}

/// The server's version.
pub(super) fn version(url: &str) -> Result<String> {
    let session = Session::open(url)?;
    let row = session.wait(session.client.query_one("SHOW server_version", &[]))?;
    Ok(format!("PostgreSQL {}", row.get::<_, String>(0)))
}

impl PostgresLedger {
    pub(super) fn create(url: &str, schema: &str, accounts: u64) -> Result<Self> {
        let name = SchemaName::new(schema).map_err(|error| LabError::usage(error.to_string()))?;
        let session = Session::open(url)?;
        session.run(&schema_sql(schema))?;
        // From here on the schema is dropped with the ledger, whatever fails.
        let ledger = Self { session, url: url.to_owned(), schema: schema.to_owned() };
        ledger
            .session
            .run(&format!("INSERT INTO accounts (id) SELECT generate_series(1, {accounts}::int8)"))?;
        let options = MigrateOptions { schema: name, ..MigrateOptions::default() };
        ledger.session.runtime.block_on(migrate_with(&ledger.session.client, &options)).map_err(|error| {
            LabError::new(LabErrorKind::Other, "Postgres refuses our tables").because(error)
        })?;
        ledger.session.run(&format!("SET search_path TO {schema}"))?;
        Ok(ledger)
    }

    pub(super) fn database(&self) -> Database {
        Database::Postgres { url: self.url.clone(), schema: self.schema.clone() }
    }

    pub(super) fn progress(&mut self) -> Result<i64> {
        self.session.number("SELECT coalesce(max(seq), 0) FROM ledger")
    }

    pub(super) fn ids(&mut self) -> Result<u64> {
        let ids = self.session.number("SELECT count(DISTINCT event_id) FROM ledger")?;
        Ok(u64::try_from(ids).unwrap_or(0))
    }

    pub(super) fn span(&mut self) -> Result<Option<Span>> {
        let sql = "SELECT CAST(extract(epoch FROM min(at)) AS float8), \
                   CAST(extract(epoch FROM max(at)) AS float8), count(*) FROM ledger";
        let row = self.session.wait(self.session.client.query_one(sql, &[]))?;
        let effects: i64 = row.get(2);
        let (first_s, last_s): (Option<f64>, Option<f64>) = (row.get(0), row.get(1));
        Ok(first_s.zip(last_s).map(|(first_s, last_s)| Span {
            first_s,
            last_s,
            effects: u64::try_from(effects).unwrap_or(0),
        }))
    }

    fn pairs<K>(&self, sql: &str) -> Result<BTreeMap<K, i64>>
    where
        K: Ord + for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let rows = self.session.wait(self.session.client.query(sql, &[]))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    pub(super) fn end_state(&mut self) -> Result<EndState> {
        let effects = self.pairs::<String>(EFFECTS)?;
        let dead = "SELECT id FROM dead_letters WHERE id IS NOT NULL";
        let dead = self.session.wait(self.session.client.query(dead, &[]))?;
        Ok(EndState {
            effects: effects.into_iter().map(|(id, n)| (id, u64::try_from(n).unwrap_or(0))).collect(),
            balances: self.pairs(BALANCES)?,
            ledger: self.pairs(LEDGER)?,
            dead_letters: dead.iter().map(|row| dead_letter_id(row.get(0))).collect(),
        })
    }
}

impl Drop for PostgresLedger {
    fn drop(&mut self) {
        // A killed consumer's backend may hold locks until the server notices that it is gone.
        let sql = format!("SET lock_timeout = '10s'; DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        if let Err(error) = self.session.run(&sql) {
            tracing::warn!(schema = %self.schema, %error, "the lab's schema is left behind");
        }
    }
}
