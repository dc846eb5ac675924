//! Set effects on SQLite: exact values in columns, no message lost, a batch taken apart until only the bad one is left
//! out.

use crate::support::{beside, id, message, number, open, options, record, registered, requests};
use bytes::Bytes;
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::retry::RetryPolicy;
use handstamp_core::{
    BatchError, BatchHandler, Consumer, ConsumerName, ConsumerOptions, Counts, Decision, FailureClass,
    Fingerprint, Header, Headers, Identity, Message, Store, StoreErrorKind, Timestamp,
};
use handstamp_stores::effect::{
    ColumnSpec, CompiledEffect, EffectSpec, ExpectRows, ExpectSet, ParamSource, ParamSpec, SetSpec,
};
use handstamp_stores::sqlite::{SqlEffects, SqliteStore, Tx};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use rusqlite::types::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

const TABLES: &str = "DELETE FROM accounts;
    INSERT INTO accounts WITH RECURSIVE i(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM i WHERE n < 10) SELECT n, 0 FROM i;
    CREATE TABLE entries (event_id TEXT NOT NULL, account_id INTEGER NOT NULL, amount INTEGER CHECK (amount < 1000)) STRICT;";
const NAIVE: &str =
    "UPDATE accounts SET balance = balance + m.amount FROM messages AS m WHERE accounts.id = m.id";
const SUMMED: &str = "UPDATE accounts SET balance = balance + m.amount
    FROM (SELECT id, sum(amount) AS amount FROM messages GROUP BY id) AS m WHERE accounts.id = m.id";
const LEDGER: &str = "INSERT INTO entries SELECT message_id, id, amount FROM messages ORDER BY n";

fn columns() -> SetSpec {
    SetSpec::default().column("id", "integer").column("amount", "integer")
}

fn set(sql: &str, set: SetSpec) -> EffectSpec {
    EffectSpec { set: Some(set), ..EffectSpec::new(sql) }
}

fn effects(specs: &[EffectSpec]) -> SqlEffects {
    SqlEffects::new(specs.iter().map(|spec| CompiledEffect::compile(spec).unwrap()).collect())
}

fn by_query(sql: &str) -> ExpectSet {
    ExpectSet::Query(sql.into())
}

fn credits(credits: &[(i64, &str)]) -> Vec<Message> {
    let credit = |(at, (id, amount)): (usize, &(i64, &str))| {
        message(&format!("m{at}"), &format!(r#"{{"id":{id},"amount":{amount}}}"#))
    };
    credits.iter().enumerate().map(credit).collect()
}

async fn wallet(folder: &TempDir) -> SqliteStore {
    let store = open(folder).await;
    beside(folder).execute_batch(TABLES).unwrap();
    store
}

async fn apply(store: &SqliteStore, effects: &SqlEffects, batch: &[Message]) -> Result<(), BatchError> {
    let consumer = registered(store, "wallet").await;
    let ids = requests(batch.iter().map(|message| message.id().as_bytes().to_vec()));
    let mut tx = store.begin(&consumer, &ids).await.unwrap().0;
    let outcome = effects.handle_batch(&mut tx, batch).await;
    match &outcome {
        Ok(()) => store.commit(tx).await.unwrap(),
        Err(_) => store.rollback(tx).await.unwrap(),
    }
    outcome
}

/// The whole text of an error.
fn told(error: &BatchError) -> String {
    handstamp_core::Reason::from_error(error.error.source.as_ref()).as_str().to_owned()
}

async fn stored(column: ColumnSpec, messages: &[Message]) -> Result<Vec<Value>, BatchError> {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    let eyes = beside(&folder);
    eyes.execute_batch("CREATE TABLE got (n, x)").unwrap();
    let mut spec = SetSpec::default();
    spec.columns.insert("x".into(), column);
    apply(&store, &effects(&[set("INSERT INTO got SELECT n, x FROM messages", spec)]), messages).await?;
    let mut statement = eyes.prepare("SELECT x FROM got ORDER BY n").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    Ok(rows.map(Result::unwrap).collect())
}

#[tokio::test]
async fn values_arrive_exactly() {
    for (type_, token, expected) in [
        ("integer", "9223372036854775807", Value::Integer(i64::MAX)),
        ("INT8", "-9223372036854775808", Value::Integer(i64::MIN)),
        ("int2", "-32768", Value::Integer(-32_768)),
        ("real", "0.1", Value::Real(0.1)),
        ("real", "2", Value::Real(2.0)),
        ("double precision", "-1.7976931348623157e308", Value::Real(f64::MIN)),
        ("numeric", "9007199254740993", Value::Integer(9_007_199_254_740_993)),
        ("numeric", "0.1", Value::Real(0.1)),
        ("text", "\"00'7\\n\"", Value::Text("00'7\n".into())),
        ("text", "9007199254740993.10", Value::Text("9007199254740993.10".into())),
        ("text", "\"7\"", Value::Text("7".into())),
        ("boolean", "true", Value::Integer(1)),
        (
            "json",
            "{\"b\": 1e2, \"a\": 9007199254740993}",
            Value::Text("{\"b\": 1e2, \"a\": 9007199254740993}".into()),
        ),
        ("json", "\"a\\\"b\"", Value::Text("\"a\\\"b\"".into())),
        ("json", "1.50", Value::Text("1.50".into())),
        ("any", "1", Value::Integer(1)),
        ("any", "\"1\"", Value::Text("1".into())),
    ] {
        let body = |token: &str| format!(r#"{{"x":{token}}}"#);
        let batch = [message("a", &body(token)), message("b", &body("null")), message("c", &body(token))];
        let found = stored(ColumnSpec::new(type_), &batch).await.unwrap_or_else(|e| panic!("{type_}: {e:?}"));
        assert_eq!(found, [expected.clone(), Value::Null, expected], "{type_} {token}");
    }
}

#[tokio::test]
async fn what_does_not_fit_names_its_message_before_anything_runs() {
    for (type_, token, why) in [
        ("integer", "9223372036854775808", "out of range"),
        ("integer", "1.0", "not written as an integer"),
        ("integer", "\"1\"", "it is no number"),
        ("int4", "2147483648", "out of range"),
        ("real", "9007199254740993", "does not come back the same"),
        ("real", "0.10000000000000001", "does not come back the same"),
        ("numeric", "12345678901234567890.5", "digits would be lost"),
        ("text", "\"a\\u0000b\"", "NUL"),
        ("text", "true", "it is no text"),
        ("blob", "\"AA==\"", "base64"),
        ("boolean", "1", "neither true nor false"),
    ] {
        let bad = format!(r#"{{"x":{token}}}"#);
        let batch = [message("a", r#"{"x":null}"#), message("b", &bad), message("c", r#"{"x":null}"#)];
        let error = stored(ColumnSpec::new(type_), &batch).await.unwrap_err();
        assert_eq!(
            (error.culprit, error.error.class),
            (Some(1), Some(FailureClass::Binding)),
            "{type_} {token}"
        );
        assert_eq!(error.error.decision, Decision::Reject);
        let told = told(&error);
        assert!(told.contains("effect 1") && told.contains("column x") && told.contains(why), "{told}");
    }
    for (body, why) in [(&b"{}"[..], "missing"), (b"\xff", "not UTF-8"), (br#"{"x":1,"x":1}"#, "column x")] {
        let bad = Message::new(id("b"), record(Some(body)));
        let error = stored(ColumnSpec::new("any"), &[message("a", r#"{"x":1}"#), bad]).await.unwrap_err();
        assert_eq!((error.culprit, error.error.class), (Some(1), Some(FailureClass::Binding)));
        assert!(told(&error).contains(why), "{error:?}");
    }
}

#[tokio::test]
async fn built_in_columns_headers_and_bytes_arrive() {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    let eyes = beside(&folder);
    eyes.execute_batch("CREATE TABLE seen (n, v)").unwrap();
    let mut full = record(Some(br#"{ "a" : 1 }"#));
    full.key = Some(Bytes::from_static(b"k\xff"));
    full.timestamp = Some(Timestamp(1_709_208_000_123));
    full.headers = Headers::new(vec![
        Header::new("source", Some("web".into())),
        Header::new("raw", Some(Bytes::from_static(b"\xff\0"))),
    ]);
    let raw = ColumnSpec {
        param: ParamSpec::from_source(ParamSource::Header("raw".into())),
        ..ColumnSpec::new("blob")
    };
    let mut spec = SetSpec::default().column("message_key", "bytea").column("header_source", "text");
    spec.columns.insert("raw".into(), raw);
    let sql =
        "INSERT INTO seen SELECT n, concat_ws('|', message_id, hex(message_key), topic, partition, offset,
        timestamp, body ->> 'a', body_text, header_source, hex(raw)) FROM messages";
    apply(&store, &effects(&[set(sql, spec)]), &[Message::new(id("m1"), full.clone())]).await.unwrap();
    let seen: String = eyes.query_row("SELECT v FROM seen", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, r#"m1|6BFF|credits|0|5|1709208000123|1|{ "a" : 1 }|web|FF00"#);
    // A key that is no text keeps only those back who want it as one.
    let named = set("INSERT INTO seen SELECT 1, message_key FROM messages", SetSpec::default());
    let error = apply(&store, &effects(&[named]), &[Message::new(id("m2"), full.clone())]).await.unwrap_err();
    assert_eq!(error.error.class, Some(FailureClass::Binding));
    let narrow = set("INSERT INTO seen SELECT n, topic FROM messages", SetSpec::default());
    apply(&store, &effects(&[narrow]), &[Message::new(id("m3"), full)]).await.unwrap();
}

#[tokio::test]
async fn a_row_too_few_or_too_many_is_refused() {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    let eyes = beside(&folder);
    let expecting = |expect: ExpectSet| SetSpec { expect, ..columns() };
    let distinct = by_query("SELECT count(DISTINCT id) FROM messages");
    let batch = credits(&[(1, "5"), (1, "6"), (2, "7")]);
    for (sql, expect, says) in [
        (NAIVE, ExpectSet::EachMessage, "touched 2 rows for 3 messages, expected 3; a statement that makes"),
        (SUMMED, ExpectSet::EachMessage, "touched 2 rows for 3 messages, expected 3"),
        (SUMMED, by_query("SELECT count(*) FROM messages"), "touched 2 rows for 3 messages, expected 3"),
        (SUMMED, by_query("SELECT 2.0 FROM messages LIMIT 1"), "a value of type Real"),
        (SUMMED, by_query("SELECT 2 FROM messages"), "answered several rows"),
        (SUMMED, by_query("SELECT 2 FROM messages WHERE 0"), "answered no row"),
        (
            "UPDATE accounts SET balance = 1 WHERE (SELECT count(*) FROM messages) > 0",
            ExpectSet::EachMessage,
            "touched 10 rows",
        ),
        ("SELECT 1 FROM messages WHERE id = 1", ExpectSet::EachMessage, "touched 2 rows"),
    ] {
        let error = apply(&store, &effects(&[set(sql, expecting(expect))]), &batch).await.unwrap_err();
        assert_eq!((error.culprit, error.error.class), (None, Some(FailureClass::Rows)), "{sql}: {error:?}");
        assert!(told(&error).contains(says), "{sql}: {}", told(&error));
    }
    assert_eq!(number(&eyes, "SELECT sum(balance) FROM accounts"), 0);
    let error = apply(&store, &effects(&[set(NAIVE, columns())]), &credits(&[(99, "1")])).await.unwrap_err();
    assert_eq!((error.culprit, error.error.class), (Some(0), Some(FailureClass::Rows)));
    apply(&store, &effects(&[set(SUMMED, expecting(distinct))]), &batch).await.unwrap();
    assert_eq!(number(&eyes, "SELECT sum(balance) FROM accounts"), 18);
    let nothing = "UPDATE accounts SET balance = 0 FROM messages WHERE accounts.id = 99";
    let again: Vec<Message> = (0..3).map(|at| message(&format!("x{at}"), r#"{"id":1,"amount":1}"#)).collect();
    apply(&store, &effects(&[set(nothing, expecting(ExpectSet::Any))]), &again).await.unwrap();
}

#[tokio::test]
async fn every_kind_of_statement_reads_the_messages_and_the_order_of_effects_is_kept() {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    let eyes = beside(&folder);
    eyes.execute_batch("CREATE TABLE seen (v); CREATE TABLE messages (x)").unwrap();
    let each = |what: &str| EffectSpec {
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..EffectSpec::new(format!("INSERT INTO seen SELECT '{what} ' || :message_id"))
    };
    let sets = [
        "WITH wanted AS (SELECT message_id, id, amount FROM messages) INSERT INTO entries SELECT * FROM wanted",
        "WITH RECURSIVE r(i) AS (SELECT n FROM messages UNION SELECT i FROM r WHERE i < 0) SELECT i FROM r",
        "UPDATE accounts SET balance = balance + m.amount FROM messages AS m WHERE accounts.id = m.id RETURNING accounts.id",
        "INSERT INTO accounts SELECT id, amount FROM messages WHERE true ON CONFLICT DO UPDATE SET balance = balance + excluded.balance",
        "DELETE FROM entries WHERE event_id IN (SELECT message_id FROM messages)",
        "REPLACE INTO messages SELECT n FROM messages",
        "INSERT INTO seen SELECT 'set ' || message_id FROM messages ORDER BY n",
    ];
    let mut specs: Vec<EffectSpec> = sets.iter().map(|sql| set(sql, columns())).collect();
    specs.insert(0, each("a"));
    specs.push(each("b"));
    let effects = effects(&specs);
    store.check_effects(&effects).await.unwrap();
    apply(&store, &effects, &credits(&[(1, "5"), (2, "6")])).await.unwrap();
    assert_eq!(number(&eyes, "SELECT sum(balance) FROM accounts"), 22);
    assert_eq!(number(&eyes, "SELECT count(*) FROM entries"), 0);
    // What is written is the user's own table of that name.
    assert_eq!(number(&eyes, "SELECT count(*) FROM main.messages"), 2);
    let seen: String =
        eyes.query_row("SELECT group_concat(v, ',' ORDER BY rowid) FROM seen", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, "a m0,a m1,set m0,set m1,b m0,b m1");
}

#[tokio::test]
async fn what_does_not_fit_is_found_at_the_start() {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    let count = |query: &str| SetSpec { expect: by_query(query), ..columns() };
    for (sql, spec, kind, says) in [
        (
            "INSERT INTO entries SELECT message_id, id, amont FROM messages",
            columns(),
            StoreErrorKind::SchemaMismatch,
            "amont",
        ),
        (
            "INSERT INTO etnries SELECT message_id FROM messages",
            columns(),
            StoreErrorKind::SchemaMismatch,
            "etnries",
        ),
        (
            LEDGER,
            columns().column("x", "uuid"),
            StoreErrorKind::Config,
            "columns.x: uuid is no type of SQLite's",
        ),
        (
            LEDGER,
            count("SELECT count(*), 1 FROM messages"),
            StoreErrorKind::Config,
            "expect_rows_sql answers 2 columns",
        ),
        (LEDGER, count("SELECT count(x) FROM messages"), StoreErrorKind::SchemaMismatch, "no such column: x"),
        (
            LEDGER,
            SetSpec { lock: Some("SELECT n FROM messages".into()), ..columns() },
            StoreErrorKind::Config,
            "one writer",
        ),
    ] {
        let error = store.check_effects(&effects(&[set(sql, spec)])).await.unwrap_err();
        let text = handstamp_core::Reason::from_error(&error);
        assert!(
            text.as_str().contains("effect 1") && text.as_str().contains(says),
            "{sql}: {}",
            text.as_str()
        );
        assert_eq!(error.kind, kind, "{sql}");
    }
    let fits = effects(&[set(LEDGER, count("SELECT count(*) FROM messages"))]);
    store.check_effects(&fits).await.unwrap();
    let (options, name, fingerprint) =
        (options(&folder), ConsumerName::new("w").unwrap(), Fingerprint("f".into()));
    let rehearsed = SqliteStore::rehearse(&options, &fits, &name, &fingerprint);
    assert!(rehearsed.await.unwrap().unfit.is_empty());
}

/// What an effect may not touch is the table behind the relation too.
#[tokio::test]
async fn the_table_behind_the_relation_cannot_be_written() {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    for sql in ["DELETE FROM temp.handstamp_set_0_2", "SELECT * FROM handstamp_set_0_2, messages"] {
        assert!(CompiledEffect::compile(&set(sql, columns())).is_err(), "{sql}");
    }
    // Nothing of a batch stays for the next one, whatever became of it.
    let effects = effects(&[set(LEDGER, columns())]);
    apply(&store, &effects, &credits(&[(1, "5000"), (2, "1")])).await.unwrap_err();
    apply(&store, &effects, &credits(&[(1, "1")])).await.unwrap();
    apply(&store, &effects, &[]).await.unwrap();
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM entries"), 1);
}

/// A handler that counts how often it ran.
struct Counted(SqlEffects, Arc<AtomicU64>);

impl BatchHandler<Tx> for Counted {
    async fn handle_batch(&self, tx: &mut Tx, batch: &[Message]) -> Result<(), BatchError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.handle_batch(tx, batch).await
    }
}

async fn run(folder: &TempDir, specs: &[EffectSpec], bodies: &[String], batch_max: usize) -> (Counts, u64) {
    let store = wallet(folder).await;
    let broker = LogBroker::new("credits", 1);
    for body in bodies {
        broker.publish(0, Payload::value(body.clone())).unwrap();
    }
    let ran = Arc::new(AtomicU64::new(0));
    let retry = RetryPolicy { max_attempts: 1, immediate: 1, ..RetryPolicy::default() };
    let options = ConsumerOptions {
        batch_max,
        queue_max_bytes: 64 << 20,
        batch_max_bytes: 64 << 20,
        policy: Policy { retry, ..Policy::default() },
        messages_max: Some(u64::try_from(bodies.len()).unwrap()),
        ..ConsumerOptions::default()
    };
    let consumer = Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Field(Pointer::member("key")))
        .store(store)
        .batch_handler(Counted(effects(specs), Arc::clone(&ran)))
        .options(options);
    let report = consumer.run_local(std::future::pending()).await.unwrap();
    (report.counts, ran.load(Ordering::Relaxed))
}

fn body(key: usize, id: i64, amount: &str) -> String {
    format!(r#"{{"key":"k{key}","id":{id},"amount":{amount}}}"#)
}

/// The statement that adds only one of several credits, as it is written by mistake.
#[tokio::test]
async fn two_credits_to_one_account_are_two() {
    let folder = TempDir::new().unwrap();
    let bodies = [body(1, 7, "10"), body(2, 7, "20"), body(3, 8, "1"), body(4, 7, "30")];
    let (counts, ran) = run(&folder, &[set(NAIVE, columns())], &bodies, 500).await;
    assert_eq!((counts.applied, counts.dead_lettered, counts.pending()), (4, 0, 0), "{counts:?}");
    assert!(ran > 1, "it was taken apart");
    let eyes = beside(&folder);
    assert_eq!(number(&eyes, "SELECT balance FROM accounts WHERE id = 7"), 60);
    assert_eq!(number(&eyes, "SELECT balance FROM accounts WHERE id = 8"), 1);
}

#[tokio::test]
async fn a_message_that_comes_twice_is_there_once() {
    let folder = TempDir::new().unwrap();
    let bodies = [body(1, 7, "10"), body(1, 7, "10"), body(2, 8, "1"), body(1, 7, "10")];
    let (counts, _) = run(&folder, &[set(LEDGER, columns())], &bodies, 500).await;
    assert_eq!((counts.applied, counts.duplicate), (2, 2), "{counts:?}");
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM entries"), 2);
}

#[tokio::test]
async fn ten_thousand_messages_are_one_statement() {
    let folder = TempDir::new().unwrap();
    let store = wallet(&folder).await;
    let bodies: Vec<Message> = (0..10_000_usize)
        .map(|at| message(&format!("m{at}"), &body(at, i64::try_from(at % 10 + 1).unwrap(), "3")))
        .collect();
    let distinct = by_query("SELECT count(DISTINCT id) FROM messages");
    let specs = [set(LEDGER, columns()), set(SUMMED, SetSpec { expect: distinct, ..columns() })];
    apply(&store, &effects(&specs), &bodies).await.unwrap();
    let eyes = beside(&folder);
    assert_eq!(number(&eyes, "SELECT count(*) FROM accounts WHERE balance = 3000"), 10);
    assert_eq!(number(&eyes, "SELECT count(*) FROM entries"), 10_000);
}

#[tokio::test]
async fn one_bad_among_five_thousand_costs_few_runs_and_the_others_commit() {
    for bad in [0, 1, 2_499, 2_500, 3_333, 4_999] {
        let folder = TempDir::new().unwrap();
        let amount = |at| if at == bad { "5000" } else { "1" };
        let bodies: Vec<String> = (0..5_000).map(|at| body(at, 1, amount(at))).collect();
        let (counts, ran) = run(&folder, &[set(LEDGER, columns())], &bodies, 5_000).await;
        assert_eq!((counts.applied, counts.dead_lettered), (4_999, 1), "{bad}: {counts:?}");
        assert!(ran <= 27, "{bad}: the first run and at most 26 more, not {ran}");
        let eyes = beside(&folder);
        assert_eq!(number(&eyes, "SELECT count(*) FROM entries"), 4_999);
        assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_dead_letters WHERE class = 'sql'"), 1);
        println!("bad message {bad} of 5,000: {ran} runs");
    }
}
