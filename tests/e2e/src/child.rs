//! The subject as a child process: started, watched by its log, killed by its pid.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub struct Subject {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Subject {
    /// Starts the program with arguments; its log is collected line by line.
    pub fn start(program: &str, arguments: &[String]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(vec![]));
        let lines = Arc::clone(&log);
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        Self { child, log, reader: Some(reader) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL; returns the log.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.take_log()
    }

    /// SIGTERM by pid.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// SIGSTOP by pid: the process freezes in the middle of whatever it does.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT by pid.
    pub fn wake_up(&self) {
        self.signal("-CONT");
    }

    /// SIGUSR1 by pid: its source stops polling for the time it was given, everything else goes on.
    pub fn hang(&self) {
        self.signal("-USR1");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the log has a line with the text, with a limit.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str, limit: Duration) {
        self.wait_for_nth(text, 1, limit);
    }

    /// Waits until the log has so many lines with the text, with a limit.
    #[track_caller]
    pub fn wait_for_nth(&mut self, text: &str, nth: usize, limit: Duration) {
        let until = Instant::now() + limit;
        while count(&self.log.lock().unwrap(), text) < nth {
            let log = || self.log.lock().unwrap().join("\n");
            assert!(Instant::now() < until, "no {nth} line(s) with {text:?} within {limit:?}:\n{}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The log until now.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// True while the process lives.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end, with a limit; returns status and log.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> (ExitStatus, Vec<String>) {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.take_log());
            }
            if Instant::now() > until {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                panic!("the subject did not end within {limit:?}:\n{}", self.take_log().join("\n"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn take_log(&mut self) -> Vec<String> {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many of the lines contain a text.
pub fn count(log: &[String], text: &str) -> usize {
    log.iter().filter(|line| line.contains(text)).count()
}
