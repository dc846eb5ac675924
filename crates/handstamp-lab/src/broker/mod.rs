//! Topic and group of one run, on a real broker or on the mock cluster that the lab starts beside it.
//!
//! ```text
//!  create ─► fill (acknowledged, then logged) ─► children consume ─► committed = ends ─► deleted
//!                                                    a group with members ─► tried again at the broker's end
//! ```
//!
//! Authoritative: the broker, for its end offsets and for what the group committed.

mod groups;
mod kafka;
pub mod mock;

use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::workload::{Credit, Plan, SentLog};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for one answer of the broker.
const WAIT: Duration = Duration::from_secs(30);
/// The same of the lab's own broker, which may end by itself: then nobody answers.
const MOCK_WAIT: Duration = Duration::from_secs(3);
/// How long a question is asked again: a broker that is busy, or changes coordinators, answers later.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the name of a run's group ends; before that stands its topic's.
pub(crate) const GROUP_END: &str = "_group";

/// Where topics are made.
#[derive(Debug)]
pub enum Broker {
    /// A real one.
    Kafka(Address),
    /// A mock cluster in a process of the lab.
    Mock(Mock),
}

/// A mock cluster, and how another one is started.
#[derive(Debug)]
pub struct Mock {
    launch: mock::MockLaunch,
    /// Lives as long as a topic of it.
    process: Arc<mock::MockProcess>,
}

/// Where brokers are, and how the lab's own clients connect to them. `Debug` shows no option's value.
#[derive(Clone)]
pub struct Address {
    bootstrap: String,
    /// As librdkafka names them; may hold secrets.
    options: Vec<(String, String)>,
    /// Those that could not be deleted yet, of all runs at this address; shared by its clones.
    groups: Arc<groups::Groups>,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Address").field("bootstrap", &self.bootstrap).finish_non_exhaustive()
    }
}

impl Address {
    fn plain(bootstrap: &str) -> Self {
        Self::with(bootstrap, &[])
    }

    fn with(bootstrap: &str, options: &[(String, String)]) -> Self {
        let groups = Arc::new(groups::Groups::new(client_config(bootstrap, options)));
        Self { bootstrap: bootstrap.to_owned(), options: options.to_vec(), groups }
    }

    /// Settings of any client of the lab.
    fn client_config(&self) -> ClientConfig {
        client_config(&self.bootstrap, &self.options)
    }
}

fn client_config(bootstrap: &str, options: &[(String, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("log_level", "3");
    for (name, value) in options {
        config.set(name, value);
    }
    config
}

impl Broker {
    /// A real broker; checked to answer.
    ///
    /// # Errors
    /// `Unreachable`.
    pub fn kafka(bootstrap: &str) -> Result<Self> {
        Self::kafka_with(bootstrap, &[])
    }

    /// The same with options of the client, as librdkafka names them: TLS, a log-in.
    ///
    /// # Errors
    /// `Usage` when no client can be made with them, `Unreachable`.
    pub fn kafka_with(bootstrap: &str, options: &[(String, String)]) -> Result<Self> {
        let address = Address::with(bootstrap, options);
        kafka::probe(&address)?;
        Ok(Self::Kafka(address))
    }

    /// Shortens the wait for groups that still have members, once this is told to stop.
    pub fn stops_with(&self, cancel: &Cancel) {
        if let Self::Kafka(address) = self {
            address.groups.stops_with(cancel);
        }
    }

    /// Settings of any client of the lab.
    pub(crate) fn client_config(&self) -> ClientConfig {
        match self {
            Self::Kafka(address) => address.client_config(),
            Self::Mock(_) => Address::plain(self.bootstrap()).client_config(),
        }
    }

    /// A mock cluster of its own.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn mock(launch: mock::MockLaunch) -> Result<Self> {
        let process = Arc::new(mock::MockProcess::start(&launch)?);
        Ok(Self::Mock(Mock { launch, process }))
    }

    /// Where one run makes its topic: a real broker is one for all, a mock cluster is each run's own, so that
    /// its end is one run's alone.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn for_one_run(&self) -> Result<Self> {
        match self {
            Self::Kafka(address) => Ok(Self::Kafka(address.clone())),
            Self::Mock(mock) => Self::mock(mock.launch.clone()),
        }
    }

    /// Whether a broker inside the lab still runs; a real one is asked by those who use it.
    ///
    /// # Errors
    /// `BrokerInside`.
    pub fn alive(&self) -> Result<()> {
        match self {
            Self::Kafka(_) => Ok(()),
            Self::Mock(mock) => mock.process.alive(),
        }
    }

    /// What clients connect to.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        match self {
            Self::Kafka(address) => &address.bootstrap,
            Self::Mock(mock) => mock.process.bootstrap(),
        }
    }

    /// The names of the lab's own topics and groups that are there.
    ///
    /// # Errors
    /// It does not answer.
    #[cfg(feature = "postgres")]
    pub(crate) fn names(&self) -> Result<std::collections::BTreeSet<String>> {
        let client: BaseConsumer =
            self.client_config().create().map_err(|error| unreachable("no client", error))?;
        let there = client.fetch_metadata(None, WAIT).map_err(|error| unreachable("topics", error))?;
        let groups = client.fetch_group_list(None, WAIT).map_err(|error| unreachable("groups", error))?;
        Ok(crate::clean::of_topics_and_groups(
            there.topics().iter().map(|topic| topic.name().to_owned()),
            groups.groups().iter().map(|group| group.name().to_owned()),
        ))
    }

    /// Removes a run's topic, and its group, at the latest when this is dropped.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    #[cfg(feature = "postgres")]
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match self {
            Self::Kafka(address) => {
                kafka::delete(address, name)?;
                address.groups.delete(&format!("{name}{GROUP_END}"));
                Ok(())
            }
            Self::Mock(_) => Ok(()),
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
            Self::Kafka(address) => kafka::create(address, name, partitions)?,
            Self::Mock(mock) => mock.process.create(name, partitions)?,
        }
        let mock = match self {
            Self::Kafka(_) => None,
            Self::Mock(mock) => Some(Arc::clone(&mock.process)),
        };
        let owned = matches!(self, Self::Kafka(_));
        let address = match self {
            Self::Kafka(address) => address.clone(),
            Self::Mock(_) => Address::plain(self.bootstrap()),
        };
        let group = format!("{name}{GROUP_END}");
        let topic = Topic { address, name: name.to_owned(), group, partitions, owned, mock, view: None };
        if owned {
            kafka::wait_until_there(&topic.address, name, partitions)?;
        }
        Ok(topic)
    }
}

/// A run's topic; deleted when it is dropped, and its group with it or at the broker's end: one whose member was
/// killed is not empty until its session is over.
pub struct Topic {
    address: Address,
    /// Its name.
    pub name: String,
    /// The run's consumer group.
    pub group: String,
    partitions: i32,
    /// It lives on a broker that outlives the lab.
    owned: bool,
    /// The mock cluster that it lives on.
    mock: Option<Arc<mock::MockProcess>>,
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

/// Asks until there is an answer, with a limit; then the last error. A mock cluster that is gone has none.
fn patiently<T>(
    what: &str,
    mock: Option<&mock::MockProcess>,
    mut ask: impl FnMut() -> rdkafka::error::KafkaResult<T>,
) -> Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() < until => {
                mock.map_or(Ok(()), mock::MockProcess::alive)?;
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
        let mut config = self.address.client_config();
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

    /// Whether the broker that it lives on still runs, where that is the lab's own.
    ///
    /// # Errors
    /// `BrokerInside`.
    pub fn alive(&self) -> Result<()> {
        self.mock.as_ref().map_or(Ok(()), |mock| mock.alive())
    }

    /// Longest wait for one answer.
    fn wait(&self) -> Duration {
        if self.mock.is_some() { MOCK_WAIT } else { WAIT }
    }

    fn view(&mut self) -> Result<&BaseConsumer> {
        if self.view.is_none() {
            let mut config = self.address.client_config();
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
        let (mock, wait) = (self.mock.clone(), self.wait());
        let view = self.view()?;
        (0..partitions)
            .map(|partition| {
                let ask = || view.fetch_watermarks(&name, partition, wait);
                let (_, high) = patiently("end offsets", mock.as_deref(), ask)?;
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
        let (mock, wait) = (self.mock.clone(), self.wait());
        let view = self.view()?;
        let ask = || view.committed_offsets(list.clone(), wait);
        let answer = patiently("committed offsets", mock.as_deref(), ask)?;
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
        if !self.owned {
            return;
        }
        if let Err(error) = kafka::delete(&self.address, &self.name) {
            tracing::warn!(topic = self.name, %error, "the lab's topic is left behind: see `lab clean`");
        }
        self.address.groups.delete(&self.group);
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
