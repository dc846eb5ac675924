//! Conditions on effects: which of them run, on the engine.

use crate::support::{beside, number, open};
use handstamp_core::json::Pointer;
use handstamp_core::{Consumer, ConsumerName, ConsumerOptions, Counts, FailureClass, Identity};
use handstamp_stores::effect::{CompiledEffect, EffectSpec, ExpectRows, SetSpec};
use handstamp_stores::sqlite::SqlEffects;
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::LogBroker;
use tempfile::TempDir;

/// One that every effect but the last wants, one of each kind, one of no kind, and two that give no answer.
const BODIES: [&str; 7] = [
    r#"{"id":"a","type":"charge","amount":5}"#,
    r#"{"id":"b","type":"refund","amount":2}"#,
    r#"{"id":"c","type":"refund","amount":2000}"#,
    r#"{"id":"d","type":"audit","amount":1}"#,
    r#"{"id":"e","type":7,"amount":1}"#,
    r#"{"id":"f","amount":1}"#,
    r#"{"id":"g","type":"charge","amount":"5"}"#,
];

fn effects(set: bool, ignores: bool) -> SqlEffects {
    let of = |when: &str, sql: &str| EffectSpec { when: Some(when.into()), ..EffectSpec::new(sql) };
    let moved = |when: &str, sign: &str| EffectSpec {
        expect_rows: Some(ExpectRows::Exactly(1)),
        ..of(when, &format!("UPDATE accounts SET balance = balance {sign} :amount WHERE id = 7"))
    };
    let ledger = if set {
        let columns = SetSpec::default().column("amount", "INTEGER");
        let sql = "INSERT INTO ledger SELECT message_id, amount FROM messages";
        EffectSpec { set: Some(columns), ..of(":type = 'refund' and :amount > 0", sql) }
    } else {
        of(":type = 'refund' and :amount > 0", "INSERT INTO ledger VALUES (:message_id, :amount)")
    };
    let specs = [moved(":type = 'charge'", "-"), moved(":type = 'refund' and :amount <= 1000", "+"), ledger];
    let compiled = specs.iter().map(|spec| CompiledEffect::compile(spec).unwrap()).collect();
    SqlEffects::new(compiled).ignoring_unmatched(ignores)
}

async fn run(folder: &TempDir, effects: SqlEffects, bodies: &[&str], batch_max: usize) -> Counts {
    let broker = LogBroker::new("credits", 1);
    for body in bodies {
        broker.publish(0, Payload::value((*body).to_owned())).unwrap();
    }
    let messages_max = Some(bodies.len() as u64);
    let consumer = Consumer::builder(ConsumerName::new("wallet").unwrap())
        .source(broker.source("group"), Identity::Field(Pointer::member("id")))
        .store(open(folder).await)
        .batch_handler(effects)
        .options(ConsumerOptions { batch_max, messages_max, ..ConsumerOptions::default() });
    let counts = Box::pin(consumer.run_local(std::future::pending())).await.unwrap().counts;
    assert_eq!(broker.settled_count("group", 0), bodies.len());
    counts
}

fn classes(folder: &TempDir) -> String {
    let sql = "SELECT coalesce(group_concat(class || attempts, ' '), '') FROM
               (SELECT class, attempts FROM handstamp_dead_letters ORDER BY \"offset\")";
    beside(folder).query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn effects_run_for_the_messages_that_fulfil_their_conditions() {
    for (set, batch_max) in [(false, 500), (false, 1), (true, 500), (true, 1)] {
        let folder = TempDir::new().unwrap();
        let counts = run(&folder, effects(set, false), &BODIES, batch_max).await;
        // g fulfils the first condition, and its amount is asked for by none: the statement takes it.
        assert_eq!((counts.applied, counts.dead_lettered, counts.attempts_failed), (4, 3, 0), "{counts:?}");
        assert_eq!(classes(&folder), "unmatched0 condition0 condition0");
        let eyes = beside(&folder);
        assert_eq!(number(&eyes, "SELECT balance FROM accounts WHERE id = 7"), -5 + 2 - 5);
        assert_eq!(number(&eyes, "SELECT count(*) FROM ledger"), 2);
        assert_eq!(number(&eyes, "SELECT sum(amount) FROM ledger"), 2002);
        // All of it once more: nothing runs.
        let counts = run(&folder, effects(set, false), &BODIES, batch_max).await;
        assert_eq!((counts.duplicate, counts.applied), (7, 0), "{counts:?}");
        assert_eq!(number(&eyes, "SELECT count(*) FROM ledger"), 2);
    }
}

#[tokio::test]
async fn what_no_effect_wants_is_passed_over_and_wanted_later() {
    for set in [false, true] {
        let folder = TempDir::new().unwrap();
        let counts = run(&folder, effects(set, true), &BODIES, 500).await;
        assert_eq!((counts.applied, counts.unmatched, counts.dead_lettered), (4, 1, 2), "{counts:?}");
        assert_eq!(classes(&folder), "condition0 condition0");
        let eyes = beside(&folder);
        assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_inbox"), 6, "none for what was passed over");
        let audit = EffectSpec {
            when: Some(":type = 'audit'".into()),
            ..EffectSpec::new("INSERT INTO ledger VALUES (:message_id, :amount)")
        };
        let audit = SqlEffects::new(vec![CompiledEffect::compile(&audit).unwrap()]).ignoring_unmatched(true);
        let counts = run(&folder, audit, &BODIES[..4], 500).await;
        assert_eq!((counts.applied, counts.unmatched), (1, 3), "{counts:?}");
        assert_eq!(number(&eyes, "SELECT count(*) FROM ledger WHERE event_id = 'd'"), 1);
    }
}

/// A set effect whose condition holds for none of a batch does not run, and one bad message is found among them.
#[tokio::test]
async fn a_set_effect_runs_over_those_that_it_wants() {
    let folder = TempDir::new().unwrap();
    let bodies: Vec<String> = (0..300)
        .map(|n| {
            let (kind, amount) = match n {
                150 => ("refund", "null".to_owned()),
                n if n % 3 == 0 => ("refund", "1".to_owned()),
                _ => ("audit", "\"x\"".to_owned()),
            };
            format!(r#"{{"id":"m{n}","type":"{kind}","amount":{amount}}}"#)
        })
        .collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let columns = SetSpec::default().column("amount", "INTEGER");
    let ledger = EffectSpec {
        set: Some(columns),
        when: Some(":type = 'refund'".into()),
        ..EffectSpec::new("INSERT INTO ledger SELECT message_id, amount FROM messages")
    };
    let ledger = || SqlEffects::new(vec![CompiledEffect::compile(&ledger).unwrap()]).ignoring_unmatched(true);
    let counts = run(&folder, ledger(), &bodies, 500).await;
    assert_eq!((counts.applied, counts.unmatched), (99, 200), "{counts:?}");
    assert_eq!((counts.parked + counts.dead_lettered, counts.attempts_failed > 0), (1, true), "{counts:?}");
    assert_eq!(number(&beside(&folder), "SELECT sum(amount) FROM ledger"), 99);
    let counts = run(&folder, ledger(), &[r#"{"id":"other","type":"audit"}"#], 500).await;
    assert_eq!((counts.unmatched, counts.commits), (1, 0), "{counts:?}");
}

/// What was parked or sent back is asked about by what is wanted then.
#[tokio::test]
async fn a_dead_letter_that_is_sent_back_is_asked_about_anew() {
    use handstamp_stores::redrive::{Operation, Redrive, Redriven};
    let folder = TempDir::new().unwrap();
    let counts = run(&folder, effects(false, false), &BODIES[3..4], 500).await;
    assert_eq!(counts.dead_lettered, 1, "{counts:?}");
    for (wants, state, letters) in [(false, "d", 1), (true, "a", 0)] {
        let store = open(&folder).await;
        let name = ConsumerName::new("wallet").unwrap();
        let dead = store.dead_letters(&name, None, None, 10).await.unwrap();
        assert_eq!(dead[0].class, FailureClass::Unmatched);
        let redrive = Redrive { dead_letter: dead[0].key, new_id: None, order_key: None };
        let operation = Operation { number: [1; 16], done_by: "test".into(), why: "test".into() };
        assert_eq!(store.redrive(&name, &[redrive], &operation).await.unwrap(), [Redriven::Parked]);
        drop(store);
        let when = if wants { ":type = 'audit'" } else { ":type = 'other'" };
        let spec = EffectSpec {
            when: Some(when.into()),
            ..EffectSpec::new("INSERT INTO ledger VALUES (:message_id, :amount)")
        };
        let effects = SqlEffects::new(vec![CompiledEffect::compile(&spec).unwrap()]);
        let broker = LogBroker::new("credits", 1);
        let consumer = Consumer::builder(name)
            .source(broker.source("group"), Identity::Field(Pointer::member("id")))
            .store(open(&folder).await)
            .batch_handler(effects)
            .options(ConsumerOptions {
                until_idle: Some(std::time::Duration::from_millis(50)),
                ..ConsumerOptions::default()
            });
        let counts = Box::pin(consumer.run_local(std::future::pending())).await.unwrap().counts;
        assert_eq!(
            (counts.resumed_applied, counts.resumed_dead),
            if wants { (1, 0) } else { (0, 1) },
            "{counts:?}"
        );
        assert_eq!(counts.attempts_failed, 0, "{counts:?}");
        let eyes = beside(&folder);
        let found: String =
            eyes.query_row("SELECT state FROM handstamp_inbox", [], |row| row.get(0)).unwrap();
        assert_eq!(found, state);
        assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_dead_letters"), letters);
    }
}
