//! Topics and groups of a run on a real broker: made, and deleted at the end.

use super::{WAIT, client_config, unreachable};
use crate::error::{LabError, LabErrorKind, Result};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::time::Duration;

fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
    Ok(runtime.block_on(future))
}

/// Asks whether a broker answers.
pub(super) fn probe(bootstrap: &str) -> Result<()> {
    let client: BaseConsumer =
        client_config(bootstrap).create().map_err(|error| LabError::usage("no client").because(error))?;
    client
        .fetch_metadata(Some("handstamp_lab_no_such_topic"), Duration::from_secs(10))
        .map_err(|error| unreachable(&format!("nothing at {bootstrap}"), error))?;
    Ok(())
}

fn admin(bootstrap: &str) -> Result<AdminClient<DefaultClientContext>> {
    client_config(bootstrap).create().map_err(|error| unreachable("no client", error))
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(WAIT)).request_timeout(Some(WAIT))
}

pub(super) fn create(bootstrap: &str, name: &str, partitions: i32) -> Result<()> {
    let admin = admin(bootstrap)?;
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

pub(super) fn delete(bootstrap: &str, topic: &str, group: &str) {
    let deleted = admin(bootstrap).and_then(|admin| {
        block_on(async {
            let topics = admin.delete_topics(&[topic], &options()).await;
            // A group whose dead member is still remembered goes away by itself later.
            let _ = admin.delete_groups(&[group], &options()).await;
            topics
        })
    });
    match deleted {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(topic, %error, "the lab's topic is left behind"),
        Err(error) => tracing::warn!(topic, %error, "the lab's topic is left behind"),
    }
}
