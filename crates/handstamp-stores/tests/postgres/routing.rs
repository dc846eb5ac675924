//! Conditions on effects: which of them run, on real servers.

use crate::harness::{TestDatabase, on_each_server};
use handstamp_core::json::Pointer;
use handstamp_core::{Consumer, ConsumerName, ConsumerOptions, Counts, Identity};
use handstamp_stores::effect::{CompiledEffect, EffectSpec, ExpectRows, SetSpec};
use handstamp_stores::postgres::SqlEffects;
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;

on_each_server! {
    effects_run_for_the_messages_that_fulfil_their_conditions,
    what_no_effect_wants_is_passed_over_and_wanted_later,
}

const BODIES: [&str; 7] = [
    r#"{"id":"a","type":"charge","amount":5}"#,
    r#"{"id":"b","type":"refund","amount":2.50}"#,
    r#"{"id":"c","type":"refund","amount":9007199254740993}"#,
    r#"{"id":"d","type":"audit","amount":1}"#,
    r#"{"id":"e","type":7,"amount":1}"#,
    r#"{"id":"f","amount":1}"#,
    r#"{"id":"g","type":"charge","amount":null}"#,
];

async fn tables(database: &TestDatabase) {
    let sql = format!(
        "CREATE TABLE moved (id text, what text, amount numeric);
         GRANT SELECT, INSERT ON moved TO {}",
        database.role
    );
    database.admin().await.batch_execute(&sql).await.unwrap();
}

fn effects(set: bool, ignores: bool) -> SqlEffects {
    let of = |when: &str, sql: &str| EffectSpec {
        when: Some(when.into()),
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..EffectSpec::new(sql)
    };
    let moved = |when: &str, what: &str| {
        of(when, &format!("INSERT INTO moved VALUES (:message_id, '{what}', CAST(:amount AS numeric))"))
    };
    let large = ":type = 'refund' and :amount > 9007199254740992";
    let large = if set {
        EffectSpec {
            set: Some(SetSpec::default().column("amount", "numeric")),
            expect_rows: None,
            ..of(large, "INSERT INTO moved SELECT message_id, 'large', amount FROM messages")
        }
    } else {
        moved(large, "large")
    };
    let specs =
        [moved(":type = 'charge'", "charge"), moved(":type = 'refund' and :amount <= 1000", "refund"), large];
    let compiled = specs.iter().map(|spec| CompiledEffect::compile(spec).unwrap()).collect();
    SqlEffects::new(compiled).ignoring_unmatched(ignores)
}

async fn run(database: &TestDatabase, effects: SqlEffects, batch_max: usize) -> Counts {
    let broker = LogBroker::new("credits", 1);
    for body in BODIES {
        broker.publish(0, Payload::value(body)).unwrap();
    }
    let consumer = Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Field(Pointer::member("id")))
        .store(database.store())
        .batch_handler(effects)
        .options(ConsumerOptions { batch_max, messages_max: Some(7), ..ConsumerOptions::default() });
    Box::pin(consumer.run_local(std::future::pending())).await.unwrap().counts
}

async fn moved(database: &TestDatabase) -> String {
    let sql = "SELECT coalesce(string_agg(concat_ws(':', id, what, amount), ' ' ORDER BY id), '') FROM moved";
    database.admin().await.query_one(sql, &[]).await.unwrap().get(0)
}

async fn classes(database: &TestDatabase) -> String {
    let sql = "SELECT coalesce(string_agg(class || attempts, ' ' ORDER BY class DESC), '') FROM handstamp.dead_letters";
    database.admin().await.query_one(sql, &[]).await.unwrap().get(0)
}

async fn effects_run_for_the_messages_that_fulfil_their_conditions(database: TestDatabase) {
    tables(&database).await;
    for (set, batch_max) in [(false, 500), (true, 500), (false, 1), (true, 1)] {
        let clean = "DELETE FROM moved; DELETE FROM handstamp.inbox; DELETE FROM handstamp.dead_letters";
        database.admin().await.batch_execute(clean).await.unwrap();
        let counts = run(&database, effects(set, false), batch_max).await;
        // g fulfils the first condition, which does not ask for its amount: NULL is what the statement gets.
        assert_eq!((counts.applied, counts.dead_lettered, counts.attempts_failed), (4, 3, 0), "{counts:?}");
        assert_eq!(moved(&database).await, "a:charge:5 b:refund:2.50 c:large:9007199254740993 g:charge");
        assert_eq!(classes(&database).await, "unmatched0 condition0 condition0");
        let counts = run(&database, effects(set, false), batch_max).await;
        assert_eq!((counts.duplicate, counts.applied), (7, 0), "{counts:?}");
    }
}

async fn what_no_effect_wants_is_passed_over_and_wanted_later(database: TestDatabase) {
    tables(&database).await;
    let counts = run(&database, effects(true, true), 500).await;
    assert_eq!((counts.applied, counts.unmatched, counts.dead_lettered), (4, 1, 2), "{counts:?}");
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, 6);
    let audit = EffectSpec {
        when: Some(":id = 'd'".into()),
        ..EffectSpec::new("INSERT INTO moved VALUES (:message_id, 'audit', 1)")
    };
    let audit = SqlEffects::new(vec![CompiledEffect::compile(&audit).unwrap()]).ignoring_unmatched(true);
    let counts = run(&database, audit, 500).await;
    assert_eq!((counts.applied, counts.unmatched), (1, 6), "{counts:?}");
    assert_eq!(database.number("SELECT count(*) FROM moved WHERE id = 'd'").await, 1);
}
