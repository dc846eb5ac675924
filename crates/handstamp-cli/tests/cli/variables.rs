//! A command asks for the variables of the parts that it uses, and for no others.

use crate::common::Place;

/// A variable that is nowhere set.
const UNSET: &str = "NOT_SET_ANYWHERE";

fn replaced(toml: &str, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(toml.to_owned(), |toml, (from, to)| {
        assert!(toml.contains(from), "{from}");
        toml.replace(from, to)
    })
}

/// `publish` to a file needs neither the store nor the effects.
#[test]
fn publishing_needs_no_store() {
    let place = Place::wallet();
    let sqlite = "type = \"sqlite\"\npath = \"wallet.db\"\nsetup = \"schema.sqlite.sql\"\n";
    let postgres = "type = \"postgres\"\nurl = \"${NOT_SET_ANYWHERE}\"\nsetup = \"${NOT_SET_ANYWHERE}\"\n";
    let effect = ("INSERT INTO ledger", "INSERT INTO ${NOT_SET_ANYWHERE}");
    let toml =
        replaced(&place.read("file.toml"), &[(sqlite, postgres), effect, ("credits.jsonl", "new.jsonl")]);
    place.write("lean.toml", &toml);
    place.run(&["publish", "lean.toml", "--sample", "credits", "--count", "3"]).exits(0);
    assert_eq!(place.read("new.jsonl").lines().count(), 3);
    // Who uses them misses them, by name.
    for args in [&["run", "lean.toml"][..], &["dlq", "list", "lean.toml"], &["migrate", "lean.toml"]] {
        let done = place.quiet(args).exits(2);
        assert!(done.stderr.contains(UNSET) && done.stderr.contains("store."), "{args:?}: {}", done.stderr);
    }
    // And the source is asked for where it is used.
    place.write("lean.toml", &toml.replace("new.jsonl", "${NOT_SET_ANYWHERE}"));
    let done = place.quiet(&["publish", "lean.toml", "--sample", "credits"]).exits(2);
    assert!(done.stderr.contains("source.path"), "{}", done.stderr);
    assert!(!done.stderr.contains("store."), "{}", done.stderr);
}

/// Operators ask the store where neither the brokers nor the setup file are known.
#[test]
fn asking_the_store_needs_no_source() {
    let place = Place::wallet();
    place.run(&["run", "file.toml"]).exits(0);
    let file = "type = \"file\"\npath = \"credits.jsonl\"";
    let kafka = "type = \"kafka\"\nbrokers = \"${NOT_SET_ANYWHERE}\"\ntopics = [\"${NOT_SET_ANYWHERE}\"]\n\
                 group = \"g\"\noptions = { \"sasl.password\" = \"${NOT_SET_ANYWHERE}\" }";
    let pairs = [
        (file, kafka),
        ("field = \"/event_id\"", "field = \"${NOT_SET_ANYWHERE}\""),
        ("INSERT INTO ledger", "INSERT INTO ${NOT_SET_ANYWHERE}"),
    ];
    place.write("migrate.toml", &replaced(&place.read("file.toml"), &pairs));
    for args in [&["migrate", "migrate.toml"][..], &["migrate", "migrate.toml", "--show-sql"]] {
        place.run(args).exits(0);
    }
    let setup = [("schema.sqlite.sql", "${NOT_SET_ANYWHERE}")];
    place.write("ask.toml", &replaced(&place.read("migrate.toml"), &setup));
    std::fs::remove_file(place.path("schema.sqlite.sql")).unwrap();
    let list = place.run(&["dlq", "list", "ask.toml", "--json"]).exits(0).json();
    assert_eq!(list["dead_letters"].as_array().unwrap().len(), 14);
    let key = list["dead_letters"][0]["key"].as_str().unwrap();
    for args in [
        &["dlq", "show", "ask.toml", key][..],
        &["dlq", "export", "ask.toml"],
        &["inbox", "get", "ask.toml", "x"],
    ] {
        place.run(args).exits(0);
    }
    let run = place.quiet(&["run", "ask.toml"]).exits(2);
    assert!(run.stderr.contains("source.brokers"), "{}", run.stderr);
}

/// The text of a migration needs no connection.
#[test]
fn the_text_of_a_migration_needs_no_connection() {
    let place = Place::wallet();
    place.write("text.toml", &place.read("kafka.toml").replace("${DATABASE_URL}", "${NOT_SET_ANYWHERE}"));
    let done = place.quiet(&["migrate", "text.toml", "--show-sql"]);
    if cfg!(feature = "postgres") {
        let sql = done.exits(0).stdout;
        assert!(sql.contains("CREATE TABLE \"handstamp\".inbox") && sql.contains("ledger"), "{sql}");
    } else {
        done.exits(2);
    }
}

/// Who runs need not know the owner's password, and who migrates needs no other than the owner's.
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
#[test]
fn each_connection_is_asked_for_by_those_who_use_it() {
    let crate::server_refusals::Parts { place, database: _, guard: _guard } =
        crate::server_refusals::Wallet::new().into_parts();
    let toml = place.read("wallet.toml");
    place.write("owner.toml", &replaced(&toml, &[("${DATABASE_URL}", "${NOT_SET_ANYWHERE}")]));
    let said = place.run(&["migrate", "owner.toml"]).exits(0).stdout;
    assert!(said.contains("up to date"), "{said}");
    let run = place.quiet(&["run", "owner.toml"]).exits(2);
    assert!(run.stderr.contains("store.url"), "{}", run.stderr);
    place.write("runner.toml", &replaced(&toml, &[("${OWNER_URL}", "${NOT_SET_ANYWHERE}")]));
    place.run(&["check", "runner.toml"]).exits(0);
    place.run(&["run", "runner.toml"]).exits(0);
    place.run(&["dlq", "list", "runner.toml"]).exits(0);
    for args in [&["migrate", "runner.toml"][..], &["run", "runner.toml", "--migrate"]] {
        let done = place.quiet(args).exits(2);
        assert!(done.stderr.contains("store.migrate_url"), "{args:?}: {}", done.stderr);
    }
    // A topic is published to by who knows the brokers alone.
    let kafka = place.read("kafka.toml").replace("${DATABASE_URL}", "${NOT_SET_ANYWHERE}");
    place.write("topic.toml", &kafka);
    let args = ["publish", "topic.toml", "--sample", "credits", "--count", "3", "--create-topic", "--json"];
    let object = place.run(&args).exits(0).json();
    assert_eq!((&object["messages"], &object["created_topic"]), (&3.into(), &true.into()));
}
