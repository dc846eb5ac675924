//! Where a consumer stands in a file: the sidecar and its lock.
//!
//! Never authoritative. A missing, broken or unwritable sidecar costs duplicates and a warning. It is
//! written beside itself and renamed, so that a crash leaves the old one or the new one.
//!
//! ```text
//!  sidecar                            file                                   start
//!  none, or unreadable                any                                    0
//!  offset > size                      truncated                              0, noticed
//!  other inode or other first bytes   replaced                               0, noticed
//!  other bytes before the offset      rewritten in place                     0, noticed
//!  last line had no end               went on in the same line               start of that line
//!  else                                                                      offset
//! ```
//!
//! Whether the position belongs to a store only that store's inbox can say: see `settled`.

use super::config::FileOptions;
use handstamp_core::{CrashPoint, SourceError, SourceErrorKind};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many bytes of the file's beginning, and as many before the offset, tell it from another.
const COMPARED_BYTES: usize = 4096;
/// 2: the bytes before the offset are compared, too.
const VERSION: u32 = 2;
/// A sidecar is a few hundred bytes; anything larger is not ours.
const SIDECAR_MAX_BYTES: u64 = 64 * 1024;

/// The last line behind which everything is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Where to go on.
    pub(crate) offset: u64,
    /// Lines before `offset`.
    pub(crate) line: u64,
    /// Where the last settled line starts.
    pub(crate) line_start: u64,
    /// False when that line had no line end yet.
    pub(crate) terminated: bool,
}

/// Where to start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Start {
    /// Byte position of the first line to hand over.
    pub(crate) offset: u64,
    /// Lines before it.
    pub(crate) line: u64,
    /// Why an earlier position does not count any more.
    pub(crate) changed: Option<&'static str>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    version: u32,
    path: String,
    inode: u64,
    offset: u64,
    line: u64,
    line_start: u64,
    terminated: bool,
    prefix_blake3: String,
    /// Missing in the first version.
    #[serde(default)]
    tail_blake3: String,
}

/// The sidecar of one consumer and one file; its lock is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Sidecar {
    file: PathBuf,
    path: String,
    data: File,
    inode: u64,
    prefix: Option<(usize, String)>,
    broken: bool,
    _lock: File,
}

/// A process that is being started holds what its parent has open until it runs its own program: a lock that was just
/// given up is waited for so often, and so long each time.
const LOCK_TRIES: u32 = 10;
const LOCK_WAIT: Duration = Duration::from_millis(20);

fn locked(lock: &File, mut wait: impl FnMut()) -> Result<(), TryLockError> {
    for _ in 1..LOCK_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => wait(),
            locked => return locked,
        }
    }
    lock.try_lock()
}

impl Sidecar {
    /// Opens and locks the sidecar of a file; `None` when no folder was given or it cannot be used.
    pub(crate) fn open(
        options: &FileOptions,
        data: &File,
        canonical: &Path,
    ) -> Result<Option<Self>, SourceError> {
        let Some(state_dir) = &options.state_dir else { return Ok(None) };
        let lock_path = lock_file(state_dir, canonical, options.consumer.as_str());
        let opened = fs::create_dir_all(state_dir).and_then(|()| {
            let lock = File::options().create(true).write(true).truncate(false).open(&lock_path)?;
            Ok((lock, data.try_clone()?, data.metadata()?.ino()))
        });
        let (lock, data, inode) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(
                    state_dir = %state_dir.display(), %error,
                    "the position of the file cannot be kept: the next run starts at its beginning"
                );
                return Ok(None);
            }
        };
        match locked(&lock, || std::thread::sleep(LOCK_WAIT)) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!(
                    "{} is being read for consumer {} by another process, which holds {}: stop it, or give \
                     this consumer another name",
                    options.path.display(),
                    options.consumer,
                    lock_path.display()
                );
                return Err(SourceError::new(SourceErrorKind::Locked, message));
            }
            Err(TryLockError::Error(error)) => {
                tracing::warn!(lock = %lock_path.display(), %error, "no lock: a second process would not be noticed");
            }
        }
        let path = canonical.to_string_lossy().into_owned();
        let file = position_file(state_dir, canonical, options.consumer.as_str());
        Ok(Some(Self { file, path, data, inode, prefix: None, broken: false, _lock: lock }))
    }

    /// Where to start, judged by what the sidecar and the file say.
    pub(crate) fn start(&self) -> Start {
        let saved = match read(&self.file) {
            Ok(Some(saved)) => saved,
            Ok(None) => return Start::default(),
            Err(error) => {
                tracing::warn!(
                    sidecar = %self.file.display(), %error,
                    "the position cannot be read: starting at the beginning of the file"
                );
                return Start::default();
            }
        };
        judge(&self.data, self.inode, &saved).unwrap_or_else(|error| {
            tracing::warn!(file = %self.path, %error, "the file cannot be compared with its position");
            Start::default()
        })
    }

    /// Writes the position durably; a failure is warned of once and costs only duplicates.
    pub(crate) fn write(&mut self, position: Position) {
        match self.try_write(position) {
            Ok(()) => {
                CrashPoint::AfterSettle.reached();
                self.broken = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.broken, true) {
                    tracing::warn!(
                        sidecar = %self.file.display(), %error,
                        "the position cannot be written: the next run meets messages again"
                    );
                }
            }
        }
    }

    fn try_write(&mut self, position: Position) -> io::Result<()> {
        let wanted = compared_length(position.offset);
        if self.prefix.as_ref().is_none_or(|(length, _)| *length != wanted) {
            self.prefix = Some((wanted, prefix_hash(&self.data, position.offset)?));
        }
        let saved = Saved {
            version: VERSION,
            path: self.path.clone(),
            inode: self.inode,
            offset: position.offset,
            line: position.line,
            line_start: position.line_start,
            terminated: position.terminated,
            prefix_blake3: self.prefix.as_ref().map(|(_, hash)| hash.clone()).unwrap_or_default(),
            tail_blake3: tail_hash(&self.data, position.offset)?,
        };
        // The lock is ours, so the name can be fixed: a crash leaves one file behind, not many.
        let new = with_suffix(&self.file, "new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&saved)?)?;
        file.sync_data()?;
        CrashPoint::MidSettle.reached();
        fs::rename(&new, &self.file)
    }
}

/// Where a source would start by what the sidecar says; nothing is locked.
pub(super) fn start_of(sidecar: &Path, data: &File) -> io::Result<Start> {
    // What cannot be read is no position for the source either; it says so.
    let Ok(Some(saved)) = read(sidecar) else { return Ok(Start::default()) };
    judge(data, data.metadata()?.ino(), &saved)
}

/// Where the last settled line lies, if the source would go on behind it; nothing is locked.
pub(super) fn settled(sidecar: &Path, data: &File) -> io::Result<Option<Position>> {
    // What cannot be read is no position for the source either; it says so.
    let Ok(Some(saved)) = read(sidecar) else { return Ok(None) };
    let start = judge(data, data.metadata()?.ino(), &saved)?;
    let Saved { offset, line, line_start, terminated, .. } = saved;
    let goes_on = start.changed.is_none() && offset > 0 && line_start < offset;
    Ok(goes_on.then_some(Position { offset, line, line_start, terminated }))
}

fn read(sidecar: &Path) -> io::Result<Option<Saved>> {
    let length = match fs::metadata(sidecar) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > SIDECAR_MAX_BYTES {
        return Err(io::Error::other("it is too large to be a position"));
    }
    let saved: Saved = serde_json::from_slice(&fs::read(sidecar)?)?;
    if saved.version != VERSION {
        return Err(io::Error::other(format!("its version is {}, not {VERSION}", saved.version)));
    }
    Ok(Some(saved))
}

fn judge(data: &File, inode: u64, saved: &Saved) -> io::Result<Start> {
    let changed = |why| Ok(Start { changed: Some(why), ..Start::default() });
    let size = data.metadata()?.len();
    if size < saved.offset {
        return changed("the file is shorter than what was read of it");
    }
    if inode != saved.inode {
        return changed("the file was replaced by another");
    }
    if prefix_hash(data, saved.offset)? != saved.prefix_blake3 {
        return changed("the file begins with other bytes than it did");
    }
    if tail_hash(data, saved.offset)? != saved.tail_blake3 {
        return changed("other bytes lie before the position than those that were read");
    }
    if saved.offset == 0 {
        return Ok(Start::default());
    }
    let mut around = [0; 2];
    let read = data.read_at(&mut around, saved.offset - 1)?;
    if saved.terminated && around[0] != b'\n' {
        return changed("no line ends where the last one read did");
    }
    // The last line was handed over before it was written to its end: hand it over again, whole.
    let grew_in_line = !saved.terminated && read == 2 && !matches!(around[1], b'\n' | b'\r');
    if grew_in_line && saved.line_start <= saved.offset {
        return Ok(Start { offset: saved.line_start, line: saved.line.saturating_sub(1), changed: None });
    }
    // Only the line end of that last line may be left: it makes no line of its own.
    let line = if !saved.terminated && read == 2 { saved.line.saturating_sub(1) } else { saved.line };
    Ok(Start { offset: saved.offset, line, changed: None })
}

/// Hash of the file's first bytes, at most up to `offset`.
fn prefix_hash(data: &File, offset: u64) -> io::Result<String> {
    hash_at(data, 0, compared_length(offset))
}

/// Hash of the last bytes before `offset`.
fn tail_hash(data: &File, offset: u64) -> io::Result<String> {
    let length = compared_length(offset);
    hash_at(data, offset.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX)), length)
}

fn hash_at(data: &File, from: u64, length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    data.read_exact_at(&mut bytes, from)?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

fn compared_length(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX).min(COMPARED_BYTES)
}

/// The sidecar's own path.
pub(super) fn position_file(state_dir: &Path, canonical: &Path, consumer: &str) -> PathBuf {
    with_suffix(&state_dir.join(file_stem(canonical, consumer)), "position")
}

/// What a running source holds locked.
pub(super) fn lock_file(state_dir: &Path, canonical: &Path, consumer: &str) -> PathBuf {
    with_suffix(&state_dir.join(file_stem(canonical, consumer)), "lock")
}

/// `<file name>.<short hash of the path>.<consumer>`: readable, and never that of another file.
fn file_stem(canonical: &Path, consumer: &str) -> String {
    let name = canonical.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let name: String = name.chars().take(80).map(plain).collect();
    let hash = blake3::hash(canonical.as_os_str().as_encoded_bytes()).to_hex();
    format!("{name}.{}.{consumer}", &hash[..12])
}

fn with_suffix(stem: &Path, suffix: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_given_up_soon_is_waited_for_and_one_that_is_held_is_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("lock");
        let open = || File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        for given_up_at in 1..LOCK_TRIES {
            let mut held = Some(open());
            held.as_ref().unwrap().try_lock().unwrap();
            let mut waits = 0;
            let wait = || {
                waits += 1;
                held.take_if(|_| waits == given_up_at);
            };
            locked(&open(), wait).unwrap();
            assert_eq!(waits, given_up_at, "no wait more than needed");
        }
        let held = open();
        held.try_lock().unwrap();
        let mut waits = 0;
        assert!(matches!(locked(&open(), || waits += 1), Err(TryLockError::WouldBlock)));
        assert_eq!(waits, LOCK_TRIES - 1);
    }
}
