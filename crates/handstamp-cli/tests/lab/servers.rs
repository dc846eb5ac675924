//! On a real broker and a real database; a server that is missing is a failure.

use crate::common::{Lab, of};

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

#[test]
fn zombies_double_only_without_an_inbox() {
    let outcome = on_servers(&["zombie", "--messages", "500"], 0);
    assert!(of(&outcome, "b").0 >= 1, "{outcome}");
    let rows = outcome["rows"].as_array().unwrap();
    let evictions =
        |name: &str| rows.iter().find(|row| row["name"] == name).unwrap()["runs"][0]["evictions"].as_u64();
    for row in ["c", "handstamp, polling stopped", "handstamp, SIGSTOP", "handstamp, slow handler"] {
        assert_eq!(of(&outcome, row), (0, 0), "{row}");
    }
    for row in ["c", "handstamp, polling stopped", "handstamp, SIGSTOP"] {
        assert!(evictions(row) >= Some(1), "{row}: {outcome}");
    }
    assert_eq!(evictions("handstamp, slow handler"), Some(0));
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
