//! Postgres: the store, and its effects.

use super::{Backend, Migrated, NameInStore, setup_file};
use crate::config::{Config, PostgresSection};
use crate::exit::CliError;
use crate::findings::Findings;
use handstamp_core::{Fingerprint, StoreError, StoreErrorKind};
use handstamp_stores::postgres::{
    MigrateOptions, PostgresOptions, PostgresStore, SchemaName, ServerFacts, Setup, SqlEffects, show_grants,
    show_sql,
};
use std::sync::Arc;
use std::time::Duration;

/// Longer limits do not fit the server's milliseconds, what is added to them included.
const TIME_MAX: Duration = Duration::from_secs(20 * 24 * 60 * 60);

/// A Postgres database.
pub(crate) struct Postgres {
    /// The role that runs.
    store: Arc<PostgresStore>,
    /// The role that migrates, where it is another one.
    migrator: Option<PostgresStore>,
    schema: SchemaName,
}

impl Postgres {
    /// Reads the section; does not connect.
    ///
    /// # Errors
    /// A connection string or schema that cannot be.
    pub(crate) fn new(config: &Config, section: &PostgresSection) -> Result<Self, CliError> {
        let schema = schema(section)?;
        for (key, time) in [
            ("[store] lock_timeout", section.lock_timeout),
            ("[consumer] handler_timeout", config.options.handler_timeout),
        ] {
            if time > TIME_MAX {
                return Err(CliError::usage(format!(
                    "{key}: at most \"20days\": Postgres takes no longer limit"
                )));
            }
        }
        let open = |key: &str, url: &str| {
            let mut options = PostgresOptions::parse(url)
                .map_err(|error| CliError::usage(format!("[store] {key}: {error}")))?
                .with_handler_timeout(config.options.handler_timeout)
                .with_schema(schema.clone());
            options.lock_timeout = section.lock_timeout;
            PostgresStore::new(options).map_err(CliError::from)
        };
        // What the command does not use may not be known.
        let migrate_url = section.migrate_url.as_ref().filter(|url| url.is_known());
        let migrator = migrate_url.map(|url| open("migrate_url", &url.value)).transpose()?;
        let store = match migrate_url {
            Some(url) if !section.url.is_known() => open("migrate_url", &url.value)?,
            _ => open("url", &section.url.value)?,
        };
        let store = Arc::new(store);
        Ok(Self { store, migrator, schema })
    }

    fn migrator(&self) -> &PostgresStore {
        self.migrator.as_ref().unwrap_or(&self.store)
    }
}

fn schema(section: &PostgresSection) -> Result<SchemaName, CliError> {
    SchemaName::new(&section.schema.value)
        .map_err(|error| CliError::usage(format!("[store] schema: {error}")))
}

/// The SQL of our own tables.
///
/// # Errors
/// A schema that cannot be.
pub(crate) fn migration_sql(section: &PostgresSection) -> Result<String, CliError> {
    Ok(show_sql(&schema(section)?))
}

/// The SQL that lets a role use our own tables.
///
/// # Errors
/// A schema that cannot be.
pub(crate) fn grants_sql(section: &PostgresSection, role: &str) -> Result<String, CliError> {
    Ok(show_grants(&schema(section)?, role))
}

impl Backend for Postgres {
    type Store = PostgresStore;
    type Effects = SqlEffects;

    fn place(&self) -> String {
        self.store.options().place()
    }

    async fn migrate(&self, config: &Config, grant_to: Option<&str>) -> Result<Migrated, StoreError> {
        let setup = setup_file(config)?.map(|(name, sql)| Setup { name, sql });
        let named = setup.as_ref().map(|setup| setup.name.clone());
        let options = MigrateOptions {
            schema: self.schema.clone(),
            setup,
            grant_to: grant_to.map(str::to_owned).into_iter().collect(),
            ..MigrateOptions::default()
        };
        let migrated = self.migrator().migrate(&options).await?;
        let place = self.migrator().options().place();
        let mut steps = match migrated.applied.as_slice() {
            [] => {
                vec![format!("{place}: schema {} is up to date (version {})", self.schema, migrated.version)]
            }
            applied => applied
                .iter()
                .map(|number| format!("{place}: schema {}: migration {number} applied", self.schema))
                .collect(),
        };
        if let Some(name) = &named {
            let what = if migrated.setup_run { "run" } else { "was run before" };
            steps.push(format!("{place}: setup {name}: {what}"));
        }
        if let Some(role) = grant_to {
            steps.push(format!("{place}: role {role} may run"));
        }
        Ok(Migrated {
            steps,
            migrations: migrated.applied.iter().map(i32::to_string).collect(),
            setup: named.map(|name| (name, migrated.setup_run)),
        })
    }

    async fn open(&self, config: &Config) -> Result<(Arc<PostgresStore>, SqlEffects), StoreError> {
        let effects = effects(config);
        effects.check(&self.store).await?;
        Ok((Arc::clone(&self.store), effects))
    }

    async fn existing(&self, _: &Config) -> Result<Arc<PostgresStore>, StoreError> {
        Ok(Arc::clone(&self.store))
    }

    async fn check(
        &self,
        config: &Config,
        fingerprint: &Fingerprint,
        findings: &mut Findings,
    ) -> NameInStore {
        let place = self.place();
        let facts = match self.store.facts().await {
            Ok(facts) => facts,
            Err(error) => {
                findings.fail_error(&error.into(), "is the server running, and is `url` right?");
                return NameInStore::NotAsked;
            }
        };
        judge(&facts, &place, findings);
        if let Err(error) = setup_file(config) {
            // `run` alone does not read it.
            findings.warn(format!("store: migrate would fail: {error}"), "correct `[store] setup`");
        }
        match effects(config).unfit(&self.store).await {
            Ok(unfit) if unfit.is_empty() => findings.ok("effects: each fits the tables"),
            Ok(unfit) => findings.fail_effects(unfit),
            Err(error) => {
                let said = matches!(error.kind, StoreErrorKind::NotMigrated | StoreErrorKind::Unavailable);
                let todo = match error.kind {
                    StoreErrorKind::NotMigrated => "run `handstamp migrate` with this file",
                    StoreErrorKind::Unavailable => "is the server running, and is `url` right?",
                    _ => "correct the effect or the tables",
                };
                findings.fail_error(&error.into(), todo);
                if said {
                    return NameInStore::NotAsked;
                }
            }
        }
        if facts.in_recovery {
            return NameInStore::NotAsked;
        }
        let rehearsed = self.store.rehearse(&config.name, fingerprint).await;
        if rehearsed.is_ok() {
            findings.ok("store: claims and dead letters can be written");
        }
        NameInStore::from_rehearsal(rehearsed, findings, "correct [store], or the rights of its role")
    }
}

fn effects(config: &Config) -> SqlEffects {
    let compiled = config.effects.iter().map(|effect| effect.compiled.clone());
    SqlEffects::new(compiled.collect()).ignoring_unmatched(config.ignore_unmatched)
}

/// What is dangerous in how a server is set up (pure).
fn judge(facts: &ServerFacts, place: &str, findings: &mut Findings) {
    findings.ok(format!("store: {place} answers, server version {}", facts.version_num / 10000));
    if facts.version_num < 150_000 {
        findings.fail("store: the server is older than Postgres 15", "update it");
    }
    if !facts.fsync {
        findings.fail(
            "store: fsync is off: a crash of the server can lose what was committed and settled",
            "set fsync = on in postgresql.conf and reload",
        );
    }
    if !facts.full_page_writes {
        findings.warn(
            "store: full_page_writes is off: a crash of the server can tear pages",
            "set full_page_writes = on unless the file system writes whole pages",
        );
    }
    if facts.in_recovery {
        findings.fail("store: the server is a standby, which takes no claims", "name the primary in `url`");
    }
    if facts.encoding != "UTF8" {
        findings.fail(
            format!("store: the database's encoding is {}", facts.encoding),
            "make a database with the encoding UTF8",
        );
    }
    if !facts.deadlock_before_lock_timeout {
        findings.warn(
            "store: lock_timeout is not longer than the server's deadlock_timeout: a deadlock looks like a queue",
            "raise `[store] lock_timeout`, or lower deadlock_timeout",
        );
    }
    if facts.synchronous_commit == "off" {
        findings.ok("store: synchronous_commit is off for this role; every commit of ours raises it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn facts() -> ServerFacts {
        ServerFacts {
            version_num: 180_006,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".into(),
            in_recovery: false,
            deadlock_before_lock_timeout: true,
            encoding: "UTF8".into(),
        }
    }

    fn judged(facts: &ServerFacts) -> Findings {
        let mut findings = Findings::default();
        judge(facts, "127.0.0.1:5432/wallet", &mut findings);
        findings
    }

    #[test]
    fn a_server_that_can_lose_commits_or_takes_none_fails() {
        assert_eq!(judged(&facts()).exit(), Exit::Ok);
        for bad in [
            ServerFacts { fsync: false, ..facts() },
            ServerFacts { in_recovery: true, ..facts() },
            ServerFacts { version_num: 140_000, ..facts() },
            ServerFacts { encoding: "LATIN1".into(), ..facts() },
        ] {
            assert_eq!(judged(&bad).exit(), Exit::CheckFailed, "{bad:?}");
        }
    }

    #[test]
    fn what_may_bite_is_a_warning() {
        for odd in [
            ServerFacts { full_page_writes: false, ..facts() },
            ServerFacts { deadlock_before_lock_timeout: false, ..facts() },
        ] {
            let findings = judged(&odd);
            assert_eq!(findings.exit(), Exit::Ok, "{odd:?}");
            assert!(findings.text(100).contains("1 warnings"), "{}", findings.text(100));
        }
    }
}
