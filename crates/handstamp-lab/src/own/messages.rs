//! The records of a run, from its seed (pure): templates filled, some sent twice, some out of order, some bad.

use super::settings::{Messages, put_in};
use crate::schedule::Random;
use crate::workload::Plan;
use std::collections::BTreeSet;

/// A repeated record comes at most so many records after its first.
const AGAIN_WITHIN: u64 = 200;
/// A record changes places with one at most so many records later.
const SWAPPED_WITHIN: u64 = 50;

/// One record to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) key: Option<String>,
    pub(super) body: String,
    pub(super) headers: Vec<(String, String)>,
}

/// Everything that is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Workload {
    /// In the order they are sent.
    pub(super) records: Vec<Record>,
    /// Ids that must have one effect.
    pub(super) good: BTreeSet<String>,
    /// Ids that must have none.
    pub(super) bad: BTreeSet<String>,
    /// Records that are a second copy.
    pub(super) duplicates: u64,
    /// Records that changed places with another.
    pub(super) reordered: u64,
}

/// Whether a share of one event in a thousand million falls on this draw.
fn drawn(random: &mut Random, part: f64) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    let at = random.below(1_000_000_000) as f64 / 1e9;
    at < part
}

/// Makes the records of a seed.
pub(super) fn workload(seed: u64, messages: &Messages) -> Workload {
    let plan = Plan { seed, messages: messages.count, accounts: messages.accounts, resends: 0 };
    let mut random = Random::new(seed, 2_000_001);
    let (mut good, mut bad, mut duplicates) = (BTreeSet::new(), BTreeSet::new(), 0);
    // Each record with its place in the order, and a number that keeps equal places apart.
    let mut placed = Vec::new();
    for n in 0..messages.count {
        let is_bad = drawn(&mut random, messages.bad);
        let record = record(&plan, n, messages, is_bad);
        if is_bad {
            bad.insert(record.id.clone())
        } else {
            good.insert(record.id.clone())
        };
        if drawn(&mut random, messages.duplicates) {
            duplicates += 1;
            placed.push((n + 1 + random.below(AGAIN_WITHIN), 1, record.clone()));
        }
        placed.push((n, 0, record));
    }
    placed.sort_by_key(|(place, copy, _)| (*place, *copy));
    let mut records: Vec<Record> = placed.into_iter().map(|(_, _, record)| record).collect();
    let mut reordered = 0;
    for at in 0..records.len() {
        if drawn(&mut random, messages.reordered) {
            let by = usize::try_from(1 + random.below(SWAPPED_WITHIN)).unwrap_or(1);
            let other = (at + by).min(records.len() - 1);
            reordered += u64::from(other != at);
            records.swap(at, other);
        }
    }
    Workload { records, good, bad, duplicates, reordered }
}

fn record(plan: &Plan, n: u64, messages: &Messages, is_bad: bool) -> Record {
    let credit = plan.credit(n);
    let (number, account, amount) =
        ((n + 1).to_string(), credit.account.to_string(), credit.amount.to_string());
    let known = |word: &str| match word {
        "n" => Some(number.as_str()),
        "uuid" => Some(credit.id.as_str()),
        "account" => Some(account.as_str()),
        "amount" => Some(amount.as_str()),
        _ => None,
    };
    let id = put_in(&messages.id, known);
    let known = |word: &str| if word == "id" { Some(id.as_str()) } else { known(word) };
    Record {
        key: messages.key.as_ref().map(|key| put_in(key, known)),
        body: put_in(if is_bad { &messages.bad_body } else { &messages.body }, known),
        headers: messages.headers.iter().map(|(name, value)| (name.clone(), put_in(value, known))).collect(),
        id: id.clone(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    pub(in crate::own) fn messages() -> Messages {
        Messages {
            count: 1000,
            id: "evt-{n}".into(),
            key: Some("{account}".into()),
            body: r#"{"id":"{id}","account_id":{account},"amount":{amount}}"#.into(),
            headers: vec![("event_id".into(), "{id}".into())],
            duplicates: 0.1,
            reordered: 0.1,
            bad: 0.05,
            bad_body: "no JSON {n}".into(),
            accounts: 10,
            partitions: 6,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_records_and_shares_are_near_what_was_asked() {
        let made = workload(7, &messages());
        assert_eq!(made, workload(7, &messages()));
        assert_ne!(made, workload(8, &messages()));
        assert!((60..140).contains(&made.duplicates), "{}", made.duplicates);
        assert!((60..150).contains(&made.reordered), "{}", made.reordered);
        assert!((25..80).contains(&made.bad.len()), "{}", made.bad.len());
        let bad = made.records.iter().find(|record| made.bad.contains(&record.id)).expect("one");
        assert!(bad.body.starts_with("no JSON") && bad.headers[0].1 == bad.id);
    }

    #[test]
    fn without_shares_everything_is_sent_once_in_order() {
        let plain = Messages { duplicates: 0.0, reordered: 0.0, bad: 0.0, ..messages() };
        let made = workload(7, &plain);
        let ids: Vec<String> = made.records.iter().map(|record| record.id.clone()).collect();
        assert_eq!(ids, (1..=1000).map(|n| format!("evt-{n}")).collect::<Vec<_>>());
        assert_eq!((made.good.len(), made.duplicates, made.reordered), (1000, 0, 0));
    }

    proptest! {
        #[test]
        fn every_id_is_sent_and_as_many_twice_as_counted(
            seed in any::<u64>(), count in 1_u64..300, shares in [0.0_f64..=1.0, 0.0_f64..=1.0, 0.0_f64..=1.0],
        ) {
            let [duplicates, reordered, bad] = shares;
            let made = workload(seed, &Messages { count, duplicates, reordered, bad, ..messages() });
            let mut times: BTreeMap<&str, u64> = BTreeMap::new();
            for record in &made.records {
                *times.entry(&record.id).or_default() += 1;
            }
            prop_assert_eq!(times.len() as u64, count);
            prop_assert_eq!((made.good.len() + made.bad.len()) as u64, count);
            prop_assert!(times.values().all(|times| *times <= 2));
            prop_assert_eq!(times.values().filter(|times| **times == 2).count() as u64, made.duplicates);
        }
    }
}
