//! A source whose settles come too early or get lost.

use handstamp::{
    Capabilities, Command, Control, Delivery, Disposition, Fingerprint, Notice, Source, SourceError,
    SourcePort,
};
use std::time::Duration;
use tokio::sync::mpsc;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// Nothing.
    None,
    /// Everything is settled as it is handed over, before it is handled: offset first.
    SettleFirst,
    /// No settle arrives; each is told as failed.
    LoseSettles,
}

impl Bend {
    pub fn parse(text: &str) -> Self {
        match text {
            "none" => Self::None,
            "settle-first" => Self::SettleFirst,
            "lose-settles" => Self::LoseSettles,
            _ => panic!("no such bend: {text}"),
        }
    }
}

/// A source that is bent.
pub struct BentSource {
    inner: Box<dyn Source>,
    bend: Bend,
}

impl BentSource {
    pub fn new(inner: impl Source, bend: Bend) -> Self {
        Self { inner: Box::new(inner), bend }
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
        if self.bend == Bend::None {
            return self.inner.start(port);
        }
        let SourcePort { deliveries, control, commands, limits } = port;
        let (inner_deliveries, from_inner) = mpsc::channel(1);
        let (inner_control, told) = mpsc::unbounded_channel();
        let (to_inner, inner_commands) = mpsc::unbounded_channel();
        let inner = SourcePort {
            deliveries: inner_deliveries,
            control: inner_control,
            commands: inner_commands,
            limits,
        };
        self.inner.start(inner)?;
        let between = Between {
            bend: self.bend,
            from_inner,
            told,
            to_inner,
            deliveries,
            control,
            commands,
            ends: vec![],
        };
        tokio::spawn(between.run());
        Ok(())
    }
}

struct Between {
    bend: Bend,
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
        match command {
            Command::Settle(_) if self.bend == Bend::SettleFirst => {}
            Command::Settle(_) => drop(self.control.send(Control::Noticed(Notice::SettleFailed))),
            other => drop(self.to_inner.send(other)),
        }
    }

    /// A lane is told before its deliveries.
    async fn pass_batch(&mut self, batch: Vec<Delivery>) -> bool {
        while let Ok(control) = self.told.try_recv() {
            self.tell(control);
        }
        if self.bend == Bend::SettleFirst {
            let settles = batch.iter().map(|d| (d.lane, d.tag, Disposition::Ack)).collect();
            drop(self.to_inner.send(Command::Settle(settles)));
            // The wrong order, made certain: the position is durable before the handler runs.
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        self.deliveries.send(batch).await.is_ok()
    }
}
