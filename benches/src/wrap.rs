//! Bench-only stores around a real one: marks of time, and no claim.
//!
//! The time of a run is from the first `begin` to the return of the last `commit`, on our side and on
//! the bare loops' side alike: joining a group and starting up are measured elsewhere.

use crate::harness::{Sample, float};
use handstamp::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fault, Fingerprint, Recorded, Store,
    StoreCapabilities, StoreError,
};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// A store whose transactions are marked; without `claim` it asks the inbox nothing and takes every
/// message for new, as a consumer without an inbox does.
pub(crate) struct Marked<S> {
    store: S,
    marks: Arc<Marks>,
    claim: bool,
}

impl<S> Marked<S> {
    /// Wraps a store.
    pub(crate) fn new(store: S, marks: Arc<Marks>, claim: bool) -> Self {
        Self { store, marks, claim }
    }
}

impl<S: Store> Store for Marked<S> {
    type Tx = S::Tx;

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    async fn register(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
    ) -> Result<ConsumerKey, StoreError> {
        self.store.register(name, fingerprint, adopt).await
    }

    async fn begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
    ) -> Result<(S::Tx, Vec<Claim>), StoreError> {
        self.marks.begun();
        let begun = if self.claim {
            self.store.begin(consumer, ids).await?
        } else {
            (self.store.begin(consumer, &[]).await?.0, vec![Claim::First; ids.len()])
        };
        self.marks.claimed();
        Ok(begun)
    }

    async fn record(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.store.record(tx, consumer, rows).await
    }

    async fn commit(&self, tx: S::Tx) -> Result<(), StoreError> {
        self.marks.committing();
        let committed = self.store.commit(tx).await;
        if committed.is_ok() {
            self.marks.committed();
        }
        committed
    }

    async fn rollback(&self, tx: S::Tx) -> Result<(), StoreError> {
        self.store.rollback(tx).await
    }

    async fn abandon(&self, tx: S::Tx) {
        self.store.abandon(tx).await;
    }

    fn classify(&self, tx: &S::Tx, error: &(dyn Error + 'static)) -> Option<Fault> {
        self.store.classify(tx, error)
    }
}
