//! Topic and group of one run, on a real broker or on the mock cluster inside the supervisor.
//!
//! ```text
//!  create ─► fill (acknowledged, then logged) ─► children consume ─► committed = ends ─► deleted
//! ```
//!
//! Authoritative: the broker, for its end offsets and for what the group committed.

mod kafka;
mod mock;

use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::workload::{Credit, Plan, SentLog};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest wait for one answer of the broker.
const WAIT: Duration = Duration::from_secs(30);
/// How long a question is asked again: a broker that is busy, or changes coordinators, answers later.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where topics are made.
#[derive(Debug)]
pub enum Broker {
    /// A real one: its bootstrap servers.
    Kafka(String),
    /// The mock cluster inside this process.
    Mock(handstamp_sources::kafka::mock::MockBroker),
}

impl Broker {
    /// A real broker; checked to answer.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn kafka(bootstrap: &str) -> Result<Self> {
        kafka::probe(bootstrap)?;
        Ok(Self::Kafka(bootstrap.to_owned()))
    }

    /// A mock cluster of its own.
    ///
    /// # Errors
    /// The client library cannot start it.
    pub fn mock() -> Result<Self> {
        Ok(Self::Mock(mock::start()?))
    }

    /// What clients connect to.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        match self {
            Self::Kafka(bootstrap) => bootstrap,
            Self::Mock(broker) => broker.bootstrap(),
        }
    }

    /// What it is, for the report.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Kafka(_) => "Kafka".to_owned(),
            Self::Mock(_) => "mock broker of librdkafka inside the lab".to_owned(),
        }
    }

    /// Makes a topic with a group of its own.
    ///
    /// # Errors
    /// The broker refuses or does not answer.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<Topic> {
        match self {
            Self::Kafka(bootstrap) => kafka::create(bootstrap, name, partitions)?,
            Self::Mock(broker) => mock::create(broker, name, partitions)?,
        }
        let owned = matches!(self, Self::Kafka(_));
        let bootstrap = self.bootstrap().to_owned();
        let group = format!("{name}_group");
        let topic = Topic { bootstrap, name: name.to_owned(), group, partitions, owned, view: None };
        if owned {
            kafka::wait_until_there(&topic.bootstrap, name, partitions)?;
        }
        Ok(topic)
    }
}

/// Settings of any client of the lab.
fn client_config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("log_level", "3");
    config
}

/// A run's topic; deleted with its group when it is dropped.
pub struct Topic {
    bootstrap: String,
    /// Its name.
    pub name: String,
    /// The run's consumer group.
    pub group: String,
    partitions: i32,
    /// It lives on a broker that outlives the lab.
    owned: bool,
    /// Asks for the group's offsets; made at the first question.
    view: Option<BaseConsumer>,
}

impl std::fmt::Debug for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topic").field("name", &self.name).finish_non_exhaustive()
    }
}

fn unreachable(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LabError {
    LabError::new(LabErrorKind::Unreachable, format!("the broker does not answer: {what}")).because(error)
}

/// Asks until there is an answer, with a limit; then the last error.
fn patiently<T>(what: &str, mut ask: impl FnMut() -> rdkafka::error::KafkaResult<T>) -> Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() < until => {
                tracing::debug!(what, %error, "the broker is asked again");
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(error) => return Err(unreachable(what, error)),
        }
    }
}

impl Topic {
    /// Publishes a plan; the log notes every record once all are acknowledged. Returns how many records.
    ///
    /// # Errors
    /// A record was not acknowledged: then nothing of the run is started.
    pub fn fill(&self, plan: &Plan, log: &mut SentLog, cancel: &Cancel) -> Result<u64> {
        let acks = std::sync::Arc::new(Acks::default());
        let mut config = client_config(&self.bootstrap);
        config.set("enable.idempotence", "true").set("linger.ms", "5");
        let producer: ThreadedProducer<Counting> = config
            .create_with_context(Counting(std::sync::Arc::clone(&acks)))
            .map_err(|error| unreachable("no producer", error))?;
        let mut records = 0_u64;
        for n in plan.order() {
            send(&producer, &self.name, &plan.credit(n), cancel)?;
            records += 1;
        }
        producer.flush(WAIT).map_err(|error| unreachable("records were not acknowledged", error))?;
        let acknowledged = acks.acknowledged.load(std::sync::atomic::Ordering::SeqCst);
        if acknowledged != records {
            let what = format!("{acknowledged} of {records} records were acknowledged");
            return Err(LabError::new(LabErrorKind::Unreachable, what));
        }
        for n in plan.order() {
            log.note(&plan.credit(n))?;
        }
        Ok(records)
    }

    fn view(&mut self) -> Result<&BaseConsumer> {
        if self.view.is_none() {
            let mut config = client_config(&self.bootstrap);
            config.set("group.id", &self.group).set("enable.auto.commit", "false");
            self.view = Some(config.create().map_err(|error| unreachable("no client", error))?);
        }
        self.view.as_ref().ok_or_else(|| LabError::new(LabErrorKind::Other, "no client"))
    }

    /// The end offset of each partition.
    ///
    /// # Errors
    /// The broker does not answer.
    pub fn ends(&mut self) -> Result<BTreeMap<i32, i64>> {
        let (name, partitions) = (self.name.clone(), self.partitions);
        let view = self.view()?;
        (0..partitions)
            .map(|partition| {
                let (_, high) = patiently("end offsets", || view.fetch_watermarks(&name, partition, WAIT))?;
                Ok((partition, high))
            })
            .collect()
    }

    /// What the group committed for each partition; partitions without a commit are missing.
    ///
    /// # Errors
    /// The broker does not answer.
    pub fn committed(&mut self) -> Result<BTreeMap<i32, i64>> {
        let mut list = TopicPartitionList::new();
        for partition in 0..self.partitions {
            list.add_partition(&self.name, partition);
        }
        let view = self.view()?;
        let answer = patiently("committed offsets", || view.committed_offsets(list.clone(), WAIT))?;
        let mut committed = BTreeMap::new();
        for one in answer.elements() {
            if let Offset::Offset(offset) = one.offset() {
                committed.insert(one.partition(), offset);
            }
        }
        Ok(committed)
    }

    /// Whether the group committed everything that is there.
    ///
    /// # Errors
    /// The broker does not answer.
    pub fn is_drained(&mut self, ends: &BTreeMap<i32, i64>) -> Result<bool> {
        let committed = self.committed()?;
        Ok(ends.iter().all(|(partition, end)| committed.get(partition).copied().unwrap_or(0) >= *end))
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        drop(self.view.take());
        if self.owned {
            kafka::delete(&self.bootstrap, &self.name, &self.group);
        }
    }
}

/// Counts what the broker acknowledged.
#[derive(Debug, Default)]
struct Acks {
    acknowledged: std::sync::atomic::AtomicU64,
}

struct Counting(std::sync::Arc<Acks>);

impl rdkafka::ClientContext for Counting {}

impl rdkafka::producer::ProducerContext for Counting {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &rdkafka::producer::DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.acknowledged.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// Queues one record: key is the account, the id is in the header `event_id`.
fn send(producer: &ThreadedProducer<Counting>, topic: &str, credit: &Credit, cancel: &Cancel) -> Result<()> {
    use rdkafka::error::{KafkaError, RDKafkaErrorCode};
    let (key, body) = (credit.account.to_string(), credit.body());
    let headers = OwnedHeaders::new().insert(Header { key: "event_id", value: Some(&credit.id) });
    let mut record = BaseRecord::to(topic).key(&key).payload(&body).headers(headers);
    let until = Instant::now() + WAIT;
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again))
                if Instant::now() < until =>
            {
                record = again;
                cancel.sleep(Duration::from_millis(5))?;
            }
            Err((error, _)) => return Err(unreachable("a record cannot be sent", error)),
        }
    }
}
