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
    // What is stale has an outcome, which the inbox cannot tell from an effect that was committed.
    for id in ["a1", "a10"] {
        let told = place.run(&["inbox", "get", "p.toml", id]).exits(0).stdout;
        assert!(told.contains("done: applied, or stale (not newer than"), "{told}");
        let object = place.run(&["inbox", "get", "p.toml", id, "--json"]).exits(0).json();
        assert_eq!((&object["state"], &object["may_be_stale"]), (&"applied".into(), &true.into()));
    }
}

#[test]
fn who_remembers_no_id_says_so_and_who_has_no_guard_knows_what_is_applied() {
    let without = place("inbox = false\nnaturally_idempotent = true", &LINES[..4]);
    without.run(&["run", "p.toml"]).exits(0);
    let told = without.run(&["inbox", "get", "p.toml", "a1"]).exits(0).stdout;
    assert!(told.contains("remembers no id (inbox = false)"), "{told}");
    let plain = place("", &LINES[..4]);
    plain.run(&["run", "p.toml"]).exits(0);
    let told = plain.run(&["inbox", "get", "p.toml", "a1"]).exits(0).stdout;
    assert!(told.lines().any(|line| line.split_whitespace().eq(["state", "applied"])), "{told}");
    let object = plain.run(&["inbox", "get", "p.toml", "a1", "--json"]).exits(0).json();
    assert_eq!(object["may_be_stale"], false);
}

/// Each kind of message as `explain` tells it: what a run does with it is that.
#[test]
fn what_explain_says_of_each_kind_is_what_a_run_does() {
    let long = format!(r#"{{"id":"long","of":"a","seq":9,"fill":"{}"}}"#, "x".repeat(300));
    let lines = [
        r#"{"id":"ok","of":"a","seq":2}"#,
        r#"{"id":"ok","of":"a","seq":2}"#,
        r#"{"id":"ok","of":"a","seq":3}"#,
        r#"{"id":"old","of":"a","seq":1}"#,
        r#"{"of":"a","seq":4}"#,
        long.as_str(),
        r#"{"id":"no-version","of":"a"}"#,
        r#"{"id":"unfit","of":"b","seq":99999999999999999999}"#,
    ];
    let place = place(&format!("{GUARD}\nmax_message_bytes = 200"), &lines);
    let told = place.quiet(&["explain", "p.toml", "--json"]).exits(0).json();
    let then = |class: Option<&str>, name: &str| {
        let of = |outcome: &&serde_json::Value| match class {
            Some(class) => outcome["classes"].as_array().unwrap().iter().any(|one| one == class),
            None => outcome["outcome"].as_str().unwrap().starts_with(name),
        };
        let found = told["outcomes"].as_array().unwrap().iter().find(of);
        found.unwrap_or_else(|| panic!("{name}: {told}"))["attempts"][0]["then"].clone()
    };
    let run = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    for (name, count) in [("duplicate", "duplicate"), ("stale", "stale")] {
        assert_eq!((&then(None, name), &run[count]), (&"skip".into(), &1.into()), "{run}");
    }
    assert_eq!((&then(None, "applied"), &run["applied"]), (&"apply".into(), &1.into()), "{run}");
    let list = place.run(&["dlq", "list", "p.toml", "--json"]).exits(0).json();
    let mut dead: Vec<&str> = list["dead_letters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|letter| {
            let class = letter["class"].as_str().unwrap();
            assert_eq!(then(Some(class), class), "dead_letter", "{letter}");
            class
        })
        .collect();
    dead.sort_unstable();
    assert_eq!(dead, ["binding", "id_reused", "identity", "too_large", "version"]);
}

#[test]
fn a_run_says_what_it_leaves_and_how_to_look_at_it() {
    let guarded = format!("{GUARD}\n[retry]\nbackoff_base = \"365days\"\nbackoff_cap = \"365days\"\n");
    let place = place(&guarded, &LINES);
    place.write("schema.sql", "CREATE TABLE seen (id TEXT, seq INTEGER CHECK (seq <> 10));");
    let run = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    let left = &run["left"];
    assert_eq!((&left["parked"], &left["dead_letters"]), (&1.into(), &1.into()), "{run}");
    assert!(left["next_due_seconds"].as_f64().is_some() && left["oldest_parked_seconds"].as_f64().is_some());
    let text = place.run(&["run", "p.toml"]).exits(0).stdout;
    for words in [
        " 1 stay parked, the first due in ",
        "\n   handstamp dlq parked p.toml\n",
        "\n 1 dead letters\n   handstamp dlq groups p.toml\n",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    // Nothing is left, nothing is said.
    for key in ["parked", "list"] {
        let listed = place.run(&["dlq", key, "p.toml", "--json"]).exits(0).json();
        let rows = listed.get("parked").or(listed.get("dead_letters")).unwrap();
        let key = rows[0]["key"].as_str().unwrap().to_owned();
        place.run(&["dlq", "discard", "p.toml", &key, "--why", "x"]).exits(0);
    }
    let text = place.run(&["run", "p.toml"]).exits(0).stdout;
    assert!(!text.contains("handstamp dlq"), "{text}");
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
        let check = place.quiet(&["check", "p.toml"]).exits(0).unwrapped();
        (check, place.quiet(&["explain", "p.toml"]).exits(0).unwrapped())
    };
    let rule = "of each value of /of only what is newer by /seq is applied; what is as old or older is settled as stale";
    let given_up = "no id is remembered";
    let (check, explain) = said(GUARD);
    assert!(check.contains(&format!("versions: {rule}")) && !check.contains(given_up), "{check}");
    assert!(explain.contains(rule) && explain.contains("stale: not newer than what is applied"), "{explain}");
    assert!(explain.contains("duplicate"), "{explain}");
    let (check, explain) = said(&format!("{GUARD}\ninbox = false"));
    assert!(check.contains("warning consumer.inbox = false: no id is remembered"), "{check}");
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
