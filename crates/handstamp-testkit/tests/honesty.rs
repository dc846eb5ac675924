//! A suite proves something only if it fails where it must: every case against every broken fake.
//!
//! `honesty.toml` says which cases each broken fake fails: its own, and at most three others. A fault
//! that a kind of fake cannot have is not listed there, and must then fail nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests: a panic is the failure report"
)]

use handstamp_testkit::fakes::{
    LogHarness, MemoryHarness, ParkingBreak, PruneBreak, QueueHarness, SinkBreak, SinkInMemory, SourceBreak,
    StartBreak, StoreBreak, VersionBreak,
};
use handstamp_testkit::{
    CaseFailure, CaseResult, parking_suite, prune_suite, sink_suite, source_suite, start_suite, store_suite,
    version_suite,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Cases failed, by kind of fake and fault.
type Matrix = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

const OTHERS_MAX: usize = 3;

fn run_paused(case: impl Future<Output = CaseResult>) -> CaseResult {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let ended = tokio::time::timeout(Duration::from_secs(3_600), case).await;
        ended.unwrap_or_else(|_| Err(CaseFailure("the case did not end within an hour".into())))
    })
}

fn source_case(kind: &str, broken: Option<SourceBreak>, case: &str) -> CaseResult {
    match kind {
        "log" => run_paused(source_suite::run(case, &LogHarness::new(broken))),
        "queue_with_lease" => run_paused(source_suite::run(case, &QueueHarness::new(true, broken))),
        _ => run_paused(source_suite::run(case, &QueueHarness::new(false, broken))),
    }
}

fn store_case(broken: Option<StoreBreak>, case: &str) -> CaseResult {
    run_paused(store_suite::run(case, &MemoryHarness::new(broken)))
}

fn parking_case(broken: Option<ParkingBreak>, case: &str) -> CaseResult {
    run_paused(parking_suite::run(case, &MemoryHarness::new_parking(broken)))
}

fn start_case(broken: Option<StartBreak>, case: &str) -> CaseResult {
    run_paused(start_suite::run(case, &MemoryHarness::new_starts(broken)))
}

fn version_case(broken: Option<VersionBreak>, case: &str) -> CaseResult {
    run_paused(version_suite::run(case, &MemoryHarness::new_versions(broken)))
}

fn prune_case(broken: Option<PruneBreak>, case: &str) -> CaseResult {
    run_paused(prune_suite::run(case, &MemoryHarness::new_prune(broken)))
}

fn sink_case(broken: Option<SinkBreak>, case: &str) -> CaseResult {
    run_paused(sink_suite::run(case, &SinkInMemory::new(broken)))
}

fn failed(cases: &[&str], run: impl Fn(&str) -> CaseResult) -> BTreeSet<String> {
    cases.iter().filter(|case| run(case).is_err()).map(|case| (*case).to_owned()).collect()
}

fn seen() -> Matrix {
    let mut seen = Matrix::new();
    for kind in ["log", "queue_with_lease", "queue_without_lease"] {
        for broken in SourceBreak::ALL {
            let cases = failed(source_suite::CASES, |case| source_case(kind, Some(broken), case));
            if !cases.is_empty() {
                seen.entry(kind.into()).or_default().insert(format!("{broken:?}"), cases);
            }
        }
    }
    for broken in StoreBreak::ALL {
        let cases = failed(store_suite::CASES, |case| store_case(Some(broken), case));
        if !cases.is_empty() {
            seen.entry("store".into()).or_default().insert(format!("{broken:?}"), cases);
        }
    }
    for broken in ParkingBreak::ALL {
        let cases = failed(parking_suite::CASES, |case| parking_case(Some(broken), case));
        if !cases.is_empty() {
            seen.entry("parking".into()).or_default().insert(format!("{broken:?}"), cases);
        }
    }
    for broken in StartBreak::ALL {
        let cases = failed(start_suite::CASES, |case| start_case(Some(broken), case));
        if !cases.is_empty() {
            seen.entry("starts".into()).or_default().insert(format!("{broken:?}"), cases);
        }
    }
    for broken in VersionBreak::ALL {
        let cases = failed(version_suite::CASES, |case| version_case(Some(broken), case));
        if !cases.is_empty() {
            seen.entry("versions".into()).or_default().insert(format!("{broken:?}"), cases);
        }
    }
    for broken in PruneBreak::ALL {
        let cases = failed(prune_suite::CASES, |case| prune_case(Some(broken), case));
        if !cases.is_empty() {
            seen.entry("prune".into()).or_default().insert(format!("{broken:?}"), cases);
        }
    }
    for broken in SinkBreak::ALL {
        let cases = failed(sink_suite::CASES, |case| sink_case(Some(broken), case));
        if !cases.is_empty() {
            seen.entry("sink".into()).or_default().insert(format!("{broken:?}"), cases);
        }
    }
    seen
}

/// The committed matrix, and each fault's own case.
fn committed() -> (Matrix, BTreeMap<String, BTreeMap<String, String>>) {
    let table: toml::Table = include_str!("honesty.toml").parse().unwrap();
    let mut matrix = Matrix::new();
    let mut own = BTreeMap::new();
    for (kind, faults) in table {
        for (fault, entry) in faults.as_table().unwrap() {
            let case = entry["own"].as_str().unwrap().to_owned();
            let others =
                entry["others"].as_array().unwrap().iter().map(|other| other.as_str().unwrap().to_owned());
            let cases: BTreeSet<String> = others.chain([case.clone()]).collect();
            matrix.entry(kind.clone()).or_default().insert(fault.clone(), cases);
            own.entry(kind.clone()).or_insert_with(BTreeMap::new).insert(fault.clone(), case);
        }
    }
    (matrix, own)
}

fn as_toml(seen: &Matrix, own: &BTreeMap<String, BTreeMap<String, String>>) -> String {
    let mut text = String::new();
    for (kind, faults) in seen {
        text += &format!("\n[{kind}]\n");
        for (fault, cases) in faults {
            let known =
                own.get(kind).and_then(|faults| faults.get(fault)).filter(|case| cases.contains(*case));
            let case = known.or_else(|| cases.first()).unwrap();
            let others: Vec<&String> = cases.iter().filter(|other| *other != case).collect();
            text += &format!("{fault} = {{ own = {case:?}, others = {others:?} }}\n");
        }
    }
    text
}

#[test]
fn every_broken_fake_fails_its_own_case_and_few_others() {
    let (committed, own) = committed();
    let seen = seen();
    assert!(seen == committed, "the matrix is now:\n{}", as_toml(&seen, &own));
    for (kind, faults) in &committed {
        for (fault, cases) in faults {
            assert!(cases.len() <= 1 + OTHERS_MAX, "{kind}: {fault} fails {cases:?}: sharpen the cases");
        }
    }
}

#[test]
fn every_fault_and_every_case_is_in_the_matrix() {
    let (committed, _) = committed();
    // Kinds of one seam share its faults: each must be noticed by one kind at least.
    let seam = |kind: &str| {
        if matches!(kind, "store" | "parking" | "starts" | "versions" | "prune" | "sink") {
            kind.to_owned()
        } else {
            "source".into()
        }
    };
    let faults: BTreeSet<(String, String)> = committed
        .iter()
        .flat_map(|(kind, faults)| faults.keys().map(move |fault| (seam(kind), fault.clone())))
        .collect();
    let all = SourceBreak::ALL
        .iter()
        .map(|b| ("source".to_owned(), format!("{b:?}")))
        .chain(StoreBreak::ALL.iter().map(|b| ("store".to_owned(), format!("{b:?}"))))
        .chain(ParkingBreak::ALL.iter().map(|b| ("parking".to_owned(), format!("{b:?}"))))
        .chain(StartBreak::ALL.iter().map(|b| ("starts".to_owned(), format!("{b:?}"))))
        .chain(VersionBreak::ALL.iter().map(|b| ("versions".to_owned(), format!("{b:?}"))))
        .chain(PruneBreak::ALL.iter().map(|b| ("prune".to_owned(), format!("{b:?}"))))
        .chain(SinkBreak::ALL.iter().map(|b| ("sink".to_owned(), format!("{b:?}"))));
    let missing: Vec<_> = all.filter(|fault| !faults.contains(fault)).collect();
    assert!(missing.is_empty(), "faults that no case notices: {missing:?}");
    let cases: BTreeSet<&str> =
        committed.values().flat_map(|faults| faults.values().flatten()).map(String::as_str).collect();
    let all = source_suite::CASES.iter().chain(store_suite::CASES).chain(parking_suite::CASES);
    let all = all
        .chain(start_suite::CASES)
        .chain(version_suite::CASES)
        .chain(prune_suite::CASES)
        .chain(sink_suite::CASES);
    let idle: Vec<&&str> = all.filter(|case| !cases.contains(**case)).collect();
    assert!(idle.is_empty(), "cases that no broken fake fails: {idle:?}");
}

#[test]
fn whole_fakes_fail_nothing() {
    for kind in ["log", "queue_with_lease", "queue_without_lease"] {
        assert_eq!(
            failed(source_suite::CASES, |case| source_case(kind, None, case)),
            BTreeSet::new(),
            "{kind}"
        );
    }
    assert_eq!(failed(store_suite::CASES, |case| store_case(None, case)), BTreeSet::new());
    assert_eq!(failed(parking_suite::CASES, |case| parking_case(None, case)), BTreeSet::new());
    assert_eq!(failed(start_suite::CASES, |case| start_case(None, case)), BTreeSet::new());
    assert_eq!(failed(version_suite::CASES, |case| version_case(None, case)), BTreeSet::new());
    assert_eq!(failed(prune_suite::CASES, |case| prune_case(None, case)), BTreeSet::new());
    assert_eq!(failed(sink_suite::CASES, |case| sink_case(None, case)), BTreeSet::new());
}
