//! A consumer broken on purpose: the control that shows that the matrix can fail.
//!
//! Used by the lab's own subject alone; the program's `run` knows nothing of it.

use crate::bent::{SettleBend, StoreBend, begin, begin_without_inbox};
use handstamp::{Claim, ClaimRequest, ConsumerKey, Start, StartStore, StoreError};
use serde::{Deserialize, Serialize};

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Broken {
    /// Every claim is first and leaves no row. Must double what was committed and not settled.
    NoInbox,
    /// Everything is settled before it is handled. Must lose what was settled and not committed.
    SettleFirst,
    /// A parked message that is taken is written as applied before it has run. Must lose what was taken and not
    /// applied.
    DoneFirst,
}

impl Broken {
    const ALL: [Self; 3] = [Self::NoInbox, Self::SettleFirst, Self::DoneFirst];

    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoInbox => "no-inbox",
            Self::SettleFirst => "settle-first",
            Self::DoneFirst => "done-first",
        }
    }

    /// What is broken, in words.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::NoInbox => "without an inbox",
            Self::SettleFirst => "settling before the commit",
            Self::DoneFirst => "writing a retry as done before it has run",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|broken| broken.as_str() == name)
    }

    /// How its source is bent, if that is what is broken.
    #[must_use]
    pub fn settles(self) -> Option<SettleBend> {
        match self {
            Self::NoInbox | Self::DoneFirst => None,
            Self::SettleFirst => Some(SettleBend::First),
        }
    }
}

impl<S: StartStore> StoreBend<S> for Broken {
    async fn begin(
        &self,
        store: &S,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: Option<&Start>,
    ) -> Result<(S::Tx, Vec<Claim>), StoreError> {
        match self {
            Self::NoInbox => begin_without_inbox(store, consumer, ids, start).await,
            Self::SettleFirst | Self::DoneFirst => begin(store, consumer, ids, start).await,
        }
    }

    fn ends_retries_first(&self) -> bool {
        *self == Self::DoneFirst
    }
}
