//! A parameter's value in the text format of its Postgres type (pure).
//!
//! Authoritative: the type that the server gave the parameter when the statement was prepared. A value
//! is bound exactly or refused; nothing is rounded, trimmed, or read as a special word (`now`,
//! `infinity`, `NaN`).
//!
//! | type | from |
//! |---|---|
//! | int2 int4 int8 | a number written as an integer; partition, offset, timestamp (ms) |
//! | numeric | any number; text of digits |
//! | float4 float8 | a number that comes back the same |
//! | bool | true, false |
//! | text varchar bpchar name | text without NUL; a number's token |
//! | uuid, date, time, timestamp, timestamptz | text in one spelling each; timestamptz also the timestamp |
//! | json jsonb | everything but bytes |
//! | bytea | base64 that was asked for; id, key, header |
//! | an array of these | a JSON array of scalars and nulls |
//! | an enum or another simple type | text without NUL |

use crate::effect::shortest;
use crate::effect::{BindError, Value, format_timestamp};
use bytes::BytesMut;
use handstamp_core::json::{Document, Kind as JsonKind};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

/// A value in text format; `None` is NULL.
pub(crate) struct TextParameter(pub(crate) Option<Vec<u8>>);

impl TextParameter {
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }
}

impl fmt::Debug for TextParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver logs parameters at DEBUG; a value may be a credential from a header.
        match &self.0 {
            Some(bytes) => write!(f, "{} bytes", bytes.len()),
            None => f.write_str("NULL"),
        }
    }
}

impl ToSql for TextParameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Ok(match &self.0 {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Why a type cannot be a parameter's; `None`: it can.
pub(crate) fn unsupported(type_: &Type) -> Option<&'static str> {
    match type_.kind() {
        Kind::Simple | Kind::Enum(_) => None,
        Kind::Domain(base) => unsupported(base),
        Kind::Array(element) => match element.kind() {
            Kind::Array(_) => Some("arrays of arrays are not bound"),
            _ => unsupported(element),
        },
        Kind::Range(_) | Kind::Multirange(_) => Some("ranges are not bound"),
        Kind::Composite(_) => Some("rows are not bound"),
        _ => Some("this kind of type is not bound"),
    }
}

/// The value in the type's text format.
///
/// # Errors
/// [`BindError`] names the parameter, the type, the value's start and why it does not fit.
pub(crate) fn encode(name: &str, type_: &Type, value: &Value<'_>) -> Result<TextParameter, BindError> {
    match text_of(base_of(type_), value) {
        Ok(text) => Ok(TextParameter(text.map(|text| text.into_owned().into_bytes()))),
        Err(why) => Err(BindError::mismatch(name, &shown(type_), value, &why)),
    }
}

/// The type's name as people write it.
pub(crate) fn shown(type_: &Type) -> String {
    match type_.kind() {
        Kind::Array(element) => format!("{}[]", element.name()),
        _ => type_.name().to_owned(),
    }
}

pub(super) fn base_of(type_: &Type) -> &Type {
    match type_.kind() {
        Kind::Domain(base) => base_of(base),
        _ => type_,
    }
}

/// A value as text; `None` is NULL.
pub(super) type Encoded<'a> = Result<Option<Cow<'a, str>>, Cow<'static, str>>;

fn fits<'a>(text: impl Into<Cow<'a, str>>) -> Encoded<'a> {
    Ok(Some(text.into()))
}

fn refused<'a>(why: &'static str) -> Encoded<'a> {
    Err(Cow::Borrowed(why))
}

pub(super) fn text_of<'a>(type_: &Type, value: &'a Value<'_>) -> Encoded<'a> {
    if matches!(value, Value::Null) {
        return Ok(None);
    }
    if let Kind::Array(element) = type_.kind() {
        return array(base_of(element), value);
    }
    match *type_ {
        Type::INT2 => integer::<i16>(value),
        Type::INT4 => integer::<i32>(value),
        Type::INT8 => integer::<i64>(value),
        Type::NUMERIC => numeric(value),
        Type::FLOAT4 | Type::FLOAT8 => float(value, *type_ == Type::FLOAT4),
        Type::BOOL => match value {
            Value::Bool(true) => fits("true"),
            Value::Bool(false) => fits("false"),
            _ => refused("it is neither true nor false"),
        },
        Type::TEXT | Type::VARCHAR | Type::BPCHAR => text(value),
        Type::NAME => match text(value)? {
            Some(text) if text.len() > 63 => refused("it has more than 63 bytes"),
            fit => Ok(fit),
        },
        Type::CHAR => match text(value)? {
            Some(text) if text.len() > 1 => refused("it has more than one byte"),
            fit => Ok(fit),
        },
        Type::UUID => checked(value, is_uuid, "it is no UUID written with hyphens"),
        Type::DATE => checked(value, is_date, "it is no date written YYYY-MM-DD"),
        Type::TIME => checked(value, is_time, "it is no time written HH:MM:SS"),
        Type::TIMESTAMP => {
            checked(value, is_timestamp, "it is no time without zone written YYYY-MM-DDTHH:MM:SS")
        }
        Type::TIMESTAMPTZ => timestamptz(value),
        Type::JSON | Type::JSONB => json(value),
        Type::BYTEA => bytea(value),
        Type::TIMETZ => refused("times with a zone but without a date are not bound"),
        _ => match value {
            Value::Text(_) | Value::Opaque(_) => text(value),
            _ => refused("only text is bound to this type"),
        },
    }
}

fn integer<'a, N: TryFrom<i64> + ToString>(value: &'a Value<'_>) -> Encoded<'a> {
    fits(whole::<N>(value)?.to_string())
}

/// A number that was written as an integer and is in the type's range.
pub(super) fn whole<N: TryFrom<i64>>(value: &Value<'_>) -> Result<N, Cow<'static, str>> {
    let number = match value {
        Value::Int(number) | Value::Timestamp(number) => Some(*number),
        Value::Number(token) => {
            let digits = token.strip_prefix('-').unwrap_or(token);
            if !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(Cow::Borrowed("it is not written as an integer"));
            }
            token.parse().ok()
        }
        _ => return Err(Cow::Borrowed("it is no number")),
    };
    number.and_then(|number| N::try_from(number).ok()).ok_or(Cow::Borrowed("it is out of range"))
}

fn numeric<'a>(value: &'a Value<'_>) -> Encoded<'a> {
    match value {
        Value::Number(token) => fits(*token),
        Value::Int(number) | Value::Timestamp(number) => fits(number.to_string()),
        Value::Text(_) | Value::Opaque(_) => checked(value, is_decimal, "it is no number of digits"),
        _ => refused("it is no number"),
    }
}

fn float<'a>(value: &'a Value<'_>, single: bool) -> Encoded<'a> {
    let token: Cow<'_, str> = match value {
        Value::Number(token) => Cow::Borrowed(token),
        Value::Int(number) | Value::Timestamp(number) => Cow::Owned(number.to_string()),
        _ => return refused("it is no number"),
    };
    let shortest = if single {
        token.parse::<f32>().ok().filter(|n| n.is_finite()).map(|n| shortest(&n))
    } else {
        token.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| shortest(&n))
    };
    let sent = Decimal::of(&token);
    if shortest.is_some_and(|forms| forms.iter().any(|form| Decimal::of(form) == sent)) {
        fits(token.into_owned())
    } else {
        refused("it does not come back the same")
    }
}

/// A number as digits without zeros at either end and a power of ten.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// `None` when the exponent is beyond all use.
    fn of(token: &str) -> Option<Self> {
        let (negative, token) = match token.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, token),
        };
        let (mantissa, exponent) = token.split_once(['e', 'E']).unwrap_or((token, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut exponent: i64 = exponent.parse().ok()?;
        exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let all = format!("{whole}{fraction}");
        let leading = all.trim_start_matches('0');
        let digits = leading.trim_end_matches('0');
        exponent = exponent.checked_add(i64::try_from(leading.len() - digits.len()).ok()?)?;
        let zero = digits.is_empty();
        Some(Self {
            negative: negative && !zero,
            digits: digits.to_owned(),
            exponent: if zero { 0 } else { exponent },
        })
    }
}

/// Text, UTF-8 and without NUL.
fn plain<'a>(value: &'a Value<'_>) -> Result<&'a str, Cow<'static, str>> {
    let text = match value {
        Value::Text(text) => text.as_ref(),
        Value::Opaque(bytes) => std::str::from_utf8(bytes).map_err(|_| Cow::Borrowed("it is not UTF-8"))?,
        _ => return Err(Cow::Borrowed("it is no text")),
    };
    if text.contains('\0') { Err(Cow::Borrowed("it contains a NUL character")) } else { Ok(text) }
}

fn text<'a>(value: &'a Value<'_>) -> Encoded<'a> {
    match value {
        Value::Number(token) => fits(*token),
        Value::Int(number) | Value::Timestamp(number) => fits(number.to_string()),
        Value::Text(_) | Value::Opaque(_) => fits(plain(value)?),
        _ => refused("it is no text; as = \"text\" binds its token"),
    }
}

fn checked<'a>(value: &'a Value<'_>, check: fn(&str) -> bool, why: &'static str) -> Encoded<'a> {
    let text = plain(value)?;
    if check(text) { fits(text) } else { refused(why) }
}

fn timestamptz<'a>(value: &'a Value<'_>) -> Encoded<'a> {
    match value {
        // The years 1 to 9999, which both spellings share.
        Value::Timestamp(ms) if (-62_135_596_800_000..253_402_300_800_000).contains(ms) => {
            fits(format_timestamp(*ms))
        }
        Value::Timestamp(_) => refused("it is outside of the years 1 to 9999"),
        _ => checked(
            value,
            is_timestamptz,
            "it is no RFC 3339 time with a zone and at most 6 digits of a second",
        ),
    }
}

fn json<'a>(value: &'a Value<'_>) -> Encoded<'a> {
    match value {
        Value::Bool(true) => fits("true"),
        Value::Bool(false) => fits("false"),
        Value::Number(raw) | Value::Json(raw) => fits(*raw),
        Value::Int(number) | Value::Timestamp(number) => fits(number.to_string()),
        Value::Text(_) | Value::Opaque(_) => match serde_json::to_string(plain(value)?) {
            Ok(quoted) => fits(quoted),
            Err(_) => refused("it cannot be written as JSON"),
        },
        _ => refused("bytes are no JSON"),
    }
}

fn bytea<'a>(value: &'a Value<'_>) -> Encoded<'a> {
    let bytes: &[u8] = match value {
        Value::Bytes(bytes) => bytes,
        Value::Opaque(bytes) => bytes,
        Value::Text(_) => return refused("say how it encodes bytes: encoding = \"base64\""),
        _ => return refused("it is no bytes"),
    };
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(2 + 2 * bytes.len());
    out.push_str("\\x");
    for byte in bytes {
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
    }
    fits(out)
}

/// An array literal: every element quoted, null not.
fn array<'a>(element: &Type, value: &'a Value<'_>) -> Encoded<'a> {
    let Value::Json(raw) = value else { return refused("it is no JSON array") };
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw) else {
        return refused("it is no JSON array");
    };
    let mut out = String::with_capacity(raw.len() + 2);
    out.push('{');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(if *element == Type::BOX { ';' } else { ',' });
        }
        let wrong = |why: &str| Cow::Owned(format!("element {at}: {why}"));
        let document = Document::parse(item.get().as_bytes()).map_err(|e| wrong(&e.to_string()))?;
        let node = document.root();
        let item = match node.kind() {
            JsonKind::Null => Value::Null,
            JsonKind::Bool => Value::Bool(node.raw() == "true"),
            JsonKind::Number => Value::Number(node.raw()),
            JsonKind::String => Value::Text(node.text().map_err(|e| wrong(&e.to_string()))?),
            JsonKind::Array | JsonKind::Object => Value::Json(node.raw()),
        };
        match text_of(element, &item).map_err(|why| wrong(&why))? {
            None => out.push_str("NULL"),
            Some(text) => {
                out.push('"');
                for c in text.chars() {
                    if matches!(c, '"' | '\\') {
                        out.push('\\');
                    }
                    out.push(c);
                }
                out.push('"');
            }
        }
    }
    out.push('}');
    fits(out)
}

/// True when `text` is written as `pattern` says: `9` is a digit, `x` a hex digit, the rest itself.
fn written(text: &str, pattern: &str) -> bool {
    text.len() == pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
            b'9' => byte.is_ascii_digit(),
            b'x' => byte.is_ascii_hexdigit(),
            _ => byte == wanted,
        })
}

fn is_uuid(text: &str) -> bool {
    written(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
}

fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let some_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    some_digits(whole) && some_digits(fraction)
}

fn is_date(text: &str) -> bool {
    // Which days a month has is the server's part.
    written(text, "9999-99-99") && &text[..4] != "0000"
}

fn is_time(text: &str) -> bool {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, "0"));
    written(clock, "99:99:99")
        && &clock[..2] < "24"
        && &clock[3..5] < "60"
        && &clock[6..] <= "60"
        && !fraction.is_empty()
        && fraction.bytes().all(|b| b.is_ascii_digit())
        && fraction.trim_end_matches('0').len() <= 6
}

fn is_timestamp(text: &str) -> bool {
    text.is_ascii()
        && text.len() > 11
        && is_date(&text[..10])
        && matches!(text.as_bytes()[10], b'T' | b't' | b' ')
        && is_time(&text[11..])
}

fn is_timestamptz(text: &str) -> bool {
    if !text.is_ascii() {
        return false;
    }
    if let Some(local) = text.strip_suffix(['Z', 'z']) {
        return is_timestamp(local);
    }
    let Some(sign) = text.len().checked_sub(6) else { return false };
    let (local, zone) = text.split_at(sign);
    (written(zone, "+99:99") || written(zone, "-99:99"))
        && &zone[1..3] < "16"
        && &zone[4..] < "60"
        && is_timestamp(local)
}

#[cfg(test)]
#[path = "binding_tests.rs"]
mod tests;
