//! Messages that fail in every way, a handler that makes them, and what must be true of each at any moment.

use super::deaths::{Deaths, Told};
use bytes::Bytes;
use handstamp_core::parked::{Dedup, FailedAttempt, ParkedMessage};
use handstamp_core::{
    ConsumerName, DeadLetter, FailureClass, Handler, HandlerError, InboxState, Message, MessageId, Order,
};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::{MemoryStore, MemoryTx};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Attempts before a message is dead; more than any flaky one needs.
pub(crate) const MAX_ATTEMPTS: u32 = 5;
/// Longer than any good handler takes.
pub(crate) const HANDLER_TIMEOUT: Duration = Duration::from_millis(400);

/// What becomes of a message in its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Good,
    /// Fails so often, then works.
    Flaky(u32),
    /// Fails so often by a statement of the database, then works.
    Statement(u32),
    /// Panics so often, then works.
    Panicky(u32),
    /// Takes too long so often, then works.
    Slow(u32),
    /// Asks for a wait of its own so often, then works.
    Later(u32),
    /// Never works, until the cause is fixed.
    Doomed,
    /// Refused, until the cause is fixed.
    Refused,
    /// Fails so often, then kills each process that handles it, until the cause is fixed.
    Poison(u32),
}

impl Fate {
    /// Whether it can end as a dead letter.
    pub(crate) fn may_die(self) -> bool {
        matches!(self, Self::Doomed | Self::Refused | Self::Poison(_))
    }

    /// Whether it kills processes.
    pub(crate) fn kills(self) -> bool {
        matches!(self, Self::Poison(_))
    }
}

/// A published message.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) key: Option<u8>,
    pub(crate) fate: Fate,
    pub(crate) payload: Payload,
    pub(crate) partition: usize,
    /// Every offset at which it lies; copies add one.
    pub(crate) offsets: Vec<i64>,
    /// When an operator last sent it back.
    pub(crate) redriven: Option<Redriven>,
}

/// What there was when a dead letter was sent back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Redriven {
    /// Messages published.
    pub(crate) published: usize,
    /// Entries of its history.
    pub(crate) history: usize,
    /// Processes that its handler had killed while it was alone.
    pub(crate) deaths: usize,
}

impl Sent {
    pub(crate) fn message_id(&self) -> MessageId {
        MessageId::try_from(self.id.as_str()).unwrap()
    }

    pub(crate) fn dedup(&self) -> Dedup {
        DeadLetter::dedup_of_id(&self.message_id())
    }
}

#[derive(Debug, Default)]
struct Seen {
    fates: HashMap<String, Fate>,
    tries: HashMap<String, u32>,
    fixed: HashSet<String>,
    /// The next message that may kills its process, once.
    armed: bool,
    /// How often a message did so that is no poison.
    killed: HashMap<String, u32>,
    runs: i64,
}

/// The message that struck a process dead.
#[derive(Debug, Default)]
pub(crate) struct Deadly(OnceLock<Dedup>);

impl Deadly {
    pub(crate) fn has_struck(&self) -> Option<Dedup> {
        self.0.get().copied()
    }

    /// The process is dead: nothing of it goes on.
    async fn strike(&self, message: &Message) {
        self.0.get_or_init(|| DeadLetter::dedup_of_id(message.id()));
        std::future::pending().await
    }
}

#[derive(Debug, Default)]
pub(crate) struct Workload {
    pub(crate) sent: Vec<Sent>,
    seen: Arc<Mutex<Seen>>,
}

impl Workload {
    /// A new message; the caller publishes it.
    pub(crate) fn make(&mut self, key: Option<u8>, fate: Fate, partition: usize) -> usize {
        let number = self.sent.len();
        let id = format!("m{number}");
        let twice = Some(Bytes::from_static(b"\xff"));
        let payload = Payload::value(format!("{{\"number\":{number}}}"))
            .with_header("id", Some(id.clone().into()))
            .with_header("a", twice)
            .with_header("a", None);
        let payload = match key {
            Some(key) => payload.with_key(vec![b'k', key]),
            None => payload,
        };
        self.seen.lock().unwrap().fates.insert(id.clone(), fate);
        self.sent.push(Sent { id, key, fate, payload, partition, offsets: vec![], redriven: None });
        number
    }

    /// What a process handles; so many crashes of a message are never to be reached by one that is no poison.
    pub(crate) fn handler(&self, deadly: &Arc<Deadly>, max_crashes: u32) -> Applier {
        Applier { seen: Arc::clone(&self.seen), deadly: Arc::clone(deadly), max_crashes }
    }

    /// The next message that is handled kills its process.
    pub(crate) fn arm(&self) {
        self.seen.lock().unwrap().armed = true;
    }

    /// How often a message that is no poison killed its process.
    pub(crate) fn killed(&self) -> u64 {
        self.seen.lock().unwrap().killed.values().map(|killed| u64::from(*killed)).sum()
    }

    pub(crate) fn with_dedup(&self, dedup: &Dedup) -> Option<&Sent> {
        self.sent.iter().find(|sent| sent.dedup() == *dedup)
    }

    /// The cause is fixed: the message works from now on.
    pub(crate) fn fix(&self, id: &str) {
        self.seen.lock().unwrap().fixed.insert(id.to_owned());
    }

    pub(crate) fn find(&mut self, id: &MessageId) -> &mut Sent {
        self.sent.iter_mut().find(|sent| sent.id.as_bytes() == id.as_bytes()).unwrap()
    }
}

/// What is durable now.
pub(crate) struct Durable {
    counters: BTreeMap<String, i64>,
    parked: HashMap<MessageId, ParkedMessage>,
    dead: HashMap<MessageId, DeadLetter>,
}

impl Durable {
    pub(crate) fn of(store: &MemoryStore, name: &ConsumerName) -> Self {
        let parked = store.parked(name);
        let dead = store.dead_letters(name);
        let rows = parked.len() + dead.len();
        let all = Self {
            counters: store.counters(),
            parked: parked.into_iter().map(|row| (row.letter.id.clone().unwrap(), row)).collect(),
            dead: dead.into_iter().map(|letter| (letter.id.clone().unwrap(), letter)).collect(),
        };
        assert_eq!(all.parked.len() + all.dead.len(), rows, "an id has two rows");
        all
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(crate) fn dead(&self) -> usize {
        self.dead.len()
    }

    pub(crate) fn behind(&self) -> usize {
        self.parked.values().filter(|row| row.letter.class == FailureClass::Waiting).count()
    }

    pub(crate) fn effects(&self) -> i64 {
        self.counters.iter().filter(|(name, _)| name.starts_with("effect:")).map(|(_, count)| count).sum()
    }

    fn count(&self, what: &str, id: &str) -> i64 {
        self.counters.get(&format!("{what}:{id}")).copied().unwrap_or(0)
    }

    /// I1, I5, I7 and what the inbox says, for one message.
    pub(crate) fn check(
        &self,
        store: &MemoryStore,
        name: &ConsumerName,
        sent: &Sent,
        deaths: &Deaths,
        max_crashes: u32,
    ) -> Option<InboxState> {
        let id = sent.message_id();
        let state = store.inbox_state(name, &id);
        let (parked, dead) = (self.parked.get(&id), self.dead.get(&id));
        let effects = self.count("effect", &sent.id);
        let is = |wanted| state == Some(wanted);
        let said = || format!("{sent:?} is {state:?}, has {effects} effects, {parked:?}, {dead:?}");
        assert_eq!(effects, i64::from(is(InboxState::Applied)), "I1: {}", said());
        assert_eq!(parked.is_some(), is(InboxState::Parked), "parked: {}", said());
        assert_eq!(dead.is_some(), is(InboxState::Dead), "dead: {}", said());
        let given_up = dead.is_some_and(|letter| letter.class == FailureClass::Crashed);
        assert!(!is(InboxState::Dead) || sent.fate.may_die() || given_up, "I7: {}", said());
        if let Some(letter) = parked.map(|row| &row.letter).or(dead) {
            assert_eq!(Payload::of(&letter.record), sent.payload, "I5: {}", said());
            assert!(sent.offsets.contains(&letter.record.origin.offset), "I5: {}", said());
            let history = store.attempts(name, &letter.dedup());
            let since = &history[sent.redriven.map_or(0, |redriven| redriven.history)..];
            let is_crash = |entry: &&FailedAttempt| entry.class == FailureClass::Crashed;
            let crashes: Vec<&str> = since.iter().filter(is_crash).map(|crash| crash.node.as_str()).collect();
            let attempts = since.len() - crashes.len();
            assert_eq!(letter.attempts as usize, attempts, "each attempt once: {}; {history:?}", said());
            assert!(letter.attempts <= MAX_ATTEMPTS, "{}", said());
            let told = Told {
                crashes: &crashes,
                killed_before: sent.redriven.map_or(0, |redriven| redriven.deaths),
                max_crashes: max_crashes as usize,
                given_up,
                poison: sent.fate.kills(),
            };
            deaths.check(&sent.dedup(), &told, &|| format!("{}; {history:?}", said()));
            assert!(!is(InboxState::Dead) || given_up || !sent.fate.kills(), "{}; {history:?}", said());
        }
        state
    }

    /// Of one key nothing is applied beside or before what was sent earlier, unless that was given up before.
    pub(crate) fn check_order(&self, order: Order, sent: &[Sent], states: &[Option<InboxState>]) {
        if order != Order::Key {
            return;
        }
        let mut last: HashMap<u8, (i64, &str)> = HashMap::new();
        let mut open: HashMap<u8, (&str, usize)> = HashMap::new();
        for (number, (one, state)) in sent.iter().zip(states).enumerate() {
            let Some(key) = one.key else { continue };
            let applied = *state == Some(InboxState::Applied);
            if let Some((first, since)) = open.get(&key)
                && applied
                && number >= *since
            {
                panic!("{} was applied though {first} of the same key was sent before it", one.id);
            }
            let ended = matches!(state, Some(InboxState::Applied | InboxState::Dead | InboxState::Discarded));
            if !ended {
                // What is sent back waits for no one that was sent before that.
                let since = one.redriven.map_or(0, |redriven| redriven.published);
                let known = open.get(&key).map_or(usize::MAX, |(_, since)| *since);
                if since < known {
                    open.insert(key, (&one.id, since));
                }
            }
            if applied && one.redriven.is_none() {
                let run = self.count("run", &one.id);
                if let Some((before, earlier)) = last.insert(key, (run, &one.id)) {
                    assert!(before < run, "{} was applied before {earlier}", one.id);
                }
            }
        }
    }
}

/// Does what a message's fate asks for.
pub(crate) struct Applier {
    seen: Arc<Mutex<Seen>>,
    deadly: Arc<Deadly>,
    max_crashes: u32,
}

impl Handler<MemoryTx> for Applier {
    async fn handle(&self, tx: &mut MemoryTx, message: &Message) -> Result<(), HandlerError> {
        let id = message.id().as_str().unwrap().to_owned();
        let (fate, tries, run, kills) = {
            let mut seen = self.seen.lock().unwrap();
            seen.runs += 1;
            let tries = seen.tries.entry(id.clone()).or_default();
            *tries += 1;
            let tries = *tries;
            let fate = if seen.fixed.contains(&id) { Fate::Good } else { seen.fates[&id] };
            let killed = seen.killed.get(&id).copied().unwrap_or(0);
            let kills = seen.armed && !fate.kills() && killed == 0 && self.max_crashes > 2;
            if kills {
                seen.armed = false;
                seen.killed.insert(id.clone(), killed + 1);
            }
            (fate, tries, seen.runs, kills)
        };
        tx.add(&format!("effect:{id}"), 1)?;
        tx.add(&format!("run:{id}"), run)?;
        tokio::time::sleep(Duration::from_millis(u64::try_from(run % 3).unwrap())).await;
        if kills {
            self.deadly.strike(message).await;
        }
        match fate {
            Fate::Poison(failures) if tries <= failures => Err("not yet".into()),
            Fate::Poison(_) => {
                self.deadly.strike(message).await;
                unreachable!("its process is dead")
            }
            Fate::Flaky(failures) if tries <= failures => Err("not yet".into()),
            Fate::Statement(failures) if tries <= failures => {
                Ok(tx.fail(handstamp_core::StoreErrorKind::Statement, "23503")?)
            }
            // Unwinds without the noise of the panic hook.
            Fate::Panicky(failures) if tries <= failures => {
                std::panic::resume_unwind(Box::new("the handler panicked"))
            }
            Fate::Slow(failures) if tries <= failures => {
                tokio::time::sleep(2 * HANDLER_TIMEOUT).await;
                Ok(())
            }
            Fate::Later(failures) if tries <= failures => {
                Err(HandlerError::retry_after(Duration::from_millis(1_500), "later"))
            }
            Fate::Doomed => Err("never".into()),
            Fate::Refused => Err(HandlerError::reject("no")),
            _ => Ok(()),
        }
    }
}
