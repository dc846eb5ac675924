//! Condition × message → true, false or a fault. `and` and `or` stop where the answer is known, from left to right.

use super::super::binding::{MessageView, Value, found, into_text};
use super::{Condition, Expr, Field, Literal, Op, Operand, Type};
use handstamp_core::json::{Exact, Kind, Number};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// A condition that a message gives no answer to; one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ConditionFault {
    /// The comparison, and what is wrong with a value of it.
    pub reason: String,
}

impl Condition {
    /// Whether a message fulfils it.
    ///
    /// # Errors
    /// [`ConditionFault`]: a value that is compared is missing, null, an array, an object or of another type than what
    /// it is compared with; a header twice with different values, a key that stands twice, or a body that is not JSON.
    pub fn holds(&self, view: &MessageView<'_>) -> Result<bool, ConditionFault> {
        holds(&self.root, view)
    }
}

/// Not deeper than a condition may be.
fn holds(expr: &Expr, view: &MessageView<'_>) -> Result<bool, ConditionFault> {
    match expr {
        Expr::Or(parts) => {
            for part in parts {
                if holds(part, view)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Expr::And(parts) => {
            for part in parts {
                if !holds(part, view)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Expr::Not(inner) => holds(inner, view).map(|truth| !truth),
        Expr::Exists(field) => Ok(value(field, view).map_err(|why| fault(expr, why))?.is_some()),
        Expr::IsNull { field, negated } => {
            let value = value(field, view).map_err(|why| fault(expr, why))?;
            Ok(matches!(value, None | Some(Value::Null)) != *negated)
        }
        Expr::Compare { left, op, right } => {
            let order = typed(left, view).and_then(|left| order(&left, &typed(right, view)?));
            Ok(op.allows(order.map_err(|why| fault(expr, why))?))
        }
        Expr::In { field, negated, list } => {
            let contains = of_field(field, view).and_then(|value| {
                list.iter().try_fold(false, |found, literal| {
                    Ok(found || order(&value, &of_literal(literal))? == Ordering::Equal)
                })
            });
            Ok(contains.map_err(|why| fault(expr, why))? != *negated)
        }
    }
}

impl Op {
    fn allows(self, order: Ordering) -> bool {
        match self {
            Self::Eq => order.is_eq(),
            Self::Ne => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::Le => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::Ge => order.is_ge(),
        }
    }
}

/// Names the comparison by its beginning.
fn fault(expr: &Expr, why: impl fmt::Display) -> ConditionFault {
    const SHOWN: usize = 80;
    let whole = expr.to_string();
    let mut shown: String = whole.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.len() < whole.len() {
        shown.push('…');
    }
    ConditionFault { reason: format!("`{shown}` has no answer: {why}") }
}

/// A value with its type.
enum Typed<'v> {
    Text(Cow<'v, str>),
    Number(Cow<'v, str>),
    Bool(bool),
}

impl Typed<'_> {
    fn type_(&self) -> Type {
        match self {
            Self::Text(_) => Type::Text,
            Self::Number(_) => Type::Number,
            Self::Bool(_) => Type::Bool,
        }
    }

    /// Its beginning, for a fault.
    fn start(&self) -> String {
        match self {
            Self::Text(text) => format!("\"{}\"", Value::Text(Cow::Borrowed(text)).start()),
            Self::Number(token) => Value::Number(token).start(),
            Self::Bool(truth) => truth.to_string(),
        }
    }
}

fn typed<'t, 'm: 't>(operand: &'t Operand, view: &MessageView<'m>) -> Result<Typed<'t>, String> {
    match operand {
        Operand::Field(field) => of_field(field, view),
        Operand::Literal(literal) => Ok(of_literal(literal)),
    }
}

fn of_literal(literal: &Literal) -> Typed<'_> {
    match literal {
        Literal::Text(text) => Typed::Text(Cow::Borrowed(text)),
        Literal::Number(token) => Typed::Number(Cow::Borrowed(token)),
        Literal::Bool(truth) => Typed::Bool(*truth),
    }
}

/// A field's value as the message has it; `None` is missing.
fn value<'m>(field: &Field, view: &MessageView<'m>) -> Result<Option<Value<'m>>, String> {
    found(&field.param, view).map_err(|error| error.reason)
}

fn of_field<'m>(field: &Field, view: &MessageView<'m>) -> Result<Typed<'m>, String> {
    let what = &field.param.source;
    let value = match value(field, view)? {
        None => {
            return Err(format!(
                "{what} is missing; `exists {field} and` in front of it says that it may be"
            ));
        }
        Some(Value::Null) => {
            return Err(format!(
                "{what} is null; `{field} is not null and` in front of it says that it may be"
            ));
        }
        Some(value) if field.param.as_text => into_text(&field.param, value).map_err(|error| error.reason)?,
        Some(value) => value,
    };
    Ok(match value {
        Value::Bool(truth) => Typed::Bool(truth),
        Value::Number(token) => Typed::Number(Cow::Borrowed(token)),
        Value::Text(text) => Typed::Text(text),
        Value::Opaque(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Typed::Text(Cow::Borrowed(text)),
            Err(_) => return Err(format!("{what} is not UTF-8")),
        },
        Value::Int(number) | Value::Timestamp(number) => Typed::Number(Cow::Owned(number.to_string())),
        Value::Json(raw) => {
            let kind = if raw.starts_with('[') { Kind::Array } else { Kind::Object };
            return Err(format!("{what} is {}", kind.as_str()));
        }
        Value::Null | Value::Bytes(_) => return Err(format!("{what} cannot be compared")),
    })
}

fn order(one: &Typed<'_>, two: &Typed<'_>) -> Result<Ordering, String> {
    match (one, two) {
        (Typed::Text(one), Typed::Text(two)) => Ok(one.cmp(two)),
        (Typed::Bool(one), Typed::Bool(two)) => Ok(one.cmp(two)),
        (Typed::Number(one), Typed::Number(two)) => Ok(exact(one)?.cmp(&exact(two)?)),
        _ => Err(format!(
            "{} is {}, and {} is {}",
            one.start(),
            one.type_().as_str(),
            two.start(),
            two.type_().as_str()
        )),
    }
}

fn exact(token: &str) -> Result<Exact<'_>, String> {
    let far = || format!("the exponent of {} is beyond a thousand million", Value::Number(token).start());
    Number::parse(token).and_then(|number| number.exact()).ok_or_else(far)
}
