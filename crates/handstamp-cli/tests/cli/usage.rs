//! What can be typed, and what is said about mistakes.

use crate::common::{CANARY, Place, root};

const COMMANDS: &[&[&str]] = &[
    &[],
    &["run"],
    &["check"],
    &["migrate"],
    &["inbox", "get"],
    &["explain"],
    &["dlq"],
    &["dlq", "list"],
    &["dlq", "groups"],
    &["dlq", "show"],
    &["dlq", "export"],
    &["dlq", "redrive"],
    &["dlq", "discard"],
    &["dlq", "parked"],
    &["dlq", "audit"],
    &["publish"],
    &["prune"],
    &["import-ids"],
    &["init"],
    &["schema"],
    &["completions"],
    &["man"],
];

/// The reference is the help itself. `HANDSTAMP_UPDATE=1` writes it anew.
#[test]
fn the_reference_is_what_help_says() {
    let place = Place::new();
    let mut page = "# The command line\n\nWhat `--help` says; a test compares them.\n".to_owned();
    for command in COMMANDS {
        let help = place.quiet(&[command, &["--help"][..]].concat()).exits(0);
        let title = ["handstamp"].iter().chain(*command).copied().collect::<Vec<_>>().join(" ");
        let text: Vec<&str> = help.stdout.lines().map(str::trim_end).collect();
        page.push_str(&format!("\n## `{title}`\n\n```text\n{}\n```\n", text.join("\n").trim()));
    }
    let file = root().join("docs/reference/cli.md");
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(kept, page, "HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli writes {}", file.display());
}

#[test]
fn every_exit_code_is_in_the_help() {
    let help = Place::new().quiet(&["--help"]).exits(0).stdout;
    for code in [0, 1, 2, 3, 4, 5, 7] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{code}  "))),
            "{code}\n{help}"
        );
    }
}

#[test]
fn a_wrong_command_line_exits_2_on_standard_error() {
    let place = Place::new();
    for args in [&[][..], &["frobnicate"], &["run"], &["run", "a", "--until-idle", "2"], &["publish"]] {
        let done = place.quiet(args).exits(2);
        assert_eq!(done.stdout, "", "{args:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
    let done = place.quiet(&["--log", "loud=nonsense=x", "check", "a.toml"]).exits(2);
    assert!(done.stderr.contains("--log"), "{}", done.stderr);
}

#[test]
fn a_missing_file_exits_2() {
    let done = Place::new().quiet(&["run", "none.toml"]).exits(2);
    assert!(done.stderr.contains("cannot read none.toml"), "{}", done.stderr);
}

/// Every line of the expected text is a mistake in the file above it.
#[test]
fn every_mistake_is_shown_with_its_line_and_what_would_be_right() {
    let place = Place::new();
    place.write(
        "bad.toml",
        r#"name = "my wallet"
colour = "red"
[consumer]
batch_max = "many"
batch_wait = 5
queue_max_bytes = "4 miles"
order = "partitions"
[source]
type = "kafka"
brokrs = "127.0.0.1:9092"
topics = ["credits"]
group = "${NOT_SET_ANYWHERE}"
[identity]
header = "event_id"
key = true
[store]
type = "postgres"
url = "postgres://u:c4n4ry.p4ssw0rd@127.0.0.1/db"
[[effect]]
sql = "DROP TABLE accounts"
[[effect]]
sql = "UPDATE accounts SET balance = :amount"
expect_rows = "one"
optional = ["amuont"]
"#,
    );
    let done = place.quiet(&["check", "bad.toml"]).exits(2);
    let expected = r#"error: bad.toml:1: name: "my wallet" is no consumer name: use 1 to 64 of A-Z a-z 0-9 . _ -
error: bad.toml:2: colour: unknown key; known here: consumer, dead_letter, effect, identity, name, retention, retry, source, store, watch
error: bad.toml:4: consumer.batch_max: expected a whole number of at least 1; found a string
error: bad.toml:5: consumer.batch_wait: expected a time with its unit in quotes, such as "30s", "200ms" or "0s"; found a whole number
error: bad.toml:6: consumer.queue_max_bytes: expected a number of bytes, or a size in quotes such as "4 MiB"; found "4 miles"
error: bad.toml:7: consumer.order: expected one of "partition", "key", "none"; found "partitions"; did you mean "partition"?
error: bad.toml:8: source.brokers: is missing; write for example `brokers = "127.0.0.1:9092"`
error: bad.toml:10: source.brokrs: unknown key; did you mean `brokers`?
error: bad.toml:12: source.group: the environment variable NOT_SET_ANYWHERE is not set; set it, or give a default: ${NOT_SET_ANYWHERE:-…}
error: bad.toml:13: identity.header: is not alone: exactly one of `header`, `field`, `fields`, `key = true` or `cloudevents = true` says where the producer put the id
error: bad.toml:20: effect[1].sql: DROP changes the schema: put it into the file of `[store] setup`, which `migrate` runs once
error: bad.toml:22: effect[2].sql: `optional` names "amuont", but the statement has no parameter :amuont (it has :amount)
error: bad.toml:23: effect[2].expect_rows: expected a whole number or "any"; found a string
  hint: every key is described in docs/reference/config.md
"#;
    assert_eq!(done.stderr, expected);
    assert_eq!(done.stdout, "");
}

#[test]
fn what_is_no_toml_names_its_line() {
    let place = Place::new();
    place.write("bad.toml", "name = \"a\"\n[source\ntype = \"file\"\n");
    let done = place.quiet(&["run", "bad.toml"]).exits(2);
    assert!(done.stderr.starts_with("error: bad.toml:2: this is no TOML: "), "{}", done.stderr);
}

/// Wherever a secret stands, right or wrong, no message repeats it; the harness searches every output.
#[test]
fn no_mistake_repeats_a_secret() {
    let place = Place::new();
    let kafka = |options: &str, rest: &str| {
        format!(
            "name = \"w\"\n[source]\ntype = \"kafka\"\nbrokers = \"127.0.0.1:1\"\ntopics = [\"t\"]\ngroup = \"g\"\n\
             [source.options]\n{options}\n[identity]\nkey = true\n[store]\ntype = \"postgres\"\n{rest}\n\
             [[effect]]\nsql = \"SELECT 1\"\n"
        )
    };
    let urls = [
        format!("url = \"postgres://u:{CANARY}@127.0.0.1:1/db?sslmode=disable\""),
        format!("url = \"postgres://u:{CANARY}@127.0.0.1:port/db\""),
        format!("url = \"host=127.0.0.1 port=1 password={CANARY} user=u\""),
        format!("url = \"postgres://u@127.0.0.1:1/db?password={CANARY}\""),
        "url = \"postgres://u:${CANARY}@127.0.0.1:1/db\"".to_owned(),
        "url = \"${CANARY}\"".to_owned(),
        format!("url = [\"postgres://u:{CANARY}@127.0.0.1:1/db\"]"),
        format!("url = \"postgres://u:{CANARY}@127.0.0.1:1/db\"\nlock_timeout = \"${{CANARY}}\""),
        format!("url = \"postgres://u:{CANARY}@127.0.0.1:1/db\"\nschema = \"${{CANARY}}\""),
    ];
    let options = [
        format!("\"sasl.password\" = \"{CANARY}\""),
        "\"sasl.password\" = \"${CANARY}\"".to_owned(),
        "\"session.timeout.ms\" = \"${CANARY}\"".to_owned(),
        format!("\"sasl.passwort\" = \"{CANARY}\""),
        format!("\"ssl.key.password\" = \"{CANARY}\"\n\"debug\" = \"all\""),
        format!("sasl.password = \"{CANARY}\""),
    ];
    for url in &urls {
        for option in &options {
            place.write("secret.toml", &kafka(option, url));
            place.run(&["check", "secret.toml", "--print"]);
        }
    }
    // Every connection string and every option once as far as the commands go.
    for at in 0..urls.len().max(options.len()) {
        place.write("secret.toml", &kafka(&options[at % options.len()], &urls[at % urls.len()]));
        for args in [
            &["run", "secret.toml", "--fail-fast"][..],
            &["migrate", "secret.toml"],
            &["inbox", "get", "secret.toml", "x"],
            &["dlq", "list", "secret.toml", "--json"],
        ] {
            assert_ne!(place.run(args).code, Some(0), "{args:?} with {}", place.read("secret.toml"));
        }
    }
    place.write("secret.toml", &kafka("", &urls[0]));
    place.run(&["check", "secret.toml"]).exits(5);
}

#[test]
fn print_shows_every_default_and_variables_by_their_name() {
    let place = Place::wallet().env("DATABASE_URL", &format!("postgres://u:{CANARY}@h/db"));
    let printed = place.quiet(&["check", "kafka.toml", "--print"]).exits(0).stdout;
    for line in [
        "url = \"${DATABASE_URL}\"",
        "batch_max = 500",
        "batch_max_bytes = \"4 MiB\"",
        "batch_wait = \"5ms\"",
        "concurrency = 1",
        "queue_max_bytes = \"16 MiB\"",
        "max_message_bytes = \"1 MiB\"",
        "handler_timeout = \"30s\"",
        "shutdown_timeout = \"25s\"",
        "revoke_timeout = \"5s\"",
        "commit_every = \"200ms\"",
        "lock_timeout = \"5s\"",
        "max_attempts = 2",
        "immediate = 2",
        "max_crashes = 3",
        "wait = \"50ms\"",
        "backoff_base = \"1s\"",
        "backoff_cap = \"5m\"",
        "on_failure = \"park\"",
        "parked_max = 100000",
        "expect_rows = 1",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    // What is printed is a pipeline again, and prints the same.
    place.write("again.toml", &printed);
    assert_eq!(place.quiet(&["check", "again.toml", "--print"]).exits(0).stdout, printed);
}

/// The file of the reference page works as it stands there.
#[test]
fn the_reference_pages_pipeline_is_valid() {
    let page = std::fs::read_to_string(root().join("docs/reference/config.md")).unwrap();
    let toml = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let place = Place::new().env("DATABASE_URL", "postgres://u@h/db");
    place.write("wallet.toml", toml);
    place.quiet(&["check", "wallet.toml", "--print"]).exits(0);
}

/// A small build knows the types that it lacks, and says how to get them.
#[cfg(not(all(feature = "kafka", feature = "postgres")))]
#[test]
fn a_type_that_was_not_built_in_names_its_feature() {
    let place = Place::wallet().env("DATABASE_URL", "postgres://u@127.0.0.1:1/db");
    let file = place.read("file.toml");
    let kafka = "type = \"kafka\"\nbrokers = \"127.0.0.1:1\"\ntopics = [\"t\"]\ngroup = \"g\"";
    place.write("kafka-to-sqlite.toml", &file.replace("type = \"file\"\npath = \"credits.jsonl\"", kafka));
    for (pipeline, feature) in [("kafka.toml", "postgres"), ("kafka-to-sqlite.toml", "kafka")] {
        let run = place.quiet(&["run", pipeline]).exits(2);
        let words = format!("it was built without the feature `{feature}`");
        assert!(run.stderr.contains(&words), "{}", run.stderr);
        let check = place.quiet(&["check", pipeline]).exits(5);
        assert!(check.stdout.contains(&words), "{}", check.stdout);
    }
}
