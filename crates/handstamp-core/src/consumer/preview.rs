//! A delivery judged by the engine's rules without an engine: what a dry run begins with.
//!
//! Authoritative: the item that the engine itself makes of a delivery, with its id, its limits and its version.

use super::item::{End, Failure, Item};
use super::options::ConsumerOptions;
use crate::clock;
use crate::delivery::Delivery;
use crate::handler::BatchHandler;
use crate::identity::IdentityRule;
use crate::message::{Message, Record};
use crate::message_id::MessageId;
use crate::store::{ClaimRequest, DeadLetter, FailureClass, Reason};
use crate::version::Versioned;

/// A delivery before it is claimed.
#[derive(Debug)]
pub struct Preview(Item);

/// Why no effect may run, or did not stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewFailure {
    /// The class of the dead letter.
    pub class: FailureClass,
    /// SQLSTATE or the database's own code.
    pub code: Option<String>,
    /// One bounded reason.
    pub reason: Reason,
}

impl Preview {
    /// Finds the id, the version where there is a guard, and what makes it a dead letter at once.
    #[must_use]
    pub fn of(delivery: Delivery, rule: &IdentityRule, options: &ConsumerOptions) -> Self {
        let item = Item::new(delivery, rule, options.message_max_bytes, clock::now());
        Self(item.versioned(options.version.as_ref()))
    }

    /// Asks the handler whether it wants the message; false: it is passed over. What it rejects fails.
    pub fn route<Tx>(&mut self, handler: &impl BatchHandler<Tx>) -> bool {
        !self.0.is_passed_over(|message| handler.route(message))
    }

    /// The message, where its id is usable.
    #[must_use]
    pub fn message(&self) -> Option<&Message> {
        self.0.message()
    }

    /// The id, where it is usable.
    #[must_use]
    pub fn id(&self) -> Option<&MessageId> {
        self.0.id()
    }

    /// What was delivered.
    #[must_use]
    pub fn record(&self) -> &Record {
        self.0.record()
    }

    /// What its transaction claims.
    #[must_use]
    pub fn claim(&self) -> Option<ClaimRequest> {
        self.0.claim()
    }

    /// Its version, where there is a guard.
    #[must_use]
    pub fn versioned(&self) -> Option<&Versioned> {
        self.0.version.as_deref()
    }

    /// Why it is a dead letter before anything ran.
    #[must_use]
    pub fn failure(&self) -> Option<PreviewFailure> {
        match self.0.end() {
            Some(
                End::Dead(Failure { class, code, reason }) | End::Parked(Failure { class, code, reason }, _),
            ) => Some(PreviewFailure { class: *class, code: code.clone(), reason: reason.clone() }),
            None => None,
        }
    }

    /// What is kept of it when it fails so, behind so many attempts.
    #[must_use]
    pub fn dead_letter(&self, failure: &PreviewFailure, attempts: u32) -> DeadLetter {
        let PreviewFailure { class, code, reason } = failure.clone();
        DeadLetter { attempts, ..self.0.dead_letter(&Failure { class, code, reason }) }
    }
}
