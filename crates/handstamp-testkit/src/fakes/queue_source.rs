//! A broker of individual acknowledgements, with a lease on each delivery or without.
//!
//! Authoritative: [`QueueBroker`]. With a lease, an entry that is neither settled nor extended in time
//! becomes ready again while its holder lives. Without one, it becomes ready when its holder's
//! connection is gone.
//!
//! ```text
//!  ready ──handed over, tag──► held ──Ack──► acked
//!    ▲                          │ Release{delay}, lease over, connection gone
//!    └──────────────────────────┘ (an answer with an old tag is stale)
//! ```

use super::breaks::{LATE, SourceBreak, damage, shown_tag};
use crate::payload::Payload;
use handstamp_core::delivery::{ReadAhead, Settled};
use handstamp_core::source::{DeliveryCount, NamedLane, PortLimits, SettleKind};
use handstamp_core::{
    Capabilities, Command, Control, Delivery, DeliveryTag, Disposition, Fingerprint, Lane, Notice, Origin,
    Source, SourceError, SourceErrorKind, SourcePort,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A record handed over this often goes in a circle: given back and taken again without an end.
const DELIVERIES_MAX: u32 = 1_000;

/// The broker and everything that is durable in it; clones are the same broker.
#[derive(Debug, Clone)]
pub struct QueueBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Arc<str>,
    lease: Option<Duration>,
    broken: Option<SourceBreak>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    connections_made: u32,
    /// Connections that the broker has cut and their holders have not seen yet.
    cut: Vec<u32>,
    connected: Vec<u32>,
    tags_made: u64,
    away: bool,
}

#[derive(Debug)]
struct Entry {
    payload: Payload,
    deliveries: u32,
    stands: Stands,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Ready { from: Instant },
    Held { connection: u32, tag: u64, until: Option<Instant> },
    Acked,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, broken: SourceBreak) -> bool {
        self.broken == Some(broken)
    }

    fn bump(&self) {
        self.changed.send_modify(|version| *version += 1);
    }
}

impl State {
    /// Makes ready again what a lost connection or an ended lease held.
    fn free(&mut self, gone: impl Fn(u32, Option<Instant>) -> bool) {
        for entry in &mut self.entries {
            if let Stands::Held { connection, until, .. } = entry.stands
                && gone(connection, until)
            {
                entry.stands = Stands::Ready { from: Instant::now() };
            }
        }
    }

    /// Whether an entry may be handed over now; a broken fake counts what was handed over as gone.
    fn can_hand_over(entry: &Entry, broken: Option<SourceBreak>) -> bool {
        let again = entry.deliveries > 0;
        let ready = matches!(entry.stands, Stands::Ready { from } if from <= Instant::now());
        ready && !(again && broken == Some(SourceBreak::RedeliversNothing))
    }
}

impl QueueBroker {
    /// A queue whose deliveries carry a lease.
    #[must_use]
    pub fn with_lease(queue: &str, lease: Duration) -> Self {
        Self::broken(queue, Some(lease), None)
    }

    /// A queue whose deliveries belong to a connection.
    #[must_use]
    pub fn without_lease(queue: &str) -> Self {
        Self::broken(queue, None, None)
    }

    /// Either, with a fault built in.
    #[must_use]
    pub fn broken(queue: &str, lease: Option<Duration>, broken: Option<SourceBreak>) -> Self {
        let state = Mutex::default();
        let changed = watch::channel(0).0;
        Self { shared: Arc::new(Shared { queue: queue.into(), lease, broken, state, changed }) }
    }

    /// Appends a record.
    pub fn publish(&self, payload: Payload) {
        let stands = Stands::Ready { from: Instant::now() };
        self.shared.lock().entries.push(Entry { payload, deliveries: 0, stands });
        self.shared.bump();
    }

    /// One more consumer of the queue.
    #[must_use]
    pub fn source(&self) -> QueueSource {
        QueueSource { shared: Arc::clone(&self.shared) }
    }

    /// How many records are acked for good.
    #[must_use]
    pub fn settled_count(&self) -> usize {
        self.shared.lock().entries.iter().filter(|entry| entry.stands == Stands::Acked).count()
    }

    /// Whether the n-th record is acked for good.
    #[must_use]
    pub fn is_settled(&self, at: usize) -> bool {
        self.shared.lock().entries.get(at).is_some_and(|entry| entry.stands == Stands::Acked)
    }

    /// How often the n-th record was handed over.
    #[must_use]
    pub fn delivery_count(&self, at: usize) -> u32 {
        self.shared.lock().entries.get(at).map_or(0, |entry| entry.deliveries)
    }

    /// Cuts every connection; the sources connect again by themselves.
    pub fn cut_connections(&self) {
        {
            let mut state = self.shared.lock();
            let connected = std::mem::take(&mut state.connected);
            if self.shared.lease.is_none() {
                state.free(|connection, _| connected.contains(&connection));
            }
            state.cut.extend(connected);
        }
        self.shared.bump();
    }

    /// Takes the broker away, or brings it back.
    pub fn set_away(&self, away: bool) {
        self.shared.lock().away = away;
        self.shared.bump();
    }
}

/// A consumer of a queue.
#[derive(Debug)]
pub struct QueueSource {
    shared: Arc<Shared>,
}

impl Source for QueueSource {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            settle: SettleKind::Individual,
            ordered: false,
            lease: self.shared.lease,
            release_delay_max: self.shared.lease.map(|_| Duration::from_secs(3_600)),
            delivery_count: DeliveryCount::Exact,
            redelivery_window: None,
            ends: false,
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(format!("fake queue {}", self.shared.queue))
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        let changed = self.shared.changed.subscribe();
        let reader = Reader {
            shared: self.shared,
            control: port.control,
            limits: port.limits,
            lane: Lane { id: 0, epoch: 0 },
            held: false,
            said_caught_up: false,
            late: false,
        };
        tokio::spawn(reader.serve(port.deliveries, port.commands, changed));
        Ok(())
    }
}

struct Reader {
    shared: Arc<Shared>,
    control: mpsc::UnboundedSender<Control>,
    limits: PortLimits,
    /// The epoch is the number of the connection; 0 is none.
    lane: Lane,
    held: bool,
    said_caught_up: bool,
    late: bool,
}

impl Reader {
    async fn serve(
        mut self,
        deliveries: mpsc::Sender<Vec<Delivery>>,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut changed: watch::Receiver<u64>,
    ) {
        let never_closes = self.shared.is(SourceBreak::NeverCloses).then(|| deliveries.clone());
        let mut late = vec![];
        loop {
            changed.mark_unchanged();
            self.connect();
            let (ready, wake) = self.look();
            if self.goes_in_a_circle() {
                break;
            }
            if ready && self.shared.is(SourceBreak::BlocksOnFullPort) {
                let Ok(room) = deliveries.reserve().await else { break };
                room.send(self.batch());
                continue;
            }
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Close { .. }) => break,
                    Some(Command::Settle(settles)) if self.shared.is(SourceBreak::ClosesWithoutSettling) => {
                        late.extend(settles);
                    }
                    Some(command) => self.obey(command),
                    None => {
                        self.engine_is_gone();
                        break;
                    }
                },
                _ = changed.changed() => {}
                () = tokio::time::sleep(LATE), if !late.is_empty() => {
                    self.obey(Command::Settle(std::mem::take(&mut late)));
                }
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
                room = deliveries.reserve(), if ready => {
                    let Ok(room) = room else { break };
                    let batch = self.batch();
                    if !batch.is_empty() {
                        room.send(batch);
                    }
                    if std::mem::take(&mut self.late) {
                        tokio::time::sleep(LATE).await;
                        self.say_assigned();
                    }
                }
            }
        }
        self.disconnect();
        if never_closes.is_some() {
            std::future::pending::<()>().await;
        }
    }

    fn say(&self, control: Control) {
        let _ = self.control.send(control);
    }

    fn say_assigned(&self) {
        let name = Arc::clone(&self.shared.queue);
        self.say(Control::Assigned(vec![NamedLane { lane: self.lane, name }]));
    }

    fn connect(&mut self) {
        let mut state = self.shared.lock();
        let was_cut = state.cut.contains(&self.lane.epoch);
        if was_cut {
            state.cut.retain(|cut| *cut != self.lane.epoch);
            let lane = std::mem::replace(&mut self.lane, Lane { id: 0, epoch: 0 });
            self.say(Control::Noticed(Notice::BrokerAway));
            self.say(Control::Lost(vec![lane]));
        }
        if self.lane.epoch > 0 || state.away {
            return;
        }
        state.connections_made += 1;
        self.lane.epoch = state.connections_made;
        state.connected.push(self.lane.epoch);
        if self.shared.is(SourceBreak::RedeliversSettled) {
            for entry in state.entries.iter_mut().filter(|entry| entry.stands == Stands::Acked) {
                entry.stands = Stands::Ready { from: Instant::now() };
            }
        }
        drop(state);
        self.held = false;
        self.said_caught_up = false;
        if self.shared.is(SourceBreak::CatchesUpEarly) {
            self.say(Control::CaughtUp(vec![self.lane]));
        }
        self.late = self.shared.is(SourceBreak::AssignsLate);
        if !self.late {
            self.say_assigned();
        }
    }

    /// Whether something can be handed over now, and when to look again.
    fn look(&mut self) -> (bool, Option<Instant>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        if state.away || self.lane.epoch == 0 {
            return (false, None);
        }
        if !self.shared.is(SourceBreak::LeasesForEver) {
            state.free(|_, until| until.is_some_and(|until| until <= now));
        }
        let broken = self.shared.broken;
        let any = state.entries.iter().any(|e| State::can_hand_over(e, broken));
        let waits = state.entries.iter().any(|entry| matches!(entry.stands, Stands::Ready { .. }));
        let wake = state.entries.iter().filter_map(|entry| match entry.stands {
            Stands::Ready { from } => Some(from),
            Stands::Held { until, .. } => until,
            Stands::Acked => None,
        });
        let wake = wake.filter(|at| *at > now).min();
        drop(state);
        if !waits && !self.said_caught_up && !self.shared.is(SourceBreak::NeverCatchesUp) {
            self.said_caught_up = true;
            self.say(Control::CaughtUp(vec![self.lane]));
        }
        (any && !self.held, wake)
    }

    /// Turns an endless circle into a failure, so that a test ends.
    fn goes_in_a_circle(&self) -> bool {
        let most = self.shared.lock().entries.iter().map(|entry| entry.deliveries).max();
        if most.is_none_or(|most| most < DELIVERIES_MAX) {
            return false;
        }
        let message = format!("a record was handed over {DELIVERIES_MAX} times: it goes in a circle");
        self.say(Control::Failed(SourceError::new(SourceErrorKind::Other, message)));
        true
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Settle(settles) => {
                let answers: Vec<_> = settles
                    .iter()
                    .map(|&(lane, tag, how)| (lane, tag, self.settle(lane, tag, how)))
                    .collect();
                self.shared.bump();
                for _ in answers.iter().filter(|(_, _, answer)| *answer == Settled::Stale) {
                    self.say(Control::Noticed(Notice::SettleStale));
                }
                if !self.shared.is(SourceBreak::AnswersNothing) {
                    self.say(Control::Settled(answers));
                }
            }
            Command::Extend(tags) if !self.shared.is(SourceBreak::IgnoresExtend) => self.extend(&tags),
            Command::Hold(lane) if lane == self.lane => self.held = !self.shared.is(SourceBreak::IgnoresHold),
            Command::Release(lane) if lane == self.lane && !self.shared.is(SourceBreak::ForgetsRelease) => {
                self.held = false;
            }
            _ => {}
        }
    }

    fn settle(&mut self, lane: Lane, tag: DeliveryTag, disposition: Disposition) -> Settled {
        let now = Instant::now();
        let tag = DeliveryTag(shown_tag(tag.0, self.shared.broken));
        let forgets = self.shared.is(SourceBreak::ForgetsEpoch);
        let passes = self.shared.is(SourceBreak::PassesUnfinished);
        let loses_released = self.shared.is(SourceBreak::LosesReleased);
        let mut state = self.shared.lock();
        if state.away {
            return Settled::Unknown;
        }
        if (lane != self.lane || !state.connected.contains(&lane.epoch)) && !forgets {
            return Settled::Stale;
        }
        let Some(at) = state.entries.iter().position(|entry| match entry.stands {
            Stands::Held { tag: held, until, .. } => held == tag.0 && until.is_none_or(|until| until > now),
            _ => false,
        }) else {
            return Settled::Stale;
        };
        match disposition {
            Disposition::Ack if passes => {
                state.entries[..=at].iter_mut().for_each(|entry| entry.stands = Stands::Acked);
            }
            Disposition::Ack => state.entries[at].stands = Stands::Acked,
            Disposition::Release { .. } if loses_released => state.entries[at].stands = Stands::Acked,
            Disposition::Release { delay } => {
                let delay = if self.shared.lease.is_some() { delay } else { Duration::ZERO };
                state.entries[at].stands = Stands::Ready { from: now + delay };
            }
        }
        Settled::Done
    }

    fn extend(&self, tags: &[(Lane, DeliveryTag)]) {
        let Some(lease) = self.shared.lease else { return };
        let now = Instant::now();
        for entry in &mut self.shared.lock().entries {
            if let Stands::Held { tag, until: Some(until), .. } = &mut entry.stands
                && *until > now
                && tags.contains(&(self.lane, DeliveryTag(shown_tag(*tag, self.shared.broken))))
            {
                *until = now + lease;
            }
        }
    }

    fn batch(&mut self) -> Vec<Delivery> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let State { entries, tags_made, .. } = &mut *state;
        let mut batch: Vec<Delivery> = vec![];
        let mut bytes = 0;
        let until = shared.lease.map(|lease| Instant::now() + lease);
        let mut in_flight = entries.iter().filter(|e| matches!(e.stands, Stands::Held { .. })).count();
        for (at, entry) in entries.iter_mut().enumerate() {
            if !State::can_hand_over(entry, shared.broken) {
                continue;
            }
            let origin = Origin {
                topic: shared.queue.clone(),
                partition: 0,
                offset: i64::try_from(at).unwrap_or(i64::MAX),
                line: None,
            };
            let record = damage(entry.payload.clone(), shared.broken).at(origin);
            bytes += record.size_bytes();
            let full = batch.len() >= self.limits.batch_max || bytes > self.limits.batch_max_bytes;
            if full && !batch.is_empty() && !shared.is(SourceBreak::IgnoresLimits) {
                break;
            }
            *tags_made += 1;
            entry.deliveries += 1;
            entry.stands = Stands::Held { connection: self.lane.epoch, tag: *tags_made, until };
            in_flight += 1;
            if shared.is(SourceBreak::SettlesEarly) && in_flight > 6 {
                entry.stands = Stands::Acked;
            }
            batch.push(Delivery {
                lane: self.lane,
                tag: DeliveryTag(shown_tag(*tags_made, shared.broken)),
                record,
                fault: None,
                ahead: ReadAhead::default(),
            });
        }
        if shared.is(SourceBreak::Reverses) {
            batch.reverse();
        }
        self.said_caught_up = false;
        batch
    }

    fn engine_is_gone(&self) {
        if self.shared.is(SourceBreak::SettlesForTheDead) {
            let mut state = self.shared.lock();
            state.entries.iter_mut().filter(|entry| matches!(entry.stands, Stands::Held { .. })).for_each(
                |entry| {
                    entry.stands = Stands::Acked;
                },
            );
        }
    }

    fn disconnect(&self) {
        {
            let mut state = self.shared.lock();
            state.connected.retain(|connection| *connection != self.lane.epoch);
            state.cut.retain(|cut| *cut != self.lane.epoch);
            if self.shared.lease.is_none() {
                state.free(|connection, _| connection == self.lane.epoch);
            }
        }
        self.shared.bump();
    }
}
