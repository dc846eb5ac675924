//! The thread that serves the port: hands lines over, tracks what is settled, keeps the position.
//!
//! ```text
//!  Assigned ─► (Noticed(Truncated)) ─► deliveries … ─► end of input ─► CaughtUp
//!                                         │ Hold/Release                 │ all settled or released
//!                                         └───────────── Close ──────────┴─► position written, end
//! ```
//!
//! A released delivery comes again at the next start, as does everything behind it: a file has one
//! position. When the engine is gone nothing more is written.

use super::config::FileOptions;
use super::lines::{Line, LineReader};
use super::look::{self, Inspected};
use super::position::{Position, Sidecar, Start};
use bytes::Bytes;
use handstamp_core::delivery::{ReadAhead, Settled};
use handstamp_core::offsets::LowWaterMark;
use handstamp_core::source::{DeliveryCount, NamedLane, PortLimits, SettleKind};
use handstamp_core::{
    Capabilities, Command, Control, CrashPoint, Delivery, DeliveryTag, Disposition, Fingerprint, Headers,
    Lane, Notice, Origin, Record, RecordFault, Source, SourceError, SourceErrorKind, SourcePort,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The shortest time between two writes of the position.
const WRITE_EVERY: Duration = Duration::from_millis(200);
const LANE: Lane = Lane { id: 0, epoch: 1 };

/// Reads a file of JSON lines, standard input or a FIFO.
#[derive(Debug)]
pub struct FileSource {
    options: FileOptions,
}

impl FileSource {
    /// A source that opens its file when it is started.
    #[must_use]
    pub fn new(options: FileOptions) -> Self {
        Self { options }
    }

    /// What a file source can do, whatever the file.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        Capabilities {
            settle: SettleKind::Cumulative,
            ordered: true,
            lease: None,
            release_delay_max: None,
            delivery_count: DeliveryCount::None,
            redelivery_window: None,
            ends: true,
        }
    }
}

impl Source for FileSource {
    fn capabilities(&self) -> Capabilities {
        Self::capabilities()
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint("file".into())
    }

    fn start(self: Box<Self>, port: SourcePort) -> Result<(), SourceError> {
        let path: Arc<str> = self.options.path.to_string_lossy().into();
        let input = open(&self.options)?;
        let (lines, batches) = mpsc::channel(1);
        let limits = port.limits;
        spawn("file-reader", &path, move || {
            read_lines(input.open, input.waits, &input.start, limits, &lines)
        })?;
        let served = Served {
            path: path.clone(),
            sidecar: input.sidecar,
            handed: Handed::default(),
            control: port.control,
            written: None,
            dirty: false,
        };
        let changed = input.changed;
        let (commands, deliveries) = (port.commands, port.deliveries);
        spawn("file-source", &path, move || {
            // Made here: a runtime must not be dropped where the caller may be asynchronous.
            match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime.block_on(serve(served, changed, batches, deliveries, commands)),
                Err(error) => served.say(Control::Failed(cannot("serve", &served.path, error))),
            }
        })
    }
}

fn spawn(name: &str, path: &str, body: impl FnOnce() + Send + 'static) -> Result<(), SourceError> {
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    thread.map(drop).map_err(|error| cannot("start the thread for", path, error))
}

pub(super) fn cannot(what: &str, path: &str, error: io::Error) -> SourceError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => SourceErrorKind::Missing,
        io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => SourceErrorKind::Config,
        _ => SourceErrorKind::Other,
    };
    SourceError::new(kind, format!("cannot {what} {path}: {error}")).with_source(error)
}

type Opener = Box<dyn FnOnce() -> io::Result<Box<dyn Read + Send>> + Send>;

struct Input {
    /// Run by the reader thread: opening a FIFO waits for its writer.
    open: Opener,
    /// Reading may wait for a writer.
    waits: bool,
    start: Start,
    changed: Option<&'static str>,
    sidecar: Option<Sidecar>,
}

fn open(options: &FileOptions) -> Result<Input, SourceError> {
    let stream =
        |open: Opener| Input { open, waits: true, start: Start::default(), changed: None, sidecar: None };
    let (canonical, mut file) = match look::inspect(options)? {
        Inspected::Stdin => return Ok(stream(Box::new(|| Ok(Box::new(io::stdin()))))),
        Inspected::Stream(path) => return Ok(stream(Box::new(move || Ok(Box::new(File::open(path)?))))),
        Inspected::File { canonical, file } => (canonical, file),
    };
    let sidecar = Sidecar::open(options, &file, &canonical)?;
    let start = sidecar.as_ref().map(Sidecar::start).unwrap_or_default();
    let failed = |error| cannot("read the file", &options.path.to_string_lossy(), error);
    file.seek(SeekFrom::Start(start.offset)).map_err(failed)?;
    let changed = start.changed;
    Ok(Input { open: Box::new(move || Ok(Box::new(file))), waits: false, start, changed, sidecar })
}

enum FromReader {
    Batch(Vec<Line>),
    End,
    Failed(io::Error),
}

/// The reader thread. It ends at the end of the input, on an error, or when nobody listens; while it
/// waits for the writer of a stream nothing ends it but the process.
fn read_lines(open: Opener, waits: bool, start: &Start, limits: PortLimits, out: &mpsc::Sender<FromReader>) {
    let last = match send_lines(open, waits, start, limits, out) {
        Ok(()) => FromReader::End,
        Err(error) => FromReader::Failed(error),
    };
    let _ = out.blocking_send(last);
}

fn send_lines(
    open: Opener,
    waits: bool,
    start: &Start,
    limits: PortLimits,
    out: &mpsc::Sender<FromReader>,
) -> io::Result<()> {
    // Three batches can be under way at once: in this thread, in the channel, in the serving thread.
    let bytes_max = limits.batch_max_bytes.min(limits.queue_max_bytes / 4).max(1);
    let count_max = limits.batch_max.max(1);
    let mut lines = LineReader::new(open()?, start.offset, start.line, limits.message_max_bytes)?;
    let (mut batch, mut bytes) = (vec![], 0);
    loop {
        // Nothing waits here for the writer of a stream; a file has none.
        if waits
            && !batch.is_empty()
            && !lines.has_line()
            && out.blocking_send(FromReader::Batch(std::mem::take(&mut batch))).is_err()
        {
            return Ok(());
        }
        let Some(line) = lines.next_line()? else { break };
        if batch.is_empty() {
            bytes = 0;
        } else if batch.len() >= count_max || bytes + line.value.len() > bytes_max {
            bytes = 0;
            if out.blocking_send(FromReader::Batch(std::mem::take(&mut batch))).is_err() {
                return Ok(());
            }
        }
        bytes += line.value.len();
        batch.push(line);
    }
    if !batch.is_empty() {
        let _ = out.blocking_send(FromReader::Batch(batch));
    }
    Ok(())
}

/// A line that was handed over and lies behind no settled prefix yet.
#[derive(Debug)]
struct HandedLine {
    tag: u64,
    position: Position,
    ended: bool,
}

/// What was handed over, and how far its prefix is settled.
///
/// A line's tag is the position of its last byte, so that the mark's position is the next line's start.
#[derive(Debug, Default)]
struct Handed {
    mark: LowWaterMark,
    lines: VecDeque<HandedLine>,
    position: Option<Position>,
    /// Handed over, neither acked nor released.
    outstanding: usize,
    last_tag: u64,
}

impl Handed {
    fn hand_over(&mut self, line: &Line) -> DeliveryTag {
        let tag = line.end - 1;
        self.mark.received(i64::try_from(tag).unwrap_or(i64::MAX));
        let position = Position {
            offset: line.end,
            line: line.number,
            line_start: line.start,
            terminated: line.terminated,
        };
        self.lines.push_back(HandedLine { tag, position, ended: false });
        self.outstanding += 1;
        self.last_tag = tag;
        DeliveryTag(tag)
    }

    fn settle(&mut self, tag: DeliveryTag, disposition: Disposition) -> Settled {
        // Mostly it is the first one.
        let first = self.lines.front().is_some_and(|line| line.tag == tag.0);
        let found = if first { Ok(0) } else { self.lines.binary_search_by_key(&tag.0, |line| line.tag) };
        let Ok(at) = found else {
            // Behind the settled prefix it is done already; anything else was never handed over.
            let behind = self.position.is_some_and(|position| tag.0 < position.offset);
            return if behind { Settled::Done } else { Settled::Failed };
        };
        if !std::mem::replace(&mut self.lines[at].ended, true) {
            self.outstanding -= 1;
        }
        if disposition == Disposition::Ack {
            self.mark.settled(i64::try_from(tag.0).unwrap_or(i64::MAX));
        }
        while let (Some(settled), Some(line)) = (self.mark.position(), self.lines.front())
            && i64::try_from(line.tag).unwrap_or(i64::MAX) < settled
        {
            self.position = Some(line.position);
            self.lines.pop_front();
        }
        Settled::Done
    }
}

struct Served {
    path: Arc<str>,
    sidecar: Option<Sidecar>,
    handed: Handed,
    control: mpsc::UnboundedSender<Control>,
    written: Option<Instant>,
    dirty: bool,
}

impl Served {
    fn say(&self, control: Control) {
        // A closed control channel is not the end; only the commands' end is.
        let _ = self.control.send(control);
    }

    fn settle(&mut self, settles: &[(Lane, DeliveryTag, Disposition)]) {
        let before = self.handed.position;
        let mut answers = Vec::with_capacity(settles.len());
        for &(lane, tag, disposition) in settles {
            let settled = if lane == LANE { self.handed.settle(tag, disposition) } else { Settled::Stale };
            match settled {
                Settled::Stale => self.say(Control::Noticed(Notice::SettleStale)),
                Settled::Failed => self.say(Control::Noticed(Notice::SettleFailed)),
                _ => {}
            }
            answers.push((lane, tag, settled));
        }
        self.dirty |= self.handed.position != before;
        self.say(Control::Settled(answers));
    }

    fn write_position(&mut self) {
        if let (true, Some(sidecar), Some(position)) = (self.dirty, &mut self.sidecar, self.handed.position) {
            sidecar.write(position);
        }
        self.dirty = false;
        self.written = Some(Instant::now());
    }

    fn write_due(&self) -> Instant {
        self.written.map_or_else(Instant::now, |written| written + WRITE_EVERY)
    }

    fn deliver(&mut self, lines: Vec<Line>) -> Vec<Delivery> {
        CrashPoint::AfterPoll.reached();
        // Counted apart for each batch: the engine's thread counts the last one down meanwhile.
        let path: Arc<str> = Arc::from(&*self.path);
        lines.into_iter().map(|line| self.delivery(line, &path)).collect()
    }

    fn delivery(&mut self, line: Line, path: &Arc<str>) -> Delivery {
        let tag = self.handed.hand_over(&line);
        delivery(line, path, tag)
    }
}

/// A line as it is handed over.
pub(super) fn delivery(line: Line, path: &Arc<str>, tag: DeliveryTag) -> Delivery {
    let fault = line.truncation.map(|truncation| RecordFault {
        reason: format!("the line has {} bytes, more than max_message_bytes", truncation.full_bytes),
        truncation: Some(truncation),
    });
    let record = record(path.clone(), line.start, line.number, line.value);
    let ahead = if fault.is_none() { ReadAhead::of(&record) } else { ReadAhead::default() };
    Delivery { lane: LANE, tag, record, fault, ahead }
}

/// The record of a line.
pub(super) fn record(path: Arc<str>, start: u64, number: u64, value: Bytes) -> Record {
    let offset = i64::try_from(start).unwrap_or(i64::MAX);
    let origin = Origin { topic: path, partition: 0, offset, line: Some(number) };
    Record { key: None, value: Some(value), headers: Headers::default(), origin, timestamp: None }
}

async fn serve(
    mut served: Served,
    changed: Option<&'static str>,
    batches: mpsc::Receiver<FromReader>,
    deliveries: mpsc::Sender<Vec<Delivery>>,
    commands: mpsc::UnboundedReceiver<Command>,
) {
    CrashPoint::OnAssign.reached();
    served.say(Control::Assigned(vec![NamedLane { lane: LANE, name: served.path.clone() }]));
    if let Some(why) = changed {
        tracing::warn!(file = %served.path, "{why}: reading it from its beginning");
        served.say(Control::Noticed(Notice::Truncated));
    }
    if served.run(batches, &deliveries, commands).await == End::Asked {
        served.write_position();
    }
    // The lock goes before the deliveries close: whoever sees the end may start again at once.
    drop(served);
    drop(deliveries);
}

/// Why the serving thread ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The input is at its end and everything is settled, or the engine said `Close`.
    Asked,
    /// The engine is gone: nothing more is settled.
    EngineGone,
}

impl Served {
    async fn run(
        &mut self,
        mut batches: mpsc::Receiver<FromReader>,
        deliveries: &mpsc::Sender<Vec<Delivery>>,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) -> End {
        let mut next: Option<Vec<Line>> = None;
        let (mut held, mut at_end, mut listening) = (false, false, true);
        loop {
            if at_end && next.is_none() && self.handed.outstanding == 0 {
                return End::Asked;
            }
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None => return End::EngineGone,
                    Some(Command::Settle(settles)) => self.settle(&settles),
                    Some(Command::Hold(lane)) => held |= lane == LANE,
                    Some(Command::Release(lane)) => held &= lane != LANE,
                    Some(Command::Close { .. }) => return End::Asked,
                    Some(_) => {}
                },
                () = tokio::time::sleep_until(self.write_due()), if self.dirty => self.write_position(),
                room = deliveries.reserve(), if next.is_some() && !held && listening => {
                    match (room, next.take()) {
                        (Ok(room), Some(lines)) => room.send(self.deliver(lines)),
                        (Err(_), lines) => (listening, next) = (false, lines),
                        (Ok(_), None) => {}
                    }
                }
                read = batches.recv(), if next.is_none() && !at_end => match read {
                    Some(FromReader::Batch(lines)) => next = Some(lines),
                    Some(FromReader::Failed(error)) => {
                        at_end = true;
                        self.say(Control::Failed(cannot("read on in", &self.path, error)));
                    }
                    Some(FromReader::End) | None => {
                        at_end = true;
                        self.say(Control::CaughtUp(vec![LANE]));
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is acked or released in whatever order, twice or not: the position is the end of
        /// the last line of the acked prefix, and a line is outstanding until it is ended.
        #[test]
        fn the_position_never_passes_an_unsettled_line(
            lengths in proptest::collection::vec(1_u64..9, 1..30),
            settles in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..60),
        ) {
            let mut handed = Handed::default();
            let (mut end, mut lines) = (0, vec![]);
            for (length, number) in lengths.into_iter().zip(1..) {
                let start = end;
                end += length;
                let line = Line { start, end, number, value: Bytes::new(), truncation: None, terminated: true };
                lines.push((handed.hand_over(&line), Position { offset: end, line: number, line_start: start, terminated: true }));
            }
            let mut acked = vec![false; lines.len()];
            let mut ended = vec![false; lines.len()];
            for (index, ack) in settles {
                let at = index.index(lines.len());
                let how = if ack { Disposition::Ack } else { Disposition::Release { delay: Duration::ZERO } };
                prop_assert_eq!(handed.settle(lines[at].0, how), Settled::Done);
                acked[at] |= ack;
                ended[at] = true;
                let prefix = acked.iter().take_while(|acked| **acked).count();
                prop_assert_eq!(handed.position, prefix.checked_sub(1).map(|last| lines[last].1));
                let outstanding = ended.iter().filter(|ended| !**ended).count();
                prop_assert_eq!(handed.outstanding, outstanding);
            }
            let foreign = DeliveryTag(end + 7);
            prop_assert_eq!(handed.settle(foreign, Disposition::Ack), Settled::Failed);
        }
    }
}
