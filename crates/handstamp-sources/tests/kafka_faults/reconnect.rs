//! A broker that is away is knocked at a few times a second at first and then less, not for as long and as
//! often as the machine can. The clock of these tests is the source's own: each of its ticks takes a second or
//! more, so that a slow machine makes fewer attempts a tick and not more.

use crate::common::{Engine, Place, unique};
use handstamp_core::{Notice, Settled};
use handstamp_sources::kafka::KafkaOptions;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most attempts to connect for each tick of the source, all its connections together. A client that is built
/// again and again, or that does not wait between attempts, makes many times as many.
const KNOCKS_MAX: u64 = 6;

/// Most attempts a second where each is refused at once: by the library's own default they are about twenty,
/// with our wait ten. A slow machine makes fewer.
const REFUSED_MAX: f64 = 15.0;

/// Takes connections, counts them and closes them at once.
struct Door {
    address: SocketAddr,
    knocks: Arc<AtomicU64>,
    shut: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    fn at(address: &str) -> Self {
        let limit = Instant::now() + crate::common::PATIENCE;
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < limit, "{address}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let address = listener.local_addr().unwrap();
        let (knocks, shut) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&knocks), Arc::clone(&shut));
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                drop(connection);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { address, knocks, shut, thread: Some(thread) }
    }

    fn knocks(&self) -> u64 {
        self.knocks.load(Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shut.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Goes on for so many ticks; returns how many attempts came in them.
fn knocks_in(engine: &mut Engine, door: &Door, ticks: u64) -> u64 {
    let (from, before) = (engine.hooks.ticks.load(Ordering::Relaxed), door.knocks());
    engine.until("its ticks", |e| e.hooks.ticks.load(Ordering::Relaxed) >= from + ticks);
    door.knocks() - before
}

#[test]
fn a_broker_that_was_never_there_is_knocked_at_a_few_times_a_second() {
    let door = Door::at("127.0.0.1:0");
    let mut engine = Engine::start(KafkaOptions::new(door.address.to_string(), "g", ["t"]));
    let first = knocks_in(&mut engine, &door, 3);
    assert!((1..=3 * KNOCKS_MAX).contains(&first), "{first} attempts in three ticks");
    let later = knocks_in(&mut engine, &door, 3);
    assert!((1..=3 * KNOCKS_MAX).contains(&later), "{later} attempts in three ticks");
    assert_eq!(engine.noticed(Notice::BrokerAway), 1, "said once");
    engine.close();
}

#[test]
fn a_broker_that_went_away_and_answers_nobody_is_knocked_at_a_few_times_a_second() {
    let (mock, place) = mock("knock");
    let mut engine = Engine::start(place.options());
    engine.until("settled", |e| e.settled_as(Settled::Done) == 30);
    drop(mock);
    engine.until("said to be away", |e| e.noticed(Notice::BrokerAway) >= 1);
    let door = Door::at(&place.brokers);
    let knocks = knocks_in(&mut engine, &door, 6);
    assert!((1..=6 * KNOCKS_MAX).contains(&knocks), "{knocks} attempts in six ticks");
    assert!(!engine.ended && engine.failed.is_none(), "{}", engine.state());
    engine.close();
}

/// Nobody sees a connection that is refused, so the library's own debug lines are counted.
#[test]
fn a_broker_whose_port_is_shut_is_knocked_at_half_as_often_as_by_the_librarys_default() {
    let knocks = lines::count();
    let (mock, place) = mock("refused");
    let mut engine = Engine::start(place.options().option("debug", "broker"));
    engine.until("settled", |e| e.settled_as(Settled::Done) == 30);
    drop(mock);
    engine.until("said to be away", |e| e.noticed(Notice::BrokerAway) >= 1);
    let words = format!("Connecting to ipv4#{} ", place.brokers);
    let (from, before) = (Instant::now(), knocks(&words));
    let ticks = engine.hooks.ticks.load(Ordering::Relaxed) + 6;
    engine.until("its ticks", |e| e.hooks.ticks.load(Ordering::Relaxed) >= ticks);
    let (attempts, seconds) = (knocks(&words) - before, from.elapsed().as_secs_f64());
    assert!(attempts >= 3, "{attempts} attempts in {seconds:.1} s");
    #[allow(clippy::cast_precision_loss, reason = "a few dozen")]
    let rate = attempts as f64 / seconds;
    assert!(rate <= REFUSED_MAX, "{attempts} attempts in {seconds:.1} s");
    engine.close();
}

/// Log lines of the client library about connecting, kept by this whole test program.
mod lines {
    use std::fmt::{self, Write as _};
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    static LINES: Mutex<Vec<String>> = Mutex::new(vec![]);

    /// Begins to keep lines; what it returns counts those that contain the words.
    pub(super) fn count() -> impl Fn(&str) -> usize {
        let _ = tracing::subscriber::set_global_default(Keeper);
        |words| LINES.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }

    struct Keeper;

    impl Subscriber for Keeper {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event() && metadata.target() == "handstamp"
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(String::new());
            event.record(&mut line);
            if line.0.contains("Connecting to") {
                LINES.lock().unwrap().push(line.0);
            }
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                let _ = write!(self.0, "{value:?}");
            }
        }
    }
}

/// A mock cluster, and a topic of three partitions with thirty messages.
fn mock(stem: &str) -> (MockCluster<'static, DefaultProducerContext>, Place) {
    let mock = MockCluster::new(1).unwrap();
    let place = Place { brokers: mock.bootstrap_servers(), topic: unique(stem), group: unique(stem) };
    mock.create_topic(&place.topic, 3, 1).unwrap();
    place.produce(3, 0, 30);
    (mock, place)
}
