//! A store that cannot go on: how long it is waited for, and how often that is said.
//!
//! Authoritative: the error's kind. Nothing is charged to a message here.

use super::batch::Shared;
use crate::delivery::Lane;
use crate::retry::Backoff;
use crate::start::StartStore;
use crate::store::{StoreError, StoreErrorKind};
use std::time::{Duration, Instant};

/// A store that is away, and when that was last said.
pub(crate) struct Outage {
    since: Instant,
    said: Option<Instant>,
}

/// How many lines between two reports of an outage.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Conflicts end by themselves; one that lasts this long is said, and a stop does not wait for its end.
pub(super) const CONFLICT_QUIET: Duration = Duration::from_secs(3);

impl<S: StartStore> Shared<S> {
    /// Waits for the store; false when the lane was taken away, or when the consumer is stopping and the store
    /// is away or a conflict lasts: the batch is then given back.
    pub(super) async fn sleep_for_store(
        &self,
        lane: Lane,
        wait: Duration,
        kind: StoreErrorKind,
        passes: bool,
    ) -> bool {
        if passes && matches!(kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout) {
            return self.sleep(lane, wait).await;
        }
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => false,
            goes_on = self.sleep(lane, wait) => goes_on,
        }
    }

    /// Says that the store cannot go on: at once and then now and then; a conflict only once it lasts.
    pub(crate) fn say_outage(&self, error: &StoreError, batch: &dyn Fn() -> String) {
        let now = Instant::now();
        let conflict = matches!(error.kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout);
        let quiet_for = if conflict { CONFLICT_QUIET } else { Duration::ZERO };
        let mut outage = self.outage.borrow_mut();
        let outage = outage.get_or_insert(Outage { since: now, said: None });
        if now.duration_since(outage.since) < quiet_for {
            tracing::debug!(target: "handstamp", %error, "the transaction runs again");
            return;
        }
        let batch = batch();
        match outage.said {
            None => {
                tracing::warn!(target: "handstamp", %error, %batch, "the store cannot go on; waiting, nothing is charged");
            }
            Some(said) if now.duration_since(said) >= SAY_EVERY => {
                let waiting_s = now.duration_since(outage.since).as_secs();
                tracing::warn!(target: "handstamp", %error, %batch, waiting_s, "still waiting for the store");
            }
            Some(_) => return,
        }
        outage.said = Some(now);
    }

    pub(crate) fn recovered(&self) {
        if let Some(outage) = self.outage.borrow_mut().take().filter(|outage| outage.said.is_some()) {
            let waited_s = outage.since.elapsed().as_secs_f64();
            tracing::info!(target: "handstamp", waited_s, "the store is back");
        }
    }
}

pub(super) fn backoff_for(kind: StoreErrorKind) -> Backoff {
    match kind {
        StoreErrorKind::Conflict | StoreErrorKind::Timeout => Backoff::CONFLICT,
        _ => Backoff::INFRASTRUCTURE,
    }
}
