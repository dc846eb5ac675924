//! Names of what a run makes on servers: topics, groups, schemas, databases.
//!
//! ```text
//!  hs_lab_ 3f2a1_ t1a2b3c 00d4e 07 _run_0_handstamp
//!            │     │        │    └ how manieth name of the process
//!            │     │        └ process id        (base 36, of fixed width, so that Postgres' 63 bytes suffice)
//!            │     └ t, seconds since 2020
//!            └ of the command
//! ```
//!
//! A lab that was killed removes nothing. From the name alone `lab clean` knows when the run began and which
//! process did it; whether that process still runs is the operating system's to say, on its own machine.

use rustix::process::{Pid, test_kill_process};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How names of a run begin that are made in the lab's own way.
pub const LAB: &str = "hs_lab_";
/// And those of runs with the user's own program.
pub const OWN: &str = "hs_own_";

/// Seconds from 1970 to 2020.
const YEAR_2020_S: u64 = 1_577_836_800;
/// Digits of time, process and number.
const WIDTHS: [usize; 3] = [6, 5, 2];

/// When a run began, and in which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// When, to the second.
    pub begun: SystemTime,
    /// By whom.
    pub pid: u32,
}

impl Mark {
    /// Whether a process of that number runs here; it may be another one by now.
    #[must_use]
    pub fn may_run_here(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        // One that we must not signal is there all the same.
        pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
    }
}

/// A part of a name that no other run of any lab has, nor this one when it is made again.
#[must_use]
pub fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let numbers = [
        seconds.saturating_sub(YEAR_2020_S),
        u64::from(std::process::id()),
        u64::from(NEXT.fetch_add(1, Ordering::SeqCst)),
    ];
    let digits = numbers.iter().zip(WIDTHS).map(|(number, width)| base36(*number, width));
    format!("t{}", digits.collect::<String>())
}

/// The mark in the name of something that a run made.
#[must_use]
pub fn mark(name: &str) -> Option<Mark> {
    let rest = name.strip_prefix(LAB).or_else(|| name.strip_prefix(OWN))?;
    rest.split('_').find_map(read)
}

fn read(part: &str) -> Option<Mark> {
    let digits = part.strip_prefix('t')?;
    if digits.len() != WIDTHS.iter().sum::<usize>()
        || !digits.bytes().all(|digit| digit.is_ascii_alphanumeric())
    {
        return None;
    }
    let number = |from: usize, width: usize| u64::from_str_radix(digits.get(from..from + width)?, 36).ok();
    let begun = UNIX_EPOCH + Duration::from_secs(YEAR_2020_S + number(0, WIDTHS[0])?);
    let pid = u32::try_from(number(WIDTHS[0], WIDTHS[1])?).ok()?;
    // No process has the number 0.
    (pid > 0).then_some(Mark { begun, pid })
}

/// The lowest digits of a number.
fn base36(mut number: u64, width: usize) -> String {
    let mut digits = vec![b'0'; width];
    for digit in digits.iter_mut().rev() {
        // A remainder of 36 is a digit.
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(number % 36).unwrap_or(0)];
        number /= 36;
    }
    String::from_utf8_lossy(&digits).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_when_and_by_whom_and_no_two_are_alike() {
        let (one, other) = (token(), token());
        assert_ne!(one, other);
        for name in [format!("hs_lab_3f2a1_{one}_run_0_a1_inbox"), format!("hs_own_{one}")] {
            let mark = mark(&name).expect("marked");
            assert_eq!(mark.pid, std::process::id());
            assert!(mark.may_run_here());
            let age = SystemTime::now().duration_since(mark.begun).expect("begun before now");
            assert!(age < Duration::from_secs(3600), "{age:?}");
        }
        for name in [
            &format!("other_{one}"),
            "hs_lab_",
            "hs_lab_throughput",
            "hs_lab_tthroughputt",
            "hs_lab_t0000000000000z",
            "hs_own_t",
        ] {
            assert_eq!(mark(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_that_is_gone_does_not_run() {
        let mut child = std::process::Command::new("true").spawn().expect("started");
        let pid = child.id();
        child.wait().expect("ended");
        assert!(!Mark { begun: UNIX_EPOCH, pid }.may_run_here());
    }

    #[test]
    fn numbers_of_every_size_have_their_width() {
        assert_eq!(
            (base36(0, 2), base36(35, 2), base36(36 * 36 - 1, 2)),
            ("00".into(), "0z".into(), "zz".into())
        );
        assert_eq!(base36(4_194_304, 5).len(), 5);
        assert_eq!(u64::from_str_radix(&base36(4_194_304, 5), 36), Ok(4_194_304));
    }
}
