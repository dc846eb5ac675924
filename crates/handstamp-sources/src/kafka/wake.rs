//! Waking the consumer's one thread: by a queue of the client library, by a command, by room in the
//! port. The thread sleeps in [`Wake::wait`] and nowhere else, so nothing has to be polled in circles, but for
//! settles that need no haste (`settle`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Wakes one thread. A wake that comes before the wait is kept.
#[derive(Debug)]
pub(super) struct Wake {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake {
    /// A wake for the calling thread.
    pub(super) fn for_this_thread() -> Arc<Self> {
        Arc::new(Self { thread: std::thread::current(), woken: AtomicBool::new(false) })
    }

    /// Ends the present wait, or the next one.
    pub(super) fn notify(&self) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Sleeps until notified, at most so long.
    pub(super) fn wait(&self, at_most: Duration) {
        if !self.woken.swap(false, Ordering::AcqRel) {
            std::thread::park_timeout(at_most);
            self.woken.store(false, Ordering::Release);
        }
    }
}

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

/// Says that a queue of the client library has something to read.
#[derive(Debug)]
pub(super) struct Signal {
    ready: AtomicBool,
    wake: Arc<Wake>,
}

impl Signal {
    /// A signal that starts as ready, so that what came before it is read.
    pub(super) fn new(wake: Arc<Wake>) -> Arc<Self> {
        Arc::new(Self { ready: AtomicBool::new(true), wake })
    }

    /// Called by the client library's threads.
    pub(super) fn raise(&self) {
        self.ready.store(true, Ordering::Release);
        self.wake.notify();
    }

    /// Whether there may be something to read.
    pub(super) fn is_raised(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Takes the signal down; to be called before reading, so that nothing that comes later is missed.
    pub(super) fn lower(&self) {
        self.ready.store(false, Ordering::Release);
    }

    /// Puts it up again after a read that left something.
    pub(super) fn keep(&self) {
        self.ready.store(true, Ordering::Release);
    }
}
