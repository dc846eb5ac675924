//! What turns do about start records: look back at what former owners left, end our own, take back what was lost.
//!
//! Authoritative: the store's rows; what is kept of them lies in [`Starts`](super::starts::Starts). Ending, forgetting
//! and withdrawing are done aside: within a second, and what fails is said at debug. What was not forgotten is left to
//! whoever comes next; what is owed is tried again, while we run.

use super::attempt::{Attempt, after_store_error};
use super::batch::{BatchEnd, CONFLICTS_THAT_PASS, Shared, Told, random};
use super::engine::{Engine, TurnEnd};
use super::item::{Item, shown};
use super::outage::backoff_for;
use super::resume::RETRIES;
use super::slot::Slot;
use super::starts::Written;
use crate::delivery::Lane;
use crate::parked::{Dedup, ParkedMessage, Taken};
use crate::source::Command;
use crate::start::{Company, Lost, StartStore, Starter};
use crate::store::{StoreError, StoreErrorKind};
use crate::telemetry::Counts;
use futures_util::future::FutureExt;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A wait of so long ends the lane's record meanwhile: who is killed then handles nothing.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// What is done aside has so long, and is tried again so soon.
const ASIDE_MAX: Duration = Duration::from_secs(1);
const ASIDE_AGAIN: Duration = Duration::from_millis(50);

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
        let passed = self.starts.passed(lane, below);
        if !passed.is_empty() {
            let forget = async || self.store.forget(&self.consumer, &passed).await;
            if aside("what a lane is past is not forgotten", forget).await {
                self.starts.forgotten(lane, below);
            }
        }
    }

    /// Says of which parked messages a process died.
    fn say_crashes(&self, rows: &[ParkedMessage]) {
        let max_crashes = self.options.policy.retry.max_crashes;
        for row in rows {
            for crash in row.crashes.iter().filter(|crash| crash.is_new) {
                self.live.add(&Counts { crashes_found: 1, ..Counts::default() });
                let (node, started, crashes) = (&crash.by.node, crash.at, row.crashes.len());
                tracing::warn!(
                    target: "handstamp",
                    %node, %started, crashes, max_crashes,
                    "a process died while it handled one parked message alone: a crash of that message: {}",
                    shown(row.letter.id.as_ref(), &row.letter.record)
                );
            }
        }
    }

    /// What may have killed a process runs with every slot: then it is alone, and only then. False: the lane is left.
    pub(super) async fn run_alone(&self, lane: Lane, chunk: &[Item], slot: &mut Slot) -> bool {
        if !self.starts.has_company {
            return true;
        }
        if !chunk.iter().any(|item| item.suspected && item.end().is_none()) {
            slot.share();
            return true;
        }
        tokio::select! {
            biased;
            () = self.left(lane) => false,
            () = slot.take_whole() => true,
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
        let end = async || self.store.end_starts(&self.consumer, &by.owner, Some(&lanes)).await;
        if aside("a start record stays", end).await {
            self.starts.of(lane, |kept| kept.written = Written::Nothing);
        }
    }

    /// Waits; through a long wait without a record.
    pub(super) async fn rest(&self, lane: Lane, wait: Duration) {
        let rested = async {
            if wait >= LONG_WAIT {
                tokio::join!(sleep(wait), self.end_start(lane));
            } else {
                sleep(wait).await;
            }
        };
        let withdrawn = async {
            if lane == RETRIES {
                self.withdraw_parked().await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = rested => {}
            () = withdrawn => {}
        }
    }

    /// Takes what is due, with start records in front. What may have killed a process runs with every slot, so that
    /// it is alone.
    pub(super) async fn start_due(
        &self,
        by: &Starter,
        max: usize,
        slot: &mut Slot,
    ) -> Result<Option<Taken<S::Tx>>, StoreError> {
        let company = self.starts.company(slot);
        let Some((tx, rows)) = self.store.start_due(&self.consumer, max, by, company).await? else {
            return Ok(None);
        };
        self.say_crashes(&rows);
        if company == Company::None || !rows.iter().any(|row| row.suspected) {
            return Ok(Some((tx, rows)));
        }
        self.roll_back(tx).await;
        slot.take_whole().await;
        let keys: Vec<Dedup> = rows.iter().map(|row| row.dedup).collect();
        let (tx, rows) = self.store.start_again(&self.consumer, &keys, by, Company::None).await?;
        self.say_crashes(&rows);
        if rows.is_empty() {
            self.roll_back(tx).await;
            return Ok(None);
        }
        Ok(Some((tx, rows)))
    }

    /// We live: takes back what we had started of parked messages, and what others counted while we could not hold
    /// it. Tried again until it is done; a stop does that at its end.
    pub(super) async fn withdraw_parked(&self) {
        while self.starts.owes_parked.get() && !*self.stopping.borrow() {
            if !self.withdraw_parked_once().await {
                sleep(ASIDE_AGAIN).await;
            }
        }
    }

    /// The same, tried for a second; whether it is done.
    pub(super) async fn withdraw_parked_once(&self) -> bool {
        let done = self.withdraw(Lost::Parked).await;
        if done {
            self.starts.owes_parked.set(false);
        }
        done
    }

    /// The same for lanes.
    async fn withdraw_lanes(&self) {
        while !*self.stopping.borrow() {
            let Some(owed) = self.starts.owes_lanes.borrow().clone() else { return };
            let lanes: Vec<Arc<str>> = owed.iter().cloned().collect();
            if self.withdraw(Lost::Lanes(&lanes)).await {
                let mut owes = self.starts.owes_lanes.borrow_mut();
                if owes.as_ref().is_some_and(|now| now.is_subset(&owed)) {
                    *owes = None;
                }
            } else {
                sleep(ASIDE_AGAIN).await;
            }
        }
    }

    async fn withdraw(&self, lost: Lost<'_>) -> bool {
        let Some(by) = &self.starts.by else { return true };
        let withdraw = async || self.store.withdraw(&self.consumer, &by.owner, lost).await;
        aside("crashes may be counted that were none", withdraw).await
    }

    /// The end of the run: none of our records stays.
    pub(super) async fn end_starts(&self) {
        let Some(by) = self.starts.by.as_ref().filter(|_| self.starts.wrote.get()) else { return };
        if self.starts.owes_parked.get() || self.starts.owes_lanes.borrow().is_some() {
            self.withdraw(Lost::Everything).await;
        } else {
            let end = async || self.store.end_starts(&self.consumer, &by.owner, None).await;
            aside("start records stay", end).await;
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
            shared.withdraw_lanes().await;
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

/// Nothing waits for it for long, and nothing hangs on it. What fails is tried again meanwhile: a connection that was
/// cut is noticed by its first use.
async fn aside(fails: &'static str, doing: impl AsyncFn() -> Result<(), StoreError>) -> bool {
    let mut last = StoreError::new(StoreErrorKind::Unavailable, format!("no answer within {ASIDE_MAX:?}"));
    let done = timeout(ASIDE_MAX, async {
        while let Err(error) = doing().await {
            last = error;
            sleep(ASIDE_AGAIN).await;
        }
    });
    let done = done.await.is_ok();
    if !done {
        tracing::debug!(target: "handstamp", error = %last, "{fails}");
    }
    done
}
