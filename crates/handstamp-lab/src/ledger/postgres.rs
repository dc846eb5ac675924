//! The ledger as a schema of a Postgres database.

use super::session::{Session, without_tls};
use super::{BALANCES, Database, EFFECTS, LEDGER, Span, dead_letter_id, inbox_schema};
use crate::checker::EndState;
use crate::error::{LabError, LabErrorKind, Result};
use handstamp::postgres::{MigrateOptions, SchemaName, migrate_with};
use std::collections::BTreeMap;

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

/// The server's version.
pub(super) fn version(url: &str) -> Result<String> {
    without_tls(url)?;
    let session = Session::open(url)?;
    let row = session.wait(session.client.query_one("SHOW server_version", &[]))?;
    Ok(format!("PostgreSQL {}", row.get::<_, String>(0)))
}

impl PostgresLedger {
    pub(super) fn create(url: &str, schema: &str, accounts: u64) -> Result<Self> {
        let inbox =
            SchemaName::new(&inbox_schema(schema)).map_err(|error| LabError::usage(error.to_string()))?;
        let session = Session::open(url)?;
        session.run(&schema_sql(schema))?;
        // From here on the schema is dropped with the ledger, whatever fails.
        let ledger = Self { session, url: url.to_owned(), schema: schema.to_owned() };
        ledger
            .session
            .run(&format!("INSERT INTO accounts (id) SELECT generate_series(1, {accounts}::int8)"))?;
        let options = MigrateOptions { schema: inbox, ..MigrateOptions::default() };
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

    pub(super) fn repeated_ms(&mut self) -> Result<Vec<u64>> {
        let sql = "SELECT CAST(extract(epoch FROM at) * 1000 AS int8) FROM (
                     SELECT seq, at, row_number() OVER (PARTITION BY event_id ORDER BY seq) AS n FROM ledger) AS l
                   WHERE n > 1 ORDER BY seq";
        let rows = self.session.wait(self.session.client.query(sql, &[]))?;
        Ok(rows.iter().map(|row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)).collect())
    }

    fn pairs<K>(&self, sql: &str) -> Result<BTreeMap<K, i64>>
    where
        K: Ord + for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let rows = self.session.wait(self.session.client.query(sql, &[]))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    pub(super) fn reconnect(&mut self, url: &str) -> Result<()> {
        self.session = Session::open(url)?;
        url.clone_into(&mut self.url);
        self.session.run(&format!("SET search_path TO {}", self.schema))
    }

    pub(super) fn end_state(&mut self) -> Result<EndState> {
        let effects = self.pairs::<String>(EFFECTS)?;
        let inbox = inbox_schema(&self.schema);
        let dead = format!("SELECT id FROM {inbox}.dead_letters WHERE id IS NOT NULL");
        let dead = self.session.wait(self.session.client.query(&dead, &[]))?;
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
        let (schema, inbox) = (&self.schema, inbox_schema(&self.schema));
        let sql = format!("SET lock_timeout = '10s'; DROP SCHEMA IF EXISTS {schema}, {inbox} CASCADE");
        if let Err(error) = self.session.run(&sql) {
            tracing::warn!(schema = %self.schema, %error, "the lab's schema is left behind");
        }
    }
}
