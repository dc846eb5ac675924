//! What a scraper and a prober are told of a run, on a file and SQLite.

use crate::common::{CANARY, Done, Place, Running, root};
use crate::scrape::{Scrape, address_of, get, until};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const ANY_PORT: [&str; 2] = ["--watch", "127.0.0.1:0"];

/// Labels that a series has.
type Has = &'static [(&'static str, &'static str)];

/// The counters of the report, and where they stand among the metrics.
const COUNTERS: [(&str, &str, Has); 23] = [
    ("received", "handstamp_messages_received_total", &[]),
    ("applied", "handstamp_messages_total", &[("outcome", "applied")]),
    ("duplicate", "handstamp_messages_total", &[("outcome", "duplicate")]),
    ("id_reused", "handstamp_messages_total", &[("outcome", "id_reused")]),
    ("stale", "handstamp_messages_total", &[("outcome", "stale")]),
    ("unmatched", "handstamp_messages_total", &[("outcome", "unmatched")]),
    ("dead_lettered", "handstamp_messages_total", &[("outcome", "dead_lettered")]),
    ("parked", "handstamp_messages_total", &[("outcome", "parked")]),
    ("released", "handstamp_messages_total", &[("outcome", "released")]),
    ("pending", "handstamp_messages_pending", &[]),
    ("attempts_failed", "handstamp_attempts_failed_total", &[]),
    ("commits", "handstamp_commits_total", &[]),
    ("reruns", "handstamp_reruns_total", &[]),
    ("dead_letter_rows", "handstamp_dead_letter_rows_total", &[]),
    ("dead_letter_copies", "handstamp_dead_letter_copies_total", &[("result", "taken")]),
    ("dead_letter_copies_failed", "handstamp_dead_letter_copies_total", &[("result", "refused")]),
    ("resumed", "handstamp_resumed_messages_taken_total", &[]),
    ("resumed_applied", "handstamp_resumed_messages_total", &[("outcome", "applied")]),
    ("resumed_parked_again", "handstamp_resumed_messages_total", &[("outcome", "parked_again")]),
    ("resumed_dead", "handstamp_resumed_messages_total", &[("outcome", "dead")]),
    ("resumed_released", "handstamp_resumed_messages_total", &[("outcome", "released")]),
    ("breaker_opened", "handstamp_breaker_opened_total", &[]),
    ("crashes_found", "handstamp_crashes_found_total", &[]),
];

/// Every counter of the last look is that of the final report, and they add up.
pub(crate) fn same_as_the_report(scrape: &Scrape, done: &Done) {
    for (name, metric, labels) in COUNTERS {
        assert_eq!(scrape.count(metric, labels), done.counts([name])[0], "{name}: {scrape:?}");
    }
    let received = scrape.count("handstamp_messages_received_total", &[]);
    assert_eq!(received, scrape.count("handstamp_messages_total", &[]), "every delivery under one outcome");
    assert_eq!(scrape.count("handstamp_messages_pending", &[]), 0);
    let resumed = scrape.count("handstamp_resumed_messages_total", &[]);
    assert_eq!(scrape.count("handstamp_resumed_messages_taken_total", &[]), resumed);
    // Each committed transaction was measured once.
    let commits = scrape.count("handstamp_commits_total", &[]);
    for histogram in ["handstamp_batch_messages_count", "handstamp_commit_duration_seconds_count"] {
        assert_eq!(scrape.count(histogram, &[]), commits, "{histogram}");
    }
}

/// Waits for a look at which so much came and all of it has ended, with everything that the store counts.
pub(crate) fn once_done(address: std::net::SocketAddr, received: u64) -> Scrape {
    let mut last = None;
    let done = crate::common::wait_for(|| {
        let scrape = Scrape::of(address);
        let came = scrape.count("handstamp_messages_received_total", &[]);
        let ended = scrape.count("handstamp_messages_pending", &[]) == 0;
        let counted = scrape.value("handstamp_store_dead_letters", &[]).is_some();
        last = Some(scrape);
        came == received && ended && counted
    });
    assert!(done, "{last:?}");
    last.unwrap()
}

/// The wallet's file through a FIFO, which stays open as long as the writer: a run that goes on.
struct Open {
    place: Place,
    writer: File,
    running: Running,
}

impl Open {
    fn start(toml: &str, more: &[&str]) -> Self {
        let place = Place::wallet();
        place.write("open.toml", &toml.replace("path = \"credits.jsonl\"", "path = \"lines\""));
        let fifo = place.path("lines");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let args = [&["run", "open.toml", "--json"], more, &ANY_PORT].concat();
        let running = place.start("info", &args);
        // Both ends at once: neither side waits for the other.
        let writer = File::options().read(true).write(true).open(&fifo).unwrap();
        Self { place, writer, running }
    }
}

fn wallet() -> String {
    std::fs::read_to_string(root().join("examples/wallet/file.toml")).unwrap()
}

#[test]
fn what_is_exposed_equals_the_report_and_every_metric_is_there() {
    let mut open = Open::start(&wallet(), &[]);
    let address = address_of(&mut open.running);
    let lines = open.place.read("credits.jsonl");
    open.writer.write_all(lines.as_bytes()).unwrap();
    let received = lines.lines().filter(|line| !line.is_empty()).count() as u64;
    let scrape = once_done(address, received);
    // A file has no lag to tell of.
    assert_eq!(scrape.missing(), ["handstamp_lag_messages"]);
    until(address, "/readyz", 200, "ready");
    until(address, "/healthz", 200, "ok");
    assert_eq!(scrape.value("handstamp_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), Some(1.0));
    assert!(scrape.count("handstamp_handler_duration_seconds_count", &[("consumer", "wallet")]) > 0);
    let scrape = Scrape::of(address);
    drop(open.writer);
    let done = open.running.finish().exits(0);
    assert!(done.counts(["applied"])[0] > 5);
    same_as_the_report(&scrape, &done);
    assert!(get(address, "/healthz").is_none(), "nobody answers behind the run");
}

/// What waits in the store is told with its age, and a consumer that may park no more is not ready.
#[test]
fn a_consumer_that_is_full_says_so() {
    let toml = wallet()
        .replace("max_attempts = 2 ", "backoff_base = \"365days\"\nbackoff_cap = \"365days\" ")
        .replace("[source]", "[consumer]\nparked_max = 2\nbatch_max = 1\n[source]");
    let mut open = Open::start(&toml, &[]);
    let address = address_of(&mut open.running);
    let bad = |id| format!("{{\"event_id\": \"{id}\", \"account_id\": 777, \"amount\": 3}}\n");
    open.writer.write_all((bad("a") + &bad("b") + &bad("c")).as_bytes()).unwrap();
    until(address, "/readyz", 503, "parked_max: ");
    until(address, "/healthz", 200, "ok");
    let known =
        || Scrape::of(address).value("handstamp_store_parked_messages", &[]).is_some_and(|n| n >= 2.0);
    assert!(crate::common::wait_for(known));
    let scrape = Scrape::of(address);
    assert_eq!(scrape.count("handstamp_parked_max_messages", &[]), 2);
    assert_eq!(scrape.count("handstamp_ready", &[]), 0);
    assert_eq!(scrape.count("handstamp_unready", &[("reason", "parked_max")]), 1);
    assert_eq!(scrape.count("handstamp_unready", &[]), 1, "and nothing else");
    assert!(scrape.value("handstamp_store_parked_oldest_age_seconds", &[]).unwrap() > 0.0);
    open.running.signal("TERM");
    open.running.finish().exits(0);
}

/// Neither who sends nothing nor who sends too much keeps a prober waiting for long, nor the run at all.
#[test]
fn bad_clients_harm_nobody() {
    let mut open = Open::start(&wallet(), &[]);
    let address = address_of(&mut open.running);
    let idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let lines = open.place.read("credits.jsonl");
    open.writer.write_all(lines.as_bytes()).unwrap();
    until(address, "/healthz", 200, "ok");
    let mut talker = TcpStream::connect(address).unwrap();
    talker.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // Ends with an answer or without one, and never by reading all of it.
    let header = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(1 << 16));
    let mut answer = String::new();
    if talker.write_all(header.as_bytes()).is_ok() {
        let _ = talker.read_to_string(&mut answer);
    }
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "405"),
        ("GET /etc/passwd HTTP/1.1\r\nhost: a\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
    }
    drop(idle);
    drop(open.writer);
    let done = open.running.finish().exits(0);
    assert!(done.counts(["applied"])[0] > 5);
}

#[test]
fn an_address_that_is_taken_is_said_before_anything_is_consumed() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = Place::wallet();
    let done = place.run_at("info", &["run", "file.toml", "--watch", &address]).exits(2);
    assert!(done.stderr.contains(&format!("cannot listen on {address}")), "{}", done.stderr);
    assert!(!place.path("wallet.db").exists());
}

#[test]
fn the_file_says_where_and_check_warns_of_what_others_can_reach() {
    let place = Place::wallet();
    let with = |listen: &str| place.write("w.toml", &format!("{}\n[watch]\nlisten = {listen}\n", wallet()));
    with("\"127.0.0.1:0\"");
    let done = place.run_at("info", &["run", "w.toml", "--json"]).exits(0);
    assert!(done.stderr.contains("answering http://127.0.0.1:"), "{}", done.stderr);
    let done = place.quiet(&["check", "w.toml"]).exits(0);
    assert!(done.stdout.contains("watch: 127.0.0.1:0 answers this machine alone"), "{}", done.stdout);
    let printed = place.quiet(&["check", "w.toml", "--print"]).exits(0).stdout;
    assert!(printed.contains("[watch]\nlisten = \"127.0.0.1:0\"\n"), "{printed}");
    with("\"0.0.0.0:9464\"");
    let done = place.quiet(&["check", "w.toml", "--json"]).exits(0);
    let said = done.stdout;
    assert!(said.contains("watch.listen: 0.0.0.0:9464 is open to other machines"), "{said}");
    for listen in ["\"9464\"", "\"localhost:9464\"", "9464"] {
        with(listen);
        let done = place.quiet(&["check", "w.toml"]).exits(2);
        assert!(done.stderr.contains("watch.listen: expected"), "{listen}: {}", done.stderr);
    }
    let done = place.quiet(&["run", "file.toml", "--watch", "localhost"]).exits(2);
    assert!(done.said().contains("--watch"), "{}", done.stderr);
}

/// Whatever is written to standard error is one object a line, and no secret is in it.
#[test]
fn a_log_of_objects_is_one_object_a_line_also_where_something_fails() {
    let place = Place::wallet();
    let toml = wallet().split_once("[store]").unwrap().0.to_owned();
    let store = "[store]\ntype = \"postgres\"\nurl = \"postgres://u:${CANARY}@127.0.0.1:1/db\"\n";
    place
        .write("away.toml", &format!("{toml}{store}[[effect]]\nsql = \"UPDATE accounts SET balance = 1\"\n"));
    for (args, code) in [
        (&["run", "file.toml", "--log-format", "json"][..], 0),
        (&["run", "file.toml", "--log-format", "json"], 0),
        #[cfg(feature = "postgres")]
        (&["run", "away.toml", "--fail-fast", "--log-format", "json"], 3),
        (&["run", "none.toml", "--log-format", "json"], 2),
    ] {
        let done = place.run_at("trace", args).exits(code);
        assert!(!done.stderr.contains(CANARY));
        assert!(done.stderr.lines().count() >= 1, "{args:?}");
        for line in done.stderr.lines() {
            let object: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{args:?}: {error}: {line}"));
            let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["fields", "level", "message", "target", "time"], "{line}");
            assert!(["TRACE", "DEBUG", "INFO", "WARN", "ERROR"].contains(&object["level"].as_str().unwrap()));
            assert!(
                object["time"].as_str().unwrap().ends_with('Z') && object["fields"].is_object(),
                "{line}"
            );
        }
        let errors = done.stderr.lines().filter(|line| line.contains("\"level\":\"ERROR\"")).count();
        assert_eq!(errors > 0, code != 0, "{args:?}: {}", done.stderr);
    }
    let place = place.env("HANDSTAMP_LOG_FORMAT", "json");
    let done = place.run_at("info", &["run", "file.toml"]).exits(0);
    assert!(done.stderr.lines().all(|line| line.starts_with("{\"time\":\"")), "{}", done.stderr);
    let done = place.run_at("info", &["run", "file.toml", "--log-format", "xml"]).exits(2);
    assert!(done.stderr.contains("xml"), "{}", done.stderr);
}
