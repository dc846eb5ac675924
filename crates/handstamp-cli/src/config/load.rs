//! Sections of the TOML file → the checked configuration.

use super::env::Lookup;
use super::model::{
    Config, FileSection, KafkaSection, PostgresSection, SourceSection, SqliteSection, StoreSection,
};
use super::parse::{Problem, Reading, Section, Text};
use super::uses::Uses;
use super::{codes, dead_letter, defaults, effects, identity, keys, versions};
use crate::exit::{CliError, Exit};
use handstamp_core::decide::Policy;
use handstamp_core::json::Pointer;
use handstamp_core::retry::{IN_PLACE_MAX, RetryPolicy};
use handstamp_core::{ConsumerName, ConsumerOptions, OnFailure, OnIdReuse, Order};
use std::path::Path;
use toml_edit::{Document, TableLike};

/// The page that describes the keys.
const PAGE: &str = "docs/reference/config.md";

/// Reads and checks a pipeline for a command that uses these parts of it.
///
/// # Errors
/// Every problem with its line, as one usage error.
pub(crate) fn load(file: &Path, uses: Uses) -> Result<Config, CliError> {
    let bytes = std::fs::read(file).map_err(|error| CliError::io(Exit::Usage, "read", file, &error))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| CliError::usage(format!("{}: the file is not UTF-8 text", file.display())))?;
    // A byte order mark is not part of TOML, but editors write it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lookup = |name: &str| std::env::var(name);
    parse(file, text, uses, &lookup).map_err(|problems| problems_error(file, &problems, PAGE))
}

/// Every problem with its line; `page` describes the keys.
pub(super) fn problems_error(file: &Path, problems: &[Problem], page: &str) -> CliError {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| format!("{}:{}: {}", file.display(), problem.line, problem.message))
        .collect();
    let (first, rest) =
        lines.split_first().map_or((String::new(), &[][..]), |(first, rest)| (first.clone(), rest));
    let mut error = CliError::usage(first);
    error.also(rest);
    error.hint(format!("every key is described in {page}"))
}

/// The file as TOML.
pub(super) fn top_of<'t>(text: &'t str, reading: &Reading<'_>) -> Result<Document<&'t str>, Problem> {
    Document::parse(text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        Problem { line: reading.line_of(error.span()), message: format!("this is no TOML: {message}") }
    })
}

/// The same without a file system and an environment of its own.
pub(crate) fn parse(file: &Path, text: &str, uses: Uses, lookup: Lookup<'_>) -> Result<Config, Vec<Problem>> {
    let mut reading = Reading::new(text, lookup);
    reading.sections_of = keys::sections_of;
    let document = top_of(text, &reading).map_err(|problem| vec![problem])?;
    let mut top = reading.section("", document.as_table() as &dyn TableLike, 1);
    top.lenient = !uses.consumer();
    let name = consumer_name(&top);
    let (mut options, ignore_unmatched) = options(&top);
    top.lenient = !uses.retry();
    let codes = retry(&top, &mut options.policy.retry);
    top.lenient = !uses.messages();
    let effects = effects::read(&top);
    let copies = dead_letter::read(&top);
    let retention = super::retention::read(&top);
    let watch = super::watch::read(&top);
    top.lenient = !uses.source();
    let source = required_section(&top, "source").and_then(source);
    top.lenient = !uses.identity();
    let identity = required_section(&top, "identity").and_then(identity::read);
    top.lenient = !uses.store();
    let store = required_section(&top, "store").and_then(|section| store(section, uses));
    for (code, line) in codes {
        let problem = store.as_ref().and_then(|store| codes::problem(&code, store));
        problem.into_iter().for_each(|what| top.problem(line, &format!("retry.on.{code}"), what));
    }
    if let (Some(source), Some(identity)) = (&source, &identity) {
        identity::refuse_without_place(&top, source, identity);
        versions::refuse_without_key(&top, source, &options);
    }
    if let (Some(source), Some(topic)) = (&source, &copies) {
        dead_letter::refuse(&top, source, topic);
    }
    top.finish();
    let problems = reading.into_problems();
    match (name, source, identity, store) {
        (Some(name), Some(source), Some(identity), Some(store)) if problems.is_empty() => Ok(Config {
            file: file.to_owned(),
            name,
            options,
            ignore_unmatched,
            source,
            identity,
            store,
            dead_letter: copies,
            retention,
            watch,
            effects,
        }),
        // No refusal without a word.
        _ if problems.is_empty() => {
            Err(vec![Problem { line: 1, message: "this is no complete pipeline".to_owned() }])
        }
        _ => Err(problems),
    }
}

/// A pipeline of a test, without variables.
#[cfg(test)]
pub(crate) fn parsed(file: &Path, text: &str) -> Config {
    let lookup = |_: &str| Err(std::env::VarError::NotPresent);
    parse(file, text, Uses::PipelineAndMigration, &lookup).expect("a pipeline")
}

fn required_section<'r, 'a>(top: &Section<'r, 'a>, key: &str) -> Option<Section<'r, 'a>> {
    if !top.has(key) {
        top.problem(1, key, format_args!("the section [{key}] is missing"));
    }
    top.section(key)
}

fn consumer_name(top: &Section<'_, '_>) -> Option<ConsumerName> {
    let text = top.required_text("name", "\"wallet\"")?;
    if !text.is_known() {
        return ConsumerName::new("unknown").ok();
    }
    ConsumerName::new(&text.value).map_err(|error| top.problem(text.line, "name", error)).ok()
}

/// The engine's settings, and whether what no effect wants is passed over.
fn options(top: &Section<'_, '_>) -> (ConsumerOptions, bool) {
    let mut options = ConsumerOptions::default();
    let mut ignore_unmatched = false;
    let mut policy = Policy::default();
    if let Some(section) = top.section("consumer") {
        set(&mut options.batch_max, section.count("batch_max"));
        set(&mut options.batch_max_bytes, section.size("batch_max_bytes"));
        set(&mut options.batch_wait, section.duration("batch_wait"));
        set(&mut options.concurrency, section.count("concurrency"));
        set(&mut options.queue_max_bytes, section.size("queue_max_bytes"));
        set(&mut options.message_max_bytes, section.size("max_message_bytes"));
        set(&mut options.handler_timeout, section.duration("handler_timeout"));
        set(&mut options.shutdown_timeout, section.duration("shutdown_timeout"));
        set(
            &mut options.order,
            section.one_of(
                "order",
                &[("partition", Order::Partition), ("key", Order::Key), ("none", Order::None)],
            ),
        );
        set(
            &mut policy.on_failure,
            section.one_of("on_failure", &[("park", OnFailure::Park), ("block", OnFailure::Block)]),
        );
        if let Some(parked_max) = section.count("parked_max") {
            options.parked_max = u64::try_from(parked_max).unwrap_or(u64::MAX);
        }
        set(
            &mut policy.on_id_reuse,
            section.one_of(
                "on_id_reuse",
                &[("dead_letter", OnIdReuse::DeadLetter), ("count", OnIdReuse::Count)],
            ),
        );
        set(&mut ignore_unmatched, section.flag("ignore_unmatched"));
        versions::read(&section, &mut options);
        if options.queue_max_bytes < options.message_max_bytes {
            let (_, line) = section.item("queue_max_bytes").unzip();
            let line = line.unwrap_or(section.line);
            section.problem(line, "queue_max_bytes", "must be at least max_message_bytes");
        }
        section.finish();
    }
    options.policy = policy;
    (options, ignore_unmatched)
}

/// Reads `[retry]`; answers the codes that have numbers of their own, with their lines.
fn retry(top: &Section<'_, '_>, policy: &mut RetryPolicy) -> Vec<(String, usize)> {
    let Some(section) = top.section("retry") else { return Vec::new() };
    let line_of = |key: &str| section.item(key).map_or(section.line, |(_, line)| line);
    set(&mut policy.max_attempts, attempts(&section, "max_attempts"));
    set(&mut policy.immediate, attempts(&section, "immediate"));
    // The default is cut to a smaller number of attempts by itself.
    if section.has("immediate") && policy.immediate > policy.max_attempts {
        let why = format!(
            "more than max_attempts, which is {}: those in place are among them",
            policy.max_attempts
        );
        section.problem(line_of("immediate"), "immediate", why);
    }
    if let Some(wait) = section.duration("wait") {
        if wait > IN_PLACE_MAX {
            let why = "at most \"1s\": it is waited in place and holds the partition; the waits behind it are \
                       `backoff_base` and `backoff_cap`";
            section.problem(line_of("wait"), "wait", why);
        }
        policy.wait = wait;
    }
    set(&mut policy.backoff.base, section.duration("backoff_base"));
    set(&mut policy.backoff.cap, section.duration("backoff_cap"));
    if policy.backoff.base > policy.backoff.cap {
        let key = if section.has("backoff_base") { "backoff_base" } else { "backoff_cap" };
        section.problem(line_of(key), key, "backoff_base is the first wait, and backoff_cap the longest");
    }
    policy.max_age = section.duration("max_age").or(policy.max_age);
    let max_crashes = section.count_or_none("max_crashes");
    set(&mut policy.max_crashes, max_crashes.map(|most| u32::try_from(most).unwrap_or(u32::MAX)));
    let mut named = Vec::new();
    if let Some(codes) = section.section("on") {
        for (code, line) in codes.keys() {
            let Some(rule) = codes.section(&code) else { continue };
            named.push((code.clone(), line));
            if rule.keys().is_empty() {
                codes.problem(
                    line,
                    &code,
                    "says nothing; write for example `max_attempts = 20`, or remove it",
                );
            }
            let own = attempts(&rule, "max_attempts");
            policy.max_attempts_by_code.extend(own.map(|own| (code, own)));
            rule.finish();
        }
    }
    section.finish();
    named
}

fn attempts(section: &Section<'_, '_>, key: &str) -> Option<u32> {
    section.count(key).map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX))
}

/// A text that means nothing when it is empty, as a variable without a value leaves it.
pub(super) fn optional(section: &Section<'_, '_>, key: &str) -> Option<Text> {
    filled(section, key, section.text(key)?)
}

/// The same of a key that must be there.
fn required(section: &Section<'_, '_>, key: &str, example: &str) -> Option<Text> {
    filled(section, key, section.required_text(key, example)?)
}

fn filled(section: &Section<'_, '_>, key: &str, text: Text) -> Option<Text> {
    if text.value.is_empty() {
        section.problem(
            text.line,
            key,
            "is empty; give it a value, or leave the key out where it is optional",
        );
        return None;
    }
    Some(text)
}

/// SQLite has two ways to say something else than a file; neither is meant here.
fn is_file(section: &Section<'_, '_>, path: &Text) -> bool {
    let why = match path.value.as_str() {
        ":memory:" => "a database in memory forgets every id; name a file",
        uri if uri.starts_with("file:") => {
            "URIs are not read; write the path of a file, without `file:` and options"
        }
        _ => return true,
    };
    section.problem(path.line, "path", why);
    false
}

pub(super) fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

#[derive(Clone, Copy)]
enum SourceType {
    Kafka,
    File,
}

/// What a section is, which decides how it is read: also in a part that is not used.
fn kind<T: Copy>(section: &mut Section<'_, '_>, example: &str, choices: &[(&str, T)]) -> Option<T> {
    let lenient = std::mem::replace(&mut section.lenient, false);
    let kind = section.required_text("type", example).and_then(|_| section.one_of("type", choices));
    section.lenient = lenient;
    kind
}

fn source(mut section: Section<'_, '_>) -> Option<SourceSection> {
    let choices = [("kafka", SourceType::Kafka), ("file", SourceType::File)];
    let source = match kind(&mut section, "\"kafka\"", &choices)? {
        SourceType::Kafka => kafka(&section).map(SourceSection::Kafka),
        SourceType::File => file(&section).map(SourceSection::File),
    };
    section.finish();
    source
}

fn kafka(section: &Section<'_, '_>) -> Option<KafkaSection> {
    let brokers = required(section, "brokers", "\"127.0.0.1:9092\"");
    let topics = match section.has("topics") {
        true => section.texts("topics"),
        false => required(section, "topics", "[\"credits\"]").map(|topic| vec![topic]),
    };
    if topics.as_ref().is_some_and(Vec::is_empty) {
        section.problem(section.line, "topics", "names no topic");
    }
    let group = required(section, "group", "\"wallet\"");
    let commit_every = section.duration("commit_every").unwrap_or(defaults::COMMIT_EVERY);
    let revoke_timeout = section.duration("revoke_timeout").unwrap_or(defaults::REVOKE_TIMEOUT);
    let mut options = section.scalars("options");
    for (key, value) in &mut options {
        value.keep_secret();
        if handstamp_core::secret::is_secret(key) {
            value.mark_secret();
        }
    }
    Some(KafkaSection {
        brokers: brokers?,
        topics: topics?,
        group: group?,
        commit_every,
        revoke_timeout,
        options,
    })
}

fn file(section: &Section<'_, '_>) -> Option<FileSection> {
    let path = required(section, "path", "\"credits.jsonl\"");
    let state_dir = optional(section, "state_dir");
    Some(FileSection { path: path?, state_dir })
}

#[derive(Clone, Copy)]
enum StoreType {
    Sqlite,
    Postgres,
}

fn store(mut section: Section<'_, '_>, uses: Uses) -> Option<StoreSection> {
    let choices = [("sqlite", StoreType::Sqlite), ("postgres", StoreType::Postgres)];
    let store = match kind(&mut section, "\"sqlite\"", &choices)? {
        StoreType::Sqlite => {
            let path = required(&section, "path", "\"wallet.db\"").filter(|path| is_file(&section, path));
            let setup = setup(&mut section, uses);
            let lock_timeout = section.duration("lock_timeout").unwrap_or(defaults::LOCK_TIMEOUT);
            path.map(|path| StoreSection::Sqlite(SqliteSection { path, setup, lock_timeout }))
        }
        StoreType::Postgres => {
            postgres(&mut section, uses).map(|postgres| StoreSection::Postgres(Box::new(postgres)))
        }
    };
    section.finish();
    store
}

fn setup(section: &mut Section<'_, '_>, uses: Uses) -> Option<Text> {
    let lenient = std::mem::replace(&mut section.lenient, !uses.setup());
    let setup = optional(section, "setup");
    section.lenient = lenient;
    setup
}

fn postgres(section: &mut Section<'_, '_>, uses: Uses) -> Option<PostgresSection> {
    let lenient = section.lenient;
    section.lenient = !uses.url(section.has("migrate_url"));
    let mut url = required(section, "url", "\"${DATABASE_URL}\"");
    section.lenient = !uses.migrate_url();
    let mut migrate_url = optional(section, "migrate_url");
    section.lenient = lenient;
    for text in url.iter_mut().chain(&mut migrate_url) {
        text.keep_secret();
        text.mark_secret();
    }
    let schema = optional(section, "schema").unwrap_or_else(|| Text::fixed(defaults::SCHEMA));
    let setup = setup(section, uses);
    let lock_timeout = section.duration("lock_timeout").unwrap_or(defaults::LOCK_TIMEOUT);
    Some(PostgresSection { url: url?, migrate_url, schema, setup, lock_timeout })
}

pub(super) fn pointer(section: &Section<'_, '_>, line: usize, key: &str, text: &Text) -> Option<Pointer> {
    if !text.is_known() {
        return Some(Pointer::member(&text.value));
    }
    match Pointer::parse(&text.value) {
        Ok(pointer) => Some(pointer),
        Err(error) => {
            section.problem(line, key, error);
            None
        }
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
