//! `lab storage`: what a remembered id costs in Postgres, in tables as the published measurement has them and
//! in ours.
//!
//! ```text
//!  for each round, for each table: made anew ─► filled in steps ─► VACUUM ─► sizes ─► dropped
//! ```
//!
//! Sizes are the server's own (`pg_relation_size`, `pg_indexes_size`), divided by the rows.

use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::ledger::session::Session;
use crate::names::{self, LAB};
use serde::{Deserialize, Serialize};

/// Rows inserted by one statement.
const STEP: u64 = 50_000;

/// One kind of table.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    /// With `{schema}`.
    create: &'static str,
    /// With `{schema}` and `{rows}`.
    fill: &'static str,
}

const PUBLISHED_TEXT: &str = "CREATE TABLE {schema}.remembered (consumer text NOT NULL, message_id text NOT NULL, \
     processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer, message_id))";
const PUBLISHED_UUID: &str = "CREATE TABLE {schema}.remembered (consumer text NOT NULL, message_id uuid NOT NULL, \
     processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer, message_id))";
/// The inbox as our migration makes it; a test compares the two.
const OURS: &str = "CREATE TABLE {schema}.remembered (digest int8, seen_at int4 NOT NULL, consumer int2 NOT NULL, \
     state \"char\" NOT NULL, id bytea NOT NULL, PRIMARY KEY (id, consumer))";

const KINDS: [Kind; 5] = [
    Kind {
        name: "text",
        create: PUBLISHED_TEXT,
        fill: "INSERT INTO {schema}.remembered (consumer, message_id) \
               SELECT 'wallet-credits', gen_random_uuid()::text FROM generate_series(1, {rows})",
    },
    Kind {
        name: "uuid v4",
        create: PUBLISHED_UUID,
        fill: "INSERT INTO {schema}.remembered (consumer, message_id) \
               SELECT 'wallet-credits', gen_random_uuid() FROM generate_series(1, {rows})",
    },
    Kind {
        name: "uuid v7",
        create: PUBLISHED_UUID,
        fill: "INSERT INTO {schema}.remembered (consumer, message_id) \
               SELECT 'wallet-credits', uuidv7() FROM generate_series(1, {rows})",
    },
    Kind {
        name: "handstamp v4",
        create: OURS,
        fill: "INSERT INTO {schema}.remembered (digest, seen_at, consumer, state, id) \
               SELECT n, (extract(epoch FROM now())::int8 - 1577836800)::int4, 1, 'a', \
               uuid_send(gen_random_uuid()) FROM generate_series(1, {rows}) AS n",
    },
    Kind {
        name: "handstamp v7",
        create: OURS,
        fill: "INSERT INTO {schema}.remembered (digest, seen_at, consumer, state, id) \
               SELECT n, (extract(epoch FROM now())::int8 - 1577836800)::int4, 1, 'a', \
               uuid_send(uuidv7()) FROM generate_series(1, {rows}) AS n",
    },
];

/// Bytes per remembered id in one kind of table, one of each for each round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// Which table.
    pub name: String,
    /// The heap's.
    pub heap: Vec<f64>,
    /// The indexes'.
    pub index: Vec<f64>,
}

impl Bytes {
    /// Heap and index together, for each round.
    #[must_use]
    pub fn total(&self) -> Vec<f64> {
        self.heap.iter().zip(&self.index).map(|(heap, index)| heap + index).collect()
    }
}

/// A schema that is dropped with this.
struct Schema<'a> {
    session: &'a Session,
    name: String,
}

impl Drop for Schema<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.session.run(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name)) {
            tracing::warn!(schema = %self.name, %error, "the lab's schema is left behind");
        }
    }
}

/// Measures. Needs PostgreSQL 18, which makes version 7 ids itself.
///
/// # Errors
/// The database does not answer or is older, or it was told to stop.
pub fn run(
    url: &str,
    rows: u64,
    rounds: u32,
    cancel: &Cancel,
    step: &dyn Fn(usize, usize),
) -> Result<Vec<Bytes>> {
    if rows == 0 || rounds == 0 {
        return Err(LabError::usage("rows and rounds are at least 1"));
    }
    let session = Session::open(url)?;
    if session.number("SELECT current_setting('server_version_num')::int8")? < 180_000 {
        return Err(LabError::usage("lab storage needs PostgreSQL 18: an older one makes no version 7 ids"));
    }
    let name = format!("{LAB}storage_{}", names::token());
    session.run(&format!("CREATE SCHEMA {name}"))?;
    let schema = Schema { session: &session, name };
    let mut all: Vec<Bytes> = KINDS
        .iter()
        .map(|kind| Bytes { name: kind.name.to_owned(), heap: Vec::new(), index: Vec::new() })
        .collect();
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
    for round in 0..rounds {
        for (at, kind) in KINDS.iter().enumerate() {
            let (heap, index) = measure(&schema, kind, rows, cancel)?;
            all[at].heap.push(heap);
            all[at].index.push(index);
            step(round * KINDS.len() + at + 1, rounds * KINDS.len());
        }
    }
    Ok(all)
}

fn measure(schema: &Schema<'_>, kind: &Kind, rows: u64, cancel: &Cancel) -> Result<(f64, f64)> {
    let in_schema = |sql: &str| sql.replace("{schema}", &schema.name);
    schema.session.run(&in_schema("DROP TABLE IF EXISTS {schema}.remembered"))?;
    schema.session.run(&in_schema(kind.create))?;
    let mut left = rows;
    while left > 0 {
        cancel.check()?;
        let now = left.min(STEP);
        schema.session.run(&in_schema(kind.fill).replace("{rows}", &now.to_string()))?;
        left -= now;
    }
    schema.session.run(&in_schema("VACUUM {schema}.remembered"))?;
    let bytes =
        |what: &str| schema.session.number(&in_schema(&format!("SELECT {what}('{{schema}}.remembered')")));
    let (heap, index) = (bytes("pg_relation_size")?, bytes("pg_indexes_size")?);
    if bytes("pg_relation_size")? <= 0 {
        return Err(LabError::new(LabErrorKind::Other, "the table is empty"));
    }
    Ok((per_row(heap, rows), per_row(index, rows)))
}

#[allow(clippy::cast_precision_loss, reason = "bytes per row, for reading")]
fn per_row(bytes: i64, rows: u64) -> f64 {
    bytes as f64 / rows as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_table_is_the_one_of_the_migration() {
        let shown = handstamp::postgres::show_sql(&handstamp::postgres::SchemaName::default());
        let migration: String = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        let inside = |text: &str| text.split_once('(').map(|(_, rest)| rest.trim().to_owned());
        let ours = inside(OURS).expect("a table");
        let ours = ours.strip_suffix(')').expect("a table");
        assert!(migration.contains(ours.trim()), "{ours}\nis not in\n{migration}");
    }
}
