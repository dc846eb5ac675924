//! `lab clean`: thin; what it does is in the lab.

use crate::exit::{CliError, Exit};
use clap::Args;
use std::time::Duration;

/// `lab clean`.
#[derive(Debug, Args)]
pub(crate) struct CleanArgs {
    /// Kafka's bootstrap servers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of the Postgres database in which the runs made schemas.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Only what began so long ago: a run on another machine may still be under way.
    #[arg(long, value_name = "TIME", default_value = "1day", value_parser = humantime::parse_duration)]
    pub(crate) older_than: Duration,
    /// Remove it, instead of only listing it.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Refuses: without both clients there is nothing to ask.
///
/// # Errors
/// Always.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
pub(crate) fn clean(_: &CleanArgs) -> Result<Exit, CliError> {
    Err(super::no_clients())
}

/// Lists what dead runs left on servers, or removes it.
///
/// # Errors
/// No server was named, or one does not answer or refuses.
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub(crate) fn clean(args: &CleanArgs) -> Result<Exit, CliError> {
    use super::failed;
    use crate::{output, redact};
    use handstamp_lab::broker::Broker;
    use handstamp_lab::clean::{self, Left};

    if args.brokers.is_none() && args.database.is_none() {
        return Err(CliError::usage("name the servers to look at: --brokers, --database, or both"));
    }
    if let Some(url) = &args.database {
        redact::register_url(url);
    }
    let broker = args.brokers.as_deref().map(Broker::kafka).transpose().map_err(failed)?;
    let database = args.database.as_deref();
    let all = clean::found(broker.as_ref(), database).map_err(failed)?;
    let dead: Vec<&Left> = all.iter().filter(|one| one.is_dead(args.older_than)).collect();
    if args.yes {
        clean::remove(&dead, broker.as_ref(), database).map_err(failed)?;
    }
    let kept = all.len() - dead.len();
    if args.json {
        let left: Vec<_> = dead.iter().map(|one| object(one, args.yes)).collect();
        output::print_json(&serde_json::json!({ "left": left, "not_dead": kept }))?;
    } else {
        output::print(&told(&dead, kept, args.yes))?;
    }
    Ok(Exit::Ok)
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
fn object(one: &handstamp_lab::clean::Left, removed: bool) -> serde_json::Value {
    serde_json::json!({
        "what": one.what,
        "name": one.name,
        "begun": humantime::format_rfc3339_seconds(one.mark.begun).to_string(),
        "pid": one.mark.pid,
        "removed": removed,
    })
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
fn told(dead: &[&handstamp_lab::clean::Left], kept: usize, removed: bool) -> String {
    let rows = dead.iter().map(|one| {
        let begun = humantime::format_rfc3339_seconds(one.mark.begun).to_string();
        vec![one.what.word().to_owned(), one.name.clone(), begun, one.mark.pid.to_string()]
    });
    let mut text = match dead.len() {
        0 => "no dead run left anything that is old enough\n".to_owned(),
        _ => crate::output::table::plain(&["left", "name", "begun", "process"], rows.collect()),
    };
    match (dead.len(), removed) {
        (0, _) => {}
        (count, true) => text.push_str(&format!("removed: {count}\n")),
        (count, false) => text.push_str(&format!("{count} to remove: add --yes\n")),
    }
    if kept > 0 {
        let more = if dead.is_empty() { "" } else { " more" };
        text.push_str(&format!(
            "{kept}{more} of runs that are younger, or whose process may still run here: \
             `--older-than 0s` takes the younger ones too\n"
        ));
    }
    text
}

#[cfg(all(test, feature = "kafka", feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn younger_leftovers_name_the_option_that_takes_them() {
        let text = told(&[], 2, false);
        assert!(text.contains("2 of runs that are younger") && text.contains("`--older-than 0s`"), "{text}");
        assert!(!told(&[], 0, false).contains("--older-than"));
    }
}
