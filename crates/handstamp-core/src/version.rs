//! What is newer: versions, their keys, and which messages of a batch are stale (pure).
//!
//! Authoritative: the producer, for the version it gave; the mark of the key, which is the greatest version
//! applied so far. Numbers are compared as exact decimals, never as floats, times as instants, and a number is
//! never compared with a time. A [`Version`] is bytes whose order is its order, so that a database compares
//! bytes and parses nothing:
//!
//! ```text
//!  number  1 · sign (0 negative, 1 zero, 2 positive) · place of the point, 4 bytes · digits, two a byte
//!  time    2 · second since 1970, 8 bytes · (255 in a leap second) · digits of the fraction, two a byte
//! ```
//!
//! All bytes behind the sign of a negative number are inverted, with a 255 behind the last. Zeros in front of
//! and behind the digits are left out, so that equal versions are equal bytes.

use crate::identity::scalar;
use crate::json::{Number, Pointer};
use crate::message::Message;
use crate::parked::OrderKey;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Most digits that count; no clock and no counter has more.
const DIGITS_MAX: usize = 1_000;

/// What a version is. Versions of two kinds have no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VersionKind {
    /// A number.
    Number,
    /// An instant.
    Time,
}

impl VersionKind {
    /// The word for people, with its article.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Time => "a time",
        }
    }

    /// The one it is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Number => Self::Time,
            Self::Time => Self::Number,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::Number => 1,
            Self::Time => 2,
        }
    }
}

/// An exact number or an instant, as bytes whose order is its order among those of its kind.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version {
    kind: VersionKind,
    bytes: Box<[u8]>,
}

/// Why a message has no usable version, or no key for it; one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct VersionFault {
    /// One line for a person.
    pub reason: String,
}

impl Version {
    /// The version that a text says: a number as JSON writes it, or a time of RFC 3339.
    ///
    /// # Errors
    /// What is wrong with the text, without it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(number) = Number::parse(text) {
            return Self::number(&number);
        }
        Self::time(text)
    }

    fn number(number: &Number<'_>) -> Result<Self, &'static str> {
        const FAR: &str = "its exponent is beyond a thousand million";
        let exact = number.exact().ok_or(FAR)?;
        let kind = VersionKind::Number.byte();
        let sign = exact.sign();
        let mut bytes = vec![kind, sign.cast_unsigned().wrapping_add(1)];
        if sign != 0 {
            let digits: Vec<u8> = exact.digits().collect();
            if digits.len() > DIGITS_MAX {
                return Err("it has more than 1,000 digits");
            }
            let places = i32::try_from(exact.places()).map_err(|_| FAR)?;
            bytes.extend((places.cast_unsigned() ^ (1 << 31)).to_be_bytes());
            push_pairs(&mut bytes, &digits);
        }
        if sign < 0 {
            bytes[2..].iter_mut().for_each(|byte| *byte = !*byte);
            bytes.push(u8::MAX);
        }
        Ok(Self { kind: VersionKind::Number, bytes: bytes.into() })
    }

    fn time(text: &str) -> Result<Self, &'static str> {
        const NEITHER: &str =
            "it is neither a number nor a time of RFC 3339 such as \"2026-01-31T12:00:00Z\"";
        let instant = Instant::parse(text).ok_or(NEITHER)?;
        let digits = instant.fraction.trim_end_matches('0');
        if digits.len() > DIGITS_MAX {
            return Err("it has more than 1,000 digits");
        }
        let mut bytes = vec![VersionKind::Time.byte()];
        bytes.extend(ordered_i64(instant.second));
        if instant.leap {
            bytes.push(u8::MAX);
        }
        push_pairs(&mut bytes, digits.as_bytes());
        Ok(Self { kind: VersionKind::Time, bytes: bytes.into() })
    }

    /// The version behind bytes that [`as_bytes`](Self::as_bytes) gave; `None` when they are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let kind = match bytes.first()? {
            1 => VersionKind::Number,
            2 => VersionKind::Time,
            _ => return None,
        };
        Some(Self { kind, bytes: bytes.into() })
    }

    /// Number or time; also the first of the bytes.
    #[must_use]
    pub fn kind(&self) -> VersionKind {
        self.kind
    }

    /// What stores keep: among those of one kind the order of the bytes is that of the versions.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Versions of two kinds have no order.
impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.kind == other.kind).then(|| self.bytes.cmp(&other.bytes))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({} ", self.kind.as_str())?;
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Two digits a byte, from 1 to 100, so that the end of the bytes is less than any of them.
fn push_pairs(bytes: &mut Vec<u8>, digits: &[u8]) {
    let value = |digit: Option<&u8>| digit.map_or(0, |digit| digit - b'0');
    bytes.extend(digits.chunks(2).map(|pair| value(pair.first()) * 10 + value(pair.get(1)) + 1));
}

fn ordered_i64(number: i64) -> [u8; 8] {
    (number.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// A time of RFC 3339, as an instant.
struct Instant<'a> {
    /// Since 1970, in UTC; of a leap second the one before it.
    second: i64,
    leap: bool,
    fraction: &'a str,
}

impl<'a> Instant<'a> {
    /// `2026-01-31T12:00:00.5+01:00`: `t`, a space and `z` are taken as the RFC allows; a time without an
    /// offset is no instant.
    fn parse(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| -> Option<i64> {
            let part = bytes.get(from..to)?;
            part.iter()
                .try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
        };
        let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|byte| any.contains(byte));
        let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let mut rest = text.get(19..)?;
        let mut fraction = "";
        if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(|c: char| !c.is_ascii_digit())?;
            (fraction, rest) = behind.split_at(end);
        }
        let behind = text.len() - rest.len();
        let offset = match rest.as_bytes() {
            [b'Z' | b'z'] => 0,
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let (hours, minutes) = (number(behind + 1, behind + 3)?, number(behind + 4, behind + 6)?);
                let seconds = (hours * 60 + minutes) * 60;
                Some(if *sign == b'-' { -seconds } else { seconds }).filter(|_| hours < 24 && minutes < 60)?
            }
            _ => return None,
        };
        let in_range = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        if !marks || !in_range || (rest.len() != text.len() - 19 && fraction.is_empty()) {
            return None;
        }
        let leap = second == 60;
        let of_day = (hour * 60 + minute) * 60 + second - i64::from(leap);
        let second = days_since_1970(year, month, day) * 86_400 + of_day - offset;
        // Leap seconds are put in at the end of a day of UTC.
        (!leap || second.rem_euclid(86_400) == 86_399).then_some(Self { second, leap, fraction })
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap_year),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the proleptic Gregorian calendar, counted in years that begin on 1 March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// What the versions of a message are compared within: 16 bytes of BLAKE3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionKey(pub [u8; 16]);

impl VersionKey {
    fn of_field(text: &str) -> Self {
        let hash = blake3::Hasher::new().update(b"field\0").update(text.as_bytes()).finalize();
        let mut half = [0; 16];
        half.copy_from_slice(&hash.as_bytes()[..16]);
        Self(half)
    }
}

/// Where a message's version is, and of what it is one. Only what is newer than all that is applied of its key
/// is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionGuard {
    /// The version: a number, or a time of RFC 3339; either may stand in a string.
    pub version: Pointer,
    /// The key: a string by its decoded text, a number by its raw token, in every topic of the consumer.
    /// `None`: the record's key, together with the topic.
    pub key: Option<Pointer>,
}

/// A message's version and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Of what it is a version.
    pub key: VersionKey,
    /// The version.
    pub version: Version,
}

impl VersionGuard {
    /// The message's version and its key.
    ///
    /// # Errors
    /// [`VersionFault`]: a body that is not JSON, no version or key, or one that is none.
    pub fn find(&self, message: &Message) -> Result<Versioned, VersionFault> {
        let in_field = |what: &str, pointer: &Pointer, why: &dyn fmt::Display| VersionFault {
            reason: format!("no usable {what} in field {pointer}: {why}"),
        };
        let of_version = |why: &dyn fmt::Display| in_field("version", &self.version, why);
        let document = message.document().map_err(|fault| of_version(&fault))?;
        let (text, _) = scalar(&document, &self.version).map_err(|why| of_version(&why))?;
        let version = Version::parse(&text).map_err(|why| of_version(&why))?;
        let key = match &self.key {
            Some(pointer) => {
                let found = scalar(&document, pointer);
                let (text, _) = found.map_err(|why| in_field("key of its version", pointer, &why))?;
                VersionKey::of_field(&text)
            }
            None => {
                let key = OrderKey::of(message.record()).ok_or_else(|| VersionFault {
                    reason: "no key of its version: the record's key is null".to_owned(),
                })?;
                VersionKey(key.0)
            }
        };
        Ok(Versioned { key, version })
    }
}

/// What becomes of a message by its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Newer than what is applied of its key: to be applied.
    Newer,
    /// As old as what is applied of its key, or older.
    Stale,
    /// What is applied of its key has a version of the other kind.
    OtherKind,
}

/// Judges messages in the order of their delivery: one is newer when its version is greater than the mark of its
/// key and than that of every one of its key in front of it that was. Of equal versions the first is.
#[must_use]
pub fn judge<'a>(marks: &'a BTreeMap<VersionKey, Version>, messages: &[&'a Versioned]) -> Vec<Judged> {
    let mut newest: HashMap<VersionKey, &'a Version> =
        marks.iter().map(|(key, version)| (*key, version)).collect();
    let mut judged = Vec::with_capacity(messages.len());
    for message in messages {
        let so_far = newest.get(&message.key);
        judged.push(match so_far.map(|so_far| message.version.partial_cmp(so_far)) {
            None | Some(Some(Ordering::Greater)) => {
                newest.insert(message.key, &message.version);
                Judged::Newer
            }
            Some(Some(_)) => Judged::Stale,
            Some(None) => Judged::OtherKind,
        });
    }
    judged
}

/// The greatest version of each key among messages: what its mark is to be raised to. Of a key only those of one
/// kind count: that of its mark where `kinds` says it, otherwise that of its first message.
#[must_use]
pub fn greatest<'a>(
    messages: impl IntoIterator<Item = &'a Versioned>,
    kinds: impl Fn(&VersionKey) -> Option<VersionKind>,
) -> BTreeMap<VersionKey, Version> {
    let mut greatest: BTreeMap<VersionKey, &Version> = BTreeMap::new();
    for Versioned { key, version } in messages {
        match greatest.get_mut(key) {
            Some(so_far) if version > *so_far => *so_far = version,
            Some(_) => {}
            None if kinds(key).is_none_or(|kind| kind == version.kind()) => {
                greatest.insert(*key, version);
            }
            None => {}
        }
    }
    greatest.into_iter().map(|(key, version)| (key, version.clone())).collect()
}

#[cfg(test)]
#[path = "version_tests.rs"]
mod tests;
