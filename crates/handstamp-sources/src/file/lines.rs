//! Bytes to lines: bounded while reading, bytes intact.
//!
//! * A line ends with LF or CRLF; both are taken off. The last line needs no end; a CR at the end of
//!   the input is taken for half of one.
//! * A completely empty line is no message: it is skipped, though it counts as a line. A line of
//!   white space is handed over like any other.
//! * A byte order mark at the start of the file is skipped; byte positions count it.
//! * A line longer than the limit is never held whole: its prefix is kept, its length counted and its
//!   BLAKE3 taken while it passes.

use bytes::{Bytes, BytesMut};
use handstamp_core::Truncation;
use std::io::{self, BufRead, Read};

/// Most bytes kept of a line that is longer than the limit.
pub(crate) const PREFIX_MAX_BYTES: usize = 64 * 1024;

/// Memory that is asked for at a time; its lines share it.
const BLOCK_BYTES: usize = 256 * 1024;
/// With less room left than this, the next read goes into a new block.
const ROOM_MIN_BYTES: usize = 8 * 1024;
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Byte position of its first byte.
    pub(crate) start: u64,
    /// Byte position behind its line end.
    pub(crate) end: u64,
    /// Its number, from 1.
    pub(crate) number: u64,
    /// Its bytes without the line end, or a prefix of them.
    pub(crate) value: Bytes,
    /// Set when `value` is a prefix.
    pub(crate) truncation: Option<Truncation>,
    /// False for a last line without its line end.
    pub(crate) terminated: bool,
}

/// Reads lines one by one. Lines are slices of the block they were read into.
pub(crate) struct LineReader<R> {
    reader: R,
    /// Read and not handed over yet; begins with the next line.
    block: BytesMut,
    /// So many bytes of it hold no line end.
    searched: usize,
    /// Where in it the next line feed is, once found.
    line_feed: Option<usize>,
    at_end: bool,
    at: u64,
    number: u64,
    line_max_bytes: usize,
}

impl<R: Read> LineReader<R> {
    /// Lines of `reader`, whose next byte lies at position `at` behind `number` lines.
    pub(crate) fn new(reader: R, at: u64, number: u64, line_max_bytes: usize) -> io::Result<Self> {
        let mut lines = Self {
            reader,
            block: BytesMut::new(),
            searched: 0,
            line_feed: None,
            at_end: false,
            at,
            number,
            line_max_bytes,
        };
        if at == 0 {
            lines.skip_byte_order_mark()?;
        }
        Ok(lines)
    }

    fn skip_byte_order_mark(&mut self) -> io::Result<()> {
        while !self.at_end
            && self.block.len() < BYTE_ORDER_MARK.len()
            && BYTE_ORDER_MARK.starts_with(&self.block)
        {
            self.fill()?;
        }
        if self.block.starts_with(&BYTE_ORDER_MARK) {
            self.take(BYTE_ORDER_MARK.len());
        }
        Ok(())
    }

    /// True when the next line can be read without waiting for a writer.
    pub(crate) fn has_line(&mut self) -> bool {
        self.find_line_feed().is_some()
    }

    /// The next line; `None` at the end of the input.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Line>> {
        // One byte more than a line of the largest size with CRLF tells that it is longer.
        let held_max = self.line_max_bytes.saturating_add(2);
        loop {
            let start = self.at;
            while self.find_line_feed().is_none() && !self.at_end && self.block.len() < held_max {
                self.fill()?;
            }
            let (mut value, terminated) = match self.find_line_feed() {
                Some(line_feed) => (self.take(line_feed + 1), true),
                None if self.at_end && self.block.is_empty() => return Ok(None),
                None if self.block.len() < held_max => (self.take(self.block.len()), false),
                None => {
                    self.number += 1;
                    return self.pass_over_long(start).map(Some);
                }
            };
            self.number += 1;
            if terminated {
                value.truncate(value.len() - 1);
            }
            if value.last() == Some(&b'\r') {
                value.truncate(value.len() - 1);
            }
            if value.is_empty() {
                continue;
            }
            let truncation = (value.len() > self.line_max_bytes).then(|| Truncation {
                full_bytes: count(value.len()),
                blake3: *blake3::hash(&value).as_bytes(),
            });
            if truncation.is_some() {
                value = self.prefix_of(&value);
            }
            return Ok(Some(self.line(start, value, truncation, terminated)));
        }
    }

    fn line(&self, start: u64, value: Bytes, truncation: Option<Truncation>, terminated: bool) -> Line {
        Line { start, end: self.at, number: self.number, value, truncation, terminated }
    }

    /// What is kept of a line that is too long: a copy, so that it holds no more memory than itself.
    fn prefix_of(&self, content: &[u8]) -> Bytes {
        let kept = self.line_max_bytes.min(PREFIX_MAX_BYTES).min(content.len());
        Bytes::copy_from_slice(&content[..kept])
    }

    /// Reads on to the end of a line whose beginning fills the block, keeping nothing more.
    fn pass_over_long(&mut self, start: u64) -> io::Result<Line> {
        let value = self.prefix_of(&self.block);
        let mut passed = Measured::default();
        let terminated = loop {
            let line_feed = self.find_line_feed();
            let content = self.take(line_feed.unwrap_or(self.block.len()));
            passed.update(&content);
            if line_feed.is_some() {
                self.take(1);
                break true;
            }
            if self.at_end {
                break false;
            }
            drop(content);
            self.fill()?;
        };
        let truncation =
            Truncation { full_bytes: passed.full_bytes, blake3: *passed.hasher.finalize().as_bytes() };
        Ok(self.line(start, value, Some(truncation), terminated))
    }

    /// The next line feed in the block; each byte is looked at once.
    fn find_line_feed(&mut self) -> Option<usize> {
        if self.line_feed.is_none() && self.searched < self.block.len() {
            let mut rest = &self.block[self.searched..];
            // Reading from memory cannot fail.
            let passed = rest.skip_until(b'\n').unwrap_or(0);
            self.searched += passed;
            self.line_feed = self.searched.checked_sub(1).filter(|last| self.block[*last] == b'\n');
        }
        self.line_feed
    }

    /// Takes bytes off the front of the block.
    fn take(&mut self, bytes: usize) -> Bytes {
        self.at += count(bytes);
        self.searched = self.searched.saturating_sub(bytes);
        self.line_feed = self.line_feed.and_then(|line_feed| line_feed.checked_sub(bytes));
        self.block.split_to(bytes).freeze()
    }

    /// Reads once, into what is left of the block or into a new one.
    fn fill(&mut self) -> io::Result<()> {
        let held = self.block.len();
        if self.block.capacity() - held < ROOM_MIN_BYTES {
            self.block.reserve(BLOCK_BYTES);
        }
        let room = self.block.capacity().min(held + BLOCK_BYTES);
        self.block.resize(room, 0);
        let read = loop {
            match self.reader.read(&mut self.block[held..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.block.truncate(held + read.as_ref().map_or(0, |read| *read));
        self.at_end = read? == 0;
        Ok(())
    }
}

/// Length and hash of a line that passes by. A CR counts only when something follows it: else it is
/// part of the line end.
#[derive(Default)]
struct Measured {
    hasher: blake3::Hasher,
    full_bytes: u64,
    held_cr: bool,
}

impl Measured {
    fn update(&mut self, chunk: &[u8]) {
        let Some((last, before)) = chunk.split_last() else { return };
        if self.held_cr {
            self.add(b"\r");
        }
        self.held_cr = *last == b'\r';
        self.add(if self.held_cr { before } else { chunk });
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.full_bytes += count(bytes.len());
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the rules say, written the slow way: (start, end, number, content, terminated).
    fn reference(bytes: &[u8]) -> Vec<(usize, usize, u64, Vec<u8>, bool)> {
        let mut lines = vec![];
        let mut start = if bytes.starts_with(&BYTE_ORDER_MARK) { 3 } else { 0 };
        let mut number = 0;
        while start < bytes.len() {
            number += 1;
            let line_end = bytes[start..].iter().position(|b| *b == b'\n').map(|at| start + at);
            let end = line_end.map_or(bytes.len(), |at| at + 1);
            let content = &bytes[start..line_end.unwrap_or(end)];
            let content = content.strip_suffix(b"\r").unwrap_or(content);
            if !content.is_empty() {
                lines.push((start, end, number, content.to_vec(), line_end.is_some()));
            }
            start = end;
        }
        lines
    }

    /// Gives few bytes at a time, as a slow pipe does.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len()).min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn content() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            3 => Just(b"\n".to_vec()),
            2 => Just(b"\r\n".to_vec()),
            1 => Just(b"\r".to_vec()),
            1 => Just(BYTE_ORDER_MARK.to_vec()),
            2 => Just(b" \t".to_vec()),
            4 => proptest::collection::vec(any::<u8>(), 0..12),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_reference(bytes in content(), at_once in 1_usize..9, max in 0_usize..8) {
            let mut reader = LineReader::new(Dribble(&bytes, at_once), 0, 0, max).unwrap();
            for (start, end, number, content, terminated) in reference(&bytes) {
                let line = reader.next_line().unwrap().unwrap();
                prop_assert_eq!((line.start, line.end), (start as u64, end as u64));
                prop_assert_eq!((line.number, line.terminated), (number, terminated));
                prop_assert_eq!(&line.value[..], &content[..content.len().min(max)]);
                let whole = Truncation {
                    full_bytes: content.len() as u64,
                    blake3: *blake3::hash(&content).as_bytes(),
                };
                prop_assert_eq!(line.truncation, (content.len() > max).then_some(whole));
            }
            prop_assert_eq!(reader.next_line().unwrap(), None);
        }
    }

    /// A writer that waits behind a byte must not keep the lines before it from being read.
    #[test]
    fn nothing_is_read_ahead_of_a_line_that_is_there() {
        struct OnceThenPanic(&'static [u8]);
        impl Read for OnceThenPanic {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                assert!(!self.0.is_empty(), "read although a line is there");
                buffer[..self.0.len()].copy_from_slice(self.0);
                Ok(std::mem::take(&mut self.0).len())
            }
        }
        let mut reader = LineReader::new(OnceThenPanic(b"a\n\nb\r\nc"), 0, 0, 100).unwrap();
        for (value, number) in [(&b"a"[..], 1), (b"b", 3)] {
            assert!(reader.has_line());
            let line = reader.next_line().unwrap().unwrap();
            assert_eq!((&line.value[..], line.number), (value, number));
        }
        assert!(!reader.has_line(), "only a part of the next line is there");
    }

    #[test]
    fn a_line_far_longer_than_the_limit_is_never_held() {
        let long = vec![b'x'; 5 << 20];
        let bytes = [&b"a\n"[..], &long, b"\r\nb"].concat();
        let mut reader = LineReader::new(&bytes[..], 0, 0, 100_000).unwrap();
        let mut lines = vec![];
        while let Some(line) = reader.next_line().unwrap() {
            lines.push(line);
        }
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].value.len(), PREFIX_MAX_BYTES);
        assert_eq!(lines[1].truncation.as_ref().unwrap().full_bytes, 5 << 20);
        assert_eq!((&lines[2].value[..], lines[2].number), (&b"b"[..], 3));
        assert!(reader.block.capacity() < 1 << 20, "the long line was held in memory");
    }
}
