//! `lab kill` and `lab verify`: thin; what they do is in the lab.

use super::options::{ProfileName, Servers, time};
#[cfg(not(feature = "kafka"))]
use crate::exit::{CliError, Exit};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// `lab kill`.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// How much is done.
    #[arg(long, value_enum, default_value = "quick")]
    pub(crate) profile: ProfileName,
    #[command(flatten)]
    pub(crate) servers: Servers,
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
    Err(super::no_kafka())
}

/// Refuses, as above.
///
/// # Errors
/// Always.
#[cfg(not(feature = "kafka"))]
pub(crate) fn verify(_: &VerifyArgs) -> Result<Exit, CliError> {
    Err(super::no_kafka())
}

#[cfg(feature = "kafka")]
pub(crate) use with_kafka::{kill, verify};

#[cfg(feature = "kafka")]
mod with_kafka {
    use super::{KillArgs, ProfileName, Servers, VerifyArgs};
    use crate::commands::lab::ground::Ground;
    use crate::commands::lab::progress::Line;
    use crate::commands::lab::{failed, folder, tables};
    use crate::exit::{CliError, Exit};
    use crate::output;
    use handstamp_lab::LabError;
    use handstamp_lab::kill::{self, Outcome, Profile, Settings};
    use handstamp_lab::ledger::Place;
    use handstamp_lab::report;
    use handstamp_lab::subjects::Subject;
    use std::path::Path;
    use std::time::Duration;

    /// Kills, and prints what that did.
    ///
    /// # Errors
    /// Why it could not go on; a verdict is an exit code.
    pub(crate) fn kill(args: &KillArgs) -> Result<Exit, CliError> {
        if let Some(at) = &args.at {
            return at_point(args, at);
        }
        let folder = folder::named_or_fresh(args.resume.as_ref().or(args.out.as_ref()), "kill");
        if args.resume.is_none() && folder.join(kill::SETTINGS_FILE).exists() {
            let hint = "go on with it by --resume, or name another folder with --out";
            return Err(folder::taken(&folder, hint));
        }
        let Servers { brokers, database } = &args.servers;
        let ground = Ground::prepare(&folder, brokers.as_deref(), database.as_deref())?;
        let settings = settings(args, &ground)?;
        report::note(&ground.folder, &settings.place, &serde_json::Value::Null).map_err(failed)?;
        output::say(&format!("{}\nhistories: {}", tables::intention(&settings), ground.folder.display()));
        let line = Line::start("kills and drains");
        let outcome = kill::run(&ground.around(&settings), &|progress| line.show(&progress));
        drop(line);
        let outcome = outcome.map_err(|error| folder::resumable(error, "kill", &ground.folder))?;
        print(&outcome, &ground.folder, args.json)
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
        #[cfg(feature = "postgres")]
        if report::Kind::of(&args.folder) == Some(report::Kind::Faults) {
            let outcome = handstamp_lab::faults::recompute(&args.folder).map_err(failed)?;
            return crate::commands::lab::faults::print(&outcome, &args.folder, args.json);
        }
        if matches!(report::Kind::of(&args.folder), Some(report::Kind::Throughput | report::Kind::Storage)) {
            return crate::commands::lab::measure::show(&args.folder, args.json);
        }
        if report::Kind::of(&args.folder) == Some(report::Kind::Matrix) {
            let record = handstamp_lab::matrix::record::recompute(&args.folder).map_err(failed)?;
            return crate::commands::lab::matrix_table::print(&record, &args.folder, args.json);
        }
        if report::Kind::of(&args.folder) == Some(report::Kind::Own) {
            return crate::commands::lab::own::verify(&args.folder, args.json);
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
        let store = if args.servers.database.is_some() { "postgres" } else { "sqlite" };
        crate::commands::lab::matrix::matrix(&crate::commands::lab::matrix::MatrixArgs {
            brokers: args.servers.brokers.clone(),
            database: args.servers.database.clone(),
            at: vec![at.to_owned()],
            source: Some("kafka".to_owned()),
            store: Some(store.to_owned()),
            session_timeout: args.session_timeout,
            kills: args.kills.unwrap_or(1),
            side_by_side: 1,
            seed: args.seed.unwrap_or(1),
            out: args.out.clone(),
            json: args.json,
        })
    }

    fn settings(args: &KillArgs, ground: &Ground) -> Result<Settings, CliError> {
        let Ground { folder, servers, .. } = ground;
        if args.resume.is_some() {
            let mut settings = Settings::load(folder).map_err(failed)?;
            if settings.place != *servers {
                return Err(CliError::usage(format!(
                    "the run in {} was on {}, not on {servers}",
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
        if args.servers.brokers.is_none() {
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
        servers.clone_into(&mut settings.place);
        settings.checked(matches!(ground.place, Place::Sqlite(_))).map_err(failed)
    }

    /// How many runs a machine has room for: they wait most of the time.
    fn room() -> usize {
        std::thread::available_parallelism().map_or(2, usize::from).saturating_mul(4).clamp(2, 32)
    }

    fn millis(time: Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    fn print(outcome: &Outcome, folder: &Path, json: bool) -> Result<Exit, CliError> {
        folder::conclude(outcome, &outcome.conclusion, &tables::outcome(outcome), folder, json)
    }
}
