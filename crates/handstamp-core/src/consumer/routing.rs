//! What is wanted of a batch before anything of it is begun: the answers of [`BatchHandler::route`] in the engine.
//!
//! Authoritative: the handler, of which the same message always gets the same answer. So a message that is passed
//! over needs no row to be settled: nothing of it can be lost, and whoever gets it again asks again, by what is
//! wanted then. It is settled at once; a cumulative source moves on only once all in front of it are.
//!
//! ```text
//! delivery ─► id, version ─► route ─┬─ run ──────► claimed, handled
//!                                   ├─ reject ───► claimed, a dead letter, no attempt charged
//!                                   └─ pass over ► unmatched, settled; no claim, no row
//! ```
//!
//! What has no usable id, cannot be read or is too large is a dead letter before anybody is asked.

use super::batch::Shared;
use super::item::{End, Failure, Item};
use crate::delivery::{Delivery, Disposition};
use crate::handler::{HandlerError, Route};
use crate::message::Message;
use crate::start::StartStore;
use crate::store::{FailureClass, Reason};
use crate::telemetry::Counts;

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Self {
        let class = error.class.unwrap_or(FailureClass::Rejected);
        Self { class, code: None, reason: Reason::from_error(error.source.as_ref()) }
    }
}

/// Whether a handler gets a message, by its answer; `None`: it is passed over.
pub(super) fn wanted(route: Route) -> Option<Result<(), Failure>> {
    match route {
        Route::Run => Some(Ok(())),
        Route::Reject(error) => Some(Err(error.into())),
        Route::PassOver => None,
    }
}

impl Item {
    /// Asks what becomes of it; true: it is passed over.
    pub(super) fn is_passed_over(&mut self, route: impl FnOnce(&Message) -> Route) -> bool {
        let Some(message) = self.message().filter(|_| self.end().is_none()) else { return false };
        match wanted(route(message)) {
            Some(Ok(())) => false,
            Some(Err(failure)) => {
                self.trouble.get_or_insert_default().end = Some(End::Dead(failure));
                false
            }
            None => true,
        }
    }
}

impl<S: StartStore> Shared<S> {
    /// The items of a turn's batches, without what is passed over.
    pub(super) fn wanted_of(
        &self,
        turn: Vec<Vec<Delivery>>,
        item: impl Fn(Delivery) -> Item,
    ) -> Vec<Vec<Item>> {
        let items = |batch: Vec<Delivery>| {
            let mut items: Vec<Item> = batch.into_iter().map(&item).collect();
            self.pass_over(&mut items);
            items
        };
        turn.into_iter().map(items).collect()
    }

    /// Takes out of a batch what is passed over, counts it and settles it.
    fn pass_over(&self, batch: &mut Vec<Item>) {
        let passed: Vec<Item> =
            batch.extract_if(.., |item| item.is_passed_over(|message| self.handler.route(message))).collect();
        if passed.is_empty() {
            return;
        }
        self.live.add(&Counts { unmatched: passed.len() as u64, ..Counts::default() });
        for item in &passed {
            tracing::debug!(target: "handstamp", "passed over, no effect wants it: {}", item.shown());
        }
        self.settle(&passed, Disposition::Ack);
    }
}
