//! `check` says beforehand what `run` would refuse, on a real Kafka and a real Postgres. Without the servers
//! these tests fail: `scripts/test` starts them.

use crate::common::{Done, Place};
use crate::kafka_postgres::{psql, unique, url, variable};
use std::path::PathBuf;
use std::process::Command;

/// The wallet on a database, and a role, of its own.
pub(crate) struct Wallet {
    pub(crate) place: Place,
    pub(crate) database: String,
    role: String,
}

impl Wallet {
    /// A file into a migrated database; `run` as a role that may run.
    pub(crate) fn new() -> Self {
        let database = unique();
        let role = format!("{database}_runner");
        psql("", &format!("CREATE DATABASE {database}"));
        psql("", &format!("CREATE ROLE {role} LOGIN"));
        let place = Place::wallet()
            .env("OWNER_URL", &url(&database, None))
            .env("DATABASE_URL", &url(&database, Some(&role)))
            .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
            .env("KAFKA_TOPIC", &database);
        let toml = place.read("file.toml");
        let (before, after) = toml.split_once("[store]").unwrap();
        let (_, effects) = after.split_once("[[effect]]").unwrap();
        let store = "type = \"postgres\"\nurl = \"${DATABASE_URL}\"\nmigrate_url = \"${OWNER_URL}\"\n\
                     setup = \"schema.postgres.sql\"\n";
        place.write("wallet.toml", &format!("{before}[store]\n{store}\n[[effect]]{effects}"));
        place.run(&["migrate", "wallet.toml", "--grant-to", &role]).exits(0);
        Self { place, database, role }
    }

    /// Its folder for a test of its own; database and role go with the guard.
    pub(crate) fn into_parts(mut self) -> Parts {
        let place = std::mem::replace(&mut self.place, Place::new());
        Parts { place, database: self.database.clone(), guard: self }
    }

    fn sql(&self, sql: &str) {
        psql(&self.database, &sql.replace("$role", &self.role).replace("$database", &self.database));
    }

    fn toml(&self, pairs: &[(&str, &str)]) -> String {
        pairs.iter().fold(self.place.read("wallet.toml"), |toml, (from, to)| {
            assert!(toml.contains(from), "{from}");
            toml.replace(from, to)
        })
    }

    /// The same store behind Kafka.
    pub(crate) fn kafka(&self, pairs: &[(&str, &str)]) -> String {
        let toml = self.toml(&[]);
        let (head, rest) = toml.split_once("[source]").unwrap();
        let (_, rest) = rest.split_once("[identity]").unwrap();
        let source = "[source]\ntype = \"kafka\"\nbrokers = \"${KAFKA_BROKERS}\"\ntopics = [\"${KAFKA_TOPIC}\"]\n\
                      group = \"${KAFKA_TOPIC}\"\n[source.options]\n\"client.id\" = \"c\"\n[identity]";
        pairs.iter().fold(format!("{head}{source}{rest}"), |toml, (from, to)| toml.replace(from, to))
    }

    fn both(&self) -> [Done; 2] {
        [
            self.place.run_at("off", &["check", "bad.toml", "--json"]),
            self.place.run_at("off", &["run", "bad.toml", "--fail-fast", "--json"]),
        ]
    }
}

/// A wallet's folder, and what stands behind it.
pub(crate) struct Parts {
    pub(crate) place: Place,
    pub(crate) database: String,
    pub(crate) guard: Wallet,
}

impl Drop for Wallet {
    fn drop(&mut self) {
        psql("", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database));
        psql("", &format!("DROP ROLE IF EXISTS {}", self.role));
    }
}

type Break = fn(&Wallet) -> String;

/// What is bad, how it is made so, and words that both commands say of it.
const BAD: &[(&str, Break, &str)] = &[
    (
        "a role that may only read",
        |w| {
            w.sql("ALTER ROLE $role SET default_transaction_read_only = on");
            w.toml(&[])
        },
        "default_transaction_read_only",
    ),
    (
        "a database that may only be read",
        |w| {
            w.sql("ALTER DATABASE $database SET default_transaction_read_only = on");
            w.toml(&[])
        },
        "default_transaction_read_only",
    ),
    (
        "a role without rights",
        |w| {
            w.sql("DROP OWNED BY $role");
            w.toml(&[])
        },
        "--grant-to",
    ),
    (
        "a role that may read our tables but not write them",
        |w| {
            w.sql("REVOKE INSERT ON ALL TABLES IN SCHEMA handstamp FROM $role");
            w.toml(&[])
        },
        "--grant-to",
    ),
    (
        "tables that are missing",
        |w| {
            w.sql("DROP SCHEMA handstamp CASCADE");
            w.toml(&[])
        },
        "handstamp migrate",
    ),
    (
        "our schema on the search path",
        |w| {
            w.sql("ALTER ROLE $role SET search_path = handstamp, public");
            w.toml(&[])
        },
        "search_path",
    ),
    (
        "a database that is missing",
        |w| w.toml(&[("${DATABASE_URL}", "${DATABASE_URL}_none")]),
        "create the database",
    ),
    (
        "a server that is away",
        |w| w.toml(&[("${DATABASE_URL}", "postgres://u@127.0.0.1:1/db")]),
        "127.0.0.1:1",
    ),
    ("an effect that does not fit", |w| w.toml(&[("SET balance", "SET balances")]), "balances"),
    (
        "a limit that the server does not take",
        |w| w.toml(&[("type = \"postgres\"", "type = \"postgres\"\nlock_timeout = \"365days\"")]),
        "lock_timeout",
    ),
    (
        "another source under a known name",
        |w| {
            w.sql("INSERT INTO handstamp.consumers (id, name, fingerprint) VALUES (7, 'wallet', 'kafka:t')");
            w.toml(&[])
        },
        "--adopt",
    ),
    ("a topic that is missing", |w| w.kafka(&[]), "topic"),
    (
        "a topic's name that none can have",
        |w| w.kafka(&[("[\"${KAFKA_TOPIC}\"]", "[\"not a topic\"]")]),
        "A-Z a-z 0-9",
    ),
    ("a broker that is away", |w| w.kafka(&[("${KAFKA_BROKERS}", "127.0.0.1:1")]), "127.0.0.1:1"),
    (
        "options that the client library refuses together",
        |w| {
            w.place.write("good.toml", &w.kafka(&[]));
            let publish = ["publish", "good.toml", "--sample", "credits", "--count", "1", "--create-topic"];
            w.place.run(&publish).exits(0);
            w.kafka(&[("\"client.id\" = \"c\"", "\"session.timeout.ms\" = 400000")])
        },
        "session.timeout.ms",
    ),
    (
        "an option that would break the promise",
        |w| w.kafka(&[("\"client.id\" = \"c\"", "\"enable.auto.commit\" = true")]),
        "enable.auto.commit",
    ),
];

#[test]
fn whatever_run_refuses_check_refuses_too() {
    for (what, bad, words) in BAD {
        let wallet = Wallet::new();
        wallet.place.write("bad.toml", &bad(&wallet));
        let [check, run] = wallet.both();
        assert_eq!(check.code, Some(5), "{what}: check says {check:?}, run {run:?}");
        assert!(!matches!(run.code, None | Some(0)), "{what}: run says {run:?}");
        for (command, done) in [("check", &check), ("run", &run)] {
            assert_eq!(done.json()["exit_code"], done.code.unwrap(), "{what}: {command}");
            let said = format!("{}{}", done.stdout, done.stderr);
            assert!(said.contains(words), "{what}: {command} does not say {words:?}: {said}");
        }
    }
}

#[test]
fn check_leaves_nothing_in_the_database() {
    let wallet = Wallet::new();
    for _ in 0..3 {
        let check = wallet.place.run(&["check", "wallet.toml", "--json"]).exits(0);
        assert_eq!(check.counts(["failed", "warnings"]), [0, 0]);
    }
    for table in ["consumers", "inbox", "dead_letters"] {
        assert_eq!(
            psql(&wallet.database, &format!("SELECT count(*) FROM handstamp.{table}")),
            "0",
            "{table}"
        );
    }
    wallet.place.run(&["run", "wallet.toml", "--json"]).exits(0);
    // What a message would meet later than the first one.
    wallet.sql("REVOKE INSERT ON handstamp.dead_letters FROM $role");
    let check = wallet.place.run(&["check", "wallet.toml"]).exits(5);
    assert!(check.stdout.contains("dead_letters") && check.stdout.contains("--grant-to"), "{}", check.stdout);
}

/// A server of this test's own; it is ended with it.
struct Private(String);

impl Private {
    fn services(words: &[&str]) -> String {
        let script = PathBuf::from(variable("HANDSTAMP_TEST_SERVICES"));
        let output = Command::new(script).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn up() -> (Self, String) {
        let name = format!("postgres@check{}", std::process::id());
        Self::services(&["up", &name]);
        let private = Self(name);
        let lines = Self::services(&["env", &private.0]);
        let url = lines.lines().find_map(|line| {
            let (_, value) = line.split_once('=')?;
            Some(value.trim_matches('\'')).filter(|value| value.starts_with("postgres://"))
        });
        let url = url.unwrap().to_owned();
        (private, url)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // A test that fails already must not end the whole program.
        let _ = Command::new(variable("HANDSTAMP_TEST_SERVICES")).args(["down", &self.0]).output();
    }
}

/// A server that loses commits in a crash is refused by name; what only bites is warned of.
#[test]
fn a_server_that_is_set_up_dangerously_is_found() {
    let (_private, url) = Private::up();
    let psql = |sql: &str| {
        let psql = PathBuf::from(variable("HANDSTAMP_TEST_POSTGRES_BIN")).join("psql");
        let done =
            Command::new(psql).args(["-qAtX", "-v", "ON_ERROR_STOP=1", &url, "-c", sql]).output().unwrap();
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    let place = Place::wallet().env("DATABASE_URL", &url);
    let toml = place.read("file.toml");
    let sqlite = "type = \"sqlite\"\npath = \"wallet.db\"\nsetup = \"schema.sqlite.sql\"\n";
    let postgres = "type = \"postgres\"\nurl = \"${DATABASE_URL}\"\nsetup = \"schema.postgres.sql\"\n";
    place.write("wallet.toml", &toml.replace(sqlite, postgres));
    place.run(&["migrate", "wallet.toml"]).exits(0);
    let check = || place.run(&["check", "wallet.toml", "--json"]);
    assert_eq!(check().exits(0).counts(["failed", "warnings"]), [0, 0]);
    for (setting, code, counts) in [
        ("fsync", 5, [1, 0]),
        ("full_page_writes", 0, [0, 1]),
        // Every commit of ours raises it.
        ("synchronous_commit", 0, [0, 0]),
    ] {
        psql(&format!("ALTER SYSTEM SET {setting} = off"));
        psql("SELECT pg_reload_conf()");
        // The server's processes take a reload at their own time.
        assert!(crate::common::wait_for(|| psql(&format!("SHOW {setting}")) == "off"), "{setting}");
        let done = check().exits(code);
        assert_eq!(done.counts(["failed", "warnings"]), counts, "{setting}: {}", done.stdout);
        assert!(done.stdout.contains(setting), "{}", done.stdout);
        psql(&format!("ALTER SYSTEM RESET {setting}"));
        psql("SELECT pg_reload_conf()");
        assert!(crate::common::wait_for(|| psql(&format!("SHOW {setting}")) == "on"), "{setting}");
    }
}

/// A wrong word is said before any broker is asked, and what only the broker knows is no outage.
#[test]
fn what_cannot_be_published_is_a_mistake_of_the_command_line() {
    let wallet = Wallet::new();
    let publish = |pairs: &[(&str, &str)], more: &[&str]| {
        wallet.place.write("bad.toml", &wallet.kafka(pairs));
        let args = ["publish", "bad.toml", "--sample", "credits", "--count", "1", "--create-topic"];
        wallet.place.quiet(&[&args[..], more].concat())
    };
    for name in ["not a topic", "a/b", "..", ".", "", "ü", &"x".repeat(250)] {
        let done = publish(&[("[\"${KAFKA_TOPIC}\"]", &format!("[\"{name}\"]"))], &[]).exits(2);
        assert!(done.stderr.contains("A-Z a-z 0-9 . _ -"), "{name}: {}", done.stderr);
    }
    for (header, words) in [
        ("=c4n4ry.h34d3r", "name is empty"),
        (" =c4n4ry.h34d3r", "name is empty"),
        ("c4n4ry.h34d3r", "no = in it"),
        ("", "no = in it"),
        ("event_id=c4n4ry.h34d3r", "where the message's id goes"),
    ] {
        let done = publish(&[], &["--header", "a=b", "--header", header]).exits(2);
        assert!(done.stderr.contains(words) && done.stderr.contains("number 2"), "{header}: {}", done.stderr);
    }
    // Two names that differ in . and _ alone: the broker's own rule.
    let dotted = wallet.database.replace('_', ".");
    publish(&[], &[]).exits(0);
    let done = publish(&[("[\"${KAFKA_TOPIC}\"]", &format!("[\"{dotted}\"]"))], &[]).exits(2);
    assert!(done.stderr.contains("differ in . and _ alone"), "{}", done.stderr);
    let other = format!("[\"{}-x\"]", wallet.database);
    let done = publish(&[("[\"${KAFKA_TOPIC}\"]", &other)], &["--partitions", "2000000000"]);
    assert!(matches!(done.code, Some(2)), "{done:?}");
}
