//! Dead letters that fail alike, counted (pure): one row for each class, code and shape of the reason.
//!
//! Streamed: a page at a time, in memory that is bounded by [`GROUPS_MAX`]. A group's name is a digest of what
//! makes it one, so that it is the same tomorrow, on another machine, and in `redrive --group`.

use super::shape::shape;
use handstamp_core::parked::FailedAttempt;
use handstamp_core::{FailureClass, Timestamp};
use handstamp_stores::rows::{DeadLetterKey, DeadLetterSummary};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Most groups told apart; what fits none of them is counted as other.
pub(crate) const GROUPS_MAX: usize = 10_000;

/// What the dead letters of a group share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Alike {
    /// The class.
    pub(crate) class: FailureClass,
    /// The database's own code, where there was one.
    pub(crate) code: Option<String>,
    /// The shape of the reason.
    pub(crate) shape: String,
}

impl Alike {
    /// Of one dead letter.
    pub(crate) fn of(letter: &DeadLetterSummary) -> Self {
        Self { class: letter.class, code: letter.code.clone(), shape: shape(letter.reason.as_str()) }
    }

    /// Of one that failed so before.
    pub(crate) fn of_attempt(failed: &FailedAttempt) -> Self {
        Self { class: failed.class, code: failed.code.clone(), shape: shape(failed.reason.as_str()) }
    }

    /// Its name.
    pub(crate) fn name(&self) -> GroupName {
        // FNV-1a, 64 bits: short, and stable for ever. Nobody is kept out by it.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let code = self.code.as_deref().unwrap_or_default();
        for byte in [self.class.as_str(), "\0", code, "\0", &self.shape].into_iter().flat_map(str::bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        GroupName(u32::try_from((hash ^ (hash >> 32)) & 0xffff_ffff).unwrap_or_default())
    }
}

/// A group's name, written as 8 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupName(u32);

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for GroupName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok().filter(|_| digits);
        number
            .map(Self)
            .ok_or_else(|| "a group is named by 8 hex digits, as `dlq groups` shows them".to_owned())
    }
}

/// One group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// What its dead letters share.
    pub(crate) alike: Alike,
    /// How many there are.
    pub(crate) count: u64,
    /// When the first was given up.
    pub(crate) first: Timestamp,
    /// When the last was given up.
    pub(crate) last: Timestamp,
    /// The first of them.
    pub(crate) example: DeadLetterKey,
}

/// Groups while dead letters are counted.
#[derive(Debug)]
pub(crate) struct Groups {
    max: usize,
    found: HashMap<Alike, Group>,
    other: u64,
}

impl Groups {
    /// No groups yet, and at most so many.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, found: HashMap::new(), other: 0 }
    }

    /// Counts one more.
    pub(crate) fn add(&mut self, letter: &DeadLetterSummary) {
        let alike = Alike::of(letter);
        if let Some(group) = self.found.get_mut(&alike) {
            group.count += 1;
            if letter.failed_at < group.first {
                (group.first, group.example) = (letter.failed_at, letter.key);
            }
            group.last = group.last.max(letter.failed_at);
        } else if self.found.len() < self.max {
            let (at, example) = (letter.failed_at, letter.key);
            self.found.insert(alike.clone(), Group { alike, count: 1, first: at, last: at, example });
        } else {
            self.other += 1;
        }
    }

    /// The largest first, and how many fit into none.
    pub(crate) fn finish(self) -> (Vec<Group>, u64) {
        let mut groups: Vec<Group> = self.found.into_values().collect();
        groups.sort_by(|a, b| {
            b.count.cmp(&a.count).then(a.first.cmp(&b.first)).then(a.alike.name().cmp(&b.alike.name()))
        });
        (groups, self.other)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use handstamp_core::{Origin, Reason};
    use proptest::prelude::*;

    /// A dead letter of class `sql`.
    pub(crate) fn letter(number: u8, at: i64, code: Option<&str>, reason: &str) -> DeadLetterSummary {
        DeadLetterSummary {
            key: DeadLetterKey([number; 16]),
            id: None,
            origin: Origin { topic: "t".into(), partition: 0, offset: i64::from(number), line: None },
            class: FailureClass::Sql,
            code: code.map(str::to_owned),
            reason: Reason::new(reason),
            attempts: 2,
            failed_at: Timestamp(at),
            value_bytes: Some(1),
        }
    }

    #[test]
    fn the_same_error_is_one_line_with_its_first_last_and_example() {
        let mut groups = Groups::new(10);
        for (number, at, code, reason) in [
            (1, 20, Some("23503"), "account 17 is missing"),
            (2, 10, Some("23503"), "account 18 is missing"),
            (3, 30, Some("23503"), "account 19 is missing"),
            (4, 5, Some("23505"), "account 19 is missing"),
            (5, 6, None, "no account"),
        ] {
            groups.add(&letter(number, at, code, reason));
        }
        let (groups, other) = groups.finish();
        assert_eq!(other, 0);
        let said: Vec<_> = groups
            .iter()
            .map(|group| (group.count, group.first.0, group.last.0, group.example.0[0]))
            .collect();
        assert_eq!(said, [(3, 10, 30, 2), (1, 5, 5, 4), (1, 6, 6, 5)]);
        assert_eq!(groups[0].alike.shape, "account # is missing");
    }

    #[test]
    fn a_name_stays_the_same_for_ever_and_tells_groups_apart() {
        let of = |code, reason| Alike::of(&letter(1, 1, code, reason)).name();
        let name = of(Some("23503"), "account 17 is missing");
        assert_eq!(name, of(Some("23503"), "account 18 is missing"));
        assert_ne!(name, of(Some("23505"), "account 17 is missing"));
        assert_ne!(name, of(None, "account 17 is missing"));
        assert_eq!(name.to_string().parse(), Ok(name));
        assert_eq!(name.to_string(), "8cf9a814", "a name in a runbook must stay good");
        for bad in ["", "1", "123456789", "zzzzzzzz", "+1234567"] {
            assert!(bad.parse::<GroupName>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// However many groups there are: memory is bounded, and every dead letter is counted once.
        #[test]
        fn every_dead_letter_is_counted_once_in_bounded_memory(
            letters in proptest::collection::vec((0_u8..40, 0_i64..1000), 0..300), max in 1_usize..20,
        ) {
            let mut groups = Groups::new(max);
            for (kind, at) in &letters {
                let words = "x".repeat(usize::from(*kind) + 1);
                groups.add(&letter(*kind, *at, None, &words));
                prop_assert!(groups.found.len() <= max);
            }
            let (found, other) = groups.finish();
            let counted: u64 = found.iter().map(|group| group.count).sum();
            prop_assert_eq!(counted + other, letters.len() as u64);
            prop_assert!(found.windows(2).all(|pair| pair[0].count >= pair[1].count));
            prop_assert!(found.iter().all(|group| group.first <= group.last));
        }
    }
}
