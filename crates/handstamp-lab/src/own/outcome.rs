//! What a run with the user's program proves (pure).

use super::home::Effects;
use super::messages::Workload;
use super::plan::Fault;
use crate::checker::{EndState, judge};
use crate::workload::Credit;
use serde::Serialize;

/// A fault that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Done {
    /// Milliseconds since the run began.
    pub at_ms: u64,
    /// Which copy; a cut meets all of them.
    pub copy: u32,
    /// What.
    pub fault: Fault,
    /// Messages that had no effect yet.
    pub left: u64,
    /// Whether enough were left, and somebody was at work, for it to mean something.
    pub counts: bool,
}

/// What the run says about the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Conclusion {
    /// Every good message had its effect once, every bad one none.
    Kept,
    /// Something doubled, is missing, or has an effect that should have none.
    Violated(Vec<String>),
    /// The run proves nothing.
    Inconclusive(Vec<String>),
}

/// Everything the run found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What decided messages and schedule.
    pub seed: u64,
    /// Different ids that must have one effect.
    pub good: u64,
    /// Different ids that must have none.
    pub bad: u64,
    /// Records sent.
    pub records: u64,
    /// Records that were a second copy.
    pub duplicates: u64,
    /// Records that changed places.
    pub reordered: u64,
    /// Effects beyond the first.
    pub doubled: u64,
    /// Good ids without an effect.
    pub missing: u64,
    /// Bad ids with an effect.
    pub bad_applied: u64,
    /// Effects of ids that nobody sent.
    pub unsent: u64,
    /// The first ten, with how many effects each had.
    pub doubled_ids: Vec<(String, u64)>,
    /// The first ten.
    pub missing_ids: Vec<String>,
    /// What was done, in order.
    pub schedule: Vec<Done>,
    /// How often a copy ended by itself.
    pub ended_by_itself: u32,
    /// What a person should know beside it.
    pub notes: Vec<String>,
    /// What it proves.
    #[serde(flatten)]
    pub conclusion: Conclusion,
}

/// What was seen of a run beside its effects.
pub(super) struct Seen {
    pub(super) seed: u64,
    /// Kills, stops and cuts that were asked for.
    pub(super) asked: [u32; 3],
    pub(super) schedule: Vec<Done>,
    pub(super) ended_by_itself: u32,
    pub(super) notes: Vec<String>,
    /// Why the run never began to work, when it did not.
    pub(super) never_began: Option<String>,
}

/// Judges a run.
pub(super) fn outcome(work: &Workload, effects: Effects, seen: Seen) -> Outcome {
    let sent: Vec<Credit> =
        work.good.iter().map(|id| Credit { id: id.clone(), account: 0, amount: 0 }).collect();
    let bad_applied = count(work.bad.iter().filter(|id| effects.contains_key(*id)).count());
    let verdict = judge(&sent, &EndState { effects, ..EndState::default() });
    let unsent = verdict.unsent - bad_applied;
    let mut violations = Vec::new();
    for (many, what) in [
        (verdict.doubled, "effects doubled"),
        (verdict.lost, "messages without an effect"),
        (bad_applied, "bad messages with an effect"),
        (unsent, "effects of ids that nobody sent"),
    ] {
        if many > 0 {
            violations.push(format!("{many} {what}"));
        }
    }
    let conclusion = match (&seen.never_began, violations.is_empty()) {
        (Some(why), _) => Conclusion::Inconclusive(vec![why.clone()]),
        (None, false) => Conclusion::Violated(violations),
        (None, true) => nothing_proved(&seen).map_or(Conclusion::Kept, Conclusion::Inconclusive),
    };
    Outcome {
        seed: seen.seed,
        good: count(work.good.len()),
        bad: count(work.bad.len()),
        records: count(work.records.len()),
        duplicates: work.duplicates,
        reordered: work.reordered,
        doubled: verdict.doubled,
        missing: verdict.lost,
        bad_applied,
        unsent,
        doubled_ids: verdict.doubled_ids,
        missing_ids: verdict.lost_ids,
        schedule: seen.schedule,
        ended_by_itself: seen.ended_by_itself,
        notes: seen.notes,
        conclusion,
    }
}

/// Faults that were asked for and of which none counted.
fn nothing_proved(seen: &Seen) -> Option<Vec<String>> {
    type Is = fn(&Fault) -> bool;
    let kinds: [(&str, Is); 3] = [
        ("kill", |fault| matches!(fault, Fault::Kill)),
        ("stop", |fault| matches!(fault, Fault::Stop { .. })),
        ("cut", |fault| matches!(fault, Fault::Cut)),
    ];
    let why: Vec<String> = kinds
        .into_iter()
        .zip(seen.asked)
        .filter(|((_, is), asked)| {
            *asked > 0 && !seen.schedule.iter().any(|done| done.counts && is(&done.fault))
        })
        .map(|((name, _), asked)| {
            format!("none of the {asked} {name}s counts: too few messages were left, or nobody was at work")
        })
        .collect();
    (!why.is_empty()).then_some(why)
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::messages::{tests::messages, workload};
    use super::*;

    fn seen(counts: bool) -> Seen {
        let done = Done { at_ms: 5, copy: 0, fault: Fault::Kill, left: 100, counts };
        Seen {
            seed: 1,
            asked: [1, 0, 0],
            schedule: vec![done],
            ended_by_itself: 0,
            notes: vec![],
            never_began: None,
        }
    }

    fn work_and_effects() -> (Workload, Effects) {
        let work = workload(1, &messages());
        let effects = work.good.iter().map(|id| (id.clone(), 1)).collect();
        (work, effects)
    }

    #[test]
    fn each_good_one_once_is_kept_only_if_a_kill_counted() {
        let (work, effects) = work_and_effects();
        assert_eq!(outcome(&work, effects.clone(), seen(true)).conclusion, Conclusion::Kept);
        let not = outcome(&work, effects.clone(), seen(false)).conclusion;
        assert!(matches!(&not, Conclusion::Inconclusive(why) if why[0].contains("1 kills")), "{not:?}");
        let never = Seen { never_began: Some("no effect".into()), ..seen(true) };
        assert!(matches!(outcome(&work, Effects::new(), never).conclusion, Conclusion::Inconclusive(_)));
    }

    #[test]
    fn planted_faults_of_every_kind_are_found_also_when_no_kill_counts() {
        let (work, clean) = work_and_effects();
        let good = work.good.first().expect("one").clone();
        let bad = work.bad.first().expect("one").clone();
        let plant = |change: &dyn Fn(&mut Effects)| {
            let mut effects = clean.clone();
            change(&mut effects);
            outcome(&work, effects, seen(false))
        };
        let doubled = plant(&|effects| {
            effects.insert(good.clone(), 3);
        });
        assert_eq!((doubled.doubled, &doubled.doubled_ids), (2, &vec![(good.clone(), 3)]));
        let missing = plant(&|effects| {
            effects.remove(&good);
        });
        assert_eq!((missing.missing, &missing.missing_ids), (1, &vec![good.clone()]));
        let applied = plant(&|effects| {
            effects.insert(bad.clone(), 1);
        });
        assert_eq!((applied.bad_applied, applied.unsent), (1, 0));
        let unsent = plant(&|effects| {
            effects.insert("ghost".into(), 1);
        });
        assert_eq!((unsent.bad_applied, unsent.unsent), (0, 1));
        for outcome in [doubled, missing, applied, unsent] {
            assert!(
                matches!(&outcome.conclusion, Conclusion::Violated(why) if why.len() == 1),
                "{outcome:?}"
            );
        }
    }
}
