//! The producer's stable id of a message, and the bytes a store keeps for it.
//!
//! Authoritative: the producer. An id is bytes, never text: nothing is trimmed, folded or normalised.

use bytes::Bytes;
use std::fmt;

/// The stable id that the producer gave a message: 1 to 1,024 bytes that are not all white space.
///
/// Two ids are the same message exactly when their bytes are the same.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Bytes);

/// Why some bytes cannot be a message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageIdError {
    /// No byte at all.
    #[error("the message id is empty")]
    Empty,
    /// Only white space.
    #[error("the message id is blank (only white space)")]
    Blank,
    /// More than [`MessageId::MAX_BYTES`].
    #[error("the message id has {0} bytes; at most {max} are kept whole", max = MessageId::MAX_BYTES)]
    TooLong(usize),
}

impl MessageId {
    /// The longest id that every store keeps whole.
    pub const MAX_BYTES: usize = 1024;
    /// What an id begins with that stands for a longer one.
    pub const HASHED: &str = "handstamp:blake3:";

    /// Checks and wraps the bytes of an id.
    ///
    /// # Errors
    /// [`MessageIdError`] when the bytes are empty, blank or too many.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, MessageIdError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(MessageIdError::Empty);
        }
        if bytes.len() > Self::MAX_BYTES {
            return Err(MessageIdError::TooLong(bytes.len()));
        }
        if is_blank(&bytes) {
            return Err(MessageIdError::Blank);
        }
        Ok(Self(bytes))
    }

    /// The same for ids of any length. One of more than [`MessageId::MAX_BYTES`] becomes
    /// [`MessageId::HASHED`] and 64 hex digits: the BLAKE3 hash of all its bytes. So does a shorter one that begins
    /// with [`MessageId::HASHED`], so that no id passes for the hash of another.
    ///
    /// # Errors
    /// [`MessageIdError`] when the bytes are empty or blank.
    pub fn hashing_long(bytes: impl Into<Bytes>) -> Result<Self, MessageIdError> {
        let bytes = bytes.into();
        let stands_for_itself = bytes.len() <= Self::MAX_BYTES && !bytes.starts_with(Self::HASHED.as_bytes());
        if !stands_for_itself {
            if is_blank(&bytes) {
                return Err(MessageIdError::Blank);
            }
            return Self::new(format!("{}{}", Self::HASHED, blake3::hash(&bytes).to_hex()));
        }
        Self::new(bytes)
    }

    /// The same in memory of its own, where it may lie inside a larger body.
    pub(crate) fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The id's bytes as the producer sent them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id as text, when it is valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The bytes a store keeps: injective, so that two ids never meet in one row.
    ///
    /// A canonical lower-case UUID (36 characters) becomes its 16 bytes; any other id of at most 15
    /// bytes stays as it is; any other of 16 bytes or more gets one `0x00` appended. Sixteen stored
    /// bytes therefore always mean a UUID.
    #[must_use]
    pub fn to_stored(&self) -> Vec<u8> {
        let mut stored = Vec::with_capacity(self.0.len() + 1);
        self.write_stored(&mut stored);
        stored
    }

    /// Appends what [`MessageId::to_stored`] gives: the ids of a batch fit one buffer.
    pub fn write_stored(&self, out: &mut Vec<u8>) {
        if let Some(uuid) = parse_canonical_uuid(&self.0) {
            return out.extend_from_slice(&uuid);
        }
        out.extend_from_slice(&self.0);
        if self.0.len() >= 16 {
            out.push(0);
        }
    }

    /// The id behind stored bytes; the inverse of [`MessageId::to_stored`].
    ///
    /// # Errors
    /// [`MessageIdError`] when the bytes were not written by `to_stored`.
    pub fn from_stored(stored: &[u8]) -> Result<Self, MessageIdError> {
        match stored.len() {
            16 => Self::new(format_uuid(stored)),
            0..=15 => Self::new(stored.to_vec()),
            n => Self::new(stored[..n - 1].to_vec()),
        }
    }
}

impl TryFrom<&str> for MessageId {
    type Error = MessageIdError;
    fn try_from(text: &str) -> Result<Self, MessageIdError> {
        Self::new(text.as_bytes().to_vec())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_text(&self.0))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

/// Bytes as one printable line: UTF-8 text with control characters escaped, else `\x..` escapes.
#[must_use]
pub fn shown_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
            if c.is_control() {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
            out
        }),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

fn is_blank(bytes: &[u8]) -> bool {
    if bytes.first().is_some_and(u8::is_ascii_graphic) {
        return false;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.chars().all(char::is_whitespace),
        Err(_) => false,
    }
}

/// The value of a lower-case hex digit; `NO_DIGIT` for any other byte.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[HEX[value as usize] as usize] = value;
        value += 1;
    }
    digits
};
const NO_DIGIT: u8 = 0xff;
const HEX: &[u8; 16] = b"0123456789abcdef";
/// Where the first digits of a UUID's 16 bytes stand in its text.
const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

/// The 16 bytes of a canonical lower-case UUID text; `None` for any other spelling.
fn parse_canonical_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; 36] = text.try_into().ok()?;
    if [text[8], text[13], text[18], text[23]] != *b"----" {
        return None;
    }
    let mut wrong = 0;
    let out = PLACES.map(|place| {
        let (high, low) = (DIGITS[usize::from(text[place])], DIGITS[usize::from(text[place + 1])]);
        wrong |= high | low;
        high << 4 | low
    });
    // Only NO_DIGIT has high bits.
    (wrong < 16).then_some(out)
}

fn format_uuid(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(36);
    for (at, &byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push(b'-');
        }
        text.push(HEX[usize::from(byte >> 4)]);
        text.push(HEX[usize::from(byte & 15)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id() -> impl Strategy<Value = MessageId> {
        prop_oneof![
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(String::into_bytes),
            "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 1..40),
            proptest::collection::vec(prop_oneof![Just(0_u8), Just(b'a'), Just(b'-')], 12..20),
            proptest::collection::vec(any::<u8>(), 1..=MessageId::MAX_BYTES),
        ]
        .prop_filter_map("usable", |bytes| MessageId::new(bytes).ok())
    }

    proptest! {
        #[test]
        fn stored_bytes_are_lossless(id in id()) {
            prop_assert_eq!(MessageId::from_stored(&id.to_stored()).unwrap(), id);
        }

        #[test]
        fn stored_bytes_are_injective(a in id(), b in id()) {
            prop_assert_eq!(a == b, a.to_stored() == b.to_stored());
        }

        #[test]
        fn sixteen_stored_bytes_always_mean_a_uuid(id in id()) {
            prop_assert_eq!(id.to_stored().len() == 16, parse_canonical_uuid(id.as_bytes()).is_some());
        }
    }

    #[test]
    fn the_raw_bytes_of_a_uuid_do_not_meet_its_text() {
        let text = MessageId::try_from("0193f5a0-7c3e-7b1a-8000-0123456789ab").unwrap();
        let raw = MessageId::new(text.to_stored()).unwrap();
        assert_ne!(text.to_stored(), raw.to_stored());
    }

    #[test]
    fn unusable_ids_are_refused_with_their_reason() {
        assert_eq!(MessageId::try_from(""), Err(MessageIdError::Empty));
        for blank in [" ", "\t\r\n", "\u{a0}\u{2003}"] {
            assert_eq!(MessageId::try_from(blank), Err(MessageIdError::Blank), "{blank:?}");
        }
        assert_eq!(MessageId::new(vec![b'x'; 1025]), Err(MessageIdError::TooLong(1025)));
        assert!(MessageId::new(vec![b'x'; 1024]).is_ok());
    }

    #[test]
    fn a_hash_stands_for_a_long_id_and_no_id_passes_for_it() {
        let hashed = |bytes: &[u8]| MessageId::hashing_long(bytes.to_vec()).unwrap();
        let long = vec![b'x'; 1025];
        let expected = format!("handstamp:blake3:{}", blake3::hash(&long).to_hex());
        assert_eq!(hashed(&long).as_str(), Some(&*expected));
        assert_ne!(hashed(expected.as_bytes()), hashed(&long));
        for own in [&b"x"[..], &[b'x'; 1024], b"handstamp:blake3", b"blake3:00", b"\xff"] {
            assert_eq!(hashed(own).as_bytes(), own);
        }
        for (blank, error) in [
            (String::new(), MessageIdError::Empty),
            (" ".into(), MessageIdError::Blank),
            ("\u{2003}".repeat(2000), MessageIdError::Blank),
        ] {
            assert_eq!(MessageId::hashing_long(blank.into_bytes()), Err(error));
        }
    }

    proptest! {
        #[test]
        fn ids_of_any_length_stay_apart(lengths in proptest::array::uniform2(1_usize..3000), ends in proptest::array::uniform2(0_u8..3), tagged in proptest::array::uniform2(any::<bool>())) {
            let bytes = [0, 1].map(|at| {
                let mut bytes = if tagged[at] { MessageId::HASHED.as_bytes().to_vec() } else { vec![] };
                bytes.resize(bytes.len() + lengths[at], b'x');
                bytes.push(ends[at]);
                bytes
            });
            let [one, two] = bytes.clone().map(|bytes| MessageId::hashing_long(bytes).unwrap());
            prop_assert_eq!(one == two, bytes[0] == bytes[1]);
            prop_assert!(one.as_bytes().len() <= MessageId::MAX_BYTES);
        }
    }

    #[test]
    fn shown_text_is_one_line() {
        assert_eq!(MessageId::new(&b"a\nb\xc3\xa9"[..]).unwrap().to_string(), "a\\nb\u{e9}");
        assert_eq!(MessageId::new(&b"\xff\x01"[..]).unwrap().to_string(), "\\xff\\x01");
    }
}
