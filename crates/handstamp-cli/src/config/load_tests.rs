//! What the file's reader refuses, and what its reference page says.

use super::*;
use handstamp_stores::effect::{Encoding, ExpectRows, ParamSource, ParamSpec};

fn problems(text: &str) -> Vec<String> {
    let lookup = |_: &str| Err(std::env::VarError::NotPresent);
    let problems = parse(Path::new("p.toml"), text, Uses::Pipeline, &lookup).expect_err("mistakes");
    problems.into_iter().map(|problem| problem.message).collect()
}

/// Rows of the reference's table of keys: name and default, which is empty where there is none.
fn listed() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, table) = page.split_once("| key | default | meaning |\n|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [name, default, meaning] = cells[..] else { panic!("no row of three cells: {row}") };
        assert!(meaning.len() > 8, "{row}");
        let plain = |cell: &str| cell.trim_start_matches("| ").trim_matches('`').replace('–', "");
        (plain(name), plain(default))
    })
    .collect()
}

/// What the reference calls a default is what is printed of a file that says nothing.
#[test]
fn the_defaults_of_the_reference_are_those_that_are_in_force() {
    let kafka = "name = \"w\"\nsource = { type = \"kafka\", brokers = \"b\", topics = [\"t\"], group = \"g\" }\n\
                 identity = { key = true }\nstore = { type = \"postgres\", url = \"postgres://h\" }\n";
    let lookup = |_: &str| Err(std::env::VarError::NotPresent);
    let config = parse(Path::new("p.toml"), &format!("{kafka}{EFFECT}"), Uses::Pipeline, &lookup).unwrap();
    let printed = crate::config::effective(&config);
    let mut section = String::new();
    let mut in_force = std::collections::BTreeMap::new();
    for line in printed.lines() {
        if let Some((key, value)) = line.split_once(" = ") {
            in_force.insert(format!("{section}{key}"), value.to_owned());
        } else if line.starts_with('[') {
            section = format!("{}.", line.trim_matches(['[', ']']));
        }
    }
    let defaults: Vec<_> = listed().into_iter().filter(|(_, default)| !default.is_empty()).collect();
    assert!(defaults.len() >= 14, "{defaults:?}");
    for (key, default) in defaults {
        // An empty list is not printed.
        let shown = in_force.get(&key).map_or("[]", String::as_str);
        assert_eq!(shown, default, "{key}\n{printed}");
    }
}

/// The keys that a section knows are those of the reference, neither more nor less.
#[test]
fn every_known_key_is_in_the_reference_and_every_listed_key_is_known() {
    let common = "name = \"w\"\nqqqqqqqqqqqqq = 1\n[consumer]\nqqqqqqqqqqqqq = 1\n[retry]\nqqqqqqqqqqqqq = 1\n[retention]\nqqqqqqqqqqqqq = 1\nkeep = \"1d\"\n[watch]\nqqqqqqqqqqqqq = 1\nlisten = \"127.0.0.1:1\"\n\
                  [identity]\nqqqqqqqqqqqqq = 1\nfield = \"/id\"\n[[effect]]\nqqqqqqqqqqqqq = 1\nsql = \"SELECT 1\"\n";
    let kafka = "[dead_letter]\nqqqqqqqqqqqqq = 1\ntopic = \"d\"\n[source]\nqqqqqqqqqqqqq = 1\ntype = \"kafka\"\nbrokers = \"b\"\ntopics = [\"t\"]\ngroup = \"g\"\n\
                 [store]\nqqqqqqqqqqqqq = 1\ntype = \"postgres\"\nurl = \"postgres://h\"\n";
    let file = "[source]\nqqqqqqqqqqqqq = 1\ntype = \"file\"\npath = \"p\"\n[store]\nqqqqqqqqqqqqq = 1\ntype = \"sqlite\"\npath = \"s\"\n";
    let mut known = std::collections::BTreeSet::new();
    for pipeline in [format!("{common}{kafka}"), format!("{common}{file}")] {
        for problem in problems(&pipeline) {
            let (section, list) = problem.split_once("qqqqqqqqqqqqq: unknown key; known here: ").unwrap();
            let section = section.trim_end_matches('.').replace("effect[1]", "effect");
            known.extend(list.split(", ").map(|key| match section.as_str() {
                "" => key.to_owned(),
                section => format!("{section}.{key}"),
            }));
        }
    }
    for section in
        ["consumer", "retry", "source", "identity", "dead_letter", "store", "effect", "watch", "retention"]
    {
        assert!(known.remove(section), "{section}");
    }
    assert_eq!(known, listed().into_iter().map(|(name, _)| name).collect());
}

#[test]
fn sections_that_are_missing_are_said() {
    let problems = problems("");
    for section in ["name", "source", "identity", "store", "effect"] {
        assert!(problems.iter().any(|problem| problem.starts_with(section)), "{section}: {problems:?}");
    }
}

/// A pipeline with these lines; line 1 of them is line 5 of the file.
fn with(identity: &str, rest: &str) -> String {
    format!(
        "name = \"w\"\nsource = {{ type = \"file\", path = \"-\" }}\nstore = {{ type = \"sqlite\", path = \"w.db\" }}\n\
         identity = {{ {identity} }}\n{rest}\n"
    )
}

const EFFECT: &str = "[[effect]]\nsql = \"UPDATE t SET a = 1\"";

fn problem(text: &str) -> (usize, String) {
    let lookup = |_: &str| Err(std::env::VarError::NotPresent);
    let problems = parse(Path::new("p.toml"), text, Uses::Pipeline, &lookup).expect_err("a mistake");
    assert_eq!(problems.len(), 1, "{text}: {problems:?}");
    (problems[0].line, problems[0].message.clone())
}

#[test]
fn what_a_clock_or_a_number_cannot_hold_is_refused_with_the_largest_value() {
    for (section, key, largest, more, shown) in [
        ("consumer", "batch_wait", "\"365days\"", "\"31536001s\"", "365days"),
        ("consumer", "handler_timeout", "\"365days\"", "\"18446744073709551615s\"", "365days"),
        ("consumer", "shutdown_timeout", "\"365days\"", "\"500years\"", "365days"),
        ("consumer", "queue_max_bytes", "\"1024 GiB\"", "\"1025 GiB\"", "1024 GiB"),
        ("consumer", "batch_max_bytes", "1099511627776", "9223372036854775807", "1024 GiB"),
        ("consumer", "batch_max", "1000000", "1000001", "1000000"),
        ("consumer", "concurrency", "1000000", "9223372036854775807", "1000000"),
        ("retry", "max_attempts", "1000000", "1000001", "1000000"),
        ("retry", "immediate", "1000000", "1000001", "1000000"),
        ("retry", "max_crashes", "1000000", "1000001", "1000000"),
        ("retry", "max_age", "\"365days\"", "\"366days\"", "365days"),
        ("consumer", "parked_max", "1000000", "1000001", "1000000"),
    ] {
        // Attempts in place are among all.
        let more_attempts = if key == "immediate" { "max_attempts = 1000000" } else { "" };
        let text = |value: &str| {
            with("field = \"/id\"", &format!("[{section}]\n{key} = {value}\n{more_attempts}\n{EFFECT}"))
        };
        let lookup = |_: &str| Err(std::env::VarError::NotPresent);
        assert!(
            parse(Path::new("p.toml"), &text(largest), Uses::Pipeline, &lookup).is_ok(),
            "{key} = {largest}"
        );
        let (line, message) = problem(&text(more));
        assert_eq!(line, 6, "{message}");
        assert!(message.starts_with(&format!("{section}.{key}: at most ")), "{message}");
        assert!(message.contains(shown), "{message}");
    }
}

#[test]
fn the_policy_of_failures_is_read_and_printed_again() {
    let text = with(
        "field = \"/id\"",
        &format!(
            "[consumer]\norder = \"key\"\non_failure = \"block\"\nparked_max = 7\n[retry]\nimmediate = 3\n\
             backoff_base = \"2s\"\nbackoff_cap = \"1m\"\nmax_age = \"2days\"\nmax_crashes = 0\n\
             on.\"2067\".max_attempts = 20\non.787 = {{ max_attempts = 4 }}\n{EFFECT}"
        ),
    );
    let config = super::parsed(Path::new("p.toml"), &text);
    let (options, retry) = (&config.options, &config.options.policy.retry);
    assert_eq!(
        (options.order, options.policy.on_failure, options.parked_max),
        (Order::Key, OnFailure::Block, 7)
    );
    assert_eq!((retry.max_attempts, retry.immediate, retry.max_crashes), (10, 3, 0));
    let seconds = |seconds| std::time::Duration::from_secs(seconds);
    assert_eq!((retry.backoff.base, retry.backoff.cap), (seconds(2), seconds(60)));
    assert_eq!(retry.max_age, Some(seconds(2 * 24 * 3600)));
    assert_eq!((retry.attempts_for(Some("2067")), retry.attempts_for(Some("787"))), (20, 4));
    let printed = crate::config::effective(&config);
    let again = super::parsed(Path::new("p.toml"), &printed);
    assert_eq!(again.options, config.options, "{printed}");
}

#[test]
fn mistakes_of_the_policy_name_their_line_and_what_would_be_right() {
    for (rest, words) in [
        ("wait = \"2s\"", "retry.wait: at most \"1s\""),
        ("backoff_base = \"1h\"", "retry.backoff_base: backoff_base is the first wait"),
        ("backoff_cap = \"10ms\"", "retry.backoff_cap: backoff_base is the first wait"),
        ("max_atempts = 3", "retry.max_atempts: unknown key; did you mean `max_attempts`?"),
        ("on.\"787\".max_attempt = 3", "retry.on.787.max_attempt: unknown key; did you mean `max_attempts`?"),
        (
            "on.\"abc\".max_attempts = 3",
            "retry.on.abc: is no code of SQLite, which is a number such as \"787\"",
        ),
        ("on.\"23503\".max_attempts = 3", "retry.on.23503: is no code of SQLite"),
        ("on.\"23503\".max_attempts = 3", "did you mean \"787\" (foreign_key_violation)?"),
        ("on.\"787\" = 3", "retry.on.787: expected a table"),
        ("on.\"787\" = {}", "retry.on.787: says nothing; write for example `max_attempts = 20`"),
        ("immediate = 11", "retry.immediate: more than max_attempts, which is 10"),
        ("max_crashes = -1", "retry.max_crashes: expected a whole number; found -1"),
        ("immediate = 0", "retry.immediate: expected a whole number of at least 1"),
    ] {
        let (line, message) = problem(&with("field = \"/id\"", &format!("[retry]\n{rest}\n{EFFECT}")));
        assert_eq!(line, 6, "{message}");
        assert!(message.contains(words), "{rest}: {message}");
    }
}

/// A table or a list that names something and says nothing of it.
#[test]
fn what_says_nothing_is_refused() {
    for (rest, line, words) in [
        (format!("{EFFECT}\nparams.id = {{}}"), 7, "effect[1].params.id: says nothing; write for example"),
        (String::new(), 1, "effect: no [[effect]] says what to do"),
    ] {
        let (at, message) = problem(&with("field = \"/id\"", &rest));
        assert_eq!((at, message.contains(words)), (line, true), "{rest}: {message}");
    }
    let (at, message) = problem(&format!("effect = []\n{}", with("field = \"/id\"", "")));
    assert_eq!((at, message.contains("no [[effect]] says what to do")), (1, true), "{message}");
}

#[test]
fn what_is_no_rule_or_no_number_is_said() {
    let (line, message) = problem(&with("key = false", EFFECT));
    assert_eq!(line, 4);
    assert!(message.starts_with("identity.key: must be true"), "{message}");
    let (line, message) = problem(&with("field = \"/id\"", &format!("{EFFECT}\nexpect_rows = -1")));
    assert_eq!(line, 7);
    assert!(message.contains("effect[1].expect_rows: expected a whole number of 0 or more"), "{message}");
    let (line, message) = problem(&with("header = \"${A:-${B}}\"", EFFECT));
    assert_eq!(line, 4);
    assert!(message.starts_with("identity.header: the default of ${A:-…}"), "{message}");
}

#[test]
fn parameters_are_declared_in_every_way() {
    let text = r#"
        name = "w"
        source = { type = "file", path = "-" }
        identity = { fields = ["/a", "/b"] }
        store = { type = "sqlite", path = "w.db" }
        [[effect]]
        sql = "INSERT INTO t VALUES (:city, :photo, :token, :event)"
        expect_rows = "any"
        optional = ["city"]
        params.city = "/address/city"
        params.photo = { pointer = "/photo", encoding = "base64" }
        params.token = { as = "text" }
        params.event = { header = "event-id" }
    "#;
    let config =
        parse(Path::new("p.toml"), text, Uses::Pipeline, &|_| Err(std::env::VarError::NotPresent)).unwrap();
    let spec = &config.effects[0].spec;
    assert_eq!(
        spec.params["city"],
        ParamSpec::from_source(ParamSource::Body(Pointer::parse("/address/city").unwrap()))
    );
    assert_eq!(spec.params["photo"].encoding, Some(Encoding::Base64));
    assert_eq!(spec.params["token"], ParamSpec { source: None, encoding: None, as_text: true });
    assert_eq!(spec.params["event"], ParamSpec::from_source(ParamSource::Header("event-id".into())));
    assert_eq!(spec.expect_rows, Some(ExpectRows::Any));
}

/// Each variable stands where one part alone is: what a command asks for is what it uses.
const VARIABLES: &str = r#"
    name = "${NAME}"
    consumer = { batch_max = "${BATCH}", handler_timeout = "${TIMEOUT}", order = "${ORDER}" }
    retry = { wait = "${WAIT}" }
    source = { type = "kafka", brokers = "${BROKERS}", topics = ["${TOPIC}"], group = "${GROUP}", options = { "client.id" = "${CLIENT}" } }
    identity = { field = "${FIELD}" }
    [store]
    type = "postgres"
    url = "${URL}"
    migrate_url = "${MIGRATE_URL}"
    schema = "${SCHEMA}"
    setup = "${SETUP}"
    lock_timeout = "${LOCK}"
    [[effect]]
    sql = "INSERT INTO ${TABLE} VALUES (:id)"
    params.id = "${POINTER}"
"#;

/// The variables that a command asks for: those that are missed when nothing is set, or all are empty.
fn asked_for(text: &str, uses: Uses) -> Vec<String> {
    let asked = std::cell::RefCell::new(Vec::new());
    let lookup = |name: &str| {
        asked.borrow_mut().push(name.to_owned());
        Err(std::env::VarError::NotPresent)
    };
    let missed = match parse(Path::new("p.toml"), text, uses, &lookup) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.into_iter().map(|problem| problem.message).collect(),
    };
    let mut names = asked.into_inner();
    names
        .retain(|name| missed.iter().any(|problem| problem.contains(&format!("variable {name} is not set"))));
    assert!(missed.len() <= names.len(), "{uses:?}: {missed:?}");
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn a_command_asks_for_the_variables_of_the_parts_that_it_uses() {
    let pipeline = [
        "BATCH", "BROKERS", "CLIENT", "FIELD", "GROUP", "LOCK", "NAME", "ORDER", "POINTER", "SCHEMA",
        "SETUP", "TABLE", "TIMEOUT", "TOPIC", "URL", "WAIT",
    ];
    let store = ["BATCH", "LOCK", "NAME", "ORDER", "SCHEMA", "TIMEOUT", "URL"];
    let migration = ["BATCH", "LOCK", "MIGRATE_URL", "NAME", "ORDER", "SCHEMA", "SETUP", "TIMEOUT"];
    assert_eq!(asked_for(VARIABLES, Uses::Pipeline), pipeline);
    let mut all = [&pipeline[..], &["MIGRATE_URL"]].concat();
    all.sort_unstable();
    assert_eq!(asked_for(VARIABLES, Uses::PipelineAndMigration), all);
    assert_eq!(asked_for(VARIABLES, Uses::Store), store);
    assert_eq!(asked_for(VARIABLES, Uses::Migration), migration);
    let text: Vec<&str> = migration.into_iter().filter(|name| *name != "MIGRATE_URL").collect();
    assert_eq!(asked_for(VARIABLES, Uses::MigrationText), text);
    let mut redrive = [&store[..], &["FIELD"]].concat();
    redrive.sort_unstable();
    assert_eq!(asked_for(VARIABLES, Uses::StoreAndIdentity), redrive);
    assert_eq!(asked_for(VARIABLES, Uses::Policy), ["BATCH", "NAME", "ORDER", "TIMEOUT", "WAIT"]);
    assert_eq!(
        asked_for(VARIABLES, Uses::Source),
        ["BROKERS", "CLIENT", "FIELD", "GROUP", "TOPIC"],
        "what publish needs"
    );
    let without = VARIABLES.replace("migrate_url = \"${MIGRATE_URL}\"", "");
    assert!(asked_for(&without, Uses::Migration).contains(&"URL".to_owned()));
}

/// A variable that is set to nothing is as good as none where nobody reads it, and a mistake where it is used.
#[test]
fn an_empty_variable_is_a_mistake_only_where_it_is_used() {
    let lookup = |name: &str| match name {
        "NAME" => Ok("w".to_owned()),
        "BATCH" => Ok("1".to_owned()),
        "TIMEOUT" | "LOCK" => Ok("1s".to_owned()),
        "ORDER" => Ok("none".to_owned()),
        "URL" | "SCHEMA" | "TABLE" => Ok("x".to_owned()),
        _ => Ok(String::new()),
    };
    assert!(parse(Path::new("p.toml"), VARIABLES, Uses::Store, &lookup).is_ok());
    let problems = parse(Path::new("p.toml"), VARIABLES, Uses::Source, &lookup).unwrap_err();
    let said: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert!(said.iter().all(|said| said.starts_with("source.")), "{said:?}");
    assert!(said.iter().any(|said| said.starts_with("source.brokers: is empty")), "{said:?}");
}

/// What is no variable's fault is said by every command.
#[test]
fn a_mistake_in_a_part_that_is_not_used_is_still_said() {
    let text = VARIABLES.replace("url = \"${URL}\"", "urll = \"x\"\nurl = 5");
    let lookup = |name: &str| Ok(name.to_lowercase());
    let problems = parse(Path::new("p.toml"), &text, Uses::Source, &lookup).unwrap_err();
    let said = |words: &str| problems.iter().any(|problem| problem.message.contains(words));
    assert!(said("store.urll: unknown key") && said("store.url: expected"), "{problems:?}");
}

/// Copies go to the source's brokers, and never to where they would be read again.
#[test]
fn a_topic_for_dead_letters_needs_a_kafka_source_that_does_not_read_it() {
    let rest = format!("[identity]\nfield = \"/id\"\n[store]\ntype = \"sqlite\"\npath = \"s\"\n{EFFECT}");
    let kafka = "[source]\ntype = \"kafka\"\nbrokers = \"b\"\ntopics = [\"t\", \"u\"]\ngroup = \"g\"\n";
    let file = "[source]\ntype = \"file\"\npath = \"p\"\n";
    for (source, topic, word) in [
        (file, "\"u.dlq\"", "only with a Kafka source"),
        (kafka, "\"u\"", "the source reads u"),
        (kafka, "\"a b\"", "a topic's name has"),
        (kafka, "\"..\"", "a topic's name has"),
        (kafka, "\"\"", "a topic's name has"),
        (kafka, "7", "a string in quotes"),
    ] {
        let said = problems(&format!("name = \"w\"\n[dead_letter]\ntopic = {topic}\n{source}{rest}"));
        assert!(said.len() == 1 && said[0].starts_with("dead_letter.topic: "), "{topic}: {said:?}");
        assert!(said[0].contains(word), "{topic}: {said:?}");
    }
    let none = problems(&format!("name = \"w\"\n[dead_letter]\n{kafka}{rest}"));
    assert!(none[0].contains("dead_letter.topic: is missing"), "{none:?}");
    let config = parsed(
        Path::new("p.toml"),
        &format!("name = \"w\"\n[dead_letter]\ntopic = \"u.dlq\"\n{kafka}{rest}"),
    );
    let printed = crate::config::effective(&config);
    assert!(printed.contains("[dead_letter]\ntopic = \"u.dlq\"\n"), "{printed}");
}
