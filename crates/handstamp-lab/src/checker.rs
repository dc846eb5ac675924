//! The verdict (pure): from what the producer logged and what the database holds, and from nothing else.
//!
//! * doubled = Σ (effects of an id − 1)
//! * lost = ids sent without an effect; a good message among the dead letters is lost too
//! * unsent = ids with an effect that nobody sent
//! * off = accounts whose balance is not the sum of their ledger lines, or whose ledger lines are not worth
//!   what was sent

use crate::workload::Credit;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the database held at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndState {
    /// Ledger lines of each id.
    pub effects: BTreeMap<String, u64>,
    /// The balance of each account.
    #[serde(with = "pairs")]
    pub balances: BTreeMap<i64, i64>,
    /// The sum of the ledger lines of each account.
    #[serde(with = "pairs")]
    pub ledger: BTreeMap<i64, i64>,
    /// Ids among the dead letters.
    pub dead_letters: Vec<String>,
}

/// Maps by account as lists of pairs: JSON has no numbers as keys.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<i64, i64>, to: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<i64, i64>, D::Error> {
        Ok(Vec::<(i64, i64)>::deserialize(from)?.into_iter().collect())
    }
}

/// What the run proved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Different ids sent.
    pub sent: u64,
    /// Effects beyond the first, over all ids.
    pub doubled: u64,
    /// Ids sent without any effect.
    pub lost: u64,
    /// Ids with an effect that were never sent.
    pub unsent: u64,
    /// Ids sent that are among the dead letters: good messages, all of them.
    pub dead_lettered: u64,
    /// Accounts that do not add up.
    pub accounts_off: Vec<i64>,
    /// The first ids that were doubled, with how many effects each had.
    pub doubled_ids: Vec<(String, u64)>,
    /// The first ids that were lost.
    pub lost_ids: Vec<String>,
}

/// How many ids a verdict names at most.
const NAMED_MAX: usize = 10;

impl Verdict {
    /// Every id had exactly one effect and everything adds up.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.doubled == 0
            && self.lost == 0
            && self.unsent == 0
            && self.dead_lettered == 0
            && self.accounts_off.is_empty()
    }

    /// This one and that of another part with a ledger of its own.
    #[cfg(all(feature = "kafka", feature = "postgres"))]
    #[must_use]
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.sent += other.sent;
        self.doubled += other.doubled;
        self.lost += other.lost;
        self.unsent += other.unsent;
        self.dead_lettered += other.dead_lettered;
        self.accounts_off.extend(other.accounts_off);
        self.doubled_ids.extend(other.doubled_ids);
        self.doubled_ids.truncate(NAMED_MAX);
        self.lost_ids.extend(other.lost_ids);
        self.lost_ids.truncate(NAMED_MAX);
        self
    }
}

/// Judges a run.
#[must_use]
pub fn judge(sent: &[Credit], end: &EndState) -> Verdict {
    let by_id: BTreeMap<&str, &Credit> = sent.iter().map(|credit| (credit.id.as_str(), credit)).collect();
    let mut verdict = Verdict { sent: count(by_id.len()), ..Verdict::default() };
    let mut worth: BTreeMap<i64, i64> = BTreeMap::new();
    for (id, effects) in &end.effects {
        match by_id.get(id.as_str()) {
            None => verdict.unsent += 1,
            Some(credit) => {
                let times = i64::try_from(*effects).unwrap_or(i64::MAX);
                *worth.entry(credit.account).or_default() += credit.amount.saturating_mul(times);
            }
        }
        if *effects > 1 {
            verdict.doubled += effects - 1;
            if verdict.doubled_ids.len() < NAMED_MAX {
                verdict.doubled_ids.push((id.clone(), *effects));
            }
        }
    }
    let dead: BTreeSet<&str> = end.dead_letters.iter().map(String::as_str).collect();
    for id in by_id.keys() {
        if end.effects.get(*id).is_none_or(|effects| *effects == 0) {
            verdict.lost += 1;
            if verdict.lost_ids.len() < NAMED_MAX {
                verdict.lost_ids.push((*id).to_owned());
            }
        }
        verdict.dead_lettered += u64::from(dead.contains(id));
    }
    let accounts: BTreeSet<i64> =
        end.balances.keys().chain(end.ledger.keys()).chain(worth.keys()).copied().collect();
    let of = |map: &BTreeMap<i64, i64>, account: &i64| map.get(account).copied().unwrap_or(0);
    verdict.accounts_off = accounts
        .into_iter()
        .filter(|account| {
            let ledger = of(&end.ledger, account);
            // What unsent ids are worth is not known: then only balance and ledger are compared.
            of(&end.balances, account) != ledger || (verdict.unsent == 0 && of(&worth, account) != ledger)
        })
        .collect();
    verdict
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn credit(id: &str, account: i64, amount: i64) -> Credit {
        Credit { id: id.to_owned(), account, amount }
    }

    fn sent() -> Vec<Credit> {
        vec![credit("a", 1, 100), credit("b", 1, 400), credit("c", 2, 7)]
    }

    /// The state after each credit was applied as often as told.
    fn state(sent: &[Credit], times: &[u64]) -> EndState {
        let mut end = EndState::default();
        for (credit, times) in sent.iter().zip(times).filter(|(_, times)| **times > 0) {
            let worth = credit.amount * i64::try_from(*times).expect("few");
            end.effects.insert(credit.id.clone(), *times);
            *end.balances.entry(credit.account).or_default() += worth;
            *end.ledger.entry(credit.account).or_default() += worth;
        }
        end
    }

    #[test]
    fn each_once_is_clean() {
        let verdict = judge(&sent(), &state(&sent(), &[1, 1, 1]));
        assert!(verdict.is_clean(), "{verdict:?}");
        assert_eq!(verdict.sent, 3);
    }

    #[test]
    fn a_planted_double_is_found() {
        let verdict = judge(&sent(), &state(&sent(), &[1, 3, 1]));
        assert_eq!((verdict.doubled, verdict.lost, verdict.unsent), (2, 0, 0));
        assert_eq!(verdict.doubled_ids, [("b".to_owned(), 3)]);
        assert!(verdict.accounts_off.is_empty() && !verdict.is_clean());
    }

    #[test]
    fn a_planted_loss_is_found_and_a_dead_letter_is_one() {
        let mut end = state(&sent(), &[1, 0, 1]);
        assert_eq!(
            (judge(&sent(), &end).lost, judge(&sent(), &end).lost_ids.clone()),
            (1, vec!["b".to_owned()])
        );
        end.dead_letters.push("b".into());
        let verdict = judge(&sent(), &end);
        assert_eq!((verdict.lost, verdict.dead_lettered), (1, 1));
        assert!(!verdict.is_clean());
    }

    #[test]
    fn an_effect_of_an_unsent_id_is_found() {
        let mut end = state(&sent(), &[1, 1, 1]);
        end.effects.insert("ghost".into(), 1);
        let verdict = judge(&sent(), &end);
        assert_eq!((verdict.doubled, verdict.lost, verdict.unsent), (0, 0, 1));
        assert!(!verdict.is_clean());
    }

    #[test]
    fn a_balance_that_is_not_its_ledger_is_found() {
        let mut end = state(&sent(), &[1, 1, 1]);
        *end.balances.get_mut(&2).expect("account 2") += 1;
        let verdict = judge(&sent(), &end);
        assert_eq!(verdict.accounts_off, [2]);
        assert!(!verdict.is_clean());
    }

    #[test]
    fn a_ledger_line_with_another_amount_is_found() {
        let mut end = state(&sent(), &[1, 1, 1]);
        *end.balances.get_mut(&1).expect("account 1") += 5;
        *end.ledger.get_mut(&1).expect("account 1") += 5;
        assert_eq!(judge(&sent(), &end).accounts_off, [1]);
    }

    #[test]
    fn a_resend_is_one_id() {
        let mut twice = sent();
        twice.push(credit("a", 1, 100));
        let verdict = judge(&twice, &state(&sent(), &[1, 1, 1]));
        assert!(verdict.is_clean(), "{verdict:?}");
        assert_eq!(verdict.sent, 3);
    }

    proptest! {
        #[test]
        fn doubled_and_lost_are_exactly_what_was_planted(times in proptest::collection::vec(0_u64..4, 0..40)) {
            let sent: Vec<Credit> = (0..times.len())
                .map(|n| credit(&format!("id-{n}"), i64::try_from(n % 3).expect("few"), 10))
                .collect();
            let verdict = judge(&sent, &state(&sent, &times));
            prop_assert_eq!(verdict.doubled, times.iter().map(|n| n.saturating_sub(1)).sum::<u64>());
            prop_assert_eq!(verdict.lost, times.iter().filter(|n| **n == 0).count() as u64);
            prop_assert!(verdict.accounts_off.is_empty());
        }
    }
}
