//! `lab faults` against real servers. Without them these tests fail: `scripts/test` starts them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is the failure report")]
#![cfg(feature = "postgres")]

use handstamp_lab::Cancel;
use handstamp_lab::faults::commit::{self, CommitOptions};
use handstamp_lab::faults::report::{Outcome, Standing, outcome};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run scripts/test, or `eval \"$(scripts/services env)\"` after `scripts/services up`")
    })
}

#[test]
fn no_cut_in_the_commit_exchange_doubles_or_loses() {
    let folder = tempfile::tempdir().unwrap();
    let options = CommitOptions::quick(variable("HANDSTAMP_TEST_POSTGRES"), 20, folder.path());
    let report = commit::run(&options, &Cancel::default(), &|_, _| {}).unwrap();
    let rows = report.rows();
    assert_eq!(outcome(&rows), Outcome::Held, "{rows:#?}");
    assert_eq!(
        rows.iter().map(|row| &row.standing).collect::<Vec<_>>(),
        [&Standing::Held, &Standing::Control]
    );
    // The checker would have seen it: cut in the same places, the control without an inbox doubles.
    assert!(report.ours.through.connections_cut >= 300 && report.control.verdict.doubled > 0, "{rows:#?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the messages' files are left behind");
}
