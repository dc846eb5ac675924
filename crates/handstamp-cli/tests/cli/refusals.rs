//! `check` says beforehand what `run` would refuse: one table of bad pipelines, both commands on each of them.

use crate::common::Place;
use std::os::unix::fs::PermissionsExt;

/// Makes a pipeline bad in one way and answers its text.
type Break = fn(&mut Place) -> String;

fn replaced(place: &Place, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(place.read("file.toml"), |toml, (from, to)| {
        assert!(toml.contains(from), "{from} is not in the example");
        toml.replace(from, to)
    })
}

fn store_path(place: &Place, path: &str) -> String {
    replaced(place, &[("wallet.db", path)])
}

fn identity(place: &Place, rule: &str) -> String {
    replaced(place, &[("field = \"/event_id\"", rule)])
}

fn setup(place: &Place, sql: &str) -> String {
    place.write("setup.sql", sql);
    replaced(place, &[("schema.sqlite.sql", "setup.sql")])
}

fn consumed(place: &Place) -> String {
    place.run(&["run", "file.toml"]).exits(0);
    place.read("file.toml")
}

fn rights(place: &mut Place, name: &str, mode: u32) {
    std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    place.without_privileges();
}

/// What is bad, how it is made so, and a word that both commands say of it.
const BAD: &[(&str, Break, &str)] = &[
    ("a database in memory", |place| store_path(place, ":memory:"), "memory"),
    ("a URI", |place| store_path(place, "file:wallet.db?mode=memory"), "URI"),
    ("a URI in a folder that is none", |place| store_path(place, "file:///nowhere/wallet.db"), "URI"),
    ("a store's folder that is missing", |place| store_path(place, "none/wallet.db"), "none"),
    ("a folder as a store", |place| store_path(place, "."), "folder"),
    ("a store without a name", |place| store_path(place, ""), "empty"),
    (
        "a store that is no database",
        |place| {
            place.write("wallet.db", &"no database ".repeat(100));
            place.read("file.toml")
        },
        "no SQLite database",
    ),
    (
        "a store that is damaged",
        |place| {
            let toml = consumed(place);
            let mut bytes = std::fs::read(place.path("wallet.db")).unwrap();
            let length = bytes.len();
            bytes[100..length.min(40_000)].fill(0x55);
            std::fs::write(place.path("wallet.db"), bytes).unwrap();
            toml
        },
        "damaged",
    ),
    (
        "a store that may only be read",
        |place| {
            let toml = consumed(place);
            rights(place, "wallet.db", 0o444);
            toml
        },
        "can only be read",
    ),
    (
        "a new store in a folder that may only be read",
        |place| {
            std::fs::create_dir(place.path("kept")).unwrap();
            rights(place, "kept", 0o555);
            store_path(place, "kept/wallet.db")
        },
        "cannot be opened",
    ),
    (
        "tables of another program",
        |place| {
            let toml = consumed(place);
            crate::wallet::write(place, "UPDATE handstamp_migrations SET number = 7 WHERE number = 2");
            toml
        },
        "newer program",
    ),
    (
        "a setup file that is missing",
        |place| replaced(place, &[("schema.sqlite.sql", "none.sql")]),
        "none.sql",
    ),
    ("a setup file that is no SQL", |place| setup(place, "CREATE TABEL t (a)"), "setup.sql"),
    ("a setup file that commits", |place| setup(place, "CREATE TABLE t (a); COMMIT;"), "COMMIT"),
    ("a setup file without the effects' tables", |place| setup(place, "CREATE TABLE t (a)"), "effect 1"),
    (
        "a setup file that has changed",
        |place| {
            let toml = consumed(place);
            place.write("schema.sqlite.sql", "CREATE TABLE t (a)");
            toml
        },
        "has changed",
    ),
    (
        "an effect on a table of ours",
        |place| replaced(place, &[("INTO ledger", "INTO handstamp_inbox")]),
        "belongs to Handstamp",
    ),
    ("an id in a header of a file", |place| identity(place, "header = \"event_id\""), "no headers"),
    ("an id in the key of a file", |place| identity(place, "key = true"), "no key"),
    ("a header without a name", |place| identity(place, "header = \"\""), "empty"),
    ("a source that is missing", |place| replaced(place, &[("credits.jsonl", "none.jsonl")]), "none.jsonl"),
    ("a folder as a source", |place| replaced(place, &[("\"credits.jsonl\"", "\".\"")]), "folder"),
    (
        "a source that may not be read",
        |place| {
            rights(place, "credits.jsonl", 0o000);
            place.read("file.toml")
        },
        "let the program's user",
    ),
    (
        "a file as the folder of the position",
        |place| {
            place.write("state", "");
            replaced(place, &[("[identity]", "state_dir = \"state\"\n[identity]")])
        },
        "state_dir",
    ),
    (
        "a folder of the position below a file",
        |place| {
            place.write("state", "");
            replaced(place, &[("[identity]", "state_dir = \"state/below\"\n[identity]")])
        },
        "state_dir",
    ),
    ("what is no TOML", |_| "name = ".to_owned(), "no TOML"),
];

/// The files of a folder, without what SQLite keeps beside an open database.
fn files(place: &Place) -> Vec<String> {
    let names = std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    names.sort();
    names
}

#[test]
fn whatever_run_refuses_check_refuses_too() {
    for (what, bad, word) in BAD {
        let mut place = Place::wallet();
        let toml = bad(&mut place);
        place.write("bad.toml", &toml);
        let before = files(&place);
        let check = place.run_at("off", &["check", "bad.toml", "--json"]);
        assert_eq!(files(&place), before, "{what}: check left something behind");
        let run = place.run_at("off", &["run", "bad.toml", "--fail-fast", "--json"]);
        assert!(matches!(check.code, Some(2 | 5)), "{what}: check says {check:?}, run {run:?}");
        assert!(!matches!(run.code, None | Some(0)), "{what}: run says {run:?}");
        for (command, done) in [("check", &check), ("run", &run)] {
            assert_eq!(done.json()["exit_code"], done.code.unwrap(), "{what}: {command}");
            let said = format!("{}{}", done.stdout, done.stderr);
            assert!(said.contains(word), "{what}: {command} does not say {word:?}: {said}");
        }
    }
}

/// The other way round: what runs is not refused, and no check waits for a writer or leaves a file behind.
#[test]
fn whatever_runs_check_lets_pass() {
    type Make = fn(&Place) -> String;
    let good: [(&str, Make); 5] = [
        ("a new store", |place| place.read("file.toml")),
        ("a known store", |place| consumed(place)),
        ("an empty file as a store", |place| {
            place.write("wallet.db", "");
            place.read("file.toml")
        }),
        ("a folder of the position that is made", |place| {
            replaced(place, &[("[identity]", "state_dir = \"new/below\"\n[identity]")])
        }),
        ("standard input", |place| replaced(place, &[("credits.jsonl", "-")])),
    ];
    for (what, make) in good {
        let place = Place::wallet();
        place.write("good.toml", &make(&place));
        let before = files(&place);
        let check = place.run(&["check", "good.toml", "--json"]);
        assert_eq!((check.code, check.counts(["failed"])), (Some(0), [0]), "{what}: {check:?}");
        assert_eq!(files(&place), before, "{what}: check left something behind");
        place.run(&["run", "good.toml"]).exits(0);
    }
    let place = Place::wallet();
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    place.write("pipe.toml", &replaced(&place, &[("credits.jsonl", "pipe")]));
    place.run(&["check", "pipe.toml"]).exits(0);
}

/// A second process on the same file would be refused; that is no mistake in the pipeline.
#[test]
fn check_beside_a_running_pipeline_warns() {
    let place = Place::wallet();
    consumed(&place);
    let locks: Vec<String> = files(&place).into_iter().filter(|name| name.ends_with(".lock")).collect();
    assert_eq!(locks.len(), 1, "{locks:?}");
    let lock = std::fs::File::options().write(true).open(place.path(&locks[0])).unwrap();
    lock.lock().unwrap();
    let check = place.run(&["check", "file.toml", "--json"]).exits(0);
    assert_eq!(check.counts(["failed", "warnings"]), [0, 1]);
    assert!(check.stdout.contains("another process"), "{}", check.stdout);
    let run = place.quiet(&["run", "file.toml", "--json"]).exits(3);
    assert!(run.stderr.contains("another process"), "{}", run.stderr);
}
