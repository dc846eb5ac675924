//! What operators ask of a store that is there, in the words both stores share.

use handstamp_core::parked::FailedAttempt;
use handstamp_core::{ConsumerName, MessageId, StoreError, Version, VersionKey};
use handstamp_stores::redrive::{
    AuditFilter, AuditRow, Backlog, DeadLetterFilter, Operation, ParkedRow, ParkedSummary, Redrive, Redriven,
    Unparked,
};
use handstamp_stores::rows::{DeadLetterCursor, DeadLetterKey, DeadLetterRow, DeadLetterSummary, InboxRow};

/// A store as operators use it; each method of the stores says more.
pub(crate) trait Operations {
    /// What is known of an id.
    async fn inbox_row(&self, name: &ConsumerName, id: &MessageId) -> Result<Option<InboxRow>, StoreError>;

    /// The mark of a key: the greatest version applied of it.
    #[cfg_attr(not(feature = "file"), allow(dead_code, reason = "only a file has a position to ask about"))]
    async fn mark(&self, name: &ConsumerName, key: &VersionKey) -> Result<Option<Version>, StoreError>;

    /// A page of those dead letters that fit, oldest first.
    async fn letters(
        &self,
        name: &ConsumerName,
        filter: &DeadLetterFilter,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<DeadLetterSummary>, StoreError>;

    /// One dead letter, whole.
    async fn letter(
        &self,
        name: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Option<DeadLetterRow>, StoreError>;

    /// Sends dead letters back, in one transaction.
    async fn redrive(
        &self,
        name: &ConsumerName,
        asked: &[Redrive],
        operation: &Operation,
    ) -> Result<Vec<Redriven>, StoreError>;

    /// Gives dead letters up for good, in one transaction: which were there.
    async fn discard(
        &self,
        name: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
    ) -> Result<Vec<bool>, StoreError>;

    /// The failed attempts of a message, oldest first.
    async fn failed_attempts(
        &self,
        name: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Vec<FailedAttempt>, StoreError>;

    /// A page of what operators did, newest first; only what fits.
    async fn audit_where(
        &self,
        name: &ConsumerName,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError>;

    /// One parked message, whole.
    async fn parked_one(
        &self,
        name: &ConsumerName,
        key: DeadLetterKey,
    ) -> Result<Option<ParkedRow>, StoreError>;

    /// Makes parked messages due at once, in one transaction.
    async fn send_now(
        &self,
        name: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
    ) -> Result<Vec<Unparked>, StoreError>;

    /// Gives parked messages up for good, in one transaction.
    async fn discard_parked(
        &self,
        name: &ConsumerName,
        keys: &[DeadLetterKey],
        operation: &Operation,
    ) -> Result<Vec<Unparked>, StoreError>;

    /// How much is parked and how much was given up.
    async fn backlog(&self, name: &ConsumerName) -> Result<Backlog, StoreError>;

    /// How many parked messages have a key and no order key.
    async fn parked_unordered(&self, name: &ConsumerName) -> Result<u64, StoreError>;

    /// A page of parked messages, in the order of parking.
    async fn parked_page(
        &self,
        name: &ConsumerName,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<ParkedSummary>, StoreError>;

    /// Whether the store holds the id in its inbox, or else the dead letter.
    #[cfg_attr(not(feature = "file"), allow(dead_code, reason = "only a file has a position to ask about"))]
    async fn knows(
        &self,
        name: &ConsumerName,
        id: Option<&MessageId>,
        letter: DeadLetterKey,
    ) -> Result<bool, StoreError> {
        if let Some(id) = id
            && self.inbox_row(name, id).await?.is_some()
        {
            return Ok(true);
        }
        Ok(self.letter(name, letter).await?.is_some())
    }
}

/// Both stores have the same methods.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
macro_rules! operations {
    ($store:ty) => {
        impl Operations for $store {
            async fn inbox_row(
                &self,
                name: &ConsumerName,
                id: &MessageId,
            ) -> Result<Option<InboxRow>, StoreError> {
                <$store>::inbox_row(self, name, id).await
            }

            async fn mark(
                &self,
                name: &ConsumerName,
                key: &VersionKey,
            ) -> Result<Option<Version>, StoreError> {
                <$store>::mark(self, name, key).await
            }

            async fn letters(
                &self,
                name: &ConsumerName,
                filter: &DeadLetterFilter,
                after: Option<DeadLetterCursor>,
                limit: u32,
            ) -> Result<Vec<DeadLetterSummary>, StoreError> {
                <$store>::dead_letters_where(self, name, filter, after, limit).await
            }

            async fn letter(
                &self,
                name: &ConsumerName,
                key: DeadLetterKey,
            ) -> Result<Option<DeadLetterRow>, StoreError> {
                <$store>::dead_letter(self, name, key).await
            }

            async fn redrive(
                &self,
                name: &ConsumerName,
                asked: &[Redrive],
                operation: &Operation,
            ) -> Result<Vec<Redriven>, StoreError> {
                <$store>::redrive(self, name, asked, operation).await
            }

            async fn discard(
                &self,
                name: &ConsumerName,
                keys: &[DeadLetterKey],
                operation: &Operation,
            ) -> Result<Vec<bool>, StoreError> {
                <$store>::discard(self, name, keys, operation).await
            }

            async fn failed_attempts(
                &self,
                name: &ConsumerName,
                key: DeadLetterKey,
            ) -> Result<Vec<FailedAttempt>, StoreError> {
                <$store>::attempts(self, name, key).await
            }

            async fn audit_where(
                &self,
                name: &ConsumerName,
                filter: &AuditFilter,
                after: Option<i64>,
                limit: u32,
            ) -> Result<Vec<AuditRow>, StoreError> {
                <$store>::audit_where(self, name, filter, after, limit).await
            }

            async fn parked_one(
                &self,
                name: &ConsumerName,
                key: DeadLetterKey,
            ) -> Result<Option<ParkedRow>, StoreError> {
                <$store>::parked_message(self, name, key).await
            }

            async fn send_now(
                &self,
                name: &ConsumerName,
                keys: &[DeadLetterKey],
                operation: &Operation,
            ) -> Result<Vec<Unparked>, StoreError> {
                <$store>::send_now(self, name, keys, operation).await
            }

            async fn discard_parked(
                &self,
                name: &ConsumerName,
                keys: &[DeadLetterKey],
                operation: &Operation,
            ) -> Result<Vec<Unparked>, StoreError> {
                <$store>::discard_parked(self, name, keys, operation).await
            }

            async fn backlog(&self, name: &ConsumerName) -> Result<Backlog, StoreError> {
                <$store>::backlog(self, name).await
            }

            async fn parked_unordered(&self, name: &ConsumerName) -> Result<u64, StoreError> {
                <$store>::parked_unordered(self, name).await
            }

            async fn parked_page(
                &self,
                name: &ConsumerName,
                after: Option<i64>,
                limit: u32,
            ) -> Result<Vec<ParkedSummary>, StoreError> {
                <$store>::parked(self, name, after, limit).await
            }
        }
    };
}

#[cfg(feature = "sqlite")]
operations!(handstamp_stores::sqlite::SqliteStore);
#[cfg(feature = "postgres")]
operations!(handstamp_stores::postgres::PostgresStore);
