//! `lab kill` and `lab verify`: thin; what they do is in the lab.

#[cfg(not(feature = "kafka"))]
use crate::exit::{CliError, Exit};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// `lab kill`.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// How much is done.
    #[arg(long, value_enum, default_value = "quick")]
    pub(crate) profile: ProfileName,
    /// Kafka's bootstrap servers; without them a broker inside this program stands in.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of a Postgres database, where the lab makes schemas of its own; without it the
    /// ledgers are SQLite files.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Who is killed, separated by commas; a1 and offset-first always are.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) subjects: Vec<String>,
    /// Kills in each run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) kills: Option<u32>,
    /// Runs of each subject.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) runs: Option<u32>,
    /// Credits in each run; more where the kills need more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) messages: Option<u64>,
    /// Work on each message beside the database.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) work: Option<Duration>,
    /// `session.timeout.ms` of the consumers; a broker has a least value of its own (6s by default).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) session_timeout: Option<Duration>,
    /// Messages of the measurement of messages a second; 0: it is left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) rate_messages: Option<u64>,
    /// Decides credits and kills.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// How many runs go on at the same time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) side_by_side: Option<u16>,
    /// A new folder for histories, logs and the report.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with what an earlier run left undone in its folder, with its settings.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["profile", "subjects", "kills", "runs", "messages", "work", "session_timeout", "rate_messages", "seed"])]
    pub(crate) resume: Option<PathBuf>,
    /// End the program at a named point, at its n-th time if told so; needs a program built with crash points.
    #[arg(long, value_name = "POINT[:NTH]")]
    pub(crate) at: Option<String>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lab verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The folder of a run.
    pub(crate) folder: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileName {
    /// Shows the differences in a minute and a half.
    Quick,
    /// 20 kills a run, 5 runs, every subject: about an hour.
    Source,
    /// As `source`, with as many kills and runs as asked for.
    Long,
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "write a time with its unit, such as 10ms or 6s".to_owned())?;
    if time > Duration::from_secs(3600) { Err("at most 1h".to_owned()) } else { Ok(time) }
}

/// Refuses: without a Kafka client there is nobody to kill.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kafka"))]
pub(crate) fn kill(args: &KillArgs) -> Result<Exit, CliError> {
    #[cfg(not(feature = "crash-points"))]
    if args.at.is_some() {
        return Err(super::matrix::no_crash_points());
    }
    let _ = args;
    Err(no_kafka())
}

/// Refuses, as above.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kafka"))]
pub(crate) fn verify(_: &VerifyArgs) -> Result<Exit, CliError> {
    Err(no_kafka())
}

/// Why there is no lab here.
#[cfg(not(feature = "kafka"))]
pub(crate) fn no_kafka() -> CliError {
    CliError::usage("this program was built without a Kafka client")
        .hint("build one that has it: `cargo build --release -p handstamp-cli`")
}

#[cfg(feature = "kafka")]
pub(crate) use with_kafka::{broker, exit, keep, kill, launch, make_folder, place, tell_report, verify};

#[cfg(feature = "kafka")]
mod with_kafka {
    use super::{KillArgs, ProfileName, VerifyArgs};
    use crate::commands::lab::{cancel_on_signal, failed, fresh_folder, progress::Line, tables};
    use crate::exit::{CliError, Exit};
    use crate::output;
    use crate::redact;
    use handstamp_lab::LabError;
    use handstamp_lab::broker::Broker;
    use handstamp_lab::kill::{self, Conclusion, Launch, Outcome, Profile, Settings, Surroundings};
    use handstamp_lab::ledger::{self, Place};
    use handstamp_lab::report;
    use handstamp_lab::subjects::Subject;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    /// Where the outcome lies beside the histories.
    const OUTCOME_FILE: &str = "outcome.json";

    /// Kills, and prints what that did.
    ///
    /// # Errors
    /// Why it could not go on; a verdict is an exit code.
    pub(crate) fn kill(args: &KillArgs) -> Result<Exit, CliError> {
        if let Some(at) = &args.at {
            return at_point(args, at);
        }
        let cancel = cancel_on_signal()?;
        let folder = match (&args.resume, &args.out) {
            (Some(folder), _) | (None, Some(folder)) => folder.clone(),
            (None, None) => fresh_folder("kill"),
        };
        if args.resume.is_none() && folder.join(kill::SETTINGS_FILE).exists() {
            return Err(CliError::usage(format!("{} holds a run already", folder.display()))
                .hint("go on with it by --resume, or name another folder with --out"));
        }
        let folder = make_folder(&folder)?;
        let broker = broker(args.brokers.as_deref())?;
        let place = place(args.database.as_deref(), &folder)?;
        let store = ledger::probe(&place).map_err(failed)?;
        let settings = settings(args, &folder, &place, &format!("{}; {store}", broker.describe()))?;
        report::note(&folder, &settings.place, &serde_json::Value::Null).map_err(failed)?;
        output::say(&format!("{}\nhistories: {}", tables::intention(&settings), folder.display()));
        let launch = launch()?;
        let around = Surroundings {
            settings: &settings,
            broker: &broker,
            place: &place,
            folder: &folder,
            launch: &launch,
            cancel: &cancel,
        };
        let line = Line::start("kills and drains");
        let outcome = kill::run(&around, &|progress| line.show(&progress));
        drop(line);
        let outcome = outcome.map_err(|error| resumable(error, &folder))?;
        print(&outcome, &folder, args.json)
    }

    /// Recomputes what a folder proves, and prints it.
    ///
    /// # Errors
    /// The folder holds no run, or a file of it cannot be read.
    pub(crate) fn verify(args: &VerifyArgs) -> Result<Exit, CliError> {
        #[cfg(feature = "postgres")]
        if args.folder.join(handstamp_lab::zombie::Stalls::FILE).exists() {
            let outcome = handstamp_lab::zombie::recompute(&args.folder).map_err(failed)?;
            return crate::commands::lab::zombie::print(&outcome, &args.folder, args.json);
        }
        if matches!(report::Kind::of(&args.folder), Some(report::Kind::Throughput | report::Kind::Storage)) {
            return crate::commands::lab::measure::show(&args.folder, args.json);
        }
        let outcome = kill::recompute(&args.folder).map_err(failed)?;
        print(&outcome, &args.folder, args.json)
    }

    #[cfg(not(feature = "crash-points"))]
    fn at_point(_: &KillArgs, _: &str) -> Result<Exit, CliError> {
        Err(crate::commands::lab::matrix::no_crash_points())
    }

    /// One point is one row of the matrix, on the source and the store that were asked for.
    #[cfg(feature = "crash-points")]
    fn at_point(args: &KillArgs, at: &str) -> Result<Exit, CliError> {
        let store = if args.database.is_some() { "postgres" } else { "sqlite" };
        crate::commands::lab::matrix::matrix(&crate::commands::lab::matrix::MatrixArgs {
            brokers: args.brokers.clone(),
            database: args.database.clone(),
            at: vec![at.to_owned()],
            source: Some("kafka".to_owned()),
            store: Some(store.to_owned()),
            session_timeout: args.session_timeout,
            kills: args.kills.unwrap_or(1),
            side_by_side: 1,
            seed: args.seed.unwrap_or(1),
            json: args.json,
        })
    }

    fn resumable(error: LabError, folder: &Path) -> CliError {
        failed(error).hint(format!(
            "what is complete is kept: go on with `handstamp lab kill --resume {}`",
            folder.display()
        ))
    }

    /// Makes a folder and says where it is, whatever folder a subject is started in.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn make_folder(folder: &Path) -> Result<PathBuf, CliError> {
        std::fs::create_dir_all(folder).map_err(|error| CliError::io(Exit::Usage, "make", folder, &error))?;
        std::path::absolute(folder).map_err(|error| CliError::io(Exit::Usage, "find", folder, &error))
    }

    /// The broker that was named, or one inside.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn broker(bootstrap: Option<&str>) -> Result<Broker, CliError> {
        bootstrap.map_or_else(Broker::mock, Broker::kafka).map_err(failed)
    }

    /// Where ledgers are made: in the database that was named, or in files in the folder.
    ///
    /// # Errors
    /// This program was built without Postgres.
    pub(crate) fn place(database: Option<&str>, folder: &Path) -> Result<Place, CliError> {
        let Some(url) = database else { return Ok(Place::Sqlite(folder.to_owned())) };
        redact::register_url(url);
        postgres(url)
    }

    #[cfg(feature = "postgres")]
    #[allow(clippy::unnecessary_wraps, reason = "the same shape without Postgres")]
    fn postgres(url: &str) -> Result<Place, CliError> {
        Ok(Place::Postgres(url.to_owned()))
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres(_: &str) -> Result<Place, CliError> {
        Err(crate::backend::built_without("store", "postgres"))
    }

    fn settings(args: &KillArgs, folder: &Path, place: &Place, where_: &str) -> Result<Settings, CliError> {
        let is_sqlite = matches!(place, Place::Sqlite(_));
        if args.resume.is_some() {
            let mut settings = Settings::load(folder).map_err(failed)?;
            if settings.place != where_ {
                return Err(CliError::usage(format!(
                    "the run in {} was on {}, not on {where_}",
                    folder.display(),
                    settings.place
                ))
                .hint("name the same --brokers and --database as then"));
            }
            if let Some(count) = args.side_by_side {
                settings.side_by_side = usize::from(count);
            }
            return Ok(settings);
        }
        let mut settings = Settings::of(match args.profile {
            ProfileName::Quick => Profile::Quick,
            ProfileName::Source => Profile::Source,
            ProfileName::Long => Profile::Long,
        });
        if args.brokers.is_none() {
            // The broker inside takes any session; waiting for real ones would be most of the time.
            settings.session_timeout_ms = 2000;
        }
        if !args.subjects.is_empty() {
            let named: Result<Vec<Subject>, LabError> =
                args.subjects.iter().map(|name| name.trim().parse()).collect();
            settings.subjects = named.map_err(failed)?;
        }
        settings.kills = args.kills.unwrap_or(settings.kills);
        settings.runs = args.runs.unwrap_or(settings.runs);
        settings.messages = args.messages.unwrap_or(settings.messages);
        settings.throughput_messages = args.rate_messages.unwrap_or(settings.throughput_messages);
        settings.seed = args.seed.unwrap_or(settings.seed);
        settings.work_ms = args.work.map_or(settings.work_ms, millis);
        settings.session_timeout_ms = args.session_timeout.map_or(settings.session_timeout_ms, millis);
        settings.side_by_side = args.side_by_side.map_or_else(room, usize::from);
        where_.clone_into(&mut settings.place);
        settings.checked(is_sqlite).map_err(failed)
    }

    /// How many runs a machine has room for: they wait most of the time.
    fn room() -> usize {
        std::thread::available_parallelism().map_or(2, usize::from).saturating_mul(4).clamp(2, 32)
    }

    fn millis(time: Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    /// How this program is started again.
    ///
    /// # Errors
    /// The operating system does not say where it lies.
    pub(crate) fn launch() -> Result<Launch, CliError> {
        let program = std::env::current_exe()
            .map_err(|error| CliError::new(Exit::Unexpected, format!("where am I: {error}")))?;
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Ok(Launch {
            program,
            subject: words(&["--log", "info", "lab", "subject"]),
            pipeline: words(&["--log", "warn", "run"]),
        })
    }

    fn print(outcome: &Outcome, folder: &Path, json: bool) -> Result<Exit, CliError> {
        let object = keep(outcome, folder)?;
        if json {
            output::print_json(&object)?;
        } else {
            output::print(&tables::outcome(outcome))?;
        }
        tell_report(folder)?;
        Ok(exit(&outcome.conclusion))
    }

    /// Writes the report of a folder, and says where it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn tell_report(folder: &Path) -> Result<(), CliError> {
        let path = report::build(folder).map_err(failed)?;
        output::say(&format!("report: {}", path.display()));
        Ok(())
    }

    /// Writes an outcome beside its histories and returns it as an object.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep(
        outcome: &impl serde::Serialize,
        folder: &Path,
    ) -> Result<serde_json::Value, CliError> {
        let object = serde_json::to_value(outcome)
            .map_err(|error| CliError::new(Exit::Unexpected, format!("the outcome is no JSON: {error}")))?;
        let path = folder.join(OUTCOME_FILE);
        std::fs::write(&path, format!("{object:#}\n"))
            .map_err(|error| CliError::io(Exit::Unexpected, "write", &path, &error))?;
        Ok(object)
    }

    /// What a conclusion ends the program with.
    pub(crate) fn exit(conclusion: &Conclusion) -> Exit {
        match conclusion {
            Conclusion::Kept => Exit::Ok,
            Conclusion::Violated(_) => Exit::CheckFailed,
            Conclusion::Inconclusive(_) => Exit::Inconclusive,
        }
    }
}
