//! What a proxy does to the bytes of a connection: data, changed while it runs, in one direction or both.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::time::Duration;

/// A direction, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

impl Way {
    /// The word reports use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// How a cut connection ends, on both of its sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// An orderly end of the stream: the receiver reads every byte that was forwarded, then the end.
    Close,
    /// A reset: the receiver reads what had already reached it, then `ECONNRESET`. What it had no room for
    /// is lost, as with a real reset.
    Reset,
}

impl Ending {
    /// The word reports use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Reset => "reset",
        }
    }
}

/// What happens to a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accept {
    /// It is connected to the server.
    #[default]
    Forward,
    /// It is accepted and never answered; nothing of it reaches the server until the rules change.
    HalfOpen,
    /// It is reset at once.
    Reset,
}

/// What happens to bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They are forwarded.
    #[default]
    Pass,
    /// They stay where they are: the sender is held up once the buffers between are full. They go on when
    /// the rules change.
    Stall,
    /// They are read and thrown away.
    Discard,
}

/// Cuts a connection after a number of bytes of one direction, counted from its start. Each connection
/// draws its own number between `from` and `to`, both included; a connection that has passed more is cut at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutAfter {
    /// Fewest bytes.
    pub from: u64,
    /// Most bytes.
    pub to: u64,
    /// How it ends.
    pub ending: Ending,
}

impl CutAfter {
    /// After exactly so many bytes.
    #[must_use]
    pub fn exactly(bytes: u64, ending: Ending) -> Self {
        Self { from: bytes, to: bytes, ending }
    }
}

/// The rules of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WayRules {
    /// Every byte comes so much later; the order is kept and the stream is not slowed down.
    pub latency: Duration,
    /// A random part of this on top, drawn a chunk at a time from the proxy's seed.
    pub jitter: Duration,
    /// Most bytes a second; `None` for no limit.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Whether bytes go on.
    pub flow: Flow,
    /// When the connection is cut.
    pub cut_after: Option<CutAfter>,
}

/// The rules of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// New connections.
    pub accept: Accept,
    /// Bytes from the client to the server.
    pub up: WayRules,
    /// Bytes from the server to the client.
    pub down: WayRules,
}

impl Rules {
    /// No fault.
    pub const NONE: Self = {
        let way = WayRules {
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            bytes_per_s: None,
            flow: Flow::Pass,
            cut_after: None,
        };
        Self { accept: Accept::Forward, up: way, down: way }
    };

    /// Nothing gets through and nobody is told: as when a network is split. Running connections stay, new
    /// ones are accepted and never answered.
    #[must_use]
    pub fn partition() -> Self {
        let stalled = WayRules { flow: Flow::Stall, ..WayRules::default() };
        Self { accept: Accept::HalfOpen, up: stalled, down: stalled }
    }

    /// The rules of one direction.
    #[must_use]
    pub fn way(&self, way: Way) -> &WayRules {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    /// The same with other rules for one direction.
    #[must_use]
    pub fn with(mut self, way: Way, rules: WayRules) -> Self {
        match way {
            Way::Up => self.up = rules,
            Way::Down => self.down = rules,
        }
        self
    }
}

/// What a [`Tap`] decides about a piece of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// So many bytes of it go on, then the connection is cut.
    Cut {
        /// Bytes of this piece that go on first.
        after: usize,
        /// How it ends.
        ending: Ending,
    },
    /// So many bytes of it go on; the rest and everything later of this direction is thrown away.
    Discard {
        /// Bytes of this piece that go on first.
        after: usize,
    },
}

/// Sees every byte of a connection once, in the order of each direction, right before it goes on. It is what
/// finds a position in a protocol; the proxy itself knows none.
pub type Tap = Box<dyn FnMut(Way, &[u8]) -> Verdict + Send>;

/// Makes the tap of a new connection; it is told the connection's number and its port towards the server.
pub type MakeTap = Box<dyn Fn(u64, u16) -> Tap + Send + Sync>;
