//! `dlq`: dead letters, listed, grouped, shown, exported byte for byte, sent back, given up.
//!
//! | file | owns |
//! |---|---|
//! | `look` | `list`, `groups`, `audit`: what is there |
//! | `parked` | `parked`; and parked messages where other commands meet them |
//! | `show` | `show`, `export`: dead letters whole |
//! | `redrive` | `redrive`, `discard`: what is done to those that are meant |
//! | `selection` | those that are meant, one after the other |
//! | `before` | those that it was done to before, and what became of them since |
//! | `nobody` | what is said where one was named and none is there |
//! | `verdicts` | what became of them, counted and said |
//! | `next` | what has to happen then |
//! | `who` | who does it, as the system calls them |
//! | `text` | one dead letter for a person and for a program |

mod before;
mod look;
mod next;
mod nobody;
pub(super) mod parked;
mod redrive;
mod selection;
mod show;
mod text;
mod verdicts;
mod who;

pub(super) use text::{fields, summary};

use crate::cli::dlq::DlqCommand;
use crate::exit::{CliError, Exit};
use serde_json::{Map, Value};

/// Rows read at a time.
const PAGE: u32 = 500;

fn say_more(more: bool) {
    if more {
        crate::output::say("there are more; see --limit");
    }
}

/// Runs a command.
///
/// # Errors
/// What went wrong, with the exit code it asks for.
pub(crate) fn dispatch(command: &DlqCommand) -> Result<Exit, CliError> {
    match command {
        DlqCommand::List(args) => look::list(args),
        DlqCommand::Groups(args) => look::groups(args),
        DlqCommand::Show(args) => show::show(args),
        DlqCommand::Export(args) => show::export(args),
        DlqCommand::Redrive(args) => redrive::redrive(args),
        DlqCommand::Discard(args) => redrive::discard(args),
        DlqCommand::Parked(args) => parked::list(args),
        DlqCommand::Audit(args) => look::audit(args),
    }
}

/// What `--json` prints of a command that has done nothing; `None` where no object is printed.
pub(crate) fn nothing(command: &DlqCommand) -> Option<Value> {
    let empty = |json: bool| json.then(|| Value::Object(Map::new()));
    match command {
        DlqCommand::List(args) => empty(args.json),
        DlqCommand::Groups(args) => empty(args.json),
        DlqCommand::Show(args) => empty(args.json),
        // Its lines are dead letters and nothing else.
        DlqCommand::Export(_) => None,
        DlqCommand::Redrive(args) => args.selection.json.then(verdicts::nothing),
        DlqCommand::Discard(args) => args.selection.json.then(verdicts::nothing),
        DlqCommand::Parked(args) => empty(args.json),
        DlqCommand::Audit(args) => empty(args.json),
    }
}
