//! A store around a store: how transactions begin and commit can be bent, everything else is passed on.

use handstamp::parked::{Dedup, FailedAttempt, OrderKey, Park, ParkedStatus, ParkingStore, Resumed, Taken};
use handstamp::{
    Claim, ClaimRequest, Company, ConsumerKey, ConsumerName, DeadLetter, Fault, Fingerprint, LetterStore,
    Lost, Owner, Recorded, Start, StartStore, Starter, Store, StoreCapabilities, StoreError, TakenOver,
    Version, VersionKey, VersionStore,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use tokio::sync::oneshot;

/// An open transaction and the answers to its claims.
type Begun<S> = (<S as Store>::Tx, Vec<Claim>);

/// What is done otherwise; what is not said here is passed on.
pub trait StoreBend<S: StartStore>: Send + Sync + 'static {
    /// As [`Store::begin`], or as [`StartStore::start_and_begin`] where there is a start record.
    ///
    /// # Errors
    /// Those of the store, and what the bend adds.
    fn begin(
        &self,
        store: &S,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
    ) -> impl Future<Output = Result<Begun<S>, StoreError>> + Send {
        begin(store, consumer, ids, start)
    }

    /// As [`Store::commit`].
    ///
    /// # Errors
    /// Those of the store, and what the bend adds.
    fn commit(&self, store: &S, tx: S::Tx) -> impl Future<Output = Result<(), StoreError>> + Send {
        store.commit(tx)
    }

    /// As [`Store::commit_and_begin`], with a start record between both where there is one; opens nothing unless
    /// it is bent to.
    ///
    /// # Errors
    /// Those of `commit`.
    fn commit_and_begin(
        &self,
        store: &S,
        tx: S::Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
        durable: oneshot::Sender<()>,
    ) -> impl Future<Output = Result<Option<Begun<S>>, StoreError>> + Send {
        let _ = (consumer, ids, start);
        async move {
            self.commit(store, tx).await?;
            let _ = durable.send(());
            Ok(None)
        }
    }

    /// Whether parked messages that are taken are written as applied, durably, before they have run.
    fn ends_retries_first(&self) -> bool {
        false
    }
}

/// Begins, behind a start record where there is one.
///
/// # Errors
/// Those of [`Store::begin`].
pub async fn begin<S: StartStore>(
    store: &S,
    consumer: &ConsumerKey,
    ids: &[ClaimRequest],
    start: Option<&Start>,
) -> Result<Begun<S>, StoreError> {
    match start {
        Some(start) => store.start_and_begin(consumer, ids, start).await,
        None => store.begin(consumer, ids).await,
    }
}

/// Begins without asking the inbox: every claim is First and leaves no row.
///
/// # Errors
/// Those of [`Store::begin`].
pub async fn begin_without_inbox<S: StartStore>(
    store: &S,
    consumer: &ConsumerKey,
    ids: &[ClaimRequest],
    start: Option<&Start>,
) -> Result<Begun<S>, StoreError> {
    let (tx, _) = begin(store, consumer, &[], start).await?;
    Ok((tx, vec![Claim::First; ids.len()]))
}

/// A store that is bent.
#[derive(Debug)]
pub struct BentStore<S, B> {
    inner: Arc<S>,
    bend: B,
}

impl<S, B> BentStore<S, B> {
    /// Around a store.
    pub fn new(inner: Arc<S>, bend: B) -> Self {
        Self { inner, bend }
    }
}

impl<S: StartStore, B: StoreBend<S>> Store for BentStore<S, B> {
    type Tx = S::Tx;

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

    async fn begin(&self, consumer: &ConsumerKey, ids: &[ClaimRequest]) -> Result<Begun<S>, StoreError> {
        self.bend.begin(&self.inner, consumer, ids, None).await
    }

    async fn record(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        rows: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.inner.record(tx, consumer, rows).await
    }

    async fn commit(&self, tx: S::Tx) -> Result<(), StoreError> {
        self.bend.commit(&self.inner, tx).await
    }

    async fn commit_and_begin(
        &self,
        tx: S::Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        durable: oneshot::Sender<()>,
    ) -> Result<Option<Begun<S>>, StoreError> {
        self.bend.commit_and_begin(&self.inner, tx, consumer, ids, None, durable).await
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

impl<S: StartStore, B: StoreBend<S>> BentStore<S, B> {
    /// What was taken, or what is left of it where retries are ended first.
    async fn taken(
        &self,
        consumer: &ConsumerKey,
        taken: Option<Taken<S::Tx>>,
    ) -> Result<Option<Taken<S::Tx>>, StoreError> {
        match taken {
            Some(taken) if self.bend.ends_retries_first() => self.end_first(consumer, taken).await.map(Some),
            taken => Ok(taken),
        }
    }

    /// Commits that these are applied, and opens the transaction in which they are yet to be.
    async fn end_first(
        &self,
        consumer: &ConsumerKey,
        (mut tx, rows): Taken<S::Tx>,
    ) -> Result<Taken<S::Tx>, StoreError> {
        let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
        self.inner.resume(&mut tx, consumer, &outcomes).await?;
        self.inner.commit(tx).await?;
        let (tx, _) = self.inner.begin(consumer, &[]).await?;
        Ok((tx, rows))
    }
}

impl<S: StartStore, B: StoreBend<S>> ParkingStore for BentStore<S, B> {
    async fn park(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        rows: &[Park],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.inner.park(tx, consumer, rows).await
    }

    async fn note_attempts(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        attempts: &[(Dedup, FailedAttempt)],
    ) -> Result<(), StoreError> {
        self.inner.note_attempts(tx, consumer, attempts).await
    }

    async fn parked_keys(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        keys: &[OrderKey],
    ) -> Result<Vec<bool>, StoreError> {
        self.inner.parked_keys(tx, consumer, keys).await
    }

    async fn take_due(&self, consumer: &ConsumerKey, max: usize) -> Result<Option<Taken<S::Tx>>, StoreError> {
        let taken = self.inner.take_due(consumer, max).await?;
        self.taken(consumer, taken).await
    }

    async fn take_again(&self, consumer: &ConsumerKey, keys: &[Dedup]) -> Result<Taken<S::Tx>, StoreError> {
        self.inner.take_again(consumer, keys).await
    }

    async fn savepoint(&self, tx: &mut S::Tx) -> Result<(), StoreError> {
        self.inner.savepoint(tx).await
    }

    async fn take_back(&self, tx: &mut S::Tx) -> Result<(), StoreError> {
        self.inner.take_back(tx).await
    }

    async fn resume(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        outcomes: &[(Dedup, Resumed)],
    ) -> Result<(), StoreError> {
        if self.bend.ends_retries_first() {
            return Ok(());
        }
        self.inner.resume(tx, consumer, outcomes).await
    }

    async fn parked_status(&self, consumer: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
        self.inner.parked_status(consumer).await
    }
}

impl<S: StartStore, B: StoreBend<S>> LetterStore for BentStore<S, B> {
    async fn kept_letters(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.inner.kept_letters(consumer, keys).await
    }
}

impl<S: StartStore, B: StoreBend<S>> VersionStore for BentStore<S, B> {
    async fn raise_marks(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        versions: &BTreeMap<VersionKey, Version>,
    ) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
        self.inner.raise_marks(tx, consumer, versions).await
    }
}

impl<S: StartStore, B: StoreBend<S>> StartStore for BentStore<S, B> {
    async fn start_and_begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
    ) -> Result<Begun<S>, StoreError> {
        self.bend.begin(&self.inner, consumer, ids, Some(start)).await
    }

    async fn commit_start_and_begin(
        &self,
        tx: S::Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<Begun<S>>, StoreError> {
        self.bend.commit_and_begin(&self.inner, tx, consumer, ids, Some(start), durable).await
    }

    async fn take_over(
        &self,
        consumer: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
    ) -> Result<TakenOver, StoreError> {
        self.inner.take_over(consumer, by, lanes).await
    }

    async fn end_starts(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lanes: Option<&[Arc<str>]>,
    ) -> Result<(), StoreError> {
        self.inner.end_starts(consumer, owner, lanes).await
    }

    async fn withdraw(
        &self,
        consumer: &ConsumerKey,
        owner: &Owner,
        lost: Lost<'_>,
    ) -> Result<(), StoreError> {
        self.inner.withdraw(consumer, owner, lost).await
    }

    async fn forget(&self, consumer: &ConsumerKey, passed: &[(Arc<str>, Owner)]) -> Result<(), StoreError> {
        self.inner.forget(consumer, passed).await
    }

    async fn absolve(
        &self,
        tx: &mut S::Tx,
        consumer: &ConsumerKey,
        decided: &[Dedup],
    ) -> Result<(), StoreError> {
        self.inner.absolve(tx, consumer, decided).await
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
        company: Company,
    ) -> Result<Option<Taken<S::Tx>>, StoreError> {
        let taken = self.inner.start_due(consumer, max, by, company).await?;
        self.taken(consumer, taken).await
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> Result<Taken<S::Tx>, StoreError> {
        self.inner.start_again(consumer, keys, by, company).await
    }
}
