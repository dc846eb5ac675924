//! Declared SQL effects on SQLite: a batch handler that binds every value exactly or refuses it.
//!
//! | value | bound as |
//! |---|---|
//! | number that fits 64 bits | INTEGER |
//! | another number | REAL when its shortest form is the token, else refused |
//! | string, or `as = "text"` | TEXT (refused with NUL) |
//! | true, false | INTEGER 1, 0 |
//! | array, object, `:body` | TEXT, as it was sent |
//! | base64 | BLOB |
//! | id, key, header | TEXT, refused when not UTF-8 |
//! | null, missing and optional | NULL |

use super::classify::{code_of, is_general, kind_of, told};
use super::connect::{Guard, Mode, unwatch_statements, watch_statements};
use super::set::{FillFault, SetFault, Sets};
use super::store::Tx;
use crate::effect::shortest;
use crate::effect::{
    BindError, CompiledEffect, ExpectRows, MessageView, Param, Routing, SharedParams, SharedValues, Step,
    Value,
};
use handstamp_core::{
    BatchError, BatchHandler, CrashPoint, FailureClass, Fault, HandlerError, Message, Route, StoreError,
    StoreErrorKind,
};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, ToSql};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the effects of a batch may keep the thread for themselves.
const TURN: Duration = Duration::from_millis(10);
/// Messages between two looks at the clock; one takes microseconds, as a rule.
const MESSAGES_BETWEEN_LOOKS: usize = 8;

/// Declared effects, run in order for each message, inside the transaction of its claim.
#[derive(Debug, Clone)]
pub struct SqlEffects {
    effects: Arc<[Effect]>,
    params: Arc<SharedParams>,
    routing: Arc<Routing>,
    sets: Arc<Sets>,
}

#[derive(Debug)]
struct Effect {
    /// Its number, from 0.
    at: usize,
    compiled: CompiledEffect,
    sql: String,
}

impl SqlEffects {
    /// Effects in the order they run.
    #[must_use]
    pub fn new(effects: Vec<CompiledEffect>) -> Self {
        let params = Arc::new(SharedParams::of(effects.iter().map(|effect| &effect.bindings)));
        let routing = Arc::new(Routing::of(&effects));
        let sets = Arc::new(Sets::of(&effects));
        let sql = |at, compiled: &CompiledEffect| {
            sets.main(at).map_or_else(|| compiled.statement.render_sqlite(), str::to_owned)
        };
        let effects = effects.into_iter().enumerate();
        let effects =
            effects.map(|(at, compiled)| Effect { at, sql: sql(at, &compiled), compiled }).collect();
        Self { effects, params, routing, sets }
    }

    /// True: a message for which the condition of no effect holds is passed over instead of being a dead letter.
    #[must_use]
    pub fn ignoring_unmatched(mut self, ignores: bool) -> Self {
        self.routing = Arc::new(Routing::clone(&self.routing).ignoring_unmatched(ignores));
        self
    }

    /// Prepares each effect and runs none; the first one that cannot be prepared is the error.
    pub(crate) fn check(&self, connection: &Connection, guard: &Arc<Guard>) -> Result<(), StoreError> {
        self.unfit(connection, guard).into_iter().next().map_or(Ok(()), Err)
    }

    /// Prepares each effect and runs none: an error for every one that cannot be prepared.
    pub(crate) fn unfit(&self, connection: &Connection, guard: &Arc<Guard>) -> Vec<StoreError> {
        let _mode = EffectMode::enter(guard, connection);
        let faults = self.effects.iter().filter_map(|effect| {
            let fault = match self.sets.check(effect.at, connection) {
                Some(checked) => checked.err()?.into(),
                None => effect.prepare(connection).err()?,
            };
            let text = format!("effect {}: {fault}", effect.at + 1);
            Some(StoreError::new(fault.prepare_kind(), text).with_source(fault))
        });
        faults.collect()
    }

    async fn run(&self, tx: &Tx, batch: &[Message]) -> Result<(), BatchError> {
        let connection = tx.connection();
        let _mode = EffectMode::enter(tx.guard(), connection);
        let filled = self.sets.fill(connection, tx.guard(), &self.routing, batch).await;
        let filled = filled.map_err(|(at, fault)| unfilled(at, batch, fault))?;
        let mut statements = Vec::with_capacity(self.effects.len());
        for (at, effect) in self.effects.iter().enumerate() {
            let prepared = effect.prepare(connection);
            let failed = |fault| EffectFailure::new(at, 0, batch.first(), fault).into_batch_error();
            statements.push(prepared.map_err(failed)?);
        }
        for (at, step) in self.sets.steps().iter().enumerate() {
            if at > 0 {
                CrashPoint::BetweenEffects.reached();
            }
            match step {
                Step::Each(effects) => self.each(tx, &mut statements, effects.clone(), batch).await?,
                Step::Set(at) => {
                    let set = self.sets.get(*at);
                    let (effect, statement) = (&self.effects[set.effect], &mut statements[set.effect]);
                    let run = self.sets.run(connection, tx.guard(), set, statement, &filled);
                    run.map_err(|(messages, fault)| {
                        let fault = match fault {
                            SetFault::Sql(error) => effect.told(connection, error),
                            other => other.into(),
                        };
                        EffectFailure::of_set(set.effect, messages, batch, fault)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// SQLite's statements run on this thread. Between messages the thread's other futures get their turn, so
    /// that a long batch can be cut off by its time limit or taken away with its lane.
    async fn each(
        &self,
        tx: &Tx,
        statements: &mut [CachedStatement<'_>],
        effects: Range<usize>,
        batch: &[Message],
    ) -> Result<(), BatchError> {
        let connection = tx.connection();
        let mut values = SharedValues::new();
        let mut turn_began = Instant::now();
        for (index, message) in batch.iter().enumerate() {
            if index % MESSAGES_BETWEEN_LOOKS == 0 && turn_began.elapsed() >= TURN {
                tokio::task::yield_now().await;
                turn_began = Instant::now();
            }
            let view = MessageView::new(message);
            self.params.begin(&mut values);
            for at in effects.clone() {
                let (effect, statement) = (&self.effects[at], &mut statements[at]);
                let meets = self.routing.meets(at, &view);
                if !meets.map_err(|error| BatchError { culprit: Some(index), error })? {
                    continue;
                }
                tx.guard().statement_begins();
                effect
                    .bind(statement, &view, &self.params, &mut values)
                    .and_then(|()| effect.run(connection, statement))
                    .map_err(|fault| {
                        EffectFailure::new(at, index, Some(message), fault).into_batch_error()
                    })?;
                if at + 1 < effects.end {
                    CrashPoint::BetweenEffects.reached();
                }
            }
        }
        Ok(())
    }
}

impl From<SetFault> for EffectFault {
    fn from(fault: SetFault) -> Self {
        match fault {
            SetFault::Sql(error) => Self::Run(error),
            SetFault::Prepare(error) => Self::Prepare(error),
            SetFault::Rows(reason) => Self::SetRows(reason),
            SetFault::Declared(reason) => Self::Set(reason),
        }
    }
}

/// A message keeps its batch from the set effects, or their table cannot be filled.
fn unfilled(at: usize, batch: &[Message], fault: FillFault) -> BatchError {
    let failed = |effect, fault| EffectFailure::new(effect, at, batch.get(at), fault).into_batch_error();
    match fault {
        FillFault::Condition(error) => BatchError { culprit: Some(at), error },
        FillFault::Column(effect, error) => failed(effect, EffectFault::Column(error)),
        FillFault::Table(effect, fault) => BatchError { culprit: None, ..failed(effect, fault.into()) },
    }
}

impl BatchHandler<Tx> for SqlEffects {
    fn route(&self, message: &Message) -> Route {
        self.routing.route(message)
    }

    async fn handle_batch(&self, tx: &mut Tx, batch: &[Message]) -> Result<(), BatchError> {
        self.run(tx, batch).await
    }
}

/// Only rows of the user's tables may be touched while this lives.
struct EffectMode<'a> {
    guard: &'a Guard,
    connection: &'a Connection,
}

impl<'a> EffectMode<'a> {
    fn enter(guard: &'a Guard, connection: &'a Connection) -> Self {
        guard.set_mode(Mode::Effect);
        guard.statement_begins();
        unwatch_statements(connection);
        Self { guard, connection }
    }
}

impl Drop for EffectMode<'_> {
    fn drop(&mut self) {
        self.guard.set_mode(Mode::Handler);
        watch_statements(self.connection);
    }
}

impl Effect {
    fn prepare<'c>(&self, connection: &'c Connection) -> Result<CachedStatement<'c>, EffectFault> {
        let statement = connection.prepare_cached(&self.sql).map_err(EffectFault::Prepare)?;
        // What a set effect takes of its messages is in a table.
        let wanted = if self.compiled.set.is_some() { 0 } else { self.compiled.bindings.params().len() };
        if statement.parameter_count() != wanted {
            return Err(EffectFault::Parameters { wanted, found: statement.parameter_count() });
        }
        Ok(statement)
    }

    fn bind<'m>(
        &self,
        statement: &mut CachedStatement<'_>,
        view: &MessageView<'m>,
        shared: &SharedParams,
        values: &mut SharedValues<'m>,
    ) -> Result<(), EffectFault> {
        for (at, param) in self.compiled.bindings.params().iter().enumerate() {
            let value = shared.value(self.at, at, param, view, values)?;
            statement.raw_bind_parameter(at + 1, bound(param, value)?).map_err(EffectFault::Run)?;
        }
        Ok(())
    }

    fn run(&self, connection: &Connection, statement: &mut CachedStatement<'_>) -> Result<(), EffectFault> {
        let rows = execute(connection, statement).map_err(|error| self.told(connection, error))?;
        match self.compiled.expect_rows {
            Some(expected) if !expected.allows(rows) => Err(EffectFault::Rows { expected, found: rows }),
            _ => Ok(()),
        }
    }

    /// A general error may mean that a table went away: then the statement cannot be prepared any more.
    fn told(&self, connection: &Connection, error: rusqlite::Error) -> EffectFault {
        if is_general(&error)
            && let Err(again) = connection.prepare(&self.sql)
        {
            return EffectFault::Prepare(again);
        }
        EffectFault::Run(error)
    }
}

/// Runs to the end; the number of rows changed, or read by a statement that changes none.
pub(super) fn execute(connection: &Connection, statement: &mut CachedStatement<'_>) -> rusqlite::Result<u64> {
    let reads = statement.readonly();
    if statement.column_count() == 0 {
        return statement.raw_execute().map(|rows| rows as u64);
    }
    let mut read = 0;
    let mut rows = statement.raw_query();
    while rows.next()?.is_some() {
        read += 1;
    }
    drop(rows);
    Ok(if reads { read } else { connection.changes() })
}

/// A value as SQLite takes it.
pub(super) enum BoundValue<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a str),
    Blob(&'a [u8]),
}

impl<'a> BoundValue<'a> {
    pub(super) fn output(&self) -> ToSqlOutput<'a> {
        ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        })
    }
}

impl ToSql for BoundValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.output())
    }
}

pub(super) fn bound<'a>(param: &Param, value: &'a Value<'_>) -> Result<BoundValue<'a>, BindError> {
    let refuse = |type_name: &str, why: &str| BindError::mismatch(&param.name, type_name, value, why);
    Ok(match value {
        Value::Null => BoundValue::Null,
        Value::Bool(truth) => BoundValue::Integer(i64::from(*truth)),
        Value::Number(token) => number(token).ok_or_else(|| {
            refuse("INTEGER or REAL", "digits would be lost; bind the token with as = \"text\"")
        })?,
        Value::Text(text) if text.contains('\0') => return Err(refuse("TEXT", "it contains NUL")),
        Value::Text(text) => BoundValue::Text(text),
        Value::Json(raw) => BoundValue::Text(raw),
        Value::Bytes(bytes) => BoundValue::Blob(bytes),
        Value::Opaque(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if text.contains('\0') => return Err(refuse("TEXT", "it contains NUL")),
            Ok(text) => BoundValue::Text(text),
            Err(_) => return Err(refuse("TEXT", "it is not UTF-8")),
        },
        Value::Int(number) | Value::Timestamp(number) => BoundValue::Integer(*number),
    })
}

/// A number that loses nothing: INTEGER, or REAL when the token is the shortest text of that REAL, plain
/// or with an exponent.
pub(super) fn number(token: &str) -> Option<BoundValue<'static>> {
    if let Ok(integer) = token.parse::<i64>() {
        return Some(BoundValue::Integer(integer));
    }
    let real: f64 = token.parse().ok()?;
    if !real.is_finite() {
        return None;
    }
    let plain = token.to_ascii_lowercase().replace("e+", "e");
    // `{}` is always plain; `{:?}` is what JSON writers print, with an exponent where that is shorter.
    let [nearest, even] = shortest(&real);
    let is_shortest = [format!("{real}"), format!("{real:?}")]
        .iter()
        .any(|form| plain == *form || (nearest != even && plain == with_digits(form, &even)));
    is_shortest.then_some(BoundValue::Real(real))
}

/// A text of a number with the digits of another text of as many digits.
fn with_digits(text: &str, of: &str) -> String {
    let mantissa = of.split('e').next().unwrap_or_default();
    let mut digits = mantissa.chars().filter(char::is_ascii_digit);
    let mut begun = false;
    text.chars()
        .map(|c| {
            begun |= ('1'..='9').contains(&c);
            if begun && c.is_ascii_digit() { digits.next().unwrap_or(c) } else { c }
        })
        .collect()
}

/// What went wrong in one effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EffectFault {
    /// A value is missing or does not fit.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A value is missing or does not fit its column of `messages`.
    #[error("column {}: {}", .0.param, .0.reason)]
    Column(BindError),
    /// A set effect touched another number of rows than it must.
    #[error("{0}")]
    SetRows(String),
    /// A set effect is declared as it cannot be on SQLite.
    #[error("{0}")]
    Set(String),
    /// Another number of rows than declared.
    #[error("{found} rows were touched, expected {expected}")]
    Rows {
        /// As declared.
        expected: ExpectRows,
        /// As happened.
        found: u64,
    },
    /// The statement does not fit the tables, or touches what an effect may not.
    #[error("the statement cannot be prepared")]
    Prepare(#[source] rusqlite::Error),
    /// SQLite sees other parameters than were declared.
    #[error("SQLite sees {found} parameters where {wanted} are declared: write parameters as :name only")]
    Parameters {
        /// As declared.
        wanted: usize,
        /// As SQLite counts.
        found: usize,
    },
    /// The statement failed.
    #[error("the statement failed")]
    Run(#[source] rusqlite::Error),
}

impl EffectFault {
    /// What a statement that cannot be prepared means.
    fn prepare_kind(&self) -> StoreErrorKind {
        match self {
            Self::Prepare(error) => match kind_of(error) {
                // The general code while preparing: no such table or column, or bad syntax.
                Some(StoreErrorKind::Statement) if is_general(error) => StoreErrorKind::SchemaMismatch,
                Some(StoreErrorKind::Statement) | None => StoreErrorKind::Config,
                Some(kind) => kind,
            },
            _ => StoreErrorKind::Config,
        }
    }

    fn class(&self) -> FailureClass {
        match self {
            Self::Bind(_) | Self::Column(_) => FailureClass::Binding,
            Self::Rows { .. } | Self::SetRows(_) => FailureClass::Rows,
            Self::Prepare(_) | Self::Set(_) | Self::Parameters { .. } | Self::Run(_) => FailureClass::Sql,
        }
    }
}

/// An effect that failed: which effect, which message, why. Its text names the effect and the reason; the
/// message stands beside it wherever it is kept or logged, so that equal reasons are equal texts.
#[derive(Debug, thiserror::Error)]
#[error("effect {effect}{code}", code = shown_code(.source))]
pub struct EffectFailure {
    /// The effect's number, from 1.
    pub effect: usize,
    /// The message's index in the batch, from 0.
    pub index: usize,
    /// The message's id and place.
    pub message: String,
    /// Why.
    pub source: EffectFault,
}

fn shown_code(fault: &EffectFault) -> String {
    match fault {
        EffectFault::Prepare(error) | EffectFault::Run(error) => {
            if stops_the_store(error) {
                return told(error);
            }
            code_of(error).map_or(String::new(), |code| format!(", SQLite code {code}"))
        }
        _ => String::new(),
    }
}

/// True for what is nobody's message's fault.
fn stops_the_store(error: &rusqlite::Error) -> bool {
    matches!(
        kind_of(error),
        Some(StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::Config)
    )
}

impl EffectFailure {
    fn new(effect: usize, index: usize, message: Option<&Message>, source: EffectFault) -> Self {
        let message = message.map_or(String::new(), |m| format!("{} from {}", m.id(), m.origin()));
        Self { effect: effect + 1, index, message, source }
    }

    /// What the database says of it; `None` for a fault that no database made.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &self.source {
            EffectFault::Bind(_)
            | EffectFault::Column(_)
            | EffectFault::Rows { .. }
            | EffectFault::SetRows(_) => None,
            EffectFault::Prepare(error) => {
                Some(Fault { kind: self.source.prepare_kind(), code: code_of(error) })
            }
            EffectFault::Parameters { .. } | EffectFault::Set(_) => {
                Some(Fault { kind: StoreErrorKind::Config, code: None })
            }
            EffectFault::Run(error) => {
                let kind = kind_of(error).unwrap_or(StoreErrorKind::Statement);
                Some(Fault { kind, code: code_of(error) })
            }
        }
    }

    /// Of a set effect: nobody knows which of several messages it was.
    fn of_set(effect: usize, messages: &[usize], batch: &[Message], source: EffectFault) -> BatchError {
        if let [only] = messages {
            return Self::new(effect, *only, batch.get(*only), source).into_batch_error();
        }
        let mut failure = Self::new(effect, 0, None, source);
        failure.message = format!("one of {} messages", messages.len());
        BatchError { culprit: None, ..failure.into_batch_error() }
    }

    fn into_batch_error(self) -> BatchError {
        let culprit = Some(self.index);
        let class = self.source.class();
        let error = match &self.source {
            // Another try would bind the same bytes.
            EffectFault::Bind(_) | EffectFault::Column(_) => HandlerError::reject(self),
            _ => HandlerError::from(self),
        };
        BatchError { culprit, error: error.with_class(class) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_lose_nothing() {
        for (token, integer) in [("0", 0), ("-0", 0), ("1000", 1000), ("9223372036854775807", i64::MAX)] {
            assert!(matches!(number(token), Some(BoundValue::Integer(n)) if n == integer), "{token}");
        }
        for (token, real) in [
            ("0.1", 0.1),
            ("-1.5", -1.5),
            ("1.0", 1.0),
            ("1e16", 1e16),
            ("1E+16", 1e16),
            ("1e-7", 1e-7),
            ("0.0000001", 1e-7),
            ("1.7976931348623157e308", f64::MAX),
            // In the middle between two texts: each writer takes one of them.
            ("1700000000123456.2", 1_700_000_000_123_456.2),
            ("1700000000123456.3", 1_700_000_000_123_456.2),
            ("-876165228768830.2", -876_165_228_768_830.2),
        ] {
            assert!(matches!(number(token), Some(BoundValue::Real(n)) if n == real), "{token}");
        }
        for token in [
            "1.50",
            "1e3",
            "0.30000000000000000001",
            "9223372036854775809",
            "1e400",
            "123456789012345678.5",
            "1.00",
            "1700000000123456.1",
            "0.30000000000000003",
        ] {
            assert!(number(token).is_none(), "{token}");
        }
    }

    proptest! {
        #[test]
        fn every_real_is_bound_from_its_shortest_form(real in proptest::num::f64::NORMAL) {
            for token in [format!("{real}"), format!("{real:?}")] {
                let kept = match number(&token) {
                    Some(BoundValue::Real(kept)) => kept,
                    Some(BoundValue::Integer(kept)) => kept.to_string().parse().unwrap(),
                    _ => f64::NAN,
                };
                prop_assert_eq!(kept, real, "{}", token);
            }
        }
    }
}
