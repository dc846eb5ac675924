//! The breaker at work: every chunk with something to handle asks it first, and waits aside while it is open.
//!
//! ```text
//! closed ───────────────► goes on
//! open, probing ─► gives its slot, stands in the queue ─► its turn, and the wait is over ─► a probe: one message
//!                     │                                └► closed meanwhile ─► goes on
//!                     └ stop, revoke ─► what it has is given back, nothing charged
//! ```
//!
//! Lanes stand in one queue and probe in turn, so that one in which only bad messages lie does not keep the others
//! waiting. The retry worker probes with one row, and only while no lane stands there; its failures never open. What
//! is decided already (parked, dead) asks no handler and passes. A message whose failure opened the breaker, or that
//! fails while it is open, waits in place for its probe; one that is parked stays as it is.

use super::attempt::{Attempt, FailedRun, Opened};
use super::batch::{Shared, decided};
use super::item::Item;
use super::slot::Slot;
use crate::breaker::{Breaker, BreakerPolicy, BreakerState, May, Run};
use crate::message_id::MessageId;
use crate::start::StartStore;
use crate::telemetry::{Counts, LiveCounts};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

/// One consumer's breaker, shared by its lanes and its retry worker.
pub(crate) struct Gate {
    breaker: RefCell<Breaker>,
    state: watch::Sender<BreakerState>,
    /// The right to be the next probe; whoever wants it stands in its queue.
    probers: Semaphore,
    live: Arc<LiveCounts>,
    began: Instant,
    opened: Cell<Option<Instant>>,
}

/// The permission to handle messages: as many as the chunk holds, or one as a probe, whose outcome closes or opens.
pub(super) struct Pass<'a> {
    probe: Option<Probe<'a>>,
}

/// A probe under way; dropped before its outcome is told it has told nothing.
struct Probe<'a> {
    gate: &'a Gate,
    _turn: SemaphorePermit<'a>,
}

impl<'a> Pass<'a> {
    pub(super) const FREE: Self = Self { probe: None };

    fn probe(gate: &'a Gate, turn: SemaphorePermit<'a>) -> Self {
        Self { probe: Some(Probe { gate, _turn: turn }) }
    }

    pub(super) fn is_probe(&self) -> bool {
        self.probe.is_some()
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.gate.change(Breaker::probe_left);
    }
}

impl Gate {
    pub(crate) fn new(policy: BreakerPolicy, live: Arc<LiveCounts>) -> Self {
        Self {
            breaker: RefCell::new(Breaker::new(policy)),
            state: watch::channel(BreakerState::Closed).0,
            probers: Semaphore::new(1),
            live,
            began: Instant::now(),
            opened: Cell::new(None),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.state.borrow() == BreakerState::Closed
    }

    /// When the retry worker may begin; `None`: not before somebody else has come further.
    pub(super) fn admits_worker_at(&self, now: Instant) -> Option<Instant> {
        if !self.is_closed() && self.probers.available_permits() == 0 {
            return None;
        }
        self.breaker.borrow().opens_in(self.began.elapsed()).map(|wait| now + wait)
    }

    /// Passes, or probes where nobody stands in the queue; `None`: not now.
    pub(super) fn enter_worker(&self) -> Option<Pass<'_>> {
        if self.is_closed() {
            return Some(Pass::FREE);
        }
        let turn = self.probers.try_acquire().ok()?;
        match self.change(Breaker::may) {
            May::Begin => Some(Pass::FREE),
            May::Probe => Some(Pass::probe(self, turn)),
            May::Wait(_) | May::Hold => None,
        }
    }

    /// Waits until something may begin.
    async fn wait(&self) -> Pass<'_> {
        let mut state = self.state.subscribe();
        let closed = state.wait_for(|state| *state == BreakerState::Closed);
        let probe = async {
            // Never closed.
            let Ok(turn) = self.probers.acquire().await else { return std::future::pending().await };
            loop {
                match self.change(Breaker::may) {
                    May::Begin => return Pass::FREE,
                    May::Probe => return Pass::probe(self, turn),
                    May::Wait(wait) => tokio::time::sleep(wait).await,
                    // Who probes has the turn.
                    May::Hold => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            biased;
            _ = closed => Pass::FREE,
            pass = probe => pass,
        }
    }

    /// Tells what came of a chunk. True: what failed waits in place, whatever is decided of it otherwise.
    pub(super) fn hear<'m>(
        &self,
        pass: Pass<'_>,
        tried: Run,
        attempt: &Attempt,
        id: impl Fn(usize) -> Option<&'m MessageId>,
        shown: impl Fn(usize) -> String,
    ) -> bool {
        let is_probe = pass.is_probe();
        match attempt {
            Attempt::Committed { handled } if *handled > 0 => {
                let handled = u32::try_from(*handled).unwrap_or(u32::MAX);
                self.answered(is_probe, handled);
            }
            Attempt::Failed(run) => return self.hear_failure(pass, tried, run, id, shown),
            _ => {}
        }
        false
    }

    /// The same of a run that failed.
    pub(super) fn hear_failure<'m>(
        &self,
        pass: Pass<'_>,
        tried: Run,
        run: &FailedRun,
        id: impl Fn(usize) -> Option<&'m MessageId>,
        shown: impl Fn(usize) -> String,
    ) -> bool {
        let is_probe = pass.is_probe();
        if !run.may_pass {
            self.answered(is_probe, u32::from(run.culprit.is_some()));
            return false;
        }
        let at = run.culprit.unwrap_or(run.first);
        let message = id(at).map_or(0, hash);
        if run.culprit.is_some_and(|culprit| culprit > run.first) {
            // Those in front of it worked; they are counted once they are durable.
            self.answered(false, 0);
        }
        let class = run.failure.class;
        let opened = match (is_probe, run.culprit) {
            (true, _) => {
                let wait = self.change(Breaker::probe_failed);
                tracing::info!(
                    target: "handstamp",
                    class = class.as_str(),
                    reason = run.failure.reason.as_str(),
                    next_probe_s = wait.as_secs_f64(),
                    "a probe failed: {}",
                    shown(at)
                );
                None
            }
            (false, Some(_)) => self.change(|breaker, now| breaker.failed(message, class, tried, now)),
            (false, None) => self.change(|breaker, now| breaker.suspected(message, class, tried, now)),
        };
        if let Some(wait) = opened {
            self.opened.set(Some(Instant::now()));
            self.live.add(&Counts { breaker_opened: 1, ..Counts::default() });
            tracing::warn!(
                target: "handstamp",
                class = class.as_str(),
                example = shown(at),
                reason = run.failure.reason.as_str(),
                next_probe_s = wait.as_secs_f64(),
                "so many different messages fail alike that what they need seems to be down: paused, one \
                 at a time is tried"
            );
        }
        !is_probe && !self.is_closed()
    }

    fn answered(&self, is_probe: bool, messages: u32) {
        if !is_probe {
            return self.change(|breaker, now| breaker.answered(messages, now));
        }
        self.change(Breaker::probe_answered);
        let open_s = self.opened.take().map(|at| at.elapsed().as_secs_f64());
        tracing::info!(target: "handstamp", open_s, "a probe ended well: going on");
    }

    /// Tells the breaker something, and everybody where it stands then.
    fn change<T>(&self, tell: impl FnOnce(&mut Breaker, Duration) -> T) -> T {
        let (answer, state) = {
            let mut breaker = self.breaker.borrow_mut();
            (tell(&mut breaker, self.began.elapsed()), breaker.state())
        };
        if *self.state.borrow() != state {
            self.live.set_breaker(state);
            self.state.send_replace(state);
        }
        answer
    }
}

impl<S: StartStore> Shared<S> {
    /// Asks whether a chunk from the front of the queue may begin, and waits aside until it may; answers how many
    /// messages it may have. With `leaves` only what is decided is to go on. `None`, and without a slot: no more is to begin.
    pub(super) async fn enter(
        &self,
        queue: &VecDeque<Item>,
        limit: usize,
        leaves: bool,
        opened: &mut Option<Opened<S>>,
        slot: &mut Slot,
    ) -> Option<(Pass<'_>, usize)> {
        if self.gate.is_closed() && !leaves {
            return Some((Pass::FREE, limit));
        }
        if let Some((tx, _)) = opened.take() {
            self.roll_back(tx).await;
        }
        // What is decided already asks no handler.
        let decided = decided(queue);
        if decided > 0 || leaves {
            return Some((Pass::FREE, decided.max(1)));
        }
        let lane = queue.front()?.lane;
        slot.give();
        let entered = async {
            // Who is killed while it waits here handles nothing.
            self.end_start(lane).await;
            loop {
                let pass = self.gate.wait().await;
                slot.retake().await;
                if pass.is_probe() || self.gate.is_closed() {
                    return pass;
                }
                slot.give();
            }
        };
        tokio::select! {
            biased;
            () = self.left(lane) => None,
            pass = entered => {
                let most = if pass.is_probe() { 1 } else { limit };
                Some((pass, most))
            }
        }
    }
}

fn hash(id: &MessageId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
