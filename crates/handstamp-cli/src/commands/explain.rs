//! `explain`: what happens to a message that fails, computed by the function that decides for `run`.
//!
//! Authoritative: `handstamp_core::decide`. Every outcome is put through it for every number of attempts, as
//! delivered and as parked; what is printed is what it answered.

use super::routing::{self, Routes};
use crate::cli::ExplainArgs;
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, table, width};
use handstamp_core::decide::{
    Case, Followers, OnFailure, Outcome, Place, Policy, Verdict, decide, followers,
};
use handstamp_core::json::Pointer;
use handstamp_core::retry::{IN_VAIN_MAX, LEFT_OUT_FOR};
use handstamp_core::{ConsumerOptions, FailureClass, Order};
use serde_json::{Value, json};
use std::time::Duration;

/// What becomes of messages that end alike.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// How it is called.
    name: &'static str,
    outcome: Outcome,
    /// The classes of its failures.
    classes: &'static [FailureClass],
}

const FAILED: &str = "failed: error, panic or timeout";

/// Every outcome. Those that fail and may be tried again are decided alike; which class has which outcome says
/// `handstamp_core::decide::outcome_of`.
const KINDS: [Kind; 15] = {
    use FailureClass as Class;
    const fn kind(name: &'static str, outcome: Outcome, classes: &'static [Class]) -> Kind {
        Kind { name, outcome, classes }
    }
    const FAILING: &[Class] = &[Class::Rows, Class::Sql, Class::Failed, Class::Panicked, Class::TimedOut];
    [
        kind("applied", Outcome::Ok, &[]),
        kind("duplicate", Outcome::Duplicate, &[]),
        kind("id reused", Outcome::IdReused, &[Class::IdReused]),
        kind("stale: not newer than what is applied", Outcome::Stale, &[]),
        kind("without a usable id", Outcome::Unusable, &[Class::Identity]),
        kind("too large or unreadable", Outcome::Unusable, &[Class::TooLarge, Class::Unreadable]),
        kind("without a usable version", Outcome::Unusable, &[Class::Version]),
        kind("wanted by no effect", Outcome::Unusable, &[Class::Unmatched]),
        kind("not to be decided by a condition", Outcome::Unusable, &[Class::Condition]),
        kind("unfit for a parameter (binding)", Outcome::Reject, &[Class::Binding]),
        kind(FAILED, Outcome::Retry { after: None }, FAILING),
        kind("rejected", Outcome::Reject, &[Class::Rejected]),
        kind("behind a parked one of its key", Outcome::Behind, &[Class::Waiting]),
        kind("store or broker away", Outcome::Infrastructure, &[]),
        kind("alone when its process died", Outcome::Crashed { crashes: 0 }, &[Class::Crashed]),
    ]
};

/// Prints it.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn explain(args: &ExplainArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Policy)?;
    if args.json {
        output::print_json(&object(&config))?;
    } else {
        output::print(&text(&config, width::columns()))?;
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
    /// The wait is drawn, from nothing to that.
    drawn: bool,
}

/// What happens at the first attempt or crash, the second, and so on until the end; waits at their longest.
fn steps(outcome: Outcome, code: Option<&str>, policy: &Policy) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut place = Place::Delivered;
    let crashed = matches!(outcome, Outcome::Crashed { .. });
    let most = if crashed { policy.retry.max_crashes } else { policy.retry.attempts_for(code) };
    for attempts in 1..=most {
        let outcome = if crashed { Outcome::Crashed { crashes: attempts } } else { outcome };
        let decided = |random| decide(&Case { outcome, attempts, code, place, waits: true, random }, policy);
        let verdict = decided(u32::MAX);
        match steps.last_mut().filter(|step| step.verdict == verdict) {
            Some(step) => step.last = attempts,
            None => {
                let drawn = decided(0) != verdict;
                steps.push(Step { first: attempts, last: attempts, verdict, drawn });
            }
        }
        let goes_on =
            matches!(verdict, Verdict::Park { .. } | Verdict::RetryInPlace { .. } | Verdict::RunAlone);
        // What waits behind another one makes no attempt.
        if !goes_on || outcome == Outcome::Behind {
            break;
        }
        if matches!(verdict, Verdict::Park { .. }) {
            place = Place::Parked { age: Duration::ZERO };
        }
    }
    steps
}

/// The longest time from the first failure to the end of it, handlers left out. With `max_age` the last wait of a
/// parked message is cut to what is left of it; the first one is not.
fn longest(steps: &[Step], policy: &Policy) -> Duration {
    let (mut in_place, mut parked, mut first) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for step in steps {
        let times = step.last - step.first + 1;
        match step.verdict {
            Verdict::RetryInPlace { wait } => in_place = in_place.saturating_add(wait.saturating_mul(times)),
            Verdict::Park { wait } => {
                first = if parked.is_zero() { wait } else { first };
                parked = parked.saturating_add(wait.saturating_mul(times));
            }
            _ => {}
        }
    }
    let most = policy.retry.max_age.map_or(Duration::MAX, |max_age| max_age.max(first));
    in_place.saturating_add(parked.min(most))
}

/// Failures that have a number of attempts of their own, behind all others.
fn failing(policy: &Policy) -> impl Iterator<Item = Option<&str>> {
    std::iter::once(None).chain(policy.retry.max_attempts_by_code.keys().map(|code| Some(code.as_str())))
}

/// Whether any failure of a declared effect ends in a message that is parked.
fn parks(policy: &Policy) -> bool {
    let any = |steps: Vec<Step>| steps.iter().any(|step| matches!(step.verdict, Verdict::Park { .. }));
    failing(policy).any(|code| any(steps(Outcome::Retry { after: None }, code, policy)))
}

fn shown(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn words(step: &Step) -> String {
    let up_to = if step.drawn { "up to " } else { "" };
    match step.verdict {
        Verdict::Apply => "its effects are committed with its id, then it is settled".to_owned(),
        Verdict::Skip => "settled, nothing else".to_owned(),
        Verdict::RetryInPlace { wait } => format!("tried again in place after {up_to}{}", shown(wait)),
        Verdict::Park { wait } if wait.is_zero() => "parked behind it, no attempt charged".to_owned(),
        Verdict::Park { wait } => format!("parked, tried again after {up_to}{}", shown(wait)),
        Verdict::DeadLetter => "dead letter".to_owned(),
        Verdict::RunAgain => "run again once it is back, no attempt charged".to_owned(),
        Verdict::RunAlone => "run again, alone in its transaction, no attempt charged".to_owned(),
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
        Verdict::RunAlone => "run_alone",
    }
}

/// What the messages behind a failing one do, in a sentence.
pub(super) fn words_on_followers(options: &ConsumerOptions) -> &'static str {
    let policy = &options.policy;
    match (followers(options.order, policy.on_failure), options.order, parks(policy)) {
        (Followers::Wait, ..) => {
            "all behind a failing message of its partition wait until it is applied or dead"
        }
        (_, Order::Partition, false) => "in order within a partition",
        (_, Order::Key, false) => {
            "in order within a partition; what `dlq redrive` sends back goes before later ones of its key"
        }
        (_, Order::None, false) => "a failing message is decided after the others of its batch",
        (Followers::OfItsKeyWait, ..) => {
            "those of its key wait behind a parked message, in their order; all others go on"
        }
        (Followers::Overtake, Order::Partition, true) => {
            "in order within a partition, but a parked message is applied later than those that follow it"
        }
        (Followers::Overtake, ..) => "a failing message is overtaken by those that follow it",
    }
}

fn tells(kind: &Kind, options: &ConsumerOptions, routes: Routes) -> bool {
    match kind.outcome {
        Outcome::Behind => options.order == Order::Key,
        Outcome::Duplicate | Outcome::IdReused => options.inbox,
        Outcome::Stale => options.version.is_some(),
        Outcome::Unusable => match kind.classes {
            [FailureClass::Version] => options.version.is_some(),
            [FailureClass::Unmatched | FailureClass::Condition] => routes.tells(kind.classes),
            _ => true,
        },
        Outcome::Crashed { .. } => options.policy.retry.max_crashes > 0,
        _ => true,
    }
}

/// Those that can be of this file.
fn told(options: &ConsumerOptions, routes: Routes) -> impl Iterator<Item = Kind> {
    KINDS.into_iter().filter(move |kind| tells(kind, options, routes))
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
        vec![name, attempts_of(step, steps.len()), words(step)]
    };
    steps.iter().enumerate().map(row).collect()
}

fn text(config: &Config, columns: usize) -> String {
    let options = &config.options;
    let policy = &options.policy;
    let mut all = Vec::new();
    for Kind { name, outcome, .. } in told(options, Routes::of(config)) {
        all.extend(rows(name, outcome, None, policy));
        if outcome == (Outcome::Retry { after: None }) {
            for code in policy.retry.max_attempts_by_code.keys() {
                all.extend(rows(&format!("failed with code {code}"), outcome, Some(code), policy));
            }
        }
    }
    let mut out = table::fitted(&["a message that is", "attempt", "what happens"], all, columns);
    let mut lines = routing::sentences(config);
    lines.extend(sentences(options));
    lines.extend(config.dead_letter.as_ref().map(|topic| {
        format!("A copy of each dead letter is in the topic {} before it is settled.", topic.shown())
    }));
    out.push('\n');
    lines.iter().for_each(|line| out.push_str(&width::behind("", line, columns)));
    out
}

/// What a table does not say.
fn sentences(options: &ConsumerOptions) -> Vec<String> {
    let policy = &options.policy;
    let mut lines = vec![on_waits(policy)];
    let parks = parks(policy);
    if let Some(max_age) = policy.retry.max_age.filter(|_| parks) {
        lines.push(format!(
            "One that fails {} after it was parked is dead, whatever its attempts.",
            shown(max_age)
        ));
    }
    lines.push(match policy.retry.max_crashes {
        0 => "A message that kills the process is tried again for ever: max_crashes is 0.".to_owned(),
        _ => "What a process died with together is nobody's crash: it runs one by one.".to_owned(),
    });
    lines.extend(on_many(options));
    lines.push(format!("Order: {}.", words_on_followers(options)));
    lines.extend(super::versions::sentences(options));
    lines.push(match parks {
        true => format!(
            "With {} parked messages nothing new is taken until some of them have come to their end.",
            table::grouped(options.parked_max),
        ),
        false => "Nothing is parked but what `dlq redrive` sends back.".to_owned(),
    });
    lines
}

fn on_waits(policy: &Policy) -> String {
    let of = |code: Option<&str>| steps(Outcome::Retry { after: None }, code, policy);
    let most = |code: Option<&str>| shown(longest(&of(code), policy));
    let mut line = format!("The waits of a failing message are {} at most", most(None));
    for code in failing(policy).flatten() {
        line.push_str(&format!(", with code {code} {}", most(Some(code))));
    }
    let is_drawn = failing(policy).any(|code| of(code).iter().any(|step| step.drawn));
    line.push_str(if is_drawn { "; \"up to\" is drawn anew each time, from nothing on." } else { "." });
    line
}

/// What becomes of it that many messages fail.
fn on_many(options: &ConsumerOptions) -> Vec<String> {
    let (retry, breaker) = (&options.policy.retry, &options.breaker);
    let mut lines = vec![];
    if options.policy.on_failure == OnFailure::Park && retry.immediate > 1 && !retry.wait.is_zero() {
        lines.push(format!(
            "Where {IN_VAIN_MAX} waits in place in a row helped nobody, a partition's next {LEFT_OUT_FOR} runs go without."
        ));
    }
    lines.push(format!(
        "{} different messages in a row, or {} % of at least {} in {}, that fail with an error or a timeout pause it:",
        breaker.in_a_row,
        breaker.percent,
        breaker.least,
        shown(breaker.window),
    ));
    lines.push("one at a time is tried until one works. No SQL error does that.".to_owned());
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
        json!({
            "first": step.first,
            "last": step.last,
            "then": word(step.verdict),
            "wait_max_seconds": wait,
            "drawn": step.drawn,
        })
    };
    let outcome = |kind: &Kind, code: Option<&str>| {
        let steps = steps(kind.outcome, code, policy);
        let classes: Vec<&str> = kind.classes.iter().map(|class| class.as_str()).collect();
        let longest = longest(&steps, policy).as_secs_f64();
        let attempts: Vec<Value> = steps.iter().map(step).collect();
        json!({
            "outcome": kind.name, "classes": classes, "code": code, "attempts": attempts,
            "waits_max_seconds": longest,
        })
    };
    let mut outcomes = Vec::new();
    for kind in told(options, Routes::of(config)) {
        outcomes.push(outcome(&kind, None));
        if kind.outcome == (Outcome::Retry { after: None }) {
            let codes = policy.retry.max_attempts_by_code.keys();
            outcomes.extend(codes.map(|code| outcome(&kind, Some(code))));
        }
    }
    let parks = parks(policy);
    json!({
        "consumer": config.name.as_str(),
        "outcomes": outcomes,
        "followers": words_on_followers(options),
        "parks": parks,
        "max_age_seconds": policy.retry.max_age.filter(|_| parks).map(|age| age.as_secs_f64()),
        "max_crashes": policy.retry.max_crashes,
        "version": options.version.as_ref().map(|guard| guard.version.as_str()),
        "version_key": options.version.as_ref().and_then(|guard| guard.key.as_ref()).map(Pointer::as_str),
        "inbox": options.inbox,
        "conditions": routing::object(config),
        "ignore_unmatched": config.ignore_unmatched,
        "parked_max": parks.then_some(options.parked_max),
        "dead_letter_topic": config.dead_letter.as_ref().map(config::Text::shown),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::decide::outcome_of;

    #[test]
    fn the_default_is_two_in_place_then_parked_with_growing_waits_then_dead() {
        let steps = steps(Outcome::Retry { after: None }, None, &Policy::default());
        let said: Vec<(u32, u32, &str)> =
            steps.iter().map(|step| (step.first, step.last, word(step.verdict))).collect();
        assert_eq!(said.first(), Some(&(1, 1, "retry_in_place")));
        assert_eq!(said.last(), Some(&(10, 10, "dead_letter")));
        assert!(said[1..said.len() - 1].iter().all(|(.., word)| *word == "park"), "{said:?}");
        // 50 ms in place, then 1, 2, 4, … 128 s.
        assert_eq!(longest(&steps, &Policy::default()), Duration::from_millis(255_050));
        let drawn: Vec<bool> = steps.iter().map(|step| step.drawn).collect();
        assert!(!drawn[0] && drawn[1..9].iter().all(|drawn| *drawn) && !drawn[9], "{drawn:?}");
    }

    #[test]
    fn a_message_that_kills_the_process_runs_alone_and_is_then_dead() {
        let crashed = Outcome::Crashed { crashes: 0 };
        let mut policy = Policy::default();
        let said = |policy: &Policy| -> Vec<(u32, u32, &str)> {
            steps(crashed, None, policy)
                .iter()
                .map(|step| (step.first, step.last, word(step.verdict)))
                .collect()
        };
        assert_eq!(said(&policy), [(1, 2, "run_alone"), (3, 3, "dead_letter")]);
        policy.retry.max_crashes = 0;
        let options = ConsumerOptions { policy, ..ConsumerOptions::default() };
        assert!(told(&options, Routes::default()).all(|kind| kind.outcome != crashed));
    }

    #[test]
    fn every_class_is_told_once_as_the_table_decides_it() {
        for class in FailureClass::ALL {
            let of_class: Vec<Kind> =
                KINDS.into_iter().filter(|kind| kind.classes.contains(&class)).collect();
            assert_eq!(of_class.len(), 1, "{class:?}");
            let (outcome, told) = (outcome_of(class), of_class[0].outcome);
            let same = match outcome {
                // Decided alike, and told in one row.
                Outcome::Panic | Outcome::Timeout => told == Outcome::Retry { after: None },
                other => told == other,
            };
            assert!(same, "{class:?}: {outcome:?} is told as {told:?}");
            let policy = Policy::default();
            assert_eq!(steps(outcome, None, &policy), steps(told, None, &policy), "{class:?}");
        }
    }

    fn options(order: Order, on_failure: OnFailure) -> ConsumerOptions {
        let policy = Policy { on_failure, ..Policy::default() };
        ConsumerOptions { order, policy, ..ConsumerOptions::default() }
    }

    #[test]
    fn every_order_is_said_in_its_own_words() {
        let all = [Order::Partition, Order::Key, Order::None];
        let mut said: Vec<&str> = all
            .into_iter()
            .flat_map(|order| {
                [OnFailure::Park, OnFailure::Block].map(|on| words_on_followers(&options(order, on)))
            })
            .collect();
        for order in all {
            let mut all_in_place = options(order, OnFailure::Park);
            all_in_place.policy.retry.max_attempts = 2;
            let words = words_on_followers(&all_in_place);
            assert!(!words.contains("parked"), "{words}");
            said.push(words);
        }
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), 7);
        let words = words_on_followers(&options(Order::Partition, OnFailure::Park));
        assert!(words.contains("later than those that follow"));
    }

    #[test]
    fn a_policy_of_a_million_attempts_is_told_to_its_end() {
        let mut policy = Policy::default();
        policy.retry.max_attempts = 1_000_000;
        let steps = steps(Outcome::Panic, None, &policy);
        let end = steps.last().map(|step| (step.first, step.last, word(step.verdict)));
        assert_eq!(end, Some((1_000_000, 1_000_000, "dead_letter")));
        assert!(steps.len() < 20);
        // 50 ms, then 1, 2, … 256 s, then five minutes each.
        let seconds = 511 + 300 * (999_998 - 9);
        assert_eq!(longest(&steps, &policy), Duration::from_millis(seconds * 1000 + 50));
    }

    #[test]
    fn an_age_and_a_code_bound_the_waits() {
        let mut policy = Policy::default();
        policy.retry.max_attempts_by_code.insert("23503".into(), 3);
        policy.retry.max_age = Some(Duration::from_secs(60));
        let waits =
            |policy: &Policy, code| longest(&steps(Outcome::Retry { after: None }, code, policy), policy);
        assert_eq!(waits(&policy, None), Duration::from_millis(60_050));
        assert_eq!(waits(&policy, Some("23503")), Duration::from_millis(1_050));
        // The first wait of a parked message is not cut.
        policy.retry.max_age = Some(Duration::from_millis(10));
        assert_eq!(waits(&policy, None), Duration::from_millis(1_050));
        let options = ConsumerOptions { policy, ..ConsumerOptions::default() };
        let said = sentences(&options).join(" ");
        assert!(said.contains("1s 50ms at most, with code 23503 1s 50ms"), "{said}");
        assert!(said.contains("fails 10ms after it was parked"), "{said}");
    }

    #[test]
    fn where_nothing_is_parked_nothing_is_said_of_it() {
        let mut in_place = ConsumerOptions::default();
        in_place.policy.retry.max_attempts = 2;
        in_place.policy.retry.max_age = Some(Duration::from_secs(60));
        let mut blocks = in_place.clone();
        blocks.policy.retry.max_attempts = 10;
        blocks.policy.on_failure = OnFailure::Block;
        for (options, is_drawn) in [(in_place, false), (blocks, true)] {
            let said = sentences(&options).join("\n");
            assert_eq!(said.matches("parked").count(), 1, "{said}");
            assert!(said.contains("Nothing is parked but what `dlq redrive` sends back."), "{said}");
            assert_eq!(said.contains("drawn"), is_drawn, "{said}");
        }
        // Behind its attempts in place a blocking lane waits as long as a parked message would.
        let policy = Policy { on_failure: OnFailure::Block, ..Policy::default() };
        let steps = steps(Outcome::Retry { after: None }, None, &policy);
        assert_eq!(words(&steps[0]), "tried again in place after 50ms");
        assert_eq!(words(&steps[1]), "tried again in place after up to 1s");
    }
}
