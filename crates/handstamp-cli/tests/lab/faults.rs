//! `lab faults`: what is refused, and what `lab verify` says of a folder that it left.

use crate::common::Lab;
use serde_json::{Value, json};
use std::path::Path;

const ROWS: [(&str, u64); 2] =
    [("partition-both-ways-handstamp-program-50", 1), ("partition-both-ways-b", 2)];

fn lines(path: &Path, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path, text).unwrap();
}

fn passed(bytes: u64) -> Value {
    let through = json!({
        "bytes_up": bytes, "bytes_down": bytes, "bytes_dropped": 0, "connections_cut": bytes, "connections_lost": bytes,
    });
    json!({"at_ms": bytes, "event": "fault", "what": "passed", "database": through, "broker": through, "answered": 0})
}

/// A partition as `lab faults partition` leaves it: one message, which the control applied twice.
fn plant(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let settings = json!({
        "seed": 7, "side_by_side": 1, "command": "partition", "subject": "handstamp-program50", "splits": ["both_ways"],
        "rounds": 1,
    });
    std::fs::write(folder.join("faults.json"), settings.to_string()).unwrap();
    for (stem, effects) in ROWS {
        let worth = json!([[1, 5 * effects]]);
        let history = [
            json!({"at_ms": 0, "event": "run", "subject": "x", "run": 0, "seed": 7, "messages": 1, "version": "0.0.9"}),
            passed(0),
            json!({"at_ms": 50, "event": "fault", "what": "round", "taken_over": true}),
            json!({"at_ms": 60, "event": "drained"}),
            passed(70),
            json!({
                "at_ms": 80, "event": "end", "effects": {"m1": effects}, "balances": worth, "ledger": worth,
                "dead_letters": [],
            }),
        ];
        lines(&folder.join(stem).with_extension("jsonl"), &history);
        let sent = [json!({"id": "m1", "account": 1, "amount": 5})];
        lines(&folder.join(stem).with_extension("sent.jsonl"), &sent);
    }
}

#[test]
fn verify_says_what_a_folder_of_faults_proves_and_sees_every_planted_fault() {
    let lab = Lab::new();
    let folder = lab.path("run");
    plant(&folder);
    let table = lab.exits(&["verify", "run"], 0);
    for part in [
        "did harm, as it must",
        "taken over",
        "1 of 1",
        "kept: nothing doubled, nothing lost, and the control",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let object = lab.object(&["verify", "run", "--json"], 0);
    assert_eq!(object["rows"][1]["measured"]["verdict"]["doubled"], 1);
    let report = || std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(report().contains("**Kept:**") && folder.join("timeline.svg").exists(), "{}", report());

    let [ours, control] = ROWS.map(|(stem, _)| folder.join(stem).with_extension("jsonl"));
    let whole = [&ours, &control].map(|path| std::fs::read_to_string(path).unwrap());
    for (from, to, code) in [
        // Twice, never, one that nobody sent, a balance that is not its ledger; then nothing through a proxy.
        (r#""m1":1"#, r#""m1":2"#, 5),
        (r#"{"m1":1}"#, "{}", 5),
        (r#"{"m1":1}"#, r#"{"ghost":1,"m1":1}"#, 5),
        (r#""balances":[[1,5]]"#, r#""balances":[[1,6]]"#, 5),
        (r#""what":"passed""#, r#""what":"round","taken_over":true"#, 6),
    ] {
        assert!(whole[0].contains(from), "{from}: {}", whole[0]);
        std::fs::write(&ours, whole[0].replace(from, to)).unwrap();
        lab.exits(&["verify", "run"], code);
        let word = if code == 5 { "**VIOLATED:**" } else { "**Inconclusive:**" };
        assert!(report().contains(word), "{from}: {}", report());
    }
    std::fs::write(&ours, &whole[0]).unwrap();
    // A control that did no harm, and one that did not come to its end.
    std::fs::write(&control, &whole[0]).unwrap();
    assert!(lab.exits(&["verify", "run"], 6).contains("the control without an inbox doubled nothing"));
    std::fs::remove_file(&control).unwrap();
    assert!(lab.exits(&["verify", "run"], 6).contains("did not come to its end"));
}

#[test]
fn a_folder_that_holds_a_run_and_a_script_that_is_not_there_are_refused() {
    let lab = Lab::new();
    plant(&lab.path("run"));
    let database = "postgres://me@127.0.0.1:1/none";
    let said = lab.refuses(&["faults", "commit", "--database", database, "--out", "run"]);
    assert!(said.contains("holds a run already") && said.contains("--resume"), "{said}");
    let resume = |command: &str, folder: &str| {
        let args = ["faults", command, "--resume", folder];
        let script = lab.path("services");
        std::fs::write(&script, "").unwrap();
        let more = match command {
            "commit" => ["--database", database],
            _ => ["--services", script.to_str().unwrap()],
        };
        lab.refuses(&[&args[..], &more].concat())
    };
    for command in ["commit", "outage", "partition"] {
        assert!(resume(command, "nowhere").contains("no run of lab faults"), "{command}");
    }
    for command in ["commit", "outage"] {
        let said = resume(command, "run");
        assert!(said.contains("`lab faults partition`, not of") && said.contains(command), "{said}");
    }
    assert!(lab.refuses(&["faults", "outage", "--resume", "run", "--seed", "2"]).contains("--seed"));
    for command in ["outage", "partition"] {
        let said = lab.refuses(&["faults", command, "--services", "nowhere"]);
        assert!(said.contains("nowhere: no such script") && said.contains("--services"), "{said}");
    }
}
