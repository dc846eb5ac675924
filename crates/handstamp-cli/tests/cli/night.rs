//! A night with consumers at work on a real Kafka: what fails is one group, its cause is mended, it is sent back at a
//! rate, and each message is applied once, also where every consumer is killed in the middle of it. On both stores.

#![allow(clippy::print_stdout, reason = "a rate is a figure for people and no promise")]

use crate::answers::Wallet;
use crate::common::{Running, wait_for};
use crate::kafka_postgres::{psql, unique, variable};
use crate::server_refusals;
use serde_json::Value;
use std::process::Command;
use std::time::Instant;

/// Reads beside writers without taking a lock.
const READ_SQLITE: &str = "import sqlite3, sys; \
    print(sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True, timeout=30).execute(sys.argv[2]).fetchone()[0])";

/// What is good from the start.
const GOOD: u64 = 200;

/// A topic with `GOOD` credits, and debits that no account can bear.
struct Night {
    wallet: Wallet,
    /// On Postgres.
    database: Option<server_refusals::Wallet>,
    debits: u64,
    attempts: u64,
}

impl Night {
    fn on_sqlite(debits: u64, attempts: u64) -> Self {
        Self::begin(Wallet::on_sqlite(), None, debits, attempts)
    }

    fn on_postgres(debits: u64, attempts: u64) -> Self {
        let (wallet, guard) = Wallet::on_postgres();
        Self::begin(wallet, Some(guard), debits, attempts)
    }

    fn begin(wallet: Wallet, database: Option<server_refusals::Wallet>, debits: u64, attempts: u64) -> Self {
        let toml = wallet.place.read(wallet.file);
        let (head, rest) = toml.split_once("[source]").unwrap();
        let (_, rest) = rest.split_once("[identity]").unwrap();
        let topic = unique();
        let source = format!(
            "[source]\ntype = \"kafka\"\nbrokers = \"{}\"\ntopics = [\"{topic}\"]\ngroup = \"{topic}\"\n\
             [source.options]\n\"session.timeout.ms\" = \"1500\"\n\"heartbeat.interval.ms\" = \"300\"\n",
            variable("HANDSTAMP_TEST_KAFKA")
        );
        let retry = format!(
            "immediate = 1\nbackoff_base = \"50ms\"\nbackoff_cap = \"100ms\"\nmax_attempts = {attempts}"
        );
        let rest = rest.replacen("max_attempts = 2", &retry, 1);
        wallet.place.write("night.toml", &format!("{head}{source}[identity]{rest}"));
        // Credits to five accounts, debits of five others that have nothing.
        let line = |id: String, account: u64, amount: &str| {
            format!("{{\"event_id\": \"{id}\", \"account_id\": {account}, \"amount\": {amount}}}\n")
        };
        let credits = (0..GOOD).map(|n| line(format!("credit-{n}"), 1 + n % 5, "1"));
        let lines: String =
            (0..debits).map(|n| line(format!("debit-{n}"), 6 + n % 5, "-1")).chain(credits).collect();
        wallet.place.write("lines.jsonl", &lines);
        let words =
            ["publish", "night.toml", "--input", "lines.jsonl", "--create-topic", "--partitions", "2"];
        wallet.place.quiet(&words).exits(0);
        Self { wallet, database, debits, attempts }
    }

    /// Two consumers; the first makes the tables that are missing.
    fn consumers(&self) -> Vec<Running> {
        let mut first = self.wallet.place.start("info", &["run", "night.toml", "--migrate", "--json"]);
        first.says("running");
        vec![first, self.wallet.place.start("info", &["run", "night.toml", "--json"])]
    }

    fn number(&self, sql: &str) -> u64 {
        let sql = sql.replace("TABLES", self.wallet.tables);
        if let Some(database) = &self.database {
            return psql(&database.database, &sql).parse().unwrap();
        }
        let path = self.wallet.place.path("wallet.db");
        let read = Command::new("python3").args(["-c", READ_SQLITE]).arg(path).arg(&sql).output().unwrap();
        assert!(read.status.success(), "{sql}: {}", String::from_utf8_lossy(&read.stderr));
        String::from_utf8(read.stdout).unwrap().trim().parse().unwrap()
    }

    fn ledger(&self) -> u64 {
        self.number("SELECT count(*) FROM ledger")
    }

    fn dead(&self) -> u64 {
        self.number("SELECT count(*) FROM TABLESdead_letters")
    }

    /// Failed attempts; a death with a message alone is none.
    fn failed_attempts(&self) -> u64 {
        self.number("SELECT count(*) FROM TABLESattempts WHERE class <> 'crashed'")
    }

    /// Consumers until all that is bad is dead; answers its only group.
    fn fail(&self) -> (Vec<Running>, Value) {
        let consumers = self.consumers();
        assert!(wait_for(|| self.dead() == self.debits && self.ledger() == GOOD), "{} dead", self.dead());
        assert_eq!(self.failed_attempts(), self.debits * self.attempts);
        let groups = self.wallet.place.quiet(&["dlq", "groups", "night.toml", "--json"]).exits(0).json();
        let groups = groups["groups"].as_array().unwrap();
        assert_eq!(groups.len(), 1, "one cause is one line: {groups:?}");
        assert_eq!(groups[0]["count"], self.debits);
        let reason = groups[0]["shape"].as_str().unwrap();
        assert!(reason.contains("constraint"), "{reason}");
        (consumers, groups[0].clone())
    }

    /// The day's deposits, booked too late.
    fn mend(&self) {
        self.wallet.sql("UPDATE accounts SET balance = balance + 100000 WHERE id > 5");
    }

    fn redrive(&self, group: &str, rate: &str) -> Running {
        let words = ["dlq", "redrive", "night.toml", "--group", group, "--rate", rate];
        let who = ["--by", "night shift", "--why", "deposits were late", "--json"];
        self.wallet.place.start("off", &[&words[..], &who].concat())
    }

    /// Everything is applied once, nothing waits, every attempt and every message that was sent back is on record.
    fn assert_once(&self) {
        let all = GOOD + self.debits;
        assert_eq!((self.ledger(), self.number("SELECT count(DISTINCT event_id) FROM ledger")), (all, all));
        let [credits, debits] =
            ["<=", ">"].map(|of| self.number(&format!("SELECT sum(balance) FROM accounts WHERE id {of} 5")));
        assert_eq!((credits, debits), (GOOD, 500_000 - self.debits));
        for (sql, expected) in [
            ("SELECT count(*) FROM TABLESdead_letters", 0),
            ("SELECT count(*) FROM TABLESparked", 0),
            ("SELECT count(*) FROM TABLESinbox WHERE state = 'a'", all),
            ("SELECT count(*) FROM TABLESaudit WHERE done_by = 'night shift'", self.debits),
            ("SELECT count(DISTINCT dedup) FROM TABLESaudit WHERE action = 'redrive'", self.debits),
        ] {
            assert_eq!(self.number(sql), expected, "{sql}");
        }
        assert_eq!(self.failed_attempts(), self.debits * self.attempts, "no attempt is lost or added");
    }
}

fn stop(consumers: Vec<Running>) {
    consumers.iter().for_each(|consumer| consumer.signal("TERM"));
    for consumer in consumers {
        consumer.finish().exits(0);
    }
}

/// An operator's night. All consumers are killed while what was sent back is being applied and more is sent; the
/// operator stops, and goes on with the rest when nobody is alive.
fn mended_and_sent_back(night: &Night) {
    let (consumers, group) = night.fail();
    let (name, example) = (group["group"].as_str().unwrap(), group["example"].as_str().unwrap());
    night.mend();
    let slow = night.redrive(name, "20/s");
    assert!(wait_for(|| night.ledger() >= GOOD + 30), "{} applied", night.ledger());
    for mut consumer in consumers {
        consumer.signal_until_it_ends("KILL");
        assert_eq!(consumer.finish().code, None, "it was killed");
    }
    let applied = night.ledger() - GOOD;
    slow.signal("TERM");
    let first = slow.finish().exits(7).json();
    let sent = first["done"].as_u64().unwrap();
    assert!(applied <= sent && sent < night.debits, "in the middle: {applied} applied, {sent} sent back");
    assert_eq!(night.dead(), night.debits - sent, "what was not sent back is there");
    let rest = night.redrive(name, "500/s").finish().exits(0).json();
    assert_eq!((&rest["done"], &rest["stayed"]), (&(night.debits - sent).into(), &0.into()), "{rest}");
    // With nobody alive everything is there: applied, or parked with its attempts.
    assert_eq!(night.number("SELECT count(*) FROM TABLESparked"), night.debits - applied);
    assert_eq!(night.failed_attempts(), night.debits * night.attempts);

    let consumers = night.consumers();
    assert!(wait_for(|| night.ledger() >= GOOD + night.debits), "{} applied", night.ledger());
    stop(consumers);
    night.assert_once();
    let shown = night.wallet.place.quiet(&["dlq", "show", "night.toml", example, "--json"]).exits(0).json();
    let failures = shown["failures"].as_array().unwrap();
    let failed = failures.iter().filter(|failure| failure["class"] != "crashed").count();
    assert_eq!(failed as u64, night.attempts, "{shown}");
    assert_eq!(shown["audit"][0]["why"], "deposits were late", "{shown}");
}

fn ten_thousand_at_500_a_second(night: &Night, store: &str) {
    let (consumers, group) = night.fail();
    night.mend();
    let began = Instant::now();
    let done = night.redrive(group["group"].as_str().unwrap(), "500/s").finish().exits(0).json();
    let sent_s = began.elapsed().as_secs_f64();
    assert_eq!((&done["done"], &done["stayed"]), (&night.debits.into(), &0.into()), "{done}");
    assert!(wait_for(|| night.ledger() >= GOOD + night.debits), "{} applied", night.ledger());
    let applied_s = began.elapsed().as_secs_f64();
    stop(consumers);
    night.assert_once();
    let debits = u32::try_from(night.debits).unwrap();
    println!(
        "{store}: {debits} sent back in {sent_s:.1} s, {:.0}/s; the last was applied after {applied_s:.1} s",
        f64::from(debits) / sent_s
    );
}

/// A file of SQLite.
mod sqlite {
    use super::Night;

    #[test]
    fn a_night_with_every_consumer_killed_applies_each_once() {
        super::mended_and_sent_back(&Night::on_sqlite(400, 3));
    }

    #[test]
    fn ten_thousand_are_sent_back_at_500_a_second() {
        super::ten_thousand_at_500_a_second(&Night::on_sqlite(10_000, 1), "SQLite");
    }
}

mod postgres {
    use super::Night;

    #[test]
    fn a_night_with_every_consumer_killed_applies_each_once() {
        super::mended_and_sent_back(&Night::on_postgres(400, 3));
    }

    #[test]
    fn ten_thousand_are_sent_back_at_500_a_second() {
        super::ten_thousand_at_500_a_second(&Night::on_postgres(10_000, 1), "Postgres");
    }
}
