//! Topics of a run on a real broker: made, and deleted at the end.

use super::{Address, WAIT, unreachable};
use crate::error::{LabError, LabErrorKind, Result};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use std::time::{Duration, Instant};

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
    Ok(runtime.block_on(future))
}

/// Asks whether a broker answers.
pub(super) fn probe(address: &Address) -> Result<()> {
    let client: BaseConsumer = address.client_config().create().map_err(|error| no_client(address, error))?;
    client.fetch_metadata(Some("handstamp_lab_no_such_topic"), Duration::from_secs(10)).map_err(|error| {
        let plain = if address.options.is_empty() { ", or it wants TLS or a log-in" } else { "" };
        unreachable(&format!("nothing at {}{plain}", address.bootstrap), error)
    })?;
    Ok(())
}

/// A client that its options do not allow.
fn no_client(address: &Address, error: rdkafka::error::KafkaError) -> LabError {
    let tls = address.options.iter().any(|(name, value)| {
        name.starts_with("ssl.")
            || (name == "security.protocol" && value.to_ascii_lowercase().contains("ssl"))
    });
    let hint = if tls { "; TLS needs a program built with the feature kafka-ssl" } else { "" };
    LabError::usage(format!("no client of the broker can be made with these options{hint}")).because(error)
}

fn admin(address: &Address) -> Result<AdminClient<DefaultClientContext>> {
    address.client_config().create().map_err(|error| unreachable("no client", error))
}

pub(super) fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(WAIT)).request_timeout(Some(WAIT))
}

pub(super) fn create(address: &Address, name: &str, partitions: i32) -> Result<()> {
    let admin = admin(address)?;
    let new = NewTopic::new(name, partitions, TopicReplication::Fixed(-1));
    let answers = block_on(admin.create_topics([&new], &options()))?
        .map_err(|error| unreachable("no topic was made", error))?;
    for answer in answers {
        answer.map_err(|(topic, code)| {
            LabError::new(LabErrorKind::Other, format!("the broker makes no topic {topic}: {code}"))
        })?;
    }
    Ok(())
}

/// Waits until a new topic can be used: brokers learn of it a little after they agreed to make it.
pub(super) fn wait_until_there(address: &Address, name: &str, partitions: i32) -> Result<()> {
    let client: BaseConsumer =
        address.client_config().create().map_err(|error| unreachable("no client", error))?;
    let until = Instant::now() + WAIT;
    while Instant::now() < until {
        let found = client.fetch_metadata(Some(name), WAIT).map_err(|error| unreachable(name, error))?;
        let led = found.topics().iter().flat_map(|topic| topic.partitions()).filter(|one| one.leader() >= 0);
        if i32::try_from(led.count()) == Ok(partitions) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let what = format!("topic {name} was made, and after {WAIT:?} it is not there");
    Err(LabError::new(LabErrorKind::Unreachable, what))
}

/// How often a deletion is asked for: a busy broker may have forgotten the first time.
const DELETE_ATTEMPTS: u32 = 3;

pub(super) fn delete(address: &Address, topic: &str) -> Result<()> {
    for _ in 1..DELETE_ATTEMPTS {
        match delete_once(address, topic) {
            Ok(()) => return Ok(()),
            Err(error) => tracing::debug!(topic, %error, "the lab's topic is deleted again"),
        }
    }
    delete_once(address, topic)
}

fn delete_once(address: &Address, topic: &str) -> Result<()> {
    let admin = admin(address)?;
    let answers = block_on(admin.delete_topics(&[topic], &options()))?;
    for answer in answers.map_err(|error| unreachable("the topic was not deleted", error))? {
        match answer {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err((topic, code)) => {
                return Err(LabError::new(LabErrorKind::Other, format!("{topic} is not deleted: {code}")));
            }
        }
    }
    Ok(())
}
