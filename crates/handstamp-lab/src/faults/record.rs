//! What histories of `lab faults` hold beside what all histories hold, and how figures are read out of them.
//!
//! Authoritative for the verdict: the end state and the producer's log, as everywhere. Whether a cut
//! transaction was committed is told by [`Seen::Written`], which was read from the database. Phases and counts
//! of proxies say whether a row proves anything.

use super::commit::{Layout, Struck};
use super::through::Through;
use crate::history::{Entry, Event};
use serde::{Deserialize, Serialize};

/// A stretch of a row; it goes on until the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The window before the fault.
    Before,
    /// The fault begins.
    Fault,
    /// Its second half: whatever was under way when it began has come to its end.
    Half,
    /// It is being ended.
    Ending,
    /// It is over.
    Returned,
    /// The window after it.
    After,
    /// Fresh members do the rest.
    Rest,
}

/// Transactions with an effect that a connection wrote, as the ledger tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The connection's port.
    pub port: i32,
    /// Its backend.
    pub backend: i32,
    /// How many.
    pub transactions: u64,
}

/// What was seen of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Seen {
    /// A stretch begins.
    Phase {
        /// Which.
        phase: Phase,
    },
    /// A member was sent SIGTERM.
    Asked {
        /// Which process.
        child: u32,
    },
    /// The last lines of a member that did not end well.
    LastLines {
        /// Its log.
        text: String,
    },
    /// The victim was cut off, or a broker was dead.
    Round {
        /// Whether every partition went on meanwhile.
        taken_over: bool,
    },
    /// What has gone through the proxies so far.
    Passed {
        /// Between the subjects and the database.
        database: Through,
        /// Between the subjects and the broker.
        broker: Through,
        /// Bytes answered by the server that the fault is about.
        answered: u64,
    },
    /// Faults in the COMMIT exchange were planned.
    Aimed {
        /// How many.
        planned: usize,
        /// What a rehearsal saw.
        layout: Layout,
    },
    /// A fault was dealt.
    Struck(Struck),
    /// What each connection has written.
    Written {
        /// One for each connection that wrote anything.
        connections: Vec<Written>,
    },
    /// Last line of a row that cannot be run here.
    Refused {
        /// Why.
        why: String,
    },
}

/// What was seen, in order.
pub(crate) fn seen(entries: &[Entry]) -> impl Iterator<Item = (u64, &Seen)> {
    entries.iter().filter_map(|entry| match &entry.event {
        Event::Fault(seen) => Some((entry.at_ms, seen)),
        _ => None,
    })
}

/// Why a row was refused.
pub(super) fn refused(entries: &[Entry]) -> Option<&str> {
    seen(entries).find_map(|(_, seen)| match seen {
        Seen::Refused { why } => Some(why.as_str()),
        _ => None,
    })
}

fn phase(entry: &Entry) -> Option<Phase> {
    match entry.event {
        Event::Fault(Seen::Phase { phase }) => Some(phase),
        _ => None,
    }
}

/// When each stretch began, in order.
pub(crate) fn phases(entries: &[Entry]) -> Vec<(u64, Phase)> {
    entries.iter().filter_map(|entry| phase(entry).map(|phase| (entry.at_ms, phase))).collect()
}

/// What happened in the first stretch of a kind.
pub(super) fn during(entries: &[Entry], which: Phase) -> &[Entry] {
    let from = entries.iter().position(|entry| phase(entry) == Some(which));
    let rest = from.and_then(|from| entries.get(from..)).unwrap_or_default();
    let more = rest.iter().skip(1).position(|entry| phase(entry).is_some());
    &rest[..more.map_or(rest.len(), |more| more + 1)]
}

/// Effects there were, and when.
pub(crate) fn progress(entries: &[Entry]) -> Vec<(u64, u64)> {
    let of = |entry: &Entry| match entry.event {
        Event::Progress { effects } => Some((entry.at_ms, effects)),
        _ => None,
    };
    entries.iter().filter_map(of).collect()
}

/// Effects between the first and the last look.
pub(super) fn gained(entries: &[Entry]) -> u64 {
    let looks = progress(entries);
    let (first, last) = (looks.first().map_or(0, |look| look.1), looks.last().map_or(0, |look| look.1));
    last.saturating_sub(first)
}

/// Seconds between the first and the last look, and effects a second; `None` when there were no two.
pub(super) fn rate(entries: &[Entry]) -> Option<(f64, f64)> {
    let looks = progress(entries);
    let ms = looks.last()?.0.saturating_sub(looks.first()?.0);
    #[allow(clippy::cast_precision_loss, reason = "a rate for reading")]
    let (took_s, effects) = (ms as f64 / 1000.0, gained(entries) as f64);
    (ms > 0).then(|| (took_s, effects / took_s))
}

/// What went through to the database and to the broker, and bytes answered, from the first to the last look.
pub(super) fn passed(entries: &[Entry]) -> (Through, Through, u64) {
    let of = |seen: &Seen| match seen {
        Seen::Passed { database, broker, answered } => Some((*database, *broker, *answered)),
        _ => None,
    };
    let looks: Vec<_> = seen(entries).filter_map(|(_, seen)| of(seen)).collect();
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else { return Default::default() };
    (last.0.since(first.0), last.1.since(first.1), last.2.saturating_sub(first.2))
}

/// Different messages that were sent, as the history's first line says.
pub(super) fn messages(entries: &[Entry]) -> u64 {
    let of = |entry: &Entry| match entry.event {
        Event::Run { messages, .. } => Some(messages),
        _ => None,
    };
    entries.iter().find_map(of).unwrap_or(0)
}

/// Whether everything was handled and settled in the end.
pub(super) fn drained(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.event == Event::Drained)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_ms: u64, event: Event) -> Entry {
        Entry { at_ms, event }
    }

    fn begins(at_ms: u64, phase: Phase) -> Entry {
        at(at_ms, Event::Fault(Seen::Phase { phase }))
    }

    fn effects(at_ms: u64, effects: u64) -> Entry {
        at(at_ms, Event::Progress { effects })
    }

    #[test]
    fn a_rate_is_that_of_its_own_window() {
        let entries = [
            effects(0, 5),
            begins(1000, Phase::Before),
            effects(1000, 100),
            effects(1500, 170),
            effects(3000, 300),
            begins(3000, Phase::Fault),
            effects(9000, 300),
            begins(9000, Phase::After),
            effects(9000, 400),
            begins(9500, Phase::Rest),
            effects(9600, 900),
        ];
        assert_eq!(rate(during(&entries, Phase::Before)), Some((2.0, 100.0)));
        // One look is no window.
        assert_eq!(rate(during(&entries, Phase::After)), None);
        assert_eq!((gained(during(&entries, Phase::After)), gained(during(&entries, Phase::Rest))), (0, 0));
        assert!(during(&entries, Phase::Half).is_empty());
        assert_eq!(phases(&entries).len(), 4);
    }

    #[test]
    fn what_passed_is_counted_from_the_first_look() {
        let look = |bytes_up, answered| {
            let through = Through { bytes_up, ..Through::default() };
            let (database, broker) = (through, through.plus(through));
            at(1, Event::Fault(Seen::Passed { database, broker, answered }))
        };
        let (database, broker, answered) = passed(&[look(10, 3), look(11, 3), look(40, 9)]);
        assert_eq!((database.bytes_up, broker.bytes_up, answered), (30, 60, 6));
        assert_eq!(passed(&[]), Default::default());
    }
}
