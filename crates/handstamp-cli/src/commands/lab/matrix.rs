//! `lab matrix`: thin; what it does is in the lab.
//!
//! Without the feature `crash-points` both commands that need a crash point exit 2 and say how to build a
//! program that has them.

#[cfg(not(feature = "crash-points"))]
use crate::exit::{CliError, Exit};
use clap::Args;

/// `lab matrix`.
#[derive(Debug, Args)]
pub(crate) struct MatrixArgs {
    /// Kafka's bootstrap servers; without them librdkafka's mock cluster stands in.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of a Postgres database, where the lab makes schemas of its own; without it the
    /// matrix has SQLite alone.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Only this point, at its n-th time if told so; may be given many times.
    #[arg(long, value_name = "POINT[:NTH]")]
    pub(crate) at: Vec<String>,
    /// Only this source: file or kafka.
    #[arg(long, value_name = "TYPE")]
    pub(crate) source: Option<String>,
    /// Only this store: sqlite or postgres.
    #[arg(long, value_name = "TYPE")]
    pub(crate) store: Option<String>,
    /// `session.timeout.ms` of the Kafka consumers: so long the group waits for one that died. A broker has a
    /// least value of its own (6s by default); default: 6s, or 2s on the broker inside.
    #[arg(long, value_name = "TIME", value_parser = super::options::time)]
    pub(crate) session_timeout: Option<std::time::Duration>,
    /// How often the program dies in each cell before it is left alone.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) kills: u32,
    /// How many cells run at a time.
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) side_by_side: u8,
    /// Decides ids and amounts.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    /// A new folder for histories, log and report.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<std::path::PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lab broken-subject`, which the matrix starts for its controls.
#[cfg(feature = "crash-points")]
#[derive(Debug, Args)]
pub(crate) struct BrokenArgs {
    /// What is broken: no-inbox, settle-first or done-first.
    pub(crate) broken: String,
    #[command(flatten)]
    pub(crate) run: crate::cli::RunArgs,
}

/// Asked for a crash point that this program does not have.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn no_crash_points() -> CliError {
    CliError::usage("this program was built without crash points, so that it can never end at one by mistake")
        .hint("build one that has them: `cargo build --release -p handstamp-cli --features crash-points`")
}

/// Refuses.
///
/// # Errors
/// Always.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn matrix(_: &MatrixArgs) -> Result<Exit, CliError> {
    Err(no_crash_points())
}

#[cfg(feature = "crash-points")]
pub(crate) use with_points::{arm, broken_subject, matrix};

#[cfg(feature = "crash-points")]
mod with_points {
    use super::{BrokenArgs, MatrixArgs};
    use crate::backend::{Backend, source, with_backend};
    use crate::cli::RunArgs;
    use crate::commands::lab::{cancel_on_signal, failed, folder, matrix_table, this_program};
    use crate::commands::run;
    use crate::config::{self, Config};
    use crate::exit::{CliError, Exit};
    use crate::output::{self, live};
    use crate::redact;
    use crate::signals;
    use handstamp_core::Consumer;
    use handstamp_lab::bent::{BentSource, BentStore};
    use handstamp_lab::crash::{self, CrashAt};
    use handstamp_lab::matrix::record::{self, Settings};
    use handstamp_lab::matrix::{self, Broken, Cell, Options, SourceKind, StoreKind};
    use handstamp_lab::names::{self, LAB};
    use std::time::Duration;

    /// Arms the point that the environment asks for, whatever the command.
    ///
    /// # Errors
    /// It asks for a point that is none.
    pub(crate) fn arm() -> Result<(), CliError> {
        let Some(at) = std::env::var_os(crash::CRASH_AT) else { return Ok(()) };
        let at: CrashAt = at.to_string_lossy().parse().map_err(failed)?;
        tracing::warn!(%at, "this process ends itself at a crash point");
        crash::arm(at, std::env::var_os(crash::CRASH_MARK).map(Into::into)).map_err(failed)
    }

    /// Runs the matrix, or what was chosen of it.
    ///
    /// # Errors
    /// A server does not answer, or a consumer does what no crash explains.
    pub(crate) fn matrix(args: &MatrixArgs) -> Result<Exit, CliError> {
        if let Some(url) = &args.database {
            redact::register_url(url);
        }
        let cells = chosen(args)?;
        let name = format!("{LAB}matrix_{}", names::token());
        let session = Duration::from_secs(if args.brokers.is_some() { 6 } else { 2 });
        let session = args.session_timeout.unwrap_or(session).max(Duration::from_millis(500));
        let options = Options {
            program: this_program()?,
            folder: std::env::temp_dir().join(&name),
            record: record_folder(args)?,
            name,
            #[cfg(feature = "kafka")]
            broker: broker(args, &cells)?,
            #[cfg(feature = "postgres")]
            database: args.database.clone(),
            seed: args.seed,
            side_by_side: usize::from(args.side_by_side),
            kills: args.kills,
            session_timeout_ms: u64::try_from(session.as_millis()).unwrap_or(u64::MAX),
        };
        let cancel = cancel_on_signal()?;
        #[cfg(feature = "kafka")]
        options.broker.iter().for_each(|broker| broker.stops_with(&cancel));
        let named = cells.iter().map(Cell::named).collect();
        keep_settings(args, &options, named)?;
        output::say(&format!("histories: {}", options.record.display()));
        let total = cells.len();
        let mut done = 0;
        let outcomes = matrix::run(&options, &cells, &cancel, |outcome| {
            done += 1;
            output::say(&format!("{done}/{total} {}: {}", outcome.cell, outcome.words()));
        });
        live::clear();
        outcomes.map_err(failed)?;
        let record = record::recompute(&options.record).map_err(failed)?;
        matrix_table::print(&record, &options.record, args.json)
    }

    /// The folder that stays.
    fn record_folder(args: &MatrixArgs) -> Result<std::path::PathBuf, CliError> {
        let folder = folder::named_or_fresh(args.out.as_ref(), "matrix");
        if folder.join(record::SETTINGS_FILE).exists() {
            return Err(folder::taken(&folder, "name another folder with --out"));
        }
        folder::make(&folder)
    }

    /// Says in the folder what was asked for, before anything is started.
    fn keep_settings(
        args: &MatrixArgs,
        options: &Options,
        cells: Vec<matrix::Named>,
    ) -> Result<(), CliError> {
        let place = place(args, options, &cells)?;
        let settings = Settings {
            seed: options.seed,
            kills: options.kills,
            session_timeout_ms: options.session_timeout_ms,
            side_by_side: options.side_by_side,
            place,
            cells,
        };
        settings.save(&options.record).map_err(failed)?;
        #[cfg(feature = "kafka")]
        handstamp_lab::report::note(&options.record, &settings.place, &serde_json::Value::Null)
            .map_err(failed)?;
        Ok(())
    }

    /// What the cells run on, with versions as far as servers tell them.
    fn place(args: &MatrixArgs, options: &Options, cells: &[matrix::Named]) -> Result<String, CliError> {
        let mut words = Vec::new();
        if cells.iter().any(|cell| cell.source == SourceKind::File) {
            words.push("files".to_owned());
        }
        #[cfg(feature = "kafka")]
        words.extend(options.broker.as_ref().map(handstamp_lab::broker::Broker::describe));
        for kind in [StoreKind::Sqlite, StoreKind::Postgres] {
            if cells.iter().any(|cell| cell.store == kind) {
                words.push(store(args, options, kind)?);
            }
        }
        Ok(words.join("; "))
    }

    fn store(args: &MatrixArgs, options: &Options, kind: StoreKind) -> Result<String, CliError> {
        let place = match (kind, &args.database) {
            #[cfg(feature = "postgres")]
            (StoreKind::Postgres, Some(url)) => handstamp_lab::ledger::Place::Postgres(url.clone()),
            _ => handstamp_lab::ledger::Place::Sqlite(options.record.clone()),
        };
        handstamp_lab::ledger::probe(&place).map_err(failed)
    }

    /// The broker that the cells need, if they do.
    #[cfg(feature = "kafka")]
    fn broker(args: &MatrixArgs, cells: &[Cell]) -> Result<Option<handstamp_lab::broker::Broker>, CliError> {
        if cells.iter().all(|cell| cell.source != SourceKind::Kafka) {
            return Ok(None);
        }
        crate::commands::lab::ground::broker(args.brokers.as_deref()).map(Some)
    }

    fn chosen(args: &MatrixArgs) -> Result<Vec<Cell>, CliError> {
        let sources: Vec<SourceKind> = [SourceKind::File, SourceKind::Kafka]
            .into_iter()
            .filter(|kind| args.source.as_deref().is_none_or(|wanted| wanted == kind.as_str()))
            .filter(|kind| cfg!(feature = "kafka") || *kind != SourceKind::Kafka)
            .collect();
        let stores: Vec<StoreKind> = [StoreKind::Sqlite, StoreKind::Postgres]
            .into_iter()
            .filter(|kind| args.store.as_deref().is_none_or(|wanted| wanted == kind.as_str()))
            .filter(|kind| *kind != StoreKind::Postgres || args.database.is_some())
            .collect();
        if sources.is_empty() || stores.is_empty() {
            let text = "there is no such source or store in this build, or no --database was given";
            return Err(CliError::usage(text));
        }
        let mut cells = matrix::cells(&sources, &stores);
        if args.at.is_empty() {
            cells.extend(matrix::controls(&sources, &stores));
            return Ok(cells);
        }
        let mut chosen = vec![];
        for wanted in &args.at {
            let at: CrashAt = wanted.parse().map_err(failed)?;
            let numbered = wanted.contains(':');
            let of_point = cells.iter().filter(|cell| cell.point == at.point);
            chosen
                .extend(of_point.map(|cell| Cell { nth: if numbered { at.nth } else { cell.nth }, ..*cell }));
        }
        if chosen.is_empty() {
            return Err(CliError::usage("no consumer on this source can reach that point"));
        }
        Ok(chosen)
    }

    /// Runs a pipeline with a consumer that is broken on purpose: the matrix's control.
    ///
    /// # Errors
    /// As of `run`.
    pub(crate) fn broken_subject(args: &BrokenArgs) -> Result<Exit, CliError> {
        let broken = Broken::from_name(&args.broken)
            .ok_or_else(|| CliError::usage(format!("{:?}: nothing is broken that way", args.broken)))?;
        let config = config::load(&args.run.file, config::Uses::PipelineAndMigration)?;
        let stop = signals::listen(config.options.shutdown_timeout, |_| {})?;
        let runtime = crate::commands::runtime()?;
        let local = tokio::task::LocalSet::new();
        with_backend!(&config, backend => {
            local.block_on(&runtime, run_broken(&backend, &config, &args.run, broken, stop))
        })
    }

    async fn run_broken<B: Backend>(
        backend: &B,
        config: &Config,
        args: &RunArgs,
        broken: Broken,
        stop: signals::Stop,
    ) -> Result<Exit, CliError> {
        let source = source::source(config, args.fail_fast, args.until_idle)?;
        // As `run` does, but a file's position is believed: that it is asked for is one of the safeguards.
        backend.migrate(config, None).await?;
        let (store, effects) = backend.open(config).await?;
        let consumer = Consumer::builder(config.name.clone())
            .source(BentSource::new(source, broken.settles()), config.identity.clone())
            .store(BentStore::new(store, broken))
            .batch_handler(effects)
            .options(run::options(config, args));
        match Box::pin(consumer.run_local(stop.asked())).await {
            Ok(_) => Ok(Exit::Ok),
            Err(error) => Err(CliError::from(&error)),
        }
    }
}
