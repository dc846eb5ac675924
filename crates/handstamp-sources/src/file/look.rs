//! What a start refuses and what it only warns of, found without reading, making or locking anything.
//!
//! Authoritative: the file system, now. A start calls the same [`inspect`] first.

use super::config::FileOptions;
use super::position::lock_file;
use super::source::cannot;
use handstamp_core::{SourceError, SourceErrorKind};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// What lies at the path.
#[derive(Debug)]
pub(super) enum Inspected {
    /// Standard input.
    Stdin,
    /// A FIFO, a socket, a device: opening it may wait for its writer.
    Stream(PathBuf),
    /// A file, open for reading.
    File { canonical: PathBuf, file: File },
}

impl FileOptions {
    /// Looks for everything that would keep a source from starting; answers what it would warn of.
    ///
    /// # Errors
    /// As the source's start: `Missing`, or `Config` for a folder, a file that may not be read and a
    /// `state_dir` that is no folder.
    pub fn look(&self) -> Result<Vec<String>, SourceError> {
        let Inspected::File { canonical, .. } = inspect(self)? else { return Ok(vec![]) };
        let Some(state_dir) = &self.state_dir else { return Ok(vec![]) };
        let lock_path = lock_file(state_dir, &canonical, self.consumer.as_str());
        let not_kept = |error: io::Error| {
            format!(
                "the position cannot be kept in {}: {error}; each run starts at the beginning of the file",
                state_dir.display()
            )
        };
        let lock = match File::options().write(true).open(&lock_path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Ok(vec![not_kept(error)]),
        };
        Ok(match lock.try_lock() {
            Err(TryLockError::WouldBlock) => vec![format!(
                "{} is being read for consumer {} by another process; a second one would be refused",
                self.path.display(),
                self.consumer
            )],
            // Closing the file gives the lock back.
            Ok(()) | Err(TryLockError::Error(_)) => vec![],
        })
    }
}

/// Finds out what is to be read and refuses what cannot be.
pub(super) fn inspect(options: &FileOptions) -> Result<Inspected, SourceError> {
    if options.is_stdin() {
        return Ok(Inspected::Stdin);
    }
    let shown = options.path.to_string_lossy();
    let failed = |error| cannot("read the file", &shown, error);
    let metadata = options.path.metadata().map_err(failed)?;
    if metadata.is_dir() {
        let message = format!("{shown} is a folder: name a file of JSON lines, or - for standard input");
        return Err(SourceError::new(SourceErrorKind::Config, message));
    }
    if !metadata.is_file() {
        return Ok(Inspected::Stream(options.path.clone()));
    }
    if let Some(state_dir) = &options.state_dir {
        refuse_state_dir(state_dir)?;
    }
    let canonical = options.path.canonicalize().map_err(failed)?;
    let file = File::open(&canonical).map_err(failed)?;
    Ok(Inspected::File { canonical, file })
}

/// A missing folder is made; what stands where it, or a folder above it, should be is never replaced.
fn refuse_state_dir(state_dir: &Path) -> Result<(), SourceError> {
    let there = state_dir.ancestors().find(|path| path.exists());
    match there.filter(|path| !path.is_dir()) {
        Some(path) => {
            let message = format!(
                "the position cannot be kept in {}: {} is no folder; name a folder as `state_dir`",
                state_dir.display(),
                path.display()
            );
            Err(SourceError::new(SourceErrorKind::Config, message))
        }
        None => Ok(()),
    }
}
