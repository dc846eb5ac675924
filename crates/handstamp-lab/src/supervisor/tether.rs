//! Children that end with the lab, however it ends: also by a SIGKILL, of which it hears nothing.
//!
//! ```text
//!  lab ─┬─ thread that never ends ─► `tether PID -- PROGRAM`: signal at the parent's death asked for,
//!       │                               parent still there? ──exec──► PROGRAM, same process id
//!       └─ pipe ─► `guard`: is told every child's group; the pipe ends: SIGKILL to each group that is left
//! ```
//!
//! The first tie (Linux) has no gap, but holds the child alone; the second holds what the child started as
//! well, on every Unix. The kernel is authoritative for both: it closes the pipe and sends the signal,
//! whatever the lab died of. A program that does not say how it starts itself again ([`tie`]) has neither.

use crate::error::{LabError, LabErrorKind, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a tether says when the program cannot be executed; the program and the reason follow.
const NOT_STARTED: &str = "handstamp lab: cannot start ";
/// And what it ends with, as a shell would.
const NOT_STARTED_CODE: i32 = 127;

/// How this program is started again for the ties.
#[derive(Debug, Clone)]
pub struct Ties {
    /// The program itself.
    pub program: PathBuf,
    /// Arguments that lead to [`tether`]; the lab's process id, `--` and the child's words follow.
    pub tether: Vec<String>,
    /// Arguments that lead to [`guard`].
    pub guard: Vec<String>,
}

static TIES: OnceLock<Ties> = OnceLock::new();

/// Ties every child that is started from now on to this process. Said once; what is said later is ignored.
pub fn tie(ties: Ties) {
    // The first word holds: a child that is tied already cannot be tied otherwise.
    let _ = TIES.set(ties);
}

/// A child that leads a process group of its own: Ctrl-C at a terminal reaches the lab alone, and what the
/// child started ends with it.
#[derive(Debug)]
pub(crate) struct Leader {
    child: Child,
    /// Its number is its own until it was waited for.
    waited_for: bool,
}

impl Leader {
    /// Starts the command's program with its arguments, variables and folder; what else was set is left out.
    pub(crate) fn start(command: &Command, stdio: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let mut tied = tied(command);
        stdio(&mut tied);
        tied.process_group(0);
        let child = spawn(tied)?;
        tell_guard('+', child.id());
        Ok(Self { child, waited_for: false })
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status once it has ended; what it started ends then as well.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if !self.waited_for {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if let Some(pid) = pid(self.id())
                && waitid(WaitId::Pid(pid), look)?.is_none()
            {
                return Ok(None);
            }
            self.end_group();
        }
        let status = self.child.try_wait()?;
        self.waited_for |= status.is_some();
        Ok(status)
    }

    /// Its exit status once it has ended; what it started and left behind on purpose is left alone.
    #[cfg(feature = "kafka")]
    pub(crate) fn ended_alone(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() && !self.waited_for {
            self.waited_for = true;
            tell_guard('-', self.id());
        }
        Ok(status)
    }

    /// SIGKILL to it and to what it started; waits for it.
    pub(crate) fn end(&mut self) -> io::Result<ExitStatus> {
        if !self.waited_for {
            self.end_group();
        }
        let status = self.child.wait()?;
        self.waited_for = true;
        Ok(status)
    }

    /// Only before it is waited for: until then its number means nobody else's group.
    fn end_group(&self) {
        // A group that is gone already is as good as ended.
        let _ = pid(self.id()).map(|group| kill_process_group(group, Signal::KILL));
        tell_guard('-', self.id());
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Of one that has ended already there is nothing to end.
        let _ = self.end();
    }
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// The command behind a tether, or as it is where this program is not tied.
fn tied(command: &Command) -> Command {
    let mut tied = match TIES.get() {
        None => Command::new(command.get_program()),
        Some(ties) => {
            let mut tether = Command::new(&ties.program);
            tether.args(&ties.tether).arg(std::process::id().to_string()).arg("--");
            tether.arg(command.get_program());
            tether
        }
    };
    tied.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        tied.current_dir(folder);
    }
    tied
}

type Order = (Command, Sender<io::Result<Child>>);

/// Starts a process from a thread that never ends: what counts as its parent's death is that thread's end.
fn spawn(command: Command) -> io::Result<Child> {
    static STARTER: Mutex<Option<Sender<Order>>> = Mutex::new(None);
    let orders = {
        let mut starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
        match &*starter {
            Some(orders) => orders.clone(),
            None => {
                let (orders, ordered) = channel::<Order>();
                std::thread::Builder::new().name("starter".to_owned()).spawn(move || {
                    for (mut command, answer) in ordered {
                        // Whoever asked waits for it.
                        let _ = answer.send(command.spawn());
                    }
                })?;
                starter.insert(orders).clone()
            }
        }
    };
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (answer, answered) = channel();
    orders.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

/// Tells the guard of a group that is there (`+`) or gone (`-`); it is started with the first.
fn tell_guard(what: char, group: u32) {
    static GUARD: Mutex<Option<ChildStdin>> = Mutex::new(None);
    let Some(ties) = TIES.get() else { return };
    let mut guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner);
    if guard.is_none() {
        let mut command = Command::new(&ties.program);
        command.args(&ties.guard).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.process_group(0).spawn() {
            Ok(mut child) => *guard = child.stdin.take(),
            Err(error) => tracing::warn!(%error, "no guard: what children start may outlive a killed lab"),
        }
    }
    let told = guard.as_mut().map(|pipe| writeln!(pipe, "{what}{group}").and_then(|()| pipe.flush()));
    if let Some(Err(error)) = told {
        tracing::debug!(%error, "the guard is gone");
    }
}

/// Says which program a tether could not execute, from how it ended and its last lines.
pub(super) fn not_started(status: ExitStatus, log: &str) -> Option<LabError> {
    let line = log.lines().find_map(|line| line.strip_prefix(NOT_STARTED))?;
    (status.code() == Some(NOT_STARTED_CODE))
        .then(|| LabError::new(LabErrorKind::Other, format!("a subject cannot be started: {line}")))
}

/// The hidden command between the lab and a child: becomes the child, and never returns.
pub fn tether(lab: u32, words: &[OsString]) -> ! {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    {
        // Where it is refused, the guard is left.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // A lab that died before that was asked for will not die again.
        if rustix::process::getppid() != pid(lab) {
            std::process::exit(1);
        }
    }
    let _ = lab;
    if let Some((program, arguments)) = words.split_first() {
        let error = Command::new(program).args(arguments).exec();
        // Standard error that is gone cannot be told to anyone.
        let _ = writeln!(io::stderr(), "{NOT_STARTED}{}: {error}", program.to_string_lossy());
    }
    std::process::exit(NOT_STARTED_CODE)
}

/// The hidden command that outlives the lab for a moment: reads groups from standard input, and ends those
/// that are left when it ends.
///
/// # Errors
/// Standard input cannot be read.
pub fn guard() -> Result<()> {
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines() {
        let line =
            line.map_err(|error| LabError::new(LabErrorKind::Other, "no groups to guard").because(error))?;
        told(&mut groups, &line);
    }
    for group in groups.into_iter().filter_map(pid) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(())
}

/// What one line of the lab says of a group.
fn told(groups: &mut BTreeSet<u32>, line: &str) {
    let (what, number) = line.split_at_checked(1).unwrap_or_default();
    let Ok(group) = number.parse::<u32>() else { return };
    match what {
        "+" => drop(groups.insert(group)),
        "-" => drop(groups.remove(&group)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_and_go_and_nonsense_is_nobodys_group() {
        let mut groups = BTreeSet::new();
        for line in ["+70", "+71", "-70", "", "+", "+x", "?72", "+-1"] {
            told(&mut groups, line);
        }
        assert_eq!(groups.into_iter().collect::<Vec<_>>(), [71]);
    }

    #[test]
    fn what_a_child_started_ends_with_it_also_when_it_ends_by_itself() {
        for (script, by_itself) in [("sleep 600 & echo $!", true), ("sleep 600 & echo $!; wait", false)] {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            let mut leader = Leader::start(&shell, |command| {
                command.stdout(Stdio::piped());
            })
            .expect("started");
            let mut line = String::new();
            let out = leader.child().stdout.take().expect("piped");
            io::BufReader::new(out).read_line(&mut line).expect("its number");
            let stat = format!("/proc/{}/stat", line.trim());
            while by_itself && leader.ended().expect("known").is_none() {
                std::thread::yield_now();
            }
            drop(leader);
            // Its parent by now, the system's first process, may take a moment to wait for it.
            let gone = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
            let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !gone() {
                assert!(std::time::Instant::now() < until, "{script}: {stat} is still there");
                std::thread::yield_now();
            }
        }
    }
}
