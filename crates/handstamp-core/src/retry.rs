//! How long to wait (pure): full jitter for infrastructure, a short fixed growth for messages.

use std::time::Duration;

/// The longest wait in place for one message; longer waits would hold its partition.
pub const IN_PLACE_MAX: Duration = Duration::from_secs(1);

/// Exponential backoff with full jitter and a cap.
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

    /// The wait before try `n` (0 is the first repeat), with `random` in 0..=u32::MAX as the jitter:
    /// between half the bound and the bound, so that a wait is never nothing.
    #[must_use]
    pub fn wait(&self, n: u32, random: u32) -> Duration {
        let bound = self.base.saturating_mul(1 << n.min(20)).min(self.cap);
        bound.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
    }
}

/// A message's policy: how many attempts, all of them in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts of a message before it is dead; at least 1.
    pub max_attempts: u32,
    /// Wait between attempts that asked for none.
    pub wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 3, wait: Duration::from_millis(50) }
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
    }

    #[test]
    fn waits_grow_to_the_cap() {
        let backoff = Backoff::CONFLICT;
        assert!(backoff.wait(3, u32::MAX) > backoff.wait(0, u32::MAX));
        assert_eq!(backoff.wait(40, u32::MAX), backoff.cap);
    }
}
