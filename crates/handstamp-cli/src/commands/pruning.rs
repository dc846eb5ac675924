//! The task beside a run that forgets what is old enough.
//!
//! Authoritative: as for `prune`. Before each pass the brokers and the store are asked again, so a topic that is kept
//! for longer from now on ends the deleting, with a warning. Nothing that goes wrong here ends the run.
//!
//! ```text
//!  wait ─► ask brokers and store ─┬─ refused, or away: said once ──────────────┬─► wait …
//!                                 └─ judged: pass, four parts pause in five ───┘
//! ```

use super::prune;
use crate::backend::{Backend, forgetting};
use crate::config::Config;
use crate::exit::CliError;
use handstamp_core::pruner::{self, Pruned};
use handstamp_core::{Fingerprint, Retention};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// A pass comes as often as a hundredth of what is kept, within these.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(3600);
/// The first one.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// How often what a step took it pauses behind it.
const PAUSES: u32 = 4;

/// Forgets for as long as the run goes on. Never ends by itself.
pub(super) async fn beside<B: Backend>(
    store: Arc<B::Store>,
    config: &Config,
    fingerprint: Fingerprint,
) -> Infallible {
    let Some(retention) = config.retention.filter(|_| config.options.inbox) else {
        return std::future::pending().await;
    };
    let every = (retention.keep / 100).clamp(EVERY_MIN, EVERY_MAX);
    let mut said: Option<String> = None;
    tokio::time::sleep(every.min(FIRST_MAX)).await;
    loop {
        match once::<B>(&store, config, &retention, &fingerprint).await {
            Ok(pruned) => {
                if said.take().is_some() {
                    tracing::info!("old ids are forgotten again");
                }
                if pruned.ids > 0 {
                    let (ids, attempts) = (pruned.ids, pruned.attempts);
                    tracing::info!(ids, attempts, batches = pruned.batches, "old ids are forgotten");
                }
            }
            Err(error) => say(&error, &mut said),
        }
        tokio::time::sleep(every).await;
    }
}

/// The same is not said again and again.
fn say(error: &CliError, said: &mut Option<String>) {
    if said.as_ref() != Some(&error.message) {
        tracing::warn!(
            hint = error.hints.first().map(String::as_str),
            "no ids are forgotten: {}",
            error.message
        );
        *said = Some(error.message.clone());
    }
}

async fn once<B: Backend>(
    store: &B::Store,
    config: &Config,
    retention: &Retention,
    fingerprint: &Fingerprint,
) -> Result<Pruned, CliError> {
    let Some(consumer) = forgetting::key::<B>(store, config, fingerprint).await? else {
        return Ok(Pruned::default());
    };
    if let Err((refusal, _)) = prune::judge::<B>(store, config, retention, Some(&consumer)).await? {
        return Err(prune::refused(&refusal));
    }
    let older_than = retention.delete_after();
    pruner::pass(store, &consumer, older_than, PAUSES, |_| ControlFlow::Continue(()))
        .await
        .map_err(|failed| failed.error.into())
}
