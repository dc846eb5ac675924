//! Start records in the engine: what is said before messages are handed to a handler, and what is done about
//! messages that processes died with.
//!
//! Authoritative: the store's rows. Here is only what was read of them when a lane was taken over, and whether a
//! record of our own may be there. Losing all of it costs nothing: whoever gets the lane reads it again.
//!
//! ```text
//! a lane:
//!   assigned ─► taken over: all new lanes in one call, before the first turn of any
//!      └ orphans ─► watched: what is in a span or has crashes runs alone, nothing is opened ahead
//!                     ├ crashes ≥ max_crashes ─► dead letter, without a run
//!                     ├ applied, dead         ─► its crashes are forgotten; parked: they stay with it
//!                     └ the lane is past them ─► forgotten, as any other lane again
//! our record of it:
//!   none ─ start, begin, claim ─► announced ─ handed over ─► handed ─ committed ─► left as it is: the inbox knows
//!     ▲      ▲                        │                        │       what it names; the next one replaces it
//!     │      └────────────────────────┴────────────────────────┘
//!     └─ ended: nothing was handed over (duplicates), given back, taken away, a long wait, the end of the run
//!   lost ─► withdrawn: every record of ours, and the crashes we were counted for
//! ```
//!
//! Ending, forgetting and withdrawing are done aside: within a second, and what fails is said at debug and left to
//! whoever comes next.

use super::attempt::{Attempt, after_store_error};
use super::batch::{BatchEnd, CONFLICTS_THAT_PASS, Shared, Told, random};
use super::engine::{Engine, TurnEnd};
use super::item::{End, Failure, Item};
use super::keep::Plan;
use super::options::ConsumerOptions;
use super::outage::backoff_for;
use crate::decide::{Case, Outcome, Place, Policy, Verdict, decide};
use crate::delivery::Lane;
use crate::parked::{Dedup, FailedAttempt};
use crate::source::{Command, NamedLane, SettleKind};
use crate::start::{Crash, Orphan, Owner, Start, StartStore, Starter, TakenOver};
use crate::store::{DeadLetter, FailureClass, InboxState, Reason, StoreError, StoreErrorKind};
use crate::telemetry::Counts;
use futures_util::future::FutureExt;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// A wait of so long ends the lane's record meanwhile: who is killed then handles nothing.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// What is done aside has so long.
const ASIDE_MAX: Duration = Duration::from_secs(1);

/// What is kept of start records while a consumer runs.
pub(crate) struct Starts {
    /// Who we are; `None`: no start records.
    by: Option<Starter>,
    /// A lane has one reader at a time, so that what another left behind is an orphan.
    of_lanes: bool,
    lanes: RefCell<HashMap<Lane, LaneStarts>>,
    /// One takes over at a time.
    taking: Mutex<()>,
    /// A record of ours may be there.
    wrote: Cell<bool>,
    /// Others may have counted us dead.
    owes: Cell<bool>,
}

/// What is kept of one lane.
struct LaneStarts {
    name: Arc<str>,
    taken_over: bool,
    /// Its orphans were said.
    said: bool,
    orphans: Vec<Orphan>,
    crashes: HashMap<Dedup, Vec<Crash>>,
    /// Their outcome is durable, their crashes are not forgotten yet.
    decided: Vec<Dedup>,
    written: Written,
}

/// Our record of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Nothing,
    /// It is there, or on its way.
    Announced,
    /// Something of it was handed to a handler.
    Handed,
}

impl LaneStarts {
    fn is_watched(&self) -> bool {
        !(self.orphans.is_empty() && self.crashes.is_empty() && self.decided.is_empty())
    }
}

impl Starts {
    pub(super) fn new(options: &ConsumerOptions, settle: SettleKind) -> Self {
        let by = || Starter { owner: Owner::random(), node: options.node.as_str().into() };
        Self {
            by: (options.policy.retry.max_crashes > 0).then(by),
            of_lanes: settle == SettleKind::Cumulative,
            lanes: RefCell::default(),
            taking: Mutex::default(),
            wrote: Cell::new(false),
            owes: Cell::new(false),
        }
    }

    /// Others may have found what we had started, and counted us dead.
    pub(super) fn owe(&self) {
        self.owes.set(self.wrote.get());
    }

    /// Who takes up parked messages; `None`: no start records.
    pub(super) fn worker(&self) -> Option<&Starter> {
        self.by.as_ref().inspect(|_| self.wrote.set(true))
    }

    pub(super) fn assign(&self, named: &NamedLane) {
        if self.by.is_none() || !self.of_lanes {
            return;
        }
        let kept = LaneStarts {
            name: Arc::clone(&named.name),
            taken_over: false,
            said: false,
            orphans: vec![],
            crashes: HashMap::new(),
            decided: vec![],
            written: Written::Nothing,
        };
        self.lanes.borrow_mut().insert(named.lane, kept);
    }

    /// The lane is not ours any more; whether a record of it may be there.
    pub(super) fn leave(&self, lane: Lane) -> bool {
        self.lanes.borrow_mut().remove(&lane).is_some_and(|kept| kept.written != Written::Nothing)
    }

    /// Whether a record of the lane may be there.
    pub(super) fn is_open(&self, lane: Lane) -> bool {
        self.of(lane, |kept| kept.written != Written::Nothing).unwrap_or(false)
    }

    /// Whether messages of the lane may have killed a process.
    pub(super) fn watches(&self, lane: Lane) -> bool {
        self.of(lane, |kept| kept.is_watched()).unwrap_or(false)
    }

    fn of<R>(&self, lane: Lane, ask: impl FnOnce(&mut LaneStarts) -> R) -> Option<R> {
        self.lanes.borrow_mut().get_mut(&lane).map(ask)
    }

    /// The record to write in front of the chunk's transaction; none where no handler can run for it.
    pub(super) fn of_chunk(&self, chunk: &[Item]) -> Option<Start> {
        let by = self.by.as_ref()?;
        let lane = chunk.first()?.lane;
        let runs = |item: &Item| item.id().is_some() && item.end().is_none();
        if !chunk.iter().any(runs) {
            return None;
        }
        let name = self.of(lane, |kept| {
            kept.written = Written::Announced;
            Arc::clone(&kept.name)
        })?;
        self.wrote.set(true);
        Some(Start {
            by: by.clone(),
            lane: name,
            first: chunk.iter().map(Item::position).min()?,
            last: chunk.iter().map(Item::position).max()?,
            count: u32::try_from(chunk.len()).unwrap_or(u32::MAX),
            alone: if let [only] = chunk { only.id().cloned() } else { None },
        })
    }

    /// Something of the lane's chunk is handed to a handler.
    pub(super) fn handed(&self, lane: Lane) {
        self.of(lane, |kept| kept.written = Written::Handed);
    }

    /// The chunk is durable: crashes of what it decided count no more.
    pub(super) fn note_outcomes(&self, chunk: &[Item], plans: &[Plan]) {
        let Some(lane) = chunk.first().map(|item| item.lane) else { return };
        self.of(lane, |kept| {
            if kept.crashes.is_empty() {
                return;
            }
            for (item, plan) in chunk.iter().zip(plans) {
                let Some(dedup) = item.id().map(DeadLetter::dedup_of_id) else { continue };
                // The crashes of a parked message stay with it.
                let is_parked = matches!(plan, Plan::Park | Plan::Behind)
                    || matches!(plan, Plan::Skip { state: InboxState::Parked, .. });
                if kept.crashes.remove(&dedup).is_some() && !is_parked {
                    kept.decided.push(dedup);
                }
            }
        });
    }

    /// Puts the crashes of what becomes a dead letter into its history, in front of its attempts.
    pub(super) fn add_crashes(
        &self,
        lane: Lane,
        letters: &[DeadLetter],
        attempts: &mut Vec<(Dedup, FailedAttempt)>,
    ) {
        self.of(lane, |kept| {
            if kept.crashes.is_empty() {
                return;
            }
            let dedups = letters.iter().map(DeadLetter::dedup);
            let crashes: Vec<_> = dedups
                .filter_map(|dedup| kept.crashes.get(&dedup).map(|crashes| (dedup, crashes)))
                .flat_map(|(dedup, crashes)| history(crashes).map(move |crash| (dedup, crash)))
                .collect();
            attempts.splice(0..0, crashes);
        });
    }

    /// The lanes that nobody has looked at, unless this one was.
    fn new_lanes(&self, lane: Lane) -> Vec<(Lane, Arc<str>)> {
        let lanes = self.lanes.borrow();
        if lanes.get(&lane).is_none_or(|kept| kept.taken_over) {
            return vec![];
        }
        let new = lanes.iter().filter(|(_, kept)| !kept.taken_over);
        new.map(|(lane, kept)| (*lane, Arc::clone(&kept.name))).collect()
    }

    fn taken(&self, lanes: &[(Lane, Arc<str>)], taken: TakenOver) {
        let mut crashes: HashMap<Dedup, Vec<Crash>> = HashMap::new();
        for crash in taken.crashes {
            crashes.entry(crash.dedup).or_default().push(crash);
        }
        for (lane, name) in lanes {
            self.of(*lane, |kept| {
                kept.taken_over = true;
                kept.orphans =
                    taken.orphans.iter().filter(|orphan| orphan.start.lane == *name).cloned().collect();
                let alone = kept.orphans.iter().filter_map(|orphan| orphan.start.alone.as_ref());
                kept.crashes = alone
                    .map(DeadLetter::dedup_of_id)
                    .filter_map(|dedup| crashes.get(&dedup).map(|of_it| (dedup, of_it.clone())))
                    .collect();
            });
        }
    }

    /// Says once what the lane's former owners died with; how many of them.
    fn say(&self, lane: Lane, first: i64, max_crashes: u32) -> u64 {
        let say = |kept: &mut LaneStarts| {
            if std::mem::replace(&mut kept.said, true) {
                return 0;
            }
            // What lies in front of the first message was committed: nobody died with it.
            let met: Vec<&Orphan> = kept.orphans.iter().filter(|orphan| orphan.start.last >= first).collect();
            met.iter().for_each(|orphan| say_orphan(orphan, &kept.crashes, max_crashes));
            met.len() as u64
        };
        self.of(lane, say).unwrap_or_default()
    }

    /// Marks what runs alone, and what does not run any more.
    fn mark(&self, lane: Lane, batches: &mut VecDeque<Vec<Item>>, policy: &Policy) {
        self.of(lane, |kept| {
            for item in batches.iter_mut().flatten() {
                let position = item.position();
                let is_in = |orphan: &Orphan| (orphan.start.first..=orphan.start.last).contains(&position);
                let id = item.id().filter(|_| !kept.crashes.is_empty());
                let crashes = id.and_then(|id| kept.crashes.get(&DeadLetter::dedup_of_id(id)));
                item.suspected = crashes.is_some() || kept.orphans.iter().any(is_in);
                if item.end().is_none()
                    && let Some(failure) = crashes.and_then(|crashes| given_up(crashes, policy))
                {
                    item.trouble.get_or_insert_default().end = Some(End::Dead(failure));
                }
            }
        });
    }

    /// What may be forgotten where everything of the lane below this position is decided.
    fn passed(&self, lane: Lane, below: i64) -> (Vec<(Arc<str>, Owner)>, Vec<Dedup>) {
        self.of(lane, |kept| {
            let passed = kept.orphans.iter().filter(|orphan| orphan.start.last < below);
            let passed = passed.map(|orphan| (Arc::clone(&orphan.start.lane), orphan.start.by.owner));
            (passed.collect(), kept.decided.clone())
        })
        .unwrap_or_default()
    }

    fn forgotten(&self, lane: Lane, below: i64, decided: &[Dedup]) {
        self.of(lane, |kept| {
            kept.decided.retain(|dedup| !decided.contains(dedup));
            kept.orphans.retain(|orphan| orphan.start.last >= below);
            let alone = kept.orphans.iter().filter_map(|orphan| orphan.start.alone.as_ref());
            let alone: Vec<Dedup> = alone.map(DeadLetter::dedup_of_id).collect();
            // One whose orphans are passed comes no more.
            kept.crashes.retain(|dedup, _| alone.contains(dedup));
        });
    }
}

impl<S: StartStore> Shared<S> {
    /// Before a turn of a lane: reads once what former owners left behind, and marks what it meets of that.
    /// False: the turn is to end.
    pub(super) async fn look_back(
        &self,
        lane: Lane,
        batches: &mut VecDeque<Vec<Item>>,
    ) -> Result<bool, StoreError> {
        if !self.take_over(lane).await? {
            return Ok(false);
        }
        if self.starts.watches(lane)
            && let Some(first) = batches.iter().flatten().map(Item::position).min()
        {
            let policy = &self.options.policy;
            let crashes_found = self.starts.say(lane, first, policy.retry.max_crashes);
            self.live.add(&Counts { crashes_found, ..Counts::default() });
            self.starts.mark(lane, batches, policy);
        }
        Ok(true)
    }

    async fn take_over(&self, lane: Lane) -> Result<bool, StoreError> {
        let Some(by) = &self.starts.by else { return Ok(true) };
        if self.starts.new_lanes(lane).is_empty() {
            return Ok(true);
        }
        let _taking = tokio::select! {
            biased;
            taking = self.starts.taking.lock() => taking,
            () = self.left(lane) => return Ok(false),
        };
        let mut faults = 0;
        loop {
            let lanes = self.starts.new_lanes(lane);
            if lanes.is_empty() {
                return Ok(true);
            }
            let names: Vec<Arc<str>> = lanes.iter().map(|(_, name)| Arc::clone(name)).collect();
            let taken = tokio::select! {
                biased;
                taken = self.store.take_over(&self.consumer, by, &names) => taken,
                () = self.left(lane) => return Ok(false),
            };
            let error = match taken {
                Ok(taken) => {
                    self.recovered();
                    self.starts.taken(&lanes, taken);
                    return Ok(true);
                }
                Err(error) => error,
            };
            let fatal = self.options.fail_fast && error.kind == StoreErrorKind::Unavailable;
            let error = match after_store_error(error) {
                Attempt::Again(error) if !fatal => error,
                Attempt::Again(error) | Attempt::Fatal(error) => return Err(error),
                _ => return Ok(false),
            };
            self.say_outage(&error, &|| "start records".to_owned());
            let wait = backoff_for(error.kind).wait(faults, random());
            faults = faults.saturating_add(1);
            if !self.sleep_for_store(lane, wait, error.kind, faults <= CONFLICTS_THAT_PASS).await {
                return Ok(false);
            }
        }
    }

    /// A chunk is durable; forgets what its lane is past. `queue` holds what is left of its batch.
    pub(super) async fn forget_passed(&self, lane: Lane, chunk: &[Item], queue: &VecDeque<Item>) {
        if !self.starts.watches(lane) {
            return;
        }
        let left = queue.iter().map(Item::position).min();
        let below = left.or_else(|| chunk.iter().map(|item| item.position().saturating_add(1)).max());
        if let Some(below) = below {
            self.forget_below(lane, below).await;
        }
    }

    async fn forget_below(&self, lane: Lane, below: i64) {
        let (passed, decided) = self.starts.passed(lane, below);
        if passed.is_empty() && decided.is_empty() {
            return;
        }
        let forget = self.store.forget(&self.consumer, &passed, &decided);
        if aside("what a lane is past is not forgotten", forget).await {
            self.starts.forgotten(lane, below, &decided);
        }
    }

    /// A lane's turn is over: no record stays of what was not handed over, nor where the lane is left.
    pub(super) async fn end_turn(&self, lane: Lane, end: &BatchEnd) {
        let written = self.starts.of(lane, |kept| kept.written);
        let stays = matches!(end, BatchEnd::Done) && self.is_told(lane) == Told::GoOn;
        // At a stop they end all together.
        let ends = match written {
            None | Some(Written::Nothing) => false,
            Some(Written::Announced) => true,
            Some(Written::Handed) => !stays,
        };
        if ends && !*self.stopping.borrow() {
            self.end_start(lane).await;
        }
        self.withdraw_owed().await;
    }

    /// Withdraws where others may have counted us dead; at a stop that is done at the end.
    pub(super) async fn withdraw_owed(&self) {
        if self.starts.owes.get() && !*self.stopping.borrow() {
            self.withdraw().await;
        }
    }

    /// Ends our record of a lane, where one may be there.
    pub(super) async fn end_start(&self, lane: Lane) {
        if !self.starts.is_open(lane) {
            return;
        }
        let (Some(by), Some(name)) = (&self.starts.by, self.starts.of(lane, |kept| Arc::clone(&kept.name)))
        else {
            return;
        };
        let lanes = [name];
        if aside("a start record stays", self.store.end_starts(&self.consumer, &by.owner, Some(&lanes))).await
        {
            self.starts.of(lane, |kept| kept.written = Written::Nothing);
        }
    }

    /// Waits; through a long wait without a record.
    pub(super) async fn rest(&self, lane: Lane, wait: Duration) {
        if wait >= LONG_WAIT {
            tokio::join!(sleep(wait), self.end_start(lane));
        } else {
            sleep(wait).await;
        }
    }

    /// We live: takes back our records, and what others counted while we could not hold what we had started.
    pub(super) async fn withdraw(&self) {
        let Some(by) = self.starts.by.as_ref().filter(|_| self.starts.wrote.get()) else { return };
        self.starts.owes.set(true);
        let withdraw = self.store.withdraw(&self.consumer, &by.owner);
        if aside("crashes may be counted that were none", withdraw).await {
            self.starts.owes.set(false);
        }
    }

    /// The end of the run: none of our records stays.
    pub(super) async fn end_starts(&self) {
        match &self.starts.by {
            Some(_) if self.starts.owes.get() => self.withdraw().await,
            Some(by) if self.starts.wrote.get() => {
                let end = self.store.end_starts(&self.consumer, &by.owner, None);
                aside("start records stay", end).await;
            }
            _ => {}
        }
    }
}

impl<S: StartStore> Engine<S> {
    /// A lane is taken away of which nothing runs: whoever gets it must not find our record. False: there is none.
    pub(super) fn end_then_drain(&mut self, lane: Lane) -> bool {
        if !self.shared.starts.is_open(lane) {
            return false;
        }
        if let Some(state) = self.intake.lanes.get_mut(&lane) {
            state.revoking = true;
        }
        let shared = Rc::clone(&self.shared);
        let end = async move {
            shared.end_start(lane).await;
            TurnEnd::Ended(Some(lane))
        };
        self.running.push(end.boxed_local());
        true
    }

    /// Lanes were lost with records of ours in them: whoever has them may have counted us dead.
    pub(super) fn withdraw(&mut self) {
        let shared = Rc::clone(&self.shared);
        let withdraw = async move {
            shared.withdraw().await;
            TurnEnd::Ended(None)
        };
        self.running.push(withdraw.boxed_local());
    }

    /// What was pushed to run beside the turns has ended.
    pub(super) fn on_ended(&mut self, lane: Option<Lane>) {
        let Some(lane) = lane else { return };
        // It may have been lost meanwhile.
        if self.intake.lanes.contains_key(&lane) {
            self.forget(lane);
            self.command(Command::Drained(vec![lane]));
        }
    }
}

/// Nothing waits for it for long, and nothing hangs on it.
async fn aside(fails: &'static str, doing: impl Future<Output = Result<(), StoreError>>) -> bool {
    let error = match timeout(ASIDE_MAX, doing).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error,
        Err(_) => StoreError::new(StoreErrorKind::Unavailable, format!("no answer within {ASIDE_MAX:?}")),
    };
    tracing::debug!(target: "handstamp", %error, "{fails}");
    false
}

/// Why no handler runs for a message any more; `None`: it runs, alone.
pub(super) fn given_up(crashes: &[Crash], policy: &Policy) -> Option<Failure> {
    let count = u32::try_from(crashes.len()).unwrap_or(u32::MAX);
    let outcome = Outcome::Crashed { crashes: count };
    let (place, waits) = (Place::Delivered, true);
    let case = Case { outcome, attempts: 0, code: None, place, waits, random: 0 };
    if decide(&case, policy) != Verdict::DeadLetter {
        return None;
    }
    let each: Vec<String> =
        crashes.iter().map(|crash| format!("{} on {}", crash.at, crash.by.node)).collect();
    let reason = format!(
        "the process died {count} times while it handled this message alone, which it had begun at {}",
        each.join(", ")
    );
    Some(Failure { class: FailureClass::Crashed, code: None, reason: Reason::new(&reason) })
}

/// Crashes as entries of a message's history.
pub(super) fn history(crashes: &[Crash]) -> impl Iterator<Item = FailedAttempt> {
    crashes.iter().map(|crash| FailedAttempt {
        at: crash.at,
        node: crash.by.node.to_string(),
        class: FailureClass::Crashed,
        code: None,
        reason: Reason::new("the process died while it handled this message alone"),
    })
}

fn say_orphan(orphan: &Orphan, crashes: &HashMap<Dedup, Vec<Crash>>, max_crashes: u32) {
    let Orphan { start, at } = orphan;
    let Start { by, lane, first, last, count, alone } = start;
    let (node, started) = (&by.node, at);
    match alone {
        Some(id) => {
            let crashes = crashes.get(&DeadLetter::dedup_of_id(id)).map_or(0, Vec::len);
            tracing::warn!(
                target: "handstamp",
                %lane, first, last, count, %node, %started, id = %id, crashes, max_crashes,
                "a process died while it handled one message alone: a crash of that message"
            );
        }
        None => tracing::warn!(
            target: "handstamp",
            %lane, first, last, count, %node, %started,
            "a process died while it handled messages together: nobody is charged, they run one by one"
        ),
    }
}
