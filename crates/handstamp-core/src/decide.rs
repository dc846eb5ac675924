//! One table (pure): what happened to a message × its attempts × the policy → what is done.
//!
//! | outcome | delivered: attempts left in place | then: attempts left | parked: attempts left | none left |
//! |---|---|---|---|---|
//! | ok | apply | apply | apply | apply |
//! | duplicate | skip | skip | skip | skip |
//! | id reused | dead letter, or skip and count | the same | the same | the same |
//! | stale | skip | skip | skip, and it is parked no more | skip, and it is parked no more |
//! | retry, panic, timeout, own SQL failure | again in place | park, with the wait | park again | dead letter |
//! | the same, its lane's waits in place being in vain | again in place at once | the same | the same | the same |
//! | retry after up to a second, waits being in vain | park, with that wait | the same | park again | dead letter |
//! | retry after more than a second | park, with that wait | the same | park again | dead letter |
//! | behind a parked one of its order key | park, nothing charged | the same | the same | the same |
//! | reject | dead letter | dead letter | dead letter | dead letter |
//! | unusable: no handler can be given it | dead letter | dead letter | dead letter | dead letter |
//! | infrastructure fault | run again, nothing charged | the same | the same | the same |
//! | crashed: a process died with it alone | run again alone, nothing charged | the same | the same | `max_crashes` times: dead letter |
//!
//! With `on_failure = "block"` what is delivered is never parked: where the table says park it is tried again in
//! place after that wait, and its lane waits (what is parked already goes on as the table says). None left are
//! also those of a parked message that failed and is older than `max_age`. How many there are depends on the
//! failure's code where the policy names it. Waits in place are in vain where several in a row in one lane helped
//! nobody ([`WaitsInPlace`](crate::retry::WaitsInPlace)): attempts and their number stay, only nobody sleeps. What is behind a failing message does what [`followers`] says.

use crate::retry::{ASKED_MAX, IN_PLACE_MAX, RetryPolicy};
use crate::store::FailureClass;
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
    /// What is applied of its key is as new as it, or newer: nothing ran.
    Stale,
    /// It failed and may be tried again, not before the wait it asked for.
    Retry {
        /// The wait it asked for.
        after: Option<Duration>,
    },
    /// Trying again cannot help.
    Reject,
    /// No handler can be given it: no usable id or version, too large, or not a whole record.
    Unusable,
    /// The handler panicked.
    Panic,
    /// The handler took too long.
    Timeout,
    /// It did not run: another message of its order key is parked.
    Behind,
    /// The store or broker failed, not the message.
    Infrastructure,
    /// Processes died while they handled it alone.
    Crashed {
        /// So many.
        crashes: u32,
    },
}

/// Where a message is while it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Delivered and not settled.
    Delivered,
    /// Parked for so long.
    Parked {
        /// By the store's clock.
        age: Duration,
    },
}

/// Everything that a verdict depends on, beside the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case<'a> {
    /// What happened.
    pub outcome: Outcome,
    /// Failed attempts, this one included.
    pub attempts: u32,
    /// The code of the failure, where the database gave one.
    pub code: Option<&'a str>,
    /// Where it happened.
    pub place: Place,
    /// Whether its lane still waits in place; of no account for one that is parked.
    pub waits: bool,
    /// The jitter: any number.
    pub random: u32,
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
    /// Keep its bytes for a retry after the wait, settle.
    Park {
        /// The wait.
        wait: Duration,
    },
    /// Keep its bytes as a dead letter, settle.
    DeadLetter,
    /// Run the transaction again; nothing is charged.
    RunAgain,
    /// Run it again, alone in its transaction; nothing is charged.
    RunAlone,
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

/// What to do about a message that fails beyond its attempts in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Keep it for a later retry; its lane goes on.
    #[default]
    Park,
    /// Try it again in place; its lane waits.
    Block,
}

/// Whether a failing message may be overtaken by its neighbours of the same lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Messages of a lane are decided in the order delivered; one that is parked is applied later than those
    /// that follow it.
    #[default]
    Partition,
    /// Messages of one key are applied in the order delivered: those behind a parked one are parked too.
    Key,
    /// A failing message is decided after the others of its batch.
    None,
}

/// The rules that `decide` reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// Attempts and waits.
    pub retry: RetryPolicy,
    /// What to do about a reused id.
    pub on_id_reuse: OnIdReuse,
    /// What to do about a message that fails beyond its attempts in place.
    pub on_failure: OnFailure,
}

/// The verdict for a case.
#[must_use]
pub fn decide(case: &Case<'_>, policy: &Policy) -> Verdict {
    match case.outcome {
        Outcome::Ok => Verdict::Apply,
        Outcome::Duplicate | Outcome::Stale => Verdict::Skip,
        Outcome::IdReused => match policy.on_id_reuse {
            OnIdReuse::DeadLetter => Verdict::DeadLetter,
            OnIdReuse::Count => Verdict::Skip,
        },
        Outcome::Retry { after } => failed(case, after, policy),
        Outcome::Panic | Outcome::Timeout => failed(case, None, policy),
        Outcome::Behind => Verdict::Park { wait: Duration::ZERO },
        Outcome::Reject | Outcome::Unusable => Verdict::DeadLetter,
        Outcome::Infrastructure => Verdict::RunAgain,
        Outcome::Crashed { crashes } => match policy.retry.max_crashes {
            1.. if crashes >= policy.retry.max_crashes => Verdict::DeadLetter,
            _ => Verdict::RunAlone,
        },
    }
}

/// The outcome behind a failure of this class, where nobody asked for another one; crashes are counted by whoever asks.
#[must_use]
pub fn outcome_of(class: FailureClass) -> Outcome {
    match class {
        FailureClass::Identity
        | FailureClass::Unreadable
        | FailureClass::TooLarge
        | FailureClass::Version
        | FailureClass::Unmatched
        | FailureClass::Condition => Outcome::Unusable,
        FailureClass::IdReused => Outcome::IdReused,
        FailureClass::Rejected | FailureClass::Binding => Outcome::Reject,
        FailureClass::Rows | FailureClass::Sql | FailureClass::Failed => Outcome::Retry { after: None },
        FailureClass::Panicked => Outcome::Panic,
        FailureClass::TimedOut => Outcome::Timeout,
        FailureClass::Crashed => Outcome::Crashed { crashes: 0 },
        FailureClass::Waiting => Outcome::Behind,
    }
}

/// The verdict for an attempt that failed and may be tried again.
fn failed(case: &Case<'_>, after: Option<Duration>, policy: &Policy) -> Verdict {
    let retry = &policy.retry;
    if case.attempts >= retry.attempts_for(case.code) {
        return Verdict::DeadLetter;
    }
    let immediate = retry.immediate.max(1);
    let backoff = || retry.backoff.full_jitter(case.attempts.saturating_sub(immediate), case.random);
    let later = || after.map_or_else(backoff, |after| after.min(ASKED_MAX));
    match case.place {
        Place::Parked { age } => match retry.max_age {
            Some(max_age) if age >= max_age => Verdict::DeadLetter,
            // The last try is when its time is over, not long after it.
            Some(max_age) => Verdict::Park { wait: later().min(max_age - age) },
            None => Verdict::Park { wait: later() },
        },
        Place::Delivered => {
            let wait = after.unwrap_or(retry.wait.min(IN_PLACE_MAX));
            if case.attempts < immediate && wait <= IN_PLACE_MAX {
                let waits = case.waits || policy.on_failure == OnFailure::Block;
                return match after.filter(|after| !after.is_zero()) {
                    _ if waits => Verdict::RetryInPlace { wait },
                    // What it asked for is kept, elsewhere.
                    Some(after) => Verdict::Park { wait: after },
                    None => Verdict::RetryInPlace { wait: Duration::ZERO },
                };
            }
            match policy.on_failure {
                OnFailure::Park => Verdict::Park { wait: later() },
                OnFailure::Block => Verdict::RetryInPlace { wait: later() },
            }
        }
    }
}

/// What the messages behind a failing one do while it waits for a retry beyond its attempts in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followers {
    /// They are applied before it.
    Overtake,
    /// Those of its key wait behind it; all others are applied before it.
    OfItsKeyWait,
    /// All of its lane wait.
    Wait,
}

/// What the messages behind a failing one do.
#[must_use]
pub fn followers(order: Order, on_failure: OnFailure) -> Followers {
    match (on_failure, order) {
        (OnFailure::Block, _) => Followers::Wait,
        (OnFailure::Park, Order::Key) => Followers::OfItsKeyWait,
        (OnFailure::Park, Order::Partition | Order::None) => Followers::Overtake,
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
            Just(Outcome::Stale),
            proptest::option::of(0_u64..2_000_000_000)
                .prop_map(|ms| Outcome::Retry { after: ms.map(Duration::from_millis) }),
            Just(Outcome::Reject),
            Just(Outcome::Unusable),
            Just(Outcome::Panic),
            Just(Outcome::Timeout),
            Just(Outcome::Behind),
            Just(Outcome::Infrastructure),
            (0_u32..6).prop_map(|crashes| Outcome::Crashed { crashes }),
        ]
    }

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            Just(Place::Delivered),
            (0_u64..1_000_000).prop_map(|s| Place::Parked { age: Duration::from_secs(s) }),
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        let age = proptest::option::of((0_u64..1_000_000).prop_map(Duration::from_secs));
        (0_u32..20, 0_u32..20, age, any::<bool>(), 0_u32..40, 0_u32..4).prop_map(
            |(max_attempts, immediate, max_age, block, own, max_crashes)| {
                let retry = RetryPolicy { max_attempts, immediate, max_age, ..RetryPolicy::default() };
                let mut retry = RetryPolicy { max_crashes, ..retry };
                retry.max_attempts_by_code.insert("23503".into(), own);
                let on_failure = if block { OnFailure::Block } else { OnFailure::Park };
                Policy { retry, on_failure, ..Policy::default() }
            },
        )
    }

    fn may_fail_again(outcome: Outcome) -> bool {
        matches!(outcome, Outcome::Retry { .. } | Outcome::Panic | Outcome::Timeout)
    }

    proptest! {
        #[test]
        fn rules_of_the_table(
            outcome in outcome(), attempts in 1_u32..40, coded in any::<bool>(), place in place(),
            waits in any::<bool>(), random in any::<u32>(), policy in policy(),
        ) {
            let code = coded.then_some("23503");
            let case = Case { outcome, attempts, code, place, waits, random };
            let verdict = decide(&case, &policy);
            let parks = matches!(verdict, Verdict::Park { .. });
            let again = matches!(verdict, Verdict::RetryInPlace { .. });
            // An infrastructure fault never charges, never parks, never dead-letters.
            prop_assert_eq!(outcome == Outcome::Infrastructure, verdict == Verdict::RunAgain);
            // Crashes end by their number alone, and never before.
            if let Outcome::Crashed { crashes } = outcome {
                let most = policy.retry.max_crashes;
                let over = most > 0 && crashes >= most;
                prop_assert_eq!(verdict, if over { Verdict::DeadLetter } else { Verdict::RunAlone });
            }
            // Only Ok applies.
            prop_assert_eq!(outcome == Outcome::Ok, verdict == Verdict::Apply);
            // Only what may pass is tried again, and what waits for its key is only parked.
            prop_assert!(!again || may_fail_again(outcome));
            prop_assert!(!parks || may_fail_again(outcome) || outcome == Outcome::Behind);
            let behind = Verdict::Park { wait: Duration::ZERO };
            prop_assert!(outcome != Outcome::Behind || verdict == behind);
            // Attempts end, by the code where the policy names it.
            let most = policy.retry.attempts_for(code);
            if may_fail_again(outcome) && attempts >= most {
                prop_assert_eq!(verdict, Verdict::DeadLetter);
            }
            match place {
                Place::Delivered => {
                    // A failing lane waits only where it is asked to, and a parked message only where not.
                    let blocks = policy.on_failure == OnFailure::Block;
                    prop_assert!(!may_fail_again(outcome) || !parks || !blocks);
                    if let Verdict::RetryInPlace { wait } = verdict {
                        prop_assert!(blocks || (wait <= IN_PLACE_MAX && attempts < policy.retry.immediate.max(1)));
                        prop_assert!(blocks || waits || wait.is_zero(), "nobody sleeps in vain");
                    }
                }
                Place::Parked { age } => {
                    prop_assert!(!again, "nothing holds a retry worker");
                    let over = policy.retry.max_age.is_some_and(|max_age| age >= max_age);
                    prop_assert!(!over || !may_fail_again(outcome) || verdict == Verdict::DeadLetter);
                }
            }
            // What waits, waits as long as it asked to, or not longer than the cap.
            if let Verdict::Park { wait } | Verdict::RetryInPlace { wait } = verdict {
                match outcome {
                    Outcome::Retry { after: Some(after) } => prop_assert!(wait <= after.min(ASKED_MAX)),
                    _ => prop_assert!(wait <= policy.retry.backoff.cap),
                }
            }
        }

        #[test]
        fn with_the_defaults_two_attempts_are_in_place_and_ten_in_all(random in any::<u32>()) {
            let outcome = Outcome::Retry { after: None };
            let (code, policy) = (None, Policy::default());
            for attempts in 1..=12 {
                let mut delivered = Case { outcome, attempts, code, place: Place::Delivered, waits: false, random };
                let in_vain = decide(&delivered, &policy);
                delivered.waits = true;
                let verdict = decide(&delivered, &policy);
                if attempts > 1 {
                    prop_assert_eq!(in_vain, verdict, "only attempts in place have another wait");
                } else {
                    prop_assert_eq!(in_vain, Verdict::RetryInPlace { wait: Duration::ZERO });
                }
                match attempts {
                    1 => prop_assert_eq!(verdict, Verdict::RetryInPlace { wait: policy.retry.wait }),
                    2..=9 => {
                        let bound = policy.retry.backoff.bound(attempts - 2);
                        let within = matches!(verdict, Verdict::Park { wait } if wait <= bound);
                        prop_assert!(within);
                    }
                    _ => prop_assert_eq!(verdict, Verdict::DeadLetter),
                }
            }
        }
    }

    #[test]
    fn a_wait_of_more_than_a_second_parks_at_once() {
        let case = |after| Case {
            outcome: Outcome::Retry { after: Some(Duration::from_secs(after)) },
            attempts: 1,
            code: None,
            place: Place::Delivered,
            waits: true,
            random: 0,
        };
        let (parks, blocks) =
            (Policy::default(), Policy { on_failure: OnFailure::Block, ..Policy::default() });
        let second = Duration::from_secs(1);
        assert_eq!(decide(&case(1), &parks), Verdict::RetryInPlace { wait: second });
        let in_vain = Case { waits: false, ..case(1) };
        assert_eq!(decide(&in_vain, &parks), Verdict::Park { wait: second }, "not before the wait");
        assert_eq!(decide(&in_vain, &blocks), Verdict::RetryInPlace { wait: second });
        assert_eq!(decide(&case(3600), &parks), Verdict::Park { wait: second * 3600 });
        assert_eq!(decide(&case(3600), &blocks), Verdict::RetryInPlace { wait: second * 3600 });
        assert_eq!(decide(&case(1 << 40), &parks), Verdict::Park { wait: ASKED_MAX });
    }

    #[test]
    fn counting_a_reused_id_keeps_no_dead_letter() {
        let reused = Case {
            outcome: Outcome::IdReused,
            attempts: 0,
            code: None,
            place: Place::Delivered,
            waits: true,
            random: 0,
        };
        let policy = Policy { on_id_reuse: OnIdReuse::Count, ..Policy::default() };
        assert_eq!(decide(&reused, &policy), Verdict::Skip);
        assert_eq!(decide(&reused, &Policy::default()), Verdict::DeadLetter);
    }

    #[test]
    fn only_a_key_or_a_waiting_lane_keeps_an_order() {
        use Followers::*;
        let of = |order| (followers(order, OnFailure::Park), followers(order, OnFailure::Block));
        assert_eq!(of(Order::Partition), (Overtake, Wait));
        assert_eq!(of(Order::Key), (OfItsKeyWait, Wait));
        assert_eq!(of(Order::None), (Overtake, Wait));
    }
}
