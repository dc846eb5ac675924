//! `run --dry-run`: what it says is what a run then does, and nothing of it stays.

use crate::common::{Done, Place};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Counters that a dry run and a run have in common.
const WORDS: [&str; 6] = ["applied", "duplicate", "id_reused", "stale", "unmatched", "dead_lettered"];

/// Files of a folder by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Every file of a folder with its bytes; of databases what is in them.
fn state(place: &Place) -> Files {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(place.path("")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // What SQLite keeps beside a database says nothing of its own.
        if name.ends_with("-wal") || name.ends_with("-shm") {
            continue;
        }
        let bytes = if name.ends_with(".db") { dump(place, &name) } else { std::fs::read(&path).unwrap() };
        found.insert(name, bytes);
    }
    found
}

/// All that is in a SQLite file, as SQL.
fn dump(place: &Place, name: &str) -> Vec<u8> {
    let script = "import sqlite3, sys\nfor line in sqlite3.connect(sys.argv[1]).iterdump(): print(line)";
    let output =
        Command::new("python3").args(["-c", script, name]).current_dir(place.path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn dry(place: &Place, file: &str, more: &[&str]) -> Value {
    let done = place.quiet(&[&["run", file, "--dry-run", "--json"], more].concat()).exits(0);
    let object = done.json();
    assert_eq!((&object["error"], &object["exit_code"]), (&Value::Null, &0.into()));
    let counts = object["counts"].as_object().unwrap();
    let sum: u64 = counts.values().filter_map(Value::as_u64).sum();
    assert_eq!(
        sum,
        object["messages"].as_array().unwrap().len() as u64,
        "every message under one count: {object}"
    );
    object
}

/// What was said of each would be is what the run does.
#[track_caller]
fn comes_true(dry: &Value, run: &Done) {
    for word in WORDS {
        assert_eq!(dry["counts"][word], run.json()[word], "{word}: {dry}");
    }
    assert_eq!(dry["counts"]["parked"], run.json()["parked"], "{dry}");
}

fn outcomes(object: &Value) -> Vec<String> {
    object["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["outcome"].as_str().unwrap().to_owned())
        .collect()
}

#[cfg(all(feature = "file", feature = "sqlite"))]
#[test]
fn of_a_new_sqlite_file_nothing_is_made_and_everything_is_said() {
    let place = Place::wallet();
    let before = state(&place);
    let said = dry(&place, "file.toml", &["--max-messages", "100"]);
    assert_eq!(state(&place), before);
    assert_eq!((&said["store_is_new"], &said["ended"]), (&true.into(), &true.into()));
    let run = place.quiet(&["run", "file.toml", "--json"]).exits(0);
    comes_true(&said, &run);
    // Each dead letter has the class that was said.
    let listed = place.quiet(&["dlq", "list", "file.toml", "--json"]).exits(0);
    for message in said["messages"].as_array().unwrap() {
        if let Some(class) = message["class"].as_str() {
            let line = message["line"].as_u64().unwrap();
            let letter = format!("\"line\":{line}");
            let found = listed.stdout.contains(&letter) && listed.stdout.contains(class);
            assert!(found, "{message}: {}", listed.stdout);
        }
    }
}

#[cfg(all(feature = "file", feature = "sqlite"))]
#[test]
fn behind_what_was_read_the_next_ones_are_looked_at_and_no_byte_changes() {
    let place = Place::wallet();
    place.quiet(&["run", "file.toml"]).exits(0);
    let nothing = place.quiet(&["run", "file.toml", "--dry-run"]).exits(0);
    assert_eq!(nothing.stdout, "nothing is there that was not read before\n");
    let more = "{\"event_id\": \"new-1\", \"account_id\": 1, \"amount\": 5}\n\
                {\"event_id\": \"0193f5a0-7c01-7a5c-84d3-25160c5c7fd0\", \"account_id\": 8, \"amount\": 5}\n\
                {\"event_id\": \"new-1\", \"account_id\": 1, \"amount\": 5}\n\
                {\"event_id\": \"new-2\", \"account_id\": 1, \"amount\": -55}\n\
                {\"event_id\": \"new-3\", \"account_id\": 1, \"amount\": -1}\n\
                {\"event_id\": \"new-4\", \"account_id\": 98, \"amount\": 1}\n";
    place.write("credits.jsonl", &(place.read("credits.jsonl") + more));
    let before = state(&place);
    // Account 1 has 50: the first adds 5, the fourth takes all, the fifth would go below zero. The effects of
    // those in front are seen by those behind.
    let said = dry(&place, "file.toml", &[]);
    assert_eq!(
        outcomes(&said),
        ["applied", "duplicate", "duplicate", "applied", "dead_lettered", "dead_lettered"]
    );
    let messages = said["messages"].as_array().unwrap();
    assert_eq!((&messages[4]["class"], &messages[5]["class"]), (&"sql".into(), &"rows".into()));
    assert_eq!((&messages[4]["code"], &messages[1]["state"]), (&"275".into(), &"applied".into()));
    assert_eq!(state(&place), before);
    let two = dry(&place, "file.toml", &["--max-messages", "2"]);
    assert_eq!((outcomes(&two).len(), &two["ended"]), (2, &false.into()));
    // A table for people says the same.
    let table = place.quiet(&["run", "file.toml", "--dry-run"]).exits(0).stdout;
    assert!(table.contains("2 applied, 2 duplicate, 2 dead lettered; nothing was committed"), "{table}");
    assert_eq!(state(&place), before);
    comes_true(&said, &place.quiet(&["run", "file.toml", "--json"]).exits(0));
}

/// The position belongs to another store: a run would read the file from its beginning, and so is looked there.
#[cfg(all(feature = "file", feature = "sqlite"))]
#[test]
fn a_position_of_another_store_does_not_count_and_stays() {
    let place = Place::wallet();
    place.quiet(&["run", "file.toml"]).exits(0);
    std::fs::remove_file(place.path("wallet.db")).unwrap();
    let before = state(&place);
    let said = dry(&place, "file.toml", &["--max-messages", "100"]);
    assert_eq!(said["counts"]["applied"], 13);
    assert_eq!(state(&place), before);
}

#[cfg(all(feature = "file", feature = "sqlite"))]
#[test]
fn parked_blocked_and_stale_messages_are_told_apart() {
    let place = Place::wallet();
    let file = place.read("file.toml").replace("[retry]\nmax_attempts = 2", "[retry]\nmax_attempts = 5");
    place.write("parks.toml", &file);
    let parks = dry(&place, "parks.toml", &["--max-messages", "100"]);
    assert!(parks["counts"]["parked"].as_u64().unwrap() >= 3, "{parks}");
    comes_true(&parks, &place.quiet(&["run", "parks.toml", "--json"]).exits(0));

    let place = Place::wallet();
    let blocks = "[consumer]\non_failure = \"block\"\n\n[retry]\nmax_attempts = 5";
    place.write("blocks.toml", &place.read("file.toml").replace("[retry]\nmax_attempts = 2", blocks));
    let said = dry(&place, "blocks.toml", &["--max-messages", "100"]);
    assert_eq!(
        (&said["counts"]["blocks"], &said["counts"]["parked"]),
        (&parks["counts"]["parked"], &0.into())
    );

    let place = Place::wallet();
    let guard = "[consumer]\nversion = \"/amount\"\nversion_key = \"/account_id\"\n\n[retry]";
    place.write("versions.toml", &place.read("file.toml").replace("[retry]", guard));
    let said = dry(&place, "versions.toml", &["--max-messages", "100"]);
    let run = place.quiet(&["run", "versions.toml", "--json"]).exits(0);
    assert!(said["counts"]["stale"].as_u64().unwrap() >= 1, "{said}");
    comes_true(&said, &run);
}

#[cfg(all(feature = "file", feature = "sqlite"))]
#[test]
fn what_cannot_be_looked_at_is_refused() {
    let place = Place::wallet();
    let stream = place.read("file.toml").replace("\"credits.jsonl\"", "\"-\"");
    place.write("stream.toml", &stream);
    let done = place.quiet(&["run", "stream.toml", "--dry-run", "--json"]).exits(2);
    assert!(done.stderr.contains("is a stream"), "{}", done.stderr);
    assert_eq!(done.json()["messages"], Value::Array(vec![]));
    for args in
        [&["--migrate"][..], &["--until-idle", "1s"], &["--max-messages", "1001"], &["--max-messages", "0"]]
    {
        let done = place.quiet(&[&["run", "file.toml", "--dry-run", "--json"], args].concat()).exits(2);
        let object = done.json();
        assert_eq!((&object["dry_run"], &object["exit_code"]), (&true.into(), &2.into()), "{args:?}");
    }
    // The tables do not fit the effect: as `run` says it.
    let bad = place.read("file.toml").replace("UPDATE accounts", "UPDATE acounts");
    place.write("bad.toml", &bad);
    let before = state(&place);
    let done = place.quiet(&["run", "bad.toml", "--dry-run"]).exits(2);
    assert!(done.stderr.contains("acounts"), "{}", done.stderr);
    assert!(!done.stderr.contains("rehearsal"), "{}", done.stderr);
    assert_eq!(state(&place), before);
}

#[cfg(all(feature = "file", feature = "kafka", feature = "postgres", feature = "sqlite"))]
mod on_servers {
    use super::*;
    use crate::common::CANARY;
    use crate::kafka_postgres::{psql, unique, url, variable};
    use handstamp_sources::kafka::{KafkaOptions, admin};
    use std::time::Duration;

    /// Everything in a database, sequences too.
    fn dump(database: &str) -> String {
        let program = std::path::Path::new(&variable("HANDSTAMP_TEST_POSTGRES_BIN")).join("pg_dump");
        let output = Command::new(program)
            .args(["--inserts", "--no-owner", &url(database, None)])
            .env("PGPASSWORD", CANARY)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| !line.contains("restrict ")).collect::<Vec<_>>().join("\n")
    }

    /// A group's offsets, by topic and partition.
    type Offsets = BTreeMap<(String, i32), i64>;

    fn committed(name: &str) -> Offsets {
        let options = KafkaOptions::new(variable("HANDSTAMP_TEST_KAFKA"), name, [name]);
        admin::look(&options, Duration::from_secs(10)).unwrap().committed
    }

    /// The wallet with this source and store, its bad lines published, and a name for all of it.
    struct World {
        place: Place,
        name: String,
        file: &'static str,
        source: &'static str,
        store: &'static str,
    }

    impl World {
        fn new(source: &'static str, store: &'static str) -> Self {
            let name = unique();
            psql("", &format!("CREATE DATABASE {name}"));
            let place = Place::wallet()
                .env("DATABASE_URL", &url(&name, None))
                .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
                .env("KAFKA_TOPIC", &name);
            let section = |text: &str, name: &str| {
                let (_, rest) = text.split_once(&format!("[{name}]\n")).unwrap();
                rest.split("\n[").next().unwrap().to_owned()
            };
            let (file, kafka) = (place.read("file.toml"), place.read("kafka.toml"));
            let (from, into) = (
                if source == "kafka" { &kafka } else { &file },
                if store == "postgres" { &kafka } else { &file },
            );
            let source_section =
                section(from, "source").replace("group = \"wallet\"", &format!("group = \"{name}\""));
            let effects = file.split_once("[[effect]]").unwrap().1;
            let text = format!(
                "name = \"wallet\"\n[source]\n{source_section}\n[identity]\n{}\n[retry]\nmax_attempts = 2\n[store]\n{}\n[[effect]]{effects}",
                section(from, "identity"),
                section(into, "store"),
            );
            place.write("world.toml", &text);
            if store == "postgres" {
                place.quiet(&["migrate", "world.toml"]).exits(0);
            }
            if source == "kafka" {
                let publish = [
                    "publish",
                    "world.toml",
                    "--input",
                    "credits.jsonl",
                    "--allow-no-id",
                    "--create-topic",
                    "--partitions",
                    "1",
                ];
                place.quiet(&publish).exits(0);
            }
            Self { place, name, file: "world.toml", source, store }
        }

        /// Files, database, offsets.
        fn state(&self) -> (Files, String, Offsets) {
            let committed = if self.source == "kafka" { committed(&self.name) } else { BTreeMap::new() };
            (state(&self.place), dump(&self.name), committed)
        }

        fn run(&self) -> Done {
            let mut args = vec!["run", self.file, "--json"];
            if self.source == "kafka" {
                args.extend(["--until-idle", "1s"]);
            }
            self.place.quiet(&args).exits(0)
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            psql("", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        }
    }

    #[test]
    fn on_every_source_and_store_it_comes_true_and_nothing_stays() {
        for (source, store) in [("file", "postgres"), ("kafka", "sqlite"), ("kafka", "postgres")] {
            let world = World::new(source, store);
            let before = world.state();
            let said = dry(&world.place, world.file, &["--max-messages", "100"]);
            assert_eq!(world.state(), before, "{source} to {}", world.store);
            assert_eq!(said["ended"], true, "{source} to {store}");
            comes_true(&said, &world.run());
            // Behind what was done there is nothing, and the dry run says so and again leaves nothing.
            let before = world.state();
            assert_eq!(
                outcomes(&dry(&world.place, world.file, &[])),
                Vec::<String>::new(),
                "{source} to {store}"
            );
            assert_eq!(world.state(), before, "{source} to {store}");
        }
    }

    /// A consumer that runs meanwhile is not put through a rebalance, and what it does is not changed.
    #[test]
    fn a_group_that_runs_does_not_notice() {
        let world = World::new("kafka", "postgres");
        let mut running = world.place.start("info", &["run", world.file, "--json"]);
        running.says("running");
        assert!(crate::common::wait_for(|| committed(&world.name).values().sum::<i64>() == 32));
        let before = world.state();
        for _ in 0..3 {
            dry(&world.place, world.file, &[]);
        }
        assert_eq!(world.state(), before);
        running.signal("TERM");
        let done = running.finish().exits(0);
        assert_eq!(done.counts(["received", "applied"]), [32, 13]);
        for word in ["revoked", "lost", "evicted"] {
            assert!(done.json()["notices"].get(word).is_none(), "{}", done.stdout);
        }
    }

    #[test]
    fn a_deferred_constraint_is_judged_before_a_commit_that_never_comes() {
        let world = World::new("file", "postgres");
        let constraint =
            "ALTER TABLE ledger ADD CONSTRAINT once UNIQUE (account_id) DEFERRABLE INITIALLY DEFERRED";
        psql(&world.name, constraint);
        let before = world.state();
        let said = dry(&world.place, world.file, &["--max-messages", "100"]);
        assert_eq!(world.state(), before);
        let twice =
            said["messages"].as_array().unwrap().iter().filter(|message| message["code"] == "23505").count();
        assert!(twice >= 1, "{said}");
        comes_true(&said, &world.run());
    }

    #[test]
    fn what_is_missing_is_said_as_run_says_it() {
        let world = World::new("kafka", "postgres");
        let other = world
            .place
            .read(world.file)
            .replace("KAFKA_TOPIC", "NO_TOPIC")
            .replace(":-credits}", ":-no-such-topic}");
        world.place.write("other.toml", &other);
        let done = world.place.quiet(&["run", "other.toml", "--dry-run"]).exits(3);
        assert!(done.stderr.contains("no topic no-such-topic"), "{}", done.stderr);
        let schema = world.place.read(world.file).replace("url = ", "schema = \"elsewhere\"\nurl = ");
        world.place.write("schema.toml", &schema);
        world.place.quiet(&["run", "schema.toml", "--dry-run"]).exits(4);
        world.run();
        let renamed = world.place.read(world.file).replace("\"${KAFKA_TOPIC", "\"x\", \"${KAFKA_TOPIC");
        world.place.write("renamed.toml", &renamed);
        psql(&world.name, "SELECT 1");
        let done = world.place.quiet(&["run", "renamed.toml", "--dry-run"]);
        assert!([Some(2), Some(3)].contains(&done.code), "{}", done.stderr);
    }
}
