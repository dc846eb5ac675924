//! `inbox`, `dlq`, `check`, `migrate`, `publish` on a file and SQLite.

use crate::common::Place;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

const FIRST: &str = "0193f5a0-7c01-7a5c-84d3-25160c5c7fd0";

fn consumed() -> Place {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    place
}

/// The bytes behind what an export shows.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => Some(STANDARD.decode(other["base64"].as_str().unwrap()).unwrap()),
    }
}

#[test]
fn the_inbox_knows_what_became_of_an_id() {
    let place = consumed();
    let known = place.run(&["inbox", "get", "file.toml", FIRST, "--json"]).exits(0).json();
    assert_eq!((&known["known"], &known["state"]), (&Value::Bool(true), &"applied".into()));
    assert!(known["first_seen"].as_str().unwrap().ends_with('Z'));
    let unknown = place.run(&["inbox", "get", "file.toml", "never-seen", "--json"]).exits(0).json();
    assert_eq!((&unknown["known"], &unknown["state"]), (&Value::Bool(false), &Value::Null));
    let table = place.quiet(&["inbox", "get", "file.toml", FIRST]).exits(0).stdout;
    assert!(table.contains("applied") && table.contains(FIRST), "{table}");
    let dead = place.run(&["inbox", "get", "file.toml", "0193f5a0-7c20-729e-899b-fd7f86734721", "--json"]);
    assert_eq!(dead.exits(0).json()["state"], "dead");
    place.quiet(&["inbox", "get", "file.toml", " "]).exits(2);
    place.quiet(&["inbox", "get", "file.toml", "--", "-1"]).exits(0);
}

#[test]
fn asking_a_store_that_is_not_there_makes_none() {
    let place = Place::wallet();
    for args in [
        &["inbox", "get", "file.toml", "x"][..],
        &["dlq", "list", "file.toml"],
        &["dlq", "export", "file.toml"],
        &["check", "file.toml"],
    ] {
        let done = place.quiet(args);
        let expected = if args[0] == "check" { 0 } else { 4 };
        done.exits(expected);
        assert!(!place.path("wallet.db").exists(), "{args:?} made the file");
    }
}

#[test]
fn an_export_has_every_byte_of_every_dead_letter() {
    let place = Place::wallet();
    let mut lines = std::fs::read(place.path("credits.jsonl")).unwrap();
    lines.extend_from_slice(b"{\"event_id\": \"binary\", \"amount\": \xff\xfe\0}\n");
    lines.extend_from_slice("\u{feff}{\"event_id\"\n".as_bytes());
    std::fs::write(place.path("credits.jsonl"), &lines).unwrap();
    place.run(&["run", "file.toml"]).exits(0);
    let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let export = place.run(&["dlq", "export", "file.toml"]).exits(0);
    let letters: Vec<Value> = export.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(letters.len(), 16);
    for letter in &letters {
        let line = usize::try_from(letter["line"].as_u64().unwrap()).unwrap();
        assert_eq!(bytes(&letter["record_value"]).as_deref(), Some(lines[line - 1]), "line {line}");
        assert!(!letter["reason"].as_str().unwrap().is_empty());
        // Each is also shown by its key.
        let key = letter["key"].as_str().unwrap();
        let mut shown = place.quiet(&["dlq", "show", "file.toml", key, "--json"]).exits(0).json();
        let history = shown.as_object_mut().unwrap();
        assert!(history.remove("failures").is_some() && history.remove("audit").is_some());
        assert_eq!(&shown, letter);
    }
    let identity = place.run(&["dlq", "export", "file.toml", "--class", "identity"]).exits(0);
    assert_eq!(identity.stdout.lines().count(), 9);
}

#[test]
fn dead_letters_are_listed_by_class_and_up_to_a_limit() {
    let place = consumed();
    let list =
        |args: &[&str]| place.run(&[&["dlq", "list", "file.toml", "--json"], args].concat()).exits(0).json();
    assert_eq!(list(&[])["dead_letters"].as_array().unwrap().len(), 14);
    assert_eq!(list(&[])["more"], false);
    let some = list(&["--limit", "3"]);
    assert_eq!((some["dead_letters"].as_array().unwrap().len(), &some["more"]), (3, &Value::Bool(true)));
    assert_eq!(list(&["--class", "rows"])["dead_letters"].as_array().unwrap().len(), 1);
    let wrong = place.quiet(&["dlq", "list", "file.toml", "--class", "row"]).exits(2);
    assert!(wrong.stderr.contains("identity"), "{}", wrong.stderr);
    place.quiet(&["dlq", "show", "file.toml", "12"]).exits(2);
    place.quiet(&["dlq", "show", "file.toml", &"0".repeat(32)]).exits(5);
}

#[test]
fn check_finds_what_would_go_wrong() {
    let place = consumed();
    let check = |from: &str, to: &str| {
        let toml = place.read("file.toml");
        assert!(toml.contains(from), "{from}");
        place.write("checked.toml", &toml.replace(from, to));
        place.run(&["check", "checked.toml", "--json"])
    };
    assert_eq!(check("wallet", "wallet").exits(0).counts(["failed", "warnings"]), [0, 0]);
    let silent = check("expect_rows = 1", "").exits(0);
    assert_eq!(silent.counts(["failed", "warnings"]), [0, 1]);
    assert!(silent.stdout.contains("expect_rows"), "{}", silent.stdout);
    check("expect_rows = 1", "expect_rows = \"any\"").exits(0);
    let table = check("INTO ledger", "INTO ledgers").exits(5);
    assert!(table.stdout.contains("effect 2") && table.stdout.contains("ledgers"), "{}", table.stdout);
    let file = check("credits.jsonl", "none.jsonl").exits(5);
    assert!(file.stdout.contains("none.jsonl"), "{}", file.stdout);
    check("path = \"credits.jsonl\"", "path = \".\"").exits(5);
    let setup = check("schema.sqlite.sql", "none.sql").exits(5);
    assert!(setup.stdout.contains("none.sql"), "{}", setup.stdout);
    place.write(
        "not.db",
        "this is no database, and longer than its header would be: 0123456789 0123456789 0123456789",
    );
    check("wallet.db", "not.db").exits(5);
}

#[test]
fn migrate_says_what_it_did_and_refuses_a_changed_setup() {
    let place = Place::wallet();
    let first = place.quiet(&["migrate", "file.toml"]).exits(0).stdout;
    assert!(first.contains("schema.sqlite.sql"), "{first}");
    let second = place.quiet(&["migrate", "file.toml"]).exits(0).stdout;
    assert!(second.contains("up to date"), "{second}");
    let sql = place.quiet(&["migrate", "file.toml", "--show-sql"]).exits(0).stdout;
    assert!(sql.contains("handstamp_inbox") && sql.contains("CREATE TABLE accounts"), "{sql}");
    place.quiet(&["migrate", "file.toml", "--grant-to", "someone"]).exits(2);
    place.write("schema.sqlite.sql", "CREATE TABLE other (id INTEGER);");
    let changed = place.quiet(&["run", "file.toml"]).exits(2);
    assert!(changed.stderr.contains("schema.sqlite.sql"), "{}", changed.stderr);
}

#[test]
fn many_processes_may_migrate_one_file_at_once() {
    let place = Place::wallet();
    let runs: Vec<_> = (0..4).map(|_| place.start("trace", &["migrate", "file.toml"])).collect();
    let said: Vec<String> = runs.into_iter().map(|run| run.finish().exits(0).stdout).collect();
    assert_eq!(said.iter().filter(|said| said.contains("schema.sqlite.sql")).count(), 1, "{said:?}");
}

#[test]
fn samples_with_a_seed_are_the_same_and_never_half_written() {
    let place = Place::new();
    let publish = |out: &str| {
        let args = [
            "publish",
            "--out",
            out,
            "--sample",
            "credits",
            "--count",
            "200",
            "--duplicates",
            "0.1",
            "--seed",
            "7",
        ];
        place.quiet(&args).exits(0)
    };
    let said = publish("a.jsonl").stderr;
    publish("b.jsonl");
    assert!(said.starts_with("published 220 messages: 200 credits worth "), "{said}");
    assert_eq!(place.read("a.jsonl"), place.read("b.jsonl"));
    let lines: Vec<Value> =
        place.read("a.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: std::collections::BTreeSet<&str> =
        lines.iter().map(|line| line["event_id"].as_str().unwrap()).collect();
    assert_eq!((lines.len(), ids.len()), (220, 200));
    place.quiet(&["publish", "--out", "c.jsonl", "--sample", "credits", "--header", "a=b"]).exits(2);
    place.quiet(&["publish", "--out", "c.jsonl", "--sample", "credits", "--duplicates", "1.5"]).exits(2);
}

#[test]
fn another_source_under_a_known_name_is_refused_until_adopted() {
    let place = consumed();
    place.write(
        "kafka-to-sqlite.toml",
        &place.read("file.toml").replace(
            "type = \"file\"\npath = \"credits.jsonl\"",
            "type = \"kafka\"\nbrokers = \"127.0.0.1:1\"\ntopics = [\"t\"]\ngroup = \"g\"",
        ),
    );
    let refused = place.run(&["run", "kafka-to-sqlite.toml", "--fail-fast"]).exits(2);
    if cfg!(feature = "kafka") {
        assert!(refused.stderr.contains("--adopt"), "{}", refused.stderr);
        // Adopted, it gets as far as the broker that is not there.
        place.run(&["run", "kafka-to-sqlite.toml", "--fail-fast", "--adopt"]).exits(3);
    } else {
        assert!(refused.stderr.contains("feature `kafka`"), "{}", refused.stderr);
    }
}

/// A reason says what the message held: what is not printable is escaped once, in the table, as JSON, in the log.
#[test]
fn a_reason_escapes_what_is_not_printable_once() {
    let place = Place::wallet();
    let escapes = "{\"event_id\": \"nul-\\u0000-1\", \"account_id\": 1, \"amount\": \"a\\u0000b\\u001b[2J\"}\n\
                   {\"event_id\": \"esc\", \"account_id\": \"a\\u0000\\n\", \"amount\": 1, \"amo\\u0000unt\": 1}\n\
                   {\"event_id\": [\"a\\u0000\"], \"account_id\": 1, \"amount\": 1}\n\
                   {\"event_id\": \"two\", \"account_id\": 1, \"amount\": 1, \"amount\": 2}\n";
    place.write("credits.jsonl", escapes);
    let run = place.run_at("warn", &["run", "file.toml", "--json"]).exits(0);
    assert_eq!(run.counts(["dead_lettered"]), [4]);
    let list = place.run(&["dlq", "list", "file.toml", "--json"]).exits(0).json();
    let reasons: Vec<&str> = list["dead_letters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|letter| letter["reason"].as_str().unwrap())
        .collect();
    for reason in &reasons {
        assert!(!reason.contains(r"\\") && !reason.contains(r#"\""#), "{reason}");
        assert!(run.stderr.contains(reason), "{reason} is not in {}", run.stderr);
    }
    assert!(reasons.iter().any(|reason| reason.contains(r"\u{0}")), "{reasons:?}");
    let table = place.run_with("off", &["dlq", "list", "file.toml"], &[("COLUMNS", "300")]).exits(0).stdout;
    assert!(reasons.iter().all(|reason| table.contains(reason)), "{table}");
}

/// What the reference says of lines.
#[test]
fn empty_lines_are_no_messages_but_keep_their_numbers() {
    let page = std::fs::read_to_string(crate::common::root().join("docs/reference/config.md")).unwrap();
    assert!(page.contains("An empty line is no message"), "the reference says nothing of empty lines");
    let place = Place::wallet();
    let line = |id: &str| format!("{{\"event_id\": \"{id}\", \"account_id\": 1, \"amount\": 1}}");
    let (one, two) = (line("one"), line("two"));
    // Empty, CR alone, CRLF ends, white space, NUL, the last line without its end.
    let text = format!("\u{feff}\n\r\n{one}\r\n\r\n\n \t\n\0\n{two}\n\r\n\r");
    place.write("credits.jsonl", &text);
    let done = place.run(&["run", "file.toml", "--json"]).exits(0);
    // A line of white space is a message, and no JSON.
    assert_eq!(done.counts(["received", "applied", "dead_lettered"]), [4, 2, 2]);
    let list = place.run(&["dlq", "list", "file.toml", "--json"]).exits(0).json();
    let lines: Vec<u64> = list["dead_letters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|letter| letter["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [6, 7]);
    assert_eq!(place.run(&["run", "file.toml", "--json"]).exits(0).counts(["received"]), [0]);
    // What is published from such lines is as many messages.
    place.write("in.jsonl", &text);
    let args = ["publish", "--out", "out.jsonl", "--input", "in.jsonl", "--allow-no-id"];
    let said = place.quiet(&args).exits(0).stderr;
    assert!(said.starts_with("published 4 messages"), "{said}");
}

/// A place that cannot be is a mistake of the command line, not something that is away.
#[test]
fn a_wrong_place_or_field_to_publish_is_a_mistake() {
    let place = Place::wallet();
    std::fs::create_dir(place.path("folder")).unwrap();
    for (args, words) in [
        (&["--out", "none/out.jsonl"][..], "none/out.jsonl"),
        (&["--out", "folder"], "folder"),
        (&["--out", "credits.jsonl/below"], "credits.jsonl/below"),
        (&["--out", "out.jsonl", "--key-field", ""], "--key-field: is empty"),
        (&["--out", "out.jsonl", "--id-field", ""], "--id-field: is empty"),
        (&["--out", "out.jsonl", "--key-field", "account_id"], "must start with '/'"),
        (&["--out", "out.jsonl", "--header", "a"], "--header"),
    ] {
        let done =
            place.quiet(&[&["publish", "--sample", "credits", "--count", "1"], args].concat()).exits(2);
        assert!(done.stderr.contains(words), "{args:?}: {}", done.stderr);
    }
    let missing = place.quiet(&["publish", "--out", "out.jsonl", "--input", "none.jsonl"]).exits(2);
    assert!(missing.stderr.contains("is the name right"), "{}", missing.stderr);
    assert!(!place.path("out.jsonl").exists());
}
