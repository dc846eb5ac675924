//! What a user may say about Kafka, what is refused and why, and what the client library is told.

use super::settings::{self, Severity};
use super::start::code_text;
use super::waits::{Reconnects, Retries};
use handstamp_core::secret::is_secret;
use handstamp_core::source::PortLimits;
use handstamp_core::store::Fingerprint;
use handstamp_core::{SourceError, SourceErrorKind};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use super::settings::Problem;

/// How to read topics as a member of a consumer group.
///
/// `Debug` shows no value of a secret option.
#[derive(Clone)]
pub struct KafkaOptions {
    brokers: String,
    group: String,
    topics: Vec<String>,
    options: BTreeMap<String, String>,
    commit_every: Duration,
    commit_timeout: Duration,
    revoke_timeout: Duration,
    /// End with an error instead of waiting for a broker or a topic.
    pub(super) fail_fast: bool,
}

impl KafkaOptions {
    /// The broker list (`host:port,host:port`), the group and the topics, everything else by default.
    pub fn new<T: Into<String>>(
        brokers: impl Into<String>,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> Self {
        let mut topics: Vec<String> = topics.into_iter().map(Into::into).collect();
        topics.sort();
        topics.dedup();
        Self {
            brokers: brokers.into(),
            group: group.into(),
            topics,
            options: BTreeMap::new(),
            commit_every: Duration::from_millis(200),
            commit_timeout: Duration::from_secs(2),
            revoke_timeout: Duration::from_secs(5),
            fail_fast: false,
        }
    }

    /// A setting of librdkafka, by its name. [`KafkaOptions::validate`] says which are refused.
    #[must_use]
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.insert(key.into(), value.into());
        self
    }

    /// Several settings of librdkafka.
    #[must_use]
    pub fn options(mut self, options: impl IntoIterator<Item = (String, String)>) -> Self {
        self.options.extend(options);
        self
    }

    /// How far the committed offsets may lag behind the store (default 200 ms; zero commits at once after
    /// each settle). A partition with 50,000 settled messages to commit waits no longer.
    #[must_use]
    pub fn with_commit_every(mut self, every: Duration) -> Self {
        self.commit_every = every;
        self
    }

    /// How long to wait for the answer to a commit (default 2 s).
    #[must_use]
    pub fn with_commit_timeout(mut self, timeout: Duration) -> Self {
        self.commit_timeout = timeout;
        self
    }

    /// How long lanes may take to finish when their partitions are taken away (default 5 s).
    #[must_use]
    pub fn with_revoke_timeout(mut self, timeout: Duration) -> Self {
        self.revoke_timeout = timeout;
        self
    }

    /// End with an error instead of waiting for a broker or a topic that is not there.
    #[must_use]
    pub fn with_fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// The broker list.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// The consumer group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The topics, sorted, each once.
    #[must_use]
    pub fn topics(&self) -> &[String] {
        &self.topics
    }

    /// How far the committed offsets may lag behind the store.
    #[must_use]
    pub fn commit_every(&self) -> Duration {
        self.commit_every
    }

    pub(super) fn commit_timeout(&self) -> Duration {
        self.commit_timeout
    }

    pub(super) fn revoke_timeout(&self) -> Duration {
        self.revoke_timeout
    }

    /// What this source is: its type and its topics.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(format!("kafka:{}", self.topics.join(",")))
    }

    /// Everything that is wrong or dangerous, errors first. No broker is asked.
    #[must_use]
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = self.own_problems();
        for (key, value) in &self.options {
            problems.extend(settings::judge(key, value, &self.options));
        }
        problems.sort_by_key(|problem| problem.severity);
        problems
    }

    fn own_problems(&self) -> Vec<Problem> {
        let mut problems = vec![];
        let mut error = |key: &str, message: String| problems.push(Problem::error(key, message));
        if self.brokers.trim().is_empty() {
            error("brokers", "is empty; name at least one host:port".into());
        }
        if self.group.is_empty() {
            error("group", "is empty; offsets are kept under the group's name".into());
        }
        if self.topics.is_empty() {
            error("topics", "is empty; name at least one topic".into());
        }
        for topic in self.topics.iter().filter(|topic| !is_topic_name(topic)) {
            error(
                "topics",
                format!(
                    "{topic:?} is no topic name (1 to 249 of A-Z a-z 0-9 . _ -, neither . nor ..); patterns are not read"
                ),
            );
        }
        if self.commit_timeout.is_zero() {
            error("commit_timeout", "is zero; every commit would be given up at once".into());
        }
        if self.revoke_timeout < Duration::from_millis(100) {
            problems.push(Problem::warning(
                "revoke_timeout",
                "is very short: work in flight at each rebalance is done again by the new owner",
            ));
        }
        problems
    }

    /// The first error of [`KafkaOptions::validate`] as a source's error.
    pub(super) fn first_error(&self) -> Option<SourceError> {
        let problem = self.validate().into_iter().find(|problem| problem.severity == Severity::Error)?;
        Some(SourceError::new(SourceErrorKind::Config, problem.to_string()))
    }

    /// The text without the value of any secret option.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        settings::without_secrets(text, &self.options)
    }

    /// Settings of any client: brokers and what passes through.
    pub(super) fn plain_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        // The wrapper drops what is above its own level, whatever the library was told to say.
        let debug = self.options.contains_key("debug");
        config.set_log_level(if debug { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
        config.set("client.id", "handstamp");
        for (key, value) in Reconnects::new(&self.options).settings() {
            config.set(key, value);
        }
        for (key, value) in self.options.iter().filter(|(key, _)| !settings::is_consumer_only(key)) {
            config.set(key, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    /// Settings of the consumer that is a member of the group.
    pub(super) fn consumer_config(&self, limits: &PortLimits, lanes: usize) -> ClientConfig {
        let mut config = self.plain_config();
        config.set("auto.offset.reset", "earliest");
        config.set("fetch.queue.backoff.ms", "10");
        for (key, value) in Retries::new(&self.options).settings() {
            config.set(key, value);
        }
        for (key, value) in &self.options {
            config.set(key, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config.set("group.id", &self.group);
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        config.set("isolation.level", "read_committed");
        config.set("enable.partition.eof", "true");
        for (key, value) in QueueSizes::new(limits, lanes).settings() {
            config.set(key, value);
        }
        config
    }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: BTreeMap<&str, &str> = self
            .options
            .iter()
            .map(|(key, value)| (key.as_str(), if is_secret(key) { "***" } else { value.as_str() }))
            .collect();
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("options", &options)
            .field("commit_every", &self.commit_every)
            .field("commit_timeout", &self.commit_timeout)
            .field("revoke_timeout", &self.revoke_timeout)
            .field("fail_fast", &self.fail_fast)
            .finish()
    }
}

/// How the library's queues are bounded. Each partition has a queue of its own, so each gets its share:
/// fetching stops at half of the share, and one fetch more may come on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueSizes {
    lane_bytes: usize,
    fetch_bytes: usize,
    lane_records: usize,
}

impl QueueSizes {
    fn new(limits: &PortLimits, lanes: usize) -> Self {
        let lane_bytes = (limits.queue_max_bytes / lanes.max(1) / 2).clamp(1024, 1_000_000_000);
        let fetch_bytes = (limits.queue_max_bytes / 2).clamp(1024, 1_000_000_000);
        // The library keeps some 200 bytes beside each record that it does not count.
        let lane_records = (lane_bytes / 200).clamp(10, 100_000);
        Self { lane_bytes, fetch_bytes, lane_records }
    }

    fn settings(self) -> [(&'static str, String); 6] {
        // fetch.max.bytes must not be less than message.max.bytes, which a consumer has no other use for.
        let message_max = self.fetch_bytes.clamp(1000, 1_000_000);
        let receive_max = (self.fetch_bytes + 512).max(100_000_000);
        [
            ("queued.max.messages.kbytes", (self.lane_bytes / 1024).max(1).to_string()),
            ("queued.min.messages", self.lane_records.to_string()),
            ("fetch.message.max.bytes", self.lane_bytes.to_string()),
            ("fetch.max.bytes", self.fetch_bytes.to_string()),
            ("message.max.bytes", message_max.to_string()),
            ("receive.message.max.bytes", receive_max.to_string()),
        ]
    }
}

fn is_topic_name(name: &str) -> bool {
    (1..=249).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The library refused a configuration that `validate` let pass. Its own text may hold a secret's value,
/// so only the name is repeated.
pub(super) fn refused(options: &KafkaOptions, error: &KafkaError) -> SourceError {
    let message = match error {
        KafkaError::ClientConfig(_, _, key, _) => {
            format!("Kafka option {key}: the client library refuses its value")
        }
        KafkaError::ClientCreation(text) => {
            format!("the Kafka client cannot be made: {}", options.without_secrets(text))
        }
        other => format!("the Kafka client cannot be made: {}", code_text(other)),
    };
    SourceError::new(SourceErrorKind::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> KafkaOptions {
        KafkaOptions::new("127.0.0.1:9092", "g", ["b", "a", "b"])
    }

    fn limits(queue_max_bytes: usize) -> PortLimits {
        PortLimits { batch_max: 500, batch_max_bytes: 1 << 22, queue_max_bytes, message_max_bytes: 1 << 20 }
    }

    #[test]
    fn the_fingerprint_does_not_depend_on_the_order_of_topics() {
        assert_eq!(options().fingerprint().0, "kafka:a,b");
        assert_eq!(KafkaOptions::new("x", "y", ["b", "a"]).fingerprint(), options().fingerprint());
    }

    #[test]
    fn all_lanes_together_stay_within_the_queue_limit() {
        for queue in [1 << 20, 16 << 20, 256 << 20] {
            for lanes in [1, 3, 6, 48, 500] {
                let sizes = QueueSizes::new(&limits(queue), lanes);
                // Fetching stops at lane_bytes, and one more fetch of lane_bytes may come.
                assert!(sizes.lane_bytes * 2 * lanes <= queue, "{queue} {lanes}");
                assert!(sizes.fetch_bytes <= queue);
            }
        }
    }

    #[test]
    fn every_size_gives_a_configuration_the_library_takes() {
        for queue in [1, 1024, 1 << 20, 16 << 20, 4 << 30] {
            for lanes in [1, 6, 10_000] {
                let config = options().consumer_config(&limits(queue), lanes);
                let made: Result<rdkafka::consumer::BaseConsumer, _> = config.create();
                assert!(made.is_ok(), "{queue} {lanes}: {:?}", made.err());
            }
        }
    }

    #[test]
    fn what_is_said_of_reconnecting_passes_through_and_one_alone_takes_the_other_along() {
        for (first, longest, expected) in [
            (None, None, ("200", "2000")),
            (Some("50"), None, ("50", "2000")),
            (Some("5000"), None, ("5000", "5000")),
            (None, Some("150"), ("150", "150")),
            (None, Some("9000"), ("200", "9000")),
            (Some("10"), Some("20"), ("10", "20")),
        ] {
            let mut with = options();
            for (key, value) in [("reconnect.backoff.ms", first), ("reconnect.backoff.max.ms", longest)] {
                if let Some(value) = value {
                    with = with.option(key, value);
                }
            }
            assert_eq!(with.validate(), vec![]);
            for config in [with.plain_config(), with.consumer_config(&limits(1 << 20), 1)] {
                let set = (config.get("reconnect.backoff.ms"), config.get("reconnect.backoff.max.ms"));
                assert_eq!(set, (Some(expected.0), Some(expected.1)), "{first:?} {longest:?}");
                let made: Result<rdkafka::consumer::BaseConsumer, _> = config.create();
                assert!(made.is_ok(), "{first:?} {longest:?}: {:?}", made.err());
            }
        }
        let both = options().option("reconnect.backoff.ms", "900").option("reconnect.backoff.max.ms", "800");
        let made: Result<rdkafka::consumer::BaseConsumer, _> = both.plain_config().create();
        let error = refused(&both, &made.err().expect("the library has the last word"));
        assert!(error.to_string().contains("reconnect.backoff.max.ms"), "{error}");
    }

    #[test]
    fn a_request_is_sent_again_later_than_a_fetch_may_wait_unless_it_is_said_otherwise() {
        for (said, expected) in [
            (vec![], ("1000", "1000", "100")),
            (vec![("fetch.wait.max.ms", "50")], ("1000", "1000", "100")),
            (vec![("fetch.wait.max.ms", "3000")], ("6000", "6000", "100")),
            (vec![("fetch.wait.max.ms", "300000")], ("300000", "300000", "100")),
            (vec![("retry.backoff.max.ms", "9000")], ("1000", "9000", "100")),
            (vec![("retry.backoff.max.ms", "700")], ("700", "700", "100")),
            (vec![("retry.backoff.ms", "50")], ("50", "1000", "100")),
            (vec![("retry.backoff.ms", "5000")], ("5000", "5000", "100")),
            (vec![("topic.metadata.refresh.fast.interval.ms", "300")], ("1000", "1000", "300")),
        ] {
            let with = options().options(said.iter().map(|(k, v)| (k.to_string(), v.to_string())));
            let config = with.consumer_config(&limits(1 << 20), 1);
            let get = |key: &str| config.get(key).unwrap_or("none");
            let set = (
                get("retry.backoff.ms"),
                get("retry.backoff.max.ms"),
                get("topic.metadata.refresh.fast.interval.ms"),
            );
            assert_eq!(set, expected, "{said:?}");
            let made: Result<rdkafka::consumer::BaseConsumer, _> = config.create();
            assert!(made.is_ok(), "{said:?}: {:?}", made.err());
        }
    }

    #[test]
    fn the_promise_cannot_be_switched_off() {
        for (key, value) in [
            ("enable.auto.commit", "true"),
            ("auto.commit.enable", "true"),
            ("enable.auto.offset.store", "true"),
            ("auto.commit.interval.ms", "100"),
            ("offset.store.method", "file"),
            ("isolation.level", "read_uncommitted"),
            ("enable.partition.eof", "false"),
            ("group.id", "other"),
            ("bootstrap.servers", "x:1"),
            ("metadata.broker.list", "x:1"),
            ("queued.max.messages.kbytes", "1000"),
            ("max.partition.fetch.bytes", "1000"),
            ("api.version.request", "false"),
        ] {
            let with = options().option(key, value);
            let error = with.first_error().unwrap_or_else(|| panic!("{key}={value} was let pass"));
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn ordinary_options_pass_and_dangerous_ones_are_warned_of() {
        let plain = options()
            .option("session.timeout.ms", "45000")
            .option("client.rack", "r1")
            .option("partition.assignment.strategy", "cooperative-sticky")
            .option("group.instance.id", "one");
        assert_eq!(plain.validate(), vec![]);
        for (key, value) in [
            ("auto.offset.reset", "latest"),
            ("session.timeout.ms", "1500"),
            ("max.poll.interval.ms", "7000"),
            ("group.protocol", "consumer"),
            ("retry.backoff.ms", "100"),
            ("retry.backoff.max.ms", "600"),
        ] {
            let problems = options().option(key, value).validate();
            assert!(
                problems.iter().any(|p| p.severity == Severity::Warning && p.key == key),
                "{key}: {problems:?}"
            );
            assert!(problems.iter().all(|p| p.severity == Severity::Warning), "{key}: {problems:?}");
        }
    }

    #[test]
    fn an_unknown_option_names_its_nearest() {
        let error = options().option("sesion.timeout.ms", "45000").first_error().expect("refused");
        assert!(error.to_string().contains("session.timeout.ms"), "{error}");
        let error = options().option("session.timeout.ms", "canary").first_error().expect("refused");
        assert!(error.to_string().contains("session.timeout.ms"), "{error}");
    }

    #[test]
    fn names_that_kafka_would_refuse_are_refused() {
        for name in ["", "^a.*", "a b", "..", "ü"] {
            assert!(KafkaOptions::new("b", "g", [name]).first_error().is_some(), "{name:?}");
        }
        assert!(KafkaOptions::new("", "g", ["t"]).first_error().is_some());
        assert!(KafkaOptions::new("b", "", ["t"]).first_error().is_some());
        assert!(KafkaOptions::new("b", "g", Vec::<String>::new()).first_error().is_some());
    }

    #[test]
    fn secrets_are_in_no_text() {
        let mut with = options();
        for key in [
            "sasl.password",
            "ssl.key.password",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.config",
            "ssl.key.pem",
            "ssl.keystore.key",
        ] {
            with = with.option(key, "canary");
        }
        let text = format!("{with:?} {:?} {:?}", with.validate(), with.first_error());
        assert!(!text.contains("canary"), "{text}");
        let refused = refused(&with, &KafkaError::ClientCreation("bad canary".into())).to_string();
        assert!(!refused.contains("canary"), "{refused}");
    }

    #[cfg(not(feature = "kafka-ssl"))]
    #[test]
    fn tls_without_its_feature_is_refused_with_the_features_name() {
        for (key, value) in [
            ("security.protocol", "SASL_SSL"),
            ("security.protocol", "ssl"),
            ("ssl.ca.location", "x"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
        ] {
            let error = options().option(key, value).first_error().expect("refused");
            assert!(error.to_string().contains("kafka-ssl"), "{error}");
        }
    }
}
