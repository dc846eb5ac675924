//! `run`: consume until told to stop.

use super::dry_run;
use super::left;
use crate::backend::{Backend, source, with_backend};
use crate::cli::RunArgs;
use crate::config::{self, Config, SourceSection, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, json, live::LiveLine, table};
use crate::signals::{self, Stop};
use crate::watch;
use handstamp_core::retry::Backoff;
use handstamp_core::telemetry::Vitals;
use handstamp_core::{
    BreakerState, Consumer, ConsumerOptions, Counts, LiveCounts, Report, RunError, RunErrorKind, StopReason,
    StoreError,
};
use handstamp_stores::redrive::Backlog;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait is said again.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Runs a pipeline.
///
/// # Errors
/// Whatever made it end before its time.
pub(crate) fn run(args: &RunArgs) -> Result<Exit, CliError> {
    let uses = if args.migrate { Uses::PipelineAndMigration } else { Uses::Pipeline };
    let config = Arc::new(config::load(&args.file, uses)?);
    let live: Arc<LiveCounts> = Arc::default();
    let stop = signals::listen(config.options.shutdown_timeout, cut_off(&config, args, Arc::clone(&live)))?;
    // Before the store is there: whoever probes is told what is waited for.
    let _watching = watch::start(&config, args.watch, &live, stop.clone())?;
    let runtime = super::runtime()?;
    let local = tokio::task::LocalSet::new();
    if args.dry_run {
        return with_backend!(&config, backend => runtime.block_on(dry_run::dry_run(&backend, &config, args, stop)));
    }
    with_backend!(&config, backend => local.block_on(&runtime, run_with(&backend, &config, args, &live, stop)))
}

/// What is printed when the process ends at once, whatever the engine's thread is in.
fn cut_off(config: &Config, args: &RunArgs, live: Arc<LiveCounts>) -> impl FnOnce(&CliError) + Send + use<> {
    let (json, name, started) = (args.json, config.name.clone(), Instant::now());
    move |error| {
        if json {
            let (counts, busy) = (live.snapshot(), live.busy());
            let report = Report { counts, busy, ..nothing_done(started) };
            let object = stopped_by_error(Some(name.as_str()), &report);
            // Nobody is left to hear of it.
            let _ = output::print_json(&error.to_json(&object));
        }
    }
}

async fn run_with<B: Backend>(
    backend: &B,
    config: &Config,
    args: &RunArgs,
    live: &Arc<LiveCounts>,
    stop: Stop,
) -> Result<Exit, CliError> {
    let started = Instant::now();
    // Before the store is opened: a mistake in the file must not wait for a database.
    source::look(config).refuse()?;
    let source = source::source(config, args.fail_fast, args.until_idle)?;
    let fingerprint = source.fingerprint();
    let opened = tokio::select! {
        biased;
        () = stop.clone().asked() => {
            output::say("stopped before anything was received");
            return finish(config, args, Ok(nothing_done(started)), None);
        }
        opened = prepare(backend, config, args, live.vitals()) => opened?,
        never = live.vitals().beats() => match never {},
    };
    let (store, effects) = opened;
    let asked_last = Arc::clone(&store);
    tracing::info!(consumer = %config.name, store = %backend.place(), "running");
    let forgetting = super::pruning::beside::<B>(Arc::clone(&store), config, fingerprint);
    let consumer = Consumer::builder(config.name.clone())
        .boxed_source(source, config.identity.clone())
        .shared_store(store)
        .batch_handler(effects)
        .options(options(config, args));
    let consumer = source::copying(consumer, config)?;
    let consumer = consumer.counting_into(Arc::clone(live));
    let live = LiveLine::start(Arc::clone(live));
    let result = tokio::select! {
        biased;
        result = Box::pin(consumer.run_local(stop.asked())) => result,
        never = forgetting => match never {},
    };
    drop(live);
    let is_away = result.as_ref().is_err_and(|error| !matches!(error.kind, RunErrorKind::Source(_)));
    let left = if is_away { None } else { left::ask(&*asked_last, config).await };
    finish(config, args, result, left)
}

/// Migrates if asked, opens the store, prepares the effects and asks the store whether the source's position
/// is its own; waits for a store that is away.
async fn prepare<B: Backend>(
    backend: &B,
    config: &Config,
    args: &RunArgs,
    vitals: &Vitals,
) -> Result<(Arc<B::Store>, B::Effects), CliError> {
    if args.migrate {
        let migrated = patiently(backend, args.fail_fast, vitals, || backend.migrate(config, None)).await?;
        for step in migrated.steps {
            tracing::info!("{step}");
        }
    }
    let opened = patiently(backend, args.fail_fast, vitals, || backend.open(config)).await?;
    let check = || source::check_position(backend, config);
    patiently(backend, args.fail_fast, vitals, check).await?;
    let count = || super::check::parked_unordered(&*opened.0, config);
    if let Some((what, todo)) = patiently(backend, args.fail_fast, vitals, count).await? {
        tracing::warn!("{what}; {todo}");
    }
    Ok(opened)
}

/// Tries again for as long as the store is away.
async fn patiently<B: Backend, T>(
    backend: &B,
    fail_fast: bool,
    vitals: &Vitals,
    mut attempt: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, CliError> {
    let mut tries = 0_u32;
    let mut said: Option<Instant> = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        vitals.store_failed(error.kind);
        if !source::is_away(&error) || fail_fast {
            return Err(error.into());
        }
        if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            said = Some(Instant::now());
            tracing::warn!(store = %backend.place(), %error, "the store is away; waiting for it");
        }
        let jitter = uuid::Uuid::new_v4().as_fields().0;
        tokio::time::sleep(Backoff::INFRASTRUCTURE.wait(tries, jitter)).await;
        tries = tries.saturating_add(1);
    }
}

pub(super) fn options(config: &Config, args: &RunArgs) -> ConsumerOptions {
    ConsumerOptions {
        until_idle: args.until_idle,
        messages_max: args.max_messages,
        adopt: args.adopt,
        fail_fast: args.fail_fast,
        node: node(),
        ..config.options.clone()
    }
}

/// What this process is called in the history of a message: host and process id.
fn node() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.as_deref().map(str::trim).filter(|host| !host.is_empty());
    format!("{}:{}", host.unwrap_or("unknown"), std::process::id())
}

fn finish(
    config: &Config,
    args: &RunArgs,
    result: Result<Report, RunError>,
    left: Option<Backlog>,
) -> Result<Exit, CliError> {
    let object = |mut object: Value| {
        object["left"] = left::object(left.as_ref());
        object
    };
    let text = |report: &Report| {
        let left = left.as_ref().map(|left| left::text(&args.file, left, output::width::columns()));
        format!("{}{}", table::report(report), left.unwrap_or_default())
    };
    match result {
        Ok(report) => {
            if args.json {
                output::print_json(&object(json::report(Some(config.name.as_str()), &report)))?;
            } else {
                output::print(&text(&report))?;
            }
            if let Some(words) = nothing_new(config, &report) {
                output::say(&words);
            }
            Ok(Exit::Ok)
        }
        Err(error) => {
            let mut failed = CliError::from(&error);
            match &error.report {
                Some(report) if args.json => {
                    let object = object(stopped_by_error(Some(config.name.as_str()), report));
                    failed.object = Some(Box::new(object));
                }
                Some(report) => output::print(&text(report))?,
                None => {}
            }
            Err(failed)
        }
    }
}

/// What `--json` prints of a run that ended before it had received anything.
pub(crate) fn nothing() -> Value {
    stopped_by_error(None, &nothing_done(Instant::now()))
}

fn stopped_by_error(consumer: Option<&str>, report: &Report) -> Value {
    let mut object = json::report(consumer, report);
    object["stopped"] = "error".into();
    object
}

/// The report of a run that was stopped before the store was there.
fn nothing_done(started: Instant) -> Report {
    Report {
        counts: Counts::default(),
        notices: BTreeMap::new(),
        lag: Vec::new(),
        breaker: BreakerState::Closed,
        took: started.elapsed(),
        busy: Duration::ZERO,
        stopped: StopReason::Asked,
    }
}

/// A word to those who run the same file again.
fn nothing_new(config: &Config, report: &Report) -> Option<String> {
    let SourceSection::File(section) = &config.source else { return None };
    let counts = &report.counts;
    if counts.received > 0 || counts.resumed > 0 || report.stopped != StopReason::SourceEnded {
        return None;
    }
    start_over(config, section)
}

#[cfg(feature = "file")]
fn start_over(config: &Config, section: &config::FileSection) -> Option<String> {
    let options = source::file_options(config, section);
    let position = options.position_path()?;
    let mut words = format!(
        "received 0: {} was read to its end before.\n  To read it again (everything will be a duplicate): rm {}",
        options.path.display(),
        position.display(),
    );
    if let config::StoreSection::Sqlite(sqlite) = &config.store {
        let store = config.resolve(&sqlite.path.value);
        words.push_str(&format!(
            "\n  To start over, balances, parked messages and dead letters included: rm {} {}*",
            position.display(),
            store.display()
        ));
    }
    Some(words)
}

#[cfg(not(feature = "file"))]
fn start_over<Section>(_: &Config, _: &Section) -> Option<String> {
    None
}
