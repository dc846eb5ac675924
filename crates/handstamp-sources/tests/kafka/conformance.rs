//! The Kafka source and the Kafka sink keep the rules of every source and sink.

use crate::common::{Engine, PATIENCE, Place};
use handstamp_core::{Headers, Source};
use handstamp_sources::kafka::{KafkaOptions, KafkaSink, KafkaSource, record_for};
use handstamp_testkit::Payload;
use handstamp_testkit::sink_suite::SinkHarness;
use handstamp_testkit::source_suite::{SourceFeatures, SourceHarness};
use rdkafka::ClientConfig;
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::BTreeMap;
use std::time::Duration;

const LANES: i32 = 3;

struct KafkaHarness {
    place: Place,
}

impl KafkaHarness {
    async fn new(partitions: i32) -> Self {
        let place = tokio::task::spawn_blocking(move || Place::new("suite", partitions)).await.unwrap();
        Self { place }
    }

    fn options(&self) -> KafkaOptions {
        self.place.options()
    }
}

impl SourceHarness for KafkaHarness {
    fn features(&self) -> SourceFeatures {
        SourceFeatures {
            lanes: LANES.unsigned_abs(),
            whole_records: true,
            rebalances: true,
            patience: Duration::from_secs(60),
            quiet: Duration::from_millis(700),
        }
    }

    async fn publish(&self, lane: u32, payloads: Vec<Payload>) {
        let (brokers, topic) = (self.place.brokers.clone(), self.place.topic.clone());
        let send = move || {
            let producer: BaseProducer = ClientConfig::new()
                .set("bootstrap.servers", &brokers)
                .set("linger.ms", "0")
                .create()
                .unwrap();
            for payload in &payloads {
                let mut record = BaseRecord::<[u8], [u8]>::to(&topic).partition(i32::try_from(lane).unwrap());
                record.key = payload.key.as_deref();
                record.payload = payload.value.as_deref();
                if !payload.headers.is_empty() {
                    record.headers = Some(payload.headers.iter().fold(OwnedHeaders::new(), |all, header| {
                        let key = std::str::from_utf8(&header.name).expect("the suite's names are text here");
                        all.insert(rdkafka::message::Header { key, value: header.value.as_deref() })
                    }));
                }
                producer.send(record).map_err(|(e, _)| e).unwrap();
            }
            producer.flush(PATIENCE).unwrap();
        };
        tokio::task::spawn_blocking(send).await.unwrap();
    }

    async fn source(&self) -> Box<dyn Source> {
        Box::new(KafkaSource::new(self.options()))
    }

    async fn settled(&self) -> usize {
        let (brokers, topic, group) =
            (self.place.brokers.clone(), self.place.topic.clone(), self.place.group.clone());
        let ask = move || Place { brokers, topic, group }.committed_sum();
        usize::try_from(tokio::task::spawn_blocking(ask).await.unwrap()).unwrap()
    }
}

impl SinkHarness for KafkaHarness {
    type Sink = KafkaSink;

    async fn sink(&self) -> KafkaSink {
        KafkaSink::new(&self.place.brokers, &BTreeMap::new()).unwrap()
    }

    /// A port that nobody listens on.
    async fn sink_out_of_reach(&self) -> KafkaSink {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let soon = BTreeMap::from([("message.timeout.ms".to_owned(), "300".to_owned())]);
        KafkaSink::new(&closed, &soon).unwrap()
    }

    fn whole_records(&self) -> bool {
        true
    }

    /// Larger than the broker and the client take.
    fn unfit(&self) -> Payload {
        Payload::value(vec![1_u8; 2_000_000])
    }

    fn destination(&self) -> String {
        self.place.topic.clone()
    }

    async fn other_destination(&self) -> Option<String> {
        let place = tokio::task::spawn_blocking(|| Place::new("suite-other", 1)).await.unwrap();
        Some(place.topic)
    }

    async fn read_back(&self, destination: &str) -> Vec<Payload> {
        let options =
            KafkaOptions::new(&self.place.brokers, crate::common::unique("back"), [destination.to_owned()]);
        let read = move || {
            let mut engine = Engine::start(options);
            // One partition, so that there is one order.
            engine.until("everything", |e| e.caught_up.len() == 1);
            engine.close().got.iter().map(|d| Payload::of(&d.record)).collect()
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }
}

#[test]
fn a_record_to_publish_names_its_topic() {
    let record = record_for("t", None, None, Headers::default());
    assert_eq!(&*record.origin.topic, "t");
}

mod source {
    handstamp_testkit::source_suite!(super::KafkaHarness::new(super::LANES).await);
}

mod sink {
    handstamp_testkit::sink_suite!(super::KafkaHarness::new(1).await);
}
