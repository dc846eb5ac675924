//! `/metrics`, `/healthz` and `/readyz` beside a run that is watched.
//!
//! Authoritative: the engine's own counts and signs of life, which it writes anyway; here they are only read. Nothing
//! of it can hold the engine up: the listener has a thread and a runtime of its own, answers so many connections at a
//! time and each within seconds, and what only the store knows is asked on another thread by another connection.
//!
//! ```text
//!  engine's thread ──writes──► counts, vitals ◄──reads── listener's thread ◄── scraper, prober
//!                                   store ◄──now and then── looking thread ──► backlog ──┘
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `listener` | connections: how many, how long |
//! | `answer` | a path → status, type and body |
//! | `view` | what is known: metrics, health, readiness |
//! | `exposition` | metrics → Prometheus' text format |
//! | `backlog` | what only the store knows, asked now and then |

mod answer;
mod backlog;
mod exposition;
mod listener;
mod view;

use crate::config::Config;
use crate::exit::{CliError, Exit};
use crate::findings::Findings;
use crate::signals::Stop;
use handstamp_core::LiveCounts;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use view::View;

/// How long the end of a run waits for a question to the store that is under way.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Both threads; they end with it.
pub(crate) struct Watching {
    listener: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    looking: Option<(oneshot::Sender<()>, Receiver<()>)>,
}

/// Starts to answer, where that is asked for; from here on, while the store may still be away.
///
/// # Errors
/// The address cannot be listened on.
pub(crate) fn start(
    config: &Arc<Config>,
    asked: Option<SocketAddr>,
    live: &Arc<LiveCounts>,
    stop: Stop,
) -> Result<Option<Watching>, CliError> {
    let Some(address) = asked.or(config.watch) else { return Ok(None) };
    let failed = |error: std::io::Error| {
        let text = format!("cannot listen on {address} for probes and scrapers: {error}");
        CliError::new(Exit::Usage, text)
            .hint("choose another port for [watch] listen, or 0 for any that is free")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(%address, "answering http://{address}/metrics, /healthz and /readyz");
    let view = Arc::new(View::new(config, Arc::clone(live)));
    let no_thread =
        |error: std::io::Error| CliError::new(Exit::Unexpected, format!("no thread to watch: {error}"));
    let runtime = super::commands::runtime()?;
    let (end, ended) = oneshot::channel();
    let watched = Arc::clone(&view);
    let thread = std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || runtime.block_on(listener::serve(listener, watched, stop, ended)))
        .map_err(no_thread)?;
    let mut watching = Watching { listener: Some((end, thread)), looking: None };
    let (end, ended) = oneshot::channel();
    let (done, is_done) = channel();
    let config = Arc::clone(config);
    std::thread::Builder::new()
        .name("backlog".to_owned())
        .spawn(move || {
            backlog::look(&config, &view, ended);
            // Nobody waits for it but a run at its end.
            let _ = done.send(());
        })
        .map_err(no_thread)?;
    watching.looking = Some((end, is_done));
    Ok(Some(watching))
}

impl Drop for Watching {
    fn drop(&mut self) {
        let looking = self.looking.take().map(|(end, done)| {
            drop(end);
            done
        });
        if let Some((end, thread)) = self.listener.take() {
            drop(end);
            // It only waits for what comes; a panic of it was said.
            let _ = thread.join();
        }
        if let Some(done) = looking
            && done.recv_timeout(LAST_LOOK) == Err(RecvTimeoutError::Timeout)
        {
            tracing::debug!("the store still counts its backlog; not waiting for it");
        }
    }
}

/// What `check` says of it.
pub(crate) fn check(config: &Config, findings: &mut Findings) {
    let Some(address) = config.watch else { return };
    if address.ip().is_loopback() {
        findings.ok(format!("watch: {address} answers this machine alone"));
    } else {
        findings.warn(
            format!(
                "watch.listen: {address} is open to other machines, and whoever reaches it reads the names of \
                 consumer, topics and files, and counts"
            ),
            "listen on 127.0.0.1, or let only your scraper and prober reach it",
        );
    }
}
