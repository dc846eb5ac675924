//! Whatever goes wrong outside, the source says it once, counts it, and goes on by itself.

use crate::common::{Engine, LIMITS, PATIENCE, Place, assert_each_once, block_on, env};
use handstamp_core::{Notice, Settled, Source as _, SourceErrorKind};
use handstamp_sources::kafka::{KafkaOptions, KafkaSource, admin};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn client(place: &Place) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &place.brokers).set("group.id", &place.group);
    config
}

fn administrator(place: &Place) -> AdminClient<DefaultClientContext> {
    client(place).create().unwrap()
}

fn limits() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE))
}

fn delete_records_before(place: &Place, offset: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&place.topic, 0, Offset::Offset(offset)).unwrap();
    block_on(administrator(place).delete_records(&list, &limits())).unwrap();
}

fn commit(place: &Place, offset: i64) {
    let consumer: BaseConsumer = client(place).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&place.topic, 0, Offset::Offset(offset)).unwrap();
    consumer.commit(&list, CommitMode::Sync).unwrap();
}

#[test]
fn a_topic_that_is_missing_at_the_start_is_waited_for() {
    let place = Place::without_topic("missing");
    let mut engine = Engine::start(place.options());
    engine.until("missed", |e| e.noticed(Notice::Missing) == 1);
    engine.go_on_for(Duration::from_millis(700));
    assert_eq!(engine.noticed(Notice::Missing), 1, "said once");
    place.create(2);
    place.produce(2, 0, 10);
    engine.until("its records", |e| e.got.len() == 10);
    engine.close();
    assert_eq!(place.committed_sum(), 10);
}

#[test]
fn a_source_that_still_waits_for_its_topic_can_be_closed() {
    let engine = Engine::start(Place::without_topic("missing").options());
    engine.close();
}

#[test]
fn fail_fast_ends_with_what_is_wrong() {
    let mut engine = Engine::start(Place::without_topic("missing").options().with_fail_fast(true));
    engine.until("the end", |e| e.ended);
    let error = engine.failed.expect("said why");
    assert_eq!(error.kind, SourceErrorKind::Missing);
    // A port that nobody listens on.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut engine = Engine::start(KafkaOptions::new(&closed, "g", ["t"]).with_fail_fast(true));
    engine.until("the end", |e| e.ended);
    let error = engine.failed.expect("said why");
    assert_eq!(error.kind, SourceErrorKind::Disconnected);
    assert!(error.to_string().contains(&closed), "{error}");
}

#[test]
fn wrong_options_are_refused_at_the_start() {
    let (deliveries, _d) = tokio::sync::mpsc::channel(1);
    let (control, _c) = tokio::sync::mpsc::unbounded_channel();
    let (_s, commands) = tokio::sync::mpsc::unbounded_channel();
    let port = handstamp_core::SourcePort { deliveries, control, commands, limits: crate::common::LIMITS };
    let options = KafkaOptions::new("127.0.0.1:1", "g", ["t"]).option("enable.auto.commit", "true");
    let error = Box::new(KafkaSource::new(options)).start(port).unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Config);
}

#[test]
fn new_partitions_are_read_from_their_first_record() {
    let place = Place::new("grown", 1);
    place.produce(1, 0, 10);
    let mut engine = Engine::start(place.options());
    engine.until("the first partition", |e| e.got.len() == 10);
    let grown = NewPartitions::new(&place.topic, 3);
    block_on(administrator(&place).create_partitions([&grown], &limits())).unwrap();
    place.produce(3, 10, 40);
    engine.until("all partitions", |e| e.got.len() == 40);
    engine.until("counted", |e| e.noticed(Notice::Grown) == 1);
    assert_each_once(engine.values(), 0, 40);
    engine.close();
    assert_eq!(place.committed_sum(), 40);
}

#[test]
fn many_new_partitions_build_a_client_with_smaller_queues() {
    let place = Place::new("grown", 1);
    let mut engine = Engine::start(place.options());
    engine.until("assigned", |e| e.current.len() == 1);
    let grown = NewPartitions::new(&place.topic, 8);
    block_on(administrator(&place).create_partitions([&grown], &limits())).unwrap();
    engine.until("a new client", |e| e.noticed(Notice::ClientRebuilt) == 1);
    place.produce(8, 0, 80);
    engine.until("all partitions", |e| e.got.len() == 80);
    assert_each_once(engine.values(), 0, 80);
    engine.close();
}

#[test]
fn a_deleted_topic_is_missed_once_and_read_again_when_it_is_back() {
    let place = Place::new("deleted", 1);
    place.produce(1, 0, 10);
    let mut engine = Engine::start(place.options());
    engine.until("all settled", |e| e.settled_as(Settled::Done) == 10);
    block_on(administrator(&place).delete_topics(&[&place.topic], &limits())).unwrap();
    engine.until("missed", |e| e.noticed(Notice::Missing) >= 1);
    place.create(1);
    place.produce(1, 10, 20);
    engine.until("the new topic's records", |e| e.got.len() >= 20);
    assert_each_once(engine.values(), 0, 20);
    assert_eq!(engine.noticed(Notice::Missing), 1, "said once");
    engine.until("all settled", |e| e.settled_as(Settled::Done) == 20);
    engine.close();
    assert_eq!(place.committed()[&0], 10);
}

#[test]
fn a_log_cut_behind_the_position_is_noticed_and_read_on() {
    let place = Place::new("truncated", 1);
    place.produce(1, 0, 100);
    commit(&place, 10);
    delete_records_before(&place, 50);
    let mut engine = Engine::start(place.options());
    engine.until("what is left", |e| e.got.len() == 50);
    assert_each_once(engine.values(), 50, 100);
    engine.until("noticed", |e| e.noticed(Notice::Truncated) == 1);
    engine.close();
    assert_eq!(place.committed()[&0], 100);
}

#[test]
fn a_position_beyond_the_log_begins_anew_and_may_be_committed_lower() {
    let place = Place::new("beyond", 1);
    place.produce(1, 0, 20);
    commit(&place, 500);
    let mut engine = Engine::start(place.options());
    engine.until("all again", |e| e.got.len() == 20 && e.settled_as(Settled::Done) == 20);
    assert_eq!(engine.noticed(Notice::Truncated), 1);
    engine.close();
    assert_eq!(place.committed()[&0], 20);
}

#[test]
fn a_group_rewound_by_an_operator_gets_everything_again() {
    let place = Place::new("rewound", 1);
    place.produce(1, 0, 30);
    let mut engine = Engine::start(place.options());
    engine.until("all", |e| e.settled_as(Settled::Done) == 30);
    engine.close();
    commit(&place, 0);
    let mut engine = Engine::start(place.options());
    engine.until("all again", |e| e.settled_as(Settled::Done) == 30);
    assert_each_once(engine.values(), 0, 30);
    assert_eq!(engine.noticed(Notice::Truncated), 0);
    engine.close();
    assert_eq!(place.committed()[&0], 30);
}

#[test]
fn a_fatal_client_error_builds_a_new_client_and_nothing_is_lost() {
    let place = Place::new("fatal", 2);
    place.produce(2, 0, 100);
    let mut engine = Engine::start(place.options());
    engine.until("the first part", |e| e.settled_as(Settled::Done) == 100);
    let before = engine.current.clone();
    engine.hooks.fatal.store(true, Ordering::Relaxed);
    engine.until("a new client", |e| e.noticed(Notice::ClientRebuilt) == 1);
    place.produce(2, 100, 200);
    engine.until("assigned again", |e| e.current.len() == 2 && e.current.is_disjoint(&before));
    engine.until("the second part", |e| e.got.len() >= 200);
    let mut all = engine.values();
    all.sort_unstable();
    all.dedup();
    assert_each_once(all, 0, 200);
    assert!(before.iter().all(|lane| engine.lost.contains(lane)), "the old lanes are said to be lost");
    engine.close();
    assert_eq!(place.committed_sum(), 200);
}

/// A broker of the test's own.
struct OwnBroker {
    name: String,
}

impl OwnBroker {
    fn up(stem: &str) -> (Self, String) {
        let own = Self { name: format!("kafka@{stem}{}", std::process::id()) };
        own.services("up");
        let out = Command::new(env("HANDSTAMP_TEST_SERVICES")).args(["env", &own.name]).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("export HANDSTAMP_TEST_KAFKA="))
            .expect("its address");
        let brokers = line.trim_matches('\'').to_owned();
        (own, brokers)
    }

    fn services(&self, what: &str) {
        let status = Command::new(env("HANDSTAMP_TEST_SERVICES")).args([what, &self.name]).status().unwrap();
        assert!(status.success(), "services {what} {}", self.name);
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        let _ = Command::new(env("HANDSTAMP_TEST_SERVICES")).args(["down", &self.name]).status();
    }
}

#[test]
fn a_broker_that_dies_and_comes_back_loses_nothing_and_one_that_stays_away_does_not_keep_us() {
    let (own, brokers) = OwnBroker::up("faults");
    let place = Place { brokers, ..Place::without_topic("away") };
    place.create(2);
    place.produce(2, 0, 100);
    let mut engine = Engine::start(place.options());
    engine.until("the first part", |e| e.settled_as(Settled::Done) == 100);
    // Nothing is taken from now on: what is fetched now is handed over after the broker is said to be away.
    place.produce(2, 100, 20_000);
    own.services("kill");
    let limit = Instant::now() + PATIENCE;
    while engine.noticed(Notice::BrokerAway) == 0 {
        assert!(Instant::now() < limit, "not said to be away: {}", engine.state());
        engine.take_control();
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = engine.got.len();
    engine.go_on_for(Duration::from_secs(3));
    assert!(engine.got.len() > before + 5 * LIMITS.batch_max, "more than the port held: {}", engine.state());
    assert_eq!(engine.noticed(Notice::BrokerAway), 1, "said once");
    assert!(!engine.ended && engine.failed.is_none());
    own.services("start");
    place.produce(2, 20_000, 20_200);
    engine.until("the second part", |e| {
        let all = || e.values().into_iter().collect::<BTreeSet<u32>>();
        e.got.len() >= 20_200 && all().len() == 20_200 && e.settled_as(Settled::Done) >= 20_200
    });
    let mut all = engine.values();
    all.sort_unstable();
    all.dedup();
    assert_each_once(all, 0, 20_200);
    assert_eq!(engine.noticed(Notice::BrokerBack), 1, "said once");
    own.services("kill");
    engine.until("away again", |e| e.noticed(Notice::BrokerAway) == 2);
    engine.close();
}

#[test]
fn questions_for_check_are_answered_or_given_up() {
    let place = Place::new("look", 2);
    place.produce(2, 0, 4);
    let options = KafkaOptions::new(&place.brokers, &place.group, [place.topic.as_str(), "no-such-topic"]);
    let found = admin::look(&options, PATIENCE).unwrap();
    assert_eq!(found.topics[&place.topic], Some(2));
    assert_eq!(found.topics["no-such-topic"], None);
    assert!(!found.group_is_known());
    commit(&place, 1);
    assert!(admin::look(&options, PATIENCE).unwrap().group_is_known());
    let again = block_on(admin::create_topic(&place.brokers, &Default::default(), &place.topic, 2, PATIENCE));
    assert!(!again.unwrap(), "it was there");
    let error =
        admin::look(&KafkaOptions::new("127.0.0.1:1", "g", ["t"]), Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Disconnected);
}
