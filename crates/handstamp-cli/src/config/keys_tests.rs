//! The table of keys against what the file's reader takes, the reference page and the JSON Schema.

use super::*;
use crate::config::Uses;
use crate::config::load::parse;
use std::collections::BTreeSet;
use std::path::Path;
use toml_edit::{DocumentMut, Item, value};

/// The values of a variable that a file may name: one for each kind of key.
const VARIABLES: [&str; 8] =
    ["1", "5s", "/x", "key", "block", "count", "base64", "INSERT INTO t VALUES (:id)"];

/// Values of every kind, right and wrong, as TOML.
const VALUES: &[&str] = &[
    "\"\"",
    "\"x\"",
    "\"/x\"",
    "\"/a~1b\"",
    "\"x/y\"",
    "\"my wallet\"",
    "\"5ms\"",
    "\"1h 30m\"",
    "\"0\"",
    "\"0s\"",
    "\"1.5s\"",
    "\"4 MiB\"",
    "\"16MB\"",
    "\"512\"",
    "\"1 k\"",
    "\"4 miles\"",
    "\"any\"",
    "\"text\"",
    "0",
    "1",
    "-1",
    "1000000",
    "1000001",
    "1099511627776",
    "1099511627777",
    "1.5",
    "true",
    "false",
    "[]",
    "[\"/a\", \"/b\"]",
    "[\"a\"]",
    "[1]",
    "{}",
    "{ a = 1 }",
    "{ a = true }",
    "{ a = [1] }",
    "{ id = \"/x\" }",
    "{ id = { as = \"text\" } }",
    "{ id = { pointer = \"/x\", header = \"h\" } }",
    "{ \"787\" = { max_attempts = 3 } }",
    "{ \"787\" = { max_attempt = 3 } }",
    "\"${V}\"",
    "\"${V:-x}\"",
    "\"$${\"",
    "\"partition\"",
    "\"none\"",
    "\"park\"",
    "\"dead_letter\"",
    "\"SELECT 1\"",
    "\"DROP TABLE t\"",
    "\"365days\"",
    "\"2 weeks\"",
    "\" 5 s \"",
    "\"id\"",
    "[\"id\"]",
    "\":type = 'a'\"",
    "{ a = \"numeric\" }",
    "\"SELECT count(*) FROM messages\"",
    "\"SELECT id FROM t ORDER BY id FOR NO KEY UPDATE\"",
    "\"127.0.0.1:9464\"",
    "\"localhost:9464\"",
];

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema()).expect("a schema")
}

fn json_of(document: &DocumentMut) -> Value {
    toml_edit::de::from_document(document.clone()).expect("JSON")
}

/// A pipeline of this source, with the store that goes with it.
fn pipeline(source: &str) -> DocumentMut {
    let ends = match source {
        "kafka" => {
            "source = { type = \"kafka\", brokers = \"b\", topics = [\"t\"], group = \"g\" }\n\
             store = { type = \"postgres\", url = \"postgres://h\" }\n"
        }
        _ => "source = { type = \"file\", path = \"p\" }\nstore = { type = \"sqlite\", path = \"s\" }\n",
    };
    let text = format!(
        "name = \"w\"\n{ends}identity = {{ field = \"/id\" }}\n\
         consumer = {{ version = \"/v\", version_key = \"/k\" }}\nretry = {{ max_attempts = 1000000 }}\n\
         [[effect]]\nsql = \"INSERT INTO t VALUES (:id)\"\n"
    );
    text.parse().expect("TOML")
}

/// The source of a pipeline in which a key may stand.
fn source_for(key: &Key) -> &'static str {
    match (key.of, key.split().0) {
        (Some("kafka" | "postgres"), _) | (_, "dead_letter") => "kafka",
        _ if ["identity.header", "identity.key", "effect.lock"].contains(&key.name) => "kafka",
        _ => "file",
    }
}

/// The words of a choice, as TOML.
fn words_of(key: &Key) -> Vec<String> {
    match key.kind {
        OneOf(words) => words.iter().map(|word| format!("\"{word}\"")).collect(),
        _ => Vec::new(),
    }
}

/// The pipeline with the key's value, and with what it needs beside it.
fn with(key: &Key, text: &str) -> DocumentMut {
    let mut document = pipeline(source_for(key));
    let item: Item = format!("x = {text}").parse::<DocumentMut>().expect("TOML")["x"].clone();
    let (section, own) = key.split();
    let item = Item::Value(item.into_value().expect("a value"));
    match section {
        "" => document[own] = item,
        "effect" => {
            if ["columns", "expect_rows_sql", "lock"].contains(&own) {
                document["effect"][0]["sql"] = value("INSERT INTO t SELECT message_id FROM messages");
                document["effect"][0]["set"] = value(true);
            }
            document["effect"][0][own] = item;
        }
        "identity" => {
            if !["long_ids", "digest"].contains(&own) {
                document.remove("identity");
            }
            document["identity"][own] = item;
        }
        "retention" => {
            document["retention"]["keep"] = value("30d");
            document["retention"][own] = item;
        }
        section => document[section][own] = item,
    }
    document
}

/// Whether the file's reader takes it, with any value of the variable.
fn is_read(document: &DocumentMut) -> bool {
    let text = document.to_string();
    let sets = if text.contains("${") { &VARIABLES[..] } else { &VARIABLES[..1] };
    sets.iter().any(|set| {
        let lookup = |_: &str| Ok((*set).to_owned());
        parse(Path::new("p.toml"), &text, Uses::PipelineAndMigration, &lookup).is_ok()
    })
}

/// `HANDSTAMP_UPDATE=1` writes the page's table anew.
#[test]
fn the_reference_page_has_this_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (before, rest) = page.split_once("| key | default | meaning |\n").expect("a table");
    let after: String = rest.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect();
    let wanted = format!("{before}{}{after}", reference());
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        std::fs::write(path, &wanted).expect("the page");
        return;
    }
    assert!(page == wanted, "HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli keys writes the table of {path}");
}

#[test]
fn a_key_has_one_row_and_a_section() {
    let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), KEYS.len());
    let sections: BTreeSet<&str> = SECTIONS.iter().map(|row| row.name).collect();
    for key in KEYS {
        let (section, _) = key.split();
        assert!(section.is_empty() || sections.contains(section), "{}: no such section", key.name);
        assert!(key.default.is_none() || as_json(key.default.unwrap_or_default()).is_some(), "{}", key.name);
        assert!(key.meaning.len() > 8 && !key.meaning.contains('\n'), "{}", key.name);
    }
}

/// What an editor calls wrong is wrong: the reader refuses it too.
#[test]
fn the_schema_takes_whatever_the_reader_takes() {
    let validator = validator();
    let mut read = BTreeSet::new();
    for key in KEYS {
        let words = words_of(key);
        for text in VALUES.iter().copied().chain(words.iter().map(String::as_str)) {
            let document = with(key, text);
            if !is_read(&document) {
                continue;
            }
            read.insert(key.name);
            let errors: Vec<String> =
                validator.iter_errors(&json_of(&document)).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{} = {text}: the schema refuses it: {errors:?}", key.name);
        }
    }
    // A table of nothing but refusals would prove nothing.
    let never: Vec<&str> = KEYS.iter().map(|key| key.name).filter(|name| !read.contains(name)).collect();
    // Of a type only the words of the other pipeline are read.
    assert!(never.is_empty(), "no value of these was read: {never:?}");
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "fraction",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "table",
    }
}

/// A value of a type that the reader never takes is marked by an editor too.
#[test]
fn the_schema_takes_no_type_that_the_reader_does_not_take() {
    let validator = validator();
    for key in KEYS {
        let words = words_of(key);
        let values: Vec<&str> = VALUES.iter().copied().chain(words.iter().map(String::as_str)).collect();
        let kind = |text: &str| type_of(&json_of(&format!("x = {text}").parse().expect("TOML"))["x"]);
        let read: BTreeSet<&str> =
            values.iter().filter(|text| is_read(&with(key, text))).map(|text| kind(text)).collect();
        for text in values {
            let is_taken = validator.is_valid(&json_of(&with(key, text)));
            assert!(!is_taken || read.contains(kind(text)), "{} = {text}: only {read:?} are read", key.name);
        }
    }
}

/// The words of a choice are those that the reader offers.
#[test]
fn the_words_of_a_choice_are_the_readers() {
    let lookup = |_: &str| Err(std::env::VarError::NotPresent);
    let mut choices = 0;
    for key in KEYS {
        let OneOf(words) = key.kind else { continue };
        choices += 1;
        let text = with(key, "\"qqqqqqqq\"").to_string();
        let problems = parse(Path::new("p.toml"), &text, Uses::Pipeline, &lookup).expect_err("no such word");
        let offered = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let said = format!("{}: expected one of {offered}; found", key.name.replace("effect.", "effect[1]."));
        assert!(problems.iter().any(|problem| problem.message.starts_with(&said)), "{said}: {problems:?}");
    }
    assert!(choices >= 5);
}

/// A required key that is missing is missed by both.
#[test]
fn a_required_key_is_required_by_both() {
    let validator = validator();
    for key in KEYS.iter().filter(|key| key.required) {
        let mut document = pipeline(source_for(key));
        let optional = |row: &&SectionRow| row.name == key.split().0 && !row.required;
        if let Some(row) = SECTIONS.iter().find(optional) {
            document[row.name]["unknown"] = value(1);
        }
        let (section, own) = key.split();
        let table = match section {
            "" => document.as_table_mut() as &mut dyn toml_edit::TableLike,
            "effect" => document["effect"][0].as_table_like_mut().expect("a table"),
            section => document[section].as_table_like_mut().expect("a table"),
        };
        table.remove(own);
        table.remove("unknown");
        assert!(!is_read(&document), "{} is not missed", key.name);
        assert!(!validator.is_valid(&json_of(&document)), "{} is not missed by the schema", key.name);
    }
    for row in SECTIONS {
        let mut document = pipeline("file");
        document.remove(row.name);
        assert_eq!(is_read(&document), !row.required, "{}", row.name);
        assert_eq!(validator.is_valid(&json_of(&document)), !row.required, "{}", row.name);
    }
}
