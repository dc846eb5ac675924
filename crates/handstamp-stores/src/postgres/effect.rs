//! Declared SQL effects: a batch handler that pipelines every statement of a batch.
//!
//! Authoritative: the server's answers, read in the order of messages and, within a message, of
//! effects. The first one that fails, or touches another number of rows than expected, names its
//! message; this is known before COMMIT.
//!
//! ```text
//!  messages ─► values ─► text parameters ─► sent, at most so many ahead ─► answers in order ─► rows checked
//!                 └─ a value that does not fit: Reject, class binding        └─ first failure: the culprit
//! ```
//!
//! Statements are prepared once a connection, and again on a new one; a connection on which a statement
//! no longer fitted the schema is not used again.

use super::binding::{TextParameter, encode, shown, unsupported};
use super::classify::store_error;
use super::connect::Slot;
use super::flight::{Flight, Place};
use super::pipeline::in_order;
use super::set::{MessageFault, SetFault, Sets};
use super::store::{PostgresStore, Tx};
use crate::effect::{BindError, CompiledEffect, EffectSpec, ExpectRows, MessageView, Routing, Step};
use handstamp_core::{
    BatchError, BatchHandler, CrashPoint, FailureClass, HandlerError, Message, Route, StoreError,
    StoreErrorKind,
};
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use tokio_postgres::{Client, Statement};

/// Messages whose statements are made before the connection sends them.
const YIELD_EVERY: usize = 16;

/// Declared effects as a batch handler.
pub struct SqlEffects {
    /// Tells this set's prepared statements from another set's on the same connection.
    set: u64,
    effects: Vec<Effect>,
    routing: Routing,
    sets: Sets,
}

/// A set's statements on one connection.
struct Prepared {
    statements: Arc<[Statement]>,
    /// In the transaction that runs now.
    just_now: bool,
}

struct Effect {
    label: String,
    sql: String,
    compiled: CompiledEffect,
}

/// A declared effect failed; the database's error is behind it.
#[derive(Debug)]
pub(crate) struct EffectFailure {
    label: String,
    source: Option<tokio_postgres::Error>,
    reason: String,
    /// It ran as it was prepared in the same transaction: the schema is not what it does not fit.
    fits: bool,
}

impl EffectFailure {
    /// Found by us, not by the database.
    fn own(label: String, reason: String) -> Self {
        Self { label, source: None, reason, fits: false }
    }

    /// What it means before the first message.
    fn into_store_error(self) -> StoreError {
        let kind = self.source.as_ref().map_or(StoreErrorKind::Config, |e| {
            super::fault_of(e).map_or(StoreErrorKind::Statement, |fault| fault.kind)
        });
        StoreError::new(kind, self.to_string()).with_source(self)
    }

    /// What the failure is where its code alone says too much. `early`: sooner than any limit of ours.
    ///
    /// * A message's value can raise a code of class 42 (`to_tsquery`, `::regclass`): not a schema that has
    ///   changed when the statement was prepared just now. A missing right shows only when a statement runs, and
    ///   what a function or trigger does not find is not found at preparing either: those stay the schema's.
    /// * A statement that was cancelled before its time is nobody's message's fault.
    pub(crate) fn kind(&self, by_code: StoreErrorKind, early: bool) -> StoreErrorKind {
        let Some(db) = self.source.as_ref().and_then(tokio_postgres::Error::as_db_error) else {
            return by_code;
        };
        let code = db.code().code();
        let raised_by_value = match code {
            // A row that a policy of row-level security refuses has the code of a missing right.
            "42501" => db.routine() == Some("ExecWithCheckOptions"),
            _ if code.starts_with("42") || code.starts_with("0A") => self.fits && db.where_().is_none(),
            _ => false,
        };
        match by_code {
            StoreErrorKind::SchemaMismatch if raised_by_value => StoreErrorKind::Statement,
            StoreErrorKind::Timeout if code == "57014" && early => StoreErrorKind::Conflict,
            kind => kind,
        }
    }
}

impl fmt::Display for EffectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.label, self.reason)
    }
}

impl Error for EffectFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

impl fmt::Debug for SqlEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.effects.iter().map(|effect| &effect.label)).finish()
    }
}

impl SqlEffects {
    /// Effects that passed every check without a database, in the order they run.
    #[must_use]
    pub fn new(effects: Vec<CompiledEffect>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let routing = Routing::of(&effects);
        let sets = Sets::of(&effects);
        let effects = effects.into_iter().enumerate().map(|(at, compiled)| Effect {
            label: label(at, compiled.statement.sql()),
            sql: sets.main(at).map_or_else(|| compiled.statement.render_postgres(), str::to_owned),
            compiled,
        });
        Self { set: NEXT.fetch_add(1, Ordering::Relaxed), effects: effects.collect(), routing, sets }
    }

    /// True: a message for which the condition of no effect holds is passed over instead of being a dead letter.
    #[must_use]
    pub fn ignoring_unmatched(mut self, ignores: bool) -> Self {
        self.routing = self.routing.ignoring_unmatched(ignores);
        self
    }

    /// Compiles declared effects.
    ///
    /// # Errors
    /// `Config`, naming the effect by its number, from 1.
    pub fn compile(specs: &[EffectSpec]) -> Result<Self, StoreError> {
        let mut effects = Vec::with_capacity(specs.len());
        for (at, spec) in specs.iter().enumerate() {
            effects.push(CompiledEffect::compile(spec).map_err(|e| {
                StoreError::new(StoreErrorKind::Config, format!("effect {}: {e}", at + 1)).with_source(e)
            })?);
        }
        Ok(Self::new(effects))
    }

    /// Prepares every effect on the store's database and checks its parameters' types: statements that do
    /// not fit the schema are found before the first message.
    ///
    /// # Errors
    /// `Unavailable`; `NotMigrated`; `SchemaMismatch` or `Config`, naming the effect and what to change.
    pub async fn check(&self, store: &PostgresStore) -> Result<(), StoreError> {
        self.unfit(store).await?.into_iter().next().map_or(Ok(()), Err)
    }

    /// The same for every effect: an error for each that does not fit.
    ///
    /// # Errors
    /// What is the matter with the database rather than with an effect: `Unavailable`, `NotMigrated`, and
    /// `Config` for a search path that leads to our schema.
    pub async fn unfit(&self, store: &PostgresStore) -> Result<Vec<StoreError>, StoreError> {
        let schema = store.schema();
        let refused = |message: String| StoreError::new(StoreErrorKind::Config, message);
        let touches =
            |effect: &Effect| effect.compiled.statements().any(|sql| sql.mentions_schema(schema.as_str()));
        let ours = self.effects.iter().filter(|effect| touches(effect)).map(|effect| {
            refused(format!(
                "{}: the schema {schema} belongs to Handstamp: an effect that touches it could make messages lost or doubled",
                effect.label
            ))
        });
        store
            .with_slot(async |slot| {
                let on_path = "SELECT $1::name = ANY (current_schemas(true))";
                let row = slot.client().query_one(on_path, &[&schema.as_str()]).await;
                let failed = |e| store_error("reading the search path", e);
                if row.map_err(failed)?.try_get::<_, bool>(0).map_err(failed)? {
                    return Err(refused(format!(
                        "the schema {schema} is on this role's search_path, so that effects could reach Handstamp's tables by accident: take it off"
                    )));
                }
                let mut found = Vec::new();
                // A run's first batch finds them prepared, where all of them can be.
                if self.prepare(slot).await.is_err() {
                    for failure in self.prepare_each(slot).await.into_iter().filter_map(Result::err) {
                        let error = failure.into_store_error();
                        if error.kind == StoreErrorKind::Unavailable {
                            return Err(error);
                        }
                        found.push(error);
                    }
                }
                Ok(found)
            })
            .await
            .map(|found| ours.chain(found).collect())
    }

    /// Each statement as prepared on this connection, or why not: one for each effect, then those beside set effects.
    async fn prepare_each(&self, slot: &Slot) -> Vec<Result<Statement, EffectFailure>> {
        let client = slot.client();
        let own = self.effects.iter().enumerate().map(|(at, effect)| (at, effect.sql.as_str()));
        let all: Vec<(usize, &str)> = own.chain(self.sets.beside()).collect();
        let prepared = in_order(all.iter().map(|(_, sql)| client.prepare(sql)).collect()).await;
        let checked = all.iter().zip(prepared).enumerate().map(|(place, ((effect, _), prepared))| {
            let effect = &self.effects[*effect];
            let statement = prepared.map_err(|e| effect.failed(e))?;
            if effect.compiled.set.is_none() {
                effect.check_types(&statement)?;
            } else if let Some(reason) = self.sets.unfit(place, &statement) {
                return Err(EffectFailure::own(effect.label.clone(), reason));
            }
            Ok(statement)
        });
        checked.collect()
    }

    /// The statements as prepared on this connection.
    async fn prepare(&self, slot: &Slot) -> Result<Prepared, EffectFailure> {
        let known = slot.effects.lock().unwrap_or_else(PoisonError::into_inner).get(&self.set).cloned();
        if let Some(statements) = known {
            return Ok(Prepared { statements, just_now: false });
        }
        let statements: Arc<[Statement]> =
            self.prepare_each(slot).await.into_iter().collect::<Result<_, _>>()?;
        slot.effects.lock().unwrap_or_else(PoisonError::into_inner).insert(self.set, statements.clone());
        Ok(Prepared { statements, just_now: true })
    }

    /// Those of these effects that run for a message, and every parameter of them.
    fn parameters(
        &self,
        statements: &[Statement],
        effects: Range<usize>,
        message: &Message,
    ) -> Result<Vec<(usize, Vec<TextParameter>)>, HandlerError> {
        let view = MessageView::new(message);
        let mut all = Vec::with_capacity(self.effects.len());
        for at in effects {
            let (effect, statement) = (&self.effects[at], &statements[at]);
            if !self.routing.meets(at, &view)? {
                continue;
            }
            let bound = effect.parameters(statement, &view);
            let bound = bound.map_err(|e| {
                let reason = e.to_string();
                HandlerError::reject(EffectFailure::own(effect.label.clone(), reason))
                    .with_class(FailureClass::Binding)
            })?;
            all.push((at, bound));
        }
        Ok(all)
    }
}

impl Effect {
    fn failed(&self, error: tokio_postgres::Error) -> EffectFailure {
        let reason = match error.as_db_error() {
            Some(db) => {
                let hint = match db.code().code() {
                    "42703" if self.compiled.set.is_some() => {
                        " (`messages` has the columns of `columns`, and the built-in ones)"
                    }
                    "42P18" | "42P08" => " (say the parameter's type: CAST(:name AS bigint))",
                    _ => "",
                };
                format!("{} (SQLSTATE {}){hint}", db.message(), db.code().code())
            }
            None => error.to_string(),
        };
        EffectFailure { label: self.label.clone(), source: Some(error), reason, fits: false }
    }

    fn check_types(&self, statement: &Statement) -> Result<(), EffectFailure> {
        for (param, type_) in self.compiled.bindings.params().iter().zip(statement.params()) {
            if let Some(why) = unsupported(type_) {
                let (name, type_) = (&param.name, shown(type_));
                let reason = format!(
                    "parameter :{name} has the type {type_}: {why}; write CAST(CAST(:{name} AS text) AS {type_})"
                );
                return Err(EffectFailure::own(self.label.clone(), reason));
            }
        }
        Ok(())
    }

    fn parameters(
        &self,
        statement: &Statement,
        view: &MessageView<'_>,
    ) -> Result<Vec<TextParameter>, BindError> {
        let values = self.compiled.bindings.resolve(view)?;
        let params = self.compiled.bindings.params().iter().zip(statement.params());
        params.zip(&values).map(|((param, type_), value)| encode(&param.name, type_, value)).collect()
    }

    fn check_rows(&self, rows: u64) -> Result<(), HandlerError> {
        match self.compiled.expect_rows {
            Some(expected) if !expected.allows(rows) => Err(self.wrong_rows(expected, rows)),
            _ => Ok(()),
        }
    }

    fn wrong_rows(&self, expected: ExpectRows, rows: u64) -> HandlerError {
        let reason = format!("touched {rows} rows, expected {expected}");
        HandlerError::from(EffectFailure::own(self.label.clone(), reason)).with_class(FailureClass::Rows)
    }
}

impl SqlEffects {
    /// Sends these effects' statements for each message, reading answers as the window fills.
    async fn send_all<'a>(
        &self,
        client: &'a Client,
        prepared: &'a Prepared,
        effects: Range<usize>,
        batch: &[Message],
        flight: &mut Flight<'a>,
    ) -> Result<(), BatchError> {
        for (message, of_message) in batch.iter().enumerate() {
            let parameters = self
                .parameters(&prepared.statements, effects.clone(), of_message)
                .map_err(|error| BatchError { culprit: Some(message), error })?;
            let last = parameters.last().map(|(effect, _)| *effect);
            for (effect, parameters) in parameters {
                let statement = &prepared.statements[effect];
                if flight.is_full()
                    && let Some(landed) = flight.land().await
                {
                    self.judge(landed, prepared.just_now)?;
                }
                flight.send(client, statement, Place { message, effect }, parameters).await;
                if last > Some(effect) {
                    CrashPoint::BetweenEffects.reached_when_sent().await;
                }
            }
            if message % YIELD_EVERY == YIELD_EVERY - 1 {
                // The connection's task shares this thread: it sends, and the server works meanwhile.
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    fn judge(
        &self,
        (place, answer): (Place, Result<u64, tokio_postgres::Error>),
        just_now: bool,
    ) -> Result<(), BatchError> {
        let effect = &self.effects[place.effect];
        let outcome = match answer {
            Ok(rows) => effect.check_rows(rows),
            Err(error) => Err(HandlerError::from(EffectFailure { fits: just_now, ..effect.failed(error) })),
        };
        outcome.map_err(|error| BatchError { culprit: Some(place.message), error })
    }
}

impl BatchHandler<Tx> for SqlEffects {
    fn route(&self, message: &Message) -> Route {
        self.routing.route(message)
    }

    async fn handle_batch(&self, tx: &mut Tx, batch: &[Message]) -> Result<(), BatchError> {
        let prepared = self.prepare(tx.slot()).await?;
        let filled = self.sets.fill(&prepared.statements, &self.routing, batch).await;
        let filled = filled.map_err(|(message, fault)| self.unfilled(message, fault))?;
        let _flight = tx.slot().coalesce();
        for (at, step) in self.sets.steps().iter().enumerate() {
            if at > 0 {
                CrashPoint::BetweenEffects.reached_when_sent().await;
            }
            match step {
                Step::Each(effects) => self.each(tx, &prepared, effects.clone(), batch).await?,
                Step::Set(at) => {
                    let set = self.sets.get(*at);
                    let run = self.sets.run(tx, &prepared.statements, set, &filled).await;
                    run.map_err(|(messages, fault)| {
                        self.set_failed(set.effect, messages, fault, prepared.just_now)
                    })?;
                }
            }
        }
        Ok(())
    }
}

impl SqlEffects {
    /// Runs these effects for each message.
    async fn each(
        &self,
        client: &Client,
        prepared: &Prepared,
        effects: Range<usize>,
        batch: &[Message],
    ) -> Result<(), BatchError> {
        let mut flight = Flight::default();
        let mut outcome = self.send_all(client, prepared, effects, batch, &mut flight).await;
        // Every answer is read, also behind a failed one. The first message that failed is the culprit:
        // a value that does not fit may be found before the answer to an earlier message.
        while let Some(landed) = flight.land().await {
            let place = landed.0;
            let earlier = outcome.as_ref().err().and_then(|e| e.culprit).is_none_or(|at| place.message < at);
            if earlier && let Err(error) = self.judge(landed, prepared.just_now) {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// A message keeps its batch from the set effects.
    fn unfilled(&self, message: usize, fault: MessageFault) -> BatchError {
        let error = match fault {
            MessageFault::Condition(error) => error,
            MessageFault::Column(effect, error) => {
                let reason = format!("column {}: {}", error.param, error.reason);
                HandlerError::reject(EffectFailure::own(self.effects[effect].label.clone(), reason))
                    .with_class(FailureClass::Binding)
            }
        };
        BatchError { culprit: Some(message), error }
    }

    /// Nobody knows which of several messages made a set effect fail.
    fn set_failed(&self, effect: usize, messages: &[usize], fault: SetFault, just_now: bool) -> BatchError {
        let effect = &self.effects[effect];
        let error = match fault {
            SetFault::Rows(reason) => HandlerError::from(EffectFailure::own(effect.label.clone(), reason))
                .with_class(FailureClass::Rows),
            SetFault::Sql(place, error) => {
                let mut failure = EffectFailure { fits: just_now, ..effect.failed(error) };
                if place != "sql" {
                    failure.reason = format!("{place}: {}", failure.reason);
                }
                HandlerError::from(failure)
            }
        };
        let culprit = if let [only] = messages { Some(*only) } else { None };
        BatchError { culprit, error }
    }
}

fn label(at: usize, sql: &str) -> String {
    let words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut start: String = words.chars().take(60).collect();
    if start.len() < words.len() {
        start.push('…');
    }
    format!("effect {} ({start})", at + 1)
}
