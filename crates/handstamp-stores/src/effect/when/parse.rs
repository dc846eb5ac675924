//! Text → condition. Whatever is wrong is said with the place it is at, and what would be right.

use super::super::binding::{ParamSource, ParamSpec};
use super::{Condition, Expr, Field, Literal, Op, Operand, Type, Written, is_plain_in_pointer};
use handstamp_core::json::{Number, Pointer};
use std::collections::BTreeMap;
use std::fmt;

/// Most characters of a line that are shown beside the place of a mistake.
const SHOWN: usize = 60;

/// What is wrong with a condition, and where. Its text has three lines: what is wrong, the line of the condition, and
/// a caret below the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionError {
    /// What is wrong and what would be right, one line.
    pub message: String,
    /// The byte of the text at which it was met.
    pub at: usize,
    /// A piece of the text's line around it.
    shown: String,
    /// Characters of it in front of the place.
    before: usize,
}

impl ConditionError {
    fn new(text: &str, at: usize, message: impl Into<String>) -> Self {
        let at = at.min(text.len());
        let (front, behind) = text.split_at_checked(at).unwrap_or((text, ""));
        let front = front.rsplit('\n').next().unwrap_or_default();
        let behind = behind.split('\n').next().unwrap_or_default();
        let skipped = front.chars().count().saturating_sub(SHOWN);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let mut shown = String::from(if skipped > 0 { "…" } else { "" });
        shown.extend(front.chars().skip(skipped).map(plain));
        let before = shown.chars().count();
        shown.extend(behind.chars().take(SHOWN).map(plain));
        if behind.chars().nth(SHOWN).is_some() {
            shown.push('…');
        }
        Self { message: message.into(), at, shown: shown.trim_end().to_owned(), before }
    }
}

impl fmt::Display for ConditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}\n    {}^", self.message, self.shown, " ".repeat(self.before))
    }
}

impl std::error::Error for ConditionError {}

/// Reads a whole condition.
pub(super) fn condition(text: &str, params: &BTreeMap<String, ParamSpec>) -> Result<Expr, ConditionError> {
    if text.len() > Condition::TEXT_BYTES_MAX {
        let why = format!(
            "a condition has at most {} bytes; this one has {}",
            Condition::TEXT_BYTES_MAX,
            text.len()
        );
        return Err(ConditionError::new(text, Condition::TEXT_BYTES_MAX, why));
    }
    let mut parser =
        Parser { text, params, token: Token { kind: TokenKind::End, start: 0, end: 0 }, depth: 0 };
    parser.advance()?;
    let root = parser.any_of()?;
    match parser.token.kind {
        TokenKind::End => Ok(root),
        TokenKind::Sign(")") => Err(parser.here("this parenthesis closes nothing")),
        TokenKind::Sign("=" | "!=" | "<" | "<=" | ">" | ">=") => {
            Err(parser.here("one comparison cannot follow another: put `and` between two of them"))
        }
        _ => Err(parser.here("expected `and`, `or` or the end")),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TokenKind {
    /// A name without a sign in front.
    Word(String),
    /// `:name`, without the colon.
    Param(String),
    Pointer(String),
    Text(String),
    Number(String),
    Sign(&'static str),
    End,
}

#[derive(Debug, Clone)]
struct Token {
    kind: TokenKind,
    start: usize,
    end: usize,
}

struct Parser<'t> {
    text: &'t str,
    params: &'t BTreeMap<String, ParamSpec>,
    /// The next one.
    token: Token,
    depth: usize,
}

type Parsed<T> = Result<T, ConditionError>;

impl Parser<'_> {
    fn here(&self, message: impl Into<String>) -> ConditionError {
        ConditionError::new(self.text, self.token.start, message)
    }

    fn at(&self, at: usize, message: impl Into<String>) -> ConditionError {
        ConditionError::new(self.text, at, message)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.token.kind, TokenKind::Word(found) if found.eq_ignore_ascii_case(word))
    }

    fn eat_word(&mut self, word: &str) -> Parsed<bool> {
        let is_it = self.is_word(word);
        if is_it {
            self.advance()?;
        }
        Ok(is_it)
    }

    fn eat_sign(&mut self, sign: &str) -> Parsed<bool> {
        let is_it = matches!(self.token.kind, TokenKind::Sign(found) if found == sign);
        if is_it {
            self.advance()?;
        }
        Ok(is_it)
    }

    fn expect_sign(&mut self, sign: &str, message: &str) -> Parsed<()> {
        if self.eat_sign(sign)? { Ok(()) } else { Err(self.here(message)) }
    }

    fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > Condition::DEPTH_MAX {
            let why = format!("more than {} parentheses and `not` inside one another", Condition::DEPTH_MAX);
            return Err(self.here(why));
        }
        Ok(())
    }

    /// One or more with `or` between them.
    fn any_of(&mut self) -> Parsed<Expr> {
        let mut parts = vec![];
        loop {
            match self.all_of()? {
                Expr::Or(inner) => parts.extend(inner),
                one => parts.push(one),
            }
            if !self.eat_word("or")? {
                break;
            }
        }
        Ok(one_or(parts, Expr::Or))
    }

    /// One or more with `and` between them.
    fn all_of(&mut self) -> Parsed<Expr> {
        let mut parts = vec![];
        loop {
            match self.unary()? {
                Expr::And(inner) => parts.extend(inner),
                one => parts.push(one),
            }
            if !self.eat_word("and")? {
                break;
            }
        }
        Ok(one_or(parts, Expr::And))
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let before = self.depth;
        self.deeper()?;
        let unary = if self.eat_word("not")? {
            Expr::Not(Box::new(self.unary()?))
        } else if self.eat_sign("(")? {
            let inner = self.any_of()?;
            self.expect_sign(")", "expected `)`")?;
            inner
        } else {
            self.test()?
        };
        self.depth = before;
        Ok(unary)
    }

    fn test(&mut self) -> Parsed<Expr> {
        if self.eat_word("exists")? {
            let in_parentheses = self.eat_sign("(")?;
            let field = self.field("`exists` asks for")?;
            if in_parentheses {
                self.expect_sign(")", "expected `)`")?;
            }
            return Ok(Expr::Exists(field));
        }
        let start = self.token.start;
        let left = self.operand()?;
        if let TokenKind::Sign(sign) = self.token.kind
            && let Some(op) = Op::ALL.into_iter().find(|op| op.as_str() == sign)
        {
            let op_at = self.token.start;
            self.advance()?;
            let right_at = self.token.start;
            let right = self.operand()?;
            self.check_types(&left, op, op_at, &right, right_at, start)?;
            return Ok(Expr::Compare { left, op, right });
        }
        let Operand::Field(field) = left else {
            return Err(self.here("expected a comparison: `=`, `!=`, `<`, `<=`, `>` or `>=`"));
        };
        if self.eat_word("is")? {
            let negated = self.eat_word("not")?;
            if !self.eat_word("null")? {
                return Err(self.here("expected `null`: `is null` or `is not null`"));
            }
            return Ok(Expr::IsNull { field, negated });
        }
        let negated = self.eat_word("not")?;
        if self.eat_word("in")? {
            let list = self.list(&field)?;
            return Ok(Expr::In { field, negated, list });
        }
        Err(match negated {
            true => self.here("expected `in` behind `not`"),
            false => self.here(format!(
                "a value alone is no condition: compare it, as in `{field} = true`, or ask `exists {field}`"
            )),
        })
    }

    fn check_types(
        &self,
        left: &Operand,
        op: Op,
        op_at: usize,
        right: &Operand,
        right_at: usize,
        left_at: usize,
    ) -> Parsed<()> {
        if let (Operand::Literal(one), Operand::Literal(_)) = (left, right) {
            let hint = match one {
                Literal::Text(text) if text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
                    format!(": a field of the body is written :{text}")
                }
                _ => String::new(),
            };
            return Err(self.at(left_at, format!("this compares two constants, whatever the message{hint}")));
        }
        let type_of = |operand: &Operand| match operand {
            Operand::Field(field) => field.type_(),
            Operand::Literal(literal) => Some(literal.type_()),
        };
        let (one, two) = (type_of(left), type_of(right));
        if let (Some(one), Some(two)) = (one, two)
            && one != two
        {
            let hint = if one == Type::Text && two == Type::Number { "; write it in quotes" } else { "" };
            let why = format!(
                "{left} is {}, and {right} {}: they cannot be compared{hint}",
                one.as_str(),
                two.as_str()
            );
            return Err(self.at(right_at, why));
        }
        let is_truth = one == Some(Type::Bool) || two == Some(Type::Bool);
        if is_truth && !matches!(op, Op::Eq | Op::Ne) {
            return Err(self.at(op_at, "true and false have no order: only `=` and `!=`"));
        }
        Ok(())
    }

    fn list(&mut self, field: &Field) -> Parsed<Vec<Literal>> {
        self.expect_sign("(", "expected `(`: write `in (1, 2)`")?;
        let mut list: Vec<Literal> = vec![];
        loop {
            let at = self.token.start;
            let Some(literal) = self.literal()? else {
                return Err(self.here("expected a text in quotes, a number, true or false"));
            };
            let of_field = field.type_().filter(|of_field| *of_field != literal.type_());
            if let Some(of_field) = of_field {
                let why =
                    format!("{field} is {}, and {literal} {}", of_field.as_str(), literal.type_().as_str());
                return Err(self.at(at, why));
            }
            if list.first().is_some_and(|first| first.type_() != literal.type_()) {
                return Err(self.at(at, "all of a list are of one type: texts, numbers or booleans"));
            }
            list.push(literal);
            if self.eat_sign(")")? {
                return Ok(list);
            }
            self.expect_sign(",", "expected `,` or `)`")?;
        }
    }

    fn operand(&mut self) -> Parsed<Operand> {
        if let Some(literal) = self.literal()? {
            return Ok(Operand::Literal(literal));
        }
        self.field("expected").map(Operand::Field)
    }

    fn literal(&mut self) -> Parsed<Option<Literal>> {
        let literal = match &self.token.kind {
            TokenKind::Text(text) => Literal::Text(text.clone()),
            TokenKind::Number(token) => {
                if Number::parse(token).and_then(|number| number.exact()).is_none() {
                    return Err(self.here(format!("{token} is no number; numbers are written as in JSON")));
                }
                Literal::Number(token.clone())
            }
            TokenKind::Word(word) if word.eq_ignore_ascii_case("true") => Literal::Bool(true),
            TokenKind::Word(word) if word.eq_ignore_ascii_case("false") => Literal::Bool(false),
            _ => return Ok(None),
        };
        self.advance()?;
        Ok(Some(literal))
    }

    /// A value of the message; `wanted` begins the sentence when there is none.
    fn field(&mut self, wanted: &str) -> Parsed<Field> {
        let at = self.token.start;
        let (written, source, as_text) = match self.token.kind.clone() {
            TokenKind::Param(name) => {
                let declared = self.params.get(&name);
                if declared.is_some_and(|declared| declared.encoding.is_some()) {
                    return Err(self.here(format!(":{name} is declared with an encoding: it is bytes here")));
                }
                let source = declared.and_then(|declared| declared.source.clone());
                let source = source.unwrap_or_else(|| ParamSource::of_name(&name));
                (Written::Name(name), source, declared.is_some_and(|declared| declared.as_text))
            }
            TokenKind::Pointer(text) => {
                let pointer = Pointer::parse(&text).map_err(|error| self.here(error.to_string()))?;
                (Written::Pointer(pointer.clone()), ParamSource::Body(pointer), false)
            }
            TokenKind::Word(word) if word.eq_ignore_ascii_case("topic") => {
                (Written::Topic, ParamSource::Topic, false)
            }
            TokenKind::Word(word)
                if word.eq_ignore_ascii_case("header") || word.eq_ignore_ascii_case("body") =>
            {
                return self.called(&word);
            }
            other => return Err(self.at(at, no_field(wanted, &other))),
        };
        self.advance()?;
        if source == ParamSource::BodyJson && !as_text {
            return Err(self.at(at, ":body is the whole body: name a field of it, such as :type or /type"));
        }
        Ok(Field::new(written, source, as_text))
    }

    /// `header("x")`, `body("/x")`.
    fn called(&mut self, word: &str) -> Parsed<Field> {
        let is_header = word.eq_ignore_ascii_case("header");
        let shape = if is_header { "write `header(\"name\")`" } else { "write `body(\"/pointer\")`" };
        self.advance()?;
        self.expect_sign("(", shape)?;
        let at = self.token.start;
        let TokenKind::Text(text) = self.token.kind.clone() else { return Err(self.here(shape)) };
        self.advance()?;
        self.expect_sign(")", shape)?;
        if is_header {
            if text.is_empty() {
                return Err(self.at(at, "a header's name is not empty"));
            }
            let source = ParamSource::Header(text.clone());
            return Ok(Field::new(Written::Header(text), source, false));
        }
        let pointer = Pointer::parse(&text).map_err(|error| self.at(at, error.to_string()))?;
        let source = ParamSource::Body(pointer.clone());
        Ok(Field::new(Written::Pointer(pointer), source, false))
    }
}

fn one_or(mut parts: Vec<Expr>, many: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => many(parts.into_iter().chain(last).collect()),
    }
}

/// Why a token is no value of a message.
fn no_field(wanted: &str, found: &TokenKind) -> String {
    const VALUES: &str = "a value: :name, /json/pointer, header(\"x\") or topic";
    match found {
        TokenKind::Word(word) if word.eq_ignore_ascii_case("null") => {
            "nothing is compared with null: write `is null` or `is not null`".to_owned()
        }
        TokenKind::Word(word)
            if ["and", "or", "not", "in", "is", "exists"]
                .iter()
                .all(|key| !word.eq_ignore_ascii_case(key)) =>
        {
            format!("{wanted} {VALUES}; a field of the body is written :{word}, a text in quotes")
        }
        TokenKind::End => format!("{wanted} {VALUES}, and the condition ends here"),
        _ => format!("{wanted} {VALUES}"),
    }
}

// The tokens.
impl Parser<'_> {
    fn advance(&mut self) -> Parsed<()> {
        let rest = self.text.get(self.token.end..).unwrap_or_default();
        let start = self.token.end + (rest.len() - rest.trim_start().len());
        let rest = rest.trim_start();
        let (kind, length) = match rest.chars().next() {
            None => (TokenKind::End, 0),
            Some(first) => self.read(first, rest, start)?,
        };
        self.token = Token { kind, start, end: start + length };
        Ok(())
    }

    /// The token that a text begins with, and its length.
    fn read(&self, first: char, rest: &str, start: usize) -> Parsed<(TokenKind, usize)> {
        let run = |fits: &dyn Fn(char) -> bool| rest.find(|c| !fits(c)).unwrap_or(rest.len());
        let of = |from: usize, to: usize| rest.get(from..to).unwrap_or_default().to_owned();
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        Ok(match first {
            '\'' | '"' => self.quoted(first, rest, start)?,
            ':' => {
                let inside = rest.get(1..).unwrap_or_default();
                let length = inside.find(|c| !of_name(c)).unwrap_or(inside.len());
                if length == 0 || inside.starts_with(|c: char| c.is_ascii_digit()) {
                    return Err(self.at(start, "expected a name behind the colon, as in :amount"));
                }
                (TokenKind::Param(of(1, 1 + length)), 1 + length)
            }
            '/' => {
                let length = run(&is_plain_in_pointer);
                (TokenKind::Pointer(of(0, length)), length)
            }
            '0'..='9' | '-' | '+' | '.' => {
                let length = run(&|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
                (TokenKind::Number(of(0, length)), length)
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let length = run(&of_name);
                (TokenKind::Word(of(0, length)), length)
            }
            _ => {
                const SIGNS: [&str; 9] = ["!=", "<=", ">=", "=", "<", ">", "(", ")", ","];
                const WRONG: [(&str, &str); 6] = [
                    ("==", "write `=`"),
                    ("<>", "write `!=`"),
                    ("&&", "write `and`"),
                    ("||", "write `or`"),
                    ("!", "write `not`, or `!=`"),
                    ("$", "a field is written :name or /json/pointer"),
                ];
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let wrong = WRONG.into_iter().find(|(wrong, _)| rest.starts_with(wrong));
                match (sign, wrong) {
                    (sign, Some((wrong, todo))) if sign.is_none_or(|sign| sign.len() < wrong.len()) => {
                        return Err(self.at(start, format!("`{wrong}` is not known here: {todo}")));
                    }
                    (Some(sign), _) => (TokenKind::Sign(sign), sign.len()),
                    _ => return Err(self.at(start, format!("{first:?} is not known here"))),
                }
            }
        })
    }

    /// A text in quotes of either kind; a doubled one stands for itself.
    fn quoted(&self, quote: char, rest: &str, start: usize) -> Parsed<(TokenKind, usize)> {
        let mut text = String::new();
        let mut chars = rest.char_indices().skip(1).peekable();
        while let Some((at, c)) = chars.next() {
            if c != quote {
                text.push(c);
            } else if chars.next_if(|(_, next)| *next == quote).is_some() {
                text.push(quote);
            } else {
                return Ok((TokenKind::Text(text), at + 1));
            }
        }
        Err(self.at(start, "this text does not end: a quote is missing"))
    }
}
