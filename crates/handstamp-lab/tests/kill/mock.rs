//! Without any server.

use crate::common::{mock_launch, row, run, settings};
use handstamp_lab::broker::Broker;
use handstamp_lab::kill::{self, Conclusion};
use handstamp_lab::ledger::Place;
use handstamp_lab::subjects::Subject;

#[test]
fn the_differences_show_without_any_server() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::Sqlite(folder.path().to_owned());
    let settings = settings(&[Subject::B, Subject::C, Subject::Handstamp]).checked(true).unwrap();
    let broker = Broker::mock(mock_launch()).unwrap();
    let outcome = run(&settings, &broker, &place, folder.path());
    assert_eq!(outcome.conclusion, Conclusion::Kept, "{outcome:#?}");
    assert!(row(&outcome, "a1").doubled() > 0);
    assert_eq!(row(&outcome, "offset-first @after-offset").lost(), 1);
    assert_eq!(row(&outcome, "b @after-commit").doubled(), 1);
    for clean in ["c", "handstamp", "handstamp +resend"] {
        assert!(row(&outcome, clean).runs[0].verdict.is_clean(), "{clean}");
    }
    // What is in the files is enough to know it again, and databases are gone.
    assert_eq!(kill::recompute(folder.path()).unwrap(), outcome);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(
        left.iter().all(|path| path.extension().is_some_and(|end| end == "json" || end == "jsonl")),
        "{left:?}"
    );
}
