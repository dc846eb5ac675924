//! A folder among the system's temporary files, for as long as a command runs.

use crate::exit::{CliError, Exit};
use std::path::{Path, PathBuf};

/// A folder that is removed with this, unless it is kept.
pub(crate) struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes one that nobody else has; `what` stands in its name.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn make(what: &str, keep: bool) -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("handstamp-{what}-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&path).map_err(|error| CliError::io(Exit::Unexpected, "make", &path, &error))?;
        Ok(Self { path, keep })
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            // What cannot be removed lies in the folder for such things.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
