//! Which messages were alone in a start record when their process died: those, and no others, may be charged.
//!
//! Authoritative: the store's start records at the moment of a death.

use handstamp_core::parked::Dedup;
use handstamp_core::{ConsumerName, DeadLetter};
use handstamp_testkit::fakes::MemoryStore;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Deaths(Rc<RefCell<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// By the message: whom it was alone with.
    alone: BTreeMap<Dedup, Vec<String>>,
    nodes: BTreeSet<String>,
    /// By the message: how many its handler killed while it was alone.
    killed: BTreeMap<Dedup, usize>,
    /// Counted dead by others while they lived, and the message.
    lived: BTreeSet<(Dedup, String)>,
    /// Given up, and no poison.
    unlucky: BTreeSet<Dedup>,
    /// No two processes ever meet.
    calm: bool,
    /// So many died while nothing that they had started was alone.
    together: u64,
}

/// What a process has started alone and not brought to an end.
pub(super) fn alone_of(store: &MemoryStore, name: &ConsumerName, node: &str) -> BTreeSet<Dedup> {
    let starts = store.starts(name).into_iter().map(|orphan| orphan.start);
    let of_lanes = starts
        .filter(|start| &*start.by.node == node)
        .filter_map(|start| start.alone)
        .filter(|id| store.inbox_state(name, id).is_none())
        .map(|id| DeadLetter::dedup_of_id(&id));
    let of_parked = store.parked_starts(name).into_iter();
    let of_parked = of_parked.filter(|(_, by, alone)| &*by.node == node && *alone).map(|(dedup, ..)| dedup);
    of_lanes.chain(of_parked).collect()
}

/// What is durable about the deaths with a message.
pub(super) struct Told<'a> {
    /// The processes in its history, since it was last sent back.
    pub(super) crashes: &'a [&'a str],
    /// How many its handler had killed when it was sent back.
    pub(super) killed_before: usize,
    pub(super) max_crashes: usize,
    /// It is dead for its crashes.
    pub(super) given_up: bool,
    /// It kills whoever handles it.
    pub(super) poison: bool,
}

impl Deaths {
    /// A process dies now, of what its handler had in hand or of something else.
    pub(super) fn of(&self, store: &MemoryStore, name: &ConsumerName, node: &str, of: Option<Dedup>) {
        let alone = alone_of(store, name, node);
        let mut seen = self.0.borrow_mut();
        seen.together += u64::from(alone.is_empty());
        if let Some(dedup) = of.filter(|dedup| alone.contains(dedup)) {
            *seen.killed.entry(dedup).or_default() += 1;
        }
        for dedup in alone {
            seen.alone.entry(dedup).or_default().push(node.to_owned());
        }
        seen.nodes.insert(node.to_owned());
    }

    /// With how many a message was alone when they died.
    pub(super) fn with(&self, dedup: &Dedup) -> usize {
        self.0.borrow().alone.get(dedup).map_or(0, Vec::len)
    }

    /// Whether a message was alone with this process when it died.
    pub(super) fn was_alone(&self, dedup: &Dedup, node: &str) -> bool {
        self.0.borrow().alone.get(dedup).is_some_and(|nodes| nodes.iter().any(|other| other == node))
    }

    /// In a schedule where no two processes meet, only who died is charged.
    pub(super) fn in_calm(calm: bool) -> Self {
        Self(Rc::new(RefCell::new(Seen { calm, ..Seen::default() })))
    }

    /// How many a message's handler killed while it was alone.
    pub(super) fn killed(&self, dedup: &Dedup) -> usize {
        self.0.borrow().killed.get(dedup).copied().unwrap_or_default()
    }

    /// The crashes in a message's history since it was last sent back: of each process one, and of those that
    /// were alone with it when they died. Two that meet at one message may count each other dead for a moment.
    pub(super) fn check(&self, dedup: &Dedup, told: &Told<'_>, said: &dyn Fn() -> String) {
        let Told { crashes, killed_before, max_crashes, given_up, poison } = *told;
        let each: BTreeSet<&str> = crashes.iter().copied().collect();
        assert_eq!(each.len(), crashes.len(), "a process died twice: {}", said());
        assert_eq!(given_up, crashes.len() >= max_crashes, "{max_crashes} crashes, and no fewer: {}", said());
        let killed = self.killed(dedup) - killed_before;
        let (lived, calm) = {
            let seen = self.0.borrow();
            let alone = seen.alone.get(dedup);
            let lived = |node: &&&str| !alone.is_some_and(|nodes| nodes.iter().any(|other| other == **node));
            (
                crashes.iter().filter(lived).map(|node| (*dedup, (*node).to_owned())).collect::<Vec<_>>(),
                seen.calm,
            )
        };
        assert!(
            !calm || lived.is_empty(),
            "charged though they did not die alone with it: {lived:?}: {}",
            said()
        );
        assert!(!calm || killed <= max_crashes, "run {killed} times, not {max_crashes}: {}", said());
        assert!(!calm || poison || !given_up, "given up, and no poison: {}", said());
        let mut seen = self.0.borrow_mut();
        seen.lived.extend(lived);
        if given_up && !poison {
            seen.unlucky.insert(*dedup);
        }
    }

    pub(super) fn is_unlucky(&self, dedup: &Dedup) -> bool {
        self.0.borrow().unlucky.contains(dedup)
    }

    /// How many were charged though they lived, and how many given up that are no poison.
    pub(super) fn wrongs(&self) -> (u64, u64) {
        let seen = self.0.borrow();
        (seen.lived.len() as u64, seen.unlucky.len() as u64)
    }

    pub(super) fn is_dead(&self, node: &str) -> bool {
        self.0.borrow().nodes.contains(node)
    }

    /// Deaths with a message alone, and others.
    pub(super) fn counts(&self) -> (u64, u64) {
        let seen = self.0.borrow();
        (seen.nodes.len() as u64 - seen.together, seen.together)
    }
}
