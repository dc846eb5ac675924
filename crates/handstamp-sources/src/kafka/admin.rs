//! Questions to a cluster for `check` and `publish`: is it there, are the topics there, has the group been
//! here before. Every one has a limit. They block the calling thread.

use super::config::{KafkaOptions, refused};
use super::context::Quiet;
use super::session::drop_within;
use super::start::{code_text, partitions_of};
use handstamp_core::source::PortLimits;
use handstamp_core::{SourceError, SourceErrorKind};
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Offset};
use std::collections::BTreeMap;
use std::time::Duration;

/// Sizes for a client that reads nothing.
const LIMITS: PortLimits = PortLimits {
    batch_max: 500,
    batch_max_bytes: 4 << 20,
    queue_max_bytes: 8 << 20,
    message_max_bytes: 1 << 20,
};

/// What a cluster says of the topics and the group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findings {
    /// Partitions of each topic; `None` is a topic that does not exist.
    pub topics: BTreeMap<String, Option<i32>>,
    /// Committed offsets of the group on these topics, by topic and partition.
    pub committed: BTreeMap<(String, i32), i64>,
}

impl Findings {
    /// Whether the group has been here before.
    #[must_use]
    pub fn group_is_known(&self) -> bool {
        !self.committed.is_empty()
    }
}

/// Asks brokers, topics and group, each question within the limit.
///
/// # Errors
/// `Config` when an option is refused, `Disconnected` when no broker answers, `Other` when it refuses.
pub fn look(options: &KafkaOptions, within: Duration) -> Result<Findings, SourceError> {
    if let Some(error) = options.first_error() {
        return Err(error);
    }
    // The member's own settings: what the library refuses of them together shows only here. It does not join.
    let config = options.consumer_config(&LIMITS, 1);
    let client: BaseConsumer<Quiet> =
        config.create_with_context(Quiet).map_err(|error| refused(options, &error))?;
    let found = ask(&client, options, within);
    drop_within(client, Duration::from_secs(2));
    found.map_err(|error| unanswered(options.brokers(), error))
}

fn ask(
    client: &BaseConsumer<Quiet>,
    options: &KafkaOptions,
    within: Duration,
) -> Result<Findings, KafkaError> {
    let mut topics = BTreeMap::new();
    let mut list = TopicPartitionList::new();
    for topic in options.topics() {
        let partitions = partitions_of(client, topic, within)?;
        for partition in 0..partitions.unwrap_or(0) {
            list.add_partition(topic, partition);
        }
        topics.insert(topic.clone(), partitions);
    }
    let mut committed = BTreeMap::new();
    if list.count() > 0 {
        for one in client.committed_offsets(list, within)?.elements() {
            if let Offset::Offset(offset) = one.offset() {
                committed.insert((one.topic().to_owned(), one.partition()), offset);
            }
        }
    }
    Ok(Findings { topics, committed })
}

/// What brokers take as a topic's name.
const TOPIC_RULE: &str = "a topic's name has 1 to 249 of A-Z a-z 0-9 . _ - and is neither . nor ..";

pub(super) fn unanswered(brokers: &str, error: KafkaError) -> SourceError {
    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::InvalidTopic) {
        let message = format!("Kafka at {brokers} refuses the topic's name: {TOPIC_RULE}");
        return SourceError::new(SourceErrorKind::Config, message).with_source(error);
    }
    let kind = match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::SaslAuthenticationFailed,
        ) => SourceErrorKind::Other,
        _ => SourceErrorKind::Disconnected,
    };
    SourceError::new(kind, format!("Kafka at {brokers} does not answer: {}", code_text(&error)))
        .with_source(error)
}

pub(super) fn plain(
    brokers: &str,
    options: &BTreeMap<String, String>,
) -> Result<(KafkaOptions, ClientConfig), SourceError> {
    let base = KafkaOptions::new(brokers, "none", ["none"])
        .options(options.iter().map(|(key, value)| (key.clone(), value.clone())));
    if let Some(error) = base.first_error() {
        return Err(error);
    }
    let config = base.plain_config();
    Ok((base, config))
}

/// How many partitions a topic has; `None` when it does not exist.
///
/// # Errors
/// As [`look`].
pub fn topic_partitions(
    brokers: &str,
    options: &BTreeMap<String, String>,
    topic: &str,
    within: Duration,
) -> Result<Option<i32>, SourceError> {
    let (base, config) = plain(brokers, options)?;
    let client: BaseConsumer<Quiet> =
        config.create_with_context(Quiet).map_err(|error| refused(&base, &error))?;
    let found = partitions_of(&client, topic, within);
    drop_within(client, Duration::from_secs(2));
    found.map_err(|error| unanswered(brokers, error))
}

/// Creates a topic with the broker's own replication. True when it is new, false when it was there.
///
/// # Errors
/// As [`look`]; `Other` when the broker refuses.
pub async fn create_topic(
    brokers: &str,
    options: &BTreeMap<String, String>,
    topic: &str,
    partitions: i32,
    within: Duration,
) -> Result<bool, SourceError> {
    let (base, config) = plain(brokers, options)?;
    let admin: AdminClient<Quiet> =
        config.create_with_context(Quiet).map_err(|error| refused(&base, &error))?;
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1));
    let limits = AdminOptions::new().request_timeout(Some(within)).operation_timeout(Some(within));
    let answer = admin.create_topics([&new], &limits).await;
    drop_within(admin, Duration::from_secs(2));
    let refusal = |code: RDKafkaErrorCode| {
        let (kind, rule) = match code {
            RDKafkaErrorCode::InvalidTopic => (
                SourceErrorKind::Config,
                format!(": {TOPIC_RULE}, and two names must not differ in . and _ alone"),
            ),
            RDKafkaErrorCode::InvalidPartitions
            | RDKafkaErrorCode::InvalidReplicationFactor
            | RDKafkaErrorCode::InvalidConfig
            | RDKafkaErrorCode::PolicyViolation => (SourceErrorKind::Config, String::new()),
            _ => (SourceErrorKind::Other, String::new()),
        };
        SourceError::new(kind, format!("Kafka at {brokers} does not create topic {topic}: {code}{rule}"))
    };
    let failed = |error| match error {
        KafkaError::AdminOpCreation(why) => {
            SourceError::new(SourceErrorKind::Config, format!("topic {topic} cannot be asked for: {why}"))
        }
        error => unanswered(brokers, error),
    };
    match answer.map_err(failed)?.into_iter().next() {
        Some(Ok(_)) => Ok(true),
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
        Some(Err((_, code))) => Err(refusal(code)),
        None => Err(refusal(RDKafkaErrorCode::Unknown)),
    }
}
