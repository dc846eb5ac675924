//! One transaction: start record, claim, handle, record, commit; settled as soon as it is durable.
//!
//! ```text
//! begin+claim ─► handle First ─► park, record dead ─► commit ─► durable: counted, settled ─► Committed
//!      │              │                  │              ├─ no answer ─► Again (marked unknown)
//!      │              └─ culprit ─► rolled back ► Failed└─ the next begin+claim, where one follows, leaves
//!      └─ fault of the store ─► Again, nothing charged       with the COMMIT: its transaction is left open
//! ```

use super::batch::Shared;
use super::dispatch::{Cause, RunFailure};
use super::item::{Failure, Item};
use super::keep::Plan;
use crate::crash_point::CrashPoint;
use crate::decide::{Order, Outcome};
use crate::delivery::{Disposition, Lane};
use crate::handler::Decision;
use crate::message::Message;
use crate::start::StartStore;
use crate::store::{Begun, ClaimRequest, FailureClass, Reason, Store, StoreError, StoreErrorKind};
use std::error::Error;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::oneshot;

/// A claim that is not answered after this time waits for a lock.
const CLAIM_WAITS: Duration = Duration::from_secs(1);

/// What is open for a chunk.
pub(crate) type Opened<S> = Begun<<S as Store>::Tx>;

/// What a transaction came to.
pub(crate) enum Attempt {
    /// Durable, counted and settled; the handler ran for so many.
    Committed { handled: usize },
    /// Rolled back: one message failed, or an unknown one of those handled.
    Failed(FailedRun),
    /// Rolled back or unknown, and no message's fault: run it again after a wait.
    Again(StoreError),
    /// Taken away or stopped in the middle: rolled back.
    Cancelled,
    /// A parked message is dead and could not be copied: rolled back, and that was said.
    Uncopied,
    /// The consumer must not go on.
    Fatal(StoreError),
}

/// A run that failed by a message's own fault.
pub(crate) struct FailedRun {
    /// Index into the chunk, where it is known.
    pub(crate) culprit: Option<usize>,
    /// Index of the first message that was handled.
    pub(crate) first: usize,
    /// The handler asked for a retry or took too long: what it needs may be down.
    pub(crate) may_pass: bool,
    pub(crate) outcome: Outcome,
    pub(crate) failure: Failure,
}

impl<S: StartStore> Shared<S> {
    /// Runs one transaction over the chunk: the one that is open for it, or a new one. With a next chunk, its
    /// transaction may be open afterwards.
    pub(crate) async fn attempt(
        &self,
        chunk: &mut [Item],
        opened: &mut Option<Opened<S>>,
        next: &[Item],
    ) -> Attempt {
        let lane = chunk[0].lane;
        let (mut tx, plans) = match self.claim(chunk, opened).await {
            Ok(claimed) => claimed,
            Err(attempt) => return attempt,
        };
        let handled: Vec<usize> = at_plan(&plans, Plan::Handle).collect();
        if !handled.is_empty() {
            self.starts.handed(lane);
            let messages: Vec<Message> =
                handled.iter().filter_map(|&at| chunk[at].message().cloned()).collect();
            match self.handle(&mut tx, &messages, lane).await {
                Some(Ok(())) => {}
                Some(Err(failed)) => {
                    return self.after_handler(tx, failed, &handled, |at| chunk[at].shown()).await;
                }
                None => {
                    self.store.abandon(tx).await;
                    return Attempt::Cancelled;
                }
            }
        }
        let kept = match self.keep(&mut tx, chunk, &plans).await {
            Ok(kept) => kept,
            Err(error) => {
                self.store.abandon(tx).await;
                return after_store_error(error);
            }
        };
        // What is dead is settled behind its copy, which is made before anything else begins.
        let due = self.copies.due(&plans);
        let next = if due.is_empty() { next } else { &[] };
        CrashPoint::BeforeCommit.reached();
        let began = tokio::time::Instant::now();
        let durable = || {
            self.live.vitals().committed(chunk.len(), began.elapsed());
            CrashPoint::AfterCommit.reached();
            if kept.has_parked() {
                CrashPoint::AfterPark.reached();
            }
            self.recovered();
            self.live.add(&self.tally(chunk, &plans, &kept));
            self.starts.note_outcomes(chunk);
            let copied = chunk.iter().enumerate().filter(|(at, _)| due.binary_search(at).is_err());
            self.settle(copied.map(|(_, item)| item), Disposition::Ack);
        };
        match self.commit(tx, lane, next, durable).await {
            Ok(next_opened) => {
                *opened = next_opened;
                self.copy_then_settle(lane, chunk, &plans, &due).await;
                Attempt::Committed { handled: handled.len() }
            }
            Err(error) => {
                if error.kind == StoreErrorKind::Unavailable {
                    for (item, plan) in chunk.iter_mut().zip(&plans) {
                        item.unknown = plan.if_unknown().unwrap_or(item.unknown);
                    }
                }
                after_commit_error(error, &handled)
            }
        }
    }

    /// Opens the chunk's transaction and plans what becomes of each message; nothing is open with an error.
    async fn claim(
        &self,
        chunk: &[Item],
        opened: &mut Option<Opened<S>>,
    ) -> Result<(S::Tx, Vec<Plan>), Attempt> {
        let lane = chunk[0].lane;
        let requests = self.claims_of(chunk);
        let begun = match opened.take() {
            Some(opened) => Ok(opened),
            // A claim may wait for another process; dropped, it takes back what it has claimed.
            None => tokio::select! {
                biased;
                begun = self.begin(chunk, &requests) => begun,
                () = self.cancelled(lane) => return Err(Attempt::Cancelled),
            },
        };
        let (mut tx, claims) = begun.map_err(after_store_error)?;
        if claims.len() != requests.len() {
            self.store.abandon(tx).await;
            let text = format!("the store answered {} claims for {} ids", claims.len(), requests.len());
            return Err(Attempt::Fatal(StoreError::new(StoreErrorKind::Config, text)));
        }
        CrashPoint::AfterClaim.reached();
        let mut plans = self.plan(chunk, claims);
        let judged = tokio::select! {
            biased;
            judged = self.look_up(&mut tx, chunk, &mut plans) => judged.map_err(after_store_error),
            () = self.cancelled(lane) => Err(Attempt::Cancelled),
        };
        if let Err(attempt) = judged {
            self.store.abandon(tx).await;
            return Err(attempt);
        }
        Ok((tx, plans))
    }

    /// Begins, behind a start record where a handler may run. While a claim waits for another transaction nothing is
    /// handled, and whoever ends a process that seems to hang does not show that a message kills: the record is ended
    /// then, and once the claim is answered begun with anew.
    async fn begin(&self, chunk: &[Item], requests: &[ClaimRequest]) -> Result<Opened<S>, StoreError> {
        while let Some(start) = self.starts.of_chunk(chunk) {
            let mut begun = pin!(self.store.start_and_begin(&self.consumer, requests, &start));
            let waits = async {
                tokio::time::sleep(CLAIM_WAITS).await;
                self.end_start(chunk[0].lane).await;
            };
            tokio::select! {
                biased;
                begun = &mut begun => return begun,
                () = waits => {}
            }
            tracing::info!(
                target: "handstamp",
                messages = chunk.len(),
                "a claim waits for another transaction, nothing is charged: {}",
                chunk[0].shown()
            );
            let (tx, _) = begun.await?;
            self.roll_back(tx).await;
        }
        self.store.begin(&self.consumer, requests).await
    }

    /// Commits, and begins as `begin` does in the same flight.
    async fn commit_and_begin(
        &self,
        tx: S::Tx,
        next: &[Item],
        requests: &[ClaimRequest],
        tell: oneshot::Sender<()>,
    ) -> Result<Option<Opened<S>>, StoreError> {
        match self.starts.of_chunk(next) {
            Some(start) => {
                self.store.commit_start_and_begin(tx, &self.consumer, requests, &start, tell).await
            }
            None => self.store.commit_and_begin(tx, &self.consumer, requests, tell).await,
        }
    }

    /// Finds what must wait behind parked messages, and what is not newer than what is applied; asks the store
    /// nothing that no option needs.
    async fn look_up(&self, tx: &mut S::Tx, chunk: &[Item], plans: &mut [Plan]) -> Result<(), StoreError> {
        if self.options.order == Order::Key {
            self.put_behind(tx, chunk, plans).await?;
        }
        self.weigh(tx, chunk, plans).await
    }

    /// Runs the handler; `None`: the lane was taken away meanwhile.
    pub(super) async fn handle(
        &self,
        tx: &mut S::Tx,
        messages: &[Message],
        lane: Lane,
    ) -> Option<Result<(), RunFailure>> {
        let began = tokio::time::Instant::now();
        let run = pin!(self.handler.run(tx, messages, self.options.handler_timeout));
        tokio::select! {
            biased;
            ran = run => {
                self.live.vitals().handled(began.elapsed());
                Some(ran)
            }
            () = self.cancelled(lane) => None,
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
        let requests = self.claims_of(next);
        if next.is_empty() {
            self.store.commit(tx).await?;
            durable();
            return Ok(None);
        }
        let (tell, told) = oneshot::channel();
        let mut ended = pin!(self.commit_and_begin(tx, next, &requests, tell));
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
                    // It does wait: what is to be done then is done where it is begun with alone.
                    () = tokio::time::sleep(CLAIM_WAITS) => Ok(None),
                }
            }
            ended = &mut ended => {
                let next_opened = ended?;
                durable();
                Ok(next_opened)
            }
        }
    }

    /// Rolls back after a failed handler and says whose fault it was; `handled` are the places of its messages in
    /// the chunk.
    pub(super) async fn after_handler(
        &self,
        tx: S::Tx,
        failed: RunFailure,
        handled: &[usize],
        shown: impl Fn(usize) -> String,
    ) -> Attempt {
        CrashPoint::BeforeRollback.reached();
        let (clean, attempt) = self.blame(&tx, failed, handled, shown);
        if clean {
            self.roll_back(tx).await;
        } else {
            self.store.abandon(tx).await;
        }
        attempt
    }

    /// Says whose fault it was that a handler failed; true: no statement of its runs any more, and only what it wrote
    /// is to be taken back.
    pub(super) fn blame(
        &self,
        tx: &S::Tx,
        failed: RunFailure,
        handled: &[usize],
        shown: impl Fn(usize) -> String,
    ) -> (bool, Attempt) {
        let culprit = failed.culprit.map(|at| handled[at]).or_else(|| sole(handled));
        let run = |outcome, class, code, reason| {
            let may_pass = matches!(
                (outcome, class),
                (Outcome::Retry { .. }, FailureClass::Failed) | (Outcome::Timeout, FailureClass::TimedOut)
            );
            let failure = Failure { class, code, reason };
            let first = handled.first().copied().unwrap_or_default();
            Attempt::Failed(FailedRun { culprit, first, may_pass, outcome, failure })
        };
        match failed.cause {
            Cause::Panic(text) => {
                let reason = Reason::new(&format!("the handler panicked: {text}"));
                (false, run(Outcome::Panic, FailureClass::Panicked, None, reason))
            }
            Cause::Timeout(limit) => {
                let reason = Reason::new(&format!("the handler took longer than {limit:?}"));
                (false, run(Outcome::Timeout, FailureClass::TimedOut, None, reason))
            }
            Cause::Error(error) => {
                let source: &(dyn Error + 'static) = error.source.as_ref();
                let fault = self.store.classify(tx, source);
                let reason = Reason::from_error(source);
                let code = fault.as_ref().and_then(|f| f.code.clone());
                let kind = fault.map(|f| f.kind);
                let clean = matches!(kind, None | Some(StoreErrorKind::Statement));
                let attempt = match kind {
                    Some(StoreErrorKind::Timeout) => {
                        run(Outcome::Timeout, FailureClass::TimedOut, code, reason)
                    }
                    Some(kind) if kind != StoreErrorKind::Statement => {
                        let met_by = culprit.map_or(String::new(), |at| format!(" (met by {})", shown(at)));
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
                };
                (clean, attempt)
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

pub(super) fn after_store_error(error: StoreError) -> Attempt {
    match error.kind {
        StoreErrorKind::UnknownConsumer
        | StoreErrorKind::FingerprintMismatch
        | StoreErrorKind::TransactionEnded
        | StoreErrorKind::Config => Attempt::Fatal(error),
        _ => Attempt::Again(error),
    }
}

/// A commit that failed; where it says that a message did, and several were handled, nobody knows which.
pub(super) fn after_commit_error(error: StoreError, handled: &[usize]) -> Attempt {
    match error.kind {
        StoreErrorKind::Statement | StoreErrorKind::Swallowed if !handled.is_empty() => {
            let class = match error.kind {
                StoreErrorKind::Swallowed => FailureClass::Failed,
                _ => FailureClass::Sql,
            };
            let failure = Failure { class, code: None, reason: Reason::from_error(&error) };
            let outcome = Outcome::Retry { after: None };
            let (culprit, may_pass) = (sole(handled), false);
            Attempt::Failed(FailedRun { culprit, first: handled[0], may_pass, outcome, failure })
        }
        _ => after_store_error(error),
    }
}
