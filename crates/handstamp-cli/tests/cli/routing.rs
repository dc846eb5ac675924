//! Conditions on effects and rules about ids, from outside: what is refused, what is said, what is counted.

use crate::common::Place;
use crate::wallet::number;

/// A pipeline of a file with these lines, this identity and these effects.
fn place(lines: &[String], identity: &str, rest: &str) -> Place {
    let place = Place::new();
    place.write("schema.sql", "CREATE TABLE moved (id TEXT, what TEXT, amount INTEGER);");
    place.write("in.jsonl", &lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    place.write(
        "p.toml",
        &format!(
            "name = \"wallet\"\n[source]\ntype = \"file\"\npath = \"in.jsonl\"\n[identity]\n{identity}\n[store]\n\
             type = \"sqlite\"\npath = \"wallet.db\"\nsetup = \"schema.sql\"\n{rest}"
        ),
    );
    place
}

fn moved(when: &str, what: &str) -> String {
    format!(
        "[[effect]]\nwhen = \"{when}\"\nsql = \"INSERT INTO moved VALUES (:message_id, '{what}', :amount)\"\n"
    )
}

fn lines(of: &[(&str, &str)]) -> Vec<String> {
    of.iter().map(|(id, rest)| format!(r#"{{"id":"{id}",{rest}}}"#)).collect()
}

const FIELD: &str = "field = \"/id\"";
const IGNORES: &str = "[consumer]\nignore_unmatched = true\n";

fn mixed() -> Vec<String> {
    lines(&[
        ("a", r#""type":"charge","amount":5"#),
        ("b", r#""type":"refund","amount":2"#),
        ("c", r#""type":"audit","amount":1"#),
        ("d", r#""type":7,"amount":1"#),
    ])
}

fn both() -> String {
    moved(":type = 'charge'", "charge") + &moved(":type = 'refund' and :amount <= 1000", "refund")
}

#[test]
fn a_mistake_is_pointed_at_in_the_file() {
    let place = place(&mixed(), FIELD, &moved(":type == 'charge'", "x"));
    let told = place.run(&["check", "p.toml"]).exits(2).stderr;
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].contains("p.toml:12: effect[1].when: `==` is not known here: write `=`"), "{told}");
    let caret = lines.iter().position(|line| line.trim() == "^").unwrap();
    assert_eq!(lines[caret].find('^'), lines[caret - 1].find("=="), "{told}");
    assert!(place.run(&["run", "p.toml"]).exits(2).stderr.contains("write `=`"));
}

#[test]
fn what_is_checked_and_explained_is_what_a_run_does() {
    for ignores in [false, true] {
        let rest = (if ignores { IGNORES } else { "" }).to_owned() + &both();
        let place = place(&mixed(), FIELD, &rest);
        let told = place.run(&["check", "p.toml"]).exits(0).stdout;
        for said in
            ["effect 1 (line", "runs when :type = 'charge'", "runs when :type = 'refund' and :amount <= 1000"]
        {
            assert!(told.contains(said), "{said}: {told}");
        }
        let unmatched = if ignores { "counted as unmatched" } else { "is a dead letter" };
        assert!(told.lines().any(|line| line.contains("unmatched: ") && line.contains(unmatched)), "{told}");
        let printed = place.run(&["check", "p.toml", "--print"]).exits(0).stdout;
        assert!(printed.contains("when = \":type = 'charge'\""), "{printed}");
        assert!(printed.contains(&format!("ignore_unmatched = {ignores}")), "{printed}");
        let explained = place.run(&["explain", "p.toml"]).exits(0).stdout;
        assert!(explained.contains("Effect 1 runs when :type = 'charge'."), "{explained}");
        assert_eq!(explained.contains("wanted by no effect"), !ignores, "{explained}");
        let object = place.run(&["explain", "p.toml", "--json"]).exits(0).json();
        assert_eq!(object["conditions"][0], ":type = 'charge'", "{object}");
        assert_eq!(object["ignore_unmatched"], ignores, "{object}");
        let object = place.run(&["run", "p.toml", "--json"]).exits(0).json();
        let dead = if ignores { 1 } else { 2 };
        for (count, value) in
            [("received", 4), ("applied", 2), ("unmatched", 2 - dead), ("dead_lettered", dead)]
        {
            assert_eq!(object[count], value, "{count}: {object}");
        }
        assert_eq!(
            number(&place, "SELECT count(*) FROM moved WHERE id || what IN ('acharge', 'brefund')"),
            2
        );
        let listed = place.run(&["dlq", "list", "p.toml", "--json"]).exits(0).json();
        let classes: Vec<&str> = listed["dead_letters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|dead| dead["class"].as_str().unwrap())
            .collect();
        assert_eq!(classes.contains(&"unmatched"), !ignores, "{listed}");
        assert!(classes.contains(&"condition"), "{listed}");
        let reason = place.run(&["dlq", "list", "p.toml", "--class", "condition"]).exits(0).stdout;
        assert!(reason.contains(":type = 'charge'"), "{reason}");
    }
}

/// Once a condition is widened, what was passed over is read again and applied; what was applied is not.
#[test]
fn what_was_passed_over_is_wanted_once_the_condition_is_wider() {
    let one = lines(&[("a", r#""type":"charge","amount":5"#), ("b", r#""type":"audit","amount":1"#)]);
    let place = place(&one, FIELD, &(IGNORES.to_owned() + &moved(":type = 'charge'", "x")));
    let object = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    assert_eq!((&object["applied"], &object["unmatched"]), (&1.into(), &1.into()), "{object}");
    // Its position stands: the last line that was wanted is known, the other is left out.
    let object = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    assert_eq!(object["received"], 0, "{object}");
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    place.write("p.toml", &text.replace(":type = 'charge'", "exists :type"));
    let object = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    assert_eq!((&object["applied"], &object["duplicate"]), (&1.into(), &1.into()), "{object}");
    assert_eq!(number(&place, "SELECT count(*) FROM moved"), 2);
}

#[test]
fn what_says_nothing_and_names_that_are_in_no_line_are_warned_of() {
    let always = "[[effect]]\nsql = \"INSERT INTO moved VALUES (:message_id, 'x', 1)\"\n";
    let told =
        place(&mixed(), FIELD, &format!("{IGNORES}{always}")).run(&["check", "p.toml"]).exits(0).stdout;
    assert!(
        told.contains("consumer.ignore_unmatched: says nothing, for effect 1 has no condition"),
        "{told}"
    );
    let told =
        place(&mixed(), FIELD, &moved(":tpye = 'charge'", "x")).run(&["check", "p.toml"]).exits(0).stdout;
    assert!(told.contains("when: the body's /tpye is in none of the first lines"), "{told}");
    assert!(told.contains("did you mean /type?"), "{told}");
    let told = place(&mixed(), FIELD, &moved("exists :vip and :vip = true", "x")).run(&["check", "p.toml"]);
    assert!(!told.exits(0).stdout.contains("/vip"));
    // A parameter is looked for where the effect runs.
    let only = lines(&[("a", r#""type":"charge""#), ("b", r#""type":"refund","amount":1"#)]);
    let told = place(&only, FIELD, &moved(":type = 'charge'", "x")).run(&["check", "p.toml"]).exits(0).stdout;
    assert!(told.contains(":amount (the body's /amount) is in none of the first lines"), "{told}");
    let told = place(&only, FIELD, &moved(":type = 'refund'", "x")).run(&["check", "p.toml"]).exits(0).stdout;
    assert!(!told.contains("is in none of the first lines"), "{told}");
}

#[test]
fn events_long_ids_and_resends_are_known_in_a_file() {
    let event = |source: &str, id: &str, amount: &str| {
        format!(r#"{{"specversion":"1.0","type":"t","source":"{source}","id":"{id}","amount":{amount}}}"#)
    };
    let long = "x".repeat(2000);
    let events = [
        event("a", "bc", "1"),
        event("ab", "c", "1"),
        event("a", "bc", "1.0"),
        event("a", &long, "1"),
        event("a", &long, "1e0"),
        event("a", "bc", "2"),
        r#"{"specversion":"1.0","type":"t","id":"bc","amount":1}"#.to_owned(),
    ];
    let identity = "cloudevents = true\nlong_ids = \"hash\"\ndigest = [\"/amount\"]";
    let effect = "[[effect]]\nsql = \"INSERT INTO moved VALUES (:message_id, 'x', :amount)\"\n";
    let place = place(&events, identity, effect);
    let told = place.run(&["check", "p.toml"]).exits(0).stdout;
    for said in ["is kept as its hash", "only /amount must be equal"] {
        assert!(told.contains(said), "{told}");
    }
    let printed = place.run(&["check", "p.toml", "--print"]).exits(0).stdout;
    for said in ["cloudevents = true", "long_ids = \"hash\"", "digest = [\"/amount\"]"] {
        assert!(printed.contains(said), "{printed}");
    }
    let object = place.run(&["run", "p.toml", "--json"]).exits(0).json();
    for (count, value) in [("applied", 3), ("duplicate", 2), ("id_reused", 1), ("dead_lettered", 1)] {
        assert_eq!(object[count], value, "{count}: {object}");
    }
    assert_eq!(number(&place, "SELECT count(*) FROM moved WHERE id LIKE 'handstamp:blake3:%'"), 1);
    let listed = place.run(&["dlq", "list", "p.toml", "--class", "identity"]).exits(0).stdout;
    assert!(listed.contains("source: it is missing"), "{listed}");
    let told = place.run(&["inbox", "get", "p.toml", r#"["a","bc"]"#]).exits(0).stdout;
    assert!(told.contains("applied"), "{told}");
}
