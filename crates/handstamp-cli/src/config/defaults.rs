//! Every key of the file: its default and why it is that. The reference page lists the same rows.

use std::time::Duration;

/// Offsets follow the database by at most this: a crash costs that much of duplicates, which the
/// inbox skips; a commit for each message costs a third of the throughput.
pub(crate) const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// Long enough for a batch to finish, short enough that the group does not wait for us.
pub(crate) const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than Postgres' `deadlock_timeout`, so that a deadlock is named as one.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The schema of our tables in Postgres.
pub(crate) const SCHEMA: &str = "handstamp";

/// A key of the file, for the reference page.
#[cfg(test)]
pub(crate) struct Key {
    /// Full name.
    pub(crate) name: &'static str,
    /// Default as it would be written; empty: there is none.
    pub(crate) default: &'static str,
    /// What it means.
    pub(crate) meaning: &'static str,
}

#[cfg(test)]
const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { name, default, meaning }
}

/// Every key.
#[cfg(test)]
pub(crate) const KEYS: &[Key] = &[
    key("name", "", "the consumer: the namespace of inbox ids; 1 to 64 of A-Z a-z 0-9 . _ -"),
    key("consumer.batch_max", "500", "most messages in one transaction"),
    key(
        "consumer.batch_max_bytes",
        "\"4 MiB\"",
        "most bytes in one transaction; a larger message goes alone",
    ),
    key("consumer.batch_wait", "\"5ms\"", "how long a batch that is not full waits for more"),
    key("consumer.concurrency", "1", "most transactions at a time in this process"),
    key("consumer.queue_max_bytes", "\"16 MiB\"", "most bytes queued in this process, librdkafka's included"),
    key(
        "consumer.max_message_bytes",
        "\"1 MiB\"",
        "a larger message becomes a dead letter with a prefix of its value",
    ),
    key("consumer.handler_timeout", "\"30s\"", "longest time for the effects of one batch"),
    key(
        "consumer.shutdown_timeout",
        "\"25s\"",
        "how long a stop waits for what runs; below the 30 s that supervisors give",
    ),
    key(
        "consumer.order",
        "\"partition\"",
        "\"partition\": in order within a partition; \"none\": a failing message lets the others pass",
    ),
    key(
        "consumer.on_id_reuse",
        "\"dead_letter\"",
        "an id that comes again with another body: \"dead_letter\" keeps it, \"count\" only counts it",
    ),
    key("retry.max_attempts", "3", "all attempts of a message, the first included; then it is a dead letter"),
    key("retry.wait", "\"50ms\"", "wait between attempts; they are made in place, so at most 1s"),
    key("source.type", "", "\"kafka\" or \"file\""),
    key("source.brokers", "", "kafka: bootstrap servers, separated by commas"),
    key("source.topics", "", "kafka: list of topics"),
    key("source.group", "", "kafka: the consumer group"),
    key(
        "source.commit_every",
        "\"200ms\"",
        "kafka: offsets follow the database by at most this; \"0s\": at once",
    ),
    key("source.revoke_timeout", "\"5s\"", "kafka: how long a rebalance waits for what runs"),
    key(
        "source.options",
        "",
        "kafka: table of librdkafka options; those that would break the promise are refused",
    ),
    key("source.path", "", "file: JSON lines, or \"-\" for standard input"),
    key("source.state_dir", "", "file: where the position is kept; default: beside the store's file"),
    key("identity.header", "", "the id is the value of this header"),
    key("identity.field", "", "the id is this field of the body, a JSON pointer such as \"/id\""),
    key("identity.fields", "", "the id is these fields joined, a list of JSON pointers"),
    key("identity.key", "", "true: the id is the record's key"),
    key("store.type", "", "\"sqlite\" or \"postgres\""),
    key("store.path", "", "sqlite: the file; made when missing"),
    key("store.url", "", "postgres: connection string of `run`; needs no right to change tables"),
    key("store.migrate_url", "", "postgres: connection string of `migrate`, where it is another role's"),
    key("store.schema", "\"handstamp\"", "postgres: the schema of our tables"),
    key("store.setup", "", "SQL file with your own tables; run once by migrate, refused when changed later"),
    key("store.lock_timeout", "\"5s\"", "longest wait for another transaction's lock"),
    key("effect.sql", "", "one statement; `:name` binds a field of the body"),
    key(
        "effect.expect_rows",
        "",
        "how many rows it must change, or \"any\"; otherwise the message is a dead letter",
    ),
    key("effect.optional", "[]", "parameters that may be missing from the body and are then NULL"),
    key(
        "effect.params",
        "",
        "parameters from elsewhere: params.city = \"/address/city\", or a table of `pointer` or `header`, `encoding = \"base64\"`, `as = \"text\"`",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_every_key_with_its_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.md");
        let page = std::fs::read_to_string(path).unwrap();
        for key in KEYS {
            let default =
                if key.default.is_empty() { "–".to_owned() } else { format!("`{}`", key.default) };
            let row = format!("| `{}` | {default} | {} |", key.name, key.meaning.replace('|', "\\|"));
            assert!(page.contains(&row), "docs/reference/config.md lacks this row:\n{row}");
        }
    }
}
