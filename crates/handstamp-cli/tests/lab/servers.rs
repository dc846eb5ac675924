//! On a real broker and a real database; a server that is missing is a failure.

use crate::common::{Lab, of};
use crate::processes::{Known, below, within};
use std::process::Stdio;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests by scripts/test, or `eval \"$(scripts/services env)\"` after `scripts/services up`")
    })
}

/// The lab with both servers, the database by its variable.
fn on_servers(args: &[&str], code: i32) -> serde_json::Value {
    let lab = Lab::new();
    let brokers = variable("HANDSTAMP_TEST_KAFKA");
    let args = [args, &["--brokers", &brokers, "--out", "run", "--json"]].concat();
    let mut command = lab.command(&args);
    let output = command.env("HANDSTAMP_LAB_DATABASE", variable("HANDSTAMP_TEST_POSTGRES")).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", crate::common::shown(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_ready_made_program_survives_its_kills() {
    let args = ["kill", "--kills", "2", "--messages", "300", "--session-timeout", "1500ms"];
    let subjects = ["--subjects", "handstamp-program,handstamp-program-50"];
    let outcome = on_servers(&[&args[..], &subjects].concat(), 0);
    for row in ["handstamp-program", "handstamp-program-50"] {
        assert_eq!(of(&outcome, row), (0, 0), "{row}");
    }
}

/// Kafka and Postgres keep what a killed lab could not remove, and it can be told whose it is.
#[test]
fn a_killed_lab_takes_the_program_along_and_what_it_left_on_servers_is_cleaned() {
    let lab = Lab::new();
    let (brokers, database) = (variable("HANDSTAMP_TEST_KAFKA"), variable("HANDSTAMP_TEST_POSTGRES"));
    let servers = ["--brokers", &brokers, "--database", &database];
    let kill = ["kill", "--out", "run", "--side-by-side", "8", "--subjects", "handstamp-program"];
    let mut command = lab.command(&[&kill[..], &servers].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    within("the program runs", || {
        below(child.id()).iter().any(|one| one.command.contains("\0run\0") && one.command.contains(".toml"))
    });
    let started = below(child.id());
    let settings = std::fs::read_to_string(lab.path("run/settings.json")).unwrap();
    let settings: serde_json::Value = serde_json::from_str(&settings).unwrap();
    let name = format!("hs_lab_{}_", settings["id"].as_str().unwrap());
    let left = |more: &[&str]| -> Vec<(String, bool)> {
        let args = [&["clean", "--older-than", "0s", "--json"], &servers[..], more].concat();
        let object = lab.object(&args, 0);
        let left = object["left"].as_array().unwrap().iter();
        let ours = left.filter(|one| one["name"].as_str().unwrap().starts_with(&name));
        ours.map(|one| (one["what"].as_str().unwrap().to_owned(), one["removed"] == true)).collect()
    };
    assert_eq!(left(&["--yes"]), [], "the lab that made them still runs");
    child.kill().unwrap();
    child.wait().unwrap();
    within("everything that the lab had started is gone", || !started.iter().any(Known::runs));
    let listed = left(&[]);
    for what in ["topic", "schema"] {
        assert!(listed.contains(&(what.to_owned(), false)), "{what}: {listed:?}");
    }
    let removed = left(&["--yes"]);
    assert_eq!(removed.len(), listed.len());
    assert!(removed.iter().all(|(_, removed)| *removed), "{removed:?}");
    // Brokers forget a topic a little after they agreed to.
    within("nothing is left", || left(&["--yes"]).is_empty());
}

/// Two rounds of the long profile, which are of both kinds of group.
#[test]
fn zombies_double_only_without_an_inbox_in_groups_of_every_kind() {
    let lab = Lab::new();
    let servers =
        ["--brokers", &variable("HANDSTAMP_TEST_KAFKA"), "--database", &variable("HANDSTAMP_TEST_POSTGRES")];
    let args = ["zombie", "--profile", "long", "--runs", "2", "--out", "run", "--json"];
    let outcome = lab.object(&[&args[..], &servers].concat(), 0);
    assert!(of(&outcome, "b").0 >= 2, "{outcome}");
    for row in ["c", "handstamp, polling stopped", "handstamp, SIGSTOP", "handstamp, slow handler"] {
        assert_eq!(of(&outcome, row), (0, 0), "{row}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    let runs = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap()["runs"].as_array().unwrap();
    let evictions = |name: &str| runs(name).iter().map(|run| run["evictions"].as_u64().unwrap());
    for row in ["c", "handstamp, polling stopped", "handstamp, SIGSTOP"] {
        assert!(evictions(row).all(|count| count >= 1), "{row}: {outcome}");
    }
    assert_eq!(evictions("handstamp, slow handler").sum::<u64>(), 0);

    // One seed, one group for every row; the consumers that were started are as many.
    for (run, first) in runs("b").iter().enumerate() {
        let group = |run: &serde_json::Value| (run["members"].as_u64().unwrap(), run["assignor"].clone());
        for row in rows {
            assert_eq!(group(&row["runs"][run]), group(first), "{}", row["name"]);
        }
        let history = std::fs::read_to_string(lab.path(&format!("run/zombie-{run}-b-slow.jsonl"))).unwrap();
        let started = history.lines().filter(|line| line.contains("\"event\":\"started\"")).count();
        assert_eq!(u64::try_from(started), Ok(group(first).0), "{history}");
    }
    let table = lab.exits(&["verify", "run"], 0);
    for line in ["b, range", "b, cooperative-sticky", "handstamp, SIGSTOP, cooperative-sticky"] {
        assert!(table.contains(line), "{table}");
    }
}

#[test]
fn rates_and_bytes_are_measured() {
    let outcome = on_servers(&["throughput", "--messages", "200", "--runs", "1"], 0);
    let rates = outcome["rates"].as_array().unwrap();
    assert!(
        rates.len() >= 7 && rates.iter().all(|one| one["per_second"][0].as_f64() > Some(0.0)),
        "{outcome}"
    );

    let lab = Lab::new();
    let database = variable("HANDSTAMP_TEST_POSTGRES");
    let args = ["storage", "--database", &database, "--rows", "20000", "--runs", "1", "--json"];
    let outcome = lab.object(&args, 0);
    let bytes = |name: &str| {
        let tables = outcome["bytes_per_id"].as_array().unwrap();
        let table = tables.iter().find(|table| table["name"] == name).unwrap();
        table["heap"][0].as_f64().unwrap() + table["index"][0].as_f64().unwrap()
    };
    // The sizes that were published, within a tenth, and ours below them.
    for (name, published) in [("text", 194.5), ("uuid v7", 118.1)] {
        assert!((bytes(name) / published - 1.0).abs() < 0.1, "{name}: {outcome}");
    }
    assert!(bytes("handstamp v7") < bytes("uuid v7"), "{outcome}");
}
