//! Hooks for tests: what cannot be provoked or seen from outside.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

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
    /// How often a new client was built.
    pub rebuilt: AtomicU32,
}
