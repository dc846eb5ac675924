//! What the program asks of Kafka: a source, a look at the cluster, something to publish.

use super::NameInStore;
use crate::cli::PublishArgs;
use crate::commands::publish::Plan;
use crate::config::{Config, KafkaSection};
use crate::exit::{CliError, Exit};
use crate::findings::Findings;
use crate::output;
use handstamp_core::{Identity, Source};
use handstamp_sources::kafka::{self, KafkaOptions, KafkaSink, KafkaSource, Severity};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest wait for each answer of the cluster.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The id's header where the pipeline does not look into one.
const ID_HEADER: &str = "event_id";

fn options(section: &KafkaSection, fail_fast: bool) -> KafkaOptions {
    let topics = section.topics.iter().map(|topic| topic.value.clone());
    KafkaOptions::new(section.brokers.value.clone(), section.group.value.clone(), topics)
        .options(section.options.iter().map(|(key, value)| (key.clone(), value.value.clone())))
        .with_commit_every(section.commit_every)
        .with_revoke_timeout(section.revoke_timeout)
        .with_fail_fast(fail_fast)
}

/// The source of a pipeline.
///
/// # Errors
/// An option that is refused.
pub(crate) fn source(section: &KafkaSection, fail_fast: bool) -> Result<Box<dyn Source>, CliError> {
    let options = options(section, fail_fast);
    // Before the store is opened: a mistake in the file must not wait for a database.
    if let Some(problem) = options.validate().into_iter().find(|problem| problem.severity == Severity::Error)
    {
        return Err(CliError::usage(format!("[source] {problem}")));
    }
    Ok(Box::new(KafkaSource::new(options)))
}

/// Brokers, topics, group, dangerous options.
pub(crate) fn check(section: &KafkaSection, name: &NameInStore, config: &Config, findings: &mut Findings) {
    let options = options(section, true);
    let mut refused = false;
    for problem in options.validate() {
        let todo = "see the options of librdkafka";
        match problem.severity {
            Severity::Error => {
                refused = true;
                findings.fail(format!("source: {problem}"), todo);
            }
            Severity::Warning => findings.warn(format!("source: {problem}"), todo),
        }
    }
    if refused {
        return;
    }
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
    let topic = &topic.value;
    let brokers = &section.brokers.value;
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
    let header = match &config.identity {
        Identity::Header(name) => name.clone(),
        _ => ID_HEADER.to_owned(),
    };
    let sink = KafkaSink::new(brokers, &options)?;
    let plan = Plan::new(args, Some(config), topic, Some(header))?;
    let published = plan.publish_all(&sink).await?;
    output::say(&format!("{} to {topic}", published.sentence()));
    Ok(Exit::Ok)
}

/// The options that concern the connection; a consumer's own would only make the producer warn.
fn producer_options(section: &KafkaSection) -> BTreeMap<String, String> {
    section.options.iter().map(|(key, value)| (key.clone(), value.value.clone())).collect()
}
