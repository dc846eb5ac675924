//! When a dependency is down, and not the messages (pure): the handler's breaker.
//!
//! Only failures that trying again may cure are told to it: a handler that asked for a retry, and a timeout. What
//! is a message's own (rejected, no id, a value that does not fit, rows, SQL data and constraints) says nothing
//! about a dependency and is never told.
//!
//! ```text
//!            so many different messages in a row fail alike,
//!            or most of many within the window
//!  Closed ───────────────────────────────────────────────────► Open (wait) ─► Probing: one message alone
//!    ▲                                                           ▲               │ fails: twice the wait
//!    │                                                           └───────────────┤
//!    └───────────────────────────────────────────────────────────────────────────┘ succeeds
//! ```
//!
//! Time is what the caller says: a duration since a start of its own. Memory is bounded by the window.

use std::collections::VecDeque;
use std::time::Duration;

/// When the breaker opens, and how long it stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// So many different messages in a row fail with one class of error; 0 never opens by this.
    pub in_a_row: u32,
    /// At least so many percent of the messages of the window fail; 0 never opens by this.
    pub percent: u32,
    /// … of at least so many messages.
    pub least: u32,
    /// The window.
    pub window: Duration,
    /// The first wait before a probe; doubled by each that fails.
    pub wait: Duration,
    /// The longest wait before a probe.
    pub wait_max: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            in_a_row: 20,
            percent: 80,
            least: 50,
            window: Duration::from_secs(30),
            wait: Duration::from_secs(1),
            wait_max: Duration::from_secs(30),
        }
    }
}

/// What may begin now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// Anything.
    Begin,
    /// One message alone: a probe. Nothing else until its outcome is told.
    Probe,
    /// Nothing, for so long.
    Wait(Duration),
    /// Nothing: a probe is under way.
    Hold,
}

/// What a told outcome changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// Nothing.
    Same,
    /// It opened, or a probe failed: nothing begins for so long.
    Opened(Duration),
    /// A probe succeeded.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Duration, wait: Duration },
    Probing { wait: Duration },
}

/// Slices of the window, so that it slides without a record for each message.
const SLICES: u32 = 30;

#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    number: u64,
    failed: u32,
    succeeded: u32,
}

/// The breaker of one consumer in one process.
#[derive(Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// Different messages that failed in a row with one class, the last ones.
    row: VecDeque<u64>,
    row_class: u64,
    /// Messages whose failure the window counts already.
    counted: VecDeque<u64>,
    slices: VecDeque<Slice>,
}

/// Messages remembered so that one that fails again and again counts once.
const COUNTED_MAX: usize = 1024;

impl Breaker {
    /// A closed one.
    #[must_use]
    pub fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: State::Closed,
            row: VecDeque::new(),
            row_class: 0,
            counted: VecDeque::new(),
            slices: VecDeque::new(),
        }
    }

    /// True while it is not closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// What may begin now. After [`May::Probe`] the caller runs one message alone and tells its outcome, or that
    /// there was none.
    pub fn may(&mut self, now: Duration) -> May {
        match self.state {
            State::Closed => May::Begin,
            State::Open { until, .. } if now < until => May::Wait(until - now),
            State::Open { wait, .. } => {
                self.state = State::Probing { wait };
                May::Probe
            }
            State::Probing { .. } => May::Hold,
        }
    }

    /// Messages whose handler ended well, or failed by their own fault.
    pub fn answered(&mut self, messages: u32, now: Duration) -> Turned {
        self.row.clear();
        match self.state {
            State::Closed => {
                let slice = self.slice(now);
                slice.succeeded = slice.succeeded.saturating_add(messages);
                Turned::Same
            }
            // What began before it opened says nothing about now.
            State::Open { .. } => Turned::Same,
            State::Probing { .. } => {
                self.state = State::Closed;
                self.slices.clear();
                self.counted.clear();
                Turned::Closed
            }
        }
    }

    /// A message's handler failed in a way that may pass; `message` and `class` are hashes.
    pub fn failed(&mut self, message: u64, class: u64, now: Duration) -> Turned {
        match self.state {
            State::Closed => {}
            State::Open { .. } => return Turned::Same,
            State::Probing { wait } => return self.open(now, (wait * 2).min(self.policy.wait_max)),
        }
        if self.row_class != class {
            self.row.clear();
            self.row_class = class;
        }
        if !self.row.contains(&message) {
            self.row.push_back(message);
        }
        if !self.counted.contains(&message) {
            if self.counted.len() == COUNTED_MAX {
                self.counted.pop_front();
            }
            self.counted.push_back(message);
            let slice = self.slice(now);
            slice.failed = slice.failed.saturating_add(1);
        }
        let in_a_row = usize::try_from(self.policy.in_a_row).unwrap_or(usize::MAX);
        if (in_a_row > 0 && self.row.len() >= in_a_row) || self.most_fail() {
            return self.open(now, self.policy.wait);
        }
        Turned::Same
    }

    /// A probe ended without saying anything about the dependency: it was a duplicate, given back, or the store
    /// was away. Another one may begin at once.
    pub fn no_answer(&mut self, now: Duration) {
        if let State::Probing { wait } = self.state {
            self.state = State::Open { until: now, wait };
        }
    }

    fn open(&mut self, now: Duration, wait: Duration) -> Turned {
        self.state = State::Open { until: now + wait, wait };
        self.row.clear();
        Turned::Opened(wait)
    }

    fn most_fail(&self) -> bool {
        let (mut failed, mut all) = (0_u64, 0_u64);
        for slice in &self.slices {
            failed += u64::from(slice.failed);
            all += u64::from(slice.failed) + u64::from(slice.succeeded);
        }
        let percent = u64::from(self.policy.percent);
        percent > 0 && all >= u64::from(self.policy.least.max(1)) && failed * 100 >= percent * all
    }

    /// The slice of now; those that left the window are dropped.
    fn slice(&mut self, now: Duration) -> &mut Slice {
        let length = (self.policy.window / SLICES).as_nanos().max(1);
        let number = u64::try_from(now.as_nanos() / length).unwrap_or(u64::MAX);
        while self.slices.front().is_some_and(|first| first.number + u64::from(SLICES) <= number) {
            self.slices.pop_front();
        }
        if self.slices.back().is_none_or(|last| last.number != number) {
            self.slices.push_back(Slice { number, ..Slice::default() });
        }
        let at = self.slices.len() - 1;
        &mut self.slices[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn different_messages_in_a_row_open_it_and_one_alone_never_does() {
        let mut breaker = Breaker::new(BreakerPolicy { percent: 0, ..BreakerPolicy::default() });
        for _ in 0..1_000 {
            assert_eq!(breaker.failed(7, 1, s(0)), Turned::Same);
        }
        for message in 8..26 {
            assert_eq!(breaker.failed(message, 1, s(0)), Turned::Same);
        }
        assert_eq!(breaker.failed(26, 1, s(0)), Turned::Opened(s(1)));
        assert_eq!(breaker.may(s(0)), May::Wait(s(1)));
    }

    #[test]
    fn another_class_or_a_success_begins_a_new_row() {
        let mut breaker = Breaker::new(BreakerPolicy { percent: 0, ..BreakerPolicy::default() });
        for message in 0..19 {
            assert_eq!(breaker.failed(message, 1, s(0)), Turned::Same);
        }
        assert_eq!(breaker.failed(19, 2, s(0)), Turned::Same);
        for message in 20..38 {
            assert_eq!(breaker.failed(message, 2, s(0)), Turned::Same);
        }
        assert_eq!(breaker.answered(1, s(0)), Turned::Same);
        assert_eq!(breaker.failed(38, 2, s(0)), Turned::Same);
        assert!(!breaker.is_open());
    }

    #[test]
    fn most_of_many_within_the_window_open_it() {
        let policy = BreakerPolicy { in_a_row: 0, ..BreakerPolicy::default() };
        let mut breaker = Breaker::new(policy);
        // Old failures have left the window: forty of them, then ten successes and thirty-nine failures.
        for message in 0..40 {
            assert_eq!(breaker.failed(message, 1, s(0)), Turned::Same);
        }
        assert_eq!(breaker.answered(10, s(40)), Turned::Same);
        for message in 100..139 {
            assert_eq!(breaker.failed(message, 1, s(41)), Turned::Same, "{message}");
        }
        assert_eq!(breaker.failed(139, 1, s(42)), Turned::Opened(s(1)));
    }

    #[test]
    fn a_probe_that_fails_waits_longer_and_one_that_works_closes() {
        let mut breaker = Breaker::new(BreakerPolicy { in_a_row: 1, ..BreakerPolicy::default() });
        assert_eq!(breaker.failed(1, 1, s(0)), Turned::Opened(s(1)));
        // What ran before it opened changes nothing.
        assert_eq!(breaker.answered(5, s(0)), Turned::Same);
        assert_eq!(breaker.failed(2, 1, s(0)), Turned::Same);
        let mut now = s(0);
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(breaker.may(now), May::Wait(s(wait)));
            now += s(wait);
            assert_eq!(breaker.may(now), May::Probe);
            assert_eq!(breaker.may(now), May::Hold, "one probe at a time");
            breaker.failed(3, 1, now);
        }
        now += s(30);
        assert_eq!(breaker.may(now), May::Probe);
        breaker.no_answer(now);
        assert_eq!(breaker.may(now), May::Probe, "a probe that was none is followed by another");
        assert_eq!(breaker.answered(1, now), Turned::Closed);
        assert_eq!(breaker.may(now), May::Begin);
    }

    proptest! {
        /// Whatever is told, memory is bounded, and what is closed lets everything begin.
        #[test]
        fn it_is_bounded_and_consistent(steps in proptest::collection::vec((0_u8..4, 0_u64..3_000, 0_u64..3), 1..600)) {
            let mut breaker = Breaker::new(BreakerPolicy::default());
            let mut now = Duration::ZERO;
            for (what, message, class) in steps {
                now += Duration::from_millis(message);
                match what {
                    0 => drop(breaker.answered(1, now)),
                    1 => breaker.no_answer(now),
                    2 => drop(breaker.may(now)),
                    _ => drop(breaker.failed(message, class, now)),
                }
                prop_assert!(breaker.row.len() <= 20 && breaker.counted.len() <= COUNTED_MAX);
                prop_assert!(breaker.slices.len() <= SLICES as usize);
                if !breaker.is_open() {
                    prop_assert_eq!(breaker.may(now), May::Begin);
                }
            }
        }
    }
}
