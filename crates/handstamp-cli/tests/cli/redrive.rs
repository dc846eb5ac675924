//! An operator at night: what failed, in groups; the cause is mended; exactly those are sent back; each is
//! applied once. On both stores.

use crate::answers::{Wallet, on_each_store};
use serde_json::Value;

/// So many credits to an account that is not there, and one to one that is.
const MISSING: u64 = 40;

fn line(id: &str, account: u64, amount: u64) -> String {
    format!("{{\"event_id\": \"{id}\", \"account_id\": {account}, \"amount\": {amount}}}\n")
}

/// The wallet with lines of its own, consumed.
fn consumed(wallet: &Wallet, lines: &str) -> Value {
    wallet.place.write("credits.jsonl", lines);
    wallet.json(&["run", "FILE", "--migrate", "--json"])
}

fn to_nobody() -> String {
    let missing: String =
        (0..MISSING).map(|number| line(&format!("lost-{number}"), 777, number + 1)).collect();
    format!("{}{missing}{{\"event_id\": \"no-amount\", \"account_id\": 1}}\n", line("good", 1, 5))
}

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}"))
}

fn dead(wallet: &Wallet, words: &[&str]) -> Vec<Value> {
    let list = wallet.json(&[&["dlq", "list", "FILE", "--json", "--limit", "1000"], words].concat());
    list["dead_letters"].as_array().unwrap().clone()
}

fn state(wallet: &Wallet, id: &str) -> String {
    let answer = wallet.json(&["inbox", "get", "FILE", "--json", id]);
    answer["state"].as_str().unwrap_or("unknown").to_owned()
}

#[test]
fn groups_then_the_cause_then_a_dry_run_then_a_redrive_at_a_rate_applies_each_once() {
    on_each_store(|wallet| {
        let run = consumed(wallet, &to_nobody());
        assert_eq!((number(&run, "applied"), number(&run, "dead_lettered")), (1, MISSING + 1), "{run}");
        let groups = wallet.json(&["dlq", "groups", "FILE", "--json"]);
        let largest = &groups["groups"][0];
        assert_eq!((number(largest, "count"), number(&groups, "dead_letters")), (MISSING, MISSING + 1));
        let group = largest["group"].as_str().unwrap();
        let example = largest["example"].as_str().unwrap();
        let shown = wallet.json(&["dlq", "show", "FILE", example, "--json"]);
        assert_eq!(shown["failures"].as_array().unwrap().len() as u64, number(&shown, "attempts"), "{shown}");
        assert!(shown["failures"][0]["node"].as_str().unwrap().contains(':'), "{shown}");
        // The cause is mended.
        wallet.sql("INSERT INTO accounts (id, balance) VALUES (777, 0)");
        let dry = wallet.json(&["dlq", "redrive", "FILE", "--group", group, "--dry-run", "--json"]);
        assert_eq!(
            (number(&dry, "meant"), number(&dry, "done"), number(&dry, "stayed")),
            (MISSING, MISSING, 0)
        );
        assert_eq!(dead(wallet, &[]).len() as u64, MISSING + 1);
        let words = ["dlq", "redrive", "FILE", "--group", group, "--rate", "200/s", "--why", "imported 777"];
        let done = wallet.json(&[&words[..], &["--by", "night shift", "--json"]].concat());
        assert_eq!((number(&done, "done"), number(&done, "stayed")), (MISSING, 0), "{done}");
        assert_eq!(state(wallet, "lost-3"), "parked");
        let parked = wallet.json(&["dlq", "parked", "FILE", "--json"]);
        assert_eq!(parked["parked"].as_array().unwrap().len() as u64, MISSING, "{parked}");
        // Whoever runs the consumer applies them, once each.
        let run = wallet.json(&["run", "FILE", "--json"]);
        assert_eq!((number(&run, "resumed_applied"), number(&run, "resumed")), (MISSING, MISSING), "{run}");
        assert_eq!(state(wallet, "lost-3"), "applied");
        assert_eq!(dead(wallet, &[]).len(), 1);
        // The same command again doubles nothing, and says what became of them.
        let again = wallet.json(&[&words[..], &["--json"]].concat());
        assert_eq!((number(&again, "meant"), number(&again, "done")), (MISSING, 0));
        assert_eq!((number(&again, "done_before"), number(&again["now"], "applied")), (MISSING, MISSING));
        assert_eq!(number(&wallet.json(&["run", "FILE", "--json"]), "resumed"), 0);
        let audit = wallet.json(&["dlq", "audit", "FILE", "--limit", "1000", "--json"]);
        let audit = audit["audit"].as_array().unwrap();
        assert_eq!(audit.len() as u64, MISSING);
        for (field, expected) in [("by", "night shift"), ("why", "imported 777"), ("action", "redrive")] {
            assert!(audit.iter().all(|row| row[field] == expected), "{field}: {audit:?}");
        }
        // What was applied keeps its history.
        let shown = wallet.json(&["dlq", "show", "FILE", example, "--json"]);
        assert_eq!(shown["audit"][0]["operation"], done["operation"], "{shown}");
        assert!(!shown["failures"].as_array().unwrap().is_empty());
    });
}

#[test]
fn one_without_an_id_gets_the_one_that_the_corrected_rule_finds() {
    on_each_store(|wallet| {
        let right = wallet.place.read(wallet.file);
        wallet.place.write(wallet.file, &right.replace("\"/event_id\"", "\"/id\""));
        let lines = format!("{}{}{{\"account_id\": 1, \"amount\": 9}}\n", line("a", 1, 5), line("b", 1, 6));
        assert_eq!(number(&consumed(wallet, &lines), "dead_lettered"), 3);
        let same = wallet.run("off", &["dlq", "redrive", "FILE", "--all", "--json"]).exits(5).json();
        assert_eq!((number(&same, "done"), number(&same, "stayed")), (0, 3), "{same}");
        wallet.place.write(wallet.file, &right);
        let done =
            wallet.run("off", &["dlq", "redrive", "FILE", "--class", "identity", "--json"]).exits(5).json();
        assert_eq!((number(&done, "done"), number(&done, "stayed")), (2, 1), "{done}");
        let reason = done["reasons"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("/event_id") && reason.contains("missing"), "{reason}");
        let run = wallet.json(&["run", "FILE", "--json"]);
        assert_eq!(number(&run, "resumed_applied"), 2, "{run}");
        assert_eq!((state(wallet, "a"), state(wallet, "b")), ("applied".into(), "applied".into()));
        assert_eq!(dead(wallet, &[]).len(), 1);
    });
}

#[test]
fn a_reused_id_needs_one_of_its_own_and_an_own_id_takes_no_other() {
    on_each_store(|wallet| {
        let lines = format!("{}{}{}", line("a", 1, 5), line("a", 1, 6), line("lost", 777, 1));
        assert_eq!(number(&consumed(wallet, &lines), "id_reused"), 1);
        let reused = dead(wallet, &["--class", "id_reused"]);
        let key = reused[0]["key"].as_str().unwrap();
        let refused = wallet.run("off", &["dlq", "redrive", "FILE", key]).exits(5);
        assert!(refused.stdout.contains("--as-id"), "{}", refused.stdout);
        let known = wallet.run("off", &["dlq", "redrive", "FILE", key, "--as-id", "a"]).exits(5);
        assert!(known.stdout.contains("known") || known.stdout.contains("no id"), "{}", known.stdout);
        let lost = dead(wallet, &["--id", "lost"]);
        let own = lost[0]["key"].as_str().unwrap();
        let own = wallet.run("off", &["dlq", "redrive", "FILE", own, "--as-id", "other"]).exits(5);
        assert!(own.stdout.contains("an id of its own"), "{}", own.stdout);
        wallet.run("off", &["dlq", "redrive", "FILE", "--all", "--as-id", "x"]).exits(2);
        let done = wallet.json(&["dlq", "redrive", "FILE", key, "--as-id", "a-2", "--json"]);
        assert_eq!(number(&done, "done"), 1);
        assert_eq!(number(&wallet.json(&["run", "FILE", "--json"]), "resumed_applied"), 1);
        assert_eq!((state(wallet, "a"), state(wallet, "a-2")), ("applied".into(), "applied".into()));
        // Named once more, it was sent back before: nothing to complain of.
        let before = wallet.json(&["dlq", "redrive", "FILE", key, "--as-id", "a-2", "--json"]);
        assert_eq!((number(&before, "done"), number(&before, "done_before")), (0, 1), "{before}");
    });
}

#[test]
fn what_is_discarded_is_never_applied_and_says_who_and_why() {
    on_each_store(|wallet| {
        consumed(wallet, &to_nobody());
        let nothing = wallet.run("off", &["dlq", "discard", "FILE", "--id", "lost-1"]).exits(2);
        assert!(nothing.stderr.contains("--why"), "{}", nothing.stderr);
        wallet.run("off", &["dlq", "discard", "FILE", "--id", "lost-1", "--why", " "]).exits(2);
        let done = wallet.json(&["dlq", "discard", "FILE", "--id", "lost-1", "--why", "a test", "--json"]);
        assert_eq!((number(&done, "done"), done["action"].as_str()), (1, Some("discard")), "{done}");
        assert!(!done["by"].as_str().unwrap().is_empty());
        assert_eq!(state(wallet, "lost-1"), "discarded");
        wallet.sql("INSERT INTO accounts (id, balance) VALUES (777, 0)");
        let all = wallet.run("off", &["dlq", "redrive", "FILE", "--class", "rows", "--json"]).exits(0).json();
        assert_eq!(number(&all, "done"), MISSING - 1, "{all}");
        wallet.json(&["run", "FILE", "--json"]);
        assert_eq!(
            (state(wallet, "lost-1"), state(wallet, "lost-2")),
            ("discarded".into(), "applied".into())
        );
    });
}

#[test]
fn nothing_is_meant_that_was_not_named_and_filters_narrow() {
    on_each_store(|wallet| {
        consumed(wallet, &to_nobody());
        for command in ["redrive", "discard"] {
            let why = if command == "discard" { &["--why", "x"][..] } else { &[] };
            let nothing = wallet.run("off", &[&["dlq", command, "FILE"], why].concat()).exits(2);
            assert!(nothing.stderr.contains("no dead letter is meant"), "{}", nothing.stderr);
            let unknown = "0".repeat(32);
            let unknown = wallet.run("off", &[&["dlq", command, "FILE", &unknown], why].concat()).exits(5);
            assert!(unknown.stdout.contains("there is no such dead letter"), "{}", unknown.stdout);
            for wrong in [
                &["--class", "none"][..],
                &["--since", "soon"],
                &["--group", "x"],
                &["abc"],
                &["--limit", "0"],
            ] {
                wallet.run("off", &[&["dlq", command, "FILE"], why, wrong].concat()).exits(2);
            }
        }
        wallet.run("off", &["dlq", "redrive", "FILE", "--all", "--rate", "5"]).exits(2);
        wallet.run("off", &["dlq", "redrive", "FILE", "--all", "--class", "sql"]).exits(2);
        assert_eq!(dead(wallet, &[]).len() as u64, MISSING + 1);
        for (words, count) in [
            (&["--class", "rows"][..], MISSING),
            (&["--class", "binding"], 1),
            (&["--id", "lost-1"], 1),
            (&["--id", "never"], 0),
            (&["--since", "1h"], MISSING + 1),
            (&["--until", "1h"], 0),
            (&["--since", "2020-01-01T00:00:00Z", "--until", "2020-01-02"], 0),
            (&["--topic", "elsewhere"], 0),
            (&["--key", "k"], 0),
        ] {
            assert_eq!(dead(wallet, words).len() as u64, count, "{words:?}");
            // What is named is there.
            let code = if words == ["--id", "never"] { 5 } else { 0 };
            let export = wallet.run("off", &[&["dlq", "export", "FILE"], words].concat()).exits(code).stdout;
            assert_eq!(export.lines().count() as u64, count, "{words:?}");
        }
        let some = wallet.json(&["dlq", "redrive", "FILE", "--class", "rows", "--limit", "7", "--json"]);
        assert_eq!((number(&some, "meant"), number(&some, "done")), (7, 7));
        assert_eq!(dead(wallet, &[]).len() as u64, MISSING - 6);
    });
}

/// By default a failing message is parked: it waits, and is told, and is applied once its cause is gone.
#[test]
fn what_fails_is_parked_by_default_and_applied_once_its_cause_is_gone() {
    on_each_store(|wallet| {
        let file = wallet.place.read(wallet.file);
        let policy = "max_attempts = 10\nbackoff_base = \"1ms\"\nbackoff_cap = \"50ms\"\n";
        let parks =
            file.lines().filter(|line| !line.starts_with("max_attempts")).collect::<Vec<_>>().join("\n");
        wallet.place.write(wallet.file, &parks.replace("[retry]", "[retry]\nbackoff_base = \"5m\""));
        let run = consumed(wallet, &format!("{}{}", line("lost", 777, 3), line("good", 1, 5)));
        assert_eq!(
            (number(&run, "parked"), number(&run, "applied"), number(&run, "dead_lettered")),
            (1, 1, 0),
            "{run}"
        );
        let parked = wallet.json(&["dlq", "parked", "FILE", "--json"]);
        assert_eq!(
            (number(&parked["parked"][0], "attempts"), &parked["parked"][0]["id"]),
            (2, &"lost".into())
        );
        let table = wallet.run("off", &["dlq", "parked", "FILE"]).exits(0).stdout;
        assert!(table.contains("lost") && table.contains("due"), "{table}");
        let key = parked["parked"][0]["key"].as_str().unwrap();
        let shown = wallet.json(&["dlq", "show", "FILE", key, "--json"]);
        assert_eq!(shown["failures"].as_array().unwrap().len(), 2, "{shown}");
        wallet.place.write(wallet.file, &parks.replace("[retry]", &format!("[retry]\n{policy}")));
        let told = wallet.run("off", &["explain", "FILE"]).exits(0).stdout;
        assert!(
            told.contains("parked, tried again after up to 1ms") && told.contains("dead letter"),
            "{told}"
        );
    });
}

/// What the guide shows is what the program says of a file without a policy of its own.
/// `HANDSTAMP_UPDATE=1` writes it anew.
#[test]
fn the_guide_shows_what_explain_says() {
    let place = crate::common::Place::wallet();
    let own = place.read("file.toml");
    let plain: Vec<&str> =
        own.lines().filter(|line| !line.starts_with("max_attempts") && *line != "[retry]").collect();
    place.write("plain.toml", &plain.join("\n"));
    let said = place.quiet(&["explain", "plain.toml"]).exits(0).stdout;
    let path = crate::common::root().join("docs/guides/when-something-fails.md");
    let guide = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = guide.split_once("```text\n").unwrap();
    let (shown, after) = rest.split_once("```").unwrap();
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}```text\n{said}```{after}")).unwrap();
        return;
    }
    assert_eq!(shown, said, "HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli writes {}", path.display());
    let object = place.quiet(&["explain", "plain.toml", "--json"]).exits(0).json();
    let failed = object["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|outcome| outcome["outcome"] == "failed: error, panic or timeout");
    assert_eq!(failed.unwrap()["attempts"].as_array().unwrap().last().unwrap()["then"], "dead_letter");
    // Nothing of a server is asked for.
    let unset = place.read("kafka.toml").replace("${KAFKA_BROKERS:-127.0.0.1:9092}", "${NOT_SET_ANYWHERE}");
    place.write("unset.toml", &unset);
    place.quiet(&["explain", "unset.toml"]).exits(0);
}

/// What a parked message means for its followers is said before it happens.
#[test]
fn check_and_explain_say_what_order_means() {
    let place = crate::common::Place::wallet();
    let file = place.read("file.toml").replace("max_attempts = 2", "max_attempts = 10");
    for (consumer, words, warnings) in [
        ("", "a parked message is applied later than those that follow it", 0),
        ("order = \"key\"", "those of its key wait behind a parked message", 1),
        ("on_failure = \"block\"", "all behind a failing message of its partition wait", 0),
        ("order = \"none\"", "overtaken", 0),
    ] {
        place.write("order.toml", &format!("{file}\n[consumer]\n{consumer}\n"));
        let check = place.quiet(&["check", "order.toml", "--json"]).exits(0);
        assert!(check.stdout.contains(words), "{consumer}: {}", check.stdout);
        assert_eq!(check.counts(["warnings"]), [warnings], "{consumer}: {}", check.stdout);
        let explain = place.quiet(&["explain", "order.toml"]).exits(0).unwrapped();
        assert!(explain.contains(words), "{consumer}: {explain}");
    }
    // The example makes both attempts in place.
    for args in [&["explain", "file.toml"], &["check", "file.toml"]] {
        let said = place.quiet(args).exits(0).stdout;
        let words = "rder: in order within a partition";
        assert!(said.lines().any(|line| line.trim_end_matches('.').ends_with(words)), "{said}");
    }
    let said = place.quiet(&["explain", "file.toml"]).exits(0).stdout;
    assert!(said.contains("Nothing is parked but what `dlq redrive` sends back."), "{said}");
}
