//! Ids that running batches hold, so that two lanes of one process never wait for each other's claim
//! inside the database.
//!
//! A batch takes all its ids at once or none, and waits while another lane holds one of them; so
//! nobody waits while holding.

use crate::message_id::MessageId;
use std::cell::RefCell;
use std::collections::HashSet;
use tokio::sync::Notify;

/// The ids in flight in this process; empty where only one batch runs at a time.
#[derive(Default)]
pub(crate) struct InFlight {
    ids: RefCell<HashSet<MessageId>>,
    changed: Notify,
}

impl InFlight {
    /// Whether no other batch holds one of the ids now.
    pub(crate) fn is_free(&self, ids: &HashSet<MessageId>) -> bool {
        let held = self.ids.borrow();
        !ids.iter().any(|id| held.contains(id))
    }

    /// Takes all of the distinct ids, or none of them.
    fn try_take(&self, ids: &HashSet<MessageId>) -> bool {
        if !self.is_free(ids) {
            return false;
        }
        self.ids.borrow_mut().extend(ids.iter().cloned());
        true
    }

    /// Waits until no other batch holds one of the ids, then holds them all until the guard drops.
    pub(crate) async fn take(&self, ids: HashSet<MessageId>) -> Held<'_> {
        loop {
            // Made before the look, so that a change between both is not missed.
            let changed = self.changed.notified();
            if self.try_take(&ids) {
                return Held { of: self, ids };
            }
            changed.await;
        }
    }
}

/// Ids held by one batch.
pub(crate) struct Held<'a> {
    of: &'a InFlight,
    ids: HashSet<MessageId>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.of.ids.borrow_mut();
        for id in &self.ids {
            held.remove(id);
        }
        drop(held);
        self.of.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn ids(names: &[&str]) -> HashSet<MessageId> {
        names.iter().map(|name| MessageId::try_from(*name).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_batch_waits_while_another_holds_one_of_its_ids() {
        let in_flight = InFlight::default();
        let first = in_flight.take(ids(&["a", "b"])).await;
        let mut second = Box::pin(in_flight.take(ids(&["b", "c"])));
        assert!((&mut second).now_or_never().is_none());
        // It holds nothing meanwhile.
        drop(in_flight.take(ids(&["c"])).await);
        drop(first);
        drop(second.await);
        assert!(in_flight.ids.borrow().is_empty());
    }
}
