//! Rules over time: the same script is the same faults, and a seed makes one.

use super::rules::{Accept, CutAfter, Ending, Flow, Rules, Way, WayRules};
use crate::schedule::Random;
use std::num::NonZeroU64;
use std::time::Duration;

/// One change of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Since the step before.
    pub after: Duration,
    /// From then on.
    pub rules: Rules,
    /// Running connections are cut then.
    pub cut: Option<Ending>,
}

/// Changes of the rules, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script(Vec<Step>);

impl Script {
    /// A script of these steps.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self(steps)
    }

    /// Its steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// A storm of a seed: so many faults of every kind, each for at most `fault_max`, a pause of at most the
    /// same after each; the last step is without a fault.
    #[must_use]
    pub fn storm(seed: u64, faults: usize, fault_max: Duration) -> Self {
        let mut random = Random::new(seed, 0);
        let max_ms = u64::try_from(fault_max.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut steps = Vec::with_capacity(faults * 2);
        for _ in 0..faults {
            let (rules, cut) = fault(&mut random, max_ms);
            steps.push(Step { after: Duration::from_millis(1 + random.below(max_ms)), rules, cut });
            let after = Duration::from_millis(1 + random.below(max_ms));
            // What was stalled or half-open goes on or is cut: both happen.
            let cut = (random.below(2) == 0).then_some(Ending::Reset);
            steps.push(Step { after, rules: Rules::NONE, cut });
        }
        Self(steps)
    }
}

/// One fault of a kind, in one direction or both.
fn fault(random: &mut Random, max_ms: u64) -> (Rules, Option<Ending>) {
    let ending = if random.below(2) == 0 { Ending::Close } else { Ending::Reset };
    let none = WayRules::default();
    let way = match random.below(7) {
        0 => WayRules {
            latency: Duration::from_millis(random.below(max_ms / 8 + 1)),
            jitter: Duration::from_millis(random.below(max_ms / 8 + 1)),
            ..none
        },
        1 => WayRules { bytes_per_s: NonZeroU64::new(1_000 + random.below(99_001)), ..none },
        2 => WayRules { flow: Flow::Stall, ..none },
        3 => WayRules { flow: Flow::Discard, ..none },
        4 => WayRules { cut_after: Some(CutAfter { from: 0, to: 1 + random.below(20_000), ending }), ..none },
        5 => return (Rules { accept: Accept::HalfOpen, ..Rules::NONE }, Some(ending)),
        _ => return (Rules { accept: Accept::Reset, ..Rules::NONE }, Some(ending)),
    };
    let rules = match random.below(3) {
        0 => Rules::NONE.with(Way::Up, way),
        1 => Rules::NONE.with(Way::Down, way),
        _ => Rules::NONE.with(Way::Up, way).with(Way::Down, way),
    };
    (rules, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_storm_and_a_storm_ends_without_a_fault() {
        let storm = Script::storm(7, 200, Duration::from_millis(100));
        assert_eq!(storm, Script::storm(7, 200, Duration::from_millis(100)));
        assert_ne!(storm, Script::storm(8, 200, Duration::from_millis(100)));
        assert_eq!(storm.steps().last().map(|step| step.rules), Some(Rules::NONE));
        let has = |what: fn(&Rules) -> bool| storm.steps().iter().any(|step| what(&step.rules));
        assert!(has(|r| r.up.bytes_per_s.is_some()) && has(|r| !r.down.latency.is_zero()));
        assert!(has(|r| r.up.flow == Flow::Stall) && has(|r| r.down.flow == Flow::Discard));
        assert!(has(|r| r.accept == Accept::HalfOpen) && has(|r| r.accept == Accept::Reset));
        assert!(has(|r| r.up.cut_after.is_some() && r.down.cut_after.is_none()), "one direction only");
    }
}
