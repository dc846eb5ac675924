//! Where to cut (pure): every byte position of the COMMIT exchange in both directions, and positions of
//! the messages around it, in an order that the seed decides.

use crate::proxy::{Ending, Way};
use crate::schedule::Random;
use serde::{Deserialize, Serialize};

/// From where a position is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anchor {
    /// The first byte of BEGIN.
    Begin,
    /// The first byte of the commit exchange: of the guard in front of COMMIT, or of COMMIT itself.
    Commit,
}

/// What happens at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blow {
    /// The connection is cut.
    Cut(Ending),
    /// The rest of this direction is thrown away and nobody is told.
    Silence,
}

/// One planned fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// In which transaction of its connection, from 1.
    pub transaction: u32,
    /// From where the offset is counted.
    pub anchor: Anchor,
    /// The direction.
    pub way: Way,
    /// Bytes of this direction behind the anchor that still pass.
    pub offset: u64,
    /// What happens there.
    pub blow: Blow,
}

/// The longest parts of a transaction as a rehearsal without faults saw them, in bytes: before the exchange
/// and of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layout {
    /// Before the exchange, to the server.
    pub before_up: u64,
    /// Before the exchange, to the client.
    pub before_down: u64,
    /// Of the exchange, to the server.
    pub exchange_up: u64,
    /// Of the exchange, to the client.
    pub exchange_down: u64,
}

impl Layout {
    /// Bytes of a direction: before the exchange, and of the exchange.
    #[must_use]
    pub fn of(&self, way: Way) -> (u64, u64) {
        match way {
            Way::Up => (self.before_up, self.exchange_up),
            Way::Down => (self.before_down, self.exchange_down),
        }
    }
}

/// Bytes behind the exchange that are aimed at too: the next transaction's first messages.
pub(crate) const BEHIND: u64 = 40;
/// Silences of each direction. A silence costs a time limit, so they are few.
const SILENCES: u64 = 4;
/// A connection is cut in its first, second or third transaction.
const TRANSACTIONS: u64 = 3;

/// So many targets: every position of the exchange with either ending once, then silences, then around it
/// and again whatever the seed draws.
pub(super) fn aim(layout: &Layout, seed: u64, count: usize) -> Vec<Target> {
    let mut random = Random::new(seed, 71);
    let mut transaction = || 1 + u32::try_from(random.below(TRANSACTIONS)).unwrap_or(0);
    let mut targets = Vec::with_capacity(count);
    let ways = [(Way::Up, layout.exchange_up), (Way::Down, layout.exchange_down)];
    for (way, length) in ways {
        for offset in 0..=length {
            for ending in [Ending::Close, Ending::Reset] {
                let blow = Blow::Cut(ending);
                targets.push(Target {
                    transaction: transaction(),
                    anchor: Anchor::Commit,
                    way,
                    offset,
                    blow,
                });
            }
        }
    }
    for (way, length) in ways {
        for at in 0..SILENCES {
            let offset = at * length / SILENCES;
            let (anchor, blow) = (Anchor::Commit, Blow::Silence);
            targets.push(Target { transaction: transaction(), anchor, way, offset, blow });
        }
    }
    let mut around = Random::new(seed, 72);
    while targets.len() < count {
        let (way, anchor, from, length) = match around.below(8) {
            0 | 1 => (Way::Up, Anchor::Begin, 0, layout.before_up),
            2 => (Way::Down, Anchor::Begin, 0, layout.before_down),
            3 => (Way::Up, Anchor::Commit, layout.exchange_up, BEHIND),
            4 => (Way::Down, Anchor::Commit, layout.exchange_down, BEHIND),
            5 => (Way::Up, Anchor::Commit, 0, layout.exchange_up),
            _ => (Way::Down, Anchor::Commit, 0, layout.exchange_down),
        };
        let offset = from + around.below(length + 1);
        let ending = if around.below(2) == 0 { Ending::Close } else { Ending::Reset };
        targets.push(Target { transaction: transaction(), anchor, way, offset, blow: Blow::Cut(ending) });
    }
    let mut order = Random::new(seed, 73);
    for at in (1..targets.len()).rev() {
        let other = usize::try_from(order.below(at as u64 + 1)).unwrap_or(0);
        targets.swap(at, other);
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const LAYOUT: Layout = Layout { before_up: 400, before_down: 200, exchange_up: 55, exchange_down: 66 };

    #[test]
    fn every_position_of_the_exchange_is_aimed_at_with_either_ending() {
        let targets = aim(&LAYOUT, 3, 340);
        assert_eq!(targets.len(), 340);
        for (way, length) in [(Way::Up, 55), (Way::Down, 66)] {
            for offset in 0..=length {
                for ending in [Ending::Close, Ending::Reset] {
                    let hit = |t: &&Target| {
                        (t.anchor, t.way, t.offset, t.blow)
                            == (Anchor::Commit, way, offset, Blow::Cut(ending))
                    };
                    assert!(targets.iter().any(|t| hit(&t)), "{way:?} {offset} {ending:?}");
                }
            }
            assert!(targets.iter().any(|t| t.way == way && t.blow == Blow::Silence));
            assert!(targets.iter().any(|t| t.way == way && t.anchor == Anchor::Begin));
            assert!(targets.iter().any(|t| t.anchor == Anchor::Commit && t.way == way && t.offset > length));
        }
        assert_eq!(targets.iter().map(|t| t.transaction).collect::<HashSet<_>>(), [1, 2, 3].into());
    }

    #[test]
    fn the_seed_decides_all_of_it() {
        assert_eq!(aim(&LAYOUT, 3, 400), aim(&LAYOUT, 3, 400));
        assert_ne!(aim(&LAYOUT, 3, 400), aim(&LAYOUT, 4, 400));
        // Fewer than there are positions are never left out.
        assert!(aim(&LAYOUT, 3, 1).len() > 240);
        assert!(aim(&Layout::default(), 3, 0).len() > 4);
    }
}
