//! The wallet example on a real Kafka and a real Postgres. Without the servers these tests fail:
//! `scripts/test` starts them.

use crate::common::{CANARY, HEADER_CANARY, Place, root, wait_for};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"))
}

/// A database and a topic of its own; the connection string has a password that must never be seen.
struct Servers {
    place: Place,
    database: String,
    topic: String,
}

pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("cli_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs SQL beside the program and answers its only value.
pub(crate) fn psql(database: &str, sql: &str) -> String {
    let url = variable("HANDSTAMP_TEST_POSTGRES");
    let url = match url.rfind('/') {
        Some(slash) if !database.is_empty() => format!("{}/{database}", &url[..slash]),
        _ => url,
    };
    let psql = std::path::Path::new(&variable("HANDSTAMP_TEST_POSTGRES_BIN")).join("psql");
    let output =
        Command::new(psql).args(["-qAtX", "-v", "ON_ERROR_STOP=1", &url, "-c", sql]).output().unwrap();
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The connection string of a role, with the canary as its password.
pub(crate) fn url(database: &str, role: Option<&str>) -> String {
    let base = variable("HANDSTAMP_TEST_POSTGRES");
    let (user, place) = base.strip_prefix("postgres://").unwrap().split_once('@').unwrap();
    let user = role.unwrap_or_else(|| user.split(':').next().unwrap());
    format!("postgres://{user}:{CANARY}@{}/{database}", place.rsplit_once('/').unwrap().0)
}

impl Servers {
    fn new() -> Self {
        let name = unique();
        psql("", &format!("CREATE DATABASE {name}"));
        let place = Place::wallet()
            .env("DATABASE_URL", &url(&name, None))
            .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
            .env("KAFKA_TOPIC", &name);
        // A group of its own: tests run beside one another.
        let toml = place.read("kafka.toml").replace("group = \"wallet\"", &format!("group = \"{name}\""));
        place.write("kafka.toml", &toml);
        Self { place, database: name.clone(), topic: name }
    }

    fn number(&self, sql: &str) -> u64 {
        psql(&self.database, sql).parse().unwrap()
    }

    fn publish_sample(&self, count: &str, more: &[&str]) -> String {
        let args = ["publish", "kafka.toml", "--sample", "credits", "--create-topic", "--count", count];
        self.place.run(&[&args[..], more].concat()).exits(0).stderr
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        psql("", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database));
    }
}

const NAMES: [&str; 5] = ["received", "applied", "duplicate", "id_reused", "dead_lettered"];

#[test]
fn credits_are_applied_once_from_publish_to_balance() {
    let servers = Servers::new();
    let said = servers.publish_sample(
        "500",
        &["--duplicates", "0.2", "--header", &format!("authorization={HEADER_CANARY}")],
    );
    let worth: u64 =
        said.rsplit_once("worth ").unwrap().1.split(' ').next().unwrap().replace(',', "").parse().unwrap();
    let first =
        servers.place.run(&["run", "kafka.toml", "--migrate", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(first.counts(NAMES), [600, 500, 100, 0, 0]);
    assert_eq!(first.json()["stopped"], "idle");
    assert_eq!(servers.number("SELECT count(*) FROM ledger"), 500);
    assert_eq!(servers.number("SELECT count(DISTINCT event_id) FROM ledger"), 500);
    assert_eq!(servers.number("SELECT sum(balance) FROM accounts"), worth);
    let second = servers.place.run(&["run", "kafka.toml", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(second.counts(NAMES), [0, 0, 0, 0, 0]);
    // Another group reads everything again, and nothing is applied again.
    let other = servers.place.read("kafka.toml").replace("group = \"", "group = \"other-");
    servers.place.write("other.toml", &other);
    let again = servers.place.run(&["run", "other.toml", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(again.counts(NAMES), [600, 0, 600, 0, 0]);
    assert_eq!(servers.number("SELECT sum(balance) FROM accounts"), worth);
}

#[test]
fn the_bad_lines_end_as_the_readme_says_on_kafka_and_postgres_too() {
    let servers = Servers::new();
    // One partition and so one order: which of two bodies of one id comes first is decided.
    servers
        .place
        .run(&[
            "publish",
            "kafka.toml",
            "--input",
            "credits.jsonl",
            "--allow-no-id",
            "--create-topic",
            "--partitions",
            "1",
            "--header",
            &format!("authorization={HEADER_CANARY}"),
        ])
        .exits(0);
    let done =
        servers.place.run(&["run", "kafka.toml", "--migrate", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(done.counts(NAMES), [32, 13, 5, 1, 13]);
    assert_eq!(servers.number("SELECT sum(balance) FROM accounts"), 391);
    // Bodies and headers are kept byte for byte.
    let lines = std::fs::read(servers.place.path("credits.jsonl")).unwrap();
    let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let export = servers.place.run(&["dlq", "export", "kafka.toml"]).exits(0).stdout;
    assert_eq!(export.lines().count(), 14);
    for letter in export.lines() {
        let letter: serde_json::Value = serde_json::from_str(letter).unwrap();
        let offset = usize::try_from(letter["offset"].as_i64().unwrap()).unwrap();
        assert_eq!(letter["record_value"].as_str().unwrap().as_bytes(), lines[offset]);
        let headers = letter["record_headers"].as_array().unwrap();
        assert!(headers.contains(&serde_json::json!(["authorization", HEADER_CANARY])), "{headers:?}");
    }
    servers.place.run(&["dlq", "list", "kafka.toml"]).exits(0);
    let id = "0193f5a0-7c01-7a5c-84d3-25160c5c7fd0";
    let known = servers.place.run(&["inbox", "get", "kafka.toml", id, "--json"]).exits(0).json();
    assert_eq!(known["state"], "applied");
}

/// The pipeline of the reference page, as it stands there but for the addresses.
#[test]
fn the_reference_pages_pipeline_runs_as_it_stands() {
    let servers = Servers::new();
    let page = std::fs::read_to_string(root().join("docs/reference/config.md")).unwrap();
    let toml = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let toml = toml
        .replace("127.0.0.1:9092", &variable("HANDSTAMP_TEST_KAFKA"))
        .replace("[\"credits\"]", &format!("[\"{}\"]", servers.topic))
        .replace("group = \"wallet\"", &format!("group = \"{}\"", servers.topic));
    servers.place.write("page.toml", &toml);
    servers.publish_sample("20", &[]);
    psql(&servers.database, &servers.place.read("schema.postgres.sql"));
    let done = servers.place.run(&["run", "page.toml", "--migrate", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(done.counts(NAMES), [20, 20, 0, 0, 0]);
}

#[test]
fn run_needs_no_right_to_change_tables() {
    let servers = Servers::new();
    let role = format!("{}_runner", servers.database);
    psql("", &format!("CREATE ROLE {role} LOGIN"));
    let toml = servers
        .place
        .read("kafka.toml")
        .replace("url = \"${DATABASE_URL}\"", "url = \"${RUNNER_URL}\"\nmigrate_url = \"${DATABASE_URL}\"");
    servers.place.write("role.toml", &toml);
    servers.publish_sample("10", &[]);
    let runner = url(&servers.database, Some(&role));
    let run = |args: &[&str]| servers.place.run_with("trace", args, &[("RUNNER_URL", &runner)]);
    run(&["run", "role.toml", "--until-idle", "1s"]).exits(4);
    let said = run(&["migrate", "role.toml", "--grant-to", &role]).exits(0).stdout;
    assert!(said.contains(&role), "{said}");
    psql(
        &servers.database,
        &format!("GRANT SELECT, UPDATE ON accounts TO {role}; GRANT INSERT ON ledger TO {role}"),
    );
    run(&["check", "role.toml"]).exits(0);
    let done = run(&["run", "role.toml", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(done.counts(["applied"]), [10]);
    psql(&servers.database, &format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_missing_topic_names_the_flag_and_check_says_what_to_do() {
    let servers = Servers::new();
    let missing =
        servers.place.run(&["publish", "kafka.toml", "--sample", "credits", "--count", "1"]).exits(3);
    assert!(missing.stderr.contains("--create-topic"), "{}", missing.stderr);
    let check = servers.place.run(&["check", "kafka.toml", "--json"]).exits(5);
    // The topic and the tables.
    assert_eq!(check.counts(["failed"]), [2]);
    assert!(
        check.stdout.contains("--create-topic") && check.stdout.contains("handstamp migrate"),
        "{}",
        check.stdout
    );
    servers.place.run(&["run", "kafka.toml", "--migrate", "--fail-fast"]).exits(3);
    // Nothing is idle before there is a topic: what ends the wait is said with it.
    let mut running = servers.place.start("trace", &["run", "kafka.toml", "--migrate", "--until-idle", "1s"]);
    running.says("--fail-fast");
    running.signal("TERM");
    running.finish().exits(0);
}

#[test]
fn what_is_not_there_exits_3_and_4_and_a_stop_while_waiting_exits_0() {
    let servers = Servers::new();
    servers.publish_sample("1", &[]);
    servers.place.run(&["run", "kafka.toml"]).exits(4);
    let toml = servers.place.read("kafka.toml");
    servers
        .place
        .write("no-store.toml", &toml.replace("${DATABASE_URL}", "postgres://u:${CANARY}@127.0.0.1:1/db"));
    servers.place.write("no-broker.toml", &toml.replace("${KAFKA_BROKERS:-127.0.0.1:9092}", "127.0.0.1:1"));
    servers.place.run(&["run", "no-store.toml", "--fail-fast"]).exits(3);
    servers.place.run(&["run", "no-broker.toml", "--migrate", "--fail-fast"]).exits(3);
    servers.place.run(&["check", "no-store.toml"]).exits(5);
    servers.place.run(&["check", "no-broker.toml"]).exits(5);
    for (file, words) in [("no-store.toml", "the store is away"), ("no-broker.toml", "waiting")] {
        let mut running = servers.place.start("trace", &["run", file, "--json"]);
        running.says(words);
        running.signal("TERM");
        let done = running.finish().exits(0);
        assert_eq!(done.counts(["received", "pending"]), [0, 0]);
        assert_eq!(done.json()["stopped"], "asked");
    }
}

#[test]
fn sigterm_settles_what_is_done_and_the_next_run_goes_on() {
    let servers = Servers::new();
    servers.publish_sample("300", &[]);
    let mut running = servers.place.start("trace", &["run", "kafka.toml", "--migrate", "--json"]);
    running.says("running");
    assert!(wait_for(|| servers.number("SELECT count(*) FROM ledger") > 0));
    running.signal("TERM");
    let first = running.finish().exits(0);
    assert_eq!(first.counts(["pending"]), [0]);
    let [applied, dead] = first.counts(["applied", "dead_lettered"]);
    let rest = servers.place.run(&["run", "kafka.toml", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(rest.counts(["applied"])[0] + applied, 300);
    assert_eq!(dead, 0);
    assert_eq!(servers.number("SELECT count(*) FROM ledger"), 300);
}

#[test]
fn the_lag_of_a_run_stopped_in_the_middle_is_what_the_next_run_receives() {
    let servers = Servers::new();
    servers.publish_sample("300", &["--partitions", "1"]);
    let toml = servers.place.read("kafka.toml");
    let slow = toml.replace("[identity]", "[consumer]\nbatch_max = 10\n[identity]");
    servers.place.write("slow.toml", &format!("{slow}\n[[effect]]\nsql = \"SELECT pg_sleep(0.02)\"\n"));
    let mut running = servers.place.start("trace", &["run", "slow.toml", "--migrate", "--json"]);
    running.says("running");
    assert!(wait_for(|| servers.number("SELECT count(*) FROM ledger") > 0));
    running.signal("TERM");
    let first = running.finish().exits(0);
    let lag = first.json()["lag"].as_object().unwrap().values().map(|lag| lag.as_u64().unwrap()).sum::<u64>();
    let [applied] = first.counts(["applied"]);
    assert!(lag > 0 && lag + applied == 300, "{}", first.stdout);
    let rest = servers.place.run(&["run", "kafka.toml", "--until-idle", "1s", "--json"]).exits(0);
    assert_eq!(rest.counts(["received", "applied", "duplicate"]), [lag, lag, 0]);
    assert_eq!(rest.json()["lag"], serde_json::json!({ format!("{}[0]", servers.topic): 0 }));
}

#[test]
fn many_processes_may_migrate_one_database_at_once() {
    let servers = Servers::new();
    let runs: Vec<_> = (0..4).map(|_| servers.place.start("trace", &["migrate", "kafka.toml"])).collect();
    let said: Vec<String> = runs.into_iter().map(|run| run.finish().exits(0).stdout).collect();
    assert_eq!(said.iter().filter(|said| said.contains("applied")).count(), 1, "{said:?}");
    assert_eq!(servers.number("SELECT count(*) FROM accounts"), 10);
}

#[test]
fn check_finds_effects_that_do_not_fit_and_a_renamed_consumer() {
    let servers = Servers::new();
    servers.publish_sample("5", &[]);
    servers.place.run(&["run", "kafka.toml", "--migrate", "--until-idle", "1s"]).exits(0);
    assert_eq!(servers.place.run(&["check", "kafka.toml", "--json"]).exits(0).counts(["warnings"]), [0]);
    let toml = servers.place.read("kafka.toml");
    servers.place.write("renamed.toml", &toml.replace("name = \"wallet\"", "name = \"purse\""));
    let renamed = servers.place.run(&["check", "renamed.toml", "--json"]).exits(0);
    assert_eq!(renamed.counts(["failed", "warnings"]), [0, 1]);
    assert!(renamed.stdout.contains("purse"), "{}", renamed.stdout);
    servers.place.write("column.toml", &toml.replace("SET balance", "SET balances"));
    let column = servers.place.run(&["check", "column.toml"]).exits(5);
    assert!(column.stdout.contains("balances"), "{}", column.stdout);
    servers.place.write(
        "options.toml",
        &toml.replace(
            "[identity]",
            "[source.options]\n\"enable.auto.commit\" = true\n\"auto.offset.reset\" = \"latest\"\n[identity]",
        ),
    );
    let options = servers.place.run(&["check", "options.toml", "--json"]).exits(5);
    assert_eq!(options.counts(["failed", "warnings"]), [1, 1]);
    servers.place.run(&["run", "options.toml"]).exits(2);
}

#[test]
fn another_topic_under_a_known_name_is_found_by_check() {
    let servers = Servers::new();
    servers.publish_sample("1", &[]);
    servers.place.run(&["run", "kafka.toml", "--migrate", "--until-idle", "1s"]).exits(0);
    let toml = servers.place.read("kafka.toml");
    let two = toml.replace("topics = [", "topics = [\"another\", ");
    servers.place.write("two.toml", &two);
    let check = servers.place.run(&["check", "two.toml"]).exits(5);
    assert!(check.stdout.contains("--adopt"), "{}", check.stdout);
    servers.place.run(&["run", "two.toml", "--fail-fast"]).exits(2);
}

#[test]
fn an_effect_that_outlasts_shutdown_timeout_is_cancelled_and_rolled_back() {
    let servers = Servers::new();
    servers.publish_sample("1", &[]);
    let toml = servers.place.read("kafka.toml");
    let slow = toml.replace("[identity]", "[consumer]\nshutdown_timeout = \"300ms\"\n[identity]");
    servers.place.write("slow.toml", &format!("{slow}\n[[effect]]\nsql = \"SELECT pg_sleep(60)\"\n"));
    let running = servers.place.start("trace", &["run", "slow.toml", "--migrate"]);
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    assert!(wait_for(|| servers.number(sleeping) == 1));
    running.signal("TERM");
    running.finish().exits(7);
    assert!(wait_for(|| servers.number(sleeping) == 0));
    assert_eq!(servers.number("SELECT count(*) FROM ledger"), 0);
    assert_eq!(servers.number("SELECT count(*) FROM handstamp.inbox"), 0);
}
