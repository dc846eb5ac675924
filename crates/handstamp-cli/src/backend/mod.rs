//! Turns the configuration into concrete parts: the only place that brings them together.
//!
//! | file | owns |
//! |---|---|
//! | `source` | `[source]` → a source |
//! | `dry_run` | what a dry run asks of both |
//! | `kafka` | what the program asks of Kafka beside consuming |
//! | `sqlite`, `postgres` | `[store]` → a store and its effects |
//! | `operations` | what operators ask of a store that is there |
//! | `forgetting` | what a store is asked before anything in it is forgotten |
//! | `windows` | for how long the source can deliver a message again |

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("build the program with a store: the feature `sqlite` or `postgres`");
#[cfg(not(any(feature = "file", feature = "kafka")))]
compile_error!("build the program with a source: the feature `file` or `kafka`");

pub(crate) mod dry_run;
pub(crate) mod forgetting;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
pub(crate) mod operations;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod source;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod windows;

use crate::config::{Config, StoreSection};
use crate::exit::CliError;
use crate::findings::Findings;
pub(crate) use forgetting::Registered;
use handstamp_core::{BatchHandler, Fingerprint, PruneStore, StartStore, Store, StoreError, StoreErrorKind};
pub(crate) use operations::Operations;
use std::sync::Arc;

/// What is said where SQLite is asked to grant something.
const NO_ROLES: &str = "--grant-to: SQLite has no roles";

/// What `migrate` did.
#[derive(Debug)]
pub(crate) struct Migrated {
    /// Each step, for a person.
    pub(crate) steps: Vec<String>,
    /// Our own migrations that were run now; none when the tables were up to date.
    pub(crate) migrations: Vec<String>,
    /// The user's setup file, and whether it was run now.
    pub(crate) setup: Option<(String, bool)>,
}

/// What a store knows of a consumer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameInStore {
    /// It could not be asked.
    NotAsked,
    /// Nobody has used the name here.
    New,
    /// It is registered.
    Known,
}

impl NameInStore {
    /// From what a rehearsal answers, or adds the finding that it failed.
    pub(crate) fn from_rehearsal(
        answer: Result<bool, StoreError>,
        findings: &mut Findings,
        todo: &str,
    ) -> Self {
        match answer {
            Ok(true) => Self::Known,
            Ok(false) => Self::New,
            Err(error) => {
                findings.fail_error(&error.into(), todo);
                Self::NotAsked
            }
        }
    }
}

/// A store with everything the program asks of it. One of each, chosen by `[store] type`.
///
/// Making one does not connect; each method says what it needs.
pub(crate) trait Backend: Sized {
    /// The store.
    type Store: StartStore + PruneStore + Operations + Registered;
    /// The declared effects.
    type Effects: BatchHandler<<Self::Store as Store>::Tx>;

    /// Where it is, without a secret.
    fn place(&self) -> String;

    /// Brings the tables up to date, runs the setup file once, grants rights.
    async fn migrate(&self, config: &Config, grant_to: Option<&str>) -> Result<Migrated, StoreError>;

    /// Opens the store and prepares the effects. An error of kind `Unavailable` may be tried again.
    async fn open(&self, config: &Config) -> Result<(Arc<Self::Store>, Self::Effects), StoreError>;

    /// The store for operators: it must be there, and needs neither effects nor a setup file.
    async fn existing(&self, config: &Config) -> Result<Arc<Self::Store>, StoreError>;

    /// Connectivity, schema, effects, dangerous settings, and a rehearsal of what a run does with the store;
    /// nothing that it writes stays. Answers what is known of the consumer's name.
    async fn check(&self, config: &Config, fingerprint: &Fingerprint, findings: &mut Findings)
    -> NameInStore;
}

/// Runs an expression with the backend that `[store] type` names.
macro_rules! with_backend {
    ($config:expr, $backend:ident => $body:expr) => {
        match &$config.store {
            #[cfg(feature = "sqlite")]
            $crate::config::StoreSection::Sqlite(section) => {
                let $backend = $crate::backend::sqlite::Sqlite::new($config, section)?;
                $body
            }
            #[cfg(not(feature = "sqlite"))]
            $crate::config::StoreSection::Sqlite(_) => Err($crate::backend::built_without("store", "sqlite")),
            #[cfg(feature = "postgres")]
            $crate::config::StoreSection::Postgres(section) => {
                let $backend = $crate::backend::postgres::Postgres::new($config, section)?;
                $body
            }
            #[cfg(not(feature = "postgres"))]
            $crate::config::StoreSection::Postgres(_) => {
                Err($crate::backend::built_without("store", "postgres"))
            }
        }
    };
}
pub(crate) use with_backend;

/// The SQL that `migrate` runs on an empty database; no connection is needed to know it.
///
/// # Errors
/// A schema's name that cannot be, or a store that was not built in.
pub(crate) fn migration_sql(config: &Config) -> Result<String, CliError> {
    match &config.store {
        #[cfg(feature = "sqlite")]
        StoreSection::Sqlite(_) => Ok(handstamp_stores::sqlite::show_sql()),
        #[cfg(not(feature = "sqlite"))]
        StoreSection::Sqlite(_) => Err(built_without("store", "sqlite")),
        #[cfg(feature = "postgres")]
        StoreSection::Postgres(section) => postgres::migration_sql(section),
        #[cfg(not(feature = "postgres"))]
        StoreSection::Postgres(_) => Err(built_without("store", "postgres")),
    }
}

/// The SQL by which `migrate` lets a role use our own tables; no connection is needed to know it.
///
/// # Errors
/// A store without roles, a schema's name that cannot be, or a store that was not built in.
pub(crate) fn grants_sql(config: &Config, role: &str) -> Result<String, CliError> {
    match &config.store {
        StoreSection::Sqlite(_) => Err(StoreError::new(StoreErrorKind::Config, NO_ROLES).into()),
        #[cfg(feature = "postgres")]
        StoreSection::Postgres(section) => postgres::grants_sql(section, role),
        #[cfg(not(feature = "postgres"))]
        StoreSection::Postgres(_) => {
            let _ = role;
            Err(built_without("store", "postgres"))
        }
    }
}

/// A type that this build of the program does not have.
#[cfg_attr(
    all(feature = "kafka", feature = "file", feature = "postgres", feature = "sqlite"),
    allow(dead_code, reason = "a full build has every type")
)]
pub(crate) fn built_without(section: &str, feature: &str) -> CliError {
    CliError::usage(format!(
        "[{section}] type = \"{feature}\" is not in this build of the program: it was built without the feature `{feature}`"
    ))
    .hint(format!("build it with `cargo build --release -p handstamp-cli --features {feature}`"))
}

/// The text of the setup file, if there is one, and the name it is recorded under.
pub(crate) fn setup_file(config: &Config) -> Result<Option<(String, String)>, StoreError> {
    let Some(setup) = config.store.setup() else { return Ok(None) };
    let path = config.resolve(&setup.value);
    let failed = |what: String| {
        StoreError::new(StoreErrorKind::Config, format!("[store] setup: {}: {what}", path.display()))
    };
    let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()).with_source(error))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("the file is not UTF-8 text".to_owned()))?;
    // The name is recorded in the database: it must not depend on where the program was started.
    let name =
        path.file_name().map_or_else(|| setup.value.clone(), |name| name.to_string_lossy().into_owned());
    Ok(Some((name, text)))
}
