//! Why a consumer does no work now (pure): the words for probes, metrics and alerts.

use crate::store::StoreErrorKind;

/// A reason why nothing new is taken up. Several may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unready {
    /// The store is being opened, or the source has not handed over its lanes yet.
    Starting,
    /// It was asked to stop, or came to its end.
    Stopping,
    /// The store does not answer, or takes no writes.
    StoreAway,
    /// The store's tables are missing or of another version.
    NotMigrated,
    /// A statement does not fit the store's tables.
    SchemaMismatch,
    /// Transactions lose their conflicts for so long that it is told.
    StoreBusy,
    /// The brokers are away.
    SourceAway,
    /// The breaker is open or probing: what the handler needs seems to be down.
    Breaker,
    /// As much is parked as may be.
    ParkedMax,
}

impl Unready {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Starting,
        Self::Stopping,
        Self::StoreAway,
        Self::NotMigrated,
        Self::SchemaMismatch,
        Self::StoreBusy,
        Self::SourceAway,
        Self::Breaker,
        Self::ParkedMax,
    ];

    /// The word for probes and labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Stopping => "stopping",
            Self::StoreAway => "store_away",
            Self::NotMigrated => "not_migrated",
            Self::SchemaMismatch => "schema_mismatch",
            Self::StoreBusy => "store_busy",
            Self::SourceAway => "source_away",
            Self::Breaker => "breaker",
            Self::ParkedMax => "parked_max",
        }
    }

    /// One line for a person.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Starting => "the store is being opened, or the source has not handed over its lanes yet",
            Self::Stopping => "what runs is finished, nothing new is taken up",
            Self::StoreAway => "the store does not answer or takes no writes; waiting for it",
            Self::NotMigrated => "the store's tables are missing or of another version: migrate",
            Self::SchemaMismatch => "a statement does not fit the store's tables; waiting until it does",
            Self::StoreBusy => "transactions lose their conflicts again and again; they run again",
            Self::SourceAway => "no broker answers; waiting for one",
            Self::Breaker => "what the handler needs seems to be down: one message at a time is tried",
            Self::ParkedMax => "too many messages are parked: nothing new is begun",
        }
    }

    /// What a store's error makes of a consumer that waits for its end.
    #[must_use]
    pub fn of_store(kind: StoreErrorKind) -> Self {
        match kind {
            StoreErrorKind::NotMigrated => Self::NotMigrated,
            StoreErrorKind::SchemaMismatch => Self::SchemaMismatch,
            StoreErrorKind::Conflict | StoreErrorKind::Timeout => Self::StoreBusy,
            _ => Self::StoreAway,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_number_and_a_word_of_its_own() {
        for (number, reason) in Unready::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number, "{reason:?}");
            let alike = Unready::ALL.into_iter().filter(|other| other.as_str() == reason.as_str());
            assert_eq!(alike.count(), 1, "{reason:?}");
        }
    }
}
