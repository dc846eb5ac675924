//! `lab faults` against real servers. Without them these tests fail: `scripts/test` starts them.
//!
//! Nearly all of their time is waiting, so they run side by side, each row on servers, topics and schemas of
//! its own; with fewer of them at a time the tests take a third longer, also on two busy cores.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a failure needs to be read"
)]
#![cfg(all(feature = "kafka", feature = "postgres"))]

use handstamp_lab::faults::commit::{self, CommitOptions};
use handstamp_lab::faults::outage::{self, OutageTimes};
use handstamp_lab::faults::partition::{self, Split};
use handstamp_lab::faults::report::Standing;
use handstamp_lab::faults::{Around, Fault, Measured, Outcome, recompute};
use handstamp_lab::kill::{Conclusion, Launch};
use handstamp_lab::subjects::Subject;
use handstamp_lab::{Cancel, LabErrorKind, Result, report};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run scripts/test, or `eval \"$(scripts/services env)\"` after `scripts/services up`")
    })
}

/// Every row held and every control did harm; the folder says so again, has a report, and a fault that is
/// planted in any row that promises is found.
#[track_caller]
fn held(outcome: &Outcome, folder: &Path) {
    for told in &outcome.rows {
        println!("{:?}", told.row);
    }
    assert_eq!(outcome.conclusion, Conclusion::Kept, "{outcome:#?}");
    for told in &outcome.rows {
        let expected = if told.key.promises() { Standing::Held } else { Standing::Control };
        assert_eq!(told.row.standing, expected);
    }
    assert_eq!(recompute(folder).unwrap(), *outcome);
    let text = std::fs::read_to_string(report::build(folder).unwrap()).unwrap();
    assert!(text.contains("**Kept:**") && text.contains("PostgreSQL"), "{text}");
    let promising = outcome.rows.iter().filter(|told| told.key.promises());
    for stem in promising.flat_map(|told| outcome.settings.stems(folder, told.key)) {
        let path = stem.with_extension("jsonl");
        let whole = std::fs::read_to_string(&path).unwrap();
        let (before, end) = whole.trim_end().rsplit_once('\n').unwrap();
        std::fs::write(&path, format!("{before}\n{}\n", end.replacen(":1,", ":2,", 1))).unwrap();
        assert!(matches!(recompute(folder).unwrap().conclusion, Conclusion::Violated(_)), "{end}");
        std::fs::write(&path, whole).unwrap();
    }
}

/// What lies in a folder beside histories, producers' logs and what is made of them.
fn left_behind(folder: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("hs_lab_")).collect()
}

/// It is stopped in the second of three parts, and goes on with that one.
#[test]
fn no_cut_in_the_commit_exchange_doubles_or_loses() {
    let folder = tempfile::tempdir().unwrap();
    let part = NonZeroUsize::new(120);
    let quick = CommitOptions::quick(variable("HANDSTAMP_TEST_POSTGRES"), 20, folder.path());
    let options = CommitOptions { part, ..quick };
    let cancel = Cancel::default();
    let first = || std::fs::read(folder.path().join("commit-handstamp-0.jsonl")).unwrap();
    // The second part has begun, and dealt so many by then.
    let (second, by_then) = (folder.path().join("commit-handstamp-1.jsonl"), Cell::new(None));
    let error = commit::run(&options, &cancel, &|dealt, _| {
        if second.exists() {
            by_then.set(by_then.get().or(Some(dealt)));
        }
        if by_then.get().is_some_and(|before| dealt > before + 10) {
            cancel.cancel();
        }
    });
    assert_eq!(error.unwrap_err().kind, LabErrorKind::Cancelled);
    assert_eq!(left_behind(folder.path()), BTreeSet::new());
    let half = recompute(folder.path()).unwrap();
    assert!(matches!(half.conclusion, Conclusion::Inconclusive(_)), "{half:#?}");
    let kept = first();
    let resumed = CommitOptions::resumed(options.url.as_str(), folder.path()).unwrap();
    assert_eq!(format!("{resumed:?}"), format!("{options:?}"));
    let most = Cell::new(0);
    let again = |dealt: usize, _| most.set(dealt.max(most.get()));
    let outcome = commit::resume(&resumed, &Cancel::default(), &again).unwrap();
    assert_eq!(first(), kept);
    held(&outcome, folder.path());
    let [ours, control] = &outcome.rows[..] else { panic!("{outcome:#?}") };
    let (Some(Measured::Commit(ours)), Some(Measured::Commit(control))) = (&ours.measured, &control.measured)
    else {
        panic!("{outcome:#?}")
    };
    // What was done before is not dealt again.
    assert!(most.get() + 50 < ours.dealt + control.dealt, "{} dealt again", most.get());
    // The checker would have seen it: cut in the same places, the control without an inbox doubles.
    assert!(ours.through.connections_cut >= 300 && control.verdict.doubled > 0, "{outcome:#?}");
    assert_eq!(left_behind(folder.path()), BTreeSet::new());
}

/// The servers are the test's own: it stops, freezes and kills them.
#[track_caller]
fn holds(run: impl Fn(&Around<'_>) -> Result<Outcome>) -> Outcome {
    let (folder, services) = (tempfile::tempdir().unwrap(), variable("HANDSTAMP_TEST_SERVICES"));
    let program = env!("CARGO_BIN_EXE_lab-subject").into();
    let launch = Launch { program, subject: vec![], pipeline: vec![] };
    let around = Around {
        launch: &launch,
        services: Path::new(&services),
        folder: folder.path(),
        seed: 7,
        cancel: &Cancel::default(),
        progress: &|what| println!("{what}"),
    };
    let outcome = run(&around).unwrap();
    held(&outcome, folder.path());
    assert_eq!(left_behind(folder.path()), BTreeSet::new());
    outcome
}

/// The other rows are those of the program's tests of `--resume` (`lab/resumed.rs`), where the lab is killed
/// between them.
fn others<T: Copy + PartialEq>(all: &[T], there: &[T]) -> Vec<T> {
    all.iter().copied().filter(|one| !there.contains(one)).collect()
}

#[test]
fn no_outage_doubles_loses_or_gives_up_a_message() {
    let faults = others(&Fault::ALL, &[Fault::DatabaseFrozen, Fault::DatabaseReadOnly]);
    let outcome = holds(|around| outage::run(around, &faults, Subject::Handstamp50, &OutageTimes::QUICK, 3));
    assert_eq!(outcome.rows.len(), 5);
}

#[test]
fn three_brokers_of_which_the_leader_is_killed_double_nothing() {
    let splits = others(&Split::ALL, &[Split::BothWays, Split::UpOnly, Split::DownOnly]);
    let outcome = holds(|around| partition::run(around, &splits, Subject::Handstamp, 1, 1));
    assert_eq!(outcome.rows.len(), 1);
}
