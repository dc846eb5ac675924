//! The live line: rate, applied, duplicates, dead letters, lag; redrawn in place on a terminal.

use crate::logging;
use handstamp_core::{BreakerState, LiveCounts};
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(500);
/// How often progress is said where there is no terminal.
const SAY_EVERY: Duration = Duration::from_secs(10);
const CLEAR: &str = "\r\x1b[2K";
/// A line that is wider than the terminal is cut there: a second row would not be cleared.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// What stands in the terminal's last line now.
static SHOWN: Mutex<Option<String>> = Mutex::new(None);

/// Writes whole lines to standard error, above the live line if there is one.
pub(crate) fn write_above(text: &str) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut err = io::stderr().lock();
    // Standard error that is gone cannot be told to anyone.
    let _ = match shown.as_deref() {
        Some(line) => write!(err, "{CLEAR}{text}{NO_WRAP}{line}{WRAP}"),
        None => write!(err, "{text}"),
    };
    let _ = err.flush();
}

/// Takes the live line away.
pub(crate) fn clear() {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if shown.take().is_some() {
        let mut err = io::stderr().lock();
        let _ = write!(err, "{CLEAR}");
        let _ = err.flush();
    }
}

/// A thread that redraws the line until it is dropped.
pub(crate) struct LiveLine {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LiveLine {
    /// Starts the line; does nothing where standard error is no terminal.
    pub(crate) fn start(counts: Arc<LiveCounts>) -> Self {
        if !io::stderr().is_terminal() || logging::is_json() {
            return Self { end: None, thread: None };
        }
        let (end, ended) = channel();
        // Without a thread there is no line; the run does not depend on it.
        let thread = std::thread::Builder::new().name("live line".to_owned()).spawn(move || {
            let mut last = (Instant::now(), 0);
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let counts_now = counts.snapshot();
                let now = Instant::now();
                let seconds = now.duration_since(last.0).as_secs_f64();
                let rate = per_second(counts_now.ended().saturating_sub(last.1), seconds);
                last = (now, counts_now.ended());
                draw(&line(&counts_now, rate, counts.lag(), counts.breaker()));
            }
        });
        Self { end: Some(end), thread: thread.ok() }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A line that could not be drawn is no reason to fail.
            let _ = thread.join();
        }
        clear();
    }
}

fn draw(line: &str) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut err = io::stderr().lock();
    let _ = write!(err, "{CLEAR}{NO_WRAP}{line}{WRAP}");
    let _ = err.flush();
    *shown = Some(line.to_owned());
}

/// How far a command is: a line that changes on a terminal, otherwise one in the log now and then.
pub(crate) struct Progress {
    on_terminal: bool,
    said: Instant,
}

impl Progress {
    /// Shows nothing yet.
    pub(crate) fn start() -> Self {
        Self { on_terminal: io::stderr().is_terminal(), said: Instant::now() }
    }

    /// Shows how far it is.
    pub(crate) fn show(&mut self, words: &str) {
        if self.on_terminal {
            draw(words);
        } else if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            tracing::info!("{words}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        clear();
    }
}

/// What is stale, what is parked, and what came of what was, stand there once there is something; the breaker while it is not closed.
fn line(counts: &handstamp_core::Counts, rate: f64, lag: u64, breaker: BreakerState) -> String {
    let mut parked = String::new();
    let paused = match breaker {
        BreakerState::Closed => "",
        BreakerState::Open | BreakerState::Probing => "  PAUSED: what the handler needs seems to be down",
    };
    let stale = counts.stale + counts.resumed_stale;
    for (word, count) in [("stale", stale), ("parked", counts.parked), ("resumed", counts.resumed)] {
        if count > 0 {
            parked.push_str(&format!("  {word} {count}"));
        }
    }
    format!(
        "{rate:.0}/s  applied {}  duplicates {}  dead letters {}{parked}  lag {lag}{paused}",
        counts.applied + counts.resumed_applied,
        counts.duplicate,
        counts.dead_lettered + counts.id_reused + counts.resumed_dead,
    )
}

/// A rate; 0 where no time passed.
pub(crate) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds <= 0.0 {
        return 0.0;
    }
    // A rate is for reading: above 2^53 its last digits do not matter.
    #[allow(clippy::cast_precision_loss, reason = "a displayed rate")]
    let count = count as f64;
    count / seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::Counts;

    #[test]
    fn the_line_names_what_matters() {
        let counts = Counts { applied: 8, duplicate: 2, dead_lettered: 1, id_reused: 1, ..Counts::default() };
        assert_eq!(
            line(&counts, 1234.4, 7, BreakerState::Closed),
            "1234/s  applied 8  duplicates 2  dead letters 2  lag 7"
        );
    }

    #[test]
    fn what_is_parked_is_told_once_there_is_something() {
        let counts = Counts {
            applied: 8,
            parked: 3,
            resumed: 2,
            resumed_applied: 1,
            resumed_dead: 1,
            ..Counts::default()
        };
        assert_eq!(
            line(&counts, 0.0, 7, BreakerState::Closed),
            "0/s  applied 9  duplicates 0  dead letters 1  parked 3  resumed 2  lag 7"
        );
    }

    #[test]
    fn a_breaker_that_is_not_closed_is_told() {
        for state in BreakerState::ALL {
            let told = line(&Counts::default(), 0.0, 7, state)
                .ends_with("lag 7  PAUSED: what the handler needs seems to be down");
            assert_eq!(told, state != BreakerState::Closed, "{state:?}");
        }
    }

    #[test]
    fn what_is_stale_is_told_once_there_is_something() {
        let counts = Counts { applied: 8, stale: 2, resumed: 1, resumed_stale: 1, ..Counts::default() };
        assert_eq!(
            line(&counts, 0.0, 7, BreakerState::Closed),
            "0/s  applied 8  duplicates 0  dead letters 0  stale 3  resumed 1  lag 7"
        );
    }

    #[test]
    fn no_time_is_no_rate() {
        assert!(per_second(5, 0.0) < f64::EPSILON);
        assert!((per_second(5, 2.0) - 2.5).abs() < f64::EPSILON);
    }
}
