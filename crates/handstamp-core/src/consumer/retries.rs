//! When the retry worker has its turns, and how much may be parked (no I/O, no clock of its own).
//!
//! ```text
//! due ─► turn ─┬─ found rows ─► due at once, takes without asking first; the lanes have their turns between
//!              ├─ nothing is due ─► due when something is by the store's word, or soon: others park too
//!              └─ no answer ─► due after a backoff
//! a lane parked something ─► due when that is
//! ```
//!
//! How much is parked is an estimate between two looks: what this process parks and resolves is counted on.

use super::batch::{BatchEnd, random};
use super::options::ConsumerOptions;
use crate::parked::COUNTED_MAX;
use crate::retry::Backoff;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Other processes park too: how long nobody looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The shortest time between two looks that find nothing.
const LOOK_LEAST: Duration = Duration::from_millis(100);
/// Most rows taken at once.
const TAKE_MAX: usize = 100;
/// Rows of the first take, while their size is not known.
const TAKE_FIRST: usize = 16;
/// Between two lines that say that nothing new is begun.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// What is known of the parked messages between two looks.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    count: Cell<u64>,
    /// When something that this process parked is due, and nobody has planned a look for it.
    news: Cell<Option<Instant>>,
    /// The worker cannot reach the store, and that was said.
    pub(super) away: Cell<bool>,
}

impl Parked {
    /// So many more are parked; the first of them is due after the wait.
    pub(super) fn added(&self, count: u64, soonest: Duration) {
        self.count.set(self.count.get().saturating_add(count));
        let due = Instant::now() + soonest;
        self.news.set(Some(self.news.get().map_or(due, |known| known.min(due))));
    }

    /// As the store says it.
    pub(super) fn is(&self, count: u64) {
        self.count.set(count);
    }

    /// So many came to their end.
    pub(super) fn left(&self, count: u64) {
        self.count.set(self.count.get().saturating_sub(count));
    }
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// So many rows of so many bytes, which were taken up.
    Rows { count: usize, bytes: usize },
    /// Nothing that is due; when something will be, by the store's clock.
    Nothing { due_in: Option<Duration> },
    /// The store did not answer.
    Fault,
    /// It did not look: the breaker is open.
    Held,
}

/// How a turn of the worker ended.
pub(crate) struct Look {
    pub(crate) found: Found,
    pub(crate) end: BatchEnd,
}

/// When the worker has its next turn.
pub(crate) struct Retries {
    running: bool,
    next: Instant,
    /// The last look found rows: more may be due.
    hungry: bool,
    /// The last look found nothing that is due, and nothing was parked since.
    clear: bool,
    faults: u32,
    take_max: usize,
    rows_max: usize,
    bytes_max: usize,
    parked_max: u64,
    /// Nothing new is begun; when that was last said.
    full: Option<Instant>,
    /// When the next row is due, as last told.
    next_due: Option<Instant>,
}

impl Retries {
    pub(crate) fn new(options: &ConsumerOptions, now: Instant) -> Self {
        Self {
            running: false,
            next: now,
            hungry: false,
            clear: false,
            faults: 0,
            take_max: TAKE_FIRST.min(options.batch_max.max(1)),
            rows_max: TAKE_MAX.min(options.batch_max.max(1)),
            bytes_max: options.batch_max_bytes.max(1),
            parked_max: options.parked_max.clamp(1, COUNTED_MAX),
            full: None,
            next_due: None,
        }
    }

    /// Whether the worker's turn may begin.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.running && now >= self.next
    }

    /// When its next turn is, unless it has one now.
    pub(crate) fn next(&self) -> Option<Instant> {
        (!self.running).then_some(self.next)
    }

    /// A turn begins: whether the status is asked first, and the most rows to take.
    pub(crate) fn begin(&mut self) -> (bool, usize) {
        self.running = true;
        (!self.hungry, self.take_max)
    }

    pub(crate) fn ended(&mut self, found: Found, now: Instant) {
        self.running = false;
        self.hungry = matches!(found, Found::Rows { .. });
        self.clear = !self.hungry && found != Found::Held;
        self.faults = if found == Found::Fault { self.faults.saturating_add(1) } else { 0 };
        match found {
            Found::Rows { count, bytes } => {
                self.next = now;
                let each = (bytes / count.max(1)).max(1);
                let fitting = (self.bytes_max / each).clamp(1, self.rows_max);
                self.take_max = fitting.min(self.take_max.saturating_mul(2));
            }
            Found::Nothing { due_in } => {
                self.next_due = due_in.map(|due_in| now + due_in);
                self.next = now + due_in.unwrap_or(LOOK_EVERY).clamp(LOOK_LEAST, LOOK_EVERY);
            }
            Found::Held => self.next = now + LOOK_LEAST,
            Found::Fault => self.next = now + Backoff::INFRASTRUCTURE.wait(self.faults - 1, random()),
        }
    }

    /// A turn ended: plans a look at what a lane has parked, behind the one that is under way and may have missed
    /// it.
    pub(crate) fn hear(&mut self, parked: &Parked) {
        if self.running {
            return;
        }
        if let Some(due) = parked.news.take() {
            self.clear = false;
            self.next = self.next.min(due);
            self.next_due = Some(self.next_due.map_or(due, |known| known.min(due)));
        }
    }

    /// Whether the source's end may be the end: nothing is due. Otherwise a look is planned at once.
    pub(crate) fn lets_end(&mut self, now: Instant) -> bool {
        let rests = !self.running && self.clear && now < self.next;
        if !rests && !self.running {
            self.next = self.next.min(now);
        }
        rests
    }

    /// Whether so much is parked that nothing new may begin; said now and then.
    pub(crate) fn is_full(&mut self, parked: &Parked, now: Instant) -> bool {
        let (count, max) = (parked.count.get(), self.parked_max);
        match self.full {
            None if count < max => return false,
            Some(_) if count < max - max / 10 => {
                tracing::info!(target: "handstamp", parked = count, parked_max = max, "new messages are begun again");
                self.full = None;
                return false;
            }
            Some(said) if now.duration_since(said) < SAY_EVERY => return true,
            None | Some(_) => {}
        }
        tracing::warn!(
            target: "handstamp",
            parked = count,
            parked_max = max,
            "too many messages are parked: nothing new is begun until some have come to their end"
        );
        self.full = Some(now);
        true
    }

    /// Whether nothing new may begin, as last found.
    pub(crate) fn holds(&self) -> bool {
        self.full.is_some()
    }

    /// Says at the end how much stays behind.
    pub(crate) fn say_rest(&self, parked: &Parked, now: Instant) {
        let count = parked.count.get();
        if count == 0 {
            return;
        }
        let next_due_s = self.next_due.map(|due| due.saturating_duration_since(now).as_secs_f64());
        tracing::info!(
            target: "handstamp",
            parked = count,
            next_due_s,
            "messages stay parked; the next run of this consumer takes them up once they are due"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_parked_during_a_look_is_looked_for_after_it() {
        let (now, parked) = (Instant::now(), Parked::default());
        let mut retries = Retries::new(&ConsumerOptions::default(), now);
        assert_eq!(retries.begin(), (true, TAKE_FIRST));
        parked.added(1, SECOND);
        retries.hear(&parked);
        retries.ended(Found::Nothing { due_in: None }, now);
        retries.hear(&parked);
        assert_eq!(retries.next(), Some(now + SECOND));
        assert!(!retries.is_due(now) && retries.is_due(now + SECOND));
        assert!(!retries.lets_end(now), "it may be due at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_take_is_bounded_by_rows_and_by_bytes() {
        let options = ConsumerOptions { batch_max: 50, batch_max_bytes: 1_000, ..ConsumerOptions::default() };
        let now = Instant::now();
        let mut retries = Retries::new(&options, now);
        for (bytes, take_max) in [(1, 32), (1, 50), (1, 50), (500, 2), (1, 4)] {
            retries.begin();
            retries.ended(Found::Rows { count: 1, bytes }, now);
            assert_eq!(retries.begin(), (false, take_max), "after {bytes} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bound_beyond_what_stores_count_is_reached_all_the_same() {
        let (now, parked) = (Instant::now(), Parked::default());
        let options = ConsumerOptions { parked_max: u64::MAX, ..ConsumerOptions::default() };
        let mut retries = Retries::new(&options, now);
        parked.is(COUNTED_MAX - 1);
        assert!(!retries.is_full(&parked, now));
        parked.is(COUNTED_MAX);
        assert!(retries.is_full(&parked, now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bound_of_one_is_left_too() {
        let (now, parked) = (Instant::now(), Parked::default());
        let options = ConsumerOptions { parked_max: 1, ..ConsumerOptions::default() };
        let mut retries = Retries::new(&options, now);
        assert!(!retries.is_full(&parked, now));
        parked.added(1, SECOND);
        assert!(retries.is_full(&parked, now) && retries.holds());
        parked.left(1);
        assert!(!retries.is_full(&parked, now) && !retries.holds());
    }
}
