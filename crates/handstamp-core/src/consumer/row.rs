//! A parked message that the retry worker has taken up: what is known of it, and what is to be written of it.
//!
//! Authoritative: the store's row. A failed attempt that is not durable yet is kept here until it is.

use super::batch::random;
use super::dispatch::DynHandler;
use super::item::{Failure, shown};
use super::options::ConsumerOptions;
use super::routing::wanted;
use super::starts::given_up;
use super::versions::other_kind;
use crate::decide::{Case, Outcome, Place, Policy, Verdict, decide};
use crate::message::Message;
use crate::message_id::shown_text;
use crate::parked::{Dedup, FailedAttempt, ParkedMessage, Resumed};
use crate::store::{DeadLetter, FailureClass, Reason};
use crate::version::{Judged, VersionGuard, Versioned};

/// A parked message that was taken up.
pub(super) struct Row {
    pub(super) parked: ParkedMessage,
    /// What the handler gets, or why it can get nothing.
    pub(super) message: Result<Message, Failure>,
    /// Its version, where there is a guard.
    pub(super) version: Option<Versioned>,
    /// What becomes of it by that, in the transaction that holds it now.
    pub(super) judged: Judged,
    /// Its attempt here failed, and that is not durable yet.
    pub(super) failed: Option<(Outcome, FailedAttempt)>,
    /// A commit that had no answer would have made this of it.
    pub(super) unknown: Option<Ended>,
    /// How often it was asked for in vain.
    pub(super) tries: u32,
}

/// What a row was written to have become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Applied,
    Stale,
    Again,
    Dead,
}

impl Row {
    pub(super) fn new(parked: ParkedMessage, policy: &Policy, guard: Option<&VersionGuard>) -> Self {
        let letter = &parked.letter;
        let unfit = |class, reason| Err(Failure { class, code: None, reason: Reason::new(reason) });
        let message = match &letter.id {
            None => unfit(FailureClass::Identity, "it has no id to be applied under"),
            Some(_) if letter.truncation.is_some() => {
                unfit(FailureClass::TooLarge, "only a prefix of it is kept")
            }
            Some(id) => match given_up(&parked.crashes, policy) {
                Some(failure) => Err(failure),
                None => Ok(Message::with_shape(id.clone(), letter.record.clone(), Some(letter.digest), None)),
            },
        };
        let mut row = Self {
            parked,
            message,
            version: None,
            judged: Judged::Newer,
            failed: None,
            unknown: None,
            tries: 0,
        };
        if let (Some(guard), Ok(message)) = (guard, &row.message) {
            match guard.find(message) {
                Ok(found) => row.version = Some(found),
                Err(fault) => row.message = Err(fault.into()),
            }
        }
        row
    }

    /// Asks the handler whether it can be handled, by what is wanted today. One that is passed over runs like any
    /// other: nothing is wanted of it.
    pub(super) fn route<Tx: 'static>(&mut self, handler: &dyn DynHandler<Tx>) {
        if let Ok(message) = &self.message
            && let Some(Err(failure)) = wanted(handler.route(message))
        {
            self.message = Err(failure);
        }
    }

    /// Whether the handler runs for it, unless it turns out to be stale.
    pub(super) fn may_run(&self) -> bool {
        self.failed.is_none() && self.message.is_ok() && self.judged != Judged::OtherKind
    }

    /// Whether it is to be a dead letter, and nothing runs for it any more.
    pub(super) fn is_dead(&self, policy: &Policy, node: &str) -> bool {
        !self.may_run() && matches!(self.outcome(policy, node), Resumed::Dead { .. })
    }

    /// It was taken once more. Where crashes are told, whether it runs is asked anew: it may have been sent back. False:
    /// it was, and what was known of it counts no more.
    pub(super) fn taken(
        &mut self,
        parked: ParkedMessage,
        tells_crashes: bool,
        options: &ConsumerOptions,
    ) -> bool {
        let sent_back = parked.parked_at != self.parked.parked_at;
        if tells_crashes {
            let fresh = Self::new(parked, &options.policy, options.version.as_ref());
            (self.parked, self.message, self.version) = (fresh.parked, fresh.message, fresh.version);
            if sent_back {
                self.judged = Judged::Newer;
            }
            return true;
        }
        let crashes = if sent_back { vec![] } else { std::mem::take(&mut self.parked.crashes) };
        self.parked = ParkedMessage { crashes, ..parked };
        !sent_back || self.failed.is_some()
    }

    /// Whether the handler runs for it.
    pub(super) fn runs(&self) -> bool {
        self.may_run() && self.judged == Judged::Newer
    }

    /// What is to be written of it, with its attempts as they are in the row.
    pub(super) fn outcome(&self, policy: &Policy, node: &str) -> Resumed {
        let (outcome, failed) = match (&self.failed, &self.message) {
            (Some((outcome, failed)), _) => (*outcome, failed.clone()),
            (None, Ok(_)) => match (self.judged, &self.version) {
                (Judged::OtherKind, Some(found)) => {
                    let failed = other_kind(found.version.kind()).now(node);
                    return Resumed::Dead { failed, charged: false };
                }
                _ => return Resumed::Applied,
            },
            (None, Err(failure)) => {
                return Resumed::Dead { failed: failure.clone().now(node), charged: false };
            }
        };
        let case = Case {
            outcome,
            attempts: self.parked.letter.attempts.saturating_add(1),
            code: failed.code.as_deref(),
            place: Place::Parked { age: self.parked.parked_for },
            waits: true,
            random: random(),
        };
        match decide(&case, policy) {
            Verdict::Park { wait } => Resumed::Again { wait, failed },
            _ => Resumed::Dead { failed, charged: true },
        }
    }

    /// What its count is called. What is stale is written as what is applied is.
    pub(super) fn ended(&self, outcome: &Resumed) -> Ended {
        match outcome {
            Resumed::Applied if self.judged == Judged::Stale => Ended::Stale,
            Resumed::Applied => Ended::Applied,
            Resumed::Again { .. } => Ended::Again,
            Resumed::Dead { .. } => Ended::Dead,
        }
    }

    pub(super) fn shown(&self) -> String {
        let letter = &self.parked.letter;
        shown(letter.id.as_ref(), &letter.record)
    }
}

/// What is given up, as its dead letter will be.
pub(super) fn letters_of(chunk: &[Row], outcomes: &[(Dedup, Resumed)]) -> Vec<DeadLetter> {
    let letter = |(row, (_, outcome)): (&Row, &(Dedup, Resumed))| {
        let Resumed::Dead { failed, charged } = outcome else { return None };
        let FailedAttempt { at, class, code, reason, .. } = failed.clone();
        let before = row.parked.letter.clone();
        let attempts = before.attempts.saturating_add(u32::from(*charged));
        Some(DeadLetter { class, code, reason, attempts, failed_at: at, ..before })
    };
    chunk.iter().zip(outcomes).filter_map(letter).collect()
}

pub(super) fn say(row: &Row, outcome: &Resumed) {
    let attempts = row.parked.letter.attempts;
    match outcome {
        Resumed::Applied if row.judged == Judged::Stale => {
            tracing::debug!(target: "handstamp", attempts, "stale, parked no more: {}", row.shown());
        }
        Resumed::Applied => {
            tracing::debug!(target: "handstamp", attempts, "applied by a retry: {}", row.shown());
        }
        Resumed::Again { wait, failed } => tracing::debug!(
            target: "handstamp",
            attempts = attempts + 1,
            wait_s = wait.as_secs_f64(),
            reason = failed.reason.as_str(),
            "parked again: {}",
            row.shown()
        ),
        Resumed::Dead { failed, charged } => tracing::warn!(
            target: "handstamp",
            class = failed.class.as_str(),
            // One line; what is escaped already is not escaped again.
            reason = %shown_text(failed.reason.as_str().as_bytes()),
            attempts = attempts + u32::from(*charged),
            "dead letter {}",
            row.shown()
        ),
    }
}
