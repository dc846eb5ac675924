//! One line for each cell of the binding table.

use super::*;
use proptest::prelude::*;

fn text_value(text: &str) -> Value<'_> {
    Value::Text(Cow::Borrowed(text))
}

fn bound(type_: &Type, value: &Value<'_>) -> Result<Option<String>, String> {
    encode("p", type_, value)
        .map(|parameter| parameter.0.map(|bytes| String::from_utf8(bytes).unwrap()))
        .map_err(|e| e.to_string())
}

fn accepts(type_: &Type, value: &Value<'_>, expected: &str) {
    assert_eq!(bound(type_, value), Ok(Some(expected.to_owned())), "{type_} {value:?}");
}

fn refuses(type_: &Type, value: &Value<'_>) {
    let error = bound(type_, value).expect_err(&format!("{type_} {value:?}"));
    assert!(error.contains(":p") && error.contains(&shown(type_)), "{error}");
    assert!(error.contains(&format!("\"{}\"", value.start())), "{error}");
}

#[test]
fn null_is_null_for_every_type() {
    for type_ in [Type::INT4, Type::TEXT, Type::JSONB, Type::BYTEA, Type::TIMESTAMPTZ, Type::INT8_ARRAY] {
        assert_eq!(bound(&type_, &Value::Null), Ok(None));
    }
}

#[test]
fn numbers_keep_their_digits() {
    for (type_, low, high) in [
        (Type::INT2, "-32768", "32767"),
        (Type::INT4, "-2147483648", "2147483647"),
        (Type::INT8, "-9223372036854775808", "9223372036854775807"),
    ] {
        for token in [low, high, "0"] {
            accepts(&type_, &Value::Number(token), token);
            refuses(&type_, &text_value(token));
        }
        for token in ["1e3", "1.0", "9223372036854775808", "-9223372036854775809"] {
            refuses(&type_, &Value::Number(token));
        }
        accepts(&type_, &Value::Int(7), "7");
        refuses(&type_, &Value::Bool(true));
    }
    refuses(&Type::INT2, &Value::Number("32768"));
    refuses(&Type::INT4, &Value::Int(1 << 40));
    for token in ["1e3", "9007199254740993", "0.10", "12345678901234567890123456789012345678.5"] {
        accepts(&Type::NUMERIC, &Value::Number(token), token);
        accepts(&Type::TEXT, &Value::Number(token), token);
        accepts(&Type::JSON, &Value::Number(token), token);
    }
    for text in ["1", "-1.50", "007"] {
        accepts(&Type::NUMERIC, &text_value(text), text);
    }
    for text in ["", " 1", "1e3", "NaN", "Infinity", "1.", ".5", "0x1", "1_000", "+1"] {
        refuses(&Type::NUMERIC, &text_value(text));
    }
}

#[test]
fn floats_only_when_they_come_back() {
    for token in ["1.5", "1.50", "1e3", "-0.1", "0", "1E-7", "123456789", "9007199254740992"] {
        accepts(&Type::FLOAT8, &Value::Number(token), token);
    }
    // In the middle between two texts: each writer takes one of them.
    for token in ["1700000000123456.2", "1700000000123456.3", "-876165228768830.2"] {
        accepts(&Type::FLOAT8, &Value::Number(token), token);
    }
    for token in [
        "9007199254740993",
        "0.1000000000000000055",
        "1e400",
        "1e-400",
        "1700000000123456.1",
        "0.30000000000000003",
    ] {
        refuses(&Type::FLOAT8, &Value::Number(token));
    }
    accepts(&Type::FLOAT4, &Value::Number("0.1"), "0.1");
    refuses(&Type::FLOAT4, &Value::Number("16777217"));
    refuses(&Type::FLOAT8, &text_value("1.5"));
}

#[test]
fn text_has_no_nul_and_is_utf8() {
    for type_ in [Type::TEXT, Type::VARCHAR, Type::BPCHAR, Type::INET] {
        accepts(&type_, &text_value(" a\u{e9}\n"), " a\u{e9}\n");
        accepts(&type_, &Value::Opaque(b"id"), "id");
        refuses(&type_, &text_value("a\0b"));
        refuses(&type_, &Value::Opaque(b"\xff"));
        refuses(&type_, &Value::Bool(true));
        refuses(&type_, &Value::Json("{}"));
    }
    refuses(&Type::NAME, &text_value(&"x".repeat(64)));
    refuses(&Type::INET, &Value::Number("1"));
}

#[test]
fn one_spelling_for_uuids_dates_and_times() {
    let uuid = "0193f5a0-7c3e-7b1a-8000-0123456789ab";
    accepts(&Type::UUID, &text_value(uuid), uuid);
    accepts(&Type::UUID, &text_value(&uuid.to_uppercase()), &uuid.to_uppercase());
    for bad in ["", &uuid.replace('-', ""), &format!("{{{uuid}}}"), &uuid[1..]] {
        refuses(&Type::UUID, &text_value(bad));
    }
    accepts(&Type::DATE, &text_value("2024-02-29"), "2024-02-29");
    for bad in ["now", "today", "infinity", "2024-2-9", "20240229", "0000-01-01", "2024-02-29 BC", "epoch"] {
        refuses(&Type::DATE, &text_value(bad));
    }
    for good in [
        "2024-02-29T12:00:00Z",
        "2024-02-29t12:00:00.123456z",
        "2024-02-29 23:59:60+05:30",
        "2024-01-01T00:00:00.1234560000-08:00",
    ] {
        accepts(&Type::TIMESTAMPTZ, &text_value(good), good);
    }
    for bad in [
        "now",
        "infinity",
        "-infinity",
        "2024-02-29",
        "2024-02-29T12:00:00",
        "2024-02-29T12:00Z",
        "2024-02-29T24:00:00Z",
        "2024-02-29T12:00:00+0530",
        "2024-02-29T12:00:00 Europe/Paris",
        "2024-02-29T12:00:00.1234567Z",
        "2024-02-29T12:00:00.Z",
        "1709208000",
        "é024-02-29T12:00:00Z",
    ] {
        refuses(&Type::TIMESTAMPTZ, &text_value(bad));
    }
    refuses(&Type::TIMESTAMPTZ, &Value::Number("1709208000"));
    accepts(&Type::TIMESTAMPTZ, &Value::Timestamp(0), "1970-01-01T00:00:00.000Z");
    refuses(&Type::TIMESTAMPTZ, &Value::Timestamp(i64::MAX));
    accepts(&Type::INT8, &Value::Timestamp(1), "1");
    accepts(&Type::TIMESTAMP, &text_value("2024-02-29T12:00:00"), "2024-02-29T12:00:00");
    refuses(&Type::TIMESTAMP, &text_value("2024-02-29T12:00:00Z"));
    accepts(&Type::TIME, &text_value("12:00:00.5"), "12:00:00.5");
    refuses(&Type::TIME, &text_value("now"));
    refuses(&Type::TIMETZ, &text_value("12:00:00Z"));
}

#[test]
fn json_bool_and_bytes() {
    for type_ in [Type::JSON, Type::JSONB] {
        accepts(&type_, &Value::Bool(true), "true");
        accepts(&type_, &Value::Json("[1, {\"a\":null}]"), "[1, {\"a\":null}]");
        accepts(&type_, &text_value("a\"b"), "\"a\\\"b\"");
        refuses(&type_, &text_value("\0"));
        refuses(&type_, &Value::Bytes(Cow::Borrowed(b"x")));
    }
    accepts(&Type::BOOL, &Value::Bool(false), "false");
    refuses(&Type::BOOL, &text_value("true"));
    refuses(&Type::BOOL, &Value::Number("1"));
    accepts(&Type::BYTEA, &Value::Bytes(Cow::Borrowed(b"\0\xff")), "\\x00ff");
    accepts(&Type::BYTEA, &Value::Opaque(b"\xfe"), "\\xfe");
    refuses(&Type::BYTEA, &text_value("AAA="));
}

#[test]
fn arrays_of_scalars() {
    accepts(&Type::INT8_ARRAY, &Value::Json("[1, null, -2]"), "{\"1\",NULL,\"-2\"}");
    accepts(&Type::TEXT_ARRAY, &Value::Json(r#"["a\"\\,{}", "NULL", ""]"#), r#"{"a\"\\,{}","NULL",""}"#);
    accepts(&Type::JSONB_ARRAY, &Value::Json("[{\"a\":1}]"), "{\"{\\\"a\\\":1}\"}");
    accepts(&Type::BOOL_ARRAY, &Value::Json("[]"), "{}");
    refuses(&Type::INT8_ARRAY, &Value::Json("[[1]]"));
    refuses(&Type::INT8_ARRAY, &Value::Json("{\"a\":1}"));
    refuses(&Type::INT8_ARRAY, &Value::Number("1"));
    refuses(&Type::TEXT_ARRAY, &Value::Json("[\"\\u0000\"]"));
    refuses(&Type::BYTEA_ARRAY, &Value::Json("[\"AA==\"]"));
}

#[test]
fn debug_shows_no_value() {
    assert_eq!(format!("{:?}", TextParameter(Some(b"canary".to_vec()))), "6 bytes");
}

proptest! {
    #[test]
    fn any_text_is_bound_whole_or_refused(text in any::<String>()) {
        let value = text_value(&text);
        for type_ in [Type::TEXT, Type::UUID, Type::DATE, Type::TIMESTAMPTZ, Type::TIMESTAMP, Type::TIME, Type::NUMERIC] {
            if let Ok(bound) = bound(&type_, &value) {
                prop_assert_eq!(bound.as_deref(), Some(text.as_str()));
            }
        }
    }

    #[test]
    fn every_finite_float_comes_back(number in any::<f64>()) {
        prop_assume!(number.is_finite());
        for token in [format!("{number}"), format!("{number:e}")] {
            prop_assert!(bound(&Type::FLOAT8, &Value::Number(&token)).is_ok(), "{}", token);
        }
    }
}
