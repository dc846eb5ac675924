//! Signals and the exit codes they lead to, on a named pipe and SQLite.

use crate::common::{Place, Running};
use std::io::Write;
use std::process::Command;

/// An effect that takes SQLite longer than any test.
const ENDLESS: &str = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000000000000) \
                       INSERT INTO ledger SELECT :message_id, 1, count(*) FROM n";

/// The wallet on a named pipe that stays open: a source that never ends.
fn endless_source(effect: Option<&str>) -> Place {
    let place = Place::wallet();
    let mut toml = place.read("file.toml").replace("credits.jsonl", "pipe.jsonl");
    if let Some(sql) = effect {
        let start = toml.find("[[effect]]").unwrap();
        toml.truncate(start);
        toml.push_str(&format!("[[effect]]\nsql = \"{sql}\"\n"));
    }
    place.write("pipe.toml", &toml);
    let made = Command::new("mkfifo").arg(place.path("pipe.jsonl")).status().unwrap();
    assert!(made.success());
    place
}

/// Starts a run and hands it one line; the pipe is open for as long as the returned file is.
fn start(place: &Place, args: &[&str]) -> (Running, std::fs::File) {
    let running = place.start("trace", &[&["run", "pipe.toml"], args].concat());
    let mut pipe = std::fs::OpenOptions::new().write(true).open(place.path("pipe.jsonl")).unwrap();
    pipe.write_all(b"{\"event_id\": \"one\", \"account_id\": 1, \"amount\": 5}\n").unwrap();
    (running, pipe)
}

/// Registering and migrating hold the lock for a moment too: the endless effect holds it again and again.
fn is_busy_for_long(place: &Place) -> bool {
    (0..5).all(|_| crate::wallet::is_busy(place))
}

fn ledger(place: &Place) -> i64 {
    crate::wallet::number(place, "SELECT count(*) FROM ledger")
}

#[test]
fn sigterm_and_sigint_finish_what_runs_and_exit_0() {
    for signal in ["TERM", "INT"] {
        let place = endless_source(None);
        let (mut running, pipe) = start(&place, &["--json"]);
        running.says("running");
        // The line is done when its effect can be read beside the program.
        assert!(crate::common::wait_for(|| place.path("wallet.db").exists() && ledger(&place) == 1));
        running.signal(signal);
        let done = running.finish().exits(0);
        assert_eq!(done.counts(["received", "applied", "pending"]), [1, 1, 0], "{signal}");
        assert_eq!(done.json()["stopped"], "asked");
        // What comes after a line of a pipe is not known: nothing is said of it, 0 neither.
        assert_eq!(done.json()["lag"], serde_json::json!({}), "{signal}");
        drop(pipe);
    }
}

#[test]
fn a_second_signal_exits_7_at_once_and_nothing_is_half_done() {
    let place = endless_source(Some(ENDLESS));
    let (mut running, pipe) = start(&place, &["--json"]);
    // The effect runs when the program holds the write lock and keeps it.
    assert!(crate::common::wait_for(|| place.path("wallet.db").exists() && is_busy_for_long(&place)));
    // Two that come together count as one.
    running.signal("TERM");
    running.signal("TERM");
    running.says("stopping");
    running.signal_until_it_ends("TERM");
    let done = running.finish().exits(7);
    drop(pipe);
    // The object is printed although the engine's thread is inside a statement.
    assert_eq!(done.counts(["received", "applied", "exit_code"]), [1, 0, 7]);
    assert!(done.json()["error"].as_str().unwrap().contains("second signal"), "{}", done.stdout);
    assert_eq!(ledger(&place), 0);
    assert_eq!(crate::wallet::number(&place, "SELECT count(*) FROM handstamp_inbox"), 0);
}

#[test]
fn what_outlasts_shutdown_timeout_is_rolled_back_and_exits_7() {
    let place = endless_source(Some(ENDLESS));
    let toml = place.read("pipe.toml");
    place.write(
        "pipe.toml",
        &toml.replace(
            "[source]",
            "[consumer]\nhandler_timeout = \"60s\"\nshutdown_timeout = \"200ms\"\n[source]",
        ),
    );
    let (running, pipe) = start(&place, &[]);
    assert!(crate::common::wait_for(|| place.path("wallet.db").exists() && is_busy_for_long(&place)));
    running.signal("TERM");
    running.finish().exits(7);
    drop(pipe);
    assert_eq!(ledger(&place), 0);
}
