//! Set effects: statements that run once a batch over the relation `messages`.
//!
//! Authoritative: the server's answers, and the types that it gives the declared columns. Each column of a batch is
//! one array parameter; the values in it are held to the same rules as a parameter of that type.
//!
//! ```text
//!  messages ─► values ─► arrays, one a column          a value that does not fit: its message, before anything runs
//!  one flight: lock ─► expect_rows_sql ─► WITH messages AS (SELECT … FROM unnest($1::int4[], …)) statement
//!  rows touched = messages (or what the query said)    otherwise nobody knows which: the batch is taken apart
//! ```
//!
//! Set effects are batch handlers like all declared ones:
//!
//! ```
//! use handstamp_stores::effect::{EffectSpec, ExpectSet, SetSpec};
//! use handstamp_stores::postgres::SqlEffects;
//!
//! let columns = SetSpec::default().column("account_id", "int4").column("amount", "numeric");
//! let ledger = "INSERT INTO ledger SELECT message_id, account_id, amount FROM messages";
//! let balances = "UPDATE accounts AS a SET balance = a.balance + m.amount
//!     FROM (SELECT account_id, sum(amount) AS amount FROM messages GROUP BY 1) AS m WHERE a.id = m.account_id";
//! let distinct = ExpectSet::Query("SELECT count(DISTINCT account_id) FROM messages".into());
//! let effects = SqlEffects::compile(&[
//!     EffectSpec { set: Some(columns.clone()), ..EffectSpec::new(ledger) },
//!     EffectSpec { set: Some(SetSpec { expect: distinct, ..columns }), ..EffectSpec::new(balances) },
//! ])?;
//! # drop(effects); // Consumer::builder(…).batch_handler(effects)
//! # Ok::<(), handstamp_core::StoreError>(())
//! ```

use super::array::ArrayColumn;
use super::binding::{shown, unsupported};
use crate::effect::{
    BindError, CompiledEffect, MessageView, ParamSource, Reads, Routing, SetColumns, SetQuery, SetRows, Step,
    set_groups, steps,
};
use futures_util::future::{OptionFuture, join3};
use handstamp_core::{HandlerError, Message};
use std::fmt::Write as _;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Statement};

/// Messages whose values are read before others on the thread get their turn.
const YIELD_EVERY: usize = 256;

/// The set effects of a pipeline.
#[derive(Debug, Default)]
pub(super) struct Sets {
    groups: Vec<Group>,
    sets: Vec<SetEffect>,
    /// The number of the pipeline's effects: the places of their statements come first.
    effects: usize,
    /// What is done for a batch.
    steps: Vec<Step>,
}

/// Set effects that run for the same messages.
#[derive(Debug)]
struct Group {
    /// The first of them, by its number.
    effect: usize,
    columns: SetColumns,
    /// Asks the server for the columns' types.
    types: String,
}

#[derive(Debug)]
pub(super) struct SetEffect {
    /// Its number among all effects, from 0.
    pub(super) effect: usize,
    group: usize,
    main: Sql,
    lock: Option<Sql>,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    EachMessage,
    Query(Sql),
    Any,
}

/// One statement over `messages`.
#[derive(Debug)]
struct Sql {
    text: String,
    /// The group's columns that are its parameters; none: the number of messages is its only one.
    columns: Vec<usize>,
    /// Where it is among the prepared statements.
    place: usize,
}

/// Why a set effect failed.
#[derive(Debug)]
pub(super) enum SetFault {
    /// The database's error, and which of the effect's statements it answers.
    Sql(&'static str, Error),
    /// Another number of rows than expected.
    Rows(String),
}

/// A message keeps a batch from its set effects.
#[derive(Debug)]
pub(super) enum MessageFault {
    /// A value that does not fit its column of this effect.
    Column(usize, BindError),
    /// A condition without an answer.
    Condition(HandlerError),
}

/// A group's columns, filled from the messages that it runs for.
pub(super) struct Filled {
    columns: Vec<ArrayColumn>,
    /// Their places in the batch.
    messages: Vec<usize>,
}

impl Sets {
    pub(super) fn of(effects: &[CompiledEffect]) -> Self {
        let mut place = effects.len();
        let mut next = || {
            place += 1;
            place - 1
        };
        let (mut groups, mut sets) = (Vec::new(), Vec::new());
        let found = set_groups(effects);
        for (columns, members) in &found {
            let effect = members.first().map_or(0, |(effect, _)| *effect);
            groups.push(Group { effect, columns: columns.clone(), types: types_sql(columns) });
            next();
        }
        for (group, (columns, members)) in found.into_iter().enumerate() {
            for (effect, slots) in members {
                let Some((compiled, set)) = effects.get(effect).and_then(|e| Some((e, e.set.as_ref()?)))
                else {
                    continue;
                };
                let main = sql(compiled.statement.sql(), &set.reads, &columns, &slots, effect);
                let beside = |query: &SetQuery, place| {
                    sql(query.statement.sql(), &query.reads, &columns, &slots, place)
                };
                let lock = set.lock.as_ref().map(|query| beside(query, next()));
                let rows = match &set.expect {
                    SetRows::Query(query) => Rows::Query(beside(query, next())),
                    SetRows::Any => Rows::Any,
                    SetRows::EachMessage => Rows::EachMessage,
                };
                sets.push(SetEffect { effect, group, main, lock, rows });
            }
        }
        sets.sort_by_key(|set| set.effect);
        let steps = steps(effects.len(), sets.iter().map(|set| set.effect));
        Self { groups, sets, effects: effects.len(), steps }
    }

    /// What is done for a batch.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(super) fn get(&self, at: usize) -> &SetEffect {
        &self.sets[at]
    }

    /// An effect's own statement, where it is a set effect.
    pub(super) fn main(&self, effect: usize) -> Option<&str> {
        let set = self.sets.iter().find(|set| set.effect == effect)?;
        Some(&set.main.text)
    }

    /// What is prepared behind the effects' own statements, in order, each with its effect.
    pub(super) fn beside(&self) -> Vec<(usize, &str)> {
        let groups = self.groups.iter().map(|group| (group.effect, group.types.as_str()));
        let mut beside: Vec<(usize, usize, &str)> = Vec::new();
        for set in &self.sets {
            let rows = match &set.rows {
                Rows::Query(sql) => Some(sql),
                _ => None,
            };
            let queries = set.lock.iter().chain(rows);
            beside.extend(queries.map(|sql| (sql.place, set.effect, sql.text.as_str())));
        }
        beside.sort_unstable();
        groups.chain(beside.into_iter().map(|(_, effect, text)| (effect, text))).collect()
    }

    /// What cannot be of a statement that was prepared at this place; one line.
    pub(super) fn unfit(&self, place: usize, statement: &Statement) -> Option<String> {
        let group = place.checked_sub(self.effects).and_then(|at| self.groups.get(at));
        if let Some(group) = group {
            let params = group.columns.bindings().params().iter().zip(statement.params());
            let mut refused =
                params.filter_map(|(param, type_)| Some((&param.name, type_, unsupported(type_)?)));
            return refused.next().map(|(name, type_, why)| {
                format!(
                    "columns.{name} has the type {}: {why}; declare it as text and cast it in the statement",
                    shown(type_)
                )
            });
        }
        let is_count = |set: &SetEffect| matches!(&set.rows, Rows::Query(sql) if sql.place == place);
        if !self.sets.iter().any(is_count) {
            return None;
        }
        match statement.columns() {
            [column] if [Type::INT2, Type::INT4, Type::INT8].contains(column.type_()) => None,
            [column] => Some(format!(
                "expect_rows_sql answers a value of type {}: it must be a whole number, as of count(…)",
                shown(column.type_())
            )),
            columns => {
                Some(format!("expect_rows_sql answers {} columns instead of one number", columns.len()))
            }
        }
    }

    /// Reads every column of every message that set effects run for.
    pub(super) async fn fill(
        &self,
        statements: &[Statement],
        routing: &Routing,
        batch: &[Message],
    ) -> Result<Vec<Filled>, (usize, MessageFault)> {
        if self.groups.is_empty() {
            return Ok(Vec::new());
        }
        let views: Vec<MessageView<'_>> = batch.iter().map(MessageView::new).collect();
        let mut filled = Vec::with_capacity(self.groups.len());
        for (at, group) in self.groups.iter().enumerate() {
            let types = statements.get(self.effects + at).map_or(&[][..], Statement::params);
            let mut of_group = Filled::new(types, batch.len());
            for (message, view) in views.iter().enumerate() {
                of_group.push(group, message, routing, view).map_err(|fault| (message, fault))?;
                if message % YIELD_EVERY == YIELD_EVERY - 1 {
                    tokio::task::yield_now().await;
                }
            }
            filled.push(of_group);
        }
        Ok(filled)
    }

    /// Runs one of them; the places of its messages where it fails.
    pub(super) async fn run<'f>(
        &self,
        client: &Client,
        statements: &[Statement],
        set: &SetEffect,
        filled: &'f [Filled],
    ) -> Result<(), (&'f [usize], SetFault)> {
        let Some(rows) = filled.get(set.group).filter(|filled| !filled.messages.is_empty()) else {
            return Ok(());
        };
        set.run(client, statements, rows).await.map_err(|fault| (&rows.messages[..], fault))
    }
}

impl Filled {
    fn new(types: &[Type], messages: usize) -> Self {
        let columns = types.iter().map(|type_| ArrayColumn::new(type_, messages)).collect();
        Self { columns, messages: Vec::with_capacity(messages) }
    }

    fn push(
        &mut self,
        group: &Group,
        message: usize,
        routing: &Routing,
        view: &MessageView<'_>,
    ) -> Result<(), MessageFault> {
        if !routing.meets(group.effect, view).map_err(MessageFault::Condition)? {
            return Ok(());
        }
        for (at, (param, column)) in
            group.columns.bindings().params().iter().zip(&mut self.columns).enumerate()
        {
            let refused = |error| MessageFault::Column(group.columns.effect_of(at), error);
            let value = param.resolve(view).map_err(refused)?;
            column.push(&param.name, &value).map_err(refused)?;
        }
        self.messages.push(message);
        Ok(())
    }
}

impl SetEffect {
    async fn run(&self, client: &Client, statements: &[Statement], rows: &Filled) -> Result<(), SetFault> {
        let count = i64::try_from(rows.messages.len()).unwrap_or(i64::MAX);
        let parameters = |sql: &Sql| -> Vec<&(dyn ToSql + Sync)> {
            if sql.columns.is_empty() { vec![&count] } else { sql.parameters(rows) }
        };
        let expected = match &self.rows {
            Rows::Query(sql) => Some(sql),
            _ => None,
        };
        let (of_lock, of_expected, of_main) =
            (self.lock.as_ref().map(parameters), expected.map(parameters), parameters(&self.main));
        let lock = self.lock.as_ref().zip(of_lock.as_ref());
        let lock = lock.map(|(sql, values)| client.execute(&statements[sql.place], values));
        let expect = expected.zip(of_expected.as_ref());
        let expect = expect.map(|(sql, values)| client.query(&statements[sql.place], values));
        let main = client.execute(&statements[self.main.place], &of_main);
        // The first poll of each sends it: all are one flight, and what stands behind a failed one is skipped.
        let (locked, expected, touched) =
            join3(OptionFuture::from(lock), OptionFuture::from(expect), main).await;
        if let Some(Err(error)) = locked {
            return Err(SetFault::Sql("lock", error));
        }
        let expected = match expected {
            Some(answer) => answered(answer.map_err(|error| SetFault::Sql("expect_rows_sql", error))?)?,
            None => count,
        };
        let touched = touched.map_err(|error| SetFault::Sql("sql", error))?;
        if matches!(self.rows, Rows::Any) || i64::try_from(touched).is_ok_and(|touched| touched == expected) {
            return Ok(());
        }
        Err(SetFault::Rows(self.wrong_rows(touched, expected, count)))
    }

    fn wrong_rows(&self, touched: u64, expected: i64, messages: i64) -> String {
        let hint = match self.rows {
            Rows::EachMessage if messages > 1 => {
                "; a statement that makes one row of several messages says how many with `expect_rows_sql`"
            }
            _ => "",
        };
        format!("touched {touched} rows for {messages} messages, expected {expected}{hint}")
    }
}

impl Sql {
    fn parameters<'r>(&self, rows: &'r Filled) -> Vec<&'r (dyn ToSql + Sync)> {
        self.columns.iter().filter_map(|at| rows.columns.get(*at)).map(|column| column as _).collect()
    }
}

fn answered(rows: Vec<tokio_postgres::Row>) -> Result<i64, SetFault> {
    let wrong = |what: String| SetFault::Rows(format!("expect_rows_sql {what} instead of one number"));
    let [row] = &rows[..] else { return Err(wrong(format!("answered {} rows", rows.len()))) };
    let number = match row.columns().first().map(|column| column.type_().clone()) {
        Some(Type::INT2) => row.try_get::<_, Option<i16>>(0).map(|n| n.map(i64::from)),
        Some(Type::INT4) => row.try_get::<_, Option<i32>>(0).map(|n| n.map(i64::from)),
        _ => row.try_get::<_, Option<i64>>(0),
    };
    match number {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(wrong("answered NULL".into())),
        Err(error) => Err(SetFault::Sql("expect_rows_sql", error)),
    }
}

/// A built-in column's type where none is declared.
fn built_in_type(source: &ParamSource) -> &'static str {
    match source {
        ParamSource::Partition => "int4",
        ParamSource::Offset => "int8",
        ParamSource::Timestamp => "timestamptz",
        ParamSource::BodyJson => "json",
        _ => "text",
    }
}

fn type_names(columns: &SetColumns) -> Vec<&str> {
    let params = columns.bindings().params().iter().zip(columns.types());
    params.map(|(param, type_)| type_.as_deref().unwrap_or_else(|| built_in_type(&param.source))).collect()
}

fn types_sql(columns: &SetColumns) -> String {
    let typed: Vec<String> =
        type_names(columns).iter().enumerate().map(|(at, name)| format!("${}::{name}", at + 1)).collect();
    format!("SELECT {}", if typed.is_empty() { "1".into() } else { typed.join(", ") })
}

fn sql(text: &str, reads: &Reads, columns: &SetColumns, slots: &[usize], place: usize) -> Sql {
    let used: Vec<usize> = reads.columns.iter().filter_map(|at| slots.get(*at)).copied().collect();
    let relation = relation(columns, &used, reads.number);
    Sql { text: reads.render(text, &relation), columns: used, place }
}

/// `messages` as a query. Names and types passed the grammar of [`crate::effect`]; everything else is a parameter.
fn relation(columns: &SetColumns, used: &[usize], number: bool) -> String {
    let names = type_names(columns);
    let (mut arrays, mut aliases, mut out) = (String::new(), String::new(), String::new());
    for (at, column) in used.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        let name = &columns.bindings().params()[*column].name;
        // `unnest` takes lists of lists apart as well: lists travel as text.
        let (array, value) = match names[*column].strip_suffix("[]") {
            Some(_) => ("text", format!("CAST(u.\"{name}\" AS {})", names[*column])),
            None => (names[*column], format!("u.\"{name}\"")),
        };
        // Writing to a String cannot fail.
        let _ = write!(arrays, "{comma}${}::{array}[]", at + 1);
        let _ = write!(aliases, "{comma}\"{name}\"");
        let _ = write!(out, "{comma}{value}");
    }
    match (used.is_empty(), number) {
        (true, false) => "messages AS (SELECT FROM generate_series(1, $1::int8))".into(),
        (true, true) => "messages (\"n\") AS (SELECT * FROM generate_series(1, $1::int8))".into(),
        (false, false) => {
            format!("messages ({aliases}) AS (SELECT {out} FROM unnest({arrays}) AS u ({aliases}))")
        }
        (false, true) => format!(
            "messages ({aliases}, \"n\") AS (SELECT {out}, u.\"n\" FROM unnest({arrays}) WITH ORDINALITY AS u ({aliases}, \"n\"))"
        ),
    }
}
