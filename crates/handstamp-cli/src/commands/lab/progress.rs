//! The lab's progress on standard error: a bar that is redrawn on a terminal, otherwise a line now and then.

use handstamp_lab::kill::Progress;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WIDTH: u64 = 30;
/// How often a line is printed where there is no terminal.
const SAY_EVERY: Duration = Duration::from_secs(15);
const CLEAR: &str = "\r\x1b[2K";

/// The line; taken away when it is dropped.
pub(crate) struct Line {
    /// What is counted.
    what: &'static str,
    terminal: bool,
    said: Mutex<Instant>,
}

impl Line {
    /// Shows nothing yet.
    pub(crate) fn start(what: &'static str) -> Self {
        Self { what, terminal: io::stderr().is_terminal(), said: Mutex::new(Instant::now()) }
    }

    /// Shows how far it is.
    pub(crate) fn show(&self, progress: &Progress) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let text = words(progress, self.what);
        let mut err = io::stderr().lock();
        // Standard error that is gone cannot be told to anyone.
        if self.terminal {
            let _ = write!(err, "{CLEAR}{text}").and_then(|()| err.flush());
        } else if said.elapsed() >= SAY_EVERY || progress.done == progress.all {
            *said = Instant::now();
            let _ = writeln!(err, "{text}");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(io::stderr().lock(), "{CLEAR}");
        }
    }
}

/// Runs something that has many steps, and shows how many are done.
pub(crate) fn steps<T>(what: &'static str, run: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> T) -> T {
    let (line, began) = (Line::start(what), Instant::now());
    let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
    run(&|done, all| line.show(&Progress { done: count(done), all: count(all), took: began.elapsed() }))
}

fn words(progress: &Progress, what: &str) -> String {
    let all = progress.all.max(1);
    let filled = (progress.done * WIDTH / all).min(WIDTH);
    let bar: String = (0..WIDTH).map(|at| if at < filled { '#' } else { '.' }).collect();
    let percent = progress.done * 100 / all;
    let rest = progress.rest().map_or_else(String::new, |rest| {
        format!(", about {} left", humantime::format_duration(Duration::from_secs(rest.as_secs())))
    });
    format!("[{bar}] {percent:3} %  {} of {} {what}{rest}", progress.done, progress.all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_and_the_rest_is_told() {
        let at = |done| words(&Progress { done, all: 40, took: Duration::from_secs(30) }, "kills");
        assert!(at(0).contains("  0 %") && !at(0).contains("left"), "{}", at(0));
        assert!(at(10).contains(" 25 %") && at(10).contains("about 1m 30s left"), "{}", at(10));
        assert!(at(40).contains("100 %") && at(40).contains(&"#".repeat(30)), "{}", at(40));
    }
}
