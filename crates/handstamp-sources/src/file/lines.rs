//! Bytes to lines: bounded while reading, bytes intact.
//!
//! * A line ends with LF or CRLF; both are taken off. The last line needs no end; a CR at the end of
//!   the input is taken for half of one.
//! * A completely empty line is no message: it is skipped, though it counts as a line. A line of
//!   white space is handed over like any other.
//! * A byte order mark at the start of the file is skipped; byte positions count it.
//! * A line longer than the limit is never held whole: its prefix is kept, its length counted and its
//!   BLAKE3 taken while it passes.

use bytes::Bytes;
use handstamp_core::Truncation;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

/// Most bytes kept of a line that is longer than the limit.
pub(crate) const PREFIX_MAX_BYTES: usize = 64 * 1024;

const BUFFER_BYTES: usize = 256 * 1024;
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

/// Reads lines one by one.
pub(crate) struct LineReader<R> {
    reader: BufReader<Chain<Cursor<Vec<u8>>, R>>,
    at: u64,
    number: u64,
    line_max_bytes: usize,
    scratch: Vec<u8>,
}

impl<R: Read> LineReader<R> {
    /// Lines of `reader`, whose next byte lies at position `at` behind `number` lines.
    pub(crate) fn new(mut reader: R, at: u64, number: u64, line_max_bytes: usize) -> io::Result<Self> {
        let (head, skipped) = if at == 0 { skip_byte_order_mark(&mut reader)? } else { (vec![], 0) };
        let reader = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(head).chain(reader));
        Ok(Self { reader, at: at + skipped, number, line_max_bytes, scratch: vec![] })
    }

    /// True when the next line can be read without waiting for a writer.
    pub(crate) fn has_line(&self) -> bool {
        self.reader.buffer().contains(&b'\n')
    }

    /// The next line; `None` at the end of the input.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Line>> {
        // One byte more than a line of the largest size with CRLF tells that it is longer.
        let read_max = u64::try_from(self.line_max_bytes).unwrap_or(u64::MAX).saturating_add(2);
        loop {
            let start = self.at;
            self.scratch.clear();
            let read = self.reader.by_ref().take(read_max).read_until(b'\n', &mut self.scratch)?;
            if read == 0 {
                return Ok(None);
            }
            self.at += count(read);
            self.number += 1;
            let terminated = self.scratch.last() == Some(&b'\n');
            if !terminated && count(read) == read_max {
                return self.pass_over_long(start).map(Some);
            }
            if terminated {
                self.scratch.pop();
            }
            if self.scratch.last() == Some(&b'\r') {
                self.scratch.pop();
            }
            if self.scratch.is_empty() {
                continue;
            }
            let truncation = (self.scratch.len() > self.line_max_bytes).then(|| Truncation {
                full_bytes: count(self.scratch.len()),
                blake3: *blake3::hash(&self.scratch).as_bytes(),
            });
            return Ok(Some(self.line(start, truncation, terminated)));
        }
    }

    fn line(&self, start: u64, truncation: Option<Truncation>, terminated: bool) -> Line {
        let kept = match truncation {
            Some(_) => self.line_max_bytes.min(PREFIX_MAX_BYTES),
            None => self.scratch.len(),
        };
        let value = Bytes::copy_from_slice(&self.scratch[..kept.min(self.scratch.len())]);
        Line { start, end: self.at, number: self.number, value, truncation, terminated }
    }

    /// Reads on to the end of a line whose beginning is in `scratch`, keeping nothing more.
    fn pass_over_long(&mut self, start: u64) -> io::Result<Line> {
        let mut rest = Measured::default();
        rest.update(&self.scratch);
        let terminated = loop {
            let chunk = match self.reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                break false;
            }
            let line_end = chunk.iter().position(|byte| *byte == b'\n');
            let content = line_end.unwrap_or(chunk.len());
            rest.update(&chunk[..content]);
            let consumed = content + usize::from(line_end.is_some());
            self.reader.consume(consumed);
            self.at += count(consumed);
            if line_end.is_some() {
                break true;
            }
        };
        let truncation =
            Truncation { full_bytes: rest.full_bytes, blake3: *rest.hasher.finalize().as_bytes() };
        Ok(self.line(start, Some(truncation), terminated))
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

/// Reads the mark where there is one; else gives back the bytes that had to be read to know.
fn skip_byte_order_mark(reader: &mut impl Read) -> io::Result<(Vec<u8>, u64)> {
    let mut head = vec![];
    for expected in BYTE_ORDER_MARK {
        let mut byte = [0];
        let read = loop {
            match reader.read(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        head.extend_from_slice(&byte[..read]);
        if read == 0 || byte[0] != expected {
            return Ok((head, 0));
        }
    }
    Ok((vec![], 3))
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
        assert!(reader.scratch.capacity() < 1 << 20, "the long line was held in memory");
    }
}
