//! A store with one thing wrong on purpose.

use handstamp::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fault, Fingerprint, Recorded, Store,
    StoreCapabilities, StoreError, StoreErrorKind,
};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// Nothing.
    None,
    /// Every claim is First and leaves no row: a consumer without an inbox.
    NoInbox,
    /// The process dies before the n-th COMMIT is sent.
    DieBeforeCommit(usize),
    /// The process dies after the n-th COMMIT was answered, before anything is settled.
    DieAfterCommit(usize),
    /// As `DieAfterCommit`, and without an inbox.
    NoInboxDieAfterCommit(usize),
    /// Commits fail, for ever.
    FailCommits,
}

impl Bend {
    /// Reads `none`, `no-inbox`, `die-after-commit:3` …
    pub fn parse(text: &str) -> Self {
        let (word, nth) = text.split_once(':').unwrap_or((text, "1"));
        let nth = nth.parse().unwrap();
        match word {
            "none" => Self::None,
            "no-inbox" => Self::NoInbox,
            "die-before-commit" => Self::DieBeforeCommit(nth),
            "die-after-commit" => Self::DieAfterCommit(nth),
            "no-inbox-die-after-commit" => Self::NoInboxDieAfterCommit(nth),
            "fail-commits" => Self::FailCommits,
            _ => panic!("no such bend: {text}"),
        }
    }
}

/// A store that is bent.
pub struct BentStore<S> {
    inner: S,
    bend: Bend,
    commits: AtomicUsize,
}

impl<S> BentStore<S> {
    pub fn new(inner: S, bend: Bend) -> Self {
        Self { inner, bend, commits: AtomicUsize::new(0) }
    }
}

/// Dies as SIGKILL does: no destructor, no flush, no goodbye.
fn die() -> ! {
    std::process::abort()
}

impl<S: Store> Store for BentStore<S> {
    type Tx = S::Tx;

    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn register(&self, n: &ConsumerName, f: &Fingerprint, a: bool) -> Result<ConsumerKey, StoreError> {
        self.inner.register(n, f, a).await
    }

    async fn begin(
        &self,
        key: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(S::Tx, Vec<Claim>), StoreError> {
        match self.bend {
            Bend::NoInbox | Bend::NoInboxDieAfterCommit(_) => {
                let (tx, _) = self.inner.begin(key, &[]).await?;
                Ok((tx, vec![Claim::First; ids.len()]))
            }
            _ => self.inner.begin(key, ids).await,
        }
    }

    async fn record(
        &self,
        tx: &mut S::Tx,
        k: &ConsumerKey,
        r: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.inner.record(tx, k, r).await
    }

    async fn commit(&self, tx: S::Tx) -> Result<(), StoreError> {
        let nth = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        match self.bend {
            Bend::DieBeforeCommit(at) if nth == at => die(),
            Bend::FailCommits => {
                self.inner.rollback(tx).await?;
                return Err(StoreError::new(StoreErrorKind::Unavailable, "commit failed on purpose"));
            }
            _ => {}
        }
        self.inner.commit(tx).await?;
        match self.bend {
            Bend::DieAfterCommit(at) | Bend::NoInboxDieAfterCommit(at) if nth == at => die(),
            _ => Ok(()),
        }
    }

    async fn rollback(&self, tx: S::Tx) -> Result<(), StoreError> {
        self.inner.rollback(tx).await
    }

    async fn abandon(&self, tx: S::Tx) {
        self.inner.abandon(tx).await;
    }

    fn classify(&self, tx: &S::Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        self.inner.classify(tx, error)
    }
}
