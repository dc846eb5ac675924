//! The classes of failures: the one word that a dead letter, its lists and its counts say of why.

/// Why a message became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FailureClass {
    /// No usable id.
    Identity,
    /// The source could not read a whole record.
    Unreadable,
    /// Larger than `max_message_bytes`.
    TooLarge,
    /// The id is known with another body.
    IdReused,
    /// The handler said that trying again cannot help.
    Rejected,
    /// A value does not fit its parameter.
    Binding,
    /// A statement touched another number of rows than expected.
    Rows,
    /// A database error of the message's own.
    Sql,
    /// The handler failed at every attempt.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The handler took too long.
    TimedOut,
    /// The process died while it handled this message alone, again and again.
    Crashed,
    /// No usable version or key of one, or a version of another kind than what is applied of its key.
    Version,
    /// No effect wants it, and it was not said that such messages are passed over.
    Unmatched,
    /// The condition of an effect has no answer for it.
    Condition,
    /// It did not fail: it waits behind another parked message of its order key.
    Waiting,
}

impl FailureClass {
    /// Every class, for tables and parsers.
    pub const ALL: [Self; 16] = [
        Self::Identity,
        Self::Unreadable,
        Self::TooLarge,
        Self::IdReused,
        Self::Rejected,
        Self::Binding,
        Self::Rows,
        Self::Sql,
        Self::Failed,
        Self::Panicked,
        Self::TimedOut,
        Self::Crashed,
        Self::Version,
        Self::Unmatched,
        Self::Condition,
        Self::Waiting,
    ];

    /// The word kept in rows, reports and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Unreadable => "unreadable",
            Self::TooLarge => "too_large",
            Self::IdReused => "id_reused",
            Self::Rejected => "rejected",
            Self::Binding => "binding",
            Self::Rows => "rows",
            Self::Sql => "sql",
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed_out",
            Self::Crashed => "crashed",
            Self::Version => "version",
            Self::Unmatched => "unmatched",
            Self::Condition => "condition",
            Self::Waiting => "waiting",
        }
    }

    /// The class behind a row's word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_are_apart() {
        for (at, class) in FailureClass::ALL.into_iter().enumerate() {
            assert_eq!(FailureClass::from_word(class.as_str()), Some(class));
            assert_eq!(FailureClass::ALL.iter().position(|other| *other == class), Some(at));
        }
    }
}
