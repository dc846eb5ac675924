//! Set effects on a real server: exact values in columns, no message lost, a batch taken apart until only the bad one
//! is left out.

use crate::harness::{Server, TestDatabase, on_each_server, request};
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::retry::RetryPolicy;
use handstamp_core::{
    BatchError, BatchHandler, Consumer, ConsumerKey, ConsumerName, ConsumerOptions, Counts, Decision,
    FailureClass, Header, Headers, Identity, Message, MessageId, Origin, Record, Store, StoreErrorKind,
    Timestamp,
};
use handstamp_stores::effect::{ColumnSpec, EffectSpec, ExpectRows, ExpectSet, ParamSource, SetSpec};
use handstamp_stores::postgres::{PostgresStore, SqlEffects, Tx};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

on_each_server!(
    values_arrive_exactly,
    built_in_columns_arrive,
    what_does_not_fit_names_its_message_before_anything_runs,
    a_row_too_few_or_too_many_is_refused,
    every_kind_of_statement_reads_the_messages,
    rows_are_locked_before_the_statement,
    effects_for_each_message_and_for_the_batch_keep_their_order,
    what_does_not_fit_the_tables_is_found_at_the_start,
    two_credits_to_one_account_are_two,
    a_message_that_comes_twice_is_there_once,
    ten_thousand_messages_are_one_statement,
);

const NAIVE: &str =
    "UPDATE accounts AS a SET balance = a.balance + m.amount FROM messages AS m WHERE a.id = m.id";
const SUMMED: &str = "UPDATE accounts AS a SET balance = a.balance + m.amount
    FROM (SELECT id, sum(amount) AS amount FROM messages GROUP BY id) AS m WHERE a.id = m.id";
const LEDGER: &str = "INSERT INTO ledger SELECT message_id, id, amount FROM messages ORDER BY n";

fn message(number: usize, body: &[u8]) -> Message {
    let record = Record {
        key: Some(bytes::Bytes::from_static(b"k\xff")),
        value: Some(bytes::Bytes::copy_from_slice(body)),
        headers: Headers::new(vec![
            Header::new("source", Some("web".into())),
            Header::new("raw", Some(bytes::Bytes::from_static(b"\xff\0"))),
        ]),
        origin: Origin { topic: "credits".into(), partition: 3, offset: 1 << 40, line: None },
        timestamp: Some(Timestamp(1_709_208_000_123)),
    };
    Message::new(MessageId::try_from(format!("m{number}").as_str()).unwrap(), record)
}

fn credits(credits: &[(i64, &str)]) -> Vec<Message> {
    let body = |(id, amount): &(i64, &str)| format!(r#"{{"id":{id},"amount":{amount}}}"#);
    credits.iter().enumerate().map(|(at, credit)| message(at, body(credit).as_bytes())).collect()
}

fn columns() -> SetSpec {
    SetSpec::default().column("id", "int4").column("amount", "numeric")
}

fn set(sql: &str, set: SetSpec) -> EffectSpec {
    EffectSpec { set: Some(set), ..EffectSpec::new(sql) }
}

fn effects(specs: &[EffectSpec]) -> SqlEffects {
    SqlEffects::compile(specs).unwrap()
}

fn by_query(sql: &str) -> ExpectSet {
    ExpectSet::Query(sql.into())
}

async fn apply(
    store: &PostgresStore,
    key: &ConsumerKey,
    effects: &SqlEffects,
    batch: &[Message],
) -> Result<(), BatchError> {
    let requests: Vec<_> = batch.iter().map(|m| request(m.id().as_str().unwrap(), None)).collect();
    let (mut tx, _) = store.begin(key, &requests).await.unwrap();
    let outcome = effects.handle_batch(&mut tx, batch).await;
    match &outcome {
        Ok(()) => store.commit(tx).await.unwrap(),
        Err(_) => store.rollback(tx).await.unwrap(),
    }
    outcome
}

async fn texts(database: &TestDatabase, sql: &str) -> Vec<Option<String>> {
    let admin = database.admin().await;
    admin.batch_execute("SET timezone = 'UTC'").await.unwrap();
    admin.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn values_arrive_exactly(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    let types = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN positive AS int8 CHECK (VALUE > 0);
        CREATE DOMAIN code AS varchar(3); CREATE SCHEMA shop; CREATE TYPE shop.color AS ENUM ('red');
        GRANT USAGE ON SCHEMA shop TO PUBLIC";
    admin.batch_execute(types).await.unwrap();
    let cells: &[(&str, &str, &str)] = &[
        ("int2", "-32768", "-32768"),
        ("int4", "2147483647", "2147483647"),
        ("int8", "9007199254740993", "9007199254740993"),
        ("bigint", "-9223372036854775808", "-9223372036854775808"),
        ("numeric", "12345678901234567890123456789012345678.90", "12345678901234567890123456789012345678.90"),
        ("numeric", "1e3", "1000"),
        ("numeric", "\"-0.10\"", "-0.10"),
        ("float8", "0.1", "0.1"),
        ("double precision", "1.7976931348623157e308", "1.7976931348623157e+308"),
        ("float4", "1.5", "1.5"),
        ("bool", "true", "true"),
        ("text", "\"a\\u00e9\\n\\\\x \\\"q\\\" 'q' {,}\"", "a\u{e9}\n\\x \"q\" 'q' {,}"),
        ("text", "9007199254740993.10", "9007199254740993.10"),
        ("text", "\"NULL\"", "NULL"),
        ("varchar", "\" padded \"", " padded "),
        ("uuid", "\"0193F5A0-7c3e-7b1a-8000-0123456789ab\"", "0193f5a0-7c3e-7b1a-8000-0123456789ab"),
        ("date", "\"2024-02-29\"", "2024-02-29"),
        ("timestamptz", "\"2024-02-29T23:59:59.123456+05:30\"", "2024-02-29 18:29:59.123456+00"),
        ("timestamp with time zone", "\"2024-02-29T23:59:59Z\"", "2024-02-29 23:59:59+00"),
        ("timestamp", "\"2024-02-29T23:59:59\"", "2024-02-29 23:59:59"),
        ("json", "{\"b\": 1, \"a\": 9007199254740993}", "{\"b\": 1, \"a\": 9007199254740993}"),
        ("jsonb", "[1e2, null]", "[100, null]"),
        ("jsonb", "\"te\\\"xt\"", "\"te\\\"xt\""),
        ("int8[]", "[9007199254740993, null]", "{9007199254740993,NULL}"),
        ("text[]", "[\"a,\\\"b\\\\\", \"\", \"NULL\"]", "{\"a,\\\"b\\\\\",\"\",\"NULL\"}"),
        ("mood", "\"sad\"", "sad"),
        ("shop.color", "\"red\"", "red"),
        ("positive", "7", "7"),
        ("code", "\"abc\"", "abc"),
        ("inet", "\"10.0.0.0/8\"", "10.0.0.0/8"),
    ];
    for (at, (type_, token, expected)) in cells.iter().enumerate() {
        let table =
            format!("CREATE TABLE c{at} (n int8, v {type_}); GRANT INSERT ON c{at} TO {}", database.role);
        admin.batch_execute(&table).await.unwrap();
        let insert = format!("INSERT INTO c{at} SELECT n, v FROM messages");
        let effects = effects(&[set(&insert, SetSpec::default().column("v", type_))]);
        let body = |token: &str| format!("{{\"v\": {token}}}").into_bytes();
        let batch = [message(1, &body(token)), message(2, &body("null")), message(3, &body(token))];
        apply(&store, &key, &effects, &batch).await.unwrap_or_else(|e| panic!("{type_} {token}: {e:?}"));
        let kept = texts(&database, &format!("SELECT v::text FROM c{at} ORDER BY n")).await;
        let expected = Some((*expected).to_owned());
        assert_eq!(kept, [expected.clone(), None, expected], "{type_} {token}");
    }
    // A domain's size is the domain's own: what is longer is refused, never cut.
    let cut = effects(&[set(
        "INSERT INTO c0 SELECT n, length(v) FROM messages",
        SetSpec::default().column("v", "code"),
    )]);
    let error = apply(&store, &key, &cut, &[message(1, br#"{"v":"abcd"}"#)]).await.unwrap_err();
    assert!(error.error.source.to_string().contains("22001"), "{error:?}");
}

async fn built_in_columns_arrive(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    let table = format!("CREATE TABLE seen (n int8, v text); GRANT INSERT ON seen TO {}", database.role);
    admin.batch_execute(&table).await.unwrap();
    let header = ColumnSpec {
        param: handstamp_stores::effect::ParamSpec::from_source(ParamSource::Header("raw".into())),
        ..ColumnSpec::new("bytea")
    };
    let mut declared = SetSpec::default().column("header_source", "text").column("message_key", "bytea");
    declared.columns.insert("raw".into(), header);
    let sql = "INSERT INTO seen SELECT n, concat_ws('|', message_id, encode(message_key, 'hex'), topic, partition,
        m.offset, extract(epoch FROM timestamp) * 1000, body ->> 'a', body_text, header_source, encode(raw, 'hex'))
        FROM messages AS m";
    let batch = [message(1, br#"{"a":1}"#), message(2, br#"{ "a" : "x" }"#)];
    apply(&store, &key, &effects(&[set(sql, declared)]), &batch).await.unwrap();
    let place = format!("6bff|credits|3|{}|1709208000123.000000", 1_i64 << 40);
    assert_eq!(
        texts(&database, "SELECT v FROM seen ORDER BY n").await,
        [
            Some(format!(r#"m1|{place}|1|{{"a":1}}|web|ff00"#)),
            Some(format!(r#"m2|{place}|x|{{ "a" : "x" }}|web|ff00"#))
        ]
    );
    // All of them by a star, in the order of names and then of the built-in ones.
    let all = "INSERT INTO seen SELECT 9, to_json(m)::text FROM (SELECT * FROM messages) AS m";
    let typed = SetSpec::default().column("message_key", "bytea");
    apply(&store, &key, &effects(&[set(all, typed)]), &[message(3, b"{}")]).await.unwrap();
    let seen = texts(&database, "SELECT v FROM seen WHERE n = 9").await.remove(0).unwrap();
    for column in
        ["message_id", "message_key", "topic", "partition", "offset", "timestamp", "body", "body_text"]
    {
        assert!(seen.contains(&format!("\"{column}\":")), "{seen}");
    }
    // What the statement does not name is not looked at: this body is no JSON, and this key no text.
    let narrow = effects(&[set("INSERT INTO seen SELECT n, message_id FROM messages", SetSpec::default())]);
    apply(&store, &key, &narrow, &[message(4, b"\xff{")]).await.unwrap();
}

async fn what_does_not_fit_names_its_message_before_anything_runs(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let good = r#"{"v":1}"#.as_bytes();
    for (type_, bad, says) in [
        ("int2", r#"{"v":32768}"#.as_bytes(), "int2 cannot hold \"32768\": it is out of range"),
        ("int4", br#"{"v":1.0}"#, "it is not written as an integer"),
        ("float8", br#"{"v":0.10000000000000001}"#, "it does not come back the same"),
        ("int8", br#"{"v":"1"}"#, "it is no number"),
        ("numeric", br#"{"v":true}"#, "numeric cannot hold"),
        ("numeric", br#"{}"#, "column v: the body's /v: missing"),
        ("numeric", b"\xff", "not UTF-8"),
        ("numeric", br#"{"v":1,"v":2}"#, "column v"),
    ] {
        // It would fail where it ran at all: there is no such account for the check to hold.
        let sql = "INSERT INTO ledger SELECT message_id, 1, 5000 FROM messages WHERE v IS NOT NULL";
        let effects = effects(&[set(sql, SetSpec::default().column("v", type_))]);
        let batch = [message(0, good), message(1, bad), message(2, good)];
        let error = apply(&store, &key, &effects, &batch).await.unwrap_err();
        assert_eq!((error.culprit, error.error.class), (Some(1), Some(FailureClass::Binding)), "{type_}");
        assert_eq!(error.error.decision, Decision::Reject);
        let shown = error.error.source.to_string();
        assert!(shown.contains("effect 1") && shown.contains(says), "{type_}: {shown}");
    }
    // Optional is optional, and null is null.
    let mut spec =
        set("INSERT INTO ledger SELECT message_id, 1, v FROM messages", columns_of("v", "numeric"));
    spec.optional = vec!["v".into()];
    let batch = [message(0, b"{}"), message(1, br#"{"v":null}"#), message(2, br#"{"v":7}"#)];
    apply(&store, &key, &effects(&[spec]), &batch).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger WHERE amount IS NULL").await, 2);
}

fn columns_of(name: &str, type_: &str) -> SetSpec {
    SetSpec::default().column(name, type_)
}

async fn a_row_too_few_or_too_many_is_refused(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let distinct = by_query("SELECT count(DISTINCT id) FROM messages");
    let batch = credits(&[(1, "5"), (1, "6"), (2, "7")]);
    let expecting = |expect: ExpectSet| SetSpec { expect, ..columns() };
    for (sql, expect, says) in [
        (NAIVE, ExpectSet::EachMessage, "touched 2 rows for 3 messages, expected 3; a statement that makes"),
        (SUMMED, ExpectSet::EachMessage, "touched 2 rows for 3 messages, expected 3"),
        (SUMMED, by_query("SELECT count(*) FROM messages"), "touched 2 rows for 3 messages, expected 3"),
        (SUMMED, by_query("SELECT 1 + count(DISTINCT id)::int2 FROM messages"), "expected 3"),
        (SUMMED, by_query("SELECT NULL::int8 FROM messages LIMIT 1"), "expect_rows_sql answered NULL"),
        (SUMMED, by_query("SELECT 2 FROM messages"), "expect_rows_sql answered 3 rows"),
        (SUMMED, by_query("SELECT 2 FROM messages WHERE id > 9"), "expect_rows_sql answered 0 rows"),
        (
            "UPDATE accounts SET balance = 1 WHERE (SELECT count(*) FROM messages) > 0",
            ExpectSet::EachMessage,
            "touched 10 rows",
        ),
        ("SELECT 1 FROM messages WHERE id = 1", ExpectSet::EachMessage, "touched 2 rows"),
        (
            "INSERT INTO ledger SELECT message_id, id, amount FROM messages WHERE id = 2",
            distinct.clone(),
            "expected 2",
        ),
    ] {
        let error = apply(&store, &key, &effects(&[set(sql, expecting(expect))]), &batch).await.unwrap_err();
        assert_eq!((error.culprit, error.error.class), (None, Some(FailureClass::Rows)), "{sql}: {error:?}");
        assert_eq!(error.error.decision, Decision::Retry { after: None }, "{sql}");
        assert!(error.error.source.to_string().contains(says), "{sql}: {error:?}");
    }
    assert_eq!(database.number("SELECT sum(balance) FROM accounts").await, 0);
    // One message alone is known.
    let error =
        apply(&store, &key, &effects(&[set(NAIVE, columns())]), &credits(&[(99, "1")])).await.unwrap_err();
    assert_eq!((error.culprit, error.error.class), (Some(0), Some(FailureClass::Rows)));
    apply(&store, &key, &effects(&[set(SUMMED, expecting(distinct))]), &batch).await.unwrap();
    assert_eq!(database.number("SELECT sum(balance) FROM accounts").await, 18);
    // Said on purpose.
    let any = effects(&[set("DELETE FROM ledger USING messages WHERE false", expecting(ExpectSet::Any))]);
    assert!(apply(&store, &key, &any, &credits(&[(1, "1")])).await.is_err(), "the role may not delete");
    let any = effects(&[set(
        "UPDATE accounts AS a SET balance = 0 FROM messages WHERE a.id = 99",
        expecting(ExpectSet::Any),
    )]);
    let again: Vec<Message> = (20..23).map(|at| message(at, br#"{"id":1,"amount":1}"#)).collect();
    apply(&store, &key, &any, &again).await.unwrap();
}

async fn every_kind_of_statement_reads_the_messages(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    database
        .admin()
        .await
        .batch_execute(&format!("GRANT DELETE ON ledger TO {}", database.role))
        .await
        .unwrap();
    let sets = [
        "WITH wanted AS (SELECT message_id, id, amount FROM messages) INSERT INTO ledger SELECT * FROM wanted",
        "WITH RECURSIVE r(i) AS (SELECT n FROM messages UNION SELECT i FROM r WHERE i < 0) SELECT i FROM r",
        "MERGE INTO accounts AS a USING messages AS m ON a.id = m.id WHEN MATCHED THEN UPDATE SET balance = a.balance + m.amount",
        "UPDATE accounts AS a SET balance = a.balance + m.amount FROM messages AS m WHERE a.id = m.id RETURNING a.id",
        "WITH done AS (UPDATE accounts AS a SET balance = a.balance + m.amount FROM messages AS m WHERE a.id = m.id RETURNING a.id)
         SELECT id FROM done",
        "SELECT n FROM messages",
        "DELETE FROM ledger AS l USING messages AS m WHERE l.event_id = m.message_id",
    ];
    let specs: Vec<EffectSpec> = sets.iter().map(|sql| set(sql, columns())).collect();
    apply(&store, &key, &effects(&specs), &credits(&[(1, "5"), (2, "6.5")])).await.unwrap();
    assert_eq!(database.number("SELECT sum(balance) * 2 FROM accounts").await, 69);
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 0);
    // A table of the user's that is called as the relation is written, and not read.
    let table = format!("CREATE TABLE messages (x int8); GRANT INSERT ON messages TO {}", database.role);
    database.admin().await.batch_execute(&table).await.unwrap();
    let own = effects(&[set("INSERT INTO messages SELECT n FROM messages", columns())]);
    apply(&store, &key, &own, &credits(&[(1, "5"), (2, "6.5")])).await.unwrap();
    assert_eq!(database.number("SELECT sum(x) FROM public.messages").await, 3);
}

async fn rows_are_locked_before_the_statement(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let lock = "SELECT 1 FROM accounts WHERE id IN (SELECT id FROM messages) ORDER BY id FOR NO KEY UPDATE";
    // It sees what is locked: `xmax` of a locked row is the locking transaction.
    let locked = "INSERT INTO ledger SELECT message_id, a.id, amount FROM messages AS m
        JOIN accounts AS a ON a.id = m.id WHERE a.xmax::text = (pg_current_xact_id()::text)";
    let batch = credits(&[(1, "5"), (2, "6")]);
    let without = effects(&[set(locked, columns())]);
    assert!(apply(&store, &key, &without, &batch).await.is_err(), "nothing is locked");
    let with = effects(&[set(locked, SetSpec { lock: Some(lock.into()), ..columns() })]);
    apply(&store, &key, &with, &batch).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 2);
    let wrong = SetSpec { lock: Some("SELECT 1 / (n - n) FROM messages".into()), ..columns() };
    let error = apply(&store, &key, &effects(&[set(LEDGER, wrong)]), &credits(&[(3, "1"), (4, "1")]))
        .await
        .unwrap_err();
    let shown = error.error.source.to_string();
    assert!(error.culprit.is_none() && shown.contains("lock: division by zero (SQLSTATE 22012)"), "{shown}");
}

async fn effects_for_each_message_and_for_the_batch_keep_their_order(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    let table = format!(
        "CREATE TABLE seen (at int GENERATED ALWAYS AS IDENTITY, v text); GRANT INSERT ON seen TO {}",
        database.role
    );
    admin.batch_execute(&table).await.unwrap();
    let each = |what: &str| EffectSpec {
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..EffectSpec::new(format!(
            "INSERT INTO seen (v) VALUES (CONCAT('{what} ', CAST(:message_id AS text)))"
        ))
    };
    let once = "INSERT INTO seen (v) SELECT 'set ' || message_id FROM messages ORDER BY n";
    let specs = [each("a"), each("b"), set(once, columns()), each("c"), set(once, columns())];
    apply(&store, &key, &effects(&specs), &credits(&[(1, "1"), (2, "2")])).await.unwrap();
    let seen: Vec<String> =
        texts(&database, "SELECT v FROM seen ORDER BY at").await.into_iter().flatten().collect();
    assert_eq!(
        seen,
        ["a m0", "b m0", "a m1", "b m1", "set m0", "set m1", "c m0", "c m1", "set m0", "set m1"]
    );
    // An effect for each message still names its culprit.
    let failing = EffectSpec {
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..EffectSpec::new("UPDATE accounts SET balance = 1 WHERE id = :id")
    };
    let batch = credits(&[(3, "1"), (99, "1"), (4, "1")]);
    let error = apply(&store, &key, &effects(&[set(LEDGER, columns()), failing]), &batch).await.unwrap_err();
    assert_eq!((error.culprit, error.error.class), (Some(1), Some(FailureClass::Rows)));
}

async fn what_does_not_fit_the_tables_is_found_at_the_start(database: TestDatabase) {
    let (store, _) = database.wallet().await;
    let count = |query: &str| SetSpec { expect: by_query(query), ..columns() };
    let lock = |query: &str| SetSpec { lock: Some(query.into()), ..columns() };
    for (sql, spec, says) in [
        (
            "INSERT INTO ledger SELECT message_id, id, amont FROM messages",
            columns(),
            "has the columns of `columns`",
        ),
        ("INSERT INTO legder SELECT message_id, id, amount FROM messages", columns(), "legder"),
        (LEDGER, columns().column("x", "nummeric"), "nummeric"),
        (
            LEDGER,
            columns().column("x", "int4range"),
            "columns.x has the type int4range: ranges are not bound",
        ),
        (LEDGER, columns().column("x", "record"), "record"),
        (LEDGER, count("SELECT count(*), 1 FROM messages"), "expect_rows_sql answers 2 columns"),
        (LEDGER, count("SELECT 1.5 FROM messages"), "expect_rows_sql answers a value of type numeric"),
        (LEDGER, count("SELECT count(x) FROM messages"), "has the columns of `columns`"),
        (LEDGER, lock("SELECT y FROM messages"), "has the columns of `columns`"),
        (
            "INSERT INTO ledger SELECT message_id, amount, id FROM messages WHERE id = 'x'",
            columns(),
            "invalid input",
        ),
    ] {
        let found = effects(&[set(sql, spec), EffectSpec::new("SELECT 1")]).unfit(&store).await.unwrap();
        assert!(!found.is_empty() && found[0].to_string().contains(says), "{sql}: {found:?}");
        assert!(found.iter().all(|error| error.to_string().starts_with("effect 1 ")), "{found:?}");
        let kinds = [StoreErrorKind::SchemaMismatch, StoreErrorKind::Config, StoreErrorKind::Statement];
        assert!(kinds.contains(&found[0].kind), "{:?}", found[0].kind);
    }
    let fits =
        SetSpec { lock: Some("SELECT n FROM messages".into()), ..count("SELECT count(*) FROM messages") };
    assert!(effects(&[set(LEDGER, fits)]).unfit(&store).await.unwrap().is_empty());
}

/// A handler that counts how often it ran.
struct Counted(SqlEffects, Arc<AtomicU64>);

impl BatchHandler<Tx> for Counted {
    async fn handle_batch(&self, tx: &mut Tx, batch: &[Message]) -> Result<(), BatchError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.handle_batch(tx, batch).await
    }
}

/// Runs effects over a topic; the counts, and how often they ran.
async fn run(
    store: PostgresStore,
    specs: &[EffectSpec],
    bodies: &[String],
    batch_max: usize,
) -> (Counts, u64) {
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
        adopt: true,
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
async fn two_credits_to_one_account_are_two(database: TestDatabase) {
    let (store, _) = database.wallet().await;
    let bodies = [body(1, 7, "10"), body(2, 7, "20"), body(3, 8, "1"), body(4, 7, "30")];
    let (counts, ran) = run(store, &[set(NAIVE, columns())], &bodies, 500).await;
    assert_eq!((counts.applied, counts.dead_lettered, counts.pending()), (4, 0, 0), "{counts:?}");
    assert!(ran > 1, "it was taken apart");
    assert_eq!(database.number("SELECT balance FROM accounts WHERE id = 7").await, 60);
    assert_eq!(database.number("SELECT balance FROM accounts WHERE id = 8").await, 1);
}

async fn a_message_that_comes_twice_is_there_once(database: TestDatabase) {
    let (store, _) = database.wallet().await;
    let bodies = [body(1, 7, "10"), body(1, 7, "10"), body(2, 8, "1"), body(1, 7, "10")];
    let (counts, _) = run(store, &[set(LEDGER, columns())], &bodies, 500).await;
    assert_eq!((counts.applied, counts.duplicate), (2, 2), "{counts:?}");
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 2);
}

async fn ten_thousand_messages_are_one_statement(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let bodies: Vec<Message> = (0..10_000_usize)
        .map(|at| message(at, body(at, i64::try_from(at % 10 + 1).unwrap(), "0.25").as_bytes()))
        .collect();
    let distinct = by_query("SELECT count(DISTINCT id) FROM messages");
    let specs = [set(LEDGER, columns()), set(SUMMED, SetSpec { expect: distinct, ..columns() })];
    let effects = effects(&specs);
    apply(&store, &key, &effects, &[]).await.unwrap();
    apply(&store, &key, &effects, &bodies).await.unwrap();
    assert_eq!(database.number("SELECT sum(balance) FROM accounts").await, 2_500);
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 10_000);
    assert_eq!(database.number("SELECT count(*) FROM accounts WHERE balance = 250").await, 10);
}

#[tokio::test]
async fn one_bad_among_five_thousand_costs_few_runs_and_the_others_commit() {
    for bad in [0, 1, 2_499, 2_500, 3_333, 4_999] {
        let database = TestDatabase::new(Server::V18).await;
        let (store, _) = database.wallet().await;
        // The check of the table refuses it: no type does.
        let amount = |at| if at == bad { "5000" } else { "1" };
        let bodies: Vec<String> = (0..5_000).map(|at| body(at, 1, amount(at))).collect();
        let (counts, ran) = run(store, &[set(LEDGER, columns())], &bodies, 5_000).await;
        assert_eq!((counts.applied, counts.dead_lettered), (4_999, 1), "{bad}: {counts:?}");
        assert!(ran <= 27, "{bad}: the first run and at most 26 more, not {ran}");
        assert_eq!(database.number("SELECT count(*) FROM ledger").await, 4_999);
        let dead = "SELECT count(*) FROM handstamp.dead_letters WHERE class = 'sql'";
        assert_eq!(database.number(dead).await, 1);
        println!("bad message {bad} of 5,000: {ran} runs");
    }
}
