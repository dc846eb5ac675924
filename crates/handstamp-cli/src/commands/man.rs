//! `man`: the manual pages, made from what `--help` says.

use crate::cli::Cli;
use crate::cli::first_contact::ManArgs;
use crate::exit::{CliError, Exit};
use crate::output;
use clap::CommandFactory;
use clap_mangen::Man;
use std::path::Path;

/// Prints the first page, or writes all of them.
///
/// # Errors
/// Something cannot be written.
pub(crate) fn man(args: &ManArgs) -> Result<Exit, CliError> {
    let mut command = Cli::command();
    command.build();
    match &args.dir {
        None => {
            output::print_raw(&page(command)?)?;
        }
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .map_err(|error| CliError::io(Exit::Unexpected, "make", dir, &error))?;
            let mut written = Vec::new();
            write_all(command, dir, &mut written)?;
            output::say(&format!(
                "{} pages in {}; read one with `man -l {}/handstamp.1`",
                written.len(),
                dir.display(),
                dir.display()
            ));
        }
    }
    Ok(Exit::Ok)
}

fn page(command: clap::Command) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    Man::new(command)
        .render(&mut page)
        .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot make the page: {error}")))?;
    Ok(page)
}

/// A page for the command and for each below it.
fn write_all(command: clap::Command, dir: &Path, written: &mut Vec<String>) -> Result<(), CliError> {
    let below: Vec<clap::Command> =
        command.get_subcommands().filter(|below| below.get_name() != "help").cloned().collect();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let file = dir.join(format!("{name}.1"));
    std::fs::write(&file, page(command)?)
        .map_err(|error| CliError::io(Exit::Unexpected, "write", &file, &error))?;
    written.push(name);
    below.into_iter().try_for_each(|below| write_all(below, dir, written))
}
