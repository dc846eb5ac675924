//! The retry worker: takes parked messages that are due, runs the handler, writes what became of them.
//!
//! Authoritative: the store, for what is due and for how often a message failed; a row's lock in an open
//! transaction is the whole fence. Nothing about attempts is kept here longer than until the next commit. The
//! worker's turns are turns like those of lanes: they take a slot, alternate with the lanes, and hear a stop.
//! A failed attempt is written once; where another process got the row while this one had rolled back, behind
//! what that one writes, and not at all if that one brought the message to its end.
//!
//! ```text
//! look: status ─ nothing due ─► the next look when something is, or soon
//!   └ due ─► start, take ─► judge versions ─► handle ─► resume ─► commit ─► counted; the next look takes at once
//!              │        ├ culprit known ─► rolled back; taken again up to and with it, now failed
//!              │        └ culprit unknown ─► half of those under suspicion, then half of the rest …
//!              ├ a row is not there any more ─► left to whoever has it
//!              └ store away or conflict ─► the same rows after a wait, nothing charged
//!              └ it killed max_crashes processes ─► given up without a run (`starts`)
//! ```

use super::attempt::{Attempt, FailedRun, after_commit_error, after_store_error};
use super::batch::{BatchEnd, CONFLICTS_THAT_PASS, ChunkSize, Shared, Told, random};
use super::gate::Pass;
use super::item::{Failure, shown};
use super::outage::backoff_for;
use super::retries::{Found, Look};
use super::slot::Slot;
use super::starts::{given_up, history};
use super::versions::other_kind;
use crate::crash_point::CrashPoint;
use crate::decide::{Case, Outcome, Place, Policy, Verdict, decide};
use crate::delivery::Lane;
use crate::message::Message;
use crate::message_id::shown_text;
use crate::parked::{Dedup, FailedAttempt, ParkedMessage, ParkedStatus, Resumed, Taken};
use crate::retry::Backoff;
use crate::start::StartStore;
use crate::store::{DeadLetter, FailureClass, Reason, StoreError, StoreErrorKind};
use crate::telemetry::Counts;
use crate::version::{Judged, VersionGuard, Versioned};
use std::collections::VecDeque;
use std::time::Duration;

/// What the worker's turns are called; no source has a lane of that number.
pub(super) const RETRIES: Lane = Lane { id: u32::MAX, epoch: u32::MAX };
/// What is due is there and was not taken: others have it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often a row is asked for whose failed attempt must be written while somebody else has it.
const ASK_AGAIN_MAX: u32 = 6;
const ASK_AGAIN: Backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// A parked message that was taken up.
struct Row {
    parked: ParkedMessage,
    /// What the handler gets, or why it can get nothing.
    message: Result<Message, Failure>,
    /// Its version, where there is a guard.
    version: Option<Versioned>,
    /// What becomes of it by that, in the transaction that holds it now.
    judged: Judged,
    /// Its attempt here failed, and that is not durable yet.
    failed: Option<(Outcome, FailedAttempt)>,
    /// A commit that had no answer would have made this of it.
    unknown: Option<Ended>,
    /// How often it was asked for in vain.
    tries: u32,
}

/// What a row was written to have become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Applied,
    Stale,
    Again,
    Dead,
}

impl Row {
    fn new(parked: ParkedMessage, policy: &Policy, guard: Option<&VersionGuard>) -> Self {
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

    /// Whether the handler runs for it, unless its version says otherwise.
    fn may_run(&self) -> bool {
        self.failed.is_none() && self.message.is_ok()
    }

    /// Whether the handler runs for it.
    fn runs(&self) -> bool {
        self.may_run() && self.judged == Judged::Newer
    }

    /// What is to be written of it, with its attempts as they are in the row.
    fn outcome(&self, policy: &Policy, node: &str) -> Resumed {
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
    fn ended(&self, outcome: &Resumed) -> Ended {
        match outcome {
            Resumed::Applied if self.judged == Judged::Stale => Ended::Stale,
            Resumed::Applied => Ended::Applied,
            Resumed::Again { .. } => Ended::Again,
            Resumed::Dead { .. } => Ended::Dead,
        }
    }

    fn shown(&self) -> String {
        let letter = &self.parked.letter;
        shown(letter.id.as_ref(), &letter.record)
    }
}

impl<S: StartStore> Shared<S> {
    /// A turn of the worker: looks, and takes up what is due.
    pub(crate) async fn look(&self, asks: bool, take_max: usize, mut slot: Slot) -> Look {
        match self.try_look(asks, take_max, &mut slot).await {
            Ok(look) => look,
            Err(error) => self.not_looked(error),
        }
    }

    async fn try_look(&self, asks: bool, take_max: usize, slot: &mut Slot) -> Result<Look, StoreError> {
        let Some(pass) = self.gate.enter_worker() else {
            return Ok(Look { found: Found::Held, end: BatchEnd::Done });
        };
        let take_max = if pass.is_probe() { 1 } else { take_max };
        let nothing = |due_in| Ok(Look { found: Found::Nothing { due_in }, end: BatchEnd::Done });
        if asks {
            let due_in = self.status().await?.due_in;
            if due_in != Some(Duration::ZERO) {
                return nothing(due_in);
            }
        }
        let taken = tokio::select! {
            biased;
            taken = self.take_due(take_max) => taken?,
            () = self.cancelled(RETRIES) => {
                return Ok(Look { found: Found::Fault, end: BatchEnd::Cancelled });
            }
        };
        let Some((tx, rows)) = taken else {
            // What is due and was not taken, others have.
            let due_in = if asks { Some(LOOK_AGAIN) } else { self.status().await?.due_in };
            return nothing(due_in);
        };
        let bytes = rows.iter().map(|row| row.letter.record.size_bytes()).sum();
        let found = Found::Rows { count: rows.len(), bytes };
        let end = self.resume(tx, rows, pass, slot).await;
        self.withdraw_owed().await;
        Ok(Look { found, end })
    }

    /// Takes what is due, with start records in front.
    async fn take_due(&self, max: usize) -> Result<Option<Taken<S::Tx>>, StoreError> {
        match self.starts.worker() {
            Some(by) => self.store.start_due(&self.consumer, max, by).await,
            None => self.store.take_due(&self.consumer, max).await,
        }
    }

    async fn status(&self) -> Result<ParkedStatus, StoreError> {
        let status = self.store.parked_status(&self.consumer).await?;
        self.parked.is(status.count);
        if self.parked.away.take() {
            self.live.vitals().store_answers();
            tracing::info!(target: "handstamp", "parked messages can be looked for again");
        }
        Ok(status)
    }

    fn not_looked(&self, error: StoreError) -> Look {
        let fatal = self.options.fail_fast && error.kind == StoreErrorKind::Unavailable;
        let end = match after_store_error(error) {
            Attempt::Fatal(error) => BatchEnd::Fatal(error),
            Attempt::Again(error) if fatal => BatchEnd::Fatal(error),
            Attempt::Again(error) => {
                self.live.vitals().store_failed(error.kind);
                if !self.parked.away.replace(true) {
                    tracing::warn!(target: "handstamp", %error, "cannot look for parked messages; waiting");
                }
                BatchEnd::Done
            }
            _ => BatchEnd::Done,
        };
        Look { found: Found::Fault, end }
    }

    /// Decides every row; the first transaction holds them all.
    async fn resume(&self, tx: S::Tx, rows: Vec<ParkedMessage>, pass: Pass<'_>, slot: &mut Slot) -> BatchEnd {
        self.live.add(&Counts { resumed: rows.len() as u64, ..Counts::default() });
        let (options, mut opened) = (&self.options, Some(tx));
        let mut queue: VecDeque<Row> =
            rows.into_iter().map(|row| Row::new(row, &options.policy, options.version.as_ref())).collect();
        let mut missed = vec![];
        let mut size = ChunkSize::default();
        let mut faults = 0;
        let mut pass = Some(pass);
        loop {
            let passes = pass.is_some() || self.gate.is_closed();
            if !passes || !self.goes_on(RETRIES) {
                self.leave_unbegun(&mut queue);
            }
            if queue.is_empty() && !self.ask_again(&mut queue, &mut missed, slot).await {
                break;
            }
            let length = queue.len().min(size.limit.max(1));
            let mut chunk: Vec<Row> = queue.drain(..length).collect();
            let attempt = self.resume_chunk(opened.take(), &mut chunk, &mut missed).await;
            let id = |at: usize| chunk[at].parked.letter.id.as_ref();
            let held =
                self.gate.hear(pass.take().unwrap_or(Pass::FREE), &attempt, id, |at| chunk[at].shown());
            let fault = matches!(attempt, Attempt::Again(_) | Attempt::Uncopied);
            faults = if fault { faults + 1 } else { 0 };
            match attempt {
                Attempt::Committed { handled } => {
                    if handled > 0 || chunk.is_empty() {
                        size.committed(length);
                    }
                }
                Attempt::Failed(failed) => {
                    self.live.add(&Counts { reruns: 1, ..Counts::default() });
                    // The failure that opened the breaker, and those while it is open, are no attempts.
                    if !held {
                        self.note_failure(&mut chunk, failed, &mut size);
                    }
                    prepend(&mut queue, chunk);
                }
                again @ (Attempt::Again(_) | Attempt::Uncopied) => {
                    self.live.add(&Counts { reruns: 1, ..Counts::default() });
                    prepend(&mut queue, chunk);
                    let error = if let Attempt::Again(error) = again { Some(error) } else { None };
                    if let Some(error) = &error {
                        self.say_outage(error, &|| "parked messages".to_owned());
                    }
                    // Their locks are gone: others may have found what we started, and counted us dead.
                    self.withdraw().await;
                    let kind = error.as_ref().map_or(StoreErrorKind::Unavailable, |error| error.kind);
                    let fatal =
                        error.filter(|_| self.options.fail_fast && kind == StoreErrorKind::Unavailable);
                    if fatal.is_some() || !self.wait_for_store(kind, faults, slot).await {
                        self.leave(queue.len() + missed.len());
                        return fatal.map_or(BatchEnd::Cancelled, BatchEnd::Fatal);
                    }
                }
                Attempt::Cancelled => {
                    self.leave(chunk.len() + queue.len() + missed.len());
                    return BatchEnd::Cancelled;
                }
                Attempt::Fatal(error) => {
                    self.leave(chunk.len() + queue.len() + missed.len());
                    return BatchEnd::Fatal(error);
                }
            }
        }
        if let Some(tx) = opened {
            self.roll_back(tx).await;
        }
        BatchEnd::Done
    }

    /// One transaction over rows: the one that holds them, or one that takes them again.
    async fn resume_chunk(
        &self,
        opened: Option<S::Tx>,
        chunk: &mut Vec<Row>,
        missed: &mut Vec<Row>,
    ) -> Attempt {
        let mut tx = match opened {
            Some(tx) => tx,
            None => tokio::select! {
                biased;
                taken = self.take_again(chunk, missed) => match taken {
                    Ok(tx) => tx,
                    Err(error) => return after_store_error(error),
                },
                () = self.cancelled(RETRIES) => return Attempt::Cancelled,
            },
        };
        if chunk.is_empty() {
            self.roll_back(tx).await;
            return Attempt::Committed { handled: 0 };
        }
        CrashPoint::RetryTaken.reached();
        let weighed = tokio::select! {
            biased;
            weighed = self.weigh_rows(&mut tx, chunk) => weighed.map_err(after_store_error),
            () = self.cancelled(RETRIES) => Err(Attempt::Cancelled),
        };
        if let Err(attempt) = weighed {
            self.store.abandon(tx).await;
            return attempt;
        }
        let at_run = |(at, row): (usize, &Row)| row.runs().then_some(at);
        let handled: Vec<usize> = chunk.iter().enumerate().filter_map(at_run).collect();
        if !handled.is_empty() {
            let messages: Vec<Message> =
                handled.iter().filter_map(|&at| chunk[at].message.as_ref().ok().cloned()).collect();
            match self.handle(&mut tx, &messages, RETRIES).await {
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
        let outcome = |row: &Row| (row.parked.dedup, row.outcome(&self.options.policy, &self.options.node));
        let outcomes: Vec<(Dedup, Resumed)> = chunk.iter().map(outcome).collect();
        if let Err(attempt) = self.write(&mut tx, chunk, &outcomes).await {
            self.store.abandon(tx).await;
            return attempt;
        }
        CrashPoint::BeforeRetryCommit.reached();
        let began = tokio::time::Instant::now();
        match CrashPoint::RetryCommitSent.between_sending_and_answer(self.store.commit(tx)).await {
            Ok(()) => {
                self.recovered();
                self.live.vitals().committed(chunk.len(), began.elapsed());
                self.live.add(&Counts { commits: 1, ..Counts::default() });
                for (row, (_, outcome)) in chunk.iter().zip(&outcomes) {
                    self.count(row.ended(outcome));
                    say(row, outcome);
                }
                Attempt::Committed { handled: handled.len() }
            }
            Err(error) => {
                if error.kind == StoreErrorKind::Unavailable {
                    for (row, (_, outcome)) in chunk.iter_mut().zip(&outcomes) {
                        row.unknown = Some(row.ended(outcome));
                    }
                }
                after_commit_error(error, &handled)
            }
        }
    }

    /// Judges rows that may run by their versions, in the order in which they were taken.
    async fn weigh_rows(&self, tx: &mut S::Tx, chunk: &mut [Row]) -> Result<(), StoreError> {
        let may_run = |at: &usize| chunk[*at].may_run() && chunk[*at].version.is_some();
        let left: Vec<usize> = (0..chunk.len()).filter(may_run).collect();
        let messages: Vec<&Versioned> = left.iter().filter_map(|&at| chunk[at].version.as_ref()).collect();
        let judged = self.judge(tx, &messages).await?;
        for (at, judged) in left.into_iter().zip(judged) {
            chunk[at].judged = judged;
        }
        Ok(())
    }

    /// Writes what became of rows, and the crashes of those that are given up into their history; copies those.
    async fn write(
        &self,
        tx: &mut S::Tx,
        chunk: &[Row],
        outcomes: &[(Dedup, Resumed)],
    ) -> Result<(), Attempt> {
        let dead = chunk.iter().zip(outcomes).filter(|(_, (_, to))| matches!(to, Resumed::Dead { .. }));
        let crashes: Vec<(Dedup, FailedAttempt)> = dead
            .flat_map(|(row, (dedup, _))| history(&row.parked.crashes).map(|crash| (*dedup, crash)))
            .collect();
        if !crashes.is_empty() {
            self.store.note_attempts(tx, &self.consumer, &crashes).await.map_err(after_store_error)?;
        }
        self.store.resume(tx, &self.consumer, outcomes).await.map_err(after_store_error)?;
        let copied = self.copy_parked(RETRIES, &letters_of(chunk, outcomes)).await;
        if copied { Ok(()) } else { Err(Attempt::Uncopied) }
    }

    /// Takes the rows of a chunk again; the chunk keeps those that are still there and free.
    async fn take_again(&self, chunk: &mut Vec<Row>, missed: &mut Vec<Row>) -> Result<S::Tx, StoreError> {
        let keys: Vec<Dedup> = chunk.iter().map(|row| row.parked.dedup).collect();
        let (tx, taken) = match self.starts.worker() {
            Some(by) => self.store.start_again(&self.consumer, &keys, by).await?,
            None => self.store.take_again(&self.consumer, &keys).await?,
        };
        let mut taken: VecDeque<ParkedMessage> = taken.into();
        for mut row in std::mem::take(chunk) {
            if taken.front().is_none_or(|parked| parked.dedup != row.parked.dedup) {
                self.starts.owe();
                match row.unknown {
                    Some(ended) => self.count(ended),
                    None if row.failed.is_some() => missed.push(row),
                    None => self.leave(1),
                }
            } else if let Some(parked) = taken.pop_front() {
                let charged = parked.letter.attempts > row.parked.letter.attempts;
                // It may have been sent back meanwhile: whether it runs is asked anew.
                let fresh = Row::new(parked, &self.options.policy, self.options.version.as_ref());
                (row.parked, row.message, row.version) = (fresh.parked, fresh.message, fresh.version);
                if row.unknown.take() == Some(Ended::Again) && charged {
                    self.count(Ended::Again);
                } else {
                    chunk.push(row);
                }
            }
        }
        Ok(tx)
    }

    /// One attempt of the culprit failed; what precedes it goes with it.
    fn note_failure(&self, chunk: &mut [Row], run: FailedRun, size: &mut ChunkSize) {
        let Some(at) = run.culprit else { return size.suspect(chunk.len()) };
        self.live.add(&Counts { attempts_failed: 1, ..Counts::default() });
        size.found(at);
        let row = &mut chunk[at];
        row.failed = Some((run.outcome, run.failure.now(&self.options.node)));
    }

    /// Rows whose failed attempt is not written and that somebody else has: asks for them again after a wait.
    async fn ask_again(&self, queue: &mut VecDeque<Row>, missed: &mut Vec<Row>, slot: &mut Slot) -> bool {
        missed.retain_mut(|row| {
            row.tries += 1;
            if row.tries > ASK_AGAIN_MAX {
                tracing::debug!(target: "handstamp", message = row.shown(), "somebody else decides it");
                self.leave(1);
            }
            row.tries <= ASK_AGAIN_MAX
        });
        let Some(tries) = missed.iter().map(|row| row.tries).max() else { return false };
        if !self.sleep_aside(RETRIES, ASK_AGAIN.wait(tries - 1, random()), slot).await {
            self.leave(missed.len());
            missed.clear();
            return false;
        }
        queue.extend(missed.drain(..));
        true
    }

    /// Waits for the store without the slot; false when a stop does not wait for it.
    async fn wait_for_store(&self, kind: StoreErrorKind, faults: u32, slot: &mut Slot) -> bool {
        let wait = backoff_for(kind).wait(faults - 1, random());
        if self.goes_on(RETRIES) && self.sleep_aside(RETRIES, wait, slot).await {
            return true;
        }
        let passes = matches!(kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout);
        if !passes || faults > CONFLICTS_THAT_PASS || self.is_told(RETRIES) == Told::Cancel {
            return false;
        }
        slot.retake().await;
        self.sleep(RETRIES, wait).await
    }

    /// No more is to begin: only what was begun is finished.
    fn leave_unbegun(&self, queue: &mut VecDeque<Row>) {
        let before = queue.len();
        queue.retain(|row| row.failed.is_some() || row.unknown.is_some());
        self.leave(before - queue.len());
    }

    fn leave(&self, rows: usize) {
        if rows > 0 {
            self.starts.owe();
        }
        self.live.add(&Counts { resumed_released: rows as u64, ..Counts::default() });
    }

    fn count(&self, ended: Ended) {
        let mut counts = Counts::default();
        match ended {
            Ended::Applied => counts.resumed_applied = 1,
            Ended::Stale => counts.resumed_stale = 1,
            Ended::Again => counts.resumed_parked_again = 1,
            Ended::Dead => {
                counts.resumed_dead = 1;
                counts.dead_letter_rows = 1;
            }
        }
        if ended != Ended::Again {
            self.parked.left(1);
        }
        self.live.add(&counts);
    }
}

/// What is given up, as its dead letter will be.
fn letters_of(chunk: &[Row], outcomes: &[(Dedup, Resumed)]) -> Vec<DeadLetter> {
    let letter = |(row, (_, outcome)): (&Row, &(Dedup, Resumed))| {
        let Resumed::Dead { failed, charged } = outcome else { return None };
        let FailedAttempt { at, class, code, reason, .. } = failed.clone();
        let before = row.parked.letter.clone();
        let attempts = before.attempts.saturating_add(u32::from(*charged));
        Some(DeadLetter { class, code, reason, attempts, failed_at: at, ..before })
    };
    chunk.iter().zip(outcomes).filter_map(letter).collect()
}

fn say(row: &Row, outcome: &Resumed) {
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

fn prepend(queue: &mut VecDeque<Row>, chunk: Vec<Row>) {
    for row in chunk.into_iter().rev() {
        queue.push_front(row);
    }
}
