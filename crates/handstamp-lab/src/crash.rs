//! Arms a crash point in this process: at its n-th reaching a mark is left and SIGKILL sent to ourselves.
//!
//! ```text
//!  HANDSTAMP_CRASH_AT ─► parse ─► arm ─► … the point is reached ─► mark written ─► SIGKILL
//!                                                                      │              │
//!                                                     the supervisor reads both: which point, how it ended
//! ```
//!
//! That a point was hit is for the supervisor to say: from how the process ended and what the mark holds.
//! The library reads no environment; the names of the variables stand here for the program that does.

use crate::error::{LabError, LabErrorKind, Result};
use handstamp::CrashPoint;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Which point ends a process: `POINT[:nth]`.
pub const CRASH_AT: &str = "HANDSTAMP_CRASH_AT";
/// The file in which the process says that it reached the point.
pub const CRASH_MARK: &str = "HANDSTAMP_CRASH_MARK";

/// A point and which time it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CrashAt {
    /// Where.
    pub point: CrashPoint,
    /// The how manieth time it is reached, from 1.
    pub nth: u32,
}

impl fmt::Display for CrashAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.point.name(), self.nth)
    }
}

impl FromStr for CrashAt {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self> {
        let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
        let Some(point) = CrashPoint::from_name(name) else {
            let known: Vec<&str> = CrashPoint::all().map(CrashPoint::name).collect();
            let message = format!("{name:?} is no crash point; there are: {}", known.join(", "));
            return Err(LabError::usage(message));
        };
        match nth.parse() {
            Ok(nth) if nth > 0 => Ok(Self { point, nth }),
            _ => Err(LabError::usage(format!("{text:?}: write POINT or POINT:NTH with NTH from 1"))),
        }
    }
}

/// Arms a point in this process. Reached, it writes itself into the mark and ends the process by SIGKILL.
///
/// # Errors
/// A point is armed already.
pub fn arm(at: CrashAt, mark: Option<PathBuf>) -> Result<()> {
    let armed = handstamp::crash_point::arm(at.point, at.nth, move || {
        if let Some(mark) = &mark {
            // Without a mark the supervisor says that the point was not hit: nothing is hidden.
            let _ = std::fs::write(mark, at.to_string());
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
    if armed { Ok(()) } else { Err(LabError::new(LabErrorKind::Other, "a crash point is armed already")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_with_and_without_its_number() {
        let read = |text: &str| text.parse::<CrashAt>().map(|at| (at.point, at.nth));
        assert_eq!(read("before-commit").expect("read"), (CrashPoint::BeforeCommit, 1));
        assert_eq!(read("after-poll:12").expect("read"), (CrashPoint::AfterPoll, 12));
        for point in CrashPoint::all() {
            let at = CrashAt { point, nth: 7 };
            assert_eq!(at.to_string().parse::<CrashAt>().expect("read"), at);
        }
    }

    #[test]
    fn what_is_no_point_is_refused_with_those_there_are() {
        let error = "before-comit".parse::<CrashAt>().expect_err("refused").to_string();
        assert!(error.contains("before-comit") && error.contains("before-commit,"), "{error}");
        for text in ["before-commit:0", "before-commit:", "before-commit:x", "before-commit:-1", ""] {
            assert!(text.parse::<CrashAt>().is_err(), "{text}");
        }
    }
}
