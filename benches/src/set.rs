//! Set effects: one statement a batch, against the same statements written by hand.
//!
//! Both sides claim in the same table, run the same two statements over the same columns and check the same row
//! counts. The hand-written loops make their arrays (Postgres) or their temporary table (SQLite) by hand, and count
//! the distinct accounts in memory instead of asking the database.

use crate::bare_postgres::{Taken, UuidParameter};
use crate::bare_sqlite;
use crate::claim;
use crate::harness::{Bar, Figure, Options, Program, Res, Side};
use crate::ours;
use crate::programs::{Setting, Who, kafka_run};
use handstamp_stores::effect::{CompiledEffect, EffectSpec, ExpectSet, SetSpec};
use rusqlite::Transaction;
use serde::Deserialize;
use std::collections::HashSet;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

/// Messages in one transaction.
const BATCH_MAX: usize = 2_000;
const RELATION: &str = "WITH messages (message_id, account_id, amount) AS (SELECT * FROM unnest($1::uuid[], $2::int8[], $3::int8[]))";
const INSERT: &str =
    "INSERT INTO ledger (event_id, account_id, amount) SELECT message_id, account_id, amount FROM messages";
const UPDATE: &str = "UPDATE accounts AS a SET balance = a.balance + m.amount
    FROM (SELECT account_id, sum(amount)::int8 AS amount FROM messages GROUP BY 1) AS m WHERE a.id = m.account_id";
const SQLITE_UPDATE: &str = "UPDATE accounts SET balance = balance + m.amount
    FROM (SELECT account_id, sum(amount) AS amount FROM messages GROUP BY 1) AS m WHERE accounts.id = m.account_id";
const DISTINCT: &str = "SELECT count(DISTINCT account_id) FROM messages";

/// The program.
pub(crate) fn program(options: &Options) -> Program {
    let many = options.count(400_000, 20_000);
    let lines = options.count(200_000, 5_000);
    // What `--messages` says is not about them.
    let claims = if options.quick { 5 } else { 100 };
    let kafka = |label: &str, who, lanes| {
        let setting = Setting { lanes, set: true, ..Setting::new(who, many, BATCH_MAX) };
        Side::new(label, move || kafka_run("set", setting))
    };
    let ratio = |label: &str, what: &str, bar| {
        Figure::ratio(label, &format!("ours {what}"), &format!("bare {what}"), bar)
    };
    Program {
        name: "set",
        title: "Set effects: two statements a batch",
        about: "The loops beside it run the same statements over arrays (Postgres) or a temporary table (SQLite) \
                made by hand. The claims are of ids that are all known: ours says of each whether its body is the \
                same as before, the bare statement only that nothing was inserted.",
        settings: vec![
            ("Postgres", format!("{INSERT}; {UPDATE}; expect_rows_sql: {DISTINCT}")),
            ("SQLite", format!("{INSERT}; {SQLITE_UPDATE}; expect_rows_sql: {DISTINCT}")),
            ("batch_max", BATCH_MAX.to_string()),
            ("commit_every", "200ms".into()),
            ("messages", format!("{many} from Kafka, {lines} from the file, {claims} claims of 1,000 ids")),
        ],
        sides: vec![
            kafka("ours Postgres 1 lane", Who::Ours, 1),
            kafka("bare Postgres 1 lane", Who::Bare, 1),
            kafka("ours Postgres 2 lanes", Who::Ours, 2),
            kafka("bare Postgres 2 lanes", Who::Bare, 2),
            Side::new("ours duplicates", move || claim::duplicates(true, claims)),
            Side::new("bare duplicates", move || claim::duplicates(false, claims)),
            Side::new("ours SQLite", move || {
                bare_sqlite::run(lines, |folder, marks| ours::run_sqlite_sets(folder, BATCH_MAX, marks))
            }),
            Side::new("bare SQLite", move || {
                bare_sqlite::run(lines, |folder, marks| bare_sqlite::bare(folder, BATCH_MAX, true, marks))
            }),
        ],
        figures: vec![
            ratio("set, Kafka to Postgres, one lane: ours / bare", "Postgres 1 lane", Bar::AtLeast(0.9)),
            ratio("set, Kafka to Postgres, two lanes: ours / bare", "Postgres 2 lanes", Bar::None),
            ratio(
                "duplicates through the store, digests compared: ours / bare",
                "duplicates",
                Bar::AtLeast(0.8),
            ),
            ratio("set, file to SQLite: ours / bare", "SQLite", Bar::AtLeast(0.9)),
            Figure::single(
                "set, Kafka to Postgres, one lane: messages/s",
                "rate",
                "ours Postgres 1 lane",
                Bar::None,
            ),
            Figure::single(
                "set, Kafka to Postgres, two lanes: messages/s",
                "rate",
                "ours Postgres 2 lanes",
                Bar::None,
            ),
        ],
    }
}

/// Handstamp's set effects.
pub(crate) fn effects(sqlite: bool) -> Res<Vec<CompiledEffect>> {
    let (id, number, update) =
        if sqlite { ("text", "integer", SQLITE_UPDATE) } else { ("uuid", "int8", UPDATE) };
    let columns = SetSpec::default().column("account_id", number).column("amount", number);
    let distinct = SetSpec { expect: ExpectSet::Query(DISTINCT.into()), ..columns.clone() };
    let specs = [
        EffectSpec { set: Some(columns.column("message_id", id)), ..EffectSpec::new(INSERT) },
        EffectSpec { set: Some(distinct), ..EffectSpec::new(update) },
    ];
    specs.iter().map(|spec| Ok(CompiledEffect::compile(spec)?)).collect()
}

#[derive(Deserialize)]
struct Body {
    account_id: i64,
    amount: i64,
}

/// What the hand-written loop prepares on Postgres.
pub(crate) struct Statements {
    insert: Statement,
    update: Statement,
}

impl Statements {
    pub(crate) async fn prepare(client: &Client) -> Res<Self> {
        let insert = client.prepare(&format!("{RELATION} {INSERT}")).await?;
        let update = client.prepare(&format!("{RELATION} {UPDATE}")).await?;
        Ok(Self { insert, update })
    }

    /// Both statements in one flight; fails unless each message has its row.
    pub(crate) async fn apply<'t>(
        &self,
        client: &Client,
        fresh: impl Iterator<Item = (&'t Taken, Uuid)>,
    ) -> Res<()> {
        let (mut ids, mut accounts, mut amounts) = (vec![], vec![], vec![]);
        for (taken, id) in fresh {
            let body: Body = serde_json::from_slice(&taken.body)?;
            ids.push(UuidParameter::new(id));
            accounts.push(body.account_id);
            amounts.push(body.amount);
        }
        if ids.is_empty() {
            return Ok(());
        }
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&ids, &accounts, &amounts];
        let (inserted, updated) =
            tokio::join!(client.execute(&self.insert, &values), client.execute(&self.update, &values));
        let (inserted, updated) = (inserted?, updated?);
        let distinct = accounts.iter().collect::<HashSet<_>>().len();
        if inserted != u64::try_from(ids.len())? || updated != u64::try_from(distinct)? {
            return Err(format!("{} messages touched {inserted} and {updated} rows", ids.len()).into());
        }
        Ok(())
    }
}

/// The temporary table of the hand-written loop on SQLite.
pub(crate) const TABLE: &str =
    "PRAGMA temp_store = MEMORY; CREATE TEMP TABLE IF NOT EXISTS messages (message_id, account_id, amount)";

/// Both statements over the temporary table; fails unless each message has its row.
pub(crate) fn apply_sqlite(tx: &Transaction<'_>, rows: &[(String, i64, i64)]) -> Res<()> {
    tx.prepare_cached("DELETE FROM messages")?.execute([])?;
    let mut fill = tx.prepare_cached("INSERT INTO messages VALUES (?1, ?2, ?3)")?;
    for (id, account, amount) in rows {
        fill.execute((id, account, amount))?;
    }
    let inserted = tx.prepare_cached(INSERT)?.execute([])?;
    let updated = tx.prepare_cached(SQLITE_UPDATE)?.execute([])?;
    let distinct = rows.iter().map(|(_, account, _)| account).collect::<HashSet<_>>().len();
    if inserted != rows.len() || updated != distinct {
        return Err(format!("{} messages touched {inserted} and {updated} rows", rows.len()).into());
    }
    Ok(())
}
