//! The guide's SQL that lets given up messages be read again: it brings those back and doubles nothing.

use crate::common::{Place, root};

/// The guide's statements for a store.
fn statements(store: &str) -> String {
    let guide = std::fs::read_to_string(root().join("docs/guides/dead-letters.md")).unwrap();
    let (_, behind) = guide.split_once(&format!("{store}:\n\n```sql\n")).expect("the guide's SQL");
    behind.split_once("```").unwrap().0.to_owned()
}

/// The wallet once more: what was chosen is tried again, everything else is a duplicate.
fn comes_back_and_nothing_doubles(place: &Place, file: &str, forget: impl Fn(), ledger: impl Fn() -> String) {
    place.run(&["run", file, "--migrate", "--json"]).exits(0);
    let before = (ledger(), place.run(&["dlq", "list", file, "--json"]).exits(0).json());
    let of = |class: &str, list: &serde_json::Value| {
        let letters = list["dead_letters"].as_array().unwrap();
        letters.iter().filter(|letter| letter["class"] == class).count() as u64
    };
    let (chosen, reused) = (of("sql", &before.1), of("id_reused", &before.1));
    assert!(chosen > 0 && reused > 0, "{}", before.1);
    forget();
    for entry in std::fs::read_dir(place.path(".")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "position") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let done = place.run(&["run", file, "--json"]).exits(0);
    let [received, applied, duplicate, dead] =
        done.counts(["received", "applied", "duplicate", "dead_lettered"]);
    assert_eq!((applied, dead, duplicate), (0, chosen, received - chosen), "{}", done.stdout);
    assert_eq!(ledger(), before.0, "something was applied twice");
    let after = place.run(&["dlq", "list", file, "--json"]).exits(0).json();
    assert_eq!((of("sql", &after), of("id_reused", &after)), (chosen, reused));
}

#[test]
fn on_sqlite() {
    let place = Place::wallet();
    let statements = statements("SQLite").replace("BEGIN IMMEDIATE;", "").replace("COMMIT;", "");
    let ledger = "SELECT count(*) * 1000000 + sum(amount) FROM ledger";
    comes_back_and_nothing_doubles(
        &place,
        "file.toml",
        || crate::wallet::write(&place, &statements),
        || crate::wallet::number(&place, ledger).to_string(),
    );
}

#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
#[test]
fn on_postgres() {
    use crate::kafka_postgres::{psql, unique};
    let database = unique();
    let place = crate::file_postgres::on_postgres(&database);
    comes_back_and_nothing_doubles(
        &place,
        "wallet.toml",
        || drop(psql(&database, &statements("PostgreSQL"))),
        || psql(&database, "SELECT count(*), sum(amount) FROM ledger"),
    );
}
