//! `lab throughput` and `lab storage`: thin; what they do is in the lab.

use super::options::Servers;
use crate::exit::{CliError, Exit};
use clap::Args;
use std::path::PathBuf;

/// `lab throughput`.
#[derive(Debug, Args)]
pub(crate) struct ThroughputArgs {
    #[command(flatten)]
    pub(crate) servers: Servers,
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
    /// A new folder for the results and the report.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
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
    Err(super::no_kafka())
}

/// Refuses.
///
/// # Errors
/// Always.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
pub(crate) fn storage(_: &StorageArgs) -> Result<Exit, CliError> {
    Err(super::no_clients())
}

/// Measures messages a second, everybody in turn.
///
/// # Errors
/// The broker or the database does not answer, a consumer fails, or it was told to stop.
#[cfg(feature = "kafka")]
pub(crate) fn throughput(args: &ThroughputArgs) -> Result<Exit, CliError> {
    use super::ground::Ground;
    use super::{failed, folder, progress};
    use crate::output;
    use handstamp_lab::kill::{Profile, Settings};
    use handstamp_lab::{report, throughput};

    let folder = folder::named_or_fresh(args.out.as_ref(), "throughput");
    let ground = Ground::prepare(&folder, args.servers.brokers.as_deref(), args.servers.database.as_deref())?;
    let Ground { folder, servers, .. } = &ground;
    let settings =
        Settings { runs: args.runs, throughput_messages: args.messages, ..Settings::of(Profile::Quick) };
    let settings = settings.checked(false).map_err(failed)?;
    let asked = serde_json::json!({ "messages": args.messages, "runs": args.runs });
    report::same(folder, servers, &asked).map_err(failed)?;
    output::say(&format!(
        "{} messages, {} rounds, on {servers}\nresults: {}",
        args.messages,
        args.runs,
        folder.display()
    ));
    progress::steps("measurements", |step| throughput::run(&ground.around(&settings), step)).map_err(
        |error| {
            failed(error).hint(format!(
                "what was measured is kept: the same command with --out {} goes on",
                folder.display()
            ))
        },
    )?;
    show(folder, args.json)
}

/// Prints what a folder of `lab throughput` or `lab storage` holds, and writes its report.
///
/// # Errors
/// The folder holds no such results, or the report cannot be written.
#[cfg(feature = "kafka")]
pub(crate) fn show(folder: &std::path::Path, json: bool) -> Result<Exit, CliError> {
    use super::{failed, folder::tell_report, tables};
    use handstamp_lab::report;

    let mut object = report::asked(folder).map_err(failed)?;
    let (field, value, table) = match report::Kind::of(folder) {
        #[cfg(feature = "postgres")]
        Some(report::Kind::Storage) => {
            let bytes = report::read_storage(folder).map_err(failed)?;
            ("bytes_per_id", serde_json::json!(bytes), tables::bytes(&bytes))
        }
        _ => {
            let rates = report::read_rates(folder).map_err(failed)?;
            ("rates", serde_json::json!(rates), tables::rates(&rates))
        }
    };
    object[field] = value;
    crate::output::print_result(json, &object, &table)?;
    tell_report(folder)?;
    Ok(Exit::Ok)
}

/// Measures bytes per remembered id.
///
/// # Errors
/// The database does not answer or is too old, or it was told to stop.
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub(crate) fn storage(args: &StorageArgs) -> Result<Exit, CliError> {
    use super::{cancel_on_signal, failed, folder, progress};
    use crate::redact;
    use handstamp_lab::ledger::{self, Place};
    use handstamp_lab::{report, storage};

    redact::register_url(&args.database);
    let cancel = cancel_on_signal()?;
    let servers = ledger::probe(&Place::Postgres(args.database.clone())).map_err(failed)?;
    let folder = folder::make(&folder::named_or_fresh(args.out.as_ref(), "storage"))?;
    if report::Kind::of(&folder).is_some() {
        return Err(folder::taken(&folder, "name another folder with --out"));
    }
    let asked = serde_json::json!({ "rows": args.rows, "runs": args.runs });
    report::note(&folder, &servers, &asked).map_err(failed)?;
    let bytes =
        progress::steps("tables", |step| storage::run(&args.database, args.rows, args.runs, &cancel, step));
    report::keep_storage(&folder, &bytes.map_err(failed)?).map_err(failed)?;
    show(&folder, args.json)
}
