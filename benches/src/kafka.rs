//! Topics of one run: made, filled, dropped; and the broker's counters.

use crate::credits::{Credits, Plan, Sent};
use crate::harness::{Res, float};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use std::time::Duration;

/// Partitions of every topic.
pub(crate) const PARTITIONS: i32 = 6;
const WAIT: Duration = Duration::from_secs(30);

/// The brokers to use.
pub(crate) fn brokers() -> Res<String> {
    std::env::var("HANDSTAMP_TEST_KAFKA").map_err(|_| "HANDSTAMP_TEST_KAFKA is not set".into())
}

fn client() -> Res<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers()?);
    Ok(config)
}

fn block_on<T>(future: impl Future<Output = T>) -> Res<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(future))
}

/// A topic that is deleted when it is dropped.
pub(crate) struct Topic {
    pub(crate) name: String,
    admin: AdminClient<DefaultClientContext>,
}

impl Topic {
    /// Makes an empty topic.
    pub(crate) fn create(name: &str) -> Res<Self> {
        let admin: AdminClient<DefaultClientContext> = client()?.create()?;
        let new = NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(WAIT));
        for result in block_on(admin.create_topics([&new], &options))?? {
            result.map_err(|(topic, code)| format!("cannot create {topic}: {code}"))?;
        }
        Ok(Self { name: name.to_owned(), admin })
    }

    /// Makes a topic and publishes a plan to it.
    pub(crate) fn filled(name: &str, plan: &Plan) -> Res<(Self, Sent)> {
        let topic = Self::create(name)?;
        let producer: ThreadedProducer<DefaultProducerContext> = producer_config()?.create()?;
        let mut credits = Credits::new(plan);
        for credit in &mut credits {
            let record = record(&topic.name, &credit);
            let mut unsent = producer.send(record).err();
            while let Some((error, record)) = unsent {
                if !is_full(&error) {
                    return Err(error.into());
                }
                std::thread::sleep(Duration::from_millis(2));
                unsent = producer.send(record).err();
            }
        }
        producer.flush(Duration::from_secs(120))?;
        Ok((topic, credits.sent()))
    }

    /// Publishes a plan that nobody sees before [`Hidden::show`].
    pub(crate) fn hidden(&self, plan: &Plan) -> Res<Hidden> {
        let mut config = producer_config()?;
        config.set("transactional.id", &self.name);
        let producer: BaseProducer = config.create()?;
        producer.init_transactions(WAIT)?;
        producer.begin_transaction()?;
        let mut credits = Credits::new(plan);
        for credit in &mut credits {
            let mut unsent = producer.send(record(&self.name, &credit)).err();
            while let Some((error, record)) = unsent {
                if !is_full(&error) {
                    return Err(error.into());
                }
                producer.poll(Duration::from_millis(2));
                unsent = producer.send(record).err();
            }
        }
        producer.flush(WAIT)?;
        Ok(Hidden { producer, sent: credits.sent() })
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // Left behind, it costs only room on a test broker.
        drop(block_on(self.admin.delete_topics(&[&self.name], &AdminOptions::new())));
    }
}

/// Messages written in an open transaction.
pub(crate) struct Hidden {
    producer: BaseProducer,
    pub(crate) sent: Sent,
}

impl Hidden {
    /// All of them become visible at once.
    pub(crate) fn show(self) -> Res<Sent> {
        self.producer.commit_transaction(WAIT)?;
        Ok(self.sent)
    }
}

fn producer_config() -> Res<ClientConfig> {
    let mut config = client()?;
    config.set("linger.ms", "5").set("batch.num.messages", "10000").set("batch.size", "1000000");
    config.set("queue.buffering.max.messages", "200000");
    Ok(config)
}

fn record<'a>(topic: &'a str, credit: &'a crate::credits::Credit) -> BaseRecord<'a, String, String> {
    let id = credit.id.to_string();
    let headers = OwnedHeaders::new().insert(Header { key: "event_id", value: Some(&id) });
    BaseRecord::to(topic).key(&credit.key).payload(&credit.body).headers(headers)
}

fn is_full(error: &KafkaError) -> bool {
    matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull))
}

/// Deletes a group's offsets and the group; it must have no members.
pub(crate) fn delete_group(group: &str) {
    let Ok(config) = client() else { return };
    let Ok(admin) = config.create::<AdminClient<DefaultClientContext>>() else { return };
    // Left behind, it costs only a few bytes on a test broker.
    drop(block_on(admin.delete_groups(&[group], &AdminOptions::new())));
}

/// Reads what a group is and where it stands.
pub(crate) struct GroupView {
    consumer: BaseConsumer,
    group: String,
    partitions: TopicPartitionList,
}

impl GroupView {
    /// A view of a group; it joins nothing.
    pub(crate) fn new(group: &str, topic: &str) -> Res<Self> {
        let mut config = client()?;
        config.set("group.id", group).set("enable.auto.commit", "false");
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_range(topic, 0, PARTITIONS - 1);
        Ok(Self { consumer: config.create()?, group: group.to_owned(), partitions })
    }

    /// Members of the group, once it is stable.
    pub(crate) fn stable_members(&self) -> Res<usize> {
        let groups = self.consumer.fetch_group_list(Some(&self.group), WAIT)?;
        let group = groups.groups().iter().find(|group| group.name() == self.group);
        Ok(group.filter(|group| group.state() == "Stable").map_or(0, |group| group.members().len()))
    }

    /// The sum of all committed positions.
    pub(crate) fn committed(&self) -> Res<u64> {
        let committed = self.consumer.committed_offsets(self.partitions.clone(), WAIT)?;
        let offsets = committed.elements();
        let positions = offsets.iter().filter_map(|partition| match partition.offset() {
            Offset::Offset(offset) => u64::try_from(offset).ok(),
            _ => None,
        });
        Ok(positions.sum())
    }
}

/// Records ever written to the broker's offsets topic: one for each partition of each commit.
pub(crate) fn offset_records() -> Res<f64> {
    let consumer: BaseConsumer = client()?.create()?;
    let (_, end) = consumer.fetch_watermarks("__consumer_offsets", 0, WAIT)?;
    Ok(float(u64::try_from(end)?))
}
