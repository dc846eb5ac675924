//! What the program asks of Kafka: a source, a look at the cluster, something to publish.

use super::NameInStore;
use super::dry_run::Peeked;
use super::source::Look;
use crate::cli::PublishArgs;
use crate::commands::publish::Plan;
use crate::config::{Config, KafkaSection};
use crate::exit::{CliError, Exit};
use crate::findings::Findings;
use crate::output;
use handstamp_core::retention::SourceWindow;
use handstamp_core::{Identity, Source};
use handstamp_sources::kafka::{self, KafkaOptions, KafkaSink, KafkaSource, Severity};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest wait for each answer of the cluster.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for what lies in the topics.
const PEEK_WITHIN: Duration = Duration::from_secs(15);
/// The lane waits for the answer to a copy: one that does not come is said soon and sent again, and a topic that does
/// not exist is one that refuses.
const COPY_OPTIONS: [(&str, &str); 2] =
    [("message.timeout.ms", "10000"), ("topic.metadata.propagation.max.ms", "5000")];
/// The id's header where the pipeline does not look into one.
const ID_HEADER: &str = "event_id";
/// How often librdkafka looks for new partitions; every 5 minutes unless said.
const METADATA_EVERY: &str = "topic.metadata.refresh.interval.ms";

fn options(section: &KafkaSection, fail_fast: bool) -> KafkaOptions {
    let topics = section.topics.iter().map(|topic| topic.value.clone());
    KafkaOptions::new(section.brokers.value.clone(), section.group.value.clone(), topics)
        .options(section.options.iter().map(|(key, value)| (key.clone(), value.value.clone())))
        .with_commit_every(section.commit_every)
        .with_revoke_timeout(section.revoke_timeout)
        .with_fail_fast(fail_fast)
}

/// The source of a pipeline.
pub(crate) fn source(
    section: &KafkaSection,
    fail_fast: bool,
    until_idle: Option<Duration>,
) -> Box<dyn Source> {
    let mut options = options(section, fail_fast);
    let given = section.options.iter().any(|(key, _)| key == METADATA_EVERY);
    if let Some(idle) = until_idle.filter(|_| !given) {
        // A topic that grows is noticed before the run calls itself idle, not minutes later.
        let every = (idle / 4).clamp(Duration::from_millis(100), Duration::from_secs(60));
        options = options.option(METADATA_EVERY, every.as_millis().to_string());
    }
    Box::new(KafkaSource::new(options))
}

/// The next records of the group; it does not notice.
///
/// # Errors
/// What the brokers answered, or that they did not.
pub(crate) async fn peek(section: &KafkaSection, most: usize, config: &Config) -> Result<Peeked, CliError> {
    let options = options(section, true);
    let bytes_max = config.options.message_max_bytes;
    let peeked =
        tokio::task::spawn_blocking(move || kafka::peek::peek(&options, most, bytes_max, PEEK_WITHIN));
    let peeked = peeked.await.map_err(|error| CliError::new(Exit::Unexpected, error.to_string()))??;
    Ok(Peeked { deliveries: peeked.deliveries, ended: peeked.ended })
}

/// Names and options, without asking the brokers.
pub(crate) fn look(section: &KafkaSection) -> Look {
    let mut look = Look::default();
    for problem in options(section, true).validate() {
        match problem.severity {
            Severity::Error => look.errors.push(CliError::usage(format!("[source] {problem}"))),
            Severity::Warning => {
                look.warnings.push((format!("source: {problem}"), "see the options of librdkafka"));
            }
        }
    }
    look
}

/// Brokers, topics, group.
pub(crate) fn check(section: &KafkaSection, name: NameInStore, config: &Config, findings: &mut Findings) {
    let options = options(section, true);
    let found = match kafka::admin::look(&options, ANSWER_WITHIN) {
        Ok(found) => found,
        Err(error) => {
            findings.fail_error(&error.into(), "is the broker running, and is `brokers` right?");
            return;
        }
    };
    for (topic, partitions) in &found.topics {
        match partitions {
            Some(partitions) => findings.ok(format!("source: topic {topic} has {partitions} partitions")),
            None => findings.fail(
                format!("source: topic {topic} does not exist"),
                "create it, or publish with `handstamp publish FILE --create-topic`; `run` waits for it",
            ),
        }
    }
    if let Some(topic) = &config.dead_letter {
        check_copies(section, &topic.value, findings);
    }
    if found.group_is_known() && matches!(name, NameInStore::New) {
        findings.warn(
            format!(
                "source: the group {} has committed offsets, but the consumer {} is new in this store: what it reads from now on meets an empty inbox, and an offset set back applies everything again",
                options.group(),
                config.name
            ),
            "if the consumer was renamed, go back to the old `name`",
        );
    }
}

/// Where copies of dead letters go: the source's brokers.
///
/// # Errors
/// Options that a producer cannot have.
pub(crate) fn copies(section: &KafkaSection) -> Result<KafkaSink, CliError> {
    let mut options = producer_options(section);
    for (key, value) in COPY_OPTIONS {
        options.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    Ok(KafkaSink::new(&section.brokers.value, &options)?)
}

/// Looks aside whether the topic for copies is there: a run says it before the first message fails, and waits for
/// nothing.
pub(crate) fn look_for_copies(sink: &KafkaSink, topic: &str) {
    let (sink, topic) = (sink.clone(), topic.to_owned());
    let look = move || {
        if let Ok(false) = sink.has_topic(&topic, ANSWER_WITHIN) {
            tracing::warn!(
                target: "handstamp",
                topic,
                "the topic for copies of dead letters does not exist: create it. Until then dead letters are kept in the \
                 store alone"
            );
        }
    };
    // What keeps it from looking is said where the first copy is made.
    drop(std::thread::Builder::new().name("handstamp-look".into()).spawn(look));
}

/// The topic for copies: whether it is there, and whether a producer fits the options.
fn check_copies(section: &KafkaSection, topic: &str, findings: &mut Findings) {
    if let Err(error) = copies(section) {
        findings.fail_error(&error, "leave it out of source.options: copies of dead letters go there too");
    }
    match kafka::admin::topic_partitions(
        &section.brokers.value,
        &producer_options(section),
        topic,
        ANSWER_WITHIN,
    ) {
        Ok(Some(partitions)) => {
            findings.ok(format!("dead_letter: topic {topic} has {partitions} partitions"));
        }
        Ok(None) => findings.warn(
            format!("dead_letter: topic {topic} does not exist: brokers that create no topics by themselves refuse every copy"),
            "create it; the dead letters are kept in the store all the same",
        ),
        Err(error) => findings.fail_error(&error.into(), "is the broker running, and may you read the topic?"),
    }
}

/// For how long each topic can deliver a record again.
///
/// # Errors
/// What the brokers answered.
pub(crate) async fn windows(section: &KafkaSection) -> Result<Vec<SourceWindow>, CliError> {
    let topics: Vec<&str> = section.topics.iter().map(|topic| topic.value.as_str()).collect();
    let (brokers, options) = (&section.brokers.value, producer_options(section));
    Ok(kafka::windows(brokers, &options, &topics, ANSWER_WITHIN).await?)
}

/// Publishes to the pipeline's topic.
///
/// # Errors
/// A topic that is missing, wrong arguments, or what the broker answered.
pub(crate) async fn publish(
    args: &PublishArgs,
    config: &Config,
    section: &KafkaSection,
) -> Result<Exit, CliError> {
    let [topic] = section.topics.as_slice() else {
        return Err(CliError::usage(
            "the pipeline reads several topics: publish needs one that reads a single one",
        ));
    };
    look(section).refuse()?;
    let topic = &topic.value;
    let brokers = &section.brokers.value;
    let header = match &config.identity.identity {
        Identity::Header(name) => name.clone(),
        _ => ID_HEADER.to_owned(),
    };
    // Before anything is made or asked.
    let plan = Plan::new(args, Some(config), topic, Some(header))?;
    let options: BTreeMap<String, String> = producer_options(section);
    let found = kafka::admin::topic_partitions(brokers, &options, topic, ANSWER_WITHIN)?;
    if found.is_none() {
        if !args.create_topic {
            return Err(CliError::new(
                Exit::Unreachable,
                format!("topic {topic} does not exist at {brokers}"),
            )
            .hint("--create-topic makes it (with --partitions N, 6 unless said)"));
        }
        kafka::admin::create_topic(brokers, &options, topic, args.partitions, ANSWER_WITHIN).await?;
        output::say(&format!("created topic {topic} with {} partitions", args.partitions));
    }
    let sink = KafkaSink::new(brokers, &options)?;
    plan.publish_all(&sink, found.is_none()).await?.say(args)
}

/// The options that concern the connection; a consumer's own would only make the producer warn.
fn producer_options(section: &KafkaSection) -> BTreeMap<String, String> {
    section.options.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect()
}
