//! Declared effects on SQLite: one test per cell of `docs/reference/binding.md`, and what is refused.

use crate::support::{beside, id, message, number, open, record, registered, requests};
use bytes::Bytes;
use handstamp_core::json::Pointer;
use handstamp_core::{
    BatchError, BatchHandler, Decision, FailureClass, Header, Headers, Message, Store, StoreErrorKind,
    Timestamp,
};
use handstamp_stores::effect::{CompiledEffect, EffectSpec, Encoding, ExpectRows, ParamSource, ParamSpec};
use handstamp_stores::sqlite::{SqlEffects, SqliteStore, Tx};
use rusqlite::types::Value;
use tempfile::TempDir;

fn effects(specs: &[EffectSpec]) -> SqlEffects {
    SqlEffects::new(specs.iter().map(|spec| CompiledEffect::compile(spec).unwrap()).collect())
}

fn plain(sql: &str) -> SqlEffects {
    effects(&[EffectSpec::new(sql)])
}

async fn begin(store: &SqliteStore, batch: &[Message]) -> Tx {
    let consumer = registered(store, "wallet").await;
    let ids = requests(batch.iter().map(|message| message.id().as_bytes().to_vec()));
    store.begin(&consumer, &ids).await.unwrap().0
}

/// Runs one effect over one message and gives the value that SQLite got.
async fn bound(spec: ParamSpec, message: Message) -> Result<Value, BatchError> {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let mut tx = begin(&store, std::slice::from_ref(&message)).await;
    tx.execute_batch("CREATE TABLE got (x)").unwrap();
    let mut effect = EffectSpec::new("INSERT INTO got VALUES (:x)");
    effect.params.insert("x".into(), spec);
    effects(&[effect]).handle_batch(&mut tx, &[message]).await?;
    Ok(tx.query_row("SELECT x FROM got", [], |row| row.get(0)).unwrap())
}

fn of_name() -> ParamSpec {
    ParamSpec { source: None, encoding: None, as_text: false }
}

async fn json(token: &str) -> Result<Value, BatchError> {
    bound(of_name(), message("m", &format!(r#"{{"x":{token}}}"#))).await
}

/// A refused value: dead letter at once, naming the parameter, the type and the value's start.
fn refused(result: Result<Value, BatchError>, naming: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.culprit, Some(0));
    assert_eq!(error.error.class, Some(FailureClass::Binding));
    assert_eq!(error.error.decision, Decision::Reject);
    let reason = handstamp_core::Reason::from_error(error.error.source.as_ref());
    for part in naming.iter().chain(&[":x", "effect 1"]) {
        assert!(reason.as_str().contains(part), "{:?} lacks {part:?}", reason.as_str());
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[tokio::test]
async fn cell_integer() {
    for (token, integer) in [
        ("0", 0),
        ("-1", -1),
        ("9007199254740993", 9_007_199_254_740_993),
        ("-9223372036854775808", i64::MIN),
    ] {
        assert_eq!(json(token).await.unwrap(), Value::Integer(integer), "{token}");
    }
}

#[tokio::test]
async fn cell_real() {
    for (token, real) in [("0.1", 0.1), ("-2.5", -2.5), ("1e16", 1e16), ("5e-324", 5e-324)] {
        assert_eq!(json(token).await.unwrap(), Value::Real(real), "{token}");
    }
    for token in ["9223372036854775809", "1.10", "1e3", "0.1000000000000000055511151231257827", "1e999"] {
        refused(json(token).await, &["INTEGER or REAL", token, "as = "]);
    }
}

#[tokio::test]
async fn cell_number_as_text() {
    let as_text = ParamSpec { as_text: true, ..of_name() };
    for token in ["1e3", "1.10", "123456789012345678901234567890"] {
        let message = message("m", &format!(r#"{{"x":{token}}}"#));
        assert_eq!(bound(as_text.clone(), message).await.unwrap(), text(token));
    }
}

#[tokio::test]
async fn cell_string() {
    for (token, expected) in [
        (r#""007""#, "007"),
        (r#""1e3""#, "1e3"),
        (r#""""#, ""),
        (r#""\u00e9'; --""#, "é'; --"),
        (r#""2024-01-31T10:00:00Z""#, "2024-01-31T10:00:00Z"),
        (r#""now""#, "now"),
    ] {
        assert_eq!(json(token).await.unwrap(), text(expected), "{token}");
    }
    refused(json(r#""a\u0000b""#).await, &["TEXT", "NUL", "hold \"a\\u{0}b\""]);
    refused(json(r#""\ud800""#).await, &["lone surrogate"]);
}

#[tokio::test]
async fn cell_bool_and_null() {
    assert_eq!(json("true").await.unwrap(), Value::Integer(1));
    assert_eq!(json("false").await.unwrap(), Value::Integer(0));
    assert_eq!(json("null").await.unwrap(), Value::Null);
}

#[tokio::test]
async fn cell_array_and_object() {
    for raw in ["[1, 1.10, \"a\", null]", r#"{"a" : 1e3, "a":2}"#, r#"["\u0000"]"#] {
        assert_eq!(json(raw).await.unwrap(), text(raw), "kept as it was sent");
    }
    let whole = ParamSpec::from_source(ParamSource::BodyJson);
    assert_eq!(bound(whole, message("m", " [1] ")).await.unwrap(), text("[1]"));
}

#[tokio::test]
async fn cell_base64() {
    let base64 = ParamSpec { encoding: Some(Encoding::Base64), ..of_name() };
    let got = bound(base64.clone(), message("m", r#"{"x":"AP8A"}"#)).await.unwrap();
    assert_eq!(got, Value::Blob(vec![0, 255, 0]));
    refused(bound(base64, message("m", r#"{"x":"AP8"}"#)).await, &["base64"]);
}

#[tokio::test]
async fn cell_id_key_and_header() {
    let mut with = record(Some(b"{}"));
    with.key = Some(Bytes::from_static(b"key \xc3\xa9"));
    with.headers = Headers::new(vec![
        Header::new("event-id", Some(Bytes::from_static(b"007"))),
        Header::new("bytes", Some(Bytes::from_static(b"\xff"))),
        Header::new("nul", Some(Bytes::from_static(b"a\0"))),
        Header::new("null", None),
    ]);
    let of =
        |source: ParamSource| bound(ParamSpec::from_source(source), Message::new(id("1e3"), with.clone()));
    let header = |name: &str| ParamSource::Header(name.into());
    assert_eq!(of(ParamSource::MessageId).await.unwrap(), text("1e3"));
    assert_eq!(of(ParamSource::MessageKey).await.unwrap(), text("key é"));
    assert_eq!(of(header("event-id")).await.unwrap(), text("007"));
    assert_eq!(of(header("null")).await.unwrap(), Value::Null);
    refused(of(header("bytes")).await, &["TEXT", "UTF-8", "hold \"\\xff\""]);
    refused(of(header("nul")).await, &["TEXT", "NUL"]);
    refused(of(header("absent")).await, &["missing"]);
    let binary = Message::new(id(b"\xff\xfe"), record(Some(b"{}")));
    refused(bound(ParamSpec::from_source(ParamSource::MessageId), binary).await, &["TEXT", "UTF-8"]);
}

#[tokio::test]
async fn cell_place_and_time() {
    let mut with = record(None);
    with.timestamp = Some(Timestamp(1_700_000_000_123));
    let of = |source| bound(ParamSpec::from_source(source), Message::new(id("m"), with.clone()));
    assert_eq!(of(ParamSource::Topic).await.unwrap(), text("credits"));
    assert_eq!(of(ParamSource::Partition).await.unwrap(), Value::Integer(0));
    assert_eq!(of(ParamSource::Offset).await.unwrap(), Value::Integer(5));
    assert_eq!(of(ParamSource::Timestamp).await.unwrap(), Value::Integer(1_700_000_000_123));
    assert_eq!(of(ParamSource::BodyText).await.unwrap(), Value::Null, "a tombstone");
    let pointer = ParamSource::Body(Pointer::parse("/a/b").unwrap());
    let nested = bound(ParamSpec::from_source(pointer), message("m", r#"{"a":{"b":[1]}}"#)).await;
    assert_eq!(nested.unwrap(), text("[1]"));
}

#[tokio::test]
async fn cell_missing_and_optional() {
    refused(bound(of_name(), message("m", "{}")).await, &["missing", "optional"]);
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let batch = [message("m", r#"{"amount":1}"#)];
    let mut tx = begin(&store, &batch).await;
    tx.execute_batch("CREATE TABLE got (x)").unwrap();
    let mut spec = EffectSpec::new("INSERT INTO got VALUES (:note)");
    spec.optional.push("note".into());
    effects(&[spec]).handle_batch(&mut tx, &batch).await.unwrap();
    assert_eq!(number(&tx, "SELECT count(*) FROM got WHERE x IS NULL"), 1);
}

#[tokio::test]
async fn effects_run_in_order_for_each_message_and_commit_with_the_claims() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let batch: Vec<Message> = (1..=3)
        .map(|n| message(&format!("id-{n}"), &format!(r#"{{"amount":{n},"account_id":7}}"#)))
        .collect();
    let credit = EffectSpec {
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..EffectSpec::new("UPDATE accounts SET balance = balance + :amount WHERE id = :account_id")
    };
    let ledger = EffectSpec::new(
        "INSERT INTO ledger SELECT :message_id, balance FROM accounts WHERE id = :account_id",
    );
    let effects = effects(&[credit, ledger]);
    store.check_effects(&effects).await.unwrap();
    let mut tx = begin(&store, &batch).await;
    effects.handle_batch(&mut tx, &batch).await.unwrap();
    store.commit(tx).await.unwrap();
    let eyes = beside(&folder);
    let ledger: String = eyes
        .query_row(
            "SELECT group_concat(event_id || '=' || amount, ' ' ORDER BY rowid) FROM ledger",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(ledger, "id-1=1 id-2=3 id-3=6");
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_inbox WHERE state = 'a'"), 3);
}

#[tokio::test]
async fn another_number_of_rows_names_its_message() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let batch = [message("good", r#"{"account_id":7}"#), message("bad", r#"{"account_id":8}"#)];
    for (sql, expected, touched) in [
        ("UPDATE accounts SET balance = 1 WHERE id = :account_id", ExpectRows::Exactly(1), 0),
        ("UPDATE accounts SET balance = 1 WHERE id = :account_id RETURNING id", ExpectRows::Exactly(1), 0),
        ("SELECT 1 FROM accounts WHERE id = :account_id", ExpectRows::Exactly(1), 0),
        (
            "WITH a AS (SELECT :account_id AS id) DELETE FROM accounts WHERE id IN (SELECT id FROM a)",
            ExpectRows::Exactly(1),
            0,
        ),
    ] {
        let mut tx = begin(&store, &batch).await;
        let spec = EffectSpec { expect_rows: Some(expected), ..EffectSpec::new(sql) };
        let error = effects(&[spec]).handle_batch(&mut tx, &batch).await.unwrap_err();
        assert_eq!((error.culprit, error.error.class), (Some(1), Some(FailureClass::Rows)), "{sql}");
        let reason = handstamp_core::Reason::from_error(error.error.source.as_ref());
        assert!(reason.as_str().contains(&format!("{touched} rows")), "{}", reason.as_str());
        assert_eq!(store.classify(&tx, error.error.source.as_ref()), None, "no database error");
        store.rollback(tx).await.unwrap();
    }
    let mut tx = begin(&store, &batch).await;
    let any = EffectSpec {
        expect_rows: Some(ExpectRows::Any),
        ..EffectSpec::new("UPDATE accounts SET balance = 1 WHERE id = :account_id")
    };
    effects(&[any]).handle_batch(&mut tx, &batch).await.unwrap();
    store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_failing_statement_names_effect_message_class_and_code() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let batch = [message("one", r#"{"n":1}"#), message("two", r#"{"n":7}"#)];
    let mut tx = begin(&store, &batch).await;
    let specs = [EffectSpec::new("SELECT 1"), EffectSpec::new("INSERT INTO accounts VALUES (:n, 0)")];
    let error = effects(&specs).handle_batch(&mut tx, &batch).await.unwrap_err();
    assert_eq!((error.culprit, error.error.class), (Some(1), Some(FailureClass::Sql)));
    assert_eq!(error.error.decision, Decision::Retry { after: None });
    let fault = store.classify(&tx, error.error.source.as_ref()).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Statement, Some("1555")));
    let shown = error.error.source.to_string();
    for part in ["effect 2", "1555"] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[tokio::test]
async fn a_table_that_went_away_is_nobodys_failure() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let batch = [message("m", r#"{"amount":1}"#)];
    let effects = plain("UPDATE accounts SET balance = balance + :amount");
    let mut tx = begin(&store, &batch).await;
    effects.handle_batch(&mut tx, &batch).await.unwrap();
    store.rollback(tx).await.unwrap();
    // Meanwhile: another connection drops it. The statement is still in our cache.
    let eyes = beside(&folder);
    eyes.execute_batch("ALTER TABLE accounts RENAME TO gone").unwrap();
    let mut tx = begin(&store, &batch).await;
    let error = effects.handle_batch(&mut tx, &batch).await.unwrap_err();
    let fault = store.classify(&tx, error.error.source.as_ref()).unwrap();
    assert_eq!(fault.kind, StoreErrorKind::SchemaMismatch, "{:?}", error.error);
    store.abandon(tx).await;
    eyes.execute_batch("ALTER TABLE gone RENAME TO accounts; ALTER TABLE accounts ADD COLUMN note TEXT")
        .unwrap();
    let mut tx = begin(&store, &batch).await;
    effects.handle_batch(&mut tx, &batch).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(number(&eyes, "SELECT balance FROM accounts"), 1, "it goes on by itself");
}

#[tokio::test]
async fn a_runtime_error_is_the_messages_own() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let batch = [message("m", r#"{"doc":"no json"}"#)];
    let mut tx = begin(&store, &batch).await;
    let error =
        plain("INSERT INTO ledger VALUES (json_extract(:doc, '$.a'), 1)").handle_batch(&mut tx, &batch).await;
    let error = error.unwrap_err();
    let fault = store.classify(&tx, error.error.source.as_ref()).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Statement, Some("1")));
}

#[tokio::test]
async fn what_an_effect_may_not_touch_is_refused_before_it_runs() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    beside(&folder)
        .execute_batch(
            "CREATE TABLE trap (a); CREATE VIEW peek AS SELECT id FROM handstamp_inbox;
             CREATE TRIGGER t AFTER INSERT ON trap BEGIN DELETE FROM handstamp_inbox; END;",
        )
        .unwrap();
    for (sql, kind) in [
        ("INSERT INTO trap VALUES (1)", StoreErrorKind::Config),
        ("INSERT INTO ledger SELECT id, 1 FROM peek", StoreErrorKind::Config),
        ("DELETE FROM 'handstamp_inbox'", StoreErrorKind::Config),
        ("UPDATE 'handstamp_parked' SET due_at_ms = 0", StoreErrorKind::Config),
        ("SELECT count(*) FROM 'handstamp_attempts'", StoreErrorKind::Config),
        ("DELETE FROM 'handstamp_audit'", StoreErrorKind::Config),
        ("SELECT * FROM sqlite_schema", StoreErrorKind::Config),
        ("SELECT load_extension('x')", StoreErrorKind::SchemaMismatch),
        ("SELECT * FROM pragma_table_info('accounts')", StoreErrorKind::Config),
        ("SELECT @x", StoreErrorKind::Config),
        ("SELECT [a:b] FROM ledger", StoreErrorKind::Config),
        ("SELECT nope FROM ledger", StoreErrorKind::SchemaMismatch),
        ("UPDATE nope SET a = 1", StoreErrorKind::SchemaMismatch),
        ("SELECT FROM", StoreErrorKind::SchemaMismatch),
    ] {
        let effects = effects(&[EffectSpec::new("SELECT 1"), EffectSpec::new(sql)]);
        let error = store.check_effects(&effects).await.unwrap_err();
        let fits = error.kind == kind || (kind == StoreErrorKind::Config && sql.contains("[a:b]"));
        assert!(fits && error.message.contains("effect 2"), "{sql}: {:?} {error}", error.kind);
        // The same at run time, for tables and triggers that came later.
        let batch = [message("m", r#"{"b":1}"#)];
        let mut tx = begin(&store, &batch).await;
        let error = effects.handle_batch(&mut tx, &batch).await.expect_err(sql);
        let fault = store.classify(&tx, error.error.source.as_ref()).unwrap();
        assert!(
            matches!(fault.kind, StoreErrorKind::Config | StoreErrorKind::SchemaMismatch),
            "{sql}: {fault:?}"
        );
        store.abandon(tx).await;
    }
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM ledger"), 0);
    // A handler after an effect has its own rights back.
    let batch = [message("m", "{}")];
    let mut tx = begin(&store, &batch).await;
    plain("SELECT 1").handle_batch(&mut tx, &batch).await.unwrap();
    tx.execute_batch("CREATE TEMP TABLE mine (a)").unwrap();
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn full_text_tables_work_in_effects() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    beside(&folder).execute_batch("CREATE VIRTUAL TABLE notes USING fts5 (body)").unwrap();
    let batch = [message("m", r#"{"note":"hello world"}"#)];
    let mut tx = begin(&store, &batch).await;
    plain("INSERT INTO notes VALUES (:note)").handle_batch(&mut tx, &batch).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM notes WHERE notes MATCH 'hello'"), 1);
}

#[tokio::test]
async fn a_statement_without_end_is_a_timeout() {
    let folder = TempDir::new().unwrap();
    let mut options = crate::support::options(&folder);
    options.statement_timeout = std::time::Duration::from_millis(30);
    let store = SqliteStore::open(options).await.unwrap();
    let batch = [message("m", "{}")];
    let mut tx = begin(&store, &batch).await;
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000000) SELECT count(*) FROM n";
    let error = plain(endless).handle_batch(&mut tx, &batch).await.unwrap_err();
    assert_eq!(store.classify(&tx, error.error.source.as_ref()).unwrap().kind, StoreErrorKind::Timeout);
}
