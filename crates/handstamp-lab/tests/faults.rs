//! `lab faults` against real servers. Without them these tests fail: `scripts/test` starts them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a failure needs to be read"
)]
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

#[cfg(feature = "kafka")]
mod with_kafka {
    use super::{Cancel, Outcome, outcome, variable};
    use handstamp_lab::Result;
    use handstamp_lab::faults::outage::{self, OutageTimes};
    use handstamp_lab::faults::partition::{self, Split};
    use handstamp_lab::faults::report::Row;
    use handstamp_lab::faults::{Around, Fault};
    use handstamp_lab::kill::Launch;
    use handstamp_lab::subjects::Subject;
    use std::path::Path;

    /// The servers are the test's own: it stops, freezes and kills them.
    #[track_caller]
    fn held(run: impl Fn(&Around<'_>) -> Result<Vec<Row>>, rows: usize) {
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
        let ran = run(&around).unwrap();
        for row in &ran {
            println!("{row:?}");
        }
        assert_eq!(outcome(&ran), Outcome::Held, "{ran:#?}");
        assert_eq!(ran.len(), rows);
    }

    #[test]
    fn no_outage_doubles_loses_or_gives_up_a_message() {
        let run = |around: &Around<'_>| {
            let rows = outage::run(around, &Fault::ALL, Subject::Handstamp50, &OutageTimes::QUICK)?;
            Ok(rows.into_iter().map(|row| row.map_or_else(|row| row, |row| row.row())).collect())
        };
        held(run, Fault::ALL.len());
    }

    #[test]
    fn a_member_cut_off_from_the_broker_alone_doubles_nothing() {
        let run = |around: &Around<'_>| {
            let rows = partition::run(around, &Split::ALL, Subject::Handstamp, 1)?;
            Ok(rows.into_iter().map(|row| row.map_or_else(|row| row, |row| row.row())).collect())
        };
        // The control is one more.
        held(run, Split::ALL.len() + 1);
    }
}
