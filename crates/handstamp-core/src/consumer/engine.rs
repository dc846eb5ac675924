//! The loop of one consumer: control first, then what finished, then new deliveries.
//!
//! Authoritative: the source for which lanes are ours, the store for what is done. The loop never
//! awaits a batch; batches run beside it on the same thread.

use super::batch::{BatchEnd, Shared, Told};
use super::copies::Copies;
use super::gate::Gate;
use super::in_flight::InFlight;
use super::intake::{Flow, Intake};
use super::item::Item;
use super::outage::Outage;
use super::register::register;
use super::resume::RETRIES;
use super::retries::{Look, Parked, Retries};
use super::slot::{Slot, Slots};
use super::starts::Starts;
use super::{Consumer, RunError, RunErrorKind, StopReason};
use crate::breaker::BreakerState;
use crate::decide::Order;
use crate::delivery::{Delivery, DeliveryTag, Disposition, Lane};
use crate::identity::IdentityRule;
use crate::source::{Capabilities, Command, Control, PortLimits, SourceErrorKind, SourcePort};
use crate::start::StartStore;
use crate::store::ConsumerKey;
use crate::telemetry::{Counts, LineLimit, Report};
use futures_util::StreamExt;
use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Batches that may lie in the port.
const PORT_BATCHES: usize = 4;
/// Before a revoke's deadline: time to roll back and answer.
const REVOKE_MARGIN: Duration = Duration::from_millis(250);
/// The source always gets this long to close, however little is left of `shutdown_timeout`.
pub(super) const CLOSE_MIN: Duration = Duration::from_secs(5);
/// Lines about skipped duplicates, and about parked messages, a second.
const LINES: u32 = 100;
/// How often the timer that is due first is due.
const NEAR: Duration = Duration::from_secs(1);

type Running = FuturesUnordered<LocalBoxFuture<'static, TurnEnd>>;

/// Whose turn ended, and how.
pub(super) enum TurnEnd {
    Lane(Lane, BatchEnd),
    Retries(Look),
    /// No turn: start records were ended, those of a lane that is taken away or others.
    Ended(Option<Lane>),
}

pub(super) struct Engine<S: StartStore> {
    pub(super) shared: Rc<Shared<S>>,
    identity: IdentityRule,
    pub(super) capabilities: Capabilities,
    pub(super) deliveries: mpsc::Receiver<Vec<Delivery>>,
    pub(super) control: mpsc::UnboundedReceiver<Control>,
    pub(super) intake: Intake,
    pub(super) running: Running,
    pub(super) retries: Retries,
    /// A lane had the last turn.
    retries_next: bool,
    /// The source is at its end, but for what is parked and due.
    ending: bool,
    revokes: Vec<(Instant, Lane)>,
    pub(super) started: Instant,
    pub(super) assigned_once: bool,
    pub(super) last_activity: Instant,
    pub(super) deliveries_open: bool,
    pub(super) stop: Option<StopReason>,
    pub(super) error: Option<RunError>,
    /// `shutdown_timeout` is over: everything that runs was cancelled.
    overdue: bool,
    /// Something that ran was rolled back because of that.
    pub(super) cut_short: bool,
}

/// Runs a consumer to its end.
pub(crate) async fn run<S: StartStore>(
    consumer: Consumer<S>,
    stop: impl Future<Output = ()>,
) -> Result<Report, RunError> {
    let mut stop = pin!(stop);
    let started = Instant::now();
    let live = Arc::clone(&consumer.live);
    let key = tokio::select! {
        biased;
        () = &mut stop => return Ok(empty_report(started, StopReason::Asked)),
        key = register(&consumer) => key?,
        never = live.vitals().beats() => match never {},
    };
    let mut engine = Engine::start(consumer, key, started)?;
    engine.turn(stop.as_mut()).await;
    engine.close().await;
    engine.finish()
}

fn empty_report(started: Instant, stopped: StopReason) -> Report {
    Report {
        counts: Counts::default(),
        notices: BTreeMap::new(),
        lag: vec![],
        breaker: BreakerState::Closed,
        took: started.elapsed(),
        busy: Duration::ZERO,
        stopped,
    }
}

impl<S: StartStore> Engine<S> {
    fn start(consumer: Consumer<S>, key: ConsumerKey, started: Instant) -> Result<Self, RunError> {
        let Consumer { source, store, identity, handler, mut options, copy_to, live, .. } = consumer;
        let writers_max = store.capabilities().writers_max.unwrap_or(usize::MAX);
        options.concurrency = options.concurrency.min(writers_max).max(1);
        let capabilities = source.capabilities();
        let (delivery_sender, deliveries) = mpsc::channel(PORT_BATCHES);
        let (control_sender, control) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let limits = PortLimits {
            batch_max: options.batch_max.clamp(64, 1_000),
            batch_max_bytes: options.batch_max_bytes.min(options.queue_max_bytes / 16).max(1),
            queue_max_bytes: options.queue_max_bytes / 2,
            message_max_bytes: options.message_max_bytes,
        };
        if options.order == Order::Key && !capabilities.ordered {
            let text = "order = \"key\" needs a source that keeps the messages of one key in order";
            return Err(RunError::new(RunErrorKind::Source(SourceErrorKind::Config), text));
        }
        let intake = Intake::new(&options);
        let retries = Retries::new(&options, started);
        let slots = Slots::new(options.concurrency);
        live.vitals().set_slots(slots.clone());
        source.start(SourcePort {
            deliveries: delivery_sender,
            control: control_sender,
            commands: command_receiver,
            limits,
        })?;
        let gate = Gate::new(options.breaker, Arc::clone(&live));
        let shared = Shared {
            store,
            consumer: key,
            handler,
            starts: Starts::new(&options, capabilities.settle),
            copies: Copies::new(copy_to),
            options,
            live,
            commands,
            duplicates: RefCell::new(LineLimit::new(LINES)),
            parked_lines: RefCell::new(LineLimit::new(LINES)),
            parked: Parked::default(),
            gate,
            in_place: RefCell::default(),
            slots,
            outage: Outage::default(),
            told: RefCell::new(HashMap::from([(RETRIES, watch::channel(Told::GoOn).0)])),
            in_flight: InFlight::default(),
            stopping: watch::channel(false).0,
        };
        Ok(Self {
            shared: Rc::new(shared),
            identity,
            capabilities,
            deliveries,
            control,
            intake,
            running: FuturesUnordered::new(),
            retries,
            retries_next: true,
            ending: false,
            revokes: vec![],
            started,
            assigned_once: false,
            last_activity: started,
            deliveries_open: true,
            stop: None,
            error: None,
            overdue: false,
            cut_short: false,
        })
    }

    /// Runs until something says stop and nothing runs any more.
    async fn turn(&mut self, mut stop: std::pin::Pin<&mut impl Future<Output = ()>>) {
        let mut deadline = None;
        let mut extend_at = self.capabilities.lease.map(|lease| Instant::now() + lease / 3);
        // A timer that is always due first: setting one that is due earlier than all others wakes the
        // runtime's driver, and every transaction sets several.
        let mut near = tokio::time::interval(NEAR);
        loop {
            self.shared.live.vitals().beat();
            // Looked at before anything else begins: a store that never waits (SQLite) keeps batches ending one
            // after the other, and the select below then gets no further than to them.
            let goes_on = self.stop.is_none() && self.error.is_none();
            if goes_on && stop.as_mut().now_or_never().is_some() {
                self.stop = Some(StopReason::Asked);
            }
            self.take_waiting();
            self.start_turns();
            self.check_end();
            if self.stop.is_some() || self.error.is_some() {
                let until = *deadline.get_or_insert_with(|| {
                    self.shared.stopping.send_replace(true);
                    self.shared.live.vitals().stop();
                    self.give_back_queued();
                    Instant::now() + self.shared.options.shutdown_timeout
                });
                if self.running.is_empty() {
                    return;
                }
                if Instant::now() >= until && !self.overdue {
                    self.overdue = true;
                    self.cancel_all();
                }
            }
            let stopping = deadline.is_some();
            let wake = self.next_wake(if self.overdue { None } else { deadline }, extend_at);
            if wake.is_some_and(|wake| Instant::now() >= wake) {
                self.on_time(&mut extend_at);
            }
            tokio::select! {
                biased;
                Some(control) = self.control.recv() => self.on_port(Some(control), None),
                Some(ended) = self.running.next(), if !self.running.is_empty() => self.on_turn_end(ended),
                _ = near.tick() => {}
                () = &mut stop, if !stopping => self.stop = Some(StopReason::Asked),
                batch = self.deliveries.recv(), if self.deliveries_open && !stopping && self.has_room() => {
                    match batch {
                        Some(batch) => self.on_port(None, Some(batch)),
                        None => self.deliveries_open = false,
                    }
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                    self.on_time(&mut extend_at);
                }
            }
        }
    }

    fn next_wake(&self, deadline: Option<Instant>, extend_at: Option<Instant>) -> Option<Instant> {
        // Once stopping nothing is begun, and what would have been begun by now must not keep the loop awake.
        let goes_on = self.stop.is_none() && self.error.is_none();
        let can_start = self.shared.slots.is_free() && goes_on;
        let batch = if can_start && !self.retries.holds() { self.intake.next_ready_at() } else { None };
        let admitted = self.shared.gate.admits_worker_at(Instant::now());
        let look = self.retries.next().zip(admitted).map(|(next, admitted)| next.max(admitted));
        let look = look.filter(|_| can_start);
        let idle = goes_on && self.assigned_once && !self.ending && self.intake.is_idle();
        let idle = self.shared.options.until_idle.filter(|_| idle);
        let idle = idle.map(|idle| self.last_activity + idle);
        let revoke = self.revokes.iter().map(|(at, _)| *at).min();
        [batch, look, idle, revoke, deadline, extend_at].into_iter().flatten().min()
    }

    fn on_time(&mut self, extend_at: &mut Option<Instant>) {
        let now = Instant::now();
        if let (Some(at), Some(lease)) = (*extend_at, self.capabilities.lease)
            && now >= at
        {
            *extend_at = Some(now + lease / 3);
            let in_hand = self.intake.in_hand();
            if !in_hand.is_empty() {
                self.command(Command::Extend(in_hand));
            }
        }
        let due: Vec<Lane> =
            self.revokes.iter().filter(|(at, _)| now >= *at).map(|(_, lane)| *lane).collect();
        self.revokes.retain(|(at, _)| now < *at);
        for lane in due {
            tracing::warn!(target: "handstamp", lane = lane.id, "a batch did not end before its lane was taken away: rolled back");
            self.shared.tell(lane, Told::Cancel);
        }
    }

    fn check_end(&mut self) {
        if self.stop.is_some() || self.error.is_some() {
            return;
        }
        let end = self.end_of_source();
        // What is parked and due is taken up first; what waits longer is left to the next run.
        if end.is_some() && self.retries.lets_end(Instant::now()) {
            self.stop = end;
        }
        self.ending = end.is_some();
    }

    /// Whether deliveries are taken: with room for them, and for as long as messages are asked for. What
    /// would only be given back stays in the port, or it would come and go without an end.
    fn has_room(&self) -> bool {
        self.intake.has_room() && !self.has_taken_all()
    }

    pub(super) fn has_taken_all(&self) -> bool {
        let max = self.shared.options.messages_max;
        max.is_some_and(|max| self.shared.live.snapshot().received >= max)
    }

    /// Takes what the port holds in an order that loses nothing: a lane's `Assigned` before its
    /// deliveries, and its `CaughtUp` only after everything that was handed over before it.
    fn on_port(&mut self, control: Option<Control>, batch: Option<Vec<Delivery>>) {
        let mut caught_up = vec![];
        if let Some(control) = control {
            self.on_control(control, &mut caught_up);
        }
        self.drain_control(&mut caught_up);
        if let Some(batch) = batch {
            self.route(batch);
        }
        // Once stopping, nothing is looked for: what is given back may be handed over again at once.
        if caught_up.is_empty() || self.stop.is_some() || self.error.is_some() || self.has_taken_all() {
            return;
        }
        loop {
            let next = self.deliveries.try_recv();
            self.drain_control(&mut caught_up);
            match next {
                Ok(batch) => self.route(batch),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.deliveries_open = false;
                    break;
                }
            }
        }
        for lane in caught_up {
            if let Some(state) = self.intake.lanes.get_mut(&lane) {
                state.caught_up = true;
            }
        }
    }

    pub(super) fn drain_control(&mut self, caught_up: &mut Vec<Lane>) {
        while let Ok(control) = self.control.try_recv() {
            self.on_control(control, caught_up);
        }
    }

    pub(super) fn on_control(&mut self, control: Control, caught_up: &mut Vec<Lane>) {
        match control {
            Control::Assigned(lanes) => {
                self.assigned_once = true;
                self.shared.live.vitals().source_answers();
                self.last_activity = Instant::now();
                for named in lanes {
                    let (told, _) = watch::channel(Told::GoOn);
                    self.shared.told.borrow_mut().insert(named.lane, told);
                    self.shared.starts.assign(&named);
                    self.intake.assign(named);
                }
            }
            Control::Revoking { lanes, within } => self.on_revoking(&lanes, within),
            Control::Lost(lanes) => {
                let mut left_open = false;
                for lane in lanes {
                    let is_running = self.is_running(lane);
                    let rest = self.intake.remove(lane);
                    self.release(&rest);
                    // What runs may finish: its claims protect it, and its settle is dropped as stale.
                    if is_running {
                        self.shared.tell(lane, Told::Finish);
                    } else {
                        left_open |= self.shared.leave_lane(lane);
                    }
                }
                self.tell_lag();
                if left_open {
                    self.withdraw();
                }
            }
            Control::CaughtUp(lanes) => caught_up.extend(lanes),
            Control::Lag(lags) => {
                self.intake.note_lag(&lags);
                self.tell_lag();
            }
            Control::Settled(_) => {}
            Control::Noticed(notice) => self.shared.live.vitals().note(notice),
            Control::Failed(error) => {
                self.error.get_or_insert_with(|| error.into());
            }
        }
    }

    fn on_revoking(&mut self, lanes: &[Lane], within: Duration) {
        // Between losing lanes and getting others a member has none: that is not idle.
        self.last_activity = Instant::now();
        let deadline = Instant::now() + within.saturating_sub(REVOKE_MARGIN);
        let mut drained = vec![];
        for &lane in lanes {
            let rest = self.intake.drain(lane);
            self.release(&rest);
            if self.is_running(lane) {
                if let Some(state) = self.intake.lanes.get_mut(&lane) {
                    state.revoking = true;
                }
                self.shared.tell(lane, Told::Finish);
                self.revokes.push((deadline, lane));
            } else if self.end_then_drain(lane) {
                // `Drained` follows.
            } else {
                self.forget(lane);
                drained.push(lane);
            }
        }
        if !drained.is_empty() {
            self.command(Command::Drained(drained));
        }
    }

    fn tell_lag(&self) {
        self.shared.live.vitals().set_lags(self.intake.lags());
    }

    /// Counts and queues deliveries; every lane of them was assigned before.
    fn route(&mut self, mut batch: Vec<Delivery>) {
        if self.stop.is_some() || self.error.is_some() {
            return self.settle_release(&batch);
        }
        let now = Instant::now();
        self.last_activity = now;
        if let Some(max) = self.shared.options.messages_max {
            let received = self.shared.live.snapshot().received;
            let room = usize::try_from(max.saturating_sub(received)).unwrap_or(usize::MAX);
            let beyond = batch.split_off(room.min(batch.len()));
            self.settle_release(&beyond);
        }
        self.shared.live.add(&Counts { received: batch.len() as u64, ..Counts::default() });
        let lane = batch.first().map(|delivery| delivery.lane);
        let strays = self.intake.push_all(batch, now);
        self.release(&strays);
        if let Some(lane) = lane {
            self.adjust_flow(lane);
        }
    }

    /// Takes what already lies in the port, so that the next batch is as full as it can be: while a batch
    /// blocks the thread (SQLite does), nobody reads the port.
    fn take_waiting(&mut self) {
        let may_start = self.stop.is_none() && self.error.is_none() && self.shared.slots.is_free();
        for _ in 0..if may_start { PORT_BATCHES } else { 0 } {
            if !self.deliveries_open || !self.has_room() || self.intake.has_full_batch() {
                return;
            }
            match self.deliveries.try_recv() {
                Ok(batch) => self.on_port(None, Some(batch)),
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => self.deliveries_open = false,
            }
        }
    }

    /// Begins turns while slots are free; lanes and the retry worker alternate.
    fn start_turns(&mut self) {
        while self.stop.is_none() && self.error.is_none() {
            let now = Instant::now();
            let is_full = self.retries.is_full(&self.shared.parked, now);
            self.shared.live.vitals().set_full(is_full);
            let eager = !self.intake.has_room() || !self.deliveries_open;
            let lane = if is_full { None } else { self.intake.ready(now, eager) };
            // While the breaker is not closed the worker probes, and only where no lane can.
            let admitted = self.shared.gate.admits_worker_at(now).is_some_and(|at| at <= now);
            let looks =
                admitted && self.retries.is_due(now) && (lane.is_none() || self.shared.gate.is_closed());
            if lane.is_none() && !looks {
                return;
            }
            let Some(slot) = self.shared.slots.try_take() else { return };
            match lane {
                Some(lane) if !(looks && self.retries_next) => self.start_batches(lane, now, slot),
                _ => self.start_look(slot),
            }
        }
    }

    fn start_batches(&mut self, lane: Lane, now: Instant, slot: Slot) {
        self.retries_next = true;
        let turn = self.intake.take_turn(lane, now);
        self.adjust_flow(lane);
        let limit = self.shared.options.message_max_bytes;
        let received_at = crate::clock::now();
        let guard = self.shared.options.version.as_ref();
        let item = |delivery| Item::new(delivery, &self.identity, limit, received_at).versioned(guard);
        let batches = self.shared.wanted_of(turn, item);
        let shared = Rc::clone(&self.shared);
        let turn = async move { TurnEnd::Lane(lane, shared.run_turn(lane, batches, slot).await) };
        self.running.push(turn.boxed_local());
    }

    fn start_look(&mut self, slot: Slot) {
        self.retries_next = false;
        let (asks, take_max) = self.retries.begin();
        let shared = Rc::clone(&self.shared);
        let look = async move { TurnEnd::Retries(shared.look(asks, take_max, slot).await) };
        self.running.push(look.boxed_local());
    }

    fn on_turn_end(&mut self, ended: TurnEnd) {
        let end = match ended {
            TurnEnd::Lane(lane, end) => {
                self.last_activity = Instant::now();
                self.on_batch_end(lane);
                end
            }
            TurnEnd::Retries(look) => {
                self.retries.ended(look.found, Instant::now());
                look.end
            }
            TurnEnd::Ended(lane) => return self.on_ended(lane),
        };
        self.retries.hear(&self.shared.parked);
        match end {
            BatchEnd::Done => {}
            BatchEnd::Cancelled => self.cut_short |= self.overdue,
            BatchEnd::Fatal(error) => {
                self.error.get_or_insert_with(|| error.into());
            }
        }
    }

    fn on_batch_end(&mut self, lane: Lane) {
        self.revokes.retain(|(_, revoked)| *revoked != lane);
        match self.intake.lanes.get_mut(&lane) {
            Some(state) if state.revoking => {
                self.forget(lane);
                self.command(Command::Drained(vec![lane]));
            }
            Some(_) => self.intake.turn_ended(lane, Instant::now()),
            // Lost while it ran.
            None => {
                self.shared.leave_lane(lane);
                self.shared.starts.owe_lanes();
                self.withdraw();
            }
        }
    }

    fn is_running(&self, lane: Lane) -> bool {
        self.intake.lanes.get(&lane).is_some_and(|state| !state.running.is_empty())
    }

    pub(super) fn forget(&mut self, lane: Lane) {
        let rest = self.intake.remove(lane);
        self.release(&rest);
        if self.shared.leave_lane(lane) {
            self.withdraw();
        }
        self.tell_lag();
    }

    fn cancel_all(&self) {
        for told in self.shared.told.borrow().values() {
            told.send_replace(Told::Cancel);
        }
    }

    fn adjust_flow(&mut self, lane: Lane) {
        match self.intake.flow(lane) {
            Some(Flow::Hold(lane)) => self.command(Command::Hold(lane)),
            Some(Flow::Release(lane)) => self.command(Command::Release(lane)),
            None => {}
        }
    }

    pub(super) fn command(&self, command: Command) {
        // A source that is gone closed `deliveries` too; the loop sees that.
        drop(self.shared.commands.send(command));
    }

    fn give_back_queued(&mut self) {
        let lanes: Vec<Lane> = self.intake.lanes.keys().copied().collect();
        for lane in lanes {
            let rest = self.intake.drain(lane);
            self.release(&rest);
        }
    }

    /// Counts deliveries as released and gives them back.
    fn release(&self, deliveries: &[Delivery]) {
        self.shared.live.add(&Counts { released: deliveries.len() as u64, ..Counts::default() });
        self.settle_release(deliveries);
    }

    pub(super) fn settle_release(&self, deliveries: &[Delivery]) {
        if deliveries.is_empty() {
            return;
        }
        let released = Disposition::Release { delay: Duration::ZERO };
        let settles: Vec<(Lane, DeliveryTag, Disposition)> =
            deliveries.iter().map(|d| (d.lane, d.tag, released)).collect();
        self.command(Command::Settle(settles));
    }
}
