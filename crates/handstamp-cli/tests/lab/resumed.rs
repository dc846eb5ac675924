//! `lab faults outage` and `partition` killed between two rows, and gone on with: on servers of their own.

use crate::common::{Lab, files};
use crate::processes::{Known, below, within_time};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Servers are started first, and a row takes its time.
const ROW_MAX: Duration = Duration::from_secs(240);

fn services() -> String {
    std::env::var("HANDSTAMP_TEST_SERVICES")
        .unwrap_or_else(|_| panic!("HANDSTAMP_TEST_SERVICES is not set: run scripts/test"))
}

/// Servers that a killed lab could not end, ended when the test is.
struct Owned(String);

impl Owned {
    fn new(lab: &Lab) -> Self {
        let folder = lab.path("run").into_os_string().into_string().unwrap();
        Self(format!("killed{}", folder.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")))
    }

    fn down(&self) -> bool {
        let down = Command::new(services()).args(["down", "--owner", &self.0]).stdout(Stdio::null()).status();
        down.is_ok_and(|status| status.success())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.down();
    }
}

/// A folder as a run leaves it that was killed before its first row: settings alone.
fn asked_for(lab: &Lab, settings: &Value) -> PathBuf {
    let folder = lab.path("run");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("faults.json"), settings.to_string()).unwrap();
    folder
}

/// Histories that came to their end, with what lies in them.
fn complete(folder: &Path) -> BTreeMap<PathBuf, String> {
    let histories = files(folder).into_iter().filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".jsonl") && !name.ends_with(".sent.jsonl")
    });
    let read = histories.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    read.filter(|(_, text)| text.lines().last().is_some_and(|line| line.contains(r#""event":"end""#)))
        .collect()
}

/// Kills the command when its first rows are complete, and goes on with it; what it says in the end.
#[track_caller]
fn killed_and_resumed(command: &str, settings: &Value, rows: usize) -> Value {
    let lab = Lab::new();
    let (folder, owned, services) = (asked_for(&lab, settings), Owned::new(&lab), services());
    let args = ["faults", command, "--resume", "run", "--services", &services, "--json"];
    let mut killed = lab.command(&args);
    killed.env("HANDSTAMP_SERVICES_OWNER", &owned.0).stdout(Stdio::null()).stderr(Stdio::null());
    let mut killed = killed.spawn().unwrap();
    within_time("a complete row", ROW_MAX, || {
        assert_eq!(killed.try_wait().unwrap(), None, "it ended before it was killed");
        !complete(&folder).is_empty()
    });
    let members = below(killed.id());
    killed.kill().unwrap();
    killed.wait().unwrap();
    within_time("its members are gone", ROW_MAX, || !members.iter().any(Known::runs));
    let kept = complete(&folder);
    assert!((1..rows).contains(&kept.len()), "killed too late: {:?}", kept.keys());
    let half = lab.object(&["verify", "run", "--json"], 6);
    assert_eq!(half["rows"].as_array().unwrap().len(), rows, "{half}");
    assert!(owned.down(), "the servers of a killed lab can be ended by their owner");

    let mut again = lab.command(&args);
    let output = again.env("HANDSTAMP_SERVICES_OWNER", &owned.0).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", crate::common::shown(&output));
    let now = complete(&folder);
    assert_eq!(now.len(), rows);
    for (path, text) in &kept {
        assert_eq!(&now[path], text, "{}: it was complete", path.display());
    }
    let report = std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(report.contains("**Kept:**") && folder.join("timeline.svg").exists(), "{report}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(lab.object(&["verify", "run", "--json"], 0), outcome);
    outcome
}

/// Each row that promises held, by its standing.
fn standings(outcome: &Value) -> Vec<&str> {
    outcome["rows"].as_array().unwrap().iter().map(|row| row["standing"].as_str().unwrap_or("")).collect()
}

#[test]
fn an_outage_that_was_killed_between_two_rows_goes_on_with_the_others() {
    let times = json!({"before_ms": 1500, "fault_ms": 3000, "settle_ms": 0, "after_ms": 1500, "work_ms": 20});
    let outcome = killed_and_resumed(
        "outage",
        &json!({
            "seed": 7, "side_by_side": 1, "command": "outage", "subject": "handstamp50", "times": times,
            "faults": ["database_frozen", "database_read_only"],
        }),
        2,
    );
    assert_eq!(standings(&outcome), ["held", "held"], "{outcome}");
}

#[test]
fn a_partition_that_was_killed_between_two_rows_goes_on_with_the_others() {
    let outcome = killed_and_resumed(
        "partition",
        &json!({
            "seed": 7, "side_by_side": 2, "command": "partition", "subject": "handstamp", "rounds": 1,
            "splits": ["both_ways", "up_only", "down_only"],
        }),
        4,
    );
    assert_eq!(standings(&outcome), ["held", "held", "held", "control"], "{outcome}");
}
