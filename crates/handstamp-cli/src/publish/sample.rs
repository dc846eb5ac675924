//! Credits to accounts, made up from a seed (pure): the same seed gives the same messages, ids included.
//!
//! A duplicate is the same message once more, some places after the first.

use uuid::{Builder, Uuid};

/// How far behind its first a duplicate may come.
const DISTANCE_MAX: u64 = 1000;

/// What to make up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Credits {
    /// How many different credits.
    pub(crate) count: u64,
    /// Which part of them comes twice, 0 to 1.
    pub(crate) duplicates: f64,
    /// Accounts from 1 to this.
    pub(crate) accounts: u64,
    /// Decides everything.
    pub(crate) seed: u64,
    /// The ids' time; they are version 7.
    pub(crate) first_ms: u64,
}

/// One credit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credit {
    /// Its id.
    pub(crate) id: Uuid,
    /// Whose.
    pub(crate) account: u64,
    /// How much, 1 to 100.
    pub(crate) amount: u64,
}

impl Credit {
    /// The body.
    pub(crate) fn json(&self) -> String {
        format!(r#"{{"event_id": "{}", "account_id": {}, "amount": {}}}"#, self.id, self.account, self.amount)
    }
}

impl Credits {
    /// How many messages come twice: exactly the part asked for, rounded down.
    pub(crate) fn duplicate_count(&self) -> u64 {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part between 0 and 1 of a count: never negative, never more than the count"
        )]
        let duplicates = (self.count as f64 * self.duplicates + 1e-9) as u64;
        duplicates.min(self.count)
    }

    /// The n-th credit, whenever it is asked for.
    pub(crate) fn credit(&self, n: u64) -> Credit {
        let mut random = Random(self.seed ^ n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut tail = [0; 10];
        tail[..8].copy_from_slice(&random.next().to_be_bytes());
        tail[8..].copy_from_slice(&random.next().to_be_bytes()[..2]);
        Credit {
            // A thousand ids a second keeps them in order of time.
            id: Builder::from_unix_timestamp_millis(self.first_ms + n, &tail).into_uuid(),
            account: 1 + random.below(self.accounts),
            amount: 1 + random.below(100),
        }
    }

    /// Every message in its order: the number of its credit.
    pub(crate) fn order(&self) -> impl Iterator<Item = u64> {
        let (count, duplicates) = (self.count, self.duplicate_count());
        let mut random = Random(!self.seed);
        let mut waiting: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
        let mut place = 0;
        let mut n = 0;
        let mut picked = 0;
        std::iter::from_fn(move || {
            let due = waiting.first_key_value().is_some_and(|(at, _)| *at <= place || n == count);
            let next = if due {
                let mut entry = waiting.first_entry()?;
                let next = entry.get_mut().pop();
                if entry.get().is_empty() {
                    entry.remove();
                }
                next?
            } else if n < count {
                let next = n;
                // Selection sampling: exactly `duplicates` of `count`, evenly spread.
                if random.below(count - n) < duplicates - picked {
                    picked += 1;
                    waiting.entry(place + 1 + random.below(DISTANCE_MAX)).or_default().push(next);
                }
                n += 1;
                next
            } else {
                return None;
            };
            place += 1;
            Some(next)
        })
    }
}

/// SplitMix64: enough to make samples up, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 where the bound is 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn credits(count: u64, duplicates: f64, seed: u64) -> Credits {
        Credits { count, duplicates, accounts: 10, seed, first_ms: 1_767_225_600_000 }
    }

    #[test]
    fn every_credit_comes_and_exactly_the_part_asked_for_comes_twice() {
        for (count, part, twice) in
            [(1000, 0.1, 100), (1, 1.0, 1), (10, 0.0, 0), (3000, 1.0, 3000), (0, 0.5, 0)]
        {
            let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
            for n in credits(count, part, 7).order() {
                *seen.entry(n).or_default() += 1;
            }
            assert_eq!(seen.len() as u64, count);
            assert_eq!(seen.values().filter(|times| **times == 2).count() as u64, twice, "{count} {part}");
            assert!(seen.values().all(|times| *times <= 2));
        }
    }

    #[test]
    fn a_seed_gives_the_same_messages_and_another_gives_others() {
        let made = |seed| {
            let credits = credits(200, 0.3, seed);
            credits.order().map(|n| credits.credit(n)).collect::<Vec<_>>()
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }

    #[test]
    fn ids_are_distinct_version_7_and_in_order_of_time() {
        let credits = credits(500, 0.0, 3);
        let ids: Vec<Uuid> = (0..500).map(|n| credits.credit(n).id).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        assert!((0..500).map(|n| credits.credit(n)).all(|c| (1..=10).contains(&c.account) && c.amount >= 1));
    }
}
