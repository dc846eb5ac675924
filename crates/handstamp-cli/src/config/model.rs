//! The configuration as the program uses it: checked, with every default filled in.
//!
//! Authoritative: the TOML file. Paths in it belong to the folder of the file. Parts that the command does not
//! use (see `uses`) may hold the names of variables instead of their values.

use super::parse::Text;
use handstamp_core::{ConsumerName, ConsumerOptions, IdentityRule, Retention};
use handstamp_stores::effect::{CompiledEffect, EffectSpec};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A whole pipeline.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file as it was named on the command line.
    pub(crate) file: PathBuf,
    /// The consumer: the namespace of inbox ids.
    pub(crate) name: ConsumerName,
    /// The engine's settings.
    pub(crate) options: ConsumerOptions,
    /// A message that no effect wants is passed over instead of being a dead letter.
    pub(crate) ignore_unmatched: bool,
    /// Where messages come from.
    pub(crate) source: SourceSection,
    /// Where the producer put the ids, and what must be equal where one comes again.
    pub(crate) identity: IdentityRule,
    /// Where inbox, dead letters and effects live.
    pub(crate) store: StoreSection,
    /// A topic of the source's brokers that receives a copy of each dead letter.
    pub(crate) dead_letter: Option<Text>,
    /// For how long ids are kept; `None`: for good.
    pub(crate) retention: Option<Retention>,
    /// Where probes and scrapers are answered.
    pub(crate) watch: Option<SocketAddr>,
    /// What is done for each message, in order.
    pub(crate) effects: Vec<EffectSection>,
}

impl Config {
    /// Whether there may be messages that no effect wants: each effect has a condition.
    pub(crate) fn may_be_unmatched(&self) -> bool {
        !self.effects.is_empty() && self.effects.iter().all(|effect| effect.when.is_some())
    }

    /// A path of the file: relative ones belong to the folder of the file. `-` stays as it is.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        if path == "-" {
            return PathBuf::from(path);
        }
        match self.file.parent() {
            Some(folder) if folder != Path::new("") => folder.join(path),
            _ => PathBuf::from(path),
        }
    }
}

/// `[source]`.
#[derive(Debug)]
pub(crate) enum SourceSection {
    /// `type = "kafka"`.
    Kafka(KafkaSection),
    /// `type = "file"`.
    File(FileSection),
}

/// A Kafka consumer group.
#[derive(Debug)]
pub(crate) struct KafkaSection {
    /// Bootstrap servers, separated by commas.
    pub(crate) brokers: Text,
    /// Topics.
    pub(crate) topics: Vec<Text>,
    /// The consumer group.
    pub(crate) group: Text,
    /// Offsets follow the database by at most this.
    pub(crate) commit_every: Duration,
    /// How long a revoke waits for what runs.
    pub(crate) revoke_timeout: Duration,
    /// Options of librdkafka, by name.
    pub(crate) options: Vec<(String, Text)>,
}

/// A file of JSON lines.
#[derive(Debug)]
pub(crate) struct FileSection {
    /// The file, or `-`.
    pub(crate) path: Text,
    /// Where the position is kept; beside the store's file unless given.
    pub(crate) state_dir: Option<Text>,
}

/// `[store]`.
#[derive(Debug)]
pub(crate) enum StoreSection {
    /// `type = "sqlite"`.
    Sqlite(SqliteSection),
    /// `type = "postgres"`.
    Postgres(Box<PostgresSection>),
}

impl StoreSection {
    /// The user's own tables.
    pub(crate) fn setup(&self) -> Option<&Text> {
        match self {
            Self::Sqlite(sqlite) => sqlite.setup.as_ref(),
            Self::Postgres(postgres) => postgres.setup.as_ref(),
        }
    }
}

/// A SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteSection {
    /// The file.
    pub(crate) path: Text,
    /// The user's own tables.
    pub(crate) setup: Option<Text>,
    /// Longest wait for the write lock.
    pub(crate) lock_timeout: Duration,
}

/// A Postgres database.
#[derive(Debug)]
pub(crate) struct PostgresSection {
    /// Connection string of `run`.
    pub(crate) url: Text,
    /// Connection string of `migrate`, where it is another role's.
    pub(crate) migrate_url: Option<Text>,
    /// The schema of our tables.
    pub(crate) schema: Text,
    /// The user's own tables.
    pub(crate) setup: Option<Text>,
    /// Longest wait for a lock.
    pub(crate) lock_timeout: Duration,
}

/// `[[effect]]`.
#[derive(Debug)]
pub(crate) struct EffectSection {
    /// The statement as it may be shown.
    pub(crate) sql: Text,
    /// The condition as it may be shown.
    pub(crate) when: Option<Text>,
    /// The effect as declared.
    pub(crate) spec: EffectSpec,
    /// The effect after every check that needs no database.
    pub(crate) compiled: CompiledEffect,
    /// Where it is in the file.
    pub(crate) line: usize,
}
