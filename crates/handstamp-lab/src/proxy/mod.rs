//! A TCP proxy on loopback that does to connections what networks do: late, slow, cut, reset, half-open,
//! one direction only. It knows no protocol; a [`Tap`] may.
//!
//! Owns: a listening socket, its connections, their counts. Authoritative: the rules as they are now
//! ([`Proxy::set`]), for running connections too; the counts for what went through. Memory is bounded (256 KiB
//! a direction of a connection, [`CONNECTIONS_MAX`] connections), and everything ends with the proxy.
//!
//! | file | owns |
//! |---|---|
//! | `rules` | what may be asked for |
//! | `connection` | one connection and its end |
//! | `pump` | one direction of it |
//! | `counts` | bytes and cuts |
//! | `script` | rules over time |

mod connection;
mod counts;
mod pump;
mod rules;
mod script;

pub use counts::{ConnectionCounts, Ended, Totals};
pub use rules::{Accept, CutAfter, Ending, Flow, MakeTap, Rules, Tap, Verdict, Way, WayRules};
pub use script::{Script, Step};

use connection::CutOrder;
use counts::Book;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Most connections at a time; more are not accepted until one ends.
pub const CONNECTIONS_MAX: usize = 1024;
/// How long a stop waits for the connections.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A wait after the operating system could not accept (as when files have run out).
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// Where a proxy listens and where it leads.
pub struct ProxyOptions {
    /// A loopback address; port 0 for any free port.
    pub listen: SocketAddr,
    /// The server.
    pub upstream: SocketAddr,
    /// The faults' seed.
    pub seed: u64,
    /// When a peer that closed while its direction was thrown away is missed by the other, which is then reset:
    /// what keep-alive probes do on a real network. `None`: never.
    pub missed_after: Option<Duration>,
    /// Makes each connection's tap.
    pub taps: Option<MakeTap>,
}

impl ProxyOptions {
    /// A proxy before a server, on any free port of 127.0.0.1.
    #[must_use]
    pub fn before(upstream: SocketAddr) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            upstream,
            seed: 0,
            missed_after: None,
            taps: None,
        }
    }
}

impl fmt::Debug for ProxyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyOptions")
            .field("listen", &self.listen)
            .field("upstream", &self.upstream)
            .field("seed", &self.seed)
            .field("missed_after", &self.missed_after)
            .field("taps", &self.taps.is_some())
            .finish()
    }
}

/// What the proxy and its connections share.
struct Shared {
    upstream: watch::Sender<SocketAddr>,
    seed: u64,
    missed_after: Option<Duration>,
    taps: Option<MakeTap>,
    rules: watch::Sender<Rules>,
    cuts: watch::Sender<CutOrder>,
    book: Book,
}

/// A running proxy. Dropping it ends its connections; [`Proxy::stop`] waits for their end.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listens and forwards without a fault until told otherwise.
    ///
    /// # Errors
    /// `InvalidInput` for an address that is not loopback; whatever keeps it from listening.
    pub async fn start(options: ProxyOptions) -> io::Result<Self> {
        if !options.listen.ip().is_loopback() {
            let message = format!("the proxy listens on loopback only, not on {}", options.listen.ip());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let listener = TcpListener::bind(options.listen).await.map_err(|error| {
            io::Error::new(error.kind(), format!("listening on {}: {error}", options.listen))
        })?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream: watch::Sender::new(options.upstream),
            seed: options.seed,
            missed_after: options.missed_after,
            taps: options.taps,
            rules: watch::Sender::new(Rules::NONE),
            cuts: watch::Sender::new((0, Ending::Reset)),
            book: Book::default(),
        });
        let stop = watch::Sender::new(false);
        let task = tokio::spawn(accept(listener, shared.clone(), stop.subscribe()));
        Ok(Self { address, shared, stop, task: Some(task) })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the rules, for running connections too.
    pub fn set(&self, rules: Rules) {
        self.shared.rules.send_replace(rules);
    }

    /// The rules as they are.
    #[must_use]
    pub fn rules(&self) -> Rules {
        *self.shared.rules.borrow()
    }

    /// Leads new connections to another server.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.shared.upstream.send_replace(upstream);
    }

    /// Cuts every running connection now; answers how many ran.
    pub fn cut(&self, ending: Ending) -> usize {
        let running = self.shared.book.running();
        self.shared.cuts.send_modify(|order| *order = (order.0 + 1, ending));
        running
    }

    /// Connections that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.shared.book.running()
    }

    /// What went through so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.book.totals()
    }

    /// The last connections, ended ones first, each in the order it ended or was accepted.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionCounts> {
        self.shared.book.connections()
    }

    /// Plays a script from its beginning; the last step's rules stay.
    pub async fn play(&self, script: &Script) {
        for step in script.steps() {
            tokio::time::sleep(step.after).await;
            self.set(step.rules);
            if let Some(ending) = step.cut {
                self.cut(ending);
            }
        }
    }

    /// Ends every connection and stops listening; answers what went through in all.
    pub async fn stop(mut self) -> Totals {
        self.stop.send_replace(true);
        if let Some(mut task) = self.task.take()
            && tokio::time::timeout(STOP_MAX, &mut task).await.is_err()
        {
            task.abort();
        }
        self.shared.book.totals()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// Accepts until told to stop, then waits until every connection has ended.
async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let stop = stopped.clone();
    loop {
        while connections.try_join_next().is_some() {}
        let full = connections.len() >= CONNECTIONS_MAX;
        let accepted = tokio::select! {
            biased;
            () = connection::told(&mut stopped) => break,
            _ = connections.join_next(), if full => continue,
            accepted = listener.accept(), if !full => accepted,
        };
        match accepted {
            Ok((client, _)) => {
                let counters = shared.book.open();
                connections.spawn(connection::serve(client, shared.clone(), counters, stop.clone()));
            }
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}
