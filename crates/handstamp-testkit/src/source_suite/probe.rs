//! A stand-in for the engine: takes deliveries, notes what is said, sends commands.

use super::{SourceFeatures, SourceHarness};
use crate::CaseFailure;
use crate::check::ensure;
use handstamp_core::delivery::Settled;
use handstamp_core::source::PortLimits;
use handstamp_core::{Capabilities, Command, Control, Delivery, DeliveryTag, Disposition, Lane, SourcePort};
use std::collections::VecDeque;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// The engine's ends of a port, with what was seen so far.
#[derive(Debug)]
pub struct Probe {
    /// What the source says it can do.
    pub capabilities: Capabilities,
    /// Lanes assigned so far.
    pub assigned: Vec<Lane>,
    /// Lanes asked back so far.
    pub revoking: Vec<Lane>,
    /// Lanes that caught up, and how many deliveries had come then.
    pub caught_up: Vec<(Lane, usize)>,
    /// Answers to settles.
    pub answers: Vec<(Lane, DeliveryTag, Settled)>,
    /// Each batch as it came.
    pub batches: Vec<Vec<Delivery>>,
    /// Deliveries whose lane was not assigned when they came.
    pub unassigned: usize,
    /// True once the source closed the deliveries.
    pub closed: bool,
    features: SourceFeatures,
    came: usize,
    pending: VecDeque<Delivery>,
    deliveries: mpsc::Receiver<Vec<Delivery>>,
    control: mpsc::UnboundedReceiver<Control>,
    commands: Option<mpsc::UnboundedSender<Command>>,
}

/// Limits that are never reached.
pub(super) const WIDE: PortLimits = PortLimits {
    batch_max: 500,
    batch_max_bytes: 1 << 20,
    queue_max_bytes: 8 << 20,
    message_max_bytes: 1 << 20,
};

/// One delivery a batch, so that a source cannot run far ahead of the port.
pub(super) const NARROW: PortLimits = PortLimits { batch_max: 1, ..WIDE };

impl Probe {
    /// Starts one more source of the harness.
    ///
    /// # Errors
    /// When the source refuses to start.
    pub async fn start(harness: &impl SourceHarness, limits: PortLimits) -> Result<Self, CaseFailure> {
        let source = harness.source().await;
        let capabilities = source.capabilities();
        let (delivery_sender, deliveries) = mpsc::channel(1);
        let (control_sender, control) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        source.start(SourcePort {
            deliveries: delivery_sender,
            control: control_sender,
            commands: command_receiver,
            limits,
        })?;
        Ok(Self {
            capabilities,
            assigned: vec![],
            revoking: vec![],
            caught_up: vec![],
            answers: vec![],
            batches: vec![],
            unassigned: 0,
            closed: false,
            features: harness.features(),
            came: 0,
            pending: VecDeque::new(),
            deliveries,
            control,
            commands: Some(commands),
        })
    }

    /// Sends a command.
    pub fn command(&self, command: Command) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }

    /// Settles deliveries all in one way.
    pub fn settle<'a>(&self, deliveries: impl IntoIterator<Item = &'a Delivery>, how: Disposition) {
        self.command(Command::Settle(deliveries.into_iter().map(|d| (d.lane, d.tag, how)).collect()));
    }

    /// Acks deliveries.
    pub fn ack<'a>(&self, deliveries: impl IntoIterator<Item = &'a Delivery>) {
        self.settle(deliveries, Disposition::Ack);
    }

    /// The next so many deliveries.
    ///
    /// # Errors
    /// When they do not come in time.
    pub async fn take(&mut self, count: usize) -> Result<Vec<Delivery>, CaseFailure> {
        let until = Instant::now() + self.features.patience;
        let mut taken = vec![];
        while taken.len() < count {
            if let Some(delivery) = self.pending.pop_front() {
                taken.push(delivery);
            } else {
                let open = self.step(until).await;
                let waiting = open && Instant::now() < until;
                ensure(waiting, || format!("{} of {count} deliveries came", taken.len()))?;
            }
        }
        Ok(taken)
    }

    /// Everything that comes until the source has been quiet for a while.
    pub async fn take_until_quiet(&mut self) -> Vec<Delivery> {
        let mut taken = vec![];
        loop {
            taken.extend(self.pending.drain(..));
            let came = self.came;
            let until = Instant::now() + self.features.quiet;
            while self.came == came {
                if !self.step(until).await || Instant::now() >= until {
                    taken.extend(self.pending.drain(..));
                    return taken;
                }
            }
        }
    }

    /// Waits until something is seen; false when it is not in time.
    pub async fn wait_for(&mut self, seen: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + self.features.patience;
        while !seen(self) {
            if !self.step(until).await || Instant::now() >= until {
                return seen(self);
            }
        }
        true
    }

    /// Listens for as long as a rebalance or a lease allows.
    pub async fn listen_quietly(&mut self) {
        let until = Instant::now() + self.features.quiet;
        while Instant::now() < until && self.step(until).await {}
        tokio::time::sleep_until(until).await;
    }

    /// Notes what the control channel says, without waiting, and reads no delivery.
    pub fn hear(&mut self) {
        while let Ok(control) = self.control.try_recv() {
            self.note(control);
        }
    }

    /// Takes one thing from the port; false when the port is closed or the time is over.
    async fn step(&mut self, until: Instant) -> bool {
        tokio::select! {
            biased;
            Some(control) = self.control.recv() => self.note(control),
            batch = self.deliveries.recv(), if !self.closed => match batch {
                Some(batch) => self.note_batch(batch),
                None => {
                    self.closed = true;
                    self.hear();
                    return false;
                }
            },
            () = tokio::time::sleep_until(until) => return false,
        }
        true
    }

    fn note(&mut self, control: Control) {
        match control {
            Control::Assigned(lanes) => self.assigned.extend(lanes.iter().map(|named| named.lane)),
            Control::Revoking { lanes, .. } => self.revoking.extend(lanes),
            Control::CaughtUp(lanes) => {
                // What was handed over before lies in the port at the latest.
                while let Ok(batch) = self.deliveries.try_recv() {
                    self.note_batch(batch);
                }
                self.caught_up.extend(lanes.into_iter().map(|lane| (lane, self.came)));
            }
            Control::Settled(answers) => self.answers.extend(answers),
            _ => {}
        }
    }

    fn note_batch(&mut self, batch: Vec<Delivery>) {
        // What was said before counts before it; but a lane that caught up did so behind this batch, and
        // noting that takes what lies behind it in the port.
        let mut caught_up = vec![];
        while let Ok(control) = self.control.try_recv() {
            match control {
                Control::CaughtUp(_) => caught_up.push(control),
                _ => self.note(control),
            }
        }
        self.unassigned += batch.iter().filter(|d| !self.assigned.contains(&d.lane)).count();
        self.came += batch.len();
        self.batches.push(batch.clone());
        self.pending.extend(batch);
        for control in caught_up {
            self.note(control);
        }
    }

    /// Asks the source to close and waits for the end of the deliveries; false when it does not come.
    pub async fn close(mut self) -> bool {
        let within = self.features.patience;
        self.command(Command::Close { within });
        let until = Instant::now() + within;
        loop {
            match timeout_at(until, self.deliveries.recv()).await {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Goes away as a dead process does, and waits for the source to see it.
    pub async fn die(mut self) {
        self.commands = None;
        let until = Instant::now() + self.features.patience;
        while let Ok(Some(_)) = timeout_at(until, self.deliveries.recv()).await {}
    }
}
