//! Folders of `lab faults` as a run leaves them, for tests: every row holds, every control did harm.

use super::commit::{Anchor, Blow, Contender, Layout, Struck, Target};
use super::outcome::begun;
use super::record::{Phase, Seen, Written};
use super::settings::{Command, RowKey, Settings};
use super::through::Through;
use super::{Fault, outage::OutageTimes, partition::Split};
use crate::checker::EndState;
use crate::history::{self, Entry, Event};
use crate::proxy::{Ending, Way};
use crate::subjects::Subject;
use crate::workload::Credit;
use std::path::Path;

/// Messages of each row, as its history says.
const MESSAGES: u64 = 5000;
/// Those that were noted as sent: a few say as much.
const SENT: u64 = 100;

/// Settings of each command.
pub(crate) fn settings() -> [Settings; 3] {
    let subject = Subject::HandstampProgram50;
    [
        Command::Commit { cuts: 100, control_cuts: 40, lanes: 4, part: None },
        Command::Outage { subject, faults: Fault::ALL.to_vec(), times: OutageTimes::LONG },
        Command::Partition { subject, splits: Split::ALL.to_vec(), rounds: 2 },
    ]
    .map(|command| Settings { seed: 7, side_by_side: 1, command })
}

/// A folder of these settings.
pub(crate) fn plant(settings: &Settings) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    settings.save(folder.path()).unwrap();
    for key in settings.rows() {
        let mut row = Row { at_ms: 0, entries: Vec::new() };
        row.say(0, begun(key, settings.seed, MESSAGES));
        match key {
            RowKey::Commit(_) => cuts(&mut row),
            RowKey::Outage(fault, _) => outage(&mut row, fault),
            RowKey::Partition(..) => partition(&mut row),
        }
        let doubled = if key.promises() { 0 } else { 30 };
        row.say(20, Event::Repeated { times_ms: (0..doubled).map(|n| 8000 + n * 90).collect() });
        row.say(5, Event::End(end(doubled)));
        write(folder.path(), key, &row.entries);
        let sent: String = (0..SENT).map(|n| serde_json::to_string(&credit(n)).unwrap() + "\n").collect();
        std::fs::write(folder.path().join(key.file_stem()).with_extension("sent.jsonl"), sent).unwrap();
    }
    folder
}

/// The history of a row.
pub(crate) fn entries(folder: &Path, key: RowKey) -> Vec<Entry> {
    history::read(&folder.join(key.file_stem()).with_extension("jsonl")).unwrap()
}

/// Writes it anew.
pub(crate) fn write(folder: &Path, key: RowKey, entries: &[Entry]) {
    let lines: String = entries.iter().map(|entry| serde_json::to_string(entry).unwrap() + "\n").collect();
    std::fs::write(folder.join(key.file_stem()).with_extension("jsonl"), lines).unwrap();
}

fn credit(n: u64) -> Credit {
    Credit { id: format!("m{n}"), account: 1, amount: 5 }
}

fn end(doubled: u64) -> EndState {
    let effects = (0..SENT).map(|n| (credit(n).id, 1 + u64::from(n < doubled)));
    let worth = i64::try_from(SENT + doubled).unwrap() * 5;
    EndState {
        effects: effects.collect(),
        balances: [(1, worth)].into(),
        ledger: [(1, worth)].into(),
        dead_letters: vec![],
    }
}

struct Row {
    at_ms: u64,
    entries: Vec<Entry>,
}

impl Row {
    fn say(&mut self, step_ms: u64, event: Event) {
        self.at_ms += step_ms;
        self.entries.push(Entry { at_ms: self.at_ms, event });
    }

    fn saw(&mut self, step_ms: u64, seen: Seen) {
        self.say(step_ms, Event::Fault(seen));
    }

    fn begins(&mut self, phase: Phase) {
        self.saw(1, Seen::Phase { phase });
    }

    /// Effects so far, for so long, so many more each half second.
    fn effects(&mut self, effects: &mut u64, for_ms: u64, each: u64) {
        self.say(0, Event::Progress { effects: *effects });
        for _ in 0..for_ms / 500 {
            *effects += each;
            self.say(500, Event::Progress { effects: *effects });
        }
    }

    fn passed(&mut self, bytes: u64, answered: u64) {
        let through = Through { bytes_up: bytes, bytes_down: bytes, ..Through::default() };
        let through = Through { connections_cut: bytes / 10, connections_lost: bytes / 10, ..through };
        self.saw(1, Seen::Passed { database: through, broker: through, answered });
    }

    /// Asks members to end, who do.
    fn ends(&mut self, children: std::ops::Range<u32>) {
        for child in children {
            self.saw(10, Seen::Asked { child });
            self.say(300, Event::Ended { child, code: Some(0) });
        }
    }
}

fn cuts(row: &mut Row) {
    let layout = Layout { before_up: 600, before_down: 300, exchange_up: 55, exchange_down: 66 };
    let targets = [(Anchor::Begin, 0, 40), (Anchor::Commit, 0, 67)];
    let planned = targets.iter().map(|(_, from, to)| (to - from) * 2).sum::<u64>();
    row.saw(200, Seen::Aimed { planned: usize::try_from(planned).unwrap(), layout });
    row.passed(0, 0);
    let mut connections = Vec::new();
    for (anchor, from, to) in targets {
        for (offset, way) in (from..to).flat_map(|offset| [(offset, Way::Up), (offset, Way::Down)]) {
            let backend = i32::try_from(connections.len()).unwrap();
            let offset = if anchor == Anchor::Begin { offset * 15 } else { offset };
            // Up to the guard's end nothing is committed; what is cut on its way back was.
            let acting = anchor == Anchor::Commit;
            let durable = acting && (way == Way::Down || offset > 50);
            connections.push(Written { port: 9, backend, transactions: 3 + u64::from(durable) });
            let blow = if offset == 13 { Blow::Silence } else { Blow::Cut(Ending::Reset) };
            let target = Target { transaction: 1, anchor, way, offset, blow };
            let acted = 3 + u64::from(acting);
            row.saw(0, Seen::Struck(Struck { target, port: 9, backend, acted, acting }));
            if blow == Blow::Silence {
                let target = Target { blow: Blow::Cut(Ending::Close), ..target };
                row.saw(0, Seen::Struck(Struck { target, port: 9, backend, acted, acting }));
            }
        }
    }
    row.passed(90_000, 4);
    row.saw(1, Seen::Written { connections });
}

fn outage(row: &mut Row, fault: Fault) {
    let mut effects = 0;
    row.passed(100, 100);
    for child in 0..2 {
        row.say(50, Event::Started { child, pid: 70 + child });
    }
    row.effects(&mut effects, 2000, 10);
    row.begins(Phase::Before);
    row.effects(&mut effects, 30_000, 40);
    row.begins(Phase::Fault);
    row.effects(&mut effects, 1000, 3);
    row.saw(6500, Seen::Asked { child: 1 });
    row.begins(Phase::Half);
    row.passed(3000, 900);
    row.say(1200, Event::Ended { child: 1, code: Some(0) });
    row.effects(&mut effects, 5500, 0);
    row.passed(3000, 900);
    row.begins(Phase::Ending);
    row.say(2500, Event::Progress { effects });
    row.begins(Phase::Returned);
    row.effects(&mut effects, 1500, 0);
    row.say(50, Event::Started { child: 2, pid: 72 });
    row.effects(&mut effects, 18_000, 35);
    row.begins(Phase::After);
    row.effects(&mut effects, 10_000, if fault == Fault::BrokerFrozen { 20 } else { 39 });
    row.begins(Phase::Rest);
    row.ends(0..1);
    row.ends(2..3);
    row.say(900, Event::Progress { effects: MESSAGES });
    row.say(10, Event::Drained);
    row.passed(50_000, 40_000);
}

fn partition(row: &mut Row) {
    let mut effects = 0;
    row.passed(100, 100);
    for child in 0..3 {
        row.say(50, Event::Started { child, pid: 70 + child });
    }
    for _ in 0..2 {
        row.effects(&mut effects, 3000, 70);
        row.begins(Phase::Fault);
        row.effects(&mut effects, 7000, 45);
        row.begins(Phase::Returned);
        row.saw(1, Seen::Round { taken_over: true });
    }
    row.effects(&mut effects, 3000, 70);
    row.begins(Phase::Rest);
    row.ends(0..3);
    row.say(900, Event::Progress { effects: MESSAGES });
    row.say(10, Event::Drained);
    row.passed(50_000, 40_000);
}

/// The row of our runtime and the control of `lab faults commit`.
pub(crate) const COMMIT: [RowKey; 2] =
    [RowKey::Commit(Contender::Handstamp), RowKey::Commit(Contender::WithoutInbox)];
