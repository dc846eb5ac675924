//! The client library's settings as users may write them: which would break the promise, which hold
//! secrets, which are dangerous, and what an unknown one was meant to be.

use super::ffi;
use super::waits::Retries;
use handstamp_core::secret::is_secret;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use std::collections::BTreeMap;
use std::fmt;

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The source does not start.
    Error,
    /// It starts, and may bite later.
    Warning,
}

/// Something wrong or dangerous in the options.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The key it is about.
    pub key: String,
    /// What is wrong and what to do; never a secret's value.
    pub message: String,
    /// Whether the source starts all the same.
    pub severity: Severity,
}

impl Problem {
    pub(super) fn error(key: &str, message: impl Into<String>) -> Self {
        Self { key: key.to_owned(), message: message.into(), severity: Severity::Error }
    }

    pub(super) fn warning(key: &str, message: impl Into<String>) -> Self {
        Self { key: key.to_owned(), message: message.into(), severity: Severity::Warning }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kafka option {}: {}", self.key, self.message)
    }
}

/// Settings that are ours alone, with the reason; `None` as value means that no value is allowed.
const OURS: &[(&str, &str)] = &[
    ("bootstrap.servers", "say it as `brokers`"),
    ("metadata.broker.list", "say it as `brokers`"),
    ("group.id", "say it as `group`"),
    ("enable.auto.commit", "offsets are committed only after the store's commit"),
    ("auto.commit.enable", "offsets are committed only after the store's commit"),
    ("auto.commit.interval.ms", "offsets are committed only after the store's commit; see `commit_every`"),
    ("enable.auto.offset.store", "an offset counts when its outcome is durable, not when it was handed over"),
    ("offset.store.method", "offsets are kept by the broker"),
    ("offset.store.path", "offsets are kept by the broker"),
    ("offset.store.sync.interval.ms", "offsets are kept by the broker"),
    ("isolation.level", "messages of a transaction that was taken back must not be applied"),
    ("enable.partition.eof", "the end of a partition has to be seen"),
    ("queued.max.messages.kbytes", "derived from the queue limit"),
    ("queued.min.messages", "derived from the queue limit"),
    ("fetch.max.bytes", "derived from the queue limit"),
    ("fetch.message.max.bytes", "derived from the queue limit"),
    ("max.partition.fetch.bytes", "derived from the queue limit"),
    ("receive.message.max.bytes", "derived from the queue limit"),
    ("message.max.bytes", "derived from the queue limit"),
    ("statistics.interval.ms", "nobody reads the statistics; lag is reported by itself"),
    ("plugin.library.paths", "a plugin could change what is committed"),
    ("log.queue", "log lines have their way already"),
    ("enable.background.thread", "one thread owns the client"),
];

/// Settings with one allowed value.
const FIXED: &[(&str, &str, &str)] =
    &[("api.version.request", "true", "without it there are no headers and no transactions")];

/// The text with every secret's value taken out.
pub(super) fn without_secrets(text: &str, options: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (key, value) in options {
        if is_secret(key) && !value.is_empty() {
            text = text.replace(value, "***");
        }
    }
    text
}

/// Settings that only a member of a group has a use for.
pub(super) fn is_consumer_only(key: &str) -> bool {
    key.starts_with("group.")
        || key.starts_with("fetch.")
        || key.starts_with("session.")
        || key.starts_with("heartbeat.")
        || matches!(
            key,
            "partition.assignment.strategy"
                | "max.poll.interval.ms"
                | "auto.offset.reset"
                | "check.crcs"
                | "allow.auto.create.topics"
                | "coordinator.query.interval.ms"
                | "client.rack"
        )
}

/// Everything to say about one setting.
pub(super) fn judge(key: &str, value: &str, all: &BTreeMap<String, String>) -> Vec<Problem> {
    if let Some((_, reason)) = OURS.iter().find(|(ours, _)| *ours == key) {
        return vec![Problem::error(key, format!("cannot be set: {reason}"))];
    }
    if let Some((_, allowed, reason)) =
        FIXED.iter().find(|(fixed, allowed, _)| *fixed == key && *allowed != value)
    {
        return vec![Problem::error(key, format!("must stay {allowed}: {reason}"))];
    }
    if let Some(problem) = needs_tls(key, value) {
        return vec![problem];
    }
    if let Some(problem) = refused_by_library(key, value) {
        return vec![problem];
    }
    dangers(key, value, all)
}

#[cfg(feature = "kafka-ssl")]
fn needs_tls(_: &str, _: &str) -> Option<Problem> {
    None
}

#[cfg(not(feature = "kafka-ssl"))]
fn needs_tls(key: &str, value: &str) -> Option<Problem> {
    let value = value.to_ascii_lowercase();
    let needed = match key {
        "security.protocol" => value.ends_with("ssl"),
        "sasl.mechanism" | "sasl.mechanisms" => value != "plain",
        _ => key.starts_with("ssl.") || key.starts_with("sasl.oauthbearer."),
    };
    needed.then(|| Problem::error(key, "needs a build with the feature kafka-ssl; this one has no TLS"))
}

/// Asks the library itself about one name and value. Its own text may repeat a secret, so it is not used.
fn refused_by_library(key: &str, value: &str) -> Option<Problem> {
    let mut config = ClientConfig::new();
    config.set(key, value);
    let Err(KafkaError::ClientConfig(result, ..)) = config.create_native_config() else { return None };
    if result == RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN {
        let near = nearest(key).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        return Some(Problem::error(key, format!("is no setting of librdkafka{near}")));
    }
    let shown = if is_secret(key) { "its value".to_owned() } else { format!("{value:?}") };
    Some(Problem::error(key, format!("librdkafka does not take {shown}")))
}

fn dangers(key: &str, value: &str, all: &BTreeMap<String, String>) -> Vec<Problem> {
    let number = value.parse::<u64>().ok();
    let less_than = |limit: u64| number.is_some_and(|number| number < limit);
    let warn = |message: &str| vec![Problem::warning(key, message)];
    match key {
        "auto.offset.reset" if matches!(value, "latest" | "largest" | "end") => warn(
            "a group without offsets skips what is already there, and a position that fell out of the log skips to its end",
        ),
        "auto.offset.reset" if value == "error" => warn("a group without offsets never starts"),
        "session.timeout.ms" if less_than(6000) => {
            warn("so short that a pause of the machine puts us out of the group")
        }
        "max.poll.interval.ms" if less_than(10_000) => {
            warn("so short that a slow rebalance puts us out of the group")
        }
        "retry.backoff.ms" | "retry.backoff.max.ms" if Retries::too_soon(all) => warn(
            "shorter than five quarters of fetch.wait.max.ms: a commit that fails while the coordinator moves may find no end until session.timeout.ms has passed",
        ),
        "group.protocol" if value == "consumer" => {
            let mut problems =
                warn("the new group protocol is passed through but little tested; classic is the default");
            for other in ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"] {
                if all.contains_key(other) {
                    problems
                        .push(Problem::error(other, "cannot be set together with group.protocol = consumer"));
                }
            }
            problems
        }
        "allow.auto.create.topics" if value == "true" => {
            warn("a misspelt topic is created instead of being reported")
        }
        "debug" => warn("writes very many log lines"),
        _ => vec![],
    }
}

/// The known setting with the fewest differing letters, if it is near at all.
fn nearest(key: &str) -> Option<String> {
    let limit = 1 + key.len() / 5;
    ffi::known_settings()
        .into_iter()
        .map(|known| (differing(key, &known), known))
        .filter(|(differing, _)| *differing <= limit)
        .min()
        .map(|(_, known)| known)
}

/// Letters to add, drop or change to come from one word to the other.
fn differing(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = above + 1;
        for at in 0..to.len() {
            let changed = corner + usize::from(to[at] != letter);
            corner = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(corner + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::differing;

    #[test]
    fn differing_letters_are_counted() {
        assert_eq!(differing("abc", "abc"), 0);
        assert_eq!(differing("sesion", "session"), 1);
        assert_eq!(differing("kitten", "sitting"), 3);
        assert_eq!(differing("", "abc"), 3);
    }
}
