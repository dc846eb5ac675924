//! `lab faults`: thin; what it does is in the lab.

#[cfg(not(all(feature = "kafka", feature = "postgres")))]
use crate::exit::{CliError, Exit};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `lab faults`.
#[derive(Debug, Args)]
pub(crate) struct FaultsArgs {
    #[command(subcommand)]
    what: Faults,
}

#[derive(Debug, Subcommand)]
enum Faults {
    /// Cut the connection to the database at every byte of the COMMIT exchange and around it.
    Commit(CommitArgs),
    /// Let the broker and the database go away and come back while messages flow.
    Outage(ServersArgs),
    /// Cut a consumer off from the broker alone, and kill the leader of three brokers.
    Partition(ServersArgs),
}

/// How much is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    /// Fit for every change.
    Quick,
    /// By hand: 5,000 cuts, long windows, many rounds.
    Long,
}

#[derive(Debug, Args)]
struct Common {
    /// How much is done.
    #[arg(long, value_enum, default_value = "quick")]
    profile: ProfileName,
    /// Decides messages, positions and their order.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// A new folder for histories, logs and the report.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Go on with what an earlier run left undone in its folder, with its settings.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["profile", "seed"])]
    resume: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CommitArgs {
    #[command(flatten)]
    common: Common,
    /// Connection string of a Postgres database, where the lab makes schemas of its own.
    #[arg(long, env = "HANDSTAMP_LAB_DATABASE", value_name = "URL", hide_env_values = true)]
    database: String,
}

#[derive(Debug, Args)]
struct ServersArgs {
    #[command(flatten)]
    common: Common,
    /// The project's script that starts servers: these commands stop, freeze and kill servers, so they
    /// start their own and touch no other.
    #[arg(long, default_value = "scripts/services", value_name = "PATH")]
    services: PathBuf,
    /// How many rows go on at the same time, each with servers of its own; default: 3, or 1 in the long
    /// profile, whose rates want the machine for themselves.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    side_by_side: Option<u16>,
}

impl FaultsArgs {
    /// Whether an object is asked for instead of a table.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.what {
            Faults::Commit(args) => args.common.json,
            Faults::Outage(args) | Faults::Partition(args) => args.common.json,
        }
    }
}

/// Refuses: without both clients nothing can be cut.
///
/// # Errors
/// Always.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
pub(crate) fn faults(_: &FaultsArgs) -> Result<Exit, CliError> {
    Err(super::no_clients())
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
pub(crate) use with_servers::{faults, print};

#[cfg(all(feature = "kafka", feature = "postgres"))]
mod with_servers {
    use super::{CommitArgs, Common, Faults, FaultsArgs, ProfileName, ServersArgs};
    use crate::commands::lab::{cancel_on_signal, failed, folder, ground::launch, progress};
    use crate::exit::{CliError, Exit};
    use crate::output::{self, table};
    use crate::redact;
    use handstamp_lab::LabErrorKind;
    use handstamp_lab::faults::commit::{self, CommitOptions};
    use handstamp_lab::faults::outage::{self, OutageTimes};
    use handstamp_lab::faults::partition::{self, Split};
    use handstamp_lab::faults::report::Row;
    use handstamp_lab::faults::{Around, Fault, Outcome, Settings, resume};
    use handstamp_lab::kill::Conclusion;
    use handstamp_lab::subjects::Subject;
    use std::path::{Path, PathBuf};

    /// Rounds of each split.
    const ROUNDS: (u32, u32) = (2, 12);
    /// Rows at a time.
    const SIDE_BY_SIDE: (u16, u16) = (3, 1);

    /// Runs one of the commands and prints what it came to.
    ///
    /// # Errors
    /// Why it could not go on; a verdict is an exit code.
    pub(crate) fn faults(args: &FaultsArgs) -> Result<Exit, CliError> {
        match &args.what {
            Faults::Commit(args) => cut_commits(args),
            Faults::Outage(args) => with_servers(args, "outage", |around, long, side_by_side| {
                if args.common.resume.is_some() {
                    return resume(around, "outage", side_by_side);
                }
                let times = if long { OutageTimes::LONG } else { OutageTimes::QUICK };
                let side_by_side = side_by_side.unwrap_or_else(|| usual(long));
                outage::run(around, &Fault::ALL, Subject::HandstampProgram50, &times, side_by_side)
            }),
            Faults::Partition(args) => with_servers(args, "partition", |around, long, side_by_side| {
                if args.common.resume.is_some() {
                    return resume(around, "partition", side_by_side);
                }
                let rounds = if long { ROUNDS.1 } else { ROUNDS.0 };
                let side_by_side = side_by_side.unwrap_or_else(|| usual(long));
                partition::run(around, &Split::ALL, Subject::HandstampProgram50, rounds, side_by_side)
            }),
        }
    }

    /// Rows at a time, where nobody says.
    fn usual(long: bool) -> usize {
        usize::from(if long { SIDE_BY_SIDE.1 } else { SIDE_BY_SIDE.0 })
    }

    fn prepare(common: &Common, command: &str) -> Result<PathBuf, CliError> {
        let named = common.resume.as_ref().or(common.out.as_ref());
        let folder = folder::named_or_fresh(named, &format!("faults-{command}"));
        if common.resume.is_some() {
            // A folder without a run is not made.
            Settings::load(&folder).map_err(failed)?;
        } else if folder.join(Settings::FILE).exists() {
            return Err(folder::taken(
                &folder,
                "go on with it by --resume, or name another folder with --out",
            ));
        }
        let folder = folder::make(&folder)?;
        output::say(&format!("histories: {}", folder.display()));
        Ok(folder)
    }

    fn cut_commits(args: &CommitArgs) -> Result<Exit, CliError> {
        redact::register_url(&args.database);
        let cancel = cancel_on_signal()?;
        let folder = prepare(&args.common, "commit")?;
        let long = args.common.profile == ProfileName::Long;
        let (url, seed) = (args.database.as_str(), args.common.seed);
        let resumed = args.common.resume.is_some();
        let options = if resumed {
            CommitOptions::resumed(url, folder.as_path()).map_err(failed)?
        } else if long {
            CommitOptions::long(url, seed, folder.as_path())
        } else {
            CommitOptions::quick(url, seed, folder.as_path())
        };
        let run = if resumed { commit::resume } else { commit::run };
        let outcome = progress::steps("faults", |step| run(&options, &cancel, step));
        concluded(outcome, "commit", &folder, args.common.json)
    }

    /// Prints what it came to, or how what is left of it is done.
    fn concluded(
        outcome: handstamp_lab::Result<Outcome>,
        command: &str,
        folder: &Path,
        json: bool,
    ) -> Result<Exit, CliError> {
        let outcome = outcome.map_err(|error| match error.kind {
            // What makes no sense is no better the second time.
            LabErrorKind::Usage => failed(error),
            _ => folder::resumable(error, &format!("faults {command}"), folder),
        })?;
        print(&outcome, folder, json)
    }

    fn with_servers(
        args: &ServersArgs,
        command: &str,
        run: impl FnOnce(&Around<'_>, bool, Option<usize>) -> handstamp_lab::Result<Outcome>,
    ) -> Result<Exit, CliError> {
        if !args.services.is_file() {
            return Err(CliError::usage(format!("{}: no such script", args.services.display()))
                .hint("these commands stop and kill servers of their own: run them in a checkout of the project, or name its scripts/services with --services"));
        }
        let (cancel, launch) = (cancel_on_signal()?, launch()?);
        let folder = prepare(&args.common, command)?;
        let long = args.common.profile == ProfileName::Long;
        let around = Around {
            launch: &launch,
            services: &args.services,
            folder: &folder,
            seed: args.common.seed,
            cancel: &cancel,
            progress: &|what| output::say(what),
        };
        let outcome = run(&around, long, args.side_by_side.map(usize::from));
        concluded(outcome, command, &folder, args.common.json)
    }

    /// Prints what a folder proves, and leaves it with outcome and report.
    ///
    /// # Errors
    /// Standard output or the folder cannot be written.
    pub(crate) fn print(outcome: &Outcome, folder: &Path, json: bool) -> Result<Exit, CliError> {
        let rows: Vec<&Row> = outcome.rows.iter().map(|told| &told.row).collect();
        let controlled = outcome.settings.rows().iter().any(|key| !key.promises());
        let text = text(&rows, &outcome.conclusion, controlled);
        folder::conclude(outcome, &outcome.conclusion, &text, folder, json)
    }

    fn text(rows: &[&Row], conclusion: &Conclusion, controlled: bool) -> String {
        let names = rows.iter().map(|row| &row.cells).find(|cells| !cells.is_empty());
        let mut header = vec![""];
        header.extend(names.into_iter().flatten().map(|(name, _)| *name));
        header.push("");
        let lines = rows.iter().map(|row| {
            let mut line = vec![row.name.clone()];
            line.extend(row.cells.iter().map(|(_, value)| value.clone()));
            line.resize(header.len() - 1, String::new());
            line.push(row.standing.words().to_owned());
            line
        });
        let text = table::plain(&header, lines.collect());
        let (sentence, why) = match conclusion {
            Conclusion::Kept if controlled => {
                ("kept: nothing doubled, nothing lost, and the control did harm", &[][..])
            }
            Conclusion::Kept => ("kept: nothing doubled, nothing lost", &[][..]),
            Conclusion::Violated(why) => ("VIOLATED:", &why[..]),
            Conclusion::Inconclusive(why) => ("inconclusive, this run proves nothing:", &why[..]),
        };
        let why: String = why.iter().map(|why| format!("  {why}\n")).collect();
        format!("{text}\n{sentence}\n{why}")
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use handstamp_lab::faults::report::{Standing, conclude};

        #[test]
        fn every_row_says_where_it_stands_and_why() {
            let row = |name: &str, standing| Row {
                name: name.to_owned(),
                cells: vec![("doubled", "0".to_owned()), ("lost", "7".to_owned())],
                standing,
            };
            let refused = Standing::Refused("the broker sends its clients around the proxy".to_owned());
            let rows = [
                row("one", Standing::Held),
                row("two", Standing::Violated("7 lost".to_owned())),
                Row { name: "three".to_owned(), cells: vec![], standing: refused },
            ];
            let rows: Vec<&Row> = rows.iter().collect();
            let told = text(&rows, &conclude(&rows), true);
            for part in ["doubled", "held", "VIOLATED:\n  two: 7 lost", "refused"] {
                assert!(told.contains(part), "{part}: {told}");
            }
            let told = text(&rows[2..], &conclude(&rows[2..]), true);
            assert!(told.contains("three: refused: the broker"), "{told}");
            assert!(text(&rows[..1], &Conclusion::Kept, true).contains("the control did harm"));
            assert!(!text(&rows[..1], &Conclusion::Kept, false).contains("control"));
        }
    }
}
