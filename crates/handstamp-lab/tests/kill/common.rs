//! One run of the lab in a folder of its own.

use handstamp_lab::broker::Broker;
use handstamp_lab::broker::mock::MockLaunch;
use handstamp_lab::cancel::Cancel;
use handstamp_lab::kill::{self, Launch, Outcome, Profile, RowOutcome, Settings, Surroundings};
use handstamp_lab::ledger::Place;
use handstamp_lab::subjects::Subject;
use std::path::Path;

/// Small enough for a test: the schedule decides how many messages there are.
pub(crate) fn settings(subjects: &[Subject]) -> Settings {
    Settings {
        kills: 2,
        kill_within_ms: (1000, 2000),
        held_kills: 1,
        messages: 300,
        session_timeout_ms: 1500,
        subjects: subjects.to_vec(),
        throughput_messages: 50,
        ..Settings::of(Profile::Quick)
    }
}

pub(crate) fn launch() -> Launch {
    Launch { program: env!("CARGO_BIN_EXE_lab-subject").into(), subject: vec![], pipeline: vec![] }
}

pub(crate) fn mock_launch() -> MockLaunch {
    let arguments = vec!["mock-broker".to_owned()];
    MockLaunch { program: env!("CARGO_BIN_EXE_lab-subject").into(), arguments }
}

/// Runs it, with a line of progress for whoever reads a failure.
#[track_caller]
pub(crate) fn run(settings: &Settings, broker: &Broker, place: &Place, folder: &Path) -> Outcome {
    let cancel = Cancel::default();
    let launch = launch();
    let around = Surroundings { settings, broker, place, folder, launch: &launch, cancel: &cancel };
    let outcome = kill::run(&around, &|progress| println!("{} of {}", progress.done, progress.all));
    outcome.unwrap_or_else(|error| panic!("{error}: {:?}", error.source))
}

#[track_caller]
pub(crate) fn row<'a>(outcome: &'a Outcome, name: &str) -> &'a RowOutcome {
    let found = outcome.rows.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no row {name}: {outcome:#?}"))
}
