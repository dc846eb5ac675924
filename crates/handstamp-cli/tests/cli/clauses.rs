//! No error says a thing twice: every output of every test is searched.

use serde_json::Value;

/// Words that make a clause worth saying once; fewer are names and labels.
const WORDS_MIN: usize = 3;

/// A clause that an error, a finding or a reason says twice.
pub(crate) fn repeated(text: &str) -> Option<String> {
    let mut block = String::new();
    for line in text.lines() {
        if let Ok(object) = serde_json::from_str::<Value>(line)
            && let Some(found) = in_object(&object)
        {
            return Some(found);
        }
        let begins = ["error: ", "failed ", "warning "].iter().find_map(|start| line.strip_prefix(start));
        let goes_on =
            ["  because: ", "  hint: ", "         "].iter().find_map(|start| line.strip_prefix(start));
        let found = match (begins, goes_on) {
            // Several mistakes of one file may be of one kind.
            (Some(begun), _) => {
                block.push_str(begun);
                within(begun)
            }
            (None, Some(more)) if !block.is_empty() => {
                let found = within(more).or_else(|| clauses(more).find(|clause| block.contains(clause)));
                block.push_str(more);
                found
            }
            _ => {
                block.clear();
                None
            }
        };
        if let Some(found) = found {
            return Some(found.to_owned());
        }
    }
    None
}

fn clauses(line: &str) -> impl Iterator<Item = &str> {
    let pieces = line.split(": ").flat_map(|piece| piece.split("; ")).flat_map(|piece| piece.split(" ("));
    pieces
        .map(|piece| piece.trim_matches([' ', '.', ')']))
        .filter(|piece| piece.split(' ').count() >= WORDS_MIN)
}

fn within(line: &str) -> Option<&str> {
    clauses(line).find(|clause| line.matches(clause).count() > 1)
}

/// The texts of an object that say what went wrong.
fn in_object(value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| match value {
            Value::String(text) if ["error", "reason", "what"].contains(&name.as_str()) => {
                within(text).map(str::to_owned)
            }
            other => in_object(other),
        }),
        Value::Array(items) => items.iter().find_map(in_object),
        _ => None,
    }
}

#[test]
fn what_is_said_twice_is_found_and_what_only_looks_alike_is_not() {
    for (text, found) in [
        ("error: the table a is missing: the table a is missing", Some("the table a is missing")),
        (
            "error: no table\n  because: reading a: the table a is gone\n  because: the table a is gone",
            Some("the table a is gone"),
        ),
        (
            "error: there is no role x (SQLSTATE 42704)\n  because: ERROR: there is no role x",
            Some("there is no role x"),
        ),
        ("failed   store: the disk is full\n         free it: the disk is full", Some("the disk is full")),
        (r#"{"findings":[{"what":"it is bad: it is bad"}]}"#, Some("it is bad")),
        ("error: a.toml:1: x: expected a whole number\nerror: a.toml:2: y: expected a whole number", None),
        ("error: file a: file a", None),
        ("error: cannot read a\n  hint: is the name right?", None),
        ("a line of a log: it is bad: it is bad", None),
    ] {
        assert_eq!(repeated(text).as_deref(), found, "{text}");
    }
}
