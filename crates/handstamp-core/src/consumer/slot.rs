//! The right to have a transaction open: as many as `concurrency` says, lanes and retry worker together.
//!
//! A turn that waits for long gives its slot away, so that others go on, and takes one again behind those that
//! asked before it. Nobody waits for ids of another turn while it has one.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots of one consumer.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    all: usize,
}

/// A turn's slot, or its wish for one.
#[derive(Debug)]
pub(crate) struct Slot {
    of: Slots,
    permit: Option<OwnedSemaphorePermit>,
}

impl Slots {
    pub(crate) fn new(concurrency: usize) -> Self {
        let all = concurrency.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { free: Arc::new(Semaphore::new(all)), all }
    }

    /// Whether one is free that nobody waits for.
    pub(crate) fn is_free(&self) -> bool {
        self.free.available_permits() > 0
    }

    /// How many there are.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// How many turns have.
    pub(crate) fn taken(&self) -> usize {
        self.all.saturating_sub(self.free.available_permits())
    }

    pub(crate) fn try_take(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(Slot { of: self.clone(), permit: Some(permit) })
    }
}

impl Slot {
    /// Lets another turn have it.
    pub(crate) fn give(&mut self) {
        self.permit = None;
    }

    /// Waits for one, if it has none.
    pub(crate) async fn retake(&mut self) {
        if self.permit.is_none() {
            // Never closed.
            self.permit = Arc::clone(&self.of.free).acquire_owned().await.ok();
        }
    }

    /// Waits for all of them: then no other turn runs. Its own is given first, so that two who want all get them.
    pub(crate) async fn take_whole(&mut self) {
        if !self.is_whole() {
            self.give();
            let all = u32::try_from(self.of.all).unwrap_or(u32::MAX);
            self.permit = Arc::clone(&self.of.free).acquire_many_owned(all).await.ok();
        }
    }

    /// Whether it is all there are.
    pub(crate) fn is_whole(&self) -> bool {
        self.permit.as_ref().is_some_and(|permit| permit.num_permits() == self.of.all)
    }

    /// Lets others have all but one.
    pub(crate) fn share(&mut self) {
        if let Some(permit) = &mut self.permit {
            drop(permit.split(permit.num_permits().saturating_sub(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::{FutureExt, join};
    use std::pin::pin;

    #[tokio::test]
    async fn who_wants_all_waits_for_the_others_and_keeps_them_out() {
        let slots = Slots::new(3);
        let (mut suspect, neighbour) = (slots.try_take().unwrap(), slots.try_take().unwrap());
        assert!(!suspect.is_whole());
        {
            let mut whole = pin!(suspect.take_whole());
            assert_eq!(whole.as_mut().now_or_never(), None, "a neighbour runs");
            assert!(slots.try_take().is_none(), "nobody new begins meanwhile");
            drop(neighbour);
            assert_eq!(whole.as_mut().now_or_never(), Some(()));
        }
        assert!(suspect.is_whole() && slots.try_take().is_none());
        assert_eq!(suspect.take_whole().now_or_never(), Some(()), "it has them already");
        suspect.share();
        assert_eq!((suspect.is_whole(), slots.taken()), (false, 1));
        assert!(slots.try_take().is_some());
    }

    #[tokio::test]
    async fn two_who_want_all_get_them_one_after_the_other() {
        let slots = Slots::new(2);
        let (one, two) = (slots.try_take().unwrap(), slots.try_take().unwrap());
        let alone = async |mut slot: Slot| {
            slot.take_whole().await;
            assert!(slot.is_whole());
            tokio::task::yield_now().await;
            assert_eq!(slots.taken(), 2);
        };
        let both = join(alone(one), alone(two));
        tokio::time::timeout(std::time::Duration::from_secs(10), both).await.expect("neither gets all");
        assert_eq!(slots.taken(), 0);
    }

    #[tokio::test]
    async fn a_wait_for_all_that_is_dropped_holds_nobody_up() {
        let slots = Slots::new(2);
        let (mut one, two) = (slots.try_take().unwrap(), slots.try_take().unwrap());
        assert_eq!(one.take_whole().now_or_never(), None);
        assert_eq!(one.retake().now_or_never(), Some(()));
        drop(two);
        assert_eq!(slots.taken(), 1);
    }

    #[test]
    fn the_only_slot_is_all_of_them() {
        let slot = Slots::new(1).try_take().unwrap();
        assert!(slot.is_whole());
    }
}
