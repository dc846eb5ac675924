//! One answer for a whole flight: what leaves in one write keeps only its last Sync.
//!
//! The driver ends every request with a Sync, and the server answers each Sync with a packet of its own: a
//! wake-up of either side for every statement. Where a flight is ours (opening and claiming, effects,
//! guard and COMMIT), the Syncs inside of one write are left out, and the `ReadyForQuery` that the driver
//! waits for is put behind each statement's end here.
//!
//! Authoritative: the server. Behind an error it skips everything up to the next Sync; each statement it
//! skipped is answered here with 25P02, as the server itself answers inside of an aborted transaction.
//! The Sync behind a COMMIT and the one behind a start record always stay: their answers are not to wait for what
//! follows in the same write, nor what follows be skipped because they failed; and it is its own Sync that makes
//! a start record durable, whatever becomes of the transaction behind it.
//! Outside of our flights nothing is left out or added: a handler's statements pass as they are.
//!
//! ```text
//!  driver ─► B E S B E S B E S ─► B E · B E · B E S ─► server
//!  driver ◄─ 2 C Z 2 C Z 2 C Z ◄─ 2 C · 2 C · 2 C Z ◄─ server
//!                                 2 E ─────────► Z     an error skips up to the Sync:
//!            2 E Z  E Z  E Z ◄─                        25P02 for what was skipped
//! ```

use super::connect::COMMIT;
use super::tls::TlsMode;
use bytes::{Buf, BufMut, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Bytes read from the socket at once.
const READ_BYTES: usize = 16 * 1024;
/// Enough of an error to hold its severity.
const ERROR_HEAD_BYTES: usize = 128;
/// The code that asks a server for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
/// How the text of the start record's statement begins, whose transaction is its own: the Sync behind it stays.
pub(crate) const ITS_OWN: &str = "/* a transaction of its own */ ";
/// Says to the driver that a statement is answered whole.
const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'T'];
/// The fields of the answer to a statement that was skipped.
const ABORTED: &[u8] = b"SERROR\0VERROR\0C25P02\0Mcurrent transaction is aborted, commands ignored until end of transaction block\0\0";

/// Whether Syncs inside of a write are left out now; off unless a flight of ours is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coalesce(Arc<AtomicBool>);

impl Coalesce {
    /// Leaves Syncs out until the guard is dropped.
    pub(crate) fn start(&self) -> Coalescing<'_> {
        self.0.store(true, Ordering::Relaxed);
        Coalescing(self)
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A flight of ours.
pub(crate) struct Coalescing<'a>(&'a Coalesce);

impl Drop for Coalescing<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

/// Makes a connection's stream. The driver is told to begin with TLS directly (`direct`), which hands the
/// bare socket to us; asking the server for TLS is then our part. Where the driver cannot do that (Unix
/// sockets, addresses without a name) it asks by itself and its plain streams stay without a wrapper.
#[derive(Clone)]
pub(crate) struct Wire {
    pub(crate) tls: MakeRustlsConnect,
    pub(crate) mode: TlsMode,
    pub(crate) direct: bool,
    pub(crate) coalesce: Coalesce,
}

type Encrypted = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
type Encrypt = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;

impl MakeTlsConnect<Socket> for Wire {
    type Stream = Coalesced<Link>;
    type TlsConnect = WireConnect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<WireConnect> {
        let encrypt =
            MakeTlsConnect::<Socket>::make_tls_connect(&mut self.tls, domain).map_err(io::Error::other)?;
        Ok(WireConnect { encrypt, mode: self.mode, direct: self.direct, coalesce: self.coalesce.clone() })
    }
}

/// One connection being made.
pub(crate) struct WireConnect {
    encrypt: Encrypt,
    mode: TlsMode,
    direct: bool,
    coalesce: Coalesce,
}

impl TlsConnect<Socket> for WireConnect {
    type Stream = Coalesced<Link>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, mut socket: Socket) -> Self::Future {
        Box::pin(async move {
            let encrypted = !self.direct || ask_for_tls(&mut socket, self.mode).await?;
            let link = if encrypted {
                Link::Encrypted(Box::new(self.encrypt.connect(socket).await?))
            } else {
                Link::Plain(socket)
            };
            Ok(Coalesced::new(link, self.coalesce))
        })
    }
}

/// True when the server is about to speak TLS.
async fn ask_for_tls(socket: &mut Socket, mode: TlsMode) -> io::Result<bool> {
    if mode == TlsMode::Disable {
        return Ok(false);
    }
    socket.write_all(&SSL_REQUEST).await?;
    let mut answer = [0];
    socket.read_exact(&mut answer).await?;
    match (answer[0], mode) {
        (b'S', _) => Ok(true),
        (_, TlsMode::Prefer) => Ok(false),
        (_, mode) => {
            let said = format!("the server does not speak TLS, and sslmode={} asks for it", mode.as_str());
            Err(io::Error::new(io::ErrorKind::Unsupported, said))
        }
    }
}

/// What the bytes travel over.
pub(crate) enum Link {
    Plain(Socket),
    Encrypted(Box<Encrypted>),
}

/// Runs one expression on either kind of link.
macro_rules! on_link {
    ($self:ident, $link:ident => $run:expr) => {
        match $self.get_mut() {
            Link::Plain($link) => $run,
            Link::Encrypted($link) => $run,
        }
    };
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_link!(self, link => Pin::new(link).poll_read(cx, buf))
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_link!(self, link => Pin::new(link).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_link!(self, link => Pin::new(link).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_link!(self, link => Pin::new(link).poll_shutdown(cx))
    }
}

impl TlsStream for Link {
    fn channel_binding(&self) -> ChannelBinding {
        match self {
            Self::Plain(_) => ChannelBinding::none(),
            Self::Encrypted(link) => link.channel_binding(),
        }
    }
}

/// A stream that leaves out what [`Outgoing`] decides and adds what [`Incoming`] must.
pub(crate) struct Coalesced<S> {
    inner: S,
    coalesce: Coalesce,
    outgoing: Outgoing,
    incoming: Incoming,
    read: Box<[u8]>,
}

impl<S> Coalesced<S> {
    pub(crate) fn new(inner: S, coalesce: Coalesce) -> Self {
        Self {
            inner,
            coalesce,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            read: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }
}

impl<S: AsyncWrite + Unpin> Coalesced<S> {
    /// Hands everything that waits to the socket.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.ready.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.outgoing.ready))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.ready.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Coalesced<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        this.outgoing.take(buf, this.coalesce.is_on(), &mut this.incoming.awaited);
        if let Poll::Ready(drained) = this.poll_drain(cx) {
            drained?;
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Coalesced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.incoming.ready.is_empty() {
            let mut space = ReadBuf::new(&mut this.read);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut space))?;
            if space.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.incoming.take(space.filled());
        }
        let taken = this.incoming.ready.len().min(buf.remaining());
        buf.put_slice(&this.incoming.ready[..taken]);
        this.incoming.ready.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl<S: TlsStream + Unpin> TlsStream for Coalesced<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.inner.channel_binding()
    }
}

/// What the driver waits for, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The end of the log-in, or of a simple query: the server says it.
    Query,
    /// A Sync that was sent: the server says it.
    Sync,
    /// A Sync that was left out: said here, when its statement ends.
    Held,
}

/// The driver's messages on their way to the server.
#[derive(Default)]
struct Outgoing {
    started: bool,
    /// A message whose end the driver has not written yet.
    partial: BytesMut,
    /// Kind and end of each message of one write.
    frames: Vec<(u8, usize)>,
    /// The name under which COMMIT was prepared.
    commit: Option<Vec<u8>>,
    /// The name under which the statement was prepared whose transaction is its own.
    own: Option<Vec<u8>>,
    /// What is bound and not yet executed ends a transaction.
    ends: bool,
    ready: BytesMut,
}

impl Outgoing {
    fn take(&mut self, written: &[u8], coalesce: bool, awaited: &mut VecDeque<Awaited>) {
        self.partial.extend_from_slice(written);
        self.split(awaited);
        let end = self.frames.last().map_or(0, |&(_, end)| end);
        let mut from = 0;
        for at in 0..self.frames.len() {
            let (kind, to) = self.frames[at];
            self.watch_for_ends(kind, from, to);
            match kind {
                b'S' if coalesce && !self.ends && self.may_be_left_out(at) => {
                    awaited.push_back(Awaited::Held)
                }
                _ => {
                    match kind {
                        b'S' => awaited.push_back(Awaited::Sync),
                        b'Q' | b'F' => awaited.push_back(Awaited::Query),
                        _ => {}
                    }
                    self.ready.extend_from_slice(&self.partial[from..to]);
                }
            }
            from = to;
        }
        self.partial.advance(end);
        self.frames.clear();
    }

    /// Finds the messages that are there whole. The first of a connection has no kind.
    fn split(&mut self, awaited: &mut VecDeque<Awaited>) {
        let mut at = 0;
        loop {
            let head = usize::from(self.started);
            let Some(length) = self.partial.get(at + head..at + head + 4) else { return };
            let end = at + head + length_of(length);
            if end > self.partial.len() {
                return;
            }
            let kind = if self.started { self.partial[at] } else { 0 };
            if !self.started {
                self.started = true;
                awaited.push_back(Awaited::Query);
            }
            self.frames.push((kind, end));
            at = end;
        }
    }

    /// Knows what ends a transaction by the name that its Parse gives it, and by the Bind that takes it up.
    fn watch_for_ends(&mut self, kind: u8, from: usize, to: usize) {
        let mut texts = self.partial[from..to].get(5..).unwrap_or_default().split(|&byte| byte == 0);
        match (kind, texts.next(), texts.next()) {
            // The first is ours, prepared at connect; a handler's own gets another name.
            (b'P', Some(name), Some(sql)) if sql == COMMIT.as_bytes() => {
                self.commit.get_or_insert_with(|| name.to_vec());
            }
            (b'P', Some(name), Some(sql)) if sql.starts_with(ITS_OWN.as_bytes()) => {
                self.own.get_or_insert_with(|| name.to_vec());
            }
            (b'B', Some(_portal), Some(name)) => {
                self.ends = [&self.commit, &self.own].into_iter().flatten().any(|end| end == name);
            }
            _ => {}
        }
    }

    /// A Sync behind an Execute, with another Sync later in this write and nothing but the messages of
    /// prepared statements between: the server never waits for what it has not been sent.
    fn may_be_left_out(&self, at: usize) -> bool {
        let behind_execute = at.checked_sub(1).is_some_and(|before| self.frames[before].0 == b'E');
        let mut rest = self.frames[at + 1..].iter().map(|&(kind, _)| kind);
        let next = rest.find(|kind| !matches!(kind, b'P' | b'B' | b'D' | b'E' | b'C' | b'H'));
        behind_execute && next == Some(b'S')
    }
}

fn length_of(four: &[u8]) -> usize {
    four.iter().fold(0, |length, &byte| length << 8 | usize::from(byte))
}

/// The server's messages on their way to the driver.
#[derive(Default)]
struct Incoming {
    awaited: VecDeque<Awaited>,
    /// Kind and length of the message that is being read, as far as they are there.
    head: Vec<u8>,
    /// Its bytes still to come.
    left: usize,
    /// The start of the error that is being read.
    error: Vec<u8>,
    /// An error came where a Sync was left out: the server skips up to the next Sync.
    skipping: bool,
    ready: BytesMut,
}

impl Incoming {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.head.len() < 5 {
                let (head, rest) = bytes.split_at(bytes.len().min(5 - self.head.len()));
                self.head.extend_from_slice(head);
                bytes = rest;
                if self.head.len() == 5 {
                    self.left = length_of(&self.head[1..]).saturating_sub(4);
                    self.begin_message();
                }
            } else {
                let (body, rest) = bytes.split_at(bytes.len().min(self.left));
                self.ready.extend_from_slice(body);
                if self.head[0] == b'E' {
                    let room = ERROR_HEAD_BYTES.saturating_sub(self.error.len()).min(body.len());
                    self.error.extend_from_slice(&body[..room]);
                }
                self.left -= body.len();
                bytes = rest;
            }
            if self.head.len() == 5 && self.left == 0 {
                self.end_message();
                self.head.clear();
                self.error.clear();
            }
        }
    }

    fn begin_message(&mut self) {
        if self.head[0] == b'Z' {
            let answered = self.awaited.pop_front();
            if self.skipping && answered == Some(Awaited::Sync) {
                // The statement in front of this Sync was skipped as well.
                self.say_aborted();
            }
            self.skipping = false;
        }
        self.ready.extend_from_slice(&self.head);
    }

    fn end_message(&mut self) {
        let front = self.awaited.front().copied();
        match (self.head[0], front) {
            // CommandComplete, EmptyQueryResponse, PortalSuspended end a statement.
            (b'C' | b'I' | b's', Some(Awaited::Held)) => self.say_ready(),
            // An error that ends the connection is followed by nothing.
            (b'E', Some(Awaited::Held)) if !is_fatal(&self.error) => {
                self.say_ready();
                self.skipping = true;
                while self.awaited.front() == Some(&Awaited::Held) {
                    self.say_aborted();
                    self.say_ready();
                }
            }
            // While data is copied in, the server ignores the Sync that came with the statement.
            (b'G' | b'W', Some(Awaited::Sync)) => {
                self.awaited.pop_front();
            }
            _ => {}
        }
    }

    fn say_ready(&mut self) {
        self.awaited.pop_front();
        self.ready.extend_from_slice(&READY);
    }

    fn say_aborted(&mut self) {
        self.ready.put_u8(b'E');
        self.ready.put_u32(u32::try_from(ABORTED.len() + 4).unwrap_or(u32::MAX));
        self.ready.extend_from_slice(ABORTED);
    }
}

/// Whether an error's fields say that the connection ends: `V` is the severity in no language.
fn is_fatal(fields: &[u8]) -> bool {
    let severity = fields.split(|&byte| byte == 0).find_map(|field| field.strip_prefix(b"V"));
    matches!(severity, Some(b"FATAL" | b"PANIC"))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
