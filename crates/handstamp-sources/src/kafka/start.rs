//! Before the group is joined: the broker must be reachable and the topics must be there. Both are waited
//! for, said at once and then every ten seconds.

use super::config::KafkaOptions;
use super::context::Quiet;
use super::hooks::Alive;
use super::thread::{SAY_EVERY, Worker};
use handstamp_core::{Notice, SourceError, SourceErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const ASK_TIMEOUT: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// While no broker answers: each question makes the library try to connect, so they become rarer up to this.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(2);
/// Most events of the library that are taken between two questions.
const EVENTS_MAX: usize = 200;
/// With `fail_fast`: how long a broker may be away at the start.
const FAIL_FAST_AFTER: Duration = Duration::from_secs(5);

/// What is known of the topics before the client is built.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Partitions of each topic.
    pub(super) partitions: HashMap<String, i32>,
}

impl Plan {
    /// Partitions of all topics together, at least one.
    pub(super) fn lanes(&self) -> usize {
        let sum: i64 = self.partitions.values().map(|count| i64::from(*count)).sum();
        usize::try_from(sum).unwrap_or(1).max(1)
    }
}

/// Why there is no plan yet.
enum Trouble {
    Away(KafkaError),
    /// A broker answers, and says something else than what was asked for.
    Refused(KafkaError),
    Missing(Vec<String>),
}

/// Waits for broker and topics. `None` when asked to end meanwhile.
///
/// # Errors
/// With `fail_fast`, the trouble itself; otherwise only a configuration the library refuses.
pub(super) fn wait_for_topics(worker: &mut Worker) -> Result<Option<Plan>, SourceError> {
    let client: BaseConsumer<Quiet> = worker
        .options
        .plain_config()
        .create_with_context(Quiet)
        .map_err(|error| super::config::refused(&worker.options, &error))?;
    let alive = Alive::new(&worker.hooks);
    let started = Instant::now();
    let mut said: Option<Instant> = None;
    let mut was_away = false;
    let mut ask_again = ASK_AGAIN;
    let result = loop {
        worker.wait_idle(Duration::ZERO);
        if worker.ending() {
            break Ok(None);
        }
        // Errors and log lines of the library; each poll takes one.
        for _ in 0..EVENTS_MAX {
            let _ = client.poll(Duration::ZERO);
        }
        worker.hooks.ticks.fetch_add(1, Ordering::Relaxed);
        let trouble = match ask(&client, &worker.options) {
            Ok(plan) => {
                if was_away {
                    worker.notice(Notice::BrokerBack);
                }
                break Ok(Some(plan));
            }
            Err(trouble) => trouble,
        };
        if said.is_none() {
            was_away = !matches!(trouble, Trouble::Missing(_));
            worker.notice(match trouble {
                Trouble::Away(_) | Trouble::Refused(_) => Notice::BrokerAway,
                Trouble::Missing(_) => Notice::Missing,
            });
        }
        if worker.options.fail_fast && gives_up(&trouble, started) {
            break Err(failure(&worker.options, trouble));
        }
        let away = matches!(trouble, Trouble::Away(_));
        if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            said = Some(Instant::now());
            tracing::warn!(target: "handstamp", waiting_s = started.elapsed().as_secs(), "{}; waiting (with fail_fast, --fail-fast of the program, it would end)",
                failure(&worker.options, trouble).message);
        }
        worker.wait_idle(ask_again);
        ask_again = if away { (ask_again * 2).min(ASK_AGAIN_MAX) } else { ASK_AGAIN };
    };
    // A tuple is dropped from left to right.
    super::session::drop_within((client, alive), Duration::from_secs(1));
    result
}

fn gives_up(trouble: &Trouble, started: Instant) -> bool {
    match trouble {
        Trouble::Missing(_) => started.elapsed() >= Duration::from_secs(1),
        Trouble::Away(_) | Trouble::Refused(_) => started.elapsed() >= FAIL_FAST_AFTER,
    }
}

fn failure(options: &KafkaOptions, trouble: Trouble) -> SourceError {
    match trouble {
        Trouble::Away(error) => SourceError::new(
            SourceErrorKind::Disconnected,
            format!("no Kafka broker answers at {} ({})", options.brokers(), code_text(&error)),
        )
        .with_source(error),
        Trouble::Refused(error) => SourceError::new(
            SourceErrorKind::Disconnected,
            format!(
                "Kafka at {} does not say what {} has: {}",
                options.brokers(),
                options.topics().join(", "),
                code_text(&error)
            ),
        )
        .with_source(error),
        Trouble::Missing(topics) => SourceError::new(
            SourceErrorKind::Missing,
            format!(
                "Kafka at {} has no topic {}; create it or correct the name",
                options.brokers(),
                topics.join(", ")
            ),
        ),
    }
}

/// The error's code in words; the wrapper's own text may repeat settings.
pub(super) fn code_text(error: &KafkaError) -> String {
    error.rdkafka_error_code().map_or_else(|| "no code".to_owned(), |code| code.to_string())
}

fn ask(client: &BaseConsumer<Quiet>, options: &KafkaOptions) -> Result<Plan, Trouble> {
    let mut partitions = HashMap::new();
    let mut missing = vec![];
    for topic in options.topics() {
        match partitions_of(client, topic, ASK_TIMEOUT).map_err(away_or_refused)? {
            Some(count) => {
                partitions.insert(topic.clone(), count);
            }
            None => missing.push(topic.clone()),
        }
    }
    if missing.is_empty() { Ok(Plan { partitions }) } else { Err(Trouble::Missing(missing)) }
}

/// The library's own codes are negative; any other was sent by a broker.
fn away_or_refused(error: KafkaError) -> Trouble {
    match error.rdkafka_error_code() {
        Some(code) if code as i32 > 0 => Trouble::Refused(error),
        _ => Trouble::Away(error),
    }
}

/// How many partitions a topic has; `None` when there is no such topic.
pub(super) fn partitions_of(
    client: &BaseConsumer<Quiet>,
    topic: &str,
    timeout: Duration,
) -> Result<Option<i32>, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), timeout)?;
    let Some(found) = metadata.topics().iter().find(|one| one.name() == topic) else { return Ok(None) };
    match found.error().map(RDKafkaErrorCode::from) {
        None => {
            Ok(Some(i32::try_from(found.partitions().len()).unwrap_or(i32::MAX)).filter(|count| *count > 0))
        }
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => Ok(None),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
    }
}
