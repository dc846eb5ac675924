//! From the declaration of an effect to what a store runs: checked once, when the pipeline is loaded.

use super::binding::{Bindings, Param, ParamSource, ParamSpec};
use super::set::{self, CompiledSet, SetError, SetSpec};
use super::statement::{Statement, StatementError};
use super::when::{Condition, ConditionError};
use std::collections::BTreeMap;
use std::fmt;

/// How many rows a statement must touch; checked before COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExpectRows {
    /// Exactly so many.
    Exactly(u64),
    /// Any number, zero included: said on purpose.
    Any,
}

impl ExpectRows {
    /// True when the number of touched rows is as expected.
    #[must_use]
    pub fn allows(self, rows: u64) -> bool {
        match self {
            Self::Exactly(expected) => rows == expected,
            Self::Any => true,
        }
    }
}

impl fmt::Display for ExpectRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(1) => f.write_str("1 row"),
            Self::Exactly(rows) => write!(f, "{rows} rows"),
            Self::Any => f.write_str("any number of rows"),
        }
    }
}

/// One declared effect, as the pipeline's file says it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EffectSpec {
    /// One statement with `:name` parameters.
    pub sql: String,
    /// Parameters that are not what their name says.
    pub params: BTreeMap<String, ParamSpec>,
    /// Parameters that are NULL when missing.
    pub optional: Vec<String>,
    /// How many rows it must touch; `None`: not checked.
    pub expect_rows: Option<ExpectRows>,
    /// It runs for messages that fulfil this condition; `None`: for all of them.
    pub when: Option<String>,
    /// It runs once a batch, over all its messages; `None`: once for each of them.
    pub set: Option<SetSpec>,
}

impl EffectSpec {
    /// An effect whose parameters are what their names say.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), ..Self::default() }
    }
}

/// Why an effect is refused when the pipeline is loaded; one line for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EffectError {
    /// The statement.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// `params.x` or `optional` names what the statement does not have.
    #[error("`{place}` names {name:?}, but the statement has no parameter :{name}{known}")]
    UnknownParam {
        /// `params` or `optional`.
        place: &'static str,
        /// The name.
        name: String,
        /// What there is.
        known: String,
    },
    /// A place in the record cannot be base64 text.
    #[error(
        "parameter :{param}: {source_name} is not text in base64; `encoding` is for fields of the body and headers"
    )]
    Encoding {
        /// The parameter.
        param: String,
        /// Where its value comes from.
        source_name: String,
    },
    /// Its condition.
    #[error("{0}")]
    When(ConditionError),
    /// What makes it run once a batch.
    #[error(transparent)]
    Set(#[from] SetError),
}

/// An effect that passed every check that needs no database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledEffect {
    /// The statement.
    pub statement: Statement,
    /// Its parameters.
    pub bindings: Bindings,
    /// How many rows it must touch; `None`: not checked.
    pub expect_rows: Option<ExpectRows>,
    /// For which messages it runs; `None`: for all of them.
    pub when: Option<Condition>,
    /// What makes it run once a batch; its parameters are then the columns of `messages`.
    pub set: Option<CompiledSet>,
}

impl CompiledEffect {
    /// Checks a declared effect.
    ///
    /// # Errors
    /// [`EffectError`], whose text says what to change.
    pub fn compile(spec: &EffectSpec) -> Result<Self, EffectError> {
        let statement = Statement::parse(&spec.sql)?;
        if let Some(set) = &spec.set {
            let (bindings, compiled) = set::compile(spec, set, &statement)?;
            let params = set.columns.iter().map(|(name, column)| (name.clone(), column.param.clone()));
            let when = condition(spec, &params.collect())?;
            return Ok(Self { statement, bindings, expect_rows: None, when, set: Some(compiled) });
        }
        let declared = spec.params.keys().map(|name| ("params", name));
        for (place, name) in declared.chain(spec.optional.iter().map(|name| ("optional", name))) {
            if !statement.params().contains(name) {
                return Err(EffectError::UnknownParam {
                    place,
                    name: name.clone(),
                    known: known(&statement),
                });
            }
        }
        let params = statement
            .params()
            .iter()
            .map(|name| param_of(name, spec.params.get(name), &spec.optional))
            .collect::<Result<_, _>>()?;
        let (when, bindings) = (condition(spec, &spec.params)?, Bindings::new(params));
        Ok(Self { statement, bindings, expect_rows: spec.expect_rows, when, set: None })
    }

    /// Every statement of it: its own, and those that run beside it.
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        let beside = self.set.iter().flat_map(CompiledSet::statements);
        std::iter::once(&self.statement).chain(beside)
    }

    /// True when a row that is not there would go unnoticed: an UPDATE or DELETE without `expect_rows`.
    #[must_use]
    pub fn may_silently_hit_nothing(&self) -> bool {
        self.set.is_none() && self.expect_rows.is_none() && self.statement.kind().may_hit_nothing()
    }
}

fn condition(
    spec: &EffectSpec,
    params: &BTreeMap<String, ParamSpec>,
) -> Result<Option<Condition>, EffectError> {
    let when = spec.when.as_deref().map(|text| Condition::parse(text, params));
    when.transpose().map_err(EffectError::When)
}

pub(super) fn param_of(
    name: &str,
    declared: Option<&ParamSpec>,
    optional: &[String],
) -> Result<Param, EffectError> {
    let source =
        declared.and_then(|declared| declared.source.clone()).unwrap_or_else(|| ParamSource::of_name(name));
    let encoding = declared.and_then(|declared| declared.encoding);
    let textual = matches!(
        source,
        ParamSource::Body(_) | ParamSource::Header(_) | ParamSource::MessageKey | ParamSource::MessageId
    );
    if encoding.is_some() && !textual {
        return Err(EffectError::Encoding { param: name.into(), source_name: source.to_string() });
    }
    Ok(Param {
        name: name.into(),
        source,
        encoding,
        as_text: declared.is_some_and(|declared| declared.as_text),
        optional: optional.iter().any(|optional| optional == name),
    })
}

fn known(statement: &Statement) -> String {
    if statement.params().is_empty() {
        return " (it has none)".into();
    }
    format!(" (it has :{})", statement.params().join(", :"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
