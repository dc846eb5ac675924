//! Set effects: statements that run once a batch over the relation `messages`.
//!
//! Authoritative: a temporary table of this connection, which holds each value as it was bound. Its columns have no
//! type, so that SQLite changes nothing; what a value may be is decided by the declared type before it is bound.
//! The statement sees it as a query in front of it: a table `messages` of the user's is not hidden from being written.
//!
//! ```text
//!  messages ─► values ─► temp.handstamp_set_…          a value that does not fit: its message, before anything runs
//!  expect_rows_sql ─► WITH messages AS (SELECT … FROM temp.handstamp_set_…) statement
//!  rows touched = messages (or what the query said)    otherwise nobody knows which: the batch is taken apart
//! ```
//!
//! | type | takes | bound as |
//! |---|---|---|
//! | `integer` (`int`, `bigint`, `int8`; `int4`, `int2`, `smallint` in their range) | a number written as an integer; partition, offset, timestamp | INTEGER |
//! | `real` (`float8`, `double precision`) | a number that comes back the same | REAL |
//! | `numeric` (`decimal`) | a number that loses nothing | INTEGER or REAL |
//! | `text` (`varchar`, `character varying`) | text without NUL; a number's token | TEXT |
//! | `blob` (`bytea`) | base64 that was asked for; id, key, header | BLOB |
//! | `boolean` (`bool`) | true, false | INTEGER 1, 0 |
//! | `json` (`jsonb`) | everything but bytes | TEXT, as it was sent |
//! | `any`; a built-in column without a type | as with a parameter | as with a parameter |
//!
//! Set effects are batch handlers like all declared ones:
//!
//! ```
//! use handstamp_stores::effect::{CompiledEffect, EffectSpec, SetSpec};
//! use handstamp_stores::sqlite::SqlEffects;
//!
//! let columns = SetSpec::default().column("account_id", "integer").column("amount", "integer");
//! let ledger = "INSERT INTO ledger SELECT message_id, account_id, amount FROM messages";
//! let effect = EffectSpec { set: Some(columns), ..EffectSpec::new(ledger) };
//! let effects = SqlEffects::new(vec![CompiledEffect::compile(&effect)?]);
//! # drop(effects); // Consumer::builder(…).batch_handler(effects)
//! # Ok::<(), handstamp_stores::effect::EffectError>(())
//! ```

use super::connect::{Guard, Mode};
use super::effect::{bound, execute, number};
use crate::effect::{
    BindError, CompiledEffect, CompiledSet, MessageView, Param, Reads, Routing, SetColumns, SetQuery,
    SetRows, Step, Value, set_groups, steps,
};
use handstamp_core::{HandlerError, Message};
use rusqlite::types::{ToSqlOutput, Value as Stored, ValueRef};
use rusqlite::{CachedStatement, Connection};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How long filling may keep the thread for itself, and messages between two looks at the clock.
const TURN: Duration = Duration::from_millis(10);
const MESSAGES_BETWEEN_LOOKS: usize = 64;

/// The set effects of a pipeline.
#[derive(Debug, Default)]
pub(super) struct Sets {
    groups: Vec<Group>,
    sets: Vec<SetEffect>,
    /// What is done for a batch.
    steps: Vec<Step>,
}

/// Set effects that run for the same messages.
#[derive(Debug)]
struct Group {
    /// The first of them, by its number.
    effect: usize,
    columns: SetColumns,
    /// Makes the table where it is not there, and empties it.
    create: String,
    clear: String,
    insert: String,
}

#[derive(Debug)]
pub(super) struct SetEffect {
    /// Its number among all effects, from 0.
    pub(super) effect: usize,
    group: usize,
    main: Sql,
    rows: Rows,
    has_lock: bool,
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
    /// The same over a relation without rows: it can be prepared before there is a table.
    empty: String,
}

/// Why a set effect failed.
#[derive(Debug)]
pub(super) enum SetFault {
    /// SQLite's error.
    Sql(rusqlite::Error),
    /// A statement that cannot be prepared.
    Prepare(rusqlite::Error),
    /// Another number of rows than expected.
    Rows(String),
    /// The declaration cannot be on SQLite.
    Declared(String),
}

/// A message keeps a batch from its set effects, or the table cannot be filled.
#[derive(Debug)]
pub(super) enum FillFault {
    /// A value that does not fit its column of this effect.
    Column(usize, BindError),
    /// A condition without an answer.
    Condition(HandlerError),
    /// The temporary table, which is nobody's message's fault, for this effect.
    Table(usize, SetFault),
}

/// Which messages each group runs for, by their places in the batch.
pub(super) type Filled = Vec<Vec<usize>>;

impl Sets {
    pub(super) fn of(effects: &[CompiledEffect]) -> Self {
        let (mut groups, mut sets) = (Vec::new(), Vec::new());
        for (at, (columns, members)) in set_groups(effects).into_iter().enumerate() {
            let table = format!("temp.handstamp_set_{at}_{}", columns.types().len());
            for (effect, slots) in &members {
                let Some((compiled, set)) = effects.get(*effect).and_then(|e| Some((e, e.set.as_ref()?)))
                else {
                    continue;
                };
                let sql = |text: &str, reads: &Reads| Sql::of(text, reads, &columns, slots, &table);
                let rows = match &set.expect {
                    SetRows::Query(SetQuery { statement, reads }) => Rows::Query(sql(statement.sql(), reads)),
                    SetRows::Any => Rows::Any,
                    SetRows::EachMessage => Rows::EachMessage,
                };
                let main = sql(compiled.statement.sql(), &set.reads);
                sets.push(SetEffect { effect: *effect, group: at, main, rows, has_lock: has_lock(set) });
            }
            let effect = members.first().map_or(0, |(effect, _)| *effect);
            groups.push(Group::of(effect, columns, &table));
        }
        sets.sort_by_key(|set| set.effect);
        let steps = steps(effects.len(), sets.iter().map(|set| set.effect));
        Self { groups, sets, steps }
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

    /// Prepares all statements of an effect and runs none; `None`: it is no set effect.
    pub(super) fn check(&self, effect: usize, connection: &Connection) -> Option<Result<(), SetFault>> {
        let set = self.sets.iter().find(|set| set.effect == effect)?;
        Some(self.groups.get(set.group).map_or(Ok(()), |group| group.check(set)).and_then(|()| {
            connection.prepare(&set.main.empty).map_err(SetFault::Prepare)?;
            let Rows::Query(query) = &set.rows else { return Ok(()) };
            let statement = connection.prepare(&query.empty).map_err(SetFault::Prepare)?;
            match statement.column_count() {
                1 => Ok(()),
                found => Err(SetFault::Declared(format!(
                    "expect_rows_sql answers {found} columns instead of one number"
                ))),
            }
        }))
    }

    /// Reads every column of every message that set effects run for into the temporary tables.
    pub(super) async fn fill(
        &self,
        connection: &Connection,
        guard: &Guard,
        routing: &Routing,
        batch: &[Message],
    ) -> Result<Filled, (usize, FillFault)> {
        if self.groups.is_empty() {
            return Ok(Vec::new());
        }
        // The tables are ours: no effect may write to them. Left by whoever ends the effects, also by a failure.
        guard.set_mode(Mode::Own);
        let views: Vec<MessageView<'_>> = batch.iter().map(MessageView::new).collect();
        let mut filled = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            filled.push(group.fill(connection, routing, &views).await?);
        }
        guard.set_mode(Mode::Effect);
        Ok(filled)
    }

    /// Runs one of them with its prepared statement; the places of its messages where it fails.
    pub(super) fn run<'f>(
        &self,
        connection: &Connection,
        guard: &Guard,
        set: &SetEffect,
        main: &mut CachedStatement<'_>,
        filled: &'f Filled,
    ) -> Result<(), (&'f [usize], SetFault)> {
        let Some(messages) = filled.get(set.group).filter(|messages| !messages.is_empty()) else {
            return Ok(());
        };
        set.run(connection, guard, main, messages.len()).map_err(|fault| (&messages[..], fault))
    }
}

fn has_lock(set: &CompiledSet) -> bool {
    set.lock.is_some()
}

impl SetEffect {
    fn run(
        &self,
        connection: &Connection,
        guard: &Guard,
        main: &mut CachedStatement<'_>,
        messages: usize,
    ) -> Result<(), SetFault> {
        let count = u64::try_from(messages).unwrap_or(u64::MAX);
        let expected = match &self.rows {
            Rows::Query(query) => {
                guard.statement_begins();
                answered(connection, query)?
            }
            _ => i64::try_from(count).unwrap_or(i64::MAX),
        };
        guard.statement_begins();
        let touched = execute(connection, main).map_err(SetFault::Sql)?;
        if matches!(self.rows, Rows::Any) || i64::try_from(touched).is_ok_and(|touched| touched == expected) {
            return Ok(());
        }
        let hint = match self.rows {
            Rows::EachMessage if count > 1 => {
                "; a statement that makes one row of several messages says how many with `expect_rows_sql`"
            }
            _ => "",
        };
        Err(SetFault::Rows(format!("touched {touched} rows for {count} messages, expected {expected}{hint}")))
    }
}

fn answered(connection: &Connection, query: &Sql) -> Result<i64, SetFault> {
    let mut statement = connection.prepare_cached(&query.text).map_err(SetFault::Prepare)?;
    let wrong = |what: String| Err(SetFault::Rows(format!("expect_rows_sql {what} instead of one number")));
    let mut rows = statement.raw_query();
    let Some(row) = rows.next().map_err(SetFault::Sql)? else { return wrong("answered no row".into()) };
    let number = match row.get_ref(0).map_err(SetFault::Sql)? {
        ValueRef::Integer(number) => number,
        other => return wrong(format!("answered a value of type {}", other.data_type())),
    };
    match rows.next().map_err(SetFault::Sql)? {
        None => Ok(number),
        Some(_) => wrong("answered several rows".into()),
    }
}

impl Group {
    fn of(effect: usize, columns: SetColumns, table: &str) -> Self {
        let (mut names, mut places) = (String::new(), String::from("?1"));
        for at in 0..columns.types().len() {
            // Writing to a String cannot fail.
            let _ = write!(names, ", c{at}");
            let _ = write!(places, ", ?{}", at + 2);
        }
        Self {
            effect,
            columns,
            create: format!("CREATE TABLE IF NOT EXISTS {table} (n INTEGER PRIMARY KEY{names})"),
            clear: format!("DELETE FROM {table}"),
            insert: format!("INSERT INTO {table} VALUES ({places})"),
        }
    }

    fn check(&self, set: &SetEffect) -> Result<(), SetFault> {
        if set.has_lock {
            let why = "lock: SQLite has one writer at a time, so there is nothing to lock; remove it";
            return Err(SetFault::Declared(why.into()));
        }
        for (param, type_) in self.columns.bindings().params().iter().zip(self.columns.types()) {
            Accepts::of(type_.as_deref())
                .map_err(|why| SetFault::Declared(format!("columns.{}: {why}", param.name)))?;
        }
        Ok(())
    }

    async fn fill(
        &self,
        connection: &Connection,
        routing: &Routing,
        views: &[MessageView<'_>],
    ) -> Result<Vec<usize>, (usize, FillFault)> {
        let own = |error| FillFault::Table(self.effect, SetFault::Sql(error));
        let accepts: Result<Vec<Accepts>, String> =
            self.columns.types().iter().map(|type_| Accepts::of(type_.as_deref())).collect();
        let accepts = accepts.map_err(|why| (0, FillFault::Table(self.effect, SetFault::Declared(why))))?;
        connection.execute_batch(&self.create).map_err(|e| (0, own(e)))?;
        let mut clear = connection.prepare_cached(&self.clear).map_err(|e| (0, own(e)))?;
        clear.raw_execute().map_err(|e| (0, own(e)))?;
        let mut insert = connection.prepare_cached(&self.insert).map_err(|e| (0, own(e)))?;
        let mut messages = Vec::with_capacity(views.len());
        let mut turn_began = Instant::now();
        for (at, view) in views.iter().enumerate() {
            if at % MESSAGES_BETWEEN_LOOKS == 0 && turn_began.elapsed() >= TURN {
                tokio::task::yield_now().await;
                turn_began = Instant::now();
            }
            if !routing.meets(self.effect, view).map_err(|error| (at, FillFault::Condition(error)))? {
                continue;
            }
            messages.push(at);
            let number = i64::try_from(messages.len()).unwrap_or(i64::MAX);
            insert.raw_bind_parameter(1, number).map_err(|e| (at, own(e)))?;
            for (column, (param, accepts)) in
                self.columns.bindings().params().iter().zip(&accepts).enumerate()
            {
                let refused = |error| (at, FillFault::Column(self.columns.effect_of(column), error));
                let value = param.resolve(view).map_err(refused)?;
                let stored = accepts.stored(param, &value).map_err(refused)?;
                insert.raw_bind_parameter(column + 2, stored).map_err(|e| (at, own(e)))?;
            }
            insert.raw_execute().map_err(|e| (at, own(e)))?;
        }
        Ok(messages)
    }
}

impl Sql {
    /// Names passed the grammar of [`crate::effect`]; everything else of a message is in the table.
    fn of(text: &str, reads: &Reads, columns: &SetColumns, slots: &[usize], table: &str) -> Self {
        let used: Vec<usize> = reads.columns.iter().filter_map(|at| slots.get(*at)).copied().collect();
        let mut names: Vec<String> =
            used.iter().map(|at| format!("\"{}\"", columns.bindings().params()[*at].name)).collect();
        let mut places: Vec<String> = used.iter().map(|at| format!("c{at}")).collect();
        if reads.number || used.is_empty() {
            names.push("\"n\"".into());
            places.push("n".into());
        }
        let nothing: Vec<String> = places.iter().map(|place| format!("NULL AS {place}")).collect();
        let of = |from: &str| {
            let relation =
                format!("messages ({}) AS (SELECT {} FROM {from})", names.join(", "), places.join(", "));
            reads.render(text, &relation)
        };
        Self { text: of(table), empty: of(&format!("(SELECT {} WHERE 0)", nothing.join(", "))) }
    }
}

/// What a declared type takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepts {
    Any,
    Integer(i64, i64),
    Real,
    Numeric,
    Text,
    Blob,
    Boolean,
    Json,
}

impl Accepts {
    fn of(type_: Option<&str>) -> Result<Self, String> {
        Ok(match type_ {
            None | Some("any") => Self::Any,
            Some("integer" | "int" | "bigint" | "int8") => Self::Integer(i64::MIN, i64::MAX),
            Some("int4") => Self::Integer(i32::MIN.into(), i32::MAX.into()),
            Some("int2" | "smallint") => Self::Integer(i16::MIN.into(), i16::MAX.into()),
            Some("real" | "float8" | "double precision") => Self::Real,
            Some("numeric" | "decimal") => Self::Numeric,
            Some("text" | "varchar" | "character varying") => Self::Text,
            Some("blob" | "bytea") => Self::Blob,
            Some("boolean" | "bool") => Self::Boolean,
            Some("json" | "jsonb") => Self::Json,
            Some(other) => {
                return Err(format!(
                    "{other} is no type of SQLite's: use integer, real, numeric, text, blob, boolean, json or any"
                ));
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Integer(..) => "integer",
            Self::Real => "real",
            Self::Numeric => "numeric",
            Self::Text => "text",
            Self::Blob => "blob",
            Self::Boolean => "boolean",
            Self::Json => "json",
        }
    }

    /// A value as it is bound.
    fn stored<'a>(self, param: &Param, value: &'a Value<'_>) -> Result<ToSqlOutput<'a>, BindError> {
        if self == Self::Any || matches!(value, Value::Null) {
            return bound(param, value).map(|bound| bound.output());
        }
        self.typed(value).map_err(|why| BindError::mismatch(&param.name, self.name(), value, why))
    }

    fn typed<'a>(self, value: &'a Value<'_>) -> Result<ToSqlOutput<'a>, &'static str> {
        match (self, value) {
            (Self::Integer(least, most), _) => {
                let number = whole(value)?;
                if (least..=most).contains(&number) { Ok(number.into()) } else { Err("it is out of range") }
            }
            (Self::Real, Value::Number(token)) => real(token),
            (Self::Numeric, Value::Number(token)) => {
                let number = number(token).map(|number| number.output());
                number.ok_or("digits would be lost; declare it as text with as = \"text\"")
            }
            (Self::Numeric, Value::Int(number) | Value::Timestamp(number)) => Ok((*number).into()),
            (Self::Real | Self::Numeric, _) => Err("it is no number"),
            (Self::Text, Value::Number(token)) => Ok(borrowed(token)),
            (Self::Text, _) => plain(value).map(borrowed),
            (Self::Blob, Value::Bytes(bytes)) => Ok(ToSqlOutput::Borrowed(ValueRef::Blob(bytes))),
            (Self::Blob, Value::Opaque(bytes)) => Ok(ToSqlOutput::Borrowed(ValueRef::Blob(bytes))),
            (Self::Blob, Value::Text(_)) => Err("say how it encodes bytes: encoding = \"base64\""),
            (Self::Blob, _) => Err("it is no bytes"),
            (Self::Boolean, Value::Bool(truth)) => Ok(i64::from(*truth).into()),
            (Self::Boolean, _) => Err("it is neither true nor false"),
            (Self::Json, Value::Json(raw) | Value::Number(raw)) => Ok(borrowed(raw)),
            (Self::Json, Value::Bool(truth)) => Ok(borrowed(if *truth { "true" } else { "false" })),
            (Self::Json, Value::Int(number) | Value::Timestamp(number)) => Ok(owned(number.to_string())),
            (Self::Json, Value::Text(_) | Value::Opaque(_)) => {
                serde_json::to_string(plain(value)?).map(owned).map_err(|_| "it cannot be written as JSON")
            }
            (Self::Json, _) => Err("bytes are no JSON"),
            (Self::Any, _) => Err("it cannot be bound"),
        }
    }
}

fn borrowed(text: &str) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))
}

fn owned(text: String) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Stored::Text(text))
}

fn whole(value: &Value<'_>) -> Result<i64, &'static str> {
    match value {
        Value::Int(number) | Value::Timestamp(number) => Ok(*number),
        Value::Number(token) => {
            let digits = token.strip_prefix('-').unwrap_or(token);
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err("it is not written as an integer");
            }
            token.parse().map_err(|_| "it is out of range")
        }
        _ => Err("it is no number"),
    }
}

/// A REAL that comes back as the token, which may be written as an integer.
fn real(token: &str) -> Result<ToSqlOutput<'static>, &'static str> {
    let lost = "it does not come back the same";
    if token.parse::<i64>().is_err() {
        return number(token).map(|number| number.output()).ok_or(lost);
    }
    let real: f64 = token.parse().map_err(|_| lost)?;
    let digits = token.strip_prefix('-').filter(|digits| *digits == "0").unwrap_or(token);
    if format!("{}", real.abs()) == digits.trim_start_matches('-') { Ok(real.into()) } else { Err(lost) }
}

/// Text, UTF-8 and without NUL.
fn plain<'a>(value: &'a Value<'_>) -> Result<&'a str, &'static str> {
    let text = match value {
        Value::Text(text) => text.as_ref(),
        Value::Opaque(bytes) => std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?,
        _ => return Err("it is no text; as = \"text\" binds its token"),
    };
    if text.contains('\0') { Err("it contains NUL") } else { Ok(text) }
}
