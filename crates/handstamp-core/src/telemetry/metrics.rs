//! The table of metrics: each name once, with its kind, unit, labels and meaning.
//!
//! The reference page, the dashboard and the alert rules are checked against it, and so is what a running program
//! exposes. Names follow Prometheus (a prefix, base units as the last word, `_total` for counters); where
//! OpenTelemetry's conventions for messaging have a metric of that meaning, it is told.

/// What a metric does over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of what was at most so large.
    Histogram,
}

impl Kind {
    /// The word of the exposition format.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A label, and what its values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values, for people.
    pub values: &'static str,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name as it is exposed.
    pub name: &'static str,
    /// What it does over time.
    pub kind: Kind,
    /// Its unit, as UCUM writes it: `s`, `1`, or a word in braces for what is counted.
    pub unit: &'static str,
    /// One line: what it says.
    pub help: &'static str,
    /// Labels beside `consumer`, which every metric of a consumer has.
    pub labels: &'static [Label],
    /// The metric of OpenTelemetry's messaging conventions of that meaning.
    pub otel: Option<&'static str>,
}

/// The label of every metric that belongs to a consumer.
pub const CONSUMER: &str = "consumer";

const fn metric(kind: Kind, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    Metric { name, kind, unit, help, labels: &[], otel: None }
}

const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    metric(Kind::Counter, name, unit, help)
}

const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    metric(Kind::Gauge, name, unit, help)
}

const fn histogram(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    metric(Kind::Histogram, name, unit, help)
}

impl Metric {
    const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    const fn otel(self, name: &'static str) -> Self {
        Self { otel: Some(name), ..self }
    }
}

/// Deliveries taken.
pub static RECEIVED: Metric = counter(
    "handstamp_messages_received_total",
    "{message}",
    "Deliveries taken from the source; what ended of them and what is pending add up to it.",
)
.otel("messaging.client.consumed.messages");
/// How they ended.
pub static MESSAGES: Metric = counter(
    "handstamp_messages_total",
    "{message}",
    "Deliveries that ended, each under exactly one outcome.",
)
.by(&[Label {
    name: "outcome",
    values: "applied, duplicate, id_reused, stale, unmatched, dead_lettered, parked, released",
}]);
/// Not ended yet.
pub static PENDING: Metric =
    gauge("handstamp_messages_pending", "{message}", "Deliveries taken that have not ended yet.");
/// Parked ones taken up.
pub static RESUMED_TAKEN: Metric = counter(
    "handstamp_resumed_messages_taken_total",
    "{message}",
    "Parked messages taken up again, whichever process parked them.",
);
/// How those ended.
pub static RESUMED: Metric = counter(
    "handstamp_resumed_messages_total",
    "{message}",
    "Parked messages taken up again that ended, each under exactly one outcome.",
)
.by(&[Label { name: "outcome", values: "applied, stale, parked_again, dead, released" }]);
/// Charged failures.
pub static ATTEMPTS_FAILED: Metric = counter(
    "handstamp_attempts_failed_total",
    "{attempt}",
    "Failed attempts that were charged to messages; what the infrastructure did is none.",
);
/// Transactions.
pub static COMMITS: Metric = counter("handstamp_commits_total", "{transaction}", "Transactions committed.");
/// Transactions again.
pub static RERUNS: Metric = counter(
    "handstamp_reruns_total",
    "{transaction}",
    "Transactions run again, after a fault or a failing neighbour.",
);
/// New dead letters.
pub static DEAD_LETTER_ROWS: Metric =
    counter("handstamp_dead_letter_rows_total", "{message}", "Dead letters written new by this process.");
/// Copies of them.
pub static DEAD_LETTER_COPIES: Metric = counter(
    "handstamp_dead_letter_copies_total",
    "{message}",
    "Copies of dead letters by what their topic said; one that is made again counts again.",
)
.by(&[Label { name: "result", values: "taken, refused" }]);
/// Deaths met.
pub static CRASHES_FOUND: Metric = counter(
    "handstamp_crashes_found_total",
    "{process}",
    "Deaths of processes, found on lanes that this one took over.",
);
/// Openings.
pub static BREAKER_OPENED: Metric =
    counter("handstamp_breaker_opened_total", "{opening}", "How often the handler's breaker opened.");
/// Where it stands.
pub static BREAKER_STATE: Metric = gauge(
    "handstamp_breaker_state",
    "1",
    "Where the handler's breaker stands: 1 for that state, 0 for the others.",
)
.by(&[Label { name: "state", values: "closed, open, probing" }]);
/// Sizes.
pub static BATCH: Metric =
    histogram("handstamp_batch_messages", "{message}", "Messages of each committed transaction.");
/// Handling.
pub static HANDLER: Metric = histogram(
    "handstamp_handler_duration_seconds",
    "s",
    "How long the handler, or the effects of a batch, took for what it was given at a time, whatever came of it.",
)
.otel("messaging.process.duration");
/// Committing.
pub static COMMIT: Metric = histogram(
    "handstamp_commit_duration_seconds",
    "s",
    "How long the store took to answer a COMMIT that succeeded.",
);
/// Lag.
pub static LAG: Metric = gauge(
    "handstamp_lag_messages",
    "{message}",
    "Records behind the settled position of a lane, as the source last told.",
)
.by(&[Label {
    name: "lane",
    values: "`topic[partition]` or a file's path; at most 100, what is behind the others together is `other`",
}]);
/// Slots.
pub static SLOTS: Metric =
    gauge("handstamp_slots", "{transaction}", "Transactions that this process may have open at a time.");
/// Slots in use.
pub static SLOTS_USED: Metric =
    gauge("handstamp_slots_used", "{transaction}", "Of them, those that lanes and the retry worker use now.");
/// Notices.
pub static SOURCE_NOTICES: Metric = counter(
    "handstamp_source_notices_total",
    "{notice}",
    "Things that happened to the source; `revoked` and `lost` are rebalances that took lanes away.",
)
.by(&[Label {
    name: "notice",
    values: "settle_failed, settle_unknown, settle_stale, revoked, lost, evicted, broker_away, broker_back, missing, \
             truncated, client_rebuilt, grown",
}]);
/// The source.
pub static SOURCE_UP: Metric = gauge(
    "handstamp_source_up",
    "1",
    "1 while the source has handed over its lanes and its broker is not said to be away.",
);
/// The store.
pub static STORE_UP: Metric =
    gauge("handstamp_store_up", "1", "1 while the store answers, as the engine last met it.");
/// Readiness.
pub static READY: Metric =
    gauge("handstamp_ready", "1", "1 while new messages are taken up, as /readyz says.");
/// Reasons.
pub static UNREADY: Metric = gauge(
    "handstamp_unready",
    "1",
    "Why nothing new is taken up: 1 for each reason that holds, 0 for the others.",
)
.by(&[Label {
    name: "reason",
    values: "starting, stopping, store_away, not_migrated, schema_mismatch, store_busy, source_away, breaker, \
             parked_max",
}]);
/// The heart.
pub static LAST_TURN: Metric = gauge(
    "handstamp_engine_last_turn_timestamp_seconds",
    "s",
    "When the engine's loop turned for the last time, in seconds since 1970; it does at least once a second.",
);
/// The bound.
pub static PARKED_MAX: Metric =
    gauge("handstamp_parked_max_messages", "{message}", "With so many parked messages nothing new is begun.");
/// Parked.
pub static STORE_PARKED: Metric = gauge(
    "handstamp_store_parked_messages",
    "{message}",
    "Messages of the consumer that are parked in the store, by all processes; counted up to a million.",
);
/// The oldest.
pub static STORE_PARKED_OLDEST: Metric = gauge(
    "handstamp_store_parked_oldest_age_seconds",
    "s",
    "For how long the oldest of them has been parked; 0 where none is.",
);
/// Dead letters.
pub static STORE_DEAD_LETTERS: Metric = gauge(
    "handstamp_store_dead_letters",
    "{message}",
    "Dead letters of the consumer in the store, by all processes; counted up to a million.",
);
/// When those were counted.
pub static STORE_LOOKED: Metric = gauge(
    "handstamp_store_looked_timestamp_seconds",
    "s",
    "When parked messages and dead letters were counted for the last time, in seconds since 1970.",
);
/// The program.
pub static BUILD_INFO: Metric = gauge("handstamp_build_info", "1", "Always 1: what runs.")
    .by(&[Label { name: "version", values: "the program's version" }]);

/// Every metric, in the order of exposition.
pub static METRICS: [&Metric; 31] = [
    &BUILD_INFO,
    &READY,
    &UNREADY,
    &LAST_TURN,
    &STORE_UP,
    &SOURCE_UP,
    &RECEIVED,
    &MESSAGES,
    &PENDING,
    &RESUMED_TAKEN,
    &RESUMED,
    &ATTEMPTS_FAILED,
    &DEAD_LETTER_ROWS,
    &DEAD_LETTER_COPIES,
    &CRASHES_FOUND,
    &COMMITS,
    &RERUNS,
    &BATCH,
    &HANDLER,
    &COMMIT,
    &BREAKER_STATE,
    &BREAKER_OPENED,
    &LAG,
    &SOURCE_NOTICES,
    &SLOTS,
    &SLOTS_USED,
    &PARKED_MAX,
    &STORE_PARKED,
    &STORE_PARKED_OLDEST,
    &STORE_DEAD_LETTERS,
    &STORE_LOOKED,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for metric in METRICS {
            let name = metric.name;
            assert_eq!(METRICS.iter().filter(|other| other.name == name).count(), 1, "{name}");
            assert!(name.starts_with("handstamp_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            assert_eq!(name.ends_with("_seconds"), metric.unit == "s", "{name}: base units stand at the end");
            // What a histogram's series are called must not be another metric.
            for suffix in ["_bucket", "_sum", "_count", "_info_total"] {
                assert!(!name.ends_with(suffix), "{name}");
            }
            assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '\\', '|']), "{name}");
        }
    }

    #[test]
    fn labels_are_names_and_none_is_there_twice() {
        for metric in METRICS {
            for label in metric.labels {
                assert!(label.name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{}", label.name);
                // Made by the format or by Prometheus.
                assert!(![CONSUMER, "le", "job", "instance"].contains(&label.name), "{}", metric.name);
            }
        }
    }
}
