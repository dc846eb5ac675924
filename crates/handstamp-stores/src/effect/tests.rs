//! The rules of compiling an effect and of resolving its parameters in a message.

use crate::effect::{
    BindError, CompiledEffect, EffectError, EffectSpec, Encoding, ExpectRows, MessageView, ParamSource,
    ParamSpec, Value, format_timestamp,
};
use bytes::Bytes;
use handstamp_core::json::Pointer;
use handstamp_core::{Header, Headers, Message, MessageId, Origin, Record, Timestamp};
use proptest::prelude::*;
use std::borrow::Cow;

fn message(value: Option<&[u8]>) -> Message {
    let record = Record {
        key: Some(Bytes::from_static(b"k\xff")),
        value: value.map(Bytes::copy_from_slice),
        headers: Headers::new(vec![
            Header::new("source", Some(Bytes::from_static(b"web"))),
            Header::new("nothing", None),
            Header::new("twice", Some(Bytes::from_static(b"a"))),
            Header::new("twice", Some(Bytes::from_static(b"a"))),
            Header::new("differ", Some(Bytes::from_static(b"a"))),
            Header::new("differ", None),
            Header::new("b64", Some(Bytes::from_static(b"AAH/"))),
        ]),
        origin: Origin { topic: "credits".into(), partition: 3, offset: 7_000_000_000, line: None },
        timestamp: Some(Timestamp(1_700_000_000_123)),
    };
    Message::new(MessageId::new(&b"id-1"[..]).unwrap(), record)
}

fn resolve<'m>(spec: &EffectSpec, view: &MessageView<'m>) -> Result<Vec<Value<'m>>, BindError> {
    CompiledEffect::compile(spec).unwrap().bindings.resolve(view)
}

fn one(spec: &EffectSpec, body: &str) -> Result<Value<'static>, BindError> {
    let message: &'static Message = Box::leak(Box::new(message(Some(body.as_bytes()))));
    resolve(spec, &MessageView::new(message)).map(|mut values| values.remove(0))
}

fn plain(body: &str) -> Result<Value<'static>, BindError> {
    one(&EffectSpec::new("SELECT :x"), body)
}

fn declared(spec: ParamSpec, body: &str) -> Result<Value<'static>, BindError> {
    let mut effect = EffectSpec::new("SELECT :x");
    effect.params.insert("x".into(), spec);
    one(&effect, body)
}

#[test]
fn every_kind_of_json_value_keeps_its_exact_form() {
    for (json, value) in [
        ("null", Value::Null),
        ("true", Value::Bool(true)),
        ("false", Value::Bool(false)),
        ("1e3", Value::Number("1e3")),
        ("9007199254740993", Value::Number("9007199254740993")),
        ("-0.10", Value::Number("-0.10")),
        (r#""007""#, Value::Text("007".into())),
        (r#""a\u0000\u00e9""#, Value::Text("a\0é".into())),
        (r#"[ 1, "a" ]"#, Value::Json(r#"[ 1, "a" ]"#)),
        (r#"{"b":1e3}"#, Value::Json(r#"{"b":1e3}"#)),
    ] {
        assert_eq!(plain(&format!(r#"{{"x": {json} }}"#)).unwrap(), value, "{json}");
    }
}

#[test]
fn built_in_names_are_bound_from_the_record() {
    let spec = EffectSpec::new(
        "SELECT :message_id, :message_key, :header_source, :topic, :partition, :offset, :timestamp, :body, :body_text, :header_nothing",
    );
    let message = message(Some(b" {\"topic\": 1} "));
    let values = resolve(&spec, &MessageView::new(&message)).unwrap();
    assert_eq!(
        values,
        [
            Value::Opaque(b"id-1"),
            Value::Opaque(b"k\xff"),
            Value::Opaque(b"web"),
            Value::Text(Cow::Borrowed("credits")),
            Value::Int(3),
            Value::Int(7_000_000_000),
            Value::Timestamp(1_700_000_000_123),
            Value::Json("{\"topic\": 1}"),
            Value::Text(Cow::Borrowed(" {\"topic\": 1} ")),
            Value::Null,
        ]
    );
}

#[test]
fn what_needs_no_body_does_not_read_it() {
    let spec = EffectSpec::new("SELECT :message_id, :topic, :header_source");
    let message = message(Some(b"\xff no json"));
    assert!(resolve(&spec, &MessageView::new(&message)).is_ok());
}

#[test]
fn declared_parameters_take_their_source() {
    let by_pointer = |text: &str| ParamSpec::from_source(ParamSource::Body(Pointer::parse(text).unwrap()));
    assert_eq!(declared(by_pointer("/a/b/1"), r#"{"a":{"b":[1,"y"]}}"#).unwrap(), Value::Text("y".into()));
    let header = ParamSpec::from_source(ParamSource::Header("source".into()));
    assert_eq!(declared(header, "{}").unwrap(), Value::Opaque(b"web"));
    let base64 = ParamSpec { source: None, encoding: Some(Encoding::Base64), as_text: false };
    assert_eq!(declared(base64.clone(), r#"{"x":"AAH/"}"#).unwrap(), Value::Bytes(vec![0, 1, 255].into()));
    assert_eq!(declared(base64.clone(), r#"{"x":null}"#).unwrap(), Value::Null);
    for bad in [r#"{"x":"AAH"}"#, r#"{"x":"AA H/"}"#, r#"{"x":"*"}"#, r#"{"x":1}"#] {
        assert!(declared(base64.clone(), bad).unwrap_err().reason.contains("base64"), "{bad}");
    }
    let header64 = ParamSpec {
        source: Some(ParamSource::Header("b64".into())),
        encoding: Some(Encoding::Base64),
        as_text: false,
    };
    assert_eq!(declared(header64, "{}").unwrap(), Value::Bytes(vec![0, 1, 255].into()));
}

#[test]
fn as_text_binds_the_token() {
    let text = ParamSpec { source: None, encoding: None, as_text: true };
    for (json, expected) in [
        ("1e3", "1e3"),
        ("12345678901234567890.10", "12345678901234567890.10"),
        ("true", "true"),
        ("\"a\"", "a"),
        ("[1, 2]", "[1, 2]"),
    ] {
        let value = declared(text.clone(), &format!(r#"{{"x":{json}}}"#)).unwrap();
        assert_eq!(value, Value::Text(expected.into()), "{json}");
    }
    assert_eq!(declared(text, r#"{"x":null}"#).unwrap(), Value::Null);
    let key = ParamSpec { source: Some(ParamSource::MessageKey), encoding: None, as_text: true };
    assert!(declared(key, "{}").unwrap_err().reason.contains("UTF-8"));
}

#[test]
fn a_value_that_is_not_there_is_named() {
    for (body, reason) in [
        ("{}", "missing"),
        ("[]", "missing"),
        ("1", "missing"),
        ("no json", "not JSON"),
        (r#"{"x":1,"x":1}"#, "more than once"),
        (r#"{"x":"\ud800"}"#, "lone surrogate"),
    ] {
        let error = plain(body).unwrap_err();
        assert_eq!(error.param, "x");
        assert!(error.reason.contains(reason), "{body}: {error}");
    }
    for (header, reason) in [("absent", "missing"), ("differ", "different values")] {
        let error = declared(ParamSpec::from_source(ParamSource::Header(header.into())), "{}").unwrap_err();
        assert!(error.reason.contains(reason), "{error}");
    }
    assert!(declared(ParamSpec::from_source(ParamSource::Header("twice".into())), "{}").is_ok());
    let tombstone = message(None);
    let error = resolve(&EffectSpec::new("SELECT :x"), &MessageView::new(&tombstone)).unwrap_err();
    assert!(error.reason.contains("missing"), "{error}");
    let whole = EffectSpec::new("SELECT :body, :body_text");
    assert_eq!(resolve(&whole, &MessageView::new(&tombstone)).unwrap(), [Value::Null, Value::Null]);
}

#[test]
fn optional_forgives_only_what_is_missing() {
    let mut spec = EffectSpec::new("SELECT :x");
    spec.optional.push("x".into());
    assert_eq!(one(&spec, "{}").unwrap(), Value::Null);
    assert_eq!(one(&spec, r#"{"x":1}"#).unwrap(), Value::Number("1"));
    for body in ["no json", r#"{"x":1,"x":2}"#, r#"{"x":"\ud800"}"#] {
        assert!(one(&spec, body).is_err(), "{body}");
    }
}

#[test]
fn declarations_that_fit_no_parameter_are_refused() {
    let mut spec = EffectSpec::new("SELECT :amount");
    spec.optional.push("amuont".into());
    let error = CompiledEffect::compile(&spec).unwrap_err();
    assert!(matches!(&error, EffectError::UnknownParam { place: "optional", .. }));
    assert!(error.to_string().contains(":amount"), "{error}");
    let mut spec = EffectSpec::new("SELECT 1");
    spec.params.insert("x".into(), ParamSpec::from_source(ParamSource::Topic));
    assert!(matches!(CompiledEffect::compile(&spec), Err(EffectError::UnknownParam { place: "params", .. })));
    let mut spec = EffectSpec::new("SELECT :x");
    let wrong =
        ParamSpec { source: Some(ParamSource::Offset), encoding: Some(Encoding::Base64), as_text: false };
    spec.params.insert("x".into(), wrong);
    assert!(matches!(CompiledEffect::compile(&spec), Err(EffectError::Encoding { .. })));
}

#[test]
fn updates_without_expected_rows_are_noticed() {
    let silent = |sql: &str, expect_rows| {
        let spec = EffectSpec { expect_rows, ..EffectSpec::new(sql) };
        CompiledEffect::compile(&spec).unwrap().may_silently_hit_nothing()
    };
    assert!(silent("UPDATE a SET b = 1", None));
    assert!(silent("WITH x AS (SELECT 1) DELETE FROM a", None));
    assert!(!silent("UPDATE a SET b = 1", Some(ExpectRows::Any)));
    assert!(!silent("UPDATE a SET b = 1", Some(ExpectRows::Exactly(1))));
    assert!(!silent("INSERT INTO a VALUES (1)", None));
}

#[test]
fn timestamps_are_written_as_people_write_them() {
    for (ms, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (4_102_444_800_000, "2100-01-01T00:00:00.000Z"),
    ] {
        assert_eq!(format_timestamp(ms), text);
    }
}

/// A reason is stored, and printed as JSON: an escape of an escape is not what the message holds.
#[test]
fn a_refused_value_is_escaped_once() {
    for (value, shown) in [
        (Value::Text("a\0b\u{1b}[2J".into()), r#""a\u{0}b\u{1b}[2J""#),
        (Value::Text("a\nb\t".into()), r#""a\nb\t""#),
        (Value::Opaque(b"\xff\0"), r#""\xff\x00""#),
        (Value::Text(r#"say "x""#.into()), r#""say "x"""#),
    ] {
        let error = BindError::mismatch("p", "TEXT", &value, "no").to_string();
        assert!(error.contains(shown), "{error}");
    }
    let mut spec = EffectSpec::new("SELECT :x");
    let base64 = ParamSpec { source: None, encoding: Some(Encoding::Base64), as_text: false };
    spec.params.insert("x".into(), base64);
    for body in [r#"{"x": "a\u0000b"}"#, r#"{"x": ["a\u0000b"]}"#] {
        let message = message(Some(body.as_bytes()));
        let error = resolve(&spec, &MessageView::new(&message)).unwrap_err().to_string();
        assert!(!error.contains(r"\\"), "{error}");
    }
}

proptest! {
    #[test]
    fn a_values_start_is_short_and_one_line(text in any::<String>(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for start in [Value::Text(text.as_str().into()).start(), Value::Opaque(&bytes).start()] {
            prop_assert!(start.chars().count() <= 41 && !start.contains(char::is_control), "{start:?}");
        }
        let shown: String = text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
        let start = Value::Text(text.as_str().into()).start();
        prop_assert!(shown.starts_with(start.trim_end_matches('…')) || text.contains('…'));
    }

    #[test]
    fn any_body_is_answered(body in proptest::collection::vec(any::<u8>(), 0..40)) {
        let message = message(Some(&body));
        let _ = resolve(&EffectSpec::new("SELECT :x, :body, :body_text"), &MessageView::new(&message));
    }

    #[test]
    fn extreme_timestamps_do_not_panic(ms in any::<i64>()) {
        prop_assert!(format_timestamp(ms).ends_with('Z'));
    }
}
