//! On a real broker with Postgres; a server that is missing is a failure.

use crate::common::{launch, row, run, settings};
use handstamp_lab::LabErrorKind;
use handstamp_lab::broker::Broker;
use handstamp_lab::cancel::Cancel;
use handstamp_lab::kill::{self, Conclusion, Settings, Surroundings};
use handstamp_lab::ledger::Place;
use handstamp_lab::subjects::Subject;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::time::Duration;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests by scripts/test, or `eval \"$(scripts/services env)\"` after `scripts/services up`")
    })
}

fn servers() -> (Broker, Place) {
    let broker = Broker::kafka(&variable("HANDSTAMP_TEST_KAFKA")).unwrap();
    (broker, Place::Postgres(variable("HANDSTAMP_TEST_POSTGRES")))
}

/// Topics, groups and schemas that belong to these settings.
fn left_behind(settings: &Settings) -> Vec<String> {
    let mut config = ClientConfig::new();
    let client: BaseConsumer =
        config.set("bootstrap.servers", variable("HANDSTAMP_TEST_KAFKA")).create().unwrap();
    let metadata = client.fetch_metadata(None, Duration::from_secs(20)).unwrap();
    let mut left: Vec<String> = metadata.topics().iter().map(|topic| topic.name().to_owned()).collect();
    let groups = client.fetch_group_list(None, Duration::from_secs(20)).unwrap();
    left.extend(groups.groups().iter().map(|group| group.name().to_owned()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = variable("HANDSTAMP_TEST_POSTGRES");
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let rows = client.query("SELECT nspname::text FROM pg_namespace", &[]).await.unwrap();
        left.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    });
    left.retain(|name| name.contains(&settings.id));
    left
}

#[test]
fn every_subject_does_what_it_is_known_for_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, place) = servers();
    let subjects: Vec<Subject> = Subject::ALL
        .into_iter()
        .filter(|subject| !matches!(subject, Subject::HandstampProgram | Subject::HandstampProgram50))
        .collect();
    let settings = settings(&subjects).checked(false).unwrap();
    let outcome = run(&settings, &broker, &place, folder.path());
    assert_eq!(outcome.conclusion, Conclusion::Kept, "{outcome:#?}");
    assert!(row(&outcome, "a1").doubled() > 0);
    assert!(row(&outcome, "a2").doubled() > 0);
    for held in ["b @after-commit", "look-up-first @before-mark"] {
        assert_eq!((row(&outcome, held).doubled(), row(&outcome, held).lost()), (1, 0), "{held}");
    }
    for held in ["offset-first @after-offset", "cache-first @after-mark"] {
        assert_eq!((row(&outcome, held).doubled(), row(&outcome, held).lost()), (0, 1), "{held}");
    }
    for clean in ["c", "handstamp", "handstamp-50", "handstamp +resend"] {
        assert!(row(&outcome, clean).runs[0].verdict.is_clean(), "{clean}");
    }
    drop(broker);
    assert_eq!(left_behind(&settings), Vec::<String>::new());
}

#[test]
fn a_stop_leaves_nothing_behind_and_the_run_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, place) = servers();
    let settings = Settings { side_by_side: 1, ..settings(&[Subject::C]) }.checked(false).unwrap();
    let cancel = Cancel::default();
    let launch = launch();
    let (first, _) = servers();
    let around = Surroundings {
        settings: &settings,
        broker: &first,
        place: &place,
        folder: folder.path(),
        launch: &launch,
        cancel: &cancel,
    };
    // Into the second row: one is complete then, one is under way.
    let stop = |progress: kill::Progress| {
        if progress.done == 4 {
            cancel.cancel();
        }
    };
    let error = kill::run(&around, &stop).expect_err("stopped");
    assert_eq!(error.kind, LabErrorKind::Cancelled, "{error}");
    drop(first);
    assert_eq!(left_behind(&settings), Vec::<String>::new());
    let half = kill::recompute(folder.path()).unwrap();
    assert!(matches!(half.conclusion, Conclusion::Inconclusive(_)));
    let complete = half.rows.iter().filter(|row| !row.runs.is_empty()).count();
    assert_eq!(complete, 1);

    let again = Cancel::default();
    let steps = std::sync::Mutex::new(0);
    let around = Surroundings {
        settings: &settings,
        broker: &broker,
        place: &place,
        folder: folder.path(),
        launch: &launch,
        cancel: &again,
    };
    let outcome = kill::run(&around, &|progress| *steps.lock().unwrap() = progress.all).unwrap();
    assert_eq!(outcome.conclusion, Conclusion::Kept, "{outcome:#?}");
    // Two rows of two kills and a drain each, one with a kill at its point, and three rates: the complete row
    // was not run again.
    assert_eq!(*steps.lock().unwrap(), 2 * 3 + 2 + 3);
}
