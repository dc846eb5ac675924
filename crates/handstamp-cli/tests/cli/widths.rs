//! What people read fits their terminal: no line is wider than it says it is, nor than a hundred columns where
//! nothing is said. Objects for programs are whole. On both stores.

use crate::answers::{Wallet, on_each_store};

const LONG: &str =
    "an-id-of-many-letters-and-then-some-more-of-them-until-no-line-of-eighty-columns-can-hold-it-and-more";
const WHY: &str =
    "because the cause is gone, and everything that was to be there is there, as everybody can see who looks";

fn line(id: &str, account: u64, more: &str) -> String {
    format!("{{\"event_id\": \"{id}\", \"account_id\": {account}{more}}}\n")
}

/// Long ids, long reasons, a long path, what is parked, what was done to it and why, at length.
fn crowded(wallet: &Wallet) -> String {
    let file = wallet.place.read(wallet.file);
    let deep = format!("{}/credits.jsonl", "a-folder-with-a-long-name/".repeat(5));
    let path = wallet.place.path(&deep);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let parks = "max_attempts = 10\nbackoff_base = \"365days\"\nbackoff_cap = \"365days\"\n[retry.on.CODE]\nmax_attempts = 3";
    let code = if wallet.tables == "handstamp." { "23503" } else { "787" };
    let file = file
        .replace("max_attempts = 2", &parks.replace("CODE", &format!("\"{code}\"")))
        .replace("path = \"credits.jsonl\"", &format!("path = \"{deep}\""));
    wallet.place.write(wallet.file, &file);
    let lines = [
        line("good", 1, ", \"amount\": 1"),
        line(LONG, 777, ", \"amount\": 1"),
        line("none", 1, ""),
        line("again", 1, ", \"amount\": 1"),
        line("again", 1, ", \"amount\": 2"),
        "{\"no_id\": 1}\n".to_owned(),
    ];
    std::fs::write(&path, lines.concat()).unwrap();
    wallet.json(&["run", "FILE", "--migrate", "--json"]);
    let by = "somebody with a long name of the night shift";
    wallet.json(&["dlq", "redrive", "FILE", "--id", LONG, "--why", WHY, "--by", by, "--json"]);
    let list = wallet.json(&["dlq", "parked", "FILE", "--json"]);
    list["parked"][0]["key"].as_str().unwrap().to_owned()
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    on_each_store(|wallet| {
        let key = crowded(wallet);
        let all: &[&[&str]] = &[
            &["dlq", "list", "FILE"],
            &["dlq", "groups", "FILE"],
            &["dlq", "parked", "FILE"],
            &["dlq", "audit", "FILE"],
            &["dlq", "redrive", "FILE", "--class", "id_reused"],
            &["dlq", "redrive", "FILE", "--class", "identity", "--dry-run"],
            &["dlq", "redrive", "FILE", &key],
            &["check", "FILE"],
            &["explain", "FILE"],
            &["run", "FILE"],
        ];
        for (columns, said) in [("80", 80), ("100", 100), ("nothing", 100)] {
            for words in all {
                let words: Vec<&str> =
                    words.iter().map(|word| if *word == "FILE" { wallet.file } else { word }).collect();
                let done = wallet.place.run_with("off", &words, &[("COLUMNS", columns)]);
                assert!(!done.stdout.is_empty(), "{words:?}: {}", done.stderr);
                let wide = done.stdout.lines().find(|line| line.chars().count() > said);
                assert_eq!(wide, None, "{words:?} at {columns}:\n{}", done.stdout);
            }
        }
        // Keys are whole in every list, and what was cut is whole in the object.
        for (list, whole) in [("list", "the id is known with another body"), ("parked", LONG), ("audit", WHY)]
        {
            let text = wallet.place.run_with("off", &["dlq", list, wallet.file], &[("COLUMNS", "80")]).stdout;
            let object = wallet.json(&["dlq", list, "FILE", "--json"]);
            let rows =
                ["dead_letters", "parked", "audit"].into_iter().find_map(|name| object[name].as_array());
            for row in rows.unwrap() {
                let key = row["key"].as_str().unwrap();
                assert!(text.contains(key), "{key} is not in {text}");
            }
            assert!(object.to_string().contains(whole), "{object}");
        }
    });
}

#[cfg(feature = "lab")]
#[test]
fn the_demo_fits_too() {
    let place = crate::common::Place::new();
    for columns in ["80", "100"] {
        let told = place.run_with("off", &["lab", "demo"], &[("COLUMNS", columns)]).exits(0).stdout;
        let wide = told.lines().find(|line| line.chars().count() > columns.parse().unwrap());
        assert_eq!(wide, None, "{told}");
        assert!(told.lines().count() > 8, "{told}");
    }
}
