//! A file read into Postgres: the position lies beside the pipeline and not in the database, so the two
//! can part ways. Whatever becomes of either, every credit is applied once.

use crate::common::{Place, wait_for};
use crate::kafka_postgres::{psql, unique, url};
use std::path::PathBuf;

/// The wallet's file in a database of its own.
struct Wallet {
    place: Place,
    database: String,
}

const NAMES: [&str; 3] = ["received", "applied", "duplicate"];
const UNKNOWN: &str = "the store does not know the line";

/// The wallet's example with its file, in a new database: `wallet.toml`.
pub(crate) fn on_postgres(database: &str) -> Place {
    psql("", &format!("CREATE DATABASE {database}"));
    let place = Place::wallet().env("DATABASE_URL", &url(database, None));
    let toml = place.read("file.toml");
    let (before, store) = toml.split_once("[store]").unwrap();
    let (_, effects) = store.split_once("[[effect]]").unwrap();
    let store = "type = \"postgres\"\nurl = \"${DATABASE_URL}\"\nsetup = \"schema.postgres.sql\"\n";
    place.write("wallet.toml", &format!("{before}[store]\n{store}\n[[effect]]{effects}"));
    place
}

impl Wallet {
    /// The example's file on Postgres, with so many credits in it.
    fn new(credits: u32) -> Self {
        let database = unique();
        let place = on_postgres(&database);
        place.write("credits.jsonl", "");
        let wallet = Self { place, database };
        wallet.append(credits);
        wallet.place.run(&["migrate", "wallet.toml"]).exits(0);
        wallet
    }

    fn append(&self, credits: u32) {
        let count = credits.to_string();
        self.place
            .quiet(&["publish", "--out", "credits.jsonl", "--sample", "credits", "--count", &count])
            .exits(0);
    }

    /// Runs to the end of the file; received, applied and duplicate, and what it said.
    #[track_caller]
    fn run(&self) -> ([u64; 3], String) {
        let done = self.place.run_at("info", &["run", "wallet.toml", "--json"]).exits(0);
        assert_eq!(done.counts(["dead_letter_rows", "pending"]), [0, 0]);
        (done.counts(NAMES), done.stderr)
    }

    fn number(&self, sql: &str) -> u64 {
        psql(&self.database, sql).parse().unwrap()
    }

    #[track_caller]
    fn assert_once(&self, credits: u64) {
        let seen = ["count(*)", "count(DISTINCT event_id)", "coalesce(sum(amount), 0)"]
            .map(|what| self.number(&format!("SELECT {what} FROM ledger")));
        assert_eq!(seen[..2], [credits, credits]);
        assert_eq!(self.number("SELECT sum(balance) FROM accounts"), seen[2]);
    }

    fn position(&self) -> PathBuf {
        let folder = std::fs::read_dir(self.place.path("")).unwrap().map(|entry| entry.unwrap().path());
        let mut found = folder.filter(|path| path.extension().is_some_and(|e| e == "position"));
        found.next().expect("a position beside the pipeline")
    }
}

impl Drop for Wallet {
    fn drop(&mut self) {
        psql("", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database));
    }
}

/// Killed by progress in the middle of a transaction, again and again: what was committed and not settled
/// comes again, and the position is never ahead of the database.
#[test]
fn kills_between_commit_and_settle_cost_only_duplicates() {
    let wallet = Wallet::new(120);
    let toml = wallet.place.read("wallet.toml");
    // A slow transaction for each line: the position, written five times a second, lags behind.
    wallet.place.write(
        "slow.toml",
        &toml.replacen("[source]", "[consumer]\nbatch_max = 1\n\n[source]", 1).replacen(
            "[[effect]]",
            "[[effect]]\nsql = \"SELECT pg_sleep(0.01)\"\n\n[[effect]]",
            1,
        ),
    );
    let mut duplicates = 0;
    for kill in 1..=4 {
        let running = wallet.place.start("info", &["run", "slow.toml"]);
        let open = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND backend_xid IS NOT NULL",
            wallet.database
        );
        assert!(wait_for(|| wallet.number("SELECT count(*) FROM ledger") >= kill * 20));
        assert!(wait_for(|| wallet.number(&open) == 1));
        running.signal("KILL");
        let done = running.finish();
        assert_eq!(done.code, None, "it died");
        duplicates += done.stderr.matches("skipped duplicate").count();
    }
    let before = wallet.number("SELECT count(*) FROM ledger");
    let (counts, said) = wallet.run();
    duplicates += said.matches("skipped duplicate").count();
    assert_eq!(counts[1], 120 - before);
    assert!(duplicates >= 1, "nothing was committed and not settled: this proves nothing");
    assert!(!said.contains(UNKNOWN), "{said}");
    wallet.assert_once(120);
}

#[test]
fn a_lost_or_an_older_position_costs_only_duplicates() {
    let wallet = Wallet::new(40);
    assert_eq!(wallet.run().0, [40, 40, 0]);
    let older = std::fs::read(wallet.position()).unwrap();
    wallet.append(10);
    assert_eq!(wallet.run().0, [10, 10, 0]);
    // Older than the database, as after a kill before it was written, or from a backup.
    std::fs::write(wallet.position(), older).unwrap();
    let (counts, said) = wallet.run();
    assert_eq!(counts, [10, 0, 10]);
    assert!(!said.contains(UNKNOWN), "{said}");
    std::fs::remove_file(wallet.position()).unwrap();
    assert_eq!(wallet.run().0, [50, 0, 50]);
    assert_eq!(wallet.run().0, [0, 0, 0]);
    wallet.assert_once(50);
}

#[test]
fn an_empty_database_beside_a_position_gets_everything_and_another_state_what_it_misses() {
    let wallet = Wallet::new(40);
    assert_eq!(wallet.run().0, [40, 40, 0]);
    // A database as it was before the last ten.
    let backup = format!("{}_backup", wallet.database);
    psql("", &format!("CREATE DATABASE {backup} TEMPLATE {}", wallet.database));
    wallet.append(10);
    assert_eq!(wallet.run().0, [10, 10, 0]);
    let replace_by = |sql: &str| {
        psql("", &format!("DROP DATABASE {} WITH (FORCE)", wallet.database));
        psql("", sql);
    };
    replace_by(&format!("ALTER DATABASE {backup} RENAME TO {}", wallet.database));
    let (counts, said) = wallet.run();
    assert_eq!(counts, [50, 10, 40]);
    assert_eq!(said.matches(UNKNOWN).count(), 1, "{said}");
    wallet.assert_once(50);
    // And one that knows nothing.
    replace_by(&format!("CREATE DATABASE {}", wallet.database));
    wallet.place.run(&["migrate", "wallet.toml"]).exits(0);
    let (counts, said) = wallet.run();
    assert_eq!(counts, [50, 50, 0]);
    assert_eq!(said.matches(UNKNOWN).count(), 1, "{said}");
    wallet.assert_once(50);
    // The position is this database's now.
    assert_eq!(wallet.run().0, [0, 0, 0]);
}

/// The input may lie where nobody may write: position and lock go beside the store's file, or beside the
/// pipeline where the store is a server.
#[test]
fn nothing_is_written_beside_the_input() {
    let wallet = Wallet::new(3);
    let place = &wallet.place;
    for folder in ["feed", "bank"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    std::fs::rename(place.path("credits.jsonl"), place.path("feed/credits.jsonl")).unwrap();
    for (pipeline, beside) in [("wallet.toml", ""), ("file.toml", "bank")] {
        let toml = place.read(pipeline).replace("credits.jsonl", "feed/credits.jsonl");
        place.write(pipeline, &toml.replace("wallet.db", "bank/wallet.db"));
        let done = place.run(&["run", pipeline, "--json"]).exits(0);
        assert_eq!(done.counts(NAMES), [3, 3, 0], "{pipeline}");
        let names = |folder: &str| -> Vec<String> {
            let entries = std::fs::read_dir(place.path(folder)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        assert_eq!(names("feed"), ["credits.jsonl"], "{pipeline}");
        let kept = names(beside).iter().filter(|name| name.ends_with(".position")).count();
        assert_eq!(kept, 1, "{pipeline}: {:?}", names(beside));
    }
}
