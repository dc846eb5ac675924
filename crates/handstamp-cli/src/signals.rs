//! SIGTERM and SIGINT: the first asks for a clean stop, the second ends the process at once.
//!
//! They are waited for on a thread of their own: the engine's thread may be inside a database call. For
//! the same reason this thread ends the process when a stop takes much longer than it may: SQLite's
//! statements run on the engine's thread, which cannot look at a clock meanwhile.
//!
//! ```text
//!  listening ─► first signal: stop asked ─► the run ends by itself            exit 0 or 7
//!                       ├─► second signal ──────────────────────────────────► exit 7
//!                       └─► shutdown_timeout and some more ─────────────────► exit 7
//! ```

use crate::exit::{CliError, Exit};
use crate::output::live;
use std::time::Duration;
use tokio::sync::watch;

/// Completes when a stop was asked for; can be cloned and waited for many times.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Waits for the first signal.
    pub(crate) async fn asked(mut self) {
        // A closed channel means that no signal can come any more.
        if self.0.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Signals that come together count as one: `timeout` signals a process and then its group, a terminal all of a
/// pipeline.
const TOGETHER: Duration = Duration::from_millis(500);

/// The engine itself needs up to this long beyond `shutdown_timeout`: eleven seconds to close its source.
const CLOSING: Duration = Duration::from_secs(12);

/// Starts to listen. A stop may take `shutdown_timeout`; `cut_off` runs before the process is ended at once.
///
/// # Errors
/// The thread or its runtime could not be made.
pub(crate) fn listen(
    shutdown_timeout: Duration,
    cut_off: impl FnOnce(&CliError) + Send + 'static,
) -> Result<Stop, CliError> {
    let (asked, receiver) = watch::channel(false);
    let failed = |what: &str| CliError::new(Exit::Unexpected, format!("cannot listen for signals: {what}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(&error.to_string()))?;
    let signals = {
        let _inside = runtime.enter();
        Signals::new().map_err(|error| failed(&error.to_string()))?
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(serve(signals, &asked, shutdown_timeout, cut_off)))
        .map_err(|error| failed(&error.to_string()))?;
    Ok(Stop(receiver))
}

async fn serve(
    mut signals: Signals,
    asked: &watch::Sender<bool>,
    shutdown_timeout: Duration,
    cut_off: impl FnOnce(&CliError),
) {
    signals.next().await;
    tracing::info!("stopping: finishing what runs (a second signal exits at once)");
    asked.send_replace(true);
    let limit = shutdown_timeout.saturating_add(CLOSING);
    let why = tokio::select! {
        () = second(async || signals.next().await) => "a second signal came",
        () = tokio::time::sleep(limit) => "what runs did not end within shutdown_timeout",
    };
    live::clear();
    let text = format!("{why}: what is open is rolled back and its messages come again");
    tracing::warn!("{text}");
    cut_off(&CliError::new(Exit::Unfinished, text));
    std::process::exit(i32::from(Exit::Unfinished.code()));
}

/// Completes at a signal that does not belong to the first.
async fn second(mut next: impl AsyncFnMut()) {
    let together = async {
        loop {
            next().await;
        }
    };
    let _ = tokio::time::timeout(TOGETHER, together).await;
    next().await;
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    #[allow(clippy::unnecessary_wraps, reason = "the same shape as on Unix")]
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn signals_that_come_together_count_as_one() {
        let began = Instant::now();
        let (sender, mut signals) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            for at_ms in [0, 1, 300, 499, 750, 800] {
                sleep(Duration::from_millis(at_ms).saturating_sub(began.elapsed())).await;
                if sender.send(()).is_err() {
                    return;
                }
            }
        });
        second(async || assert!(signals.recv().await.is_some())).await;
        assert_eq!(began.elapsed(), Duration::from_millis(750));
    }
}
