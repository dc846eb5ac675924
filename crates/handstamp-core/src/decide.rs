//! One table (pure): what happened to a message × its attempts × the policy → what is done.
//!
//! | outcome | attempts left | none left |
//! |---|---|---|
//! | ok | apply | apply |
//! | duplicate | skip | skip |
//! | id reused | dead letter, or skip and count | the same |
//! | retry, panic, timeout, own SQL failure | again in place | dead letter |
//! | reject | dead letter | dead letter |
//! | infrastructure fault | run again, nothing charged | the same |

use crate::retry::{IN_PLACE_MAX, RetryPolicy};
use std::time::Duration;

/// What happened to a message in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its effect ran.
    Ok,
    /// Its outcome is durable elsewhere.
    Duplicate,
    /// Its id is known with another body.
    IdReused,
    /// It failed and may be tried again, not before the wait it asked for.
    Retry {
        /// The wait it asked for.
        after: Option<Duration>,
    },
    /// Trying again cannot help.
    Reject,
    /// The handler panicked.
    Panic,
    /// The handler took too long.
    Timeout,
    /// The store or broker failed, not the message.
    Infrastructure,
}

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Commit its effect with its claim, settle.
    Apply,
    /// Nothing to do but settle.
    Skip,
    /// Run it again here after the wait.
    RetryInPlace {
        /// The wait.
        wait: Duration,
    },
    /// Keep its bytes as a dead letter, settle.
    DeadLetter,
    /// Run the transaction again; nothing is charged.
    RunAgain,
}

/// What to do about a reused id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnIdReuse {
    /// Keep the second body as a dead letter.
    #[default]
    DeadLetter,
    /// Only count it.
    Count,
}

/// The rules that `decide` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// Attempts and waits.
    pub retry: RetryPolicy,
    /// What to do about a reused id.
    pub on_id_reuse: OnIdReuse,
}

/// The verdict for an outcome; `attempts` counts the failed runs, this one included.
#[must_use]
pub fn decide(outcome: Outcome, attempts: u32, policy: &Policy) -> Verdict {
    let again = |after: Option<Duration>| {
        if attempts >= policy.retry.max_attempts {
            Verdict::DeadLetter
        } else {
            Verdict::RetryInPlace { wait: after.unwrap_or(policy.retry.wait).min(IN_PLACE_MAX) }
        }
    };
    match outcome {
        Outcome::Ok => Verdict::Apply,
        Outcome::Duplicate => Verdict::Skip,
        Outcome::IdReused => match policy.on_id_reuse {
            OnIdReuse::DeadLetter => Verdict::DeadLetter,
            OnIdReuse::Count => Verdict::Skip,
        },
        Outcome::Retry { after } => again(after),
        Outcome::Panic | Outcome::Timeout => again(None),
        Outcome::Reject => Verdict::DeadLetter,
        Outcome::Infrastructure => Verdict::RunAgain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            Just(Outcome::Ok),
            Just(Outcome::Duplicate),
            Just(Outcome::IdReused),
            proptest::option::of(0_u64..100_000)
                .prop_map(|ms| Outcome::Retry { after: ms.map(Duration::from_millis) }),
            Just(Outcome::Reject),
            Just(Outcome::Panic),
            Just(Outcome::Timeout),
            Just(Outcome::Infrastructure),
        ]
    }

    proptest! {
        #[test]
        fn rules_of_the_table(outcome in outcome(), attempts in 1_u32..20, max_attempts in 1_u32..20) {
            let policy = Policy {
                retry: RetryPolicy { max_attempts, ..RetryPolicy::default() },
                on_id_reuse: OnIdReuse::DeadLetter,
            };
            let verdict = decide(outcome, attempts, &policy);
            // An infrastructure fault never charges, never dead-letters.
            prop_assert_eq!(outcome == Outcome::Infrastructure, verdict == Verdict::RunAgain);
            // Only Ok applies.
            prop_assert_eq!(outcome == Outcome::Ok, verdict == Verdict::Apply);
            // Attempts end: at the limit nothing is tried again.
            if attempts >= max_attempts {
                let again = matches!(verdict, Verdict::RetryInPlace { .. });
                prop_assert!(!again);
            }
            // A wait in place never holds the lane for longer than a second.
            if let Verdict::RetryInPlace { wait } = verdict {
                prop_assert!(wait <= IN_PLACE_MAX);
                prop_assert!(attempts < max_attempts);
            }
        }
    }

    #[test]
    fn counting_a_reused_id_keeps_no_dead_letter() {
        let policy = Policy { on_id_reuse: OnIdReuse::Count, ..Policy::default() };
        assert_eq!(decide(Outcome::IdReused, 0, &policy), Verdict::Skip);
        assert_eq!(decide(Outcome::IdReused, 0, &Policy::default()), Verdict::DeadLetter);
    }
}
