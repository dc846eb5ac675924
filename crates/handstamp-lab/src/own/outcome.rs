//! What a run with the user's program proves (pure).

use super::plan::Fault;
use crate::checker::{EndState, judge};
use crate::history::Wire;
use crate::workload::Credit;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

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

/// What went through the lab's proxies on one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Through {
    /// Which way.
    pub wire: Wire,
    /// Bytes to the server.
    pub up: u64,
    /// Bytes to the program.
    pub down: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections cut.
    pub cut: u64,
}

/// How an id came to more or fewer effects than one: evidence, as exact as the lab's looks are close.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// The message.
    pub id: String,
    /// Records that carried it.
    pub sent: u64,
    /// Milliseconds since the run began, one for each effect that was seen.
    pub seen_ms: Vec<u64>,
    /// For a missing one: when the message before it under its key had its effect.
    pub before_ms: Option<u64>,
    /// The fault that led there, as far as times tell: its number in the schedule, from 0.
    pub fault: Option<usize>,
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
    /// Ids that were sent once and are doubled: by nothing but what happened to the program.
    pub doubled_sent_once: u64,
    /// Ids that were sent more often and are doubled.
    pub doubled_sent_again: u64,
    /// The first ten, those sent once before those sent again, with how many effects each had.
    pub doubled_ids: Vec<(String, u64)>,
    /// The first ten.
    pub missing_ids: Vec<String>,
    /// How these came about.
    pub traces: Vec<Trace>,
    /// What went through the lab's proxies.
    pub through: Vec<Through>,
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
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) seed: u64,
    /// Kills, stops, cuts from the database and from the brokers that were asked for.
    pub(super) asked: [u32; 4],
    /// Records, those that were a second copy, those that changed places.
    pub(super) records: [u64; 3],
    pub(super) schedule: Vec<Done>,
    pub(super) ended_by_itself: u32,
    pub(super) notes: Vec<String>,
    pub(super) through: Vec<Through>,
    /// Without their faults.
    pub(super) traces: Vec<Trace>,
    /// Why the run never began to work, when it did not, or did not come to its end.
    pub(super) unfinished: Option<String>,
}

/// The doubled ids: first those that were sent once, as only a fault doubles them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Doubled<'a> {
    /// Sent once, or by nobody.
    pub(super) once: Vec<&'a str>,
    /// Sent more often.
    pub(super) again: Vec<&'a str>,
}

impl<'a> Doubled<'a> {
    /// Finds them. `sent` names an id once for each record that carried it.
    pub(super) fn of<'s>(effects: &'a BTreeMap<String, u64>, sent: impl Iterator<Item = &'s str>) -> Self {
        let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
        for id in sent {
            if !seen.insert(id) {
                twice.insert(id);
            }
        }
        let doubled = effects.iter().filter(|(_, times)| **times > 1).map(|(id, _)| id.as_str());
        let (again, once) = doubled.partition(|id| twice.contains(id));
        Self { once, again }
    }

    /// The first that are named, those sent once before the others.
    pub(super) fn named(&self) -> impl Iterator<Item = &'a str> {
        self.once.iter().chain(&self.again).copied().take(NAMED_MAX)
    }
}

/// Judges a run: from the ids that were sent, one for each record, and the effects that the user's query answered.
pub(super) fn outcome(
    good: &[Credit],
    bad: &BTreeSet<String>,
    effects: BTreeMap<String, u64>,
    seen: Seen,
) -> Outcome {
    let doubled = Doubled::of(&effects, good.iter().map(|credit| credit.id.as_str()));
    let (sent_once, sent_again) = (count(doubled.once.len()), count(doubled.again.len()));
    let doubled_ids = doubled.named().map(|id| (id.to_owned(), effects[id])).collect();
    let bad_applied = count(bad.iter().filter(|id| effects.contains_key(*id)).count());
    let verdict = judge(good, &EndState { effects, ..EndState::default() });
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
    let conclusion = match (&seen.unfinished, violations.is_empty()) {
        (Some(why), _) => Conclusion::Inconclusive(vec![why.clone()]),
        (None, false) => Conclusion::Violated(violations),
        (None, true) => nothing_proved(&seen).map_or(Conclusion::Kept, Conclusion::Inconclusive),
    };
    let traces = seen.traces.into_iter().map(|trace| explained(trace, &seen.schedule)).collect();
    Outcome {
        seed: seen.seed,
        good: verdict.sent,
        bad: count(bad.len()),
        records: seen.records[0],
        duplicates: seen.records[1],
        reordered: seen.records[2],
        doubled: verdict.doubled,
        missing: verdict.lost,
        bad_applied,
        unsent,
        doubled_sent_once: sent_once,
        doubled_sent_again: sent_again,
        doubled_ids,
        missing_ids: verdict.lost_ids,
        traces,
        through: seen.through,
        schedule: seen.schedule,
        ended_by_itself: seen.ended_by_itself,
        notes: seen.notes,
        conclusion,
    }
}

/// A fault counts when so many messages were left.
pub(super) const LEFT_MIN: u64 = 20;
/// How many ids are named of the doubled, and of the missing.
pub(super) const NAMED_MAX: usize = 10;
/// An effect is seen so long after it came, at most: a look and a count.
const SEEN_WITHIN_MS: u64 = 200;

/// What hindered the commit of an effect's offset, or the effect behind a committed offset: the first fault after
/// the one good effect (of a missing one: of its forerunner), and before what should not have been. A stop is a
/// fault until it ends: the good effect may be another copy's meanwhile, and the copy that wakes writes again. As
/// many effects as there were records need no fault.
fn explained(trace: Trace, schedule: &[Done]) -> Trace {
    let sent = usize::try_from(trace.sent.max(1)).unwrap_or(usize::MAX);
    let span = match (trace.seen_ms.as_slice(), trace.before_ms) {
        ([], Some(before)) => Some((before, u64::MAX)),
        (seen, _) => seen.get(sent - 1).copied().zip(seen.get(sent).copied()),
    };
    let between = |(from, to): (u64, u64)| {
        let over =
            |done: &Done| done.at_ms.saturating_add(done.fault.lasts_ms()).saturating_add(SEEN_WITHIN_MS);
        schedule.iter().position(|done| over(done) >= from && done.at_ms <= to)
    };
    Trace { fault: span.and_then(between), ..trace }
}

/// Faults that were asked for and did not all come, or did not all count, and proxies around which the program went.
fn nothing_proved(seen: &Seen) -> Option<Vec<String>> {
    type Is = fn(&Fault) -> bool;
    let kinds: [(&str, Is); 4] = [
        ("kill", |fault| matches!(fault, Fault::Kill)),
        ("stop", |fault| matches!(fault, Fault::Stop { .. })),
        ("cut", |fault| matches!(fault, Fault::Cut)),
        ("broker cut", |fault| matches!(fault, Fault::CutBroker)),
    ];
    let mut why: Vec<String> = kinds
        .into_iter()
        .zip(seen.asked)
        .filter_map(|((name, is), asked)| {
            too_few(name, asked, seen.schedule.iter().filter(|done| is(&done.fault)))
        })
        .collect();
    for (wire, asked) in [(Wire::Database, seen.asked[2]), (Wire::Broker, seen.asked[3])] {
        let through = seen.through.iter().find(|through| through.wire == wire);
        let name = wire.as_str();
        if asked > 0 && through.is_none_or(|through| through.up == 0 || through.down == 0) {
            why.push(format!(
                "not a byte went through the proxy before the {name}: the program goes around it"
            ));
        } else if asked > 0 && through.is_none_or(|through| through.cut == 0) {
            why.push(format!("no connection to the {name} was cut"));
        }
    }
    (!why.is_empty()).then_some(why)
}

/// What to say when fewer faults of a kind came, or counted, than were asked for.
fn too_few<'d>(name: &str, asked: u32, done: impl Iterator<Item = &'d Done> + Clone) -> Option<String> {
    const MORE: &str = "raise `messages.count` or lower `faults.after`";
    let (came, counted) = (done.clone().count(), done.filter(|done| done.counts).count());
    let enough = usize::try_from(asked).unwrap_or(usize::MAX);
    let left_out = if counted < came { format!(", {counted} of them counted") } else { String::new() };
    if came < enough {
        Some(format!("{came} of {asked} {name}s came{left_out}; {MORE}"))
    } else if counted < enough {
        Some(format!(
            "{counted} of {asked} {name}s count: at the others fewer than {LEFT_MIN} messages were left, or nobody \
             was at work; {MORE}"
        ))
    } else {
        None
    }
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::messages::{tests::messages, workload};
    use super::*;

    type Effects = BTreeMap<String, u64>;

    struct Work {
        good: Vec<Credit>,
        bad: BTreeSet<String>,
    }

    fn seen(counts: bool) -> Seen {
        let done = Done { at_ms: 5, copy: 0, fault: Fault::Kill, left: 100, counts };
        Seen { seed: 1, asked: [1, 0, 0, 0], schedule: vec![done], ..Seen::default() }
    }

    fn work_and_effects() -> (Work, Effects) {
        let work = workload(1, &messages());
        let credit = |id: &String| Credit { id: id.clone(), account: 0, amount: 0 };
        let good: Vec<Credit> = work.good.iter().map(credit).collect();
        let effects = work.good.iter().map(|id| (id.clone(), 1)).collect();
        (Work { good, bad: work.bad }, effects)
    }

    fn judged(work: &Work, effects: Effects, seen: Seen) -> Outcome {
        outcome(&work.good, &work.bad, effects, seen)
    }

    #[test]
    fn each_good_one_once_is_kept_only_if_a_kill_counted() {
        let (work, effects) = work_and_effects();
        assert_eq!(judged(&work, effects.clone(), seen(true)).conclusion, Conclusion::Kept);
        let not = judged(&work, effects, seen(false)).conclusion;
        assert!(matches!(&not, Conclusion::Inconclusive(why) if why[0].contains("0 of 1 kills")), "{not:?}");
        let never = Seen { unfinished: Some("no effect".into()), ..seen(true) };
        assert!(matches!(judged(&work, Effects::new(), never).conclusion, Conclusion::Inconclusive(_)));
    }

    #[test]
    fn fewer_faults_than_asked_prove_nothing_and_the_keys_that_help_are_named() {
        let (work, effects) = work_and_effects();
        let done = |fault, counts| Done { at_ms: 5, copy: 0, fault, left: 100, counts };
        let kill = |counts| done(Fault::Kill, counts);
        let stop = done(Fault::Stop { for_ms: 9 }, true);
        let with = |asked, schedule: &[Done], effects: &Effects| {
            let seen = Seen { asked, schedule: schedule.to_vec(), ..Seen::default() };
            judged(&work, effects.clone(), seen).conclusion
        };
        let three = [kill(true), kill(true), kill(true)];
        for (asked, schedule, said) in [
            ([10, 0, 0, 0], &three[..], "3 of 10 kills came; raise `messages.count` or lower `faults.after`"),
            ([4, 0, 0, 0], &[kill(true), kill(false)], "2 of 4 kills came, 1 of them counted; raise"),
            ([2, 0, 0, 0], &[kill(true), kill(false)], "1 of 2 kills count: at the others fewer than 20"),
            ([1, 2, 0, 0], &[kill(true), stop], "1 of 2 stops came; raise"),
        ] {
            let not = with(asked, schedule, &effects);
            let Conclusion::Inconclusive(why) = &not else { panic!("{said}: {not:?}") };
            assert!(why.len() == 1 && why[0].starts_with(said), "{why:?}");
        }
        assert_eq!(with([3, 0, 0, 0], &three, &effects), Conclusion::Kept);
        let doubled = effects.keys().map(|id| (id.clone(), 2)).collect();
        assert!(matches!(with([10, 0, 0, 0], &three, &doubled), Conclusion::Violated(_)));
    }

    #[test]
    fn ids_sent_once_are_named_before_those_sent_again_and_each_kind_is_counted() {
        let credit = |n: usize| Credit { id: format!("m{n:02}"), account: 0, amount: 0 };
        // The first fifteen are sent twice, all of them doubled; of the others, two are.
        let good: Vec<Credit> = (0..40).chain(0..15).map(credit).collect();
        let effects: Effects =
            (0..40).map(|n| (format!("m{n:02}"), if n < 15 || n == 30 || n == 39 { 2 } else { 1 })).collect();
        let found = outcome(&good, &BTreeSet::new(), effects, Seen::default());
        assert_eq!((found.doubled, found.doubled_sent_once, found.doubled_sent_again), (17, 2, 15));
        let ids: Vec<&str> = found.doubled_ids.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["m30", "m39", "m00", "m01", "m02", "m03", "m04", "m05", "m06", "m07"]);
    }

    #[test]
    fn a_cut_counts_only_if_bytes_went_through_the_proxy_and_a_connection_was_cut() {
        let (work, effects) = work_and_effects();
        for (fault, wire) in [(Fault::Cut, Wire::Database), (Fault::CutBroker, Wire::Broker)] {
            let asked = if wire == Wire::Database { [0, 0, 1, 0] } else { [0, 0, 0, 1] };
            let done = Done { at_ms: 5, copy: 0, fault, left: 100, counts: true };
            let through = Through { wire, up: 10, down: 10, connections: 3, cut: 2 };
            let with = |through: Vec<Through>| {
                let seen = Seen { asked, schedule: vec![done], through, ..Seen::default() };
                judged(&work, effects.clone(), seen).conclusion
            };
            assert_eq!(with(vec![through]), Conclusion::Kept);
            for (through, word) in [
                (vec![], "goes around"),
                (vec![Through { down: 0, ..through }], "goes around"),
                (vec![Through { cut: 0, ..through }], "no connection"),
            ] {
                let not = with(through);
                let Conclusion::Inconclusive(why) = &not else { panic!("{not:?}") };
                assert!(why[0].contains(word) && why[0].contains(wire.as_str()), "{why:?}");
            }
        }
    }

    #[test]
    fn what_led_to_an_id_is_the_first_fault_behind_its_good_effect_or_its_forerunner() {
        let (work, effects) = work_and_effects();
        let done = |at_ms| Done { at_ms, copy: 0, fault: Fault::Kill, left: 100, counts: true };
        // Far apart, as an effect is seen a little later than it came.
        let trace =
            |seen_ms: Vec<u64>, before_ms| Trace { id: "x".into(), sent: 1, seen_ms, before_ms, fault: None };
        let traces = vec![
            trace(vec![900, 2500], None),
            // Seen a look after the fault, and come before it.
            trace(vec![2100, 4000], None),
            trace(vec![100, 700], None),
            Trace { sent: 2, ..trace(vec![900, 2500], None) },
            Trace { sent: 2, ..trace(vec![900, 1900, 3500], None) },
            trace(vec![], Some(1500)),
            trace(vec![], Some(3500)),
            trace(vec![], None),
        ];
        let schedule = vec![done(1000), done(2000), done(3000)];
        let seen = Seen { asked: [3, 0, 0, 0], schedule, traces, ..Seen::default() };
        let faults: Vec<_> =
            judged(&work, effects.clone(), seen).traces.iter().map(|trace| trace.fault).collect();
        assert_eq!(faults, [Some(0), Some(1), None, None, Some(1), Some(1), None, None]);

        // Another copy's effect while one stood still, and its own when it went on; then one long after it.
        let traces = vec![
            trace(vec![8000, 13_050], None),
            trace(vec![13_150, 14_000], None),
            trace(vec![15_000, 16_000], None),
        ];
        let schedule = vec![Done { fault: Fault::Stop { for_ms: 12_000 }, ..done(1000) }];
        let seen = Seen { asked: [0, 1, 0, 0], schedule, traces, ..Seen::default() };
        let faults: Vec<_> = judged(&work, effects, seen).traces.iter().map(|trace| trace.fault).collect();
        assert_eq!(faults, [Some(0), Some(0), None]);
    }

    #[test]
    fn planted_faults_of_every_kind_are_found_also_when_no_kill_counts() {
        let (work, clean) = work_and_effects();
        let good = work.good.first().expect("one").id.clone();
        let bad = work.bad.first().expect("one").clone();
        let plant = |change: &dyn Fn(&mut Effects)| {
            let mut effects = clean.clone();
            change(&mut effects);
            judged(&work, effects, seen(false))
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
