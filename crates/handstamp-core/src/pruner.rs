//! A pass over what is old: step after step with pauses, until nothing is left or somebody says stop.
//!
//! Authoritative: the store. What a step answered is done; a pass that was stopped, or whose process was killed, is
//! gone on with by the next one.

use crate::prune_store::PruneStore;
use crate::store::{ConsumerKey, StoreError, StoreErrorKind};
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::Instant;

/// Most rows of one step.
pub const BATCH_MAX: u32 = 10_000;
/// The shortest and the longest pause between two steps.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Steps in a row that lost against another transaction before a pass gives up.
const TRIES_MAX: u32 = 20;

/// What a pass has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Inbox rows.
    pub ids: u64,
    /// Failed attempts of messages that are neither parked nor dead.
    pub attempts: u64,
    /// Transactions in which something went.
    pub batches: u64,
    /// A stop came before the end.
    pub stopped: bool,
}

/// A pass that failed: what it had deleted before, and why it ended.
#[derive(Debug)]
pub struct PassFailed {
    /// What is gone all the same.
    pub pruned: Pruned,
    /// Why.
    pub error: StoreError,
}

/// Deletes what is older, in steps of at most [`BATCH_MAX`]. Between two of them it pauses for `pauses` times what the
/// last one took. `after_each` sees what is deleted so far, after each step, and may end the pass.
///
/// # Errors
/// What the store answered, with what was deleted until then.
pub async fn pass<S: PruneStore>(
    store: &S,
    consumer: &ConsumerKey,
    older_than: Duration,
    pauses: u32,
    mut after_each: impl FnMut(&Pruned) -> ControlFlow<()>,
) -> Result<Pruned, PassFailed> {
    let mut pruned = Pruned::default();
    let mut cursor = None;
    let mut ids_left = true;
    let mut conflicts = 0;
    loop {
        let began = Instant::now();
        let step = async {
            if ids_left {
                let step = store.prune_ids(consumer, older_than, BATCH_MAX, cursor.as_ref()).await?;
                return Ok((step.deleted, 0, step.next));
            }
            Ok((0, store.prune_attempts(consumer, older_than, BATCH_MAX).await?, None))
        };
        match step.await {
            Ok((ids, attempts, next)) => {
                conflicts = 0;
                pruned.ids += ids;
                pruned.attempts += attempts;
                pruned.batches += u64::from(ids + attempts > 0);
                if !ids_left && attempts < u64::from(BATCH_MAX) {
                    return Ok(pruned);
                }
                ids_left = ids_left && next.is_some();
                cursor = next;
            }
            Err(error) if is_in_the_way(&error) && conflicts < TRIES_MAX => conflicts += 1,
            Err(error) => return Err(PassFailed { pruned, error }),
        }
        if after_each(&pruned).is_break() {
            pruned.stopped = true;
            return Ok(pruned);
        }
        tokio::time::sleep((began.elapsed() * pauses).clamp(PAUSE_MIN, PAUSE_MAX)).await;
    }
}

/// Somebody else's lock was in the way: the step waits for the next turn.
fn is_in_the_way(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout)
}
