//! `lab`: thin commands over the crash lab; what they do is in the lab.
//!
//! | file | owns |
//! |---|---|
//! | `clean`, `demo`, `faults`, `kill`, `matrix`, `own`, `zombie` | the command of that name; `kill` also `lab verify` |
//! | `measure` | `lab throughput` and `lab storage` |
//! | `options` | what can be asked of several commands |
//! | `ground` | what a run stands on: broker, store, this program |
//! | `folder`, `scratch` | the folder that a run leaves, and one that is removed |
//! | `progress`, `tables`, `matrix_table`, `own_text` | what is said on the way and at the end |

pub(crate) mod clean;
pub(crate) mod demo;
pub(crate) mod faults;
#[cfg(any(feature = "kafka", feature = "crash-points"))]
mod folder;
#[cfg(feature = "kafka")]
mod ground;
pub(crate) mod kill;
pub(crate) mod matrix;
#[cfg(any(feature = "kafka", feature = "crash-points"))]
mod matrix_table;
pub(crate) mod measure;
mod options;
pub(crate) mod own;
#[cfg(feature = "kafka")]
mod own_text;
#[cfg(feature = "kafka")]
mod progress;
mod scratch;
#[cfg(feature = "kafka")]
mod tables;
pub(crate) mod zombie;

use crate::exit::{CliError, Exit};
use clap::Subcommand;
use handstamp_lab::{Cancel, LabError, LabErrorKind, supervisor};
use std::ffi::OsString;

/// The lab's commands.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Show in seconds, without any server, what one crash does to four consumers.
    #[command(after_help = "Examples:
  handstamp lab demo
  handstamp lab demo --json

Exit 0 when every story ended as told, 5 when one did not.")]
    Demo(demo::DemoArgs),
    /// Kill consumers again and again, and count what doubled or got lost.
    #[command(after_help = "Examples:
  handstamp lab kill
  handstamp lab kill --brokers 127.0.0.1:9092 --database postgres://…
  handstamp lab kill --profile source --brokers 127.0.0.1:9092 --database postgres://… --out lab-source
  handstamp lab kill --resume lab-source --brokers 127.0.0.1:9092 --database postgres://…

Exit 0 when what promises doubled and lost nothing, 5 when it did, 6 when the run proves nothing because a
control (a1, offset-first) did no harm or kills came too late, 7 when it was stopped (go on with --resume).")]
    Kill(kill::KillArgs),
    /// Compute again what a run proves, from its histories and logs.
    #[command(after_help = "Example:
  handstamp lab verify lab-source

Exit codes as of `lab kill`.")]
    Verify(kill::VerifyArgs),
    /// Crash the program at every named point, on every source and store, and count what doubled or got lost.
    #[command(after_help = "Examples:
  handstamp lab matrix
  handstamp lab matrix --brokers 127.0.0.1:9092 --database postgres://… --out lab-matrix
  handstamp lab verify lab-matrix

Needs a program built with crash points: `cargo build --release -p handstamp-cli --features crash-points`.
Exit 5 when something doubled or got lost, 6 when a point was not hit or a control did no harm.")]
    Matrix(matrix::MatrixArgs),
    /// Let consumers stall until their group gives them up, and count what they still wrote.
    #[command(after_help = "Examples:
  handstamp lab zombie --database postgres://…
  handstamp lab zombie --profile source --brokers 127.0.0.1:9092 --database postgres://…

Exit codes as of `lab kill`; the control is b.")]
    Zombie(zombie::ZombieArgs),
    /// Kill your own consumer, in any language, and count the effects that doubled or are missing.
    #[command(after_help = "Examples:
  handstamp lab own -- python consumer.py
  handstamp lab own --config lab.toml --database postgres://… -- ./consumer --topic {topic}

The program gets BROKERS, TOPIC, GROUP and DATABASE_URL. Every key of lab.toml is described in
docs/guides/test-your-consumer.md.

Exit 0 when every message had its effect once, 5 when one doubled or is missing, 6 when the run proves nothing, \
such as when no kill came in time.")]
    Own(own::OwnArgs),
    /// Cut connections, stop servers, part a consumer from its broker, and count what doubled or got lost.
    #[command(after_help = "Examples:
  handstamp lab faults commit --database postgres://…
  handstamp lab faults commit --profile long --database postgres://…
  handstamp lab faults commit --resume lab-faults-commit-… --database postgres://…
  handstamp lab faults outage
  handstamp lab faults partition

Exit 0 when nothing doubled or got lost, 5 when something did, 6 when the run proves nothing: too little was cut, a
control did no harm, or a broker cannot be led through a proxy, 7 when it was stopped (go on with --resume).")]
    Faults(faults::FaultsArgs),
    /// Measure messages a second, with and without an inbox.
    #[command(after_help = "Examples:
  handstamp lab throughput --messages 2000 --runs 3
  handstamp lab throughput --brokers 127.0.0.1:9092 --database postgres://…")]
    Throughput(measure::ThroughputArgs),
    /// Measure what a remembered id costs in Postgres.
    #[command(after_help = "Example:
  handstamp lab storage --database postgres://…")]
    Storage(measure::StorageArgs),
    /// List, or remove, what runs left on servers that were killed (SIGKILL) and could not.
    #[command(after_help = "Examples:
  handstamp lab clean --brokers 127.0.0.1:9092 --database postgres://…
  handstamp lab clean --brokers 127.0.0.1:9092 --database postgres://… --yes

Only what carries a name of the lab is looked at, and what began long enough ago, by a process that no longer
runs on this machine.")]
    Clean(clean::CleanArgs),
    /// A consumer to be killed, which `lab demo` starts.
    #[command(hide = true)]
    DemoConsumer,
    /// A consumer to be killed, which `lab kill` starts.
    #[command(hide = true)]
    Subject,
    /// A broker for runs without one, which the lab starts.
    #[cfg(feature = "kafka")]
    #[command(hide = true)]
    MockBroker,
    /// Between the lab and a child: becomes the child, which then ends with the lab.
    #[command(hide = true)]
    Tether(TetherArgs),
    /// Outlives the lab for a moment, and ends what its children had started.
    #[command(hide = true)]
    Guard,
    /// A consumer broken on purpose.
    #[cfg(feature = "crash-points")]
    #[command(hide = true)]
    BrokenSubject(matrix::BrokenArgs),
}

/// Who is tied to whom.
#[derive(Debug, clap::Args)]
pub(crate) struct TetherArgs {
    /// The lab's process id.
    lab: u32,
    /// The child and its arguments.
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

impl LabCommand {
    /// Whether an object is asked for instead of a table.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Demo(args) => args.json,
            Self::Own(args) => args.json,
            Self::Kill(args) => args.json,
            Self::Verify(args) => args.json,
            Self::Zombie(args) => args.json,
            Self::Faults(args) => args.wants_json(),
            Self::Throughput(args) => args.json,
            Self::Storage(args) => args.json,
            Self::Clean(args) => args.json,
            Self::Matrix(args) => args.json,
            _ => false,
        }
    }
}

/// Runs a command of the lab.
///
/// # Errors
/// Why it could not go on; a verdict is an exit code.
pub(crate) fn dispatch(command: &LabCommand) -> Result<Exit, CliError> {
    tie()?;
    match command {
        LabCommand::Demo(args) => demo::demo(args),
        LabCommand::DemoConsumer => demo::consumer(),
        LabCommand::Own(args) => own::own(args),
        LabCommand::Kill(args) => kill::kill(args),
        LabCommand::Verify(args) => kill::verify(args),
        LabCommand::Zombie(args) => zombie::zombie(args),
        LabCommand::Faults(args) => faults::faults(args),
        LabCommand::Throughput(args) => measure::throughput(args),
        LabCommand::Storage(args) => measure::storage(args),
        LabCommand::Clean(args) => clean::clean(args),
        LabCommand::Subject => subject(),
        #[cfg(feature = "kafka")]
        LabCommand::MockBroker => match handstamp_lab::broker::mock::main() {
            Ok(()) => Ok(Exit::Ok),
            Err(error) => Err(CliError::new(Exit::Unexpected, format!("mock broker: {error}"))),
        },
        LabCommand::Tether(args) => supervisor::tether(args.lab, &args.words),
        LabCommand::Guard => supervisor::guard().map(|()| Exit::Ok).map_err(failed),
        LabCommand::Matrix(args) => matrix::matrix(args),
        #[cfg(feature = "crash-points")]
        LabCommand::BrokenSubject(args) => matrix::broken_subject(args),
    }
}

/// Says how children are tied to this process, should it start any.
///
/// # Errors
/// The operating system does not say where this program lies.
fn tie() -> Result<(), CliError> {
    let program = this_program()?;
    let words = |words: [&str; 4]| words.map(str::to_owned).to_vec();
    let tether = words(["--log", "off", "lab", "tether"]);
    supervisor::tie(supervisor::Ties { program, tether, guard: words(["--log", "off", "lab", "guard"]) });
    Ok(())
}

/// Consumes as told on standard input until killed.
fn subject() -> Result<Exit, CliError> {
    match handstamp_lab::subjects::main() {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => Err(CliError::new(Exit::Unexpected, format!("subject: {error}"))),
    }
}

/// Where this program lies.
///
/// # Errors
/// The operating system does not say.
fn this_program() -> Result<std::path::PathBuf, CliError> {
    std::env::current_exe().map_err(|error| CliError::new(Exit::Unexpected, format!("where am I: {error}")))
}

/// Why there is no lab here.
#[cfg(not(feature = "kafka"))]
fn no_kafka() -> CliError {
    CliError::usage("this program was built without a Kafka client")
        .hint("build one that has it: `cargo build --release -p handstamp-cli`")
}

/// Why there is nothing here that needs both servers.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
fn no_clients() -> CliError {
    CliError::usage("this program was built without Kafka and Postgres clients")
        .hint("build one that has them: `cargo build --release -p handstamp-cli`")
}

/// What the program says of an error of the lab.
fn failed(error: LabError) -> CliError {
    let exit = match error.kind {
        LabErrorKind::Usage => Exit::Usage,
        LabErrorKind::Unreachable => Exit::Unreachable,
        LabErrorKind::Cancelled => Exit::Unfinished,
        #[cfg(feature = "kafka")]
        LabErrorKind::BrokerInside => Exit::Inconclusive,
        _ => Exit::Unexpected,
    };
    CliError::new(exit, error.message.clone()).caused_by(std::error::Error::source(&error))
}

/// Told by the first SIGTERM or SIGINT: then everything that was started is ended in order.
///
/// # Errors
/// The operating system gives no thread or no signals.
fn cancel_on_signal() -> Result<Cancel, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error: std::io::Error| {
        CliError::new(Exit::Unexpected, format!("cannot listen for signals: {error}"))
    };
    let cancel = Cancel::default();
    let told = cancel.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        (terminate, signal(SignalKind::interrupt()).map_err(failed)?)
    };
    let listen = move || {
        runtime.block_on(async {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            told.cancel();
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(failed)?;
    Ok(cancel)
}
