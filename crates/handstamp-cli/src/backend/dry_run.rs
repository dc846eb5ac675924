//! What a dry run asks of a store beside what a run does: transactions that are never committed, in which even the
//! consumer's name is registered. And the next deliveries of a source, looked at without taking them.

use super::Backend;
use crate::config::{Config, SourceSection};
use crate::exit::CliError;
use handstamp_core::{Begun, BoxError, ClaimRequest, ConsumerKey, Delivery, Fingerprint, Store, StoreError};

/// A store for a dry run.
pub(crate) trait DryRun: Backend {
    /// The open store.
    type Dry;

    /// Opens it and prepares the effects; what is not there is not made.
    async fn open_dry(&self, config: &Config) -> Result<(Self::Dry, Self::Effects), StoreError>;

    /// The store behind it.
    fn store(dry: &Self::Dry) -> &Self::Store;

    /// Whether the store was made for this run alone, and knows nothing.
    fn is_new(dry: &Self::Dry) -> bool;

    /// Opens a transaction, registers the consumer and claims the ids in it.
    async fn begin_dry(
        dry: &Self::Dry,
        config: &Config,
        fingerprint: &Fingerprint,
        adopt: bool,
        ids: &[ClaimRequest],
    ) -> Result<(ConsumerKey, Begun<<Self::Store as Store>::Tx>), StoreError>;

    /// Judges what would be judged by COMMIT, where the store can do so before it.
    async fn judge_deferred(tx: &mut <Self::Store as Store>::Tx) -> Result<(), BoxError>;
}

#[cfg(feature = "sqlite")]
impl DryRun for super::sqlite::Sqlite {
    type Dry = handstamp_stores::sqlite::DryStore;

    async fn open_dry(&self, config: &Config) -> Result<(Self::Dry, Self::Effects), StoreError> {
        self.open_beside(config).await
    }

    fn store(dry: &Self::Dry) -> &Self::Store {
        &dry.store
    }

    fn is_new(dry: &Self::Dry) -> bool {
        dry.is_new
    }

    async fn begin_dry(
        dry: &Self::Dry,
        config: &Config,
        fingerprint: &Fingerprint,
        adopt: bool,
        ids: &[ClaimRequest],
    ) -> Result<(ConsumerKey, Begun<<Self::Store as Store>::Tx>), StoreError> {
        dry.store.begin_dry(&config.name, fingerprint, adopt, ids).await
    }

    /// SQLite judges a deferred foreign key at COMMIT alone.
    async fn judge_deferred(_: &mut <Self::Store as Store>::Tx) -> Result<(), BoxError> {
        Ok(())
    }
}

#[cfg(feature = "postgres")]
impl DryRun for super::postgres::Postgres {
    type Dry = std::sync::Arc<Self::Store>;

    async fn open_dry(&self, config: &Config) -> Result<(Self::Dry, Self::Effects), StoreError> {
        self.open(config).await
    }

    fn store(dry: &Self::Dry) -> &Self::Store {
        dry
    }

    fn is_new(_: &Self::Dry) -> bool {
        false
    }

    async fn begin_dry(
        dry: &Self::Dry,
        config: &Config,
        fingerprint: &Fingerprint,
        adopt: bool,
        ids: &[ClaimRequest],
    ) -> Result<(ConsumerKey, Begun<<Self::Store as Store>::Tx>), StoreError> {
        dry.begin_dry(&config.name, fingerprint, adopt, ids).await
    }

    /// In a savepoint of its own that is taken back: what is deferred stays so.
    async fn judge_deferred(tx: &mut <Self::Store as Store>::Tx) -> Result<(), BoxError> {
        const JUDGE: &str = "SAVEPOINT handstamp_deferred; SET CONSTRAINTS ALL IMMEDIATE; \
                             ROLLBACK TO SAVEPOINT handstamp_deferred; RELEASE SAVEPOINT handstamp_deferred";
        Ok(tx.batch_execute(JUDGE).await?)
    }
}

/// The next deliveries of a source.
pub(crate) struct Peeked {
    /// At most as many as were asked for.
    pub(crate) deliveries: Vec<Delivery>,
    /// Nothing lies behind them.
    pub(crate) ended: bool,
}

/// Looks at what the source would hand over next, at most `most`; nothing of it is taken. With `from_start` the
/// position that a file source keeps does not count.
///
/// # Errors
/// What the source answered; a stream cannot be looked at.
pub(crate) async fn peek(config: &Config, most: usize, from_start: bool) -> Result<Peeked, CliError> {
    match &config.source {
        #[cfg(feature = "file")]
        SourceSection::File(section) => {
            let options = super::source::file_options(config, section);
            let peeked = options.peek(most, config.options.message_max_bytes, from_start)?;
            Ok(Peeked { deliveries: peeked.deliveries, ended: peeked.ended })
        }
        #[cfg(not(feature = "file"))]
        SourceSection::File(_) => {
            let _ = from_start;
            Err(super::built_without("source", "file"))
        }
        #[cfg(feature = "kafka")]
        SourceSection::Kafka(section) => super::kafka::peek(section, most, config).await,
        #[cfg(not(feature = "kafka"))]
        SourceSection::Kafka(_) => Err(super::built_without("source", "kafka")),
    }
}
