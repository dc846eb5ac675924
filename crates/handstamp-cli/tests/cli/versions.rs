//! A version guard and a consumer without an inbox, from outside: what is refused, what is said, what is counted.

use crate::common::Place;

const EFFECT: &str = "[[effect]]\nsql = \"INSERT INTO seen (id, seq) VALUES (:message_id, :seq)\"\n";

/// A pipeline of a file with these lines in `[consumer]`.
fn place(consumer: &str, lines: &[&str]) -> Place {
    let place = Place::new();
    place.write("schema.sql", "CREATE TABLE seen (id TEXT, seq INTEGER);");
    place.write("in.jsonl", &(lines.join("\n") + "\n"));
    place.write(
        "p.toml",
        &format!(
            "name = \"states\"\n[source]\ntype = \"file\"\npath = \"in.jsonl\"\n[identity]\nfield = \"/id\"\n[store]\n\
             type = \"sqlite\"\npath = \"wallet.db\"\nsetup = \"schema.sql\"\n[consumer]\n{consumer}\n{EFFECT}"
        ),
    );
    place
}

const GUARD: &str = "version = \"/seq\"\nversion_key = \"/of\"";
const LINES: [&str; 5] = [
    r#"{"id":"a2","of":"a","seq":2}"#,
    r#"{"id":"a1","of":"a","seq":1}"#,
    r#"{"id":"a10","of":"a","seq":10}"#,
    r#"{"id":"a9","of":"a","seq":9}"#,
    r#"{"id":"none","of":"a"}"#,
];

fn seen(place: &Place) -> i64 {
    crate::wallet::number(place, "SELECT count(*) FROM seen")
}

#[test]
fn what_is_stale_is_counted_in_the_table_and_in_json() {
    let shown = place(GUARD, &LINES).run(&["run", "p.toml"]).exits(0).stdout;
    assert!(
        shown.contains("stale") && shown.contains("not newer than what is applied of its key"),
        "{shown}"
    );
    let place = place(GUARD, &LINES);
    let object = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    for (count, value) in
        [("received", 5), ("applied", 2), ("stale", 2), ("dead_lettered", 1), ("resumed_stale", 0)]
    {
        assert_eq!(object[count], value, "{count}: {object}");
    }
    assert_eq!(seen(&place), 2);
    let listed = place.run(&["dlq", "list", "p.toml"]).exits(0).stdout;
    assert!(listed.contains("version") && listed.contains("no usable version in field /seq"), "{listed}");
    let class = place.run(&["dlq", "list", "p.toml", "--class", "version", "--json"]).exits(0).json();
    assert_eq!(class["dead_letters"].as_array().unwrap().len(), 1, "{class}");
    // What is stale has an outcome.
    place.run(&["inbox", "get", "p.toml", "a1"]).exits(0);
}

#[test]
fn an_inbox_is_left_out_only_by_those_who_say_what_holds_redeliveries_off() {
    for (consumer, why) in [
        ("inbox = false", "consumer.inbox: false only with `version`"),
        ("version_key = \"/of\"", "consumer.version_key: says of what `version` is one"),
        ("version = \"/seq\"", "consumer.version: a line of a file has no key: write `version_key`"),
        ("version = \"seq\"\nversion_key = \"/of\"", "is no JSON pointer: it must start with '/'"),
        ("inbox = 0", "consumer.inbox: expected true or false"),
    ] {
        let place = place(consumer, &LINES);
        for command in ["run", "check", "explain"] {
            let done = place.quiet(&[command, "p.toml"]).exits(2);
            assert!(
                done.stderr.contains(why) && done.stderr.contains("p.toml:"),
                "{consumer}: {}",
                done.stderr
            );
        }
    }
}

#[test]
fn check_and_explain_say_what_a_guard_does_and_what_is_given_up() {
    let said = |consumer: &str| {
        let place = place(consumer, &LINES);
        let check = place.quiet(&["check", "p.toml"]).exits(0).stdout;
        (check, place.quiet(&["explain", "p.toml"]).exits(0).stdout)
    };
    let rule = "of each value of /of only what is newer by /seq is applied; what is as old or older is settled as stale";
    let given_up = "no id is remembered";
    let (check, explain) = said(GUARD);
    assert!(check.contains(&format!("versions: {rule}")) && !check.contains(given_up), "{check}");
    assert!(explain.contains(rule) && explain.contains("stale: not newer than what is applied"), "{explain}");
    assert!(explain.contains("duplicate"), "{explain}");
    let (check, explain) = said(&format!("{GUARD}\ninbox = false"));
    assert!(check.contains("warning  consumer.inbox = false: no id is remembered"), "{check}");
    assert!(check.contains("held off by its version alone"), "{check}");
    assert!(explain.contains("No inbox: no id is remembered") && !explain.contains("duplicate"), "{explain}");
    let (check, explain) = said("inbox = false\nnaturally_idempotent = true");
    assert!(check.contains("runs its effects again, also behind newer messages"), "{check}");
    assert!(check.contains("each start reads it from its beginning"), "{check}");
    assert!(!explain.contains("stale"), "{explain}");
    let (check, explain) = said("naturally_idempotent = true");
    assert!(check.contains("naturally_idempotent: says nothing while the inbox is on"), "{check}");
    assert!(!explain.contains("No inbox"), "{explain}");
    let printed = place(&format!("{GUARD}\ninbox = false"), &LINES).quiet(&["check", "p.toml", "--print"]);
    let printed = printed.exits(0).stdout;
    for line in
        ["version = \"/seq\"", "version_key = \"/of\"", "inbox = false", "naturally_idempotent = false"]
    {
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
}

/// Without ids the marks say whether the kept position of a file is the store's own.
#[test]
fn a_file_is_read_on_where_the_marks_know_its_last_lines() {
    let guarded = format!("{GUARD}\ninbox = false");
    let place = place(&guarded, &LINES);
    let first = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    assert_eq!((&first["applied"], &first["stale"]), (&2.into(), &2.into()), "{first}");
    let again = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    assert_eq!(again["received"], 0, "{again}");
    // Another store has no such mark: nothing of the file is missing in it.
    for file in ["wallet.db", "wallet.db-wal", "wallet.db-shm"] {
        let _ = std::fs::remove_file(place.path(file));
    }
    let other = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    assert_eq!((&other["received"], &other["applied"]), (&5.into(), &2.into()), "{other}");
    assert_eq!(crate::wallet::number(&place, "SELECT count(*) FROM handstamp_inbox"), 0);
}

#[test]
fn a_file_is_read_again_where_nothing_can_tell() {
    let place = place("inbox = false\nnaturally_idempotent = true", &LINES[..4]);
    place.run(&["run", "p.toml"]).exits(0);
    let again = place.run(&["run", "p.toml", "--json"]).exits(0);
    assert!(
        again.stderr.contains("reading the file from its beginning; its effects run again"),
        "{}",
        again.stderr
    );
    assert_eq!(again.json()["applied"], 4);
    assert_eq!(seen(&place), 8);
}
