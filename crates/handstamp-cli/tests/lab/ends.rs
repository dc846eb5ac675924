//! However the lab ends, nothing of it is left behind.

use crate::common::{Lab, SHORT, files, shown};
use crate::processes::{Known, below, within};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The process ids that the histories of a run name, as they are written.
fn pids(folder: &Path) -> Vec<u64> {
    let histories =
        files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let lines: String = histories.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
    let events = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events.filter_map(|event| event["pid"].as_u64()).collect()
}

/// Starts a command whose output nobody reads before its end.
fn started(lab: &Lab, args: &[&str]) -> Child {
    let mut command = lab.command(args);
    command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// A run that is under way: every row has a consumer.
fn under_way(lab: &Lab) -> Child {
    let child = started(lab, &[&SHORT[..], &["--out", "run"]].concat());
    within("three consumers", || lab.path("run").exists() && pids(&lab.path("run")).len() >= 3);
    child
}

/// SIGKILLs the lab, and waits until everything that it had started is gone.
#[track_caller]
fn killed_with_everything(mut lab: Child, names: &[&str]) {
    let left = below(lab.id());
    for name in names {
        assert!(left.iter().any(|one| one.command.contains(name)), "no {name} among {left:#?}");
    }
    lab.kill().unwrap();
    lab.wait().unwrap();
    within("everything that the lab had started is gone", || !left.iter().any(Known::runs));
}

#[test]
fn a_first_signal_ends_everything_and_the_rest_can_be_resumed() {
    let lab = Lab::new();
    let child = under_way(&lab);
    let left = below(child.id());
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", shown(&output));
    assert!(shown(&output).contains("lab kill --resume"), "{}", shown(&output));
    // The guard hears of the end when it comes.
    within("everything that the lab had started is gone", || !left.iter().any(Known::runs));
    let databases: Vec<_> = files(&lab.path("run"))
        .into_iter()
        .filter(|path| !path.extension().is_some_and(|end| end == "json" || end == "jsonl"))
        .collect();
    assert!(databases.is_empty(), "{databases:?}");
    lab.exits(&["verify", "run"], 6);
    lab.exits(&["kill", "--resume", "run"], 0);
}

#[test]
fn a_lab_that_is_killed_takes_its_consumers_and_its_brokers_along() {
    let lab = Lab::new();
    let child = under_way(&lab);
    killed_with_everything(child, &["lab\0subject", "lab\0mock-broker", "lab\0guard"]);
}

/// The user's program, and what it started itself, need not know of any lab: they ignore its pipe.
#[test]
fn a_lab_that_is_killed_takes_the_users_programs_along_and_what_they_started() {
    let lab = Lab::new();
    let toml = "patience = \"10m\"\n[messages]\ncount = 50\n[program]\ncopies = 2\n[effects]\ncommand = [\"true\"]\n";
    std::fs::write(lab.path("lab.toml"), toml).unwrap();
    let script = "sleep 6001 & echo > started-$$; exec sleep 6002";
    let child = started(&lab, &["own", "--out", "run", "--", "sh", "-c", script]);
    let is_started = |path: &std::path::PathBuf| path.to_string_lossy().contains("started-");
    within("two copies", || files(&lab.path(".")).iter().filter(|path| is_started(path)).count() == 2);
    within("two sleepers each", || {
        below(child.id()).iter().filter(|one| one.command.starts_with("sleep\0")).count() == 4
    });
    killed_with_everything(child, &["sleep\x006001", "sleep\x006002", "lab\0mock-broker"]);
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let lab = Lab::new();
    std::fs::write(lab.path("lab.toml"), "[messages]\ncount = 5\n[effects]\ncommand = [\"true\"]\n").unwrap();
    let output = lab.command(&["own", "--", "no-such-program-here"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot be started: no-such-program-here: No such file"), "{said}");
}

/// Without any guard: the tie of each child alone.
#[test]
fn a_tethered_program_ends_with_its_parent_and_does_not_start_without_it() {
    let lab = Lab::new();
    let program = env!("CARGO_BIN_EXE_handstamp");
    let script = format!("{program} lab tether $$ -- sleep 6003 & wait");
    let mut shell = Command::new("sh");
    // Whoever reads this test's output must not wait for a program that outlives it.
    shell.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut shell = shell.spawn().unwrap();
    let asleep = || below(shell.id()).into_iter().find(|one| one.command == "sleep\x006003\0");
    within("it became the program", || asleep().is_some());
    let sleep = asleep().unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    within("the program is gone", || !sleep.runs());

    // Of a parent that was gone before it could be asked for.
    let status = lab.command(&["tether", "1", "--", "touch", "touched"]).status().unwrap();
    assert_eq!((status.code(), lab.path("touched").exists()), (Some(1), false));
    let here = std::process::id().to_string();
    let status = lab.command(&["tether", &here, "--", "touch", "touched"]).status().unwrap();
    assert_eq!((status.code(), lab.path("touched").exists()), (Some(0), true));
}
