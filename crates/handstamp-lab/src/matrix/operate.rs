//! What an operator does in a cell: sends dead letters back or gives them up, and dies in the middle of it.
//!
//! ```text
//!  consumer ─► dead letters ─► cause gone ─► armed command ─► the same command ─► delivered once more ─► drained
//!                                            dies at the point  does the rest        duplicates
//! ```
//!
//! Authoritative: the audit for what was done, and the effects for what came of it. The command that goes on is
//! the same one; what the dead one has done is durable or did not happen.

use super::cell::Stage;
use super::outcome::SourceKind;
use super::pipeline::{LATE_LINES, LINES};
use super::plan::Operation;
use crate::error::{LabError, Result};
use crate::history::Event;
use handstamp::CrashPoint;
use std::io::Write as _;
use std::process::Command;

/// So many a second: a redrive is many transactions then, and something is left when one of them is committed.
const RATE: [&str; 2] = ["--rate", "200/s"];
/// A discard has no rate: so many a command.
const LIMIT: [&str; 2] = ["--limit", "12"];

impl Stage<'_> {
    /// From the dead letters to the last delivery.
    pub(super) fn operate(&self, operation: Operation) -> Result<()> {
        self.drain()?;
        self.tables.open_accounts()?;
        self.crash_again_and_again(|| {
            let mut armed = self.operator(operation);
            match self.cell.point {
                CrashPoint::AfterRedrive => armed.args(RATE),
                CrashPoint::AfterDiscard => armed.args(LIMIT),
                _ => &mut armed,
            };
            armed
        })?;
        self.must_end_well("the operator's command after the crash", self.operator(operation))?;
        let (lines, messages) = self.tables.audited(operation.as_str())?;
        self.history.note(Event::Operated { meant: self.files.operated, lines, messages });
        self.deliver_again()
    }

    /// The command, for everything that failed as the late messages do.
    fn operator(&self, operation: Operation) -> Command {
        let mut command = self.program();
        command.args(["dlq", operation.as_str(), "pipeline.toml", "--json", "--class", "sql"]);
        command.args(["--by", "lab", "--why", "the accounts are open"]);
        command
    }

    /// A producer that sends the late messages once more: their outcome is durable, or they are parked.
    fn deliver_again(&self) -> Result<()> {
        if self.cell.source == SourceKind::Kafka {
            return self.publish(LATE_LINES);
        }
        let (from, to) = (self.files.folder.join(LATE_LINES), self.files.folder.join(LINES));
        let late = std::fs::read(&from).map_err(|error| LabError::file("read", &from, error))?;
        let source = std::fs::OpenOptions::new().append(true).open(&to);
        let appended = source.and_then(|mut source| source.write_all(&late));
        appended.map_err(|error| LabError::file("append to", &to, error))
    }
}
