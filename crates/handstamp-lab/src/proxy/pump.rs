//! One direction of a connection.
//!
//! Memory is bounded: at most [`CHUNKS_MAX`] chunks of [`CHUNK_BYTES`] wait between reading and writing; then
//! nothing more is read and the operating system holds the sender up.
//!
//! ```text
//!  read ─► queue (each chunk with the time it is due) ─► tap ─► flow ─► cut? ─► rate ─► write
//! ```

use super::counts::Counters;
use super::rules::{Ending, Flow, Rules, Tap, Verdict, Way, WayRules};
use crate::schedule::Random;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Most bytes read at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// Most chunks between reading and writing.
const CHUNKS_MAX: usize = 16;
/// A limited rate is kept in steps of this length.
const RATE_STEP_MS: u64 = 20;

/// How one direction came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PumpEnd {
    /// The sender closed, everything was forwarded, and the receiver was told.
    Closed,
    /// The sender closed; this direction is thrown away, so nobody was told.
    Unheard,
    /// A rule or the tap cut the connection.
    Cut(Ending),
    /// The sender or the receiver broke the connection.
    Broken,
}

/// What is read, and when it may go on.
struct Chunk {
    due: Instant,
    what: Read,
}

enum Read {
    Bytes(Vec<u8>),
    End,
    Broken,
}

/// What forwarding needs beside the two sockets.
pub(super) struct Pump {
    pub(super) way: Way,
    pub(super) rules: watch::Receiver<Rules>,
    pub(super) counters: Arc<Counters>,
    pub(super) tap: Option<Arc<Mutex<Tap>>>,
    pub(super) random: Random,
}

impl Pump {
    /// Forwards until one side ends or the connection is cut.
    pub(super) async fn run(self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> PumpEnd {
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        let mut random = self.random.clone();
        let drawn = random.next_u64();
        let reading = read(self.way, from, sender, self.rules.clone(), random);
        let writing =
            Writer { pump: self, discarding: false, free_at: Instant::now(), drawn }.run(receiver, to);
        tokio::pin!(reading, writing);
        tokio::select! {
            ended = &mut writing => ended,
            // Reading ends first when the sender has: what was read is still written.
            () = &mut reading => writing.await,
        }
    }
}

async fn read(
    way: Way,
    from: &mut OwnedReadHalf,
    queue: mpsc::Sender<Chunk>,
    rules: watch::Receiver<Rules>,
    mut random: Random,
) {
    let mut due = Instant::now();
    // Room first, bytes second: what cannot be kept is not read.
    while let Ok(room) = queue.reserve().await {
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        let what = match from.read_buf(&mut bytes).await {
            Ok(0) => Read::End,
            Ok(_) => Read::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Read::Broken,
        };
        let last = !matches!(what, Read::Bytes(_));
        let way = *rules.borrow().way(way);
        let jitter_ns = u64::try_from(way.jitter.as_nanos()).unwrap_or(u64::MAX);
        let late = way.latency + Duration::from_nanos(random.below(jitter_ns.saturating_add(1)));
        due = due.max(Instant::now() + late);
        room.send(Chunk { due, what });
        if last {
            return;
        }
    }
}

struct Writer {
    pump: Pump,
    /// The tap threw the rest away.
    discarding: bool,
    /// When the rate allows the next byte.
    free_at: Instant,
    /// This connection's place between `from` and `to` of a cut.
    drawn: u64,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<Chunk>, to: &mut OwnedWriteHalf) -> PumpEnd {
        loop {
            if let Some(ending) = self.cut_now() {
                return PumpEnd::Cut(ending);
            }
            let chunk = tokio::select! {
                biased;
                Ok(()) = self.pump.rules.changed() => continue,
                chunk = queue.recv() => chunk,
            };
            let Some(chunk) = chunk else { return PumpEnd::Broken };
            sleep_until(chunk.due).await;
            let ended = match chunk.what {
                Read::Bytes(bytes) => self.forward(&bytes, to).await,
                Read::End => Some(self.end(to).await),
                Read::Broken => Some(PumpEnd::Broken),
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    /// The end of a stream is held back or dropped as its bytes are.
    async fn end(&mut self, to: &mut OwnedWriteHalf) -> PumpEnd {
        loop {
            match self.rules_of_way().flow {
                Flow::Discard => return PumpEnd::Unheard,
                Flow::Pass if self.discarding => return PumpEnd::Unheard,
                Flow::Pass => break,
                Flow::Stall if self.pump.rules.changed().await.is_err() => return PumpEnd::Broken,
                Flow::Stall => {}
            }
        }
        match to.shutdown().await {
            Ok(()) => PumpEnd::Closed,
            Err(_) => PumpEnd::Broken,
        }
    }

    async fn forward(&mut self, bytes: &[u8], to: &mut OwnedWriteHalf) -> Option<PumpEnd> {
        if self.discarding {
            self.pump.counters.throw_away(self.pump.way, bytes.len());
            return None;
        }
        let verdict = match &self.pump.tap {
            Some(tap) => (tap.lock().unwrap_or_else(PoisonError::into_inner))(self.pump.way, bytes),
            None => Verdict::Pass,
        };
        match verdict {
            Verdict::Pass => self.write(bytes, to).await,
            Verdict::Cut { after, ending } => {
                let ended = self.write(&bytes[..after.min(bytes.len())], to).await;
                ended.or(Some(PumpEnd::Cut(ending)))
            }
            Verdict::Discard { after } => {
                let (first, rest) = bytes.split_at(after.min(bytes.len()));
                let ended = self.write(first, to).await;
                self.discarding = true;
                self.pump.counters.throw_away(self.pump.way, rest.len());
                ended
            }
        }
    }

    /// Writes under the rules as they are at each step.
    async fn write(&mut self, mut bytes: &[u8], to: &mut OwnedWriteHalf) -> Option<PumpEnd> {
        while !bytes.is_empty() {
            self.pump.rules.mark_unchanged();
            let rules = self.rules_of_way();
            match rules.flow {
                Flow::Pass => {}
                Flow::Stall => {
                    if self.pump.rules.changed().await.is_err() {
                        return Some(PumpEnd::Broken);
                    }
                    continue;
                }
                Flow::Discard => {
                    self.pump.counters.throw_away(self.pump.way, bytes.len());
                    return None;
                }
            }
            if let Some(ending) = self.cut_now() {
                return Some(PumpEnd::Cut(ending));
            }
            let mut most = bytes.len();
            if let Some((limit, _)) = self.cut_at() {
                most = most.min(usize::try_from(limit - self.forwarded()).unwrap_or(usize::MAX));
            }
            if let Some(rate) = rules.bytes_per_s {
                let step = (rate.get() * RATE_STEP_MS / 1000).max(1);
                most = most.min(usize::try_from(step).unwrap_or(usize::MAX));
                sleep_until(self.free_at).await;
                // A pause earns no credit: a slow line does not catch up.
                let cost = Duration::from_secs_f64(most as f64 / rate.get() as f64);
                self.free_at = self.free_at.max(Instant::now()) + cost;
            }
            match to.write(&bytes[..most]).await {
                Ok(written) if written > 0 => {
                    self.pump.counters.forward(self.pump.way, written);
                    bytes = &bytes[written..];
                }
                Ok(_) | Err(_) => return Some(PumpEnd::Broken),
            }
        }
        self.cut_now().map(PumpEnd::Cut)
    }

    fn rules_of_way(&self) -> WayRules {
        *self.pump.rules.borrow().way(self.pump.way)
    }

    fn forwarded(&self) -> u64 {
        self.pump.counters.forwarded(self.pump.way)
    }

    /// After how many bytes the rules cut this connection.
    fn cut_at(&self) -> Option<(u64, Ending)> {
        let cut = self.rules_of_way().cut_after?;
        let limit = match cut.to.checked_sub(cut.from).and_then(|span| span.checked_add(1)) {
            Some(span) => cut.from + self.drawn % span,
            None => cut.from,
        };
        Some((limit, cut.ending))
    }

    fn cut_now(&self) -> Option<Ending> {
        self.cut_at().filter(|(limit, _)| self.forwarded() >= *limit).map(|(_, ending)| ending)
    }
}
