//! Versions against a reference that knows nothing of their bytes.

use super::*;
use crate::message::{Headers, Origin, Record};
use crate::message_id::MessageId;
use bytes::Bytes;
use proptest::prelude::*;

fn parsed(text: &str) -> Version {
    Version::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// A number without its exponent: whether it is negative, and its digits around the point.
type Written = (bool, String, String, i32);

fn written() -> impl Strategy<Value = Written> {
    let whole = prop_oneof![Just("0".to_owned()), "[1-9][0-9]{0,24}"];
    (any::<bool>(), whole, "[0-9]{0,24}", -40_i32..40)
}

fn text_of((negative, whole, fraction, exponent): &Written) -> String {
    let sign = if *negative { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    let exponent = if *exponent == 0 { String::new() } else { format!("e{exponent}") };
    format!("{sign}{whole}{point}{fraction}{exponent}")
}

/// The number as a fixed-point one of 100 digits on either side, which compares as text.
fn reference((negative, whole, fraction, exponent): &Written) -> (bool, String) {
    let mut digits = vec![b'0'; 200];
    for (at, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let place = 100 - i32::try_from(whole.len()).unwrap() + i32::try_from(at).unwrap() - exponent;
        digits[usize::try_from(place).unwrap()] = digit;
    }
    let digits = String::from_utf8(digits).unwrap();
    let is_zero = digits.bytes().all(|digit| digit == b'0');
    (*negative && !is_zero, digits)
}

fn compared(a: &Written, b: &Written) -> Ordering {
    match (reference(a), reference(b)) {
        ((false, a), (false, b)) => a.cmp(&b),
        ((true, a), (true, b)) => b.cmp(&a),
        ((true, _), (false, _)) => Ordering::Less,
        ((false, _), (true, _)) => Ordering::Greater,
    }
}

proptest! {
    #[test]
    fn numbers_compare_as_exact_decimals(a in written(), b in written()) {
        let (x, y) = (parsed(&text_of(&a)), parsed(&text_of(&b)));
        prop_assert_eq!(x.partial_cmp(&y), Some(compared(&a, &b)), "{} {}", text_of(&a), text_of(&b));
        // What a database compares.
        prop_assert_eq!(x.as_bytes().cmp(y.as_bytes()), compared(&a, &b));
    }

    /// Neighbours far from zero, where a float sees one number.
    #[test]
    fn neighbours_are_told_apart(number in 0_u128..u128::MAX, negative in any::<bool>()) {
        let sign = if negative { "-" } else { "" };
        let (less, more) = (parsed(&format!("{sign}{number}")), parsed(&format!("{sign}{}", number + 1)));
        prop_assert_eq!(less < more, !negative);
        prop_assert_eq!(more < less, negative);
    }

    /// However a number is written, it is one version.
    #[test]
    fn equal_numbers_are_equal_bytes(number in written(), shift in 0_i32..20, zeros in 0_usize..5) {
        let (negative, whole, fraction, exponent) = number.clone();
        let longer = (negative, whole, format!("{fraction}{}", "0".repeat(zeros)), exponent);
        let digits = format!("{}{}", number.1, number.2);
        let digits = digits.trim_start_matches('0');
        let moved = i32::try_from(number.2.len()).unwrap();
        let as_integer = format!("{}{}", if digits.is_empty() { "0" } else { digits }, "0".repeat(usize::try_from(shift).unwrap()));
        let as_integer = if digits.is_empty() { "0".to_owned() } else { as_integer };
        let integer = (negative, as_integer, String::new(), exponent - moved - shift);
        prop_assert_eq!(parsed(&text_of(&number)), parsed(&text_of(&longer)));
        prop_assert_eq!(parsed(&text_of(&number)), parsed(&text_of(&integer)));
    }

    #[test]
    fn times_compare_as_instants(a in -62_167_219_200_i64..253_402_300_799, ahead in 0_i64..200_000,
        nanos in 0_u32..1_000_000_000, minutes in -1_439_i64..1_439) {
        let b = (a + ahead).min(253_402_300_799);
        let (x, y) = (parsed(&time_text(a, nanos, 0)), parsed(&time_text(b, nanos, minutes)));
        prop_assert_eq!(x.partial_cmp(&y), Some(a.cmp(&b)));
    }

    #[test]
    fn any_text_is_answered_and_comes_back(text in ".{0,40}", like in "[-+0-9.eEtTzZ: ]{0,40}") {
        for text in [text, like] {
            if let Ok(version) = Version::parse(&text) {
                prop_assert_eq!(Version::from_bytes(version.as_bytes()), Some(version));
            }
        }
    }

    /// A newer message is applied, whatever is in front of it; nothing older than what is applied ever is; and the
    /// mark that a store is asked for is the greatest that is applied.
    #[test]
    fn what_is_applied_of_a_key_only_grows(
        mark in proptest::option::of(0_u8..20), versions in proptest::collection::vec((0_u8..3, 0_u8..20), 0..40),
    ) {
        let messages: Vec<Versioned> = versions.iter().map(|(key, version)| of_key(*key, &version.to_string())).collect();
        let messages: Vec<&Versioned> = messages.iter().collect();
        let marks: BTreeMap<VersionKey, Version> =
            mark.iter().map(|mark| (VersionKey([0; 16]), parsed(&mark.to_string()))).collect();
        let judged = judge(&marks, &messages);
        let raised = greatest(messages.iter().copied(), |_| None);
        for key in 0..3 {
            let mut newest = if key == 0 { mark.map(i32::from) } else { None };
            for ((of, version), judged) in versions.iter().zip(&judged).filter(|((of, _), _)| *of == key) {
                let newer = newest.is_none_or(|newest| i32::from(*version) > newest);
                prop_assert_eq!(*judged == Judged::Newer, newer, "{} of {}", version, of);
                newest = if newer { Some(i32::from(*version)) } else { newest };
            }
            let asked = raised.get(&VersionKey([key; 16]));
            let after = asked.into_iter().chain(marks.get(&VersionKey([key; 16]))).max_by(|a, b| a.partial_cmp(b).unwrap());
            prop_assert_eq!(after.cloned(), newest.map(|newest| parsed(&newest.to_string())));
        }
    }
}

/// A second of UTC as a clock with this offset shows it.
fn time_text(second: i64, nanos: u32, minutes: i64) -> String {
    let shown = crate::message::Timestamp((second + minutes * 60) * 1_000).to_string();
    let sign = if minutes < 0 { '-' } else { '+' };
    let (hours, rest) = (minutes.abs() / 60, minutes.abs() % 60);
    let text = format!("{}.{nanos:09}{sign}{hours:02}:{rest:02}", shown.trim_end_matches(".000Z"));
    // Beside the years that four digits hold there is nothing to write.
    if text.starts_with('-') || text.find('-') != Some(4) { time_text(second, nanos, 0) } else { text }
}

fn of_key(key: u8, version: &str) -> Versioned {
    Versioned { key: VersionKey([key; 16]), version: parsed(version) }
}

#[test]
fn an_order_that_a_person_checks() {
    let numbers = [
        "-1e1000",
        "-9007199254740993",
        "-9007199254740992",
        "-12.5",
        "-12",
        "-1.01",
        "-1.0",
        "-1e-9",
        "-0",
        "1e-1000",
        "0.001",
        "0.0012",
        "0.01",
        "9",
        "9.9",
        "10",
        "99",
        "100",
        "100.5",
        "9007199254740992",
        "9007199254740993",
        "1e300",
        "1E+301",
    ];
    let times = [
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00Z",
        "2000-02-29T23:59:59Z",
        "2026-01-31T13:00:00+02:00",
        "2026-01-31T12:00:00Z",
        "2026-01-31t12:00:00.000000001z",
        "2026-01-31 12:00:00.01Z",
        "2026-01-31T12:00:00.1Z",
        "2016-12-31T23:59:59.9Z",
        "2016-12-31T23:59:60Z",
        "2016-12-31T15:59:60.5-08:00",
        "2017-01-01T00:00:00Z",
        "9999-12-31T23:59:59.9-23:59",
    ];
    let leap = times[9..13].iter().map(|text| parsed(text)).collect::<Vec<_>>();
    assert!(leap.is_sorted_by(|a, b| a < b), "{leap:?}");
    for texts in [&numbers[..], &times[..9]] {
        let versions: Vec<Version> = texts.iter().map(|text| parsed(text)).collect();
        for (at, pair) in versions.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "{} and {}", texts[at], texts[at + 1]);
            assert!(pair[0].as_bytes() < pair[1].as_bytes(), "{} and {}", texts[at], texts[at + 1]);
        }
    }
    for (one, other) in [
        ("-0", "0"),
        ("1e3", "1000.00"),
        ("100", "10e1"),
        ("0e99999999999999999999", "0"),
        ("1e0000000000000000000002", "100"),
        ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00.000+01:00"),
        ("2026-01-31T12:00:00.50Z", "2026-01-31T12:00:00.5-00:00"),
    ] {
        assert_eq!(parsed(one), parsed(other), "{one} {other}");
    }
}

#[test]
fn what_is_no_version_is_refused() {
    for bad in [
        "",
        " ",
        "abc",
        "+1",
        "007",
        ".5",
        "1.",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "NaN",
        "Infinity",
        "-",
        "--1",
        " 1",
        "1 ",
        "１",
        "1,5",
        "true",
        "2026-01-31",
        "12:00:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-00-01T12:00:00Z",
        "2026-01-00T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:61Z",
        "2026-01-31T12:00:60Z",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+0100",
        "2026-01-31T12:00:00Zx",
        "26-01-31T12:00:00Z",
        "2026-1-31T12:00:00Z",
        "2026-01-31T12:00:00.5",
        "+2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00é",
    ] {
        assert!(Version::parse(bad).is_err(), "{bad:?}");
    }
    for far in ["1e1000000001", "1e-1000000002", "1e99999999999999999999", &format!("1{}", "1".repeat(1_000))]
    {
        let why = Version::parse(far).unwrap_err();
        assert!(why.contains("exponent") || why.contains("1,000 digits"), "{far:.20} {why}");
    }
    assert!(Version::parse(&"1".repeat(1_000)).is_ok());
    assert!(Version::parse(&format!("1{}", "0".repeat(100_000))).is_ok());
}

#[test]
fn two_kinds_have_no_order() {
    let (number, time) = (parsed("5"), parsed("2026-01-31T12:00:00Z"));
    assert_eq!(number.partial_cmp(&time), None);
    assert_ne!(number, time);
    let of = |version: &Version| Versioned { key: VersionKey([1; 16]), version: version.clone() };
    let (number, time) = (of(&number), of(&time));
    assert_eq!(
        judge(&BTreeMap::new(), &[&number, &time, &number]),
        [Judged::Newer, Judged::OtherKind, Judged::Stale]
    );
    let marks = BTreeMap::from([(time.key, time.version.clone())]);
    assert_eq!(judge(&marks, &[&number, &time]), [Judged::OtherKind, Judged::Stale]);
    // The mark is raised by those of its own kind.
    let all = [&number, &time];
    let first = greatest(all, |_| None);
    assert_eq!(first[&number.key].kind(), VersionKind::Number);
    let of_mark = greatest(all, |_| Some(VersionKind::Time));
    assert_eq!(of_mark[&number.key].kind(), VersionKind::Time);
}

fn message(key: Option<&str>, topic: &str, value: &str) -> Message {
    let record = Record {
        key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        headers: Headers::default(),
        origin: Origin { topic: topic.into(), partition: 0, offset: 0, line: None },
        timestamp: None,
    };
    Message::new(MessageId::try_from("id").unwrap(), record)
}

#[test]
fn the_key_is_a_field_or_the_records_own_with_its_topic() {
    let guard = |key: Option<&str>| VersionGuard {
        version: Pointer::member("seq"),
        key: key.map(|key| Pointer::parse(key).unwrap()),
    };
    let key_of = |guard: &VersionGuard, message: &Message| guard.find(message).map(|found| found.key);
    let body = r#"{"seq":1,"account":"7"}"#;
    let own = guard(None);
    assert_eq!(
        key_of(&own, &message(Some("k"), "t", body)),
        key_of(&own, &message(Some("k"), "t", r#"{"seq":"2"}"#))
    );
    assert_ne!(key_of(&own, &message(Some("k"), "t", body)), key_of(&own, &message(Some("k"), "u", body)));
    assert_ne!(key_of(&own, &message(Some("k"), "t", body)), key_of(&own, &message(Some("l"), "t", body)));
    let field = guard(Some("/account"));
    assert_eq!(key_of(&field, &message(Some("k"), "t", body)), key_of(&field, &message(None, "u", body)));
    let number = message(None, "t", r#"{"seq":1,"account":7}"#);
    assert_eq!(
        key_of(&field, &message(None, "t", body)),
        key_of(&field, &number),
        "a field counts as in an id"
    );
    assert_ne!(key_of(&field, &number), key_of(&field, &message(None, "t", r#"{"seq":1,"account":8}"#)));
}

#[test]
fn a_message_without_a_usable_version_or_key_says_why() {
    let guard = VersionGuard { version: Pointer::member("seq"), key: Some(Pointer::member("of")) };
    for (body, why) in [
        ("{", "no usable version in field /seq: the body is not JSON"),
        ("{}", "no usable version in field /seq: it is missing"),
        (r#"{"seq":null}"#, "no usable version in field /seq: it is null"),
        (r#"{"seq":true}"#, "no usable version in field /seq: it is a boolean"),
        (r#"{"seq":""}"#, "no usable version in field /seq: it is empty"),
        (r#"{"seq":1,"seq":2}"#, "stands more than once"),
        (r#"{"seq":"canary"}"#, "neither a number nor a time of RFC 3339"),
        (r#"{"seq":1e9999999999}"#, "its exponent is beyond"),
        (r#"{"seq":1}"#, "no usable key of its version in field /of: it is missing"),
        (r#"{"seq":1,"of":[1]}"#, "no usable key of its version in field /of: it is an array"),
    ] {
        let fault = guard.find(&message(None, "t", body)).unwrap_err();
        assert!(fault.reason.contains(why), "{body}: {fault}");
        assert!(!fault.reason.contains("canary"), "{fault}");
    }
    let own = VersionGuard { key: None, ..guard };
    let fault = own.find(&message(None, "t", r#"{"seq":1}"#)).unwrap_err();
    assert_eq!(fault.reason, "no key of its version: the record's key is null");
}
