//! The copies of the user's program: started, started again when they end, killed, stopped, ended.
//!
//! ```text
//!  start ─► running ─┬─► SIGKILL ───────────► started again
//!                    ├─► ended by itself ───► started again after a moment
//!                    ├─► SIGSTOP ─► SIGCONT ─► running
//!                    └─► the end of the run: SIGKILL, of everything in its process group
//! ```
//!
//! Each copy leads a process group of its own, so that what it started itself ends with it.

use super::settings::{Settings, put_in};
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::supervisor::Process;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A copy that ended by itself is started again after so long.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// A copy that ended with an error so often, one time after the other, only fails.
pub(super) const STARTS_MAX: u32 = 3;

/// What the program is told about the run.
#[derive(Debug, Clone)]
pub(super) struct Surroundings {
    pub(super) brokers: String,
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) database_url: String,
    pub(super) folder: String,
}

impl Surroundings {
    fn word(&self, word: &str) -> Option<&str> {
        Some(match word {
            "brokers" => &self.brokers,
            "topic" => &self.topic,
            "group" => &self.group,
            "database_url" => &self.database_url,
            "folder" => &self.folder,
            _ => return None,
        })
    }

    /// The program's variables.
    pub(super) fn variables(&self, settings: &Settings, copy: u32) -> Vec<(String, String)> {
        let copy = copy.to_string();
        let fill = |text: &str| self.fill(text, &copy);
        let own = [
            ("BROKERS", &self.brokers),
            ("TOPIC", &self.topic),
            ("GROUP", &self.group),
            ("DATABASE_URL", &self.database_url),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.clone()));
        own.chain(settings.env.iter().map(|(name, value)| (name.clone(), fill(value)))).collect()
    }

    /// Words of the command line with the run's names put in.
    pub(super) fn words(&self, words: &[String], copy: u32) -> Vec<String> {
        let copy = copy.to_string();
        words.iter().map(|word| self.fill(word, &copy)).collect()
    }

    fn fill(&self, text: &str, copy: &str) -> String {
        put_in(text, |word| if word == "copy" { Some(copy) } else { self.word(word) })
    }
}

struct Copy {
    /// `None` between its end and its next start.
    process: Option<(Process, u32)>,
    again_at: Instant,
    /// How often it ended by itself with an error, without another end between.
    failures: u32,
}

fn fresh() -> Copy {
    Copy { process: None, again_at: Instant::now(), failures: 0 }
}

/// All copies of a run.
pub(super) struct Copies<'a> {
    settings: &'a Settings,
    around: Surroundings,
    history: History,
    copies: Vec<Copy>,
    started: u32,
    /// How often a copy ended by itself.
    pub(super) ended_by_itself: u32,
    /// How the last one ended that did, with its last lines.
    pub(super) last_end: Option<String>,
}

impl<'a> Copies<'a> {
    /// Starts all of them.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(settings: &'a Settings, around: Surroundings, history: History) -> Result<Self> {
        let copies = (0..settings.copies).map(|_| fresh()).collect();
        let mut all =
            Self { settings, around, history, copies, started: 0, ended_by_itself: 0, last_end: None };
        all.watch()?;
        Ok(all)
    }

    /// One look: whoever ended is noted, and started again when it is time.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn watch(&mut self) -> Result<()> {
        for index in 0..self.copies.len() {
            let copy = &mut self.copies[index];
            if let Some((process, number)) = &mut copy.process {
                let Some(status) = process.ended()? else { continue };
                self.history.note(Event::Ended { child: *number, code: status.code() });
                self.ended_by_itself += 1;
                copy.failures = if status.success() { 0 } else { copy.failures + 1 };
                let log = process.log_tail();
                let log = if log.is_empty() { "it logged nothing" } else { &log };
                let end = format!("copy {index} ended with {status}; its last lines:\n{log}");
                if self.ended_by_itself == 1 && !status.success() {
                    tracing::warn!("{end}");
                }
                self.last_end = Some(end);
                copy.process = None;
                copy.again_at = Instant::now() + AGAIN_AFTER;
            }
            if self.copies[index].process.is_none() && Instant::now() >= self.copies[index].again_at {
                self.start_one(index)?;
            }
        }
        Ok(())
    }

    /// Whether every copy has done nothing but end with an error, several times.
    pub(super) fn only_fail(&self) -> bool {
        self.copies.iter().all(|copy| copy.failures >= STARTS_MAX)
    }

    fn start_one(&mut self, index: usize) -> Result<()> {
        let number = u32::try_from(index).unwrap_or(0);
        let words = self.around.words(&self.settings.program, number);
        let Some((program, arguments)) = words.split_first() else {
            return Err(LabError::usage("no program"));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.around.variables(self.settings, number)).process_group(0);
        let process = Process::start(&mut command, None, |_| {})?;
        let child = self.started;
        self.started += 1;
        self.history.note(Event::Started { child, pid: process.pid() });
        self.copies[index].process = Some((process, child));
        Ok(())
    }

    /// SIGKILL to a copy, which is noted and started again at once; whether it ran.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn kill(&mut self, copy: u32, left: u64, counts: bool) -> Result<bool> {
        let index = usize::try_from(copy).unwrap_or(0);
        let Some(slot) = self.copies.get_mut(index) else { return Ok(false) };
        let Some((mut process, child)) = slot.process.take() else { return Ok(false) };
        let ended_before = process.ended()?.is_some();
        signal_group("KILL", process.pid());
        process.kill()?;
        if !ended_before {
            self.history.note(Event::Killed { child, left, counts, point: None });
        }
        self.start_one(index)?;
        Ok(!ended_before)
    }

    /// Sends a signal to a copy's group; `None` when it does not run.
    ///
    /// # Errors
    /// The operating system does not say whether it runs.
    pub(super) fn signal(&mut self, copy: u32, name: &str) -> Result<Option<u32>> {
        let index = usize::try_from(copy).unwrap_or(0);
        let Some(Copy { process: Some((process, child)), .. }) = self.copies.get_mut(index) else {
            return Ok(None);
        };
        if process.ended()?.is_some() {
            return Ok(None);
        }
        Ok(signal_group(name, process.pid()).then_some(*child))
    }

    /// The last lines that the running copies logged.
    pub(super) fn log_tails(&self) -> String {
        let tails = self.copies.iter().enumerate().filter_map(|(index, copy)| {
            let tail = copy.process.as_ref()?.0.log_tail();
            (!tail.is_empty()).then(|| format!("copy {index}:\n{tail}"))
        });
        tails.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        for (process, _) in self.copies.iter().filter_map(|copy| copy.process.as_ref()) {
            signal_group("KILL", process.pid());
        }
    }
}

/// Sends a signal to the process group that a copy leads; whether it arrived. A copy is waited for only by
/// this process, so its number is its own until then.
fn signal_group(name: &str, leader: u32) -> bool {
    let sent = Command::new("kill")
        .args(["-s", name, "--", &format!("-{leader}")])
        .stderr(Stdio::null())
        .status()
        .map_err(|error| LabError::new(LabErrorKind::Other, "`kill` cannot be run").because(error));
    sent.is_ok_and(|status| status.success())
}
