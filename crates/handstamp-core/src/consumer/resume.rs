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
//!              │        ├ failed ─► rolled back; taken again, one row after the other (`apart`), 50 at most
//!              │        │             ├ a row fails ─► taken back to its savepoint, written as failed with the others
//!              │        │             └ only the commit fails ─► half of them, then half of the rest …
//!              │        └ given up, and copies are made ─► in a transaction of its own, nothing started
//!              ├ a row is not there any more ─► left to whoever has it
//!              ├ store away or conflict ─► the same rows after a wait, nothing charged
//!              └ it killed max_crashes processes ─► given up without a run (`starts`)
//! ```

use super::attempt::{Attempt, FailedRun, after_commit_error, after_store_error};
use super::batch::{BatchEnd, CONFLICTS_THAT_PASS, ChunkSize, Shared, Told, random};
use super::gate::Pass;
use super::outage::backoff_for;
use super::retries::{Found, Look};
use super::row::{Ended, Row, letters_of, say};
use super::slot::Slot;
use super::starts::history;
use crate::breaker::Run;
use crate::crash_point::CrashPoint;
use crate::delivery::Lane;
use crate::message::Message;
use crate::parked::{Dedup, FailedAttempt, ParkedMessage, ParkedStatus, Resumed, Taken};
use crate::retry::Backoff;
use crate::start::{Company, StartStore};
use crate::store::{StoreError, StoreErrorKind};
use crate::telemetry::Counts;
use crate::version::Versioned;
use std::collections::VecDeque;
use std::time::Duration;

/// What the worker's turns are called; no source has a lane of that number.
pub(super) const RETRIES: Lane = Lane { id: u32::MAX, epoch: u32::MAX };
/// What is due is there and was not taken: others have it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often a row is asked for whose failed attempt must be written while somebody else has it.
const ASK_AGAIN_MAX: u32 = 6;
const ASK_AGAIN: Backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// Most rows of a transaction in which something failed: each stands behind a savepoint, and a server slows down where
/// more than 64 of them wrote.
const APART_MAX: usize = 50;

/// What a turn has in hand.
#[derive(Default)]
struct Work {
    queue: VecDeque<Row>,
    /// Their failed attempt is not written, and somebody else has them.
    missed: Vec<Row>,
    size: ChunkSize,
    /// Something failed: one row after the other from here on.
    apart: bool,
    /// What runs beside it now.
    company: Company,
}

impl Work {
    fn len(&self) -> usize {
        self.queue.len() + self.missed.len()
    }

    /// The next rows for a transaction. Marks of versions are raised in an order that nobody waits in: of rows that
    /// have some, one at a time.
    fn next(&mut self, guarded: bool) -> Vec<Row> {
        let most = if self.apart { if guarded { 1 } else { APART_MAX } } else { usize::MAX };
        let length = self.queue.len().min(self.size.limit.clamp(1, most));
        self.queue.drain(..length).collect()
    }
}

impl<S: StartStore> Shared<S> {
    /// A turn of the worker: looks, and takes up what is due.
    pub(crate) async fn look(&self, asks: bool, take_max: usize, mut slot: Slot) -> Look {
        let look = match self.try_look(asks, take_max, &mut slot).await {
            Ok(look) => look,
            Err(error) => self.not_looked(error),
        };
        if !matches!(look.end, BatchEnd::Fatal(_)) {
            slot.give();
            self.withdraw_parked().await;
        }
        look
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
            taken = self.take_due(take_max, slot) => taken?,
            () = self.cancelled(RETRIES) => {
                self.starts.owe();
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
        Ok(Look { found, end })
    }

    /// Takes what is due, with start records in front.
    async fn take_due(&self, max: usize, slot: &mut Slot) -> Result<Option<Taken<S::Tx>>, StoreError> {
        match self.starts.worker() {
            Some(by) => self.start_due(by, max, slot).await.inspect_err(|_| self.starts.owe()),
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

    fn row(&self, parked: ParkedMessage) -> Row {
        let mut row = Row::new(parked, &self.options.policy, self.options.version.as_ref());
        row.route(&*self.handler);
        row
    }

    /// Decides every row; the first transaction holds them all.
    async fn resume(&self, tx: S::Tx, rows: Vec<ParkedMessage>, pass: Pass<'_>, slot: &mut Slot) -> BatchEnd {
        self.live.add(&Counts { resumed: rows.len() as u64, ..Counts::default() });
        let (options, mut opened, mut faults) = (&self.options, Some(tx), 0);
        let mut work = Work { queue: rows.into_iter().map(|row| self.row(row)).collect(), ..Work::default() };
        let mut pass = Some(pass);
        loop {
            let passes = pass.is_some() || self.gate.is_closed();
            if !passes || !self.goes_on(RETRIES) {
                self.leave_unbegun(&mut work.queue);
            }
            if work.queue.is_empty() && !self.ask_again(&mut work, slot).await {
                break;
            }
            let mut chunk = work.next(options.version.is_some());
            let (length, mut aside) = (chunk.len(), vec![]);
            work.company = self.starts.company(slot);
            let attempt = self.resume_chunk(opened.take(), &mut chunk, &mut work, &mut aside).await;
            work.queue.extend(aside);
            let id = |at: usize| chunk[at].parked.letter.id.as_ref();
            let held = self
                .gate
                .hear(pass.take().unwrap_or(Pass::FREE), Run::Parked, &attempt, id, |at| chunk[at].shown());
            let fault = matches!(attempt, Attempt::Again(_) | Attempt::Uncopied);
            faults = if fault { faults + 1 } else { 0 };
            match attempt {
                Attempt::Committed { handled } => {
                    if work.apart || handled > 0 || chunk.is_empty() {
                        work.size.committed(length);
                    }
                }
                Attempt::Failed(failed) => {
                    self.live.add(&Counts { reruns: 1, ..Counts::default() });
                    // Those that fail while the breaker is open are no attempts.
                    if !held {
                        self.note_failure(&mut chunk, failed, &mut work);
                    }
                    prepend(&mut work.queue, chunk);
                }
                again @ (Attempt::Again(_) | Attempt::Uncopied) => {
                    self.live.add(&Counts { reruns: 1, ..Counts::default() });
                    prepend(&mut work.queue, chunk);
                    let error = if let Attempt::Again(error) = again { Some(error) } else { None };
                    if let Some(error) = &error {
                        self.say_outage(error, &|| "parked messages".to_owned());
                    }
                    // Their locks are gone: others may have found what we started, and counted us dead.
                    self.starts.owe();
                    self.withdraw_parked_once().await;
                    let kind = error.as_ref().map_or(StoreErrorKind::Unavailable, |error| error.kind);
                    let fatal =
                        error.filter(|_| self.options.fail_fast && kind == StoreErrorKind::Unavailable);
                    if fatal.is_some() || !self.wait_for_store(kind, faults, slot).await {
                        self.leave(work.len());
                        return fatal.map_or(BatchEnd::Cancelled, BatchEnd::Fatal);
                    }
                }
                Attempt::Cancelled => {
                    self.leave(chunk.len() + work.len());
                    return BatchEnd::Cancelled;
                }
                Attempt::Fatal(error) => {
                    self.leave(chunk.len() + work.len());
                    return BatchEnd::Fatal(error);
                }
            }
        }
        if let Some(tx) = opened {
            self.roll_back(tx).await;
        }
        BatchEnd::Done
    }

    /// One transaction over rows: the one that holds them, or one that takes them again. What is not written in it is
    /// set aside.
    async fn resume_chunk(
        &self,
        opened: Option<S::Tx>,
        chunk: &mut Vec<Row>,
        work: &mut Work,
        aside: &mut Vec<Row>,
    ) -> Attempt {
        // What is given up is copied before it is durable, and that may take long. Whoever is killed then does not show
        // that a message kills: what is to be copied is not written where something is started.
        let copies = self.copies.are_made();
        let starts = self.starts.worker().is_some();
        let started = starts && (opened.is_some() || !copies || chunk.iter().any(Row::may_run));
        let tx = match opened {
            Some(tx) => tx,
            None => tokio::select! {
                biased;
                taken = self.take_again(chunk, work, started) => match taken {
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
        let ran = match work.apart {
            true => self.run_apart(tx, chunk, aside).await,
            false => self.run_together(tx, chunk).await,
        };
        let tx = match ran {
            Ok(tx) => tx,
            Err(attempt) => return attempt,
        };
        if started && copies {
            let is_dead = |row: &mut Row| row.is_dead(&self.options.policy, &self.options.node);
            aside.extend(chunk.extract_if(.., is_dead));
        }
        if chunk.is_empty() {
            self.roll_back(tx).await;
            return Attempt::Committed { handled: 0 };
        }
        self.write_and_commit(tx, chunk).await
    }

    /// Runs what may run of a chunk in one go; the transaction is still open.
    async fn run_together(&self, mut tx: S::Tx, chunk: &mut [Row]) -> Result<S::Tx, Attempt> {
        let weighed = tokio::select! {
            biased;
            weighed = self.weigh_rows(&mut tx, chunk) => weighed.map_err(after_store_error),
            () = self.cancelled(RETRIES) => Err(Attempt::Cancelled),
        };
        if let Err(attempt) = weighed {
            self.store.abandon(tx).await;
            return Err(attempt);
        }
        let handled = running(chunk);
        if handled.is_empty() {
            return Ok(tx);
        }
        let messages: Vec<Message> =
            handled.iter().filter_map(|&at| chunk[at].message.as_ref().ok().cloned()).collect();
        match self.handle(&mut tx, &messages, RETRIES).await {
            Some(Ok(())) => Ok(tx),
            Some(Err(failed)) => Err(self.after_handler(tx, failed, &handled, |at| chunk[at].shown()).await),
            None => {
                self.store.abandon(tx).await;
                Err(Attempt::Cancelled)
            }
        }
    }

    /// Writes what became of every row of a chunk, and commits.
    async fn write_and_commit(&self, mut tx: S::Tx, chunk: &mut [Row]) -> Attempt {
        let handled = running(chunk);
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
    pub(super) async fn weigh_rows(&self, tx: &mut S::Tx, chunk: &mut [Row]) -> Result<(), StoreError> {
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

    /// Takes the rows of a chunk again; the chunk keeps those that are still there and free. Not `started`: nothing runs
    /// for them, and none of our start records stands meanwhile.
    async fn take_again(
        &self,
        chunk: &mut Vec<Row>,
        work: &mut Work,
        started: bool,
    ) -> Result<S::Tx, StoreError> {
        let keys: Vec<Dedup> = chunk.iter().map(|row| row.parked.dedup).collect();
        let by = self.starts.worker();
        let (tx, taken) = match by {
            Some(by) if started => self.store.start_again(&self.consumer, &keys, by, work.company).await?,
            Some(by) => {
                // What was started is replaced by nothing.
                let (tx, _) = self.store.start_again(&self.consumer, &[], by, work.company).await?;
                self.roll_back(tx).await;
                self.store.take_again(&self.consumer, &keys).await?
            }
            None => self.store.take_again(&self.consumer, &keys).await?,
        };
        let tells_crashes = started || by.is_none();
        let mut taken: VecDeque<ParkedMessage> = taken.into();
        for mut row in std::mem::take(chunk) {
            if taken.front().is_none_or(|parked| parked.dedup != row.parked.dedup) {
                self.starts.owe();
                match row.unknown {
                    Some(ended) => self.count(ended),
                    None if row.failed.is_some() => work.missed.push(row),
                    None => self.leave(1),
                }
            } else if let Some(parked) = taken.pop_front() {
                let charged = parked.letter.attempts > row.parked.letter.attempts;
                let stays = row.taken(parked, tells_crashes, &self.options);
                row.route(&*self.handler);
                if !stays {
                    self.leave(1);
                } else if row.unknown.take() == Some(Ended::Again) && charged {
                    self.count(Ended::Again);
                } else {
                    chunk.push(row);
                }
            }
        }
        Ok(tx)
    }

    /// One attempt of the culprit failed, and took the transaction along. From then on one row stands behind the other.
    fn note_failure(&self, chunk: &mut [Row], run: FailedRun, work: &mut Work) {
        let was_apart = std::mem::replace(&mut work.apart, true);
        match run.culprit {
            Some(at) => {
                if was_apart {
                    work.size.found(at);
                }
                self.charge(&mut chunk[at], run);
            }
            // Behind savepoints it is known; unless only the commit finds it.
            None if was_apart => work.size.suspect(chunk.len()),
            None => {}
        }
    }

    /// A row's attempt failed.
    pub(super) fn charge(&self, row: &mut Row, run: FailedRun) {
        self.live.add(&Counts { attempts_failed: 1, ..Counts::default() });
        row.failed = Some((run.outcome, run.failure.now(&self.options.node)));
    }

    /// Rows whose failed attempt is not written and that somebody else has: asks for them again after a wait.
    async fn ask_again(&self, work: &mut Work, slot: &mut Slot) -> bool {
        let Work { queue, missed, .. } = work;
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

/// The places of those for which the handler runs.
fn running(chunk: &[Row]) -> Vec<usize> {
    chunk.iter().enumerate().filter_map(|(at, row)| row.runs().then_some(at)).collect()
}

fn prepend(queue: &mut VecDeque<Row>, chunk: Vec<Row>) {
    for row in chunk.into_iter().rev() {
        queue.push_front(row);
    }
}
