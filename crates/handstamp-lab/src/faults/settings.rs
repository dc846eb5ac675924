//! What is asked of `lab faults`, kept in the run's folder, and the rows that it makes.

use super::commit::Contender;
use super::fault::Fault;
use super::outage::OutageTimes;
use super::partition::Split;
use crate::error::{LabError, Result};
use crate::json_file;
use crate::subjects::Subject;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Which command, with what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// `lab faults commit`.
    Commit {
        /// At least so many faults for our runtime; every position of the exchange is aimed at in any case.
        cuts: usize,
        /// The same for the control without an inbox.
        control_cuts: usize,
        /// Consumers side by side, each with a connection and a proxy of its own.
        lanes: u32,
        /// Faults of one part, each with ledger, history and log of its own: what is complete of a row that was
        /// interrupted. Without a number a row is one part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<NonZeroUsize>,
    },
    /// `lab faults outage`.
    Outage {
        /// Who consumes.
        subject: Subject,
        /// What happens.
        faults: Vec<Fault>,
        /// How long it takes.
        times: OutageTimes,
    },
    /// `lab faults partition`.
    Partition {
        /// Who consumes, beside the control.
        subject: Subject,
        /// What is cut.
        splits: Vec<Split>,
        /// How often.
        rounds: u32,
    },
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Decides messages, positions and their order.
    pub seed: u64,
    /// Rows that are run at a time; more share the machine, so rates are measured with one.
    pub side_by_side: usize,
    /// Which command.
    #[serde(flatten)]
    pub command: Command,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKey {
    /// Cuts in the COMMIT exchange.
    Commit(Contender),
    /// A server goes away.
    Outage(Fault, Subject),
    /// A member is cut off.
    Partition(Split, Subject),
}

/// The word that stands for it in files.
fn word(of: impl Serialize) -> String {
    match serde_json::to_value(of) {
        Ok(Value::String(word)) => word.replace('_', "-"),
        _ => String::new(),
    }
}

impl RowKey {
    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Commit(contender) => contender.name().to_owned(),
            Self::Outage(fault, _) => fault.describe().to_owned(),
            Self::Partition(split, subject) => {
                let control = if subject.promises() { "" } else { " (control)" };
                format!("{}: {subject}{control}", split.describe())
            }
        }
    }

    /// The beginning of the names of its files.
    #[must_use]
    pub fn file_stem(self) -> String {
        match self {
            Self::Commit(contender) => format!("commit-{}", word(contender)),
            Self::Outage(fault, subject) => format!("outage-{}-{subject}", word(fault)),
            Self::Partition(split, subject) => format!("partition-{}-{subject}", word(split)),
        }
    }

    /// Whether one doubled or lost effect in it is a violation.
    #[must_use]
    pub fn promises(self) -> bool {
        match self {
            Self::Commit(contender) => contender == Contender::Handstamp,
            Self::Outage(_, subject) | Self::Partition(_, subject) => subject.promises(),
        }
    }
}

impl Settings {
    /// The file of these in a run's folder.
    pub const FILE: &str = "faults.json";

    /// The rows, in the table's order.
    #[must_use]
    pub fn rows(&self) -> Vec<RowKey> {
        match &self.command {
            Command::Commit { .. } => {
                vec![RowKey::Commit(Contender::Handstamp), RowKey::Commit(Contender::WithoutInbox)]
            }
            Command::Outage { subject, faults, .. } => {
                faults.iter().map(|fault| RowKey::Outage(*fault, *subject)).collect()
            }
            Command::Partition { subject, splits, .. } => {
                // The first one is done to a consumer without an inbox too: that one must double.
                let control = splits.iter().find(|split| !split.needs_three());
                let control = control.map(|split| RowKey::Partition(*split, Subject::B));
                splits.iter().map(|split| RowKey::Partition(*split, *subject)).chain(control).collect()
            }
        }
    }

    /// The beginnings of the files of a row's parts, in order; most rows are one part.
    #[must_use]
    pub fn stems(&self, folder: &Path, key: RowKey) -> Vec<PathBuf> {
        let stem = key.file_stem();
        let parts = match (&self.command, key) {
            (Command::Commit { cuts, part: Some(part), .. }, RowKey::Commit(Contender::Handstamp)) => {
                cuts.div_ceil(part.get())
            }
            (Command::Commit { control_cuts, part: Some(part), .. }, RowKey::Commit(_)) => {
                control_cuts.div_ceil(part.get())
            }
            _ => 1,
        };
        if parts <= 1 {
            return vec![folder.join(stem)];
        }
        (0..parts).map(|part| folder.join(format!("{stem}-{part}"))).collect()
    }

    /// Why a folder of these cannot be resumed by another command.
    pub(super) fn other_than(&self, command: &str, folder: &Path) -> LabError {
        LabError::usage(format!(
            "the run in {} is one of `lab faults {}`, not of `lab faults {command}`",
            folder.display(),
            self.command_name()
        ))
    }

    /// The name of the command.
    #[must_use]
    pub fn command_name(&self) -> &'static str {
        match self.command {
            Command::Commit { .. } => "commit",
            Command::Outage { .. } => "outage",
            Command::Partition { .. } => "partition",
        }
    }

    /// Keeps them in a folder.
    ///
    /// # Errors
    /// `Usage` when the folder holds a run; the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        if folder.join(Self::FILE).exists() {
            return Err(LabError::usage(format!("{} holds a run already", folder.display())));
        }
        json_file::save(folder, Self::FILE, self)
    }

    /// Those of a folder.
    ///
    /// # Errors
    /// `Usage` when it holds no run of `lab faults`.
    pub fn load(folder: &Path) -> Result<Self> {
        json_file::load(folder, Self::FILE, "run of lab faults")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_and_files_of_their_own_and_settings_are_read_as_written() {
        let subject = Subject::HandstampProgram50;
        let commands = [
            (Command::Commit { cuts: 300, control_cuts: 80, lanes: 4, part: None }, 2, 1),
            (Command::Commit { cuts: 300, control_cuts: 80, lanes: 4, part: NonZeroUsize::new(90) }, 2, 1),
            (Command::Outage { subject, faults: Fault::ALL.to_vec(), times: OutageTimes::LONG }, 7, 0),
            (Command::Partition { subject, splits: Split::ALL.to_vec(), rounds: 2 }, 5, 1),
        ];
        for (command, rows, controls) in commands {
            let settings = Settings { seed: 7, side_by_side: 3, command };
            let keys = settings.rows();
            for of in [RowKey::file_stem, RowKey::name] {
                let mut all: Vec<String> = keys.iter().copied().map(of).collect();
                all.sort();
                all.dedup();
                assert_eq!((all.len(), all.iter().any(String::is_empty)), (rows, false), "{all:?}");
            }
            assert_eq!(keys.iter().filter(|key| !key.promises()).count(), controls);
            let folder = tempfile::tempdir().expect("a folder");
            settings.save(folder.path()).expect("written");
            assert_eq!(Settings::load(folder.path()).expect("read"), settings);
            assert!(settings.save(folder.path()).expect_err("there is one").to_string().contains("already"));
            let stems: Vec<PathBuf> =
                keys.iter().flat_map(|key| settings.stems(folder.path(), *key)).collect();
            let parts = matches!(settings.command, Command::Commit { part: Some(_), .. });
            // 300 faults in parts of 90, and 80 in one.
            assert_eq!(stems.len(), if parts { 4 + 1 } else { rows }, "{stems:?}");
        }
    }
}
