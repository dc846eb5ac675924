//! What seeded schedules share: a generator, a paused clock, and how a process ends.

use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// A small generator (splitmix): the same schedule for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(crate) fn millis(&mut self, bound: usize) -> Duration {
        Duration::from_millis(self.below(bound) as u64)
    }
}

/// Runs on this thread, under a paused clock.
pub(crate) fn paused<T>(body: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, body)
}

/// Completes when a process is asked to stop. A dropped sender is a dead process, which stops nothing.
pub(crate) async fn asked(stop: oneshot::Receiver<()>) {
    if stop.await.is_err() {
        std::future::pending::<()>().await;
    }
}
