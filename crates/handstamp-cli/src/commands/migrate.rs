//! `migrate`: our tables, the user's setup file, grants.

use crate::backend::{Backend, Migrated, grants_sql, migration_sql, setup_file, with_backend};
use crate::cli::MigrateArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, json};
use serde_json::{Value, json};

/// Migrates, or prints what would be run.
///
/// # Errors
/// What the store answered.
pub(crate) fn migrate(args: &MigrateArgs) -> Result<Exit, CliError> {
    if args.show_sql {
        return show_sql(&config::load(&args.file, Uses::MigrationText)?, args.grant_to.as_deref());
    }
    let config = config::load(&args.file, Uses::Migration)?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(migrate_with(&backend, &config, args)))
}

fn show_sql(config: &Config, grant_to: Option<&str>) -> Result<Exit, CliError> {
    let mut sql = migration_sql(config)?;
    let grants = grant_to.map(|role| grants_sql(config, role)).transpose()?;
    if let Some((name, text)) = setup_file(config)? {
        sql.push_str(&format!("\n-- [store] setup: {name}\n{text}"));
    }
    if let (Some(role), Some(grants)) = (grant_to, grants) {
        sql.push_str(&format!("\n-- --grant-to {role:?}: Handstamp's own tables\n{grants}"));
        if config.store.setup().is_some() {
            sql.push_str(
                "-- The same migration grants SELECT, INSERT, UPDATE and DELETE on the tables of `[store] setup`, USAGE on\n\
                 -- their schemas, and USAGE and SELECT on their sequences: it finds their names in the database.\n",
            );
        }
    }
    output::print(&sql)?;
    Ok(Exit::Ok)
}

async fn migrate_with<B: Backend>(
    backend: &B,
    config: &Config,
    args: &MigrateArgs,
) -> Result<Exit, CliError> {
    let migrated = backend.migrate(config, args.grant_to.as_deref()).await?;
    if args.json {
        output::print_json(&object(&backend.place(), &migrated, args.grant_to.as_deref()))?;
        return Ok(Exit::Ok);
    }
    for step in migrated.steps {
        output::print(&format!("{step}\n"))?;
    }
    Ok(Exit::Ok)
}

fn object(place: &str, migrated: &Migrated, granted_to: Option<&str>) -> Value {
    let setup = migrated.setup.as_ref().map(|(name, run)| json!({ "name": name, "run": run }));
    json::done(json!({
        "store": place,
        "migrations": migrated.migrations,
        "setup": setup,
        "granted_to": granted_to,
    }))
}

/// What `--json` prints of a migration that did nothing.
pub(crate) fn nothing() -> Value {
    json!({ "store": null, "migrations": [], "setup": null, "granted_to": null })
}
