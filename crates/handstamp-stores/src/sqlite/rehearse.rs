//! A rehearsal: what a run does before and with its first message, and nothing of it stays.
//!
//! Authoritative: the same functions that a run calls. A file that is new, or holds no table yet, is
//! rehearsed on one made beside it: it shows what the folder allows and whether the setup file and the
//! effects fit each other.
//!
//! ```text
//!  new file ─► made beside it ─┐
//!  known file ─────────────────┴─► tables ─► effects ─► BEGIN ─► register ─► claim ─► dead letter, mark ─► park ─► retry
//!                                                                                            └─► ROLLBACK
//! ```

use super::classify::store_error;
use super::config::SqliteOptions;
use super::connect::{open, open_reader, refuse_path, refuse_read_only};
use super::effect::SqlEffects;
use super::store::SqliteStore;
use super::{failure, inbox, migrate, parked, versions};
use crate::rehearsal::{rehearsed_letter, rehearsed_marks};
use handstamp_core::{ClaimRequest, ConsumerName, Fingerprint, StoreError};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

/// What a rehearsal found.
#[derive(Debug)]
pub struct Rehearsed {
    /// The consumer's name was registered before.
    pub known: bool,
    /// An error for every effect that cannot be prepared, in their order; a run would end with the first.
    pub unfit: Vec<StoreError>,
}

impl SqliteStore {
    /// Does what a run does up to its first message, and a claim, a dead letter, a mark of a version and a parked
    /// message of its own, and takes everything back. Effects that cannot be prepared do not end it: all of them are found.
    ///
    /// # Errors
    /// Whatever else would end or stop a run: as [`SqliteStore::open`] and `register`, and `Unavailable` where
    /// the file cannot be written.
    pub async fn rehearse(
        options: &SqliteOptions,
        effects: &SqlEffects,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
    ) -> Result<Rehearsed, StoreError> {
        refuse_path(&options.path)?;
        if !is_new(options)? {
            return rehearse_in(options, effects, name, fingerprint);
        }
        let beside = Beside::of(&options.path);
        let scratch = SqliteOptions { path: beside.0.clone(), migrate_new: true, ..options.clone() };
        let outcome = match Self::open(scratch.clone()).await {
            Ok(_open) => rehearse_in(&scratch, effects, name, fingerprint),
            Err(error) => Err(error),
        };
        // Whoever reads it knows only the file that was named.
        let (made, named) = (beside.0.display().to_string(), options.path.display().to_string());
        let renamed = |mut error: StoreError| {
            error.message = error.message.replace(&made, &named);
            error
        };
        let Rehearsed { known, unfit } = outcome.map_err(renamed)?;
        Ok(Rehearsed { known, unfit: unfit.into_iter().map(renamed).collect() })
    }
}

/// No file, or one without any table: the first run makes them.
pub(super) fn is_new(options: &SqliteOptions) -> Result<bool, StoreError> {
    if !options.path.exists() {
        return Ok(true);
    }
    migrate::is_empty(&open_reader(options)?.connection)
}

fn rehearse_in(
    options: &SqliteOptions,
    effects: &SqlEffects,
    name: &ConsumerName,
    fingerprint: &Fingerprint,
) -> Result<Rehearsed, StoreError> {
    // Before a connection that may write changes anything of a file that is not ours.
    let rehearsed = {
        let opened = open_reader(options)?;
        migrate::check(&opened.connection, options.setup.as_ref())?;
        let unfit = effects.unfit(&opened.connection, &opened.guard);
        Rehearsed { known: inbox::find_consumer(&opened.connection, name)?.is_some(), unfit }
    };
    let opened = open(options, false)?;
    let connection = &opened.connection;
    refuse_read_only(connection, &options.path)?;
    let failed = |e| store_error(&format!("beginning in {}", options.path.display()), e);
    connection.busy_timeout(options.lock_timeout).map_err(failed)?;
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
    let outcome = write(connection, name, fingerprint);
    connection.execute_batch("ROLLBACK").map_err(failed)?;
    outcome.map(|()| rehearsed)
}

fn write(connection: &Connection, name: &ConsumerName, fingerprint: &Fingerprint) -> Result<(), StoreError> {
    let consumer = inbox::register(connection, name, fingerprint, false)?;
    let letter = rehearsed_letter();
    let requests: Vec<ClaimRequest> =
        letter.id.iter().map(|id| ClaimRequest { id: id.clone(), digest: Some(letter.digest) }).collect();
    let claimed = inbox::claim_batch(connection, &consumer, &requests)?;
    failure::record(connection, &consumer, std::slice::from_ref(&letter), &claimed.first)?;
    versions::raise(connection, &consumer, &rehearsed_marks(&letter))?;
    parked::rehearse(connection, &consumer, letter, &claimed.first)
}

/// A file beside another; removed with what SQLite keeps beside it.
#[derive(Debug)]
pub(super) struct Beside(PathBuf);

impl Beside {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn of(path: &Path) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".rehearsal-{}", std::process::id()));
        Self(name.into())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm", "-journal"] {
            let mut name = self.0.as_os_str().to_owned();
            name.push(end);
            // What was never made cannot be removed.
            let _ = std::fs::remove_file(name);
        }
    }
}
