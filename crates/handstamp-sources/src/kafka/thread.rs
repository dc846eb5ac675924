//! The one thread that owns the client: it polls at least ten times a second, whatever the engine does,
//! and never processes a message.
//!
//! ```text
//! wait for the topics ─► open a client ─► serve ─► close
//!          ▲                                │
//!          └──── fatal client error ────────┘
//! ```
//!
//! Authoritative: the broker, for what is ours and what is committed. The clock here decides waiting times
//! only.

use super::assignment::Lanes;
use super::config::KafkaOptions;
use super::hooks::Hooks;
use super::outbox::Outbox;
use super::session::Session;
use super::start::{Plan, wait_for_topics};
use super::wake::Wake;
use handstamp_core::source::PortLimits;
use handstamp_core::{Command, Control, DeliveryTag, Lane, Notice, Settled, SourceError, SourcePort};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

/// The longest time between two polls.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(100);
/// How often a lasting trouble is said again.
pub(super) const SAY_EVERY: Duration = Duration::from_secs(10);

/// Why a client's service ended.
#[derive(Debug)]
pub(super) enum End {
    /// Asked to, or the engine is gone.
    Closed,
    /// Cannot go on by itself.
    Failed(SourceError),
    /// This client cannot go on; a new one can.
    Rebuild,
}

/// What lives longer than one client.
pub(super) struct Worker {
    pub(super) options: Arc<KafkaOptions>,
    pub(super) hooks: Arc<Hooks>,
    pub(super) limits: PortLimits,
    pub(super) outbox: Outbox,
    pub(super) wake: Arc<Wake>,
    pub(super) waker: Waker,
    pub(super) lanes: Lanes,
    /// When the engine wants everything to be over.
    pub(super) closing: Option<Instant>,
    /// Nobody listens any more.
    pub(super) engine_gone: bool,
    control: mpsc::UnboundedSender<Control>,
    commands: mpsc::UnboundedReceiver<Command>,
}

impl Worker {
    fn new(options: Arc<KafkaOptions>, hooks: Arc<Hooks>, port: SourcePort) -> Self {
        let wake = Wake::for_this_thread();
        Self {
            options,
            hooks,
            limits: port.limits,
            outbox: Outbox::new(port.deliveries),
            waker: Waker::from(Arc::clone(&wake)),
            wake,
            lanes: Lanes::default(),
            closing: None,
            engine_gone: false,
            control: port.control,
            commands: port.commands,
        }
    }

    /// Tells the engine something; an engine that is gone is noticed by the commands' end.
    pub(super) fn say(&self, control: Control) {
        let _ = self.control.send(control);
    }

    pub(super) fn notice(&self, notice: Notice) {
        self.say(Control::Noticed(notice));
    }

    /// Answers settles.
    pub(super) fn settled(&self, answers: Vec<(Lane, DeliveryTag, Settled)>) {
        if !answers.is_empty() {
            self.say(Control::Settled(answers));
        }
    }

    /// The next command that is there. When there is none, its coming does not wake the thread.
    pub(super) fn waiting_command(&mut self) -> Option<Command> {
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.engine_gone = true;
                None
            }
        }
    }

    /// The next command that is there. When there is none, its coming wakes the thread.
    pub(super) fn next_command(&mut self) -> Option<Command> {
        match self.commands.poll_recv(&mut TaskContext::from_waker(&self.waker)) {
            Poll::Ready(Some(command)) => Some(command),
            Poll::Ready(None) => {
                self.engine_gone = true;
                None
            }
            Poll::Pending => None,
        }
    }

    /// Whether the thread has to end.
    pub(super) fn ending(&self) -> bool {
        self.closing.is_some() || self.engine_gone
    }

    /// Waits without a client: commands can only ask to end, everything else is of an old epoch.
    pub(super) fn wait_idle(&mut self, at_most: Duration) {
        let until = Instant::now() + at_most;
        loop {
            while let Some(command) = self.next_command() {
                self.command_while_idle(command);
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.ending() || left.is_zero() {
                return;
            }
            self.wake.wait(left);
        }
    }

    fn command_while_idle(&mut self, command: Command) {
        match command {
            Command::Close { within } => self.closing = Some(Instant::now() + within),
            Command::Settle(settles) => {
                self.notice(Notice::SettleStale);
                self.settled(settles.into_iter().map(|(lane, tag, _)| (lane, tag, Settled::Stale)).collect());
            }
            _ => {}
        }
    }
}

/// Runs until the end of the source. Dropping the worker closes the port.
pub(super) fn run(options: Arc<KafkaOptions>, hooks: Arc<Hooks>, port: SourcePort) {
    let mut worker = Worker::new(options, hooks, port);
    let mut rebuilt = 0_u32;
    loop {
        let Some(plan) = topics(&mut worker) else { return };
        let opened = Instant::now();
        let end = match Session::open(worker, plan) {
            Ok(session) => {
                let (back, end) = session.run();
                worker = back;
                end
            }
            Err((back, error)) => {
                worker = *back;
                End::Failed(error)
            }
        };
        match end {
            End::Closed => return,
            End::Failed(error) => {
                tracing::error!(target: "handstamp", %error, "kafka source ends");
                worker.say(Control::Failed(error));
                return;
            }
            End::Rebuild => {
                rebuilt =
                    if opened.elapsed() > Duration::from_secs(60) { 0 } else { rebuilt.saturating_add(1) };
                worker.hooks.rebuilt.fetch_add(1, Ordering::Relaxed);
                worker.notice(Notice::ClientRebuilt);
                let wait = Duration::from_millis(250).saturating_mul(1 << rebuilt.min(7));
                worker.wait_idle(wait.min(Duration::from_secs(30)));
                if worker.ending() {
                    return;
                }
            }
        }
    }
}

/// The plan, or `None` when the source ends before there is one.
fn topics(worker: &mut Worker) -> Option<Plan> {
    match wait_for_topics(worker) {
        Ok(plan) => plan,
        Err(error) => {
            tracing::error!(target: "handstamp", %error, "kafka source ends");
            worker.say(Control::Failed(error));
            None
        }
    }
}
