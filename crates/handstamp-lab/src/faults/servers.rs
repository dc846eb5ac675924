//! Servers of a run's own, which it may stop, freeze and kill: through the project's `scripts/services`.
//!
//! ```text
//!  up KIND@RUN ─► running ─┬─ stopped, killed ─► started again, same data and ports
//!                          ├─ frozen ─► thawed
//!                          └─ dropped: thawed, down, its data removed
//! ```

use crate::error::{LabError, LabErrorKind, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A private server, ended with its data when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    script: PathBuf,
    name: String,
}

impl Server {
    /// Starts a server of a kind beside whatever else runs.
    ///
    /// # Errors
    /// The script is not there or cannot start it.
    pub(super) fn start_new(script: &Path, kind: &str) -> Result<Self> {
        let once = uuid::Uuid::new_v4().simple().to_string();
        let server = Self { script: script.to_owned(), name: format!("{kind}@faults-{}", &once[..8]) };
        server.call(&["up", &server.name])?;
        Ok(server)
    }

    fn call(&self, words: &[&str]) -> Result<String> {
        let failed = |what: String| {
            LabError::new(
                LabErrorKind::Unreachable,
                format!("{} {}: {what}", self.script.display(), words.join(" ")),
            )
        };
        let output = Command::new(&self.script).args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed("cannot be run".to_owned()).because(error))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn member(&self, member: Option<u8>) -> String {
        member.map_or_else(|| self.name.clone(), |member| format!("{}:{member}", self.name))
    }

    /// One of the addresses that the script prints for it; `None` when it prints none of that name.
    ///
    /// # Errors
    /// The server does not run.
    pub(super) fn variable(&self, name: &str) -> Result<Option<String>> {
        let lines = self.call(&["env", &self.name])?;
        let prefix = format!("export {name}=");
        let line = lines.lines().find_map(|line| line.strip_prefix(&prefix));
        Ok(line.map(|value| value.trim_matches('\'').to_owned()))
    }

    /// The same for one that must be there.
    ///
    /// # Errors
    /// The server does not run, or the script does not say where.
    pub(super) fn address(&self, name: &str) -> Result<String> {
        self.variable(name)?.ok_or_else(|| {
            LabError::new(
                LabErrorKind::Other,
                format!("{} does not say {name} of {}", self.script.display(), self.name),
            )
        })
    }

    /// Ends it as a restart would; `harsh` leaves it no time to put anything in order.
    ///
    /// # Errors
    /// It does not end.
    pub(super) fn stop(&self, harsh: bool) -> Result<()> {
        let words: &[&str] = if harsh { &["stop", "--immediate", &self.name] } else { &["stop", &self.name] };
        self.call(words).map(drop)
    }

    /// SIGKILL to it, or to one of its members.
    ///
    /// # Errors
    /// It does not end.
    pub(super) fn kill(&self, member: Option<u8>) -> Result<()> {
        self.call(&["kill", &self.member(member)]).map(drop)
    }

    /// Starts it again, or one of its members, with its data and ports.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(&self, member: Option<u8>) -> Result<()> {
        self.call(&["start", &self.member(member)]).map(drop)
    }

    /// SIGSTOP to every process of it: it neither answers nor closes anything.
    ///
    /// # Errors
    /// A signal cannot be sent.
    pub(super) fn freeze(&self) -> Result<()> {
        // The first processes go first: they can start no others then.
        for pid in self.processes()? {
            signal("STOP", pid)?;
        }
        // What was started meanwhile.
        for pid in self.processes()? {
            signal("STOP", pid)?;
        }
        Ok(())
    }

    /// SIGCONT to every process of it.
    ///
    /// # Errors
    /// A signal cannot be sent.
    pub(super) fn thaw(&self) -> Result<()> {
        for pid in self.processes()? {
            signal("CONT", pid)?;
        }
        Ok(())
    }

    /// Its processes, parents before their children.
    fn processes(&self) -> Result<Vec<u32>> {
        let status = self.call(&["status", &self.name])?;
        let (_, pids) = status.rsplit_once(" pid ").unwrap_or_default();
        let mut all: Vec<u32> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        let mut at = 0;
        while let Some(parent) = all.get(at).copied() {
            all.extend(children(parent));
            at += 1;
        }
        Ok(all)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A frozen server cannot end.
        let ended = self.thaw().and_then(|()| self.call(&["down", &self.name]));
        if let Err(error) = ended.or_else(|_| self.call(&["down", &self.name])) {
            tracing::warn!(server = %self.name, %error, "a server of the lab is left behind");
        }
    }
}

fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Sends a signal; a process that has just ended needs none.
fn signal(name: &str, pid: u32) -> Result<()> {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status();
    match sent {
        Ok(status) if status.success() || !Path::new(&format!("/proc/{pid}")).exists() => Ok(()),
        Ok(status) => Err(LabError::new(LabErrorKind::Other, format!("kill -s {name} {pid}: {status}"))),
        Err(error) => Err(LabError::new(LabErrorKind::Other, "`kill` cannot be run").because(error)),
    }
}
