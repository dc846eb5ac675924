//! `[source]` → a source.

use super::Backend;
#[cfg(not(all(feature = "kafka", feature = "file")))]
use super::built_without;
#[cfg(feature = "file")]
use super::{Operations, Registered};
use crate::config::{Config, SourceSection};
use crate::exit::CliError;
use crate::findings::Findings;
use handstamp_core::{Consumer, Source, StartStore, StoreError, StoreErrorKind};
#[cfg(feature = "file")]
use handstamp_core::{Message, MessageId, Record, Route, VersionGuard};
#[cfg(feature = "file")]
use handstamp_stores::effect::Routing;
#[cfg(feature = "file")]
use handstamp_stores::rows::DeadLetterKey;
use std::time::Duration;

/// The source of a pipeline; what is wrong with it says [`look`].
///
/// # Errors
/// A type that was not built in.
pub(crate) fn source(
    config: &Config,
    fail_fast: bool,
    until_idle: Option<Duration>,
) -> Result<Box<dyn Source>, CliError> {
    let _ = (fail_fast, until_idle);
    match &config.source {
        #[cfg(feature = "file")]
        SourceSection::File(section) => {
            Ok(Box::new(handstamp_sources::file::FileSource::new(file_options(config, section))))
        }
        #[cfg(not(feature = "file"))]
        SourceSection::File(_) => Err(built_without("source", "file")),
        #[cfg(feature = "kafka")]
        SourceSection::Kafka(section) => Ok(super::kafka::source(section, fail_fast, until_idle)),
        #[cfg(not(feature = "kafka"))]
        SourceSection::Kafka(_) => Err(built_without("source", "kafka")),
    }
}

/// The same consumer with copies of its dead letters where the pipeline wants them.
///
/// # Errors
/// Options that a producer cannot have.
#[cfg(feature = "kafka")]
pub(crate) fn copying<S: StartStore>(
    consumer: Consumer<S>,
    config: &Config,
) -> Result<Consumer<S>, CliError> {
    match (&config.source, &config.dead_letter) {
        (SourceSection::Kafka(section), Some(topic)) => {
            let sink = super::kafka::copies(section)?;
            super::kafka::look_for_copies(&sink, &topic.value);
            Ok(consumer.dead_letters_to(sink, &topic.value))
        }
        _ => Ok(consumer),
    }
}

/// Only Kafka takes copies.
///
/// # Errors
/// None.
#[cfg(not(feature = "kafka"))]
pub(crate) fn copying<S: StartStore>(consumer: Consumer<S>, _: &Config) -> Result<Consumer<S>, CliError> {
    Ok(consumer)
}

/// What can be said of `[source]` without starting it. `run` and `publish` refuse what `check` finds.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// It is as it should be.
    pub(crate) ok: Option<String>,
    /// It may bite later; what to do is said with it.
    pub(crate) warnings: Vec<(String, &'static str)>,
    /// It would not work.
    pub(crate) errors: Vec<CliError>,
}

impl Look {
    /// For `run`: all errors as one.
    ///
    /// # Errors
    /// The errors.
    pub(crate) fn refuse(self) -> Result<(), CliError> {
        let mut errors = self.errors.into_iter();
        let Some(mut first) = errors.next() else { return Ok(()) };
        first.also(&errors.map(|error| error.message).collect::<Vec<_>>());
        Err(first)
    }

    /// For `check`: everything. True when a source could start.
    pub(crate) fn into_findings(self, findings: &mut Findings) -> bool {
        let starts = self.errors.is_empty();
        for error in &self.errors {
            findings.fail_error(error, "correct [source]");
        }
        for (what, todo) in self.warnings {
            findings.warn(what, todo);
        }
        if let Some(what) = self.ok {
            findings.ok(what);
        }
        starts
    }
}

/// Looks at `[source]`; asks no broker and reads no message.
pub(crate) fn look(config: &Config) -> Look {
    match &config.source {
        #[cfg(feature = "file")]
        SourceSection::File(section) => {
            let options = file_options(config, section);
            match options.look() {
                Ok(warnings) => Look {
                    ok: Some(format!("source: {} can be read", options.path.display())),
                    warnings: warnings
                        .into_iter()
                        .map(|what| (format!("source: {what}"), FILE_TODO))
                        .collect(),
                    ..Look::default()
                },
                Err(error) => Look { errors: vec![error.into()], ..Look::default() },
            }
        }
        #[cfg(not(feature = "file"))]
        SourceSection::File(_) => Look { errors: vec![built_without("source", "file")], ..Look::default() },
        #[cfg(feature = "kafka")]
        SourceSection::Kafka(section) => super::kafka::look(section),
        #[cfg(not(feature = "kafka"))]
        SourceSection::Kafka(_) => Look { errors: vec![built_without("source", "kafka")], ..Look::default() },
    }
}

/// What to do about a position that is not kept, or not ours alone.
#[cfg(feature = "file")]
const FILE_TODO: &str =
    "let one process at a time read it, and name a folder that it may write as `state_dir`";

/// Discards the position of a file unless the store knows the last lines that were read: it may be from
/// another database, or from a later state of this one.
///
/// # Errors
/// A store that is away may be asked again; whatever else goes wrong ends in reading from the beginning.
#[cfg(feature = "file")]
pub(crate) async fn check_position<B: Backend>(backend: &B, config: &Config) -> Result<(), StoreError> {
    let SourceSection::File(section) = &config.source else { return Ok(()) };
    let Some(why) = strange_position(backend, config).await? else { return Ok(()) };
    let options = file_options(config, section);
    let file = options.path.display();
    options.discard_position().map_err(|error| {
        let position = options.position_path().unwrap_or_default();
        let todo = format!("{why}, and {} cannot be removed: {error}; remove it", position.display());
        StoreError::new(StoreErrorKind::Config, todo)
    })?;
    let options = &config.options;
    let again = match options.inbox || options.version.is_some() {
        true => "what is known is skipped",
        false => "its effects run again",
    };
    tracing::warn!(%file, "{why}: reading the file from its beginning; {again}");
    Ok(())
}

/// Why the position of a file is not the store's, if it is not; nothing is changed.
///
/// # Errors
/// A store that is away.
#[cfg(feature = "file")]
pub(crate) async fn strange_position<B: Backend>(
    backend: &B,
    config: &Config,
) -> Result<Option<String>, StoreError> {
    let SourceSection::File(section) = &config.source else { return Ok(None) };
    let lines = file_options(config, section).last_settled_lines(config.options.message_max_bytes);
    Ok(match lines {
        Ok(lines) => match first_unknown(backend, config, lines).await {
            Ok(None) => None,
            Ok(Some(offset)) => {
                Some(format!("the store does not know the line at byte {offset}, which was read before"))
            }
            Err(error) if is_away(&error) => return Err(error),
            Err(error) => {
                Some(format!("the store could not be asked for the last line that was read ({error})"))
            }
        },
        Err(error) => Some(format!("the last line that was read cannot be read again ({error})")),
    })
}

/// Ids of older lines may be forgotten: only the newest one says something.
#[cfg(feature = "file")]
fn newest_if_forgetting(
    config: &Config,
    mut lines: Vec<handstamp_sources::file::SettledLine>,
) -> Vec<handstamp_sources::file::SettledLine> {
    if config.retention.is_some() {
        lines.drain(..lines.len().saturating_sub(1));
    }
    lines
}

/// Whether the last line was read so long ago that its id is forgotten, as `[retention]` says it may be.
#[cfg(feature = "file")]
fn is_forgotten(config: &Config) -> bool {
    let (Some(retention), SourceSection::File(section)) = (&config.retention, &config.source) else {
        return false;
    };
    let written =
        file_options(config, section).position_path().and_then(|path| path.metadata().ok()?.modified().ok());
    let age = written.and_then(|written| written.elapsed().ok());
    age.is_some_and(|age| age >= retention.keep)
}

/// Where the first line lies that the store does not know.
#[cfg(feature = "file")]
async fn first_unknown<B: Backend>(
    backend: &B,
    config: &Config,
    lines: Vec<handstamp_sources::file::SettledLine>,
) -> Result<Option<i64>, StoreError> {
    let before = lines.first().map(|line| line.record.origin.offset);
    let lines: Vec<_> = lines.into_iter().filter(|line| !is_passed_over(config, line)).collect();
    if lines.is_empty() {
        return Ok(before);
    }
    let lines = newest_if_forgetting(config, lines);
    let mut lines: Vec<_> =
        lines.iter().map(|line| (config.identity.message_id(&line.record).ok(), line)).collect();
    // A dead letter without an id is found by how the path was written: ids say it better, if there are any.
    if lines.iter().any(|(id, _)| id.is_some()) {
        lines.retain(|(id, _)| id.is_some());
    }
    let store = backend.existing(config).await?;
    for (id, line) in lines {
        let letter = DeadLetterKey(line.dead_letter_key(id.clone()));
        let known = match (config.options.inbox, &config.options.version) {
            (false, guard) => {
                let mark = marks(&*store, config, guard.as_ref(), id, &line.record).await?;
                mark || store.letter(&config.name, letter).await?.is_some()
            }
            (true, _) => store.knows(&config.name, id.as_ref(), letter).await?,
        };
        // A name that nobody has used here is that of an empty store, which forgot nothing.
        let forgotten = !known && is_forgotten(config) && store.is_registered(&config.name).await?;
        if !known && !forgotten {
            return Ok(Some(line.record.origin.offset));
        }
    }
    Ok(None)
}

/// Whether no effect wants a line, so that nothing remembers it.
#[cfg(feature = "file")]
fn is_passed_over(config: &Config, line: &handstamp_sources::file::SettledLine) -> bool {
    if !config.ignore_unmatched || line.truncation.is_some() {
        return false;
    }
    let Ok(id) = config.identity.message_id(&line.record) else { return false };
    let compiled: Vec<_> = config.effects.iter().map(|effect| effect.compiled.clone()).collect();
    let routing = Routing::of(&compiled).ignoring_unmatched(true);
    matches!(routing.route(&Message::new(id, line.record.clone())), Route::PassOver)
}

/// Without an inbox: whether the store's mark says that a line was applied, or is stale.
#[cfg(feature = "file")]
async fn marks<S: Operations>(
    store: &S,
    config: &Config,
    guard: Option<&VersionGuard>,
    id: Option<MessageId>,
    record: &Record,
) -> Result<bool, StoreError> {
    let (Some(guard), Some(id)) = (guard, id) else { return Ok(false) };
    let Ok(found) = guard.find(&Message::new(id, record.clone())) else { return Ok(false) };
    let mark = store.mark(&config.name, &found.key).await?;
    Ok(mark.is_some_and(|mark| found.version <= mark))
}

/// Only a file has a position beside the store.
///
/// # Errors
/// None.
#[cfg(not(feature = "file"))]
pub(crate) async fn check_position<B: Backend>(_: &B, _: &Config) -> Result<(), StoreError> {
    Ok(())
}

/// The same for positions: a broker keeps them.
///
/// # Errors
/// None.
#[cfg(not(feature = "file"))]
pub(crate) async fn strange_position<B: Backend>(_: &B, _: &Config) -> Result<Option<String>, StoreError> {
    Ok(None)
}

/// Whether the store may answer later.
pub(crate) fn is_away(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::Timeout)
}

/// The options of a file source. Its position lies beside the store's file, or else beside the pipeline.
#[cfg(feature = "file")]
pub(crate) fn file_options(
    config: &Config,
    section: &crate::config::FileSection,
) -> handstamp_sources::file::FileOptions {
    use crate::config::StoreSection;
    let path = config.resolve(&section.path.value);
    let state_dir = match (&section.state_dir, &config.store) {
        (Some(state_dir), _) => config.resolve(&state_dir.value),
        (None, StoreSection::Sqlite(sqlite)) => folder_of(&config.resolve(&sqlite.path.value)),
        (None, StoreSection::Postgres(_)) => folder_of(&config.file),
    };
    handstamp_sources::file::FileOptions::new(path, config.name.clone()).with_state_dir(state_dir)
}

#[cfg(feature = "file")]
fn folder_of(file: &std::path::Path) -> std::path::PathBuf {
    match file.parent() {
        Some(folder) if folder != std::path::Path::new("") => folder.to_owned(),
        _ => std::path::PathBuf::from("."),
    }
}
