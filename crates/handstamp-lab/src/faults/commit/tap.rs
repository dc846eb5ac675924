//! Watches one connection of a subject and strikes at its target.
//!
//! Authoritative for positions: the bytes that pass. Which statement is the guard and which ones are
//! effects is learned from the statements the client prepares, not from its code.

use super::aim::{Anchor, Blow, Layout, Target};
use super::wire::{Frame, Frames};
use crate::proxy::{MakeTap, Tap, Verdict, Way};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a statement does, by its text; it may be prepared or sent as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Begin,
    Guard,
    Commit,
    Rollback,
    Effect,
    Other,
}

impl Kind {
    fn of(text: &[u8]) -> Self {
        let text = text.trim_ascii_start();
        match text {
            _ if text.starts_with(b"BEGIN") || text.starts_with(b"START TRANSACTION") => Self::Begin,
            _ if text.starts_with(b"COMMIT") => Self::Commit,
            _ if text.starts_with(b"ROLLBACK") && !text.starts_with(b"ROLLBACK TO") => Self::Rollback,
            _ if text.starts_with(b"SELECT 1/(") => Self::Guard,
            _ if text.windows(6).any(|word| word == b"ledger") => Self::Effect,
            _ => Self::Other,
        }
    }
}

/// A fault that was dealt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Struck {
    /// Where and how.
    pub target: Target,
    /// The connection's port towards the server.
    pub port: u16,
    /// The process id of its backend.
    pub backend: i32,
    /// Transactions of this connection that had sent an effect by then, the current one included.
    pub acted: u64,
    /// Whether one of them was under way: the current one had, or the COMMIT of the one before, which the next
    /// BEGIN may follow in the same flight, was not answered yet.
    pub acting: bool,
}

/// What the connections of one subject share.
#[derive(Debug, Default)]
pub(super) struct Aim {
    to_come: VecDeque<Target>,
    /// Which connection has which target, the oldest first.
    held: Vec<(u64, Target)>,
    connections: u64,
    /// Faults in the order dealt.
    pub(super) struck: Vec<Struck>,
    /// The longest parts seen in transactions that ran to their end.
    pub(super) layout: Layout,
}

/// Shared by the taps of a proxy and by the lab.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedAim(Arc<Mutex<Aim>>);

impl SharedAim {
    pub(super) fn at(targets: impl IntoIterator<Item = Target>) -> Self {
        let aim = Aim { to_come: targets.into_iter().collect(), ..Aim::default() };
        Self(Arc::new(Mutex::new(aim)))
    }

    fn connection(&self) -> u64 {
        let mut aim = self.lock();
        aim.connections += 1;
        aim.connections
    }

    /// The next target, for a connection that is in its transaction `begun`. At the end that of another connection,
    /// which may be idle from then on and would keep it for ever; it then lies in this transaction.
    fn take(&self, connection: u64, begun: u32) -> Option<Target> {
        let mut aim = self.lock();
        let target = match aim.to_come.pop_front() {
            Some(target) => target,
            None if aim.held.is_empty() => return None,
            None => Target { transaction: begun, ..aim.held.remove(0).1 },
        };
        aim.held.push((connection, target));
        Some(target)
    }

    /// Takes the target away from a connection, if it still has it.
    fn take_back(&self, connection: u64) -> Option<Target> {
        let mut aim = self.lock();
        let at = aim.held.iter().position(|(holder, _)| *holder == connection)?;
        Some(aim.held.remove(at).1)
    }

    fn holds(&self, connection: u64) -> bool {
        self.lock().held.iter().any(|(holder, _)| *holder == connection)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Aim> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches every connection of a proxy.
    pub(super) fn taps(&self) -> MakeTap {
        let aim = self.clone();
        Box::new(move |_, port| -> Tap {
            let mut watch = Watch::new(aim.clone(), port);
            Box::new(move |way, bytes| watch.see(way, bytes))
        })
    }
}

/// A transaction as it was seen so far.
#[derive(Debug, Default, Clone, Copy)]
struct Transaction {
    begin: (u64, u64),
    exchange: Option<(u64, u64)>,
    exchange_end: u64,
    acting: bool,
    /// COMMIT was sent, and the Sync behind it was not yet seen.
    committing: bool,
    /// The server said that it is committed.
    answered: bool,
}

struct Watch {
    aim: SharedAim,
    connection: u64,
    port: u16,
    backend: i32,
    up: Frames,
    down: Frames,
    prepared: HashMap<Vec<u8>, Kind>,
    begun: u32,
    acted: u64,
    current: Transaction,
    /// The COMMIT of the transaction before the current one is not answered yet: from where in the answers its
    /// exchange was counted, and whether it had an effect.
    owing: Option<(u64, bool)>,
    target: Option<Target>,
    /// Where the target lies, once its anchor was seen.
    strike_at: Option<u64>,
}

impl Watch {
    fn new(aim: SharedAim, port: u16) -> Self {
        Self {
            connection: aim.connection(),
            aim,
            port,
            backend: 0,
            up: Frames::of_client(),
            down: Frames::of_server(),
            prepared: HashMap::new(),
            begun: 0,
            acted: 0,
            current: Transaction::default(),
            owing: None,
            target: None,
            strike_at: None,
        }
    }

    fn see(&mut self, way: Way, bytes: &[u8]) -> Verdict {
        let mut found = Vec::new();
        let frames = match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        };
        let before = frames.at();
        frames.take(bytes, |frame| found.push(frame.clone()));
        let after = frames.at();
        for frame in &found {
            match way {
                Way::Up => self.asked(frame),
                // What comes behind the cut is never heard.
                Way::Down if self.is_cut_before(frame.end) => {}
                Way::Down => self.answered(frame),
            }
        }
        match self.target {
            Some(target) if target.way == way && self.aim.holds(self.connection) => {
                self.strike(target, before, after)
            }
            _ => Verdict::Pass,
        }
    }

    fn is_cut_before(&self, answer_end: u64) -> bool {
        let down = self.target.is_some_and(|target| target.way == Way::Down);
        down && self.strike_at.is_some_and(|at| at < answer_end)
    }

    fn strike(&mut self, target: Target, before: u64, after: u64) -> Verdict {
        let Some(at) = self.strike_at.filter(|at| *at <= after) else { return Verdict::Pass };
        let pass = usize::try_from(at.saturating_sub(before)).unwrap_or(0);
        self.target = None;
        self.aim.take_back(self.connection);
        let acting = self.current.acting || self.owing.is_some_and(|(_, acting)| acting);
        let (port, backend, acted) = (self.port, self.backend, self.acted);
        self.aim.lock().struck.push(Struck { target, port, backend, acted, acting });
        match target.blow {
            Blow::Cut(ending) => Verdict::Cut { after: pass, ending },
            Blow::Silence => Verdict::Discard { after: pass },
        }
    }

    fn answered(&mut self, frame: &Frame) {
        if frame.kind == b'K'
            && let Some(four) = frame.body.get(..4).and_then(|four| <[u8; 4]>::try_from(four).ok())
        {
            self.backend = i32::from_be_bytes(four);
        }
        if frame.kind == b'C' && frame.body.starts_with(b"COMMIT") {
            let from = self.owing.take().map(|(from, _)| from).or_else(|| {
                self.current.answered = true;
                self.current.exchange.map(|exchange| exchange.1)
            });
            let length = from.map_or(0, |from| frame.end.saturating_sub(from));
            let mut aim = self.aim.lock();
            aim.layout.exchange_down = aim.layout.exchange_down.max(length);
        }
    }

    fn asked(&mut self, frame: &Frame) {
        let mut words = frame.body.split(|byte| *byte == 0);
        let first = words.next().unwrap_or_default();
        let second = words.next().unwrap_or_default();
        match frame.kind {
            // Unnamed statements are prepared again under the same name.
            b'P' => drop(self.prepared.insert(first.to_vec(), Kind::of(second))),
            b'B' => self.sent(self.prepared.get(second).copied().unwrap_or(Kind::Other), frame, true),
            b'Q' => self.sent(Kind::of(first), frame, false),
            b'E' | b'S' if self.current.committing => {
                self.current.exchange_end = frame.end;
                self.current.committing = frame.kind == b'E';
            }
            _ => {}
        }
    }

    fn sent(&mut self, kind: Kind, frame: &Frame, prepared: bool) {
        match kind {
            Kind::Begin => self.begins(frame.start),
            Kind::Guard => self.exchange_begins(frame.start),
            Kind::Commit => {
                self.exchange_begins(frame.start);
                self.current.exchange_end = frame.end;
                self.current.committing = prepared;
            }
            Kind::Rollback => self.takes_back(),
            Kind::Effect => self.acts(),
            Kind::Other => {}
        }
    }

    fn begins(&mut self, start: u64) {
        self.measure(start);
        self.begun += 1;
        let Transaction { acting, answered, exchange, .. } = self.current;
        self.owing = exchange.filter(|_| !answered).map(|exchange| (exchange.1, acting));
        self.current = Transaction { begin: (start, self.down.at()), ..Transaction::default() };
        if self.target.is_some() && !self.aim.holds(self.connection) {
            self.target = None;
        }
        if self.target.is_none() && self.strike_at.is_none() {
            self.target = self.aim.take(self.connection, self.begun);
        }
        self.anchor(Anchor::Begin, start);
    }

    fn exchange_begins(&mut self, start: u64) {
        if self.begun == 0 || self.current.exchange.is_some() {
            return;
        }
        self.current.exchange = Some((start, self.down.at()));
        self.anchor(Anchor::Commit, start);
    }

    fn acts(&mut self) {
        if self.begun > 0 && !self.current.acting {
            self.current.acting = true;
            self.acted += 1;
        }
    }

    /// A transaction that met another's lock, say, is run again on the same connection; what it had sent before
    /// is not in the database, whatever is cut from here on. A COMMIT that was sent is not taken back: one who
    /// waited too long for its answer does not know what became of it.
    fn takes_back(&mut self) {
        if self.current.acting && self.current.exchange.is_none() {
            self.current.acting = false;
            self.acted -= 1;
        }
    }

    fn anchor(&mut self, anchor: Anchor, start: u64) {
        if let Some(target) = self.target
            && (target.anchor, target.transaction) == (anchor, self.begun)
        {
            let from = match target.way {
                Way::Up => start,
                Way::Down => self.down.at(),
            };
            self.strike_at = Some(from + target.offset);
        }
    }

    /// A transaction that came to its end shows how long its parts are.
    fn measure(&self, next_begin: u64) {
        let Transaction { begin, exchange: Some(exchange), exchange_end, acting: true, .. } = self.current
        else {
            return;
        };
        let mut aim = self.aim.lock();
        let layout = &mut aim.layout;
        layout.before_up = layout.before_up.max(exchange.0 - begin.0);
        layout.before_down = layout.before_down.max(exchange.1 - begin.1);
        layout.exchange_up = layout.exchange_up.max(exchange_end.min(next_begin) - exchange.0);
        layout.exchange_down = layout.exchange_down.max(self.down.at() - exchange.1);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A connection that ended by itself leaves its target to the next one.
        if let Some(target) = self.aim.take_back(self.connection) {
            self.aim.lock().to_come.push_front(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Ending;

    fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.iter().map(|part| [part, &b"\0"[..]].concat()).collect::<Vec<_>>().concat();
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        [&[kind][..], &length, &body].concat()
    }

    fn begin() -> Vec<u8> {
        message(b'Q', &[b"BEGIN"])
    }

    fn commit() -> Vec<u8> {
        [message(b'B', &[b"", b"g"]), message(b'E', &[b""]), message(b'S', &[]), message(b'Q', &[b"COMMIT"])]
            .concat()
    }

    /// A connection that has logged in and prepared a guard and an effect.
    fn watch(aim: &SharedAim) -> Watch {
        let mut watch = Watch::new(aim.clone(), 7);
        let start_up = [&8_u32.to_be_bytes()[..], &[0; 4]].concat();
        let prepare = [
            message(b'P', &[b"g", b"SELECT 1/((x))::int"]),
            message(b'P', &[b"e", b"INSERT INTO ledger VALUES ($1)"]),
        ];
        assert_eq!(watch.see(Way::Up, &[start_up, prepare.concat()].concat()), Verdict::Pass);
        let key = [&[b'K', 0, 0, 0, 12][..], &77_i32.to_be_bytes(), &[0; 4]].concat();
        assert_eq!(watch.see(Way::Down, &key), Verdict::Pass);
        watch
    }

    fn target(transaction: u32, anchor: Anchor, way: Way, offset: u64) -> Target {
        Target { transaction, anchor, way, offset, blow: Blow::Cut(Ending::Reset) }
    }

    #[test]
    fn a_position_up_is_counted_from_the_guard() {
        for offset in [0, 1, 5, commit().len() as u64] {
            let aim = SharedAim::at([target(2, Anchor::Commit, Way::Up, offset)]);
            let mut watch = watch(&aim);
            for _ in 0..1 {
                assert_eq!(
                    watch.see(Way::Up, &[begin(), message(b'B', &[b"", b"e"]), commit()].concat()),
                    Verdict::Pass
                );
                assert_eq!(watch.see(Way::Down, &[0; 30]), Verdict::Pass);
            }
            let effect = [begin(), message(b'B', &[b"", b"e"])].concat();
            assert_eq!(watch.see(Way::Up, &effect), Verdict::Pass);
            let verdict = watch.see(Way::Up, &[commit(), begin()].concat());
            assert_eq!(
                verdict,
                Verdict::Cut { after: usize::try_from(offset).expect("few"), ending: Ending::Reset }
            );
            let [struck] = aim.lock().struck[..] else { panic!("one") };
            assert_eq!((struck.port, struck.backend, struck.acted), (7, 77, 2));
        }
    }

    #[test]
    fn a_position_down_is_counted_from_the_answers_to_come() {
        let aim = SharedAim::at([target(1, Anchor::Commit, Way::Down, 10)]);
        let mut watch = watch(&aim);
        watch.see(Way::Up, &begin());
        watch.see(Way::Down, &[1; 100]);
        watch.see(Way::Up, &commit());
        assert_eq!(watch.see(Way::Down, &[1; 9]), Verdict::Pass);
        assert_eq!(watch.see(Way::Down, &[1; 9]), Verdict::Cut { after: 1, ending: Ending::Reset });
        assert!(!aim.lock().struck[0].acting);
    }

    #[test]
    fn a_commit_without_a_guard_is_an_anchor_too_and_begin_is_one() {
        let aim = SharedAim::at([target(1, Anchor::Commit, Way::Up, 3)]);
        let mut one = watch(&aim);
        one.see(Way::Up, &begin());
        let verdict = one.see(Way::Up, &message(b'Q', &[b"COMMIT"]));
        assert_eq!(verdict, Verdict::Cut { after: 3, ending: Ending::Reset });
        let aim = SharedAim::at([target(1, Anchor::Begin, Way::Up, 2)]);
        assert_eq!(watch(&aim).see(Way::Up, &begin()), Verdict::Cut { after: 2, ending: Ending::Reset });
    }

    #[test]
    fn the_last_target_is_not_left_to_a_connection_that_does_nothing_more() {
        let aim = SharedAim::at([target(3, Anchor::Commit, Way::Up, 3)]);
        let (mut idle, mut busy) = (watch(&aim), watch(&aim));
        for one in [&mut idle, &mut busy] {
            assert_eq!(one.see(Way::Up, &begin()), Verdict::Pass);
        }
        let cut = Verdict::Cut { after: 3, ending: Ending::Reset };
        assert_eq!(busy.see(Way::Up, &message(b'Q', &[b"COMMIT"])), cut);
        let rest = [message(b'Q', &[b"COMMIT"]), begin(), message(b'Q', &[b"COMMIT"]), begin(), commit()];
        assert_eq!(idle.see(Way::Up, &rest.concat()), Verdict::Pass);
        let aim = aim.lock();
        assert_eq!((aim.struck.len(), aim.held.len()), (1, 0));
    }

    /// The next BEGIN may come with the COMMIT, in one flight.
    #[test]
    fn a_commit_that_is_not_answered_is_under_way_also_when_the_next_transaction_has_begun() {
        let flight = [begin(), message(b'B', &[b"", b"e"])].concat();
        let answer =
            [message(b'C', &[b"SELECT 1"]), message(b'C', &[b"COMMIT"]), message(b'Z', &[])].concat();
        let end = (message(b'C', &[b"SELECT 1"]).len() + message(b'C', &[b"COMMIT"]).len()) as u64;
        for (way, offset, acting) in [
            (Way::Up, 3, true),
            (Way::Up, commit().len() as u64 + 2, true),
            (Way::Down, 0, true),
            (Way::Down, end - 1, true),
            (Way::Down, end, false),
        ] {
            let aim = SharedAim::at([target(1, Anchor::Commit, way, offset)]);
            let mut watch = watch(&aim);
            watch.see(Way::Up, &flight);
            watch.see(Way::Up, &[commit(), begin()].concat());
            watch.see(Way::Down, &answer);
            let [struck] = aim.lock().struck[..] else { panic!("one") };
            assert_eq!((struck.acted, struck.acting), (1, acting), "{way:?} {offset}");
        }
        // The answer to a transaction without an effect is not taken for that of the next one.
        let aim = SharedAim::at([target(2, Anchor::Commit, Way::Up, 0)]);
        let mut one = watch(&aim);
        one.see(Way::Up, &[begin(), commit(), begin()].concat());
        one.see(Way::Down, &answer);
        one.see(Way::Up, &[message(b'B', &[b"", b"e"]), commit(), begin()].concat());
        let struck = aim.lock().struck.clone();
        assert_eq!(struck.iter().map(|cut| (cut.acted, cut.acting)).collect::<Vec<_>>(), [(1, true)]);
        // The exchange is measured all the same.
        let aim = SharedAim::default();
        let mut watch = watch(&aim);
        watch.see(Way::Up, &flight);
        watch.see(Way::Up, &[commit(), begin()].concat());
        watch.see(Way::Down, &answer);
        let layout = aim.lock().layout;
        assert_eq!((layout.exchange_down, layout.exchange_up), (end, commit().len() as u64));
    }

    #[test]
    fn what_was_rolled_back_is_not_counted_as_sent() {
        let effect = || message(b'B', &[b"", b"e"]);
        let alone = |text: &[u8]| message(b'Q', &[text]);
        for (back, acted) in [
            (alone(b"ROLLBACK"), 1),
            (alone(b"ROLLBACK TO SAVEPOINT s"), 2),
            ([commit(), alone(b"ROLLBACK")].concat(), 2),
        ] {
            let aim = SharedAim::at([target(2, Anchor::Commit, Way::Up, 0)]);
            let mut watch = watch(&aim);
            watch.see(Way::Up, &[begin(), effect(), back.clone()].concat());
            watch.see(Way::Up, &[begin(), effect(), commit()].concat());
            let [struck] = aim.lock().struck[..] else { panic!("one") };
            assert_eq!((struck.acted, struck.acting), (acted, true), "{back:?}");
        }
    }

    #[test]
    fn a_target_that_was_not_reached_is_left_to_the_next_connection() {
        let aim = SharedAim::at([target(2, Anchor::Commit, Way::Up, 0)]);
        let mut first = watch(&aim);
        first.see(Way::Up, &[begin(), commit()].concat());
        assert_eq!(aim.lock().to_come.len(), 0);
        drop(first);
        assert_eq!(aim.lock().to_come.len(), 1);
        assert!(aim.lock().struck.is_empty());
    }

    /// Whether BEGIN and COMMIT are prepared or not, and one message a piece or all in one.
    #[test]
    fn the_layout_is_measured() {
        let prepare = [message(b'P', &[b"b", b"BEGIN"]), message(b'P', &[b"c", b"COMMIT"])].concat();
        let run =
            |name: &[u8]| [message(b'B', &[b"", name]), message(b'E', &[b""]), message(b'S', &[])].concat();
        let guard = [message(b'B', &[b"", b"g"]), message(b'E', &[b""])].concat();
        for (begin, commit) in [(begin(), commit()), (run(b"b"), [guard, run(b"c")].concat())] {
            let aim = SharedAim::default();
            let mut watch = watch(&aim);
            watch.see(Way::Up, &prepare);
            let first = [&begin[..], &message(b'B', &[b"", b"e"])].concat();
            watch.see(Way::Up, &first);
            watch.see(Way::Down, &[1; 40]);
            watch.see(Way::Up, &commit);
            watch.see(Way::Down, &[1; 50]);
            watch.see(Way::Up, &begin);
            let (before_up, exchange_up) = (first.len() as u64, commit.len() as u64);
            assert_eq!(
                aim.lock().layout,
                Layout { before_up, before_down: 40, exchange_up, exchange_down: 50 }
            );
        }
    }
}
