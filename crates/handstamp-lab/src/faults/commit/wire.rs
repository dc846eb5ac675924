//! Where messages begin in a Postgres connection, whatever pieces its bytes come in (pure).
//!
//! It reads no more than it needs: the kind, the length, and the first bytes of the body.

/// Most bytes of a body that are kept to be looked at.
const PREFIX_MAX: usize = 1024;

/// A message whose head was seen; the rest may still be under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Offset of its first byte in this direction of the connection.
    pub(super) start: u64,
    /// Offset behind its last byte.
    pub(super) end: u64,
    /// Its type; 0 for a start-up message, which has none.
    pub(super) kind: u8,
    /// The body, or its beginning.
    pub(super) body: Vec<u8>,
}

/// Splits one direction into messages.
#[derive(Debug)]
pub(super) struct Frames {
    /// The next message has no type.
    untyped: bool,
    /// Offset of the next byte to come.
    at: u64,
    head: Vec<u8>,
    /// The message under way, and how many of its bytes are still to come.
    open: Option<(Frame, u64)>,
    /// Whether the open message was told.
    told: bool,
}

impl Frames {
    /// What a client sends: its first message has no type.
    pub(super) fn of_client() -> Self {
        Self { untyped: true, at: 0, head: Vec::new(), open: None, told: false }
    }

    /// What a server sends to a client that does not ask for TLS.
    pub(super) fn of_server() -> Self {
        Self { untyped: false, ..Self::of_client() }
    }

    /// Offset of the next byte to come.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes; tells each message as soon as enough of it is there.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut tell: impl FnMut(&Frame)) {
        while !bytes.is_empty() {
            let Some((frame, left)) = &mut self.open else {
                let (byte, rest) = (bytes[0], &bytes[1..]);
                bytes = rest;
                self.head.push(byte);
                self.at += 1;
                self.begin();
                self.tell_open(&mut tell);
                continue;
            };
            let step = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            let keep = PREFIX_MAX.saturating_sub(frame.body.len()).min(step);
            frame.body.extend_from_slice(&bytes[..keep]);
            *left -= step as u64;
            self.at += step as u64;
            bytes = &bytes[step..];
            self.tell_open(&mut tell);
        }
    }

    /// Opens a message when its head is complete.
    fn begin(&mut self) {
        let typed = usize::from(!self.untyped);
        let Some(length) = self.head.get(typed..typed + 4) else { return };
        let length = length.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let head = self.head.len() as u64;
        let start = self.at - head;
        let left = length.saturating_sub(4);
        let kind = if self.untyped { 0 } else { self.head[0] };
        self.untyped = false;
        self.head.clear();
        self.told = false;
        self.open = Some((Frame { start, end: start + head + left, kind, body: Vec::new() }, left));
    }

    fn tell_open(&mut self, tell: &mut impl FnMut(&Frame)) {
        let Some((frame, left)) = &self.open else { return };
        if !self.told && (*left == 0 || frame.body.len() >= PREFIX_MAX) {
            self.told = true;
            tell(frame);
        }
        if *left == 0 {
            self.open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn all(mut frames: Frames, bytes: &[u8], pieces: &[usize]) -> Vec<Frame> {
        let mut told = Vec::new();
        let mut rest = bytes;
        for piece in pieces.iter().chain([&bytes.len()]) {
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            frames.take(now, |frame| told.push(frame.clone()));
            rest = later;
        }
        assert_eq!(frames.at(), bytes.len() as u64);
        told
    }

    proptest! {
        #[test]
        fn messages_are_found_in_any_pieces(
            bodies in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..3000)), 0..8),
            pieces in proptest::collection::vec(1_usize..700, 0..40),
        ) {
            let mut bytes = [&20_u32.to_be_bytes()[..], &[0; 16]].concat();
            let mut expected = vec![Frame { start: 0, end: 20, kind: 0, body: vec![0; 16] }];
            for (kind, body) in &bodies {
                let start = bytes.len() as u64;
                bytes.extend(message(*kind, body));
                let end = bytes.len() as u64;
                let body = body[..body.len().min(PREFIX_MAX)].to_vec();
                expected.push(Frame { start, end, kind: *kind, body });
            }
            prop_assert_eq!(all(Frames::of_client(), &bytes, &pieces), expected);
        }
    }

    #[test]
    fn a_server_speaks_in_typed_messages_from_the_start_and_nonsense_is_survived() {
        let bytes = [message(b'R', &[0; 4]), message(b'K', &[0, 0, 1, 2, 9, 9, 9, 9])].concat();
        let told = all(Frames::of_server(), &bytes, &[1, 1, 1]);
        assert_eq!(told.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [b'R', b'K']);
        // A length below its own size.
        assert_eq!(all(Frames::of_server(), &[b'X', 0, 0, 0, 0, b'Z', 0, 0, 0, 4], &[]).len(), 2);
        all(Frames::of_server(), &[0xff; 5000], &[]);
    }
}
