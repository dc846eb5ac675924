//! `lab zombie`: consumers that stall until the group gives them up, and that write all the same.
//!
//! ```text
//!  three consumers ─► one takes a message and stalls ─► evicted ─► another gets the message
//!                        └──────── wakes: writes, commits its offset (refused) ◄──── who won?
//! ```
//!
//! Which messages are stalled on comes from the seed; that it is the first time is marked outside every
//! transaction. The verdict is the database's; evictions, refused commits, skips and hold-ups are evidence.
//!
//! | file | owns |
//! |---|---|
//! | `run` | one run of one row |
//! | `outcome` | what a folder proves |

mod outcome;
mod run;

pub use outcome::{Outcome, RowOutcome, RunOutcome, recompute};

use crate::error::{LabError, LabErrorKind, Result};
use crate::kill::{Settings, Surroundings};
use crate::ledger::Place;
use crate::schedule::Random;
use crate::subjects::{Stalling, Subject};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// One row: who stalls, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Row {
    /// Who.
    pub subject: Subject,
    /// How.
    pub how: Stalling,
}

impl Row {
    /// Every row: both hand-written loops poll where they handle, so their handler's stall stops the polling.
    pub const ALL: [Self; 5] = [
        Self { subject: Subject::B, how: Stalling::Handler },
        Self { subject: Subject::C, how: Stalling::Handler },
        Self { subject: Subject::Handstamp, how: Stalling::NotPolling },
        Self { subject: Subject::Handstamp, how: Stalling::Frozen },
        Self { subject: Subject::Handstamp, how: Stalling::Handler },
    ];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match (self.subject, self.how) {
            (Subject::B, _) => "b",
            (Subject::C, _) => "c",
            (_, Stalling::NotPolling) => "handstamp, polling stopped",
            (_, Stalling::Frozen) => "handstamp, SIGSTOP",
            (_, Stalling::Handler) => "handstamp, slow handler",
        }
    }

    /// Whether a stall should cost it its partitions: our runtime polls while a handler is slow.
    #[must_use]
    pub fn is_evicted(self) -> bool {
        self.subject != Subject::Handstamp || self.how != Stalling::Handler
    }

    /// The beginning of the names of its files.
    #[must_use]
    pub fn file_stem(self, run: u32) -> String {
        let how = match self.how {
            Stalling::Handler => "slow",
            Stalling::NotPolling => "not-polling",
            Stalling::Frozen => "frozen",
        };
        format!("zombie-{run}-{}-{how}", self.subject)
    }
}

/// What is asked for beside the ordinary settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalls {
    /// One message in so many is stalled on.
    pub one_in: u64,
    /// For how long.
    pub ms: u64,
    /// `max.poll.interval.ms`.
    pub max_poll_interval_ms: u64,
    /// Consumers in the group.
    pub members: u32,
    /// `partition.assignment.strategy`; `None`: the client library's own, which is eager.
    pub assignor: Option<String>,
    /// Groups that differ from run to run; `None`: all are as above.
    #[serde(default)]
    pub vary: Option<Vary>,
}

/// How groups differ from run to run, by the seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vary {
    /// Fewest and most consumers.
    pub members: (u32, u32),
    /// Values of `partition.assignment.strategy`, by turns.
    pub assignors: Vec<String>,
}

impl Default for Vary {
    fn default() -> Self {
        // The first stops everybody at a rebalance, the second only those who give something away.
        Self { members: (2, 8), assignors: vec!["range".into(), "cooperative-sticky".into()] }
    }
}

/// The group of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Consumers in it.
    pub members: u32,
    /// `partition.assignment.strategy`; `None`: the client library's own.
    pub assignor: Option<String>,
}

impl Default for Stalls {
    fn default() -> Self {
        Self { one_in: 500, ms: 12_000, max_poll_interval_ms: 10_000, members: 3, assignor: None, vary: None }
    }
}

impl Stalls {
    /// The file of these in a run's folder.
    pub const FILE: &str = "stalls.json";

    /// The group of a run: one seed, one group for every row. As many runs as there are assignors have each
    /// of them once.
    #[must_use]
    pub fn group(&self, seed: u64, run: u32) -> Group {
        let Some(Vary { members: (from, to), assignors }) = &self.vary else {
            return Group { members: self.members, assignor: self.assignor.clone() };
        };
        let run = u64::from(run);
        let turns = u64::try_from(assignors.len()).unwrap_or(1).max(1);
        let first = Random::new(seed, 800_000 + run / turns).below(turns);
        let turn = usize::try_from((run + first) % turns).unwrap_or(0);
        let more = Random::new(seed, 900_000 + run).below(u64::from(to.saturating_sub(*from)) + 1);
        let members = from.saturating_add(u32::try_from(more).unwrap_or(0));
        Group { members, assignor: assignors.get(turn).cloned() }
    }

    /// The groups in words.
    #[must_use]
    pub fn describe_groups(&self) -> String {
        match &self.vary {
            None => format!("{} consumers", self.members),
            Some(Vary { members: (from, to), assignors }) => {
                format!("{from} to {to} consumers, {} by turns", assignors.join(" and "))
            }
        }
    }

    /// What makes no sense is refused.
    ///
    /// # Errors
    /// `Usage`, naming what.
    pub fn checked(self, settings: &Settings, place: &Place) -> Result<Self> {
        if matches!(place, Place::Sqlite(_)) {
            return Err(LabError::usage(
                "lab zombie needs Postgres (--database): a stalled transaction would hold SQLite's one writer",
            ));
        }
        if self.ms <= self.max_poll_interval_ms {
            return Err(LabError::usage(
                "a stall must be longer than max.poll.interval.ms, or nobody is evicted",
            ));
        }
        if self.max_poll_interval_ms < settings.session_timeout_ms {
            return Err(LabError::usage("max.poll.interval.ms is at least session.timeout.ms"));
        }
        if self.vary.as_ref().is_some_and(|vary| {
            vary.members.0 < 2 || vary.members.0 > vary.members.1 || vary.assignors.is_empty()
        }) {
            return Err(LabError::usage("groups that vary have at least two members and one assignor"));
        }
        if self.members < 2 || self.one_in == 0 || settings.messages < self.one_in {
            return Err(LabError::usage("at least two members, and enough messages for one stall"));
        }
        Ok(self)
    }
}

/// Does every run that is not complete yet and says what it all proves. `step` hears how many are done.
///
/// # Errors
/// As `lab kill`.
pub fn run(
    around: &Surroundings<'_>,
    stalls: &Stalls,
    step: &(dyn Fn(usize, usize) + Sync),
) -> Result<Outcome> {
    around.settings.save(around.folder)?;
    crate::json_file::save(around.folder, Stalls::FILE, stalls)?;
    let all: VecDeque<(u32, Row)> = (0..around.settings.runs)
        .flat_map(|run| Row::ALL.map(|row| (run, row)))
        .filter(|(run, row)| !outcome::is_complete(around.folder, *row, *run))
        .collect();
    let (total, done) = (all.len(), Mutex::new(0));
    let jobs = Mutex::new(all);
    let failed = Mutex::new(None);
    let cancel = around.cancel.below();
    let around = &Surroundings { cancel: &cancel, ..*around };
    let workers = around.settings.side_by_side.clamp(1, total.max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((number, row)) = job else { return };
                    if let Err(error) = run::zombie_run(around, stalls, row, number) {
                        // Its history says why it is not complete; the others have brokers of their own.
                        if error.kind == LabErrorKind::BrokerInside {
                            continue;
                        }
                        cancel.cancel();
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    *done += 1;
                    step(*done, total);
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => recompute(around.folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kill::Profile;

    #[test]
    fn rows_are_distinct_and_nonsense_is_refused() {
        let mut names: Vec<String> = Row::ALL.iter().map(|row| row.file_stem(0)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Row::ALL.len());
        let settings = Settings::of(Profile::Source);
        let place = Place::Postgres("postgres://nobody@127.0.0.1/none".into());
        assert!(Stalls::default().checked(&settings, &place).is_ok());
        assert!(Stalls::default().checked(&settings, &Place::Sqlite("x".into())).is_err());
        for stalls in [
            Stalls { ms: 10_000, ..Stalls::default() },
            Stalls { members: 1, ..Stalls::default() },
            Stalls { max_poll_interval_ms: 5000, ..Stalls::default() },
            Stalls { one_in: 1_000_000, ..Stalls::default() },
            Stalls { vary: Some(Vary { members: (1, 8), ..Vary::default() }), ..Stalls::default() },
            Stalls { vary: Some(Vary { members: (5, 4), ..Vary::default() }), ..Stalls::default() },
            Stalls { vary: Some(Vary { assignors: vec![], ..Vary::default() }), ..Stalls::default() },
        ] {
            assert!(stalls.checked(&settings, &place).is_err());
        }
    }

    #[test]
    fn groups_vary_by_the_seed_alone_and_every_pair_of_runs_has_both_assignors() {
        let stalls = Stalls { vary: Some(Vary::default()), ..Stalls::default() };
        let groups = |seed| (0..1000).map(|run| stalls.group(seed, run)).collect::<Vec<Group>>();
        let one = groups(1);
        assert_eq!(one, groups(1));
        assert_ne!(one, groups(2));
        let members: std::collections::BTreeSet<u32> = one.iter().map(|group| group.members).collect();
        assert_eq!(members, (2..=8).collect());
        for pair in one.chunks(2) {
            assert_ne!(pair[0].assignor, pair[1].assignor);
        }
        // Which is first is drawn anew for each pair.
        let cooperative = one.iter().step_by(2).filter(|group| group.assignor.as_deref() != Some("range"));
        assert!((100..400).contains(&cooperative.count()));
        let fixed = Stalls::default().group(1, 7);
        assert_eq!(fixed, Group { members: 3, assignor: None });
    }
}
