//! A stand-in for the engine, and a broker to try the source on.
#![allow(dead_code, unreachable_pub)]

use handstamp_core::source::PortLimits;
use handstamp_core::{
    Command, Control, Delivery, DeliveryTag, Disposition, Lane, Notice, Settled, Source, SourceError,
    SourcePort,
};
use handstamp_sources::kafka::admin;
use handstamp_sources::kafka::hooks::Hooks;
use handstamp_sources::kafka::{KafkaOptions, KafkaSource};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: scripts/services up, then eval \"$(scripts/services env)\"")
    })
}

pub fn brokers() -> String {
    env("HANDSTAMP_TEST_KAFKA")
}

/// A name nobody else has.
pub fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    format!("{stem}-{}-{now}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A new topic and a group name, both the test's own.
pub struct Place {
    pub brokers: String,
    pub topic: String,
    pub group: String,
}

impl Place {
    pub fn new(stem: &str, partitions: i32) -> Self {
        let place = Self::without_topic(stem);
        place.create(partitions);
        place
    }

    pub fn without_topic(stem: &str) -> Self {
        Self { brokers: brokers(), topic: unique(stem), group: unique(stem) }
    }

    pub fn create(&self, partitions: i32) {
        let options = BTreeMap::new();
        let new = admin::create_topic(&self.brokers, &options, &self.topic, partitions, PATIENCE);
        assert!(block_on(new).unwrap(), "the topic is new");
    }

    pub fn options(&self) -> KafkaOptions {
        KafkaOptions::new(&self.brokers, &self.group, [&self.topic])
            .option("session.timeout.ms", "6000")
            .option("heartbeat.interval.ms", "500")
            .option("topic.metadata.refresh.interval.ms", "500")
    }

    /// Sends values `from..to` round robin over the partitions.
    pub fn produce(&self, partitions: i32, from: u32, to: u32) {
        self.produce_with(&ClientConfig::new(), partitions, from, to);
    }

    pub fn produce_with(&self, config: &ClientConfig, partitions: i32, from: u32, to: u32) {
        let mut config = config.clone();
        config.set("bootstrap.servers", &self.brokers).set("linger.ms", "5");
        let producer: BaseProducer = config.create().unwrap();
        for n in from..to {
            let value = n.to_string();
            let partition = (n % u32::try_from(partitions).unwrap()) as i32;
            let record =
                BaseRecord::<str, str>::to(&self.topic).partition(partition).key("k").payload(&value);
            producer.send(record).map_err(|(e, _)| e).unwrap();
            producer.poll(Duration::ZERO);
        }
        producer.flush(PATIENCE).unwrap();
    }

    /// Committed offsets by partition.
    pub fn committed(&self) -> BTreeMap<i32, i64> {
        let found =
            admin::look(&KafkaOptions::new(&self.brokers, &self.group, [&self.topic]), PATIENCE).unwrap();
        found.committed.into_iter().map(|((_, partition), offset)| (partition, offset)).collect()
    }

    pub fn committed_sum(&self) -> i64 {
        self.committed().values().sum()
    }
}

pub const LIMITS: PortLimits = PortLimits {
    batch_max: 100,
    batch_max_bytes: 1 << 20,
    queue_max_bytes: 16 << 20,
    message_max_bytes: 1 << 20,
};

/// The engine's end of a port, doing as little as it can.
pub struct Engine {
    deliveries: mpsc::Receiver<Vec<Delivery>>,
    control: mpsc::UnboundedReceiver<Control>,
    commands: Option<mpsc::UnboundedSender<Command>>,
    pub hooks: Arc<Hooks>,
    /// Ack what is handed over at once.
    pub ack: bool,
    /// Answer `Revoking` at once.
    pub drain: bool,
    pub names: HashMap<Lane, String>,
    pub current: BTreeSet<Lane>,
    pub got: Vec<Delivery>,
    pub batches: Vec<usize>,
    /// Handed over on lanes that are not ours any more; a real engine drops them.
    pub late: Vec<Delivery>,
    pub settled: Vec<(Lane, DeliveryTag, Settled)>,
    pub notices: Vec<Notice>,
    /// Lanes whose end was reached at least once; control and deliveries are not in step.
    pub caught_up: BTreeSet<Lane>,
    pub lag: HashMap<Lane, u64>,
    pub revoking: Vec<Vec<Lane>>,
    pub lost: Vec<Lane>,
    pub failed: Option<SourceError>,
    pub ended: bool,
}

impl Engine {
    pub fn start(options: KafkaOptions) -> Self {
        Self::start_with(options, LIMITS)
    }

    pub fn start_with(options: KafkaOptions, limits: PortLimits) -> Self {
        let (deliveries_in, deliveries) = mpsc::channel(4);
        let (control_in, control) = mpsc::unbounded_channel();
        let (commands, commands_out) = mpsc::unbounded_channel();
        let hooks = Arc::new(Hooks::default());
        let source = Box::new(KafkaSource::with_hooks(options, Arc::clone(&hooks)));
        let port =
            SourcePort { deliveries: deliveries_in, control: control_in, commands: commands_out, limits };
        source.start(port).unwrap();
        Self {
            deliveries,
            control,
            commands: Some(commands),
            hooks,
            ack: true,
            drain: true,
            names: HashMap::new(),
            current: BTreeSet::new(),
            got: vec![],
            batches: vec![],
            late: vec![],
            settled: vec![],
            notices: vec![],
            caught_up: BTreeSet::new(),
            lag: HashMap::new(),
            revoking: vec![],
            lost: vec![],
            failed: None,
            ended: false,
        }
    }

    pub fn send(&self, command: Command) {
        let _ = self.commands.as_ref().expect("not gone").send(command);
    }

    pub fn settle(&self, deliveries: &[Delivery]) {
        self.send(Command::Settle(deliveries.iter().map(|d| (d.lane, d.tag, Disposition::Ack)).collect()));
    }

    /// The engine dies.
    pub fn vanish(&mut self) {
        self.commands = None;
        self.deliveries.close();
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Assigned(lanes) => {
                for named in lanes {
                    self.current.insert(named.lane);
                    self.names.insert(named.lane, named.name.to_string());
                }
            }
            Control::Revoking { lanes, .. } => {
                for lane in &lanes {
                    self.current.remove(lane);
                }
                if self.drain {
                    self.send(Command::Drained(lanes.clone()));
                }
                self.revoking.push(lanes);
            }
            Control::Lost(lanes) => {
                for lane in &lanes {
                    self.current.remove(lane);
                }
                self.lost.extend(lanes);
            }
            Control::CaughtUp(lanes) => self.caught_up.extend(lanes),
            Control::Lag(lag) => self.lag.extend(lag),
            Control::Settled(answers) => self.settled.extend(answers),
            Control::Noticed(notice) => self.notices.push(notice),
            Control::Failed(error) => self.failed = Some(error),
            _ => {}
        }
    }

    pub fn take_control(&mut self) -> bool {
        let mut any = false;
        while let Ok(control) = self.control.try_recv() {
            self.control(control);
            any = true;
        }
        any
    }

    /// Takes one thing in; false when there was nothing.
    pub fn step(&mut self) -> bool {
        let any = self.take_control();
        match self.deliveries.try_recv() {
            Ok(batch) => {
                self.take_control();
                self.batches.push(batch.len());
                assert!(!batch.is_empty(), "a batch is never empty");
                assert!(batch.iter().all(|d| d.lane == batch[0].lane), "one lane a batch");
                if !self.current.contains(&batch[0].lane) {
                    assert!(
                        self.names.contains_key(&batch[0].lane),
                        "a lane is assigned before its first delivery"
                    );
                    self.late.extend(batch);
                    return true;
                }
                if self.ack {
                    self.settle(&batch);
                }
                self.got.extend(batch);
                true
            }
            Err(mpsc::error::TryRecvError::Empty) => any,
            Err(mpsc::error::TryRecvError::Disconnected) => {
                self.take_control();
                self.ended = true;
                any
            }
        }
    }

    /// Goes on until it is so.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let limit = Instant::now() + PATIENCE;
        while !so(self) {
            assert!(Instant::now() < limit, "not reached: {what}\n{}", self.state());
            if !self.step() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Goes on for so long, whatever comes.
    pub fn go_on_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if !self.step() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    pub fn state(&self) -> String {
        format!(
            "got {} late {} settled {} notices {:?} current {:?} caught up {:?} revoking {:?} lost {:?} failed {:?} ended {}",
            self.got.len(),
            self.late.len(),
            self.settled.len(),
            self.notices,
            self.current,
            self.caught_up,
            self.revoking,
            self.lost,
            self.failed,
            self.ended
        )
    }

    /// Closes and checks that the source ended within its limit, and every client with it.
    #[track_caller]
    pub fn close(self) -> Self {
        self.close_within(Duration::from_secs(20))
    }

    /// As `close`, with another limit.
    #[track_caller]
    pub fn close_within(mut self, within: Duration) -> Self {
        self.send(Command::Close { within });
        let asked = Instant::now();
        self.until("the source's end", |e| e.ended);
        assert!(asked.elapsed() <= within + Duration::from_secs(2), "closed within its limit");
        self.until_no_client_is_left();
        self
    }

    /// A client may end later than its source, but it ends.
    #[track_caller]
    pub fn until_no_client_is_left(&mut self) {
        self.until("no client is left", |e| e.hooks.clients.load(Ordering::Relaxed) == 0);
    }

    /// Values handed over, as numbers.
    pub fn values(&self) -> Vec<u32> {
        values(&self.got)
    }

    pub fn noticed(&self, notice: Notice) -> usize {
        self.notices.iter().filter(|n| **n == notice).count()
    }

    pub fn settled_as(&self, settled: Settled) -> usize {
        self.settled.iter().filter(|s| s.2 == settled).count()
    }

    pub fn lane(&self, name_end: &str) -> Lane {
        *self.current.iter().find(|lane| self.names[lane].ends_with(name_end)).expect("assigned")
    }
}

pub fn values(deliveries: &[Delivery]) -> Vec<u32> {
    deliveries
        .iter()
        .map(|d| std::str::from_utf8(d.record.value.as_ref().unwrap()).unwrap().parse().unwrap())
        .collect()
}

/// Every value of the range, each once.
#[track_caller]
pub fn assert_each_once(mut values: Vec<u32>, from: u32, to: u32) {
    values.sort_unstable();
    assert_eq!(values.len(), usize::try_from(to - from).unwrap(), "as many as were sent");
    assert!(values.iter().copied().eq(from..to), "each value once");
}
