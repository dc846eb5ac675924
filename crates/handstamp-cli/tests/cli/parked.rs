//! What waits for a retry, as operators meet it: shown, sent now, given up; and what is said of what is named and is
//! not there. On both stores.

use crate::answers::{Wallet, on_each_store};
use serde_json::Value;

fn line(id: &str, account: u64) -> String {
    format!("{{\"event_id\": \"{id}\", \"account_id\": {account}, \"amount\": 3}}\n")
}

/// Two messages to an account that is not there, which wait for five minutes; and one that is applied.
fn parked(wallet: &Wallet) {
    let file = wallet.place.read(wallet.file);
    let parks = file.lines().filter(|line| !line.starts_with("max_attempts")).collect::<Vec<_>>().join("\n");
    // Drawn from nothing on: what the draw was is put right below.
    wallet.place.write(
        wallet.file,
        &parks.replace("[retry]", "[retry]\nbackoff_base = \"365days\"\nbackoff_cap = \"365days\""),
    );
    wallet.place.write("credits.jsonl", &format!("{}{}{}", line("a", 777), line("b", 777), line("good", 1)));
    let run = wallet.json(&["run", "FILE", "--migrate", "--json"]);
    assert_eq!((number(&run, "parked"), number(&run, "applied")), (2, 1), "{run}");
    wallet.sql("UPDATE TABLESparked SET due_at_ms = parked_at_ms + 300000");
}

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}"))
}

fn get(wallet: &Wallet, id: &str) -> Value {
    wallet.json(&["inbox", "get", "FILE", "--json", id])
}

fn key_of(wallet: &Wallet, id: &str) -> String {
    get(wallet, id)["parked"]["key"].as_str().unwrap_or_else(|| panic!("{id} is not parked")).to_owned()
}

#[test]
fn a_parked_message_is_shown_whole_with_when_it_is_due() {
    on_each_store(|wallet| {
        parked(wallet);
        let known = get(wallet, "a");
        let summary = &known["parked"];
        assert_eq!((&known["state"], &known["dead_letter"]), (&"parked".into(), &Value::Null), "{known}");
        assert_eq!((&summary["class"], number(summary, "attempts")), (&"rows".into(), 2), "{known}");
        let text = wallet.run("off", &["inbox", "get", "FILE", "a"]).exits(0).stdout;
        for field in ["class", "reason", "due_at", "parked_at", "key"] {
            let value = summary[field].as_str().unwrap();
            assert!(text.lines().any(|line| line.ends_with(&format!("  {value}"))), "{field}: {text}");
        }
        let key = key_of(wallet, "a");
        let shown = wallet.json(&["dlq", "show", "FILE", &key, "--json"]);
        assert_eq!((&shown["is"], &shown["behind"]), (&"parked".into(), &Value::Null), "{shown}");
        assert_eq!(shown["record_value"].as_str().unwrap(), line("a", 777).trim_end());
        assert_eq!(shown["failures"].as_array().unwrap().len(), 2, "{shown}");
        assert!(shown["due_in_seconds"].as_f64().unwrap() > 1.0, "{shown}");
        assert_eq!(shown["due_at"], summary["due_at"]);
        let text = wallet.run("off", &["dlq", "show", "FILE", &key]).exits(0).stdout;
        assert!(text.lines().any(|line| line.starts_with("is ") && line.ends_with(" parked")), "{text}");
        assert!(text.contains(shown["due_at"].as_str().unwrap()), "{text}");
    });
}

#[test]
fn a_parked_message_is_sent_now_or_given_up_and_that_is_on_record() {
    on_each_store(|wallet| {
        parked(wallet);
        let [a, b] = ["a", "b"].map(|id| key_of(wallet, id));
        let redrive = |words: &[&str]| {
            wallet.json(&[&["dlq", "redrive", "FILE", a.as_str(), "--json"], words].concat())
        };
        assert_eq!(number(&redrive(&["--dry-run"]), "done"), 1);
        assert_eq!(number(&wallet.json(&["run", "FILE", "--json"]), "resumed"), 0, "it is not due");
        wallet.sql("INSERT INTO accounts (id, balance) VALUES (777, 0)");
        let done = redrive(&["--why", "imported", "--by", "night"]);
        assert_eq!((number(&done, "done"), number(&done, "stayed")), (1, 0), "{done}");
        let again = redrive(&[]);
        assert_eq!((number(&again, "done"), number(&again, "done_before")), (0, 1), "it is due: {again}");
        assert_eq!((number(&again["now"], "due"), number(&again, "due_already")), (1, 0), "{again}");
        let other = wallet.run("off", &["dlq", "redrive", "FILE", &a, "--as-id", "x"]).exits(5);
        assert!(other.stdout.contains("--as-id"), "{}", other.stdout);
        let run = wallet.json(&["run", "FILE", "--json"]);
        assert_eq!((number(&run, "resumed"), number(&run, "resumed_applied")), (1, 1), "{run}");
        assert_eq!(get(wallet, "a")["state"], "applied");
        let shown = wallet.json(&["dlq", "show", "FILE", &a, "--json"]);
        assert_eq!(
            (&shown["state"], &shown["audit"][0]["by"]),
            (&"applied".into(), &"night".into()),
            "{shown}"
        );
        // The other one is given up, with a reason.
        wallet.run("off", &["dlq", "discard", "FILE", &b]).exits(2);
        let gone = wallet.json(&["dlq", "discard", "FILE", &b, "--why", "refunded", "--json"]);
        assert_eq!((number(&gone, "done"), number(&gone, "stayed")), (1, 0), "{gone}");
        assert_eq!(get(wallet, "b")["state"], "discarded");
        wallet
            .place
            .write("credits.jsonl", &format!("{}{}", wallet.place.read("credits.jsonl"), line("b", 777)));
        let run = wallet.json(&["run", "FILE", "--json"]);
        assert_eq!((number(&run, "duplicate"), number(&run, "resumed")), (1, 0), "{run}");
        let audit = wallet.json(&["dlq", "audit", "FILE", "--json"]);
        let said: Vec<_> = audit["audit"].as_array().unwrap().iter().map(|row| &row["action"]).collect();
        assert_eq!(said, ["discard", "redrive"], "{audit}");
        let by = audit["audit"][0]["by"].as_str().unwrap();
        assert!(!by.starts_with("uid ") && by != "unknown", "the system knows who runs this test: {by}");
    });
}

#[test]
fn of_one_key_the_first_is_named_and_goes_first() {
    on_each_store(|wallet| {
        parked(wallet);
        let [a, b] = ["a", "b"].map(|id| key_of(wallet, id));
        wallet.sql(
            "UPDATE TABLESparked SET order_key = (SELECT p.dedup FROM TABLESparked AS p ORDER BY p.seq LIMIT 1)",
        );
        wallet.sql(
            "UPDATE TABLESparked SET behind = (1 = 1) WHERE seq > (SELECT min(p.seq) FROM TABLESparked AS p)",
        );
        let shown = wallet.json(&["dlq", "show", "FILE", &b, "--json"]);
        assert_eq!((shown["behind"].as_str(), &shown["keeps_order"]), (Some(a.as_str()), &true.into()));
        let list = wallet.json(&["dlq", "parked", "FILE", "--json"]);
        let behind: Vec<_> =
            list["parked"].as_array().unwrap().iter().map(|row| row["behind"].as_str()).collect();
        assert_eq!(behind, [None, Some(a.as_str())]);
        wallet.sql("UPDATE TABLESparked SET due_at_ms = 1700000000000");
        let text = wallet.run("off", &["dlq", "parked", "FILE"]).exits(0).stdout;
        let of = |key: &str| text.lines().find(|line| line.contains(key)).unwrap();
        assert!(of(&b).contains(&format!("behind {}…", &a[..8])), "{text}");
        assert!(of(&a).contains("  now  ") && !text.contains("2023-"), "{text}");
        wallet.sql("UPDATE TABLESparked SET due_at_ms = parked_at_ms + 300000");
        let text = wallet.run("off", &["inbox", "get", "FILE", "b"]).exits(0).stdout;
        assert!(text.lines().any(|line| line.starts_with("waits behind") && line.ends_with(&a)), "{text}");
        let stays = wallet.run("off", &["dlq", "redrive", "FILE", &b]).exits(5).stdout;
        assert!(stays.contains(&format!("it waits behind {a}")), "{stays}");
        // Given up, the first lets the second go.
        wallet.json(&["dlq", "discard", "FILE", &a, "--why", "x", "--json"]);
        let now = wallet.json(&["dlq", "redrive", "FILE", &b, "--json"]);
        assert_eq!(number(&now, "done"), 1, "{now}");
        wallet.sql("INSERT INTO accounts (id, balance) VALUES (777, 0)");
        assert_eq!(number(&wallet.json(&["run", "FILE", "--json"]), "resumed_applied"), 1);
    });
}

#[test]
fn what_is_named_and_not_there_is_an_error_that_says_what_to_type() {
    on_each_store(|wallet| {
        parked(wallet);
        let key = key_of(wallet, "a");
        let nobody = "0".repeat(32);
        for (words, said) in [
            (&["redrive", "FILE", "--group", "00000000"][..], "`handstamp dlq groups "),
            (&["redrive", "FILE", "--id", "never"], "has no dead letter with the id never"),
            (&["redrive", "FILE", "--id", "good"], "it is applied"),
            (&["redrive", "FILE", "--id", "good", "--dry-run"], "it is applied"),
            (&["discard", "FILE", "--id", "never", "--why", "x"], "`handstamp dlq list "),
            (
                &["discard", "FILE", "--group", "00000000", "--why", "x"],
                "no dead letter is in the group 00000000",
            ),
            (&["export", "FILE", "--id", "never"], "has no dead letter with the id never"),
            (&["export", "FILE", "--id", "a"], key.as_str()),
            (&["show", "FILE", &nobody], "`handstamp dlq parked`"),
        ] {
            let done = wallet.run("off", &[&["dlq"], words].concat()).exits(5);
            assert!(
                done.stderr.starts_with("error: ") && done.stderr.contains(said),
                "{words:?}: {}",
                done.stderr
            );
            assert_eq!(done.stdout, "", "{words:?}");
        }
        let object =
            wallet.run("off", &["dlq", "redrive", "FILE", "--id", "never", "--json"]).exits(5).json();
        assert_eq!((number(&object, "meant"), number(&object, "exit_code")), (0, 5), "{object}");
        // A filter may find nothing.
        let none = wallet.json(&["dlq", "redrive", "FILE", "--class", "sql", "--json"]);
        assert_eq!((number(&none, "meant"), &none["error"]), (0, &Value::Null));
        wallet.run("off", &["dlq", "redrive", "FILE", "--all"]).exits(0);
        let none = wallet.run("off", &["dlq", "export", "FILE", "--class", "sql"]).exits(0);
        assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", ""));
        // Nothing of all this did anything.
        assert_eq!(wallet.json(&["dlq", "audit", "FILE", "--json"])["audit"], Value::Array(vec![]));
    });
}

#[test]
fn the_audit_is_found_by_id_action_and_time_and_says_when_there_is_more() {
    on_each_store(|wallet| {
        let lines: String = (0..1300).map(|n| line(&format!("m{n}"), 777)).collect();
        wallet.place.write("credits.jsonl", &lines);
        wallet.json(&["run", "FILE", "--migrate", "--json"]);
        wallet.json(&["dlq", "discard", "FILE", "--id", "m7", "--why", "x", "--json"]);
        let given_up = wallet.run("off", &["dlq", "redrive", "FILE", "--id", "m7"]).exits(5);
        assert!(given_up.stdout.contains("given up at 2"), "{}", given_up.stdout);
        let before = wallet.run("off", &["dlq", "discard", "FILE", "--id", "m7", "--why", "x"]).exits(0);
        assert!(before.stdout.contains("before"), "{}", before.stdout);
        wallet.json(&["dlq", "redrive", "FILE", "--all", "--json"]);
        let audit = |words: &[&str]| wallet.json(&[&["dlq", "audit", "FILE", "--json"], words].concat());
        let count = |object: &Value| object["audit"].as_array().unwrap().len();
        let all = audit(&["--limit", "1300"]);
        assert_eq!((count(&all), &all["more"]), (1300, &false.into()));
        let most = audit(&["--limit", "1200"]);
        assert_eq!((count(&most), &most["more"]), (1200, &true.into()));
        let told = wallet.run("off", &["dlq", "audit", "FILE", "--limit", "3"]).exits(0);
        // Two lines of header, and nobody said why.
        assert_eq!((told.stdout.lines().count(), told.stderr.contains("there are more")), (5, true));
        assert_eq!(audit(&["--id", "m7"])["audit"][0]["action"], "discard");
        assert_eq!(count(&audit(&["--id", "m7"])), 1);
        assert_eq!(count(&audit(&["--action", "discard"])), 1);
        assert_eq!(count(&audit(&["--action", "redrive", "--id", "m7"])), 0);
        assert_eq!(count(&audit(&["--since", "1h", "--limit", "2000"])), 1300);
        assert_eq!(count(&audit(&["--until", "1h"])), 0);
        let wrong = wallet.run("off", &["dlq", "audit", "FILE", "--action", "resend"]).exits(2);
        assert!(wrong.stderr.contains("redrive, discard"), "{}", wrong.stderr);
    });
}

#[test]
fn groups_fit_a_terminal_unless_they_are_asked_to_be_wide() {
    on_each_store(|wallet| {
        let lines: String =
            (0..20).map(|n| format!("{{\"event_id\": \"m{n}\", \"account_id\": 1}}\n")).collect();
        wallet.place.write("credits.jsonl", &format!("{lines}{}", line("lost", 777)));
        wallet.json(&["run", "FILE", "--migrate", "--json"]);
        let groups = wallet.json(&["dlq", "groups", "FILE", "--json"]);
        let groups = groups["groups"].as_array().unwrap();
        let text = wallet.run("off", &["dlq", "groups", "FILE"]).exits(0).stdout;
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let wide = wallet.run("off", &["dlq", "groups", "FILE", "--wide"]).exits(0).stdout;
        assert_eq!((text.lines().count(), wide.lines().count()), (1 + 2 * groups.len(), 1 + groups.len()));
        for group in groups {
            for field in ["group", "example", "class"] {
                assert!(text.contains(group[field].as_str().unwrap()), "{field}: {text}");
            }
            assert!(wide.contains(group["shape"].as_str().unwrap()), "{wide}");
        }
        wallet.run("off", &["dlq", "groups", "FILE", "--wide", "--json"]).exits(2);
    });
}

#[test]
fn a_duplicate_of_what_waits_is_not_called_done() {
    on_each_store(|wallet| {
        parked(wallet);
        wallet
            .place
            .write("credits.jsonl", &format!("{}{}", wallet.place.read("credits.jsonl"), line("a", 777)));
        let run = wallet.run("info", &["run", "FILE"]).exits(0);
        let said = run.stderr.lines().find(|line| line.contains("skipped duplicate a (")).unwrap();
        assert!(said.contains(", which waits for its retry") && said.contains("parked"), "{said}");
        assert!(!run.stdout.contains("done"), "{}", run.stdout);
    });
}

#[test]
fn what_was_parked_before_keys_were_kept_in_order_is_told() {
    on_each_store(|wallet| {
        parked(wallet);
        // A line has no key; a record of a topic has.
        wallet.sql("UPDATE TABLESparked SET key = dedup");
        let file = wallet.place.read(wallet.file);
        let words = "2 messages were parked before it was set, and keep no order";
        let before = wallet.run("off", &["check", "FILE", "--json"]).stdout;
        assert!(!before.contains("parked before"), "{before}");
        wallet.place.write(wallet.file, &format!("{file}\n[consumer]\norder = \"key\"\n"));
        let check = wallet.run("off", &["check", "FILE", "--json"]).exits(0).stdout;
        assert!(check.contains(words) && check.contains("dlq parked"), "{check}");
        let run = wallet.run("warn", &["run", "FILE"]).exits(0).stderr;
        assert!(run.contains(words), "{run}");
        wallet.sql("UPDATE TABLESparked SET order_key = dedup");
        let after = wallet.run("off", &["check", "FILE", "--json"]).exits(0).stdout;
        assert!(!after.contains("parked before"), "{after}");
    });
}
