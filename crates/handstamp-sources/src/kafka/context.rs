//! What the client library calls back into: rebalances are noted for the thread to handle between two
//! polls, log lines go to `tracing`.
//!
//! The library waits for the assignment call after a rebalance, however late it comes, so nothing has to
//! be done inside the callback and no lock is held across a poll.

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Statistics, TopicPartitionList};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A rebalance that waits for its answer.
#[derive(Debug)]
pub(super) enum Rebalance {
    /// These partitions are given to us.
    Assign(TopicPartitionList),
    /// These are taken away.
    Revoke(TopicPartitionList),
}

/// The callbacks of one client.
#[derive(Debug, Default)]
pub(super) struct Context {
    waiting: Mutex<VecDeque<Rebalance>>,
    /// What the library says of the error that the running poll returns.
    reason: Mutex<Option<String>>,
    letting_go: AtomicBool,
}

impl Context {
    /// The next rebalance to answer.
    pub(super) fn next_rebalance(&self) -> Option<Rebalance> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// The library's words for the error that the last poll returned; the wrapper's error has its code only.
    pub(super) fn take_reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).take().filter(|reason| !reason.is_empty())
    }

    /// From now on rebalances are answered at once and nobody is asked: the client is being dropped.
    pub(super) fn let_go(&self) {
        self.letting_go.store(true, Ordering::Release);
    }
}

/// Gives the library the assignment it waits for.
pub(super) fn answer(consumer: &BaseConsumer<Context>, rebalance: &Rebalance) -> Result<(), KafkaError> {
    let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
    match rebalance {
        Rebalance::Assign(partitions) if cooperative => consumer.incremental_assign(partitions),
        Rebalance::Assign(partitions) => consumer.assign(partitions),
        Rebalance::Revoke(partitions) if cooperative => consumer.incremental_unassign(partitions),
        Rebalance::Revoke(_) => consumer.unassign(),
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn stats(&self, _: Statistics) {}

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        // The code decides elsewhere; this is the line for a person.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::PartitionEOF) {
            tracing::debug!(target: "handstamp", %error, reason, "kafka client");
            *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        }
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let rebalance = match code {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assign(list.clone()),
            _ => Rebalance::Revoke(list.clone()),
        };
        if self.letting_go.load(Ordering::Acquire) {
            if let Err(error) = answer(consumer, &rebalance) {
                tracing::debug!(target: "handstamp", %error, "kafka client: assignment at the end");
            }
        } else {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(rebalance);
        }
    }
}

/// A client without a group: metadata, producing.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn stats(&self, _: Statistics) {}

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "handstamp", %error, reason, "kafka client");
    }
}

impl ConsumerContext for Quiet {}

/// What the library says again at each attempt to connect; we say once that the broker is away.
const REPEATED: [&str; 2] = ["FAIL", "ERROR"];

fn log_line(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning if REPEATED.contains(&facility) => {
            tracing::info!(target: "handstamp", facility, "kafka client: {line}");
        }
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(target: "handstamp", facility, "kafka client: {line}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "handstamp", facility, "kafka client: {line}");
        }
        RDKafkaLogLevel::Debug => tracing::trace!(target: "handstamp", facility, "kafka client: {line}"),
    }
}
