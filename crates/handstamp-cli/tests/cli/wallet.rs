//! The wallet example on a file and SQLite: what its README says, line by line.

use crate::common::Place;
use handstamp_core::{ConsumerName, Fingerprint, Store};
use handstamp_stores::sqlite::{SqliteOptions, SqliteStore, Tx};

/// A transaction on the wallet's tables beside the program.
fn in_transaction<T>(place: &Place, commit: bool, work: impl FnOnce(&Tx) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(SqliteOptions::new(place.path("wallet.db"))).await.unwrap();
        let name = ConsumerName::new("test-reader").unwrap();
        let key = store.register(&name, &Fingerprint("test".into()), true).await.unwrap();
        let (tx, _) = store.begin(&key, &[]).await.unwrap();
        let done = work(&tx);
        if commit { store.commit(tx).await } else { store.rollback(tx).await }.unwrap();
        done
    })
}

/// One number out of the wallet's tables, read beside the program.
pub(crate) fn number(place: &Place, sql: &str) -> i64 {
    in_transaction(place, false, |tx| tx.query_row(sql, [], |row| row.get(0)).unwrap())
}

/// Changes the wallet's tables beside the program.
pub(crate) fn write(place: &Place, sql: &str) {
    in_transaction(place, true, |tx| tx.execute_batch(sql).unwrap());
}

/// Whether another process is writing now.
pub(crate) fn is_busy(place: &Place) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut options = SqliteOptions::new(place.path("wallet.db"));
        options.migrate_new = false;
        options.lock_timeout = std::time::Duration::from_millis(20);
        let Ok(store) = SqliteStore::open(options).await else { return false };
        let name = ConsumerName::new("wallet").unwrap();
        let key = match store.register(&name, &Fingerprint("file".into()), false).await {
            Ok(key) => key,
            Err(error) => return error.kind == handstamp_core::StoreErrorKind::Conflict,
        };
        match store.begin(&key, &[]).await {
            Ok((tx, _)) => {
                store.rollback(tx).await.unwrap();
                false
            }
            Err(error) => error.kind == handstamp_core::StoreErrorKind::Conflict,
        }
    })
}

const NAMES: [&str; 5] = ["received", "applied", "duplicate", "id_reused", "dead_lettered"];

fn position(place: &Place) -> std::path::PathBuf {
    let folder = std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = folder.filter(|path| path.extension().is_some_and(|e| e == "position")).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn the_example_does_what_its_readme_says() {
    let place = Place::wallet();
    let done = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(done.counts(NAMES), [32, 13, 5, 1, 13]);
    assert_eq!(done.counts(["pending", "released", "dead_letter_rows"]), [0, 0, 14]);
    assert_eq!(done.json()["stopped"], "source_ended");
    assert_eq!(number(&place, "SELECT count(*) FROM ledger"), 13);
    assert_eq!(number(&place, "SELECT count(DISTINCT event_id) FROM ledger"), 13);
    assert_eq!(number(&place, "SELECT sum(balance) FROM accounts"), 391);
    assert_eq!(number(&place, "SELECT sum(amount) FROM ledger"), 391);

    // The README's table: line → class.
    let list = place.run(&["dlq", "list", "file.toml", "--json"]).exits(0).json();
    let mut classes: Vec<(u64, String)> = list["dead_letters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|letter| (letter["line"].as_u64().unwrap(), letter["class"].as_str().unwrap().to_owned()))
        .collect();
    classes.sort();
    let readme = std::fs::read_to_string(crate::common::root().join("examples/wallet/README.md")).unwrap();
    for (line, class) in &classes {
        let row = readme.lines().find(|row| row.starts_with(&format!("| {line} |")));
        let row = row.unwrap_or_else(|| panic!("the README has no row for line {line}"));
        let named =
            row.contains(&format!("`{class}`")) || (class == "id_reused" && row.contains("id reused"));
        assert!(named, "line {line} is {class}: {row}");
    }
    assert_eq!(classes.len(), 14);
}

#[test]
fn a_second_run_receives_nothing_and_says_how_to_start_over() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    let again = place.quiet(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(again.counts(NAMES), [0, 0, 0, 0, 0]);
    let position = position(&place);
    let name = position.file_name().unwrap().to_string_lossy();
    for words in ["received 0", "start over", &name, "wallet.db"] {
        assert!(again.stderr.contains(words), "{words} is not in {}", again.stderr);
    }
    // The position only saves work: without it everything is a duplicate and no dead letter is new.
    std::fs::remove_file(position).unwrap();
    let lost = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(lost.counts(NAMES)[..2], [32, 0]);
    assert_eq!(lost.counts(["dead_letter_rows"]), [0]);
    assert_eq!(number(&place, "SELECT sum(balance) FROM accounts"), 391);
}

fn without_database(place: &Place) {
    for name in ["wallet.db", "wallet.db-wal", "wallet.db-shm"] {
        let _ = std::fs::remove_file(place.path(name));
    }
}

/// With the log beside it, where there is one.
fn copy_database(place: &Place, from: &str, to: &str) {
    for end in ["", "-wal"] {
        let (from, to) = (place.path(&format!("{from}{end}")), place.path(&format!("{to}{end}")));
        if from.exists() {
            std::fs::copy(from, to).unwrap();
        }
    }
}

const SAID: &str = "the store does not know the line";

#[test]
fn a_removed_database_gets_everything_again_though_the_position_is_left() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    without_database(&place);
    position(&place);
    let again = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(again.counts(NAMES), [32, 13, 5, 1, 13]);
    assert_eq!(number(&place, "SELECT sum(balance) FROM accounts"), 391);
    assert_eq!(again.stderr.matches(SAID).count(), 1, "{}", again.stderr);
    // The position is this store's now.
    let third = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(third.counts(NAMES)[0], 0);
    assert!(!third.stderr.contains(SAID), "{}", third.stderr);
}

#[test]
fn another_store_beside_the_same_position_gets_everything() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    place.write("other.toml", &place.read("file.toml").replace("wallet.db", "other.db"));
    let other = place.run(&["run", "other.toml", "--json"]).exits(0);
    assert_eq!(other.counts(NAMES), [32, 13, 5, 1, 13]);
    // What only the other store has seen is not lost for the first one.
    place.quiet(&["publish", "--out", "credits.jsonl", "--sample", "credits", "--count", "20"]).exits(0);
    place.run(&["run", "other.toml"]).exits(0);
    let first = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(first.counts(["applied"]), [20]);
}

#[test]
fn a_restored_backup_gets_what_it_misses_also_where_the_last_line_came_before() {
    let place = Place::wallet();
    let first = place.read("credits.jsonl").lines().next().unwrap().to_owned();
    place.run(&["run", "file.toml"]).exits(0);
    copy_database(&place, "wallet.db", "backup.db");
    place.quiet(&["publish", "--out", "credits.jsonl", "--sample", "credits", "--count", "5"]).exits(0);
    place.write("credits.jsonl", &format!("{}{first}\n", place.read("credits.jsonl")));
    let next = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(next.counts(["received", "applied", "duplicate"]), [6, 5, 1]);
    without_database(&place);
    copy_database(&place, "backup.db", "wallet.db");
    let restored = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(restored.counts(["received", "applied"]), [38, 5]);
    assert_eq!(number(&place, "SELECT count(*) FROM ledger"), 18);
    assert_eq!(restored.counts(["dead_letter_rows"]), [0]);
}

#[test]
fn lines_without_any_id_are_known_by_their_dead_letters() {
    let place = Place::wallet();
    place.write("credits.jsonl", "not JSON\n{\"amount\":1}\n");
    let first = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(first.counts(["dead_letter_rows"]), [2]);
    assert_eq!(place.run(&["run", "file.toml", "--json"]).exits(0).counts(["received"]), [0]);
    without_database(&place);
    let again = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(again.counts(["received", "dead_letter_rows"]), [2, 2]);
}

#[test]
fn lines_copied_into_another_file_apply_nothing() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    let lines = place.read("credits.jsonl");
    place.write("copied.jsonl", &format!("{lines}{lines}"));
    place.write("copied.toml", &place.read("file.toml").replace("credits.jsonl", "copied.jsonl"));
    let copied = place.run(&["run", "copied.toml", "--json"]).exits(0);
    assert_eq!(copied.counts(["received", "applied"]), [64, 0]);
    assert_eq!(number(&place, "SELECT sum(balance) FROM accounts"), 391);
}

#[test]
fn lines_that_are_appended_later_are_read_from_where_it_stopped() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    place
        .quiet(&[
            "publish",
            "--out",
            "credits.jsonl",
            "--sample",
            "credits",
            "--count",
            "50",
            "--duplicates",
            "0.2",
        ])
        .exits(0);
    let next = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(next.counts(["received", "applied", "duplicate"]), [60, 50, 10]);
    assert_eq!(number(&place, "SELECT count(*) FROM ledger"), 63);
}

#[test]
fn max_messages_stops_and_the_next_run_goes_on() {
    let place = Place::wallet();
    let first = place.run(&["run", "file.toml", "--max-messages", "4", "--json"]).exits(0);
    assert_eq!(first.json()["stopped"], "messages_max");
    let [received, applied, released] = first.counts(["received", "applied", "released"]);
    assert_eq!(received - released, 4);
    assert_eq!(applied, 4);
    let rest = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(rest.counts(["received", "applied"]), [28, 9]);
}

#[test]
fn standard_output_has_the_table_and_nothing_else() {
    let done = Place::wallet().run(&["run", "file.toml"]).exits(0);
    let words: Vec<&str> = done.stdout.lines().map(|line| line.split("  ").next().unwrap().trim()).collect();
    assert_eq!(words[..5], ["received", "applied", "duplicate", "id reused", "dead lettered"]);
    // Behind it how long it took, and what is left.
    assert_eq!(words.len(), 8, "{}", done.stdout);
    assert!(
        done.stdout.ends_with(" 14 dead letters\n   handstamp dlq groups file.toml\n"),
        "{}",
        done.stdout
    );
}

#[test]
fn the_same_pipeline_from_another_folder_does_the_same() {
    let place = Place::wallet();
    let file = place.path("file.toml");
    let other = Place::new();
    let done = other.run(&["run", file.to_str().unwrap(), "--json"]).exits(0);
    assert_eq!(done.counts(["applied"]), [13]);
    assert!(place.path("wallet.db").exists() && !other.path("wallet.db").exists());
}

#[test]
fn standard_input_is_read_to_its_end() {
    let place = Place::wallet();
    place.write("stdin.toml", &place.read("file.toml").replace("credits.jsonl", "-"));
    let done = place.run(&["run", "stdin.toml", "--json"]).exits(0);
    assert_eq!(done.counts(["received"]), [0]);
}
