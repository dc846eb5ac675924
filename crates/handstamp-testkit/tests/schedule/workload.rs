//! Messages of every kind, what must become of each, and a handler that knows it.

use crate::seeded::Random;
use bytes::Bytes;
use handstamp_core::parked::ParkedMessage;
use handstamp_core::{ConsumerName, DeadLetter, Handler, HandlerError, Message, MessageId};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::{MemoryStore, MemoryTx};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keys of the records with an id; a multiple of the partitions.
const KEYS: usize = 15;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Applied once.
    Good,
    /// Fails twice, then applied once.
    Flaky,
    /// The same message once more.
    Copy,
    /// A good message's id with another body.
    Reused,
    /// Refused by the handler.
    Rejected,
    /// Fails at every attempt, with an error of the handler's own.
    Failing,
    /// Fails at every attempt, with an error of the database.
    Statement,
    /// The handler panics.
    Panicking,
    /// No usable id.
    NoId,
}

#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) number: usize,
    pub(crate) role: Role,
    pub(crate) id: Option<String>,
    pub(crate) payload: Payload,
    pub(crate) partition: usize,
    pub(crate) offset: i64,
}

impl Expected {
    /// All records of one id lie in one partition, as a keyed producer puts them.
    pub(crate) fn at_partition(&self, partitions: usize) -> usize {
        let id: usize = self.id.as_ref().map_or(self.number, |id| id[1..].parse().unwrap());
        id % partitions
    }

    /// Which key its record has.
    pub(crate) fn key_number(&self) -> usize {
        self.number % KEYS
    }

    fn key(&self) -> Option<MessageId> {
        self.id.as_ref().map(|id| MessageId::try_from(id.as_str()).unwrap())
    }

    /// The outcome is in the store: an inbox row, or the dead letter's own row.
    pub(crate) fn is_durable(&self, store: &MemoryStore, name: &ConsumerName, dead: &[DeadLetter]) -> bool {
        match (self.role, self.key()) {
            (Role::Reused, Some(id)) => dead
                .iter()
                .any(|dead| dead.id.as_ref() == Some(&id) && Payload::of(&dead.record) == self.payload),
            (_, Some(id)) => store.inbox_state(name, &id).is_some(),
            (_, None) => dead.iter().any(|dead| self.is_at(dead)),
        }
    }

    fn is_at(&self, dead: &DeadLetter) -> bool {
        let origin = &dead.record.origin;
        origin.offset == self.offset && usize::try_from(origin.partition).unwrap() == self.partition
    }
}

/// Under the key of its id; many ids have one key, and all of a key lie in one partition.
fn named(body: String, id: &str) -> Payload {
    let number: usize = id[1..].parse().unwrap();
    Payload::value(body)
        .with_key(format!("k{}", number % KEYS))
        .with_header("id", Some(Bytes::copy_from_slice(id.as_bytes())))
}

#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) all: Vec<Expected>,
    roles: Arc<HashMap<String, Role>>,
    failed: Arc<Mutex<HashMap<String, u32>>>,
    runs: Arc<AtomicI64>,
}

impl Workload {
    /// Without order nobody can say which of two bodies under one id comes first, so `reuse` is for
    /// sources with order.
    pub(crate) fn new(random: &mut Random, count: usize, reuse: bool) -> Self {
        let mut all: Vec<Expected> = vec![];
        let mut roles = HashMap::new();
        for number in 0..count {
            let earlier: Vec<&Expected> = all.iter().filter(|e| e.role == Role::Good).collect();
            let earlier = (!earlier.is_empty()).then(|| earlier[random.below(earlier.len())].clone());
            let role = match random.below(24) {
                0..=3 if earlier.is_some() => Role::Copy,
                4 if earlier.is_some() && reuse => Role::Reused,
                5 => Role::Rejected,
                6 => Role::Failing,
                7 => Role::Statement,
                8 => Role::Panicking,
                9 => Role::NoId,
                10..=11 => Role::Flaky,
                _ => Role::Good,
            };
            let body = format!("{{\"number\":{number}}}");
            let (id, payload) = match (role, earlier) {
                (Role::NoId, _) => (None, Payload::value(body).with_header("null", None)),
                (Role::Copy, Some(first)) => (first.id, first.payload),
                (Role::Reused, Some(first)) => {
                    let id = first.id.unwrap();
                    (Some(id.clone()), named(body, &id))
                }
                _ => {
                    let id = format!("m{number}");
                    roles.insert(id.clone(), role);
                    let twice = Some(Bytes::from_static(b"\xff"));
                    let payload = named(body, &id);
                    (Some(id), payload.with_header("a", twice).with_header("a", None))
                }
            };
            all.push(Expected { number, role, id, payload, partition: 0, offset: 0 });
        }
        Self { all, roles: Arc::new(roles), failed: Arc::default(), runs: Arc::default() }
    }

    pub(crate) fn handler(&self) -> Applier {
        Applier {
            roles: Arc::clone(&self.roles),
            failed: Arc::clone(&self.failed),
            runs: Arc::clone(&self.runs),
        }
    }

    fn role(&self, id: &str) -> Role {
        self.roles[id]
    }

    pub(crate) fn good_ids(&self) -> usize {
        self.roles.values().filter(|role| matches!(role, Role::Good | Role::Flaky)).count()
    }

    /// I1: one effect for a good message at most, none for a bad one.
    pub(crate) fn check_effects(&self, counters: &BTreeMap<String, i64>) {
        for (counter, count) in counters {
            let Some(id) = counter.strip_prefix("effect:") else { continue };
            assert!(matches!(self.role(id), Role::Good | Role::Flaky), "I1: bad {id} had an effect");
            assert_eq!(*count, 1, "I1: effects of {id}");
        }
    }

    /// I5 and I7: only bad messages are dead letters, each once, with every byte.
    pub(crate) fn check_dead_letters(&self, dead: &[DeadLetter]) {
        let mut places = BTreeSet::new();
        for dead in dead {
            let origin = &dead.record.origin;
            assert!(places.insert((origin.partition, origin.offset)), "a record is dead twice: {origin}");
            let expected = self.all.iter().find(|expected| expected.is_at(dead));
            let expected = expected.unwrap_or_else(|| panic!("a dead letter from nowhere: {origin}"));
            let bad = !matches!(expected.role, Role::Good | Role::Flaky | Role::Copy);
            assert!(bad, "I7: {:?} {:?} is dead: {}", expected.role, expected.id, dead.reason.as_str());
            assert_eq!(Payload::of(&dead.record), expected.payload, "I5");
        }
    }

    pub(crate) fn check_end(&self, counters: &BTreeMap<String, i64>, dead: &[DeadLetter]) {
        for (id, role) in self.roles.iter() {
            let effects = counters.get(&format!("effect:{id}")).copied().unwrap_or(0);
            let expected = i64::from(matches!(role, Role::Good | Role::Flaky));
            assert_eq!(effects, expected, "I1: effects of {role:?} {id}");
        }
        let bad =
            self.all.iter().filter(|e| !matches!(e.role, Role::Good | Role::Flaky | Role::Copy)).count();
        assert_eq!(dead.len(), bad, "each bad message is a dead letter once");
    }

    /// I5: what is parked is one of ours, with every byte.
    pub(crate) fn check_parked(&self, parked: &[ParkedMessage]) {
        for row in parked {
            let expected = self.all.iter().find(|expected| expected.is_at(&row.letter)).unwrap();
            assert_eq!(Payload::of(&row.letter.record), expected.payload, "I5");
        }
    }

    /// Messages of these roles are applied in the order of what they share.
    pub(crate) fn check_order(
        &self,
        counters: &BTreeMap<String, i64>,
        roles: &[Role],
        shared: impl Fn(&Expected) -> usize,
    ) {
        let mut last: BTreeMap<usize, (i64, usize)> = BTreeMap::new();
        for expected in self.all.iter().filter(|e| roles.contains(&e.role)) {
            let run = counters[&format!("run:{}", expected.id.as_ref().unwrap())];
            if let Some((before, number)) = last.insert(shared(expected), (run, expected.number)) {
                assert!(before < run, "{} was applied after {}", number, expected.number);
            }
        }
    }
}

/// Does what a message's role asks for.
pub(crate) struct Applier {
    roles: Arc<HashMap<String, Role>>,
    failed: Arc<Mutex<HashMap<String, u32>>>,
    runs: Arc<AtomicI64>,
}

#[derive(Debug, thiserror::Error)]
#[error("the handler does not like it")]
struct Unwilling;

impl Handler<MemoryTx> for Applier {
    async fn handle(&self, tx: &mut MemoryTx, message: &Message) -> Result<(), HandlerError> {
        let id = message.id().as_str().unwrap().to_owned();
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        tx.add(&format!("effect:{id}"), 1)?;
        tx.add(&format!("run:{id}"), run)?;
        match self.roles[&id] {
            Role::Good => {
                // One in so many is slow: longer than a lease.
                let slow = if run % 40 == 7 { 1_500 } else { run % 3 };
                tokio::time::sleep(Duration::from_millis(u64::try_from(slow).unwrap())).await;
                Ok(())
            }
            Role::Flaky => {
                let mut failed = self.failed.lock().unwrap();
                let failures = failed.entry(id).or_default();
                *failures += 1;
                if *failures > 2 { Ok(()) } else { Err(Unwilling.into()) }
            }
            Role::Rejected => Err(HandlerError::reject(Unwilling)),
            Role::Failing => Err(Unwilling.into()),
            Role::Statement => Ok(tx.fail(handstamp_core::StoreErrorKind::Statement, "23514")?),
            // Unwinds without the noise of the panic hook.
            Role::Panicking => std::panic::resume_unwind(Box::new("the handler panicked")),
            Role::Copy | Role::Reused | Role::NoId => unreachable!("{id} never has this role of its own"),
        }
    }
}
