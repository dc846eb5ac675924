//! One connection, from being accepted to its end.
//!
//! ```text
//!  accepted ─┬─ half-open, until the rules change ─┐
//!            ├─ reset                              ▼
//!            └───────────────────────────────► connected ─► both directions
//!   both directions ─┬─ both ended           ─► closed
//!                    ├─ a rule, the tap, cut ─► cut: closed or reset on both sides
//!                    ├─ one side broke it    ─► the other is reset too
//!                    └─ the proxy is stopped ─► closed
//! ```

use super::Shared;
use super::counts::{Counters, Ended};
use super::pump::{Pump, PumpEnd};
use super::rules::{Accept, Ending, Way};
use crate::schedule::Random;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest wait for the server to accept.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the peers of a connection that was closed by a cut to close it too.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The last order to cut everything that runs: a number that grows, and how.
pub(super) type CutOrder = (u64, Ending);

/// Serves a connection until it ends; its counts are in the book before and after.
pub(super) async fn serve(
    client: TcpStream,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut cuts = shared.cuts.subscribe();
    let seen = cuts.borrow().0;
    let server = tokio::select! {
        biased;
        () = told(&mut stopped) => return shared.book.close(&counters, Ended::Stopped),
        ending = ordered(&mut cuts, seen) => Err(Ended::Cut(ending)),
        server = connect(&shared) => server,
    };
    let server = match server {
        Ok(server) => server,
        Err(ended) => {
            if ended != Ended::Cut(Ending::Close) {
                // The client is told at once, by a reset.
                let _ = client.set_zero_linger();
            }
            return shared.book.close(&counters, ended);
        }
    };
    // Small messages must not wait for one another: the proxy adds no delay that was not asked for.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let port = server.local_addr().map_or(0, |address| address.port());
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let ended = tokio::select! {
        biased;
        () = told(&mut stopped) => Ended::Stopped,
        ending = ordered(&mut cuts, seen) => Ended::Cut(ending),
        ended = both(&shared, &counters, port, (&mut from_client, &mut to_server), (&mut from_server, &mut to_client)) => ended,
    };
    // Counted before the peers can see the end, so that whoever saw it finds it counted.
    shared.book.close(&counters, ended);
    match ended {
        Ended::Cut(Ending::Close) => {
            close((from_client, to_client), (from_server, to_server)).await;
        }
        Ended::Cut(Ending::Reset) | Ended::Broken => {
            reset(from_client, to_client);
            reset(from_server, to_server);
        }
        Ended::Closed | Ended::Unreachable | Ended::Stopped => {}
    }
}

/// Waits for the proxy to be stopped.
pub(super) async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|stopped| *stopped).await);
}

/// Waits for an order to cut that is newer than the connection.
async fn ordered(cuts: &mut watch::Receiver<CutOrder>, seen: u64) -> Ending {
    match cuts.wait_for(|order| order.0 > seen).await {
        Ok(order) => order.1,
        Err(_) => Ending::Reset,
    }
}

/// Connects to the server as soon as the rules allow it.
async fn connect(shared: &Shared) -> Result<TcpStream, Ended> {
    let mut rules = shared.rules.subscribe();
    loop {
        let accept = rules.borrow_and_update().accept;
        match accept {
            Accept::Forward => break,
            Accept::Reset => return Err(Ended::Cut(Ending::Reset)),
            Accept::HalfOpen if rules.changed().await.is_err() => return Err(Ended::Stopped),
            Accept::HalfOpen => {}
        }
    }
    let upstream = *shared.upstream.borrow();
    match timeout(CONNECT_MAX, TcpStream::connect(upstream)).await {
        Ok(Ok(server)) => Ok(server),
        Ok(Err(_)) | Err(_) => Err(Ended::Unreachable),
    }
}

type Sides<'a> = (&'a mut OwnedReadHalf, &'a mut OwnedWriteHalf);

/// Runs both directions until one is cut or broken, or both have ended.
async fn both(shared: &Shared, counters: &Arc<Counters>, port: u16, up: Sides<'_>, down: Sides<'_>) -> Ended {
    let number = counters.number();
    let tap = shared.taps.as_ref().map(|make| Arc::new(Mutex::new(make(number, port))));
    let pump = |way: Way| Pump {
        way,
        rules: shared.rules.subscribe(),
        counters: counters.clone(),
        tap: tap.clone(),
        random: Random::new(shared.seed, number * 2 + u64::from(way == Way::Down)),
    };
    let up = pump(Way::Up).run(up.0, up.1);
    let down = pump(Way::Down).run(down.0, down.1);
    tokio::pin!(up, down);
    let first = tokio::select! {
        ended = &mut up => (ended, true),
        ended = &mut down => (ended, false),
    };
    let last = match first {
        (PumpEnd::Closed, true) => down.await,
        (PumpEnd::Closed, false) => up.await,
        (PumpEnd::Unheard, true) => missed(shared, down).await,
        (PumpEnd::Unheard, false) => missed(shared, up).await,
        (ended, _) => ended,
    };
    match last {
        PumpEnd::Closed | PumpEnd::Unheard => Ended::Closed,
        PumpEnd::Cut(ending) => Ended::Cut(ending),
        PumpEnd::Broken => Ended::Broken,
    }
}

/// A peer that is gone unheard is missed after a while, as keep-alive probes would find it.
async fn missed(shared: &Shared, other: impl Future<Output = PumpEnd>) -> PumpEnd {
    match shared.missed_after {
        Some(after) => timeout(after, other).await.unwrap_or(PumpEnd::Broken),
        None => other.await,
    }
}

/// Ends both sides by a reset: no orderly end may come before it.
fn reset(read: OwnedReadHalf, write: OwnedWriteHalf) {
    let _ = read.as_ref().set_zero_linger();
    write.forget();
    drop(read);
}

/// Tells both sides the end and reads what they still send, so that it does not become a reset.
async fn close(client: (OwnedReadHalf, OwnedWriteHalf), server: (OwnedReadHalf, OwnedWriteHalf)) {
    let both = async { tokio::join!(drain(client), drain(server)) };
    let _ = timeout(DRAIN_MAX, both).await;
}

async fn drain((mut read, mut write): (OwnedReadHalf, OwnedWriteHalf)) {
    let _ = write.shutdown().await;
    let mut thrown_away = vec![0; 4096];
    while let Ok(1..) = read.read(&mut thrown_away).await {}
}
