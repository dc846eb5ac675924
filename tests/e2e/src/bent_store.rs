//! A store with one thing wrong on purpose.

use handstamp::{Claim, ClaimRequest, ConsumerKey, Start, StartStore, StoreError, StoreErrorKind};
use handstamp_lab::bent::{BentStore, StoreBend, begin, begin_without_inbox};
use std::sync::Arc;
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

/// What bends a store.
pub struct Bent {
    bend: Bend,
    commits: AtomicUsize,
}

/// Wraps a store.
pub fn bent<S>(store: S, bend: Bend) -> BentStore<S, Bent> {
    BentStore::new(Arc::new(store), Bent { bend, commits: AtomicUsize::new(0) })
}

/// Dies as SIGKILL does: no destructor, no flush, no goodbye.
fn die() -> ! {
    std::process::abort()
}

impl<S: StartStore> StoreBend<S> for Bent {
    async fn begin(
        &self,
        store: &S,
        key: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
    ) -> Result<(S::Tx, Vec<Claim>), StoreError> {
        match self.bend {
            Bend::NoInbox | Bend::NoInboxDieAfterCommit(_) => {
                begin_without_inbox(store, key, ids, start).await
            }
            _ => begin(store, key, ids, start).await,
        }
    }

    async fn commit(&self, store: &S, tx: S::Tx) -> Result<(), StoreError> {
        let nth = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        match self.bend {
            Bend::DieBeforeCommit(at) if nth == at => die(),
            Bend::FailCommits => {
                store.rollback(tx).await?;
                return Err(StoreError::new(StoreErrorKind::Unavailable, "commit failed on purpose"));
            }
            _ => {}
        }
        store.commit(tx).await?;
        match self.bend {
            Bend::DieAfterCommit(at) | Bend::NoInboxDieAfterCommit(at) if nth == at => die(),
            _ => Ok(()),
        }
    }
}
