//! What an error of the client library means: nearly always "go on polling". Each is said once, with what
//! the library says of it and what follows.
//!
//! Errors come in two ways: on the main queue (brokers, the group, a subscription), and on the queue of a
//! partition (fetching it). Answers to commits are judged in `commit`.

use super::ffi::Code;
use super::session::Session;
use super::start::code_text;
use super::thread::{End, SAY_EVERY, Worker};
use handstamp_core::{Notice, SourceError, SourceErrorKind};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::HashMap;
use std::time::Instant;

/// Troubles already said, so that each is said once.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The broker is away.
    pub(super) away: bool,
    /// How often it was.
    pub(super) outages: u32,
    /// Put out of the group since the last assignment. The library does not call an assignment lost when
    /// a rebalance was already waiting for us.
    pub(super) evicted: bool,
    /// When each code was last said.
    said: HashMap<i32, Instant>,
}

impl Told {
    /// Whether this may be said (again) now.
    pub(super) fn may_say(&mut self, code: i32) -> bool {
        let now = Instant::now();
        let again = self.said.get(&code).is_none_or(|at| now.duration_since(*at) >= SAY_EVERY);
        if again {
            self.said.insert(code, now);
        }
        again
    }
}

/// An error that came on a partition's own queue.
#[derive(Debug)]
pub(super) struct LaneError {
    pub(super) code: Code,
    /// Where the library was fetching; negative when it does not say.
    pub(super) offset: i64,
    /// What the library says.
    pub(super) words: String,
}

impl Session {
    /// Judges an error of the main queue.
    pub(super) fn trouble(&mut self, error: &KafkaError) -> Option<End> {
        let words = self.client.context().take_reason().unwrap_or_else(|| code_text(error));
        let words = self.worker.options.without_secrets(&words);
        trouble(&self.worker, &mut self.told, error, Some(&words))
    }

    /// Judges an error of a partition's own queue; said again only after the partition gave something.
    pub(super) fn lane_trouble(&mut self, id: u32, error: &LaneError) {
        let code = error.code;
        let Some(slot) = self.worker.lanes.slot(id) else { return };
        let (topic, partition) = (slot.topic.clone(), slot.partition);
        let Some(owned) = slot.owned.as_mut() else { return };
        if owned.trouble.replace(code) != Some(code) {
            let offset = (error.offset >= 0).then_some(error.offset);
            let words = self.worker.options.without_secrets(&error.words);
            tracing::warn!(target: "handstamp", %topic, partition, offset,
                "partition {topic}[{partition}] gives an error: {words}; {}", what_follows(code));
        }
        // A code that only a newer library knows asks for nothing more.
        let Ok(known) = rdkafka::types::RDKafkaRespErr::try_from(code.0) else { return };
        let known = KafkaError::MessageConsumption(known.into());
        if let Some(end) = trouble(&self.worker, &mut self.told, &known, None) {
            self.end = Some(end);
        }
    }
}

/// What becomes of a partition that gave this error, as the library goes on.
fn what_follows(code: Code) -> &'static str {
    match code.0 {
        // no offset and auto.offset.reset = error
        -140 => {
            "nothing of it is read until the group has an offset there and the partition is assigned anew; set the offset, or change auto.offset.reset, and start again"
        }
        // broken bytes, a format the library does not know
        -199 | -170 => {
            "it is fetched again, or passed over where something readable follows: look at the log there"
        }
        3 | 100 => "waiting for the topic to come back",
        29 => "it is fetched again every few seconds: grant the right to read the topic",
        _ => "it is fetched again until that succeeds; the other partitions go on",
    }
}

/// What an error asks for. `words`: what the library says of it, when nobody has said so yet.
fn trouble(worker: &Worker, told: &mut Told, error: &KafkaError, words: Option<&str>) -> Option<End> {
    use RDKafkaErrorCode as Code;
    let code = match error {
        KafkaError::MessageConsumptionFatal(code) => {
            let words = words.unwrap_or_default();
            tracing::error!(target: "handstamp", %code, "the Kafka client cannot go on: {words}; building a new one");
            return Some(End::Rebuild);
        }
        KafkaError::PartitionEOF(_) => return None,
        other => other.rdkafka_error_code()?,
    };
    match code {
        Code::PollExceeded => {
            told.evicted = true;
            worker.notice(Notice::Evicted);
            tracing::warn!(target: "handstamp",
                "max.poll.interval.ms passed without a poll; rejoining the group, results of the old assignment are dropped");
            None
        }
        Code::AllBrokersDown => {
            let message = format!("no Kafka broker answers at {}", worker.options.brokers());
            if !std::mem::replace(&mut told.away, true) {
                told.outages = told.outages.wrapping_add(1);
                worker.notice(Notice::BrokerAway);
                tracing::warn!(target: "handstamp", "{message}; waiting");
            }
            fails_fast(worker, SourceErrorKind::Disconnected, message)
        }
        Code::UnknownTopicOrPartition | Code::UnknownTopic => {
            let message = format!("a topic of {} is gone from Kafka", worker.options.topics().join(", "));
            if told.may_say(3) {
                worker.notice(Notice::Missing);
                if let Some(words) = words {
                    tracing::warn!(target: "handstamp", "{message} ({words}); waiting for it to come back");
                }
            }
            fails_fast(worker, SourceErrorKind::Missing, message)
        }
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::Authentication => {
            let message =
                format!("Kafka refuses us: {}", words.map_or_else(|| code_text(error), str::to_owned));
            if words.is_some() && told.may_say(code as i32) {
                tracing::warn!(target: "handstamp", "{message}; trying again");
            }
            fails_fast(worker, SourceErrorKind::Disconnected, message)
        }
        other => {
            if let Some(words) = words.filter(|_| told.may_say(other as i32)) {
                say_other(other, words);
            }
            None
        }
    }
}

/// What no code of ours waits for or ends by.
fn say_other(code: RDKafkaErrorCode, words: &str) {
    use RDKafkaErrorCode as Code;
    match code {
        // One connection, made again by itself; when none is left, that comes as a trouble of its own.
        Code::BrokerTransportFailure | Code::Resolve | Code::OperationTimedOut => {
            tracing::info!(target: "handstamp", "kafka client: {words}; connecting again");
        }
        _ => tracing::warn!(target: "handstamp", %code, "kafka client: {words}; trying again"),
    }
}

fn fails_fast(worker: &Worker, kind: SourceErrorKind, message: String) -> Option<End> {
    worker.options.fail_fast.then(|| End::Failed(SourceError::new(kind, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_that_lasts_is_said_once_and_each_code_by_itself() {
        let mut told = Told::default();
        assert!(told.may_say(7) && told.may_say(8));
        assert!(!told.may_say(7) && !told.may_say(8));
    }

    #[test]
    fn what_follows_differs_where_it_matters() {
        assert!(what_follows(Code(-140)).contains("auto.offset.reset"));
        assert!(what_follows(Code(-199)).contains("passed over"));
        assert!(what_follows(Code(29)).contains("grant"));
        assert!(what_follows(Code(9999)).contains("fetched again"));
    }
}
