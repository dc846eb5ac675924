//! Stands where no store is chosen yet, so that `Consumer::builder` needs no type annotation.

use crate::store::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fault, Fingerprint, Recorded, Store,
    StoreCapabilities, StoreError,
};
use std::error::Error;

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
