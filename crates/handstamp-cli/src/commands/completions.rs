//! `completions`: the script by which a shell completes commands and options.

use crate::cli::Cli;
use crate::cli::first_contact::CompletionsArgs;
use crate::exit::{CliError, Exit};
use crate::output;
use clap::CommandFactory;

/// Prints a shell's script.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, CliError> {
    // Into memory first: the generator panics where standard output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "handstamp", &mut script);
    output::print_raw(&script)?;
    Ok(Exit::Ok)
}
