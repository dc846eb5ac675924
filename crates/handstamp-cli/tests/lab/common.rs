//! The program in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub(crate) struct Lab {
    folder: TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
        command.arg("lab").args(args).current_dir(self.folder.path());
        command.env_remove("HANDSTAMP_LAB_DATABASE").env_remove("DATABASE_URL").env_remove("HANDSTAMP_LOG");
        command.stdin(Stdio::null());
        command
    }

    /// Runs it and demands an exit code; returns what it printed.
    #[track_caller]
    pub(crate) fn exits(&self, args: &[&str], code: i32) -> String {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", shown(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same with an object as its output.
    #[track_caller]
    pub(crate) fn object(&self, args: &[&str], code: i32) -> serde_json::Value {
        serde_json::from_str(&self.exits(args, code)).unwrap()
    }

    /// What it says of a mistake.
    #[track_caller]
    pub(crate) fn refuses(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", shown(&output));
        String::from_utf8(output.stderr).unwrap()
    }
}

pub(crate) fn shown(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A short run without any server.
pub(crate) const SHORT: [&str; 11] = [
    "kill",
    "--kills",
    "1",
    "--messages",
    "300",
    "--session-timeout",
    "1s",
    "--rate-messages",
    "0",
    "--subjects",
    "handstamp",
];

/// The doubled and lost effects of a row.
pub(crate) fn of(outcome: &serde_json::Value, row: &str) -> (u64, u64) {
    let rows = outcome["rows"].as_array().unwrap();
    let row = rows.iter().find(|one| one["name"] == row).unwrap_or_else(|| panic!("no row {row}: {outcome}"));
    let sum = |what: &str| {
        row["runs"].as_array().unwrap().iter().map(|run| run["verdict"][what].as_u64().unwrap()).sum()
    };
    (sum("doubled"), sum("lost"))
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}
