//! What an ordinary build of the program lacks: crash points, their names, and what asks for them.
//!
//! The same file is compiled with the feature too, and then looks for the same words and finds every one:
//! so a search that finds nothing has searched.

// Helpers of tests panic as tests do: that is the failure report.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
#[cfg(feature = "lab")]
use std::process::Command;

/// The table of the points, as it is written.
const TABLE: &str = include_str!("../../handstamp-core/src/crash_point.rs");

/// The points' names and what asks for them.
fn words() -> Vec<&'static str> {
    let rows = TABLE.lines().filter_map(|line| line.trim().strip_prefix("(CrashPoint::"));
    let mut words: Vec<&str> = rows.filter_map(|row| row.split('"').nth(1)).collect();
    assert!(words.len() >= 15, "the table is not found in its file: {words:?}");
    words.extend(["HANDSTAMP_CRASH_AT", "HANDSTAMP_CRASH_MARK"]);
    words
}

/// Which of the words stand in the program: in one pass, for it is large and this is not optimised.
fn found(program: &[u8], words: &[&'static str]) -> BTreeSet<&'static str> {
    let mut begins = [false; 256];
    words.iter().for_each(|word| begins[usize::from(word.as_bytes()[0])] = true);
    let mut found = BTreeSet::new();
    for (at, byte) in program.iter().enumerate() {
        if begins[usize::from(*byte)] {
            found.extend(words.iter().filter(|word| program[at..].starts_with(word.as_bytes())));
        }
    }
    found
}

#[test]
fn the_program_has_the_crash_points_names_only_when_built_with_them() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_handstamp")).unwrap();
    let mut words = words();
    words.push("HANDSTAMP_LOG");
    let expected = if cfg!(feature = "crash-points") { words.clone() } else { vec!["HANDSTAMP_LOG"] };
    assert_eq!(found(&program, &words), expected.into_iter().collect());
}

/// Asked for a crash, an ordinary program says how to build one that can.
#[cfg(all(feature = "lab", not(feature = "crash-points")))]
#[test]
fn without_crash_points_the_commands_that_need_them_exit_2_with_the_build_command() {
    for args in [&["lab", "matrix"][..], &["lab", "kill", "--at", "somewhere:2"]] {
        let done = Command::new(env!("CARGO_BIN_EXE_handstamp")).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("cargo build") && said.contains("crash-points"), "{args:?}: {said}");
    }
}

/// A point that is not there is refused before anything is done, whatever the command.
#[cfg(feature = "crash-points")]
#[test]
fn a_crash_point_that_is_none_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handstamp"));
    let done = command.args(["check", "none.toml"]).env("HANDSTAMP_CRASH_AT", "nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("\"nowhere\" is no crash point") && said.contains("before-commit"), "{said}");
}
