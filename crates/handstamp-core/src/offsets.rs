//! The low-water mark of a lane that settles by position (pure).
//!
//! ```text
//! received:   3   4   7   8   9        (offsets have gaps: contiguity is the order received)
//! settled:    ✓   ✓       ✓            → position 5 = last settled of the unbroken prefix + 1
//! ```

use std::collections::VecDeque;

/// Tracks what was handed over of one lane in one epoch and how far its prefix is settled.
#[derive(Debug, Default)]
pub struct LowWaterMark {
    /// Received and not yet behind the mark, in the order received.
    pending: VecDeque<(i64, bool)>,
    position: Option<i64>,
    highest: Option<i64>,
}

/// What `received` says of an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// In order: hand it over.
    New,
    /// Not above the highest so far: an ordinary duplicate, never moves the mark backwards.
    Repeated,
}

impl LowWaterMark {
    /// A mark that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that the offset is handed over now.
    pub fn received(&mut self, offset: i64) -> Received {
        if self.highest.is_some_and(|highest| offset <= highest) {
            return Received::Repeated;
        }
        self.highest = Some(offset);
        self.pending.push_back((offset, false));
        Received::New
    }

    /// Notes that the offset's outcome is durable. Returns false for an offset not handed over or
    /// already behind the mark.
    pub fn settled(&mut self, offset: i64) -> bool {
        // Mostly it is the first one.
        let first = self.pending.front().is_some_and(|entry| entry.0 == offset);
        let found = if first { Ok(0) } else { self.pending.binary_search_by_key(&offset, |entry| entry.0) };
        let Ok(at) = found else { return false };
        self.pending[at].1 = true;
        while let Some(&(offset, true)) = self.pending.front() {
            self.pending.pop_front();
            self.position = Some(offset + 1);
        }
        true
    }

    /// Where to go on after a restart: last settled offset of the unbroken prefix + 1.
    #[must_use]
    pub fn position(&self) -> Option<i64> {
        self.position
    }

    /// Handed over and not yet behind the mark.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the gaps and the order of settling: the position is one past the last offset of
        /// the settled prefix, never moves backwards, and never passes an unsettled offset.
        #[test]
        fn the_mark_never_passes_unsettled_work(
            gaps in proptest::collection::vec(1_i64..5, 1..60),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 0..120),
        ) {
            let mut mark = LowWaterMark::new();
            let mut offsets = vec![];
            let mut next = 0;
            for gap in gaps {
                next += gap;
                offsets.push(next);
                prop_assert_eq!(mark.received(next), Received::New);
            }
            let mut done = vec![false; offsets.len()];
            let mut last = None;
            for index in order {
                let at = index.index(offsets.len());
                mark.settled(offsets[at]);
                done[at] = true;
                let prefix = done.iter().take_while(|d| **d).count();
                let expected = prefix.checked_sub(1).map(|i| offsets[i] + 1);
                prop_assert_eq!(mark.position(), expected);
                prop_assert!(mark.position() >= last);
                prop_assert_eq!(mark.in_flight(), offsets.len() - prefix);
                last = mark.position();
            }
        }
    }

    #[test]
    fn a_lower_offset_is_repeated_and_moves_nothing() {
        let mut mark = LowWaterMark::new();
        mark.received(5);
        mark.settled(5);
        assert_eq!(mark.received(1), Received::Repeated);
        assert!(!mark.settled(1));
        assert_eq!(mark.position(), Some(6));
    }
}
