//! CloudEvents as producers write them to Kafka, in both modes, through a real broker.

use crate::common::{Engine, Place, block_on};
use bytes::Bytes;
use handstamp_core::json::Pointer;
use handstamp_core::{Header, Headers, Identity, IdentityRule, Record, Sink as _};
use handstamp_sources::kafka::{KafkaSink, record_for};
use std::collections::BTreeMap;

fn event(place: &Place, headers: &[(&'static str, &'static str)], body: &'static str) -> Record {
    let header = |(name, value): &(&'static str, &'static str)| {
        Header::new(name.as_bytes(), Some(Bytes::from_static(value.as_bytes())))
    };
    let headers = Headers::new(headers.iter().map(header).collect());
    record_for(&place.topic, None, Some(Bytes::from_static(body.as_bytes())), headers)
}

#[test]
fn an_event_has_one_id_in_both_modes() {
    let place = Place::new("cloud_events", 1);
    let json = ("content-type", "application/json");
    let structured = ("content-type", "application/cloudevents+json; charset=UTF-8");
    let sent = [
        event(
            &place,
            &[("ce_specversion", "1.0"), ("ce_id", "e-1"), ("ce_source", "/shop"), ("ce_type", "t"), json],
            r#"{"amount":10,"sent":1}"#,
        ),
        event(
            &place,
            &[structured],
            r#"{"specversion":"1.0","type":"t","source":"/shop","id":"e-1","data":{}}"#,
        ),
        event(&place, &[("ce_id", "e-1"), ("ce_source", "/shop"), json], r#"{"sent":2,"amount":1e1}"#),
        event(&place, &[("ce_id", "e-1"), json], "{}"),
    ];
    let sink = KafkaSink::new(&place.brokers, &BTreeMap::new()).unwrap();
    for result in block_on(sink.publish(&sent)) {
        result.unwrap();
    }
    let mut engine = Engine::start(place.options());
    engine.until("all events", |e| e.got.len() == sent.len());
    let got: Vec<Record> = engine.close().got.into_iter().map(|delivery| delivery.record).collect();
    let rule = IdentityRule::new(Identity::CloudEvents).digest_of(vec![Pointer::parse("/amount").unwrap()]);
    for record in &got[..3] {
        assert_eq!(rule.message_id(record).unwrap().as_str(), Some(r#"["/shop","e-1"]"#));
    }
    assert_eq!(rule.digest(&got[0]), rule.digest(&got[2]), "a resend whose body changed");
    assert_ne!(rule.digest(&got[0]), rule.digest(&got[1]), "another mode, another body");
    assert!(rule.message_id(&got[3]).unwrap_err().reason.contains("ce_source"));
}
