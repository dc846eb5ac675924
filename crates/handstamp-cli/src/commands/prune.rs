//! `prune`: ids that can no longer come again are forgotten.
//!
//! Authoritative: what the brokers say of the topics, asked each time, and the store's clock. What was answered is
//! deleted; the same command again goes on with the rest.

use crate::backend::{Backend, forgetting, source, windows, with_backend};
use crate::cli::PruneArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::findings::Findings;
use crate::output::{self, live::Progress, table};
use crate::signals;
use handstamp_core::pruner::{self, Pruned};
use handstamp_core::retention::{self, Needed, Refusal, Shown, SourceWindow, Window};
use handstamp_core::{ConsumerKey, Fingerprint, PruneStore, Retention};
use serde_json::{Value, json};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Duration;

/// Most ids that a dry run counts.
const COUNT_MAX: u32 = 1_000_000;
/// A pass of its own pauses for as long as its last step took.
const PAUSES: u32 = 1;

/// Forgets what is old enough.
///
/// # Errors
/// There is no `[retention]`, it is too short, or what source and store answered.
pub(crate) fn prune(args: &PruneArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::SourceAndStore)?;
    let Some(retention) = config.retention else {
        return Err(CliError::usage("[retention] is missing: every id is kept for good")
            .hint("write `[retention]` and `keep = \"14d\"`, for as long as a message can come again"));
    };
    let stop = signals::listen(config.options.shutdown_timeout, |_| {})?;
    let runtime = super::runtime()?;
    let local = tokio::task::LocalSet::new();
    let job = Job { config: &config, retention, args };
    let done = with_backend!(&config, backend => local.block_on(&runtime, run(&backend, &job, stop)))?;
    if args.json {
        output::print_json(&done.object(&job))?;
    } else {
        output::print(&done.text(&job))?;
    }
    if done.pruned.stopped {
        output::say("stopped: what was said is deleted, and the same command goes on with the rest");
    }
    Ok(Exit::Ok)
}

/// What `--json` prints of a command that did nothing.
pub(crate) fn nothing() -> Value {
    json!({ "consumer": null, "dry_run": false, "would_delete": null, "deleted_ids": 0, "deleted_attempts": 0,
        "batches": 0, "stopped": false, "keep_seconds": null, "needed_seconds": null, "oldest_parked_seconds": null,
        "windows": [], "forgotten_before": null })
}

struct Job<'a> {
    config: &'a Config,
    retention: Retention,
    args: &'a PruneArgs,
}

/// What a command did.
#[derive(Default)]
struct Done {
    judged: Judged,
    pruned: Pruned,
    would_delete: Option<u64>,
    forgotten_before: Option<String>,
}

/// What the source and the store say of a retention.
#[derive(Debug, Default)]
pub(super) struct Judged {
    windows: Vec<SourceWindow>,
    oldest_parked: Option<Duration>,
    /// `None`: it is refused.
    needed: Option<Needed>,
}

/// Asks the brokers and the store, and judges.
///
/// # Errors
/// The refusal with its numbers, or that one of them cannot be asked.
pub(super) async fn judge<B: Backend>(
    store: &B::Store,
    config: &Config,
    retention: &Retention,
    consumer: Option<&ConsumerKey>,
) -> Result<Result<Judged, (Refusal, Judged)>, CliError> {
    let windows = windows::windows(config).await?;
    let oldest_parked = match consumer {
        Some(consumer) => forgetting::oldest_parked(store, consumer).await?,
        None => None,
    };
    let verdict = retention::judge(retention, &windows, oldest_parked);
    let judged = |needed| Judged { windows, oldest_parked, needed };
    Ok(match verdict {
        Ok(needed) => Ok(judged(Some(needed))),
        Err(refusal) => Err((refusal, judged(None))),
    })
}

/// The refusal as an error, with what to do.
pub(super) fn refused(refusal: &Refusal) -> CliError {
    let hint = todo(refusal);
    CliError::new(Exit::CheckFailed, format!("nothing was deleted: {refusal}")).hint(hint)
}

fn todo(refusal: &Refusal) -> String {
    match refusal {
        Refusal::UnknownWindow { .. } => {
            "write `accept_window = \"30d\"` into [retention] if you answer for it that \
                                          nothing older is delivered again; whatever is will be applied again"
                .to_owned()
        }
        Refusal::TooShort { needed, .. } => {
            format!("make `keep` of [retention] at least \"{}\"", written(needed.at_least))
        }
    }
}

/// A time as the file takes it, rounded up to a second.
fn written(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

async fn run<B: Backend>(backend: &B, job: &Job<'_>, stop: signals::Stop) -> Result<Done, CliError> {
    let fingerprint = source::source(job.config, true, None)?.fingerprint();
    let store = backend.existing(job.config).await?;
    let consumer = forgetting::key::<B>(&store, job.config, &fingerprint).await?;
    let judged = match judge::<B>(&store, job.config, &job.retention, consumer.as_ref()).await? {
        Ok(judged) => judged,
        Err((refusal, judged)) => {
            let mut error = refused(&refusal);
            error.object = Some(Box::new(Done { judged, ..Done::default() }.object(job)));
            return Err(error);
        }
    };
    let mut done = Done { judged, ..Done::default() };
    let Some(consumer) = consumer else {
        done.would_delete = job.args.dry_run.then_some(0);
        return Ok(done);
    };
    let older_than = job.retention.delete_after();
    if job.args.dry_run {
        done.would_delete = Some(store.prunable(&consumer, older_than, COUNT_MAX).await?);
    } else {
        done.pruned = pass(&*store, &consumer, older_than, job, stop).await?;
    }
    done.forgotten_before = store.forgotten_before(&consumer).await?.map(|time| time.to_string());
    Ok(done)
}

async fn pass<S: PruneStore>(
    store: &S,
    consumer: &ConsumerKey,
    older_than: Duration,
    job: &Job<'_>,
    stop: signals::Stop,
) -> Result<Pruned, CliError> {
    let asked = Cell::new(false);
    let mut progress = Progress::start();
    let after_each = |pruned: &Pruned| {
        progress.show(&format!("deleted {} ids", table::grouped(pruned.ids)));
        if asked.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let passed = pruner::pass(store, consumer, older_than, PAUSES, after_each);
    let waited = async {
        stop.asked().await;
        asked.set(true);
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        biased;
        () = waited => return Ok(Pruned { stopped: true, ..Pruned::default() }),
        outcome = passed => outcome,
    };
    outcome.map_err(|failed| {
        let mut error = CliError::from(failed.error);
        let done = Done { pruned: failed.pruned, ..Done::default() };
        error.object = Some(Box::new(done.object(job)));
        error.hint("what was deleted is gone; the same command goes on with the rest")
    })
}

impl Done {
    fn text(&self, job: &Job<'_>) -> String {
        let mut lines = vec![];
        if let Some(count) = self.would_delete {
            let at_least = if count >= u64::from(COUNT_MAX) { "at least " } else { "" };
            lines.push(format!("{at_least}{} ids would be forgotten", table::grouped(count)));
        } else {
            let Pruned { ids, attempts, batches, .. } = self.pruned;
            let (ids, attempts) = (table::grouped(ids), table::grouped(attempts));
            lines.push(format!("forgot {ids} ids and {attempts} failed attempts in {batches} batches"));
        }
        let (keep, needed) = (job.retention.keep, self.judged.needed.as_ref());
        if let Some(needed) = needed {
            lines.push(format!(
                "kept: {}; needed: {} ({})",
                Shown(keep),
                Shown(needed.at_least),
                needed.sum()
            ));
        }
        if let Some(before) = &self.forgotten_before {
            lines.push(format!(
                "an id that was first seen before {before} is applied again if it comes again"
            ));
        }
        lines.join("\n") + "\n"
    }

    fn object(&self, job: &Job<'_>) -> Value {
        let seconds = |time: Duration| time.as_secs();
        let judged = &self.judged;
        json!({
            "error": null,
            "exit_code": Exit::Ok.code(),
            "consumer": job.config.name.as_str(),
            "dry_run": job.args.dry_run,
            "would_delete": self.would_delete,
            "deleted_ids": self.pruned.ids,
            "deleted_attempts": self.pruned.attempts,
            "batches": self.pruned.batches,
            "stopped": self.pruned.stopped,
            "keep_seconds": seconds(job.retention.keep),
            "needed_seconds": judged.needed.as_ref().map(|needed| seconds(needed.at_least)),
            "oldest_parked_seconds": judged.oldest_parked.map(seconds),
            "windows": judged.windows.iter().map(window).collect::<Vec<Value>>(),
            "forgotten_before": self.forgotten_before,
        })
    }
}

fn window(of: &SourceWindow) -> Value {
    let (retention, segment, why) = match &of.window {
        Window::Known { retention, segment } => (Some(retention.as_secs()), Some(segment.as_secs()), None),
        Window::Unknown { why } => (None, None, Some(why)),
    };
    json!({ "name": of.name, "retention_seconds": retention, "segment_seconds": segment, "unknown": why })
}

/// For `check`: whether the retention would be refused, and that nothing is forgotten without one.
pub(super) async fn check<B: Backend>(
    backend: &B,
    config: &Config,
    fingerprint: &Fingerprint,
    findings: &mut Findings,
) {
    let Some(retention) = config.retention else {
        return findings.ok("retention: none, so ids are kept for good");
    };
    // What keeps either of them from being asked is found beside.
    let Ok(store) = backend.existing(config).await else { return };
    let Ok(consumer) = forgetting::key::<B>(&store, config, fingerprint).await else { return };
    match judge::<B>(&store, config, &retention, consumer.as_ref()).await {
        Ok(Ok(judged)) => {
            let needed = judged.needed.map(|needed| (Shown(needed.at_least).to_string(), needed.sum()));
            let (at_least, sum) = needed.unwrap_or_default();
            findings.ok(format!(
                "retention: ids are kept for {}; needed: {at_least} ({sum})",
                Shown(retention.keep)
            ));
        }
        Ok(Err((refusal, _))) => {
            findings.fail(format!("retention: nothing will be deleted: {refusal}"), todo(&refusal));
        }
        Err(_) => {}
    }
}
