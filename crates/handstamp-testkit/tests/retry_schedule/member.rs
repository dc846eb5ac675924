//! One process: it is asked to stop, killed from outside, or dies of what it handles.

use super::workload::Deadly;
use crate::seeded::asked;
use handstamp_core::parked::Dedup;
use handstamp_core::{Consumer, Report, RunError};
use handstamp_testkit::fakes::MemoryStore;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(super) struct Member {
    pub(super) node: String,
    stop: oneshot::Sender<()>,
    /// `None`: it died of what it handled.
    run: JoinHandle<Option<Result<Report, RunError>>>,
}

impl Member {
    /// Runs until it is asked to stop, or until something deadly was handled: then `dies` hears of it, and
    /// everything of the process goes in the middle of what it did.
    pub(super) fn start(
        node: String,
        consumer: Consumer<MemoryStore>,
        deadly: Arc<Deadly>,
        dies: impl FnOnce(Dedup) + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let run = tokio::task::spawn_local(async move {
            let mut run = pin!(consumer.run_local(asked(stopped)));
            let ended = std::future::poll_fn(|context| match run.as_mut().poll(context) {
                _ if deadly.has_struck().is_some() => Poll::Ready(None),
                ended => ended.map(Some),
            });
            let ended = ended.await;
            deadly.has_struck().map(dies);
            ended
        });
        Self { node, stop, run }
    }

    pub(super) fn has_died(&self) -> bool {
        self.run.is_finished()
    }

    /// Asks it to stop. `None`: it died of what it handled before it could.
    pub(super) async fn stop(self) -> Option<Report> {
        // One that died does not hear it.
        let _ = self.stop.send(());
        let ended = self.run.await.expect("a member must not panic");
        ended.map(|ended| ended.expect("a member must not fail"))
    }

    /// Kills it wherever it is.
    pub(super) async fn kill(self) {
        self.run.abort();
        if let Err(error) = self.run.await {
            assert!(error.is_cancelled(), "a member must not panic");
        }
    }
}
