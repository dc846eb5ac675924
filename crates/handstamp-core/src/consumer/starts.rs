//! Start records in the engine: what is said before messages are handed to a handler, and what is done about
//! messages that processes died with.
//!
//! Authoritative: the store's rows. Here is only what was read of them when a lane was taken over, and whether a
//! record of our own may be there. Losing all of it costs nothing: whoever gets the lane reads it again.
//!
//! ```text
//! a lane:
//!   assigned ─► taken over: all new lanes in one call, before the first turn of any
//!      └ orphans ─► watched: what is in a span or has crashes runs alone, with every slot, nothing is opened ahead
//!                     ├ crashes ≥ max_crashes ─► dead letter, without a run
//!                     ├ at its end            ─► that commit forgets its crashes; parked: they stay with it
//!                     └ the lane is past them ─► forgotten, as any other lane again
//! our record of it:
//!   none ─ start, begin, claim ─► announced ─ handed over ─► handed ─ committed ─► left as it is: the inbox knows
//!     ▲      ▲                        │                        │       what it names; the next one replaces it
//!     │      └────────────────────────┴────────────────────────┘
//!     └─ ended: nothing was handed over (duplicates), given back, taken away, a long wait, the end of the run
//!   lost, or not ended ─► owed, until it is withdrawn: that record, and the crashes we were counted for
//! ```
//!
//! With several slots a message of its own transaction has company: it is not named alone in its record, and whoever
//! finds that runs it with every slot.

use super::item::{End, Failure, Item};
use super::keep::Plan;
use super::options::ConsumerOptions;
use super::slot::Slot;
use crate::decide::{Case, Outcome, Place, Policy, Verdict, decide};
use crate::delivery::Lane;
use crate::parked::{Dedup, FailedAttempt};
use crate::source::{NamedLane, SettleKind};
use crate::start::{Company, Crash, Orphan, Owner, Start, Starter, TakenOver};
use crate::store::{DeadLetter, FailureClass, InboxState, Reason};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Mutex;

/// What is kept of start records while a consumer runs.
pub(crate) struct Starts {
    /// Who we are; `None`: no start records.
    pub(super) by: Option<Starter>,
    /// A lane has one reader at a time, so that what another left behind is an orphan.
    of_lanes: bool,
    lanes: RefCell<HashMap<Lane, LaneStarts>>,
    /// One takes over at a time.
    pub(super) taking: Mutex<()>,
    /// A record of ours may be there.
    pub(super) wrote: Cell<bool>,
    /// Something else of this process may run beside a turn.
    pub(super) has_company: bool,
    /// Others may have counted us dead with parked messages.
    pub(super) owes_parked: Cell<bool>,
    /// Others may have counted us dead: in these lanes, or in none that is lost still.
    pub(super) owes_lanes: RefCell<Option<BTreeSet<Arc<str>>>>,
}

/// What is kept of one lane.
pub(super) struct LaneStarts {
    pub(super) name: Arc<str>,
    taken_over: bool,
    /// Its orphans were said.
    said: bool,
    orphans: Vec<Orphan>,
    crashes: HashMap<Dedup, Vec<Crash>>,
    pub(super) written: Written,
}

/// Our record of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Nothing,
    /// It is there, or on its way.
    Announced,
    /// Something of it was handed to a handler.
    Handed,
}

impl LaneStarts {
    fn is_watched(&self) -> bool {
        !(self.orphans.is_empty() && self.crashes.is_empty())
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
            has_company: options.concurrency > 1,
            owes_parked: Cell::new(false),
            owes_lanes: RefCell::default(),
        }
    }

    /// Others may have found parked messages that we had started, and counted us dead.
    pub(super) fn owe(&self) {
        self.owes_parked.set(self.wrote.get());
    }

    /// What a turn with this slot has beside it.
    pub(super) fn company(&self, slot: &Slot) -> Company {
        if self.has_company && !slot.is_whole() { Company::Lanes } else { Company::None }
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
            written: Written::Nothing,
        };
        if let Some(owed) = &mut *self.owes_lanes.borrow_mut() {
            // What is started there from now on is not lost.
            owed.remove(&named.name);
        }
        self.lanes.borrow_mut().insert(named.lane, kept);
    }

    /// The lane is not ours any more; whether a record of it may be there, which is owed then.
    pub(super) fn leave(&self, lane: Lane) -> bool {
        let Some(kept) = self.lanes.borrow_mut().remove(&lane) else { return false };
        let stays = kept.written != Written::Nothing;
        if stays {
            self.owes_lanes.borrow_mut().get_or_insert_default().insert(kept.name);
        }
        stays
    }

    /// A lane was lost while it ran: others may have counted us dead there, whatever is left of its record.
    pub(super) fn owe_lanes(&self) {
        if self.wrote.get() {
            self.owes_lanes.borrow_mut().get_or_insert_default();
        }
    }

    /// Whether a record of the lane may be there.
    pub(super) fn is_open(&self, lane: Lane) -> bool {
        self.of(lane, |kept| kept.written != Written::Nothing).unwrap_or(false)
    }

    /// Whether messages of the lane may have killed a process.
    pub(super) fn watches(&self, lane: Lane) -> bool {
        self.of(lane, |kept| kept.is_watched()).unwrap_or(false)
    }

    pub(super) fn of<R>(&self, lane: Lane, ask: impl FnOnce(&mut LaneStarts) -> R) -> Option<R> {
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
            // What is suspected has every slot.
            alone: match chunk {
                [only] if only.suspected || !self.has_company => only.id().cloned(),
                _ => None,
            },
        })
    }

    /// Something of the lane's chunk is handed to a handler.
    pub(super) fn handed(&self, lane: Lane) {
        self.of(lane, |kept| kept.written = Written::Handed);
    }

    /// Those of the chunk with crashes that come to their end with it; the crashes of what is parked stay with it.
    pub(super) fn decided(&self, chunk: &[Item], plans: &[Plan]) -> Vec<Dedup> {
        let Some(lane) = chunk.first().map(|item| item.lane) else { return vec![] };
        let decided = |kept: &mut LaneStarts| {
            if kept.crashes.is_empty() {
                return vec![];
            }
            let stays = |plan: &Plan| {
                let known = matches!(plan, Plan::Skip { state: InboxState::Parked, .. });
                known || matches!(plan, Plan::Park | Plan::Behind | Plan::RecordReused | Plan::CountReused)
            };
            let ends = chunk.iter().zip(plans).filter(|(_, plan)| !stays(plan));
            let dedups = ends.filter_map(|(item, _)| item.id().map(DeadLetter::dedup_of_id));
            dedups.filter(|dedup| kept.crashes.contains_key(dedup)).collect()
        };
        self.of(lane, decided).unwrap_or_default()
    }

    /// The chunk is durable: nothing more is to be done for its crashes.
    pub(super) fn note_outcomes(&self, chunk: &[Item]) {
        let Some(lane) = chunk.first().map(|item| item.lane) else { return };
        self.of(lane, |kept| {
            if !kept.crashes.is_empty() {
                let dedups = chunk.iter().filter_map(|item| item.id().map(DeadLetter::dedup_of_id));
                dedups.for_each(|dedup| drop(kept.crashes.remove(&dedup)));
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
    pub(super) fn new_lanes(&self, lane: Lane) -> Vec<(Lane, Arc<str>)> {
        let lanes = self.lanes.borrow();
        if lanes.get(&lane).is_none_or(|kept| kept.taken_over) {
            return vec![];
        }
        let new = lanes.iter().filter(|(_, kept)| !kept.taken_over);
        new.map(|(lane, kept)| (*lane, Arc::clone(&kept.name))).collect()
    }

    pub(super) fn taken(&self, lanes: &[(Lane, Arc<str>)], taken: TakenOver) {
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
    pub(super) fn say(&self, lane: Lane, first: i64, max_crashes: u32) -> u64 {
        let say = |kept: &mut LaneStarts| {
            if std::mem::replace(&mut kept.said, true) {
                return 0;
            }
            // What lies in front of the first message was committed: nobody died with it.
            let met: Vec<&Orphan> = kept.orphans.iter().filter(|orphan| orphan.start.last >= first).collect();
            let newest = met.iter().map(|orphan| orphan.at).max();
            for orphan in &met {
                say_orphan(orphan, &kept.crashes, newest == Some(orphan.at), max_crashes);
            }
            met.len() as u64
        };
        self.of(lane, say).unwrap_or_default()
    }

    /// Marks what runs alone, and what does not run any more.
    pub(super) fn mark(&self, lane: Lane, batches: &mut VecDeque<Vec<Item>>, policy: &Policy) {
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
    pub(super) fn passed(&self, lane: Lane, below: i64) -> Vec<(Arc<str>, Owner)> {
        self.of(lane, |kept| {
            let passed = kept.orphans.iter().filter(|orphan| orphan.start.last < below);
            passed.map(|orphan| (Arc::clone(&orphan.start.lane), orphan.start.by.owner)).collect()
        })
        .unwrap_or_default()
    }

    pub(super) fn forgotten(&self, lane: Lane, below: i64) {
        self.of(lane, |kept| {
            kept.orphans.retain(|orphan| orphan.start.last >= below);
            let alone = kept.orphans.iter().filter_map(|orphan| orphan.start.alone.as_ref());
            let alone: Vec<Dedup> = alone.map(DeadLetter::dedup_of_id).collect();
            // One whose orphans are passed comes no more.
            kept.crashes.retain(|dedup, _| alone.contains(dedup));
        });
    }
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

/// A death is warned of once: where it is counted, or as the newest of those that are not.
fn say_orphan(orphan: &Orphan, crashes: &HashMap<Dedup, Vec<Crash>>, newest: bool, max_crashes: u32) {
    let Orphan { start, at } = orphan;
    let Start { by, lane, first, last, count, alone } = start;
    let (node, started) = (&by.node, at);
    let of_it = alone.as_ref().and_then(|id| crashes.get(&DeadLetter::dedup_of_id(id)));
    let is_new = of_it.into_iter().flatten().any(|crash| crash.by.owner == by.owner && crash.is_new);
    macro_rules! say {
        ($level:ident, $($said:tt)*) => {
            tracing::$level!(target: "handstamp", %lane, first, last, count, %node, %started, $($said)*)
        };
    }
    let crashes = of_it.map_or(0, Vec::len);
    match alone {
        Some(id) if is_new => {
            say!(warn, id = %id, crashes, max_crashes, "a process died while it handled one message alone: a crash of that message");
        }
        Some(id) => {
            say!(info, id = %id, crashes, max_crashes, "counted before: a process died while it handled this message alone");
        }
        None if newest => {
            say!(
                warn,
                "a process died while it handled messages together: nobody is charged, they run one by one"
            );
        }
        None => {
            say!(
                info,
                "before that a process died while it handled messages together: they still run one by one"
            );
        }
    }
}
