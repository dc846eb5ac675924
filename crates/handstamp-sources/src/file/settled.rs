//! The last settled lines before the position: what a store must know if the position is its own.
//!
//! Authoritative: the store's inbox. A position lies beside the file, not in the database: a database
//! that was removed, changed for another or restored from a backup does not take it along. So whoever
//! opens the store asks it for these lines and discards the position unless it knows them all.
//!
//! Several lines and not the last alone: a line that came again is known to a store that never saw
//! what lies before it.

use super::config::FileOptions;
use super::lines::LineReader;
use super::{position, source};
use handstamp_core::{DeadLetter, FailureClass, MessageId, Reason, Record, Timestamp, Truncation};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most lines that are given.
const LINES_MAX: usize = 16;
/// How far back they are looked for; the last one comes however long it is.
const WINDOW_BYTES: u64 = 64 * 1024;

/// A line that lies before the position: it was settled, so the store it was settled for knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SettledLine {
    /// As the source delivered it, but for the number of the line, which is not known here.
    pub record: Record,
    /// Set when the value is only a prefix.
    pub truncation: Option<Truncation>,
}

impl SettledLine {
    /// The key of the dead letter that the line became if it could not be applied: with the id found in
    /// its record, or `None` where there is no usable one. See [`DeadLetter::dedup`].
    #[must_use]
    pub fn dead_letter_key(&self, id: Option<MessageId>) -> [u8; 16] {
        let letter = DeadLetter {
            id,
            digest: self.record.digest(),
            record: self.record.clone(),
            truncation: self.truncation.clone(),
            class: FailureClass::Identity,
            code: None,
            reason: Reason::new(""),
            attempts: 0,
            received_at: Timestamp(0),
            failed_at: Timestamp(0),
        };
        letter.dedup()
    }
}

impl FileOptions {
    /// The last settled lines before the position that the source would start from, at most 16, the last
    /// one last. Empty when it would start at the beginning anyway, and for a stream.
    ///
    /// Ask the store about them before the source starts: does its inbox hold the id, or has it the
    /// line's dead letter? If one is unknown, [`discard_position`](Self::discard_position): the position
    /// is another store's. `line_max_bytes` is the consumer's limit of a message.
    ///
    /// # Errors
    /// The file or its position cannot be read.
    pub fn last_settled_lines(&self, line_max_bytes: usize) -> io::Result<Vec<SettledLine>> {
        let Some(sidecar) = self.position_path().filter(|sidecar| sidecar.exists()) else {
            return Ok(vec![]);
        };
        if !self.path.metadata()?.is_file() {
            return Ok(vec![]);
        }
        let mut file = File::open(&self.path)?;
        let Some(position) = position::settled(&sidecar, &file)? else { return Ok(vec![]) };
        let start = first_line_start(&file, position.line_start, position.offset)?;
        file.seek(SeekFrom::Start(start))?;
        let path: Arc<str> = self.path.to_string_lossy().into();
        let mut reader = LineReader::new(file.take(position.offset - start), start, 0, line_max_bytes)?;
        let mut lines = VecDeque::with_capacity(LINES_MAX);
        while let Some(line) = reader.next_line()? {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            let record = source::record(path.clone(), line.start, line.number, line.value);
            lines.push_back(SettledLine { record, truncation: line.truncation });
        }
        if lines.is_empty() {
            return Err(io::Error::other("no line lies before the position"));
        }
        Ok(lines.into())
    }

    /// Removes the position, so that the next start is at the beginning; costs duplicates only. True when
    /// there was one.
    ///
    /// # Errors
    /// The sidecar cannot be removed.
    pub fn discard_position(&self) -> io::Result<bool> {
        let Some(sidecar) = self.position_path() else { return Ok(false) };
        match fs::remove_file(sidecar) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Where the first whole line of the window starts; never behind the start of the last line.
fn first_line_start(file: &File, line_start: u64, offset: u64) -> io::Result<u64> {
    let from = offset.saturating_sub(WINDOW_BYTES);
    if from == 0 || line_start <= from {
        return Ok(from.min(line_start));
    }
    let mut before = vec![0; usize::try_from(line_start - from).map_err(io::Error::other)?];
    file.read_exact_at(&mut before, from)?;
    let line_end = before.iter().position(|byte| *byte == b'\n').map_or(before.len(), |at| at + 1);
    Ok(from + u64::try_from(line_end).map_err(io::Error::other)?)
}
