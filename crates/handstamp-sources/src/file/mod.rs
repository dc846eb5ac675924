//! A file of JSON lines, standard input or a FIFO as a source; a file as a sink.
//!
//! Authoritative: the file for what there is to read, the inbox for what is applied. The position
//! beside it only saves work: losing it costs duplicates, never messages.
//!
//! ```text
//!  reader thread: bytes ─► lines ─► batches ──► serving thread ──► deliveries
//!                                     (bounded)      │  ▲
//!                                                    │  └── Settle ─► low-water mark ─► position sidecar
//!                                                    └─ at the end of the file: CaughtUp, last settle, end
//! ```
//!
//! * [`config`](FileOptions): which file, whose position, where it is kept;
//! * `look`: what a start would refuse, found without starting;
//! * [`peek`](Peeked): the next lines, looked at without taking them;
//! * `lines`: bytes to lines, bounded;
//! * `position`: the sidecar and its lock;
//! * [`settled`](SettledLine): the last settled lines, for asking a store whether it knows them;
//! * `source`: the thread that serves the port;
//! * `sink`: appending values as lines.

mod config;
mod lines;
mod look;
mod peek;
mod position;
mod settled;
mod sink;
mod source;

pub use config::FileOptions;
pub use peek::Peeked;
pub use settled::SettledLine;
pub use sink::FileSink;
pub use source::FileSource;
