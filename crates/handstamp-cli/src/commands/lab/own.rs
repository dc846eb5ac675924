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
    /// The brokers' listeners that send their clients to a proxy of the lab, and where they send them: two
    /// addresses for each broker, separated by commas. Needed for --broker-cuts.
    #[arg(long, value_name = "LISTENER=TOLD")]
    pub(crate) proxied: Option<String>,
    /// How often a copy is killed, instead of the file's.
    #[arg(long, value_name = "N")]
    pub(crate) kills: Option<u32>,
    /// How often a copy is stopped, instead of the file's.
    #[arg(long, value_name = "N")]
    pub(crate) stops: Option<u32>,
    /// How often every connection to the database is cut, instead of the file's.
    #[arg(long, value_name = "N")]
    pub(crate) cuts: Option<u32>,
    /// How often every connection to the brokers is cut, instead of the file's.
    #[arg(long, value_name = "N")]
    pub(crate) broker_cuts: Option<u32>,
    /// Decides messages and faults, instead of the file's.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// A new folder for history, log, outcome and report.
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
pub(crate) use with_kafka::{own, verify};

#[cfg(feature = "kafka")]
mod with_kafka {
    use super::OwnArgs;
    use crate::commands::lab::ground::{broker, place};
    use crate::commands::lab::{cancel_on_signal, failed, folder, own_text};
    use crate::config::load_lab;
    use crate::exit::{CliError, Exit};
    use crate::output;
    use handstamp_lab::broker::Broker;
    use handstamp_lab::ledger;
    use handstamp_lab::own::{self, Conclusion, Outcome, Settings};
    use handstamp_lab::report;
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    /// How often the stage is said.
    const SAY_EVERY: Duration = Duration::from_secs(5);
    /// Most faults of a kind.
    const FAULTS_MAX: u32 = 10_000;

    /// Runs the user's consumer and says what became of its effects.
    ///
    /// # Errors
    /// Why it could not go on; a verdict is an exit code.
    pub(crate) fn own(args: &OwnArgs) -> Result<Exit, CliError> {
        let settings = settings(args)?;
        let cancel = cancel_on_signal()?;
        let folder = folder::named_or_fresh(args.out.as_ref(), "own");
        if folder.join(own::SETTINGS_FILE).exists() || folder.join(folder::OUTCOME_FILE).exists() {
            return Err(folder::taken(&folder, "name another folder with --out"));
        }
        let folder = folder::make(&folder)?;
        let broker = match &args.brokers {
            Some(brokers) => Broker::kafka_with(brokers, &settings.broker.options).map_err(failed)?,
            None => broker(None)?,
        };
        broker.stops_with(&cancel);
        let place = place(args.database.as_deref(), &folder)?;
        let store = ledger::probe(&place).map_err(failed)?;
        let servers = format!("{}; {store}", broker.describe());
        report::note(&folder, &servers, &serde_json::Value::Null).map_err(failed)?;
        output::say(&format!("{}\nhistory: {}", own_text::intention(&settings, &servers), folder.display()));
        let ground = own::Ground {
            broker: &broker,
            place: &place,
            servers: &servers,
            folder: &folder,
            cancel: &cancel,
        };
        let (began, said) = (Instant::now(), Mutex::new(Instant::now()));
        let progress = |stage: own::Stage| {
            let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if said.elapsed() >= SAY_EVERY {
                *said = Instant::now();
                output::say(&own_text::stage(&stage, began.elapsed()));
            }
        };
        let outcome = own::run(&settings, &ground, &progress).map_err(failed)?;
        print(&outcome, &folder, args.json)
    }

    /// The file, and what the command line says instead.
    fn settings(args: &OwnArgs) -> Result<Settings, CliError> {
        if !args.config.exists() {
            return Err(no_file(&args.config));
        }
        let mut settings = load_lab(&args.config, &args.program)?;
        settings.seed = args.seed.unwrap_or(settings.seed);
        let faults = &mut settings.faults;
        for (name, asked, slot) in [
            ("--kills", args.kills, &mut faults.kills),
            ("--stops", args.stops, &mut faults.stops),
            ("--cuts", args.cuts, &mut faults.cuts),
            ("--broker-cuts", args.broker_cuts, &mut faults.broker_cuts),
        ] {
            *slot = asked.unwrap_or(*slot);
            if *slot > FAULTS_MAX {
                return Err(CliError::usage(format!("{name}: at most {FAULTS_MAX}")));
            }
        }
        settings.broker.proxied = args.proxied.clone().or(settings.broker.proxied);
        settings.checked(args.database.is_none(), args.brokers.is_none()).map_err(failed)
    }

    /// There is no file: what the shortest one says.
    fn no_file(file: &Path) -> CliError {
        CliError::usage(format!(
            "there is no {}: `lab own` needs one that says at least how your effects are counted:\n\n    [effects]\n    \
             # one row for each effect; its first column is the id\n    query = \"SELECT id FROM ledger\"\n",
            file.display()
        ))
        .hint("every key is described in docs/guides/test-your-consumer.md")
    }

    /// Recomputes what a folder proves, and prints it.
    ///
    /// # Errors
    /// A file of it cannot be read, or the report cannot be written.
    pub(crate) fn verify(folder: &Path, json: bool) -> Result<Exit, CliError> {
        print(&own::recompute(folder).map_err(failed)?, folder, json)
    }

    fn print(outcome: &Outcome, folder: &Path, json: bool) -> Result<Exit, CliError> {
        output::print_result(json, &folder::keep(outcome, folder)?, &own_text::told(outcome))?;
        folder::tell_report(folder)?;
        Ok(match &outcome.conclusion {
            Conclusion::Kept => Exit::Ok,
            Conclusion::Violated(_) => Exit::CheckFailed,
            Conclusion::Inconclusive(_) => Exit::Inconclusive,
        })
    }
}
