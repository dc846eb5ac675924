//! What the hand-written subjects share: a consumer's configuration, and reading a credit from a record.

use super::{Res, Said, Setup, say};
use crate::workload::Credit;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The settings that all subjects have in common; auto-commit is left to each.
pub(super) fn config(setup: &Setup) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &setup.brokers)
        .set("group.id", &setup.group)
        .set("session.timeout.ms", setup.session_timeout_ms.to_string())
        .set("heartbeat.interval.ms", (setup.session_timeout_ms / 3).to_string())
        .set("auto.offset.reset", "earliest")
        .set("log_level", "4");
    if let Some(ms) = setup.max_poll_interval_ms {
        config.set("max.poll.interval.ms", ms.to_string());
    }
    if let Some(assignor) = setup.stall.as_ref().and_then(|stall| stall.assignor.as_ref()) {
        config.set("partition.assignment.strategy", assignor);
    }
    config
}

/// A member of the group.
pub(super) fn subscribe(config: &ClientConfig, setup: &Setup) -> Res<BaseConsumer> {
    let consumer: BaseConsumer = config.create()?;
    consumer.subscribe(&[&setup.topic])?;
    Ok(consumer)
}

/// The next message, or `None` when nothing came for a while. Errors of a poll are informational.
pub(super) fn poll(consumer: &BaseConsumer, wait: Duration) -> Option<BorrowedMessage<'_>> {
    let polled = consumer.poll(wait);
    say_assigned(consumer);
    match polled? {
        Ok(message) => Some(message),
        Err(KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded)) => {
            say(&Said::Evicted);
            None
        }
        Err(error) => {
            tracing::debug!(%error, "poll");
            None
        }
    }
}

/// Says how many partitions are its own, when that changed to some.
fn say_assigned(consumer: &BaseConsumer) {
    static BEFORE: AtomicU32 = AtomicU32::new(0);
    let Ok(now) = consumer.assignment() else { return };
    let now = u32::try_from(now.count()).unwrap_or(u32::MAX);
    if BEFORE.swap(now, Ordering::SeqCst) != now && now > 0 {
        say(&Said::Assigned(now));
    }
}

#[derive(serde::Deserialize)]
struct Body {
    account_id: i64,
    amount: i64,
}

/// The credit in a record: its id is the producer's, from the header `event_id`.
pub(super) fn credit(message: &BorrowedMessage<'_>) -> Res<Credit> {
    let headers = message.headers().ok_or("a record without headers")?;
    let id = headers.iter().find(|header| header.key == "event_id").and_then(|header| header.value);
    let id = String::from_utf8(id.ok_or("a record without an event_id")?.to_vec())?;
    let body: Body = serde_json::from_slice(message.payload().unwrap_or_default())?;
    Ok(Credit { id, account: body.account_id, amount: body.amount })
}

/// Commits the offset behind one message and waits for the answer. A refusal is said and survived: the
/// partition has another owner, who gets the message again.
pub(super) fn commit(consumer: &BaseConsumer, message: &BorrowedMessage<'_>) -> Res<()> {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(message.topic(), message.partition(), Offset::Offset(message.offset() + 1))?;
    if let Err(error) = consumer.commit(&list, CommitMode::Sync) {
        say(&Said::CommitRefused(error.to_string()));
    }
    Ok(())
}

/// The subject's named point: counts how often it comes by, and waits there to be killed when told to.
#[derive(Debug, Default)]
pub(super) struct Point(u64);

impl Point {
    /// Comes by.
    pub(super) fn pass(&mut self, setup: &Setup) {
        self.0 += 1;
        if setup.hold_at_nth == Some(self.0) {
            say(&Said::Held(setup.subject.point().unwrap_or("?").to_owned()));
            loop {
                std::thread::park();
            }
        }
    }
}
