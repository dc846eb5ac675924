//! Ids of a table that was used before: taken in, and no message doubled or lost on the way.

use crate::common::Place;
use crate::wallet::number;

const ID: &str = "0193f5a0-7c3e-7b1a-8000-0123456789ab";

#[test]
fn ids_are_taken_once_and_lines_without_one_are_named() {
    let place = Place::wallet();
    place.run(&["migrate", "file.toml"]).exits(0);
    let lines = format!("message_id,at\n{ID},2026-01-31\n\"a,b\"\norder-17\r\norder-17\n\n   \n\"open\n");
    place.write("ids.csv", &lines);
    let args = ["import-ids", "file.toml", "--from", "ids.csv", "--header", "--json"];
    let would = place.quiet(&[&args[..], &["--dry-run"]].concat()).exits(5).json();
    assert_eq!((&would["new"], &would["known"], &would["unusable"]), (&3.into(), &0.into(), &2.into()));
    assert_eq!(number(&place, "SELECT count(*) FROM handstamp_inbox"), 0);
    assert_eq!(number(&place, "SELECT count(*) FROM handstamp_consumers WHERE name = 'wallet'"), 0);
    for (new, known) in [(3, 0), (0, 3)] {
        let taken = place.quiet(&[&args[..], &["--seen-at", "10d"]].concat()).exits(5).json();
        assert_eq!((&taken["new"], &taken["known"]), (&new.into(), &known.into()));
        let named = taken["unusable_lines"].as_array().unwrap();
        assert!(named[0].as_str().unwrap().starts_with("ids.csv:7: "), "{named:?}");
    }
    for id in [ID, "a,b", "order-17"] {
        let row = place.quiet(&["inbox", "get", "file.toml", id, "--json"]).exits(0).json();
        assert_eq!((&row["state"], &row["digest"]), (&"applied".into(), &serde_json::Value::Null), "{id}");
    }
    let old = "SELECT count(*) FROM handstamp_inbox WHERE seen_at < unixepoch() - 1577836800 - 9 * 86400";
    assert_eq!(number(&place, old), 3);
    place.quiet(&["import-ids", "file.toml", "--from", "nowhere.csv"]).exits(2);
}

#[test]
fn more_than_a_batch_and_what_is_known_then() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    let lines: String = (0..25_000).map(|n| format!("old-{n}\n")).collect();
    place.write("ids.csv", &lines);
    let taken = place.quiet(&["import-ids", "file.toml", "--from", "ids.csv"]).exits(0).stdout;
    assert_eq!(taken, "took 25,000 ids, 0 were known\n");
    place.write("ids.csv", &format!("{lines}new\n"));
    let taken = place.quiet(&["import-ids", "file.toml", "--from", "ids.csv"]).exits(0).stdout;
    assert_eq!(taken, "took 1 ids, 25,000 were known\n");
}

/// The steps of `docs/guides/adopting.md`.
#[cfg(all(feature = "kafka", feature = "postgres"))]
mod adopting {
    use super::Place;
    use crate::kafka_postgres::{psql, unique, url, variable};

    struct Databases(Vec<String>);

    impl Drop for Databases {
        fn drop(&mut self) {
            for name in &self.0 {
                psql("", &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
            }
        }
    }

    /// A wallet that reads this topic as this group into this database.
    fn wallet(database: &str, topic: &str, group: &str) -> Place {
        let place = Place::wallet()
            .env("DATABASE_URL", &url(database, None))
            .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
            .env("KAFKA_TOPIC", topic);
        let toml = place.read("kafka.toml").replace("group = \"wallet\"", &format!("group = \"{group}\""));
        place.write("kafka.toml", &toml);
        place
    }

    /// An old consumer has applied 40 of 60 messages and committed the offset behind 30; the group goes on.
    fn moves_over(imports: bool) -> (i64, i64, bool, [u64; 3]) {
        let names: Vec<String> = (0..3).map(|_| unique()).collect();
        let _databases = Databases(names.clone());
        names.iter().for_each(|name| drop(psql("", &format!("CREATE DATABASE {name}"))));
        let [ours, all, committed] = &names[..] else { panic!("three") };
        let (topic, group) = (ours, ours);
        // What the topic holds, in its order.
        let whole = wallet(all, topic, all);
        let publish = [
            "publish",
            "kafka.toml",
            "--sample",
            "credits",
            "--create-topic",
            "--partitions",
            "1",
            "--count",
            "60",
        ];
        whole.run(&publish).exits(0);
        whole.run(&["run", "kafka.toml", "--migrate", "--until-idle", "1s"]).exits(0);
        // The group's offset, committed behind 30 messages.
        let behind = wallet(committed, topic, group);
        behind.run(&["run", "kafka.toml", "--migrate", "--max-messages", "30"]).exits(0);
        // What the old consumer did, one transaction a message.
        let place = wallet(ours, topic, group);
        place.run(&["migrate", "kafka.toml"]).exits(0);
        psql(
            ours,
            "CREATE TABLE processed_messages (consumer text, message_id text, PRIMARY KEY (consumer, message_id))",
        );
        let rows = psql(
            all,
            "SELECT event_id || ',' || account_id || ',' || amount FROM ledger ORDER BY ctid LIMIT 40",
        );
        for row in rows.lines() {
            let [id, account, amount] = row.split(',').collect::<Vec<_>>()[..] else { panic!("{row}") };
            psql(ours, &format!(
                "BEGIN; INSERT INTO processed_messages VALUES ('old', '{id}');
                 UPDATE accounts SET balance = balance + {amount} WHERE id = {account};
                 INSERT INTO ledger (event_id, account_id, amount) VALUES ('{id}', {account}, {amount}); COMMIT"
            ));
        }
        if imports {
            let ids = psql(ours, "COPY (SELECT message_id FROM processed_messages) TO STDOUT (FORMAT csv)");
            place.write("ids.csv", &ids);
            let taken =
                place.quiet(&["import-ids", "kafka.toml", "--from", "ids.csv", "--json"]).exits(0).json();
            assert_eq!(taken["new"], 40);
        }
        let done = place.run(&["run", "kafka.toml", "--until-idle", "1s", "--json"]).exits(0);
        let counted = |sql: &str| psql(ours, sql).parse().unwrap();
        let balances = "SELECT md5(string_agg(id || ':' || balance, ',' ORDER BY id)) FROM accounts";
        (
            counted("SELECT count(*) FROM ledger"),
            counted("SELECT count(DISTINCT event_id) FROM ledger"),
            psql(ours, balances) == psql(all, balances),
            done.counts(["received", "applied", "duplicate"]),
        )
    }

    #[test]
    fn nothing_is_doubled_or_lost_when_the_ids_are_taken_in() {
        assert_eq!(moves_over(true), (60, 60, true, [30, 20, 10]));
    }

    #[test]
    fn without_them_the_overlap_is_doubled() {
        assert_eq!(moves_over(false), (70, 60, false, [30, 30, 0]));
    }
}
