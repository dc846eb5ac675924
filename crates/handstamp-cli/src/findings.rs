//! What `check` found: each with what to do.

use crate::exit::Exit;
use crate::output::width;
use serde_json::{Value, json};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Warning,
    Failed,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// One finding.
#[derive(Debug)]
struct Finding {
    level: Level,
    what: String,
    todo: Option<String>,
}

/// Everything found, in order.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    /// Something is as it should be.
    pub(crate) fn ok(&mut self, what: impl Into<String>) {
        self.0.push(Finding { level: Level::Ok, what: what.into(), todo: None });
    }

    /// Something may bite later.
    pub(crate) fn warn(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.0.push(Finding { level: Level::Warning, what: what.into(), todo: Some(todo.into()) });
    }

    /// Something would not work, or would break the promise.
    pub(crate) fn fail(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.0.push(Finding { level: Level::Failed, what: what.into(), todo: Some(todo.into()) });
    }

    /// The same from an error and the errors behind it.
    pub(crate) fn fail_error(&mut self, error: &crate::exit::CliError, todo: &str) {
        let mut what = error.message.clone();
        for cause in &error.causes {
            what.push_str(": ");
            what.push_str(cause);
        }
        let todo = if error.hints.is_empty() { todo.to_owned() } else { error.hints.join("; ") };
        self.fail(what, todo);
    }

    /// Each effect that does not fit.
    pub(crate) fn fail_effects(&mut self, unfit: Vec<handstamp_core::StoreError>) {
        for error in unfit {
            self.fail_error(&error.into(), "correct the effect or the tables");
        }
    }

    /// The exit code of the whole check.
    pub(crate) fn exit(&self) -> Exit {
        if self.count(Level::Failed) > 0 { Exit::CheckFailed } else { Exit::Ok }
    }

    fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// For people, in lines of so many columns.
    pub(crate) fn text(&self, columns: usize) -> String {
        let mut out = String::new();
        for finding in &self.0 {
            let texts = std::iter::once(&finding.what).chain(&finding.todo);
            for (at, text) in texts.enumerate() {
                let level = if at == 0 { finding.level.as_str() } else { "" };
                for (line, part) in text.lines().enumerate() {
                    let level = if line == 0 { level } else { "" };
                    out.push_str(&width::behind(&format!("{level:<8} "), part, columns));
                }
            }
        }
        let (failed, warnings) = (self.count(Level::Failed), self.count(Level::Warning));
        out.push_str(&format!("{failed} failed, {warnings} warnings\n"));
        out
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .0
            .iter()
            .map(|finding| {
                json!({ "level": finding.level.as_str(), "what": finding.what, "todo": finding.todo })
            })
            .collect();
        json!({
            "error": null,
            "exit_code": self.exit().code(),
            "failed": self.count(Level::Failed),
            "warnings": self.count(Level::Warning),
            "findings": findings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_alone_do_not_fail() {
        let mut findings = Findings::default();
        findings.ok("a");
        findings.warn("b", "do this");
        assert_eq!(findings.exit(), Exit::Ok);
        findings.fail("c", "do that");
        assert_eq!(findings.exit(), Exit::CheckFailed);
        findings.ok("a word and ".repeat(40));
        for columns in [80, 100] {
            let text = findings.text(columns);
            assert!(text.ends_with("1 failed, 1 warnings\n"), "{text}");
            assert!(text.lines().all(|line| width::width_of(line) <= columns), "{text}");
            assert!(text.lines().any(|line| line.starts_with("         ")), "{text}");
        }
    }
}
