//! The program `handstamp`: pipelines declared in TOML.
//!
//! Only this crate (with the lab and the examples) brings a concrete source and a concrete store
//! together. `main` parses, dispatches and turns the outcome into an exit code.

mod backend;
mod cli;
mod commands;
mod config;
mod exit;
mod findings;
mod logging;
mod output;
mod publish;
mod redact;
mod signals;

use clap::Parser;
use clap::error::ErrorKind;
use exit::{CliError, Exit};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    std::panic::set_hook(Box::new(|panic| {
        // What a panic says was not written for an eye that must not see secrets.
        output::say(&format!("panic: {panic}"));
    }));
    let outcome =
        std::panic::catch_unwind(|| logging::start(&cli.log).and_then(|()| commands::dispatch(cli.command)));
    let error = match outcome {
        Ok(Ok(exit)) => return ExitCode::from(exit.code()),
        Ok(Err(error)) => error,
        Err(_) => CliError::new(Exit::Unexpected, "the program met a mistake of its own; please report it"),
    };
    output::say(&error.to_string());
    ExitCode::from(error.exit.code())
}

/// Prints help where it belongs: asked for, on standard output; as an error, on standard error.
fn usage(error: &clap::Error) -> ExitCode {
    // Nothing can be done about an output that is gone.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::from(Exit::Ok.code()),
        _ => ExitCode::from(Exit::Usage.code()),
    }
}
