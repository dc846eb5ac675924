//! `[identity]`: where the producer put the id, what is done about long ones, and what must be equal where one comes
//! again.

use super::load::{optional, pointer};
use super::model::SourceSection;
use super::parse::Section;
use handstamp_core::json::Pointer;
use handstamp_core::{DigestFields, Identity, IdentityRule, LongIds};
use toml_edit::{Array, Table, value};

/// The keys of which exactly one says where the id is.
const PLACES: [&str; 5] = ["header", "field", "fields", "key", "cloudevents"];

/// Reads the section.
pub(super) fn read(section: Section<'_, '_>) -> Option<IdentityRule> {
    let header = optional(&section, "header").map(|text| Identity::Header(text.value));
    let field = section.text("field").and_then(|text| pointer(&section, text.line, "field", &text));
    let fields = pointers(&section, "fields");
    let key = switch(&section, "key");
    let cloud_events = switch(&section, "cloudevents");
    let written = PLACES.into_iter().filter(|key| section.has(key)).count();
    if written != 1 {
        let one = "exactly one of `header`, `field`, `fields`, `key = true` or `cloudevents = true` says where the \
                   producer put the id";
        let what = if written == 0 { "is missing" } else { "is not alone" };
        section.problem(section.line, "header", format_args!("{what}: {one}"));
    }
    let long_ids = section
        .one_of("long_ids", &[("refuse", LongIds::Refuse), ("hash", LongIds::Hash)])
        .unwrap_or_default();
    let digest = pointers(&section, "digest").and_then(DigestFields::new);
    section.finish();
    let identity = header
        .or_else(|| field.map(Identity::Field))
        .or_else(|| fields.map(Identity::Fields))
        .or_else(|| key.then_some(Identity::Key))
        .or_else(|| cloud_events.then_some(Identity::CloudEvents))?;
    Some(IdentityRule { identity, long_ids, digest })
}

/// A key that is true or not there.
fn switch(section: &Section<'_, '_>, key: &str) -> bool {
    let flag = section.flag(key);
    if flag == Some(false) {
        let line = section.item(key).map_or(section.line, |(_, line)| line);
        let message = "must be true; to take the id from elsewhere, write another of `header`, `field`, `fields`, \
                       `key` and `cloudevents` instead";
        section.problem(line, key, message);
    }
    flag.unwrap_or(false)
}

/// At least one pointer.
fn pointers(section: &Section<'_, '_>, key: &str) -> Option<Vec<Pointer>> {
    let texts = section.texts(key)?;
    if texts.is_empty() {
        let line = section.item(key).map_or(section.line, |(_, line)| line);
        section.problem(line, key, "names no field");
    }
    texts.iter().map(|text| pointer(section, text.line, key, text)).collect()
}

/// A line of a file is a value and nothing else: every message would be a dead letter.
pub(super) fn refuse_without_place(top: &Section<'_, '_>, source: &SourceSection, rule: &IdentityRule) {
    let (key, what) = match rule.identity {
        Identity::Header(_) => ("identity.header", "no headers"),
        Identity::Key => ("identity.key", "no key"),
        Identity::Field(_) | Identity::Fields(_) | Identity::CloudEvents => return,
    };
    if matches!(source, SourceSection::File(_)) {
        let line = top.item("identity").map_or(1, |(_, line)| line);
        let why = format_args!(
            "a line of a file has {what}: write `field` or `fields` with JSON pointers into the line"
        );
        top.problem(line, key, why);
    }
}

/// The section as `check --print` shows it.
pub(super) fn table(rule: &IdentityRule) -> Table {
    let list = |pointers: &[Pointer]| value(pointers.iter().map(Pointer::as_str).collect::<Array>());
    let mut table = Table::new();
    match &rule.identity {
        Identity::Header(name) => table["header"] = value(name.as_str()),
        Identity::Field(pointer) => table["field"] = value(pointer.as_str()),
        Identity::Fields(pointers) => table["fields"] = list(pointers),
        Identity::Key => table["key"] = value(true),
        Identity::CloudEvents => table["cloudevents"] = value(true),
    }
    table["long_ids"] = value(match rule.long_ids {
        LongIds::Refuse => "refuse",
        LongIds::Hash => "hash",
    });
    if let Some(fields) = &rule.digest {
        table["digest"] = list(fields.pointers());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::Uses;
    use super::super::load::{parse, parsed};
    use super::*;
    use std::path::Path;

    fn file(source: &str, identity: &str) -> String {
        format!(
            "name = \"w\"\nsource = {source}\nstore = {{ type = \"sqlite\", path = \"s\" }}\n[identity]\n{identity}\n\
             [[effect]]\nsql = \"SELECT 1\"\n"
        )
    }

    const FILE: &str = r#"{ type = "file", path = "-" }"#;

    fn rule(identity: &str) -> IdentityRule {
        parsed(Path::new("w.toml"), &file(FILE, identity)).identity
    }

    fn problems(identity: &str) -> Vec<String> {
        let lookup = |_: &str| Err(std::env::VarError::NotPresent);
        let problems =
            parse(Path::new("w.toml"), &file(FILE, identity), Uses::Pipeline, &lookup).unwrap_err();
        problems.into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn the_rule_is_what_the_section_says_and_comes_back_when_it_is_printed() {
        let field = Identity::Field(Pointer::member("id"));
        let pointers =
            |texts: &[&str]| texts.iter().map(|text| Pointer::parse(text).unwrap()).collect::<Vec<_>>();
        for (text, expected) in [
            ("field = \"/id\"", IdentityRule::new(field.clone())),
            ("cloudevents = true", IdentityRule::new(Identity::CloudEvents)),
            ("field = \"/id\"\nlong_ids = \"refuse\"", IdentityRule::new(field.clone())),
            ("field = \"/id\"\nlong_ids = \"hash\"", IdentityRule::new(field.clone()).hashing_long_ids()),
            (
                "field = \"/id\"\ndigest = [\"/b\", \"/a/b\"]",
                IdentityRule::new(field.clone()).digest_of(pointers(&["/a/b", "/b"])),
            ),
            ("field = \"/id\"\ndigest = \"/b\"", IdentityRule::new(field).digest_of(pointers(&["/b"]))),
        ] {
            assert_eq!(rule(text), expected, "{text}");
            assert_eq!(rule(&table(&expected).to_string()), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_is_said_with_its_key() {
        for (text, reason) in [
            ("field = \"/id\"\ncloudevents = true", "is not alone"),
            ("cloudevents = false", "identity.cloudevents: must be true"),
            ("long_ids = \"hash\"", "is missing: exactly one of"),
            ("field = \"/id\"\nlong_ids = \"cut\"", "expected one of \"refuse\", \"hash\""),
            ("field = \"/id\"\ndigest = []", "identity.digest: names no field"),
            ("field = \"/id\"\ndigest = [\"amount\"]", "must start with '/'"),
            ("field = \"/id\"\ndigest = 1", "expected a list of strings"),
        ] {
            let found = problems(text);
            assert!(found.iter().any(|problem| problem.contains(reason)), "{text}: {found:?}");
        }
    }
}
