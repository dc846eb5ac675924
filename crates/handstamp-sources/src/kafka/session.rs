//! One client in its group: the loop, the errors it meets, and its bounded end.

use super::assignment::Owned;
use super::commit::Commits;
use super::context::Context;
use super::ffi::{self, Client, Queue};
use super::hooks::Alive;
use super::records::Copier;
use super::settle::LOOK_EVERY;
use super::start::Plan;
use super::thread::{End, POLL_EVERY, Worker};
use super::trouble::Told;
use super::wake::Signal;
use handstamp_core::telemetry::FIRST_POLL;
use handstamp_core::{Control, Notice, SourceError, SourceErrorKind};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Most events taken from the main queue at a time.
const EVENTS_MAX: usize = 1000;
const EVERY_SECOND: Duration = Duration::from_secs(1);
/// How long a member is without partitions before it says so, and how often it says it again.
const SAY_WAITING_AFTER: Duration = Duration::from_secs(5);
const SAY_WAITING_EVERY: Duration = Duration::from_secs(60);
/// How long a client tries to leave when no broker listens.
const LEAVE_UNHEARD_WITHIN: Duration = Duration::from_secs(1);
/// How long a client may take to leave when nobody said.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A client, its queues and the worker it serves.
pub(super) struct Session {
    pub(super) worker: Worker,
    pub(super) plan: Plan,
    /// How many lanes the client's queues were sized for.
    pub(super) planned_lanes: usize,
    pub(super) client: Client,
    alive: Alive,
    pub(super) main: Queue,
    pub(super) answers: Queue,
    pub(super) commits: Commits,
    pub(super) copier: Copier,
    /// The lane that was read last.
    pub(super) cursor: usize,
    /// Why the service ends, once it does.
    pub(super) end: Option<End>,
    pub(super) told: Told,
    next_second: Instant,
    /// Since when nothing is assigned, and when that is said next.
    without_lanes: Option<(Instant, Instant)>,
    /// Said that it polls.
    polled: bool,
}

impl Session {
    /// Builds the client and asks for the group.
    ///
    /// # Errors
    /// The worker and the reason, when the library refuses the configuration.
    pub(super) fn open(worker: Worker, plan: Plan) -> Result<Self, (Box<Worker>, SourceError)> {
        match Self::build(&worker, &plan) {
            Ok((client, main, answers)) => {
                let alive = Alive::new(&worker.hooks);
                let now = Instant::now();
                let commits = Commits::new(worker.options.commit_every(), now);
                let copier = Copier::new(worker.limits.message_max_bytes);
                let (end, told) = (None, Told::default());
                let next_second = now;
                let planned_lanes = plan.lanes();
                Ok(Self {
                    worker,
                    plan,
                    planned_lanes,
                    client,
                    alive,
                    main,
                    answers,
                    commits,
                    copier,
                    cursor: 0,
                    end,
                    told,
                    next_second,
                    without_lanes: None,
                    polled: false,
                })
            }
            Err(error) => Err((Box::new(worker), error)),
        }
    }

    fn build(worker: &Worker, plan: &Plan) -> Result<(Client, Queue, Queue), SourceError> {
        let options = &worker.options;
        let config = options.consumer_config(&worker.limits, plan.lanes());
        let client: BaseConsumer<Context> = config
            .create_with_context(Context::default())
            .map_err(|error| super::config::refused(options, &error))?;
        let client = Arc::new(client);
        let no_queue =
            || SourceError::new(SourceErrorKind::Other, "the Kafka client has no queue to read from");
        let mut main = Queue::main(&client).ok_or_else(no_queue)?;
        main.raise(Signal::new(Arc::clone(&worker.wake)));
        let mut answers = Queue::new(&client).ok_or_else(no_queue)?;
        answers.raise(Signal::new(Arc::clone(&worker.wake)));
        let topics: Vec<&str> = options.topics().iter().map(String::as_str).collect();
        client.subscribe(&topics).map_err(|error| {
            SourceError::new(SourceErrorKind::Config, format!("cannot subscribe to {}", topics.join(", ")))
                .with_source(error)
        })?;
        Ok((client, main, answers))
    }

    /// Serves until there is a reason to end, then leaves the group.
    pub(super) fn run(mut self) -> (Worker, End) {
        let end = self.serve();
        let heard = self.worker.engine_gone || self.commit_at_the_end();
        self.say_lag(Owned::committed_to);
        let limit = if heard { self.leave_limit() } else { self.leave_limit().min(LEAVE_UNHEARD_WITHIN) };
        (self.leave(limit), end)
    }

    fn leave_limit(&self) -> Duration {
        match self.worker.closing {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()) * 4 / 5,
            None => LEAVE_WITHIN,
        }
    }

    /// Commits what is settled and says what could not be. Returns whether a broker seems to listen: one
    /// that takes no commit does not hear that we leave either, and waiting for it gains nothing.
    fn commit_at_the_end(&mut self) -> bool {
        let mut limit = self.leave_limit().min(self.worker.options.revoke_timeout());
        if self.told.away {
            limit = limit.min(self.worker.options.commit_timeout());
        }
        self.flush_commits(Instant::now() + limit);
        let left = self.not_committed();
        if left.is_empty() {
            return !self.told.away;
        }
        tracing::warn!(target: "handstamp", positions = %left,
            "offsets not committed before the end: what is settled below them comes again and meets the inbox rows");
        false
    }

    fn serve(&mut self) -> End {
        loop {
            let unwoken = self.take_commands();
            self.poll_main();
            while self.end.is_none() {
                let Some(rebalance) = self.client.context().next_rebalance() else { break };
                self.rebalance(&rebalance);
            }
            if let Some(end) = self.end.take() {
                return end;
            }
            if self.worker.ending() {
                return End::Closed;
            }
            let now = Instant::now();
            self.commit_step(now);
            let more = self.deliver();
            self.each_second(now);
            if !more && self.end.is_none() {
                let at_most = self.sleep_for().min(if unwoken { LOOK_EVERY } else { POLL_EVERY });
                self.worker.wake.wait(at_most);
            }
        }
    }

    fn sleep_for(&mut self) -> Duration {
        if self.commits.in_flight.is_none() && !self.anything_to_commit() {
            return POLL_EVERY;
        }
        self.commits.next_at().saturating_duration_since(Instant::now()).min(POLL_EVERY)
    }

    /// Takes what waits on the main queue: rebalances, errors, log lines. Always polls at least once, for
    /// that is what `max.poll.interval.ms` asks for.
    pub(super) fn poll_main(&mut self) {
        self.test_hooks();
        let client = Client::clone(&self.client);
        for _ in 0..EVENTS_MAX {
            self.worker.hooks.polls.fetch_add(1, Ordering::Relaxed);
            let polled = client.poll(Duration::ZERO);
            if !std::mem::replace(&mut self.polled, true) {
                tracing::info!(target: "handstamp", "{FIRST_POLL}");
            }
            match polled {
                None if self.main.len() == 0 => return,
                None => {}
                Some(Err(error)) => {
                    if let Some(end) = self.trouble(&error) {
                        self.end = Some(end);
                        return;
                    }
                }
                Some(Ok(_)) => {
                    // Its partition was never cut off from the main queue: go back to what is committed.
                    tracing::error!(target: "handstamp", "a message came outside its lane; building a new client");
                    self.end = Some(End::Rebuild);
                    return;
                }
            }
        }
    }

    fn test_hooks(&self) {
        let stall = self.worker.hooks.stall_ms.swap(0, Ordering::Relaxed);
        if stall > 0 {
            std::thread::sleep(Duration::from_millis(stall));
        }
        if self.worker.hooks.fatal.swap(false, Ordering::Relaxed) {
            ffi::raise_fatal_error(&self.client);
        }
    }

    /// Says now and then that nothing is assigned: after a kill that lasts as long as a session.
    fn say_without_lanes(&mut self, now: Instant) {
        if !self.worker.lanes.ours().is_empty() {
            self.without_lanes = None;
            return;
        }
        let (since, say_at) = *self.without_lanes.get_or_insert((now, now + SAY_WAITING_AFTER));
        if now >= say_at {
            let waiting_s = now.duration_since(since).as_secs();
            tracing::info!(target: "handstamp", waiting_s,
                "waiting for the group to assign partitions: a member that was killed is missed only after its session.timeout.ms (45 s by default)");
            self.without_lanes = Some((since, now + SAY_WAITING_EVERY));
        }
    }

    fn each_second(&mut self, now: Instant) {
        if now < self.next_second {
            return;
        }
        self.next_second = now + EVERY_SECOND;
        self.worker.hooks.ticks.fetch_add(1, Ordering::Relaxed);
        self.say_without_lanes(now);
        let queued = self.say_lag(Owned::settled_to);
        self.worker.hooks.queued.store(u64::try_from(queued).unwrap_or(u64::MAX), Ordering::Relaxed);
        if let Some((code, _)) = self.client.client().fatal_error() {
            tracing::error!(target: "handstamp", %code, "the Kafka client cannot go on; building a new one");
            self.end = Some(End::Rebuild);
        }
    }

    /// Says of each lane how many records lie between that position and the end of the partition, as far as
    /// the client saw it. Returns how many messages wait inside the client library.
    fn say_lag(&mut self, position: fn(&Owned) -> Option<i64>) -> usize {
        let (mut lag, mut queued) = (vec![], 0);
        for id in self.worker.lanes.ours() {
            let lane = self.worker.lanes.lane(id);
            let Some(slot) = self.worker.lanes.slot(id) else { continue };
            let Some(owned) = &slot.owned else { continue };
            queued += owned.queue.len();
            let high = ffi::watermarks(&self.client, &slot.topic, slot.partition).map(|(_, high)| high);
            if let (Some(high), Some(from)) = (high, position(owned)) {
                lag.push((lane, u64::try_from(high - from).unwrap_or(0)));
            }
        }
        if !lag.is_empty() {
            self.worker.say(Control::Lag(lag));
        }
        queued
    }

    /// Something came from the broker: it is not away.
    pub(super) fn broker_answers(&mut self) {
        if std::mem::take(&mut self.told.away) {
            self.worker.notice(Notice::BrokerBack);
            tracing::info!(target: "handstamp", "a Kafka broker answers again");
        }
    }

    /// Leaves the group and drops the client, both within the limit.
    fn leave(mut self, within: Duration) -> Worker {
        let mut deadline = Instant::now() + within;
        self.forget_all();
        let Self { mut worker, client, alive, main, answers, .. } = self;
        if let Err(error) = client.close_queue() {
            tracing::debug!(target: "handstamp", %error, "kafka client: close");
        } else {
            while !client.closed() && Instant::now() < deadline {
                worker.hooks.leaving.fetch_add(1, Ordering::Relaxed);
                if let Some(Err(error)) = client.poll(Duration::from_millis(10))
                    && error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown)
                {
                    deadline = deadline.min(Instant::now() + LEAVE_UNHEARD_WITHIN);
                }
                while let Some(rebalance) = client.context().next_rebalance() {
                    if let Err(error) = super::context::answer(&client, &rebalance) {
                        tracing::debug!(target: "handstamp", %error, "kafka client: assignment at the end");
                    }
                }
            }
            if !client.closed() {
                tracing::warn!(target: "handstamp", "did not leave the Kafka group in time; the broker will notice");
            }
        }
        client.context().let_go();
        drop((main, answers));
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(200));
        end_within(left, move || {
            ffi::destroy(client);
            drop(alive);
        });
        while let Some(command) = worker.next_command() {
            drop(command);
        }
        worker
    }
}

/// Drops a client that is in no group, as [`end_within`] does.
pub(super) fn drop_within<T: Send + 'static>(client: T, within: Duration) {
    end_within(within, move || drop(client));
}

/// Ends a client on a thread of its own and waits for it only so long: the library joins its threads, and
/// one that waits for a dead broker can take its time.
fn end_within(within: Duration, end: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel::<()>();
    let ending = std::thread::Builder::new().name("handstamp-kafka-end".into()).spawn(move || {
        end();
        drop(done);
    });
    if ending.is_ok() {
        let _ = wait.recv_timeout(within);
    }
}
