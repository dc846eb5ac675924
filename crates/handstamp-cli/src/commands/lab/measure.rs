//! `lab throughput` and `lab storage`: thin; what they do is in the lab.

use crate::exit::{CliError, Exit};
use clap::Args;
use std::path::PathBuf;

/// `lab throughput`.
#[derive(Debug, Args)]
pub(crate) struct ThroughputArgs {
    /// Kafka's bootstrap servers; without them a broker inside this program stands in.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of a Postgres database, where the lab makes schemas of its own; without it the
    /// ledgers are SQLite files.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Messages of each measurement.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    pub(crate) messages: u64,
    /// Rounds; in each of them everybody takes a turn.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// A folder for the results; one that holds some is gone on with.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lab storage`.
#[derive(Debug, Args)]
pub(crate) struct StorageArgs {
    /// Connection string of a PostgreSQL 18 database, where the lab makes a schema of its own.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: String,
    /// Ids in each table.
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub(crate) rows: u64,
    /// How often each table is made.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Refuses: without a Kafka client there is nobody to measure.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kafka"))]
pub(crate) fn throughput(_: &ThroughputArgs) -> Result<Exit, CliError> {
    Err(super::kill::no_kafka())
}

/// Refuses.
///
/// # Errors
/// Always.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
pub(crate) fn storage(_: &StorageArgs) -> Result<Exit, CliError> {
    Err(CliError::usage("this program was built without Kafka and Postgres clients")
        .hint("build one that has them: `cargo build --release -p handstamp-cli`"))
}

/// Measures messages a second, everybody in turn.
///
/// # Errors
/// The broker or the database does not answer, a consumer fails, or it was told to stop.
#[cfg(feature = "kafka")]
pub(crate) fn throughput(args: &ThroughputArgs) -> Result<Exit, CliError> {
    use super::kill::{broker, launch, make_folder, place};
    use super::{cancel_on_signal, failed, fresh_folder, tables};
    use crate::output;
    use handstamp_lab::kill::{Profile, Settings, Surroundings};

    let cancel = cancel_on_signal()?;
    let folder = make_folder(&args.out.clone().unwrap_or_else(|| fresh_folder("throughput")))?;
    let broker = broker(args.brokers.as_deref())?;
    let place = place(args.database.as_deref(), &folder)?;
    let store = handstamp_lab::ledger::probe(&place).map_err(failed)?;
    let settings =
        Settings { runs: args.runs, throughput_messages: args.messages, ..Settings::of(Profile::Quick) };
    let settings = settings.checked(false).map_err(failed)?;
    let launch = launch()?;
    let around = Surroundings {
        settings: &settings,
        broker: &broker,
        place: &place,
        folder: &folder,
        launch: &launch,
        cancel: &cancel,
    };
    output::say(&format!(
        "{} messages, {} rounds, on {}; {store}\nresults: {}",
        args.messages,
        args.runs,
        broker.describe(),
        folder.display()
    ));
    let line = super::progress::Line::start("measurements");
    let began = std::time::Instant::now();
    let step = |done: usize, all: usize| line.steps(done, all, began.elapsed());
    let rates = handstamp_lab::throughput::run(&around, &step);
    drop(line);
    let rates = rates.map_err(failed)?;
    if args.json {
        output::print_json(&serde_json::json!({ "messages": args.messages, "rates": rates }))?;
    } else {
        output::print(&tables::rates(&rates))?;
    }
    Ok(Exit::Ok)
}

/// Measures bytes per remembered id.
///
/// # Errors
/// The database does not answer or is too old, or it was told to stop.
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub(crate) fn storage(args: &StorageArgs) -> Result<Exit, CliError> {
    use super::{cancel_on_signal, failed, tables};
    use crate::{output, redact};

    redact::register_url(&args.database);
    let cancel = cancel_on_signal()?;
    let line = super::progress::Line::start("tables");
    let began = std::time::Instant::now();
    let step = |done: usize, all: usize| line.steps(done, all, began.elapsed());
    let bytes = handstamp_lab::storage::run(&args.database, args.rows, args.runs, &cancel, &step);
    drop(line);
    let bytes = bytes.map_err(failed)?;
    if args.json {
        output::print_json(&serde_json::json!({ "rows": args.rows, "bytes_per_id": bytes }))?;
    } else {
        output::print(&tables::bytes(&bytes))?;
    }
    Ok(Exit::Ok)
}
