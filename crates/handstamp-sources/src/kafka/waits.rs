//! How long the client library waits before it tries something again: defaults of ours, with the reason, bent
//! to what the user says. The user's own words always go first.

use std::collections::BTreeMap;

/// A number of milliseconds that the user set.
fn said(options: &BTreeMap<String, String>, key: &str) -> Option<u32> {
    options.get(key).and_then(|value| value.trim().parse().ok())
}

/// How long the library waits between two attempts to connect.
///
/// Half of the first wait is also how often it looks for any broker that answers while none does, and such a
/// look does not heed the backoff: with its own 100 ms a client knocks twenty times a second at a
/// broker that is away, for as long as that lasts. The same look finds the group's coordinator at every
/// start and after every loss of it, so a longer wait is paid there: with one second, half a second until
/// partitions are assigned. The longest wait is how much later than the broker we may be back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reconnects {
    first_ms: u32,
    longest_ms: u32,
}

impl Reconnects {
    const FIRST_MS: u32 = 200;
    const LONGEST_MS: u32 = 2000;

    /// The defaults, bent to what the user says of one of the two: the library takes no first wait that is
    /// longer than the longest.
    pub(super) fn new(options: &BTreeMap<String, String>) -> Self {
        let first_ms = said(options, "reconnect.backoff.ms");
        let longest_ms = said(options, "reconnect.backoff.max.ms");
        Self {
            first_ms: first_ms.unwrap_or(Self::FIRST_MS.min(longest_ms.unwrap_or(Self::FIRST_MS))),
            longest_ms: longest_ms.unwrap_or(Self::LONGEST_MS.max(first_ms.unwrap_or(0))),
        }
    }

    pub(super) fn settings(self) -> [(&'static str, String); 2] {
        [
            ("reconnect.backoff.ms", self.first_ms.to_string()),
            ("reconnect.backoff.max.ms", self.longest_ms.to_string()),
        ]
    }
}

/// How long the library waits before it sends a request again that failed.
///
/// A commit that fails with its coordinator (moved, away, cut off) makes the library (2.12.1) forget the
/// coordinator, ask a broker for the new one and put the commit back for this long. The question goes over a
/// connection that carries fetches, and waits behind one that waits for messages: up to `fetch.wait.max.ms`
/// (500 by default). A commit that is due again before the answer waits for the connection to the coordinator,
/// and *finding* the coordinator fails all that waits for it: the commit fails, the coordinator is forgotten,
/// and so on. With the library's own 100 ms a quiet topic goes round like that without a heartbeat until
/// the session has timed out (45 s by default); then all partitions are lost and what was settled since comes
/// again. So a request is sent again only after a fetch is over. One that is due while the coordinator is
/// still away goes round once more.
///
/// The leaders of partitions are looked for as often as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retries {
    first_ms: u32,
    longest_ms: u32,
    leader_ms: u32,
}

impl Retries {
    /// The library's default of `fetch.wait.max.ms`.
    const FETCH_WAIT_MS: u32 = 500;
    /// The library takes no more.
    const MOST_MS: u32 = 300_000;
    const LEADER_MS: u32 = 100;

    /// The defaults, bent to what the user says.
    pub(super) fn new(options: &BTreeMap<String, String>) -> Self {
        let first_ms = said(options, "retry.backoff.ms");
        let longest_ms = said(options, "retry.backoff.max.ms");
        let fetch_ms = said(options, "fetch.wait.max.ms").unwrap_or(0).max(Self::FETCH_WAIT_MS);
        let default_ms = fetch_ms.saturating_mul(2).min(Self::MOST_MS);
        let leader_ms = said(options, "topic.metadata.refresh.fast.interval.ms");
        Self {
            first_ms: first_ms.unwrap_or(default_ms.min(longest_ms.unwrap_or(default_ms))),
            longest_ms: longest_ms.unwrap_or(default_ms.max(first_ms.unwrap_or(0))),
            leader_ms: leader_ms.unwrap_or(Self::LEADER_MS),
        }
    }

    pub(super) fn settings(self) -> [(&'static str, String); 3] {
        [
            ("retry.backoff.ms", self.first_ms.to_string()),
            ("retry.backoff.max.ms", self.longest_ms.to_string()),
            ("topic.metadata.refresh.fast.interval.ms", self.leader_ms.to_string()),
        ]
    }

    /// Whether a retry may come before a fetch is over. The library varies the wait by a fifth.
    pub(super) fn too_soon(options: &BTreeMap<String, String>) -> bool {
        let fetch_ms = said(options, "fetch.wait.max.ms").unwrap_or(Self::FETCH_WAIT_MS);
        let retries = Self::new(options);
        u64::from(retries.first_ms.min(retries.longest_ms)) * 4 / 5 <= u64::from(fetch_ms)
    }
}
