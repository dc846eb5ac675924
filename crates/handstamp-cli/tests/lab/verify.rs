//! The verdict is computed from what lies in the folder.

use crate::common::{Lab, SHORT, of};
use std::path::Path;

/// Writes one field of the end state of a history anew.
fn tamper(history: &Path, change: impl Fn(&mut serde_json::Value)) {
    let text = std::fs::read_to_string(history).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut end: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    change(&mut end);
    *lines.last_mut().unwrap() = end.to_string();
    std::fs::write(history, lines.join("\n") + "\n").unwrap();
}

#[test]
fn verify_says_again_what_kill_said_and_sees_every_planted_fault() {
    let lab = Lab::new();
    let kill = lab.object(&[&SHORT[..], &["--out", "run", "--json"]].concat(), 0);
    assert_eq!(lab.object(&["verify", "run", "--json"], 0), kill);
    assert_eq!(of(&kill, "handstamp"), (0, 0));
    assert!(of(&kill, "a1").0 > 0 && of(&kill, "offset-first @after-offset").1 > 0, "{kill}");
    let table = lab.exits(&["verify", "run"], 0);
    assert!(table.contains("kept") && table.contains("offset-first"), "{table}");
    let report = || std::fs::read_to_string(lab.path("run/report.md")).unwrap();
    assert!(report().contains("**Kept:**") && report().contains("](timeline.svg)"), "{}", report());
    assert!(lab.refuses(&[&SHORT[..], &["--out", "run"]].concat()).contains("--resume"));

    let ours = lab.path("run/run-0-handstamp.jsonl");
    let whole = std::fs::read_to_string(&ours).unwrap();
    let faults: [&dyn Fn(&mut serde_json::Value); 4] = [
        // An effect twice; one missing; one that nobody sent; a balance that is not its ledger.
        &|end| {
            let effects = end["effects"].as_object_mut().unwrap();
            *effects.values_mut().next().unwrap() = 2.into();
        },
        &|end| {
            let effects = end["effects"].as_object_mut().unwrap();
            let first = effects.keys().next().unwrap().clone();
            effects.remove(&first);
        },
        &|end| end["effects"]["ghost"] = 1.into(),
        &|end| end["balances"][0][1] = 1_000_000.into(),
    ];
    for fault in faults {
        tamper(&ours, fault);
        let table = lab.exits(&["verify", "run"], 5);
        assert!(table.contains("VIOLATED"), "{table}");
        // The report is made again with it.
        assert!(report().contains("**VIOLATED:**"), "{}", report());
        std::fs::write(&ours, &whole).unwrap();
    }
    // A control that did no harm, and a run that is not complete.
    let control = lab.path("run/run-0-a1.jsonl");
    tamper(&control, |end| *end = serde_json::from_str(whole.lines().last().unwrap()).unwrap());
    assert!(lab.exits(&["verify", "run"], 6).contains("a1: doubled nothing"));
    std::fs::remove_file(control).unwrap();
    assert!(lab.exits(&["verify", "run"], 6).contains("missing"));
}
