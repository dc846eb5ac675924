//! `[source]` → a source.

#[cfg(not(all(feature = "kafka", feature = "file")))]
use super::built_without;
use crate::config::{Config, SourceSection};
use crate::exit::CliError;
use handstamp_core::Source;

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
