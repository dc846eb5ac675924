//! How long to wait (pure): exponential backoff with jitter, for infrastructure and for messages; and whether a lane
//! still waits in place.

use std::collections::BTreeMap;
use std::time::Duration;

/// The longest wait in place for one message; longer waits would hold its partition.
pub const IN_PLACE_MAX: Duration = Duration::from_secs(1);
/// So many waits in place in a row that helped nobody, and a lane leaves them out for a while.
pub const IN_VAIN_MAX: u32 = 3;
/// It leaves them out for so many runs of its messages, good or bad; then one is made again, to see whether it helps.
pub const LEFT_OUT_FOR: u32 = 100;
/// The longest wait that a handler can ask for; a longer one is cut.
pub const ASKED_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Exponential backoff with jitter and a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// First upper bound.
    pub base: Duration,
    /// Largest upper bound.
    pub cap: Duration,
}

impl Backoff {
    /// For a store or broker that is away: back within seconds of its return.
    pub const INFRASTRUCTURE: Self = Self { base: Duration::from_millis(50), cap: Duration::from_secs(3) };
    /// For a transaction that lost a conflict.
    pub const CONFLICT: Self = Self { base: Duration::from_millis(5), cap: Duration::from_millis(500) };

    /// For messages that failed: other messages' retries must not come in waves.
    pub const MESSAGE: Self = Self { base: Duration::from_secs(1), cap: Duration::from_secs(300) };

    /// The largest wait before try `n` (0 is the first repeat).
    #[must_use]
    pub fn bound(&self, n: u32) -> Duration {
        self.base.saturating_mul(1 << n.min(20)).min(self.cap)
    }

    /// The wait before try `n` with full jitter, `random` in `0..=u32::MAX`: anything from nothing to the bound.
    #[must_use]
    pub fn full_jitter(&self, n: u32, random: u32) -> Duration {
        self.bound(n).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// The wait before try `n` (0 is the first repeat), with `random` in 0..=u32::MAX as the jitter:
    /// between half the bound and the bound, so that a wait is never nothing.
    #[must_use]
    pub fn wait(&self, n: u32, random: u32) -> Duration {
        self.bound(n).mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
    }
}

/// The waits in place of one lane. One bad message may wait for what passes at once; where thousands are bad, each
/// of them waiting alone would hold the lane for minutes, and nothing passes by waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitsInPlace {
    /// In a row.
    in_vain: u32,
    left_out_for: u32,
}

impl WaitsInPlace {
    /// A message failed: whether it waits before it is tried again in place.
    pub fn are_made(&mut self) -> bool {
        let made = self.left_out_for == 0;
        self.passed(1);
        made
    }

    /// One that had waited was tried again; whether it was applied then.
    pub fn made(&mut self, helped: bool) {
        if helped {
            *self = Self::default();
        } else if self.in_vain + 1 < IN_VAIN_MAX {
            self.in_vain += 1;
        } else {
            self.left_out_for = LEFT_OUT_FOR;
        }
    }

    /// So many messages ran to an end, applied or failed.
    pub fn passed(&mut self, messages: u32) {
        self.left_out_for = self.left_out_for.saturating_sub(messages);
    }
}

/// A message's policy: how many attempts, the first ones in place, and the waits between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts of a message before it is dead; at least 1.
    pub max_attempts: u32,
    /// Of them in place, one after the other; the first one always is.
    pub immediate: u32,
    /// Wait between attempts in place that asked for none.
    pub wait: Duration,
    /// Wait behind the attempts in place, for one that asked for none: up to the bound, full jitter.
    pub backoff: Backoff,
    /// A parked message that fails after this time is dead, whatever its attempts.
    pub max_age: Option<Duration>,
    /// Processes that may die with a message alone before it is dead; 0: nobody counts, and it is tried for ever.
    pub max_crashes: u32,
    /// Other numbers of attempts for failures with these codes (SQLSTATE or the database's own).
    pub max_attempts_by_code: BTreeMap<String, u32>,
}

impl RetryPolicy {
    /// Attempts before a message that failed with this code is dead; at least 1.
    #[must_use]
    pub fn attempts_for(&self, code: Option<&str>) -> u32 {
        let own = code.and_then(|code| self.max_attempts_by_code.get(code)).copied();
        own.unwrap_or(self.max_attempts).max(1)
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 10,
            immediate: 2,
            wait: Duration::from_millis(50),
            backoff: Backoff::MESSAGE,
            max_age: None,
            max_crashes: 3,
            max_attempts_by_code: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn waits_stay_within_half_and_whole_bound(n in 0_u32..100, random in any::<u32>()) {
            let backoff = Backoff::INFRASTRUCTURE;
            let wait = backoff.wait(n, random);
            prop_assert!(wait <= backoff.cap);
            prop_assert!(wait >= backoff.base / 2);
        }

        #[test]
        fn full_jitter_stays_within_the_bound(n in 0_u32..100, random in any::<u32>()) {
            let backoff = Backoff::MESSAGE;
            prop_assert!(backoff.full_jitter(n, random) <= backoff.bound(n));
            prop_assert!(backoff.bound(n) <= backoff.cap);
            prop_assert!(backoff.bound(n) <= backoff.bound(n + 1));
        }
    }

    #[test]
    fn three_waits_in_vain_and_the_next_hundred_go_without() {
        let mut lane = WaitsInPlace::default();
        // One that helps begins the row anew.
        for helped in [false, false, true, false, false, false] {
            assert!(lane.are_made());
            lane.made(helped);
        }
        for _ in 0..LEFT_OUT_FOR {
            assert!(!lane.are_made());
        }
        // One is tried; in vain again, and a hundred go without, wherever they end.
        assert!(lane.are_made());
        lane.made(false);
        lane.passed(LEFT_OUT_FOR - 1);
        assert!(!lane.are_made() && lane.are_made());
        lane.made(true);
        assert_eq!(lane, WaitsInPlace::default());
    }

    #[test]
    fn waits_grow_to_the_cap() {
        let backoff = Backoff::CONFLICT;
        assert!(backoff.wait(3, u32::MAX) > backoff.wait(0, u32::MAX));
        assert_eq!(backoff.wait(40, u32::MAX), backoff.cap);
    }
    #[test]
    fn a_code_has_its_own_number_of_attempts() {
        let mut policy = RetryPolicy { max_attempts: 0, ..RetryPolicy::default() };
        policy.max_attempts_by_code.insert("23503".into(), 20);
        assert_eq!((policy.attempts_for(Some("23503")), policy.attempts_for(Some("23505"))), (20, 1));
    }
}
