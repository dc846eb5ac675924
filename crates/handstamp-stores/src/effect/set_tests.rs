//! What a set effect's declaration may say, and how the relation comes in front of a statement.

use super::*;
use crate::effect::CompiledEffect;
use proptest::prelude::*;

const INSERT: &str = "INSERT INTO t SELECT amount FROM messages";

fn compiled(sql: &str, set: SetSpec) -> Result<CompiledEffect, EffectError> {
    CompiledEffect::compile(&EffectSpec { set: Some(set), ..EffectSpec::new(sql) })
}

fn refused(sql: &str, set: SetSpec) -> SetError {
    match compiled(sql, set) {
        Err(EffectError::Set(error)) => error,
        other => panic!("{sql}: {other:?}"),
    }
}

fn amount(type_name: &str) -> SetSpec {
    SetSpec::default().column("amount", type_name)
}

fn rendered(sql: &str) -> String {
    let effect = compiled(sql, SetSpec::default()).unwrap_or_else(|error| panic!("{sql}: {error}"));
    effect.set.unwrap().reads.render(effect.statement.sql(), "messages AS (X)")
}

#[test]
fn the_relation_comes_in_front_of_whatever_a_statement_begins_with() {
    for (sql, expected) in [
        (
            "INSERT INTO t SELECT n FROM messages;",
            "WITH messages AS (X) INSERT INTO t SELECT n FROM messages",
        ),
        ("UPDATE t SET a = n FROM messages", "WITH messages AS (X) UPDATE t SET a = n FROM messages"),
        ("DELETE FROM t USING messages", "WITH messages AS (X) DELETE FROM t USING messages"),
        (
            "MERGE INTO t USING messages AS m ON true WHEN MATCHED THEN DELETE",
            "WITH messages AS (X) MERGE INTO t USING messages AS m ON true WHEN MATCHED THEN DELETE",
        ),
        ("/* a */ SELECT n FROM messages", "WITH messages AS (X) /* a */ SELECT n FROM messages"),
        ("(SELECT n FROM messages)", "WITH messages AS (X) (SELECT n FROM messages)"),
        (
            "with x AS (SELECT n FROM messages) UPDATE t SET a = 1 FROM x",
            "with messages AS (X), x AS (SELECT n FROM messages) UPDATE t SET a = 1 FROM x",
        ),
        (
            "WITH /* a */ RECURSIVE r(i) AS (SELECT n FROM messages) SELECT i FROM r",
            "WITH /* a */ RECURSIVE messages AS (X), r(i) AS (SELECT n FROM messages) SELECT i FROM r",
        ),
        // It begins with a parenthesis: the query inside keeps its own.
        (
            "(WITH x AS (SELECT n FROM messages) SELECT n FROM x)",
            "WITH messages AS (X) (WITH x AS (SELECT n FROM messages) SELECT n FROM x)",
        ),
    ] {
        assert_eq!(rendered(sql), expected);
    }
}

#[test]
fn only_what_a_statement_names_is_read() {
    let reads = |sql: &str| {
        let effect = compiled(sql, amount("int8")).unwrap();
        let set = effect.set.unwrap();
        let names: Vec<String> = effect.bindings.params().iter().map(|param| param.name.clone()).collect();
        (names, set.reads.number)
    };
    assert_eq!(reads(INSERT), (vec!["amount".into()], false));
    assert_eq!(
        reads("INSERT INTO t SELECT Message_ID, \"offset\", n FROM messages"),
        (vec!["amount".into(), "message_id".into(), "offset".into()], true)
    );
    // Texts, comments and what is multiplied name nothing.
    assert_eq!(
        reads("SELECT 'topic', amount * 2 /* body */ FROM messages -- n"),
        (vec!["amount".into()], false)
    );
    assert_eq!(reads("SELECT count(*) FROM messages"), (vec!["amount".into()], false));
    for sql in [
        "SELECT * FROM messages",
        "SELECT 1, m.* FROM messages AS m",
        "SELECT m.* FROM t, messages m",
        "SELECT messages.* FROM messages",
        "SELECT DISTINCT * FROM t, (SELECT 1) AS x, messages",
        "INSERT INTO t SELECT x.a FROM (SELECT * FROM messages) AS x",
    ] {
        let (names, number) = reads(sql);
        assert_eq!((names.len(), number), (9, true), "{sql}");
    }
    for sql in [
        "WITH x AS (SELECT amount FROM messages) SELECT * FROM x",
        "SELECT t.* FROM t, messages AS m",
        "SELECT * FROM t WHERE a IN (SELECT amount FROM messages)",
        "SELECT 2 * amount, count(*) FROM messages",
    ] {
        assert_eq!(reads(sql), (vec!["amount".into()], false), "{sql}");
    }
}

#[test]
fn the_queries_beside_read_what_they_name() {
    let mut set = amount("int8").column("account_id", "int4");
    set.lock =
        Some("SELECT 1 FROM a WHERE id IN (SELECT account_id FROM messages) ORDER BY id FOR UPDATE".into());
    set.expect = ExpectSet::Query("SELECT count(DISTINCT topic) FROM messages".into());
    let effect = compiled(INSERT, set).unwrap();
    let names = |reads: &Reads| -> Vec<&str> {
        reads.columns.iter().map(|at| effect.bindings.params()[*at].name.as_str()).collect()
    };
    let set = effect.set.as_ref().unwrap();
    assert_eq!(names(&set.lock.as_ref().unwrap().reads), ["account_id"]);
    let SetRows::Query(query) = &set.expect else { panic!("{:?}", set.expect) };
    assert_eq!(names(&query.reads), ["topic"]);
    // All declared columns belong to the statement, whether it names them or not.
    assert_eq!(names(&set.reads), ["account_id", "amount"]);
}

#[test]
fn types_are_held_to_a_grammar() {
    for (declared, kept) in [
        ("numeric", "numeric"),
        ("INT8", "int8"),
        (" double   precision ", "double precision"),
        ("timestamp with time zone", "timestamp with time zone"),
        ("shop.color", "shop.color"),
        ("int4[]", "int4[]"),
        ("text []", "text[]"),
        ("_x9", "_x9"),
    ] {
        let set = compiled(INSERT, amount(declared)).unwrap().set.unwrap();
        assert_eq!(set.types, [Some(kept.to_owned())], "{declared}");
    }
    for declared in [
        "",
        "numeric(10,2)",
        "varchar(3)",
        "int4) AS x, (SELECT 1",
        "int4; DROP TABLE t",
        "int4 -- x",
        "int4/**/",
        "\"int4\"",
        "int4[][]",
        "int4 NOT NULL",
        "interval year",
        "a.b.c",
        "1int",
        "int4::text",
        "intⅣ",
        "int4\0",
    ] {
        assert!(matches!(refused(INSERT, amount(declared)), SetError::Type { .. }), "{declared:?}");
    }
    // Without a size these have one all the same, and a cast would cut.
    for declared in ["char", "CHARACTER", "bit", "nchar", "char[]"] {
        assert!(matches!(refused(INSERT, amount(declared)), SetError::Sized { .. }), "{declared:?}");
    }
}

#[test]
fn names_are_held_to_a_grammar_and_do_not_collide() {
    let column = |name: &str| SetSpec::default().column(name, "int4");
    for name in ["", "Amount", "a b", "a\"b", "1a", "a-b", "ä", "a.b", &"a".repeat(64)] {
        assert!(matches!(refused(INSERT, column(name)), SetError::ColumnName(_)), "{name:?}");
    }
    for name in ["_a", "order", "select", &"a".repeat(63)] {
        assert!(compiled(INSERT, column(name)).is_ok(), "{name:?}");
    }
    assert_eq!(refused(INSERT, column("n")), SetError::Number);
    // A built-in column may be given a type, and is still what it is.
    assert!(compiled("INSERT INTO t SELECT message_id FROM messages", column("message_id")).is_ok());
    let mut other = column("topic");
    other.columns.get_mut("topic").unwrap().param.source =
        Some(crate::effect::ParamSource::Header("topic".into()));
    assert_eq!(refused(INSERT, other), SetError::BuiltIn("topic".into()));
}

#[test]
fn what_cannot_run_once_for_all_messages_is_refused_with_its_reason() {
    let none = SetSpec::default;
    let place = "sql";
    for sql in ["UPDATE t SET a = 1", "SELECT 'messages'", "SELECT 1 /* messages */"] {
        assert_eq!(refused(sql, none()), SetError::ReadsNothing { place });
    }
    assert!(matches!(refused("SELECT :a FROM messages", none()), SetError::Param { .. }));
    for sql in [
        "WITH messages AS (SELECT 1) SELECT * FROM messages",
        "WITH x AS (SELECT 1), \"messages\" AS MATERIALIZED (SELECT 1) SELECT * FROM messages",
        "WITH RECURSIVE messages(n) AS (SELECT 1) SELECT n FROM messages",
        "SELECT * FROM (WITH messages AS NOT MATERIALIZED (SELECT 1) SELECT * FROM messages) AS x",
    ] {
        assert_eq!(refused(sql, none()), SetError::Shadowed { place }, "{sql}");
    }
    for sql in
        ["SELECT n FROM t, messages AS m", "SELECT n FROM t, messages", "SELECT n FROM messages, t AS (b)"]
    {
        assert!(!matches!(compiled(sql, none()), Err(EffectError::Set(SetError::Shadowed { .. }))), "{sql}");
    }
    let beside = |lock: &str| SetSpec { lock: Some(lock.into()), ..none() };
    assert_eq!(
        refused("SELECT n FROM messages", beside("DELETE FROM t USING messages")),
        SetError::NoQuery { place: "lock" }
    );
    assert!(matches!(refused("SELECT n FROM messages", beside("COMMIT")), SetError::Statement { .. }));
    assert!(matches!(refused("SELECT n FROM messages", beside("SELECT 1")), SetError::ReadsNothing { .. }));
    let spec = EffectSpec { set: Some(none()), ..EffectSpec::new("SELECT n FROM messages") };
    for (spec, error) in [
        (
            EffectSpec { expect_rows: Some(crate::effect::ExpectRows::Any), ..spec.clone() },
            SetError::ExpectRows,
        ),
        (EffectSpec { optional: vec!["amount".into()], ..spec.clone() }, SetError::Optional("amount".into())),
        (
            EffectSpec {
                params: [("a".into(), ColumnSpec::new("int4").param)].into_iter().collect(),
                ..spec.clone()
            },
            SetError::Params,
        ),
    ] {
        assert_eq!(CompiledEffect::compile(&spec).unwrap_err(), EffectError::Set(error));
    }
}

#[test]
fn steps_keep_the_order_of_effects() {
    assert_eq!(steps(0, []), []);
    assert_eq!(steps(2, []), [Step::Each(0..2)]);
    assert_eq!(steps(2, [0, 1]), [Step::Set(0), Step::Set(1)]);
    assert_eq!(steps(4, [1]), [Step::Each(0..1), Step::Set(0), Step::Each(2..4)]);
    assert_eq!(steps(3, [0, 2]), [Step::Set(0), Step::Each(1..2), Step::Set(1)]);
}

#[test]
fn effects_that_run_for_the_same_messages_share_their_columns() {
    let effects: Vec<CompiledEffect> = [
        amount("int8").column("account_id", "int4"),
        SetSpec::default().column("account_id", "int4"),
        amount("numeric"),
    ]
    .into_iter()
    .map(|set| compiled("SELECT n FROM messages", set).unwrap())
    .collect();
    let groups = set_groups(&effects);
    assert_eq!(groups.len(), 1);
    let (columns, members) = &groups[0];
    assert_eq!(columns.types().len(), 3, "the amount has two types");
    assert_eq!(*members, [(0, vec![0, 1]), (1, vec![0]), (2, vec![2])]);
    assert_eq!((columns.effect_of(1), columns.effect_of(2)), (0, 2));
}

proptest! {
    #[test]
    fn any_declaration_is_answered(
        sql in "(WITH |RECURSIVE |messages|SELECT |[*(),;. ]|AS |n |INSERT INTO t |'|\"){0,12}",
        name in any::<String>(),
        type_name in any::<String>(),
    ) {
        if let Ok(effect) = compiled(&sql, SetSpec::default().column(&name, &type_name)) {
            let set = effect.set.unwrap();
            let kept = set.types[0].as_deref().unwrap();
            prop_assert!(kept.bytes().all(|b| b.is_ascii_alphanumeric() || b"_. []".contains(&b)), "{}", kept);
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{}", name);
            let _ = set.reads.render(effect.statement.sql(), "messages AS (X)");
        }
    }
}
