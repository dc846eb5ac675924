//! The next records, looked at without taking them: partitions are assigned by hand, no group is joined, no offset
//! is committed. A group that runs meanwhile does not notice. Blocks the calling thread.
//!
//! Authoritative: the broker, for the group's committed offsets, which are asked for, and the log.

use super::admin;
use super::config::{KafkaOptions, refused};
use super::context::Context;
use super::ffi::{self, Client, Code, Queue};
use super::records::Copier;
use super::session::drop_within;
use super::start::code_text;
use handstamp_core::source::PortLimits;
use handstamp_core::{Delivery, DeliveryTag, Lane, ReadAhead, SourceError, SourceErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The wait where nothing is there.
const PAUSE: Duration = Duration::from_millis(5);
/// Most events of the library that are taken between two looks at the queues.
const EVENTS_MAX: usize = 100;
/// How long the end of the client may take.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The next records of a group.
#[derive(Debug)]
pub struct Peeked {
    /// As the source would hand them over; those of a partition in their order.
    pub deliveries: Vec<Delivery>,
    /// Every partition was seen to its end: nothing lies behind them.
    pub ended: bool,
}

/// What is read of one partition.
struct Peeking {
    topic: Arc<str>,
    partition: i32,
    queue: Queue,
    ended: bool,
}

/// The records behind the group's committed offsets, at most `most` over all partitions; where it has none, by
/// `auto.offset.reset`.
///
/// # Errors
/// `Config` when an option is refused, `Missing` for a topic that does not exist, `Disconnected` when the brokers do
/// not answer within the time, `Other` when they refuse.
pub fn peek(
    options: &KafkaOptions,
    most: usize,
    message_max_bytes: usize,
    within: Duration,
) -> Result<Peeked, SourceError> {
    let found = admin::look(options, within)?;
    let mut places = Vec::new();
    for (topic, partitions) in &found.topics {
        let Some(partitions) = partitions else {
            let message = format!("Kafka at {} has no topic {topic}", options.brokers());
            return Err(SourceError::new(SourceErrorKind::Missing, message));
        };
        let topic: Arc<str> = topic.as_str().into();
        places.extend((0..*partitions).map(|partition| (Arc::clone(&topic), partition)));
    }
    let limits = PortLimits {
        batch_max: most.max(1),
        batch_max_bytes: 4 << 20,
        queue_max_bytes: (8 << 20).max(message_max_bytes),
        message_max_bytes,
    };
    let config = options.consumer_config(&limits, places.len().max(1));
    let client: BaseConsumer<Context> =
        config.create_with_context(Context::default()).map_err(|error| refused(options, &error))?;
    let client: Client = Arc::new(client);
    let peeked = read(&client, options, places, &limits, most, within);
    // It is in no group that it could leave.
    drop_within(Ending(Some(client)), END_WITHIN);
    peeked
}

/// Destroys a client without closing it.
struct Ending(Option<Client>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            ffi::destroy(client);
        }
    }
}

fn read(
    client: &Client,
    options: &KafkaOptions,
    places: Vec<(Arc<str>, i32)>,
    limits: &PortLimits,
    most: usize,
    within: Duration,
) -> Result<Peeked, SourceError> {
    let mut partitions = assign(client, options, places)?;
    let mut copier = Copier::new(limits.message_max_bytes);
    let mut deliveries = Vec::new();
    let mut trouble: Option<String> = None;
    let until = Instant::now() + within;
    while deliveries.len() < most && partitions.iter().any(|one| !one.ended) {
        if Instant::now() >= until {
            let why = trouble.unwrap_or_else(|| "no answer in time".to_owned());
            let message = format!("Kafka at {} does not answer: {why}", options.brokers());
            return Err(SourceError::new(SourceErrorKind::Disconnected, message));
        }
        for _ in 0..EVENTS_MAX {
            match client.poll(Duration::ZERO) {
                None => break,
                Some(Ok(_)) => {}
                Some(Err(error)) => trouble = Some(code_text(&error)),
            }
        }
        let before = deliveries.len();
        for (lane, one) in partitions.iter_mut().enumerate() {
            one.read(lane, most, &mut copier, &mut deliveries, &mut trouble);
        }
        if deliveries.len() == before {
            std::thread::sleep(PAUSE);
        }
    }
    let ended = partitions.iter().all(|one| one.ended && one.queue.len() == 0);
    Ok(Peeked { deliveries, ended })
}

/// Assigns the partitions at the group's offsets, each with a queue of its own.
fn assign(
    client: &Client,
    options: &KafkaOptions,
    places: Vec<(Arc<str>, i32)>,
) -> Result<Vec<Peeking>, SourceError> {
    let failed = |error: KafkaError| {
        let message =
            format!("Kafka at {}: cannot look at the topics: {}", options.brokers(), code_text(&error));
        SourceError::new(SourceErrorKind::Other, message).with_source(error)
    };
    let mut list = TopicPartitionList::with_capacity(places.len());
    let mut partitions = Vec::with_capacity(places.len());
    for (topic, partition) in places {
        list.add_partition_offset(&topic, partition, Offset::Stored).map_err(failed)?;
        let queue = Queue::of_partition(client, &topic, partition).ok_or_else(|| {
            SourceError::new(SourceErrorKind::Other, format!("{topic}[{partition}] has no queue"))
        })?;
        partitions.push(Peeking { topic, partition, queue, ended: false });
    }
    client.assign(&list).map_err(failed)?;
    Ok(partitions)
}

impl Peeking {
    fn read(
        &mut self,
        lane: usize,
        most: usize,
        copier: &mut Copier,
        deliveries: &mut Vec<Delivery>,
        trouble: &mut Option<String>,
    ) {
        let Self { topic, partition, queue, ended } = self;
        let lane = Lane { id: u32::try_from(lane).unwrap_or(u32::MAX), epoch: 1 };
        queue.read(most.saturating_sub(deliveries.len()), |raw| match raw.code() {
            Code::NONE => {
                let (record, fault) = copier.copy(raw, topic, *partition);
                let tag = DeliveryTag(u64::try_from(record.origin.offset).unwrap_or(0));
                deliveries.push(Delivery { lane, tag, record, fault, ahead: ReadAhead::default() });
                *ended = false;
            }
            Code::PARTITION_EOF => *ended = true,
            _ => *trouble = Some(raw.words()),
        });
    }
}
