//! `lab zombie`: thin; what it does is in the lab.

use super::options::ProfileName;
use crate::exit::{CliError, Exit};
use clap::Args;
use std::path::PathBuf;

/// `lab zombie`.
#[derive(Debug, Args)]
pub(crate) struct ZombieArgs {
    /// How much is done: 1 run, 5 runs, or 1,000 runs of one stall each in groups that differ.
    #[arg(long, value_enum, default_value = "quick")]
    pub(crate) profile: ProfileName,
    /// Kafka's bootstrap servers; without them a broker inside this program stands in.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: Option<String>,
    /// Connection string of a Postgres database, where the lab makes schemas of its own.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: String,
    /// Messages of each run; one in 500 is stalled on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(500..=1_000_000))]
    pub(crate) messages: Option<u64>,
    /// Runs of each row.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) runs: Option<u32>,
    /// Consumers in each group; default: 3, in profile `long` 2 to 8 by the seed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) members: Option<u32>,
    /// How the group shares its partitions: range and roundrobin stop everybody at a rebalance,
    /// cooperative-sticky does not; default: the client library's own, in profile `long` range and
    /// cooperative-sticky by turns.
    #[arg(long, value_name = "NAME", value_parser = ["range", "roundrobin", "cooperative-sticky"])]
    pub(crate) assignor: Option<String>,
    /// Decides which messages are stalled on.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    /// How many runs go on at the same time.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) side_by_side: u16,
    /// A new folder for histories and logs.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with what an earlier run left undone in its folder, with its settings.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["profile", "messages", "runs", "members", "assignor", "seed"])]
    pub(crate) resume: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Refuses: without both clients there are no zombies.
///
/// # Errors
/// Always.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
pub(crate) fn zombie(_: &ZombieArgs) -> Result<Exit, CliError> {
    Err(super::no_clients())
}

/// Lets consumers stall until they are evicted, and prints what that did.
///
/// # Errors
/// Why it could not go on; a verdict is an exit code.
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub(crate) fn zombie(args: &ZombieArgs) -> Result<Exit, CliError> {
    use super::ground::Ground;
    use super::{failed, folder, progress};
    use crate::output;
    use handstamp_lab::kill::Settings;
    use handstamp_lab::zombie;

    let folder = folder::named_or_fresh(args.resume.as_ref().or(args.out.as_ref()), "zombie");
    let ground = Ground::prepare(&folder, args.brokers.as_deref(), Some(&args.database))?;
    let Ground { folder, servers, .. } = &ground;
    let (settings, stalls) = if args.resume.is_some() {
        let earlier = zombie::recompute(folder).map_err(failed)?;
        (earlier.settings, earlier.stalls)
    } else {
        (settings(args), stalls(args))
    };
    let settings = Settings { side_by_side: usize::from(args.side_by_side), ..settings };
    let settings = settings.checked(false).map_err(failed)?;
    let stalls = stalls.checked(&settings, &ground.place).map_err(failed)?;
    handstamp_lab::report::note(folder, servers, &serde_json::Value::Null).map_err(failed)?;
    output::say(&format!(
        "{} runs of {} rows; {}, {} messages, one in {} stalls {} ms, max.poll.interval.ms={}\n\
         on {servers}\nhistories: {}",
        settings.runs,
        zombie::Row::ALL.len(),
        stalls.describe_groups(),
        settings.messages,
        stalls.one_in,
        stalls.ms,
        stalls.max_poll_interval_ms,
        folder.display()
    ));
    let outcome = progress::steps("runs", |step| zombie::run(&ground.around(&settings), &stalls, step))
        .map_err(|error| folder::resumable(error, "zombie", folder))?;
    print(&outcome, folder, args.json)
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
fn settings(args: &ZombieArgs) -> handstamp_lab::kill::Settings {
    use handstamp_lab::kill::{Profile, Settings};
    let (profile, runs, messages) = match args.profile {
        ProfileName::Quick => (Profile::Quick, 1, 1000),
        ProfileName::Source => (Profile::Source, 5, 5000),
        // One stall each: a round.
        ProfileName::Long => (Profile::Long, 1000, 500),
    };
    Settings {
        runs: args.runs.unwrap_or(runs),
        messages: args.messages.unwrap_or(messages),
        seed: args.seed,
        // The stalls are what takes time.
        work_ms: 1,
        ..Settings::of(profile)
    }
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
fn stalls(args: &ZombieArgs) -> handstamp_lab::zombie::Stalls {
    use handstamp_lab::zombie::{Stalls, Vary};
    let all = Stalls::default();
    let vary = (args.profile == ProfileName::Long).then(|| {
        let all = Vary::default();
        Vary {
            members: args.members.map_or(all.members, |members| (members, members)),
            assignors: args.assignor.clone().map_or(all.assignors, |assignor| vec![assignor]),
        }
    });
    let members = args.members.unwrap_or(all.members);
    Stalls { members, assignor: args.assignor.clone(), vary, ..all }
}

/// Prints what a folder of `lab zombie` proves.
///
/// # Errors
/// Standard output or the folder cannot be written.
#[cfg(all(feature = "kafka", feature = "postgres"))]
pub(crate) fn print(
    outcome: &handstamp_lab::zombie::Outcome,
    folder: &std::path::Path,
    json: bool,
) -> Result<Exit, CliError> {
    let table = super::tables::zombies(outcome);
    super::folder::conclude(outcome, &outcome.conclusion, &table, folder, json)
}
