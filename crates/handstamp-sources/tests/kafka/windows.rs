//! How long a topic's records can be delivered again, as a real broker says.

use crate::common::{PATIENCE, block_on, brokers, unique};
use handstamp_core::SourceErrorKind;
use handstamp_core::retention::Window;
use handstamp_sources::kafka::windows;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use std::collections::BTreeMap;
use std::time::Duration;

fn admin() -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers()).create().unwrap()
}

fn topic(settings: &[(&str, &str)]) -> String {
    let name = unique("windows");
    let new = settings
        .iter()
        .fold(NewTopic::new(&name, 1, TopicReplication::Fixed(1)), |new, (key, value)| new.set(key, value));
    block_on(admin().create_topics([&new], &AdminOptions::new())).unwrap().remove(0).unwrap();
    name
}

fn asked(topics: &[&str]) -> Vec<Option<Duration>> {
    let found = block_on(windows(&brokers(), &BTreeMap::new(), topics, PATIENCE)).unwrap();
    found.iter().map(|of| of.window.length()).collect()
}

#[test]
fn a_topic_is_kept_for_its_retention_and_a_segment_more() {
    let plain = topic(&[]);
    let short = topic(&[("retention.ms", "3600000"), ("segment.ms", "60000")]);
    let endless = topic(&[("retention.ms", "-1")]);
    let compacted = topic(&[("cleanup.policy", "compact")]);
    let both = topic(&[("cleanup.policy", "compact,delete"), ("retention.ms", "1000")]);
    let day = Duration::from_secs(86_400);
    let known = asked(&[&plain, &short, &endless, &compacted, &both, "nowhere-at-all"]);
    assert_eq!(known, [Some(day * 14), Some(Duration::from_secs(3_660)), None, None, None, None]);
    let found = block_on(windows(&brokers(), &BTreeMap::new(), &["nowhere-at-all"], PATIENCE)).unwrap();
    let Window::Unknown { why } = &found[0].window else { panic!("{found:?}") };
    assert!(why.contains("does not exist"), "{why}");
}

#[test]
fn a_topic_that_is_kept_for_longer_from_now_on_is_noticed() {
    let name = topic(&[("retention.ms", "3600000"), ("segment.ms", "3600000")]);
    assert_eq!(asked(&[&name]), [Some(Duration::from_secs(7_200))]);
    let longer = AlterConfig::new(ResourceSpecifier::Topic(&name)).set("retention.ms", "7200000");
    block_on(admin().alter_configs([&longer], &AdminOptions::new())).unwrap().remove(0).unwrap();
    // What is not said again is the broker's own.
    assert_eq!(asked(&[&name]), [Some(Duration::from_secs(7_200 + 7 * 86_400))]);
}

#[test]
fn brokers_that_do_not_answer_say_nothing() {
    let none = BTreeMap::new();
    let asked = windows("127.0.0.1:1", &none, &["t"], Duration::from_secs(2));
    assert_eq!(block_on(asked).unwrap_err().kind, SourceErrorKind::Disconnected);
}
