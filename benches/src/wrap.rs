//! Marks of time around a real store's transactions, and a store without claims.
//!
//! The time of a run is from the first `begin` to the return of the last `commit`, on our side and on
//! the bare loops' side alike: joining a group and starting up are measured elsewhere.

use crate::harness::{Sample, float};
use handstamp::{Claim, ClaimRequest, ConsumerKey, Start, StartStore, StoreError};
use handstamp_lab::bent::{BentStore, StoreBend, begin, begin_without_inbox};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// When the first transaction began and the last one was committed.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    first: Mutex<Option<(Instant, SystemTime)>>,
    last: Mutex<Option<(Instant, SystemTime)>>,
    commits: AtomicU64,
    phases: Phases,
}

/// Nanoseconds spent in the phases of all transactions together.
#[derive(Debug, Default)]
struct Phases {
    /// When the phase that runs now began, as nanoseconds since the first begin; only exact for one
    /// transaction at a time.
    since: AtomicU64,
    between: AtomicU64,
    begin: AtomicU64,
    work: AtomicU64,
    commit: AtomicU64,
}

impl Marks {
    /// A transaction begins now.
    pub(crate) fn begun(&self) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| (Instant::now(), SystemTime::now()));
        drop(first);
        self.phase(&self.phases.between);
    }

    /// Its claims are answered now.
    pub(crate) fn claimed(&self) {
        self.phase(&self.phases.begin);
    }

    /// Its effects are done and checked, its commit is asked for now.
    pub(crate) fn committing(&self) {
        self.phase(&self.phases.work);
    }

    fn phase(&self, ended: &AtomicU64) {
        let Some((first, _)) = *self.first.lock().unwrap_or_else(PoisonError::into_inner) else { return };
        let now = u64::try_from(first.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let since = self.phases.since.swap(now, Ordering::Relaxed);
        ended.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
    }

    /// Writes the mean time of each phase into a sample, in microseconds a transaction.
    pub(crate) fn phases(&self, sample: &mut Sample) {
        let each =
            |phase: &AtomicU64| float(phase.load(Ordering::Relaxed)) / 1e3 / float(self.commits().max(1));
        sample.set("between_us", each(&self.phases.between)).set("begin_us", each(&self.phases.begin));
        sample.set("work_us", each(&self.phases.work)).set("commit_us", each(&self.phases.commit));
    }

    /// A transaction was committed now.
    pub(crate) fn committed(&self) {
        self.phase(&self.phases.commit);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), SystemTime::now()));
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// Transactions committed.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// From the first begin to the last commit.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let first = (*self.first.lock().unwrap_or_else(PoisonError::into_inner))?;
        let last = (*self.last.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(last.0.duration_since(first.0).as_secs_f64())
    }

    /// First begin and last commit as time since 1970, to be compared across processes.
    pub(crate) fn span(&self) -> Option<(Duration, Duration)> {
        let first = (*self.first.lock().unwrap_or_else(PoisonError::into_inner))?;
        let last = (*self.last.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some((first.1.duration_since(UNIX_EPOCH).ok()?, last.1.duration_since(UNIX_EPOCH).ok()?))
    }
}

/// What marks a store's transactions.
pub(crate) struct Mark {
    marks: Arc<Marks>,
    claim: bool,
}

/// A store whose transactions are marked.
pub(crate) type Marked<S> = BentStore<S, Mark>;

/// Wraps a store; without `claim` it asks the inbox nothing and takes every message for new, as a consumer
/// without an inbox does.
pub(crate) fn marked<S>(store: S, marks: Arc<Marks>, claim: bool) -> Marked<S> {
    BentStore::new(Arc::new(store), Mark { marks, claim })
}

impl<S: StartStore> StoreBend<S> for Mark {
    async fn begin(
        &self,
        store: &S,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
    ) -> Result<(S::Tx, Vec<Claim>), StoreError> {
        self.marks.begun();
        let begun = if self.claim {
            begin(store, consumer, ids, start).await?
        } else {
            begin_without_inbox(store, consumer, ids, start).await?
        };
        self.marks.claimed();
        Ok(begun)
    }

    async fn commit(&self, store: &S, tx: S::Tx) -> Result<(), StoreError> {
        self.marks.committing();
        let committed = store.commit(tx).await;
        if committed.is_ok() {
            self.marks.committed();
        }
        committed
    }

    async fn commit_and_begin(
        &self,
        store: &S,
        tx: S::Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<(S::Tx, Vec<Claim>)>, StoreError> {
        self.marks.committing();
        let asked = if self.claim { ids } else { &[] };
        let next = match start {
            Some(start) => store.commit_start_and_begin(tx, consumer, asked, start, durable).await?,
            None => store.commit_and_begin(tx, consumer, asked, durable).await?,
        };
        self.marks.committed();
        let Some((tx, claims)) = next else { return Ok(None) };
        self.marks.begun();
        self.marks.claimed();
        Ok(Some((tx, if self.claim { claims } else { vec![Claim::First; ids.len()] })))
    }
}
