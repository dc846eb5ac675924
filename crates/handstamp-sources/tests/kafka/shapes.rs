//! Whatever a producer can write arrives as it was written.

use crate::common::{Engine, LIMITS, PATIENCE, Place, assert_each_once, block_on, unique};
use bytes::Bytes;
use handstamp_core::source::PortLimits;
use handstamp_core::{Header, Headers, Notice, Record, Settled, Sink as _};
use handstamp_sources::kafka::{KafkaSink, record_for};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn bytes(value: &'static [u8]) -> Option<Bytes> {
    Some(Bytes::from_static(value))
}

fn publish(place: &Place, records: &[Record]) {
    let sink = KafkaSink::new(&place.brokers, &BTreeMap::new()).unwrap();
    for result in block_on(sink.publish(records)) {
        result.unwrap();
    }
}

fn read(place: &Place, count: usize) -> Vec<Record> {
    let mut engine = Engine::start(place.options());
    engine.until("all records", |e| e.got.len() == count);
    engine.close().got.into_iter().map(|d| d.record).collect()
}

#[test]
fn nulls_empties_binary_and_names_that_are_no_text_arrive_intact() {
    let place = Place::new("shapes", 1);
    let header = |name: &'static [u8], value| Header::new(Bytes::from_static(name), value);
    let odd = Headers::new(vec![
        header(b"bad\xff\xfe", bytes(b"\x00\xff")),
        header(b"twice", bytes(b"1")),
        header(b"twice", bytes(b"2")),
        header(b"null", None),
        header(b"empty", bytes(b"")),
        header(b"", bytes(b"no name")),
        header("n\u{e4}me".as_bytes(), bytes(b"x")),
    ]);
    let sent = vec![
        record_for(&place.topic, None, None, Headers::default()),
        record_for(&place.topic, bytes(b""), bytes(b""), Headers::default()),
        record_for(&place.topic, bytes(b"\x00\xff\xfe"), bytes(b"\xff\x00{"), odd),
        record_for(&place.topic, None, bytes(b"value"), Headers::new(vec![header(b"only", None)])),
    ];
    publish(&place, &sent);
    let got = read(&place, sent.len());
    for (offset, (got, sent)) in (0..).zip(got.iter().zip(&sent)) {
        assert_eq!((&got.key, &got.value, &got.headers), (&sent.key, &sent.value, &sent.headers));
        assert_eq!((got.origin.offset, &*got.origin.topic), (offset, place.topic.as_str()));
        assert!(got.timestamp.is_some());
    }
}

#[test]
fn every_compression_is_read() {
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let place = Place::new(codec, 1);
        let mut config = ClientConfig::new();
        config.set("compression.type", codec);
        place.produce_with(&config, 1, 0, 500);
        let mut engine = Engine::start(place.options());
        engine.until(codec, |e| e.got.len() == 500);
        assert_each_once(engine.values(), 0, 500);
        engine.close();
    }
}

fn transactional(place: &Place) -> BaseProducer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &place.brokers).set("transactional.id", unique("tx"));
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer
}

fn send(producer: &BaseProducer, place: &Place, values: std::ops::Range<u32>) {
    for value in values {
        let value = value.to_string();
        producer.send(BaseRecord::<str, str>::to(&place.topic).payload(&value)).map_err(|(e, _)| e).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

#[test]
fn aborted_records_are_skipped_and_the_gaps_stop_neither_commits_nor_lag() {
    let place = Place::new("tx", 1);
    let producer = transactional(&place);
    for round in 0..5 {
        producer.begin_transaction().unwrap();
        send(&producer, &place, round * 10..round * 10 + 10);
        producer.commit_transaction(PATIENCE).unwrap();
        producer.begin_transaction().unwrap();
        send(&producer, &place, 900..910);
        producer.abort_transaction(PATIENCE).unwrap();
    }
    let mut engine = Engine::start(place.options());
    engine.until("all committed ones", |e| e.got.len() == 50 && e.settled_as(Settled::Done) == 50);
    engine.until("caught up behind the last marker", |e| e.caught_up.len() == 1);
    engine.until("no lag, though control records follow the last message", |e| {
        e.lag.values().any(|lag| *lag == 0)
    });
    assert_each_once(engine.values(), 0, 50);
    assert_eq!(engine.noticed(Notice::Truncated), 0, "gaps of transactions are no loss");
    let last = engine.got.last().unwrap().record.origin.offset;
    engine.close();
    assert_eq!(place.committed()[&0], last + 1);
}

#[test]
fn a_record_above_the_limit_is_a_marked_prefix_and_one_above_the_fetch_size_comes_whole() {
    let place = Place::new("large", 1);
    let large = Bytes::from(vec![7_u8; 900_000]);
    let key = bytes(b"key");
    publish(&place, &[record_for(&place.topic, key.clone(), Some(large.clone()), Headers::default())]);
    // Smaller queues than the record.
    let limits = PortLimits { queue_max_bytes: 64 * 1024, ..LIMITS };
    let mut engine = Engine::start_with(place.options(), limits);
    engine.until("the large one", |e| e.got.len() == 1);
    assert_eq!(engine.got[0].record.value.as_ref(), Some(&large));
    assert!(engine.got[0].fault.is_none());
    engine.close();

    let other = Place { group: unique("large"), ..place };
    let limits = PortLimits { message_max_bytes: 1000, ..LIMITS };
    let mut engine = Engine::start_with(other.options(), limits);
    engine.until("its prefix", |e| e.got.len() == 1);
    let delivery = &engine.got[0];
    assert_eq!(delivery.record.size_bytes(), 1000);
    assert_eq!((&delivery.record.key, delivery.record.value.as_deref()), (&key, Some(&large[..997])));
    let truncation = delivery.fault.as_ref().unwrap().truncation.as_ref().unwrap();
    assert_eq!((truncation.full_bytes, truncation.blake3), (900_000, *blake3::hash(&large).as_bytes()));
    engine.close();
}

#[test]
fn batches_keep_their_limits() {
    let place = Place::new("limits", 1);
    let value = Bytes::from(vec![1_u8; 10_000]);
    let records: Vec<Record> =
        (0..200).map(|_| record_for(&place.topic, None, Some(value.clone()), Headers::default())).collect();
    publish(&place, &records);
    let limits = PortLimits { batch_max: 7, batch_max_bytes: 45_000, ..LIMITS };
    let mut engine = Engine::start_with(place.options(), limits);
    engine.until("all", |e| e.got.len() == 200);
    assert!(engine.batches.iter().all(|size| *size <= 4), "{:?}", engine.batches);
    engine.close();
    let other = Place { group: unique("limits"), ..place };
    let mut engine = Engine::start_with(other.options(), PortLimits { batch_max: 3, ..LIMITS });
    engine.until("all", |e| e.got.len() == 200);
    assert!(engine.batches.iter().all(|size| *size <= 3), "{:?}", engine.batches);
    engine.close();
}

#[test]
fn what_the_library_keeps_stays_under_the_limit_when_nobody_takes_anything() {
    let place = Place::new("memory", 3);
    let value = Bytes::from(vec![1_u8; 10_000]);
    let records: Vec<Record> = (0..3000_u32)
        .map(|n| {
            record_for(
                &place.topic,
                Some(Bytes::from(n.to_string())),
                Some(value.clone()),
                Headers::default(),
            )
        })
        .collect();
    publish(&place, &records);
    let limits = PortLimits { queue_max_bytes: 4 << 20, ..LIMITS };
    let mut engine = Engine::start_with(place.options(), limits);
    let limit = std::time::Instant::now() + PATIENCE;
    let mut most = 0;
    let mut seen = 0;
    // Nothing is taken out of the port: the source must stop at its bound and stay there.
    while seen < 20 {
        assert!(std::time::Instant::now() < limit, "the queues fill");
        std::thread::sleep(Duration::from_millis(200));
        let queued = engine.hooks.queued.load(Ordering::Relaxed) * 10_000;
        assert!(queued <= 4 << 20, "{queued} bytes queued");
        most = most.max(queued);
        if most > 1 << 20 {
            seen += 1;
        }
    }
    engine.until("all, afterwards", |e| e.got.len() == 3000);
    engine.close();
    assert_eq!(place.committed_sum(), 3000);
}

/// librdkafka would wait ten minutes for it, with each record anew.
#[test]
fn a_topic_that_does_not_exist_is_looked_for_and_not_waited_for() {
    let (there, missing) = (Place::new("there", 1), Place::without_topic("missing"));
    let long = ["topic.metadata.propagation.max.ms", "message.timeout.ms"];
    let options = long.map(|key| (key.to_owned(), "600000".to_owned())).into();
    let sink = KafkaSink::new(&there.brokers, &options).unwrap();
    assert!(sink.has_topic(&there.topic, PATIENCE).unwrap());
    assert!(!sink.has_topic(&missing.topic, PATIENCE).unwrap());
    let records =
        [&missing, &there].map(|place| record_for(&place.topic, None, bytes(b"v"), Headers::default()));
    let publish = || {
        let answers = block_on(async { tokio::time::timeout(PATIENCE, sink.publish(&records)).await });
        answers.expect("it waits for a topic that does not exist")
    };
    for _ in 0..3 {
        let answers = publish();
        assert!(answers[1].is_ok(), "{answers:?}");
        let refused = answers[0].as_ref().unwrap_err();
        assert!(!refused.transient, "{refused}");
    }
    missing.create(1);
    let limit = std::time::Instant::now() + PATIENCE;
    while publish()[0].is_err() {
        assert!(std::time::Instant::now() < limit, "a topic that was made is never found");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(read(&missing, 1).len(), 1);
}
