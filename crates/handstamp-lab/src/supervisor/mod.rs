//! Child processes: started with a line of setup, listened to line by line, ended by pid.
//!
//! ```text
//!  start ─► running ─┬─► kill (SIGKILL) ─► waited for
//!                    ├─► ended by itself
//!                    └─► dropped: killed and waited for, also when the lab panics
//! ```
//!
//! A child leads a process group of its own, which ends with it. How children end with a lab that is killed
//! itself is said in `tether`; a child of ours also ends when its standard input closes.

mod tether;

pub(crate) use tether::Leader;
pub use tether::{Ties, guard, tether, tie};

use crate::error::{LabError, LabErrorKind, Result};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines of a child's standard error that are kept for the report of a failure.
const TAIL_LINES: usize = 40;
/// Longest line kept, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How long the last words of a killed child are waited for.
const DRAIN: Duration = Duration::from_secs(2);

/// A running child process.
#[derive(Debug)]
pub struct Process {
    leader: Leader,
    /// Kept open: its end tells the child that the lab is gone.
    input: Option<ChildStdin>,
    tail: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts a program, hands it one line on its standard input and every line of its standard output and
    /// its standard error to `on_line`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        command: &mut Command,
        setup: Option<&str>,
        on_line: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        let failed = |what: &str, error: std::io::Error| {
            LabError::new(LabErrorKind::Other, format!("a subject cannot be started: {what}")).because(error)
        };
        let started = Leader::start(command, |command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        });
        let mut leader = started.map_err(|error| failed(&command.get_program().to_string_lossy(), error))?;
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let input = leader.child().stdin.take();
        let mut process = Self { input, leader, tail, readers: Vec::new() };
        let on_line = Arc::new(on_line);
        if let Some(out) = process.leader.child().stdout.take() {
            let on_line = Arc::clone(&on_line);
            process.read("subject output", out, move |line| on_line(line))?;
        }
        if let Some(errors) = process.leader.child().stderr.take() {
            let tail = Arc::clone(&process.tail);
            process.read("subject log", errors, move |line| {
                on_line(line);
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line.to_owned());
            })?;
        }
        if let Some(setup) = setup {
            process.tell(setup)?;
        }
        Ok(process)
    }

    /// Hands it one more line on its standard input.
    ///
    /// # Errors
    /// It takes none.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        writeln!(input, "{line}").and_then(|()| input.flush()).map_err(|error| {
            LabError::new(LabErrorKind::Other, "a subject takes nothing on its standard input").because(error)
        })
    }

    fn read(
        &mut self,
        name: &str,
        from: impl Read + Send + 'static,
        on_line: impl Fn(&str) + Send + 'static,
    ) -> Result<()> {
        let reader = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            loop {
                line.clear();
                match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => on_line(String::from_utf8_lossy(&line).trim_end()),
                }
            }
        });
        self.readers.push(
            reader.map_err(|error| LabError::new(LabErrorKind::Other, "no thread left").because(error))?,
        );
        Ok(())
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.leader.id()
    }

    /// Its exit status once it has ended.
    ///
    /// # Errors
    /// The operating system does not say, or the program could not be executed.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let ended = self.leader.ended().map_err(|error| {
            LabError::new(LabErrorKind::Other, "a subject's state is unknown").because(error)
        })?;
        let Some(status) = ended else { return Ok(None) };
        self.await_last_words();
        tether::not_started(status, &self.log_tail()).map_or(Ok(Some(status)), Err)
    }

    /// SIGKILL; returns once the process is gone and everything it said is read.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn kill(mut self) -> Result<ExitStatus> {
        let gone = self.leader.end();
        self.await_last_words();
        gone.map_err(|error| LabError::new(LabErrorKind::Other, "a subject cannot be killed").because(error))
    }

    /// Of one that is gone. What it handed its output to may hold it open: that is not waited for.
    fn await_last_words(&self) {
        let until = Instant::now() + DRAIN;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal by its name, such as `STOP` or `TERM`.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn signal(&self, name: &str) -> Result<()> {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).stderr(Stdio::null()).status();
        match sent {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(LabError::new(LabErrorKind::Other, format!("kill -s {name} {pid}: {status}"))),
            Err(error) => Err(LabError::new(LabErrorKind::Other, "`kill` cannot be run").because(error)),
        }
    }

    /// The last lines of its standard error.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_child_gets_its_setup_is_heard_and_killed() {
        let (heard, hear) = channel();
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line; echo got $line; echo trouble >&2; exec sleep 600"]);
        let process =
            Process::start(&mut shell, Some("setup"), move |line| drop(heard.send(line.to_owned())));
        let process = process.expect("started");
        // Its two outputs are read by a thread each.
        let mut heard: Vec<String> =
            (0..2).map(|_| hear.recv_timeout(Duration::from_secs(20)).expect("a line")).collect();
        heard.sort();
        assert_eq!(heard, ["got setup", "trouble"]);
        let pid = process.pid();
        process.signal("STOP").expect("stopped");
        let status = process.kill().expect("killed");
        assert_eq!(status.code(), None);
        assert!(!std::path::Path::new(&format!("/proc/{pid}/stat")).exists());
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let mut sleep = Command::new("sleep");
        let process = Process::start(sleep.arg("600"), None, |_| {}).expect("started");
        let pid = process.pid();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}/stat")).exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error =
            Process::start(&mut Command::new("no-such-program-here"), None, |_| {}).expect_err("none");
        assert!(error.to_string().contains("no-such-program-here"), "{error}");
    }
}
