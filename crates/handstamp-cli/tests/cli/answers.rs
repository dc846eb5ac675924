//! What operators are told, on both stores: what became of an id, which dead letters there are, what a migration
//! and a publication did.

use crate::common::{Done, Place};
use serde_json::Value;

/// Of the example: applied, and given up by a column's type.
const APPLIED: &str = "0193f5a0-7c01-7a5c-84d3-25160c5c7fd0";
const DEAD: &str = "0193f5a0-7c20-729e-899b-fd7f86734721";

/// Runs SQL beside the program.
pub(crate) type Sql = Box<dyn Fn(&Place, &str)>;

/// The wallet's file on a store, with what an administrator may do beside the program.
pub(crate) struct Wallet {
    pub(crate) place: Place,
    pub(crate) file: &'static str,
    pub(crate) tables: &'static str,
    sql: Sql,
}

impl Wallet {
    pub(crate) fn on_sqlite() -> Self {
        let sql = Box::new(|place: &Place, sql: &str| crate::wallet::write(place, sql));
        Self { place: Place::wallet(), file: "file.toml", tables: "handstamp_", sql }
    }

    /// With what keeps its database, which goes with it.
    #[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
    pub(crate) fn on_postgres() -> (Self, crate::server_refusals::Wallet) {
        let crate::server_refusals::Parts { place, database, guard } =
            crate::server_refusals::Wallet::new().into_parts();
        let sql = Box::new(move |_: &Place, sql: &str| drop(crate::kafka_postgres::psql(&database, sql)));
        (Self { place, file: "wallet.toml", tables: "handstamp.", sql }, guard)
    }

    /// The program with the pipeline's file put in for FILE.
    pub(crate) fn run(&self, log: &str, args: &[&str]) -> Done {
        let args: Vec<&str> =
            args.iter().map(|word| if *word == "FILE" { self.file } else { word }).collect();
        self.place.run_at(log, &args)
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.run("trace", args).exits(0).json()
    }

    /// Runs SQL beside the program; `TABLES` is what the names of ours begin with.
    pub(crate) fn sql(&self, sql: &str) {
        (self.sql)(&self.place, &sql.replace("TABLES", self.tables));
    }
}

/// Does the same on each store that this build has.
pub(crate) fn on_each_store(test: impl Fn(&Wallet)) {
    test(&Wallet::on_sqlite());
    #[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
    {
        let (wallet, _guard) = Wallet::on_postgres();
        test(&wallet);
    }
}

#[test]
fn an_id_that_was_given_up_says_why_where_and_when() {
    on_each_store(|wallet| {
        wallet.run("trace", &["run", "FILE"]).exits(0);
        let list = wallet.json(&["dlq", "list", "FILE", "--json"]);
        let letters = list["dead_letters"].as_array().unwrap();
        let letter = letters.iter().find(|letter| letter["id"] == DEAD).unwrap();
        let get = wallet.json(&["inbox", "get", "FILE", DEAD, "--json"]);
        assert_eq!((&get["state"], &get["dead_letter"]), (&"dead".into(), letter));
        for field in ["key", "class", "reason", "failed_at", "topic"] {
            assert!(!letter[field].as_str().unwrap().is_empty(), "{field} of {letter}");
        }
        let shown = wallet.run("off", &["inbox", "get", "FILE", DEAD]).exits(0).stdout;
        for (name, value) in letter.as_object().unwrap() {
            let value = match value {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            // How long the value was says `dlq list`.
            let said = shown.lines().any(|line| line.ends_with(&format!("  {value}")));
            assert!(said || name == "value_bytes", "{name} = {value:?} is not in\n{shown}");
        }
        let get = wallet.json(&["inbox", "get", "FILE", APPLIED, "--json"]);
        assert_eq!((&get["state"], &get["dead_letter"]), (&"applied".into(), &Value::Null));
        let shown = wallet.run("off", &["inbox", "get", "FILE", APPLIED]).exits(0).stdout;
        assert_eq!(shown.lines().count(), 3, "{shown}");
        // Removed by hand, nothing is left but that it was given up.
        wallet.sql("DELETE FROM TABLESdead_letters");
        let get = wallet.json(&["inbox", "get", "FILE", DEAD, "--json"]);
        assert_eq!((&get["state"], &get["dead_letter"]), (&"dead".into(), &Value::Null));
        let shown = wallet.run("off", &["inbox", "get", "FILE", DEAD]).exits(0).stdout;
        assert!(shown.contains("removed"), "{shown}");
    });
}

#[test]
fn a_list_names_each_id_or_says_that_there_is_none() {
    on_each_store(|wallet| {
        let long = "x".repeat(900);
        let more = format!("{{\"event_id\": \"{long}\", \"account_id\": 99, \"amount\": 1}}\n");
        wallet.place.write("credits.jsonl", &format!("{}{more}", wallet.place.read("credits.jsonl")));
        wallet.run("trace", &["run", "FILE"]).exits(0);
        let list = wallet.json(&["dlq", "list", "FILE", "--json"]);
        let letters = list["dead_letters"].as_array().unwrap();
        let table = wallet.run("off", &["dlq", "list", "FILE"]).exits(0).stdout;
        // Two lines each, below a header of two lines.
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2 * (letters.len() + 1));
        let header: Vec<&str> = lines[..2].iter().flat_map(|line| line.split_whitespace()).collect();
        assert_eq!(header, ["key", "class", "attempts", "origin", "id", "reason"]);
        let (mut named, mut unnamed) = (0, 0);
        for (row, letter) in lines[2..].chunks(2).zip(letters) {
            assert_eq!(row[0].split_whitespace().next(), letter["key"].as_str(), "{row:?}");
            let row = row[1];
            let id = row.split_whitespace().next().unwrap();
            match letter["id"].as_str() {
                Some(whole) if whole == long => assert_eq!(id, format!("{}…", &long[..39])),
                Some(whole) if !whole.contains(['\0', ' ']) => assert_eq!(id, whole, "{row}"),
                Some(_) => {}
                None => assert_eq!(id, "(none)", "{row}"),
            }
            *if letter["id"].is_null() { &mut unnamed } else { &mut named } += 1;
        }
        assert!(named >= 5 && unnamed >= 5, "{table}");
    });
}

/// More than two pages of one time, across the pages' ends.
#[test]
fn dead_letters_of_one_time_are_listed_in_the_order_of_their_source() {
    on_each_store(|wallet| {
        let bad: String = (1..=1200).map(|n| format!("{{\"no_id\": {n}}}\n")).collect();
        wallet.place.write("credits.jsonl", &bad);
        let run = wallet.run("off", &["run", "FILE", "--json"]).exits(0);
        assert_eq!(run.counts(["dead_lettered"]), [1200]);
        wallet.sql("UPDATE TABLESdead_letters SET failed_at_ms = 7");
        let in_order: Vec<u64> = (1..=1200).collect();
        let lines = |letters: &[Value]| -> Vec<u64> {
            letters.iter().map(|letter| letter["line"].as_u64().unwrap()).collect()
        };
        let list = wallet.json(&["dlq", "list", "FILE", "--json", "--limit", "1150"]);
        assert_eq!(lines(list["dead_letters"].as_array().unwrap()), in_order[..1150]);
        let export = wallet.run("off", &["dlq", "export", "FILE"]).exits(0).stdout;
        let letters: Vec<Value> = export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines(&letters), in_order);
        let table = wallet.run("off", &["dlq", "list", "FILE", "--limit", "1200"]).exits(0).stdout;
        let shown: Vec<bool> = table
            .lines()
            .skip(2)
            .step_by(2)
            .zip(1..)
            .map(|(row, n)| row.ends_with(&format!(" line {n}")))
            .collect();
        assert_eq!(shown, [true; 1200]);
        // The times come first.
        wallet.sql("UPDATE TABLESdead_letters SET failed_at_ms = 6 WHERE line > 1000");
        let list = wallet.json(&["dlq", "list", "FILE", "--json", "--limit", "201"]);
        let wanted: Vec<u64> = (1001..=1200).chain([1]).collect();
        assert_eq!(lines(list["dead_letters"].as_array().unwrap()), wanted);
    });
}

#[test]
fn a_migration_says_in_one_object_what_it_did() {
    let place = Place::wallet();
    let object = place.run(&["migrate", "file.toml", "--json"]).exits(0).json();
    let all = ["0001_inbox.sql", "0002_parked.sql", "0003_starts.sql", "0004_versions.sql", "0005_prune.sql"];
    assert_eq!(object["migrations"], serde_json::json!(all));
    assert_eq!(object["setup"], serde_json::json!({ "name": "schema.sqlite.sql", "run": true }));
    assert_eq!((&object["error"], &object["exit_code"]), (&Value::Null, &0.into()));
    assert!(object["store"].as_str().unwrap().ends_with("wallet.db"), "{object}");
    let again = place.run(&["migrate", "file.toml", "--json"]).exits(0).json();
    assert_eq!((&again["migrations"], &again["setup"]["run"]), (&serde_json::json!([]), &false.into()));
    let refused = place.quiet(&["migrate", "file.toml", "--json", "--grant-to", "someone"]).exits(2);
    let object = refused.json();
    assert_eq!((&object["exit_code"], &object["migrations"]), (&2.into(), &serde_json::json!([])));
    assert!(refused.stderr.contains(object["error"].as_str().unwrap()), "{object}");
    let both = place.quiet(&["migrate", "file.toml", "--json", "--show-sql"]).exits(2).json();
    assert_eq!((&both["exit_code"], &both["setup"]), (&2.into(), &Value::Null));
}

#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
#[test]
fn a_migration_of_a_database_says_so_too_and_knows_no_unknown_role() {
    let crate::server_refusals::Parts { place, database, guard: _guard } =
        crate::server_refusals::Wallet::new().into_parts();
    let role = format!("{database}_runner");
    let again = place.run(&["migrate", "wallet.toml", "--json", "--grant-to", &role]).exits(0).json();
    let nothing = serde_json::json!({ "name": "schema.postgres.sql", "run": false });
    assert_eq!((&again["migrations"], &again["setup"]), (&serde_json::json!([]), &nothing));
    assert_eq!(again["granted_to"], role);
    crate::kafka_postgres::psql(&database, "DROP SCHEMA handstamp CASCADE; DROP TABLE ledger, accounts");
    let first = place.run(&["migrate", "wallet.toml", "--json"]).exits(0).json();
    assert_eq!(
        (&first["migrations"], &first["setup"]["run"]),
        (&serde_json::json!(["1", "2", "3", "4", "5"]), &true.into())
    );
    let unknown = place.run_at("off", &["migrate", "wallet.toml", "--json", "--grant-to", "no_such_role"]);
    let object = unknown.json();
    assert_eq!(object["exit_code"], unknown.code.unwrap());
    assert_ne!(unknown.code, Some(0));
    assert!(object["error"].as_str().unwrap().contains("\"no_such_role\" does not exist"), "{object}");
    let hints = object["hints"].to_string();
    assert!(hints.contains("CREATE ROLE") && !hints.contains("SQL,"), "{hints}");
}

#[test]
fn a_publication_says_in_one_object_what_it_did() {
    let place = Place::wallet();
    let sample = ["publish", "--out", "out.jsonl", "--sample", "credits", "--count", "20", "--json"];
    let done = place.quiet(&[&sample[..], &["--duplicates", "0.1"]].concat()).exits(0);
    let object = done.json();
    assert_eq!(done.counts(["messages", "duplicates"]), [22, 2]);
    assert_eq!((&object["to"], &object["error"]), (&"out.jsonl".into(), &Value::Null));
    assert!(done.stderr.starts_with("published 22 messages"), "{}", done.stderr);
    let worth: u64 = place
        .read("out.jsonl")
        .lines()
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["amount"].as_u64().unwrap())
        .sum();
    assert_eq!(object["amount"], worth);
    let args = ["publish", "file.toml", "--input", "out.jsonl", "--json"];
    let object = place.quiet(&args).exits(0).json();
    assert_eq!((&object["messages"], &object["duplicates"]), (&22.into(), &Value::Null));
    for (args, code) in [
        (&["publish", "none.toml", "--sample", "credits"][..], 2),
        (&["publish", "--out", "none/out.jsonl", "--sample", "credits"], 2),
        (&["publish", "--out", "out.jsonl", "--input", "none.jsonl"], 2),
        (&["publish", "--sample", "credits"], 2),
    ] {
        let done = place.quiet(&[args, &["--json"]].concat()).exits(code);
        assert_eq!(done.stdout.lines().count(), 1, "{args:?}");
        let object = done.json();
        assert_eq!((&object["exit_code"], &object["messages"]), (&code.into(), &0.into()), "{args:?}");
        assert!(done.said().contains(object["error"].as_str().unwrap()), "{args:?}: {object}");
    }
}

/// What was published before the mistake is said.
#[test]
fn a_publication_that_stops_says_how_far_it_came() {
    let place = Place::new();
    let line = |n: usize| format!("{{\"event_id\": \"{n}\"}}\n");
    // A thousand lines go out at a time; the next one is longer than any may be.
    let mut lines: String = (0..1000).map(line).collect();
    lines.push_str(&"x".repeat((64 << 20) + 1));
    place.write("in.jsonl", &lines);
    let done = place.quiet(&["publish", "--out", "out.jsonl", "--input", "in.jsonl", "--json"]).exits(2);
    assert_eq!(done.counts(["messages"]), [1000]);
    assert_eq!(place.read("out.jsonl").lines().count(), 1000);
}

/// The duplicates of a run name the time at which their first delivery was seen, as people write it.
#[test]
fn a_skipped_duplicate_says_when_it_was_first_seen() {
    on_each_store(|wallet| {
        let run = wallet.run("info", &["run", "FILE"]).exits(0);
        let line = run.stderr.lines().find(|line| line.contains("skipped duplicate")).unwrap();
        let (_, rest) = line.split_once("first_seen=").unwrap();
        let time = rest.split_whitespace().next().unwrap();
        assert!(time.len() == 24 && time.starts_with("20") && time.ends_with(".000Z"), "{line}");
        assert!(!run.stderr.contains("first_seen_ms"), "{line}");
    });
}
