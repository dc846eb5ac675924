//! SQLite: the store, and its effects.

use super::{Backend, Migrated, NO_ROLES, NameInStore, setup_file};
use crate::config::{Config, SqliteSection};
use crate::exit::CliError;
use crate::findings::Findings;
use handstamp_core::{Fingerprint, StoreError, StoreErrorKind};
use handstamp_stores::sqlite::{DryStore, Setup, SqlEffects, SqliteOptions, SqliteStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A SQLite file.
pub(crate) struct Sqlite {
    path: PathBuf,
    lock_timeout: Duration,
}

impl Sqlite {
    /// Reads the section; opens nothing.
    ///
    /// # Errors
    /// None now; the same shape for every store.
    #[allow(clippy::unnecessary_wraps, reason = "the same shape for every store")]
    pub(crate) fn new(config: &Config, section: &SqliteSection) -> Result<Self, CliError> {
        Ok(Self { path: config.resolve(&section.path.value), lock_timeout: section.lock_timeout })
    }

    fn options(&self, config: &Config) -> Result<SqliteOptions, StoreError> {
        let mut options = self.without_setup(config);
        options.setup = setup_file(config)?.map(|(name, sql)| Setup { name, sql });
        Ok(options)
    }

    fn without_setup(&self, config: &Config) -> SqliteOptions {
        let mut options = SqliteOptions::new(&self.path);
        options.lock_timeout = self.lock_timeout;
        options.statement_timeout = config.options.handler_timeout;
        options
    }
}

impl Sqlite {
    /// Opens the file, or one beside it where it is new, and prepares the effects.
    pub(super) async fn open_beside(&self, config: &Config) -> Result<(DryStore, SqlEffects), StoreError> {
        let dry = SqliteStore::open_dry(self.options(config)?).await?;
        let effects = effects(config);
        dry.store.check_effects(&effects).await?;
        Ok((dry, effects))
    }
}

impl Backend for Sqlite {
    type Store = SqliteStore;
    type Effects = SqlEffects;

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    async fn migrate(&self, config: &Config, grant_to: Option<&str>) -> Result<Migrated, StoreError> {
        if grant_to.is_some() {
            return Err(StoreError::new(StoreErrorKind::Config, NO_ROLES));
        }
        let options = self.options(config)?;
        let setup = options.setup.as_ref().map(|setup| setup.name.clone());
        let mut ran = SqliteStore::migrate(options).await?.ran;
        let place = self.place();
        let steps = match ran.as_slice() {
            [] => vec![format!("{place}: up to date")],
            ran => ran.iter().map(|file| format!("{place}: {file} run")).collect(),
        };
        // The setup file is run last.
        let setup = setup.map(|name| {
            let run = ran.pop_if(|last| *last == name).is_some();
            (name, run)
        });
        Ok(Migrated { steps, migrations: ran, setup })
    }

    async fn open(&self, config: &Config) -> Result<(Arc<SqliteStore>, SqlEffects), StoreError> {
        let store = SqliteStore::open(self.options(config)?).await?;
        let effects = effects(config);
        store.check_effects(&effects).await?;
        Ok((Arc::new(store), effects))
    }

    async fn existing(&self, config: &Config) -> Result<Arc<SqliteStore>, StoreError> {
        if !self.path.exists() {
            return Err(StoreError::new(
                StoreErrorKind::NotMigrated,
                format!("{} does not exist yet; the first run makes it", self.path.display()),
            ));
        }
        let options = SqliteOptions { migrate_new: false, ..self.without_setup(config) };
        SqliteStore::open(options).await.map(Arc::new)
    }

    async fn check(
        &self,
        config: &Config,
        fingerprint: &Fingerprint,
        findings: &mut Findings,
    ) -> NameInStore {
        let place = self.place();
        let rehearsed = match self.options(config) {
            Ok(options) => SqliteStore::rehearse(&options, &effects(config), &config.name, fingerprint).await,
            Err(error) => Err(error),
        };
        if let Ok(rehearsed) = &rehearsed {
            let what = if self.path.exists() {
                "takes claims"
            } else {
                "does not exist yet; the first run makes it"
            };
            findings.ok(format!("store: {place} {what}"));
            if rehearsed.unfit.is_empty() {
                findings.ok("effects: each fits the tables");
            }
        }
        let answer = rehearsed.map(|rehearsed| {
            findings.fail_effects(rehearsed.unfit);
            rehearsed.known
        });
        NameInStore::from_rehearsal(answer, findings, "correct [store], or the effect or file that is named")
    }
}

fn effects(config: &Config) -> SqlEffects {
    let compiled = config.effects.iter().map(|effect| effect.compiled.clone());
    SqlEffects::new(compiled.collect()).ignoring_unmatched(config.ignore_unmatched)
}
