//! What is typed before the first message: a starter pipeline, help for shells and editors.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The folder; made when missing.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Where messages come from.
    #[arg(long, value_enum, default_value_t = InitSource::File)]
    pub(crate) source: InitSource,
    /// Where inbox and effects live.
    #[arg(long, value_enum, default_value_t = InitStore::Sqlite)]
    pub(crate) store: InitStore,
}

/// A source to start with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InitSource {
    /// A file of JSON lines; a sample is written.
    File,
    /// A Kafka topic.
    Kafka,
}

/// A store to start with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InitStore {
    /// A file; nothing to install.
    Sqlite,
    /// A Postgres database.
    Postgres,
}

/// `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this folder, which is made when missing; otherwise the first page is
    /// printed.
    pub(crate) dir: Option<PathBuf>,
}
