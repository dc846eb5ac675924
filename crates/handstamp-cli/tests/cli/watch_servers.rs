//! What a scraper and a prober are told of a run on a real Kafka and a real Postgres, and while one of them is away.

use crate::common::{Place, Running, wait_for};
use crate::file_postgres::on_postgres;
use crate::kafka_postgres::{psql, unique, url, variable};
use crate::scrape::{Scrape, address_of, get, until};
use crate::watch::{once_done, same_as_the_report};
use std::net::SocketAddr;

/// A database of its own, and the wallet's pipelines in it.
struct Servers {
    place: Place,
    database: String,
}

impl Servers {
    /// `kafka.toml` with a topic and a group of its own.
    fn kafka(partitions: &str) -> Self {
        let name = unique();
        psql("", &format!("CREATE DATABASE {name}"));
        let place = Place::wallet()
            .env("DATABASE_URL", &url(&name, None))
            .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
            .env("KAFKA_TOPIC", &name);
        let toml = place.read("kafka.toml").replace("group = \"wallet\"", &format!("group = \"{name}\""));
        // What fails beyond its attempts in place waits longer than any test.
        let parks = "backoff_base = \"365days\"\nbackoff_cap = \"365days\"";
        place.write("kafka.toml", &toml.replace("max_attempts = 2 ", &format!("{parks} ")));
        let publish = ["publish", "kafka.toml", "--create-topic", "--partitions", partitions];
        let lines = ["--input", "credits.jsonl", "--allow-no-id"];
        place.run_at("info", &[&publish[..], &lines].concat()).exits(0);
        place.run_at("info", &["migrate", "kafka.toml"]).exits(0);
        Self { place, database: name }
    }

    /// `wallet.toml`: the file in Postgres, with another effect.
    fn file(effect: &str, consumer: &str) -> Self {
        let database = unique();
        let place = on_postgres(&database);
        let toml = place.read("wallet.toml");
        let (before, _) = toml.split_once("[[effect]]").unwrap();
        place.write(
            "wallet.toml",
            &format!("{before}[[effect]]\nsql = \"{effect}\"\n[consumer]\n{consumer}\n"),
        );
        place.run_at("info", &["migrate", "wallet.toml"]).exits(0);
        Self { place, database }
    }

    fn start(&self, file: &str, more: &[&str]) -> (Running, SocketAddr) {
        let args = [&["run", file, "--watch", "127.0.0.1:0"], more].concat();
        let mut running = self.place.start("info", &args);
        let address = address_of(&mut running);
        (running, address)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        psql("", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database));
    }
}

#[test]
fn what_is_exposed_equals_the_report_on_kafka_and_postgres_too() {
    let servers = Servers::kafka("3");
    let sample = ["publish", "kafka.toml", "--sample", "credits", "--count", "300", "--duplicates", "0.2"];
    servers.place.run_at("info", &sample).exits(0);
    let lines = servers.place.read("credits.jsonl").lines().filter(|line| !line.is_empty()).count() as u64;
    let (running, address) = servers.start("kafka.toml", &["--json"]);
    once_done(address, lines + 360);
    let behind = || Scrape::of(address).value("handstamp_lag_messages", &[]);
    assert!(wait_for(|| behind() == Some(0.0)), "{:?}", behind());
    let scrape = Scrape::of(address);
    assert_eq!(scrape.missing(), [""; 0]);
    let lane = format!("{}[0]", servers.database);
    assert_eq!(scrape.value("handstamp_lag_messages", &[("lane", &lane)]), Some(0.0));
    until(address, "/readyz", 200, "ready");
    until(address, "/healthz", 200, "ok");
    for name in ["handstamp_ready", "handstamp_store_up", "handstamp_source_up"] {
        assert_eq!(scrape.count(name, &[("consumer", "wallet")]), 1, "{name}");
    }
    assert!(scrape.count("handstamp_messages_total", &[("outcome", "parked")]) > 0);
    assert!(scrape.count("handstamp_batch_messages_sum", &[]) >= lines + 360);
    let store = |name| psql(&servers.database, &format!("SELECT count(*) FROM handstamp.{name}"));
    let counted = || {
        let scrape = Scrape::of(address);
        let count = |name| scrape.count(name, &[]).to_string();
        count("handstamp_store_parked_messages") == store("parked")
            && count("handstamp_store_dead_letters") == store("dead_letters")
    };
    assert!(wait_for(counted), "what the store counts is not what is there: {:?}", Scrape::of(address));
    let scrape = Scrape::of(address);
    running.signal("TERM");
    same_as_the_report(&scrape, &running.finish().exits(0));
}

/// A member of a group for which no partition is left is as ready as the one that has it.
#[test]
fn a_process_that_stands_by_is_ready() {
    let servers = Servers::kafka("1");
    let (one, first) = servers.start("kafka.toml", &[]);
    until(first, "/readyz", 200, "ready");
    let (other, second) = servers.start("kafka.toml", &[]);
    until(second, "/readyz", 200, "ready");
    for running in [one, other] {
        running.signal("TERM");
        running.finish().exits(0);
    }
}

#[test]
fn while_the_store_is_away_it_lives_is_not_ready_and_says_why() {
    let servers = Servers::file("UPDATE accounts SET balance = 1", "batch_max = 1");
    let toml = servers.place.read("wallet.toml");
    servers.place.write("away.toml", &toml.replace("${DATABASE_URL}", "postgres://u@127.0.0.1:1/db"));
    let (running, address) = servers.start("away.toml", &[]);
    until(address, "/readyz", 503, "store_away: ");
    until(address, "/healthz", 200, "ok");
    let scrape = Scrape::of(address);
    assert_eq!(scrape.count("handstamp_store_up", &[]), 0);
    assert_eq!(scrape.count("handstamp_unready", &[("reason", "store_away")]), 1);
    assert_eq!(scrape.value("handstamp_store_dead_letters", &[]), None, "not known is not none");
    running.signal("TERM");
    running.finish().exits(0);
}

#[test]
fn while_the_brokers_are_away_it_lives_is_not_ready_and_says_why() {
    let servers = Servers::kafka("1");
    let toml = servers.place.read("kafka.toml");
    servers.place.write("away.toml", &toml.replace("${KAFKA_BROKERS:-127.0.0.1:9092}", "127.0.0.1:1"));
    let (running, address) = servers.start("away.toml", &[]);
    until(address, "/readyz", 503, "source_away: ");
    until(address, "/healthz", 200, "ok");
    assert_eq!(Scrape::of(address).count("handstamp_source_up", &[]), 0);
    assert!(Scrape::of(address).count("handstamp_source_notices_total", &[("notice", "broker_away")]) > 0);
    running.signal("TERM");
    running.finish().exits(0);
}

#[test]
fn an_open_breaker_is_no_readiness() {
    let slow = "INSERT INTO ledger SELECT :message_id, 1, 1 FROM pg_sleep(60)";
    let servers = Servers::file(slow, "batch_max = 1\nhandler_timeout = \"20ms\"");
    let lines: String =
        (0..40).map(|id| format!("{{\"event_id\": \"{id}\", \"account_id\": 1, \"amount\": 1}}\n")).collect();
    servers.place.write("credits.jsonl", &lines);
    let (running, address) = servers.start("wallet.toml", &[]);
    until(address, "/readyz", 503, "breaker: ");
    until(address, "/healthz", 200, "ok");
    let scrape = Scrape::of(address);
    assert_eq!(scrape.count("handstamp_breaker_opened_total", &[]), 1);
    assert_eq!(scrape.count("handstamp_breaker_state", &[]), 1, "one state at a time");
    assert_eq!(scrape.count("handstamp_breaker_state", &[("state", "closed")]), 0);
    running.signal("TERM");
    running.finish().exits(0);
}

/// What runs is finished before the end, and until then whoever routes work there is told.
#[test]
fn a_stop_is_told_while_the_last_batch_ends() {
    let slow = "INSERT INTO ledger SELECT :message_id, 1, 1 FROM pg_sleep(10)";
    let servers = Servers::file(slow, "batch_max = 1");
    servers.place.write("credits.jsonl", "{\"event_id\": \"a\", \"account_id\": 1, \"amount\": 1}\n");
    let (running, address) = servers.start("wallet.toml", &["--json"]);
    // Not before the effect runs: what has not begun would be given back.
    let sleeps =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    assert!(wait_for(|| psql(&servers.database, sleeps) == "1"), "the effect does not run");
    let scrape = Scrape::of(address);
    assert_eq!(["handstamp_slots", "handstamp_slots_used"].map(|name| scrape.count(name, &[])), [1, 1]);
    running.signal("TERM");
    until(address, "/readyz", 503, "stopping: ");
    let done = running.finish().exits(0);
    assert_eq!(done.counts(["received", "applied"]), [1, 1]);
}

/// Somebody drops the tables below a run that goes on: it waits, and says for what.
#[test]
fn tables_that_are_gone_are_no_readiness() {
    let servers = Servers::file("UPDATE accounts SET balance = 1 WHERE id = :account_id", "batch_max = 1");
    let toml = servers.place.read("wallet.toml");
    servers.place.write("wallet.toml", &toml.replace("path = \"credits.jsonl\"", "path = \"lines\""));
    let fifo = servers.place.path("lines");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (running, address) = servers.start("wallet.toml", &[]);
    let writer = std::fs::File::options().read(true).write(true).open(&fifo).unwrap();
    until(address, "/readyz", 200, "ready");
    psql(&servers.database, "DROP SCHEMA handstamp CASCADE");
    let told = || {
        let (status, _, body) = get(address, "/readyz").unwrap();
        status == 503 && (body.starts_with("not_migrated: ") || body.starts_with("schema_mismatch: "))
    };
    assert!(wait_for(told), "{:?}", get(address, "/readyz"));
    until(address, "/healthz", 200, "ok");
    running.signal("TERM");
    drop(writer);
    running.finish().exits(0);
}
