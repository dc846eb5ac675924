//! `explain`: what happens to a message that fails, computed by the function that decides for `run`.
//!
//! Authoritative: `handstamp_core::decide`. Every outcome is put through it for every number of attempts, as
//! delivered and as parked; what is printed is what it answered.

use crate::cli::ExplainArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, table};
use handstamp_core::decide::{
    Case, Followers, OnFailure, Outcome, Place, Policy, Verdict, decide, followers,
};
use handstamp_core::retry::RetryPolicy;
use handstamp_core::{ConsumerOptions, Order};
use serde_json::{Value, json};
use std::time::Duration;

/// Attempts told one by one; those of a policy with more are told up to here.
const ATTEMPTS_MAX: u32 = 1000;
/// Every outcome, with how it is called. Those that fail and may be tried again are decided alike.
const OUTCOMES: [(&str, Outcome); 7] = [
    ("applied", Outcome::Ok),
    ("duplicate", Outcome::Duplicate),
    ("id reused", Outcome::IdReused),
    ("failed: error, panic or timeout", Outcome::Retry { after: None }),
    ("rejected", Outcome::Reject),
    ("behind a parked one of its key", Outcome::Behind),
    ("store or broker away", Outcome::Infrastructure),
];

/// Prints it.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn explain(args: &ExplainArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Policy)?;
    if args.json {
        output::print_json(&object(&config))?;
    } else {
        output::print(&text(&config))?;
    }
    Ok(Exit::Ok)
}

/// Attempts that end alike.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    first: u32,
    last: u32,
    /// With the longest wait.
    verdict: Verdict,
}

/// What happens at the first attempt, the second, and so on until the end; waits at their longest.
fn steps(outcome: Outcome, code: Option<&str>, policy: &Policy) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut place = Place::Delivered;
    for attempts in 1..=policy.retry.attempts_for(code).min(ATTEMPTS_MAX) {
        let case = Case { outcome, attempts, code, place, random: u32::MAX };
        let verdict = decide(&case, policy);
        if matches!(verdict, Verdict::Park { .. }) {
            place = Place::Parked { age: Duration::ZERO };
        }
        match steps.last_mut() {
            Some(step) if step.verdict == verdict => step.last = attempts,
            _ => steps.push(Step { first: attempts, last: attempts, verdict }),
        }
        if !matches!(verdict, Verdict::Park { .. } | Verdict::RetryInPlace { .. }) {
            break;
        }
    }
    steps
}

/// The longest time from the first failure to the end of it, handlers left out.
fn longest(steps: &[Step]) -> Duration {
    let of = |step: &Step| match step.verdict {
        Verdict::RetryInPlace { wait } | Verdict::Park { wait } => {
            wait.saturating_mul(step.last - step.first + 1)
        }
        _ => Duration::ZERO,
    };
    steps.iter().map(of).fold(Duration::ZERO, Duration::saturating_add)
}

fn shown(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn words(verdict: Verdict) -> String {
    match verdict {
        Verdict::Apply => "its effects are committed with its id, then it is settled".to_owned(),
        Verdict::Skip => "settled, nothing else".to_owned(),
        Verdict::RetryInPlace { wait } => format!("tried again in place after {}", shown(wait)),
        Verdict::Park { wait } if wait.is_zero() => "parked behind it, no attempt charged".to_owned(),
        Verdict::Park { wait } => format!("parked, tried again after up to {}", shown(wait)),
        Verdict::DeadLetter => "dead letter".to_owned(),
        Verdict::RunAgain => "run again once it is back, no attempt charged".to_owned(),
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Apply => "apply",
        Verdict::Skip => "skip",
        Verdict::RetryInPlace { .. } => "retry_in_place",
        Verdict::Park { .. } => "park",
        Verdict::DeadLetter => "dead_letter",
        Verdict::RunAgain => "run_again",
    }
}

/// What the messages behind a failing one do, in a sentence.
pub(super) fn words_on_followers(order: Order, on_failure: OnFailure) -> &'static str {
    match (followers(order, on_failure), order) {
        (Followers::Wait, _) => {
            "all behind a failing message of its partition wait until it is applied or dead"
        }
        (Followers::OfItsKeyWait, _) => {
            "those of its key wait behind a parked message, in their order; all others go on"
        }
        (Followers::Overtake, Order::Partition) => {
            "in order within a partition, but a parked message is applied later than those that follow it"
        }
        (Followers::Overtake, _) => "a failing message is overtaken by those that follow it",
    }
}

fn tells(outcome: Outcome, order: Order) -> bool {
    outcome != Outcome::Behind || order == Order::Key
}

fn attempts_of(step: &Step, steps: usize) -> String {
    match (step.first == step.last, steps) {
        (_, 1) => String::new(),
        (true, _) => step.first.to_string(),
        (false, _) => format!("{} to {}", step.first, step.last),
    }
}

fn rows(name: &str, outcome: Outcome, code: Option<&str>, policy: &Policy) -> Vec<Vec<String>> {
    let steps = steps(outcome, code, policy);
    let row = |(at, step): (usize, &Step)| {
        let name = if at == 0 { name.to_owned() } else { String::new() };
        vec![name, attempts_of(step, steps.len()), words(step.verdict)]
    };
    steps.iter().enumerate().map(row).collect()
}

fn text(config: &Config) -> String {
    let options = &config.options;
    let policy = &options.policy;
    let mut all = Vec::new();
    for (name, outcome) in OUTCOMES.into_iter().filter(|(_, outcome)| tells(*outcome, options.order)) {
        all.extend(rows(name, outcome, None, policy));
        if outcome == (Outcome::Retry { after: None }) {
            for code in policy.retry.max_attempts_by_code.keys() {
                all.extend(rows(&format!("failed with code {code}"), outcome, Some(code), policy));
            }
        }
    }
    let mut out = table::plain(&["a message that is", "attempt", "what happens"], all);
    out.push_str(&format!("\n{}\n", sentences(options).join("\n")));
    out
}

/// What a table does not say.
fn sentences(options: &ConsumerOptions) -> Vec<String> {
    let policy = &options.policy;
    let RetryPolicy { max_age, .. } = &policy.retry;
    let all = steps(Outcome::Retry { after: None }, None, policy);
    let mut lines = vec![format!(
        "The waits of a failing message are {} at most; each is drawn anew, from nothing to what is said.",
        shown(longest(&all)),
    )];
    if let Some(max_age) = max_age {
        lines.push(format!(
            "One that fails {} after it was parked is dead, whatever its attempts.",
            shown(*max_age)
        ));
    }
    lines.push(format!("Order: {}.", words_on_followers(options.order, policy.on_failure)));
    if policy.on_failure == OnFailure::Park {
        lines.push(format!(
            "With {} parked messages nothing new is taken until some of them have come to their end.",
            table::grouped(options.parked_max),
        ));
    }
    lines
}

fn object(config: &Config) -> Value {
    let options = &config.options;
    let policy = &options.policy;
    let step = |step: &Step| {
        let wait = match step.verdict {
            Verdict::RetryInPlace { wait } | Verdict::Park { wait } => Some(wait.as_secs_f64()),
            _ => None,
        };
        json!({ "first": step.first, "last": step.last, "then": word(step.verdict), "wait_max_seconds": wait })
    };
    let outcome = |name: &str, outcome: Outcome, code: Option<&str>| {
        let steps = steps(outcome, code, policy);
        let longest = longest(&steps).as_secs_f64();
        let attempts: Vec<Value> = steps.iter().map(step).collect();
        json!({ "outcome": name, "code": code, "attempts": attempts, "waits_max_seconds": longest })
    };
    let mut outcomes = Vec::new();
    for (name, kind) in OUTCOMES.into_iter().filter(|(_, kind)| tells(*kind, options.order)) {
        outcomes.push(outcome(name, kind, None));
        if kind == (Outcome::Retry { after: None }) {
            let codes = policy.retry.max_attempts_by_code.keys();
            outcomes.extend(codes.map(|code| outcome(name, kind, Some(code))));
        }
    }
    json!({
        "consumer": config.name.as_str(),
        "outcomes": outcomes,
        "followers": words_on_followers(options.order, policy.on_failure),
        "max_age_seconds": policy.retry.max_age.map(|age| age.as_secs_f64()),
        "parked_max": options.parked_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_two_in_place_then_parked_with_growing_waits_then_dead() {
        let steps = steps(Outcome::Retry { after: None }, None, &Policy::default());
        let said: Vec<(u32, u32, &str)> =
            steps.iter().map(|step| (step.first, step.last, word(step.verdict))).collect();
        assert_eq!(said.first(), Some(&(1, 1, "retry_in_place")));
        assert_eq!(said.last(), Some(&(10, 10, "dead_letter")));
        assert!(said[1..said.len() - 1].iter().all(|(.., word)| *word == "park"), "{said:?}");
        // 50 ms in place, then 1, 2, 4, … 128 s.
        assert_eq!(longest(&steps), Duration::from_millis(255_050));
    }

    #[test]
    fn every_order_is_said_in_its_own_words() {
        let mut said: Vec<&str> = [Order::Partition, Order::Key, Order::None]
            .into_iter()
            .flat_map(|order| [OnFailure::Park, OnFailure::Block].map(|on| words_on_followers(order, on)))
            .collect();
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), 4);
        assert!(
            words_on_followers(Order::Partition, OnFailure::Park).contains("later than those that follow")
        );
    }

    #[test]
    fn a_policy_of_many_attempts_ends() {
        let mut policy = Policy::default();
        policy.retry.max_attempts = u32::MAX;
        let steps = steps(Outcome::Panic, None, &policy);
        assert_eq!(steps.last().map(|step| step.last), Some(ATTEMPTS_MAX));
        assert!(steps.len() < 20);
    }
}
