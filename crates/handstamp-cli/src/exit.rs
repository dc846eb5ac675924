//! Exit codes and the program's error: a kind that decides the code, one line, and hints.
//!
//! The codes are public: scripts and supervisors may rely on them.

use crate::hints;
use handstamp_core::chain::added;
use handstamp_core::{RunError, RunErrorKind, SourceError, SourceErrorKind, StoreError, StoreErrorKind};
use serde_json::{Value, json};
use std::fmt;

/// What the program's exit code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or stopped as asked.
    Ok,
    /// Something unexpected.
    Unexpected,
    /// The command line or the configuration is wrong.
    Usage,
    /// The source or the store cannot be reached.
    Unreachable,
    /// The tables are missing or of another version.
    NotMigrated,
    /// A check, or the lab, found a problem.
    CheckFailed,
    /// A run of the lab proves nothing: a control did no harm.
    #[cfg_attr(
        not(all(feature = "lab", any(feature = "crash-points", feature = "kafka"))),
        allow(dead_code, reason = "only a program that kills consumers has controls")
    )]
    Inconclusive,
    /// Stopped before it had finished: rolled back, nothing of it settled.
    Unfinished,
}

impl Exit {
    /// Every code with what it means, for `--help` and the reference.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 8] = [
        Self::Ok,
        Self::Unexpected,
        Self::Usage,
        Self::Unreachable,
        Self::NotMigrated,
        Self::CheckFailed,
        Self::Inconclusive,
        Self::Unfinished,
    ];

    /// The number the process ends with.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Unexpected => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::NotMigrated => 4,
            Self::CheckFailed => 5,
            Self::Inconclusive => 6,
            Self::Unfinished => 7,
        }
    }
}

/// Why a command failed. Text is one line and holds no secret.
#[derive(Debug)]
pub(crate) struct CliError {
    /// Decides the exit code.
    pub(crate) exit: Exit,
    /// What happened.
    pub(crate) message: String,
    /// Further mistakes of the same kind, one line each.
    pub(crate) more: Vec<String>,
    /// The errors behind it, outermost first.
    pub(crate) causes: Vec<String>,
    /// What to do.
    pub(crate) hints: Vec<String>,
    /// What `--json` prints beside the error: what was done until then.
    pub(crate) object: Option<Box<Value>>,
}

impl CliError {
    /// An error of a kind.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            more: Vec::new(),
            causes: Vec::new(),
            hints: Vec::new(),
            object: None,
        }
    }

    /// A mistake in the command line or the configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The same with something to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The same with something to do about it, where that is known.
    fn hinted(self, hint: Option<&str>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// The object that says for programs what went wrong: `nothing` is what the command prints when it has
    /// done nothing.
    pub(crate) fn to_json(&self, nothing: &Value) -> Value {
        let mut object = self.object.as_deref().unwrap_or(nothing).clone();
        let details: Vec<&String> = self.more.iter().chain(&self.causes).collect();
        object["error"] = json!(self.message);
        object["details"] = json!(details);
        object["hints"] = json!(self.hints);
        object["exit_code"] = json!(self.exit.code());
        object
    }

    /// Further mistakes of the same kind, one line each.
    pub(crate) fn also(&mut self, lines: &[String]) {
        self.more.extend_from_slice(lines);
    }

    /// The same with the errors behind it, as far as they add something.
    pub(crate) fn caused_by(mut self, error: Option<&(dyn std::error::Error + 'static)>) -> Self {
        let mut next = error;
        while let Some(inner) = next
            && self.causes.len() < 16
        {
            let text = inner.to_string();
            // What else stands below is the statement, and not for a terminal.
            let lines = text
                .lines()
                .enumerate()
                .filter(|(at, line)| *at == 0 || line.starts_with("DETAIL: ") || line.starts_with("HINT: "));
            for (_, line) in lines {
                let said = format!("{}\n{}", self.message, self.causes.join("\n"));
                self.causes.extend(added(&said, line));
            }
            next = inner.source();
        }
        self
    }

    /// A file that could not be read or written.
    pub(crate) fn io(exit: Exit, what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::new(exit, format!("cannot {what} {}: {error}", path.display()))
            .hinted(hints::for_io(error.kind()))
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        for line in &self.more {
            write!(f, "\nerror: {line}")?;
        }
        for cause in &self.causes {
            write!(f, "\n  because: {cause}")?;
        }
        for hint in &self.hints {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// The exit that a store's error asks for.
pub(crate) fn store_exit(kind: StoreErrorKind) -> Exit {
    match kind {
        StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::Timeout => Exit::Unreachable,
        StoreErrorKind::NotMigrated => Exit::NotMigrated,
        StoreErrorKind::FingerprintMismatch | StoreErrorKind::Config | StoreErrorKind::SchemaMismatch => {
            Exit::Usage
        }
        _ => Exit::Unexpected,
    }
}

/// The exit that a source's error asks for.
pub(crate) fn source_exit(kind: SourceErrorKind) -> Exit {
    match kind {
        SourceErrorKind::Disconnected | SourceErrorKind::Missing | SourceErrorKind::Locked => {
            Exit::Unreachable
        }
        SourceErrorKind::Config => Exit::Usage,
        _ => Exit::Unexpected,
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::new(store_exit(error.kind), error.message.clone())
            .caused_by(std::error::Error::source(&error))
            .hinted(hints::for_store(error.kind, &error))
    }
}

impl From<SourceError> for CliError {
    fn from(error: SourceError) -> Self {
        Self::new(source_exit(error.kind), error.message.clone())
            .caused_by(std::error::Error::source(&error))
            .hinted(hints::for_chain(&error))
    }
}

impl From<&RunError> for CliError {
    fn from(error: &RunError) -> Self {
        let exit = match error.kind {
            RunErrorKind::Source(kind) => source_exit(kind),
            RunErrorKind::Store(kind) => store_exit(kind),
            RunErrorKind::ShutdownTimeout => Exit::Unfinished,
            _ => Exit::Unexpected,
        };
        let converted = Self::new(exit, error.message.clone()).caused_by(std::error::Error::source(error));
        match error.kind {
            RunErrorKind::Store(kind) => converted.hinted(hints::for_store(kind, error)),
            RunErrorKind::Source(_) => converted.hinted(hints::for_chain(error)),
            RunErrorKind::ShutdownTimeout => converted
                .hint("the open transaction was rolled back; its messages come again at the next run"),
            _ => converted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct() {
        let mut codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn an_error_shows_causes_and_hints_once() {
        let source = StoreError::new(StoreErrorKind::SchemaMismatch, "a column is missing")
            .with_source("a column is missing");
        let shown = CliError::from(source).to_string();
        assert_eq!(shown.matches("a column is missing").count(), 1, "{shown}");
        assert_eq!(shown.matches("hint: do your own tables exist").count(), 1, "{shown}");
    }

    #[test]
    fn a_label_makes_no_new_cause_and_each_cause_is_one_line() {
        let inner = std::io::Error::other("ERROR: a column is missing\nDETAIL: it is called b");
        let source = StoreError::new(StoreErrorKind::Statement, "reading: a column is missing (SQLSTATE 1)")
            .with_source(StoreError::new(StoreErrorKind::Statement, "db error").with_source(inner));
        assert_eq!(CliError::from(source).causes, ["DETAIL: it is called b"]);
    }

    #[test]
    fn an_object_of_an_error_keeps_what_was_done() {
        let mut error = CliError::new(Exit::Unreachable, "away").hint("start it");
        let nothing = json!({ "received": 0 });
        let shown = error.to_json(&nothing);
        assert_eq!(
            (&shown["received"], &shown["error"], &shown["exit_code"]),
            (&json!(0), &json!("away"), &json!(3))
        );
        error.object = Some(Box::new(json!({ "received": 7 })));
        assert_eq!(error.to_json(&nothing)["received"], 7);
    }
}
