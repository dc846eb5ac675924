//! The first thing of a run: the consumer's name in the store.

use super::batch::random;
use super::outage::Outage;
use super::{Consumer, RunError};
use crate::retry::Backoff;
use crate::start::StartStore;
use crate::store::{ConsumerKey, StoreErrorKind};
use std::time::Duration;

/// Registers the name, waiting for a store that is away.
pub(super) async fn register<S: StartStore>(consumer: &Consumer<S>) -> Result<ConsumerKey, RunError> {
    let fingerprint = consumer.source.fingerprint();
    let mut tries = 0;
    let away = Outage::default();
    let vitals = consumer.live.vitals();
    loop {
        let error = match consumer.store.register(&consumer.name, &fingerprint, consumer.options.adopt).await
        {
            Ok(key) => {
                vitals.store_answers();
                return Ok(key);
            }
            Err(error) => error,
        };
        let transient = matches!(
            error.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::Timeout
        );
        if !transient || consumer.options.fail_fast {
            return Err(error.into());
        }
        vitals.store_failed(error.kind);
        if away.say(Duration::ZERO).is_some() {
            tracing::warn!(target: "handstamp", %error, "waiting for the store");
        }
        tokio::time::sleep(Backoff::INFRASTRUCTURE.wait(tries, random())).await;
        tries = tries.saturating_add(1);
    }
}
