//! What went through a proxy: bytes and cuts, in all and a connection.
//!
//! Authoritative: the counters here; a byte counts when the operating system took it. A row of the lab that
//! asserts on them cannot have been run around the proxy.

use super::rules::{Ending, Way};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most ended connections whose counts are kept one by one; the totals are kept for ever.
const ENDED_MAX: usize = 10_000;

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Both sides closed it.
    Closed,
    /// One side broke it.
    Broken,
    /// The proxy cut it.
    Cut(Ending),
    /// The server could not be reached.
    Unreachable,
    /// The proxy was stopped.
    Stopped,
}

/// One connection's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Its number, from 0 in the order accepted.
    pub number: u64,
    /// Bytes forwarded to the server.
    pub up: u64,
    /// Bytes forwarded to the client.
    pub down: u64,
    /// Bytes for the server that were thrown away.
    pub dropped_up: u64,
    /// Bytes for the client that were thrown away.
    pub dropped_down: u64,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
}

impl ConnectionCounts {
    /// Bytes forwarded in one direction.
    #[must_use]
    pub fn forwarded(&self, way: Way) -> u64 {
        match way {
            Way::Up => self.up,
            Way::Down => self.down,
        }
    }
}

/// A proxy's counts in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections cut or reset by the proxy.
    pub cut: u64,
    /// Connections for which the server could not be reached.
    pub unreachable: u64,
    /// Bytes forwarded to the server.
    pub up: u64,
    /// Bytes forwarded to the client.
    pub down: u64,
    /// Bytes thrown away.
    pub dropped: u64,
}

impl Totals {
    /// Both, added.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            cut: self.cut + other.cut,
            unreachable: self.unreachable + other.unreachable,
            up: self.up + other.up,
            down: self.down + other.down,
            dropped: self.dropped + other.dropped,
        }
    }
}

/// The counters of a running connection.
#[derive(Debug, Default)]
pub(super) struct Counters {
    number: u64,
    forwarded: [AtomicU64; 2],
    dropped: [AtomicU64; 2],
}

fn at(way: Way) -> usize {
    match way {
        Way::Up => 0,
        Way::Down => 1,
    }
}

impl Counters {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn forwarded(&self, way: Way) -> u64 {
        self.forwarded[at(way)].load(Ordering::Relaxed)
    }

    pub(super) fn forward(&self, way: Way, bytes: usize) {
        self.forwarded[at(way)].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn throw_away(&self, way: Way, bytes: usize) {
        self.dropped[at(way)].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn counts(&self, ended: Option<Ended>) -> ConnectionCounts {
        ConnectionCounts {
            number: self.number,
            up: self.forwarded(Way::Up),
            down: self.forwarded(Way::Down),
            dropped_up: self.dropped[0].load(Ordering::Relaxed),
            dropped_down: self.dropped[1].load(Ordering::Relaxed),
            ended,
        }
    }
}

/// Every connection of a proxy.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ended: Totals,
    accepted: u64,
    running: Vec<Arc<Counters>>,
    last: VecDeque<ConnectionCounts>,
}

impl Book {
    pub(super) fn open(&self) -> Arc<Counters> {
        let mut book = self.lock();
        let counters = Arc::new(Counters { number: book.accepted, ..Counters::default() });
        book.accepted += 1;
        book.running.push(counters.clone());
        counters
    }

    pub(super) fn close(&self, counters: &Arc<Counters>, how: Ended) {
        let mut book = self.lock();
        book.running.retain(|running| !Arc::ptr_eq(running, counters));
        let counts = counters.counts(Some(how));
        add(&mut book.ended, &counts);
        match how {
            Ended::Cut(_) => book.ended.cut += 1,
            Ended::Unreachable => book.ended.unreachable += 1,
            Ended::Closed | Ended::Broken | Ended::Stopped => {}
        }
        if book.last.len() == ENDED_MAX {
            book.last.pop_front();
        }
        book.last.push_back(counts);
    }

    pub(super) fn running(&self) -> usize {
        self.lock().running.len()
    }

    pub(super) fn totals(&self) -> Totals {
        let book = self.lock();
        let mut totals = Totals { accepted: book.accepted, ..book.ended };
        for running in &book.running {
            add(&mut totals, &running.counts(None));
        }
        totals
    }

    pub(super) fn connections(&self) -> Vec<ConnectionCounts> {
        let book = self.lock();
        book.last.iter().copied().chain(book.running.iter().map(|running| running.counts(None))).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(totals: &mut Totals, counts: &ConnectionCounts) {
    totals.up += counts.up;
    totals.down += counts.down;
    totals.dropped += counts.dropped_up + counts.dropped_down;
}
