//! One column of a batch as an array parameter (pure).
//!
//! Authoritative: the column's type, as the server gave it. What a value may be is decided where parameters are
//! ([`super::binding`]); this file only writes many of them at once. Common types travel in binary, where nothing is
//! quoted and nothing parsed; all others as an array literal, each element by its type's own text.
//!
//! | type | form |
//! |---|---|
//! | int2 int4 int8 bool float4 float8 uuid bytea text varchar bpchar json jsonb | binary |
//! | a list | the text of each list, in an array of texts |
//! | any other | array literal |

use super::binding::{shown, text_of, whole};
use crate::effect::{BindError, Value};
use bytes::{BufMut, BytesMut};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

/// A column's values, written as they come.
pub(super) struct ArrayColumn {
    type_: Type,
    form: Form,
    out: Vec<u8>,
    count: usize,
    nulls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Elements in binary, each behind its length.
    Binary,
    /// Elements as text in binary: lists.
    Text,
    /// `{"…",NULL}`, with this between elements.
    Literal(u8),
}

impl ArrayColumn {
    pub(super) fn new(type_: &Type, rows: usize) -> Self {
        let binary = [
            Type::INT2,
            Type::INT4,
            Type::INT8,
            Type::BOOL,
            Type::FLOAT4,
            Type::FLOAT8,
            Type::UUID,
            Type::BYTEA,
            Type::TEXT,
            Type::VARCHAR,
            Type::BPCHAR,
            Type::JSON,
            Type::JSONB,
        ];
        let form = match type_.kind() {
            Kind::Array(_) => Form::Text,
            _ if binary.contains(type_) => Form::Binary,
            _ => Form::Literal(if *type_ == Type::BOX { b';' } else { b',' }),
        };
        Self { type_: type_.clone(), form, out: Vec::with_capacity(rows * 12), count: 0, nulls: false }
    }

    /// Adds a message's value.
    pub(super) fn push(&mut self, name: &str, value: &Value<'_>) -> Result<(), BindError> {
        let before = self.out.len();
        let written = match self.form {
            Form::Binary | Form::Text => self.push_binary(value),
            Form::Literal(between) => self.push_literal(between, value),
        };
        match written {
            Ok(()) => {
                self.count += 1;
                Ok(())
            }
            Err(why) => {
                self.out.truncate(before);
                Err(BindError::mismatch(name, &shown(&self.type_), value, &why))
            }
        }
    }

    fn push_binary(&mut self, value: &Value<'_>) -> Result<(), Cow<'static, str>> {
        if matches!(value, Value::Null) {
            self.nulls = true;
            self.out.put_i32(-1);
            return Ok(());
        }
        let out = &mut self.out;
        match self.type_ {
            Type::INT2 => fixed(out, &whole::<i16>(value)?.to_be_bytes()),
            Type::INT4 => fixed(out, &whole::<i32>(value)?.to_be_bytes()),
            Type::INT8 => fixed(out, &whole::<i64>(value)?.to_be_bytes()),
            Type::BYTEA if let Value::Bytes(bytes) = value => return sized(out, &[], bytes),
            Type::BYTEA if let Value::Opaque(bytes) = value => return sized(out, &[], bytes),
            _ => {
                let Some(text) = text_of(&self.type_, value)? else { return Ok(()) };
                return write_text(out, &self.type_, &text);
            }
        }
        Ok(())
    }

    fn push_literal(&mut self, between: u8, value: &Value<'_>) -> Result<(), Cow<'static, str>> {
        let text = text_of(super::binding::base_of(&self.type_), value)?;
        if self.count > 0 {
            self.out.push(between);
        }
        let Some(text) = text else {
            self.out.extend_from_slice(b"NULL");
            return Ok(());
        };
        self.out.push(b'"');
        for byte in text.bytes() {
            if matches!(byte, b'"' | b'\\') {
                self.out.push(b'\\');
            }
            self.out.push(byte);
        }
        self.out.push(b'"');
        Ok(())
    }

    fn element_oid(&self) -> u32 {
        if self.form == Form::Text { Type::TEXT.oid() } else { self.type_.oid() }
    }
}

fn fixed(out: &mut Vec<u8>, bytes: &[u8]) {
    // At most 16 bytes.
    out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    out.put_slice(bytes);
}

fn sized(out: &mut Vec<u8>, head: &[u8], bytes: &[u8]) -> Result<(), Cow<'static, str>> {
    let length = i32::try_from(head.len() + bytes.len()).map_err(|_| "it is longer than a value may be")?;
    out.put_i32(length);
    out.put_slice(head);
    out.put_slice(bytes);
    Ok(())
}

/// The binary form of a text that is known to fit.
fn write_text(out: &mut Vec<u8>, type_: &Type, text: &str) -> Result<(), Cow<'static, str>> {
    match *type_ {
        Type::BOOL => fixed(out, &[u8::from(text == "true")]),
        Type::FLOAT4 => fixed(out, &text.parse::<f32>().map_err(|_| "it is no number")?.to_be_bytes()),
        Type::FLOAT8 => fixed(out, &text.parse::<f64>().map_err(|_| "it is no number")?.to_be_bytes()),
        Type::UUID => fixed(out, &uuid_bytes(text).ok_or("it is no UUID written with hyphens")?),
        Type::JSONB => return sized(out, &[1], text.as_bytes()),
        _ => return sized(out, &[], text.as_bytes()),
    }
    Ok(())
}

fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut digits = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16));
    for byte in &mut bytes {
        let (high, low) = (digits.next()??, digits.next()??);
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}

impl fmt::Debug for ArrayColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver logs parameters at DEBUG; a value may be a credential from a header.
        write!(f, "{} values of {} bytes", self.count, self.out.len())
    }
}

impl ToSql for ArrayColumn {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self.form {
            Form::Literal(_) => {
                out.put_u8(b'{');
                out.put_slice(&self.out);
                out.put_u8(b'}');
            }
            Form::Binary | Form::Text => {
                // One dimension, whether there are NULLs, the elements' type; how many, numbered from 1.
                out.put_i32(1);
                out.put_i32(i32::from(self.nulls));
                out.put_u32(self.element_oid());
                out.put_i32(i32::try_from(self.count)?);
                out.put_i32(1);
                out.put_slice(&self.out);
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self.form {
            Form::Literal(_) => Format::Text,
            Form::Binary | Form::Text => Format::Binary,
        }
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_leaves_no_trace() {
        for type_ in [Type::INT4, Type::UUID, Type::NUMERIC, Type::INT4_ARRAY] {
            let mut column = ArrayColumn::new(&type_, 2);
            let refused = Value::Bool(true);
            assert!(column.push("x", &refused).is_err(), "{type_}");
            assert!(column.out.is_empty() && column.count == 0, "{type_}");
        }
    }

    #[test]
    fn literals_are_quoted_and_nulls_are_not() {
        let mut column = ArrayColumn::new(&Type::XML, 3);
        for value in [Value::Text("a\"b\\c,{}".into()), Value::Null, Value::Text("NULL".into())] {
            column.push("x", &value).unwrap();
        }
        let mut out = BytesMut::new();
        column.to_sql(&Type::XML_ARRAY, &mut out).unwrap();
        assert_eq!(&out[..], br#"{"a\"b\\c,{}",NULL,"NULL"}"#);
    }

    #[test]
    fn a_uuid_is_sixteen_bytes() {
        let bytes = uuid_bytes("01234567-89ab-cdef-0123-456789ABCDEF").unwrap();
        assert_eq!(u128::from_be_bytes(bytes), 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert!(uuid_bytes("0123").is_none());
    }
}
