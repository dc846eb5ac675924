//! Hooks for tests: what cannot be provoked or seen from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Read and set by tests only.
#[derive(Debug, Default)]
pub struct Hooks {
    /// Once: the thread sleeps so many milliseconds without polling.
    pub stall_ms: AtomicU64,
    /// Once: the client library raises a fatal error.
    pub fatal: AtomicBool,
    /// Entries that wait in the queues of the client library, as seen once a second.
    pub queued: AtomicU64,
    /// Polls of the main queue.
    pub polls: AtomicU64,
    /// Questions for topics before the group is joined, and seconds in the group: at least a second of ours
    /// each, however slow the machine.
    pub ticks: AtomicU64,
    /// Polls while leaving the group, of at most 10 ms each.
    pub leaving: AtomicU64,
    /// How often a new client was built.
    pub rebuilt: AtomicU32,
    /// Clients that are not wholly gone: their threads still run.
    pub clients: AtomicU32,
}

/// Counts one client for as long as it lives; to be dropped after it.
#[derive(Debug)]
pub(super) struct Alive(Arc<Hooks>);

impl Alive {
    pub(super) fn new(hooks: &Arc<Hooks>) -> Self {
        hooks.clients.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(hooks))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
