//! What `--json` prints when nothing came of the command, and outputs that cannot be written.

use crate::common::Place;

const COUNTERS: [&str; 9] = [
    "received",
    "applied",
    "duplicate",
    "id_reused",
    "stale",
    "unmatched",
    "dead_lettered",
    "parked",
    "released",
];

/// Broken pipelines: a mistake in the file, a store that is away, tables that are missing.
fn broken() -> Place {
    let place = Place::wallet();
    let toml = place.read("file.toml");
    place.write("wrong.toml", "name = 1\ncolour = \"red\"\n");
    let away = "type = \"postgres\"\nurl = \"postgres://u@127.0.0.1:1/db\"\n";
    let sqlite = "type = \"sqlite\"\npath = \"wallet.db\"\nsetup = \"schema.sqlite.sql\"\n";
    assert!(toml.contains(sqlite));
    place.write("away.toml", &toml.replace(sqlite, away));
    // A file with tables, and what is remembered of ours is gone.
    place.write("missing.toml", &toml);
    place.run(&["run", "file.toml"]).exits(0);
    crate::wallet::write(&place, "DROP TABLE handstamp_migrations");
    place
}

#[test]
fn every_command_with_json_prints_one_object_whatever_happens() {
    let place = broken();
    let commands: [&[&str]; 12] = [
        &["run", "FILE", "--json", "--fail-fast"],
        &["check", "FILE", "--json"],
        &["migrate", "FILE", "--json"],
        &["publish", "FILE", "--json", "--sample", "credits", "--count", "1"],
        &["inbox", "get", "FILE", "x", "--json"],
        &["dlq", "list", "FILE", "--json"],
        &["dlq", "show", "FILE", "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "--json"],
        &["dlq", "groups", "FILE", "--json"],
        &["dlq", "parked", "FILE", "--json"],
        &["dlq", "audit", "FILE", "--json"],
        &["dlq", "redrive", "FILE", "--all", "--json"],
        &["dlq", "discard", "FILE", "--all", "--why", "x", "--json"],
    ];
    for (file, code) in [("none.toml", 2), ("wrong.toml", 2), ("away.toml", 3), ("missing.toml", 4)] {
        for command in commands {
            if file == "away.toml" && cfg!(not(feature = "postgres")) {
                continue;
            }
            let args: Vec<&str> =
                command.iter().map(|word| if *word == "FILE" { file } else { word }).collect();
            // What check found wrong is its own answer.
            let code = match (args[0], code) {
                ("check", 3..) => 5,
                // It does not need the store.
                ("publish", 3..) => 0,
                _ => code,
            };
            let done = place.run(&args).exits(code);
            assert_eq!(done.stdout.lines().count(), 1, "{args:?}: {}", done.stdout);
            let object = done.json();
            assert_eq!(object["exit_code"], code, "{args:?}: {object}");
            if !matches!(code, 0 | 5) {
                let error = object["error"].as_str().unwrap();
                assert!(!error.is_empty() && done.stderr.contains(error), "{args:?}: {object}");
            }
            if args[0] == "run" {
                assert_eq!(done.counts(COUNTERS), [0; 9], "{args:?}");
                assert_eq!(object["stopped"], "error");
            }
        }
    }
    let wrong = place.quiet(&["check", "wrong.toml", "--json"]).exits(2).json();
    assert!(wrong["details"].to_string().contains("colour"), "{wrong}");
    assert!(wrong["hints"].to_string().contains("config.md"), "{wrong}");
}

#[test]
fn a_wrong_command_line_with_json_is_an_object_too() {
    let place = Place::wallet();
    for args in [
        &["run", "file.toml", "--json", "--until-idle", "2"][..],
        &["run", "--json"],
        &["dlq", "list", "file.toml", "--json", "--limit", "0"],
        &["check", "file.toml", "--json", "--print"],
        &["migrate", "file.toml", "--json", "--show-sql"],
        &["publish", "--json", "--count", "1"],
        &["--log", "loud=nonsense=x", "run", "file.toml", "--json"],
    ] {
        let done = place.quiet(args).exits(2);
        let object = done.json();
        assert_eq!(object["exit_code"], 2, "{args:?}");
        let error = object["error"].as_str().unwrap();
        assert!(done.said().contains(error), "{args:?}: {object}\n{}", done.stderr);
        assert_eq!(object.get("received").is_some(), args.contains(&"run"), "{args:?}: {object}");
    }
    // The lines of an export are dead letters and nothing else.
    let export = place.quiet(&["dlq", "export", "file.toml", "--json", "--limit", "1"]).exits(2);
    assert_eq!(export.stdout, "");
}

#[test]
fn a_run_that_ends_well_says_so_in_the_same_fields() {
    let object = Place::wallet().run(&["run", "file.toml", "--json"]).exits(0).json();
    assert_eq!((&object["error"], &object["exit_code"]), (&serde_json::Value::Null, &0.into()));
    let object = Place::wallet().run(&["check", "file.toml", "--json"]).exits(0).json();
    assert_eq!((&object["error"], &object["exit_code"]), (&serde_json::Value::Null, &0.into()));
}

/// Every command that prints something; the wallet was consumed before.
const PRINTING: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["help", "run"],
    &["run", "--help"],
    &["run", "file.toml"],
    &["run", "file.toml", "--json"],
    &["check", "file.toml"],
    &["check", "file.toml", "--json"],
    &["check", "file.toml", "--print"],
    &["migrate", "file.toml"],
    &["migrate", "file.toml", "--json"],
    &["migrate", "file.toml", "--show-sql"],
    &["publish", "--out", "new.jsonl", "--sample", "credits", "--count", "1", "--json"],
    &["inbox", "get", "file.toml", "x"],
    &["inbox", "get", "file.toml", "x", "--json"],
    &["dlq", "list", "file.toml"],
    &["dlq", "list", "file.toml", "--json"],
    &["dlq", "show", "file.toml", "KEY"],
    &["dlq", "export", "file.toml"],
];

fn printing(place: &Place) -> Vec<Vec<String>> {
    let list = place.run(&["dlq", "list", "file.toml", "--json"]).exits(0).json();
    let key = list["dead_letters"][0]["key"].as_str().unwrap().to_owned();
    let word = |word: &&str| if *word == "KEY" { key.clone() } else { (*word).to_owned() };
    PRINTING.iter().map(|args| args.iter().map(word).collect()).collect()
}

#[test]
fn output_that_cannot_be_written_exits_1_and_says_so() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    for args in printing(&place) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = place.run_full(&args);
        assert_eq!(done.code, Some(1), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains("cannot write to standard output"), "{args:?}: {}", done.stderr);
    }
}

/// A reader that went away, as `head` does, is no failure, and nothing is said of it.
#[test]
fn output_that_nobody_reads_any_more_exits_0_and_is_quiet() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    for args in printing(&place) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = place.run_into(writer, &args);
        assert_eq!(done.code, Some(0), "{args:?}: {}", done.stderr);
        assert!(!done.stderr.contains("error"), "{args:?}: {}", done.stderr);
    }
}
