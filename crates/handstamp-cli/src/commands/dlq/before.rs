//! What was done to messages before: the audit says that it was, the store what became of them since.
//!
//! One rule, however they are named: what the newest line of the audit says of a message counts. Was it this, there is
//! nothing to do and nothing wrong; was it the other, it stays as it is, which is said.

use super::PAGE;
use super::text::to_the_second;
use super::verdicts::Verdicts;
use crate::backend::Operations;
use crate::dlq::groups::{Alike, GroupName};
use crate::exit::CliError;
use handstamp_core::{ConsumerName, InboxState, MessageId};
use handstamp_stores::redrive::{Action, AuditFilter, AuditRow, ParkedRow};
use handstamp_stores::rows::DeadLetterKey;
use std::collections::HashSet;

/// So many messages of the audit are looked at for those of a group, the newest first.
const LOOKED_MAX: usize = 20_000;
/// So many of a group are told apart by what became of them; there may be more.
const FOUND_MAX: usize = 1_000;

/// What became of a message since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Since {
    /// Parked, and nothing keeps it but that a consumer takes it.
    Due,
    /// Parked until its time, or its turn.
    Waits,
    /// Its outcome is durable.
    Applied,
    /// A dead letter again.
    Dead,
    /// Given up.
    Discarded,
    /// Nothing is known of it any more.
    Forgotten,
}

impl Since {
    /// Every one, for tables.
    pub(super) const ALL: [Self; 6] =
        [Self::Due, Self::Waits, Self::Applied, Self::Dead, Self::Discarded, Self::Forgotten];

    /// For programs.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Waits => "parked",
            Self::Applied => "applied",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
            Self::Forgotten => "forgotten",
        }
    }

    /// For people, behind a count.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Due => "due and on the way",
            Self::Waits => "parked until the time or the turn comes",
            Self::Applied => "done",
            Self::Dead => "dead again",
            Self::Discarded => "discarded",
            Self::Forgotten => "not remembered any more",
        }
    }

    /// Whether only a consumer has to run for it to come to an end.
    pub(super) fn is_on_its_way(self) -> bool {
        matches!(self, Self::Due | Self::Waits)
    }

    pub(super) fn of_parked(row: &ParkedRow) -> Self {
        if row.behind.is_none() && row.due_in.is_zero() { Self::Due } else { Self::Waits }
    }
}

/// What is asked for.
pub(super) struct Asked<'a> {
    pub(super) name: &'a ConsumerName,
    pub(super) action: Action,
    /// The id that it was to have.
    pub(super) as_id: Option<&'a MessageId>,
}

impl Asked<'_> {
    /// The newest line of the audit that fits.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn newest<S: Operations>(
        &self,
        store: &S,
        filter: &AuditFilter,
    ) -> Result<Option<AuditRow>, CliError> {
        Ok(store.audit_where(self.name, filter, None, 1).await?.pop())
    }

    /// The newest line of a message.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn newest_of<S: Operations>(
        &self,
        store: &S,
        key: DeadLetterKey,
    ) -> Result<Option<AuditRow>, CliError> {
        self.newest(store, &AuditFilter { message: Some(key), ..AuditFilter::default() }).await
    }

    /// What is said of a message that something was done to before; `row` is the newest line of it.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn judge<S: Operations>(
        &self,
        store: &S,
        row: &AuditRow,
        verdicts: &mut Verdicts,
    ) -> Result<(), CliError> {
        let key = row.dead_letter;
        let other_id = self.as_id.filter(|id| row.id.as_ref() != Some(id));
        match (row.action == self.action, other_id, &row.id) {
            (false, ..) => {
                let what = match row.action {
                    Action::Redrive => "sent back",
                    Action::Discard => "given up",
                };
                let at = to_the_second(row.at);
                verdicts.stays(key, format!("it is no dead letter any more: {what} at {at}"));
            }
            (true, Some(_), Some(id)) => verdicts.stays(key, format!("it was sent back before, as {id}")),
            (true, ..) => {
                let since = self.since(store, key, row.id.as_ref()).await?;
                verdicts.was_done(since);
            }
        }
        Ok(())
    }

    async fn since<S: Operations>(
        &self,
        store: &S,
        key: DeadLetterKey,
        id: Option<&MessageId>,
    ) -> Result<Since, CliError> {
        if let Some(row) = store.parked_one(self.name, key).await? {
            return Ok(Since::of_parked(&row));
        }
        let row = match id {
            Some(id) => store.inbox_row(self.name, id).await?,
            None => None,
        };
        Ok(match (row.map(|row| row.state), self.action) {
            (Some(InboxState::Applied), _) => Since::Applied,
            (Some(InboxState::Parked), _) => Since::Waits,
            (Some(InboxState::Dead), _) => Since::Dead,
            (Some(InboxState::Discarded), _) | (None, Action::Discard) => Since::Discarded,
            (None | Some(_), _) => Since::Forgotten,
        })
    }

    /// Finds what was a dead letter of a group, or failed as one, by the histories of the messages in the audit; how
    /// many there are, and whether there may be more.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn of_group<S: Operations>(
        &self,
        store: &S,
        group: GroupName,
        verdicts: &mut Verdicts,
    ) -> Result<(), CliError> {
        let (mut looked, mut found, mut after) = (HashSet::new(), 0, None);
        loop {
            let page = store.audit_where(self.name, &AuditFilter::default(), after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.number);
            for row in &page {
                if found == FOUND_MAX || looked.len() == LOOKED_MAX {
                    verdicts.may_be_more = found > 0;
                    return Ok(());
                }
                if !looked.insert(row.dead_letter) {
                    continue;
                }
                let attempts = store.failed_attempts(self.name, row.dead_letter).await?;
                if attempts.iter().any(|failed| Alike::of_attempt(failed).name() == group) {
                    found += 1;
                    verdicts.mean_one_more();
                    self.judge(store, row, verdicts).await?;
                }
            }
        }
    }
}
