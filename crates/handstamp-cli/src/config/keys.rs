//! Every key of the pipeline's TOML file: one row each. Authoritative for what the file may hold beside `load`,
//! which reads it: tests hold the two, the reference page and the JSON Schema to one another.
//!
//! A new key is a row here and its reading in `load`; `HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli keys` then
//! writes the table of `docs/reference/config.md` anew.

use serde_json::{Value, json};

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// The whole name: its sections and its own, with dots between them.
    pub(crate) name: &'static str,
    /// What may stand there.
    pub(crate) kind: Kind,
    /// The `type` of its section that it belongs to; `None`: to all.
    pub(crate) of: Option<&'static str>,
    /// Whether its section is not complete without it.
    pub(crate) required: bool,
    /// The default as TOML.
    pub(crate) default: Option<&'static str>,
    /// What it does, as Markdown for the reference page, whose folder its links belong to.
    pub(crate) meaning: &'static str,
}

/// What may stand as a key's value. A text may hold variables everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A consumer's name.
    Name,
    /// A text that is not empty.
    Text,
    /// A list of texts, or one.
    Texts,
    /// A JSON pointer.
    Pointer,
    /// A list of JSON pointers, or one.
    Pointers,
    /// A time with its unit.
    Time,
    /// A number of bytes, or a text with a unit.
    Size,
    /// An address and its port.
    Address,
    /// A whole number of at least so many.
    Count(u64),
    /// True or false.
    Flag,
    /// True, or left out.
    True,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A table of texts, numbers and switches.
    Scalars,
    /// A table of failures' codes, each with its own `max_attempts`.
    Codes,
    /// A whole number of 0 or more, or "any".
    Rows,
    /// A table of statement parameters.
    Params,
    /// A table of columns with their types.
    Columns,
}

/// A section of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SectionRow {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether a pipeline is not complete without it.
    pub(crate) required: bool,
    /// Whether it may come many times: `[[name]]`.
    pub(crate) many: bool,
    /// What it is about.
    pub(crate) meaning: &'static str,
}

const fn section(name: &'static str, meaning: &'static str) -> SectionRow {
    SectionRow { name, required: false, many: false, meaning }
}

impl SectionRow {
    const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    const fn many(self) -> Self {
        Self { many: true, ..self }
    }
}

/// The sections, in the order of the reference.
pub(crate) const SECTIONS: &[SectionRow] = &[
    section("consumer", "How messages are taken, and what is done about those that fail."),
    section("retry", "How often and when a message that fails is tried again."),
    section("source", "Where messages come from.").required(),
    section("dead_letter", "A topic that receives a copy of each dead letter."),
    section("identity", "Where the producer put the id of a message.").required(),
    section("store", "The database that holds the inbox and the effects.").required(),
    section("effect", "What is done for each message, in the transaction that remembers its id.")
        .required()
        .many(),
    section("watch", "Where probes and scrapers are answered."),
    section("retention", "For how long ids are remembered. Without it nothing is forgotten."),
];

const fn key(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key { name, kind, of: None, required: false, default: None, meaning }
}

impl Key {
    const fn of(self, section_type: &'static str) -> Self {
        Self { of: Some(section_type), ..self }
    }

    const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    const fn default(self, toml: &'static str) -> Self {
        Self { default: Some(toml), ..self }
    }

    /// Its section, empty for the top, and its own name.
    pub(crate) fn split(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }
}

use Kind::{
    Address, Codes, Columns, Count, Flag, Name, OneOf, Params, Pointer, Pointers, Rows, Scalars, Size, Text,
    Texts, Time, True,
};

/// The keys, in the order of the reference.
#[rustfmt::skip]
pub(crate) const KEYS: &[Key] = &[
    key("name", Name, "the consumer: the namespace of inbox ids; 1 to 64 of A-Z a-z 0-9 . _ -").required(),
    key("consumer.batch_max", Count(1), "most messages in one transaction").default("500"),
    key("consumer.batch_max_bytes", Size, "most bytes in one transaction; a larger message goes alone").default("\"4 MiB\""),
    key("consumer.batch_wait", Time, "how long a batch that is not full waits for more").default("\"5ms\""),
    key("consumer.concurrency", Count(1), "most transactions at a time in this process").default("1"),
    key("consumer.queue_max_bytes", Size, "most bytes queued in this process, librdkafka's included").default("\"16 MiB\""),
    key("consumer.max_message_bytes", Size, "a larger message becomes a dead letter with a prefix of its value").default("\"1 MiB\""),
    key("consumer.handler_timeout", Time, "longest time for the effects of one batch").default("\"30s\""),
    key("consumer.shutdown_timeout", Time, "how long a stop waits for what runs; below the 30 s that supervisors give").default("\"25s\""),
    key("consumer.order", OneOf(&["partition", "key", "none"]), "\"partition\": in order within a partition, but a parked message is applied later than those that follow it; \"key\": those of its key wait behind it; \"none\": a failing message lets the others pass").default("\"partition\""),
    key("consumer.on_failure", OneOf(&["park", "block"]), "a message that fails beyond its attempts in place: \"park\" keeps it for later and goes on; \"block\": its partition waits").default("\"park\""),
    key("consumer.parked_max", Count(1), "with so many parked messages nothing new is taken until some have come to their end").default("100000"),
    key("consumer.on_id_reuse", OneOf(&["dead_letter", "count"]), "an id that comes again with another body: \"dead_letter\" keeps it, \"count\" only counts it").default("\"dead_letter\""),
    key("consumer.version", Pointer, "of each key only what is newer is applied: a JSON pointer to a number or an RFC 3339 time in the body, such as \"/seq\"; see [versions](../guides/versions.md)"),
    key("consumer.version_key", Pointer, "of what it is a version: a JSON pointer such as \"/account\"; default: the record's key, together with the topic"),
    key("consumer.inbox", Flag, "false: ids are not remembered; only with `version` or `naturally_idempotent`").default("true"),
    key("consumer.naturally_idempotent", Flag, "true: the effects of a message may run again, also behind those of newer ones").default("false"),
    key("consumer.ignore_unmatched", Flag, "true: a message for which the condition of no effect holds is counted and passed over; false: it is a dead letter").default("false"),
    key("retry.max_attempts", Count(1), "all attempts of a message, the first included; then it is a dead letter").default("10"),
    key("retry.immediate", Count(1), "how many of them are made in place, one after the other, at most all; the others are made while it is parked").default("2"),
    key("retry.wait", Time, "wait between attempts in place; they hold the partition, so at most 1s").default("\"50ms\""),
    key("retry.backoff_base", Time, "longest wait before the first attempt of a parked message; it doubles with each, and the wait is drawn between nothing and it").default("\"1s\""),
    key("retry.backoff_cap", Time, "where it stops doubling").default("\"5m\""),
    key("retry.max_age", Time, "a parked message that fails after so long is a dead letter, whatever its attempts"),
    key("retry.max_crashes", Count(0), "processes that may die with a message alone in their hands (abort, OOM kill, stack overflow, SIGKILL); then it is a dead letter; 0: nobody counts, and it is tried for ever").default("3"),
    key("retry.on", Codes, "other numbers for a code: `retry.on.\"23503\".max_attempts = 20`, for what may arrive later; a SQLSTATE on Postgres, a number such as `retry.on.\"787\"` on SQLite"),
    key("source.type", OneOf(&["kafka", "file"]), "\"kafka\" or \"file\"").required(),
    key("source.brokers", Text, "bootstrap servers, separated by commas").of("kafka").required(),
    key("source.topics", Texts, "list of topics").of("kafka").required(),
    key("source.group", Text, "the consumer group").of("kafka").required(),
    key("source.commit_every", Time, "offsets follow the database by at most this; \"0s\": at once").of("kafka").default("\"200ms\""),
    key("source.revoke_timeout", Time, "how long a rebalance waits for what runs").of("kafka").default("\"5s\""),
    key("source.options", Scalars, "table of librdkafka options; those that would break the promise are refused").of("kafka"),
    key("source.path", Text, "JSON lines, or \"-\" for standard input").of("file").required(),
    key("source.state_dir", Text, "where the position is kept; default: beside the store's file").of("file"),
    key("dead_letter.topic", Text, "kafka: a topic of the same brokers that receives a copy of each dead letter, such as \"orders.dlq\"; see [dead letters](../guides/dead-letters.md)").required(),
    key("identity.header", Text, "the id is the value of this header"),
    key("identity.field", Pointer, "the id is this field of the body, a JSON pointer such as \"/id\""),
    key("identity.fields", Pointers, "the id is these fields joined, a list of JSON pointers"),
    key("identity.key", True, "true: the id is the record's key"),
    key("identity.cloudevents", True, "true: the id is `source` and `id` of the CloudEvent, whether its attributes are headers or fields of the body"),
    key("identity.long_ids", OneOf(&["refuse", "hash"]), "an id of more than 1,024 bytes: \"refuse\" makes a dead letter of its message, \"hash\" remembers its BLAKE3 instead").default("\"refuse\""),
    key("identity.digest", Pointers, "what must be equal where an id comes again, a list of JSON pointers; default: the whole body. For producers whose bodies change on resend"),
    key("store.type", OneOf(&["sqlite", "postgres"]), "\"sqlite\" or \"postgres\"").required(),
    key("store.path", Text, "the file; made when missing").of("sqlite").required(),
    key("store.url", Text, "connection string of `run`; needs no right to change tables").of("postgres").required(),
    key("store.migrate_url", Text, "connection string of `migrate`, where it is another role's").of("postgres"),
    key("store.schema", Text, "the schema of our tables").of("postgres").default("\"handstamp\""),
    key("store.setup", Text, "SQL file with your own tables; run once by migrate, refused when changed later"),
    key("store.lock_timeout", Time, "longest wait for another transaction's lock").default("\"5s\""),
    key("effect.sql", Text, "one statement; `:name` binds a field of the body").required(),
    key("effect.expect_rows", Rows, "how many rows it must change, or \"any\"; otherwise the message is a dead letter"),
    key("effect.optional", Texts, "parameters that may be missing from the body and are then NULL").default("[]"),
    key("effect.when", Text, "a condition on body, headers and topic; the effect runs for the messages that meet it"),
    key("effect.set", Flag, "true: the statement runs once a batch, over a relation `messages` with a row for each"),
    key("effect.columns", Columns, "set: the columns of `messages` beside the built-in ones, each with its type, such as columns.amount = \"numeric\""),
    key("effect.expect_rows_sql", Text, "set: a query over `messages` whose number is how many rows must change; default: one for each message"),
    key("effect.lock", Text, "set: a statement that runs before it, to lock rows in one order"),
    key("effect.params", Params, "parameters from elsewhere: params.city = \"/address/city\", or a table of `pointer` or `header`, `encoding = \"base64\"`, `as = \"text\"`"),
    key("watch.listen", Address, "where `/metrics`, `/healthz` and `/readyz` are answered, such as \"127.0.0.1:9464\"; see [watching](../guides/watching.md)").required(),
    key("retention.keep", Time, "for how long ids are kept; without it, for good; refused where a message can come again later; see [retention](../guides/retention.md)").required(),
    key("retention.accept_window", Time, "how long a message can come again where nobody knows: a file, a compacted topic, `retention.ms = -1`"),
];

/// The sections that know a key of this name, for advice about one that stands elsewhere.
pub(crate) fn sections_of(own_name: &str) -> Vec<&'static str> {
    let mut sections: Vec<&'static str> =
        KEYS.iter().map(Key::split).filter(|(_, own)| *own == own_name).map(|(section, _)| section).collect();
    sections.dedup();
    sections
}

/// A text in which a variable stands.
const VARIABLE: &str = r"\$\{";
/// A time: numbers with units, or nothing.
const TIME: &str = r"^\s*(0|([0-9]+(\.[0-9]+)?\s*[A-Za-zµ]+\s*)+)\s*$";
/// An IPv4 address, or an IPv6 one in brackets, with a port.
const ADDRESS: &str = r"^\s*([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}\s*$";
/// A number of bytes with or without a unit.
const SIZE: &str = r"^\s*[0-9]+\s*([bB]|[kKmMgG]([iI]?[bB])?)?\s*$";
/// Largest count and size that the file's reader takes.
const COUNT_MAX: u64 = 1_000_000;
const SIZE_MAX: u64 = 1 << 40;

/// The JSON Schema (draft 2020-12) of the file.
pub(crate) fn schema() -> Value {
    let mut top = object("", None);
    top["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    top["title"] = "A pipeline of Handstamp".into();
    top["description"] =
        "`handstamp run FILE` reads it; docs/reference/config.md describes every key.".into();
    for row in SECTIONS {
        let mut schema = match types_of(row.name) {
            types if types.is_empty() => object(row.name, None),
            types => by_type(row.name, &types),
        };
        rules_between_keys(row.name, &mut schema);
        let described = match row.many {
            true => json!({ "type": "array", "items": schema, "description": row.meaning }),
            false => {
                schema["description"] = row.meaning.into();
                schema
            }
        };
        top["properties"][row.name] = described;
        if row.required {
            push(&mut top["required"], row.name.into());
        }
    }
    top["if"] = json!({ "required": ["dead_letter"] });
    top["then"] =
        json!({ "properties": { "source": { "properties": { "type": { "not": { "const": "file" } } } } } });
    top
}

/// The values of `type` that a section's keys belong to.
fn types_of(section: &str) -> Vec<&'static str> {
    let mut types: Vec<_> =
        KEYS.iter().filter(|key| key.split().0 == section).filter_map(|key| key.of).collect();
    types.dedup();
    types
}

/// A section whose keys depend on its type. A type that a variable holds is known only when it runs.
fn by_type(section: &str, types: &[&'static str]) -> Value {
    let mut variants: Vec<Value> = types.iter().map(|of| object(section, Some(of))).collect();
    variants.push(json!({
        "title": "a type that a variable holds",
        "properties": { "type": { "type": "string", "pattern": VARIABLE } },
    }));
    json!({ "type": "object", "required": ["type"], "oneOf": variants })
}

/// A table with the keys of a section, or of one type of it, and no others.
fn object(section: &str, of: Option<&'static str>) -> Value {
    let mut schema =
        json!({ "type": "object", "additionalProperties": false, "properties": {}, "required": [] });
    if let Some(of) = of {
        schema["title"] = of.into();
    }
    let fits = |key: &&Key| key.split().0 == section && (key.of.is_none() || key.of == of);
    for key in KEYS.iter().filter(fits) {
        let (_, own) = key.split();
        let mut value = value_schema(key.kind);
        if let (Some(of), "type") = (of, own) {
            value = json!({ "const": of });
        }
        value["description"] = key.meaning.into();
        if let Some(default) = key.default.and_then(as_json) {
            value["default"] = default;
        }
        schema["properties"][own] = value;
        if key.required {
            push(&mut schema["required"], own.into());
        }
    }
    schema
}

/// What no key says alone.
fn rules_between_keys(section: &str, schema: &mut Value) {
    match section {
        "identity" => {
            let places = ["header", "field", "fields", "key", "cloudevents"];
            schema["oneOf"] = places.iter().map(|key| json!({ "required": [key] })).collect();
        }
        "consumer" => schema["dependentRequired"] = json!({ "version_key": ["version"] }),
        _ => {}
    }
}

fn push(list: &mut Value, item: Value) {
    if let Value::Array(list) = list {
        list.push(item);
    }
}

/// A default as JSON.
fn as_json(toml: &str) -> Option<Value> {
    // Such values are written alike in both.
    serde_json::from_str(toml).ok()
}

/// A text of this shape, or one with a variable in it.
fn text(pattern: &str) -> Value {
    json!({ "type": "string", "anyOf": [{ "pattern": pattern }, { "pattern": VARIABLE }] })
}

fn one_or_many(item: Value) -> Value {
    json!({ "anyOf": [item, { "type": "array", "items": item }] })
}

fn value_schema(kind: Kind) -> Value {
    let variable = json!({ "type": "string", "pattern": VARIABLE });
    let free = json!({ "type": "string", "minLength": 1 });
    let pointer = || text("^(/.*)?$");
    match kind {
        Name => text("^[A-Za-z0-9._-]{1,64}$"),
        Text => free,
        Texts => one_or_many(json!({ "type": "string" })),
        Pointer => pointer(),
        Pointers => one_or_many(pointer()),
        Time => text(TIME),
        Address => text(ADDRESS),
        Size => json!({ "anyOf": [{ "type": "integer", "minimum": 1, "maximum": SIZE_MAX }, text(SIZE)] }),
        Count(least) => {
            json!({ "anyOf": [{ "type": "integer", "minimum": least, "maximum": COUNT_MAX }, variable] })
        }
        Flag => json!({ "type": "boolean" }),
        True => json!({ "const": true }),
        OneOf(words) => json!({ "anyOf": [{ "enum": words }, variable] }),
        Scalars => json!({
            "type": "object",
            "additionalProperties": { "type": ["string", "number", "boolean"] },
        }),
        Codes => json!({
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": { "max_attempts": value_schema(Count(1)) },
                "additionalProperties": false,
            },
        }),
        Rows => json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "const": "any" }] }),
        Params => {
            json!({ "type": "object", "additionalProperties": { "anyOf": [pointer(), param(&[])] } })
        }
        Columns => {
            json!({ "type": "object", "additionalProperties": { "anyOf": [free, param(&["type"])] } })
        }
    }
}

/// From where a value is taken and how, as a table; with these keys of text besides, which must be there.
fn param(more: &[&str]) -> Value {
    let mut param = json!({
        "type": "object",
        "properties": {
            "pointer": text("^(/.*)?$"),
            "header": { "type": "string", "minLength": 1 },
            "encoding": value_schema(OneOf(&["base64"])),
            "as": value_schema(OneOf(&["text"])),
        },
        "not": { "required": ["pointer", "header"] },
        "additionalProperties": false,
        "required": more,
    });
    for key in more {
        param["properties"][*key] = json!({ "type": "string" });
    }
    param
}

/// The table of the reference page.
#[cfg(test)]
pub(crate) fn reference() -> String {
    let mut table = "| key | default | meaning |\n|---|---|---|\n".to_owned();
    for key in KEYS {
        let default = key.default.map_or("–".to_owned(), |default| format!("`{default}`"));
        let of = key.of.map_or(String::new(), |of| format!("{of}: "));
        table.push_str(&format!("| `{}` | {default} | {of}{} |\n", key.name, key.meaning));
    }
    table
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
