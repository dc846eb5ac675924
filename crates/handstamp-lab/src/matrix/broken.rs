//! A consumer broken on purpose: the control that shows that the matrix can fail.
//!
//! Used by the lab's own subject alone; the program's `run` knows nothing of it.

use handstamp::{
    Capabilities, Claim, ClaimRequest, Command, ConsumerKey, ConsumerName, Control, DeadLetter, Delivery,
    Disposition, Fault, Fingerprint, Recorded, Source, SourceError, SourcePort, Store, StoreCapabilities,
    StoreError,
};
use std::error::Error;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a batch is kept back after it was settled: the position is then sure to be kept.
const SETTLED_FIRST: Duration = Duration::from_millis(600);

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// Every claim is first and leaves no row. Must double what was committed and not settled.
    NoInbox,
    /// Everything is settled before it is handled. Must lose what was settled and not committed.
    SettleFirst,
}

impl Broken {
    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoInbox => "no-inbox",
            Self::SettleFirst => "settle-first",
        }
    }

    /// What is broken, in words.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::NoInbox => "without an inbox",
            Self::SettleFirst => "settling before the commit",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::NoInbox, Self::SettleFirst].into_iter().find(|broken| broken.as_str() == name)
    }
}

/// A store that remembers no id.
#[derive(Debug)]
pub struct Forgetful<S> {
    inner: S,
    forgets: bool,
}

impl<S> Forgetful<S> {
    /// Wraps a store; forgets only if that is what is broken.
    pub fn new(inner: S, broken: Broken) -> Self {
        Self { inner, forgets: broken == Broken::NoInbox }
    }
}

impl<S, T> Store for Forgetful<S>
where
    S: std::ops::Deref<Target = T> + Send + Sync + 'static,
    T: Store,
{
    type Tx = T::Tx;

    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> Result<ConsumerKey, StoreError> {
        self.inner.register(name, fingerprint, adopt).await
    }

    async fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(T::Tx, Vec<Claim>), StoreError> {
        if !self.forgets {
            return self.inner.begin(consumer, ids).await;
        }
        let (tx, _) = self.inner.begin(consumer, &[]).await?;
        Ok((tx, vec![Claim::First; ids.len()]))
    }

    async fn record(
        &self,
        tx: &mut T::Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.inner.record(tx, consumer, rows).await
    }

    async fn commit(&self, tx: T::Tx) -> Result<(), StoreError> {
        self.inner.commit(tx).await
    }

    async fn rollback(&self, tx: T::Tx) -> Result<(), StoreError> {
        self.inner.rollback(tx).await
    }

    async fn abandon(&self, tx: T::Tx) {
        self.inner.abandon(tx).await;
    }

    fn classify(&self, tx: &T::Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        self.inner.classify(tx, error)
    }
}

/// A source that settles what it hands over.
pub struct Hasty {
    inner: Box<dyn Source>,
    hasty: bool,
}

impl std::fmt::Debug for Hasty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasty").field("hasty", &self.hasty).finish_non_exhaustive()
    }
}

impl Hasty {
    /// Wraps a source; settles first only if that is what is broken.
    #[must_use]
    pub fn new(inner: Box<dyn Source>, broken: Broken) -> Self {
        Self { inner, hasty: broken == Broken::SettleFirst }
    }
}

impl Source for Hasty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.inner.fingerprint()
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        if !self.hasty {
            return self.inner.start(port);
        }
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
        let between = Between { from_inner, told, to_inner, deliveries, control, commands, ends: vec![] };
        tokio::spawn(between.run());
        Ok(())
    }
}

struct Between {
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
                    // Was settled long ago.
                    Some(Command::Settle(_)) => {}
                    Some(command) => drop(self.to_inner.send(command)),
                },
                batch = self.from_inner.recv() => match batch {
                    None => return,
                    Some(batch) => if !self.pass(batch).await { return },
                },
                Some(control) = self.told.recv() => self.tell(control),
            }
            // An end is told only behind everything that was handed over before it.
            while !self.ends.is_empty() {
                match self.from_inner.try_recv() {
                    Ok(batch) => {
                        if !self.pass(batch).await {
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

    /// A lane is told before its deliveries.
    async fn pass(&mut self, batch: Vec<Delivery>) -> bool {
        while let Ok(control) = self.told.try_recv() {
            self.tell(control);
        }
        let settles = batch.iter().map(|delivery| (delivery.lane, delivery.tag, Disposition::Ack)).collect();
        drop(self.to_inner.send(Command::Settle(settles)));
        tokio::time::sleep(SETTLED_FIRST).await;
        self.deliveries.send(batch).await.is_ok()
    }
}
