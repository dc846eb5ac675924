//! The same command once more: what was sent back or given up before is told with what became of it, however it is
//! named; what never was there is an error. On both stores.

use crate::answers::{Wallet, on_each_store};
use serde_json::Value;

/// So many credits to an account that is not there.
const LOST: u64 = 5;

fn line(id: &str, account: u64) -> String {
    format!("{{\"event_id\": \"{id}\", \"account_id\": {account}, \"amount\": 3}}\n")
}

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}"))
}

/// Credits to nobody, all dead; answers the group and the key of one of them.
fn lost(wallet: &Wallet) -> (String, String) {
    let lines: String = (0..LOST).map(|n| line(&format!("lost-{n}"), 777)).collect();
    wallet.place.write("credits.jsonl", &lines);
    wallet.json(&["run", "FILE", "--migrate", "--json"]);
    let groups = wallet.json(&["dlq", "groups", "FILE", "--json"]);
    let list = wallet.json(&["dlq", "list", "FILE", "--json", "--id", "lost-3"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&groups["groups"][0]["group"]), text(&list["dead_letters"][0]["key"]))
}

/// Says it again by each selector, dry and in earnest: nothing is done, and each is told as `now`.
fn again(wallet: &Wallet, action: &[&str], (group, key): &(String, String), now: &str) {
    for (selector, count) in [(&["--group", group][..], LOST), (&["--id", "lost-3"], 1), (&[key], 1)] {
        for dry in [&["--dry-run"][..], &[]] {
            let words = [&["dlq", action[0], "FILE"], selector, &action[1..], dry, &["--json"]].concat();
            let said = wallet.json(&words);
            let counts = ["meant", "done", "done_before", "stayed"].map(|name| number(&said, name));
            assert_eq!(counts, [count, 0, count, 0], "{words:?}: {said}");
            assert_eq!(number(&said["now"], now), count, "{words:?}: {said}");
            assert_eq!(said["next"].is_null(), now != "due", "{said}");
        }
        let words = [&["dlq", action[0], "FILE"], selector, &action[1..]].concat();
        let text = wallet.run("off", &words).exits(0).stdout;
        let verb = if action[0] == "redrive" { "sent back" } else { "discarded" };
        assert!(text.starts_with(&format!("0 of {count} {verb}\n{count} {verb} before: ")), "{text}");
        assert_eq!(text.contains("\n  handstamp run "), now == "due", "{text}");
    }
}

#[test]
fn a_redrive_said_again_answers_alike_by_group_id_and_key() {
    on_each_store(|wallet| {
        let named = lost(wallet);
        wallet.sql("INSERT INTO accounts (id, balance) VALUES (777, 0)");
        let sent = wallet.json(&["dlq", "redrive", "FILE", "--group", &named.0, "--json"]);
        assert_eq!(number(&sent, "done"), LOST, "{sent}");
        again(wallet, &["redrive"], &named, "due");
        assert_eq!(number(&wallet.json(&["run", "FILE", "--json"]), "resumed_applied"), LOST);
        again(wallet, &["redrive"], &named, "applied");
        // Nothing was written down by all that.
        let audit = wallet.json(&["dlq", "audit", "FILE", "--json"]);
        assert_eq!(audit["audit"].as_array().unwrap().len() as u64, LOST);
        // What is applied cannot be given up.
        for selector in [&["--group", &named.0][..], &["--id", "lost-3"], &[named.1.as_str()]] {
            let words = [&["dlq", "discard", "FILE", "--why", "x"], selector].concat();
            let stays = wallet.run("off", &words).exits(5).stdout;
            assert!(stays.contains("sent back at 2"), "{stays}");
        }
    });
}

#[test]
fn a_discard_said_again_answers_alike_too_and_what_is_gone_is_not_sent_back() {
    on_each_store(|wallet| {
        let named = lost(wallet);
        let action = ["discard", "--why", "refunded"];
        let gone =
            wallet.json(&["dlq", "discard", "FILE", "--group", &named.0, "--why", "refunded", "--json"]);
        assert_eq!(number(&gone, "done"), LOST, "{gone}");
        again(wallet, &action, &named, "discarded");
        for selector in [&["--group", &named.0][..], &["--id", "lost-3"], &[named.1.as_str()]] {
            for dry in [&["--dry-run"][..], &[]] {
                let words = [&["dlq", "redrive", "FILE"], selector, dry].concat();
                let stays = wallet.run("off", &words).exits(5).stdout;
                assert!(stays.contains("given up at 2") && stays.contains(&named.1), "{words:?}: {stays}");
            }
        }
    });
}

#[test]
fn what_never_was_there_is_an_error_however_it_is_named() {
    on_each_store(|wallet| {
        lost(wallet);
        for selector in
            [&["--group", "00000000"][..], &["--id", "never"], &["00000000000000000000000000000000"]]
        {
            for dry in [&["--dry-run"][..], &[]] {
                let words = [&["dlq", "redrive", "FILE"], selector, dry].concat();
                let done = wallet.run("off", &words).exits(5);
                let said = format!("{}{}", done.stdout, done.stderr);
                assert!(said.contains("no ") && said.contains("dead letter"), "{words:?}: {said}");
            }
        }
        // A filter may find nothing, and says so.
        let nothing = wallet.run("off", &["dlq", "redrive", "FILE", "--class", "crashed"]).exits(0);
        assert_eq!(nothing.stdout, "nothing fits: 0 sent back\n");
    });
}

/// One that no handler ever saw has no failed attempt; why it was dead is kept all the same.
#[test]
fn a_group_without_attempts_is_known_again_too() {
    on_each_store(|wallet| {
        let right = wallet.place.read(wallet.file);
        wallet.place.write(wallet.file, &right.replace("\"/event_id\"", "\"/id\""));
        wallet.place.write("credits.jsonl", &format!("{}{}", line("a", 1), line("b", 1)));
        wallet.json(&["run", "FILE", "--migrate", "--json"]);
        wallet.place.write(wallet.file, &right);
        let groups = wallet.json(&["dlq", "groups", "FILE", "--json"]);
        let group = groups["groups"][0]["group"].as_str().unwrap();
        let words = ["dlq", "redrive", "FILE", "--group", group, "--json"];
        assert_eq!(number(&wallet.json(&words), "done"), 2);
        assert_eq!(number(&wallet.json(&words)["now"], "due"), 2);
        assert_eq!(number(&wallet.json(&["run", "FILE", "--json"]), "resumed_applied"), 2);
        let again = wallet.json(&words);
        assert_eq!((number(&again, "done_before"), number(&again["now"], "applied")), (2, 2), "{again}");
        let key = wallet.json(&["dlq", "audit", "FILE", "--json"])["audit"][0]["key"].clone();
        let shown = wallet.json(&["dlq", "show", "FILE", key.as_str().unwrap(), "--json"]);
        assert_eq!(shown["failures"][0]["class"], "identity", "{shown}");
    });
}

/// Two that today's rule gives one id: a dry run knows that only one of them gets it.
#[test]
fn a_dry_run_promises_an_id_once() {
    on_each_store(|wallet| {
        let right = wallet.place.read(wallet.file);
        wallet.place.write(wallet.file, &right.replace("\"/event_id\"", "\"/id\""));
        wallet.place.write("credits.jsonl", &line("a", 1).repeat(2));
        wallet.json(&["run", "FILE", "--migrate", "--json"]);
        wallet.place.write(wallet.file, &right);
        let said = [&["--dry-run"][..], &[]].map(|dry| {
            let words = [&["dlq", "redrive", "FILE", "--all", "--json"], dry].concat();
            let said = wallet.run("off", &words).exits(5).json();
            ["meant", "done", "stayed"].map(|name| number(&said, name))
        });
        assert_eq!(said, [[2, 1, 1]; 2]);
    });
}

#[test]
fn what_is_sent_back_says_that_a_consumer_must_run_and_what_becomes_of_its_order() {
    on_each_store(|wallet| {
        let (_, key) = lost(wallet);
        let file = wallet.place.read(wallet.file);
        for (order, words) in [
            ("partition", "later than the messages that followed"),
            ("key", "behind what is parked of its key"),
            ("none", "none is kept"),
        ] {
            wallet.place.write(wallet.file, &format!("{file}\n[consumer]\norder = \"{order}\"\n"));
            let dry = wallet.json(&["dlq", "redrive", "FILE", &key, "--dry-run", "--json"]);
            assert_eq!(dry["next"]["command"], format!("handstamp run {}", wallet.file));
            assert!(dry["next"]["order"].as_str().unwrap().contains(words), "{dry}");
            let text = wallet.run("off", &["dlq", "redrive", "FILE", &key, "--dry-run"]).exits(0);
            let text = text.unwrapped();
            assert!(text.contains("A consumer applies them") && text.contains(words), "{text}");
            assert!(text.contains(&format!("or start one: handstamp run {} ", wallet.file)), "{text}");
        }
        // Nothing has to run for what is given up.
        let gone = wallet.json(&["dlq", "discard", "FILE", &key, "--why", "x", "--json"]);
        assert_eq!(gone["next"], Value::Null);
    });
}

#[test]
fn one_that_is_due_by_itself_is_called_due_and_not_sent_back_before() {
    on_each_store(|wallet| {
        let file = wallet.place.read(wallet.file);
        let parks = file.replace(
            "max_attempts = 2",
            "max_attempts = 10\nbackoff_base = \"365days\"\nbackoff_cap = \"365days\"",
        );
        wallet.place.write(wallet.file, &parks);
        wallet.place.write("credits.jsonl", &line("a", 777));
        let run = wallet.json(&["run", "FILE", "--migrate", "--json"]);
        assert_eq!((number(&run["left"], "parked"), number(&run["left"], "dead_letters")), (1, 0), "{run}");
        wallet.sql("UPDATE TABLESparked SET due_at_ms = parked_at_ms");
        for selector in [&["--id", "a"][..], &["--id", "a", "--dry-run"]] {
            let words = [&["dlq", "redrive", "FILE"], selector].concat();
            let said = wallet.json(&[&words[..], &["--json"]].concat());
            let counts = ["meant", "done", "done_before", "due_already", "stayed"];
            assert_eq!(counts.map(|name| number(&said, name)), [1, 0, 0, 1, 0], "{said}");
            let text = wallet.run("off", &words).exits(0).stdout;
            assert!(text.contains("1 due already") && !text.contains("before"), "{text}");
            assert!(text.contains("\n  handstamp run "), "{text}");
        }
        // An id names what is parked as its key does: sent now where it is not due yet.
        wallet.sql("UPDATE TABLESparked SET due_at_ms = parked_at_ms + 300000");
        let dry = wallet.json(&["dlq", "redrive", "FILE", "--id", "a", "--dry-run", "--json"]);
        let sent = wallet.json(&["dlq", "redrive", "FILE", "--id", "a", "--json"]);
        assert_eq!((number(&dry, "done"), number(&sent, "done")), (1, 1), "{dry} {sent}");
        let gone = wallet.json(&["dlq", "discard", "FILE", "--id", "a", "--why", "x", "--json"]);
        assert_eq!(number(&gone, "done"), 1, "{gone}");
    });
}

/// The same id is asked for again while it is on its way, and another one after that.
#[test]
fn a_new_id_is_given_once() {
    on_each_store(|wallet| {
        wallet.place.write("credits.jsonl", &format!("{}{}", line("a", 1), line("a", 2)));
        wallet.json(&["run", "FILE", "--migrate", "--json"]);
        let list = wallet.json(&["dlq", "list", "FILE", "--json"]);
        let key = list["dead_letters"][0]["key"].as_str().unwrap().to_owned();
        let redrive = |id: &str, code: i32| {
            wallet.run("off", &["dlq", "redrive", "FILE", &key, "--as-id", id, "--json"]).exits(code).json()
        };
        assert_eq!(number(&redrive("a-2", 0), "done"), 1);
        assert_eq!(number(&redrive("a-2", 0)["now"], "due"), 1);
        assert_eq!(number(&redrive("a-3", 5), "stayed"), 1);
        wallet.json(&["run", "FILE", "--json"]);
        assert_eq!(number(&redrive("a-2", 0)["now"], "applied"), 1);
        let other = redrive("a-3", 5);
        assert!(other["reasons"][0]["reason"].as_str().unwrap().contains("as a-2"), "{other}");
    });
}
