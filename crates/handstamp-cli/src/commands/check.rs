//! `check`: everything that would go wrong, found before it does.

use crate::backend::{Backend, NameInStore, with_backend};
use crate::cli::CheckArgs;
use crate::config::{self, Config};
use crate::exit::{CliError, Exit};
use crate::findings::Findings;
use crate::output;

/// Checks a pipeline. Nothing is consumed and nothing is written.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn check(args: &CheckArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file)?;
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
    fingerprint(&config, &name, &mut findings);
    source(&config, &name, &mut findings);
    if args.json {
        output::print_json(&findings.json())?;
    } else {
        output::print(&findings.text())?;
    }
    Ok(findings.exit())
}

async fn store(config: &Config, findings: &mut Findings) -> Result<NameInStore, CliError> {
    with_backend!(config, backend => Ok(backend.check(config, findings).await))
}

/// `run` refuses a name that is registered for another source.
fn fingerprint(config: &Config, name: &NameInStore, findings: &mut Findings) {
    let NameInStore::Known(row) = name else { return };
    // A source that cannot be made is found below.
    let Ok(source) = crate::backend::source::source(config, true) else { return };
    let wanted = source.fingerprint();
    if let Some(kept) = row.fingerprint.as_ref().filter(|kept| **kept != wanted) {
        findings.fail(
            format!(
                "consumer {} was registered for {kept}, not for {wanted}: they would share an inbox",
                row.name
            ),
            "choose another `name`, or take it over with `handstamp run FILE --adopt`",
        );
    }
}

#[cfg_attr(not(feature = "kafka"), allow(unused_variables, reason = "only a group can know a name"))]
fn source(config: &Config, name: &NameInStore, findings: &mut Findings) {
    match &config.source {
        #[cfg(feature = "file")]
        config::SourceSection::File(section) => file(config, section, findings),
        #[cfg(feature = "kafka")]
        config::SourceSection::Kafka(section) => {
            crate::backend::kafka::check(section, name, config, findings);
        }
        #[cfg(not(all(feature = "kafka", feature = "file")))]
        _ => {
            if let Err(error) = crate::backend::source::source(config, true) {
                findings.fail_error(&error, "see [source]");
            }
        }
    }
}

#[cfg(feature = "file")]
fn file(config: &Config, section: &config::FileSection, findings: &mut Findings) {
    let path = config.resolve(&section.path.value);
    if path == std::path::Path::new("-") {
        findings.ok("source: standard input");
        return;
    }
    match std::fs::File::open(&path).and_then(|file| file.metadata()) {
        Ok(data) if data.is_dir() => {
            findings.fail(format!("source: {} is a folder", path.display()), "name a file of JSON lines");
        }
        Ok(_) => findings.ok(format!("source: {} can be read", path.display())),
        Err(error) => findings.fail(
            format!("source: {} cannot be read: {error}", path.display()),
            "paths belong to the folder of the TOML file",
        ),
    }
}

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
    }
}

fn settings(config: &Config, findings: &mut Findings) {
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
