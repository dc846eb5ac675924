//! One transaction: claim, handle, record, commit; settled as soon as it is durable.
//!
//! ```text
//! begin+claim ─► handle First ─► record dead letters ─► commit ─► durable: counted, settled ─► Committed
//!      │              │                  │                ├─ no answer ─► Again (marked unknown)
//!      │              └─ culprit ─► rolled back ─► Failed └─ the next begin+claim, where one follows, leaves
//!      └─ fault of the store ─► Again, nothing charged       with the COMMIT: its transaction is left open
//! ```

use super::batch::Shared;
use super::dispatch::{Cause, RunFailure};
use super::item::{Failure, Item};
use crate::crash_point::CrashPoint;
use crate::decide::{OnIdReuse, Outcome};
use crate::delivery::{Disposition, Lane};
use crate::handler::Decision;
use crate::message::{Message, Timestamp};
use crate::message_id::shown_text;
use crate::store::{
    Begun, Claim, DeadLetter, FailureClass, InboxState, Reason, Recorded, Store, StoreError, StoreErrorKind,
};
use crate::telemetry::Counts;
use std::error::Error;
use std::pin::pin;
use tokio::sync::oneshot;

/// What is open for a chunk.
pub(crate) type Opened<S> = Begun<<S as Store>::Tx>;

/// What a transaction came to.
pub(crate) enum Attempt {
    /// Durable, counted and settled.
    Committed,
    /// Rolled back: one message failed, or an unknown one of those handled.
    Failed(FailedRun),
    /// Rolled back or unknown, and no message's fault: run it again after a wait.
    Again(StoreError),
    /// Taken away or stopped in the middle: rolled back.
    Cancelled,
    /// The consumer must not go on.
    Fatal(StoreError),
}

/// A run that failed by a message's own fault.
pub(crate) struct FailedRun {
    /// Index into the chunk, where it is known.
    pub(crate) culprit: Option<usize>,
    pub(crate) outcome: Outcome,
    pub(crate) failure: Failure,
}

/// What the claims make of each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Handle,
    Skip { state: InboxState, first_seen: Timestamp },
    Record,
    RecordReused,
    CountReused,
}

impl<S: Store> Shared<S> {
    /// Runs one transaction over the chunk: the one that is open for it, or a new one. With a next chunk, its
    /// transaction may be open afterwards.
    pub(crate) async fn attempt(
        &self,
        chunk: &mut [Item],
        opened: &mut Option<Opened<S>>,
        next: &[Item],
    ) -> Attempt {
        let requests: Vec<_> = chunk.iter().filter_map(Item::claim).collect();
        let begun = match opened.take() {
            Some(opened) => Ok(opened),
            // A claim may wait for another process; dropped, it takes back what it has claimed.
            None => tokio::select! {
                biased;
                begun = self.store.begin(&self.consumer, &requests) => begun,
                () = self.cancelled(chunk[0].lane) => return Attempt::Cancelled,
            },
        };
        let (mut tx, claims) = match begun {
            Ok(begun) => begun,
            Err(error) => return after_store_error(error),
        };
        if claims.len() != requests.len() {
            self.store.abandon(tx).await;
            let text = format!("the store answered {} claims for {} ids", claims.len(), requests.len());
            return Attempt::Fatal(StoreError::new(StoreErrorKind::Config, text));
        }
        CrashPoint::AfterClaim.reached();
        let plans = self.plan(chunk, claims);
        let handled: Vec<usize> = at_plan(&plans, Plan::Handle).collect();
        if !handled.is_empty() {
            let messages: Vec<Message> =
                handled.iter().filter_map(|&at| chunk[at].message().cloned()).collect();
            let limit = self.options.handler_timeout;
            let ran = {
                let run = pin!(self.handler.run(&mut tx, &messages, limit));
                tokio::select! {
                    biased;
                    ran = run => Some(ran),
                    () = self.cancelled(chunk[0].lane) => None,
                }
            };
            match ran {
                Some(Ok(())) => {}
                Some(Err(failed)) => return self.after_handler(tx, failed, &handled, chunk).await,
                None => {
                    self.store.abandon(tx).await;
                    return Attempt::Cancelled;
                }
            }
        }
        let letters = dead_letters(chunk, &plans);
        let recorded = if letters.is_empty() {
            vec![]
        } else {
            match self.store.record(&mut tx, &self.consumer, &letters).await {
                Ok(recorded) => recorded,
                Err(error) => {
                    self.store.abandon(tx).await;
                    return after_record_error(error, &letters);
                }
            }
        };
        CrashPoint::BeforeCommit.reached();
        let durable = || {
            CrashPoint::AfterCommit.reached();
            self.recovered();
            self.live.add(&self.tally(chunk, &plans, &recorded));
            self.settle(chunk, Disposition::Ack);
        };
        match self.commit(tx, chunk[0].lane, next, durable).await {
            Ok(next_opened) => {
                *opened = next_opened;
                Attempt::Committed
            }
            Err(error) => after_commit_error(error, chunk, &plans, &handled),
        }
    }

    /// Commits; where a chunk follows, its claims leave together with the COMMIT. `durable` runs as soon as
    /// the commit is, once.
    async fn commit(
        &self,
        tx: S::Tx,
        lane: Lane,
        next: &[Item],
        durable: impl FnOnce(),
    ) -> Result<Option<Opened<S>>, StoreError> {
        let requests: Vec<_> = next.iter().filter_map(Item::claim).collect();
        if requests.is_empty() {
            self.store.commit(tx).await?;
            durable();
            return Ok(None);
        }
        let (tell, told) = oneshot::channel();
        let mut ended = pin!(self.store.commit_and_begin(tx, &self.consumer, &requests, tell));
        tokio::select! {
            biased;
            Ok(()) = told => {
                durable();
                tokio::select! {
                    biased;
                    // What is durable stays so; whatever is wrong with the next one, its own begin will say.
                    ended = ended => Ok(ended.unwrap_or_default()),
                    // Nobody wants it any more, and it may wait for another process.
                    () = self.left(lane) => Ok(None),
                }
            }
            ended = &mut ended => {
                let next_opened = ended?;
                durable();
                Ok(next_opened)
            }
        }
    }

    fn plan(&self, chunk: &[Item], claims: Vec<Claim>) -> Vec<Plan> {
        let mut claims = claims.into_iter();
        let reused = match self.options.policy.on_id_reuse {
            OnIdReuse::DeadLetter => Plan::RecordReused,
            OnIdReuse::Count => Plan::CountReused,
        };
        chunk
            .iter()
            .map(|item| {
                if item.id().is_none() {
                    return Plan::Record;
                }
                match claims.next() {
                    Some(Claim::IdReused { .. }) => reused,
                    Some(Claim::Duplicate { state, first_seen }) => Plan::Skip { state, first_seen },
                    Some(Claim::First) if item.dead.is_none() => Plan::Handle,
                    Some(Claim::First) | None => Plan::Record,
                }
            })
            .collect()
    }

    /// The chunk is durable: counts each item once and says what was skipped.
    fn tally(&self, chunk: &[Item], plans: &[Plan], recorded: &[Recorded]) -> Counts {
        let mut counts = Counts { commits: 1, ..Counts::default() };
        let mut recorded = recorded.iter();
        for (item, plan) in chunk.iter().zip(plans) {
            let mut is_new = || {
                let new = recorded.next() != Some(&Recorded::Known);
                new || item.unknown
            };
            match plan {
                Plan::Handle => counts.applied += 1,
                Plan::Skip { state, .. } if item.unknown => match state {
                    InboxState::Dead => {
                        counts.dead_lettered += 1;
                        counts.dead_letter_rows += 1;
                    }
                    _ => counts.applied += 1,
                },
                Plan::Skip { state, first_seen } => {
                    counts.duplicate += 1;
                    self.say_duplicate(item, *state, *first_seen);
                }
                Plan::Record if is_new() => {
                    counts.dead_lettered += 1;
                    counts.dead_letter_rows += 1;
                    say_dead(item);
                }
                Plan::RecordReused if is_new() => {
                    counts.id_reused += 1;
                    counts.dead_letter_rows += 1;
                    tracing::warn!(target: "handstamp", "id reused with another body, dead letter: {}", item.shown());
                }
                Plan::Record | Plan::RecordReused => counts.duplicate += 1,
                Plan::CountReused => counts.id_reused += 1,
            }
        }
        counts
    }

    /// Rolls back after a failed handler and says whose fault it was.
    async fn after_handler(
        &self,
        tx: S::Tx,
        failed: RunFailure,
        handled: &[usize],
        chunk: &[Item],
    ) -> Attempt {
        CrashPoint::BeforeRollback.reached();
        let culprit = failed.culprit.map(|at| handled[at]).or_else(|| sole(handled));
        let run = |outcome, class, code, reason| {
            let failure = Failure { class, code, reason };
            Attempt::Failed(FailedRun { culprit, outcome, failure })
        };
        match failed.cause {
            Cause::Panic(text) => {
                self.store.abandon(tx).await;
                let reason = Reason::new(&format!("the handler panicked: {text}"));
                run(Outcome::Panic, FailureClass::Panicked, None, reason)
            }
            Cause::Timeout(limit) => {
                self.store.abandon(tx).await;
                let reason = Reason::new(&format!("the handler took longer than {limit:?}"));
                run(Outcome::Timeout, FailureClass::TimedOut, None, reason)
            }
            Cause::Error(error) => {
                let source: &(dyn Error + 'static) = error.source.as_ref();
                let fault = self.store.classify(&tx, source);
                let reason = Reason::from_error(source);
                let code = fault.as_ref().and_then(|f| f.code.clone());
                let kind = fault.map(|f| f.kind);
                if matches!(kind, None | Some(StoreErrorKind::Statement)) {
                    if let Err(error) = self.store.rollback(tx).await {
                        tracing::debug!(target: "handstamp", %error, "rollback failed; the connection is closed");
                    }
                } else {
                    self.store.abandon(tx).await;
                }
                match kind {
                    Some(StoreErrorKind::Timeout) => {
                        run(Outcome::Timeout, FailureClass::TimedOut, code, reason)
                    }
                    Some(kind) if kind != StoreErrorKind::Statement => {
                        let met_by =
                            culprit.map_or(String::new(), |at| format!(" (met by {})", chunk[at].shown()));
                        after_store_error(StoreError::new(kind, format!("{}{met_by}", reason.as_str())))
                    }
                    own => {
                        let by_kind = if own.is_some() { FailureClass::Sql } else { FailureClass::Failed };
                        let (outcome, class) = match error.decision {
                            Decision::Retry { after } => (Outcome::Retry { after }, by_kind),
                            Decision::Reject => (Outcome::Reject, FailureClass::Rejected),
                        };
                        run(outcome, error.class.unwrap_or(class), code, reason)
                    }
                }
            }
        }
    }
}

fn at_plan(plans: &[Plan], wanted: Plan) -> impl Iterator<Item = usize> {
    plans.iter().enumerate().filter(move |(_, plan)| **plan == wanted).map(|(at, _)| at)
}

fn sole(handled: &[usize]) -> Option<usize> {
    if let [only] = handled { Some(*only) } else { None }
}

fn dead_letters(chunk: &[Item], plans: &[Plan]) -> Vec<DeadLetter> {
    let planned = chunk.iter().zip(plans);
    planned
        .filter_map(|(item, plan)| match plan {
            Plan::Record => Some(match &item.dead {
                Some(failure) => item.dead_letter(failure),
                None => {
                    item.dead_letter(&failure(FailureClass::Failed, "the store did not answer its claim"))
                }
            }),
            Plan::RecordReused => {
                Some(item.dead_letter(&failure(FailureClass::IdReused, "the id is known with another body")))
            }
            _ => None,
        })
        .collect()
}

fn failure(class: FailureClass, reason: &str) -> Failure {
    Failure { class, code: None, reason: Reason::new(reason) }
}

fn after_store_error(error: StoreError) -> Attempt {
    match error.kind {
        StoreErrorKind::UnknownConsumer
        | StoreErrorKind::FingerprintMismatch
        | StoreErrorKind::TransactionEnded
        | StoreErrorKind::Config => Attempt::Fatal(error),
        _ => Attempt::Again(error),
    }
}

/// A dead letter that the store refuses is never dropped: the lane waits and says which message.
fn after_record_error(mut error: StoreError, letters: &[DeadLetter]) -> Attempt {
    if let Some(first) = letters.first() {
        error.message = format!(
            "cannot keep {} dead letter(s), the first from {}: {}",
            letters.len(),
            first.record.origin,
            error.message
        );
    }
    after_store_error(error)
}

fn after_commit_error(error: StoreError, chunk: &mut [Item], plans: &[Plan], handled: &[usize]) -> Attempt {
    match error.kind {
        StoreErrorKind::Statement | StoreErrorKind::Swallowed if !handled.is_empty() => {
            let class = match error.kind {
                StoreErrorKind::Swallowed => FailureClass::Failed,
                _ => FailureClass::Sql,
            };
            let failure = Failure { class, code: None, reason: Reason::from_error(&error) };
            let outcome = Outcome::Retry { after: None };
            Attempt::Failed(FailedRun { culprit: sole(handled), outcome, failure })
        }
        StoreErrorKind::Unavailable => {
            for (item, plan) in chunk.iter_mut().zip(plans) {
                item.unknown |= matches!(plan, Plan::Handle | Plan::Record | Plan::RecordReused);
            }
            Attempt::Again(error)
        }
        _ => after_store_error(error),
    }
}

fn say_dead(item: &Item) {
    if let Some(failure) = &item.dead {
        tracing::warn!(
            target: "handstamp",
            class = failure.class.as_str(),
            // One line; what is escaped already is not escaped again.
            reason = %shown_text(failure.reason.as_str().as_bytes()),
            "dead letter {}",
            item.shown()
        );
    }
}
