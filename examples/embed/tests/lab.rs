//! The consumer of the example in the crash lab: killed, stopped, cut from its database, given every message's
//! second copy and bad ones; each good message has its effect once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is the failure report")]

use handstamp_lab::Cancel;
use handstamp_lab::broker::Broker;
use handstamp_lab::ledger::Place;
use handstamp_lab::own::{self, Conclusion, CountedBy, Fault, Faults, Ground, Messages, Settings};
use std::time::Duration;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"))
}

fn settings() -> Settings {
    let words = ["{brokers}", "{topic}", "{group}", "{database_url}", "--forever"].map(str::to_owned);
    Settings {
        seed: 1,
        program: [vec![env!("CARGO_BIN_EXE_level1_kafka").to_owned()], words.to_vec()].concat(),
        copies: 2,
        env: vec![],
        messages: Messages {
            count: 2000,
            id: "{uuid}".into(),
            key: Some("{account}".into()),
            body: r#"{"account_id":{account},"amount":{amount}}"#.into(),
            headers: vec![("event_id".into(), "{id}".into())],
            duplicates: 0.05,
            reordered: 0.05,
            bad: 0.01,
            bad_body: "no JSON {n}".into(),
            accounts: 100,
            partitions: 6,
        },
        faults: Faults {
            kills: 2,
            stops: 0,
            cuts: 1,
            broker_cuts: 0,
            after_ms: (0, 100),
            stop_for_ms: (8000, 8000),
        },
        broker: own::BrokerSettings::default(),
        url_parameters: None,
        counted_by: CountedBy::Query("SELECT event_id FROM ledger".into()),
        setup_sql: Some(include_str!("../schema.sql").to_owned()),
        setup_command: vec![],
        patience: Duration::from_secs(60),
        quiet: Duration::from_secs(1),
    }
}

#[test]
fn level1_on_kafka_stands_the_crash_lab() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings().checked(false, false).unwrap();
    let broker = Broker::kafka(&variable("HANDSTAMP_TEST_KAFKA")).unwrap();
    let place = Place::Postgres(variable("HANDSTAMP_TEST_POSTGRES"));
    let (folder, cancel) = (folder.path(), Cancel::default());
    let ground = Ground { broker: &broker, place: &place, servers: "a test's", folder, cancel: &cancel };
    let outcome = own::run(&settings, &ground, &|_| {}).unwrap();
    assert_eq!(outcome.conclusion, Conclusion::Kept, "{outcome:#?}");
    assert!(outcome.duplicates > 0 && outcome.bad > 0 && outcome.reordered > 0, "{outcome:#?}");
    assert!(outcome.schedule.iter().any(|done| done.counts && done.fault == Fault::Kill), "{outcome:#?}");
    assert!(outcome.through[0].down > 0 && outcome.through[0].cut > 0, "{outcome:#?}");
    assert_eq!(own::recompute(folder).unwrap(), outcome, "the folder says the same");
}
