//! Effects that run once a batch: their relation `messages`, and what must hold of the rows they touch.
//!
//! Authoritative: the declaration. A column's name and type become text of the statement, so both are held to a
//! grammar here; a message's values never do. Which value fits which type is the store's part, as with parameters.
//!
//! ```text
//!  EffectSpec + SetSpec ─► CompiledEffect + CompiledSet { reads, lock, expect }     once, when the pipeline is loaded
//!  messages of a batch ─► a row each: Bindings::resolve ─► the store's relation `messages` ─► lock, expect, statement
//! ```

use super::binding::{Bindings, Param, ParamSpec};
use super::compile::{CompiledEffect, EffectError, EffectSpec, param_of};
use super::statement::{Statement, StatementKind, unquoted};
use super::token::{Token, TokenKind, tokenize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The relation that a set effect reads.
pub const RELATION: &str = "messages";
/// The built-in column that counts the messages of a batch, from 1.
pub const NUMBER: &str = "n";
/// The built-in columns with a value of the message's.
const BUILT_IN: [&str; 8] =
    ["message_id", "message_key", "topic", "partition", "offset", "timestamp", "body", "body_text"];
/// Longest name of a column: Postgres cuts longer ones.
const NAME_MAX: usize = 63;
/// Types of more than one word.
const LONG_TYPES: [&str; 7] = [
    "double precision",
    "character varying",
    "bit varying",
    "timestamp with time zone",
    "timestamp without time zone",
    "time with time zone",
    "time without time zone",
];
/// Types that have a size of their own when none is said, and would cut what is longer.
const SIZED_TYPES: [(&str, &str); 4] =
    [("char", "text"), ("character", "text"), ("nchar", "text"), ("bit", "bit varying")];

/// What makes an effect run once a batch.
///
/// ```
/// use handstamp_stores::effect::{CompiledEffect, EffectSpec, SetSpec};
///
/// let set = SetSpec::default().column("account_id", "int4").column("amount", "numeric");
/// let sql = "INSERT INTO ledger SELECT message_id, account_id, amount FROM messages";
/// let effect = CompiledEffect::compile(&EffectSpec { set: Some(set), ..EffectSpec::new(sql) })?;
/// assert!(effect.set.is_some());
/// # Ok::<(), handstamp_stores::effect::EffectError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetSpec {
    /// The columns of `messages` beside the built-in ones, by name.
    pub columns: BTreeMap<String, ColumnSpec>,
    /// How many rows the statement must touch.
    pub expect: ExpectSet,
    /// A query over `messages` that runs before the statement, to lock rows in one order.
    pub lock: Option<String>,
}

impl SetSpec {
    /// The same with a column that holds the member of the body with its name.
    #[must_use]
    pub fn column(mut self, name: &str, type_name: &str) -> Self {
        self.columns.insert(name.into(), ColumnSpec::new(type_name));
        self
    }
}

/// One column of `messages`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Its type in the database.
    pub type_name: String,
    /// Where its value comes from, as with a parameter of its name.
    pub param: ParamSpec,
}

impl ColumnSpec {
    /// What a column's name says, as a type.
    pub fn new(type_name: impl Into<String>) -> Self {
        let param = ParamSpec { source: None, encoding: None, as_text: false };
        Self { type_name: type_name.into(), param }
    }
}

/// How many rows a set effect must touch; checked before COMMIT.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ExpectSet {
    /// As many as the batch has messages.
    #[default]
    EachMessage,
    /// As many as this query over `messages` answers: one row of one whole number.
    Query(String),
    /// Any number, zero included: said on purpose.
    Any,
}

/// Why a declaration of a set effect is refused when the pipeline is loaded; one line for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// A column's name is none.
    #[error(
        "columns.{0}: a column's name has lower-case ASCII letters, digits and _, begins with a letter or _ and has \
         at most 63 of them; take a value of another name with {{ type = …, pointer = \"/itsName\" }}"
    )]
    ColumnName(String),
    /// A column is called as a built-in one and means something else.
    #[error(
        "columns.{0}: {0} is a built-in column of `messages`; give this one another name (only the type of a built-in \
         column may be said)"
    )]
    BuiltIn(String),
    /// The built-in number.
    #[error("columns.n: n is the built-in number of a message in its batch; give this column another name")]
    Number,
    /// A column's type is none.
    #[error(
        "columns.{column}: {type_name:?} is no type that a column may have: one name such as numeric, int8, text or \
         shop.color, with [] behind it for a list, and no size"
    )]
    Type {
        /// The column.
        column: String,
        /// The type as declared.
        type_name: String,
    },
    /// A type with a size would cut or round values.
    #[error(
        "columns.{column}: {type_name} has a size and would cut what is longer without a word; write {instead}, and let \
         the table's own column refuse it"
    )]
    Sized {
        /// The column.
        column: String,
        /// The type as declared.
        type_name: String,
        /// A type without a size.
        instead: &'static str,
    },
    /// `:name` in a set effect.
    #[error(
        "{place} has the parameter :{name}, but runs once for all messages: read {name} as a column of `messages`"
    )]
    Param {
        /// The key of the statement.
        place: &'static str,
        /// The parameter.
        name: String,
    },
    /// The statement does not read the messages.
    #[error("{place} does not read `messages`, the relation with a row for each message of the batch")]
    ReadsNothing {
        /// The key of the statement.
        place: &'static str,
    },
    /// A query of the user's is called as ours.
    #[error(
        "{place} names a query of its own `messages`, as the messages of the batch are called: name it otherwise"
    )]
    Shadowed {
        /// The key of the statement.
        place: &'static str,
    },
    /// `lock` and `expect_rows_sql` only read.
    #[error("{place} is no SELECT")]
    NoQuery {
        /// The key of the statement.
        place: &'static str,
    },
    /// A statement that is none.
    #[error("{place}: {why}")]
    Statement {
        /// The key of the statement.
        place: &'static str,
        /// Why.
        why: String,
    },
    /// Rows of a message in an effect of a batch.
    #[error(
        "`expect_rows` as a number is for an effect that runs for each message: leave it out for one row each, or say \
         `expect_rows_sql`"
    )]
    ExpectRows,
    /// Parameters in an effect of a batch.
    #[error("`params` is for an effect that runs for each message: declare `columns` here")]
    Params,
    /// `optional` names no column.
    #[error("`optional` names {0:?}, which is none of `columns`")]
    Optional(String),
}

/// The parts of a set effect beside its statement, which passed every check that needs no database.
///
/// The columns are the parameters of the effect's [`Bindings`], each with its type here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledSet {
    /// The declared type of each column; `None`: a built-in column as it is.
    pub types: Vec<Option<String>>,
    /// What the statement reads.
    pub reads: Reads,
    /// What runs before it.
    pub lock: Option<SetQuery>,
    /// How many rows it must touch.
    pub expect: SetRows,
}

impl CompiledSet {
    /// The statements that run beside the effect's own.
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        let count = match &self.expect {
            SetRows::Query(query) => Some(query),
            _ => None,
        };
        self.lock.iter().chain(count).map(|query| &query.statement)
    }
}

/// A query over `messages` beside the statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetQuery {
    /// The query.
    pub statement: Statement,
    /// What it reads.
    pub reads: Reads,
}

/// [`ExpectSet`] after its checks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetRows {
    /// As many as messages.
    EachMessage,
    /// As many as the query answers.
    Query(SetQuery),
    /// Not checked.
    Any,
}

/// What a statement takes of `messages`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reads {
    /// Columns, as places among the effect's bindings.
    pub columns: Vec<usize>,
    /// The number of a message in its batch.
    pub number: bool,
    /// The statement begins with WITH; its own queries begin here in its text.
    with_ends_at: Option<usize>,
}

impl Reads {
    /// The statement with a first query `messages` in front: `relation` is its text, behind WITH.
    #[must_use]
    pub fn render(&self, sql: &str, relation: &str) -> String {
        match self.with_ends_at.and_then(|at| sql.split_at_checked(at)) {
            Some((with, rest)) => format!("{with} {relation},{rest}"),
            None => format!("WITH {relation} {sql}"),
        }
    }
}

/// The words of a text that may name columns.
struct Words {
    names: BTreeSet<String>,
    /// `SELECT *` or `x.*`: every column.
    all: bool,
    shadowed: bool,
    with_ends_at: Option<usize>,
}

impl Words {
    fn of(statement: &Statement) -> Self {
        let sql = statement.sql();
        // It was read once already.
        let tokens = tokenize(sql).unwrap_or_default();
        let text = |at: usize| tokens.get(at).map_or("", |token| &sql[token.range.clone()]);
        let is = |at: usize, word: &str| text(at).eq_ignore_ascii_case(word);
        let names: Vec<Option<String>> = tokens.iter().map(|token| name_of(sql, token)).collect();
        let behind_with = |at: usize| is(at, "WITH") || is(at, "RECURSIVE") || text(at) == ",";
        let begins_query = |at: usize| {
            text(at) == "("
                || (is(at, "AS") && (text(at + 1) == "(" || is(at + 1, "NOT") || is(at + 1, "MATERIALIZED")))
        };
        let shadowed = (1..tokens.len())
            .any(|at| names[at].as_deref() == Some(RELATION) && behind_with(at - 1) && begins_query(at + 1));
        let is_relation = |at: usize| names.get(at).is_some_and(|name| name.as_deref() == Some(RELATION));
        let takes_all = |at: usize| match text(at - 1) {
            "." => {
                let whose = at.checked_sub(2).and_then(|at| names[at].as_deref());
                whose.is_some_and(|whose| {
                    // `messages`, or what it is called here.
                    let called = |at: usize| {
                        names.get(at + 1 + usize::from(is(at + 1, "AS"))).and_then(Option::as_deref)
                    };
                    whose == RELATION
                        || (0..tokens.len()).any(|at| is_relation(at) && called(at) == Some(whose))
                })
            }
            "," => from_here(&text, at).any(is_relation),
            _ if ["SELECT", "DISTINCT", "ALL"].iter().any(|word| is(at - 1, word)) => {
                from_here(&text, at).any(is_relation)
            }
            _ => false,
        };
        let all = (1..tokens.len()).any(|at| text(at) == "*" && takes_all(at));
        let with_ends_at = is(0, "WITH").then(|| {
            let last = usize::from(is(1, "RECURSIVE"));
            tokens.get(last).map_or(0, |token| token.range.end)
        });
        Self { names: names.into_iter().flatten().collect(), all, shadowed, with_ends_at }
    }

    fn reads(&self, columns: &[Param], every: impl Fn(&str) -> bool) -> Reads {
        let read = |param: &Param| self.all || every(&param.name) || self.names.contains(&param.name);
        let columns = columns.iter().enumerate().filter(|(_, param)| read(param)).map(|(at, _)| at);
        Reads {
            columns: columns.collect(),
            number: self.all || self.names.contains(NUMBER),
            with_ends_at: self.with_ends_at,
        }
    }
}

/// The tokens behind a star that belong to the same query, what stands in parentheses left out.
fn from_here<'t>(text: &impl Fn(usize) -> &'t str, star: usize) -> std::vec::IntoIter<usize> {
    let (mut depth, mut found) = (0_usize, Vec::new());
    for at in star + 1.. {
        match text(at) {
            "" => break,
            "(" => depth += 1,
            ")" if depth == 0 => break,
            ")" => depth -= 1,
            _ if depth == 0 => found.push(at),
            _ => {}
        }
    }
    found.into_iter()
}

/// A name as both databases may compare it: quoted or not, in lower case.
fn name_of(sql: &str, token: &Token) -> Option<String> {
    let text = &sql[token.range.clone()];
    match token.kind {
        TokenKind::Word => Some(text.to_ascii_lowercase()),
        TokenKind::QuotedName => Some(unquoted(text).to_ascii_lowercase()),
        _ => None,
    }
}

/// Checks what the declaration says beside the statement.
pub(super) fn compile(
    spec: &EffectSpec,
    set: &SetSpec,
    statement: &Statement,
) -> Result<(Bindings, CompiledSet), EffectError> {
    if !spec.params.is_empty() {
        return Err(SetError::Params.into());
    }
    if spec.expect_rows.is_some() {
        return Err(SetError::ExpectRows.into());
    }
    if let Some(name) = spec.optional.iter().find(|name| !set.columns.contains_key(*name)) {
        return Err(SetError::Optional(name.clone()).into());
    }
    let words = read("sql", statement)?;
    let lock = set.lock.as_ref().map(|sql| query("lock", sql)).transpose()?;
    let expect = match &set.expect {
        ExpectSet::Query(sql) => Some(query("expect_rows_sql", sql)?),
        _ => None,
    };
    let mut params = Vec::new();
    let mut types = Vec::new();
    for (name, column) in &set.columns {
        check_name(name, column)?;
        types.push(Some(type_of(name, &column.type_name)?));
        params.push(param_of(name, Some(&column.param), &spec.optional)?);
    }
    let also = lock.iter().chain(&expect).map(|(_, words)| words);
    let named =
        |name: &str| [&words].into_iter().chain(also.clone()).any(|w| w.all || w.names.contains(name));
    for name in BUILT_IN.into_iter().filter(|name| !set.columns.contains_key(*name) && named(name)) {
        types.push(None);
        params.push(param_of(name, None, &spec.optional)?);
    }
    let beside = |(statement, words): (Statement, Words)| SetQuery {
        statement,
        reads: words.reads(&params, |_| false),
    };
    let expect = match (&set.expect, expect) {
        (_, Some(query)) => SetRows::Query(beside(query)),
        (ExpectSet::Any, None) => SetRows::Any,
        _ => SetRows::EachMessage,
    };
    let lock = lock.map(beside);
    let reads = words.reads(&params, |name| set.columns.contains_key(name));
    Ok((Bindings::new(params), CompiledSet { types, reads, lock, expect }))
}

fn query(place: &'static str, sql: &str) -> Result<(Statement, Words), EffectError> {
    let statement =
        Statement::parse(sql).map_err(|error| SetError::Statement { place, why: error.to_string() })?;
    if statement.kind() != StatementKind::Select {
        return Err(SetError::NoQuery { place }.into());
    }
    let words = read(place, &statement)?;
    Ok((statement, words))
}

fn read(place: &'static str, statement: &Statement) -> Result<Words, SetError> {
    if let Some(name) = statement.params().first() {
        return Err(SetError::Param { place, name: name.clone() });
    }
    let words = Words::of(statement);
    if !words.names.contains(RELATION) {
        return Err(SetError::ReadsNothing { place });
    }
    if words.shadowed {
        return Err(SetError::Shadowed { place });
    }
    Ok(words)
}

fn check_name(name: &str, column: &ColumnSpec) -> Result<(), SetError> {
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let goes_on = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !begins || !goes_on || name.len() > NAME_MAX {
        return Err(SetError::ColumnName(name.into()));
    }
    if name == NUMBER {
        return Err(SetError::Number);
    }
    if BUILT_IN.contains(&name) && column.param.source.is_some() {
        return Err(SetError::BuiltIn(name.into()));
    }
    Ok(())
}

/// A type's name in one spelling; nothing else becomes text of a statement.
fn type_of(column: &str, declared: &str) -> Result<String, SetError> {
    let refused = || SetError::Type { column: column.into(), type_name: declared.chars().take(80).collect() };
    let spelled = declared.split_ascii_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    let (element, list) = match spelled.strip_suffix("[]") {
        Some(element) => (element.trim_end(), "[]"),
        None => (spelled.as_str(), ""),
    };
    let sized = SIZED_TYPES.iter().find(|(name, _)| *name == element);
    if let Some((name, instead)) = sized {
        return Err(SetError::Sized { column: column.into(), type_name: (*name).to_owned(), instead });
    }
    let is_name = |name: &str| {
        name.len() <= NAME_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let plain = match element.split_once('.') {
        Some((schema, name)) => is_name(schema) && is_name(name),
        None => is_name(element),
    };
    if plain || LONG_TYPES.contains(&element) { Ok(format!("{element}{list}")) } else { Err(refused()) }
}

/// What is done for a batch, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// These effects for each message.
    Each(Range<usize>),
    /// This effect for all of them, by its place among the set effects.
    Set(usize),
}

/// The steps of so many effects, of which these, in order, are set effects.
#[must_use]
pub fn steps(effects: usize, sets: impl IntoIterator<Item = usize>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut from = 0;
    for (at, set) in sets.into_iter().enumerate() {
        if from < set {
            steps.push(Step::Each(from..set));
        }
        steps.push(Step::Set(at));
        from = set + 1;
    }
    if from < effects {
        steps.push(Step::Each(from..effects));
    }
    steps
}

/// The columns of set effects that run for the same messages; each value is found once a message.
#[derive(Debug, Clone, Default)]
pub struct SetColumns {
    bindings: Bindings,
    types: Vec<Option<String>>,
    effects: Vec<usize>,
}

/// A set effect of a group: its number, from 0, and for each of its columns the place among the group's.
pub type Member = (usize, Vec<usize>);

/// The set effects of a pipeline, those with the same condition together.
#[must_use]
pub fn set_groups(effects: &[CompiledEffect]) -> Vec<(SetColumns, Vec<Member>)> {
    let mut groups: Vec<(SetColumns, Vec<Member>)> = Vec::new();
    for (at, effect) in effects.iter().enumerate() {
        let Some(set) = &effect.set else { continue };
        let same = |(_, members): &(SetColumns, Vec<Member>)| {
            let first = members.first().and_then(|(first, _)| effects.get(*first));
            first.is_some_and(|first| first.when == effect.when)
        };
        let group = groups.iter().position(same).unwrap_or_else(|| {
            groups.push((SetColumns::default(), Vec::new()));
            groups.len() - 1
        });
        let (columns, members) = &mut groups[group];
        members.push((at, columns.add(at, &effect.bindings, set)));
    }
    groups
}

impl SetColumns {
    /// Adds an effect's columns; answers where each of them is.
    fn add(&mut self, effect: usize, bindings: &Bindings, set: &CompiledSet) -> Vec<usize> {
        let mut params = self.bindings.params().to_vec();
        let mut places = Vec::new();
        for (param, type_) in bindings.params().iter().zip(&set.types) {
            let same = |at: &usize| params[*at] == *param && self.types[*at] == *type_;
            let found = (0..params.len()).find(same);
            places.push(found.unwrap_or_else(|| {
                params.push(param.clone());
                self.types.push(type_.clone());
                self.effects.push(effect);
                params.len() - 1
            }));
        }
        self.bindings = Bindings::new(params);
        places
    }

    /// The columns.
    #[must_use]
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Each column's declared type; `None`: a built-in column as it is.
    #[must_use]
    pub fn types(&self) -> &[Option<String>] {
        &self.types
    }

    /// The effect that declares a column first, by its number from 0.
    #[must_use]
    pub fn effect_of(&self, column: usize) -> usize {
        self.effects.get(column).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
