//! [`KafkaSink`]: publishing with an idempotent producer, one answer per record.
//!
//! Authoritative: the broker's acknowledgement of all in-sync replicas. A record counts as published only
//! then. Kafka's idempotence covers one session of one producer and one partition; it says nothing about a
//! record published again by a new producer.
//!
//! A topic that does not exist is waited for by librdkafka, anew with every record. Here it is waited for once; then it
//! is refused at once, and looked for again behind a while, which costs one question to a broker.

use super::config::{KafkaOptions, refused};
use super::context::Quiet;
use super::ffi;
use super::settings::Severity;
use super::start::code_text;
use bytes::Bytes;
use handstamp_core::{Record, Sink, SinkError, SourceError, SourceErrorKind};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Most KiB that are sent and not yet answered.
const IN_FLIGHT_KIB: u32 = 16 * 1024;

/// A topic that does not exist is not looked for more often.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a look may take.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// Publishes records to the topics named by their origin. Clones share one producer.
#[derive(Clone)]
pub struct KafkaSink {
    producer: ThreadedProducer<Quiet>,
    brokers: String,
    room: Arc<Semaphore>,
    /// Topics that do not exist, and when that was last found.
    unknown: Arc<Mutex<HashMap<String, Instant>>>,
}

impl KafkaSink {
    /// A producer for these brokers. `options` are settings of librdkafka; those that would weaken the
    /// producer are refused.
    ///
    /// # Errors
    /// Kind `Config` when an option is refused.
    pub fn new(brokers: &str, options: &BTreeMap<String, String>) -> Result<Self, SourceError> {
        let base = producer_options(brokers, options)?;
        let mut config = base.plain_config();
        config.set("enable.idempotence", "true");
        config.set("acks", "all");
        set_unless_given(&mut config, options, "message.timeout.ms", "60000");
        set_unless_given(&mut config, options, "linger.ms", "5");
        config.set("queue.buffering.max.kbytes", (IN_FLIGHT_KIB * 4).to_string());
        config.set("queue.buffering.max.messages", "1000000");
        let producer = config.create_with_context(Quiet).map_err(|error| refused(&base, &error))?;
        let room = Arc::new(Semaphore::new(usize::try_from(IN_FLIGHT_KIB).unwrap_or(usize::MAX)));
        Ok(Self { producer, brokers: brokers.to_owned(), room, unknown: Arc::default() })
    }

    /// Whether a topic exists; brokers that create topics by themselves create it. Blocks the calling thread.
    ///
    /// # Errors
    /// A transient error when no broker answers in time, otherwise what it refuses.
    pub fn has_topic(&self, topic: &str, within: Duration) -> Result<bool, SinkError> {
        let metadata = self.producer.client().fetch_metadata(Some(topic), within);
        let metadata = metadata.map_err(|error| self.error(&error))?;
        let found = metadata.topics().iter().find(|one| one.name() == topic);
        let error = found.and_then(|found| found.error()).map(RDKafkaErrorCode::from);
        let exists = match error {
            // One that is just being created has no leader yet.
            None | Some(RDKafkaErrorCode::LeaderNotAvailable) => found.is_some(),
            Some(code) if is_unknown(code) => false,
            Some(code) => return Err(self.error(&KafkaError::MetadataFetch(code))),
        };
        let mut unknown = self.unknown();
        if !exists {
            unknown.insert(topic.to_owned(), Instant::now());
        } else if unknown.remove(topic).is_some() {
            tracing::info!(target: "handstamp", topic, "the topic is there now");
        }
        Ok(exists)
    }

    fn unknown(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the records' topics those that do not exist, as far as is known.
    async fn missing(&self, records: &[Record]) -> HashSet<Arc<str>> {
        let known = self.unknown().clone();
        if known.is_empty() {
            return HashSet::new();
        }
        let mut missing = HashSet::new();
        let topics: HashSet<&Arc<str>> = records.iter().map(|record| &record.origin.topic).collect();
        for topic in topics {
            let Some(since) = known.get(&**topic) else { continue };
            let is_missing = since.elapsed() < LOOK_EVERY || {
                let (sink, topic) = (self.clone(), Arc::clone(topic));
                let look = tokio::task::spawn_blocking(move || sink.has_topic(&topic, LOOK_WITHIN));
                matches!(look.await, Ok(Ok(false)))
            };
            if is_missing {
                missing.insert(Arc::clone(topic));
            }
        }
        missing
    }

    /// Waits until everything sent is answered, at most so long. Blocks the calling thread.
    ///
    /// # Errors
    /// A transient error when something is still unanswered.
    pub fn flush(&self, within: Duration) -> Result<(), SinkError> {
        self.producer.flush(within).map_err(|error| self.error(&error))
    }

    fn error(&self, error: &KafkaError) -> SinkError {
        let code = error.rdkafka_error_code();
        let message = format!("Kafka at {} did not take the record: {}", self.brokers, code_text(error));
        SinkError::new(code.is_none_or(is_transient), message)
    }

    async fn room_for(&self, record: &Record) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(record.size_bytes() / 1024 + 1).unwrap_or(IN_FLIGHT_KIB).min(IN_FLIGHT_KIB);
        Arc::clone(&self.room).acquire_many_owned(kib).await.ok()
    }

    fn send(&self, record: &Record, waiting: Waiting) -> Result<(), SinkError> {
        let mut out =
            BaseRecord::<[u8], [u8], Box<Waiting>>::with_opaque_to(&record.origin.topic, Box::new(waiting));
        out.key = record.key.as_deref();
        out.payload = record.value.as_deref();
        out.timestamp = record.timestamp.map(|at| at.0);
        let headers = record.headers.as_slice();
        if !headers.is_empty() {
            let made = OwnedHeaders::new_with_capacity(headers.len());
            for header in headers {
                if !ffi::add_header(&made, &header.name, header.value.as_deref()) {
                    return Err(SinkError::new(false, "a header of the record cannot be written"));
                }
            }
            out.headers = Some(made);
        }
        self.producer.send(out).map_err(|(error, _)| self.error(&error))
    }
}

impl Sink for KafkaSink {
    async fn publish(&self, records: &[Record]) -> Vec<Result<(), SinkError>> {
        let missing = self.missing(records).await;
        let mut answers = Vec::with_capacity(records.len());
        for record in records {
            if missing.contains(&record.origin.topic) {
                let unknown = KafkaError::MessageProduction(RDKafkaErrorCode::UnknownTopicOrPartition);
                answers.push(Err(self.error(&unknown)));
                continue;
            }
            let (answer, wait) = oneshot::channel();
            let room = self.room_for(record).await;
            answers.push(self.send(record, Waiting { answer, _room: room }).map(|()| wait));
        }
        let mut results = Vec::with_capacity(records.len());
        for (answer, record) in answers.into_iter().zip(records) {
            results.push(match answer {
                Err(error) => Err(error),
                Ok(wait) => match wait.await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => {
                        if error.rdkafka_error_code().is_some_and(is_unknown) {
                            self.unknown().insert(record.origin.topic.to_string(), Instant::now());
                        }
                        Err(self.error(&error))
                    }
                    Err(_) => {
                        Err(SinkError::new(true, "the Kafka producer ended before the record was answered"))
                    }
                },
            });
        }
        results
    }
}

impl std::fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSink").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}

fn set_unless_given(config: &mut ClientConfig, options: &BTreeMap<String, String>, key: &str, value: &str) {
    if !options.contains_key(key) {
        config.set(key, value);
    }
}

/// Checks a producer's options.
fn producer_options(brokers: &str, options: &BTreeMap<String, String>) -> Result<KafkaOptions, SourceError> {
    for (key, value) in options {
        let weak = match key.as_str() {
            "enable.idempotence" => value != "true",
            "acks" | "request.required.acks" => value != "all" && value != "-1",
            "queue.buffering.max.kbytes" | "queue.buffering.max.messages" | "transactional.id" => true,
            _ => false,
        };
        if weak {
            let message = format!(
                "Kafka option {key}: cannot be set for publishing: records are acknowledged by all replicas, once"
            );
            return Err(SourceError::new(SourceErrorKind::Config, message));
        }
    }
    let base = KafkaOptions::new(brokers, "none", ["none"])
        .options(options.iter().map(|(key, value)| (key.clone(), value.clone())));
    match base.validate().into_iter().find(|problem| problem.severity == Severity::Error) {
        Some(problem) => Err(SourceError::new(SourceErrorKind::Config, problem.to_string())),
        None => Ok(base),
    }
}

fn is_unknown(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition)
}

fn is_transient(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    !matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidMessage
            | Code::InvalidRecord
            | Code::InvalidTopic
            | Code::InvalidArgument
            | Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::Fatal
    )
}

/// Waits for one record's answer, and keeps its room until then.
pub(super) struct Waiting {
    answer: oneshot::Sender<Result<(), KafkaError>>,
    _room: Option<OwnedSemaphorePermit>,
}

/// Passes the broker's answers on.
impl ProducerContext for Quiet {
    type DeliveryOpaque = Box<Waiting>;

    fn delivery(&self, result: &DeliveryResult<'_>, waiting: Box<Waiting>) {
        let answer = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.clone()),
        };
        // A caller that went away does not want to know.
        let _ = waiting.answer.send(answer);
    }
}

/// A record to publish: topic, key, value, headers.
#[must_use]
pub fn record_for(
    topic: &str,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: handstamp_core::Headers,
) -> Record {
    Record {
        key,
        value,
        headers,
        origin: handstamp_core::Origin { topic: topic.into(), partition: 0, offset: 0, line: None },
        timestamp: None,
    }
}
