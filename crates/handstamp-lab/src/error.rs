//! Why the lab could not go on. A verdict is never an error.

use std::error::Error;

/// Result of the lab's own work.
pub type Result<T> = std::result::Result<T, LabError>;

/// Decides the program's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabErrorKind {
    /// Settings that make no sense, or a folder that holds no run.
    Usage,
    /// The broker or the database does not answer.
    Unreachable,
    /// A subject did something that no schedule explains: it ended by itself, or made no progress.
    Subject,
    /// The broker inside the lab ended by itself: what ran on it proves nothing.
    BrokerInside,
    /// Told to stop; what was done so far is kept and can be resumed.
    Cancelled,
    /// Anything else, such as a disk that is full.
    Other,
}

/// What happened, where and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LabError {
    /// Decides the exit code.
    pub kind: LabErrorKind,
    /// One or more lines for a person; no secret.
    pub message: String,
    /// What is behind it.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl LabError {
    /// An error of a kind.
    pub fn new(kind: LabErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with what is behind it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A mistake in what was asked for.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(LabErrorKind::Usage, message)
    }

    /// Stopped because it was told to.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::new(LabErrorKind::Cancelled, "stopped before the end; what was started is ended and removed")
    }

    /// A file that cannot be read or written.
    #[must_use]
    pub fn file(what: &str, path: &std::path::Path, error: std::io::Error) -> Self {
        Self::new(LabErrorKind::Other, format!("cannot {what} {}", path.display())).because(error)
    }
}
