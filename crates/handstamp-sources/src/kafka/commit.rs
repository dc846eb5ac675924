//! Commits: one request in flight, a limit on waiting for its answer, and what each answer means.
//!
//! Authoritative: the broker. It does not check who owns a partition, so a position is only ever sent
//! for lanes of the present epoch, and an answer only counts for the epoch it was sent in.

use super::ffi::Code;
use handstamp_core::Lane;
use std::time::{Duration, Instant};

/// What a commit's code means for its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The broker has it.
    Done,
    /// Not now: keep the position, poll, and commit again while the epoch is the same.
    Keep,
    /// We are out of the group: a revoke follows. Commit nothing more in this epoch.
    Fenced,
    /// The broker will not have it: said and counted, the next position is tried all the same.
    Refused,
}

/// Judges a code. Nothing here is fatal.
pub(super) fn verdict(code: Code) -> Verdict {
    match code.0 {
        // no error, no offset to commit
        0 | -168 => Verdict::Done,
        // unknown member, fenced instance, fenced member epoch, assignment lost
        25 | 82 | 110 | -142 => Verdict::Fenced,
        // offset metadata too large, invalid commit size, group and topic not authorised, unknown topic,
        // invalid group, group id not found, unsupported version, unknown topic id
        12 | 28 | 30 | 29 | 3 | 24 | 69 | 35 | 100 => Verdict::Refused,
        // the rest passes: illegal generation, rebalance in progress, stale member epoch, coordinator
        // loading, away or moved, timed out, transport, an unknown code of a newer broker
        _ => Verdict::Keep,
    }
}

/// A commit that waits for its answer.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) number: usize,
    pub(super) deadline: Instant,
    /// Lane and position of each partition in the request.
    pub(super) positions: Vec<(Lane, i64)>,
}

/// When to commit, and the one request that is out.
#[derive(Debug)]
pub(super) struct Commits {
    every: Duration,
    last_number: usize,
    pub(super) in_flight: Option<InFlight>,
    next_at: Instant,
    failures: u32,
}

impl Commits {
    pub(super) fn new(every: Duration, now: Instant) -> Self {
        Self { every, last_number: 0, in_flight: None, next_at: now, failures: 0 }
    }

    /// Whether a commit may be sent now.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.in_flight.is_none() && now >= self.next_at
    }

    /// When the next one may be sent, or the answer's limit ends.
    pub(super) fn next_at(&self) -> Instant {
        self.in_flight.as_ref().map_or(self.next_at, |one| one.deadline)
    }

    /// Whether what is settled now is not to be committed within that time.
    pub(super) fn may_wait(&self, time: Duration, now: Instant) -> bool {
        self.every > time && self.next_at > now
    }

    /// Do not wait for the interval.
    pub(super) fn soon(&mut self, now: Instant) {
        if self.failures == 0 {
            self.next_at = self.next_at.min(now);
        }
    }

    /// A number for the next request; numbers never come again.
    pub(super) fn number(&mut self) -> usize {
        self.last_number = self.last_number.wrapping_add(1);
        self.last_number
    }

    /// The request was sent.
    pub(super) fn sent(&mut self, request: InFlight, now: Instant) {
        self.in_flight = Some(request);
        self.next_at = now + self.every;
    }

    /// How long to wait before the next try, when the last one failed.
    pub(super) fn failing_wait(&self) -> Option<Duration> {
        (self.failures > 0).then_some(Duration::from_millis(100))
    }

    /// The request's fate is known: waits longer after each failure, at most five seconds.
    pub(super) fn ended(&mut self, well: bool, now: Instant) {
        if well {
            self.failures = 0;
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let wait =
            Duration::from_millis(100).saturating_mul(1 << self.failures.min(6)).min(Duration::from_secs(5));
        self.next_at = self.next_at.max(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_verdict_and_none_is_fatal() {
        for (code, expected) in [
            (0, Verdict::Done),
            (-168, Verdict::Done),
            (25, Verdict::Fenced),
            (110, Verdict::Fenced),
            (-142, Verdict::Fenced),
            (22, Verdict::Keep),
            (27, Verdict::Keep),
            (113, Verdict::Keep),
            (-180, Verdict::Keep),
            (7, Verdict::Keep),
            (-195, Verdict::Keep),
            (-185, Verdict::Keep),
            (14, Verdict::Keep),
            (16, Verdict::Keep),
            (9999, Verdict::Keep),
            (30, Verdict::Refused),
            (3, Verdict::Refused),
        ] {
            assert_eq!(verdict(Code(code)), expected, "{code}");
        }
    }

    #[test]
    fn failures_slow_the_next_try_down_and_a_success_ends_that() {
        let now = Instant::now();
        let mut commits = Commits::new(Duration::ZERO, now);
        for _ in 0..50 {
            commits.ended(false, now);
        }
        assert!(!commits.due(now + Duration::from_secs(4)));
        assert!(commits.due(now + Duration::from_secs(5)));
        commits.soon(now);
        assert!(!commits.due(now), "a failing commit is not hurried");
        commits.ended(true, now);
        commits.soon(now);
        assert!(commits.due(now));
    }
}
