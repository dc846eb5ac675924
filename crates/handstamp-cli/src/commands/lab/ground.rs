//! What a run of the lab stands on: broker, store, folder, and how this program is started again.

use super::{cancel_on_signal, failed, folder, this_program};
use crate::exit::CliError;
use crate::redact;
use handstamp_lab::Cancel;
use handstamp_lab::broker::Broker;
use handstamp_lab::broker::mock::MockLaunch;
use handstamp_lab::kill::{Launch, Settings, Surroundings};
use handstamp_lab::ledger::{self, Place};
use std::path::{Path, PathBuf};

/// Everything that a run needs beside its settings.
pub(crate) struct Ground {
    /// Where histories, results and logs go.
    pub(crate) folder: PathBuf,
    /// Where ledgers are made.
    pub(crate) place: Place,
    /// Broker and store with their versions, as reports name them.
    pub(crate) servers: String,
    broker: Broker,
    launch: Launch,
    cancel: Cancel,
}

impl Ground {
    /// Listens for signals, makes the folder, and asks broker and store who they are.
    ///
    /// # Errors
    /// The folder cannot be made, or a server does not answer.
    pub(crate) fn prepare(
        folder: &Path,
        brokers: Option<&str>,
        database: Option<&str>,
    ) -> Result<Self, CliError> {
        let cancel = cancel_on_signal()?;
        let folder = folder::make(folder)?;
        let broker = broker(brokers)?;
        broker.stops_with(&cancel);
        let place = place(database, &folder)?;
        let store = ledger::probe(&place).map_err(failed)?;
        let servers = format!("{}; {store}", broker.describe());
        Ok(Self { folder, place, servers, broker, launch: launch()?, cancel })
    }

    /// The same beside the settings of a run.
    pub(crate) fn around<'a>(&'a self, settings: &'a Settings) -> Surroundings<'a> {
        Surroundings {
            settings,
            broker: &self.broker,
            place: &self.place,
            folder: &self.folder,
            launch: &self.launch,
            cancel: &self.cancel,
        }
    }
}

/// The broker that was named, or one inside.
///
/// # Errors
/// It does not answer.
pub(crate) fn broker(bootstrap: Option<&str>) -> Result<Broker, CliError> {
    match bootstrap {
        Some(bootstrap) => Broker::kafka(bootstrap).map_err(failed),
        None => {
            let arguments = ["--log", "warn", "lab", "mock-broker"].map(str::to_owned).to_vec();
            Broker::mock(MockLaunch { program: this_program()?, arguments }).map_err(failed)
        }
    }
}

/// Where ledgers are made: in the database that was named, or in files in the folder.
///
/// # Errors
/// This program was built without Postgres.
pub(crate) fn place(database: Option<&str>, folder: &Path) -> Result<Place, CliError> {
    let Some(url) = database else { return Ok(Place::Sqlite(folder.to_owned())) };
    redact::register_url(url);
    postgres(url)
}

#[cfg(feature = "postgres")]
#[allow(clippy::unnecessary_wraps, reason = "the same shape without Postgres")]
fn postgres(url: &str) -> Result<Place, CliError> {
    Ok(Place::Postgres(url.to_owned()))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str) -> Result<Place, CliError> {
    Err(crate::backend::built_without("store", "postgres"))
}

/// How this program is started again.
///
/// # Errors
/// The operating system does not say where it lies.
pub(crate) fn launch() -> Result<Launch, CliError> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Ok(Launch {
        program: this_program()?,
        subject: words(&["--log", "info", "lab", "subject"]),
        pipeline: words(&["--log", "info", "run"]),
    })
}
