//! Which parts of the file a command uses.
//!
//! Variables are looked up where they are used: `publish` runs where the database's password is not known,
//! `dlq` where the brokers are not. In a part that is not used, a text whose variable is not set stands for
//! itself; whatever else is wrong in the file is said by every command.

/// What a command reads of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uses {
    /// All but the connection of `migrate`: `run`, `check`.
    Pipeline,
    /// All: `run --migrate`.
    PipelineAndMigration,
    /// The store, read by operators: `inbox`, `dlq`.
    Store,
    /// The store, and where the ids are: `dlq redrive`.
    StoreAndIdentity,
    /// The source, and the store as operators use it: `prune`, `import-ids`.
    SourceAndStore,
    /// What is done about messages that fail: `explain`.
    Policy,
    /// The store and what is run in it once: `migrate`.
    Migration,
    /// What would be run, without a connection: `migrate --show-sql`.
    MigrationText,
    /// The source and where its ids are: `publish`.
    Source,
}

impl Uses {
    /// Everything that a message meets: `[source]`, `[[effect]]`.
    pub(super) fn messages(self) -> bool {
        matches!(self, Self::Pipeline | Self::PipelineAndMigration)
    }

    /// `[retry]`.
    pub(super) fn retry(self) -> bool {
        self.messages() || self == Self::Policy
    }

    /// `[source]`.
    pub(super) fn source(self) -> bool {
        self.messages() || matches!(self, Self::Source | Self::SourceAndStore)
    }

    /// `[identity]`.
    pub(super) fn identity(self) -> bool {
        self.messages() || matches!(self, Self::Source | Self::StoreAndIdentity)
    }

    /// `name` and `[consumer]`.
    pub(super) fn consumer(self) -> bool {
        self != Self::Source
    }

    /// `[store]` but for the keys below.
    pub(super) fn store(self) -> bool {
        !matches!(self, Self::Source | Self::Policy)
    }

    /// `[store] url`, which `migrate` does not need beside a `migrate_url`.
    pub(super) fn url(self, has_migrate_url: bool) -> bool {
        match self {
            Self::Pipeline
            | Self::PipelineAndMigration
            | Self::Store
            | Self::StoreAndIdentity
            | Self::SourceAndStore => true,
            Self::Migration => !has_migrate_url,
            Self::MigrationText | Self::Source | Self::Policy => false,
        }
    }

    /// `[store] migrate_url`.
    pub(super) fn migrate_url(self) -> bool {
        matches!(self, Self::Migration | Self::PipelineAndMigration)
    }

    /// `[store] setup`.
    pub(super) fn setup(self) -> bool {
        !matches!(
            self,
            Self::Source | Self::Store | Self::StoreAndIdentity | Self::SourceAndStore | Self::Policy
        )
    }
}
