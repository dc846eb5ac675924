//! Versions in the engine: which of a transaction's messages are newer than what is applied of their keys.
//!
//! Authoritative: the marks of the store, which are raised in the transaction itself. Whatever is taken out of it
//! later rolls it back, the marks included, and everything is judged anew.
//!
//! ```text
//! claims, parked keys ─► what is left to be handled ─► raise_marks, one statement ─┬─ newer ─► handled
//! a parked message, due ─────────────────────────────────────┘                    ├─ stale ─► nothing runs, settled
//!                                                                                  └─ of another kind ─► dead letter
//! ```
//!
//! Without a guard nothing of this happens. Without an inbox the transaction begins without ids: what is delivered
//! again is as old as its mark.

use super::batch::Shared;
use super::item::{End, Failure, Item};
use super::keep::Plan;
use super::options::ConsumerOptions;
use super::{RunError, RunErrorKind};
use crate::start::StartStore;
use crate::store::{ClaimRequest, FailureClass, Reason, StoreError, StoreErrorKind};
use crate::version::{Judged, VersionFault, VersionGuard, VersionKey, VersionKind, Versioned};
use crate::version::{greatest, judge};

/// What cannot be: every redelivery would be applied twice.
pub(super) fn check(options: &ConsumerOptions) -> Result<(), RunError> {
    if options.inbox || options.version.is_some() || options.naturally_idempotent {
        return Ok(());
    }
    let text = "inbox = false needs a version guard, or naturally_idempotent = true, which says that effects may run again";
    Err(RunError::new(RunErrorKind::Store(StoreErrorKind::Config), text))
}

impl From<VersionFault> for Failure {
    fn from(fault: VersionFault) -> Self {
        Self { class: FailureClass::Version, code: None, reason: Reason::new(&fault.reason) }
    }
}

/// Why a message is given up whose version is of this kind: what is applied of its key is of the other one.
pub(super) fn other_kind(kind: VersionKind) -> Failure {
    let (own, other) = (kind.as_str(), kind.other().as_str());
    let reason = format!("its version is {own}, but that of what is applied of its key is {other}");
    Failure { class: FailureClass::Version, code: None, reason: Reason::new(&reason) }
}

impl Item {
    /// Finds its version, or the reason why this is a dead letter.
    pub(super) fn versioned(mut self, guard: Option<&VersionGuard>) -> Self {
        let Some(guard) = guard else { return self };
        let Some(message) = self.message().filter(|_| self.end().is_none()) else { return self };
        match guard.find(message) {
            Ok(found) => self.version = Some(Box::new(found)),
            Err(fault) => self.trouble.get_or_insert_default().end = Some(End::Dead(fault.into())),
        }
        self
    }
}

impl<S: StartStore> Shared<S> {
    /// The ids that a transaction over these items claims.
    pub(super) fn claims_of(&self, items: &[Item]) -> Vec<ClaimRequest> {
        if self.options.inbox { items.iter().filter_map(Item::claim).collect() } else { vec![] }
    }

    /// Judges what is left to be handled.
    pub(super) async fn weigh(
        &self,
        tx: &mut S::Tx,
        chunk: &[Item],
        plans: &mut [Plan],
    ) -> Result<(), StoreError> {
        if self.options.version.is_none() {
            return Ok(());
        }
        let is_left = |at: &usize| plans[*at] == Plan::Handle && chunk[*at].version.is_some();
        let left: Vec<usize> = (0..chunk.len()).filter(is_left).collect();
        let messages: Vec<&Versioned> = left.iter().filter_map(|&at| chunk[at].version.as_deref()).collect();
        let judged = self.judge(tx, &messages).await?;
        for (at, judged) in left.into_iter().zip(judged) {
            plans[at] = match judged {
                Judged::Newer => Plan::Handle,
                Judged::Stale => Plan::Stale,
                Judged::OtherKind => Plan::OtherKind,
            };
        }
        Ok(())
    }

    /// Judges messages in their order by one statement, which raises the marks; a second one follows only where
    /// versions of two kinds meet.
    pub(super) async fn judge(
        &self,
        tx: &mut S::Tx,
        messages: &[&Versioned],
    ) -> Result<Vec<Judged>, StoreError> {
        if messages.is_empty() {
            return Ok(vec![]);
        }
        let raised = greatest(messages.iter().copied(), |_| None);
        let marks = self.store.raise_marks(tx, &self.consumer, &raised).await?;
        // The kind of the mark, where it is another one than that of the first message of its key.
        let other = |key: &VersionKey| {
            let kind = marks.get(key)?.kind();
            (raised.get(key)?.kind() != kind).then_some(kind)
        };
        let of_marks = messages.iter().copied().filter(|message| other(&message.key).is_some());
        let again = greatest(of_marks, other);
        if !again.is_empty() {
            self.store.raise_marks(tx, &self.consumer, &again).await?;
        }
        Ok(judge(&marks, messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_without_an_inbox_says_what_holds_redeliveries_off() {
        let without = ConsumerOptions { inbox: false, ..ConsumerOptions::default() };
        let error = check(&without).unwrap_err();
        assert_eq!(error.kind, RunErrorKind::Store(StoreErrorKind::Config));
        assert!(error.message.contains("naturally_idempotent"), "{error}");
        let guard = VersionGuard { version: crate::json::Pointer::member("seq"), key: None };
        for fits in [
            ConsumerOptions::default(),
            ConsumerOptions { version: Some(guard), ..without.clone() },
            ConsumerOptions { naturally_idempotent: true, ..without.clone() },
        ] {
            assert!(check(&fits).is_ok());
        }
    }
}
