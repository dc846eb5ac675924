//! `lab demo`: thin; what it does is in the lab.

use super::scratch::Scratch;
use super::{cancel_on_signal, failed, this_program};
use crate::exit::{CliError, Exit};
use crate::output::{self, width};
use clap::Args;
use handstamp_lab::demo::{self, Ended, Launch};

/// `lab demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the databases and positions, and say where they are.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print one JSON object instead of sentences.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tells the stories.
///
/// # Errors
/// A process cannot be started, or it was told to stop; a story that ends otherwise than told is an exit code.
pub(crate) fn demo(args: &DemoArgs) -> Result<Exit, CliError> {
    let cancel = cancel_on_signal()?;
    let folder = Scratch::make("lab-demo", args.keep)?;
    let arguments = ["--log", "info", "lab", "demo-consumer"].map(str::to_owned).to_vec();
    let launch = Launch { program: this_program()?, arguments };
    if !args.json {
        let head = "Five credits of 100 for account 1, evt-1 to evt-5, which begins at 0. Each consumer is killed \
                    (SIGKILL) once and started again.";
        output::print(&format!("{}\n", width::behind("", head, width::columns())))?;
    }
    let mut unheard = None;
    let mut each = |ended: &Ended| {
        if !args.json && unheard.is_none() {
            let head = format!("{:<15}", ended.story.name());
            unheard = output::print(&width::behind(&head, &ended.sentence, width::columns())).err();
        }
        Ok(())
    };
    let all = demo::run(&launch, folder.path(), &cancel, &mut each).map_err(failed)?;
    if let Some(error) = unheard {
        return Err(error);
    }
    let as_told = all.iter().all(|ended| ended.as_told);
    if args.json {
        let kept = args.keep.then(|| folder.path().display().to_string());
        output::print_json(&serde_json::json!({ "stories": all, "as_told": as_told, "folder": kept }))?;
    } else if args.keep {
        output::print(&format!("\nkept: {}\n", folder.path().display()))?;
    }
    Ok(if as_told { Exit::Ok } else { Exit::CheckFailed })
}

/// The process that is killed.
///
/// # Errors
/// It was told nonsense, or its file or database fails.
pub(crate) fn consumer() -> Result<Exit, CliError> {
    match demo::main() {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => Err(CliError::new(Exit::Unexpected, format!("demo consumer: {error}"))),
    }
}
