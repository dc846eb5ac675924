//! `when` of an effect: a condition on a message, read once when the pipeline is loaded (pure).
//!
//! Authoritative: the bytes of the message, by the same rules as parameters. Numbers are compared as exact
//! decimals, never as floats, texts by their code points. **Nothing is silently false**: a value that is missing,
//! null or of another type than what it is compared with is the message's own failure, with the place it was met
//! at. `exists`, `is null` and their negations are how a condition says that a value may be missing.
//!
//! ```text
//!  condition ─ and ─ not, highest first, then and, then or; parentheses as usual
//!    VALUE = != < <= > >= VALUE · VALUE [not] in (LITERAL, …) · VALUE is [not] null · [not] exists VALUE
//!  value ─ :name · /json/pointer · body("/json pointer") · header("x") · topic · 'text' · 12.5 · true · false
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `parse` | text → condition, and what is wrong with a text |
//! | `judge` | condition × message → true, false or a fault |

mod judge;
mod parse;

use super::binding::{Param, ParamSource, ParamSpec};
use handstamp_core::json::Pointer;
use std::collections::BTreeMap;
use std::fmt;

pub use judge::ConditionFault;
pub use parse::ConditionError;

/// A condition on a message, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    root: Expr,
}

impl Condition {
    /// Longest text of a condition.
    pub const TEXT_BYTES_MAX: usize = 4096;
    /// Most parentheses and `not` inside one another.
    pub const DEPTH_MAX: usize = 32;

    /// Reads a condition. A `:name` is what it is in the statement beside it, `params` included.
    ///
    /// # Errors
    /// [`ConditionError`], which points into the text.
    pub fn parse(text: &str, params: &BTreeMap<String, ParamSpec>) -> Result<Self, ConditionError> {
        parse::condition(text, params).map(|root| Self { root })
    }

    /// The values of the body that a message must have for the condition to be answered: those that are compared,
    /// but for those that it asks about with `exists` or `is null`.
    #[must_use]
    pub fn needed(&self) -> Vec<&Pointer> {
        let (mut compared, mut asked) = (vec![], vec![]);
        self.root.visit(&mut |field, is_asked| {
            if let ParamSource::Body(pointer) = &field.param.source {
                let pointers = if is_asked { &mut asked } else { &mut compared };
                if !pointers.contains(&pointer) {
                    pointers.push(pointer);
                }
            }
        });
        compared.retain(|pointer| !asked.contains(pointer));
        compared
    }
}

/// The condition as it would be written: read again, it is the same.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.root, f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expr {
    /// Two or more.
    Or(Vec<Expr>),
    /// Two or more, none of them an `And`.
    And(Vec<Expr>),
    Not(Box<Expr>),
    Compare {
        left: Operand,
        op: Op,
        right: Operand,
    },
    In {
        field: Field,
        negated: bool,
        list: Vec<Literal>,
    },
    IsNull {
        field: Field,
        negated: bool,
    },
    Exists(Field),
}

impl Expr {
    /// Calls for each field; true: it is asked whether the value is there.
    fn visit<'e>(&'e self, each: &mut impl FnMut(&'e Field, bool)) {
        match self {
            Self::Or(parts) | Self::And(parts) => parts.iter().for_each(|part| part.visit(each)),
            Self::Not(inner) => inner.visit(each),
            Self::Compare { left, right, .. } => {
                for operand in [left, right] {
                    if let Operand::Field(field) = operand {
                        each(field, false);
                    }
                }
            }
            Self::In { field, .. } => each(field, false),
            Self::IsNull { field, .. } | Self::Exists(field) => each(field, true),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Op {
    const ALL: [Self; 6] = [Self::Eq, Self::Ne, Self::Lt, Self::Le, Self::Gt, Self::Ge];

    fn as_str(self) -> &'static str {
        match self {
            Self::Eq => "=",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operand {
    Field(Field),
    Literal(Literal),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Literal {
    Text(String),
    /// A token of JSON's grammar.
    Number(String),
    Bool(bool),
}

impl Literal {
    fn type_(&self) -> Type {
        match self {
            Self::Text(_) => Type::Text,
            Self::Number(_) => Type::Number,
            Self::Bool(_) => Type::Bool,
        }
    }
}

/// What can be compared with its own kind only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    Number,
    Bool,
}

impl Type {
    /// The word for people, with its article.
    fn as_str(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a number",
            Self::Bool => "a boolean",
        }
    }
}

/// A value of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    written: Written,
    param: Param,
}

impl Field {
    fn new(written: Written, source: ParamSource, as_text: bool) -> Self {
        let name = written.to_string();
        // What is missing is told apart from what is null.
        Self { written, param: Param { name, source, encoding: None, as_text, optional: true } }
    }

    /// Its type, where every message has the same.
    fn type_(&self) -> Option<Type> {
        match &self.param.source {
            _ if self.param.as_text => Some(Type::Text),
            ParamSource::Topic
            | ParamSource::Header(_)
            | ParamSource::MessageId
            | ParamSource::MessageKey
            | ParamSource::BodyText => Some(Type::Text),
            ParamSource::Partition | ParamSource::Offset | ParamSource::Timestamp => Some(Type::Number),
            _ => None,
        }
    }
}

/// How a field was written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Written {
    Name(String),
    Pointer(Pointer),
    Header(String),
    Topic,
}

/// What may stand in a pointer without quotes.
fn is_plain_in_pointer(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"()=!<>,\"'".contains(c)
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, parts: &[T], between: &str) -> fmt::Result {
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            f.write_str(between)?;
        }
        write!(f, "{part}")?;
    }
    Ok(())
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Or(parts) => write_list(f, parts, " or "),
            Self::And(parts) => {
                for (at, part) in parts.iter().enumerate() {
                    f.write_str(if at > 0 { " and " } else { "" })?;
                    match part {
                        Self::Or(_) => write!(f, "({part})")?,
                        _ => write!(f, "{part}")?,
                    }
                }
                Ok(())
            }
            Self::Not(inner) => match **inner {
                Self::Or(_) | Self::And(_) => write!(f, "not ({inner})"),
                _ => write!(f, "not {inner}"),
            },
            Self::Compare { left, op, right } => write!(f, "{left} {} {right}", op.as_str()),
            Self::In { field, negated, list } => {
                write!(f, "{field} {}in (", if *negated { "not " } else { "" })?;
                write_list(f, list, ", ")?;
                f.write_str(")")
            }
            Self::IsNull { field, negated } => {
                write!(f, "{field} is {}null", if *negated { "not " } else { "" })
            }
            Self::Exists(field) => write!(f, "exists {field}"),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => fmt::Display::fmt(field, f),
            Self::Literal(literal) => fmt::Display::fmt(literal, f),
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write_quoted(f, text),
            Self::Number(token) => f.write_str(token),
            Self::Bool(truth) => write!(f, "{truth}"),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.written, f)
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, ":{name}"),
            Self::Pointer(pointer) => {
                let text = pointer.as_str();
                if !text.is_empty() && text.chars().all(is_plain_in_pointer) {
                    return f.write_str(text);
                }
                f.write_str("body(")?;
                write_quoted(f, text)?;
                f.write_str(")")
            }
            Self::Header(name) => {
                f.write_str("header(")?;
                write_quoted(f, name)?;
                f.write_str(")")
            }
            Self::Topic => f.write_str("topic"),
        }
    }
}

fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(f, "'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests;
