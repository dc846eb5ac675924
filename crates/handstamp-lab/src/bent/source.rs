//! A source around a source, whose settles come too early or get lost.

use handstamp::{
    Capabilities, Command, Control, Delivery, Disposition, Fingerprint, Notice, Source, SourceError,
    SourcePort,
};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a batch is kept back after it was settled: the position is then sure to be kept.
const SETTLED_FIRST: Duration = Duration::from_millis(600);

/// What is wrong with the settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleBend {
    /// Everything is settled as it is handed over, before it is handled: offset first.
    First,
    /// None arrives; each is told as failed.
    Lost,
}

/// A source that is bent.
pub struct BentSource {
    inner: Box<dyn Source>,
    bend: Option<SettleBend>,
}

impl BentSource {
    /// Around a source; without a bend everything is passed on.
    #[must_use]
    pub fn new(inner: Box<dyn Source>, bend: Option<SettleBend>) -> Self {
        Self { inner, bend }
    }
}

impl std::fmt::Debug for BentSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BentSource").field("bend", &self.bend).finish_non_exhaustive()
    }
}

impl Source for BentSource {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.inner.fingerprint()
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        let Some(bend) = self.bend else { return self.inner.start(port) };
        let SourcePort { deliveries, control, commands, limits } = port;
        let (inner_deliveries, from_inner) = mpsc::channel(1);
        let (inner_control, told) = mpsc::unbounded_channel();
        let (to_inner, inner_commands) = mpsc::unbounded_channel();
        self.inner.start(SourcePort {
            deliveries: inner_deliveries,
            control: inner_control,
            commands: inner_commands,
            limits,
        })?;
        let between =
            Between { bend, from_inner, told, to_inner, deliveries, control, commands, ends: vec![] };
        tokio::spawn(between.run());
        Ok(())
    }
}

struct Between {
    bend: SettleBend,
    from_inner: mpsc::Receiver<Vec<Delivery>>,
    told: mpsc::UnboundedReceiver<Control>,
    to_inner: mpsc::UnboundedSender<Command>,
    deliveries: mpsc::Sender<Vec<Delivery>>,
    control: mpsc::UnboundedSender<Control>,
    commands: mpsc::UnboundedReceiver<Command>,
    ends: Vec<Control>,
}

impl Between {
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    None => return,
                    Some(command) => self.pass_command(command),
                },
                batch = self.from_inner.recv() => match batch {
                    None => return,
                    Some(batch) => if !self.pass_batch(batch).await { return },
                },
                Some(control) = self.told.recv() => self.tell(control),
            }
            // An end is told only behind everything that was handed over before it.
            while !self.ends.is_empty() {
                match self.from_inner.try_recv() {
                    Ok(batch) => {
                        if !self.pass_batch(batch).await {
                            return;
                        }
                    }
                    Err(_) => self.ends.drain(..).for_each(|end| drop(self.control.send(end))),
                }
            }
        }
    }

    fn tell(&mut self, control: Control) {
        match control {
            Control::CaughtUp(_) => self.ends.push(control),
            other => drop(self.control.send(other)),
        }
    }

    fn pass_command(&self, command: Command) {
        match (command, self.bend) {
            // Was settled long ago.
            (Command::Settle(_), SettleBend::First) => {}
            (Command::Settle(_), SettleBend::Lost) => {
                drop(self.control.send(Control::Noticed(Notice::SettleFailed)));
            }
            (other, _) => drop(self.to_inner.send(other)),
        }
    }

    /// A lane is told before its deliveries.
    async fn pass_batch(&mut self, batch: Vec<Delivery>) -> bool {
        while let Ok(control) = self.told.try_recv() {
            self.tell(control);
        }
        if self.bend == SettleBend::First {
            let settles =
                batch.iter().map(|delivery| (delivery.lane, delivery.tag, Disposition::Ack)).collect();
            drop(self.to_inner.send(Command::Settle(settles)));
            // The wrong order, made certain: the position is durable before the handler runs.
            tokio::time::sleep(SETTLED_FIRST).await;
        }
        self.deliveries.send(batch).await.is_ok()
    }
}
