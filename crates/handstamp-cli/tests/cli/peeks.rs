//! `check` looks into a file: a misspelt name is found before every message is a dead letter.

use crate::common::{Done, Place};

fn checked(place: &Place, pairs: &[(&str, &str)]) -> Done {
    let toml = pairs.iter().fold(place.read("file.toml"), |toml, (from, to)| {
        assert!(toml.contains(from), "{from}");
        toml.replace(from, to)
    });
    place.write("checked.toml", &toml);
    place.run(&["check", "checked.toml", "--json"]).exits(0)
}

/// The findings that are no `ok`, each with what to do.
fn warnings(done: &Done) -> Vec<(String, String)> {
    let object = done.json();
    let findings = object["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] != "ok");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    findings.map(|finding| (text(&finding["what"]), text(&finding["todo"]))).collect()
}

#[test]
fn a_name_that_no_line_has_is_warned_of_with_the_nearest_one() {
    let place = Place::wallet();
    assert_eq!(warnings(&checked(&place, &[])), []);
    // The first effect alone has `WHERE id =`.
    for (from, to, what, todo) in [
        ("WHERE id = :account_id", "WHERE id = :acount_id", ":acount_id", "did you mean /account_id?"),
        ("+ :amount WHERE", "+ :Amount WHERE", ":Amount", "did you mean /amount?"),
        ("WHERE id = :account_id", "WHERE id = :colour", ":colour", "`optional`"),
        ("/event_id", "/evnt_id", "identity: /evnt_id", "did you mean /event_id?"),
    ] {
        let found = warnings(&checked(&place, &[(from, to)]));
        let [(said, advice)] = &found[..] else { panic!("{to}: {found:?}") };
        assert!(said.contains(what) && said.contains("credits.jsonl"), "{to}: {said}");
        assert!(advice.contains(todo), "{to}: {advice}");
    }
}

#[test]
fn what_may_be_missing_or_is_no_field_is_not_warned_of() {
    let place = Place::wallet();
    let typo = ("WHERE id = :account_id\"", "WHERE id = :acount_id\"\noptional = [\"acount_id\"]");
    assert_eq!(warnings(&checked(&place, &[typo])), []);
    for (from, to) in [
        ("(:message_id, :account_id", "(:topic, :account_id"),
        ("(:message_id, :account_id", "(:body_text, :account_id"),
        ("(:message_id, :account_id", "(:header_x, :account_id"),
    ] {
        assert_eq!(warnings(&checked(&place, &[(from, to)])), [], "{to}");
    }
    // One line of many has it, and a key that is there twice is there.
    place
        .write("credits.jsonl", "{\"event_id\": \"a\"}\n{\"account_id\": 1, \"amount\": 2, \"amount\": 3}\n");
    assert_eq!(warnings(&checked(&place, &[])), []);
}

/// A pointer is compared with the names beside it, wherever they are.
#[test]
fn a_name_further_down_is_found_beside_its_neighbours() {
    let place = Place::wallet();
    let line = "{\"event_id\": \"a\", \"amount\": 1, \"to\": {\"account/id\": 7, \"account\": 8}}\n";
    place.write("credits.jsonl", &format!("\u{feff}{line}"));
    let params = |pointer: &str| {
        let effect = format!("expect_rows = 1\nparams.account_id = \"{pointer}\"");
        let second = ("(:message_id, :account_id, :amount)", "(:message_id, :amount, :amount)");
        warnings(&checked(&place, &[("expect_rows = 1", &effect), second]))
    };
    assert_eq!(params("/to/account~1id"), []);
    let found = params("/to/acount~1id");
    let [(said, advice)] = &found[..] else { panic!("{found:?}") };
    assert!(said.contains(":account_id (the body's /to/acount~1id)"), "{said}");
    assert!(advice.contains("did you mean /to/account~1id?"), "{advice}");
    assert_eq!(params("/too/account").len(), 1);
}

#[test]
fn without_input_nothing_is_said() {
    let typo = ("WHERE id = :account_id", "WHERE id = :acount_id");
    for text in ["", "\n\n", "no JSON\n[1]\n7\n"] {
        let place = Place::wallet();
        place.write("credits.jsonl", text);
        assert_eq!(warnings(&checked(&place, &[typo])), [], "{text:?}");
    }
    let place = Place::wallet();
    assert_eq!(warnings(&checked(&place, &[typo, ("credits.jsonl", "-")])), []);
    // Nothing is taken out of a FIFO, and nobody waits for its writer.
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    assert_eq!(warnings(&checked(&place, &[typo, ("credits.jsonl", "pipe")])), []);
}

/// The first lines are looked at, not all that there are.
#[test]
fn only_the_beginning_is_read() {
    let place = Place::wallet();
    let bad = "{\"event_id\": \"a\", \"acount_id\": 1, \"amount\": 1}\n";
    let good = "{\"event_id\": \"b\", \"account_id\": 1, \"amount\": 1}\n";
    place.write("credits.jsonl", &format!("{}{good}", bad.repeat(99)));
    assert_eq!(warnings(&checked(&place, &[])), []);
    place.write("credits.jsonl", &format!("{}{good}", bad.repeat(100)));
    let found = warnings(&checked(&place, &[]));
    assert_eq!(found.len(), 2, "an effect each: {found:?}");
    assert!(found[0].0.contains("100 looked at"), "{found:?}");
}
