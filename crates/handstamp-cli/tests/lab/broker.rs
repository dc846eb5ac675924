//! The broker inside the lab may end by itself: it does here, by SIGKILL from outside.

use crate::common::{Lab, SHORT, of, shown};
use crate::processes::below;
use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const ONE_BY_ONE: [&str; 5] = ["--out", "run", "--side-by-side", "1", "--json"];

/// Ends brokers of a running lab, each after a consumer works on it, until so many were ended or the lab is.
fn without_brokers(lab: &Lab, args: &[&str], most: usize) -> (Output, usize) {
    let mut command = lab.command(args);
    let mut child: Child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ended = BTreeSet::new();
    while child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        let mut family = below(child.id());
        family.sort_by_key(|one| one.started);
        let brokers: Vec<u32> =
            family.iter().filter(|one| one.command.contains("lab\0mock-broker")).map(|one| one.pid).collect();
        // The first is nobody's: each run has one of its own, and a consumer of it works when it is ended.
        let Some(broker) = brokers.iter().skip(1).find(|pid| !ended.contains(*pid)) else { continue };
        if ended.len() < most && family.iter().any(|one| one.command.contains("lab\0subject")) {
            let sent = Command::new("kill").args(["-s", "KILL", &broker.to_string()]).status().unwrap();
            assert!(sent.success());
            ended.insert(*broker);
        }
    }
    (child.wait_with_output().unwrap(), ended.len())
}

fn broker_ended(outcome: &serde_json::Value) -> u64 {
    outcome["rows"].as_array().unwrap().iter().map(|row| row["broker_ended"].as_u64().unwrap()).sum()
}

#[test]
fn what_ran_on_a_broker_that_ended_is_run_again_and_said() {
    let lab = Lab::new();
    let (output, ended) = without_brokers(&lab, &[&SHORT[..], &ONE_BY_ONE].concat(), 2);
    assert_eq!((output.status.code(), ended), (Some(0), 2), "{}", shown(&output));
    let outcome = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(broker_ended(&outcome), 2, "{outcome}");
    assert_eq!(of(&outcome, "handstamp"), (0, 0));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the broker inside the lab ended by itself (signal: 9 (SIGKILL))"), "{said}");
    assert!(lab.exits(&["verify", "run"], 0).contains("the broker inside the lab ended by itself 2 times"));
}

#[test]
fn a_run_whose_broker_ends_each_time_proves_nothing_and_the_others_go_on() {
    let lab = Lab::new();
    // The first row, three times.
    let (output, ended) = without_brokers(&lab, &[&SHORT[..], &ONE_BY_ONE].concat(), 3);
    assert_eq!((output.status.code(), ended), (Some(6), 3), "{}", shown(&output));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = outcome["conclusion"]["because"].to_string();
    assert!(why.contains("runs are missing: the broker inside the lab ended by itself, 3 times"), "{why}");
    let complete =
        outcome["rows"].as_array().unwrap().iter().filter(|row| row["runs"] != serde_json::json!([]));
    assert_eq!(complete.count(), outcome["rows"].as_array().unwrap().len() - 1, "{outcome}");
}
