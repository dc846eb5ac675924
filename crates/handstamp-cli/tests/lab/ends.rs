//! However the lab ends, nothing of it is left behind.

use crate::common::{Lab, SHORT, files, shown};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The process ids that the histories of a run name, as they are written.
fn pids(folder: &Path) -> Vec<u64> {
    let histories =
        files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let lines: String = histories.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
    let events = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events.filter_map(|event| event["pid"].as_u64()).collect()
}

/// Whether a process of the lab still runs: another one may have its number by now.
fn runs(pid: u64) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let zombie = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
    String::from_utf8_lossy(&command).contains("subject") && !zombie
}

#[track_caller]
fn within(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run that is under way: every row has a consumer.
fn under_way(lab: &Lab) -> Child {
    let child = lab.command(&[&SHORT[..], &["--out", "run"]].concat());
    let child = { child }.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn();
    let child = child.unwrap();
    within("three consumers", || lab.path("run").exists() && pids(&lab.path("run")).len() >= 3);
    child
}

#[test]
fn a_first_signal_ends_everything_and_the_rest_can_be_resumed() {
    let lab = Lab::new();
    let child = under_way(&lab);
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", shown(&output));
    assert!(shown(&output).contains("lab kill --resume"), "{}", shown(&output));
    let left: Vec<u64> = pids(&lab.path("run")).into_iter().filter(|pid| runs(*pid)).collect();
    assert_eq!(left, Vec::<u64>::new());
    let databases: Vec<_> = files(&lab.path("run"))
        .into_iter()
        .filter(|path| !path.extension().is_some_and(|end| end == "json" || end == "jsonl"))
        .collect();
    assert!(databases.is_empty(), "{databases:?}");
    lab.exits(&["verify", "run"], 6);
    lab.exits(&["kill", "--resume", "run"], 0);
}

#[test]
fn a_lab_that_is_killed_takes_its_consumers_along() {
    let lab = Lab::new();
    let mut child = under_way(&lab);
    child.kill().unwrap();
    child.wait().unwrap();
    let started = pids(&lab.path("run"));
    within("every consumer is gone", || !started.iter().any(|pid| runs(*pid)));
}
