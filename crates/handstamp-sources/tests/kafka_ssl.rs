//! TLS with a broker's own certificate authority and SCRAM, against a real broker.
#![cfg(feature = "kafka-ssl")]
// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::too_many_lines)]

#[path = "kafka/common.rs"]
mod common;

use common::{Engine, PATIENCE, assert_each_once, block_on, env, unique};
use handstamp_core::{Headers, Sink as _, SourceErrorKind};
use handstamp_sources::kafka::{KafkaOptions, KafkaSink, admin, record_for};
use std::collections::BTreeMap;
use std::time::Duration;

fn options(password: &str) -> BTreeMap<String, String> {
    let ca = env("HANDSTAMP_TEST_KAFKA_CA");
    let user = env("HANDSTAMP_TEST_KAFKA_SASL_USER");
    [
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.username", user.as_str()),
        ("sasl.password", password),
        ("ssl.ca.location", ca.as_str()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

#[test]
fn records_are_published_and_read_through_sasl_ssl_with_scram() {
    let brokers = env("HANDSTAMP_TEST_KAFKA_SASL");
    let options = options(&env("HANDSTAMP_TEST_KAFKA_SASL_PASSWORD"));
    let topic = unique("ssl");
    assert!(block_on(admin::create_topic(&brokers, &options, &topic, 2, PATIENCE)).unwrap());
    let sink = KafkaSink::new(&brokers, &options).unwrap();
    let records: Vec<_> = (0..100)
        .map(|n| {
            record_for(&topic, Some(n.to_string().into()), Some(n.to_string().into()), Headers::default())
        })
        .collect();
    assert!(block_on(sink.publish(&records)).into_iter().all(|result| result.is_ok()));
    let mut engine = Engine::start(KafkaOptions::new(&brokers, unique("ssl"), [&topic]).options(options));
    engine.until("all", |e| e.got.len() == 100);
    assert_each_once(engine.values(), 0, 100);
    engine.close();
}

#[test]
fn a_wrong_password_is_an_error_that_does_not_show_it() {
    let brokers = env("HANDSTAMP_TEST_KAFKA_SASL");
    let options = KafkaOptions::new(&brokers, unique("ssl"), ["any"]).options(options("canary-password"));
    assert!(!format!("{options:?}").contains("canary"));
    let error = admin::look(&options, Duration::from_secs(5)).unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Disconnected);
    assert!(!format!("{error:?} {error}").contains("canary"), "{error:?}");
    let mut engine = Engine::start(options.with_fail_fast(true));
    engine.until("the end", |e| e.ended);
    let error = engine.failed.unwrap();
    assert!(!format!("{error:?} {error}").contains("canary"), "{error:?}");
}
