//! Real processes for tests: started, watched, waited for within a limit, ended by their own id.
//!
//! Everything is bounded: output is kept up to [`OUTPUT_MAX_BYTES`], waits have a limit, and a process
//! that is dropped is killed and reaped.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most bytes kept of each output of a process; the rest is read and dropped.
pub const OUTPUT_MAX_BYTES: usize = 16 << 20;

/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A signal that tests send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Asks for an orderly end.
    Term,
    /// The same from a terminal.
    Int,
    /// Ends at once; nothing can catch it.
    Kill,
    /// Freezes the process.
    Stop,
    /// Lets a frozen process go on.
    Cont,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::Kill => "KILL",
            Self::Stop => "STOP",
            Self::Cont => "CONT",
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }

    /// Reads a pipe to its end, so that the process never blocks on it.
    fn follow(&self, mut pipe: impl Read + Send + 'static) -> JoinHandle<()> {
        let kept = self.clone();
        thread::spawn(move || {
            let mut chunk = [0; 8192];
            loop {
                match pipe.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(read) => {
                        let mut kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
                        let room = OUTPUT_MAX_BYTES.saturating_sub(kept.len()).min(read);
                        kept.extend_from_slice(&chunk[..room]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        })
    }
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdout: Kept,
    stderr: Kept,
    readers: Vec<JoinHandle<()>>,
}

/// How a process ended, and what it wrote.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Process {
    /// Starts a command with no standard input; its outputs are read by threads.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdout, stderr) = (Kept::default(), Kept::default());
        let mut readers = vec![];
        readers.extend(child.stdout.take().map(|pipe| stdout.follow(pipe)));
        readers.extend(child.stderr.take().map(|pipe| stderr.follow(pipe)));
        Ok(Self { child, stdout, stderr, readers })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Sends a signal to this process and to no other. A process that has ended gets none: until it is
    /// waited for, its id belongs to nobody else.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        if signal == Signal::Kill {
            return self.child.kill();
        }
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal.name(), &id]).stderr(Stdio::null()).status()?;
        let ended = self.child.try_wait()?.is_some();
        if sent.success() || ended {
            return Ok(());
        }
        Err(io::Error::other(format!("kill -s {} {id} ended with {sent}", signal.name())))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// `TimedOut` with the end of what it wrote when it does not end in time; it goes on running.
    pub fn wait(&mut self, within: Duration) -> io::Result<Ended> {
        let until = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                for reader in self.readers.drain(..) {
                    // A grandchild may keep a pipe open; what it writes is not this process's.
                    while !reader.is_finished() && Instant::now() < until {
                        thread::sleep(LOOK_EVERY);
                    }
                }
                return Ok(Ended { status, stdout: self.stdout(), stderr: self.stderr() });
            }
            if Instant::now() >= until {
                return Err(self.late(&format!("the process {} did not end", self.id()), within));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until one of its outputs holds a text.
    ///
    /// # Errors
    /// `TimedOut` when the text does not come in time, `UnexpectedEof` when the process ends without it.
    pub fn wait_for_text(&mut self, text: &str, within: Duration) -> io::Result<()> {
        let until = Instant::now() + within;
        loop {
            let ended = self.child.try_wait()?.is_some() && self.readers.iter().all(JoinHandle::is_finished);
            if self.stderr().contains(text) || self.stdout().contains(text) {
                return Ok(());
            }
            if ended {
                let message = format!("the process ended without {text:?}: {}", tail(&self.stderr()));
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            if Instant::now() >= until {
                return Err(self.late(&format!("{text:?} did not come"), within));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn late(&self, what: &str, within: Duration) -> io::Error {
        let message = format!("{what} within {within:?}; its last lines: {}", tail(&self.stderr()));
        io::Error::new(io::ErrorKind::TimedOut, message)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().rev().take(20).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn a_signal_is_caught_and_the_end_is_seen() {
        let mut process =
            shell("trap 'echo caught; exit 7' TERM; echo ready >&2; while :; do sleep 0.01; done");
        process.wait_for_text("ready", LONG).unwrap();
        process.signal(Signal::Term).unwrap();
        let ended = process.wait(LONG).unwrap();
        assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(7), "caught\n"));
        process.signal(Signal::Term).unwrap();
    }

    #[test]
    fn a_kill_leaves_no_time_for_anything() {
        let mut process = shell("trap 'echo caught' TERM EXIT; echo ready; while :; do sleep 0.01; done");
        process.wait_for_text("ready", LONG).unwrap();
        process.signal(Signal::Kill).unwrap();
        let ended = process.wait(LONG).unwrap();
        assert_eq!((ended.status.code(), ended.stdout.as_str()), (None, "ready\n"));
    }

    #[test]
    fn waits_are_bounded() {
        let mut process = shell("exec sleep 1000");
        let error = process.wait(Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(process.wait_for_text("never", Duration::from_millis(20)).is_err());
        let mut process = shell("echo something");
        let error = process.wait_for_text("never", LONG).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn much_output_blocks_nobody() {
        let mut process = shell("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2");
        let ended = process.wait(LONG).unwrap();
        assert_eq!((ended.stdout.len(), ended.stderr.len()), (1_000_000, 1_000_000));
    }
}
