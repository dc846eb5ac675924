//! Commits that fail: none is fatal, nothing is lost, and the offset follows in the end.
//! The errors come from the client library's mock cluster, because no real broker gives them on demand.

use crate::common::{Engine, Place, unique};
use handstamp_core::{Notice, Settled};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::sync::atomic::Ordering;
use std::time::Duration;

type Mock = MockCluster<'static, DefaultProducerContext>;

fn place(mock: &Mock, stem: &str) -> Place {
    let place = Place { brokers: mock.bootstrap_servers(), topic: unique(stem), group: unique(stem) };
    mock.create_topic(&place.topic, 1, 1).unwrap();
    place
}

/// Twenty messages are settled while commits fail with the code; then one more is.
fn fails_then_follows(code: RDKafkaRespErr) -> Engine {
    let mock = Mock::new(1).unwrap();
    let place = place(&mock, "code");
    place.produce(1, 0, 20);
    let mut engine = Engine::start(place.options());
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 20);
    mock.request_errors(RDKafkaApiKey::OffsetCommit, &[code]);
    engine.settle(&engine.got);
    engine.ack = true;
    // Answered, or lost and handed over again.
    engine.until("the commit's fate", |e| {
        e.settled.len() >= 20 || e.noticed(Notice::SettleFailed) + e.noticed(Notice::Lost) > 0
    });
    place.produce(1, 20, 21);
    engine.until("the next message", |e| e.values().contains(&20));
    let limit = std::time::Instant::now() + crate::common::PATIENCE;
    while place.committed().get(&0) != Some(&21) {
        assert!(std::time::Instant::now() < limit, "{code:?}: {:?}\n{}", place.committed(), engine.state());
        engine.step();
    }
    let mut values = engine.values();
    values.sort_unstable();
    values.dedup();
    crate::common::assert_each_once(values, 0, 21);
    assert_eq!(engine.hooks.rebuilt.load(Ordering::Relaxed), 0, "{code:?} needs no new client");
    engine.close()
}

/// Nothing but the library's own search for its coordinator helps the commit: no message comes that would end a
/// fetch which the search waits behind, and a commit has more time than a session.
#[test]
fn codes_that_pass_keep_the_offset_and_try_again() {
    use RDKafkaRespErr as Code;
    for code in [
        Code::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        Code::RD_KAFKA_RESP_ERR_STALE_MEMBER_EPOCH,
        Code::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        Code::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
        Code::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
        Code::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        Code::RD_KAFKA_RESP_ERR__TRANSPORT,
    ] {
        let mock = Mock::new(1).unwrap();
        let place = place(&mock, "passes");
        place.produce(1, 0, 20);
        let mut engine = Engine::start(place.options().with_commit_timeout(crate::common::PATIENCE));
        engine.ack = false;
        engine.until("all", |e| e.got.len() == 20);
        mock.request_errors(RDKafkaApiKey::OffsetCommit, &[code]);
        engine.settle(&engine.got);
        engine.until("the commit's fate", |e| e.settled.len() == 20);
        assert_eq!(engine.settled_as(Settled::Done), 20, "{code:?}: {}", engine.state());
        assert_eq!(place.committed().get(&0), Some(&20), "{code:?}");
        engine.ack = true;
        place.produce(1, 20, 21);
        engine.until("the next message", |e| e.settled_as(Settled::Done) == 21);
        assert_eq!(place.committed().get(&0), Some(&21), "{code:?}");
        assert_eq!(engine.noticed(Notice::Lost), 0, "{code:?}: we stay in the group: {}", engine.state());
        assert_eq!(engine.got.len(), 21, "{code:?}: nothing came twice: {}", engine.state());
        assert_eq!(engine.hooks.rebuilt.load(Ordering::Relaxed), 0, "{code:?} needs no new client");
        engine.close();
    }
}

#[test]
fn codes_that_put_us_out_of_the_group_drop_the_offset_and_rejoin() {
    use RDKafkaRespErr as Code;
    for code in [Code::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION, Code::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID] {
        let engine = fails_then_follows(code);
        assert!(engine.noticed(Notice::SettleFailed) >= 1 && engine.noticed(Notice::Lost) == 1, "{code:?}");
        assert_eq!(engine.settled_as(Settled::Stale), 20, "{code:?}: what was lost is said to be stale");
    }
}

#[test]
fn codes_that_refuse_are_answered_and_the_next_position_is_tried() {
    use RDKafkaRespErr as Code;
    for code in [
        Code::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
        Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        Code::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE,
        Code::RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE,
    ] {
        let engine = fails_then_follows(code);
        assert_eq!(engine.settled_as(Settled::Failed), 20, "{code:?}");
        assert_eq!(engine.settled_as(Settled::Done), 1, "{code:?}");
        assert_eq!(engine.noticed(Notice::SettleFailed), 1, "{code:?}");
    }
}

#[test]
fn a_code_that_only_a_fenced_member_gets_stops_commits_for_a_while_only() {
    let engine = fails_then_follows(RDKafkaRespErr::RD_KAFKA_RESP_ERR_FENCED_MEMBER_EPOCH);
    assert!(engine.noticed(Notice::SettleFailed) >= 1);
}

#[test]
fn an_answer_that_does_not_come_is_unknown_and_the_offset_follows_later() {
    let mock = Mock::new(1).unwrap();
    let place = place(&mock, "slow");
    place.produce(1, 0, 10);
    let mut engine = Engine::start(place.options().with_commit_timeout(Duration::from_millis(300)));
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 10);
    mock.broker_round_trip_time(1, Duration::from_secs(2)).unwrap();
    engine.settle(&engine.got);
    engine.until("given up", |e| e.settled_as(Settled::Unknown) == 10);
    assert!(engine.noticed(Notice::SettleUnknown) >= 1);
    mock.broker_round_trip_time(1, Duration::from_millis(1)).unwrap();
    let limit = std::time::Instant::now() + crate::common::PATIENCE;
    while place.committed().get(&0) != Some(&10) {
        assert!(std::time::Instant::now() < limit, "{}", engine.state());
        engine.step();
    }
    engine.close();
}
