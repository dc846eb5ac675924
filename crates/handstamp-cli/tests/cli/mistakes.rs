//! What somebody meets who uses the program for the first time, on both stores: what is wrong is named, all of
//! it, and the advice beside it fits.

use crate::answers::on_each_store;
use crate::common::Place;
use serde_json::Value;

/// The hint about the user's own tables: for effects alone.
const OWN_TABLES: &str = "your own tables";

#[test]
fn our_missing_tables_are_not_taken_for_the_users() {
    let all = "DROP TABLE TABLESstarts; DROP TABLE TABLESparked_starts; DROP TABLE TABLEScrashes; \
               DROP TABLE TABLESversions; DROP TABLE TABLESpruned; DROP TABLE IF EXISTS TABLESinbox_parts; \
               DROP TABLE TABLESaudit; DROP TABLE TABLESattempts; DROP TABLE TABLESparked; \
               DROP TABLE TABLESdead_letters; DROP TABLE TABLESinbox; DROP TABLE TABLESconsumers";
    for broken in ["DROP TABLE TABLESmigrations", all] {
        on_each_store(|wallet| {
            wallet.run("off", &["migrate", "FILE"]).exits(0);
            wallet.sql(broken);
            for (args, code) in [(&["check", "FILE"][..], 5), (&["run", "FILE", "--fail-fast"], 4)] {
                let done = wallet.run("off", args).exits(code);
                let said = format!("{}{}", done.stdout, done.stderr);
                assert!(!said.contains(OWN_TABLES), "{broken}: {args:?}: {said}");
                assert!(said.contains("Handstamp") && said.contains("missing"), "{broken}: {args:?}: {said}");
            }
        });
    }
    // The user's own are still told so.
    on_each_store(|wallet| {
        wallet.run("off", &["migrate", "FILE"]).exits(0);
        wallet.sql("DROP TABLE ledger");
        let done = wallet.run("off", &["run", "FILE", "--fail-fast"]).exits(2);
        assert!(done.stderr.contains(OWN_TABLES) && done.stderr.contains("ledger"), "{}", done.stderr);
    });
}

#[test]
fn check_names_every_effect_that_does_not_fit() {
    on_each_store(|wallet| {
        wallet.run("off", &["migrate", "FILE"]).exits(0);
        let toml = wallet.place.read(wallet.file);
        let bad = toml.replace("INTO ledger", "INTO ledgers").replace("UPDATE accounts", "UPDATE acounts");
        let third = "\n[[effect]]\nsql = \"INSERT INTO nowhere (a) VALUES (:amount)\"\n";
        wallet.place.write("bad.toml", &format!("{bad}{third}"));
        let found = wallet.run("off", &["check", "bad.toml", "--json"]).exits(5).json();
        let failed: Vec<&str> = found["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|finding| finding["level"] == "failed")
            .map(|finding| finding["what"].as_str().unwrap())
            .collect();
        for (number, table) in [("effect 1", "acounts"), ("effect 2", "ledgers"), ("effect 3", "nowhere")] {
            let named = failed.iter().filter(|what| what.contains(number) && what.contains(table)).count();
            assert_eq!(named, 1, "{number}: {failed:?}");
        }
        assert_eq!(failed.len(), 3, "{failed:?}");
        // What else there is to find is found as well.
        assert!(found.to_string().contains("claims"), "{found}");
    });
}

#[test]
fn an_id_that_came_again_with_another_body_names_those_bodies() {
    on_each_store(|wallet| {
        let line = |id: &str, amount: u32| {
            format!("{{\"event_id\": \"{id}\", \"account_id\": 1, \"amount\": {amount}}}\n")
        };
        let lines = [line("a", 1), line("a", 2), line("b", 1), line("a", 3), line("a", 2)].concat();
        wallet.place.write("credits.jsonl", &lines);
        wallet.run("off", &["run", "FILE"]).exits(0);
        let list = wallet.json(&["dlq", "list", "FILE", "--json"]);
        let letters = list["dead_letters"].as_array().unwrap();
        assert_eq!(letters.len(), 2, "{list}");
        let get = wallet.json(&["inbox", "get", "FILE", "a", "--json"]);
        assert_eq!((&get["state"], &get["dead_letter"]), (&"applied".into(), &letters[0]), "{get}");
        assert_eq!(get["id_reused"], list["dead_letters"], "{get}");
        let shown = wallet.run("off", &["inbox", "get", "FILE", "a"]).exits(0).stdout;
        for letter in letters {
            assert!(shown.contains(letter["key"].as_str().unwrap()), "{shown}");
        }
        let other = wallet.json(&["inbox", "get", "FILE", "b", "--json"]);
        assert_eq!((&other["dead_letter"], &other["id_reused"]), (&Value::Null, &Value::Array(vec![])));
    });
}

#[test]
fn the_parsers_errors_keep_the_argument_in_json_too() {
    let place = Place::new();
    for (args, words) in [
        (&["run", "--json"][..], "<FILE>"),
        (&["inbox", "get", "a.toml", "--json"], "<ID>"),
        (&["publish", "--json"], "--sample"),
        (&["run", "a.toml", "--json", "--untl-idle"], "--untl-idle"),
    ] {
        let done = place.run_at("off", args).exits(2);
        let error = done.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(words), "{args:?}: {error}");
        assert!(!error.contains('\n') && !error.contains("Usage"), "{args:?}: {error}");
    }
}

/// Postgres alone has connection strings and roles.
#[cfg(all(feature = "file", feature = "kafka", feature = "postgres"))]
mod postgres {
    use crate::common::CANARY;
    use crate::server_refusals::Wallet;

    #[test]
    fn a_connection_string_says_which_part_is_wrong() {
        let wallet = Wallet::new();
        let base = format!("postgres://u:{CANARY}@127.0.0.1:1/db");
        for (url, words) in [
            (format!("{base}?foo=bar"), &["`foo`", "known"][..]),
            (format!("{base}?sslmod=require"), &["`sslmod`", "did you mean `sslmode`"]),
            (format!("{base}?connect_timeout"), &["`connect_timeout`", "no value"]),
            (format!("{base}?connect_timeout=soon"), &["`connect_timeout`", "value"]),
            (format!("mysql://u:{CANARY}@127.0.0.1:1/db"), &["mysql://", "postgres://"]),
            (format!("host=127.0.0.1 prt=1 password={CANARY}"), &["`prt`", "did you mean `port`"]),
        ] {
            let toml = wallet.place.read("wallet.toml").replace("${DATABASE_URL}", &url);
            wallet.place.write("bad.toml", &toml);
            // The harness looks for the password in every output.
            let done = wallet.place.run_at("off", &["run", "bad.toml", "--fail-fast"]).exits(2);
            for word in words {
                assert!(done.stderr.contains(word), "{words:?}: {}", done.stderr);
            }
        }
    }

    #[test]
    fn a_server_without_tls_is_named_as_such() {
        let wallet = Wallet::new();
        for mode in ["require", "verify-full"] {
            let toml = wallet.place.read("wallet.toml");
            let toml = toml.replace("${DATABASE_URL}", &format!("${{DATABASE_URL}}?sslmode={mode}"));
            wallet.place.write("bad.toml", &toml);
            for (args, code) in [(&["check", "bad.toml"][..], 5), (&["run", "bad.toml", "--fail-fast"], 3)] {
                let done = wallet.place.run_at("off", args).exits(code);
                let said = format!("{}{}", done.stdout, done.stderr);
                assert!(said.contains("TLS") && said.contains("sslmode"), "{args:?}: {said}");
                assert!(!said.contains("is the server running"), "{args:?}: {said}");
            }
        }
    }

    #[test]
    fn the_sql_that_is_shown_grants_what_a_migration_grants() {
        let wallet = Wallet::new();
        let show = |role: &str| {
            wallet.place.run(&["migrate", "wallet.toml", "--show-sql", "--grant-to", role]).exits(0).stdout
        };
        let shown = show("a \"role\"");
        let own = |what: &str| format!("GRANT {what} TO \"a \"\"role\"\"\";");
        for what in ["USAGE ON SCHEMA \"handstamp\"", "SELECT, INSERT, UPDATE, DELETE ON \"handstamp\".inbox"]
        {
            assert!(shown.contains(&own(what)), "{what}: {shown}");
        }
        assert_eq!(shown.lines().filter(|line| line.starts_with("GRANT ")).count(), 15, "{shown}");
        assert!(shown.contains("schema.postgres.sql"), "{shown}");
        assert!(shown.find("CREATE TABLE accounts") < shown.find("GRANT "), "{shown}");
        let without = wallet.place.run(&["migrate", "wallet.toml", "--show-sql"]).exits(0).stdout;
        assert!(!without.contains("GRANT "), "{without}");
        assert!(show("r").contains("tables of `[store] setup`"));
    }
}

#[test]
fn what_has_no_roles_grants_nothing_when_shown_either() {
    let args = ["migrate", "file.toml", "--show-sql", "--grant-to", "r"];
    let done = Place::wallet().quiet(&args).exits(2);
    assert!(done.stderr.contains("SQLite has no roles"), "{}", done.stderr);
}
