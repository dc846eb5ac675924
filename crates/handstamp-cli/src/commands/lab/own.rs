//! `lab own`: thin; what it does is in the lab.

#[cfg(not(feature = "kafka"))]
use crate::exit::{CliError, Exit};
use clap::Args;
use std::path::PathBuf;

/// `lab own`.
#[derive(Debug, Args)]
pub(crate) struct OwnArgs {
    /// What is sent and done, and how effects are counted.
    #[arg(long, default_value = "lab.toml", value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Kafka's bootstrap servers; without them a broker inside this program stands in.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of a Postgres server, where the run makes a database of its own; without it
    /// DATABASE_URL is the path of a new SQLite file.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Decides messages and faults, instead of the file's.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// A new folder for history, log and outcome.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// The consumer and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

/// Refuses: without a Kafka client nothing can be sent.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kafka"))]
pub(crate) fn own(_: &OwnArgs) -> Result<Exit, CliError> {
    Err(super::no_kafka())
}

#[cfg(feature = "kafka")]
pub(crate) use with_kafka::own;

#[cfg(feature = "kafka")]
mod with_kafka {
    use super::OwnArgs;
    use crate::commands::lab::ground::{broker, place};
    use crate::commands::lab::{cancel_on_signal, failed, folder};
    use crate::config::load_lab;
    use crate::exit::{CliError, Exit};
    use crate::output;
    use handstamp_lab::ledger::Place;
    use handstamp_lab::own::{self, Conclusion, Done, Fault, Outcome};
    use std::fmt::Write as _;
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    /// How often the stage is said.
    const SAY_EVERY: Duration = Duration::from_secs(5);

    /// Runs the user's consumer and says what became of its effects.
    ///
    /// # Errors
    /// Why it could not go on; a verdict is an exit code.
    pub(crate) fn own(args: &OwnArgs) -> Result<Exit, CliError> {
        let mut settings = load_lab(&args.config, &args.program)?;
        settings.seed = args.seed.unwrap_or(settings.seed);
        let settings = settings.checked(args.database.is_none()).map_err(failed)?;
        let cancel = cancel_on_signal()?;
        let folder = folder::named_or_fresh(args.out.as_ref(), "own");
        if folder.join(folder::OUTCOME_FILE).exists() {
            return Err(folder::taken(&folder, "name another folder with --out"));
        }
        let folder = folder::make(&folder)?;
        let broker = broker(args.brokers.as_deref())?;
        let place: Place = place(args.database.as_deref(), &folder)?;
        output::say(&format!(
            "{} messages to {} copies on {}; {} kills, {} stops, {} cuts (seed {})\nhistory: {}",
            settings.messages.count,
            settings.copies,
            broker.describe(),
            settings.faults.kills,
            settings.faults.stops,
            settings.faults.cuts,
            settings.seed,
            folder.display()
        ));
        let said = Mutex::new(Instant::now());
        let progress = |stage: own::Stage| {
            let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if said.elapsed() >= SAY_EVERY {
                *said = Instant::now();
                output::say(&format!(
                    "{} of {} faults done, {} of {} messages applied",
                    stage.faults, stage.of, stage.applied, stage.good
                ));
            }
        };
        let outcome = own::run(&settings, &broker, &place, &folder, &cancel, &progress).map_err(failed)?;
        print(&outcome, &folder, args.json)
    }

    fn print(outcome: &Outcome, folder: &Path, json: bool) -> Result<Exit, CliError> {
        output::print_result(json, &folder::keep(outcome, folder)?, &told(outcome))?;
        Ok(match &outcome.conclusion {
            Conclusion::Kept => Exit::Ok,
            Conclusion::Violated(_) => Exit::CheckFailed,
            Conclusion::Inconclusive(_) => Exit::Inconclusive,
        })
    }

    /// The outcome for a person.
    fn told(outcome: &Outcome) -> String {
        let mut text = format!(
            "sent     {} messages in {} records: {} twice, {} out of order, {} bad\n",
            outcome.good + outcome.bad,
            outcome.records,
            outcome.duplicates,
            outcome.reordered,
            outcome.bad
        );
        // Writing to a string does not fail.
        let _ = writeln!(text, "doubled  {}", named(outcome.doubled, outcome.doubled_ids.iter().map(times)));
        let _ = writeln!(text, "missing  {}", named(outcome.missing, outcome.missing_ids.iter().cloned()));
        if outcome.bad_applied > 0 {
            let _ = writeln!(text, "bad ones with an effect  {}", outcome.bad_applied);
        }
        if outcome.unsent > 0 {
            let _ = writeln!(text, "effects of ids that nobody sent  {}", outcome.unsent);
        }
        if outcome.ended_by_itself > 0 {
            let _ = writeln!(text, "copies that ended by themselves  {}", outcome.ended_by_itself);
        }
        if !outcome.schedule.is_empty() {
            let _ = writeln!(text, "schedule (seed {})", outcome.seed);
        }
        for done in &outcome.schedule {
            let _ = writeln!(text, "  {}", line(done));
        }
        for note in &outcome.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text.push_str(&match &outcome.conclusion {
            Conclusion::Kept => "kept: every message had its effect once\n".to_owned(),
            Conclusion::Violated(why) => format!("VIOLATED: {}\n", why.join("; ")),
            Conclusion::Inconclusive(why) => format!("proves nothing: {}\n", why.join("; ")),
        });
        text
    }

    fn times((id, times): &(String, u64)) -> String {
        format!("{id} ({times} times)")
    }

    fn named(many: u64, ids: impl Iterator<Item = String>) -> String {
        let ids: Vec<String> = ids.collect();
        match ids.len() {
            0 => many.to_string(),
            named => {
                let first =
                    if u64::try_from(named).is_ok_and(|named| named < many) { "the first: " } else { "" };
                format!("{many}: {first}{}", ids.join(", "))
            }
        }
    }

    fn line(done: &Done) -> String {
        let what = match done.fault {
            Fault::Kill => format!("copy {} killed", done.copy),
            Fault::Stop { for_ms } => format!("copy {} stopped for {}", done.copy, seconds(for_ms)),
            Fault::Cut => "connections to the database cut".to_owned(),
        };
        let counts = if done.counts { "" } else { " (does not count)" };
        format!("{:>8}  {what}, {} messages left{counts}", seconds(done.at_ms), done.left)
    }

    fn seconds(ms: u64) -> String {
        format!("{}.{} s", ms / 1000, ms % 1000 / 100)
    }
}
