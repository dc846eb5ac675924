//! Copies of dead letters in a topic of a real Kafka. Without the servers these tests fail: `scripts/test` starts
//! them.

use crate::common::{Done, Place, wait_for};
use crate::kafka_postgres::{psql, unique, url, variable};
use serde_json::Value;
use std::process::Command;

/// One is applied, one violates a constraint, one has no id.
const LINES: &str = "{\"id\":\"a\",\"amount\":1}\n{\"id\":\"b\",\"amount\":-1}\n{\"amount\":1}\n";
const TABLE: &str =
    "CREATE TABLE kept (id TEXT PRIMARY KEY, amount INTEGER NOT NULL CHECK (amount > 0)) STRICT;\n";

/// A pipeline into a SQLite file of its own that reads one topic and copies its dead letters to another.
fn pipeline(place: &Place, brokers: &str, name: &str, identity: &str, [from, to]: [&str; 2]) {
    let toml = format!(
        "name = \"{name}\"\n[dead_letter]\ntopic = \"{to}\"\n[source]\ntype = \"kafka\"\nbrokers = \"{brokers}\"\n\
         topics = [\"{from}\"]\ngroup = \"{name}-{from}\"\n[identity]\nfield = \"{identity}\"\n[retry]\n\
         max_attempts = 1\n[store]\ntype = \"sqlite\"\npath = \"{name}.db\"\nsetup = \"kept.sql\"\n[[effect]]\n\
         sql = \"INSERT INTO kept (id, amount) VALUES (:message_id, :amount)\"\n"
    );
    place.write("kept.sql", TABLE);
    place.write(&format!("{name}.toml"), &toml);
}

/// Three pipelines, each of which reads the copies of the one before.
fn three(brokers: &str) -> (Place, String) {
    let (place, topic) = (Place::new(), unique());
    let [first, second, third] = ["dlq", "dlq2", "dlq3"].map(|end| format!("{topic}.{end}"));
    pipeline(&place, brokers, "first", "/id", [&topic, &first]);
    pipeline(&place, brokers, "second", "/none", [&first, &second]);
    pipeline(&place, brokers, "third", "/none", [&second, &third]);
    place.write("lines.jsonl", LINES);
    place.write("none.jsonl", "");
    for (file, input) in
        [("first.toml", "lines.jsonl"), ("second.toml", "none.jsonl"), ("third.toml", "none.jsonl")]
    {
        let publish = ["publish", file, "--input", input, "--create-topic", "--partitions", "1"];
        place.run(&[&publish[..], &["--allow-no-id", "--header", "trace=t1"]].concat()).exits(0);
    }
    (place, topic)
}

fn run(place: &Place, file: &str) -> Done {
    place.run(&["run", file, "--migrate", "--until-idle", "1s", "--json"]).exits(0)
}

/// Headers of what a pipeline has given up, in the order of its topic.
fn headers_of(place: &Place, file: &str) -> Vec<Vec<(String, String)>> {
    let export = place.run(&["dlq", "export", file]).exits(0).stdout;
    let mut letters: Vec<Value> = export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    letters.sort_by_key(|letter| letter["offset"].as_i64());
    let header = |pair: &Value| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned());
    let headers = |letter: &Value| letter["record_headers"].as_array().unwrap().iter().map(header).collect();
    letters.iter().map(headers).collect()
}

fn one<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    let mut found = headers.iter().filter(|(known, _)| known == name);
    let value = found.next().map(|(_, value)| value.as_str());
    assert!(found.next().is_none(), "{name} is there twice: {headers:?}");
    value
}

const COUNTS: [&str; 4] = ["received", "dead_lettered", "dead_letter_copies", "dead_letter_copies_failed"];

#[test]
fn a_copy_arrives_with_its_headers_and_they_do_not_grow() {
    let (place, topic) = three(&variable("HANDSTAMP_TEST_KAFKA"));
    assert_eq!(run(&place, "first.toml").counts(COUNTS), [3, 2, 2, 0]);
    assert_eq!(run(&place, "second.toml").counts(COUNTS), [2, 2, 2, 0]);
    let first = headers_of(&place, "second.toml");
    for (name, value) in [
        ("trace", "t1"),
        ("handstamp-class", "sql"),
        ("handstamp-consumer", "first"),
        ("handstamp-id", "b"),
        ("handstamp-topic", topic.as_str()),
        ("handstamp-partition", "0"),
        ("handstamp-offset", "1"),
        ("handstamp-attempts", "1"),
    ] {
        assert_eq!(one(&first[0], name), Some(value), "{name}");
    }
    assert!(one(&first[0], "handstamp-code").is_some() && one(&first[0], "handstamp-timestamp").is_some());
    assert!(one(&first[0], "handstamp-reason").unwrap().contains("CHECK"), "{first:?}");
    assert_eq!((one(&first[1], "handstamp-class"), one(&first[1], "handstamp-id")), (Some("identity"), None));
    // Its own topic for copies is not there: said before the first message fails, counted, and nothing waits for it.
    let third = run(&place, "third.toml");
    assert_eq!(third.counts(COUNTS), [2, 2, 0, 2]);
    let warned = third.stderr.matches("the topic for copies of dead letters does not exist").count();
    assert_eq!(warned, 1, "{}", third.stderr);
    assert!(third.stderr.contains("not copied, the dead letter itself is kept"), "{}", third.stderr);
    let second = headers_of(&place, "third.toml");
    for (before, after) in first.iter().zip(&second) {
        assert!(after.len() <= before.len(), "{before:?} grew to {after:?}");
        assert_eq!(one(after, "trace"), Some("t1"));
        assert_eq!(one(after, "handstamp-topic"), Some(format!("{topic}.dlq").as_str()));
    }
    let export = place.run(&["dlq", "export", "third.toml"]).exits(0).stdout;
    assert!(export.contains(r#"{\"id\":\"b\",\"amount\":-1}"#), "{export}");
}

#[test]
fn check_and_explain_say_where_copies_go() {
    let (place, topic) = three(&variable("HANDSTAMP_TEST_KAFKA"));
    run(&place, "first.toml");
    let said = place.run(&["check", "first.toml"]).exits(0).stdout;
    assert!(said.contains(&format!("dead_letter: topic {topic}.dlq has")), "{said}");
    place.run(&["migrate", "third.toml"]).exits(0);
    let said = place.run(&["check", "third.toml"]).stdout;
    assert!(said.contains(&format!("dead_letter: topic {topic}.dlq3 does not exist")), "{said}");
    let said = place.run(&["check", "first.toml", "--print"]).exits(0).stdout;
    assert!(said.contains(&format!("[dead_letter]\ntopic = \"{topic}.dlq\"")), "{said}");
    let said = place.run(&["explain", "first.toml"]).exits(0).stdout;
    assert!(said.contains(&format!("in the topic {topic}.dlq before it is settled")), "{said}");
    let said = place.run(&["explain", "first.toml", "--json"]).exits(0).json();
    assert_eq!(said["dead_letter_topic"], format!("{topic}.dlq"));
}

/// The database says dead, the process dies by SIGKILL, nothing was copied: the next one copies it.
#[cfg(feature = "crash-points")]
#[test]
fn a_kill_between_commit_and_copy_loses_no_copy() {
    let (place, _) = three(&variable("HANDSTAMP_TEST_KAFKA"));
    place.run(&["migrate", "first.toml"]).exits(0);
    let killed = place.run_with("info", &["run", "first.toml"], &[("HANDSTAMP_CRASH_AT", "after-commit:1")]);
    assert_eq!(killed.code, None, "{}", killed.stderr);
    let dead = place.run(&["dlq", "export", "first.toml"]).exits(0).stdout.lines().count();
    assert!(dead > 0, "the commit held no dead letter");
    let next = run(&place, "first.toml");
    assert_eq!(next.counts(["dead_letter_copies", "dead_letter_rows"]), [2, 2 - dead as u64]);
    // Nothing before the kill, both after it.
    assert_eq!(run(&place, "second.toml").counts(COUNTS), [2, 2, 2, 0]);
    let copies = headers_of(&place, "second.toml");
    let of_b = copies.iter().find(|headers| one(headers, "handstamp-id") == Some("b")).unwrap();
    assert!(one(of_b, "handstamp-reason").unwrap().contains("CHECK"), "{of_b:?}");
    assert_eq!(one(of_b, "handstamp-attempts"), Some("1"));
}

/// A broker of this test's own; it is ended with it.
struct Broker(String);

impl Broker {
    fn services(&self, word: &str) -> String {
        let output =
            Command::new(variable("HANDSTAMP_TEST_SERVICES")).args([word, &self.0]).output().unwrap();
        assert!(output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn up() -> (Self, String) {
        let broker = Self(format!("kafka@copies{}", std::process::id()));
        broker.services("up");
        let lines = broker.services("env");
        let address = lines.lines().find_map(|line| line.split_once("HANDSTAMP_TEST_KAFKA=")).unwrap().1;
        let address = address.trim_matches(['\'', '"']).to_owned();
        (broker, address)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // A test that fails already must not end the whole program.
        let _ = Command::new(variable("HANDSTAMP_TEST_SERVICES")).args(["down", &self.0]).output();
    }
}

/// The broker goes away while a message fails: it is dead, waits for its copy, and is settled behind it.
#[test]
fn a_broker_that_goes_away_before_the_copy_gets_it_when_it_is_back() {
    let (broker, brokers) = Broker::up();
    let (place, topic) = three(&brokers);
    let database = topic.replace('.', "_");
    psql("", &format!("CREATE DATABASE {database}"));
    let place = place.env("DATABASE_URL", &url(&database, None));
    let toml = place.read("first.toml");
    let (head, _) = toml.split_once("[store]").unwrap();
    // Slow enough to meet it while it runs; the second statement fails.
    let effects = "[[effect]]\nsql = \"SELECT pg_sleep(5)\"\n[[effect]]\nsql = \"SELECT 1 / (1 - 1)\"\n";
    let store = "[store]\ntype = \"postgres\"\nurl = \"${DATABASE_URL}\"\n";
    place.write("slow.toml", &format!("{head}{store}{effects}"));
    place.run(&["migrate", "slow.toml"]).exits(0);
    let mut running = place.start("info", &["run", "slow.toml", "--json"]);
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                  AND wait_event = 'PgSleep'";
    assert!(wait_for(|| psql(&database, sleeps) != "0"), "nothing ran");
    broker.services("kill");
    running.says("a dead letter cannot be copied now");
    assert_ne!(psql(&database, "SELECT count(*) FROM handstamp.dead_letters"), "0");
    broker.services("start");
    running.says("dead letters are copied again");
    let copied = "SELECT count(*) FROM handstamp.dead_letters";
    assert!(wait_for(|| psql(&database, copied) == "3"), "{}", psql(&database, copied));
    running.signal("TERM");
    let done = running.finish().exits(0);
    let [copies, failed] = done.counts(["dead_letter_copies", "dead_letter_copies_failed"]);
    assert_eq!(failed, 0, "{}", done.stderr);
    let second = run(&place, "second.toml");
    assert!(second.counts(["received"])[0] >= copies && copies > 0, "{copies} copies");
    psql("", &format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"));
}
