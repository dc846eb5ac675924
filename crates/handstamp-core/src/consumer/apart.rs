//! Parked messages one after the other in one transaction, each behind a savepoint: one that fails is taken back alone,
//! and its failure is written together with what the others came to.
//!
//! Authoritative: the transaction, which holds the rows' locks all the time: what failed in it needs not be taken again,
//! and no other process runs it meanwhile.
//!
//! ```text
//! savepoint ─► judge its version ─► handle ─┬─ ends well ─► savepoint: it stays ─► the next one …  ─► written
//!                                           ├─ fails ─► taken back, charged ─────► the next one …  ─► written
//!                                           └─ panics, takes too long ─► the transaction is lost: all of them again
//! a stop, an open breaker, a second is over ─► those not begun are set aside
//! ```

use super::attempt::{Attempt, FailedRun, after_commit_error, after_store_error};
use super::batch::Shared;
use super::gate::Pass;
use super::resume::RETRIES;
use super::row::Row;
use crate::breaker::Run;
use crate::crash_point::CrashPoint;
use crate::start::StartStore;
use crate::store::StoreErrorKind;
use std::time::Duration;
use tokio::time::Instant;

/// Nothing is begun behind this time: what failed is to be durable soon.
const BEGUN_WITHIN: Duration = Duration::from_secs(1);

/// What came of a row.
enum Tried {
    /// What it wrote stays.
    Well,
    /// What it wrote is taken back.
    Failed(FailedRun),
    /// The transaction is to be abandoned.
    Lost(Attempt),
}

impl<S: StartStore> Shared<S> {
    /// Runs what may run of a chunk; the transaction is still open. Those that were not begun are set aside.
    pub(super) async fn run_apart(
        &self,
        mut tx: S::Tx,
        chunk: &mut Vec<Row>,
        aside: &mut Vec<Row>,
    ) -> Result<S::Tx, Attempt> {
        if !chunk.iter().any(Row::may_run) {
            return Ok(tx);
        }
        if let Err(error) = self.store.savepoint(&mut tx).await {
            self.store.abandon(tx).await;
            return Err(after_store_error(error));
        }
        let (began, mut at, mut begun) = (Instant::now(), 0, 0);
        while at < chunk.len() {
            if !chunk[at].may_run() {
                at += 1;
                continue;
            }
            let goes_on = self.goes_on(RETRIES) && self.gate.is_closed() && began.elapsed() < BEGUN_WITHIN;
            if begun > 0 && !goes_on {
                aside.push(chunk.remove(at));
                continue;
            }
            begun += 1;
            match self.try_one(&mut tx, chunk, at).await {
                Tried::Well => at += 1,
                Tried::Failed(run) => {
                    if self.hear_one(chunk, &run) {
                        aside.push(chunk.remove(at));
                    } else {
                        self.charge(&mut chunk[at], run);
                        at += 1;
                    }
                }
                Tried::Lost(attempt) => {
                    self.store.abandon(tx).await;
                    return Err(attempt);
                }
            }
        }
        Ok(tx)
    }

    async fn try_one(&self, tx: &mut S::Tx, chunk: &mut [Row], at: usize) -> Tried {
        let weighed = tokio::select! {
            biased;
            weighed = self.weigh_rows(tx, std::slice::from_mut(&mut chunk[at])) => weighed.map_err(after_store_error),
            () = self.cancelled(RETRIES) => Err(Attempt::Cancelled),
        };
        if let Err(attempt) = weighed {
            return Tried::Lost(attempt);
        }
        let row = &chunk[at];
        if let Ok(message) = row.message.as_ref()
            && row.runs()
        {
            match self.handle(tx, std::slice::from_ref(message), RETRIES).await {
                Some(Ok(())) => {}
                Some(Err(failed)) => {
                    CrashPoint::BeforeRollback.reached();
                    return match self.blame(tx, failed, &[at], |_| row.shown()) {
                        (true, Attempt::Failed(run)) => self.take_back(tx, run).await,
                        (_, attempt) => Tried::Lost(attempt),
                    };
                }
                None => return Tried::Lost(Attempt::Cancelled),
            }
        }
        match self.store.savepoint(tx).await {
            Ok(()) => Tried::Well,
            // An error that it swallowed is found here.
            Err(error) => match after_commit_error(error, &[at]) {
                Attempt::Failed(run) => self.take_back(tx, run).await,
                attempt => Tried::Lost(attempt),
            },
        }
    }

    async fn take_back(&self, tx: &mut S::Tx, run: FailedRun) -> Tried {
        match self.store.take_back(tx).await {
            Ok(()) => Tried::Failed(run),
            Err(error) if error.kind == StoreErrorKind::TransactionEnded => {
                Tried::Lost(after_store_error(error))
            }
            // The transaction is gone; the failure is the message's own all the same.
            Err(error) => {
                tracing::debug!(target: "handstamp", %error, "nothing can be taken back alone");
                Tried::Lost(Attempt::Failed(run))
            }
        }
    }

    /// Tells the breaker of one that failed. True: it is open, and the failure counts for nothing.
    fn hear_one(&self, chunk: &[Row], run: &FailedRun) -> bool {
        let id = |at: usize| chunk[at].parked.letter.id.as_ref();
        self.gate.hear_failure(Pass::FREE, Run::Parked, run, id, |at| chunk[at].shown())
    }
}
