//! `[source]` → a source.

use super::Backend;
#[cfg(not(all(feature = "kafka", feature = "file")))]
use super::built_without;
use crate::config::{Config, SourceSection};
use crate::exit::CliError;
use handstamp_core::{Source, StoreError, StoreErrorKind};
#[cfg(feature = "file")]
use handstamp_stores::rows::DeadLetterKey;

/// The source of a pipeline.
///
/// # Errors
/// The section asks for what cannot be, or for a type that was not built in.
pub(crate) fn source(config: &Config, fail_fast: bool) -> Result<Box<dyn Source>, CliError> {
    match &config.source {
        #[cfg(feature = "file")]
        SourceSection::File(section) => {
            let _ = fail_fast;
            Ok(Box::new(handstamp_sources::file::FileSource::new(file_options(config, section))))
        }
        #[cfg(not(feature = "file"))]
        SourceSection::File(_) => Err(built_without("source", "file")),
        #[cfg(feature = "kafka")]
        SourceSection::Kafka(section) => super::kafka::source(section, fail_fast),
        #[cfg(not(feature = "kafka"))]
        SourceSection::Kafka(_) => Err(built_without("source", "kafka")),
    }
}

/// Discards the position of a file unless the store knows the last lines that were read: it may be from
/// another database, or from a later state of this one.
///
/// # Errors
/// A store that is away may be asked again; whatever else goes wrong ends in reading from the beginning.
#[cfg(feature = "file")]
pub(crate) async fn check_position<B: Backend>(
    backend: &B,
    store: &B::Store,
    config: &Config,
) -> Result<(), StoreError> {
    let SourceSection::File(section) = &config.source else { return Ok(()) };
    let options = file_options(config, section);
    let lines = options.last_settled_lines(config.options.message_max_bytes);
    let why = match lines {
        Ok(lines) => match first_unknown(backend, store, config, lines).await {
            Ok(None) => return Ok(()),
            Ok(Some(offset)) => {
                format!("the store does not know the line at byte {offset}, which was read before")
            }
            Err(error) if is_away(&error) => return Err(error),
            Err(error) => format!("the store could not be asked for the last line that was read ({error})"),
        },
        Err(error) => format!("the last line that was read cannot be read again ({error})"),
    };
    let file = options.path.display();
    options.discard_position().map_err(|error| {
        let position = options.position_path().unwrap_or_default();
        let todo = format!("{why}, and {} cannot be removed: {error}; remove it", position.display());
        StoreError::new(StoreErrorKind::Config, todo)
    })?;
    tracing::warn!(%file, "{why}: reading the file from its beginning; what is known is skipped");
    Ok(())
}

/// Where the first line lies that the store does not know.
#[cfg(feature = "file")]
async fn first_unknown<B: Backend>(
    backend: &B,
    store: &B::Store,
    config: &Config,
    lines: Vec<handstamp_sources::file::SettledLine>,
) -> Result<Option<i64>, StoreError> {
    let mut lines: Vec<_> =
        lines.iter().map(|line| (config.identity.message_id(&line.record).ok(), line)).collect();
    // A dead letter without an id is found by how the path was written: ids say it better, if there are any.
    if lines.iter().any(|(id, _)| id.is_some()) {
        lines.retain(|(id, _)| id.is_some());
    }
    for (id, line) in lines {
        let letter = DeadLetterKey(line.dead_letter_key(id.clone()));
        if !backend.knows(store, config, id.as_ref(), letter).await? {
            return Ok(Some(line.record.origin.offset));
        }
    }
    Ok(None)
}

/// Only a file has a position beside the store.
///
/// # Errors
/// None.
#[cfg(not(feature = "file"))]
pub(crate) async fn check_position<B: Backend>(_: &B, _: &B::Store, _: &Config) -> Result<(), StoreError> {
    Ok(())
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
