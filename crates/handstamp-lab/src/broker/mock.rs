//! The mock cluster of the client library, in a process of its own: where members come and go it was seen to
//! abort, and then it takes nobody along.
//!
//! ```text
//!  lab ── starts ──► mock-broker ── where it listens ──► lab
//!   │                    ▲ consumers, over loopback
//!   ├── make a topic ──► │ ── made, or refused ──► lab
//!   └── its end, or the end of its standard input ──► gone with its topics
//! ```
//!
//! That it ended by itself is an error of its own kind: whoever ran on it runs again, or proves nothing.

use super::WAIT;
use crate::error::{LabError, LabErrorKind, Result};
use crate::supervisor::Process;
use handstamp_sources::kafka::mock::MockBroker;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A new group waits so long for further members.
const REBALANCE_DELAY: Duration = Duration::from_millis(100);
/// How often one that does not answer is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How it is started.
#[derive(Debug, Clone)]
pub struct MockLaunch {
    /// The program.
    pub program: PathBuf,
    /// Arguments that lead to [`main`].
    pub arguments: Vec<String>,
}

/// A topic that is asked for.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    topic: String,
    partitions: i32,
}

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// It runs, and listens there.
    Listening(String),
    /// The topic is there.
    Made,
    /// It is not, and why.
    Refused(String),
}

/// The hidden command: a broker until standard input ends.
///
/// # Errors
/// The client library cannot start it, or somebody says nonsense.
pub fn main() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let broker = MockBroker::start(REBALANCE_DELAY)?;
    say(&Said::Listening(broker.bootstrap().to_owned()))?;
    for line in std::io::stdin().lock().lines() {
        let asked: Asked = serde_json::from_str(&line?)?;
        say(&match broker.create_topic(&asked.topic, asked.partitions) {
            Ok(()) => Said::Made,
            Err(error) => Said::Refused(error.to_string()),
        })?;
    }
    Ok(())
}

fn say(said: &Said) -> std::io::Result<()> {
    let line = serde_json::to_string(said)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

/// A running broker; ended when it is dropped.
#[derive(Debug)]
pub(super) struct MockProcess {
    /// Asked by one at a time.
    inner: Mutex<Inner>,
    bootstrap: String,
}

#[derive(Debug)]
struct Inner {
    process: Process,
    answers: Receiver<Said>,
}

impl MockProcess {
    pub(super) fn start(launch: &MockLaunch) -> Result<Self> {
        let (answer, answers) = channel();
        let listener = move |line: &str| {
            if let Ok(said) = serde_json::from_str(line) {
                // Nobody waits for an answer any more when the lab gives up.
                let _ = answer.send(said);
            }
        };
        let mut command = Command::new(&launch.program);
        let process = Process::start(command.args(&launch.arguments), None, listener)?;
        let mut inner = Inner { process, answers };
        match inner.answer()? {
            Said::Listening(bootstrap) => Ok(Self { inner: Mutex::new(inner), bootstrap }),
            other => Err(LabError::new(LabErrorKind::Other, format!("no mock broker: it says {other:?}"))),
        }
    }

    pub(super) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// `BrokerInside` with its last words.
    pub(super) fn alive(&self) -> Result<()> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).alive()
    }

    pub(super) fn create(&self, topic: &str, partitions: i32) -> Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.alive()?;
        let asked = Asked { topic: topic.to_owned(), partitions };
        let line = serde_json::to_string(&asked)
            .map_err(|error| LabError::new(LabErrorKind::Other, "a topic is no JSON").because(error))?;
        let told = inner.process.tell(&line);
        if told.is_err() {
            inner.alive()?;
        }
        told?;
        match inner.answer()? {
            Said::Made => Ok(()),
            Said::Refused(why) => {
                Err(LabError::new(LabErrorKind::Other, "the mock broker refuses").because(why))
            }
            Said::Listening(_) => Err(LabError::new(LabErrorKind::Other, "the mock broker talks nonsense")),
        }
    }
}

impl Inner {
    fn alive(&mut self) -> Result<()> {
        let Some(status) = self.process.ended()? else { return Ok(()) };
        let log = self.process.log_tail();
        let log = if log.is_empty() { "it logged nothing" } else { &log };
        let what = format!("the broker inside the lab ended by itself ({status}); its last lines:\n{log}");
        Err(LabError::new(LabErrorKind::BrokerInside, what))
    }

    /// Its next answer, for which it has a limited time.
    fn answer(&mut self) -> Result<Said> {
        let until = Instant::now() + WAIT;
        loop {
            match self.answers.recv_timeout(LOOK_EVERY) {
                Ok(said) => return Ok(said),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => self.alive()?,
                Err(_) => {
                    self.alive()?;
                    let what = format!("the broker inside the lab does not answer within {WAIT:?}");
                    return Err(LabError::new(LabErrorKind::Other, what));
                }
            }
        }
    }
}
