//! What cannot go on: how long a store is waited for, and how often it is said that something is away.
//!
//! Authoritative: the error's kind. Nothing is charged to a message here.

use super::batch::Shared;
use crate::delivery::Lane;
use crate::retry::Backoff;
use crate::start::StartStore;
use crate::store::{StoreError, StoreErrorKind};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Something that others need is away: since when, and when that was last said.
#[derive(Default)]
pub(crate) struct Outage(Cell<Option<Since>>);

#[derive(Clone, Copy)]
struct Since {
    began: Instant,
    said: Option<Instant>,
}

impl Outage {
    /// It is away, still. How long it has been, where that is to be said: once behind the quiet time, then now and then.
    pub(super) fn say(&self, quiet_for: Duration) -> Option<Duration> {
        let now = Instant::now();
        let Since { began, said } = self.0.get().unwrap_or(Since { began: now, said: None });
        let says = match said {
            None => now.duration_since(began) >= quiet_for,
            Some(said) => now.duration_since(said) >= SAY_EVERY,
        };
        self.0.set(Some(Since { began, said: if says { Some(now) } else { said } }));
        says.then(|| now.duration_since(began))
    }

    fn was_said(&self) -> bool {
        self.0.get().is_some_and(|since| since.said.is_some())
    }

    /// It is back. How long it was away, where that was said.
    pub(super) fn over(&self) -> Option<Duration> {
        self.0.take().filter(|since| since.said.is_some()).map(|since| since.began.elapsed())
    }
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
        let conflict = matches!(error.kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout);
        let quiet_for = if conflict { CONFLICT_QUIET } else { Duration::ZERO };
        let again = self.outage.was_said();
        let Some(waiting) = self.outage.say(quiet_for) else {
            if !again {
                tracing::debug!(target: "handstamp", %error, "the transaction runs again");
            }
            return;
        };
        self.live.vitals().store_failed(error.kind);
        let batch = batch();
        if again {
            let waiting_s = waiting.as_secs();
            tracing::warn!(target: "handstamp", %error, %batch, waiting_s, "still waiting for the store");
        } else {
            tracing::warn!(target: "handstamp", %error, %batch, "the store cannot go on; waiting, nothing is charged");
        }
    }

    pub(crate) fn recovered(&self) {
        self.live.vitals().store_answers();
        if let Some(waited) = self.outage.over() {
            let waited_s = waited.as_secs_f64();
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
