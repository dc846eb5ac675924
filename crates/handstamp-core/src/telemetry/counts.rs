//! What became of messages, counted once each: plain numbers, and the same while the consumer runs.

use super::vitals::Vitals;
use crate::breaker::BreakerState;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How messages ended, and what happened on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Deliveries taken from the source.
    pub received: u64,
    /// Effects committed.
    pub applied: u64,
    /// Outcome already durable: skipped.
    pub duplicate: u64,
    /// Id known with another body.
    pub id_reused: u64,
    /// As old as what is applied of its key, or older (version guard): nothing ran.
    pub stale: u64,
    /// No effect wanted the message.
    pub unmatched: u64,
    /// Kept as dead letters, reused ids excepted.
    pub dead_lettered: u64,
    /// Kept for a later retry.
    pub parked: u64,
    /// Given back to the broker unfinished.
    pub released: u64,
    /// Failed attempts charged to messages.
    pub attempts_failed: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Transactions run again after a fault or a failing neighbour.
    pub reruns: u64,
    /// Dead-letter rows written new by this process.
    pub dead_letter_rows: u64,
    /// Copies of dead letters that their sink took; one that is made again counts again.
    pub dead_letter_copies: u64,
    /// Copies that their sink refused for good. The dead letters are kept all the same.
    pub dead_letter_copies_failed: u64,
    /// Parked messages taken up again.
    pub resumed: u64,
    /// Of them, effects committed.
    pub resumed_applied: u64,
    /// Of them, as old as what is applied of their keys, or older: nothing ran, and they are parked no more.
    pub resumed_stale: u64,
    /// Of them, failed and parked again.
    pub resumed_parked_again: u64,
    /// Of them, given up.
    pub resumed_dead: u64,
    /// Of them, left as they were: not begun before a stop, or taken by another process.
    pub resumed_released: u64,
    /// How often the handler's breaker opened.
    pub breaker_opened: u64,
    /// Deaths of processes met on lanes that were taken over, each with what it died with.
    pub crashes_found: u64,
}

impl Counts {
    /// Deliveries taken and not yet ended.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.received.saturating_sub(self.ended())
    }

    /// Deliveries that ended under some count.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.settled() + self.released
    }

    /// Parked messages taken up again that ended under some count.
    #[must_use]
    pub fn resumed_ended(&self) -> u64 {
        self.resumed_applied
            + self.resumed_stale
            + self.resumed_parked_again
            + self.resumed_dead
            + self.resumed_released
    }

    /// Deliveries that ended for good: all that ended but those given back.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.applied
            + self.duplicate
            + self.id_reused
            + self.stale
            + self.unmatched
            + self.dead_lettered
            + self.parked
    }
}

macro_rules! live_counts {
    ($($field:ident),* $(,)?) => {
        /// The counts of a running consumer, readable from any thread.
        #[derive(Debug, Default)]
        pub struct LiveCounts { $($field: AtomicU64,)* vitals: Vitals, span: Span }

        impl LiveCounts {
            /// The counts as they are now. While the consumer runs they are not one instant's; never does more
            /// end than came, as what comes is read last.
            #[must_use]
            pub fn snapshot(&self) -> Counts {
                Counts { $($field: self.$field.load(Ordering::Relaxed),)* }
            }

            /// Adds a difference.
            pub(crate) fn add(&self, delta: &Counts) {
                $(if delta.$field > 0 { self.$field.fetch_add(delta.$field, Ordering::Relaxed); })*
                if delta.received > 0 || delta.settled() > 0 {
                    self.span.note(delta, tokio::time::Instant::now());
                }
            }
        }
    };
}

live_counts!(
    applied,
    duplicate,
    id_reused,
    stale,
    unmatched,
    dead_lettered,
    parked,
    released,
    attempts_failed,
    commits,
    reruns,
    dead_letter_rows,
    dead_letter_copies,
    dead_letter_copies_failed,
    resumed_applied,
    resumed_stale,
    resumed_parked_again,
    resumed_dead,
    resumed_released,
    breaker_opened,
    crashes_found,
    received,
    resumed,
);

impl LiveCounts {
    /// From the first delivery to the last that ended for good; zero before there are both.
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.span.length()
    }

    /// Records behind the settled positions of all lanes, as last told.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.vitals.lag()
    }

    /// Where the handler's breaker stands.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.vitals.breaker()
    }

    /// Whether the consumer lives, and what it waits for.
    #[must_use]
    pub fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    pub(crate) fn set_breaker(&self, state: BreakerState) {
        self.vitals.set_breaker(state);
    }
}

/// When the first delivery was taken, and how long after it one last ended for good.
#[derive(Debug, Default)]
struct Span {
    first: OnceLock<tokio::time::Instant>,
    last_nanos: AtomicU64,
}

impl Span {
    fn note(&self, delta: &Counts, now: tokio::time::Instant) {
        if delta.received > 0 {
            self.first.get_or_init(|| now);
        }
        if let (true, Some(first)) = (delta.settled() > 0, self.first.get()) {
            let nanos = now.saturating_duration_since(*first).as_nanos();
            self.last_nanos.fetch_max(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    fn length(&self) -> Duration {
        Duration::from_nanos(self.last_nanos.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_is_from_the_first_delivery_to_the_last_that_ended_for_good() {
        let start = tokio::time::Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let received = Counts { received: 1, ..Counts::default() };
        let released = Counts { released: 1, ..Counts::default() };
        let span = Span::default();
        span.note(&received, at(10));
        assert_eq!(span.length(), Duration::ZERO);
        for (seconds, applied) in [(13, 1), (12, 2)] {
            span.note(&Counts { applied, ..Counts::default() }, at(seconds));
        }
        // Neither what comes nor what is given back afterwards makes it longer.
        span.note(&received, at(20));
        span.note(&released, at(30));
        assert_eq!(span.length(), Duration::from_secs(3));
        span.note(&Counts { duplicate: 1, ..Counts::default() }, at(25));
        assert_eq!(span.length(), Duration::from_secs(15));
    }
}
