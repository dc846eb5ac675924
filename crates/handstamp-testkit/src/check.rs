//! How a case says that a rule is broken: a value, so that the honesty suite can count it.

use std::fmt;

/// A rule that was not kept, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseFailure(pub String);

/// What a case answers.
pub type CaseResult = Result<(), CaseFailure>;

impl fmt::Display for CaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for CaseFailure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Fails the case with a line made only then.
pub(crate) fn ensure(kept: bool, say: impl FnOnce() -> String) -> CaseResult {
    if kept { Ok(()) } else { Err(CaseFailure(say())) }
}

/// Fails the case unless both are the same.
pub(crate) fn same<T: PartialEq + fmt::Debug>(what: &str, seen: &T, expected: &T) -> CaseResult {
    ensure(seen == expected, || format!("{what}: saw {seen:?}, expected {expected:?}"))
}
