//! What only the store knows: how much is parked, for how long, and how much was given up.
//!
//! Asked on a thread of its own by a connection of its own, now and then and the more seldom the longer it takes: no
//! batch waits for it, and a store that is away is left to the engine, which waits for it anyway.

use super::view::View;
use crate::backend::{Backend, Operations, with_backend};
use crate::config::Config;
use crate::exit::CliError;
use handstamp_core::StoreError;
use handstamp_stores::redrive::Backlog;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often the store is asked.
const EVERY: Duration = Duration::from_secs(10);
/// It is asked for at most this part of the time.
const PART: u32 = 20;
/// How soon again, when it did not answer.
const AGAIN: Duration = Duration::from_secs(2);
/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// How often one looks whether the engine has reached the store.
const WAIT: Duration = Duration::from_millis(50);

/// Asks until the run ends.
pub(super) fn look(config: &Config, view: &View, ended: oneshot::Receiver<()>) {
    if let Err(error) = try_look(config, view, ended) {
        tracing::warn!(
            error = error.message,
            "parked messages and dead letters are not counted for /metrics"
        );
    }
}

fn try_look(config: &Config, view: &View, ended: oneshot::Receiver<()>) -> Result<(), CliError> {
    let runtime = crate::commands::runtime()?;
    let local = tokio::task::LocalSet::new();
    with_backend!(config, backend => {
        local.block_on(&runtime, async {
            tokio::select! {
                _ = ended => {}
                () = ask(&backend, config, view) => {}
            }
        });
        Ok(())
    })
}

async fn ask<B: Backend>(backend: &B, config: &Config, view: &View) {
    let mut store = None;
    loop {
        // The engine opens the store first, and makes its tables where that is its task.
        while !view.live().vitals().store_is_up() {
            tokio::time::sleep(WAIT).await;
        }
        let began = Instant::now();
        let wait = match tokio::time::timeout(LIMIT, count(backend, config, &mut store)).await {
            Ok(Ok(backlog)) => {
                view.count(backlog);
                EVERY.max(began.elapsed().saturating_mul(PART))
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store did not count its backlog");
                store = None;
                AGAIN
            }
            Err(_) => {
                store = None;
                LIMIT
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn count<B: Backend>(
    backend: &B,
    config: &Config,
    store: &mut Option<Arc<B::Store>>,
) -> Result<Backlog, StoreError> {
    let store = match store {
        Some(store) => store,
        None => store.insert(backend.existing(config).await?),
    };
    store.backlog(&config.name).await
}
