//! However a client ends, its threads end too: one that is left behind may keep a core busy for ever.
//! Every `close` checks that no client is left. On the client library's mock cluster.

use crate::common::{Engine, Place, unique};
use handstamp_core::{Command, Notice, Settled, SourceErrorKind};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::sync::atomic::Ordering;
use std::time::Duration;

type Mock = MockCluster<'static, DefaultProducerContext>;

/// A mock cluster, and a topic of two partitions with ten messages.
fn mock(stem: &str) -> (Mock, Place) {
    let mock = Mock::new(1).unwrap();
    let place = Place { brokers: mock.bootstrap_servers(), topic: unique(stem), group: unique(stem) };
    mock.create_topic(&place.topic, 2, 1).unwrap();
    place.produce(2, 0, 10);
    (mock, place)
}

fn clients(engine: &Engine) -> u32 {
    engine.hooks.clients.load(Ordering::Relaxed)
}

#[test]
fn a_client_with_a_fatal_error_is_gone_when_the_next_one_works() {
    // The library itself destroys only the clients of static members without closing their group.
    for instance in [None, Some("one")] {
        let (_mock, place) = mock("fatal");
        // The group waits so long for the member that is gone.
        let options = place.options().option("session.timeout.ms", "4500");
        let options = match instance {
            Some(id) => options.option("group.instance.id", id),
            None => options,
        };
        let mut engine = Engine::start(options);
        engine.until("settled", |e| e.settled_as(Settled::Done) == 10);
        engine.hooks.fatal.store(true, Ordering::Relaxed);
        engine.until("a new client", |e| e.noticed(Notice::ClientRebuilt) == 1);
        place.produce(2, 10, 20);
        engine.until("the second part", |e| e.settled_as(Settled::Done) >= 20);
        engine.until("the old client is gone", |e| clients(e) == 1);
        engine.close();
    }
}

#[test]
fn a_fatal_error_while_work_is_in_flight_leaves_no_client() {
    let (_mock, place) = mock("fatal");
    let mut engine = Engine::start(place.options());
    engine.ack = false;
    engine.until("handed over", |e| e.got.len() == 10);
    engine.hooks.fatal.store(true, Ordering::Relaxed);
    engine.until("a new client", |e| e.noticed(Notice::ClientRebuilt) == 1);
    engine.close();
}

#[test]
fn a_group_that_refuses_us_leaves_no_client() {
    let (mock, place) = mock("refused");
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 100];
    mock.request_errors(RDKafkaApiKey::JoinGroup, &refused);
    let mut engine = Engine::start(place.options().with_fail_fast(true));
    engine.until("the end", |e| e.ended);
    assert_eq!(engine.failed.as_ref().expect("said why").kind, SourceErrorKind::Disconnected);
    engine.until_no_client_is_left();
    mock.clear_request_errors(RDKafkaApiKey::JoinGroup);

    // Without `fail_fast` it goes on trying, and can be closed.
    mock.request_errors(RDKafkaApiKey::JoinGroup, &refused);
    let mut engine = Engine::start(place.options());
    engine.until("it tries", |e| clients(e) == 1 && e.hooks.polls.load(Ordering::Relaxed) > 20);
    engine.close();
}

#[test]
fn a_broker_that_is_gone_at_the_close_leaves_no_client() {
    let (mock, place) = mock("gone");
    let mut engine = Engine::start(place.options());
    engine.until("settled", |e| e.settled_as(Settled::Done) == 10);
    drop(mock);
    engine.close_within(Duration::from_secs(2));
}

#[test]
fn a_close_without_a_broker_does_not_use_up_all_the_time_it_has() {
    let (mock, place) = mock("unheard");
    let mut engine = Engine::start(place.options());
    engine.ack = false;
    engine.until("handed over", |e| e.got.len() == 10);
    drop(mock);
    engine.until("said to be away", |e| e.noticed(Notice::BrokerAway) == 1);
    engine.settle(&engine.got);
    // Far more time than an unheard farewell is worth.
    engine.send(Command::Close { within: Duration::from_secs(75) });
    engine.until("the source's end", |e| e.ended);
    assert_eq!(engine.settled_as(Settled::Done), 0, "nobody took the commit");
    assert_eq!(engine.lag.values().sum::<u64>(), 10, "all of it comes again");
    // Ten milliseconds each: a second, and what comes of events in between.
    let polls = engine.hooks.leaving.load(Ordering::Relaxed);
    assert!(polls <= 400, "{polls} polls while leaving");
    engine.until_no_client_is_left();
}

#[test]
fn a_broker_that_hangs_at_the_close_does_not_keep_the_source_and_leaves_no_client_once_it_answers() {
    let (mock, place) = mock("hangs");
    // What the mock holds back stays held back on its connection: a new one is tried after this.
    let mut engine = Engine::start(place.options().option("socket.timeout.ms", "2000"));
    engine.ack = false;
    engine.until("handed over", |e| e.got.len() == 10);
    mock.broker_round_trip_time(1, Duration::from_secs(3600)).unwrap();
    engine.settle(&engine.got);
    engine.send(Command::Close { within: Duration::from_secs(1) });
    engine.until("the source's end", |e| e.ended);
    // The library waits, at rest, for the answer to the commit.
    assert_eq!(clients(&engine), 1, "the broker did not hang");
    mock.broker_round_trip_time(1, Duration::from_millis(1)).unwrap();
    engine.until_no_client_is_left();
}

#[test]
fn a_close_while_partitions_are_being_taken_away_leaves_no_client() {
    let (_mock, place) = mock("taken");
    let mut first = Engine::start(place.options());
    first.ack = false;
    first.drain = false;
    first.until("handed over", |e| e.got.len() == 10);
    let second = Engine::start(place.options());
    first.until("being taken away", |e| !e.revoking.is_empty());
    first.close_within(Duration::from_secs(2));
    second.close();
}

#[test]
fn a_close_before_the_first_assignment_leaves_no_client() {
    let (_mock, place) = mock("early");
    let mut engine = Engine::start(place.options());
    engine.until("a member", |e| e.hooks.polls.load(Ordering::Relaxed) > 0);
    engine.close();
}

#[test]
fn an_engine_that_is_gone_leaves_no_client() {
    let (_mock, place) = mock("vanished");
    let mut engine = Engine::start(place.options());
    engine.ack = false;
    engine.until("handed over", |e| e.got.len() == 10);
    engine.send(Command::Hold(engine.lane("[0]")));
    engine.vanish();
    engine.until_no_client_is_left();
}
