//! One SQL statement with named parameters: checked, and rendered for either database.
//!
//! What is refused here is refused when the pipeline is loaded, with a reason for a person. It is a
//! reading aid, not a wall: a function that the statement calls can do anything the role may do. SQLite
//! has its authorizer behind it, Postgres the guard of every transaction.

use super::token::{Token, TokenKind, tokenize};
use std::fmt::Write as _;
use std::ops::Range;

/// Why a statement is not accepted as an effect; one line for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// Nothing but white space and comments.
    #[error("the statement is empty")]
    Empty,
    /// More than one statement.
    #[error(
        "there are several statements; declare one [[effect]] for each, they run in order in one transaction"
    )]
    Several,
    /// BEGIN, COMMIT, SAVEPOINT and the like.
    #[error(
        "{0} is transaction control: each message's effects already run in one transaction with its claim"
    )]
    TransactionControl(String),
    /// SET, RESET, DISCARD, PRAGMA, `set_config`.
    #[error(
        "{0} changes the session, which other messages share; set it for the role or the database instead"
    )]
    Setting(String),
    /// CREATE, ALTER, DROP and the like.
    #[error("{0} changes the schema: put it into the file of `[store] setup`, which `migrate` runs once")]
    Schema(String),
    /// `SELECT … INTO` makes a table.
    #[error("SELECT … INTO makes a table: use INSERT INTO … SELECT")]
    SelectInto,
    /// Any other verb.
    #[error("{0} cannot be an effect: use SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or WITH")]
    Verb(String),
    /// A table of Handstamp's own.
    #[error("{0} belongs to Handstamp: an effect that touches it could make messages lost or doubled")]
    OwnTable(String),
    /// `$1` or `?`.
    #[error(
        "{0} is a positional parameter or an operator that looks like one: write :name (and jsonb_exists(a, b) for a ? b)"
    )]
    Positional(&'static str),
    /// `U&"…"` or `U&'…'`.
    #[error("U&\"…\" and U&'…' hide what they name: write the characters themselves")]
    UnicodeEscape,
    /// A quote or comment without an end.
    #[error("a {0} does not end")]
    Unterminated(&'static str),
    /// A closing parenthesis too many or too few.
    #[error("the parentheses do not match")]
    Parentheses,
}

/// What a statement does, by its main verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatementKind {
    /// Reads.
    Select,
    /// Adds rows.
    Insert,
    /// Changes rows; may silently hit none.
    Update,
    /// Removes rows; may silently hit none.
    Delete,
    /// Adds, changes or removes rows.
    Merge,
    /// Constants.
    Values,
}

impl StatementKind {
    /// True for UPDATE and DELETE, which succeed when they hit nothing: they want `expect_rows`.
    #[must_use]
    pub fn may_hit_nothing(self) -> bool {
        matches!(self, Self::Update | Self::Delete)
    }

    fn from_verb(verb: &str) -> Option<Self> {
        match verb {
            "SELECT" => Some(Self::Select),
            "INSERT" | "REPLACE" => Some(Self::Insert),
            "UPDATE" => Some(Self::Update),
            "DELETE" => Some(Self::Delete),
            "MERGE" => Some(Self::Merge),
            "VALUES" => Some(Self::Values),
            _ => None,
        }
    }
}

/// One accepted statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    kind: StatementKind,
    sql: String,
    params: Vec<String>,
    /// Where each parameter stands in `sql`, and which of `params` it is.
    places: Vec<(Range<usize>, usize)>,
    /// Names that stand before a dot, folded as Postgres folds them.
    schemas: Vec<String>,
}

impl Statement {
    /// Reads a statement and refuses what cannot be an effect.
    ///
    /// # Errors
    /// [`StatementError`], whose text says what to do instead.
    pub fn parse(sql: &str) -> Result<Self, StatementError> {
        let mut tokens = tokenize(sql)?;
        while tokens.last().is_some_and(|last| &sql[last.range.clone()] == ";") {
            tokens.pop();
        }
        let end = tokens.last().ok_or(StatementError::Empty)?.range.end;
        let reading = Reading { sql, tokens: &tokens };
        let kind = reading.main_verb()?;
        reading.refuse_several()?;
        let schemas = reading.refuse_names()?;
        let mut params: Vec<String> = Vec::new();
        let mut places = Vec::new();
        for token in tokens.iter().filter(|token| token.kind == TokenKind::Param) {
            let name = &sql[token.range.start + 1..token.range.end];
            let index = params.iter().position(|param| param == name).unwrap_or_else(|| {
                params.push(name.to_owned());
                params.len() - 1
            });
            places.push((token.range.clone(), index));
        }
        Ok(Self { kind, sql: sql[..end].to_owned(), params, places, schemas })
    }

    /// The distinct parameter names in the order of their first place; number n of the rendered text
    /// is `params()[n - 1]`.
    #[must_use]
    pub fn params(&self) -> &[String] {
        &self.params
    }

    /// What it does.
    #[must_use]
    pub fn kind(&self) -> StatementKind {
        self.kind
    }

    /// The text as it was written, without a semicolon at its end.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The text with `$1`, `$2`, …
    #[must_use]
    pub fn render_postgres(&self) -> String {
        self.render('$')
    }

    /// The text with `?1`, `?2`, …
    #[must_use]
    pub fn render_sqlite(&self) -> String {
        self.render('?')
    }

    /// True when a name stands before a dot somewhere: a schema other than `handstamp` that holds our
    /// tables is refused by this.
    #[must_use]
    pub fn mentions_schema(&self, schema: &str) -> bool {
        self.schemas.iter().any(|mentioned| mentioned == schema)
    }

    fn render(&self, sign: char) -> String {
        let mut out = String::with_capacity(self.sql.len());
        let mut from = 0;
        for (range, index) in &self.places {
            out.push_str(&self.sql[from..range.start]);
            // `LIMIT:n` must not become the name `LIMIT$1`.
            if out.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii()) {
                out.push(' ');
            }
            // Writing to a String cannot fail.
            let _ = write!(out, "{sign}{}", index + 1);
            from = range.end;
        }
        out.push_str(&self.sql[from..]);
        out
    }
}

/// A statement while it is checked.
struct Reading<'a> {
    sql: &'a str,
    tokens: &'a [Token],
}

impl Reading<'_> {
    fn text(&self, token: &Token) -> &str {
        &self.sql[token.range.clone()]
    }

    fn is_sign(&self, at: usize, sign: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == TokenKind::Sign && self.text(token) == sign)
    }

    fn upper(&self, at: usize) -> Option<String> {
        let token = self.tokens.get(at)?;
        (token.kind == TokenKind::Word).then(|| self.text(token).to_ascii_uppercase())
    }

    fn refuse_several(&self) -> Result<(), StatementError> {
        let several = (0..self.tokens.len()).any(|at| self.is_sign(at, ";"));
        if several { Err(StatementError::Several) } else { Ok(()) }
    }

    /// The verb that decides what the statement does, behind parentheses and WITH.
    fn main_verb(&self) -> Result<StatementKind, StatementError> {
        let start = (0..self.tokens.len()).find(|&at| !self.is_sign(at, "(")).ok_or(StatementError::Empty)?;
        let Some(first) = self.upper(start) else {
            let token = self.tokens.get(start).map_or("", |token| self.text(token));
            return Err(StatementError::Verb(token.chars().take(40).collect()));
        };
        if first != "WITH" {
            let kind = StatementKind::from_verb(&first).ok_or_else(|| refused_verb(first))?;
            return self.refuse_into(kind, start);
        }
        let mut depth = 0_usize;
        for at in start + 1..self.tokens.len() {
            if self.is_sign(at, "(") {
                depth += 1;
            } else if self.is_sign(at, ")") {
                depth = depth.checked_sub(1).ok_or(StatementError::Parentheses)?;
            } else if depth == 0
                && let Some(verb) = self.upper(at)
                && !self.names_a_query(at)
                && let Some(kind) = StatementKind::from_verb(&verb)
            {
                return self.refuse_into(kind, at);
            }
        }
        Err(StatementError::Verb("WITH without a main statement".into()))
    }

    /// True when the word at `at` is the name of a common table expression.
    fn names_a_query(&self, at: usize) -> bool {
        let before = at.checked_sub(1);
        before.is_some_and(|before| {
            self.is_sign(before, ",")
                || self.upper(before).is_some_and(|word| word == "WITH" || word == "RECURSIVE")
        })
    }

    fn refuse_into(&self, kind: StatementKind, verb: usize) -> Result<StatementKind, StatementError> {
        if kind != StatementKind::Select {
            return Ok(kind);
        }
        let mut depth = 0_i64;
        for at in verb..self.tokens.len() {
            if self.is_sign(at, "(") {
                depth += 1;
            } else if self.is_sign(at, ")") {
                depth -= 1;
            } else if depth <= 0 && self.upper(at).is_some_and(|word| word == "INTO") {
                return Err(StatementError::SelectInto);
            }
        }
        Ok(kind)
    }

    /// Refuses our own tables and functions that change the session; the names before a dot.
    fn refuse_names(&self) -> Result<Vec<String>, StatementError> {
        let mut schemas = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let name = match token.kind {
                TokenKind::Word => self.text(token).to_ascii_lowercase(),
                TokenKind::QuotedName => unquoted(self.text(token)),
                _ => continue,
            };
            let before_dot = self.is_sign(at + 1, ".");
            if name.to_ascii_lowercase().starts_with("handstamp_") || (before_dot && name == "handstamp") {
                return Err(StatementError::OwnTable(name));
            }
            if name == "set_config" {
                return Err(StatementError::Setting(name));
            }
            if before_dot && !schemas.contains(&name) {
                schemas.push(name);
            }
        }
        Ok(schemas)
    }
}

pub(super) fn unquoted(quoted: &str) -> String {
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().replace("\"\"", "\"")
}

fn refused_verb(verb: String) -> StatementError {
    match verb.as_str() {
        "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "SAVEPOINT" | "RELEASE" | "PREPARE" | "ABORT"
        | "LOCK" => StatementError::TransactionControl(verb),
        "SET" | "RESET" | "DISCARD" | "PRAGMA" | "ATTACH" | "DETACH" | "LOAD" => {
            StatementError::Setting(verb)
        }
        "CREATE" | "ALTER" | "DROP" | "TRUNCATE" | "GRANT" | "REVOKE" | "COMMENT" | "VACUUM" | "REINDEX"
        | "CLUSTER" | "ANALYZE" | "REFRESH" | "REASSIGN" | "SECURITY" | "IMPORT" => {
            StatementError::Schema(verb)
        }
        _ => StatementError::Verb(verb),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(sql: &str) -> Statement {
        Statement::parse(sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    #[test]
    fn parameters_are_numbered_by_name() {
        let statement = parse("UPDATE a SET b = b + :amount, c = :who, d = :amount WHERE id = :id;");
        assert_eq!(statement.params(), ["amount", "who", "id"]);
        assert_eq!(statement.render_postgres(), "UPDATE a SET b = b + $1, c = $2, d = $1 WHERE id = $3");
        assert_eq!(statement.render_sqlite(), "UPDATE a SET b = b + ?1, c = ?2, d = ?1 WHERE id = ?3");
    }

    #[test]
    fn what_looks_like_a_parameter_is_none() {
        for sql in [
            "SELECT ':a', 'it''s :b', \":c\", \"x\"\":d\"",
            r"SELECT E'\':a' , e'\\:b'",
            "SELECT $$ :a $$, $t$ :b $$ :c $t$, $tä$ :d $tä$",
            "SELECT 1 -- :a\n , 2 /* :b /* :c */ :d */",
            "SELECT now()::text, a[1:2], f(x := 1), '1'::int",
            "SELECT a$b$c FROM t",
        ] {
            assert!(parse(sql).params().is_empty(), "{sql}");
        }
        assert_eq!(parse(r"SELECT '\', :a").params(), ["a"], "a backslash means nothing in '…'");
        assert_eq!(parse("SELECT :a::text").render_postgres(), "SELECT $1::text");
        assert_eq!(parse("SELECT 1 LIMIT:n").render_postgres(), "SELECT 1 LIMIT $1");
        assert_eq!(parse("SELECT :_a1B, :é").params(), ["_a1B"]);
    }

    #[test]
    fn the_main_verb_is_found() {
        for (sql, kind) in [
            ("select 1", StatementKind::Select),
            (" (SELECT 1)", StatementKind::Select),
            ("SELECT * FROM a FOR UPDATE", StatementKind::Select),
            ("/* DELETE */ insert into a values (1)", StatementKind::Insert),
            ("UPDATE a SET b = 1", StatementKind::Update),
            ("DELETE FROM a", StatementKind::Delete),
            ("MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE", StatementKind::Merge),
            ("VALUES (1)", StatementKind::Values),
            ("WITH x AS (SELECT 1) UPDATE a SET b = 1", StatementKind::Update),
            (
                "WITH RECURSIVE x(n) AS (VALUES (1)), y AS MATERIALIZED (DELETE FROM b RETURNING 1) INSERT INTO a SELECT 1",
                StatementKind::Insert,
            ),
            ("WITH update AS (SELECT 1), delete AS (SELECT 2) SELECT * FROM update", StatementKind::Select),
            ("WITH x AS (UPDATE a SET b = 1 RETURNING b) SELECT count(*) FROM x", StatementKind::Select),
        ] {
            assert_eq!(parse(sql).kind(), kind, "{sql}");
        }
        assert!(StatementKind::Update.may_hit_nothing() && StatementKind::Delete.may_hit_nothing());
        assert!(!StatementKind::Insert.may_hit_nothing() && !StatementKind::Select.may_hit_nothing());
    }

    #[test]
    fn what_cannot_be_an_effect_is_refused_with_its_reason() {
        let refused = |sql: &str| Statement::parse(sql).expect_err(sql);
        for sql in ["", "  ", ";", " ;; ", "-- only a comment", "/* x */"] {
            assert_eq!(refused(sql), StatementError::Empty, "{sql:?}");
        }
        for sql in ["SELECT 1; SELECT 2", "SELECT 1;; -- x\nDELETE FROM a;", "UPDATE a SET b = ';' ; COMMIT"]
        {
            assert_eq!(refused(sql), StatementError::Several, "{sql:?}");
        }
        for verb in [
            "BEGIN",
            "start",
            "COMMIT",
            "End",
            "ROLLBACK",
            "SAVEPOINT",
            "RELEASE",
            "PREPARE",
            "ABORT",
            "LOCK",
        ] {
            let error = refused(&format!("{verb} x"));
            assert!(matches!(error, StatementError::TransactionControl(_)), "{verb}: {error}");
        }
        for verb in ["SET", "reset", "DISCARD", "PRAGMA", "ATTACH", "DETACH"] {
            assert!(matches!(refused(&format!("/**/{verb} x")), StatementError::Setting(_)), "{verb}");
        }
        for verb in ["CREATE", "alter", "DROP", "TRUNCATE", "GRANT", "REVOKE", "COMMENT", "VACUUM"] {
            assert!(matches!(refused(&format!("{verb} x")), StatementError::Schema(_)), "{verb}");
        }
        for verb in
            ["COPY", "LISTEN", "NOTIFY", "DO", "CALL", "EXECUTE", "EXPLAIN", "SHOW", "FETCH", "frobnicate"]
        {
            assert!(matches!(refused(&format!("{verb} x")), StatementError::Verb(_)), "{verb}");
        }
        for sql in ["SELECT $1", "SELECT ?", "SELECT a ? 'b'", "SELECT $name", "SELECT ?1"] {
            assert!(matches!(refused(sql), StatementError::Positional(_)), "{sql}");
        }
        for sql in ["SELECT 'a", "SELECT \"a", "SELECT /* /* */", "SELECT $t$ $t", r"SELECT E'\'"] {
            assert!(matches!(refused(sql), StatementError::Unterminated(_)), "{sql}");
        }
        assert_eq!(refused("SELECT a INTO b FROM c"), StatementError::SelectInto);
        assert_eq!(refused("WITH x AS (SELECT 1) SELECT a INTO b FROM x"), StatementError::SelectInto);
        assert!(matches!(refused("SELECT set_config('a', 'b', true)"), StatementError::Setting(_)));
        assert_eq!(refused("SELECT U&\"\\0068\""), StatementError::UnicodeEscape);
        assert!(matches!(refused("WITH x AS (SELECT 1)"), StatementError::Verb(_)));
        assert!(matches!(refused("'UPDATE'"), StatementError::Verb(_)));
    }

    #[test]
    fn our_own_tables_are_refused() {
        for sql in [
            "DELETE FROM handstamp.inbox",
            "DELETE FROM HandStamp . inbox",
            "DELETE FROM \"handstamp\".\"inbox\"",
            "DELETE FROM handstamp_inbox",
            "INSERT INTO a SELECT id FROM \"Handstamp_Inbox\"",
            "WITH x AS (DELETE FROM handstamp.inbox RETURNING 1) SELECT 1",
        ] {
            assert!(matches!(Statement::parse(sql), Err(StatementError::OwnTable(_))), "{sql}");
        }
        let other = parse("UPDATE shop.handstamp SET a = 'handstamp.inbox' WHERE \"Own\".b = 1");
        assert!(
            other.mentions_schema("shop") && other.mentions_schema("Own") && !other.mentions_schema("own")
        );
    }

    /// Pieces that hide a parameter, and pieces that are one.
    fn pieces() -> impl Strategy<Value = Vec<(String, Option<String>)>> {
        let inner = "[a-z :/*'\"$-]{0,8}";
        let hidden = prop_oneof![
            inner.prop_map(|s| format!("'{}'", s.replace('\'', "''"))),
            inner.prop_map(|s| format!("\"{}\"", s.replace('"', "\"\""))),
            inner.prop_map(|s| format!("--{s}\n")),
            "[a-z :'\"$-]{0,8}".prop_map(|s| format!("/*{s}/*{s}*/{s}*/")),
            "[a-z :/*'\"-]{0,8}".prop_map(|s| format!("$q${s}$q$")),
            inner.prop_map(|s| format!("E'{}'", s.replace('\'', "\\'"))),
            Just("::".to_owned()),
            Just("a".to_owned()),
        ]
        .prop_map(|s| (s, None));
        let param = "[a-z_][a-z0-9_]{0,4}".prop_map(|s| (format!(":{s}"), Some(s)));
        proptest::collection::vec(prop_oneof![3 => hidden, 1 => param], 0..8)
    }

    proptest! {
        #[test]
        fn any_text_is_answered(sql in any::<String>(), tail in "[:$'\"/*a-e? ;()é-]{0,24}") {
            let _ = Statement::parse(&sql);
            if let Ok(statement) = Statement::parse(&format!("SELECT {tail}")) {
                let _ = statement.render_postgres();
            }
        }

        #[test]
        fn strings_and_comments_never_yield_parameters(pieces in pieces()) {
            let text: Vec<&str> = pieces.iter().map(|(text, _)| text.as_str()).collect();
            let statement = Statement::parse(&format!("SELECT {} FROM z", text.join(" "))).unwrap();
            let mut expected: Vec<&str> = Vec::new();
            for name in pieces.iter().filter_map(|(_, name)| name.as_deref()) {
                if !expected.contains(&name) {
                    expected.push(name);
                }
            }
            prop_assert_eq!(statement.params(), expected);
            // Everything but the parameters is left as it was.
            let rendered = statement.render_sqlite();
            for (text, name) in &pieces {
                let kept = name.is_some() || rendered.contains(text.trim_end());
                prop_assert!(kept, "{} lost {}", rendered, text);
            }
        }
    }
}
