//! The next lines, looked at without taking them: nothing is locked, made or written.
//!
//! Authoritative: the file and its position, now. Another process may be reading it meanwhile.

use super::config::FileOptions;
use super::lines::LineReader;
use super::look::{self, Inspected};
use super::position;
use super::source::{cannot, delivery};
use handstamp_core::{Delivery, DeliveryTag, SourceError, SourceErrorKind};
use std::io::{Seek, SeekFrom};
use std::sync::Arc;

/// The next lines of a file.
#[derive(Debug)]
pub struct Peeked {
    /// As the source would hand them over.
    pub deliveries: Vec<Delivery>,
    /// Nothing lies behind them.
    pub ended: bool,
}

impl FileOptions {
    /// The next lines that the source would hand over, at most `most`; from the beginning where the position does
    /// not count (`from_start`: because the store is not the one it was kept for).
    ///
    /// # Errors
    /// As the source's start; `Config` for standard input and other streams, from which nothing can be looked at
    /// without taking it.
    pub fn peek(&self, most: usize, line_max_bytes: usize, from_start: bool) -> Result<Peeked, SourceError> {
        let path: Arc<str> = self.path.to_string_lossy().into();
        let Inspected::File { canonical, mut file } = look::inspect(self)? else {
            let message = format!("{path} is a stream: nothing of it can be looked at without taking it");
            return Err(SourceError::new(SourceErrorKind::Config, message));
        };
        let failed = |error| cannot("read the file", &path, error);
        let start = match &self.state_dir {
            Some(state_dir) if !from_start => {
                let sidecar = position::position_file(state_dir, &canonical, self.consumer.as_str());
                position::start_of(&sidecar, &file).map_err(failed)?
            }
            _ => position::Start::default(),
        };
        file.seek(SeekFrom::Start(start.offset)).map_err(failed)?;
        let mut lines = LineReader::new(file, start.offset, start.line, line_max_bytes).map_err(failed)?;
        let mut deliveries = Vec::new();
        while deliveries.len() < most {
            let Some(line) = lines.next_line().map_err(failed)? else {
                return Ok(Peeked { deliveries, ended: true });
            };
            let tag = DeliveryTag(line.end - 1);
            deliveries.push(delivery(line, &path, tag));
        }
        let ended = lines.next_line().map_err(failed)?.is_none();
        Ok(Peeked { deliveries, ended })
    }
}
