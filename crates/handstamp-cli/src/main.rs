//! The program `handstamp`: pipelines declared in TOML.
//!
//! Only this crate (with the lab and the examples) brings a concrete source and a concrete store
//! together. `main` parses, dispatches and turns the outcome into an exit code.

mod backend;
mod cli;
mod commands;
mod config;
mod dlq;
mod exit;
mod findings;
mod hints;
mod logging;
mod output;
mod peek;
mod publish;
mod redact;
#[cfg(all(test, feature = "file", feature = "kafka", feature = "postgres", feature = "sqlite"))]
mod reference_tests;
mod signals;
mod watch;

use clap::Parser;
use clap::error::ErrorKind;
use exit::{CliError, Exit};
use serde_json::Value;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    std::panic::set_hook(Box::new(|panic| {
        // What a panic says was not written for an eye that must not see secrets.
        output::say_error(&format!("panic: {panic}"));
    }));
    let nothing = commands::nothing(&cli.command);
    let outcome = std::panic::catch_unwind(|| {
        logging::start(&cli.log, cli.log_format).and_then(|()| commands::dispatch(cli.command))
    });
    match outcome {
        Ok(Ok(exit)) => ExitCode::from(exit.code()),
        Ok(Err(error)) => fail(&error, nothing.as_ref()),
        Err(_) => {
            let text = "the program met a mistake of its own; please report it";
            fail(&CliError::new(Exit::Unexpected, text), nothing.as_ref())
        }
    }
}

/// Says an error, for programs too where `--json` asked for it: `nothing` is then what a command prints that
/// has done nothing.
fn fail(error: &CliError, nothing: Option<&Value>) -> ExitCode {
    if let Some(nothing) = nothing {
        // The first error is the one to tell.
        let _ = output::print_json(&error.to_json(nothing));
    }
    output::say_error(&error.to_string());
    ExitCode::from(error.exit.code())
}

/// What the parser says in front of its advice, in one line: it lists arguments below the sentence.
fn first_paragraph(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

/// Prints help where it belongs: asked for, on standard output; as an error, on standard error.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match output::written(error.print()) {
            Ok(_) => ExitCode::from(Exit::Ok.code()),
            Err(error) => fail(&error, None),
        };
    }
    let asked: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(nothing) = commands::nothing_of(&asked) {
        let text = error.render().to_string();
        let _ = output::print_json(&CliError::usage(first_paragraph(&text)).to_json(&nothing));
    }
    // Nothing can be done about a standard error that is gone.
    let _ = error.print();
    ExitCode::from(Exit::Usage.code())
}
