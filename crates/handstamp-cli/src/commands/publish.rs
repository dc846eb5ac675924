//! `publish`: something to consume, to Kafka or to a file.

use crate::cli::{PublishArgs, Sample};
use crate::config::{self, Config, SourceSection, Uses};
use crate::exit::{CliError, Exit};
use crate::output::table::grouped;
use crate::output::{self, json};
use crate::publish::lines::{LINE_BYTES_MAX, LineRule};
use crate::publish::sample::Credits;
use crate::publish::{header, record};
use bytes::Bytes;
use handstamp_core::json::Pointer;
use handstamp_core::{Header, Identity, MessageId, Record, Sink};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Records handed to the sink at a time.
const CHUNK: usize = 1000;
/// Bytes handed to the sink at a time; a larger record goes alone.
const CHUNK_BYTES: usize = 4 << 20;
/// Where samples and lines have their id unless told otherwise.
const ID_FIELD: &str = "event_id";
/// Most messages to make up: their times and their worth still fit into a number.
const SAMPLES_MAX: u64 = 1_000_000_000;
/// The time of a seeded sample's first id: 2026-01-01.
const SEEDED_FIRST_MS: u64 = 1_767_225_600_000;

/// Publishes.
///
/// # Errors
/// Wrong arguments, unreadable input, or what the broker or file answered.
pub(crate) fn publish(args: &PublishArgs) -> Result<Exit, CliError> {
    let runtime = super::runtime()?;
    let config = args.file.as_deref().map(|file| config::load(file, Uses::Source)).transpose()?;
    match (&config, &args.out) {
        (None, Some(out)) => runtime.block_on(to_file(args, None, out)),
        (Some(config), _) => match &config.source {
            SourceSection::File(file) => {
                let path = config.resolve(&file.path.value);
                if path == Path::new("-") {
                    return Err(CliError::usage(
                        "the pipeline reads standard input: there is no file to publish to",
                    )
                    .hint("name one with --out PATH"));
                }
                runtime.block_on(to_file(args, Some(config), &path))
            }
            #[cfg(feature = "kafka")]
            SourceSection::Kafka(section) => {
                runtime.block_on(crate::backend::kafka::publish(args, config, section))
            }
            #[cfg(not(feature = "kafka"))]
            SourceSection::Kafka(_) => Err(crate::backend::built_without("source", "kafka")),
        },
        (None, None) => Err(CliError::usage("name a pipeline's TOML file, or --out PATH")),
    }
}

#[cfg(feature = "file")]
async fn to_file(args: &PublishArgs, config: Option<&Config>, path: &Path) -> Result<Exit, CliError> {
    refuse_place(path)?;
    let sink = handstamp_sources::file::FileSink::new(path);
    let plan = Plan::new(args, config, &path.display().to_string(), None)?;
    plan.publish_all(&sink, false).await?.say(args)
}

/// A place that is wrong now is a mistake of the command line; what goes wrong later may be an outage.
#[cfg(feature = "file")]
fn refuse_place(path: &Path) -> Result<(), CliError> {
    use std::io::{Error, ErrorKind};
    let refused = |error: &Error| Err(CliError::io(Exit::Usage, "append to", path, error));
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    match std::fs::OpenOptions::new().append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => refused(&error),
        // It is made with the first record.
        Err(_) if folder.is_dir() && path.file_name().is_some() => Ok(()),
        Err(error) => refused(&error),
    }
}

#[cfg(not(feature = "file"))]
async fn to_file(_: &PublishArgs, _: Option<&Config>, _: &Path) -> Result<Exit, CliError> {
    Err(crate::backend::built_without("source", "file"))
}

/// What is published, and how.
pub(crate) struct Plan<'a> {
    args: &'a PublishArgs,
    rule: LineRule,
}

/// How much was published, and where to.
#[derive(Debug, Default)]
pub(crate) struct Published {
    to: Option<Arc<str>>,
    created_topic: bool,
    messages: u64,
    /// Of a sample that was published whole.
    sample: Option<Worth>,
}

/// What a sample is worth.
#[derive(Debug, Clone, Copy)]
struct Worth {
    duplicates: u64,
    amount: u64,
}

impl Published {
    /// Says it, and prints it for a program that asked.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn say(&self, args: &PublishArgs) -> Result<Exit, CliError> {
        output::say(&self.sentence());
        if args.json {
            output::print_json(&json::done(self.object()))?;
        }
        Ok(Exit::Ok)
    }

    fn sentence(&self) -> String {
        let messages = grouped(self.messages);
        let to = self.to.as_deref().unwrap_or_default();
        let Some(worth) = self.sample else { return format!("published {messages} messages to {to}") };
        let firsts = grouped(self.messages - worth.duplicates);
        format!(
            "published {messages} messages: {firsts} credits worth {} and {} duplicates of them to {to}",
            grouped(worth.amount),
            grouped(worth.duplicates)
        )
    }

    fn object(&self) -> Value {
        json!({
            "to": self.to.as_deref(),
            "created_topic": self.created_topic,
            "messages": self.messages,
            "duplicates": self.sample.map(|worth| worth.duplicates),
            "amount": self.sample.map(|worth| worth.amount),
        })
    }
}

/// What `--json` prints when nothing was published.
pub(crate) fn nothing() -> Value {
    Published::default().object()
}

impl<'a> Plan<'a> {
    /// Checks the arguments against the pipeline. `id_header` is where the sink can put an id.
    ///
    /// # Errors
    /// A pointer that is none.
    pub(crate) fn new(
        args: &'a PublishArgs,
        config: Option<&Config>,
        topic: &str,
        id_header: Option<String>,
    ) -> Result<Self, CliError> {
        let pointer = |flag: &str, text: &str| {
            if text.is_empty() {
                let why = "is empty; write a JSON pointer into the line, such as /account_id";
                return Err(CliError::usage(format!("--{flag}: {why}")));
            }
            Pointer::parse(text).map_err(|error| CliError::usage(format!("--{flag}: {error}")))
        };
        let id = match (&args.id_field, config.map(|config| &config.identity.identity)) {
            (Some(text), _) => pointer("id-field", text)?,
            (None, Some(Identity::Field(pointer))) => pointer.clone(),
            (None, Some(Identity::Header(name))) => Pointer::member(name),
            (None, Some(Identity::CloudEvents)) if args.sample.is_some() => {
                let why = "the pipeline reads CloudEvents, and the sample is none: publish events of your own by --input";
                return Err(CliError::usage(why));
            }
            (None, Some(Identity::CloudEvents)) => Pointer::member("id"),
            (None, _) => Pointer::member(ID_FIELD),
        };
        let key = match (&args.key_field, args.sample) {
            (Some(text), _) => Some(pointer("key-field", text)?),
            (None, Some(Sample::Credits)) => Some(Pointer::member("account_id")),
            (None, None) => None,
        };
        let allow_no_id = args.allow_no_id || id_header.is_none();
        if id_header.is_none() && !args.headers.is_empty() {
            return Err(CliError::usage("--header: a file of JSON lines has no headers"));
        }
        let headers = headers(&args.headers, id_header.as_deref())?;
        let topic = topic.into();
        Ok(Self { args, rule: LineRule { topic, id_header, id, key, headers, allow_no_id } })
    }

    /// Publishes everything; the first record that could not be is the error, which knows what was published
    /// before it.
    ///
    /// # Errors
    /// The input cannot be read, or the sink's answer.
    pub(crate) async fn publish_all(
        &self,
        sink: &impl Sink,
        created_topic: bool,
    ) -> Result<Published, CliError> {
        let to = Some(Arc::clone(&self.rule.topic));
        let mut published = Published { to, created_topic, ..Published::default() };
        let outcome = match &self.args.input {
            Some(path) => self.publish_lines(sink, path, &mut published).await,
            None => self.publish_sample(sink, &mut published).await,
        };
        match outcome {
            Ok(()) => Ok(published),
            Err(error) => Err(CliError { object: Some(Box::new(published.object())), ..error }),
        }
    }

    async fn publish_sample(&self, sink: &impl Sink, published: &mut Published) -> Result<(), CliError> {
        within_samples(self.args.count)?;
        let credits = credits(self.args);
        let mut chunk = Chunk::default();
        let topic: &Arc<str> = &self.rule.topic;
        for n in credits.order() {
            let credit = credits.credit(n);
            let id = MessageId::try_from(credit.id.to_string().as_str()).ok();
            let key = match &self.args.key_field {
                None => Some(Bytes::from(credit.account.to_string())),
                Some(_) => self.rule.record(1, credit.json().as_bytes())?.key,
            };
            chunk.add(record(topic, self.rule.headers(id.as_ref()), key, credit.json()));
            chunk.send_if_full(sink, published).await?;
        }
        chunk.send(sink, published).await?;
        let amount = (0..credits.count).map(|n| credits.credit(n).amount).sum();
        published.sample = Some(Worth { duplicates: credits.duplicate_count(), amount });
        Ok(())
    }

    async fn publish_lines(
        &self,
        sink: &impl Sink,
        path: &PathBuf,
        published: &mut Published,
    ) -> Result<(), CliError> {
        let read = |error: &std::io::Error| CliError::io(Exit::Usage, "read", path, error);
        let mut input: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(BufReader::new(std::fs::File::open(path).map_err(|error| read(&error))?))
        };
        let mut chunk = Chunk::default();
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let length =
                input.by_ref().take(limit).read_until(b'\n', &mut line).map_err(|error| read(&error))?;
            if length == 0 {
                break;
            }
            if length > LINE_BYTES_MAX {
                return Err(CliError::usage(format!("line {number} is longer than {LINE_BYTES_MAX} bytes")));
            }
            let body = line.strip_suffix(b"\n").unwrap_or(&line);
            // As a file source reads it: a byte order mark at the beginning is no part of the first line.
            let body = body.strip_prefix(b"\xEF\xBB\xBF").filter(|_| number == 1).unwrap_or(body);
            let body = body.strip_suffix(b"\r").unwrap_or(body);
            if body.is_empty() {
                continue;
            }
            chunk.add(self.rule.record(number, body)?);
            chunk.send_if_full(sink, published).await?;
        }
        chunk.send(sink, published).await
    }
}

/// Records on their way to the sink.
#[derive(Default)]
struct Chunk {
    records: Vec<Record>,
    bytes: usize,
}

impl Chunk {
    fn add(&mut self, record: Record) {
        self.bytes += record.size_bytes();
        self.records.push(record);
    }

    async fn send_if_full(&mut self, sink: &impl Sink, published: &mut Published) -> Result<(), CliError> {
        if self.records.len() < CHUNK && self.bytes < CHUNK_BYTES {
            return Ok(());
        }
        self.send(sink, published).await
    }

    async fn send(&mut self, sink: &impl Sink, published: &mut Published) -> Result<(), CliError> {
        let records = std::mem::take(&mut self.records);
        self.bytes = 0;
        for result in sink.publish(&records).await {
            if let Err(error) = result {
                let exit = if error.transient { Exit::Unreachable } else { Exit::Usage };
                let before = grouped(published.messages);
                return Err(CliError::new(exit, error.to_string())
                    .hint(format!("{before} messages were published before it")));
            }
            published.messages += 1;
        }
        Ok(())
    }
}

/// `NAME=VALUE`. A value may be a credential: no refusal repeats it.
fn headers(texts: &[String], id_header: Option<&str>) -> Result<Vec<Header>, CliError> {
    let refused = |number: usize, why: &str| CliError::usage(format!("--header number {number}: {why}"));
    let mut headers = Vec::with_capacity(texts.len());
    for (at, text) in texts.iter().enumerate() {
        let Some((name, value)) = text.split_once('=') else {
            return Err(refused(at + 1, "there is no = in it; write NAME=VALUE"));
        };
        if name.trim().is_empty() {
            return Err(refused(at + 1, "its name is empty; write NAME=VALUE"));
        }
        if id_header == Some(name) {
            let why = format!("{name} is where the message's id goes; two of them would make it unreadable");
            return Err(refused(at + 1, &why));
        }
        headers.push(header(name, value.as_bytes()));
    }
    Ok(headers)
}

fn within_samples(count: u64) -> Result<(), CliError> {
    if count > SAMPLES_MAX {
        return Err(CliError::usage(format!("--count: at most {SAMPLES_MAX}")));
    }
    Ok(())
}

fn credits(args: &PublishArgs) -> Credits {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(SEEDED_FIRST_MS);
    let (seed, first_ms) = match args.seed {
        Some(seed) => (seed, SEEDED_FIRST_MS),
        // Another process in the same millisecond must not make the same ids.
        None => (uuid::Uuid::new_v4().as_u64_pair().0, now_ms),
    };
    Credits { count: args.count, duplicates: args.duplicates, accounts: args.accounts, seed, first_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_samples_than_can_be_numbered_are_refused() {
        assert!(within_samples(SAMPLES_MAX).is_ok());
        for count in [SAMPLES_MAX + 1, u64::MAX] {
            let error = within_samples(count).unwrap_err().to_string();
            assert!(error.contains("--count: at most 1000000000"), "{error}");
        }
    }
}
