//! What both databases read back for people: one consumer, one inbox row, a page of dead letters, one dead letter.

use handstamp_core::{
    ConsumerName, DeadLetter, FailureClass, Fingerprint, InboxState, MessageId, Origin, Reason, Timestamp,
};
use std::fmt;
use std::str::FromStr;

/// A registered consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerRow {
    /// Its name.
    pub name: ConsumerName,
    /// What it reads; `None` when it was registered without a source (level 0).
    pub fingerprint: Option<Fingerprint>,
}

/// What the inbox knows of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// The consumer whose namespace it is in.
    pub consumer: ConsumerName,
    /// The id.
    pub id: MessageId,
    /// What became of it.
    pub state: InboxState,
    /// Digest of the value it came with; `None` when it was claimed without one.
    pub digest: Option<i64>,
    /// When the row was written (seconds kept).
    pub first_seen: Timestamp,
}

/// The name of a dead letter within its consumer: its dedup key, written as 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadLetterKey(pub [u8; 16]);

/// A text that names no dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a dead letter is named by 32 hex digits, as `dlq list` shows them")]
pub struct DeadLetterKeyError;

impl fmt::Display for DeadLetterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for DeadLetterKey {
    type Err = DeadLetterKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = u128::from_str_radix(text, 16).map_err(|_| DeadLetterKeyError)?;
        if text.len() == 32 && !text.starts_with('+') {
            Ok(Self(number.to_be_bytes()))
        } else {
            Err(DeadLetterKeyError)
        }
    }
}

/// Where a page of dead letters begins: behind this one. Those of one time are in the order of their source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterCursor {
    /// When the last one of the page before was given up.
    pub failed_at: Timestamp,
    /// Where it lies.
    pub origin: Origin,
    /// Its key.
    pub key: DeadLetterKey,
}

impl DeadLetterCursor {
    /// Before every dead letter.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn start() -> Self {
        let origin = Origin { topic: "".into(), partition: i32::MIN, offset: i64::MIN, line: None };
        Self { failed_at: Timestamp(i64::MIN), origin, key: DeadLetterKey([0; 16]) }
    }
}

/// One dead letter in a list: everything but its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterSummary {
    /// Its name.
    pub key: DeadLetterKey,
    /// The id, where it is usable.
    pub id: Option<MessageId>,
    /// Where the record lies.
    pub origin: Origin,
    /// Why.
    pub class: FailureClass,
    /// The database's own code, where there was one.
    pub code: Option<String>,
    /// One bounded reason.
    pub reason: Reason,
    /// Attempts that failed.
    pub attempts: u32,
    /// When it was given up.
    pub failed_at: Timestamp,
    /// Bytes its value had; `None` is a null value.
    pub value_bytes: Option<u64>,
}

impl DeadLetterSummary {
    /// Where the page behind this one begins.
    #[must_use]
    pub fn cursor(&self) -> DeadLetterCursor {
        DeadLetterCursor { failed_at: self.failed_at, origin: self.origin.clone(), key: self.key }
    }
}

/// One dead letter, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// The consumer that gave it up.
    pub consumer: ConsumerName,
    /// Its name.
    pub key: DeadLetterKey,
    /// Everything that was kept.
    pub letter: DeadLetter,
}

impl DeadLetterRow {
    /// What a list says of it.
    #[must_use]
    pub fn summary(&self) -> DeadLetterSummary {
        let letter = &self.letter;
        let kept = letter.record.value.as_ref().map(|value| u64::try_from(value.len()).unwrap_or(u64::MAX));
        DeadLetterSummary {
            key: self.key,
            id: letter.id.clone(),
            origin: letter.record.origin.clone(),
            class: letter.class,
            code: letter.code.clone(),
            reason: letter.reason.clone(),
            attempts: letter.attempts,
            failed_at: letter.failed_at,
            value_bytes: letter.truncation.as_ref().map(|truncation| truncation.full_bytes).or(kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_their_text() {
        let key = DeadLetterKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(key.to_string().len(), 32);
        assert_eq!(key.to_string().parse(), Ok(key));
        for bad in
            ["", "0", &"g".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31)), &"é".repeat(16)]
        {
            assert_eq!(bad.parse::<DeadLetterKey>(), Err(DeadLetterKeyError), "{bad}");
        }
    }
}
