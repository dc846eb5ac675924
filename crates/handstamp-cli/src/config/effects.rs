//! The sections `[[effect]]`.

use super::load::{optional, pointer};
use super::model::EffectSection;
use super::parse::{Section, Text};
use super::sets;
use handstamp_stores::effect::{
    CompiledEffect, EffectError, EffectSpec, Encoding, ExpectRows, ParamSource, ParamSpec,
};
use std::collections::BTreeMap;
use toml_edit::{Item, Value};

/// What is done for each message, in the order of the file.
pub(super) fn read(top: &Section<'_, '_>) -> Vec<EffectSection> {
    let sections = top.sections("effect");
    let (written, line) = top.item("effect").unzip();
    if written.is_none_or(|item| item.as_array().is_some_and(toml_edit::Array::is_empty)) {
        let line = line.unwrap_or(1);
        top.problem(line, "effect", "no [[effect]] says what to do; add one with `sql = \"…\"`");
    }
    sections.into_iter().filter_map(effect).collect()
}

fn effect(section: Section<'_, '_>) -> Option<EffectSection> {
    let line = section.line;
    let sql = section.required_text("sql", "\"INSERT INTO t (id) VALUES (:message_id)\"");
    let mut expect_rows = expect_rows(&section);
    let set = sets::read(&section, &mut expect_rows);
    let optional = section.texts("optional").unwrap_or_default().into_iter().map(|text| text.value).collect();
    let params = params(&section);
    let when = section.text("when").filter(Text::is_known);
    let when_line = when.as_ref().map_or(line, |when| when.line);
    let compiled = sql.filter(Text::is_known).and_then(|sql| {
        let text = when.as_ref().map(|when| when.value.clone());
        let spec = EffectSpec { sql: sql.value.clone(), params, optional, expect_rows, when: text, set };
        match CompiledEffect::compile(&spec) {
            Ok(compiled) => Some(EffectSection { sql, when, spec, compiled, line }),
            Err(error) => {
                let is_condition = matches!(error, EffectError::When(_));
                let (at, key) = if is_condition { (when_line, "when") } else { (sql.line, "sql") };
                section.problem(at, key, error);
                None
            }
        }
    });
    section.finish();
    compiled
}

fn expect_rows(section: &Section<'_, '_>) -> Option<ExpectRows> {
    let (item, line) = section.item("expect_rows")?;
    match (item.as_integer().map(u64::try_from), item.as_str()) {
        (Some(Ok(rows)), _) => Some(ExpectRows::Exactly(rows)),
        (Some(Err(_)), _) => {
            section.problem(line, "expect_rows", "expected a whole number of 0 or more, or \"any\"");
            None
        }
        (_, Some("any")) => Some(ExpectRows::Any),
        _ => {
            section.wrong_type(line, "expect_rows", "a whole number or \"any\"", item);
            None
        }
    }
}

fn params(section: &Section<'_, '_>) -> BTreeMap<String, ParamSpec> {
    let Some(table) = section.section("params") else { return BTreeMap::new() };
    let mut params = BTreeMap::new();
    for (name, line) in table.keys() {
        let Some((item, _)) = table.item(&name) else { continue };
        let spec = match item {
            Item::Value(Value::String(_)) => table
                .text(&name)
                .and_then(|text| pointer(&table, line, &name, &text))
                .map(|pointer| ParamSpec::from_source(ParamSource::Body(pointer))),
            _ if item.as_table_like().is_some_and(toml_edit::TableLike::is_empty) => {
                let nothing =
                    "says nothing; write for example `{ pointer = \"/address/city\" }`, or remove it";
                table.problem(line, &name, nothing);
                None
            }
            _ if item.is_table_like() => table.section(&name).and_then(|inner| param(inner, line)),
            _ => {
                let expected = "a JSON pointer such as \"/address/city\", or a table of `pointer` or `header`, `encoding` and `as`";
                table.wrong_type(line, &name, expected, item);
                None
            }
        };
        params.extend(spec.map(|spec| (name, spec)));
    }
    params
}

pub(super) fn param(section: Section<'_, '_>, line: usize) -> Option<ParamSpec> {
    let body = section.text("pointer").and_then(|text| pointer(&section, line, "pointer", &text));
    let header = optional(&section, "header");
    let encoding = section.one_of("encoding", &[("base64", Encoding::Base64)]);
    let as_text = section.one_of("as", &[("text", true)]).unwrap_or(false);
    if section.has("pointer") && section.has("header") {
        section.problem(line, "pointer", "only one of `pointer` and `header`");
    }
    section.finish();
    let source = body.map(ParamSource::Body).or_else(|| header.map(|text| ParamSource::Header(text.value)));
    Some(ParamSpec { source, encoding, as_text })
}
