//! Stands where no store is chosen yet, so that `Consumer::builder` needs no type annotation.

use crate::letter_store::LetterStore;
use crate::parked::{Dedup, FailedAttempt, OrderKey, Park, ParkedStatus, ParkingStore, Resumed, Taken};
use crate::start::{Company, Lost, Owner, Start, StartStore, Starter, TakenOver};
use crate::store::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fault, Fingerprint, Recorded, Store,
    StoreCapabilities, StoreError,
};
use crate::version::{Version, VersionKey};
use crate::version_store::VersionStore;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

/// Has no value: no method of it can ever run.
#[derive(Debug, Clone, Copy)]
pub enum NoStore {}

impl Store for NoStore {
    type Tx = Self;

    fn capabilities(&self) -> StoreCapabilities {
        match *self {}
    }

    async fn register(&self, _: &ConsumerName, _: &Fingerprint, _: bool) -> Result<ConsumerKey, StoreError> {
        match *self {}
    }

    async fn begin(&self, _: &ConsumerKey, _: &[ClaimRequest]) -> Result<(Self, Vec<Claim>), StoreError> {
        match *self {}
    }

    async fn record(
        &self,
        _: &mut Self,
        _: &ConsumerKey,
        _: &[DeadLetter],
    ) -> Result<Vec<Recorded>, StoreError> {
        match *self {}
    }

    async fn commit(&self, _: Self) -> Result<(), StoreError> {
        match *self {}
    }

    async fn rollback(&self, _: Self) -> Result<(), StoreError> {
        match *self {}
    }

    async fn abandon(&self, _: Self) {
        match *self {}
    }

    fn classify(&self, _: &Self, _: &(dyn Error + 'static)) -> Option<Fault> {
        match *self {}
    }
}

impl ParkingStore for NoStore {
    async fn park(&self, _: &mut Self, _: &ConsumerKey, _: &[Park]) -> Result<Vec<Recorded>, StoreError> {
        match *self {}
    }

    async fn note_attempts(
        &self,
        _: &mut Self,
        _: &ConsumerKey,
        _: &[(Dedup, FailedAttempt)],
    ) -> Result<(), StoreError> {
        match *self {}
    }

    async fn parked_keys(
        &self,
        _: &mut Self,
        _: &ConsumerKey,
        _: &[OrderKey],
    ) -> Result<Vec<bool>, StoreError> {
        match *self {}
    }

    async fn take_due(&self, _: &ConsumerKey, _: usize) -> Result<Option<Taken<Self>>, StoreError> {
        match *self {}
    }

    async fn take_again(&self, _: &ConsumerKey, _: &[Dedup]) -> Result<Taken<Self>, StoreError> {
        match *self {}
    }

    async fn savepoint(&self, _: &mut Self) -> Result<(), StoreError> {
        match *self {}
    }

    async fn take_back(&self, _: &mut Self) -> Result<(), StoreError> {
        match *self {}
    }

    async fn resume(&self, _: &mut Self, _: &ConsumerKey, _: &[(Dedup, Resumed)]) -> Result<(), StoreError> {
        match *self {}
    }

    async fn parked_status(&self, _: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
        match *self {}
    }
}

impl LetterStore for NoStore {
    async fn kept_letters(
        &self,
        _: &ConsumerKey,
        _: &[Dedup],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        match *self {}
    }
}

impl VersionStore for NoStore {
    async fn raise_marks(
        &self,
        _: &mut Self,
        _: &ConsumerKey,
        _: &BTreeMap<VersionKey, Version>,
    ) -> Result<BTreeMap<VersionKey, Version>, StoreError> {
        match *self {}
    }
}

impl StartStore for NoStore {
    async fn start_and_begin(
        &self,
        _: &ConsumerKey,
        _: &[ClaimRequest],
        _: &Start,
    ) -> Result<(Self, Vec<Claim>), StoreError> {
        match *self {}
    }

    async fn take_over(&self, _: &ConsumerKey, _: &Starter, _: &[Arc<str>]) -> Result<TakenOver, StoreError> {
        match *self {}
    }

    async fn end_starts(&self, _: &ConsumerKey, _: &Owner, _: Option<&[Arc<str>]>) -> Result<(), StoreError> {
        match *self {}
    }

    async fn withdraw(&self, _: &ConsumerKey, _: &Owner, _: Lost<'_>) -> Result<(), StoreError> {
        match *self {}
    }

    async fn forget(&self, _: &ConsumerKey, _: &[(Arc<str>, Owner)]) -> Result<(), StoreError> {
        match *self {}
    }

    async fn absolve(&self, _: &mut Self, _: &ConsumerKey, _: &[Dedup]) -> Result<(), StoreError> {
        match *self {}
    }

    async fn start_due(
        &self,
        _: &ConsumerKey,
        _: usize,
        _: &Starter,
        _: Company,
    ) -> Result<Option<Taken<Self>>, StoreError> {
        match *self {}
    }

    async fn start_again(
        &self,
        _: &ConsumerKey,
        _: &[Dedup],
        _: &Starter,
        _: Company,
    ) -> Result<Taken<Self>, StoreError> {
        match *self {}
    }
}
