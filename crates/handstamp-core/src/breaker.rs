//! When a dependency is down, and not the messages (pure): the handler's breaker.
//!
//! Only failures that trying again may cure open it: a handler that asked for a retry, and a timeout. What is a
//! message's own (rejected, no id, a value that does not fit, rows, SQL data and constraints, a panic) is an
//! answer: whatever it says of the message, the handler came to an end with it.
//!
//! ```text
//!            so many different messages in a row fail alike,
//!            or most of many within the window
//!  Closed ───────────────────────────────────────────────────► Open (wait) ─► Probing: one message alone
//!    ▲                                                           ▲               │ fails: twice the wait
//!    │                                                           └───────────────┤ tells nothing: no wait
//!    └───────────────────────────────────────────────────────────────────────────┘ answers
//! ```
//!
//! A message that fails again and again is one message. Of a batch that failed for an unknown message its first one
//! is suspected: while the batch is taken apart that stays the same message, and whatever of it commits is an answer.
//!
//! A parked message has failed before: that its retry fails is no news of the dependency, and never opens it. That its
//! retry works is news: it ends a row, and as a probe it closes.
//!
//! Time is what the caller says: a duration since a start of its own. Memory is bounded by the policy and the window.

use crate::store::FailureClass;
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
            wait_max: Duration::from_secs(10),
        }
    }
}

/// Which run of a message it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// As it was delivered.
    Delivered,
    /// A retry out of its parked row.
    Parked,
}

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BreakerState {
    /// Everything may begin.
    #[default]
    Closed,
    /// Nothing may.
    Open,
    /// One message is tried.
    Probing,
}

impl BreakerState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::Probing];

    /// The word for outputs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Probing => "probing",
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Duration, wait: Duration },
    Probing { wait: Duration },
}

/// Slices of the window, so that it slides without a record for each message.
const SLICES: u32 = 30;
/// Messages remembered so that one that fails again and again counts once in a window.
const COUNTED_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    number: u64,
    failed: u32,
    answered: u32,
}

/// The breaker of one consumer in one process.
#[derive(Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// Different messages that failed in a row with one class.
    row: Vec<u64>,
    row_class: FailureClass,
    /// Messages whose failure a slice of the window counts already, with its number, the oldest first.
    counted: VecDeque<(u64, u64)>,
    slices: VecDeque<Slice>,
}

impl Breaker {
    /// A closed one.
    #[must_use]
    pub fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: State::Closed,
            row: Vec::new(),
            row_class: FailureClass::Failed,
            counted: VecDeque::new(),
            slices: VecDeque::new(),
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::Probing { .. } => BreakerState::Probing,
        }
    }

    /// What may begin now. After [`May::Probe`] the caller runs one message alone and says what came of it.
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

    /// How long until something may begin; `None` while a probe is under way.
    #[must_use]
    pub fn opens_in(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::Closed => Some(Duration::ZERO),
            State::Open { until, .. } => Some(until.saturating_sub(now)),
            State::Probing { .. } => None,
        }
    }

    /// Messages whose handler ended well, or failed by their own fault. What began before it opened says nothing
    /// about now.
    pub fn answered(&mut self, messages: u32, now: Duration) {
        if self.state == State::Closed {
            self.row.clear();
            if messages > 0 {
                let slice = self.slice(now);
                slice.answered = slice.answered.saturating_add(messages);
            }
        }
    }

    /// A message's handler failed in a way that may pass; `message` is a hash. Says how long nothing may begin when
    /// that opens it.
    pub fn failed(&mut self, message: u64, class: FailureClass, run: Run, now: Duration) -> Option<Duration> {
        if self.state != State::Closed || run == Run::Parked {
            return None;
        }
        let in_a_row = self.is_row(message, class);
        let length = self.slice_length();
        let oldest = (now.as_nanos() / length).saturating_sub(u128::from(SLICES) - 1);
        while self.counted.front().is_some_and(|(_, number)| u128::from(*number) < oldest) {
            self.counted.pop_front();
        }
        if !self.counted.iter().any(|(known, _)| *known == message) {
            if self.counted.len() == COUNTED_MAX {
                self.counted.pop_front();
            }
            let slice = self.slice(now);
            slice.failed = slice.failed.saturating_add(1);
            let number = slice.number;
            self.counted.push_back((message, number));
        }
        (in_a_row || self.most_fail()).then(|| self.open(self.policy.wait, now))
    }

    /// A batch failed so, and nobody knows for which message; `first` stands for it.
    pub fn suspected(
        &mut self,
        first: u64,
        class: FailureClass,
        run: Run,
        now: Duration,
    ) -> Option<Duration> {
        let opens = self.state == State::Closed && run == Run::Delivered && self.is_row(first, class);
        opens.then(|| self.open(self.policy.wait, now))
    }

    /// The probe answered.
    pub fn probe_answered(&mut self, now: Duration) {
        if let State::Probing { .. } = self.state {
            self.state = State::Closed;
            self.slices.clear();
            self.counted.clear();
            self.answered(1, now);
        }
    }

    /// The probe failed in a way that may pass: how long nothing may begin now.
    pub fn probe_failed(&mut self, now: Duration) -> Duration {
        match self.state {
            State::Probing { wait } => {
                self.open(wait.saturating_mul(2).min(self.policy.wait_max.max(self.policy.wait)), now)
            }
            State::Open { until, .. } => until.saturating_sub(now),
            State::Closed => Duration::ZERO,
        }
    }

    /// The probe told nothing: it was a duplicate, was given back, or the store was away. Another may begin at once.
    pub fn probe_left(&mut self, now: Duration) {
        if let State::Probing { wait } = self.state {
            self.state = State::Open { until: now, wait };
        }
    }

    fn open(&mut self, wait: Duration, now: Duration) -> Duration {
        self.state = State::Open { until: now + wait, wait };
        self.row.clear();
        wait
    }

    /// Whether with this one so many different messages in a row have failed alike.
    fn is_row(&mut self, message: u64, class: FailureClass) -> bool {
        if self.policy.in_a_row == 0 {
            return false;
        }
        if self.row_class != class {
            self.row.clear();
            self.row_class = class;
        }
        if !self.row.contains(&message) {
            self.row.push(message);
        }
        self.row.len() >= usize::try_from(self.policy.in_a_row).unwrap_or(usize::MAX)
    }

    fn most_fail(&self) -> bool {
        let (mut failed, mut all) = (0_u64, 0_u64);
        for slice in &self.slices {
            failed += u64::from(slice.failed);
            all += u64::from(slice.failed) + u64::from(slice.answered);
        }
        let percent = u64::from(self.policy.percent);
        percent > 0 && all >= u64::from(self.policy.least.max(1)) && failed * 100 >= percent * all
    }

    fn slice_length(&self) -> u128 {
        (self.policy.window / SLICES).as_nanos().max(1)
    }

    /// The slice of now; those that left the window are dropped.
    fn slice(&mut self, now: Duration) -> &mut Slice {
        let number = u64::try_from(now.as_nanos() / self.slice_length()).unwrap_or(u64::MAX);
        while self.slices.front().is_some_and(|first| first.number + u64::from(SLICES) <= number) {
            self.slices.pop_front();
        }
        if self.slices.back().is_none_or(|last| last.number < number) {
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

    const FAILED: FailureClass = FailureClass::Failed;
    const FRESH: Run = Run::Delivered;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn by_row() -> Breaker {
        Breaker::new(BreakerPolicy { percent: 0, ..BreakerPolicy::default() })
    }

    fn by_rate() -> Breaker {
        Breaker::new(BreakerPolicy { in_a_row: 0, ..BreakerPolicy::default() })
    }

    #[test]
    fn different_messages_in_a_row_open_it_and_one_alone_never_does() {
        let mut breaker = by_row();
        for _ in 0..1_000 {
            assert_eq!(breaker.failed(7, FAILED, FRESH, s(0)), None);
        }
        for message in 8..26 {
            assert_eq!(breaker.failed(message, FAILED, FRESH, s(0)), None);
        }
        assert_eq!(breaker.failed(26, FAILED, FRESH, s(0)), Some(s(1)));
        assert_eq!(breaker.may(s(0)), May::Wait(s(1)));
    }

    #[test]
    fn another_class_or_an_answer_begins_a_new_row() {
        let mut breaker = by_row();
        for message in 0..19 {
            assert_eq!(breaker.failed(message, FAILED, FRESH, s(0)), None);
        }
        for message in 20..39 {
            assert_eq!(breaker.failed(message, FailureClass::TimedOut, FRESH, s(0)), None);
        }
        // Messages that worked in front of one that failed count nowhere yet, but are an answer.
        breaker.answered(0, s(0));
        assert_eq!(breaker.failed(39, FailureClass::TimedOut, FRESH, s(0)), None);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn retries_that_fail_never_open_it_and_neither_hide_nor_end_a_row_of_deliveries() {
        let mut breaker = Breaker::new(BreakerPolicy::default());
        for message in 0..1_000 {
            assert_eq!(breaker.failed(message, FAILED, Run::Parked, s(0)), None, "{message}");
            assert_eq!(breaker.suspected(message, FailureClass::TimedOut, Run::Parked, s(0)), None);
        }
        // Between them twenty deliveries fail, and each of them counts.
        for message in 1_000..1_019 {
            assert_eq!(breaker.failed(message, FAILED, FRESH, s(0)), None, "{message}");
            assert_eq!(breaker.failed(message - 1_000, FailureClass::TimedOut, Run::Parked, s(0)), None);
        }
        assert_eq!(breaker.failed(1_019, FAILED, FRESH, s(0)), Some(s(1)));
        // One that works closes it, whatever it is.
        assert_eq!(breaker.may(s(1)), May::Probe);
        breaker.probe_answered(s(1));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_retry_that_works_ends_a_row() {
        let mut breaker = by_row();
        for message in 0..19 {
            assert_eq!(breaker.failed(message, FAILED, FRESH, s(0)), None);
        }
        breaker.answered(1, s(0));
        assert_eq!(breaker.failed(19, FAILED, FRESH, s(0)), None);
    }

    #[test]
    fn a_batch_that_is_taken_apart_is_one_message_until_its_next_one_fails_too() {
        let mut breaker = by_row();
        for first in 0..19 {
            // Ten times smaller, then known.
            for _ in 0..10 {
                assert_eq!(breaker.suspected(first, FAILED, FRESH, s(0)), None, "{first}");
            }
            assert_eq!(breaker.failed(first, FAILED, FRESH, s(0)), None);
        }
        assert_eq!(breaker.suspected(19, FAILED, FRESH, s(0)), Some(s(1)));
        let mut breaker = by_rate();
        for first in 0..1_000 {
            assert_eq!(
                breaker.suspected(first, FAILED, FRESH, s(0)),
                None,
                "a rate is of messages that are known"
            );
        }
    }

    #[test]
    fn most_of_many_within_the_window_open_it() {
        let mut breaker = by_rate();
        // Old failures have left the window: forty of them, then ten answers and thirty-nine failures.
        for message in 0..40 {
            assert_eq!(breaker.failed(message, FAILED, FRESH, s(0)), None);
        }
        breaker.answered(10, s(40));
        for message in 100..139 {
            assert_eq!(breaker.failed(message, FAILED, FRESH, s(41)), None, "{message}");
            assert_eq!(breaker.failed(message, FailureClass::TimedOut, FRESH, s(41)), None, "it counts once");
        }
        assert_eq!(breaker.failed(139, FAILED, FRESH, s(42)), Some(s(1)));
    }

    #[test]
    fn a_message_counts_again_in_the_next_window() {
        let mut breaker = by_rate();
        for round in 0..3 {
            for message in 0..49 {
                assert_eq!(breaker.failed(message, FAILED, FRESH, s(round * 30)), None, "{message}");
            }
        }
        assert_eq!(breaker.failed(49, FAILED, FRESH, s(60)), Some(s(1)));
    }

    #[test]
    fn a_probe_that_fails_waits_longer_and_one_that_answers_closes() {
        let mut breaker = Breaker::new(BreakerPolicy { in_a_row: 1, ..BreakerPolicy::default() });
        assert_eq!(breaker.failed(1, FAILED, FRESH, s(0)), Some(s(1)));
        let mut now = s(0);
        for wait in [1, 2, 4, 8, 10, 10] {
            // What ran before it opened changes nothing.
            breaker.answered(5, now);
            assert_eq!(breaker.failed(2, FAILED, FRESH, now), None);
            assert_eq!(breaker.may(now), May::Wait(s(wait)));
            now += s(wait);
            assert_eq!(breaker.opens_in(now), Some(s(0)));
            assert_eq!(breaker.may(now), May::Probe);
            assert_eq!(breaker.may(now), May::Hold, "one probe at a time");
            breaker.answered(5, now);
            assert_eq!((breaker.opens_in(now), breaker.state()), (None, BreakerState::Probing));
            breaker.probe_failed(now);
        }
        now += s(10);
        assert_eq!(breaker.may(now), May::Probe);
        breaker.probe_left(now);
        assert_eq!(breaker.may(now), May::Probe, "a probe that told nothing is followed by another");
        breaker.probe_answered(now);
        assert_eq!(breaker.may(now), May::Begin);
    }

    proptest! {
        /// Whatever is told, memory is bounded, and what is closed lets everything begin.
        #[test]
        fn it_is_bounded_and_consistent(steps in proptest::collection::vec((0_u8..7, 0_u64..3_000, any::<bool>()), 1..600)) {
            let mut breaker = Breaker::new(BreakerPolicy::default());
            let mut now = Duration::ZERO;
            for (what, message, timed_out) in steps {
                let class = if timed_out { FailureClass::TimedOut } else { FAILED };
                let run = if message % 3 == 0 { Run::Parked } else { FRESH };
                now += Duration::from_millis(message / 10);
                let before = breaker.state();
                let opened = match what {
                    0 => { breaker.answered(1, now); None }
                    1 => { breaker.probe_left(now); None }
                    2 => { breaker.may(now); None }
                    3 => { breaker.probe_answered(now); None }
                    4 => { breaker.probe_failed(now); None }
                    5 => breaker.suspected(message, class, run, now),
                    _ => breaker.failed(message, class, run, now),
                };
                prop_assert!(breaker.row.len() <= 20 && breaker.counted.len() <= COUNTED_MAX);
                prop_assert!(breaker.slices.len() <= SLICES as usize);
                let opens = before == BreakerState::Closed && breaker.state() != BreakerState::Closed;
                prop_assert!(!opens || run == FRESH);
                prop_assert_eq!(opened.is_some(), opens);
                // Only a probe ends a probe, and only an answer closes.
                if before == BreakerState::Probing && breaker.state() != before {
                    prop_assert!(matches!(what, 1 | 3 | 4));
                }
                if before != BreakerState::Closed && breaker.state() == BreakerState::Closed {
                    prop_assert_eq!(what, 3);
                }
                if breaker.state() == BreakerState::Closed {
                    prop_assert_eq!(breaker.may(now), May::Begin);
                }
            }
        }
    }
}
