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
use super::position::{Position, Sidecar, Start};
use handstamp_core::delivery::Settled;
use handstamp_core::offsets::LowWaterMark;
use handstamp_core::source::{DeliveryCount, NamedLane, PortLimits, SettleKind};
use handstamp_core::{
    Capabilities, Command, Control, Delivery, DeliveryTag, Disposition, Fingerprint, Headers, Lane, Notice,
    Origin, Record, RecordFault, Source, SourceError, SourceErrorKind, SourcePort,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| cannot("start the thread for", &path, error))?;
        let input = open(&self.options)?;
        let (lines, batches) = mpsc::channel(1);
        let limits = port.limits;
        spawn("file-reader", &path, move || read_lines(input.open, &input.start, limits, &lines))?;
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
            runtime.block_on(serve(served, changed, batches, deliveries, commands));
        })
    }
}

fn spawn(name: &str, path: &str, body: impl FnOnce() + Send + 'static) -> Result<(), SourceError> {
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    thread.map(drop).map_err(|error| cannot("start the thread for", path, error))
}

fn cannot(what: &str, path: &str, error: io::Error) -> SourceError {
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
    start: Start,
    changed: Option<&'static str>,
    sidecar: Option<Sidecar>,
}

fn open(options: &FileOptions) -> Result<Input, SourceError> {
    let stream = |open: Opener| Input { open, start: Start::default(), changed: None, sidecar: None };
    if options.is_stdin() {
        return Ok(stream(Box::new(|| Ok(Box::new(io::stdin())))));
    }
    let shown = options.path.to_string_lossy();
    let failed = |error| cannot("read the file", &shown, error);
    let metadata = options.path.metadata().map_err(failed)?;
    if metadata.is_dir() {
        let message = format!("{shown} is a folder: name a file of JSON lines, or - for standard input");
        return Err(SourceError::new(SourceErrorKind::Config, message));
    }
    if !metadata.is_file() {
        let path: PathBuf = options.path.clone();
        return Ok(stream(Box::new(move || Ok(Box::new(File::open(path)?)))));
    }
    let canonical = options.path.canonicalize().map_err(failed)?;
    let mut file = File::open(&canonical).map_err(failed)?;
    let sidecar = Sidecar::open(options, &file, &canonical)?;
    let start = sidecar.as_ref().map(Sidecar::start).unwrap_or_default();
    file.seek(SeekFrom::Start(start.offset)).map_err(failed)?;
    let changed = start.changed;
    Ok(Input { open: Box::new(move || Ok(Box::new(file))), start, changed, sidecar })
}

enum FromReader {
    Batch(Vec<Line>),
    End,
    Failed(io::Error),
}

/// The reader thread. It ends at the end of the input, on an error, or when nobody listens; while it
/// waits for the writer of a stream nothing ends it but the process.
fn read_lines(open: Opener, start: &Start, limits: PortLimits, out: &mpsc::Sender<FromReader>) {
    let last = match send_lines(open, start, limits, out) {
        Ok(()) => FromReader::End,
        Err(error) => FromReader::Failed(error),
    };
    let _ = out.blocking_send(last);
}

fn send_lines(
    open: Opener,
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
        // Nothing waits here for the writer of a stream. For a file this only cuts a batch short.
        if !batch.is_empty()
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
        let Ok(at) = self.lines.binary_search_by_key(&tag.0, |line| line.tag) else {
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
        lines.into_iter().map(|line| self.delivery(line)).collect()
    }

    fn delivery(&mut self, line: Line) -> Delivery {
        let tag = self.handed.hand_over(&line);
        let fault = line.truncation.map(|truncation| RecordFault {
            reason: format!("the line has {} bytes, more than max_message_bytes", truncation.full_bytes),
            truncation: Some(truncation),
        });
        let origin = Origin {
            topic: self.path.clone(),
            partition: 0,
            offset: i64::try_from(line.start).unwrap_or(i64::MAX),
            line: Some(line.number),
        };
        let record = Record {
            key: None,
            value: Some(line.value),
            headers: Headers::default(),
            origin,
            timestamp: None,
        };
        Delivery { lane: LANE, tag, record, fault }
    }
}

async fn serve(
    mut served: Served,
    changed: Option<&'static str>,
    mut batches: mpsc::Receiver<FromReader>,
    deliveries: mpsc::Sender<Vec<Delivery>>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    served.say(Control::Assigned(vec![NamedLane { lane: LANE, name: served.path.clone() }]));
    if let Some(why) = changed {
        tracing::warn!(file = %served.path, "{why}: reading it from its beginning");
        served.say(Control::Noticed(Notice::Truncated));
    }
    let mut next: Option<Vec<Line>> = None;
    let (mut held, mut at_end, mut listening) = (false, false, true);
    loop {
        if at_end && next.is_none() && served.handed.outstanding == 0 {
            break;
        }
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                None => return,
                Some(Command::Settle(settles)) => served.settle(&settles),
                Some(Command::Hold(lane)) => held |= lane == LANE,
                Some(Command::Release(lane)) => held &= lane != LANE,
                Some(Command::Close { .. }) => break,
                Some(_) => {}
            },
            () = tokio::time::sleep_until(served.write_due()), if served.dirty => served.write_position(),
            room = deliveries.reserve(), if next.is_some() && !held && listening => match (room, next.take()) {
                (Ok(room), Some(lines)) => room.send(served.deliver(lines)),
                (Err(_), lines) => (listening, next) = (false, lines),
                (Ok(_), None) => {}
            },
            read = batches.recv(), if next.is_none() && !at_end => match read {
                Some(FromReader::Batch(lines)) => next = Some(lines),
                Some(FromReader::Failed(error)) => {
                    at_end = true;
                    served.say(Control::Failed(cannot("read on in", &served.path, error)));
                }
                Some(FromReader::End) | None => {
                    at_end = true;
                    served.say(Control::CaughtUp(vec![LANE]));
                }
            },
        }
    }
    served.write_position();
}
