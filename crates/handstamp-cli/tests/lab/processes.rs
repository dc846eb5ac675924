//! Processes as the system lists them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A process: its number alone may be another's later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) pid: u32,
    /// Its words, each ended by a NUL.
    pub(crate) command: String,
    parent: u32,
    /// In ticks since the machine began.
    pub(crate) started: u64,
}

impl Known {
    /// One that has ended and was not waited for does not run.
    fn of(pid: u32) -> Option<Self> {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let started = fields.get(19)?.parse().ok()?;
        let runs = !["Z", "X"].contains(fields.first()?);
        let command = String::from_utf8_lossy(&command).into_owned();
        runs.then_some(Self { pid, command, parent: fields.get(1)?.parse().ok()?, started })
    }

    /// Whether it is still there.
    pub(crate) fn runs(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.started == self.started)
    }
}

/// Every process that one has started, and what these have started.
pub(crate) fn below(pid: u32) -> Vec<Known> {
    let all: Vec<Known> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter_map(Known::of)
        .collect();
    let mut family = BTreeSet::from([pid]);
    loop {
        let size = family.len();
        family.extend(
            all.iter().filter(|one| family.contains(&one.parent)).map(|one| one.pid).collect::<Vec<_>>(),
        );
        if family.len() == size {
            break;
        }
    }
    all.into_iter().filter(|one| one.pid != pid && family.contains(&one.pid)).collect()
}

#[track_caller]
pub(crate) fn within(what: &str, done: impl FnMut() -> bool) {
    within_time(what, LIMIT, done);
}

#[track_caller]
pub(crate) fn within_time(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
