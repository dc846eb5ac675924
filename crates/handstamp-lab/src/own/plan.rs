//! The schedule of faults, from the seed (pure).

use super::settings::Faults;
use crate::history::Wire;
use crate::schedule::Random;
use serde::Serialize;

/// What is done to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// SIGKILL; it is started again.
    Kill,
    /// SIGSTOP, and SIGCONT after so many milliseconds.
    Stop {
        /// How long it stands still.
        for_ms: u64,
    },
    /// Every connection to the database is reset, those of all copies.
    Cut,
    /// Every connection to the brokers is reset, those of all copies.
    CutBroker,
}

impl Fault {
    /// The word that histories use, and how long it lasts.
    pub(super) fn name(self) -> (&'static str, Option<u64>) {
        match self {
            Self::Kill => ("kill", None),
            Self::Stop { for_ms } => ("stop", Some(for_ms)),
            Self::Cut => ("cut", None),
            Self::CutBroker => ("broker_cut", None),
        }
    }

    /// How long it lasts, in milliseconds.
    pub(super) fn lasts_ms(self) -> u64 {
        self.name().1.unwrap_or(0)
    }

    /// The one of that word.
    pub(super) fn from_name(name: &str, for_ms: Option<u64>) -> Option<Self> {
        let for_ms = for_ms.unwrap_or(0);
        [Self::Kill, Self::Stop { for_ms }, Self::Cut, Self::CutBroker]
            .into_iter()
            .find(|fault| fault.name().0 == name)
    }

    /// Which way it cuts.
    pub(super) fn wire(self) -> Option<Wire> {
        match self {
            Self::Cut => Some(Wire::Database),
            Self::CutBroker => Some(Wire::Broker),
            Self::Kill | Self::Stop { .. } => None,
        }
    }
}

/// One line of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Step {
    /// How long after the first effect since the last fault, in milliseconds.
    pub after_ms: u64,
    /// Which copy, from 0.
    pub copy: u32,
    /// What.
    pub fault: Fault,
}

/// The schedule of a seed.
#[must_use]
pub(super) fn schedule(seed: u64, copies: u32, faults: &Faults) -> Vec<Step> {
    let mut random = Random::new(seed, 2_000_002);
    let between = |random: &mut Random, (from, to): (u64, u64)| from + random.below(to - from + 1);
    let kinds = faults.asked().into_iter().zip(0_u8..);
    let mut order: Vec<u8> = kinds.flat_map(|(times, kind)| (0..times).map(move |_| kind)).collect();
    for at in (1..order.len()).rev() {
        let with = random.below(u64::try_from(at).unwrap_or(0) + 1);
        order.swap(at, usize::try_from(with).unwrap_or(0));
    }
    order
        .into_iter()
        .map(|kind| Step {
            after_ms: between(&mut random, faults.after_ms),
            copy: u32::try_from(random.below(u64::from(copies))).unwrap_or(0),
            fault: match kind {
                0 => Fault::Kill,
                1 => Fault::Stop { for_ms: between(&mut random, faults.stop_for_ms) },
                2 => Fault::Cut,
                _ => Fault::CutBroker,
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_schedule_with_as_many_faults_as_asked() {
        let faults = Faults {
            kills: 20,
            stops: 5,
            cuts: 3,
            broker_cuts: 4,
            after_ms: (100, 200),
            stop_for_ms: (7000, 9000),
        };
        let made = schedule(3, 4, &faults);
        assert_eq!(made, schedule(3, 4, &faults));
        assert_ne!(made, schedule(4, 4, &faults));
        let count = |like: fn(&Fault) -> bool| made.iter().filter(|step| like(&step.fault)).count();
        assert_eq!(count(|fault| *fault == Fault::Kill), 20);
        assert_eq!(count(|fault| *fault == Fault::Cut), 3);
        assert_eq!(count(|fault| *fault == Fault::CutBroker), 4);
        for step in &made {
            let (name, for_ms) = step.fault.name();
            assert_eq!(Fault::from_name(name, for_ms), Some(step.fault));
        }
        assert_eq!(
            count(|fault| matches!(fault, Fault::Stop { for_ms } if (7000..=9000).contains(for_ms))),
            5
        );
        assert!(made.iter().all(|step| step.copy < 4 && (100..=200).contains(&step.after_ms)));
        assert!((0..4).all(|copy| made.iter().any(|step| step.copy == copy)));
        assert!(
            made.windows(2).any(|two| two[0].fault != Fault::Kill && two[1].fault == Fault::Kill),
            "mixed"
        );
    }
}
