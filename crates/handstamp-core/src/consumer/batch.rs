//! A lane's turn: its batches one after the other, until every message of them is decided and settled.
//!
//! A batch is a queue of items from which chunks are taken; each chunk is one transaction. A turn of several
//! batches saves a round trip between them: the claims of the next leave with the COMMIT of the one before.
//! A lane that is to be left, or a stop, gives back the batches that have not begun.
//!
//! ```text
//! chunk committed            ─► settled; the next chunk may be four times as large
//! culprit known, decided     ─► the same chunk up to and with the culprit, now parked or a dead letter; one that
//!                               ran alone waits for what follows, or for others like it (order = key: at once)
//! culprit known, may retry   ─► what precedes it, then it alone, then what follows
//!                               (order = none: all others first, then it alone)
//! may have killed a process  ─► it alone, nothing opened ahead (`starts`)
//! culprit unknown            ─► the first half of those under suspicion, then half of the rest …
//! store away or conflict     ─► the same chunk after a wait, nothing charged
//! ```
//!
//! A turn that waits in place gives its slot to others meanwhile: the retry worker must not starve behind a lane in
//! which much fails. A batch that is being taken apart is left at a stop: what is decided is settled, the rest goes back.
//!
//! So a bad message costs a constant number of transactions, and an unknown one is found in
//! O(log n) of them.

use super::attempt::{Attempt, FailedRun, Opened};
use super::copies::Copies;
use super::dispatch::DynHandler;
use super::gate::Gate;
use super::in_flight::InFlight;
use super::item::{End, Item};
use super::options::ConsumerOptions;
use super::outage::{CONFLICT_QUIET, Outage, backoff_for};
use super::retries::Parked;
use super::slot::{Slot, Slots};
use super::starts::Starts;
use crate::breaker::Run;
use crate::decide::{Case, Order, Place, Verdict, decide};
use crate::delivery::{DeliveryTag, Disposition, Lane};
use crate::message::Timestamp;
use crate::retry::WaitsInPlace;
use crate::source::Command;
use crate::start::StartStore;
use crate::store::{ConsumerKey, InboxState, Store, StoreError, StoreErrorKind};
use crate::telemetry::{Counts, LineLimit, LiveCounts};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// What every running batch shares; lives on the engine's thread.
pub(crate) struct Shared<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) consumer: ConsumerKey,
    pub(crate) handler: Arc<dyn DynHandler<S::Tx>>,
    pub(crate) options: ConsumerOptions,
    pub(crate) live: Arc<LiveCounts>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) duplicates: RefCell<LineLimit>,
    pub(crate) parked_lines: RefCell<LineLimit>,
    pub(crate) parked: Parked,
    pub(crate) starts: Starts,
    pub(crate) copies: Copies,
    pub(crate) gate: Gate,
    /// Of each lane in which a wait in place was in vain.
    pub(crate) in_place: RefCell<HashMap<Lane, WaitsInPlace>>,
    pub(crate) outage: Outage,
    /// What the turn of each lane is told.
    pub(crate) told: RefCell<HashMap<Lane, watch::Sender<Told>>>,
    pub(crate) in_flight: InFlight,
    pub(crate) slots: Slots,
    /// True once the consumer was asked to stop: then nobody waits for a store that is away.
    pub(crate) stopping: watch::Sender<bool>,
}

/// What the turn of a lane is told; it only ever gets worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    GoOn,
    /// No batch after the one that runs.
    Finish,
    /// Roll back and give back.
    Cancel,
}

/// How a turn ended.
pub(crate) enum BatchEnd {
    /// Every message is settled, or given back because no more was to begin.
    Done,
    /// Taken away in the middle; the rest was given back.
    Cancelled,
    /// The consumer must not go on; nothing of the rest is settled.
    Fatal(StoreError),
}

/// How many messages the next chunk may hold.
pub(super) struct ChunkSize {
    pub(super) limit: usize,
    /// So many at the front of the queue are known to hold a culprit.
    suspects: Option<usize>,
    /// So many that are decided wait at the end of the queue, the first of them since then.
    kept: usize,
    kept_since: Option<tokio::time::Instant>,
}

impl Default for ChunkSize {
    fn default() -> Self {
        Self { limit: usize::MAX, suspects: None, kept: 0, kept_since: None }
    }
}

impl ChunkSize {
    pub(super) fn committed(&mut self, count: usize) {
        match self.suspects.map(|suspects| suspects.saturating_sub(count)) {
            Some(left) if left > 0 => self.suspect(left),
            // All committed although one had failed: it does not fail always.
            _ => {
                self.suspects = None;
                self.limit = self.limit.saturating_mul(4);
            }
        }
    }

    pub(super) fn suspect(&mut self, count: usize) {
        self.suspects = Some(count);
        self.limit = (count / 2).max(1);
    }

    /// Something failed, and the batch is not whole again.
    fn is_apart(&self) -> bool {
        self.limit < usize::MAX
    }

    /// One more that is decided waits at the end of the queue. Behind the first more are tried together again, as
    /// behind a commit; where one follows another, they go on one by one.
    fn keep(&mut self) {
        if self.kept == 0 {
            self.limit = self.limit.saturating_mul(4);
        }
        self.kept += 1;
        self.kept_since.get_or_insert_with(tokio::time::Instant::now);
    }

    /// Whether those that wait are to come first: there are many, it takes long, or nothing else is to be waited for.
    fn takes_kept(&mut self, now: bool) -> bool {
        let long = self.kept_since.is_some_and(|since| since.elapsed() >= KEPT_FOR);
        let takes = self.kept >= KEPT_MAX || long || (self.kept > 0 && now);
        if takes {
            (self.kept, self.kept_since) = (0, None);
        }
        takes
    }

    /// The culprit stands at this place of the chunk: what precedes it goes with it.
    pub(super) fn found(&mut self, at: usize) {
        self.suspects = None;
        self.limit = at + 1;
    }
}

/// So many decided messages wait for company in a transaction, and so long.
const KEPT_MAX: usize = 32;
const KEPT_FOR: Duration = Duration::from_millis(200);
/// A chunk that lost this many conflicts in a row gets smaller, so that it holds fewer locks.
const CONFLICTS_BEFORE_SMALLER: u32 = 3;
/// More than this in a row, and a stop does not wait for the conflict to end.
pub(super) const CONFLICTS_THAT_PASS: u32 = 10;

impl<S: StartStore> Shared<S> {
    /// Decides and settles every item of the batches; they are of one lane and in its order.
    pub(crate) async fn run_turn(&self, lane: Lane, batches: Vec<Vec<Item>>, slot: Slot) -> BatchEnd {
        let mut batches = VecDeque::from(batches);
        let end = match self.look_back(lane, &mut batches).await {
            Ok(true) => self.run_batches(lane, batches, slot).await,
            Ok(false) => self.give_back(batches.into_iter().flatten().collect()),
            Err(error) => self.fatal(batches.into_iter().flatten().collect(), vec![], error),
        };
        self.end_turn(lane, &end).await;
        end
    }

    async fn run_batches(&self, lane: Lane, mut batches: VecDeque<Vec<Item>>, mut slot: Slot) -> BatchEnd {
        let _held = if self.options.concurrency > 1 {
            let ids = batches.iter().flatten().filter_map(Item::id).cloned().collect();
            if !self.in_flight.is_free(&ids) {
                slot.give();
            }
            let held = async {
                let held = self.in_flight.take(ids).await;
                slot.retake().await;
                held
            };
            tokio::select! {
                biased;
                held = held => Some(held),
                () = self.left(lane) => return self.give_back(batches.into_iter().flatten().collect()),
            }
        } else {
            None
        };
        let mut opened = None;
        let mut end = BatchEnd::Done;
        while let Some(batch) = batches.pop_front() {
            let next = batches.front().map_or(&[][..], Vec::as_slice);
            end = self.run_batch(batch, &mut opened, next, &mut slot).await;
            if !matches!(end, BatchEnd::Done) || !self.goes_on(lane) {
                break;
            }
        }
        if let Some((tx, _)) = opened {
            self.roll_back(tx).await;
        }
        if !batches.is_empty() {
            self.give_back(batches.into_iter().flatten().collect());
        }
        end
    }

    /// Rolls back; without an answer the server does so by itself.
    pub(super) async fn roll_back(&self, tx: S::Tx) {
        if let Err(error) = self.store.rollback(tx).await {
            tracing::debug!(target: "handstamp", %error, "rollback failed; the connection is closed");
        }
    }

    /// Decides and settles every item. The first transaction may be open; that of the next batch may be then.
    async fn run_batch(
        &self,
        items: Vec<Item>,
        opened: &mut Option<Opened<S>>,
        next: &[Item],
        slot: &mut Slot,
    ) -> BatchEnd {
        let mut queue = VecDeque::from(items);
        let mut size = ChunkSize::default();
        let (mut faults, mut since) = (0_u32, None);
        while let Some(first) = queue.front() {
            let (lane, wait) = (first.lane, first.alone.unwrap_or_default());
            let leaves = (size.is_apart() || first.suspected) && !self.goes_on(lane);
            if size.takes_kept(leaves || !self.gate.is_closed()) {
                gather(&mut queue);
                continue;
            }
            let left = self.is_told(lane) == Told::Cancel || (leaves && first.end().is_none());
            if left || (!wait.is_zero() && !self.sleep_aside(lane, wait, slot).await) {
                return self.give_back(queue);
            }
            let Some((pass, most)) = self.enter(&queue, size.limit, leaves, opened, slot).await else {
                return self.give_back(queue);
            };
            let mut chunk = take_chunk(&mut queue, most);
            // What is to run alone stays so, though what it was suspected for is forgotten by now.
            let together = !self.starts.watches(lane) && !next.iter().any(Item::runs_alone);
            let opens = queue.is_empty() && self.goes_on(lane) && together;
            let next = if opens && self.gate.is_closed() { next } else { &[] };
            let began = Instant::now();
            let attempt = match self.run_alone(lane, &chunk, slot).await {
                true => self.attempt(&mut chunk, opened, next).await,
                false => Attempt::Cancelled,
            };
            let (id, shown) = (|at: usize| chunk[at].id(), |at: usize| chunk[at].shown());
            let held = self.gate.hear(pass, Run::Delivered, &attempt, id, shown);
            self.note_wait(lane, wait, &attempt);
            if !matches!(attempt, Attempt::Again(_)) {
                (faults, since) = (0, None);
            }
            match attempt {
                Attempt::Committed { .. } => {
                    // What waited at the end of the queue was counted before.
                    if chunk.iter().any(|item| item.end().is_none()) {
                        size.committed(chunk.len());
                    }
                    self.forget_passed(lane, &chunk, &queue).await;
                }
                Attempt::Failed(failed) => {
                    self.recovered();
                    self.live.add(&Counts { reruns: 1, ..Counts::default() });
                    self.regroup(&mut queue, chunk, failed, held, &mut size);
                }
                Attempt::Again(error) => {
                    if self.options.fail_fast && error.kind == StoreErrorKind::Unavailable {
                        return self.fatal(queue, chunk, error);
                    }
                    let lasts = since.get_or_insert(began).elapsed();
                    faults = faults.saturating_add(1);
                    if error.kind == StoreErrorKind::Conflict && faults > CONFLICTS_BEFORE_SMALLER {
                        size.limit = (chunk.len() / 2).max(1);
                    }
                    let goes_on = self.wait_again(lane, &chunk[0], &error, faults, lasts).await;
                    prepend(&mut queue, chunk);
                    if !goes_on {
                        return self.give_back(queue);
                    }
                }
                Attempt::Cancelled | Attempt::Uncopied => {
                    prepend(&mut queue, chunk);
                    return self.give_back(queue);
                }
                Attempt::Fatal(error) => return self.fatal(queue, chunk, error),
            }
        }
        BatchEnd::Done
    }

    /// Waits after a fault that is nobody's, of so many one after another; false: the rest is given back.
    async fn wait_again(
        &self,
        lane: Lane,
        first: &Item,
        error: &StoreError,
        faults: u32,
        lasts: Duration,
    ) -> bool {
        self.say_outage(error, &|| first.shown());
        self.live.add(&Counts { reruns: 1, ..Counts::default() });
        let wait = backoff_for(error.kind).wait(faults - 1, random());
        let passes = faults <= CONFLICTS_THAT_PASS && lasts <= CONFLICT_QUIET;
        self.sleep_for_store(lane, wait, error.kind, passes).await
    }

    /// What came of a chunk, and whether it helped that its message had waited in place.
    fn note_wait(&self, lane: Lane, waited: Duration, attempt: &Attempt) {
        let mut lanes = self.in_place.borrow_mut();
        match attempt {
            Attempt::Committed { handled } if *handled > 0 => {
                if !waited.is_zero() {
                    lanes.remove(&lane);
                } else if let Some(waits) = lanes.get_mut(&lane) {
                    waits.passed(u32::try_from(*handled).unwrap_or(u32::MAX));
                }
            }
            Attempt::Failed(_) if !waited.is_zero() => lanes.entry(lane).or_default().made(false),
            _ => {}
        }
    }

    /// Puts a failed chunk back so that only the culprit is decided apart; a held one waits in place.
    fn regroup(
        &self,
        queue: &mut VecDeque<Item>,
        mut chunk: Vec<Item>,
        run: FailedRun,
        held: bool,
        size: &mut ChunkSize,
    ) {
        let Some(at) = run.culprit else {
            size.suspect(chunk.len());
            return prepend(queue, chunk);
        };
        self.live.add(&Counts { attempts_failed: 1, ..Counts::default() });
        size.found(at);
        let culprit = &mut chunk[at];
        culprit.attempts += 1;
        let mut lanes = self.in_place.borrow_mut();
        let waits = lanes.get_mut(&culprit.lane).is_none_or(WaitsInPlace::are_made);
        let verdict = decide(
            &Case {
                outcome: run.outcome,
                attempts: culprit.attempts,
                code: run.failure.code.as_deref(),
                place: Place::Delivered,
                waits,
                random: random(),
            },
            &self.options.policy,
        );
        tracing::debug!(
            target: "handstamp",
            delivery = %culprit.shown(),
            attempts = culprit.attempts,
            reason = run.failure.reason.as_str(),
            ?verdict,
            "an attempt failed"
        );
        let trouble = culprit.trouble.get_or_insert_default();
        trouble.note(run.failure.clone().now(&self.options.node));
        culprit.alone = None;
        match verdict {
            _ if held => culprit.alone = Some(Duration::ZERO),
            Verdict::RetryInPlace { wait } => culprit.alone = Some(wait),
            Verdict::Park { wait } => trouble.end = Some(End::Parked(run.failure, wait)),
            _ => trouble.end = Some(End::Dead(run.failure)),
        }
        match self.options.order {
            // Those behind one of its key must find it parked; for all others it may wait for company.
            Order::Partition | Order::None if chunk.len() == 1 && chunk[0].end().is_some() => {
                size.keep();
                queue.extend(chunk);
            }
            Order::None if chunk[at].alone.is_some() => {
                // What follows it must not fail those in front of it once more.
                size.found(at.saturating_sub(1));
                defer(queue, chunk, at);
            }
            _ => prepend(queue, chunk),
        }
    }

    pub(crate) fn settle<'i>(&self, items: impl IntoIterator<Item = &'i Item>, disposition: Disposition) {
        let settles: Vec<(Lane, DeliveryTag, Disposition)> =
            items.into_iter().map(|item| (item.lane, item.tag, disposition)).collect();
        if settles.is_empty() {
            return;
        }
        // The source may be gone already: then the broker delivers again and the inbox answers.
        drop(self.commands.send(Command::Settle(settles)));
    }

    /// Gives what is left back to the broker.
    fn give_back(&self, queue: VecDeque<Item>) -> BatchEnd {
        let items = Vec::from(queue);
        self.live.add(&Counts { released: items.len() as u64, ..Counts::default() });
        self.settle(&items, Disposition::Release { delay: Duration::ZERO });
        BatchEnd::Cancelled
    }

    fn fatal(&self, mut queue: VecDeque<Item>, chunk: Vec<Item>, mut error: StoreError) -> BatchEnd {
        if let Some(first) = chunk.first() {
            error.message = format!("{} (in the batch that begins with {})", error.message, first.shown());
        }
        prepend(&mut queue, chunk);
        self.give_back(queue);
        BatchEnd::Fatal(error)
    }

    /// Completes when the lane is taken away; never for a lane that nobody watches.
    pub(crate) async fn cancelled(&self, lane: Lane) {
        self.told(lane, Told::Cancel).await;
    }

    /// Completes when no other batch of the lane may begin.
    pub(crate) async fn left(&self, lane: Lane) {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            () = self.told(lane, Told::Finish) => {}
            Ok(_) = stopping.wait_for(|stopping| *stopping) => {}
        }
    }

    /// Completes when the turn of the lane is told so, or worse.
    async fn told(&self, lane: Lane, least: Told) {
        let receiver = self.told.borrow().get(&lane).map(watch::Sender::subscribe);
        let told = match receiver {
            Some(mut receiver) => receiver.wait_for(|told| *told >= least).await.is_ok(),
            None => false,
        };
        if !told {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn is_told(&self, lane: Lane) -> Told {
        self.told.borrow().get(&lane).map_or(Told::GoOn, |told| *told.borrow())
    }

    /// Whether another batch of the lane may begin.
    pub(super) fn goes_on(&self, lane: Lane) -> bool {
        self.is_told(lane) == Told::GoOn && !*self.stopping.borrow()
    }

    /// The lane is not ours any more; whether a start record of it may be there.
    pub(super) fn leave_lane(&self, lane: Lane) -> bool {
        self.told.borrow_mut().remove(&lane);
        self.in_place.borrow_mut().remove(&lane);
        self.starts.leave(lane)
    }

    /// Tells the turn of a lane; what it was told before stays when it is worse.
    pub(crate) fn tell(&self, lane: Lane, worse: Told) {
        if let Some(told) = self.told.borrow().get(&lane) {
            told.send_modify(|told| *told = worse.max(*told));
        }
    }

    /// Waits; false when the lane was taken away meanwhile.
    pub(super) async fn sleep(&self, lane: Lane, wait: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.cancelled(lane) => false,
            () = self.rest(lane, wait) => true,
        }
    }

    /// Waits without its slot; false, and without it, when no more is to begin.
    pub(super) async fn sleep_aside(&self, lane: Lane, wait: Duration, slot: &mut Slot) -> bool {
        let rested = async {
            // Whoever has the slot meanwhile may die of something else.
            self.end_start(lane).await;
            slot.give();
            self.rest(lane, wait).await;
            slot.retake().await;
        };
        let rested = tokio::select! {
            biased;
            () = self.left(lane) => false,
            () = rested => true,
        };
        if !rested {
            slot.give();
        }
        rested
    }

    /// One line for a skipped duplicate, at most 100 a second.
    pub(crate) fn say_duplicate(&self, item: &Item, state: InboxState, first_seen: Timestamp) {
        let (shown, left_out) = self.duplicates.borrow_mut().take(Instant::now());
        say_left_out(left_out);
        if shown {
            let what = match state {
                InboxState::Applied => "",
                InboxState::Parked => ", which waits for its retry",
                InboxState::Dead => ", which is a dead letter",
                InboxState::Discarded => ", which was discarded",
            };
            tracing::info!(
                target: "handstamp",
                state = state.as_str(),
                %first_seen,
                "skipped duplicate {}{what}",
                item.shown()
            );
        }
    }
}

/// Says how many lines were left out.
pub(crate) fn say_left_out(left_out: u64) {
    if left_out > 0 {
        tracing::info!(target: "handstamp", left_out, "more duplicates were skipped without a line each");
    }
}

/// The next chunk: the queue itself, as a rule, without moving its items.
fn take_chunk(queue: &mut VecDeque<Item>, limit: usize) -> Vec<Item> {
    let length = chunk_len(queue, limit);
    if length == queue.len() { Vec::from(std::mem::take(queue)) } else { queue.drain(..length).collect() }
}

/// What is decided comes first: to be kept at once.
fn gather(queue: &mut VecDeque<Item>) {
    let (mut decided, others): (VecDeque<Item>, VecDeque<Item>) =
        queue.drain(..).partition(|item| item.end().is_some());
    decided.extend(others);
    *queue = decided;
}

/// How many at the front are decided: no handler runs for them.
pub(super) fn decided(queue: &VecDeque<Item>) -> usize {
    queue.iter().take_while(|item| item.end().is_some()).count()
}

/// A message to run alone is a chunk of its own; others go together up to the limit, what is decided beyond it.
fn chunk_len(queue: &VecDeque<Item>, limit: usize) -> usize {
    if queue.front().is_some_and(Item::runs_alone) {
        return 1;
    }
    queue.iter().take(limit.max(decided(queue)).max(1)).take_while(|item| !item.runs_alone()).count()
}

fn prepend(queue: &mut VecDeque<Item>, chunk: Vec<Item>) {
    for item in chunk.into_iter().rev() {
        queue.push_front(item);
    }
}

/// All others first, then the culprit alone, then its twins, which share its fate.
fn defer(queue: &mut VecDeque<Item>, chunk: Vec<Item>, culprit: usize) {
    let id = chunk[culprit].id().cloned();
    let mut others = VecDeque::new();
    let mut apart = vec![];
    for (at, item) in chunk.into_iter().chain(queue.drain(..)).enumerate() {
        if at == culprit || (id.is_some() && item.id() == id.as_ref()) {
            apart.push(item);
        } else {
            others.push_back(item);
        }
    }
    others.extend(apart);
    *queue = others;
}

/// Jitter needs no quality, only that processes differ.
pub(crate) fn random() -> u32 {
    let bits = RandomState::new().hash_one(0_u8);
    u32::try_from(bits >> 32).unwrap_or(u32::MAX)
}
