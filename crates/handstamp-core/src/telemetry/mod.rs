//! Every count, metric, report and rate-limited log line of the engine, defined in one place.
//!
//! Per process: `received = applied + duplicate + id_reused + stale + unmatched + dead_lettered +
//! parked + released + pending`, and `pending` is 0 at every exit. Reruns count once. What is taken up again
//! after it was parked, whichever process parked it, is counted apart: `resumed = resumed_applied + resumed_stale +
//! resumed_parked_again + resumed_dead + resumed_released`.
//!
//! Authoritative: the engine's thread, which alone writes, a batch at a time and never a message at a time. Any
//! thread may read; nothing here decides anything.
//!
//! | file | owns |
//! |---|---|
//! | `counts` | what became of messages |
//! | `vitals` | whether the consumer lives, what it waits for, how long things take |
//! | `ready` | why a consumer does no work now |
//! | `histogram` | how often something was how large |
//! | `metrics` | the table of metrics: each name with its kind, unit, labels and meaning |
//! | `samples` | the values of those metrics that the engine has |
//! | `lines` | how many log lines a second |

mod counts;
mod histogram;
mod lines;
pub mod metrics;
mod ready;
mod samples;
mod vitals;

pub use counts::{Counts, LiveCounts};
pub use histogram::{Buckets, Histogram};
pub(crate) use lines::LineLimit;
pub use metrics::{Kind, Label, METRICS, Metric};
pub use ready::Unready;
pub use samples::{Family, LANES_MAX, Series, Value, samples};
pub use vitals::Vitals;

use crate::breaker::BreakerState;
use crate::source::Notice;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The line of a source that asked its broker for messages for the first time: from here on it is polling.
pub const FIRST_POLL: &str = "first poll";

/// Lag of one lane as last told by the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneLag {
    /// `topic[partition]` or path.
    pub name: Arc<str>,
    /// Records behind the settled position.
    pub lag: u64,
}

/// What a run did.
#[derive(Debug, Clone)]
pub struct Report {
    /// How messages ended.
    pub counts: Counts,
    /// Things that happened to the source, by kind.
    pub notices: BTreeMap<Notice, u64>,
    /// Lag of each lane that is still ours, as last told; lanes of which none was told are left out.
    pub lag: Vec<LaneLag>,
    /// Where the handler's breaker stood at the end.
    pub breaker: BreakerState,
    /// How long the run took, waiting included.
    pub took: Duration,
    /// From the first delivery to the last that ended for good: the time that a rate is of.
    pub busy: Duration,
    /// Why it ended.
    pub stopped: crate::consumer::StopReason,
}
