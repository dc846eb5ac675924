//! Publishes the records of a run; the log names those that must have an effect.

use super::messages::{Record, Workload};
use crate::broker::Broker;
use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::workload::{Credit, SentLog};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for the broker.
const WAIT: Duration = Duration::from_secs(30);

/// Counts what the broker acknowledged.
struct Acks(Arc<AtomicUsize>);

impl rdkafka::ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn unreachable(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LabError {
    LabError::new(LabErrorKind::Unreachable, format!("the broker does not answer: {what}")).because(error)
}

/// Sends everything; the log has every good record once all are acknowledged.
pub(super) fn send(
    broker: &Broker,
    topic: &str,
    work: &Workload,
    log: &mut SentLog,
    cancel: &Cancel,
) -> Result<()> {
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let producer: ThreadedProducer<Acks> = broker
        .client_config()
        .set("enable.idempotence", "true")
        .set("linger.ms", "5")
        .create_with_context(Acks(Arc::clone(&acknowledged)))
        .map_err(|error| unreachable("no producer", error))?;
    for record in &work.records {
        queue(&producer, topic, record, cancel)?;
    }
    producer.flush(WAIT).map_err(|error| unreachable("records were not acknowledged", error))?;
    let done = acknowledged.load(Ordering::SeqCst);
    if done != work.records.len() {
        let what = format!("{done} of {} records were acknowledged", work.records.len());
        return Err(LabError::new(LabErrorKind::Unreachable, what));
    }
    for record in work.records.iter().filter(|record| work.good.contains(&record.id)) {
        log.note(&Credit { id: record.id.clone(), account: 0, amount: 0 })?;
    }
    Ok(())
}

fn queue(producer: &ThreadedProducer<Acks>, topic: &str, record: &Record, cancel: &Cancel) -> Result<()> {
    let mut headers = OwnedHeaders::new();
    for (name, value) in &record.headers {
        headers = headers.insert(Header { key: name, value: Some(value) });
    }
    let mut out: BaseRecord<'_, String, String> =
        BaseRecord::to(topic).payload(&record.body).headers(headers);
    if let Some(key) = &record.key {
        out = out.key(key);
    }
    let until = Instant::now() + WAIT;
    loop {
        match producer.send(out) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again))
                if Instant::now() < until =>
            {
                out = again;
                cancel.sleep(Duration::from_millis(5))?;
            }
            Err((error, _)) => return Err(unreachable("a record cannot be sent", error)),
        }
    }
}
