//! `check`: everything that would go wrong, found before it does.

use crate::backend::{Backend, NameInStore, Operations, source, with_backend};
use crate::cli::CheckArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::findings::Findings;
use crate::output;
use crate::peek;
use handstamp_core::StoreError;
use handstamp_stores::effect::SetRows;

/// Checks a pipeline. Nothing is consumed, and nothing that is written stays.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn check(args: &CheckArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Pipeline)?;
    if args.print {
        output::print(&config::effective(&config))?;
        return Ok(Exit::Ok);
    }
    let mut findings = Findings::default();
    findings.ok(format!("{}: read, {} effects", args.file.display(), config.effects.len()));
    effects(&config, &mut findings);
    settings(&config, &mut findings);
    let runtime = super::runtime()?;
    let name = runtime.block_on(store(&config, &mut findings)).unwrap_or_else(|error| {
        findings.fail_error(&error, "see [store]");
        NameInStore::NotAsked
    });
    if source::look(&config).into_findings(&mut findings) {
        cluster(&config, name, &mut findings);
        peek::look(&config, &mut findings);
    }
    // A store that cannot be asked is found above.
    let _ = runtime.block_on(retention(&config, &mut findings));
    if args.json {
        output::print_json(&findings.json())?;
    } else {
        output::print(&findings.text(output::width::columns()))?;
    }
    Ok(findings.exit())
}

async fn store(config: &Config, findings: &mut Findings) -> Result<NameInStore, CliError> {
    // Only what the source is called: what is wrong with it is found beside.
    let Ok(source) = source::source(config, true, None) else { return Ok(NameInStore::NotAsked) };
    let fingerprint = source.fingerprint();
    with_backend!(config, backend => {
        let name = backend.check(config, &fingerprint, findings).await;
        // What keeps the store from being asked is found above.
        if name == NameInStore::Known
            && let Ok(store) = backend.existing(config).await
            && let Ok(Some((what, todo))) = parked_unordered(&*store, config).await
        {
            findings.warn(what, todo);
        }
        Ok(name)
    })
}

/// Whether ids would be kept for long enough.
async fn retention(config: &Config, findings: &mut Findings) -> Result<(), CliError> {
    let Ok(source) = source::source(config, true, None) else { return Ok(()) };
    let fingerprint = source.fingerprint();
    with_backend!(config, backend => {
        super::prune::check(&backend, config, &fingerprint, findings).await;
        Ok(())
    })
}

/// Messages that were parked before the order of keys was kept have none: what follows them passes them. How
/// many there are, and what to do.
///
/// # Errors
/// What the store answered.
pub(super) async fn parked_unordered<S: Operations>(
    store: &S,
    config: &Config,
) -> Result<Option<(String, String)>, StoreError> {
    if config.options.order != handstamp_core::Order::Key {
        return Ok(None);
    }
    let count = store.parked_unordered(&config.name).await?;
    let what = format!(
        "consumer.order = \"key\": {count} messages were parked before it was set, and keep no order: later ones \
         of their keys go before them"
    );
    let todo = format!(
        "let them come to their end with the old order first: until `handstamp dlq parked {}` is empty",
        config.file.display()
    );
    Ok((count > 0).then_some((what, todo)))
}

/// What only the brokers know.
#[cfg(feature = "kafka")]
fn cluster(config: &Config, name: NameInStore, findings: &mut Findings) {
    if let config::SourceSection::Kafka(section) = &config.source {
        crate::backend::kafka::check(section, name, config, findings);
    }
}

#[cfg(not(feature = "kafka"))]
fn cluster(_: &Config, _: NameInStore, _: &mut Findings) {}

fn effects(config: &Config, findings: &mut Findings) {
    for (index, effect) in config.effects.iter().enumerate() {
        if effect.compiled.may_silently_hit_nothing() {
            findings.warn(
                format!(
                    "effect {} (line {}): an UPDATE or DELETE that hits no row goes unnoticed",
                    index + 1,
                    effect.line
                ),
                "add `expect_rows = 1`, or `expect_rows = \"any\"` to say that it may",
            );
        }
        if effect.compiled.set.as_ref().is_some_and(|set| set.expect == SetRows::Any) {
            findings.warn(
                format!(
                    "effect {} (line {}): it may touch any number of rows, so a message of a batch that it leaves out \
                     goes unnoticed",
                    index + 1,
                    effect.line
                ),
                "leave `expect_rows` out where each message is one row, or say how many with `expect_rows_sql`",
            );
        }
    }
}

/// What a failing message means for those behind it, and what cannot be as it is written.
fn order(config: &Config, findings: &mut Findings) {
    let options = &config.options;
    let follow = super::explain::words_on_followers(options);
    findings.ok(format!("order: {follow}"));
    if options.order == handstamp_core::Order::Key {
        match config.source {
            // A key stays in one partition as long as nobody adds partitions.
            config::SourceSection::Kafka(_) => {}
            config::SourceSection::File(_) => findings.warn(
                "consumer.order = \"key\": a line of a file has no key, so nothing is kept in order",
                "use \"partition\", with `on_failure = \"block\"` where lines must not overtake a failing one",
            ),
        }
    }
}

fn settings(config: &Config, findings: &mut Findings) {
    order(config, findings);
    super::versions::check(config, findings);
    super::routing::check(config, findings);
    crate::watch::check(config, findings);
    let options = &config.options;
    if options.concurrency > 1 && matches!(config.store, config::StoreSection::Sqlite(_)) {
        findings
            .warn("consumer.concurrency: SQLite has one writer, so more than 1 does nothing", "remove it");
    }
    if options.shutdown_timeout.as_secs() > 30 {
        findings.warn(
            "consumer.shutdown_timeout is longer than the 30s that most supervisors wait before SIGKILL",
            "keep it below your supervisor's limit",
        );
    }
    if options.handler_timeout > options.shutdown_timeout.saturating_mul(4) {
        findings.warn(
            "consumer.handler_timeout is much longer than shutdown_timeout: a stop may cut a batch short (exit 7; nothing is lost)",
            "bring them nearer together",
        );
    }
    if matches!(options.policy.on_id_reuse, handstamp_core::OnIdReuse::Count) {
        findings.warn(
            "consumer.on_id_reuse = \"count\": another body under a known id is only counted, its bytes are not kept",
            "use \"dead_letter\" unless the producer is known to reuse ids",
        );
    }
}
