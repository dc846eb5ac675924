//! Declared SQL effects on a real server: exact values, named culprits, one pipeline.

use crate::harness::{TestDatabase, on_each_server, request};
use crate::proxy::{Proxy, Step};
use handstamp_core::{
    BatchError, BatchHandler, ConsumerKey, Decision, FailureClass, Header, Headers, Message, MessageId,
    Origin, Record, Store, StoreErrorKind, Timestamp,
};
use handstamp_stores::effect::{EffectSpec, Encoding, ExpectRows, ParamSource, ParamSpec};
use handstamp_stores::postgres::{PostgresOptions, PostgresStore, SqlEffects};
use std::net::SocketAddr;
use std::time::Duration;

on_each_server!(
    values_arrive_exactly,
    what_a_column_makes_of_an_exact_value_is_the_columns_own,
    a_batch_is_applied_in_order,
    the_culprit_and_its_class_are_named,
    a_batch_is_one_pipeline,
    statements_that_do_not_fit_are_found_at_the_start,
    a_changed_table_is_prepared_for_again,
    a_value_that_raises_a_code_of_the_schema_is_its_messages_failure,
    what_is_cancelled_before_its_time_is_no_messages_failure,
);

fn message(number: usize, body: &str) -> Message {
    let record = Record {
        key: Some("key".into()),
        value: Some(body.to_owned().into()),
        headers: Headers::new(vec![
            Header::new("h", Some("header".into())),
            Header::new("raw", Some(bytes::Bytes::from_static(b"\xff\0"))),
        ]),
        origin: Origin { topic: "credits".into(), partition: 3, offset: 1 << 40, line: None },
        timestamp: Some(Timestamp(1_709_208_000_123)),
    };
    Message::new(MessageId::try_from(format!("m{number}").as_str()).unwrap(), record)
}

fn effects(sqls: &[&str]) -> SqlEffects {
    SqlEffects::compile(&sqls.iter().map(|sql| EffectSpec::new(*sql)).collect::<Vec<_>>()).unwrap()
}

async fn apply(
    store: &PostgresStore,
    key: &ConsumerKey,
    effects: &SqlEffects,
    batch: &[Message],
) -> Result<(), BatchError> {
    let requests: Vec<_> = batch.iter().map(|m| request(m.id().as_str().unwrap(), None)).collect();
    let (mut tx, _) = store.begin(key, &requests).await.unwrap();
    match effects.handle_batch(&mut tx, batch).await {
        Ok(()) => {
            store.commit(tx).await.unwrap();
            Ok(())
        }
        Err(error) => {
            store.rollback(tx).await.unwrap();
            Err(error)
        }
    }
}

async fn values_arrive_exactly(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    let cells: &[(&str, &str, &str)] = &[
        ("int2", "-32768", "-32768"),
        ("int4", "2147483647", "2147483647"),
        ("int8", "9007199254740993", "9007199254740993"),
        ("numeric", "12345678901234567890123456789012345678.90", "12345678901234567890123456789012345678.90"),
        ("numeric", "1e3", "1000"),
        ("numeric", "\"-0.10\"", "-0.10"),
        ("float8", "0.1", "0.1"),
        ("float4", "1.5", "1.5"),
        ("bool", "true", "true"),
        ("text", "\"a\\u00e9\\n\\\\x \\\"q\\\" 'q'\"", "a\u{e9}\n\\x \"q\" 'q'"),
        ("text", "1e3", "1e3"),
        ("text", "9007199254740993.10", "9007199254740993.10"),
        ("varchar(9)", "\" padded \"", " padded "),
        ("uuid", "\"0193F5A0-7c3e-7b1a-8000-0123456789ab\"", "0193f5a0-7c3e-7b1a-8000-0123456789ab"),
        ("date", "\"2024-02-29\"", "2024-02-29"),
        ("timestamptz", "\"2024-02-29T23:59:59.123456+05:30\"", "2024-02-29 18:29:59.123456+00"),
        ("timestamp", "\"2024-02-29T23:59:59\"", "2024-02-29 23:59:59"),
        ("json", "{\"b\": 1, \"a\": 9007199254740993}", "{\"b\": 1, \"a\": 9007199254740993}"),
        ("jsonb", "[1e2, null]", "[100, null]"),
        ("jsonb", "\"text\"", "\"text\""),
        ("jsonb", "false", "false"),
        ("int8[]", "[9007199254740993, null]", "{9007199254740993,NULL}"),
        ("text[]", "[\"a,\\\"b\\\\\", \"\", \"NULL\"]", "{\"a,\\\"b\\\\\",\"\",\"NULL\"}"),
        ("numeric[]", "[1.10]", "{1.10}"),
        ("timestamptz[]", "[\"2024-02-29T00:00:00Z\"]", "{\"2024-02-29 00:00:00+00\"}"),
        ("jsonb[]", "[{\"a\": \"b\"}]", "{\"{\\\"a\\\": \\\"b\\\"}\"}"),
        ("mood", "\"sad\"", "sad"),
        ("positive", "7", "7"),
        ("inet", "\"10.0.0.0/8\"", "10.0.0.0/8"),
    ];
    admin.batch_execute("SET timezone = 'UTC'").await.unwrap();
    admin
        .batch_execute(
            "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN positive AS int8 CHECK (VALUE > 0)",
        )
        .await
        .unwrap();
    for (at, (type_, token, expected)) in cells.iter().enumerate() {
        let table = format!("CREATE TABLE c{at} (v {type_}); GRANT INSERT ON c{at} TO {}", database.role);
        admin.batch_execute(&table).await.unwrap();
        let effects = effects(&[&format!("INSERT INTO c{at} VALUES (:v)")]);
        for body in [format!("{{\"v\": {token}}}"), "{\"v\": null}".to_owned()] {
            apply(&store, &key, &effects, &[message(at, &body)])
                .await
                .unwrap_or_else(|e| panic!("{type_} {body}: {e:?}"));
        }
        let read = format!("SELECT v::text FROM c{at} ORDER BY v::text NULLS LAST");
        let rows = admin.query(&read, &[]).await.unwrap();
        let kept: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(kept, [Some((*expected).to_owned()), None], "{type_} {token}");
    }
    built_in_values_arrive(&database, &store, &key).await;
}

/// The value that is sent is exact; a column with a size may still make another of it, as it does for every
/// client. A CHECK sees the value before a `numeric` without a scale has lost anything.
async fn what_a_column_makes_of_an_exact_value_is_the_columns_own(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let admin = database.admin().await;
    let cells: &[(&str, &str, Result<&str, &str>)] = &[
        ("numeric(10,2)", "0.005", Ok("0.01")),
        ("numeric(10,2)", "-1.2349", Ok("-1.23")),
        ("numeric(4,2)", "123.4", Err("22003")),
        ("numeric", "0.005", Ok("0.005")),
        ("numeric CHECK (scale(v) <= 2)", "0.005", Err("23514")),
        ("numeric CHECK (scale(v) <= 2)", "0.05", Ok("0.05")),
        ("timestamptz(0)", "\"2024-02-29T00:00:00.6Z\"", Ok("2024-02-29 00:00:01+00")),
        ("varchar(3)", "\"abc  \"", Ok("abc")),
        ("varchar(3)", "\"abcd\"", Err("22001")),
        ("jsonb", "{\"b\": 1e2, \"a\": 1, \"a\": 2}", Ok("{\"a\": 2, \"b\": 100}")),
        ("json", "{\"b\": 1e2, \"a\": 1, \"a\": 2}", Ok("{\"b\": 1e2, \"a\": 1, \"a\": 2}")),
    ];
    admin.batch_execute("SET timezone = 'UTC'").await.unwrap();
    for (at, (type_, token, expected)) in cells.iter().enumerate() {
        let table = format!("CREATE TABLE c{at} (v {type_}); GRANT INSERT ON c{at} TO {}", database.role);
        admin.batch_execute(&table).await.unwrap();
        let effects = effects(&[&format!("INSERT INTO c{at} VALUES (:v)")]);
        let batch = [message(at, &format!("{{\"v\": {token}}}"))];
        let (mut tx, _) = store.begin(&key, &[request(&format!("m{at}"), None)]).await.unwrap();
        let applied = effects.handle_batch(&mut tx, &batch).await;
        match expected {
            Ok(kept) => {
                applied.unwrap_or_else(|e| panic!("{type_} {token}: {e:?}"));
                store.commit(tx).await.unwrap();
                let row = admin.query_one(&format!("SELECT v::text FROM c{at}"), &[]).await.unwrap();
                assert_eq!(row.get::<_, String>(0), *kept, "{type_} {token}");
            }
            Err(code) => {
                let failed = applied.expect_err(type_);
                let fault = store.classify(&tx, failed.error.source.as_ref()).unwrap();
                assert_eq!(
                    (fault.kind, fault.code.as_deref()),
                    (StoreErrorKind::Statement, Some(*code)),
                    "{type_} {token}"
                );
                store.rollback(tx).await.unwrap();
            }
        }
    }
}

async fn built_in_values_arrive(database: &TestDatabase, store: &PostgresStore, key: &ConsumerKey) {
    let admin = database.admin().await;
    let table = format!(
        "CREATE TABLE built_in (id text, key bytea, topic text, partition int, position int8, at timestamptz, ms int8, body jsonb,
         body_text text, h text, raw bytea, decoded bytea, missing text); GRANT INSERT ON built_in TO {}",
        database.role
    );
    admin.batch_execute(&table).await.unwrap();
    let mut spec = EffectSpec::new(
        "INSERT INTO built_in VALUES (:message_id, :message_key, :topic, :partition, :offset, :timestamp, :ms, :body, :body_text,
         :header_h, :raw, :decoded, :missing)",
    );
    spec.params.insert("ms".into(), ParamSpec::from_source(ParamSource::Timestamp));
    spec.params.insert("raw".into(), ParamSpec::from_source(ParamSource::Header("raw".into())));
    let mut decoded = ParamSpec::from_source(ParamSource::of_name("b64"));
    decoded.encoding = Some(Encoding::Base64);
    spec.params.insert("decoded".into(), decoded);
    spec.optional = vec!["missing".into()];
    let effects = SqlEffects::compile(&[spec]).unwrap();
    let body = "{\"b64\": \"AP8=\"}";
    apply(store, key, &effects, &[message(1000, body)]).await.unwrap();
    let expected = format!(
        "SELECT count(*) FROM built_in WHERE id = 'm1000' AND key = 'key' AND topic = 'credits' AND partition = 3
         AND position = {} AND at = '2024-02-29T12:00:00.123Z' AND ms = 1709208000123 AND body = '{body}' AND body_text = '{body}'
         AND h = 'header' AND raw = '\\xff00' AND decoded = '\\x00ff' AND missing IS NULL",
        1_i64 << 40
    );
    assert_eq!(database.number(&expected).await, 1);
}

async fn a_batch_is_applied_in_order(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    database
        .admin()
        .await
        .batch_execute("ALTER TABLE ledger ADD n int GENERATED ALWAYS AS IDENTITY")
        .await
        .unwrap();
    let effects = effects(&[
        "INSERT INTO ledger (event_id, account_id, amount) VALUES (:message_id, 1, :amount)",
        "UPDATE accounts SET balance = balance * 2 + :amount WHERE id = 1",
        "INSERT INTO ledger (event_id, account_id, amount) VALUES (:message_id, 2, :amount)",
    ]);
    effects.check(&store).await.unwrap();
    // More statements than are ever in flight.
    let batch: Vec<Message> = (0..500).map(|n| message(n, &format!("{{\"amount\": {}}}", n % 2))).collect();
    apply(&store, &key, &effects, &batch).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 1000);
    let disordered = "SELECT count(*) FROM (SELECT n, (row_number() OVER (ORDER BY n) - 1) / 2 AS m, account_id,
        (row_number() OVER (ORDER BY n) - 1) % 2 + 1 AS e, event_id FROM ledger) AS o WHERE event_id <> 'm' || m OR account_id <> e";
    assert_eq!(database.number(disordered).await, 0);
}

async fn the_culprit_and_its_class_are_named(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let mut update = EffectSpec::new("UPDATE accounts SET balance = balance + :amount WHERE id = :id");
    update.expect_rows = Some(ExpectRows::Exactly(1));
    let insert = EffectSpec::new("INSERT INTO ledger VALUES (:message_id, :id, :amount)");
    let effects = SqlEffects::compile(&[update, insert]).unwrap();
    let good = "{\"id\": 1, \"amount\": 1}";
    for (bad, class, rejected, says) in [
        ("{\"id\": 99, \"amount\": 1}", Some(FailureClass::Rows), false, "effect 1 (UPDATE accounts"),
        ("{\"id\": 1, \"amount\": 5000}", None, false, "effect 2 (INSERT INTO ledger"),
        ("{\"id\": 1e3, \"amount\": 1}", Some(FailureClass::Binding), true, ":id: int4 cannot hold \"1e3\""),
        ("{\"id\": 1}", Some(FailureClass::Binding), true, ":amount"),
        ("not json", Some(FailureClass::Binding), true, "effect 1"),
    ] {
        let batch: Vec<Message> =
            (0..9).map(|n| message(n, if n == 5 || n == 7 { bad } else { good })).collect();
        let BatchError { culprit, error } = apply(&store, &key, &effects, &batch).await.unwrap_err();
        assert_eq!((culprit, error.class), (Some(5), class), "{bad}");
        assert_eq!(error.decision == Decision::Reject, rejected, "{bad}");
        let text = handstamp_core::Reason::from_error(error.source.as_ref()).as_str().to_owned();
        assert!(text.contains(says), "{text}");
    }
    assert_eq!(database.number("SELECT sum(balance) + (SELECT count(*) FROM ledger) FROM accounts").await, 0);
    // The database's own code is found behind it.
    let (mut tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    let failed =
        effects.handle_batch(&mut tx, &[message(0, "{\"id\": 1, \"amount\": 5000}")]).await.unwrap_err();
    let fault = store.classify(&tx, failed.error.source.as_ref()).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Statement, Some("23514")));
    store.rollback(tx).await.unwrap();
}

async fn a_batch_is_one_pipeline(database: TestDatabase) {
    let direct = database.options().place();
    let server: SocketAddr = direct.split('/').next().unwrap().parse().unwrap();
    let proxy = Proxy::new(server).await;
    let url =
        format!("postgres://{}@127.0.0.1:{}/{}?sslmode=disable", database.role, proxy.port, database.name);
    let (store, key) = database.wallet_with(PostgresOptions::parse(&url).unwrap()).await;
    let effects = effects(&[
        "UPDATE accounts SET balance = balance + :amount WHERE id = 1",
        "INSERT INTO ledger VALUES (:message_id, 1, :amount)",
    ]);
    let batch: Vec<Message> = (0..100).map(|n| message(n, "{\"amount\": 1}")).collect();
    let (mut tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    effects.handle_batch(&mut tx, &batch[..1]).await.unwrap();
    // No answer comes back before the last of 200 statements was sent.
    let mut executes = 0;
    proxy.script(move |sent| {
        executes += u32::from(sent.kind == b'E');
        match (sent.kind, executes) {
            (b'B', 0) => Step::HoldAnswers,
            (b'E', 200) => Step::FreeAnswers,
            _ => Step::Pass,
        }
    });
    let handled = effects.handle_batch(&mut tx, &batch);
    tokio::time::timeout(Duration::from_secs(30), handled).await.expect("one waits for another").unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 101);
}

async fn statements_that_do_not_fit_are_found_at_the_start(database: TestDatabase) {
    let (store, _) = database.wallet().await;
    for (sql, says) in [
        ("UPDATE accounts SET nothing = :a", "effect 2"),
        ("UPDATE nowhere SET a = :a", "nowhere"),
        ("SELECT :a", ""),
        ("INSERT INTO ledger VALUES (:a, :a, 1)", "CAST"),
        ("SELECT 1 WHERE :a::daterange @> current_date", "CAST(CAST(:a AS text) AS daterange)"),
        ("DELETE FROM accounts WHERE id = :a", ""),
    ] {
        let outcome = effects(&["SELECT 1", sql]).check(&store).await;
        // SELECT :a is text to Postgres; DELETE is prepared without a right and refused when it runs.
        match outcome {
            Ok(()) => assert!(says.is_empty(), "{sql}"),
            Err(error) => assert!(!says.is_empty() && error.to_string().contains(says), "{sql}: {error}"),
        }
    }
    let refused = SqlEffects::compile(&[EffectSpec::new("SELECT 1"), EffectSpec::new("COMMIT")]).unwrap_err();
    assert!(refused.to_string().starts_with("effect 2: "), "{refused}");
    assert_eq!(refused.kind, StoreErrorKind::Config);
    let alter = format!("ALTER ROLE {} SET search_path = public, handstamp", database.role);
    database.admin().await.batch_execute(&alter).await.unwrap();
    let error = effects(&["SELECT 1"]).check(&database.store()).await.unwrap_err();
    assert!(error.to_string().contains("search_path"), "{error}");
}

async fn a_changed_table_is_prepared_for_again(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let effects = effects(&["INSERT INTO ledger VALUES (:message_id, 1, :amount) RETURNING *"]);
    let batch = [message(0, "{\"amount\": 1}")];
    apply(&store, &key, &effects, &batch).await.unwrap();
    let admin = database.admin().await;
    admin.batch_execute("ALTER TABLE ledger ADD more text").await.unwrap();
    let batch = [message(1, "{\"amount\": 1}")];
    let (mut tx, _) = store.begin(&key, &[request("m1", None)]).await.unwrap();
    let error = effects.handle_batch(&mut tx, &batch).await.unwrap_err();
    let fault = store.classify(&tx, error.error.source.as_ref()).unwrap();
    assert_eq!(fault.kind, StoreErrorKind::SchemaMismatch, "{fault:?}");
    store.rollback(tx).await.unwrap();
    apply(&store, &key, &effects, &batch).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM ledger").await, 2);
}

/// Runs a batch as the engine does, and again after whatever is no message's failure, a few times. The kinds
/// of its failures, and the last culprit.
async fn failures(
    store: &PostgresStore,
    key: &ConsumerKey,
    effects: &SqlEffects,
    batch: &[Message],
) -> (Vec<StoreErrorKind>, Option<usize>) {
    let mut kinds = vec![];
    loop {
        let (mut tx, _) = store.begin(key, &[]).await.unwrap();
        let failed = effects.handle_batch(&mut tx, batch).await.unwrap_err();
        let kind = store.classify(&tx, failed.error.source.as_ref()).unwrap().kind;
        kinds.push(kind);
        if kind == StoreErrorKind::Statement {
            store.rollback(tx).await.unwrap();
        } else {
            store.abandon(tx).await;
        }
        if kind == StoreErrorKind::Statement || kinds.len() == 4 {
            return (kinds, failed.culprit);
        }
    }
}

async fn a_value_that_raises_a_code_of_the_schema_is_its_messages_failure(database: TestDatabase) {
    use StoreErrorKind::{SchemaMismatch, Statement};
    let (store, key) = database.wallet().await;
    for (sql, good, bad) in [
        ("SELECT to_tsquery('english', :v::text)", "a & b", "a & & ("),
        ("SELECT :v::text::regclass", "accounts", "nowhere"),
        ("SELECT :v::text::regtype", "int8", "no_type"),
        ("SELECT to_tsvector(:v::text::regconfig, 'x')", "english", "klingon"),
    ] {
        let effects = effects(&["UPDATE accounts SET balance = balance", sql]);
        let body = |v: &str| format!("{{\"v\": \"{v}\"}}");
        let batch = [message(1, &body(good)), message(2, &body(bad)), message(3, &body(good))];
        // On a connection that prepares the statement with this batch, and on one that had it prepared.
        assert_eq!(failures(&store, &key, &effects, &batch).await, (vec![Statement], Some(1)), "{sql}");
        let again = failures(&store, &key, &effects, &batch).await;
        assert_eq!(again, (vec![SchemaMismatch, Statement], Some(1)), "{sql}");
        apply(&store, &key, &effects, &batch[..1]).await.unwrap();
    }
    // A right that is missing and a table that a trigger misses are no message's failure, however often.
    let admin = database.admin().await;
    let trigger = "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO notes VALUES (1); RETURN NEW; END';
        CREATE TRIGGER noted BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION note()";
    admin.batch_execute(trigger).await.unwrap();
    let insert = effects(&["INSERT INTO ledger VALUES ('x', 1, 5)"]);
    let (kinds, _) = failures(&store, &key, &insert, &[message(4, "{}")]).await;
    assert_eq!(kinds, [SchemaMismatch; 4], "a trigger's table");
    admin.batch_execute(&format!("REVOKE ALL ON accounts FROM {}", database.role)).await.unwrap();
    // A row of another tenant is its message's failure.
    let policy = format!(
        "CREATE TABLE shared (tenant text); ALTER TABLE shared ENABLE ROW LEVEL SECURITY;
        CREATE POLICY own ON shared USING (tenant = 'us'); GRANT ALL ON shared TO {}",
        database.role
    );
    admin.batch_execute(&policy).await.unwrap();
    let share = effects(&["INSERT INTO shared VALUES (:v)"]);
    let batch = [message(6, "{\"v\": \"us\"}"), message(7, "{\"v\": \"them\"}")];
    assert_eq!(failures(&store, &key, &share, &batch).await, (vec![Statement], Some(1)), "a policy");
    let update = effects(&["UPDATE accounts SET balance = 1"]);
    let (kinds, _) = failures(&store, &key, &update, &[message(5, "{}")]).await;
    assert_eq!(kinds, [SchemaMismatch; 4], "a right");
}

async fn what_is_cancelled_before_its_time_is_no_messages_failure(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let effects = effects(&["SELECT pg_sleep(60)"]);
    let sleeping =
        format!("FROM pg_stat_activity WHERE datname = '{}' AND wait_event = 'PgSleep'", database.name);
    let (mut tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    let admin = database.admin().await;
    let batch = [message(1, "{}")];
    let cancel = async {
        database.until(&format!("SELECT count(*) {sleeping}"), 1).await;
        admin.batch_execute(&format!("SELECT pg_cancel_backend(pid) {sleeping}")).await.unwrap();
    };
    let (failed, ()) = tokio::join!(effects.handle_batch(&mut tx, &batch), cancel);
    let fault = store.classify(&tx, failed.unwrap_err().error.source.as_ref()).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Conflict, Some("57014")));
    store.abandon(tx).await;
    // What takes its whole time is.
    let mut options = database.options();
    options.statement_timeout = Duration::from_millis(200);
    let (store, key) = (PostgresStore::new(options).unwrap(), key);
    let (mut tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    let failed = effects.handle_batch(&mut tx, &batch).await.unwrap_err();
    let fault = store.classify(&tx, failed.error.source.as_ref()).unwrap();
    assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Timeout, Some("57014")));
    store.abandon(tx).await;
}
