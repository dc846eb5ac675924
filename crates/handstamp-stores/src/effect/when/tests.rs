use super::super::binding::{Encoding, MessageView};
use super::*;
use bytes::Bytes;
use handstamp_core::{Header, Headers, Message, MessageId, Origin, Record, Timestamp};
use proptest::prelude::*;

fn message(body: Option<&str>) -> Message {
    let header = |name: &str, value: Option<&[u8]>| {
        Header::new(name.as_bytes().to_vec(), value.map(Bytes::copy_from_slice))
    };
    let record = Record {
        key: Some(Bytes::from_static(b"k")),
        value: body.map(|body| Bytes::copy_from_slice(body.as_bytes())),
        headers: Headers::new(vec![
            header("type", Some(b"refund")),
            header("null", None),
            header("binary", Some(b"\xff")),
            header("twice", Some(b"a")),
            header("twice", Some(b"b")),
        ]),
        origin: Origin { topic: "payments".into(), partition: 3, offset: 7, line: None },
        timestamp: Some(Timestamp(1_000)),
    };
    Message::new(MessageId::try_from("id-1").unwrap(), record)
}

fn parsed(text: &str) -> Result<Condition, ConditionError> {
    Condition::parse(text, &BTreeMap::new())
}

fn holds(text: &str, body: &str) -> Result<bool, String> {
    let message = message(Some(body));
    parsed(text).unwrap_or_else(|e| panic!("{e}")).holds(&MessageView::new(&message)).map_err(|e| e.reason)
}

const BODY: &str = r#"{"type":"refund","amount":12.50,"large":9007199254740993,"vip":true,"no":false,
    "none":null,"to":{"city":"Bern","lines":["a","b"]},"a/b":1,"not":"x","code":"007","":2}"#;

#[test]
fn conditions_hold_or_do_not() {
    for (text, expected) in [
        (":type = 'refund'", true),
        (":type = \"refund\"", true),
        (":type != 'refund'", false),
        ("'refund' = :type", true),
        (":amount = 12.5", true),
        (":amount = 125e-1", true),
        (":amount < 12.500000000000000000000001", true),
        (":amount > 12.499999999999999999999999", true),
        (":large = 9007199254740992", false),
        (":large > 9007199254740992", true),
        (":large <= 9007199254740993.0", true),
        (":amount >= -1", true),
        (":vip = true", true),
        (":vip != :no", true),
        (":amount < :large", true),
        ("/to/city = 'Bern'", true),
        ("/to/lines/1 = 'b'", true),
        ("/a~1b = 1", true),
        ("body('/a~1b') = 1", true),
        ("body('/') = 2", true),
        (":not = 'x'", true),
        (":type < 's'", true),
        (":code = '007'", true),
        ("header('type') = 'refund'", true),
        (":header_type = 'refund'", true),
        ("topic = 'payments'", true),
        (":topic in ('a', 'payments')", true),
        (":partition = 3 and :offset > 6 and :timestamp = 1000", true),
        (":message_id = 'id-1' and :message_key = 'k'", true),
        (":type in ('charge', 'refund')", true),
        (":type not in ('charge', 'refund')", false),
        (":amount in (1, 12.50)", true),
        (":vip in (true)", true),
        (":none is null", true),
        (":none is not null", false),
        (":gone is null", true),
        (":gone is not null", false),
        (":type is null", false),
        ("exists :none", true),
        ("exists :gone", false),
        ("exists(:gone) or exists(/to/city)", true),
        ("not exists :gone", true),
        ("exists header('null') and header('null') is null", true),
        ("exists header('type') and not exists header('other')", true),
        // Not before and, and before or.
        (":type = 'x' and :no = true or :vip = true", true),
        (":type = 'x' and (:no = true or :vip = true)", false),
        ("not :no = true and :vip = true", true),
        ("NOT (:no = TRUE AND :vip = TRUE)", true),
        ("not not :vip = true", true),
        // What is behind the answer is not looked at.
        ("exists :gone and :gone = 1", false),
        (":vip = true or :gone = 1", true),
    ] {
        assert_eq!(holds(text, BODY), Ok(expected), "{text}");
    }
}

#[test]
fn what_has_no_answer_is_a_fault_and_never_false() {
    for (text, reason) in [
        (":gone = 1", "the body's /gone is missing; `exists :gone and` in front"),
        ("not :gone = 1", "is missing"),
        (":gone in (1)", "is missing"),
        (":none = 1", "the body's /none is null; `:none is not null and` in front"),
        (":none != 'x'", "is null"),
        (":type = 1", "\"refund\" is a text, and 1 is a number"),
        (":amount = '12.5'", "12.50 is a number, and \"12.5\" is a text"),
        (":vip = 1", "true is a boolean, and 1 is a number"),
        (":vip in ('true')", "true is a boolean, and \"true\" is a text"),
        (":type < :amount", "is a text"),
        (":to = 'x'", "the body's /to is an object"),
        ("/to/lines = 'x'", "is an array"),
        ("header('other') = 'x'", "header other is missing"),
        ("header('null') = 'x'", "header null is null"),
        ("header('binary') = 'x'", "header binary is not UTF-8"),
        ("header('twice') = 'a'", "more than once"),
        ("exists header('twice')", "more than once"),
        (":vip = true and :gone = 1", "is missing"),
        (":no = true or :gone = 1", "is missing"),
    ] {
        let fault = holds(text, BODY).unwrap_err();
        assert!(fault.contains(reason), "{text}: {fault}");
        assert!(fault.lines().count() == 1 && fault.contains("has no answer"), "{fault}");
    }
    for (body, reason) in [
        (r#"{"x":1,"x":1}"#, "more than once"),
        ("no JSON", "not JSON"),
        (r#"{"x":"\ud800"}"#, "lone surrogate"),
        (r#"{"x":1e9999999999}"#, "beyond a thousand million"),
    ] {
        assert!(holds(":x = 1", body).unwrap_err().contains(reason), "{body}");
    }
    let tombstone = message(None);
    let fault = parsed(":x = 1").unwrap().holds(&MessageView::new(&tombstone)).unwrap_err();
    assert!(fault.reason.contains("missing"), "{fault}");
    assert_eq!(parsed(":x is null").unwrap().holds(&MessageView::new(&tombstone)), Ok(true));
}

#[test]
fn a_condition_that_needs_no_body_reads_none() {
    let message = message(Some("\u{0}no JSON"));
    let condition = parsed("topic = 'payments' and header('type') in ('refund')").unwrap();
    assert_eq!(condition.holds(&MessageView::new(&message)), Ok(true));
}

#[test]
fn a_name_is_what_it_is_in_the_statement() {
    let of = |source, encoding, as_text| ParamSpec { source, encoding, as_text };
    let city = ParamSource::Body(Pointer::parse("/to/city").unwrap());
    let params = BTreeMap::from([
        ("city".to_owned(), of(Some(city), None, false)),
        ("kind".to_owned(), of(Some(ParamSource::Header("type".into())), None, false)),
        ("amount".to_owned(), of(None, None, true)),
        ("bytes".to_owned(), of(None, Some(Encoding::Base64), false)),
    ]);
    let message = message(Some(BODY));
    for (text, expected) in [
        (":city = 'Bern'", true),
        (":kind = 'refund'", true),
        (":amount = '12.50'", true),
        ("exists :bytes2", false),
    ] {
        let condition = Condition::parse(text, &params).unwrap();
        assert_eq!(condition.holds(&MessageView::new(&message)), Ok(expected), "{text}");
    }
    for (text, reason) in
        [(":bytes = 'x'", "encoding"), (":amount = 1", "cannot be compared"), (":kind = 1", "quotes")]
    {
        let error = Condition::parse(text, &params).unwrap_err();
        assert!(error.message.contains(reason), "{text}: {error}");
    }
}

/// The caret stands below the beginning of what is marked by `^` here.
#[test]
fn mistakes_are_pointed_at() {
    for (text, mark, reason) in [
        ("", "^", "the condition ends here"),
        ("   ", "   ^", "the condition ends here"),
        (":type =", "       ^", "the condition ends here"),
        (":type = and :x = 1", "        ^", "expected a value"),
        (":type", "     ^", "a value alone is no condition"),
        ("type = 'x'", "^", "written :type"),
        (
            "'type' = 'x'",
            "^",
            "compares two constants, whatever the message: a field of the body is written :type",
        ),
        ("1 = 1", "^", "two constants"),
        (":a = 1 = 2", "       ^", "put `and` between"),
        (":a = 1 :b = 2", "       ^", "expected `and`, `or` or the end"),
        (":a = 1)", "      ^", "closes nothing"),
        ("(:a = 1", "       ^", "expected `)`"),
        (":a == 1", "   ^", "write `=`"),
        (":a <> 1", "   ^", "write `!=`"),
        (":a = 1 && :b = 1", "       ^", "write `and`"),
        ("!(:a = 1)", "^", "write `not`"),
        (":a = null", "     ^", "`is null`"),
        (":a is 1", "      ^", "expected `null`"),
        (":a not 1", "       ^", "expected `in`"),
        (":a in 1", "      ^", "expected `(`"),
        (":a in ()", "       ^", "expected a text in quotes"),
        (":a in (1, 'x')", "          ^", "of one type"),
        ("topic in ('x', 1)", "               ^", "a text"),
        (":a in (:b)", "       ^", "expected a text in quotes"),
        ("topic = 1", "        ^", "write it in quotes"),
        (":partition = 'x'", "             ^", "they cannot be compared"),
        (":a < true", "   ^", "have no order"),
        (":a = 007", "     ^", "is no number"),
        (":a = +1", "     ^", "is no number"),
        (":a = 1e99999999999", "     ^", "is no number"),
        (":a = 'x", "     ^", "a quote is missing"),
        (":a = :", "     ^", "a name behind the colon"),
        (":1a = 1", "^", "a name behind the colon"),
        (":a = $b", "     ^", "written :name"),
        (":a = #", "     ^", "not known here"),
        ("/a~2 = 1", "^", "no JSON pointer"),
        ("body('a') = 1", "     ^", "must start with '/'"),
        ("body(:a) = 1", "     ^", "write `body("),
        ("header = 'x'", "       ^", "write `header("),
        ("header('') = 'x'", "       ^", "not empty"),
        (":body = 'x'", "^", "the whole body"),
        ("exists 1", "       ^", "`exists` asks for a value"),
        (":a = 1\nand :b ==\n2", "       ^", "write `=`"),
    ] {
        let error = parsed(text).unwrap_err();
        let shown = error.to_string();
        assert!(error.message.contains(reason), "{text}: {shown}");
        assert_eq!(shown.lines().nth(2), Some(&*format!("    {mark}")), "{shown}");
        assert_eq!(shown.lines().count(), 3, "{shown}");
    }
    let long = String::from(":a = 1 and :b ==   ");
    assert!(parsed(&long).unwrap_err().to_string().contains(":b =="));
    let far = format!("{}:b == 1", ":a = 1 and ".repeat(100));
    let shown = parsed(&far).unwrap_err().to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].len() < 200 && lines[1].contains('…'), "{shown}");
    let caret = lines[2].chars().count() - 1;
    assert_eq!(lines[1].chars().skip(caret).take(2).collect::<String>(), "==", "{shown}");
}

#[test]
fn length_and_depth_are_limited() {
    let deep = |n: usize| format!("{}:a = 1{}", "(".repeat(n), ")".repeat(n));
    assert!(parsed(&deep(Condition::DEPTH_MAX - 1)).is_ok());
    assert!(parsed(&deep(Condition::DEPTH_MAX)).unwrap_err().message.contains("more than 32"));
    assert!(parsed(&format!("{}:a = 1", "not ".repeat(1000))).unwrap_err().message.contains("more than 32"));
    // Side by side is no depth.
    let wide = vec![":a = 1"; 300].join(" and ");
    assert!(parsed(&wide).is_ok());
    let long = format!(":a = '{}'", "x".repeat(Condition::TEXT_BYTES_MAX));
    assert!(parsed(&long).unwrap_err().message.contains("at most 4096 bytes"));
    // Cut at any place of a text of several bytes a character.
    assert!(parsed(&"é".repeat(5000)).is_err());
}

#[test]
fn what_a_body_must_have_is_told() {
    let needed = |text: &str| -> Vec<String> {
        parsed(text).unwrap().needed().into_iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        needed(":type = 'x' and /to/city in ('a') and :type != 'y' and topic = 't'"),
        ["/type", "/to/city"]
    );
    assert_eq!(needed("exists :vip and :vip = true and :type = 'x'"), ["/type"]);
    assert_eq!(needed(":a is null or :b = :c"), ["/b", "/c"]);
}

fn literal() -> impl Strategy<Value = Literal> {
    prop_oneof![
        "[a'\"() é\\\\\n]{0,4}".prop_map(Literal::Text),
        "-?(0|[1-9][0-9]{0,3})([.][0-9]{1,3})?(e-?[0-9]{1,2})?".prop_map(Literal::Number),
        any::<bool>().prop_map(Literal::Bool),
    ]
}

fn field() -> impl Strategy<Value = Field> {
    let pointer = "(/[ab~=()', é]{0,3}){0,3}".prop_filter_map("a pointer", |text| Pointer::parse(&text).ok());
    prop_oneof![
        "[a-z_][a-z0-9_]{0,5}".prop_filter_map("not the body", |name| {
            let source = ParamSource::of_name(&name);
            (source != ParamSource::BodyJson).then(|| Field::new(Written::Name(name), source, false))
        }),
        pointer.prop_map(|pointer| {
            let source = ParamSource::Body(pointer.clone());
            Field::new(Written::Pointer(pointer), source, false)
        }),
        "[a-z'\" é]{1,4}"
            .prop_map(|name| { Field::new(Written::Header(name.clone()), ParamSource::Header(name), false) }),
        Just(Field::new(Written::Topic, ParamSource::Topic, false)),
    ]
}

/// A test of a field whose type is not known before.
fn test() -> impl Strategy<Value = Expr> {
    let open = field().prop_filter("no known type", |field| field.type_().is_none()).boxed();
    let op = prop::sample::select(Op::ALL.to_vec());
    prop_oneof![
        (open.clone(), op, literal(), any::<bool>()).prop_map(|(field, op, literal, turned)| {
            let op = if matches!(literal, Literal::Bool(_)) { Op::Ne } else { op };
            let (one, two) = (Operand::Field(field), Operand::Literal(literal));
            let (left, right) = if turned { (two, one) } else { (one, two) };
            Expr::Compare { left, op, right }
        }),
        (open, literal(), 1_usize..4, any::<bool>()).prop_map(|(field, literal, count, negated)| Expr::In {
            field,
            negated,
            list: vec![literal; count]
        }),
        (field(), any::<bool>()).prop_map(|(field, negated)| Expr::IsNull { field, negated }),
        field().prop_map(Expr::Exists),
    ]
}

fn expr() -> impl Strategy<Value = Expr> {
    test().prop_recursive(4, 24, 4, |inner| {
        let parts = prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            parts.clone().prop_map(|parts| {
                let flat = parts.into_iter().flat_map(|part| match part {
                    Expr::And(inner) => inner,
                    other => vec![other],
                });
                Expr::And(flat.collect())
            }),
            parts.prop_map(|parts| {
                let flat = parts.into_iter().flat_map(|part| match part {
                    Expr::Or(inner) => inner,
                    other => vec![other],
                });
                Expr::Or(flat.collect())
            }),
            inner.prop_map(|inner| Expr::Not(Box::new(inner))),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_printed_is_read_as_the_same(root in expr()) {
        let condition = Condition { root };
        let text = condition.to_string();
        prop_assume!(text.len() <= Condition::TEXT_BYTES_MAX);
        match parsed(&text) {
            Ok(again) => prop_assert_eq!(again, condition, "{}", text),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), pieces in prop::collection::vec(prop::sample::select(vec![
        ":a", "/a/b", "'x'", "\"", "'", "1", "-1.5e3", "true", "=", "!=", "<", "<=", ">", "!", "(", ")", ",", "and", "or",
        "not", "in", "is", "null", "exists", "topic", "header", "body", "header('x')", "é", "\n", ":", "~", "$",
    ]), 0..16)) {
        for text in [text, pieces.join(" "), pieces.concat()] {
            match parsed(&text) {
                Ok(condition) => {
                    prop_assert_eq!(parsed(&condition.to_string()), Ok(condition));
                }
                Err(error) => {
                    prop_assert!(error.at <= text.len());
                    prop_assert_eq!(error.to_string().lines().count(), 3);
                }
            }
        }
    }

    /// A condition and its negation have opposite answers, or none.
    #[test]
    fn not_turns_every_answer_round(root in expr(), body in prop_oneof![Just(BODY.to_owned()), any::<String>()]) {
        let message = message(Some(&body));
        let view = MessageView::new(&message);
        let negated = Condition { root: Expr::Not(Box::new(root.clone())) };
        let (one, two) = (Condition { root }.holds(&view), negated.holds(&view));
        prop_assert_eq!(one.map(|truth| !truth), two);
    }
}
