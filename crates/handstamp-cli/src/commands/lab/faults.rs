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
pub(crate) use with_servers::faults;

#[cfg(all(feature = "kafka", feature = "postgres"))]
mod with_servers {
    use super::{CommitArgs, Common, Faults, FaultsArgs, ProfileName, ServersArgs};
    use crate::commands::lab::{cancel_on_signal, failed, ground::launch, scratch::Scratch};
    use crate::exit::{CliError, Exit};
    use crate::output::{self, table};
    use crate::redact;
    use handstamp_lab::faults::commit::{self, CommitOptions};
    use handstamp_lab::faults::outage::{self, OutageTimes};
    use handstamp_lab::faults::partition::{self, Split};
    use handstamp_lab::faults::report::{Outcome, Row, Standing, outcome};
    use handstamp_lab::faults::{Around, Fault};
    use handstamp_lab::subjects::Subject;
    use serde_json::{Value, json};
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    /// How often progress is said.
    const SAY_EVERY: Duration = Duration::from_secs(10);
    /// Cuts of the long profile.
    const CUTS_LONG: usize = 5_000;
    const CONTROL_CUTS_LONG: usize = 500;
    /// Rounds of each split.
    const ROUNDS: (u32, u32) = (2, 12);

    /// Runs one of the commands and prints what it came to.
    ///
    /// # Errors
    /// Why it could not go on; a verdict is an exit code.
    pub(crate) fn faults(args: &FaultsArgs) -> Result<Exit, CliError> {
        match &args.what {
            Faults::Commit(args) => cut_commits(args),
            Faults::Outage(args) => with_servers(args, |around, profile| {
                let times = if profile == ProfileName::Long { OutageTimes::LONG } else { OutageTimes::QUICK };
                outage::run(around, &Fault::ALL, Subject::HandstampProgram50, &times).map(|rows| {
                    rows.into_iter().map(|row| taken_apart(row, outage::OutageRow::row)).collect()
                })
            }),
            Faults::Partition(args) => with_servers(args, |around, profile| {
                let rounds = if profile == ProfileName::Long { ROUNDS.1 } else { ROUNDS.0 };
                partition::run(around, &Split::ALL, Subject::HandstampProgram50, rounds).map(|rows| {
                    rows.into_iter().map(|row| taken_apart(row, partition::PartitionRow::row)).collect()
                })
            }),
        }
    }

    /// A row of the table, and all that is known of it.
    type Told = (Row, Value);

    fn taken_apart<T: serde::Serialize>(row: Result<T, Row>, line: impl Fn(&T) -> Row) -> Told {
        match row {
            Ok(row) => (line(&row), json!(row)),
            Err(refused) => (refused, Value::Null),
        }
    }

    fn cut_commits(args: &CommitArgs) -> Result<Exit, CliError> {
        redact::register_url(&args.database);
        let cancel = cancel_on_signal()?;
        let folder = Scratch::make("faults", false)?;
        let mut options = CommitOptions::quick(&args.database, args.common.seed, folder.path());
        if args.common.profile == ProfileName::Long {
            (options.cuts, options.control_cuts) = (CUTS_LONG, CONTROL_CUTS_LONG);
        }
        let said = Cell::new(Instant::now());
        let report = commit::run(&options, &cancel, &|dealt, planned| {
            if said.get().elapsed() >= SAY_EVERY {
                said.set(Instant::now());
                output::say(&format!("{dealt} of {planned} faults"));
            }
        });
        let report = report.map_err(failed)?;
        let more = [json!(report.ours), json!(report.control)];
        print(&args.common, report.rows().into_iter().zip(more).collect())
    }

    fn with_servers(
        args: &ServersArgs,
        run: impl FnOnce(&Around<'_>, ProfileName) -> handstamp_lab::Result<Vec<Told>>,
    ) -> Result<Exit, CliError> {
        if !args.services.is_file() {
            return Err(CliError::usage(format!("{}: no such script", args.services.display()))
                .hint("these commands stop and kill servers of their own: run them in a checkout of the project, or name its scripts/services with --services"));
        }
        let (cancel, launch, folder) = (cancel_on_signal()?, launch()?, Scratch::make("faults", false)?);
        let around = Around {
            launch: &launch,
            services: &args.services,
            folder: folder.path(),
            seed: args.common.seed,
            cancel: &cancel,
            progress: &|what| output::say(what),
        };
        let rows = run(&around, args.common.profile).map_err(failed)?;
        print(&args.common, rows)
    }

    fn print(common: &Common, told: Vec<Told>) -> Result<Exit, CliError> {
        let (rows, more): (Vec<Row>, Vec<Value>) = told.into_iter().unzip();
        let outcome = outcome(&rows);
        if common.json {
            let rows: Vec<Value> = rows
                .iter()
                .zip(more)
                .map(|(row, more)| {
                    let mut object = json!(row);
                    object["measured"] = more;
                    object
                })
                .collect();
            output::print_json(&json!({ "seed": common.seed, "outcome": word(outcome), "rows": rows }))?;
        } else {
            output::print(&text(&rows, outcome))?;
        }
        Ok(match outcome {
            Outcome::Held => Exit::Ok,
            Outcome::Violated => Exit::CheckFailed,
            Outcome::Inconclusive => Exit::Inconclusive,
        })
    }

    fn word(outcome: Outcome) -> &'static str {
        match outcome {
            Outcome::Held => "held",
            Outcome::Violated => "violated",
            Outcome::Inconclusive => "inconclusive",
        }
    }

    fn text(rows: &[Row], outcome: Outcome) -> String {
        let names = rows.iter().map(|row| &row.cells).find(|cells| !cells.is_empty());
        let mut header = vec![""];
        header.extend(names.into_iter().flatten().map(|(name, _)| *name));
        header.push("");
        let lines = rows.iter().map(|row| {
            let mut line = vec![row.name.clone()];
            line.extend(row.cells.iter().map(|(_, value)| value.clone()));
            line.resize(header.len() - 1, String::new());
            line.push(standing(&row.standing).to_owned());
            line
        });
        let mut text = table::plain(&header, lines.collect());
        for row in rows {
            if let Standing::Violated(why) | Standing::Inconclusive(why) | Standing::Refused(why) =
                &row.standing
            {
                text.push_str(&format!("\n{}: {}: {why}", row.name, standing(&row.standing)));
            }
        }
        let controlled = rows.iter().any(|row| row.standing == Standing::Control);
        text.push_str(match outcome {
            Outcome::Held if controlled => {
                "\nheld: nothing doubled, nothing lost, and the control did harm\n"
            }
            Outcome::Held => "\nheld: nothing doubled, nothing lost\n",
            Outcome::Violated => "\nVIOLATED\n",
            Outcome::Inconclusive => "\ninconclusive: this run proves nothing\n",
        });
        text
    }

    fn standing(standing: &Standing) -> &'static str {
        match standing {
            Standing::Held => "held",
            Standing::Control => "did harm, as it must",
            Standing::Violated(_) => "VIOLATED",
            Standing::Inconclusive(_) => "inconclusive",
            Standing::Refused(_) => "refused",
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

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
            let text = text(&rows, Outcome::Violated);
            for part in
                ["doubled", "held", "two: VIOLATED: 7 lost", "three: refused: the broker", "\nVIOLATED"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}
