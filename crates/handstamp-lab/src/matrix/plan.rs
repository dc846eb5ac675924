//! Which cells there are (pure).
//!
//! A file is never taken away from its reader, so it has no cells for the two points of a revoke. Each
//! point has a number at which something is done and something is left, so that both sides are put to
//! the test; where a point is reached once in a run it is 1.

use super::broken::Broken;
use super::outcome::{Named, SourceKind, StoreKind};
use handstamp::CrashPoint;

impl SourceKind {
    /// Whether a consumer on this source can reach a point at all.
    #[must_use]
    pub fn has(self, point: CrashPoint) -> bool {
        self == Self::Kafka || !is_revoke(point)
    }
}

/// True for the points that only a second member of the group brings about.
pub(super) fn is_revoke(point: CrashPoint) -> bool {
    matches!(point, CrashPoint::RevokeBeforeDrain | CrashPoint::RevokeAfterDrain)
}

/// What an operator does with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Sends them back.
    Redrive,
    /// Gives them up.
    Discard,
}

impl Operation {
    /// The points that only an operator's command reaches.
    pub(super) fn of(point: CrashPoint) -> Option<Self> {
        match point {
            CrashPoint::MidRedrive | CrashPoint::AfterRedrive => Some(Self::Redrive),
            CrashPoint::MidDiscard | CrashPoint::AfterDiscard => Some(Self::Discard),
            _ => None,
        }
    }

    /// The word of the command, and of the audit.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }
}

/// One point on one source and one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Where the process dies.
    pub point: CrashPoint,
    /// The how manieth time it gets there.
    pub nth: u32,
    /// Where messages come from.
    pub source: SourceKind,
    /// Where effects go.
    pub store: StoreKind,
    /// A control: what is broken on purpose.
    pub broken: Option<Broken>,
}

impl Cell {
    /// By its words.
    #[must_use]
    pub fn named(&self) -> Named {
        let Self { point, nth, source, store, broken } = *self;
        Named { point: point.name().into(), about: point.about().into(), nth, source, store, broken }
    }
}

/// Messages in a transaction of a cell.
pub(super) const BATCH_MAX: u32 = 10;

/// At which time a point is interesting: some transactions are behind it, and some before it.
fn nth(point: CrashPoint, source: SourceKind, store: StoreKind) -> u32 {
    match point {
        CrashPoint::AfterPoll => 2,
        // SQLite claims one id after the other: in the middle of the second transaction.
        CrashPoint::MidClaim if store == StoreKind::Sqlite => BATCH_MAX + 5,
        CrashPoint::BetweenEffects => BATCH_MAX + 5,
        CrashPoint::AfterStart
        | CrashPoint::MidClaim
        | CrashPoint::AfterClaim
        | CrashPoint::BeforeCommit
        | CrashPoint::AfterCommit => 2,
        // On SQLite migrating and registering commit, too.
        CrashPoint::CommitSent if store == StoreKind::Sqlite => 5,
        CrashPoint::CommitSent => 3,
        // A file's position is written now and then only.
        CrashPoint::MidSettle | CrashPoint::AfterSettle if source == SourceKind::Kafka => 2,
        // SQLite moves one dead letter after the other.
        CrashPoint::MidRedrive | CrashPoint::MidDiscard if store == StoreKind::Sqlite => 5,
        CrashPoint::AfterRedrive => 2,
        _ => 1,
    }
}

/// Every cell of the sources and stores, point after point.
#[must_use]
pub fn cells(sources: &[SourceKind], stores: &[StoreKind]) -> Vec<Cell> {
    let mut cells = vec![];
    for point in CrashPoint::all() {
        for &source in sources.iter().filter(|source| source.has(point)) {
            for &store in stores {
                cells.push(Cell { point, nth: nth(point, source, store), source, store, broken: None });
            }
        }
    }
    cells
}

/// The controls: a consumer broken on purpose at the point where it must do harm.
#[must_use]
pub fn controls(sources: &[SourceKind], stores: &[StoreKind]) -> Vec<Cell> {
    let mut cells = vec![];
    for (broken, point) in [
        (Broken::NoInbox, CrashPoint::AfterCommit),
        (Broken::SettleFirst, CrashPoint::BeforeCommit),
        (Broken::DoneFirst, CrashPoint::RetryTaken),
    ] {
        for &source in sources {
            for &store in stores {
                let nth = nth(point, source, store);
                cells.push(Cell { point, nth, source, store, broken: Some(broken) });
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SOURCES: [SourceKind; 2] = [SourceKind::File, SourceKind::Kafka];
    const STORES: [StoreKind; 2] = [StoreKind::Sqlite, StoreKind::Postgres];

    #[test]
    fn every_point_stands_once_for_each_source_that_has_it_and_each_store() {
        let cells = cells(&SOURCES, &STORES);
        let distinct: BTreeSet<_> = cells.iter().map(|c| (c.point, c.source, c.store)).collect();
        assert_eq!(distinct.len(), cells.len());
        for point in CrashPoint::all() {
            let expected = if is_revoke(point) { 2 } else { 4 };
            assert_eq!(cells.iter().filter(|c| c.point == point).count(), expected, "{}", point.name());
        }
        assert!(cells.iter().all(|cell| cell.nth > 0 && cell.broken.is_none()));
        assert!(CrashPoint::all().count() >= 15);
    }

    #[test]
    fn every_fault_is_controlled_on_every_source_and_store() {
        assert_eq!(controls(&SOURCES, &STORES).len(), 12);
        assert!(controls(&SOURCES, &STORES).iter().all(|cell| cell.broken.is_some()));
    }
}
