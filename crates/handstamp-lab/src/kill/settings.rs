//! What a kill run is asked to do; kept beside its histories, so that `verify` and `--resume` know.

use crate::error::{LabError, Result};
use crate::json_file;
use crate::schedule::Schedule;
use crate::subjects::Subject;
use crate::workload::Plan;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// The file of the settings in a run's folder.
pub const SETTINGS_FILE: &str = "settings.json";

/// Longer ones would make names of schemas that Postgres cuts off.
const ID_LEN: usize = 5;

/// Named sets of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Shows the differences in a minute and a half.
    Quick,
    /// The numbers of the published measurements: 20 kills a run, 5 runs.
    Source,
    /// By hand: as many kills as asked for.
    Long,
}

/// Everything that decides what happens. No place and no secret is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// In the name of every topic, group and schema of the run; made up when it is checked first.
    pub id: String,
    /// Which profile it began as.
    pub profile: String,
    /// Decides credits and kills.
    pub seed: u64,
    /// Runs of each row.
    pub runs: u32,
    /// Random kills in each run.
    pub kills: u32,
    /// How long after its first handled message a consumer dies, from and to, in milliseconds.
    pub kill_within_ms: (u64, u64),
    /// Kills at the named point, in each run of a row that has one.
    pub held_kills: u32,
    /// Credits of a run; more where the schedule needs more.
    pub messages: u64,
    /// Accounts.
    pub accounts: u64,
    /// Partitions of the topic.
    pub partitions: i32,
    /// Work on each message beside the database.
    pub work_ms: u64,
    /// `session.timeout.ms` of every consumer.
    pub session_timeout_ms: u64,
    /// A kill counts when so many messages were left.
    pub left_min: u64,
    /// One message in so many is sent twice in the row `resend`.
    pub resend_one_in: u64,
    /// Who is killed.
    pub subjects: Vec<Subject>,
    /// Messages of the throughput measurement; 0: it is left out.
    pub throughput_messages: u64,
    /// Rows that run at the same time.
    pub side_by_side: usize,
    /// What the broker and the store are, so that a resumed run uses the same.
    pub place: String,
}

impl Settings {
    /// The settings of a profile.
    #[must_use]
    pub fn of(profile: Profile) -> Self {
        let quick = Self {
            id: String::new(),
            profile: "quick".into(),
            seed: 1,
            runs: 1,
            kills: 4,
            kill_within_ms: (1000, 5000),
            held_kills: 2,
            messages: 1000,
            accounts: 100,
            partitions: 6,
            work_ms: 10,
            session_timeout_ms: 6000,
            left_min: 300,
            resend_one_in: 20,
            subjects: vec![Subject::A1, Subject::B, Subject::OffsetFirst, Subject::C, Subject::Handstamp],
            throughput_messages: 1000,
            side_by_side: 8,
            place: String::new(),
        };
        match profile {
            Profile::Quick => quick,
            Profile::Source | Profile::Long => Self {
                profile: if profile == Profile::Source { "source" } else { "long" }.into(),
                runs: 5,
                kills: 20,
                kill_within_ms: (1000, 8000),
                held_kills: 5,
                messages: 10_000,
                subjects: Subject::ALL.to_vec(),
                throughput_messages: 10_000,
                ..quick
            },
        }
    }

    /// What makes no sense is refused before anything is started; the two negative controls are added.
    ///
    /// # Errors
    /// `Usage`, naming the setting.
    pub fn checked(mut self, store_is_sqlite: bool) -> Result<Self> {
        let wrong = |what: &str| Err(LabError::usage(what.to_owned()));
        if self.runs == 0 || self.kills == 0 || self.partitions < 1 || self.accounts == 0 {
            return wrong("runs, kills, partitions and accounts are at least 1");
        }
        if self.work_ms == 0 || self.work_ms > 10_000 {
            return wrong("--work: from 1ms to 10s; without any work a kill seldom hits something open");
        }
        if self.session_timeout_ms < 500 {
            return wrong("--session-timeout: at least 500ms");
        }
        if self.kill_within_ms.0 > self.kill_within_ms.1 {
            return wrong("a kill's earliest time is after its latest");
        }
        if store_is_sqlite {
            let program = |subject: &Subject| {
                matches!(subject, Subject::HandstampProgram | Subject::HandstampProgram50)
            };
            self.subjects.retain(|subject| !program(subject));
            if self.subjects.is_empty() {
                return wrong(
                    "handstamp-program needs Postgres (--database): its work is an effect that sleeps",
                );
            }
        }
        // Without them a 0 of the others would prove nothing.
        self.subjects.extend([Subject::A1, Subject::OffsetFirst]);
        self.subjects = Subject::ALL.into_iter().filter(|one| self.subjects.contains(one)).collect();
        if self.id.is_empty() {
            self.id = uuid::Uuid::new_v4().simple().to_string()[..ID_LEN].to_owned();
        }
        Ok(self)
    }

    /// The rows of the table, in its order.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> =
            self.subjects.iter().map(|subject| Row { subject: *subject, kind: RowKind::Random }).collect();
        let held = |row: &Row| (row.subject.point().is_some() && self.held_kills > 0).then_some(row.subject);
        let held: Vec<Subject> = rows.iter().filter_map(held).collect();
        rows.extend(held.into_iter().map(|subject| Row { subject, kind: RowKind::Held }));
        let resent = if self.profile == "quick" {
            vec![Subject::Handstamp]
        } else {
            vec![Subject::B, Subject::C, Subject::Handstamp, Subject::Handstamp50]
        };
        let resent = resent.into_iter().filter(|subject| self.subjects.contains(subject));
        rows.extend(resent.map(|subject| Row { subject, kind: RowKind::Resend }));
        rows
    }

    /// The kills of a run; the same for every subject.
    #[must_use]
    pub fn schedule(&self, run: u32) -> Schedule {
        let (from, to) = self.kill_within_ms;
        Schedule::seeded(self.seed, run, self.kills, &(from..=to))
    }

    /// The credits of a run; the same for every subject of a kind.
    #[must_use]
    pub fn plan(&self, run: u32, kind: RowKind) -> Plan {
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(run));
        let needed = self.schedule(run).messages_needed(Duration::from_millis(self.work_ms), self.left_min);
        let messages = match kind {
            RowKind::Held => self.left_min + 100 * u64::from(self.held_kills),
            RowKind::Random | RowKind::Resend => self.messages.max(needed),
        };
        let resends = if kind == RowKind::Resend { messages / self.resend_one_in.max(1) } else { 0 };
        Plan { seed, messages, accounts: self.accounts, resends }
    }

    /// Writes them into a run's folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        json_file::save(folder, SETTINGS_FILE, self)
    }

    /// Reads them from a run's folder.
    ///
    /// # Errors
    /// `Usage` when the folder holds no run.
    pub fn load(folder: &Path) -> Result<Self> {
        json_file::load(folder, SETTINGS_FILE, "lab run")
    }
}

/// How a row's consumers die, or what is sent to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// Killed at random times.
    Random,
    /// Held at the subject's named point and killed there.
    Held,
    /// Killed at random times, and the producer sends some events twice.
    Resend,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Row {
    /// Who.
    pub subject: Subject,
    /// How.
    pub kind: RowKind,
}

impl Row {
    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> String {
        match self.kind {
            RowKind::Random => self.subject.name().to_owned(),
            RowKind::Held => format!("{} @{}", self.subject, self.subject.point().unwrap_or("?")),
            RowKind::Resend => format!("{} +resend", self.subject),
        }
    }

    /// The beginning of the names of its files.
    #[must_use]
    pub fn file_stem(self, run: u32) -> String {
        let kind = match self.kind {
            RowKind::Random => "",
            RowKind::Held => "-held",
            RowKind::Resend => "-resend",
        };
        format!("run-{run}-{}{kind}", self.subject)
    }

    /// Whether one doubled or lost effect in it is a violation.
    #[must_use]
    pub fn promises(self) -> bool {
        self.subject.promises()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controls_are_always_there_and_rows_are_distinct() {
        let settings = Settings { subjects: vec![Subject::Handstamp], ..Settings::of(Profile::Quick) };
        let settings = settings.checked(true).expect("sensible");
        assert_eq!(settings.subjects, [Subject::A1, Subject::OffsetFirst, Subject::Handstamp]);
        let all = Settings::of(Profile::Source).checked(false).expect("sensible");
        let mut stems: Vec<String> = all.rows().into_iter().map(|row| row.file_stem(0)).collect();
        let count = stems.len();
        stems.sort();
        stems.dedup();
        assert_eq!(stems.len(), count);
        assert!(count > Subject::ALL.len());
    }

    #[test]
    fn a_plan_leaves_enough_for_the_last_kill_and_is_one_for_all_subjects() {
        let settings = Settings::of(Profile::Source);
        for run in 0..5 {
            let sum: u64 = settings.schedule(run).after_ms.iter().sum();
            let plan = settings.plan(run, RowKind::Random);
            assert!(plan.messages >= 10_000 && plan.messages >= sum / 10 + 300, "{run}");
            assert_eq!(settings.plan(run, RowKind::Resend).messages, plan.messages);
            assert_eq!(settings.plan(run, RowKind::Resend).resends, plan.messages / 20);
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        let quick = Settings::of(Profile::Quick);
        for (settings, word) in [
            (Settings { work_ms: 0, ..quick.clone() }, "--work"),
            (Settings { kills: 0, ..quick.clone() }, "kills"),
            (Settings { session_timeout_ms: 1, ..quick.clone() }, "--session-timeout"),
            (Settings { subjects: vec![Subject::HandstampProgram], ..quick.clone() }, "Postgres"),
        ] {
            let error = settings.checked(true).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn settings_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = Settings::of(Profile::Source);
        settings.save(folder.path()).expect("written");
        assert_eq!(Settings::load(folder.path()).expect("read"), settings);
        let empty = tempfile::tempdir().expect("a folder");
        assert!(Settings::load(empty.path()).expect_err("nothing").to_string().contains("no lab run"));
    }
}
