//! Which file is read, for which consumer, and where its position is kept.

use handstamp_core::ConsumerName;
use std::path::{Path, PathBuf};

/// Options of a [`FileSource`](super::FileSource).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FileOptions {
    /// The file; `-` is standard input. Symbolic links are followed; a FIFO is read like standard
    /// input. Dead letters name the file as it is written here.
    pub path: PathBuf,
    /// The folder of the position sidecar and its lock, made when missing. `None`: no position is
    /// kept and every run starts at the beginning. Streams never keep one.
    pub state_dir: Option<PathBuf>,
    /// Whose position it is.
    pub consumer: ConsumerName,
}

impl FileOptions {
    /// A file read from its beginning at each run.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, consumer: ConsumerName) -> Self {
        Self { path: path.into(), state_dir: None, consumer }
    }

    /// The same with a position kept in a folder.
    #[must_use]
    pub fn with_state_dir(mut self, state_dir: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(state_dir.into());
        self
    }

    /// Where the position of the file is kept; `None` for a stream, a missing file or no `state_dir`.
    /// Deleting it costs only duplicates.
    #[must_use]
    pub fn position_path(&self) -> Option<PathBuf> {
        let state_dir = self.state_dir.as_ref().filter(|_| !self.is_stdin())?;
        let canonical = self.path.canonicalize().ok()?;
        Some(super::position::position_file(state_dir, &canonical, self.consumer.as_str()))
    }

    /// True when the path means standard input.
    #[must_use]
    pub fn is_stdin(&self) -> bool {
        self.path == Path::new("-")
    }
}
