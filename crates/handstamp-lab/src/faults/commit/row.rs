//! What the cuts of one consumer came to (pure): read out of its histories and its producer's logs.

use super::Contender;
use super::aim::{Anchor, Blow, Layout};
use super::tap::Struck;
use crate::checker::{self, Verdict};
use crate::faults::record::{self, Seen};
use crate::faults::report::{Row, Standing, violation};
use crate::faults::through::Through;
use crate::history::{self, Entry};
use crate::proxy::Way;
use crate::workload::Credit;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Neither outcome of a transaction with an effect may be rarer than this among all faults.
const SHARE_MIN: f64 = 0.10;

/// What became of a transaction that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Came {
    /// It was committed.
    Committed,
    /// It had sent an effect and was not committed.
    NotCommitted,
    /// It had sent no effect yet, or the cut was between two transactions.
    WithoutEffect,
    /// The ledger does not tell.
    Unexplained,
}

/// Every fault that was dealt, with what became of its transaction: the ledger tells how many transactions a
/// connection has written, the tap how many had sent an effect.
pub(crate) fn blows(entries: &[Entry]) -> Vec<(Struck, Came)> {
    let written: BTreeMap<(i32, i32), u64> = record::seen(entries)
        .filter_map(|(_, seen)| match seen {
            Seen::Written { connections } => Some(connections),
            _ => None,
        })
        .flatten()
        .map(|one| ((one.port, one.backend), one.transactions))
        .collect();
    let came = |cut: &Struck| {
        let durable = written.get(&(i32::from(cut.port), cut.backend)).copied().unwrap_or(0);
        match (cut.acting, cut.acted.checked_sub(durable)) {
            (true, Some(0)) => Came::Committed,
            (true, Some(1)) => Came::NotCommitted,
            (false, Some(0)) => Came::WithoutEffect,
            _ => Came::Unexplained,
        }
    };
    record::seen(entries)
        .filter_map(|(_, seen)| match seen {
            Seen::Struck(cut) => Some((*cut, came(cut))),
            _ => None,
        })
        .collect()
}

/// How many faults were planned, and what the rehearsal saw.
pub(crate) fn aimed(entries: &[Entry]) -> (usize, Layout) {
    let of = |seen: &Seen| match seen {
        Seen::Aimed { planned, layout } => Some((*planned, *layout)),
        _ => None,
    };
    record::seen(entries).find_map(|(_, seen)| of(seen)).unwrap_or_default()
}

/// What was seen of one consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommitRow {
    /// Which consumer.
    pub subject: Contender,
    /// Faults planned.
    pub planned: usize,
    /// Faults dealt: cuts and silences.
    pub dealt: usize,
    /// Different positions of the exchange and around it at which a fault was dealt.
    pub positions: usize,
    /// Bytes of the exchange as seen in the rehearsal: to the server and back.
    pub exchange_bytes: (u64, u64),
    /// Positions of the exchange at which no fault was dealt, as `up 17`.
    pub missed: Vec<String>,
    /// Cut transactions with an effect that were committed.
    pub committed: usize,
    /// Cut transactions with an effect that were not.
    pub not_committed: usize,
    /// Cut before the transaction had sent an effect, or between two of them.
    pub without_effect: usize,
    /// Cut transactions whose outcome the ledger does not tell: must be 0.
    pub unexplained: usize,
    /// What went through the proxies, and what they cut.
    #[serde(flatten)]
    pub through: Through,
    /// The verdict of the checker.
    pub verdict: Verdict,
    /// How long it took, in seconds.
    pub took_s: f64,
}

impl CommitRow {
    /// Out of the complete histories and producer's logs of its parts, each with a ledger of its own.
    pub(in crate::faults) fn of(subject: Contender, parts: &[(Vec<Entry>, Vec<Credit>)]) -> Self {
        let histories = || parts.iter().map(|(entries, _)| entries.as_slice());
        // Every part aims by what the first one saw.
        let layout = histories().next().map(|entries| aimed(entries).1).unwrap_or_default();
        let blows: Vec<(Struck, Came)> = histories().flat_map(blows).collect();
        let count = |of: Came| blows.iter().filter(|(_, came)| *came == of).count();
        let struck: Vec<Struck> = blows.iter().map(|(cut, _)| *cut).collect();
        let judged = parts.iter().map(|(entries, sent)| {
            checker::judge(sent, &history::end_state(entries).cloned().unwrap_or_default())
        });
        let took_ms: u64 = histories().filter_map(|entries| entries.last().map(|entry| entry.at_ms)).sum();
        #[allow(clippy::cast_precision_loss, reason = "a time for reading")]
        let took_s = took_ms as f64 / 1000.0;
        Self {
            subject,
            planned: histories().map(|entries| aimed(entries).0).sum(),
            dealt: struck.len(),
            positions: positions(&struck),
            exchange_bytes: (layout.exchange_up, layout.exchange_down),
            missed: missed(&layout, &struck),
            committed: count(Came::Committed),
            not_committed: count(Came::NotCommitted),
            without_effect: count(Came::WithoutEffect),
            unexplained: count(Came::Unexplained),
            through: histories()
                .map(|entries| record::passed(entries).0)
                .fold(Through::default(), Through::plus),
            verdict: judged.fold(Verdict::default(), Verdict::and),
            took_s,
        }
    }

    /// Its row of the table.
    pub(in crate::faults) fn row(&self) -> Row {
        Row {
            name: self.subject.name().to_owned(),
            cells: vec![
                ("faults", format!("{} of {}", self.dealt, self.planned)),
                ("positions", self.positions.to_string()),
                ("committed", self.committed.to_string()),
                ("not committed", self.not_committed.to_string()),
                ("no effect yet", self.without_effect.to_string()),
                ("doubled", self.verdict.doubled.to_string()),
                ("lost", self.verdict.lost.to_string()),
                ("bytes up/down", format!("{}/{}", self.through.bytes_up, self.through.bytes_down)),
                ("connections cut", self.through.connections_cut.to_string()),
                ("seconds", format!("{:.0}", self.took_s)),
            ],
            standing: self.standing(),
        }
    }

    fn standing(&self) -> Standing {
        match self.subject {
            Contender::Handstamp if !self.verdict.is_clean() => Standing::Violated(violation(&self.verdict)),
            Contender::Handstamp => self.gap().map_or(Standing::Held, Standing::Inconclusive),
            Contender::WithoutInbox => self.standing_of_control(),
        }
    }

    fn standing_of_control(&self) -> Standing {
        if self.verdict.lost > 0 || self.verdict.unsent > 0 || !self.verdict.accounts_off.is_empty() {
            let why = format!("the control itself is broken: {}", violation(&self.verdict));
            return Standing::Inconclusive(why);
        }
        if self.verdict.doubled == 0 {
            return Standing::Inconclusive(
                "the control without an inbox doubled nothing: these cuts prove nothing".to_owned(),
            );
        }
        self.gap().map_or(Standing::Control, Standing::Inconclusive)
    }

    fn share(&self, part: usize) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a share for reading")]
        let share = part as f64 / self.dealt as f64;
        if self.dealt == 0 { 0.0 } else { share }
    }

    /// What keeps it from proving anything.
    fn gap(&self) -> Option<String> {
        if self.through.connections_cut == 0 || self.through.bytes_up == 0 || self.through.bytes_down == 0 {
            return Some("nothing was cut: the subject went around the proxy".to_owned());
        }
        if self.dealt < self.planned || self.dealt == 0 || !self.missed.is_empty() {
            return Some(format!(
                "{} of {} faults were dealt, missing: {}",
                self.dealt,
                self.planned,
                self.missed.join(", ")
            ));
        }
        if self.unexplained > 0 {
            return Some(format!("the outcome of {} cut transactions is not known", self.unexplained));
        }
        let (yes, no) = (self.share(self.committed), self.share(self.not_committed));
        (yes < SHARE_MIN || no < SHARE_MIN).then(|| {
            format!(
                "of all cuts {:.0} % hit a transaction that was committed and {:.0} % one that was not: each needs 10 %",
                yes * 100.0,
                no * 100.0
            )
        })
    }
}

fn positions(struck: &[Struck]) -> usize {
    let position = |cut: &Struck| (cut.target.anchor, cut.target.way, cut.target.offset);
    struck.iter().map(position).collect::<BTreeSet<_>>().len()
}

/// Positions of the exchange at which no connection was cut.
fn missed(layout: &Layout, struck: &[Struck]) -> Vec<String> {
    let cut_at: BTreeSet<(Way, u64)> = struck
        .iter()
        .filter(|cut| cut.target.anchor == Anchor::Commit && matches!(cut.target.blow, Blow::Cut(_)))
        .map(|cut| (cut.target.way, cut.target.offset))
        .collect();
    let all = (0..=layout.exchange_up).map(|at| (Way::Up, at));
    let all = all.chain((0..=layout.exchange_down).map(|at| (Way::Down, at)));
    all.filter(|position| !cut_at.contains(position))
        .map(|(way, at)| format!("{} {at}", way.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: Contender, verdict: Verdict) -> CommitRow {
        CommitRow {
            subject,
            planned: 100,
            dealt: 100,
            positions: 50,
            exchange_bytes: (20, 30),
            missed: vec![],
            committed: 40,
            not_committed: 30,
            without_effect: 30,
            unexplained: 0,
            through: Through { bytes_up: 1, bytes_down: 1, connections_cut: 99, ..Through::default() },
            verdict,
            took_s: 1.0,
        }
    }

    fn ours(verdict: Verdict) -> Standing {
        row(Contender::Handstamp, verdict).standing()
    }

    fn control(verdict: Verdict) -> Standing {
        row(Contender::WithoutInbox, verdict).standing()
    }

    #[test]
    fn a_row_that_cut_too_little_proves_nothing() {
        let doubled = Verdict { doubled: 1, ..Verdict::default() };
        for (subject, verdict, good) in [
            (Contender::Handstamp, Verdict::default(), Standing::Held),
            (Contender::WithoutInbox, doubled, Standing::Control),
        ] {
            let whole = || row(subject, verdict.clone());
            assert_eq!(whole().standing(), good);
            let through = whole().through;
            let holes = [
                CommitRow { through: Through::default(), ..whole() },
                CommitRow { through: Through { bytes_up: 0, ..through }, ..whole() },
                CommitRow { through: Through { bytes_down: 0, ..through }, ..whole() },
                CommitRow { through: Through { connections_cut: 0, ..through }, ..whole() },
                CommitRow { dealt: 99, ..whole() },
                CommitRow { dealt: 0, planned: 0, ..whole() },
                CommitRow { missed: vec!["up 3".to_owned()], ..whole() },
                CommitRow { committed: 9, without_effect: 61, ..whole() },
                CommitRow { not_committed: 9, without_effect: 51, ..whole() },
                CommitRow { unexplained: 1, ..whole() },
            ];
            for hole in holes {
                assert!(matches!(hole.standing(), Standing::Inconclusive(_)), "{hole:?}");
            }
        }
    }

    #[test]
    fn ours_may_not_double_and_the_control_must() {
        let doubled = Verdict { doubled: 1, ..Verdict::default() };
        let lost = Verdict { lost: 1, ..Verdict::default() };
        assert!(matches!(ours(doubled.clone()), Standing::Violated(_)));
        assert!(matches!(ours(lost.clone()), Standing::Violated(_)));
        assert_eq!(control(doubled.clone()), Standing::Control);
        assert!(matches!(control(Verdict::default()), Standing::Inconclusive(_)));
        assert!(matches!(control(Verdict { doubled: 1, ..lost }), Standing::Inconclusive(_)));
        let off = Verdict { accounts_off: vec![3], ..doubled };
        assert!(matches!(control(off), Standing::Inconclusive(_)));
    }
}
