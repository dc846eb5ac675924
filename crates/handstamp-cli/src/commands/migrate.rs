//! `migrate`: our tables, the user's setup file, grants.

use crate::backend::{Backend, setup_file, with_backend};
use crate::cli::MigrateArgs;
use crate::config::{self, Config};
use crate::exit::{CliError, Exit};
use crate::output;

/// Migrates, or prints what would be run.
///
/// # Errors
/// What the store answered.
pub(crate) fn migrate(args: &MigrateArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file)?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(migrate_with(&backend, &config, args)))
}

async fn migrate_with<B: Backend>(
    backend: &B,
    config: &Config,
    args: &MigrateArgs,
) -> Result<Exit, CliError> {
    if args.show_sql {
        let mut sql = backend.migration_sql();
        if let Some((name, text)) = setup_file(config)? {
            sql.push_str(&format!("\n-- [store] setup: {name}\n{text}"));
        }
        output::print(&sql)?;
        return Ok(Exit::Ok);
    }
    let steps = backend.migrate(config, args.grant_to.as_deref()).await?;
    for step in steps {
        output::print(&format!("{step}\n"))?;
    }
    Ok(Exit::Ok)
}
